"""`prober dashboards push` and the daemon's synchronisation, against the stand-in."""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from prober.daemon.dashboards import files
from tests.commands import prober
from tests.features.grafana.grafana_server import LOGIN, TOKEN, Fault, Grafana, standing_in
from tests.processes import Daemon, Mock, get, until

COUNT = len(files())


@pytest.fixture
def grafana() -> Iterator[Grafana]:
    with standing_in(Grafana()) as server:
        yield server


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    return path


def cli(*words: object, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    done = prober("dashboards", "push", *words, env={"GRAFANA_TOKEN": ""} | (environment or {}))
    assert TOKEN not in done.stdout + done.stderr
    return done


def test_push_again_edit_and_force(grafana: Grafana, token: Path) -> None:
    """Exit codes and texts for a pipeline: 0 done, 5 a dry run would change something, 1 a dashboard was left alone."""
    where = ("--url", grafana.url, "--token-file", token)
    dry = cli(*where, "--dry-run")
    assert (dry.returncode, grafana.writes) == (5, [])
    assert dry.stdout.count("would be created") == COUNT
    first = cli(*where)
    assert (first.returncode, first.stderr) == (0, "")
    assert "LLM SLO / Overview (/d/llm-slo): created" in first.stdout
    grafana.asked.clear()
    again = cli(*where)
    assert (again.returncode, again.stdout.count(": unchanged"), grafana.writes) == (0, COUNT, [])
    assert cli(*where, "--dry-run").returncode == 0
    grafana.edit("llm-slo", title="Mine")
    left = cli(*where)
    assert left.returncode == 1
    assert "LLM SLO / Overview (/d/llm-slo): edited: somebody else saved it since" in left.stderr
    assert grafana.dashboards["llm-slo"].document["title"] == "Mine"
    assert cli(*where, "--force", "--dry-run").returncode == 5
    assert grafana.dashboards["llm-slo"].document["title"] == "Mine"
    assert cli(*where, "--force").returncode == 0
    assert grafana.dashboards["llm-slo"].document["title"] == "LLM SLO / Overview"


def test_a_refusal_is_explained(grafana: Grafana, token: Path, tmp_path: Path) -> None:
    """One line with the address, without the token."""
    wrong = tmp_path / "wrong"
    wrong.write_text("glsa_wrong")
    done = cli("--url", grafana.url, "--token-file", wrong)
    assert done.returncode == 1
    assert "HTTP 401 (Invalid API key): the token is not valid" in done.stderr
    assert "glsa_wrong" not in done.stderr
    assert grafana.url in done.stderr
    grafana.faults["GET", "/api/dashboards"] = Fault(200, LOGIN, "text/html")
    done = cli("--url", grafana.url, "--token-file", token)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "behind any login or proxy" in done.stderr
    assert cli("--url", grafana.url, "--token-file", tmp_path / "none").returncode == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give --url, such as https://grafana.example.org, or a --config.file"),
        (("--url", "grafana:3000", "--token-file", "x"), "is not an http or https URL"),
        (("--url", "http://admin:secret@grafana", "--token-file", "x"), "has a user or password in it"),
        (("--url", "http://grafana:3000"), "no token"),
        (("--url", "http://grafana:3000", "--config.file", "x"), "give --url, such as"),
    ],
)
def test_a_wrong_call_is_an_error(words: tuple[str, ...], message: str) -> None:
    """With exit code 2 and without secrets."""
    done = cli(*words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "secret" not in done.stderr


def test_a_token_from_the_environment_and_a_configuration(grafana: Grafana, token: Path, tmp_path: Path) -> None:
    """Address, token and folder of the configuration, or of the command line."""
    assert cli("--url", grafana.url, environment={"GRAFANA_TOKEN": TOKEN}).returncode == 0
    config = tmp_path / "prober.yaml"
    config.write_text(
        "targets: [{name: one, url: 'http://127.0.0.1:1'}]\n"
        f"grafana: {{url: {grafana.url}, auth: {{bearer_token_file: {token}}}, folder: Models}}\n"
    )
    grafana.dashboards.clear()
    assert cli("--config.file", config).returncode == 0
    assert {dashboard.folder_uid for dashboard in grafana.dashboards.values()} == {"models"}
    config.write_text("targets: [{name: one, url: 'http://127.0.0.1:1'}]\n")
    assert "has no `grafana:`" in cli("--config.file", config).stderr


# --- the daemon


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[[str], Daemon]]:
    with ExitStack() as running:
        yield lambda config: running.enter_context(Daemon(tmp_path, config))


