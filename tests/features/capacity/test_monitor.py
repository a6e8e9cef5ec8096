"""When a sweep may run, what ends one, and what is left of it."""

import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from prober.config.load import load
from prober.daemon.registry import registry
from prober.exposition.families import Value
from prober.features.budget.monitor import BudgetMonitor
from prober.features.capacity import monitor as module
from prober.features.capacity import sweep_runner
from prober.features.capacity.headroom import Headroom
from prober.features.capacity.monitor import Refused, Sweeps, Why
from prober.features.capacity.series import SWEEP_REFUSALS
from prober.features.capacity.sweep_runner import Drive, Unmeasurable
from prober.features.engines.page_reader import PageReader
from prober.measure.chat import Usage
from prober.measure.engine_signals import EngineChange, EngineInfo, EngineSignals, PageReading
from prober.measure.engines import DIALECTS
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.target_state import TargetState
from prober.measure.timeline import Timeline
from prober.mock.delays import Constant
from prober.mock.engine import Behaviour
from prober.mock.faults import parse_fault
from prober.mock.server import create_app, running
from prober.mock.settings import Settings
from prober.net.clock import Clock
from prober.net.prometheus import QueryFailed
from prober.probing.event_log import EventLog
from prober.probing.leadership import Alone
from prober.probing.observer import ObservedTarget
from prober.probing.target import Target
from prober.probing.trust import Trust
from prober.results.capacity import Capacity
from prober.storage.lock import Lock
from prober.storage.store import Store
from prober.workload.blackout import parse_weekly_span

TEXT = """
prometheus: {{url: '{prometheus}'}}
slos: {{quick: {{signal: ttft, threshold: {threshold}, objective: 90%}}}}
workloads: {{tiny: {{prompt_tokens: 20, output_tokens: 4}}}}
targets: [{{name: t, url: '{url}', max_send_lag: 5s, {probes}
  budget: {{{budget}price_per_million: {{prompt: 10, completion: 100}}}},
  metrics: {{url: {page}}}, sweep: {{workload: tiny, min_rate: {least}, max_rate: 400/s, mode: adaptive{more}}}}}]
"""
DEFAULTS = {
    **{"threshold": "200ms", "least": "30/s", "page": "auto", "prometheus": "http://127.0.0.1:1"},
    **{"budget": "", "probes": ""},
}
# Four at a time of some 40 ms each: 100 a second, and a queue beyond.
SLOTS = Settings(behaviour=Behaviour(ttft=Constant(0.03), itl=Constant(0.003), slots=4))


