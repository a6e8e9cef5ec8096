"""When a sweep may run, what ends one, and what is left of it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prober.analysis.trust import Trust
from prober.config.load import load
from prober.daemon import sweeps as module
from prober.daemon.drive import Drive, Unmeasurable
from prober.daemon.headroom import Headroom
from prober.daemon.history import History
from prober.daemon.sweeps import Refused, Sweeps
from prober.edge.clock import Clock
from prober.edge.lock import Lock
from prober.edge.store import Store
from prober.engines import DIALECTS
from prober.exposition.families import Value
from prober.limits.calendar import span
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.metrics import registry
from prober.mock.delays import Constant
from prober.mock.engine import Behaviour
from prober.mock.faults import parse_fault
from prober.mock.server import running
from prober.mock.settings import Settings
from prober.probing.target import Target
from prober.series import SWEEP_REFUSALS

TEXT = """
slos: {{quick: {{signal: ttft, threshold: 200ms, objective: 90%}}}}
workloads: {{tiny: {{prompt_tokens: 20, output_tokens: 4}}}}
targets: [{{name: t, url: '{url}', max_send_lag: 5s, sweep: {{workload: tiny, min_rate: 30/s, max_rate: 400/s,
  mode: adaptive{more}}}}}]
"""
# Four at a time of some 40 ms each: 100 a second, and a queue beyond.
SLOTS = Settings(behaviour=Behaviour(ttft=Constant(0.03), itl=Constant(0.003), slots=4))


class Stage:
    def __init__(self, url: str, more: str = "", folder: Path | None = None) -> None:
        text = TEXT.format(url=url, more=f", {more}" if more else "")
        spec = load(text, source="c", engines=DIALECTS, environment={}, read=lambda path: path).targets[0]
        self.families, self.clock, self.history = registry(), Clock(), History(10)
        self.store = Store(str(folder)) if folder else None
        self.trust = Trust(0.01)
        self.sweeps = Sweeps(self.families, self.history, Headroom(self.families), self.trust, self.store)
        self.target = Target(spec, self.clock)
        self.target.state = "ready"
        self.sweeps.declare("t", self.target)

    def value(self, name: str, *labels: str) -> float:
        child = self.families[name].children.get(("t", *labels))
        return child.value if isinstance(child, Value) else 0.0

    def refused(self) -> dict[str, float]:
        counts = {reason: self.value("llmslo_sweeps_refused_total", reason) for reason in SWEEP_REFUSALS}
        return {reason: count for reason, count in counts.items() if count}

    def ended(self) -> float:
        children = self.families["llmslo_sweeps_total"].children.values()
        return sum(child.value for child in children if isinstance(child, Value))


@asynccontextmanager
async def staged(url: str, more: str = "", folder: Path | None = None) -> AsyncIterator[Stage]:
    stage = Stage(url, more, folder)
    try:
        yield stage
    finally:
        await stage.sweeps.close()
        stage.clock.close()
        if stage.store:
            stage.store.close()


async def until(true: Callable[[], Any], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110 -- what is waited for is a number that has no event
            await asyncio.sleep(0.01)


async def test_a_sweep_finds_the_knee_and_a_restart_remembers_it(tmp_path: Path) -> None:
    """Under load that was there; the answer is an interval in series, store and history, and stands after a restart."""
    async with running(replace(SLOTS, behaviour=replace(SLOTS.behaviour, background_per_s=5.0))) as url:
        async with staged(url, folder=tmp_path) as stage:
            stage.sweeps.ask("t", "request")
            await until(lambda: stage.ended() and not stage.sweeps.under_way)
            assert stage.value("llmslo_sweeps_total", "found") == 1
            lower, estimate, upper = (
                stage.value("llmslo_capacity_requests_per_second", "quick", bound)
                for bound in ("lower", "estimate", "upper")
            )
            assert 5 < lower < estimate < upper < 500, "some hundred a second can be served"
            at = stage.value("llmslo_sweep_last_success_timestamp_seconds")
            assert at > 0
            assert stage.value("llmslo_sweep_rate_per_second") == 0
            assert stage.history.events("t")[0].kind == "sweep"
            (result,) = stage.sweeps.results("t")
            assert result.capacities[0].estimate == estimate
            assert sum(each.sent for each in result.stages) <= len(result.requests)
        async with staged(url, folder=tmp_path) as stage:
            assert stage.value("llmslo_capacity_requests_per_second", "quick", "estimate") == estimate
            assert stage.value("llmslo_sweep_last_success_timestamp_seconds") == at
            assert [each.id for each in stage.sweeps.results()] == [result.id]


async def test_it_is_refused_by_name_and_counted() -> None:
    """Not configured, under way, too soon, in a blackout, not ready."""
    async with running(SLOTS) as url, staged(url, "min_gap: 1h") as stage:
        with pytest.raises(Refused, match="no `sweep:`") as told:
            stage.sweeps.ask("other", "request")
        assert told.value.reason == "not_configured"
        stage.target.state = "failing"
        with pytest.raises(Refused, match="is failing"):
            stage.sweeps.ask("t", "schedule")
        stage.target.state = "ready"
        spec = stage.target.spec
        assert spec.sweep is not None
        closed = replace(spec.sweep, blackout=(span("00:00-24:00"),))
        stage.target.spec = replace(spec, sweep=closed)
        stage.sweeps.declare("t", stage.target)
        with pytest.raises(Refused, match="blackout"):
            stage.sweeps.ask("t", "request")
        stage.target.spec = spec
        stage.sweeps.declare("t", stage.target)
        stage.sweeps.ask("t", "schedule")
        with pytest.raises(Refused, match="under way"):
            stage.sweeps.ask("t", "request")
        await until(lambda: stage.value("llmslo_sweep_rate_per_second") > 0)
        assert stage.sweeps.stop("t")
        await until(lambda: stage.ended() and not stage.sweeps.under_way)
        with pytest.raises(Refused, match="min_gap"):
            stage.sweeps.ask("t", "schedule")
        assert stage.refused() == {"not_ready": 1, "blackout": 1, "running": 1, "min_gap": 1}


async def test_two_probers_of_one_machine_do_not_sweep_one_target_at_once() -> None:
    """The second one is refused, and says why."""
    async with running(SLOTS) as url, staged(url) as stage:
        with Lock(stage.target.spec.url):
            stage.sweeps.ask("t", "request")
            await until(lambda: stage.refused())
        assert stage.refused() == {"locked": 1}
        assert stage.ended() == 0


async def test_a_stopped_sweep_keeps_the_last_capacity_with_its_old_time(tmp_path: Path) -> None:
    """Stopped at once, it has found nothing, and takes nothing away."""
    async with running(SLOTS) as url, staged(url, folder=tmp_path) as stage:
        stage.sweeps.ask("t", "request")
        await until(lambda: stage.ended() and not stage.sweeps.under_way)
        before = stage.value("llmslo_capacity_requests_per_second", "quick", "estimate")
        at = stage.value("llmslo_sweep_last_success_timestamp_seconds")
        stage.sweeps.ask("t", "request")
        await until(lambda: stage.value("llmslo_sweep_rate_per_second") > 0)
        assert stage.sweeps.stop("t")
        await until(lambda: stage.ended() == 2 and not stage.sweeps.under_way)
        assert stage.value("llmslo_sweep_stops_total", "guard") == 1
        assert stage.value("llmslo_capacity_requests_per_second", "quick", "estimate") == before
        assert stage.value("llmslo_sweep_last_success_timestamp_seconds") == at


async def test_a_crash_in_mid_sweep_leaves_no_capacity(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither an endpoint that does not say who it is nor a fault of our own passes as an answer; the next one may run."""
    for problem in (Unmeasurable("nobody there"), RuntimeError("a fault")):

        async def broken(_: Drive, problem: Exception = problem) -> None:
            raise problem

        async with running(SLOTS) as url, staged(url) as stage:
            monkeypatch.setattr(Drive, "run", broken)
            stage.sweeps.ask("t", "request")
            await until(lambda: stage.value("llmslo_sweeps_total", "failed"))
            await until(lambda: stage.value("llmslo_sweep_rate_per_second") == 0)
            assert not stage.families["llmslo_capacity_requests_per_second"].children
            assert not stage.families["llmslo_sweep_last_success_timestamp_seconds"].children
            await asyncio.sleep(0)
            stage.sweeps.ask("t", "request")
            await until(lambda: stage.value("llmslo_sweeps_total", "failed") == 2)
    assert "please report this" in caplog.text


