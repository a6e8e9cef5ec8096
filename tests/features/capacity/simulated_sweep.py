"""A sweep in virtual time against a simulated engine with background load."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import inf
from random import Random
from typing import Any, Literal

from prober.config.sweep import WARM_UP, LimitsSpec, SweepSpec
from prober.features.capacity.actions import Action, Estimate, Finished, Run
from prober.features.capacity.sweep import PAGE_S, Sweep
from prober.measure.chunk import Usage
from prober.measure.engine_signals import EngineHistogram, EngineInfo, EngineSignals
from prober.measure.objective import Slo
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.target_state import WarmUpLength
from prober.measure.timeline import Timeline
from prober.simulation.engine import Engine
from prober.simulation.faults import Fault
from prober.simulation.parameters import Parameters
from prober.simulation.request import End, Request, Truth
from prober.workload.shapes import Lognormal

Telemetry = Literal["counters", "none"]
LEAD_S, READ_LEAD_S, AFTER_S = 90.0, 60.0, 60.0  # before the sweep: background, page readings; background after it
TICK_S, IDLE_PAGE_S, MAX_STEP_S = 0.25, 5.0, 0.05
CLOCK_S = 1_000.0  # the prober's clock at time 0 of the engine
VLLM_BOUNDS = tuple(float(digit * 10**power) for power in range(5) for digit in (1, 2, 5))
FRONT_S, JITTER_S = 0.0002, 0.0002  # network: constant, and mean of the exponential part


def sweep_spec(*slos: Slo, **changes: Any) -> SweepSpec:
    """A sweep that only its target ends."""
    defaults = {"slos": slos, "mode": "adaptive", "max_rate": 1_000.0, "limits": LimitsSpec(time=1e9)}
    return SweepSpec.model_validate(defaults | changes)


def changed(spec: SweepSpec, **changes: Any) -> SweepSpec:
    """The sweep with these changes."""
    return SweepSpec.model_validate(dict(spec) | changes)


@dataclass(frozen=True, slots=True)
class Workload:
    """Distributions of prompt and output tokens."""

    prompt: Lognormal
    output: Lognormal

    def draw(self, rng: Random) -> tuple[int, int]:
        """Prompt and output tokens of one request."""
        return self.prompt.draw(rng), self.output.draw(rng)


@dataclass(frozen=True, slots=True)
class SimulatedTarget:
    """An engine, the sweep's workload, and the background load.

    kind: what limits it
    threshold_s: of TTFT
    others_per_s: background rate
    others_share: background's share of the total rate, before the rate is known
    """

    seed: int
    kind: str
    parameters: Parameters
    own: Workload
    others: Workload
    threshold_s: float
    others_per_s: float = 0.0
    others_share: float | None = None


@dataclass
class Driven:
    """Result of a run.

    orders: (time, order of the sweep) at each change
    others, own: requests of the background and of the sweep
    began_s, ended_s: begin and end of sending
    """

    sweep: Sweep
    orders: list[tuple[float, Action]]
    others: list[Truth]
    own: list[Truth]
    began_s: float
    ended_s: float

    @property
    def estimate(self) -> Estimate | None:
        """The first order to estimate."""
        return next((order for _, order in self.orders if isinstance(order, Estimate)), None)


@dataclass
class Page:
    """Metrics page of the engine, with histograms of the lengths of all submitted requests."""

    engine: Engine
    open: list[Truth] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def signals(self) -> EngineSignals:
        """Signals at `engine.at_s`."""
        for truth in self.open:
            if truth.end is End.COMPLETE:
                insort(self.prompts, truth.request.prompt_tokens)
                insort(self.outputs, truth.request.output_tokens)
        self.open = [truth for truth in self.open if truth.end is None]
        return replace(
            signals(self.engine), prompt_tokens=_histogram(self.prompts), output_tokens=_histogram(self.outputs)
        )


def _histogram(ordered: list[int]) -> EngineHistogram:
    """Histogram with the buckets of vLLM: 1, 2, 5 of each power of ten."""
    counts = [float(bisect_right(ordered, bound)) for bound in VLLM_BOUNDS]
    return EngineHistogram(VLLM_BOUNDS, (*counts, float(len(ordered))), float(sum(ordered)))


def signals(engine: Engine, began_s: float = 1.0) -> EngineSignals:
    """Signals at `engine.at_s`, without histograms."""
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


def background(target: SimulatedTarget, seed: object, until_s: float) -> Iterator[Request]:
    """Background requests, the same with and without a sweep."""
    rng = Random(f"others {target.seed} {seed}")
    at_s = 0.0
    while target.others_per_s and (at_s := at_s + rng.expovariate(target.others_per_s)) < until_s:
        yield Request(at_s, *target.others.draw(rng), (), True)


@dataclass
class _OpenRequest:
    """A request of the sweep in flight. network_s: added to all times that the client sees."""

    id: str
    truth: Truth
    due_s: float
    network_s: float
    has_first_token: bool = False


class Driver:
    """Engine, background and sweep, side by side. `run` goes on until it asks for an estimate, or ends.

    late_s: least and most by which a request leaves after it is due
    """

    def __init__(
        self,
        target: SimulatedTarget,
        spec: SweepSpec,
        telemetry: Telemetry,
        seed: object,
        faults: Iterable[Fault] = (),
        lengths: tuple[tuple[int, int], ...] = (),
        warm_up: WarmUpLength = WARM_UP,
        late_s: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self.target, self.telemetry, self.late_s = target, telemetry, late_s
        self.engine = Engine(target.parameters, Random(0), faults)
        self.page = Page(self.engine)
        self.rng = Random(f"own {target.seed} {seed}")
        self._background = background(target, seed, inf)
        self._next_other = next(self._background, None)
        self.others: list[Truth] = []
        self.own: list[Truth] = []
        self.open: list[_OpenRequest] = []
        self._leaving: list[tuple[float, float]] = []  # when a request leaves, and when it was due
        self.orders: list[tuple[float, Action]] = []
        self.now = 0.0
        self.sweep: Any = None  # a Sweep once it has begun
        self.advance(LEAD_S - READ_LEAD_S)
        pages = []
        while self.now < LEAD_S:
            self.advance(self.now + IDLE_PAGE_S)
            pages.append((self.now, self.page.signals()))
        self.sweep = Sweep(spec, CLOCK_S + self.now, warm_up, lengths)
        self.page_s = self.now + PAGE_S
        for at_s, page in pages if telemetry != "none" else ():
            self.sweep.page(CLOCK_S + at_s, page)

    def run(self, longest_s: float = 3_600.0) -> Driven:
        """Run until the sweep asks for an estimate or ends, and a minute of background more."""
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
            leaves_s = self._leaving[0][0] if self._leaving else inf
            next_s = min(tick_s, self.page_s, due_s, leaves_s, self.now + MAX_STEP_S)
            self.advance(next_s)
            self._report_answers()
            if next_s == due_s:
                insort(self._leaving, (due_s + self.rng.uniform(*self.late_s), due_s))
                due_s += self.rng.expovariate(rate)
            if self._leaving and self._leaving[0][0] <= next_s:
                self.send(*self._leaving.pop(0))
            if next_s == tick_s:
                self.sweep.tick(CLOCK_S + self.now)
                tick_s += TICK_S
            if next_s == self.page_s:
                if self.telemetry != "none":
                    self.sweep.page(CLOCK_S + self.now, self.page.signals())
                self.page_s = self.now + self.sweep.page_every_s
            self.page_s = min(self.page_s, self.now + self.sweep.page_every_s)
        ended_s = self.now
        for request in self.open:
            self.engine.cancel(request.truth)
        self.advance(ended_s + AFTER_S)
        return Driven(self.sweep, self.orders, self.others, self.own, began_s, ended_s)

    def advance(self, at_s: float) -> None:
        """Advance engine and background to `at_s`."""
        while self._next_other is not None and self._next_other.arrival_s <= at_s:
            other = self._next_other
            self.others.append(self.engine.submit(other))
            self.page.open.append(self.others[-1])
            self._next_other = next(self._background, None)
        self.engine.advance(at_s)
        self.now = at_s

    def send(self, at_s: float, due_s: float) -> None:
        """Send a request of the sweep."""
        prompt, output = self.target.own.draw(self.rng)
        truth = self.engine.submit(Request(at_s, prompt, output))
        name = f"r{len(self.own)}"
        self.own.append(truth)
        self.page.open.append(truth)
        self.open.append(_OpenRequest(name, truth, due_s, FRONT_S + self.rng.expovariate(1 / JITTER_S)))
        self.sweep.sent(name, CLOCK_S + at_s, prompt, output)

    def _report_answers(self) -> None:
        """Report to the sweep what a client has received by now."""
        still_open = []
        for request in self.open:
            truth, network_s = request.truth, request.network_s
            first_s = None if truth.first_token_s is None else truth.first_token_s + network_s
            if not request.has_first_token and first_s is not None and first_s <= self.now:
                request.has_first_token = True
                self.sweep.first_token(request.id, CLOCK_S + first_s)
            if truth.end is None or truth.end_s is None or truth.end_s + network_s > self.now:
                still_open.append(request)
            else:
                self.sweep.result(result(request.id, truth, network_s, request.due_s), CLOCK_S + self.now)
        self.open = still_open


def result(name: str, truth: Truth, network_s: float, due_s: float | None = None) -> ProbeResult:
    """Result of a probe that received these tokens. due_s: None: when it left"""
    request = truth.request
    begin = round((CLOCK_S + request.arrival_s) * 1e9)
    stamps = tuple(round((CLOCK_S + at_s + network_s) * 1e9) for at_s in truth.token_times_s())
    ok = truth.end is End.COMPLETE
    timeline = Timeline(
        begin if due_s is None else round((CLOCK_S + due_s) * 1e9),
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
    """Time from the first to the last arrival of the longest run of consecutive breaches; 0 without breaches."""
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
    """The first token did not arrive within the threshold."""
    return truth.ttft_s is None or truth.ttft_s > threshold_s


def within(truths: list[Truth], from_s: float, to_s: float) -> list[Truth]:
    """Requests that arrived in [from_s, to_s)."""
    times = [truth.request.arrival_s for truth in truths]
    return truths[bisect_left(times, from_s) : bisect_left(times, to_s)]


def finished(sweep: Sweep) -> Finished | None:
    """Final action of the sweep, if it has ended."""
    return sweep.action if isinstance(sweep.action, Finished) else None
