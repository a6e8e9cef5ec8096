"""When a sweep may start, and where its result is found."""

import asyncio

import pytest

from prober.features.capacity import target_sweeps
from prober.features.capacity.actions import Refused
from prober.features.capacity.sweep_job import CUT
from prober.features.capacity.sweep_schedule import SweepSchedule
from prober.features.capacity.sweep_series import SweepSeries
from prober.measure.target_state import TargetState
from prober.probing.observer import ObservedTarget
from prober.probing.target import Target
from prober.workload.schedule import parse_weekly_span
from tests.features.capacity.stage import SLOTS, Stage, staged, target_spec, until
from tests.virtual import running

pytestmark = pytest.mark.virtual_time


async def test_a_sweep_is_refused_with_a_reason_and_counted() -> None:
    """Not configured, under way, too soon, in a blackout, not ready."""
    async with running(SLOTS) as url, staged(url, "min_gap: 1h") as stage:
        with pytest.raises(Refused, match="no `sweep:`") as refusal:
            stage.sweeps.start("other")
        assert refusal.value.reason == "not_configured"
        stage.target.state = TargetState.FAILING
        with pytest.raises(Refused, match="is failing"):
            stage.sweeps.start("t", "schedule")
        stage.target.state = TargetState.READY
        spec = stage.target.spec
        assert spec.sweep is not None
        closed = spec.sweep.model_copy(update={"blackout": (parse_weekly_span("00:00-24:00"),)})
        stage.reconfigure(spec.model_copy(update={"sweep": closed}))
        with pytest.raises(Refused, match="blackout"):
            stage.sweeps.start("t")
        assert stage.refused() == {"blackout": 1}
        stage.reconfigure(spec)
        stage.sweeps.start("t", "schedule")
        with pytest.raises(Refused, match="under way"):
            stage.sweeps.start("t")
        await until(lambda: stage.value("llmslo_sweep_rate_per_second") > 0)
        assert stage.sweeps.stop("t")
        await until(stage.is_swept)
        with pytest.raises(Refused, match="min_gap"):
            stage.sweeps.start("t", "schedule")
        assert stage.refused() == {"running": 1, "min_gap": 1}


async def test_a_target_whose_sweeps_cannot_be_observed_is_not_swept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither its schedule nor its name is left behind, and it is swept once it is observed again."""

    def fail(*_: object) -> None:
        raise RuntimeError("a fault")

    async with running(SLOTS) as url, staged(url, "schedule: '* * * * *', spread: 0s, min_gap: 0s") as stage:
        stage.remove()
        with monkeypatch.context() as patch:
            patch.setattr(SweepSeries, "declare", fail)
            stage.observe()
        assert "please report this" in caplog.text
        with pytest.raises(Refused, match="no `sweep:`"):
            stage.sweeps.start("t")
        assert stage.sweeps.results("t") == []
        await asyncio.sleep(120.0)
        assert not stage.sweeps.under_way
        stage.remove()
        stage.observe()
        stage.sweeps.start("t")
        await until(lambda: stage.value("llmslo_sweep_rate_per_second") > 0)


async def test_a_sweep_that_the_end_of_the_prober_cuts_is_an_event_and_a_line(caplog: pytest.LogCaptureFixture) -> None:
    """Without a sweep under way there is neither."""
    caplog.set_level("INFO")
    async with running(SLOTS) as url:
        async with staged(url) as stage:
            stage.sweeps.start("t")
            await until(lambda: stage.value("llmslo_sweep_rate_per_second") > 0)
        assert [(event.target, event.kind, event.text) for event in stage.events.latest()] == [("t", "sweep", CUT)]
        assert f"target=t {CUT}" in caplog.messages
        async with staged(url) as idle:
            pass
    assert idle.events.latest() == []


async def test_a_scheduled_sweep_waits_for_the_end_of_another_target() -> None:
    """A requested one is refused; a target that is removed waits no more."""
    async with running(SLOTS) as url, staged(url) as stage:
        others = []
        for name in ("waiting", "removed"):
            target = Target(target_spec(url).model_copy(update={"name": name}), stage.clock)
            target.state = TargetState.READY
            others.append(ObservedTarget(target, (stage.headroom.observe, stage.sweeps.observe)))
        stage.sweeps.start("t")
        with pytest.raises(Refused, match="one at a time"):
            stage.sweeps.start("waiting")
        for name in ("removed", "waiting"):
            with pytest.raises(Refused, match="this one waits for its end"):
                stage.sweeps.start(name, "schedule")
        others[1].removed()
        await until(lambda: stage.sweeps.stop("t"))
        await until(lambda: stage.sweeps.under_way == "waiting")


async def test_replicas_begin_scheduled_sweeps_at_different_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each within `spread` of the schedule, and always with the same delay."""
    delays_s: list[float] = []

    def made(schedule: str, timezone: str, unix_s: float, delay_s: float) -> SweepSchedule:
        delays_s.append(delay_s)
        return SweepSchedule(schedule, timezone, unix_s, delay_s)

    monkeypatch.setattr(target_sweeps, "SweepSchedule", made)
    for instance in ("pod-1", "pod-2", "pod-3", "pod-1"):
        stage = Stage("http://127.0.0.1:1", "schedule: '0 3 * * *', spread: 2m", instance=instance)
        await stage.sweeps.close()
        stage.clock.close()
    assert len({round(delay_s, 3) for delay_s in delays_s}) == 3
    assert delays_s[0] == delays_s[3]
    assert all(0 <= delay_s <= 120 for delay_s in delays_s)


def beside(stage: Stage, url: str, name: str) -> Target:
    """A further target of the stage."""
    target = Target(target_spec(url).model_copy(update={"name": name}), stage.clock)
    target.state = TargetState.READY
    ObservedTarget(target, (stage.headroom.observe, stage.sweeps.observe))
    return target


async def test_one_that_may_not_begin_does_not_hold_up_the_next() -> None:
    """Two wait; the first is not ready when its turn comes, and the second is begun all the same."""
    async with running(SLOTS) as url, staged(url) as stage:
        ill, well = beside(stage, url, "ill"), beside(stage, url, "well")
        stage.sweeps.start("t")
        await until(lambda: stage.value("llmslo_sweep_rate_per_second") > 0)
        for target in (ill, well):
            with pytest.raises(Refused, match="waits for its end"):
                stage.sweeps.start(str(target.spec.name), "schedule")
        ill.state = TargetState.FAILING
        stage.sweeps.stop("t")
        await until(lambda: stage.sweeps.under_way == "well")
