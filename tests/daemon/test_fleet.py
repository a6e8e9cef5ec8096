"""Targets that come, change and go while others are probed."""

import asyncio
import json
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar, copy_context
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, TypeVar

import pytest

from prober.config.target import TargetSpec
from prober.daemon.registry import FEATURES, registry
from prober.daemon.state_persistence import AnsweredTargets
from prober.exposition.families import Registry, Value, page
from prober.features.budget.monitor import Ledger, TargetBudgets
from prober.features.capacity.monitor import Sweeps
from prober.features.capacity.target_sweeps import TargetSweeps
from prober.features.diagnosis.monitor import TargetDiagnosis
from prober.features.drift.monitor import TargetDrift
from prober.features.engines.monitor import EngineMonitor, TargetEngine
from prober.features.gpu.monitor import GpuMonitor
from prober.features.slo.monitor import TargetSlos
from prober.measure.gpu_reading import GpuReading, ThrottleReason
from prober.measure.outcome import BAD
from prober.measure.recording import Recording
from prober.measure.result import ProbeResult
from prober.measure.target_state import TargetState
from prober.mock.completion_request import Tokenizer
from prober.mock.delays import constant
from prober.mock.service import Behaviour, Settings
from prober.net import exchange
from prober.net.clock import BEAT_NS, Clock
from prober.net.endpoint import Endpoint
from prober.net.exchange import Exchange
from prober.probing.feature import Monitor
from prober.probing.fleet import Fleet
from prober.probing.history import EventLog, TargetHistory
from prober.probing.observer import TargetObserver
from prober.probing.probe import LocalRun
from prober.probing.recorder import TargetProbes
from prober.probing.supervisor import Supervisor
from prober.probing.target import Target
from prober.probing.target_runner import RunnerContext, TargetRunner
from prober.results.stage_parts import prompt_tokens_of
from prober.storage.saved_rows import SavedRows
from tests import virtual
from tests.config.reading import loaded
from tests.observed import shared
from tests.processes import free_port
from tests.scripted import Asked, scripted
from tests.serving import until
from tests.virtual import make_clock, running
from tests.wire.case import HOLD, Step
from tests.wire.events import DONE, content, end
from tests.wire.heads import body as response
from tests.wire.heads import chunk, until_close

pytestmark = pytest.mark.virtual_time
M = TypeVar("M", bound=Monitor)
QUICK = Settings(behaviour=Behaviour(ttft=constant(0.002), itl=constant(0.0001)))
SLOW = Settings(behaviour=Behaviour(ttft=constant(0.3), itl=constant(0.0001)))
SLOWEST = Settings(behaviour=Behaviour(ttft=constant(1.5), itl=constant(0.0001)))
DEFAULTS = "defaults: {rate: 50/s, arrivals: constant, warmup: 0, connect_lead: 5ms, max_in_flight: 100}\n"


def specs(*targets: str, slos: str = "") -> tuple[TargetSpec, ...]:
    text = (
        DEFAULTS
        + (f"slos: {slos}\n" if slos else "")
        + "targets:\n"
        + "".join(f"  - {{{target}}}\n" for target in targets)
    )
    return loaded(text).targets


