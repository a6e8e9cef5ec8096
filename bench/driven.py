"""A sweep driven in virtual time against a simulated engine, as a driver would do it on the real clock."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import inf
from random import Random
from typing import Any, Literal

from bench.worlds import World
from prober.features.capacity.actions import Action, Estimate, Finished, Run
from prober.features.capacity.sweep import PAGE_S, Sweep
from prober.features.capacity.sweep_plan import Plan
from prober.measure.chat import Usage
from prober.measure.engine_signals import EngineHistogram, EngineInfo, EngineSignals
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.simulation.engine import Engine
from prober.simulation.faults import Fault
from prober.simulation.request import End, Request, Truth

Telemetry = Literal["arrivals", "counters", "none"]
LEAD_S, READ_LEAD_S, AFTER_S = 90.0, 60.0, 60.0
TICK_S, IDLE_PAGE_S, LOOK_S = 0.25, 5.0, 0.05
CLOCK_S = 1_000.0  # what the prober's clock shows at time 0 of the engine
BOUNDS = tuple(float(digit * 10**power) for power in range(5) for digit in (1, 2, 5))
FRONT_S, JITTER_S = 0.0002, 0.0002  # network: constant, and the mean of what comes on top


@dataclass
class Driven:
    """What came of it. others: the background's requests, to the end; began_s, ended_s: first and last second of sending.

    evidence_s: when the engine was first seen in trouble by `trouble`; orders: (at, order) as they changed
    """

    sweep: Sweep
    orders: list[tuple[float, Action]]
    others: list[Truth]
    own: list[Truth]
    began_s: float
    ended_s: float

    @property
    def estimate(self) -> Estimate | None:
        """What the first estimate was asked from."""
        return next((order for _, order in self.orders if isinstance(order, Estimate)), None)


@dataclass
class Page:
    """The engine's page; told of every request that is submitted, it has the histograms of lengths that real engines show."""

    engine: Engine
    open: list[Truth] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def signals(self) -> EngineSignals:
        """As it is at `engine.at_s`."""
        for truth in self.open:
            if truth.end is End.COMPLETE:
                insort(self.prompts, truth.request.prompt_tokens)
                insort(self.outputs, truth.request.output_tokens)
        self.open = [truth for truth in self.open if truth.end is None]
        return replace(
            signals(self.engine), prompt_tokens=_histogram(self.prompts), output_tokens=_histogram(self.outputs)
        )


def _histogram(ordered: list[int]) -> EngineHistogram:
    """With the buckets of vLLM: 1, 2, 5 of each power of ten."""
    counts = [float(bisect_right(ordered, bound)) for bound in BOUNDS]
    return EngineHistogram(BOUNDS, (*counts, float(len(ordered))), float(sum(ordered)))


def signals(engine: Engine, began_s: float = 1.0) -> EngineSignals:
    """The page at `engine.at_s`, without histograms."""
    state, total = engine.state, engine.parameters.kv_blocks
    return EngineSignals(
        info=EngineInfo("vllm", "0.1"),
        ranks=1,
        requests_running=state.running,
        requests_waiting=state.waiting,
        kv_cache_usage_ratio_max=state.kv_usage_ratio,
        kv_cache_usage_ratio_mean=state.kv_usage_ratio,
        kv_cache_capacity_tokens=total * engine.parameters.block_tokens,
        preemptions_total=state.preemptions,
        prompt_tokens_total=state.prompt_tokens,
        generation_tokens_total=state.generation_tokens,
        requests_finished_total=state.completed,
        start_time_seconds=began_s,
    )


def background(world: World, seed: object, until_s: float) -> Iterator[Request]:
    """Others' requests, the same with and without a sweep."""
    rng = Random(f"others {world.seed} {seed}")
    at_s = 0.0
    while world.others_per_s and (at_s := at_s + rng.expovariate(world.others_per_s)) < until_s:
        yield Request(at_s, *world.others.draw(rng), (), True)


@dataclass
class _Own:
    """A request of the sweep that is under way. shown_s: network added to what the client sees."""

    id: str
    truth: Truth
    shown_s: float
    told: bool = False
    stamps: list[int] = field(default_factory=list)


