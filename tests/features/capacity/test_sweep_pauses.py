"""A target is not swept within `min_gap` of its last sweep, nor while it asks to be left alone; also after a restart."""

import asyncio
import json
import shutil
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from prober.features.capacity.actions import Refused, StartRequest
from prober.features.capacity.sweep_pauses import QUIET, STARTS, SweepPauses
from prober.features.capacity.sweep_result import result_of
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.net.clock import Clock
from prober.storage.store import Store
from tests.features.capacity.stage import SLOTS, Stage, behind_a_gateway, staged, until
from tests.virtual import make_clock, running

pytestmark = pytest.mark.virtual_time

HOUR_S = 3600.0


def refused_probe(stage: Stage, pause_s: float | None) -> ProbeResult:
    """A scheduled probe that the target answered with 503 and Retry-After."""
    timeline = Timeline(stage.clock.now_ns())
    detail = "HTTP 503"
    return ProbeResult("t", "probe", "id", 0.0, Outcome.HTTP_5XX, detail, timeline, retry_after_s=pause_s)


def start(stage: Stage) -> None:
    stage.sweeps.start("t")


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
        await stage.sweeps.parts.pauses.started(key, StartRequest("schedule", unix_s - 20))
        monkeypatch.setattr(stage.clock, "now_ns", lambda: now_ns + 3_580 * 10**9)
        stage.target_sweeps.check(StartRequest("schedule", unix_s + 3_580))
        await stage.sweeps.parts.pauses.started(key, StartRequest("change"))
        with pytest.raises(Refused, match="min_gap"):
            stage.target_sweeps.check(StartRequest("schedule", unix_s + 3_580))


async def test_a_scheduled_probe_s_retry_after_refuses_sweeps_and_ends_the_one_under_way() -> None:
    """The scheduled probes go on, since they are an open loop."""
    async with running(SLOTS) as url, staged(url, "min_gap: 0s") as stage:
        start(stage)
        await until(lambda: stage.value("llmslo_sweep_rate_per_second") > 0)
        stage.observed.probe_ended(refused_probe(stage, HOUR_S))
        await until(stage.is_swept)
        (result,) = stage.sweeps.results()
        assert (result.stop, result.stop_detail) == ("retry_after", "3600 s")
        assert result.retry_after_s == pytest.approx(HOUR_S, abs=10)
        with pytest.raises(Refused, match="left alone"):
            start(stage)


async def test_a_sweep_does_not_start_while_it_looks_at_a_target_that_asks_to_be_left_alone() -> None:
    """No request of it is sent."""
    async with behind_a_gateway(0) as (url, received), staged(url, "min_gap: 0s") as stage:
        start(stage)
        await until(lambda: stage.target_sweeps.runner is not None)
        stage.observed.probe_ended(refused_probe(stage, HOUR_S))
        await until(stage.is_swept)
        assert received == []


async def test_an_answer_without_retry_after_refuses_nothing() -> None:
    """Nor does a pause that is over."""
    async with running(SLOTS) as url, staged(url, "min_gap: 0s") as stage:
        stage.observed.probe_ended(refused_probe(stage, None))
        stage.observed.probe_ended(refused_probe(stage, 0.0))
        start(stage)


async def test_a_probe_s_retry_after_survives_a_restart(tmp_path: Path) -> None:
    """Of the target at this URL only."""
    async with running(SLOTS) as url, running(SLOTS) as other:
        async with staged(url, "min_gap: 0s", folder=tmp_path) as stage:
            stage.observed.probe_ended(refused_probe(stage, HOUR_S))
        async with staged(url, "min_gap: 0s", folder=tmp_path) as stage:
            with pytest.raises(Refused, match=r"left alone for 3[56]\d\d s more"):
                start(stage)
        async with staged(other, "min_gap: 0s", folder=tmp_path) as stage:
            start(stage)


async def test_the_retry_after_of_a_sweep_survives_a_kill_before_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store as it is when the answer has arrived, and the sweep goes on to its estimate."""
    killed = tmp_path / "killed"

    def copied(*of_sweep: Any) -> Any:
        shutil.copytree(tmp_path / "running", killed)
        return result_of(*of_sweep)

    monkeypatch.setattr("prober.features.capacity.sweep_job.result_of", copied)
    async with (
        behind_a_gateway(20, {"Retry-After": "3600"}) as (url, _),
        staged(url, "min_gap: 0s", folder=tmp_path / "running") as stage,
    ):
        start(stage)
        await until(killed.exists)
        async with staged(url, "min_gap: 0s", folder=killed) as restarted:
            with pytest.raises(Refused, match="left alone"):
                start(restarted)
            assert restarted.sweeps.results() == []


async def test_a_shorter_pause_does_not_end_a_longer_one() -> None:
    """The latest end counts, and is over when it has passed."""
    now_ns = 0
    clock = Clock(time.time, lambda: now_ns)
    quiet = SweepPauses(None, clock)
    quiet.retry_after("t", "u", 100.0)
    quiet.retry_after("t", "u", 10.0)
    assert quiet.quiet_s("t", "u") == 100.0
    now_ns = 101 * 10**9
    assert quiet.quiet_s("t", "u") < 0
    assert quiet.quiet_s("t", "other") <= 0
    clock.close()


@pytest.mark.parametrize("is_rebooted", [False, True])
async def test_a_clock_that_is_set_does_not_change_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_rebooted: bool
) -> None:
    """Within one boot it does not count; after another one at most the pause itself is left, and nothing of one that is over."""
    for at_s, left_s in ((1_000_000.0, 60.0), (1_000_030.0, 30.0), (1_000_061.0, -1.0), (500_000.0, 60.0)):
        folder = str(tmp_path / f"{at_s}")
        store, clock = Store(folder), Clock(lambda: 1_000_000.0, lambda: 7 * 10**9)
        quiet = SweepPauses(store, clock)
        quiet.retry_after("t", "u", 60.0)
        await quiet.close()
        store.close()
        with monkeypatch.context() as patched:
            if is_rebooted:
                patched.setattr("prober.storage.saved_rows._boot", lambda: "another")
            store, later = Store(folder), Clock(lambda at_s=at_s: at_s, lambda: 9 * 10**9)  # type: ignore[misc]
            left = SweepPauses(store, later).quiet_s("t", "u")
        assert left == pytest.approx(left_s if is_rebooted else 58.0)
        store.close()
        clock.close()
        later.close()


async def test_many_answers_cost_few_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One a second at most, whatever the rate of the probes."""
    store, now_ns = Store(str(tmp_path)), 0
    clock = Clock(time.time, lambda: now_ns)
    written: list[object] = []
    monkeypatch.setattr(store, "save", lambda *row: written.append(row))
    quiet = SweepPauses(store, clock)
    for _ in range(1000):
        now_ns += 10_000_000
        quiet.retry_after("t", "u", 60.0)
    await quiet.close()
    assert 9 <= len(written) <= 10
    clock.close()
    store.close()


async def test_a_disk_that_takes_nothing_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The quiet time holds in memory; a row that cannot be read is left out."""
    store, clock = Store(str(tmp_path)), make_clock()
    store.save(QUIET, [('["t", "u"]', b"{}"), ("no key", b"{}")], clock.unix_s())
    quiet = SweepPauses(store, clock)
    assert caplog.text.count("cannot be read") == 2
    store.close()
    quiet.retry_after("t", "u", 60.0)
    await quiet.close()
    await asyncio.sleep(0)
    assert "cannot be written" in caplog.text
    assert quiet.quiet_s("t", "u") > 50
    clock.close()
