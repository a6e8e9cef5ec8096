"""The clock on the wall is set by an hour under a running daemon: what is measured does not know it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import absent_if_impossible
from tests.faults.endpoint import Endpoint
from tests.faults.rig import patient, seen, slow_samples
from tests.faults.wall import own_wall_clock
from tests.processes import Daemon, until


@pytest.fixture
def wall(tmp_path: Path) -> Iterator[Path]:
    """A file with the seconds by which the clock on the wall is set for every process started meanwhile; no other clock is."""
    with absent_if_impossible(), own_wall_clock(tmp_path) as file:
        yield file


def shown_unix_s(daemon: Daemon) -> float:
    """The daemon's wall clock, by its latest reload of the configuration."""
    return daemon.value("llmslo_config_last_reload_success_timestamp_seconds")


def test_a_step_of_an_hour_changes_no_latency_and_no_budget(tmp_path: Path, wall: Path) -> None:
    """Forward, back, and over a restart: as many probes as were due, none slow, nothing refilled, and no drift."""
    store = ("--storage.path", tmp_path / "store")
    with Endpoint() as endpoint:
        text = patient(
            f"http://127.0.0.1:{endpoint.port}",
            rate=20,
            more="budget: {tokens_per_day: 50000000}",
        )
        with Daemon(tmp_path, text, *store) as daemon:
            until(lambda: seen(daemon).outcomes["ok"] >= 10, "good probes")
            before = shown_unix_s(daemon)
            for offset in ("3600", "-3600"):
                wall.write_text(offset)
                count, left = seen(daemon), daemon.value("llmslo_budget_remaining_ratio")
                until(lambda: seen(daemon).since(count).outcomes["ok"] >= 20, "probes after it")  # noqa: B023
                assert set(seen(daemon).since(count).outcomes) == {"ok"}
                assert daemon.value("llmslo_budget_remaining_ratio") < left
                assert daemon.value("llmslo_drift_active") == 0
            daemon.config.write_text(text + "# read again\n")
            until(lambda: shown_unix_s(daemon) < before - 3000, "the clock that was set back to be seen")
            left = daemon.value("llmslo_budget_remaining_ratio")
            assert slow_samples(daemon, 12.0) == 0
            assert daemon.stop() == 0
        wall.write_text(
            "90000"
        )  # 25 hours ahead, on the same machine: nothing may be refilled by a clock that is wrong
        with Daemon(tmp_path, text, *store) as daemon:
            until(lambda: seen(daemon).outcomes["ok"] >= 3, "good probes")
            assert daemon.value("llmslo_budget_remaining_ratio") <= left