@pytest.fixture(autouse=True)
def short_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the load that is there, before a sweep."""
    monkeypatch.setattr(sweep_runner, "BEFORE_S", 0.6)


class Stage:
    def __init__(self, url: str, more: str = "", folder: Path | None = None, **changed: str) -> None:
        text = TEXT.format(url=url, more=f", {more}" if more else "", **(DEFAULTS | changed))
        spec = load(text, source="c", engines=DIALECTS, environment={}, read=lambda path: path).targets[0]
        self.families, self.clock, self.events = registry(), Clock(), EventLog()
        self.store = Store(str(folder)) if folder else None
        self.trust = Trust(0.01)
        self.headroom = Headroom(self.families)
        self.sweeps = Sweeps(self.families, self.events, self.headroom, self.trust, self.clock, self.store, PageReader)
        self.sweeps.prometheus_url = changed.get("prometheus")
        self.target = Target(spec, self.clock)
        self.target.state = TargetState.READY
        self.observe()

    def value(self, name: str, *labels: str) -> float:
        child = self.families[name].children.get(("t", *labels))
        return child.value if isinstance(child, Value) else 0.0

    def refused(self) -> dict[str, float]:
        counts = {reason: self.value("llmslo_sweeps_refused_total", reason) for reason in SWEEP_REFUSALS}
        return {reason: count for reason, count in counts.items() if count}

    def ended(self) -> float:
        children = self.families["llmslo_sweeps_total"].children.values()
        return sum(child.value for child in children if isinstance(child, Value))

    def observe(self) -> None:
        """As the fleet begins a target."""
        features = (BudgetMonitor(self.families), self.headroom, self.sweeps)
        self.observed = ObservedTarget("t", self.target, features)

    def remove(self) -> None:
        """As the fleet forgets a target."""
        self.observed.removed()
        self.families.remove("t")

    def left(self) -> list[tuple[str, tuple[str, ...]]]:
        """Series of the target, and their labels."""
        families = self.families.items()
        return [(name, labels) for name, family in families for labels in family.children if labels[:1] == ("t",)]


@asynccontextmanager
async def staged(url: str, more: str = "", folder: Path | None = None, **changed: str) -> AsyncIterator[Stage]:
    stage = Stage(url, more, folder, **changed)
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


@asynccontextmanager
async def behind_a_gateway(
    answered: int, headers: dict[str, str] | None = None
) -> AsyncIterator[tuple[str, list[str]]]:
    """SLOTS behind a gateway that answers 429, with these headers, once it has let so many requests through; what came to it."""
    came: list[str] = []

    @web.middleware
    async def gateway(request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
        if request.path == "/v1/chat/completions":
            came.append(request.headers["X-Request-Id"])
            if len(came) > answered:
                return web.Response(status=429, headers=headers)
        response: web.StreamResponse = await handler(request)
        return response

    app = create_app(SLOTS)
    app.middlewares.append(gateway)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", came
    finally:
        await runner.cleanup()


async def test_a_sweep_finds_the_knee_and_a_restart_remembers_it(tmp_path: Path) -> None:
    """Under load that was there; the answer is an interval in series, store and history, and stands after a restart.

    Four at a time of 195 ms each are 20.5 a second, so slow that a busy machine hardly shows. The SLO gives way somewhat below.
    """
    slow = Behaviour(ttft=Constant(0.19), itl=Constant(0.001), slots=4, background_per_s=2.0)
    async with running(Settings(behaviour=slow)) as url:
        async with staged(url, folder=tmp_path, threshold="400ms", least="9/s") as stage:
            stage.sweeps.ask("t", "request")
            await until(lambda: stage.ended() and not stage.sweeps.under_way, 120)
            assert stage.value("llmslo_sweeps_total", "found") == 1
            lower, estimate, upper = (
                stage.value("llmslo_capacity_requests_per_second", "quick", bound)
                for bound in ("lower", "estimate", "upper")
            )
            assert lower < estimate < upper
            assert 9 < estimate < 40, "half to twice of what can be served, on a machine however busy"
            assert lower < 25, "no interval above the truth"
            at = stage.value("llmslo_sweep_last_success_timestamp_seconds")
            assert at > 0
            assert stage.value("llmslo_sweep_rate_per_second") == 0
            assert stage.events.latest("t")[0].kind == "sweep"
            (result,) = stage.sweeps.results("t")
            assert result.stop in ("knee_passed", "breaching", "waiting", "slow", "saturated")
            assert result.capacities[0].estimate == estimate
            assert sum(each.sent for each in result.stages) > 0
        async with staged(url, folder=tmp_path) as stage:
            await until(lambda: stage.value("llmslo_capacity_requests_per_second", "quick", "estimate"))
            assert stage.value("llmslo_capacity_requests_per_second", "quick", "estimate") == estimate
            assert stage.value("llmslo_sweep_last_success_timestamp_seconds") == at
            assert [each.id for each in stage.sweeps.results()] == [result.id]


async def test_it_is_refused_by_name_and_counted() -> None:
    """Not configured, under way, too soon, in a blackout, not ready."""
    async with running(SLOTS) as url, staged(url, "min_gap: 1h") as stage:
        with pytest.raises(Refused, match="no `sweep:`") as told:
            stage.sweeps.ask("other", "request")
        assert told.value.reason == "not_configured"
        stage.target.state = TargetState.FAILING
        with pytest.raises(Refused, match="is failing"):
            stage.sweeps.ask("t", "schedule")
        stage.target.state = TargetState.READY
        spec = stage.target.spec
        assert spec.sweep is not None
        closed = spec.sweep.model_copy(update={"blackout": (parse_weekly_span("00:00-24:00"),)})
        stage.target.spec = spec.model_copy(update={"sweep": closed})
        stage.observed.retarget(stage.target)
        with pytest.raises(Refused, match="blackout"):
            stage.sweeps.ask("t", "request")
        stage.target.spec = spec
        stage.observed.retarget(stage.target)
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


async def test_a_stopped_sweep_keeps_the_last_capacity_with_its_old_time() -> None:
    """Stopped at once, it has found nothing, and takes nothing away."""
    async with running(SLOTS) as url, staged(url) as stage:
        stage.headroom.found("t", [Capacity("quick", "found", 80.0, 90.0, 99.0)], 1e9)
        stage.families["llmslo_sweep_last_success_timestamp_seconds"].value("t").value = 1e9
        stage.sweeps.ask("t", "request")
        await until(lambda: stage.value("llmslo_sweep_rate_per_second") > 0)
        assert stage.sweeps.stop("t")
        await until(lambda: stage.ended() and not stage.sweeps.under_way)
        assert stage.value("llmslo_sweep_stops_total", "guard") == 1
        assert stage.value("llmslo_capacity_requests_per_second", "quick", "estimate") == 90
        assert stage.value("llmslo_sweep_last_success_timestamp_seconds") == 1e9


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
                stage.target.state = TargetState.FAILING
            case "burning":
                due = stage.clock.now_ns()
                late = due + 10**9
                for _ in range(6):
                    slow = Timeline(due, first_ns=late, content_ns=(late,), end_ns=late)
                    stage.observed.probe_ended(ProbeResult("t", "probe", "id", 4e9, Outcome.OK, "", slow))
            case "untrusted":
                for _ in range(20):
                    stage.trust.missed(stage.clock.now_ns())
        await until(lambda: stage.value("llmslo_sweep_stops_total", "guard"), 20)


async def test_an_engine_that_changed_is_swept_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """After it has settled; a restart alone is no reason."""
    monkeypatch.setattr(module, "SETTLED_S", 0.0)
    async with running(SLOTS) as url, staged(url, "min_gap: 0s") as stage:
        stage.observed.engine_changed(EngineChange("restart"))
        await asyncio.sleep(0.05)
        assert stage.value("llmslo_sweep_rate_per_second") == 0
        stage.observed.engine_changed(EngineChange("version", "1", "2"))
        await until(lambda: stage.value("llmslo_sweep_rate_per_second") > 0)
        assert stage.sweeps.stop("t")
        await until(lambda: stage.ended() and not stage.sweeps.under_way)


@pytest.mark.parametrize(
    ("limits", "reason", "most"),
    [
        ("requests: 40", "request_budget", 40),
        ("tokens: 600", "token_budget", 25),
        ("cost: 0.018", "cost_budget", 30),
        ("time: 1s", "time_budget", 200),
    ],
)
async def test_a_budget_ends_a_sweep_and_is_kept(limits: str, reason: str, most: int) -> None:
    """By requests, tokens (24 each), dollars (0.0006 each) and time; not one more comes to the server."""
    async with behind_a_gateway(10**6) as (url, came), staged(url, f"limits: {{{limits}}}") as stage:
        stage.sweeps.ask("t", "request")
        await until(lambda: stage.ended() and not stage.sweeps.under_way)
        (result,) = stage.sweeps.results()
        assert result.stop == reason
        assert result.warm_up is not None
        begun = result.warm_up.requests + sum(each.sent for each in result.stages)
        assert begun <= most
        assert begun == most or reason != "request_budget"
        assert 0 < len(came) <= most
        assert stage.value("llmslo_sweep_stops_total", reason) == 1


async def test_retry_after_ends_a_sweep_and_is_kept_by_the_next_ones() -> None:
    """What is begun and not yet due does not leave any more, and neither a schedule nor a person may begin another one."""
    async with behind_a_gateway(60, {"Retry-After": "3600"}) as (url, came), staged(url, "min_gap: 0s") as stage:
        stage.sweeps.ask("t", "request")
        await until(lambda: stage.ended() and not stage.sweeps.under_way)
        (result,) = stage.sweeps.results()
        assert (result.stop, result.stop_detail) == ("retry_after", "3600 s")
        assert len(came) <= 60 + 5, "those that were on their way"
        before = len(came)
        whys: tuple[Why, ...] = ("schedule", "request")
        for why in whys:
            with pytest.raises(Refused, match="left alone"):
                stage.sweeps.ask("t", why)
        assert stage.refused() == {"retry_after": 2}
        assert len(came) == before


async def test_a_refused_sweep_leaves_the_demand_alone() -> None:
    """It added nothing: what was counted before it still counts."""
    async with running(SLOTS) as url, staged(url) as stage:
        stage.observed.page_read(
            PageReading(round(0.0 * 1e9), 0, EngineSignals(EngineInfo("vllm"), requests_finished_total=0.0))
        )
        with Lock(stage.target.spec.url):
            stage.sweeps.ask("t", "request")
            await until(lambda: stage.refused() and not stage.sweeps.under_way)
        stage.observed.page_read(
            PageReading(round(100.0 * 1e9), 0, EngineSignals(EngineInfo("vllm"), requests_finished_total=400.0))
        )
        assert stage.value("llmslo_demand_requests_per_second") == 4


async def test_a_target_that_is_removed_in_mid_sweep_leaves_no_series(tmp_path: Path) -> None:
    """The sweep ends, and what it found is kept for when the target comes back."""
    async with running(SLOTS) as url, staged(url, folder=tmp_path) as stage:
        stage.sweeps.ask("t", "request")
        await until(lambda: stage.value("llmslo_sweep_rate_per_second") > 0)
        stage.remove()
        assert stage.left() == []
        await until(lambda: not stage.sweeps.under_way)
        assert stage.left() == []
        assert stage.events.latest("t") == []
        stage.observe()
        await stage.sweeps.read("t")
        assert [each.stop_detail for each in stage.sweeps.results("t")] == ["target removed"]


async def test_a_target_that_takes_over_a_name_keeps_its_sweeps_and_its_capacity() -> None:
    """A target found as `t` still ends its probes while one that is configured as `t` has begun."""
    async with running(SLOTS) as url, staged(url) as stage:
        before = stage.observed
        stage.observe()
        stage.headroom.found("t", [Capacity("interactive", "found", 3.0, 4.0, 5.0)], 1.0)
        before.removed()
        for at_s in (0.0, 100.0):
            said = EngineSignals(EngineInfo("vllm"), requests_finished_total=2 * at_s)
            stage.observed.page_read(PageReading(round(at_s * 1e9), 0, said))
        assert stage.value("llmslo_headroom_ratio", "requests", "estimate") == 0.5
        stage.sweeps.ask("t", "request")
        await until(lambda: stage.value("llmslo_sweep_rate_per_second") > 0)
        stage.observed.removed()
        with pytest.raises(Refused) as refusal:
            stage.sweeps.ask("t", "request")
        assert refusal.value.reason == "not_configured"
        assert stage.headroom.free("t", "requests").estimate is None


async def test_a_target_whose_sweep_is_taken_out_of_the_configuration_in_mid_sweep_has_a_demand_again() -> None:
    """The target goes on without `sweep:`; what its engine counts after the sweep is its users'."""
    async with running(SLOTS) as url, staged(url) as stage:
        stage.sweeps.ask("t", "request")
        await until(lambda: stage.value("llmslo_sweep_rate_per_second") > 0)
        stage.target.spec = stage.target.spec.model_copy(update={"sweep": None})
        stage.observed.retarget(stage.target)
        await until(lambda: not stage.sweeps.under_way)
        for at_s in (0.0, 100.0):
            said = EngineSignals(EngineInfo("vllm"), requests_finished_total=4 * at_s)
            stage.observed.page_read(PageReading(round(at_s * 1e9), 0, said))
        assert stage.value("llmslo_demand_requests_per_second") == 4


