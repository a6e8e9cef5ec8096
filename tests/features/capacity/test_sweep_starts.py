"""The start of a sweep is kept, so that `min_gap` outlives restarts."""

import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from prober.features.capacity.actions import Refused, StartRequest
from prober.features.capacity.sweep_pauses import STARTS
from prober.storage.store import Store
from tests.features.capacity.stage import SLOTS, behind_a_gateway, staged, until
from tests.virtual import running

pytestmark = pytest.mark.virtual_time


async def test_the_start_of_a_sweep_outlives_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the sweep did not end: min_gap counts from its start, which is saved before anything is sent."""
    async with behind_a_gateway(10**6) as (url, received):
        async with staged(url, "min_gap: 1h", tmp_path) as stage:
            assert stage.store is not None
            saved = stage.store.save
            seen: list[int] = []

            def save(kind: str, *rest: Any) -> None:
                if kind == STARTS:
                    seen.append(len(received))
                saved(kind, *rest)

            monkeypatch.setattr(stage.store, "save", save)
            stage.sweeps.start("t", "schedule")
            await until(lambda: len(received) > 5)
            assert seen == [0], "once, and before the first request"
        async with staged(url, "min_gap: 1h", tmp_path) as stage:
            assert stage.sweeps.results() == []
            with pytest.raises(Refused, match="min_gap is 3600 s"):
                stage.sweeps.start("t", "schedule")
            stage.sweeps.start("t")
            await until(lambda: stage.value("llmslo_sweep_rate_per_second") > 0)


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("ago_s", "boot", "refused"),
    [
        (1800, "another", True),
        (7200, "another", False),
        (-86_400 * 365, "another", True),  # the clock was a year ahead
    ],
)
async def test_across_boots_only_the_wall_clock_tells_a_start(
    ago_s: float, boot: str, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start in the future holds a sweep back for one min_gap, however often the prober is restarted, and not for ever."""
    row = json.dumps({"boot": boot, "monotonic_ns": 1, "unix_s": time.time() - ago_s}).encode()
    store = Store(str(tmp_path))
    store.save(STARTS, [("t", row), ("other", b"no JSON")], time.time())
    store.close()
    async with running(SLOTS) as url:
        async with staged(url, "min_gap: 1h", tmp_path) as stage:
            if not refused:
                stage.sweeps.start("t", "schedule")
                return
            with pytest.raises(Refused, match="min_gap"):
                stage.sweeps.start("t", "schedule")
        monkeypatch.setattr("time.monotonic_ns", lambda now=time.monotonic_ns: now() + 3_700 * 10**9)
        async with staged(url, "min_gap: 1h", tmp_path) as stage:
            if boot == "another" and ago_s < 0:
                stage.sweeps.start("t", "schedule")


async def test_a_sweep_whose_start_cannot_be_saved_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be repeated after every restart; a requested one starts anyway."""
    async with behind_a_gateway(10**6) as (url, received), staged(url, "min_gap: 0s", tmp_path) as stage:
        assert stage.store is not None

        def full(*_: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        monkeypatch.setattr(stage.store, "save", full)
        stage.sweeps.start("t", "schedule")
        await until(lambda: stage.refused())
        await until(lambda: not stage.sweeps.under_way)
        assert stage.refused() == {"not_recorded": 1}
        assert received == []
        stage.sweeps.start("t")
        await until(lambda: len(received) > 0)


async def test_a_schedule_whose_period_is_min_gap_sweeps_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gap counts from when the sweep was due: alerts, the lock and the queue delay its start by some seconds."""
    async with staged("http://127.0.0.1:1", "min_gap: 1h") as stage:
        key, unix_s, now_ns = stage.target.spec.key, stage.clock.unix_s(), stage.clock.now_ns()
        await stage.sweeps.pauses.started(key, StartRequest("schedule", unix_s - 20))
        monkeypatch.setattr(stage.clock, "now_ns", lambda: now_ns + 3_580 * 10**9)
        stage.target_sweeps.check_pause(StartRequest("schedule", unix_s + 3_580))
        await stage.sweeps.pauses.started(key, StartRequest("change"))
        with pytest.raises(Refused, match="min_gap"):
            stage.target_sweeps.check_pause(StartRequest("schedule", unix_s + 3_580))