class Driver:
    """Engine, background and sweep, side by side. `run` to the first estimate or the end."""

    def __init__(
        self, world: World, plan: Plan, telemetry: Telemetry, seed: object, faults: Iterable[Fault] = ()
    ) -> None:
        self.world, self.telemetry = world, telemetry
        self.engine = Engine(world.parameters, Random(0), faults)
        self.page = Page(self.engine)
        self.rng = Random(f"own {world.seed} {seed}")
        self.everyone = background(world, seed, inf)
        self.next_other = next(self.everyone, None)
        self.others: list[Truth] = []
        self.own: list[Truth] = []
        self.open: list[_Own] = []
        self.orders: list[tuple[float, Action]] = []
        self.now = 0.0
        self.sweep: Any = None  # a Sweep once it has begun
        self._to(LEAD_S - READ_LEAD_S)
        seen = len(self.others)
        pages = []
        while self.now < LEAD_S:
            self._to(self.now + IDLE_PAGE_S)
            pages.append((self.now, self.page.signals()))
        self.sweep = Sweep(plan, CLOCK_S + self.now)
        self.page_s = self.now + PAGE_S
        for at_s, page in pages if telemetry != "none" else ():
            self.sweep.page(CLOCK_S + at_s, page)
        for other in self.others[seen:] if telemetry == "arrivals" else ():
            self.sweep.other(CLOCK_S + other.request.arrival_s, *other.request[1:3])

    def run(self, longest_s: float = 3_600.0) -> Driven:
        """Until the sweep asks for an estimate or ends, and a minute more without it."""
        began_s = self.now
        tick_s, due_s = self.now, inf
        rate = 0.0
        order: Action | None = None
        while self.now < began_s + longest_s:
            if self.sweep.action is not order:
                order = self.sweep.action
                self.orders.append((self.now, order))
                if not isinstance(order, Run):
                    break
                rate = order.rate_per_s
                due_s = self.now + self.rng.expovariate(rate)
            next_s = min(tick_s, self.page_s, due_s, self.now + LOOK_S)
            self._to(next_s)
            self._look()
            if next_s == due_s:
                self._send(due_s)
                due_s += self.rng.expovariate(rate)
            if next_s == tick_s:
                self.sweep.tick(CLOCK_S + self.now)
                tick_s += TICK_S
            if next_s == self.page_s:
                if self.telemetry != "none":
                    self.sweep.page(CLOCK_S + self.now, self.page.signals())
                self.page_s = self.now + self.sweep.page_every_s
            self.page_s = min(self.page_s, self.now + self.sweep.page_every_s)
        ended_s = self.now
        for each in self.open:
            self.engine.cancel(each.truth)
        self._to(ended_s + AFTER_S)
        return Driven(self.sweep, self.orders, self.others, self.own, began_s, ended_s)

    def _to(self, at_s: float) -> None:
        while self.next_other is not None and self.next_other.arrival_s <= at_s:
            other = self.next_other
            self.others.append(self.engine.submit(other))
            self.page.open.append(self.others[-1])
            if self.telemetry == "arrivals" and self.sweep is not None:
                self.sweep.other(CLOCK_S + other.arrival_s, other.prompt_tokens, other.output_tokens)
            self.next_other = next(self.everyone, None)
        self.engine.advance(at_s)
        self.now = at_s

    def _send(self, at_s: float) -> None:
        prompt, output = self.world.own.draw(self.rng)
        truth = self.engine.submit(Request(at_s, prompt, output))
        name = f"r{len(self.own)}"
        self.own.append(truth)
        self.page.open.append(truth)
        self.open.append(_Own(name, truth, FRONT_S + self.rng.expovariate(1 / JITTER_S)))
        self.sweep.sent(name, CLOCK_S + at_s, prompt, output)

    def _look(self) -> None:
        """Tell what a client has seen by now."""
        left = []
        for each in self.open:
            truth, shown_s = each.truth, each.shown_s
            if not each.told and truth.first_token_s is not None and truth.first_token_s + shown_s <= self.now:
                each.told = True
                self.sweep.first_token(each.id, CLOCK_S + truth.first_token_s + shown_s)
            if truth.end is None or truth.end_s is None or truth.end_s + shown_s > self.now:
                left.append(each)
            else:
                self.sweep.result(result(each.id, truth, shown_s), CLOCK_S + self.now)
        self.open = left


def result(name: str, truth: Truth, shown_s: float) -> ProbeResult:
    """What a probe would have made of it."""
    request = truth.request
    begin = round((CLOCK_S + request.arrival_s) * 1e9)
    stamps = tuple(round((CLOCK_S + at_s + shown_s) * 1e9) for at_s in truth.token_times_s())
    ok = truth.end is End.COMPLETE
    timeline = Timeline(
        begin,
        sent_ns=begin,
        first_ns=stamps[0] if stamps else None,
        end_ns=stamps[-1] if ok else None,
        content_ns=stamps,
        usage=Usage(request.prompt_tokens, request.output_tokens) if ok else None,
    )
    return ProbeResult(
        "t",
        "w",
        name,
        0.0,
        Outcome.OK if ok else Outcome.RESET,
        "",
        timeline,
        requested_prompt_tokens=request.prompt_tokens,
        requested_output_tokens=request.output_tokens,
    )


def longest_run_s(truths: list[Truth], threshold_s: float) -> float:
    """From the first to the last of the longest run of neighbouring arrivals that all breach; 0 where none do."""
    longest = 0.0
    since: float | None = None
    for truth in truths:
        if breaches(truth, threshold_s):
            since = truth.request.arrival_s if since is None else since
            longest = max(longest, truth.request.arrival_s - since)
        else:
            since = None
    return longest


def breaches(truth: Truth, threshold_s: float) -> bool:
    """No first token within the threshold (those that the simulation's end cut off late included)."""
    return truth.ttft_s is None or truth.ttft_s > threshold_s


def within(truths: list[Truth], from_s: float, to_s: float) -> list[Truth]:
    """Those that arrived in [from_s, to_s)."""
    times = [each.request.arrival_s for each in truths]
    return truths[bisect_left(times, from_s) : bisect_left(times, to_s)]


def finished(sweep: Sweep) -> Finished | None:
    """The end, if it has come."""
    return sweep.action if isinstance(sweep.action, Finished) else None
