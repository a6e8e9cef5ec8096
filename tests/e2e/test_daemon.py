"""The daemon as people run it: a process of its own, a real mock server, a real Prometheus."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics

from tests.commands import prober
from tests.deploy.rendering import chart
from tests.processes import HANG_S, Daemon, Mock, Program, fetch, free_port, get, until

CONFIG = "targets:\n  - {{name: {name}, url: 'http://127.0.0.1:{port}', rate: 20/s, max_in_flight: 200}}\n"


@pytest.fixture(scope="module")
def mock_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with Mock(tmp_path_factory.mktemp("mock") / "log", "--ttft", "10ms", "--itl", "1ms") as mock:
        yield mock.port


@pytest.fixture
def daemon(tmp_path: Path, mock_port: int) -> Iterator[Daemon]:
    config = CONFIG.format(name="one", port=mock_port)
    with Daemon(tmp_path, config, "--web.grafana-url=https://grafana.example/", "--vantage=eu-west-1") as started:
        yield started


def test_it_probes_is_read_and_ends_in_peace(daemon: Daemon, promtool: Path) -> None:
    """Probes count, each series of a target has the vantage, promtool has nothing to say, SIGTERM ends with 0."""
    until(lambda: daemon.value("llmslo_ttft_seconds_count", target="one") >= 5, "five measured probes")
    assert get(daemon.url + "/-/healthy") == "Healthy\n"
    text = get(daemon.url + "/metrics")
    openmetrics = get(daemon.url + "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert openmetrics.endswith("# EOF\n")
    for line in (text + openmetrics).splitlines():
        assert line.startswith("#") or ('vantage="eu-west-1"' in line) == ('target="' in line), line
    names = {family.name for family in read_openmetrics(openmetrics)}  # type: ignore[no-untyped-call]
    assert {"llmslo_probes", "llmslo_ttft_seconds", "llmslo_trusted", "process_cpu_seconds"} <= names
    assert {"llmslo_event_loop_lag_seconds", "llmslo_receive_delay_seconds"} <= names
    assert "_created" not in text
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    shown = get(daemon.url + "/")
    assert "<svg" in shown
    assert 'href="https://grafana.example/d/llm-slo-target' in shown
    probes = json.loads(get(daemon.url + "/api/v1/probes?limit=3"))["data"]
    assert len(probes) == 3
    assert json.loads(get(daemon.url + "/api/v1/targets"))["data"][0]["state"] == "ready"
    assert daemon.stop() == 0


def test_the_end_of_a_pod_is_no_failure_of_its_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kubelet ends it: the engine gets its signal, the hook runs a moment later, the sidecar ends last."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with (
        Mock(tmp_path / "mock", "--ttft", "400ms", "--itl", "1ms") as engine,
        Daemon(tmp_path, CONFIG.format(name="one", port=engine.port)) as sidecar,
    ):
        until(lambda: sidecar.value("llmslo_ttft_seconds_count", target="one") >= 5, "five measured probes")
        engine.kill()
        assert prober("drain", "--pid", sidecar.process.pid).returncode == 0
        until(lambda: sidecar.value("llmslo_probes_neutral_total", reason="cancelled") >= 5, "what was under way")
        assert sidecar.value("llmslo_target_state", state="draining") == 1
        assert sidecar.value("llmslo_probe_failures_total") == 0
        assert sidecar.stop() == 0
        assert "the pod is being ended: no more probes of 1 target" in sidecar.log.read_text()


def test_helm_test_says_whether_it_works(daemon: Daemon) -> None:
    """The script of the chart's Job passes on a prober that serves its pages, and prints its targets; it fails where nobody listens."""
    until(lambda: daemon.value("llmslo_target_state", state="ready"), "the target to be ready")
    (job,) = (manifest for manifest in chart() if manifest["kind"] == "Job")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    script = container["args"][0]
    done = subprocess.run([sys.executable, "-c", script, daemon.url], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{daemon.url}: ready\none: ready\n")
    nobody = f"http://127.0.0.1:{free_port()}"
    once = script.replace("range(30)", "range(1)")
    done = subprocess.run([sys.executable, "-c", once, nobody], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"{nobody}/-/ready: " in done.stderr


def test_a_reload_keeps_what_did_not_change(daemon: Daemon, mock_port: int) -> None:
    """By POST, SIGHUP and file change; a bad file changes nothing and is told; what is gone leaves no series."""
    until(lambda: daemon.value("llmslo_probes_total", target="one") >= 10, "ten probes")
    before = daemon.value("llmslo_probes_total", target="one")
    good = daemon.config.read_text()
    daemon.config.write_text("targets: 5\n")
    status, text = fetch(daemon.url + "/-/reload", "POST")
    assert status == 500
    assert "targets: needed: a list of targets" in text
    assert daemon.value("llmslo_config_last_reload_successful") == 0
    assert daemon.value("llmslo_probes_total", target="one") >= before

    daemon.config.write_text(good + CONFIG.format(name="two", port=mock_port).split("\n", 1)[1])
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: daemon.value("llmslo_probes_total", target="two") >= 3, "the second target")
    assert daemon.value("llmslo_config_last_reload_successful") == 1
    assert daemon.value("llmslo_probes_total", target="one") >= before

    swapped = daemon.config.with_suffix(".new")
    swapped.write_text(CONFIG.format(name="two", port=mock_port))
    os.replace(swapped, daemon.config)  # as a ConfigMap's symlink is swapped
    until(lambda: daemon.value("llmslo_target_state", target="one") == 0, "the first target to be gone")
    assert 'target="one"' not in get(daemon.url + "/metrics")
    assert daemon.value("llmslo_probes_total", target="two") >= 3


def test_targets_of_a_file_come_and_go(tmp_path: Path, mock_port: int) -> None:
    """Without any configured target; series begin and end with them, and a bad file changes nothing."""
    listed = tmp_path / "targets.json"

    def write(*names: str) -> None:
        next_ = tmp_path / "next"
        at = f"127.0.0.1:{mock_port}"
        next_.write_text(
            json.dumps(
                [{"targets": [at], "labels": {"name": n, "__path__": f"/v1{'/' * i}"}} for i, n in enumerate(names)]
            )
        )
        next_.rename(listed)

    write("one")
    template = "target: {rate: 20/s, warmup: 0}, hosts: [127.0.0.0/8]"
    config = f"discovery: [{{file: {{files: ['{listed}'], interval: 1s}}, {template}}}]\n"
    with Daemon(tmp_path, config) as daemon:
        until(lambda: daemon.value("llmslo_probes_total", target="one") >= 3, "the first target")
        assert daemon.value("llmslo_discovery_targets", discovery="file") == 1
        assert daemon.value("llmslo_discovery_up", discovery="file") == 1
        listed.write_text("{")
        until(lambda: daemon.value("llmslo_discovery_failures_total", discovery="file") >= 1, "the failure to be told")
        before = daemon.value("llmslo_probes_total", target="one")
        until(lambda: daemon.value("llmslo_probes_total", target="one") > before, "it to go on")
        write("two")
        until(lambda: daemon.value("llmslo_probes_total", target="two") >= 3, "the second target")
        until(lambda: 'target="one"' not in get(daemon.url + "/metrics"), "the first to be gone")
        assert daemon.stop() == 0


NO_CA = "targets: [{name: a, url: https://h, tls: {ca_file: /nowhere/ca.pem}}]"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (CONFIG.format(name="a", port=1), "--web.listen-address 127.0.0.1:{port}: "),
        ("targets: [{url: http://h, ulr: 1}]", "targets[0].ulr: unknown key"),
        (NO_CA, "targets[0].tls.ca_file: /nowhere/ca.pem: No such file or directory"),
    ],
)
def test_what_cannot_start_says_why(tmp_path: Path, config: str, message: str) -> None:
    """Exit code 1 and one clear message: a taken port, a bad file, a CA that is not there."""
    (tmp_path / "c.yaml").write_text(config)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ("run", "--config.file", tmp_path / "c.yaml", "--web.listen-address", f"127.0.0.1:{port}")
        with Program(tmp_path / "log", *words) as ended:
            assert ended.process.wait(HANG_S) == 1
    assert message.format(port=port) in ended.log.read_text()
    assert "Traceback" not in ended.log.read_text()
