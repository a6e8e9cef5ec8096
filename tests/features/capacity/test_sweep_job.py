"""A sweep from its start to its result, against a mock engine."""

import asyncio
import json
import os
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from aiohttp import web

from prober.exposition.families import Value
from prober.features.capacity import sweep_job
from prober.features.capacity.sweep import Sweep
from prober.features.capacity.sweep_runner import SweepRunner
from prober.measure.engine_signals import EngineInfo, EngineSignals, PageReading
from prober.measure.outcome import Outcome
from prober.measure.quality import Expectation
from prober.measure.result import ProbeResult
from prober.measure.target_state import TargetState
from prober.measure.timeline import Timeline
from prober.mock.delays import constant
from prober.mock.faults import parse_fault
from prober.mock.server import create_app
from prober.mock.service import Behaviour, Settings
from prober.probing.session import UnidentifiedTarget
from prober.results.capacity import Capacity
from prober.storage.watched_file import Lock
from prober.workload.prompts import GoldenPrompt
from prober.workload.shapes import Fixed
from prober.workload.workloads import GoldenWorkload
from tests.features.capacity.stage import SLOTS, Stage, behind_a_gateway, staged, until
from tests.results.samples import sweep
from tests.serving import serving
from tests.virtual import make_clock, running

pytestmark = pytest.mark.virtual_time