class Watched:
    """A fleet with all its features, and what it has written."""

    def __init__(
        self,
        saved: dict[str, bytes] | None = None,
        answered: dict[str, bytes] | None = None,
        beat_ns: int = virtual.BEAT_NS,
    ) -> None:
        self.families: Registry = registry()
        self.clock = make_clock(beat_ns)
        self.events = EventLog()
        rows = defaultdict(SavedRows, engine=SavedRows(saved or {}))
        common = shared(
            self.families, self.clock, events=self.events, saved=rows, runners=lambda: self.fleet.runners.values()
        )
        self.monitors = [monitor for feature in FEATURES for monitor in feature.monitors(common)]
        self.answered = AnsweredTargets(
            lambda: (runner.target for runner in self.fleet.runners.values()), SavedRows(answered or {})
        )
        context = RunnerContext(
            self.clock,
            self.events,
            [monitor.observe for monitor in self.monitors],
            self.families.remove,
            "test",
            self.monitor(Ledger),
            Supervisor(self.families),
            has_answered_before=self.answered.take,
        )
        self.fleet: Fleet = Fleet(context)

    def monitor(self, kind: type[M]) -> M:
        return next(monitor for monitor in self.monitors if isinstance(monitor, kind))

    @property
    def sweeps(self) -> Sweeps:
        return self.monitor(Sweeps)

    async def reconcile(self, specs: Iterable[TargetSpec], drain_s: float) -> None:
        """Change the targets to `specs`; return when those that go or change have ended."""
        await self.fleet.change(specs, drain_s)
        await self.fleet.wait_until_stopped()

    def outcomes(self, target: str) -> dict[str, int]:
        """How many probes of a target ended how."""
        runner = self.fleet.find(target)
        history = runner.find(TargetHistory) if runner is not None else None
        return dict(history.outcomes) if history is not None else {}

    def recent(self, target: str) -> list[ProbeResult]:
        """Remembered probes of a target, latest first."""
        runner = self.fleet.find(target)
        history = runner.find(TargetHistory) if runner is not None else None
        return list(history.recent()) if history is not None else []

    def count(self, name: str, *labels: str) -> float:
        """The value, or the number of observations, of all children whose labels begin with `labels`."""
        found = 0.0
        for key, child in self.families[name].children.items():
            if key[: len(labels)] == labels:
                found += child.value if isinstance(child, Value) else sum(child.counts)
        return found

    def probes(self, *labels: str) -> float:
        return self.count("llmslo_probes_total", *labels)

    def named(self, target: str) -> set[str]:
        """The families that have a series of `target`."""
        return {
            name
            for name, family in self.families.items()
            if family.series.labels[:1] == ("target",) and any(key[0] == target for key in family.children)
        }


@asynccontextmanager
async def watched(
    saved: dict[str, bytes] | None = None,
    answered: dict[str, bytes] | None = None,
    beat_ns: int = virtual.BEAT_NS,
) -> AsyncIterator[Watched]:
    found = Watched(saved, answered, beat_ns)
    try:
        yield found
    finally:
        await found.sweeps.close()
        await found.fleet.stop(0.0)
        found.clock.close()


async def test_a_target_that_did_not_change_goes_on_as_the_same_line() -> None:
    """A reload that adds and changes others leaves its line, its counters and its histogram as they are."""
    async with running(QUICK) as url, watched() as seen:
        await seen.reconcile(specs(f"name: a, url: '{url}'"), 1.0)
        await until(lambda: seen.probes("a") >= 3)
        line, before = seen.fleet.runners["a"], seen.probes("a")
        histogram = seen.families["llmslo_ttft_seconds"].children["a", "probe"]
        await seen.reconcile(specs(f"name: b, url: '{url}'", f"name: a, url: '{url}'"), 1.0)
        await until(lambda: seen.probes("b") >= 1 and seen.probes("a") > before)
        assert seen.fleet.runners["a"] is line
        assert seen.families["llmslo_ttft_seconds"].children["a", "probe"] is histogram


async def test_a_target_that_changed_drains_and_begins_anew_with_its_saved_state() -> None:
    """Its series begin at 0, as after a restart of the prober; the window of an SLO and the spent budget go on."""

    def window() -> float:
        slos = seen.fleet.runners["a"].find(TargetSlos)
        assert slos is not None
        return sum(status.events for status in slos.statuses())

    async with running(SLOW) as url, watched() as seen:
        target, slos = (
            f"name: a, url: '{url}', budget: {{tokens_per_day: 2000000000}}",
            "{s: {signal: success, objective: 99%}}",
        )
        await seen.reconcile(specs(target, slos=slos), 1.0)
        await until(lambda: seen.probes("a") >= 5)
        line = seen.fleet.runners["a"]
        await seen.reconcile(specs(f"{target}, rate: 1/h", slos=slos), 5.0)
        assert not line.target.in_flight
        assert seen.fleet.runners["a"] is not line
        assert (seen.probes("a"), seen.outcomes("a")) == (0, {})
        assert window() >= 5
        now_ns = seen.clock.now_ns()
        assert (
            seen.fleet.runners["a"].target.budgets["tokens"].spent(now_ns)
            == line.target.budgets["tokens"].spent(now_ns)
            > 0
        )
        await until(lambda: seen.probes("a") >= 1, 60.0)


