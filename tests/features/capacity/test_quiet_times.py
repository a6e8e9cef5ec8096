"""A target that asks to be left alone is not swept, by whom it ever asked, and also after a restart."""

import asyncio
import shutil
import time
from pathlib import Path

import pytest

from prober.features.capacity.actions import Refused
from prober.features.capacity.sweep_pauses import QUIET, SweepPauses
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


async def test_the_retry_after_of_a_sweep_survives_a_kill_before_its_result(tmp_path: Path) -> None:
    """The store as it is when the answer has arrived, and the sweep goes on to its estimate."""
    killed = tmp_path / "killed"
    async with (
        behind_a_gateway(20, {"Retry-After": "3600"}) as (url, _),
        staged(url, "min_gap: 0s", folder=tmp_path / "running") as stage,
    ):
        assert stage.store is not None
        store = stage.store
        start(stage)
        await until(lambda: store.load(QUIET))
        assert stage.sweeps.under_way
        shutil.copytree(tmp_path / "running", killed)
        assert stage.sweeps.results() == []
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