async def test_what_another_query_told_is_not_the_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    """An edited `demand_query` that has no answer leaves the demand unknown; the same one leaves it as it is."""

    async def instant(_: str, query: str) -> float:
        if query == "old":
            return 4.0
        raise QueryFailed("nobody is there")

    monkeypatch.setattr("prober.features.capacity.prometheus_demand.instant", instant)
    async with running(SLOTS) as url, staged(url, "demand_query: old", prometheus="http://127.0.0.1:1") as stage:
        await until(lambda: stage.value("llmslo_demand_requests_per_second") == 4)
        stage.observed.retarget(stage.target)
        assert stage.headroom.demand("t").requests_per_s == 4
        assert stage.target.spec.sweep is not None
        sweep = stage.target.spec.sweep.model_copy(update={"demand_query": "new"})
        stage.target.spec = stage.target.spec.model_copy(update={"sweep": sweep})
        stage.observed.retarget(stage.target)
        assert stage.headroom.demand("t").requests_per_s is None
        assert "llmslo_demand_requests_per_second" not in dict(stage.left())


async def test_a_target_that_is_removed_before_its_sweep_begins_is_not_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alerts are asked for first, which takes a while."""
    asked, removed = asyncio.Event(), asyncio.Event()

    async def firing(*_: object) -> list[str]:
        asked.set()
        await removed.wait()
        return []

    monkeypatch.setattr(module, "firing", firing)
    async with behind_a_gateway(0) as (url, came), staged(url, prometheus="http://127.0.0.1:1") as stage:
        stage.sweeps.ask("t", "request")
        await asked.wait()
        stage.remove()
        removed.set()
        await until(lambda: not stage.sweeps.under_way)
        assert came == []
        assert stage.left() == []


async def test_a_sweep_can_be_stopped_before_it_sends() -> None:
    """While it looks at the load that is there."""
    async with behind_a_gateway(0) as (url, came), staged(url) as stage:
        stage.sweeps.ask("t", "request")
        await until(lambda: stage.sweeps.stop("t"))
        await until(lambda: stage.ended() and not stage.sweeps.under_way)
        (result,) = stage.sweeps.results()
        assert (result.stop, result.stop_detail) == ("guard", "stopped on request")
        assert came == []


async def test_a_demand_from_prometheus_is_the_load_that_was_there() -> None:
    """Of a target without a page: capacity is demand and what was added, and the result says who counted."""

    async def answer(request: web.Request) -> web.Response:
        found = [] if "ALERTS" in str((await request.post())["query"]) else [{"metric": {}, "value": [0, "40"]}]
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": found}})

    app = web.Application()
    app.router.add_post("/api/v1/query", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    prometheus = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with (
            running(SLOTS) as url,
            staged(
                url, "demand_query: 'sum(rate(x[5m]))', limits: {requests: 60}", page="none", prometheus=prometheus
            ) as stage,
        ):
            await until(lambda: stage.value("llmslo_demand_requests_per_second") == 40)
            stage.sweeps.ask("t", "request")
            await until(lambda: stage.ended() and not stage.sweeps.under_way)
            (result,) = stage.sweeps.results()
            assert {each.demand_per_s for each in result.stages} == {40}
            assert result.interference == ("other load of 40 to 40 requests/s, by Prometheus, before the sweep",)
            (capacity,) = result.capacities
            assert capacity.lower is not None
            assert capacity.lower > 40
    finally:
        await runner.cleanup()


# 24 tokens a request; probes of 24 tokens every 100 s: 25 hours of them are 21,600, and 24,500 at four standard deviations.
FEW = "rate: 36/h, probes: [{workload: tiny}],"


async def settled(stage: Stage) -> float:
    """Tokens spent once the sweep is over."""
    await until(lambda: stage.ended() and not stage.sweeps.under_way)
    return stage.target.budgets["tokens"].spent(stage.clock.now_ns())


async def test_each_request_of_a_sweep_is_of_the_targets_budget() -> None:
    """Warm-up, stages and what was cut, by the server's count where it told one; what is left stands in the series."""
    async with (
        behind_a_gateway(10**6) as (url, came),
        staged(url, "limits: {requests: 40}", budget="tokens_per_day: 1M, cost_per_day: 100, ", probes=FEW) as stage,
    ):
        stage.sweeps.ask("t", "request")
        spent = await settled(stage)
        assert len(came) >= 35
        assert len(came) * 24 <= spent <= 40 * 25, (
            "one whose connection was cut may have come or not; the server counts up to 25"
        )
        dollars = stage.target.budgets["cost"].spent(stage.clock.now_ns())
        assert dollars == pytest.approx(spent / 24 * 0.0006, rel=0.05)
        assert stage.value("llmslo_budget_remaining_ratio", "tokens") == pytest.approx(1 - spent / 1e6)