async def test_a_target_whose_labels_change_goes_on_under_the_new_ones() -> None:
    """No series has the old ones, a neighbour keeps its own, and a target that comes again has none of before."""

    def labels(target: str) -> set[str]:
        lines = b"".join(page(list(seen.families.values()), openmetrics=False)).decode().splitlines()
        own = (line for line in lines if f'target="{target}"' in line)
        return {",".join(sorted(re.findall(r'(?:team|env)="\w+"', line))) for line in own}

    async with running(QUICK) as url, watched() as seen:
        other = f"name: b, url: '{url}', labels: {{team: chat}}"
        await seen.reconcile(specs(f"name: a, url: '{url}', labels: {{team: search, env: prod}}", other), 1.0)
        await until(lambda: seen.probes("a") >= 5 and seen.probes("b") >= 1)
        assert (labels("a"), labels("b")) == ({'env="prod",team="search"'}, {'team="chat"'})
        await seen.reconcile(specs(f"name: a, url: '{url}', labels: {{team: ml}}", other), 5.0)
        await until(lambda: seen.probes("a") >= 5)
        assert (labels("a"), labels("b")) == ({'team="ml"'}, {'team="chat"'})
        await seen.reconcile(specs(other), 1.0)
        assert labels("a") == set()
        await seen.reconcile(specs(f"name: a, url: '{url}'", other), 1.0)
        await until(lambda: seen.probes("a") >= 1)
        assert (labels("a"), labels("b")) == ({""}, {'team="chat"'})


