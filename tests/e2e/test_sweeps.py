"""Sweeps as people run them: `prober sweep`, and a daemon that is asked for one and dies in the middle of it."""

import http.client
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from prober.edge.prometheus import Unanswered, instant

CONFIG = """
defaults: {{rate: 5/s, max_send_lag: 5s, warmup: 0}}
slos: {{quick: {{signal: ttft, threshold: 500ms, objective: 90%}}}}
workloads: {{tiny: {{prompt_tokens: 20, output_tokens: 4}}}}
targets: [{{name: one, url: 'http://127.0.0.1:{port}', probes: [{{workload: tiny}}],
  sweep: {{workload: tiny, min_rate: 2/s, max_rate: 50/s}}}}]
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def asked(url: str, method: str = "GET") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def until(true: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while True:
        try:
            if seen := true():
                return seen
        except (OSError, http.client.HTTPException):
            pass
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.05)


@pytest.fixture
def mock() -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """Its address, and its process."""
    port = free_port()
    options = ["--ttft", "50ms", "--itl", "1ms", "--slots", "4"]
    process = subprocess.Popen(
        [sys.executable, "-m", "prober", "mock", "--port", str(port), *options], stdout=subprocess.DEVNULL
    )
    until(lambda: asked(f"http://127.0.0.1:{port}/version")[0] == 200, "the mock")
    yield f"http://127.0.0.1:{port}", process
    process.kill()
    process.wait(10)


class Daemon:
    """`prober run` with a store and the API to ask for sweeps."""

    def __init__(self, folder: Path, target: str) -> None:
        (folder / "prober.yaml").write_text(CONFIG.format(port=target.rpartition(":")[2]))
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "prober", "run", "--config.file", str(folder / "prober.yaml")]
        options = ["--web.listen-address", f"127.0.0.1:{port}", "--storage.path", str(folder / "store")]
        with (folder / "log").open("ab") as log:
            self.process = subprocess.Popen([*command, *options, "--web.enable-admin-api"], stderr=log)
        until(lambda: asked(self.url + "/-/ready")[0] == 200, "the daemon to be ready")
        until(lambda: self.values("llmslo_target_state").get("ready"), "the target to be ready")

    def values(self, name: str) -> dict[str, float]:
        """Last label to value."""
        return {
            list(sample.labels.values())[-1]: sample.value
            for family in text_string_to_metric_families(asked(self.url + "/metrics")[1])
            for sample in family.samples
            if sample.name == name
        }

    def begin(self) -> str:
        """A sweep that sends; its id."""
        status, said = asked(self.url + "/api/v1/sweeps?target=one", "POST")
        assert status == 202, said
        until(lambda: self.values("llmslo_sweep_rate_per_second")["one"] > 0, "the sweep to send")
        return str(json.loads(said)["data"]["id"])


@pytest.fixture
def daemon(tmp_path: Path, mock: tuple[str, "subprocess.Popen[bytes]"]) -> Iterator[Callable[[], Daemon]]:
    started: list[Daemon] = []

    def start() -> Daemon:
        started.append(Daemon(tmp_path, mock[0]))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait(10)


def test_a_killed_daemon_leaves_no_capacity_and_no_lock(daemon: Callable[[], Daemon]) -> None:
    """In the middle of a sweep: the next one begins with nothing found, may sweep at once, and its result has the id it told."""
    first = daemon()
    first.begin()
    first.process.kill()
    first.process.wait(10)
    again = daemon()
    assert again.values("llmslo_capacity_requests_per_second") == {}
    assert json.loads(asked(again.url + "/api/v1/sweeps")[1])["data"] == []
    identity = again.begin()
    assert asked(again.url + "/api/v1/sweeps?target=one", "DELETE")[0] == 200
    result = f"{again.url}/api/v1/sweeps/{identity}"
    until(lambda: asked(result)[0] == 200, "the result")
    assert "stopped on request" in asked(result)[1]


def test_a_killed_engine_leaves_no_capacity(
    daemon: Callable[[], Daemon], mock: tuple[str, "subprocess.Popen[bytes]"]
) -> None:
    """The sweep ends by what failed, and finds nothing."""
    running = daemon()
    running.begin()
    mock[1].kill()
    until(lambda: sum(running.values("llmslo_sweeps_total").values()), "the sweep to end")
    ended = {reason for reason, count in running.values("llmslo_sweep_stops_total").items() if count}
    assert ended <= {"failed", "smoke_failed", "guard", "page_lost", "breaching", "knee_passed", "slow"}, ended
    assert running.values("llmslo_sweeps_total")["found"] == 0
    assert running.values("llmslo_headroom_ratio") == {}


def test_a_target_that_fails_at_the_lowest_rate_is_told_with_its_figures(
    tmp_path: Path, mock: tuple[str, "subprocess.Popen[bytes]"]
) -> None:
    """Exit code 2, the rate at which it does not hold, and the counts that say so."""
    kept = tmp_path / "kept.json"
    options = [
        "--slo",
        "ttft<300ms:99%",
        "--min-rate",
        "4/s",
        "--warm-up",
        "3",
        "--sustain",
        "0s",
        "--output",
        str(kept),
    ]
    shape = ["--prompt-tokens", "20", "--output-tokens", "4", "--header", "X-Mock-Fault: latency:8"]
    command = [sys.executable, "-m", "prober", "sweep", mock[0], *options, *shape]
    for _ in range(5):
        ended = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        if "ended by prober_late" not in ended.stdout:
            break  # a busy machine says so instead
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert "ttft does not hold at 4/s, the lowest rate" in ended.stdout
    assert "ramp 4/s" in ended.stdout
    found = json.loads(kept.read_text())["llm_slo_prober"]["result"]
    assert [each["verdict"] for each in found["capacities"]] == ["below_lowest"]
    (stage,) = found["stages"]
    assert stage["sent"] >= stage["slos"]["ttft"][1] >= 2


@pytest.fixture
def prometheus(tmp_path: Path, prometheus_binary: Path) -> Iterator[str]:
    """A real one, that scrapes nobody."""
    (tmp_path / "prometheus.yml").write_text("{}")
    port = free_port()
    options = [f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/tsdb"]
    with (tmp_path / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([prometheus_binary, *options, f"--web.listen-address=127.0.0.1:{port}"], stderr=log)
    until(lambda: asked(f"http://127.0.0.1:{port}/-/ready")[0] == 200, "Prometheus")
    yield f"http://127.0.0.1:{port}"
    process.kill()
    process.wait(10)


async def test_a_demand_is_one_number_that_is_known(prometheus: str) -> None:
    """Of a series or a scalar; no data, NaN, several series and bad PromQL are not known, and each says why."""
    assert await instant(prometheus, "vector(4.5)") == 4.5
    assert await instant(prometheus, "scalar(vector(2))") == 2.0
    for query, said in (
        ("sum(rate(nobody_total[5m]))", "gives no data"),
        ("vector(0) / 0", "gives nan"),
        ('vector(1) or label_replace(vector(2), "a", "b", "", "")', "gives 2 series; sum"),
        ("vector(1)[5m:1m]", "does not give a number"),
        ("sum(", "parse error"),
        ('"words"', "does not give a number"),
    ):
        with pytest.raises(Unanswered, match=said):
            await instant(prometheus, query)