async def test_a_sweep_leaves_its_probes_what_they_need() -> None:
    """Without limits of its own it ends by what the budget leaves, and by name; the probes' share is untouched."""
    async with (
        behind_a_gateway(10**6) as (url, came),
        staged(url, budget="tokens_per_day: 26000, ", probes=FEW) as stage,
    ):
        stage.sweeps.ask("t", "request")
        spent = await settled(stage)
        (result,) = stage.sweeps.results()
        assert result.stop == "token_budget"
        assert "the rest of the target's daily budget is for its probes" in result.stop_detail
        assert 0 < len(came) * 24 <= spent <= 26_000 - 25 * 36 * 24
        assert spent > 500, "and it uses what is left"
        for _ in range(25 * 36):
            assert stage.target.reserve(20, 4) is not None
        with pytest.raises(Refused, match=r"leave .* tokens of budget.tokens_per_day") as told:
            stage.sweeps.ask("t", "request")
        assert told.value.reason == "over_budget"
        assert stage.refused() == {"over_budget": 1}


async def test_dollars_end_a_sweep_too() -> None:
    """A cost budget without one of tokens; each request costs $0.0006."""
    async with behind_a_gateway(10**6) as (url, came), staged(url, budget="cost_per_day: 0.65, ", probes=FEW) as stage:
        stage.sweeps.ask("t", "request")
        await until(lambda: stage.ended() and not stage.sweeps.under_way)
        (result,) = stage.sweeps.results()
        assert result.stop == "cost_budget"
        assert 0 < len(came) * 0.0006 <= 0.65 - 25 * 36 * 0.0006