@pytest.mark.parametrize("function", ["_show_state", "_log_changes"])
async def test_an_exception_in_showing_the_state_is_logged_and_costs_no_probe(
    function: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither of the target nor of another, and a target that does not listen yet is still asked."""
    port = free_port()
    async with running(QUICK) as url, watched() as seen:
        urls = specs(f"name: bad, url: 'http://127.0.0.1:{port}'", f"name: good, url: '{url}'")
        await seen.reconcile(urls, 1.0)
        await until(lambda: seen.probes("good") >= 1)
        bad, real = seen.fleet.runners["bad"], getattr(TargetRunner, function)
        monkeypatch.setattr(
            TargetRunner, function, lambda runner, *given: fail() if runner is bad else real(runner, *given)
        )
        await until(lambda: FAULT in caplog.text)
        good = seen.probes("good")
        async with running(QUICK, port):
            await until(lambda: seen.probes("bad") >= 5 and seen.probes("good") >= good + 5, 60.0)
        assert "target=bad" in caplog.text
        assert "target=good" not in caplog.text.partition(FAULT)[2]


async def test_a_target_that_is_gone_leaves_no_series_and_no_history() -> None:
    """Nothing of a removed target is on the page, and no probe of it that ends late brings it back."""
    async with running(QUICK) as url, watched() as seen:
        await seen.reconcile(specs(f"name: a, url: '{url}'", f"name: b, url: '{url}'"), 1.0)
        await until(lambda: seen.probes("a") >= 1)
        assert seen.named("a")
        await seen.reconcile(specs(f"name: b, url: '{url}'"), 1.0)
        before = seen.probes("b")
        await until(lambda: seen.probes("b") >= before + 3)
        assert seen.named("a") == set()
        assert seen.outcomes("a") == {}
        assert seen.fleet.find("a") is None


async def test_gpus_stand_beside_the_targets_they_serve() -> None:
    """All that are visible beside an only target, none beside many unless it is said; what is gone leaves nothing."""
    first, second = (
        GpuReading(i, f"GPU-{i}", "H", power_watts=100.0, throttled=frozenset({ThrottleReason.THERMAL})) for i in (0, 1)
    )
    part = GpuReading(1, "MIG-1", "H", partition=2, parent="GPU-1", memory_used_bytes=5, processes={42: 5, 43: None})
    async with running(QUICK) as url, watched() as seen:
        gpus = seen.monitor(GpuMonitor)
        await seen.reconcile(specs(f"name: a, url: '{url}'"), 1.0)
        gpus.show([first, second], "570.86")
        assert seen.count("llmslo_gpu_power_watts", "a") == 200
        assert seen.count("llmslo_gpu_throttle_active", "a", "0", "thermal") == 1
        assert seen.count("llmslo_gpu_throttle_active", "a", "0") == 1
        many = (f"name: a, url: '{url}'", f"name: b, url: '{url}', gpus: {{indices: [1]}}")
        await seen.reconcile(specs(*many), 1.0)
        gpus.show([first, second, part], "570.86")
        assert not [labels for labels in seen.families["llmslo_gpu_info"].children if labels[0] == "a"]
        places = {labels[1] for labels in seen.families["llmslo_gpu_info"].children}
        assert places == {"1", "1:2"}
        assert seen.count("llmslo_gpu_processes", "b", "1:2") == 2
        assert len(seen.families["llmslo_gpu_processes"].children) == 1, (
            "the driver does not tell those of the whole GPU"
        )
        assert ("b", "1") not in seen.families["llmslo_gpu_utilization_ratio"].children, (
            "not supported is absent, not 0"
        )
        gpus.show([], "570.86")
        assert not seen.families["llmslo_gpu_info"].children
        assert not seen.families["llmslo_gpu_processes"].children


async def test_a_change_of_the_engine_is_an_event_over_a_restart_of_the_prober_too() -> None:
    """What was said to an earlier process is compared with; what is said for the first time is no change."""
    facts = {"version": "1.0", "dtype": "auto"}
    saved = {"a": json.dumps({"facts": facts, "asked": "", "answered_model": "", "page": ""}).encode()}
    async with running(QUICK) as url, watched(saved) as seen:
        await seen.reconcile(specs(f"name: a, url: '{url}'"), 1.0)
        runner = seen.fleet.runners["a"]
        engine = runner.find(TargetEngine)
        assert engine is not None
        for version, flag, driver in (("1.1", "fp8", "570.1"), ("1.1", "fp8", "575.2")):
            for change in engine.continuity.identity.update({"version": version, "dtype": flag}):
                engine._observed.engine_changed(change)
            runner.gpus_read([GpuReading(0, "GPU-0", "H")], driver)
        changes = [event.text for event in seen.events.latest("a") if event.kind == "engine"]
        assert changes == [
            "driver was 570.1, is 575.2",
            "dtype was auto, is fp8",
            "version was 1.0, is 1.1",
        ]
        for kind, count in (("driver", 1), ("version", 1), ("flags", 1), ("restart", 0)):
            assert seen.count("llmslo_engine_changes_total", "a", kind) == count
        ((key, row),) = seen.monitor(EngineMonitor).states()
        assert (key, json.loads(row)["facts"]) == ("a", {"version": "1.1", "dtype": "fp8", "driver": "575.2"})


async def test_warm_up_is_counted_and_kept_out_of_the_latencies() -> None:
    """Three probes calibrate the length of prompts, three warm up: all are counted, and only the cold start shows their times."""
    async with running(QUICK) as url, watched() as seen:
        await seen.reconcile(specs(f"name: a, url: '{url}', warmup: 3"), 1.0)
        await until(lambda: seen.probes("a") >= 9)
        assert seen.count("llmslo_e2e_seconds", "a") == seen.probes("a") - 6
        assert seen.count("llmslo_ttft_seconds", "a") == seen.probes("a") - 6
        assert seen.count("llmslo_cold_start_ttft_seconds", "a") > 0


async def test_probes_are_as_long_as_asked_for_after_the_warm_up() -> None:
    """The first answers tell how the server counts; no prompt of another length gets into a latency, where it would look like drift."""
    three_a_word = replace(QUICK, tokenizer=Tokenizer("triples", 40))
    async with running(three_a_word) as url, watched() as seen:
        await seen.reconcile(specs(f"name: a, url: '{url}', warmup: 3"), 1.0)
        await until(lambda: seen.probes("a") >= 90)
        probes = seen.recent("a")
        measured = [probe for probe in probes if not probe.warm_up]
        assert len(probes) - len(measured) == 6
        lengths = prompt_tokens_of(measured)
        assert lengths is not None
        assert lengths.requests == len(measured)
        assert lengths.counted == pytest.approx(lengths.asked, rel=0.03)


async def test_probes_under_way_end_within_the_drain_time_and_count() -> None:
    """A stop sends nothing more and waits for the answers that are coming."""
    async with running(SLOW) as url, watched() as seen:
        await seen.reconcile(specs(f"name: a, url: '{url}'"), 1.0)
        target = seen.fleet.runners["a"].target
        await until(lambda: len(target.in_flight) >= 2)
        under_way = len(target.in_flight)
        await seen.fleet.stop(10.0)
        assert not target.in_flight
        assert seen.probes("a") >= under_way
        assert seen.count("llmslo_probe_failures_total", "a") == 0
        assert seen.count("llmslo_probes_neutral_total", "a", "probe", "cancelled") == 0


async def test_what_the_prober_itself_cuts_off_is_no_failure_of_the_target() -> None:
    """Probes that outlast the drain time are cancelled: counted as neutral, in no SLI."""
    async with running(SLOW) as url, watched() as seen:
        found = specs(f"name: a, url: '{url}', headers: {{X-Mock-Fault: hang}}")
        await seen.reconcile(found, 1.0)
        target = seen.fleet.runners["a"].target
        await until(lambda: len(target.in_flight) >= 2)
        await seen.fleet.stop(0.0)
        assert not target.in_flight
        assert seen.count("llmslo_probes_neutral_total", "a", "probe", "cancelled") >= 2
        assert seen.probes("a") == 0
        assert seen.count("llmslo_probe_failures_total", "a") == 0


async def test_an_end_that_is_told_a_moment_later_is_no_failure() -> None:
    """Requests under way and those that are refused meanwhile are neutral; a neighbour of which nothing is told has failed."""
    slos = "{quick: {signal: success, objective: 99%}}"
    ports = {"ended": free_port(), "crashed": free_port()}

    def failures(name: str) -> tuple[float, float]:
        return seen.count("llmslo_probe_failures_total", name), seen.count("llmslo_slo_bad_events_total", name)

    async with watched() as seen:
        seen.fleet.context.end_notice_s = 2.0
        async with running(SLOWEST, ports["ended"]), running(SLOWEST, ports["crashed"]):
            found = specs(*(f"name: {name}, url: 'http://127.0.0.1:{port}'" for name, port in ports.items()), slos=slos)
            await seen.reconcile(found, 1.0)
            await until(lambda: min(seen.probes("ended"), seen.probes("crashed")) >= 5)
            ended = seen.fleet.runners["ended"]
        await asyncio.sleep(1.0)
        assert failures("ended") == (0, 0)
        ended.end(True)
        assert seen.count("llmslo_target_state", "ended", "draining") == 1
        await until(lambda: seen.count("llmslo_target_state", "crashed", "failing") == 1 and failures("crashed")[1] > 3)
        assert failures("ended") == (0, 0)
        await until(lambda: seen.count("llmslo_probes_neutral_total", "ended", "probe", "cancelled") > 3)
        await asyncio.sleep(3.0)  # those that waited for the notice
        sent = sum(seen.outcomes("ended").values())
        await asyncio.sleep(5.0)
        assert sum(seen.outcomes("ended").values()) == sent, "nothing more is sent"
        assert seen.count("llmslo_target_state", "ended", "draining") == 1
        async with running(QUICK, ports["ended"]):
            ended.end(False)
            await until(lambda: seen.count("llmslo_target_state", "ended", "ready") == 1)
        assert [event.text for event in seen.events.latest() if event.target == "ended" and "draining" in event.text]


async def test_probes_that_an_engine_left_unanswered_when_it_fell_asleep_are_no_failures() -> None:
    """They were sent before its page said so; a neighbour that answers as little has failed."""
    async with watched() as seen, running(QUICK) as url:
        more = "headers: {X-Mock-Fault: hang}, metrics: {url: none}, timeouts: {first_token: 5s}"
        await seen.reconcile(specs(*(f"name: {name}, url: '{url}', {more}" for name in ("asleep", "hung"))), 1.0)
        sleeper = seen.fleet.runners["asleep"].target
        await until(lambda: len(sleeper.in_flight) >= 2)
        sleeper.sleeps(True)
        await until(lambda: not sleeper.in_flight and seen.count("llmslo_probe_failures_total", "hung") > 3)
        assert seen.count("llmslo_probe_failures_total", "asleep") == 0
        assert seen.count("llmslo_probes_neutral_total", "asleep", "probe", "cancelled") >= 2


async def test_a_target_that_leaves_has_no_failures_while_it_does() -> None:
    """Discovery says that a pod is being ended by removing it: what breaks then is not counted. One that changes is not leaving."""
    ports = {"gone": free_port(), "changed": free_port()}

    def targets(*names: str, rate: str) -> tuple[TargetSpec, ...]:
        return specs(*(f"name: {name}, url: 'http://127.0.0.1:{ports[name]}', rate: {rate}" for name in names))

    async with watched() as seen:
        async with running(SLOWEST, ports["gone"]), running(SLOWEST, ports["changed"]):
            await seen.reconcile(targets("gone", "changed", rate="50/s"), 1.0)
            await until(lambda: all(len(runner.target.in_flight) >= 2 for runner in seen.fleet.runners.values()))
            gone = seen.fleet.runners["gone"]
            outcomes = gone.find(TargetHistory)
            assert outcomes is not None
            await seen.fleet.change(targets("changed", rate="49/s"), 5.0)
        await seen.fleet.wait_until_stopped()
        assert not [outcome for outcome in outcomes.outcomes if outcome in BAD]
        assert outcomes.outcomes["cancelled"] > 0
        await until(lambda: seen.count("llmslo_probe_failures_total", "changed") > 0)


FAULT = "ZeroDivisionError"


def fail(*_: object, **__: object) -> NoReturn:
    raise ZeroDivisionError("a fault")


def of(line: TargetRunner) -> bool:
    """It is that of the target whose code fails."""
    return bool(line.target.spec.name == "bad")


# Where the code of one target fails, and how its probes end then.
BEFORE, READING = "invalid", "malformed"
SENDING: dict[type, str] = {
    Target: "awake prepare reserve settle ended",
    Endpoint: "token head",
    LocalRun: "__init__ _work _on_due _send_if_ready",
    Exchange: "__init__ send _check",
}
ANSWERING: dict[type, str] = {
    Exchange: "on_header on_headers_complete _hand_over _complete",
    Recording: "feed finish _process_chunk _record observed_end complete",
    LocalRun: "_judge _attributed _completed",
}
PLACES = {
    (kind, function): outcome
    for outcome, functions in ((BEFORE, SENDING), (READING, ANSWERING))
    for kind, names in functions.items()
    for function in names.split()
}


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place[0].__name__}.{place[1]}")
async def test_an_exception_in_the_code_of_one_target_is_its_own(
    place: tuple[type, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Wherever it is raised: its probes say so, it gives slots and budget back, and its neighbour is untouched."""
    kind, function = place
    real = getattr(kind, function)
    is_bad: ContextVar[bool] = ContextVar("is_bad", default=False)
    run = TargetRunner._probe

    async def probe(self: TargetRunner, *args: Any) -> None:
        is_bad.set(of(self))
        await run(self, *args)

    call_at = Clock.call_at

    def in_its_context(self: Clock, due_ns: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return call_at(self, due_ns, partial(copy_context().run, callback))

    def sometimes(*args: Any, **kwargs: Any) -> Any:
        return fail() if is_bad.get() else real(*args, **kwargs)

    outcome = PLACES[place]
    async with running(QUICK) as url, watched() as seen:
        budget = "budget: {tokens_per_day: 2000000000}"
        both = specs(f"name: bad, url: '{url}', {budget}", f"name: good, url: '{url}', {budget}")
        await seen.reconcile(both, 1.0)
        await until(lambda: seen.probes("bad") >= 2 and seen.probes("good") >= 2)
        bad = seen.fleet.runners["bad"].target
        with monkeypatch.context() as patched:
            patched.setattr(TargetRunner, "_probe", probe)
            patched.setattr(Clock, "call_at", in_its_context)
            patched.setattr(kind, function, sometimes)
            await until(lambda: FAULT in caplog.text)
            good, failed = seen.probes("good"), seen.count("llmslo_probe_failures_total", "bad")
            bad.state = TargetState.PENDING if function == "awake" else TargetState.READY
            await until(lambda: seen.probes("good") >= good + 5)
            if outcome == READING:
                await until(lambda: seen.count("llmslo_probe_failures_total", "bad", "probe", "malformed") >= 2)
            else:
                await until(lambda: seen.count("llmslo_probes_neutral_total", "bad", "probe", "invalid") >= 2)
                assert seen.count("llmslo_probe_failures_total", "bad") == failed == 0
        told = [result for result in seen.recent("bad") if result.outcome.value == outcome]
        assert "report" in told[0].detail
        if outcome == READING:
            assert (
                FAULT in told[0].detail or "HttpParserCallbackError" in told[0].detail
            )  # the parser hides its callback's
        assert "Traceback" in caplog.text
        assert seen.count("llmslo_probe_failures_total", "good") == 0
        assert seen.count("llmslo_probes_neutral_total", "good") == 0
        for line in seen.fleet.runners.values():
            line.pause(0.0)
        await until(lambda: not bad.in_flight and not seen.fleet.runners["good"].target.in_flight)


LISTENERS: dict[str, tuple[type[TargetObserver], str]] = {
    "probes": (TargetProbes, "probe_ended"),
    "state": (TargetProbes, "state_seen"),
    "slos": (TargetSlos, "probe_ended"),
    "budgets": (TargetBudgets, "probe_ended"),
    "history": (TargetHistory, "probe_ended"),
    "drift": (TargetDrift, "probe_ended"),
    "diagnosis": (TargetDiagnosis, "probe_ended"),
    "sweeps": (TargetSweeps, "probe_ended"),
}


@pytest.mark.parametrize("name", LISTENERS)
async def test_an_exception_in_an_observer_is_logged_and_the_others_still_hear(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that fails for one target costs neither the other observers nor other targets, and schedules go on."""
    async with running(QUICK) as url, watched() as seen:
        budget = "budget: {tokens_per_day: 2000000000}"
        await seen.reconcile(specs(f"name: bad, url: '{url}', {budget}", f"name: good, url: '{url}'"), 1.0)
        await until(lambda: seen.probes("bad") >= 1 and seen.probes("good") >= 1)
        heard: dict[str, int] = dict.fromkeys(LISTENERS, 0)
        for other, (kind, method) in LISTENERS.items():
            observer = seen.fleet.runners["bad"].find(kind)
            assert observer is not None
            real = getattr(observer, method)

            def listener(*args: Any, real: Any = real, other: str = other) -> Any:
                heard[other] += 1
                if other == name:
                    fail()
                return real(*args)

            monkeypatch.setattr(observer, method, listener)
        good = seen.probes("good")
        await until(lambda: min(heard.values()) >= 3 and seen.probes("good") >= good + 3)
        assert "please report this" in caplog.text
        assert FAULT in caplog.text
        assert all(record.levelname == "ERROR" for record in caplog.records if FAULT in (record.exc_text or ""))


def every_second_is_429(asked: Asked, count: "Counter[int]") -> Iterator[Step]:
    """Answer after 0.2 s, in turn with four tokens and with 429; count: answers by status."""
    status = 404 if asked.method == "GET" else 429 if count[200] > count[429] else 200
    count[status] += 1
    yield 0.2
    yield from until_close(*content(4, 0.005), end(), DONE) if status == 200 else response(f"{status} No", "")


@pytest.mark.parametrize("stop_s", [0.05, 0.3, 1.0, 5.0, 60.0])
async def test_a_stop_of_the_prober_is_blamed_on_no_target_and_hides_no_failure(stop_s: float) -> None:
    """Ten probes a second, of which four are in flight and five may be.

    A healthy target has no failure and nothing shed. Of one that refuses half of them every 429 is counted as that, unless the stop was
    longer than the timeouts. A second later latencies are measured again.
    """
    engine = Settings(behaviour=Behaviour(ttft=constant(0.2), itl=constant(0.005)))
    count: Counter[int] = Counter()
    limiting = scripted(partial(every_second_is_429, count=count))
    async with running(engine) as url, limiting as limited, watched(beat_ns=BEAT_NS) as seen:
        load = "rate: 10/s, max_in_flight: 5, connect_lead: 1s"
        both = f"name: well, url: '{url}', {load}", f"name: limited, url: '{limited}', model: m, engine: vllm, {load}"
        await seen.reconcile(specs(*both, slos="{success: {signal: success, objective: 99%}}"), 1.0)
        for pause_s in (1.57, 1.213, 1.1):
            await asyncio.sleep(pause_s)
            asyncio.get_running_loop().stand_still(stop_s)  # type: ignore[attr-defined]
        await asyncio.sleep(1.0)
        measured = seen.count("llmslo_ttft_seconds", "well")
        await asyncio.sleep(1.0)
        assert seen.count("llmslo_ttft_seconds", "well") >= measured + 9
        await seen.fleet.stop(5.0)
        assert {**seen.outcomes("well"), "ok": 0, "invalid": 0} == {"ok": 0, "invalid": 0}
        assert seen.count("llmslo_slo_events_total", "well", "probe", "success") >= 20
        assert seen.count("llmslo_slo_bad_events_total", "well") == 0
        outcomes = seen.outcomes("limited")
        assert set(outcomes) <= {"ok", "http_429", "invalid"}
        assert outcomes["http_429"] >= (count[429] if stop_s < 30 else count[429] - 3 * 3) >= 10
        assert seen.count("llmslo_slo_bad_events_total", "limited", "probe", "success") == outcomes["http_429"]


async def test_a_target_is_not_judged_while_the_prober_cannot_send_most_of_its_probes() -> None:
    """Stopped for eight of nine seconds for three minutes, the prober misses most due times; ten minutes later it has forgotten that.

    A pause ends it at once, as nothing is judged then.
    """
    async with running(QUICK) as url, watched(beat_ns=BEAT_NS) as seen:
        load = "rate: 1/s, connect_lead: 1s"
        await seen.reconcile(specs(f"name: a, url: '{url}', {load}", f"name: b, url: '{url}', {load}"), 1.0)
        await until(lambda: seen.probes("a") >= 3)
        assert seen.count("llmslo_trusted", "a") == 1
        for _ in range(20):
            await asyncio.sleep(1.0)
            asyncio.get_running_loop().stand_still(8.0)  # type: ignore[attr-defined]
        assert (seen.count("llmslo_trusted", "a"), seen.count("llmslo_trusted", "b")) == (0, 0)
        assert seen.count("llmslo_probe_failures_total", "a") == 0
        seen.fleet.runners["b"].pause(0.0)
        assert (seen.count("llmslo_trusted", "a"), seen.count("llmslo_trusted", "b")) == (0, 1)
        await asyncio.sleep(615.0)
        assert seen.count("llmslo_trusted", "a") == 1


async def test_complete_answers_on_connections_that_stay_open_shed_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A healthy target whose server never closes: with two slots and long deadlines every probe is answered."""
    body = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

    monkeypatch.setattr(exchange, "LINGER_S", 0.02)

    open_: set[Asked] = set()

    def answers(asked: Asked) -> Iterator[Step]:
        if asked.method == "GET":
            yield from response("200 OK", {"data": [{"id": "m"}]})
            return
        yield head + chunk(body)
        open_.add(asked)
        try:
            yield HOLD
        finally:
            open_.discard(asked)

    async with scripted(answers) as url, watched() as seen:
        limits = "max_in_flight: 2, timeouts: {first_token: 20s, stall: 20s, total: 60s}"
        await seen.reconcile(specs(f"name: a, url: '{url}', {limits}"), 1.0)
        await until(lambda: seen.probes("a") >= 40)
        assert seen.count("llmslo_probe_failures_total", "a") == 0
        assert seen.count("llmslo_e2e_seconds", "a") == seen.probes("a")
        seen.fleet.runners["a"].pause(0.0)
        await until(lambda: not open_ and not seen.fleet.runners["a"].target.in_flight)