@asynccontextmanager
async def costly_page(
    page_s: float, answer: Callable[[int, web.StreamResponse], web.StreamResponse] = lambda _, page: page
) -> AsyncIterator[tuple[str, list[float]]]:
    """URL of an engine of 20 requests a second, and the times at which its page was read.

    page_s: that a reading takes; answer: to a reading, by its number
    """
    reads: list[float] = []

    @web.middleware
    async def slow_page(request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
        response: web.StreamResponse = await handler(request)
        if request.path == "/metrics":
            reads.append(asyncio.get_running_loop().time())
            response = answer(len(reads), response)
            await asyncio.sleep(page_s)
        return response

    app = create_app(Settings(behaviour=Behaviour(ttft=constant(0.19), itl=constant(0.001), slots=4)), make_clock)
    app.middlewares.append(slow_page)
    async with serving(app) as url:
        yield url, reads


@pytest.mark.parametrize(
    ("page_s", "near_s"), [(0.0, (0.09, 0.2)), (0.006, (0.6, 0.7)), (0.2, (0.85, 1.0))], ids=["free", "vllm", "slow"]
)
async def test_the_page_is_read_as_seldom_as_its_cost_asks(page_s: float, near_s: tuple[float, float]) -> None:
    """An engine on one core answers nobody while it writes its page. Close to the knee a free page is read ten times a second."""
    async with costly_page(page_s) as (url, reads), staged(url, threshold="400ms", least="9/s") as stage:
        stage.sweeps.start("t")
        await until(stage.is_swept)
    gaps_s = [after - before for before, after in pairwise(reads)]
    assert len(gaps_s) > 10
    assert near_s[0] < min(gaps_s) < near_s[1]


def _is_refused(number: int, page: web.StreamResponse) -> web.StreamResponse:
    return web.Response(status=503) if number == 15 else page


def _is_resized(number: int, page: web.StreamResponse) -> web.StreamResponse:
    assert isinstance(page, web.Response)
    assert page.text is not None
    resized = re.sub(r'(num_gpu_blocks|kv_cache_size_tokens)="\d+"', r'\1="777"', page.text)
    return web.Response(text=resized) if number >= 15 else page


@pytest.mark.parametrize(("answer", "verdict"), [(_is_refused, "not_reached"), (_is_resized, "void")])
async def test_a_costly_page_is_read_often_enough(
    answer: Callable[[int, web.StreamResponse], web.StreamResponse], verdict: str
) -> None:
    """One failed reading is no lost page, and two that show another size void the sweep."""
    rates = "rates: [5/s, 8/s], step: 20s, mode: grid"
    async with costly_page(0.2, answer) as (url, _), staged(url, threshold="400ms", rates=rates) as stage:
        stage.sweeps.start("t")
        await until(stage.is_swept)
        assert stage.value("llmslo_sweeps_total", verdict) == 1


async def test_a_sweep_that_is_refused_changes_no_headroom_and_says_why() -> None:
    """An earlier capacity stays with its time; the count, the event and the end of the sweep have the reason."""
    async with behind_a_gateway(25, status=400) as (url, _), staged(url) as stage:
        earlier = Capacity("quick", "found", 5.0, 6.0, 7.0)
        stage.demand.show_capacity((earlier,))
        stage.sweeps.start("t")
        await until(stage.is_swept)
        assert stage.value("llmslo_sweeps_total", "not_judged") == 1
        assert stage.value("llmslo_sweep_stops_total", "refused") == 1
        assert stage.value("llmslo_capacity_requests_per_second", "quick", "estimate") == 6.0
        assert stage.value("llmslo_sweep_last_success_timestamp_seconds") == 0
        (result,) = stage.sweeps.results("t")
        assert (result.capacities, result.refused.is_too_many) == ((), True)
        assert f"not judged: {result.refused}" in stage.events.latest("t")[0].text


async def test_a_sweep_finds_the_knee_and_a_restart_restores_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under background load; the answer is an interval in series, store and history, and is shown again after a restart.

    Four at a time of 195 ms each are 20.5 a second, and a queue of Poisson arrivals before them is longer than 210 ms for a tenth at
    16.2. Arrivals follow from the id of the sweep: thirty of them estimated 12 to 24, and one found nothing, so the id is fixed."""
    monkeypatch.setattr("prober.features.capacity.monitor.uuid", SimpleNamespace(uuid4=lambda: UUID(int=1)))
    slow = Behaviour(ttft=constant(0.19), itl=constant(0.001), slots=4, background_per_s=2.0)
    async with running(Settings(behaviour=slow, seed=1)) as url:
        async with staged(url, folder=tmp_path, threshold="400ms", least="9/s") as stage:
            stage.sweeps.start("t")
            await until(stage.is_swept)
            assert stage.value("llmslo_sweeps_total", "found") == 1
            lower, estimate, upper = (
                stage.value("llmslo_capacity_requests_per_second", "quick", bound)
                for bound in ("lower", "estimate", "upper")
            )
            assert lower < estimate < upper
            assert estimate < 20.5, "the slots allow no more"
            assert lower < 16.2 < upper, "and a tenth waits for too long at 16.2 a second"
            at = stage.value("llmslo_sweep_last_success_timestamp_seconds")
            assert at > 0
            assert stage.value("llmslo_sweep_rate_per_second") == 0
            assert stage.events.latest("t")[0].kind == "sweep"
            result = stage.sweeps.results("t")[0]
            assert result.stop in ("knee_passed", "breaching", "waiting", "slow", "saturated")
            assert result.capacities[0].estimate == estimate
            assert sum(each.sent for each in result.stages) > 0
        async with staged(url, folder=tmp_path) as stage:
            await until(lambda: stage.value("llmslo_capacity_requests_per_second", "quick", "estimate"))
            assert stage.value("llmslo_capacity_requests_per_second", "quick", "estimate") == estimate
            assert stage.value("llmslo_sweep_last_success_timestamp_seconds") == at
            assert stage.sweeps.results()[0].id == result.id


async def test_two_probers_of_one_machine_do_not_sweep_a_target_at_the_same_time() -> None:
    """The second one is refused with the reason."""
    async with running(SLOTS) as url, staged(url) as stage:
        with Lock(stage.target.spec.url):
            stage.sweeps.start("t")
            await until(lambda: stage.refused())
        assert stage.refused() == {"locked": 1}
        assert stage.ended() == 0


async def test_a_stopped_sweep_leaves_the_last_capacity_with_its_time() -> None:
    """Stopped at once it has no answer, and removes none."""
    async with running(SLOTS) as url, staged(url) as stage:
        stage.demand.show_capacity([Capacity("quick", "found", 80.0, 90.0, 99.0)])
        stage.families["llmslo_sweep_last_success_timestamp_seconds"].value("t").value = 1e9
        stage.sweeps.start("t")
        await until(lambda: stage.value("llmslo_sweep_rate_per_second") > 0)
        assert stage.sweeps.stop("t")
        await until(stage.is_swept)
        assert stage.value("llmslo_sweep_stops_total", "guard") == 1
        assert stage.value("llmslo_capacity_requests_per_second", "quick", "estimate") == 90
        assert stage.value("llmslo_sweep_last_success_timestamp_seconds") == 1e9


STAGES = (
    *("llmslo_sweep_stage_rate_per_second", "llmslo_sweep_stage_tokens_per_second"),
    "llmslo_sweep_stage_latency_seconds",
)


def curve(stage: Stage) -> dict[tuple[str, ...], float]:
    """The load curve in the series."""
    families = [stage.families[name] for name in STAGES]
    return {
        (family.series.name, *labels): child.value
        for family in families
        for labels, child in family.children.items()
        if isinstance(child, Value)
    }


async def test_an_aborted_sweep_leaves_the_last_curve_and_is_told_beside_it(tmp_path: Path) -> None:
    """Also after a restart of the prober, which brings the curve back; a target that was never swept well shows what there is."""
    async with running(SLOTS) as url:
        async with staged(url, folder=tmp_path) as stage:
            of = replace(sweep().target, url=stage.target.spec.url)
            good = replace(sweep("good"), target=of, ended_unix_s=1e9, started_unix_s=9e8)
            await stage.target_sweeps.results.keep(good)
            await stage.target_sweeps.recall()
            before = curve(stage)
            assert len({labels[2] for labels in before}) == len(good.stages)
            stage.sweeps.start("t")
            await until(lambda: stage.value("llmslo_sweep_rate_per_second") > 0)
            assert stage.sweeps.stop("t")
            await until(stage.is_swept)
            assert curve(stage) == before
            assert stage.value("llmslo_sweep_last_success_timestamp_seconds") == 1e9
            assert stage.value("llmslo_sweep_last_end_timestamp_seconds", "guard") > 1e9
        async with staged(url, folder=tmp_path) as stage:
            await until(lambda: curve(stage))
            assert curve(stage) == before
            assert stage.value("llmslo_sweep_last_end_timestamp_seconds", "guard") > 1e9
            stage.reconfigure(stage.target.spec.model_copy(update={"url": "http://127.0.0.1:1"}))
            assert not curve(stage), "that of another target"


@pytest.mark.real_time
async def test_a_sweep_ends_with_the_loss_of_a_worker_and_keeps_what_it_measured() -> None:
    """The reason names the worker and its requests, which are `invalid`; no process is left."""
    async with running(SLOTS) as url, staged(url, "workers: 2") as stage:
        stage.sweeps.start("t")
        await until(lambda: stage.value("llmslo_sweep_rate_per_second") > 0)
        runner = stage.target_sweeps.runner
        assert runner is not None
        await until(lambda: runner.progress().phase != "warm_up")
        sent_before = runner.progress().requests
        await until(lambda: ended_requests(runner) > sent_before)
        workers = worker_processes()
        assert len(workers) == 2
        os.kill(workers[0], signal.SIGKILL)
        await until(stage.is_swept)
        (result,) = stage.sweeps.results()
        assert result.stop == "guard"
        assert re.fullmatch(
            r"worker [12] of 2 ended \(SIGKILL\): (\d+ requests? lost, which do not count|no request is lost)",
            result.stop_detail,
        )
        outcomes = Counter[str]()
        for swept in result.stages:
            outcomes.update(swept.outcomes)
        assert set(outcomes) <= {"ok", "cancelled", "invalid"}
        assert outcomes["ok"] > 0
        assert json.loads(result.configuration or "")["workers"] == 2
    assert not worker_processes()


def ended_requests(runner: SweepRunner) -> int:
    """Requests of the sweep that have ended."""
    progress = runner.progress()
    return progress.requests - progress.in_flight


def worker_processes() -> list[int]:
    """Workers of this process."""
    lists = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    children = [int(pid) for path in lists for pid in path.read_text().split()]
    return [pid for pid in children if b"prober.probing.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


async def test_a_sweep_that_fails_shows_no_capacity(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a target that cannot be identified nor a fault of the prober passes as an answer; the next sweep may start."""
    for problem in (UnidentifiedTarget("nobody there"), RuntimeError("a fault")):

        async def broken(_: SweepRunner, problem: Exception = problem) -> None:
            raise problem

        async with running(SLOTS) as url, staged(url) as stage:
            monkeypatch.setattr(SweepRunner, "run", broken)
            stage.sweeps.start("t")
            await until(lambda: stage.value("llmslo_sweeps_total", "failed"))
            await until(lambda: stage.value("llmslo_sweep_rate_per_second") == 0)
            assert not stage.families["llmslo_capacity_requests_per_second"].children
            assert not stage.families["llmslo_sweep_last_success_timestamp_seconds"].children
            await asyncio.sleep(0)
            stage.sweeps.start("t")
            await until(lambda: stage.value("llmslo_sweeps_total", "failed") == 2)
    assert "please report this" in caplog.text


@pytest.mark.parametrize("status", [429, 500])
async def test_a_target_that_rejects_half_of_the_requests_has_no_capacity(status: int) -> None:
    """However fast the other half is: the sweep ends at once, for a limit in front of an idle engine, or for failures."""
    half = tuple(parse_fault(f"http:{status}@{i * 200}ms-{i * 200 + 100}ms") for i in range(600))
    async with running(replace(SLOTS, faults=half)) as url, staged(url) as stage:
        stage.sweeps.start("t")
        await until(stage.is_swept)
        (result,) = stage.sweeps.results()
        assert result.stop in (("rate_limited",) if status == 429 else ("failed", "smoke_failed", "knee_passed"))
        assert all(each.estimate is None for each in result.capacities), result.capacities
        assert not stage.families["llmslo_headroom_ratio"].children


async def test_a_late_prober_ends_no_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request leaves 50 to 500 ms late; the end is the target's own limit all the same."""
    rng, lags_s, take_result = Random(1), list[float](), Sweep.result

    def seen(sweep: Sweep, result: ProbeResult, at_s: float) -> None:
        if (lag_s := result.timeline.send_lag_s) is not None:
            lags_s.append(lag_s)
        take_result(sweep, result, at_s)

    async with running(SLOTS) as url, staged(url, least="40/s") as stage:
        call_at = stage.clock.call_at
        lateness_ns: dict[int, int] = {}

        def call_late(due_ns: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
            """Alarms of one time are late together, as in a process that sleeps."""
            late_ns = lateness_ns.setdefault(due_ns, rng.randint(50, 500) * 10**6)
            return call_at(due_ns + late_ns, callback)

        stage.clock.call_at = call_late  # type: ignore[method-assign]
        monkeypatch.setattr(Sweep, "result", seen)
        stage.sweeps.start("t")
        await until(stage.is_swept)
        (result,) = stage.sweeps.results()
    assert median(lags_s) >= 0.05
    assert result.stop in ("knee_passed", "breaching", "waiting", "slow")


@pytest.mark.parametrize("what", ["failing", "burning"])
async def test_a_sweep_ends_when_target_or_probes_are_in_trouble(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target fails, or the scheduled probes burn their budget."""
    monkeypatch.setattr(sweep_job, "GUARD_INTERVAL_S", 0.05)
    async with running(SLOTS) as url, staged(url) as stage:
        stage.sweeps.start("t")
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
        await until(lambda: stage.value("llmslo_sweep_stops_total", "guard"), 20)


@pytest.mark.parametrize(
    ("limits", "reason", "most"),
    [
        ("requests: 40", "request_budget", 40),
        ("tokens: 600", "token_budget", 25),
        ("cost: 0.018", "cost_budget", 30),
        ("time: 1s", "time_budget", 200),
    ],
)
async def test_a_limit_ends_a_sweep_and_is_not_exceeded(limits: str, reason: str, most: int) -> None:
    """Of requests, tokens (24 each), dollars (0.0006 each) and time; the server receives not one request more."""
    async with behind_a_gateway(10**6) as (url, received), staged(url, f"limits: {{{limits}}}") as stage:
        stage.sweeps.start("t")
        await until(stage.is_swept)
        (result,) = stage.sweeps.results()
        assert result.stop == reason
        assert result.warm_up is not None
        begun = result.warm_up.requests + sum(each.sent for each in result.stages)
        assert begun <= most
        assert begun == most or reason != "request_budget"
        assert 0 < len(received) <= most
        assert stage.value("llmslo_sweep_stops_total", reason) == 1


async def test_a_refused_sweep_leaves_the_demand_alone() -> None:
    """It added nothing: readings from before it still count."""
    async with running(SLOTS) as url, staged(url) as stage:
        stage.observed.page_read(
            PageReading(round(0.0 * 1e9), 0, EngineSignals(EngineInfo("vllm"), requests_finished_total=0.0))
        )
        with Lock(stage.target.spec.url):
            stage.sweeps.start("t")
            await until(lambda: stage.refused() and not stage.sweeps.under_way)
        stage.observed.page_read(
            PageReading(round(100.0 * 1e9), 0, EngineSignals(EngineInfo("vllm"), requests_finished_total=400.0))
        )
        assert stage.value("llmslo_demand_requests_per_second") == 4


async def test_a_sweep_can_be_stopped_before_it_sends() -> None:
    """While it reads the load that is there already."""
    async with behind_a_gateway(0) as (url, received), staged(url) as stage:
        stage.sweeps.start("t")
        await until(lambda: stage.sweeps.stop("t"))
        await until(stage.is_swept)
        (result,) = stage.sweeps.results()
        assert (result.stop, result.stop_detail) == ("guard", "stopped on request")
        assert received == []


@pytest.mark.parametrize(("ends", "why"), [(True, "the server is being ended"), (False, "stopped on request")])
async def test_a_sweep_ends_with_the_pod_or_a_pause_and_says_which(ends: bool, why: str) -> None:
    """`prober drain` is no request of a person."""
    async with behind_a_gateway(0) as (url, _), staged(url) as stage:
        stage.sweeps.start("t")
        await until(lambda: stage.target_sweeps.runner is not None)
        if ends:
            stage.target.end(True)
        stage.observed.paused()
        await until(stage.is_swept)
        (result,) = stage.sweeps.results()
        assert result.stop_detail == why


@pytest.mark.parametrize("ends", [True, False])
async def test_a_sweep_that_is_about_to_begin_sends_nothing_to_what_was_paused_or_ends(ends: bool) -> None:
    """It asks Prometheus, the lease and the disk first, which takes its time. That of another target begins."""
    async with (
        behind_a_gateway(0) as (url, received),
        behind_a_gateway(0) as (well_url, well_received),
        staged(url) as stage,
        staged(well_url) as well,
    ):
        for each in (stage, well):
            each.sweeps.start("t")
        if ends:
            stage.target.end(True)
        else:
            stage.target.paused_unix_s = 1.0
        stage.observed.paused()
        await until(lambda: stage.refused() and not stage.sweeps.under_way)
        assert stage.refused() == {"not_ready": 1}
        await until(lambda: well_received)
        assert received == []


async def test_a_demand_from_prometheus_is_the_background_load() -> None:
    """Of a target without a page: the capacity is demand plus added load, and the result names the source."""

    async def answer(request: web.Request) -> web.Response:
        found = [] if "ALERTS" in str((await request.post())["query"]) else [{"metric": {}, "value": [0, "40"]}]
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": found}})

    limited = "demand_query: 'sum(rate(x[5m]))', limits: {requests: 60}"
    async with (
        serving(answer) as prometheus,
        running(SLOTS) as url,
        staged(url, limited, page="none", prometheus=prometheus) as stage,
    ):
        await until(lambda: stage.value("llmslo_demand_requests_per_second") == 40)
        stage.sweeps.start("t")
        await until(stage.is_swept)
        (result,) = stage.sweeps.results()
        assert {each.demand_per_s for each in result.stages} == {40}
        assert result.interference == ("other load of 40 requests/s, by Prometheus, before the sweep",)
        (capacity,) = result.capacities
        assert capacity.verdict == "not_enough_data", "60 requests show no rate"
        assert capacity.evidence is not None
        assert capacity.evidence.rate_per_s > 40


async def test_a_sweep_does_not_wait_for_the_checks_of_scheduled_probes() -> None:
    """Its answers are checked in a turn of their own, while the check of a probe's answer never ends."""
    golden = GoldenWorkload("g", Fixed(1), Fixed(4), golden=(GoldenPrompt("17 + 25?", Expectation("text", "42")),))
    async with running(SLOTS) as url, staged(url, "limits: {requests: 40}") as stage, stage.target.check_turn:
        spec = stage.target.spec
        assert spec.sweep is not None
        stage.reconfigure(spec.model_copy(update={"sweep": spec.sweep.model_copy(update={"workload": golden})}))
        stage.sweeps.start("t")
        await until(stage.is_swept)
        (result,) = stage.sweeps.results("t")
        assert result.warm_up is not None
        assert sum(swept.quality[0] for swept in result.stages if swept.quality) > 30 - result.warm_up.requests