async def test_probes_that_take_more_than_was_asked_for_need_more() -> None:
    """A chat template makes 120 tokens of 24: what the sweep must leave is five times as much."""
    async with running(SLOTS) as url, staged(url, budget="tokens_per_day: 100000, ", probes=FEW) as stage:
        stage.sweeps._afford(stage.sweeps._swept["t"])
        now = stage.clock.now_ns()
        timeline = Timeline(now, end_ns=now + 10**9, usage=Usage(116, 4, None))
        probe = ProbeResult("t", "tiny", "i", 0.0, Outcome.OK, "", timeline)
        for _ in range(5):
            stage.observed.probe_ended(replace(probe, requested_prompt_tokens=20, requested_output_tokens=4))
        with pytest.raises(Refused, match="raise the budget"):
            stage.sweeps.ask("t", "request")


async def test_a_reload_in_mid_sweep_moves_it_to_the_new_budgets() -> None:
    """As the target's own spending moves; a budget that comes or goes ends the sweep."""
    async with (
        behind_a_gateway(10**6) as (url, came),
        staged(url, "limits: {requests: 400}", budget="tokens_per_day: 1M, ", probes=FEW) as stage,
    ):
        stage.sweeps.ask("t", "request")
        await until(lambda: len(came) > 20)
        before, spec = stage.target, stage.target.spec
        assert spec.budget is not None
        budget = spec.budget.model_copy(update={"tokens_per_day": 2_000_000})
        stage.target = Target(spec.model_copy(update={"budget": budget}), stage.clock)
        stage.target.budgets["tokens"] = before.budgets["tokens"].with_limit(2_000_000)
        stage.target.state, stage.target.identity = TargetState.READY, before.identity
        stage.observed.retarget(stage.target)
        then = len(came)
        await until(lambda: len(came) > then + 20)
        assert stage.target.budgets["tokens"].spent(stage.clock.now_ns()) >= 24 * (then + 20)
        assert before.budgets["tokens"].spent(stage.clock.now_ns()) < 24 * (then + 50)
        stage.observed.retarget(Target(spec.model_copy(update={"budget": None}), stage.clock))
        await until(lambda: stage.ended() and not stage.sweeps.under_way)
        assert stage.sweeps.results()[0].stop_detail == "the target's budget was changed"