@pytest.fixture(scope="module")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mock]:
    with Mock(tmp_path_factory.mktemp("mock") / "log", "--ttft", "10ms", "--itl", "1ms") as started:
        yield started


def config(mock: Mock, grafana: Grafana, token: Path, more: str = "") -> str:
    return (
        f"targets: [{{name: one, url: 'http://127.0.0.1:{mock.port}', rate: 5/s, max_in_flight: 200, "
        "metrics: {interval: 500ms}}]\n"
        f"grafana: {{url: {grafana.url}, auth: {{bearer_token_file: {token}}}{more}}}\n"
    )


def test_the_daemon_keeps_dashboards_and_marks_events(
    grafana: Grafana, token: Path, mock: Mock, begin: Callable[[str], Daemon]
) -> None:
    """Pushed at the start, marked when the engine restarts, pushed elsewhere after a reload; it ends in peace."""
    daemon = begin(config(mock, grafana, token))
    until(lambda: daemon.value("llmslo_grafana_dashboards", state="current") == COUNT, "the dashboards")
    assert len(grafana.dashboards) == COUNT
    assert daemon.value("llmslo_grafana_sync_last_success_timestamp_seconds", object="dashboards") > time.time() - 60
    assert daemon.value("llmslo_grafana_sync_failures_total") == 0
    until(lambda: daemon.value("llmslo_engine_up", target="one") == 1, "the engine's page")
    mock.kill()
    mock.start()
    until(lambda: grafana.annotations, "the mark")
    (marked,) = grafana.annotations
    assert marked["tags"] == ["llm-slo-prober", "one", "engine"]
    assert marked["text"] == "one: restart"
    events = json.loads(get(daemon.url + "/api/v1/events?target=one"))["data"]
    assert [round(event["unix_s"] * 1e3) for event in events if event["kind"] == "engine"] == [marked["time"]]
    with standing_in(Grafana()) as other:
        daemon.config.write_text(config(mock, other, token, ", folder: Models, annotations: false"))
        until(lambda: len(other.dashboards) == COUNT, "the dashboards of the other Grafana")
        assert {dashboard.folder_uid for dashboard in other.dashboards.values()} == {"models"}
        assert other.annotations == []
    assert TOKEN not in daemon.log.read_text()
    assert daemon.stop() == 0


def test_a_grafana_that_fails_is_a_series_and_a_line(
    grafana: Grafana, token: Path, mock: Mock, begin: Callable[[str], Daemon]
) -> None:
    """Probing continues; a reload synchronises with a repaired Grafana; one that hangs does not delay the shutdown."""
    grafana.faults["GET", "/api/dashboards"] = Fault(200, LOGIN, "text/html")
    daemon = begin(config(mock, grafana, token))
    until(lambda: daemon.value("llmslo_grafana_sync_failures_total", object="dashboards") == 1, "the failure")
    until(lambda: "synchronisation of dashboards fails, and is tried every 30 s" in daemon.log.read_text(), "the line")
    assert "behind any login or proxy" in daemon.log.read_text()
    until(lambda: daemon.value("llmslo_probes_total", target="one") >= 3, "probes")
    grafana.faults.clear()
    get(daemon.url + "/-/reload", "POST")
    until(lambda: len(grafana.dashboards) == COUNT, "the dashboards")
    grafana.faults["GET", "/api/dashboards"] = Fault(200, "{}", slow_s=60.0)
    request_count = len(grafana.asked)
    get(daemon.url + "/-/reload", "POST")
    until(lambda: len(grafana.asked) > request_count, "the synchronisation that hangs")
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(25) == 0