async def test_an_endpoint_that_rejects_half_of_the_requests_is_not_fast() -> None:
    """However quick its other half is: the sweep ends at once, and there is no capacity."""
    half = tuple(parse_fault(f"http:429@{i * 200}ms-{i * 200 + 100}ms") for i in range(600))
    async with running(replace(SLOTS, faults=half)) as url, staged(url) as stage:
        stage.sweeps.ask("t", "request")
        await until(lambda: stage.ended() and not stage.sweeps.under_way)
        (result,) = stage.sweeps.results()
        assert result.stop in ("failed", "smoke_failed", "retry_after")
        assert all(each.estimate is None for each in result.capacities), result.capacities
        assert not stage.families["llmslo_headroom_ratio"].children


@pytest.mark.parametrize("what", ["failing", "burning", "untrusted"])
async def test_what_the_daemon_sees_ends_a_sweep(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target fails, the continuous probes burn their budget, the prober does not trust itself."""
    monkeypatch.setattr(module, "GUARD_EVERY_S", 0.05)
    async with running(SLOTS) as url, staged(url) as stage:
        stage.sweeps.ask("t", "request")
        await until(lambda: stage.value("llmslo_sweep_rate_per_second") > 0)
        match what:
            case "failing":
                stage.target.state = "failing"
            case "burning":
                for _ in range(6):
                    slow = Timeline(0, first_ns=10**9, content_ns=(10**9,), end_ns=10**9)
                    stage.sweeps.probe(ProbeResult("t", "probe", "id", 4e9, Outcome.OK, "", slow))
            case "untrusted":
                for _ in range(20):
                    stage.trust.missed(stage.clock.now_ns())
        await until(lambda: stage.value("llmslo_sweep_stops_total", "guard"), 20)


async def test_an_engine_that_changed_is_swept_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """After it has settled; a restart alone is no reason."""
    monkeypatch.setattr(module, "SETTLED_S", 0.0)
    async with running(SLOTS) as url, staged(url, "min_gap: 0s") as stage:
        stage.sweeps.changed("t", "restart")
        await asyncio.sleep(0.05)
        assert stage.value("llmslo_sweep_rate_per_second") == 0
        stage.sweeps.changed("t", "version")
        await until(lambda: stage.value("llmslo_sweep_rate_per_second") > 0)
        assert stage.sweeps.stop("t")
        await until(lambda: stage.ended() and not stage.sweeps.under_way)