async def test_when_a_sweep_began_outlives_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it never ended: min_gap is of when it began, which is written before anything is sent."""
    async with behind_a_gateway(10**6) as (url, came):
        async with staged(url, "min_gap: 1h", tmp_path) as stage:
            assert stage.store is not None
            saved = stage.store.save
            seen: list[int] = []

            def save(kind: str, *rest: Any) -> None:
                if kind == module.SWEPT:
                    seen.append(len(came))
                saved(kind, *rest)

            monkeypatch.setattr(stage.store, "save", save)
            stage.sweeps.ask("t", "schedule")
            await until(lambda: len(came) > 5)
            assert seen == [0], "once, and before the first request"
        async with staged(url, "min_gap: 1h", tmp_path) as stage:
            assert stage.sweeps.results() == []
            with pytest.raises(Refused, match="min_gap is 3600 s"):
                stage.sweeps.ask("t", "schedule")
            stage.sweeps.ask("t", "request")
            await until(lambda: stage.value("llmslo_sweep_rate_per_second") > 0)


@pytest.mark.parametrize(
    ("ago_s", "boot", "refused"),
    [
        (1800, "another", True),
        (7200, "another", False),
        (-86_400 * 365, "another", True),  # the clock was a year ahead
    ],
)
async def test_of_another_machine_only_the_clock_on_the_wall_is_known(
    ago_s: float, boot: str, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A begin in the future holds a sweep back for one min_gap, however often the prober is started, and not for ever."""
    row = json.dumps({"boot": boot, "monotonic_ns": 1, "unix_s": time.time() - ago_s}).encode()
    store = Store(str(tmp_path))
    store.save(module.SWEPT, [("t", row), ("other", b"no JSON")], time.time())
    store.close()
    async with running(SLOTS) as url:
        async with staged(url, "min_gap: 1h", tmp_path) as stage:
            if not refused:
                stage.sweeps.ask("t", "schedule")
                return
            with pytest.raises(Refused, match="min_gap"):
                stage.sweeps.ask("t", "schedule")
        monkeypatch.setattr("time.monotonic_ns", lambda now=time.monotonic_ns: now() + 3_700 * 10**9)
        async with staged(url, "min_gap: 1h", tmp_path) as stage:
            if boot == "another" and ago_s < 0:
                stage.sweeps.ask("t", "schedule")


