"""An engine's page that is out to harm: thousands of series whose labels are made to break what reads them."""

import subprocess
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.faults.endpoint import Endpoint, hostile_page
from tests.faults.rig import patient, resident_mb, seen, series
from tests.processes import Daemon, get, until

SERIES = 10_000


def test_hostile_labels_make_no_series_and_no_harm(tmp_path: Path, promtool: Path) -> None:
    """20,000 samples of 10,000 models: the prober's page stays as long as it was, is valid, and probing goes on."""
    with Endpoint() as endpoint:
        endpoint.metrics = hostile_page(1)
        text = patient(
            f"http://127.0.0.1:{endpoint.port}",
            page=f"'http://127.0.0.1:{endpoint.port}/metrics', interval: 4s",
        )
        with Daemon(tmp_path, text) as daemon:
            until(lambda: daemon.value("llmslo_engine_up") == 1, "the engine's page")
            until(lambda: seen(daemon).outcomes["ok"] >= 3, "good probes, whose series count as those of before")
            before, held, results = series(daemon), resident_mb(daemon.process.pid), seen(daemon)
            endpoint.metrics = hostile_page(SERIES)
            until(lambda: daemon.value("llmslo_engine_requests_running") == SERIES, "the engine's long page")
            until(lambda: seen(daemon).since(results).outcomes["ok"] >= 20, "probes beside it")
            text = get(daemon.url + "/metrics")
            assert series(daemon) <= before + 10
            assert resident_mb(daemon.process.pid) < held + 64
            assert list(text_string_to_metric_families(text))
            assert "evil" not in {line.split("{")[0].split(" ")[0] for line in text.splitlines()}
            checked = subprocess.run(
                [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
            )
            assert "error while linting" not in checked.stderr
            assert checked.returncode in (0, 3), checked.stderr
            assert set(seen(daemon).since(results).outcomes) <= {"ok", "invalid"}, (
                "a busy machine may miss a due time, and says so"
            )