async def test_a_sweep_whose_begin_cannot_be_written_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be repeated after every restart; somebody who asks for it gets it."""
    async with behind_a_gateway(10**6) as (url, came), staged(url, "min_gap: 0s", tmp_path) as stage:
        assert stage.store is not None

        def full(*_: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        monkeypatch.setattr(stage.store, "save", full)
        stage.sweeps.ask("t", "schedule")
        await until(lambda: stage.refused())
        await until(lambda: not stage.sweeps.under_way)
        assert stage.refused() == {"not_recorded": 1}
        assert came == []
        stage.sweeps.ask("t", "request")
        await until(lambda: len(came) > 0)


class Claimed(Alone):
    """A lease whose annotations say when the target was swept last."""

    def __init__(self, number: float) -> None:
        self.number = number

    def claimed(self, key: str) -> float:
        return self.number


async def test_a_claim_of_a_clock_that_was_ahead_does_not_block_for_ever() -> None:
    """It counts from when it was first seen; what another replica began a moment ago counts from then."""
    async with running(SLOTS) as url, staged(url, "min_gap: 1s") as stage:
        ahead = time.time() + 86_400 * 365
        stage.sweeps._leadership = Claimed(time.time())
        with pytest.raises(Refused, match="another replica began"):
            stage.sweeps.ask("t", "schedule", time.time() - 1)
        stage.sweeps._leadership = Claimed(ahead)
        with pytest.raises(Refused, match="min_gap"):
            stage.sweeps.ask("t", "schedule", time.time())
        await asyncio.sleep(1.05)
        stage.sweeps.ask("t", "schedule", time.time())
