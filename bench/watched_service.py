"""A simulated service as a prober sees it: the timelines of its probes (with the network's delay and its own lateness in them), the
engine's page every 5 s, the GPU beside it.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import accumulate
from random import Random
from typing import NamedTuple

from prober.features.diagnosis.window import Hardware, Reading
from prober.measure.bandwidth_bound import DecodeModel
from prober.measure.chunk import Usage
from prober.measure.engine_signals import EngineHistogram, EngineInfo, EngineSignals
from prober.measure.gpu_reading import GpuReading, ThrottleReason
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Connection, Timeline
from prober.simulation.engine import Engine, State
from prober.simulation.faults import Fault, KvLost
from prober.simulation.load import AzureConversation, lengths
from prober.simulation.parameters import Parameters
from prober.simulation.request import End, Request, Truth

LEAD_S = 180.0
EVERY_S, PROBES_PER_S = 5.0, 0.2
JITTER_S = 0.0001  # of the network, mean
CLOCK = 1.4e9
Lengths = Callable[[Random], tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A window's truth. rtt_s: of the network; front_s: what a gateway adds; api_s: what the engine's own front adds.

    background: lengths of users' requests; sharing: (prefix ids, tokens) of them, 0 ids: none
    long_per_s, long_prompt: rate of others' long prompts, and their lengths (from, to)
    probe_prompt: from, to; probe_prefix: tokens that half of the probes share
    replicas: behind one address and one page, in turn; tokenizer_s: of a serial front, per request
    front_is_queue: the page counts the wait for that front as queue time. counts_at_end: histograms count requests at their end
    least_usage: of the KV cache on a page that counts blocks which only the prefix cache holds
    """

    parameters: Parameters
    model: DecodeModel
    bandwidth: float
    rate_per_s: float
    background: Lengths = lengths
    sharing: tuple[int, int] = (0, 0)
    long_per_s: float = 0.0
    long_prompt: tuple[int, int] = (12_000, 32_000)
    probe_prompt: tuple[int, int] = (64, 512)
    probe_prefix: int = 0
    caching: bool = True
    rtt_s: float = 0.002
    front_s: float = 0.0
    api_s: float = 0.0
    replicas: int = 1
    tokenizer_s: float = 0.0
    front_is_queue: bool = False
    counts_at_end: bool = False
    least_usage: float = 0.0
    faults: tuple[Fault, ...] = ()
    clock: float = 1.0
    throttled: frozenset[ThrottleReason] = field(default_factory=frozenset)


class Served(NamedTuple):
    """A request as it was sent, and its course from where the engine's front gives it to the scheduler."""

    request: Request
    truth: Truth

    @property
    def front_s(self) -> float:
        """Time in the engine's front."""
        return self.truth.request.arrival_s - self.request.arrival_s


def requests(world: World, rng: Random, duration_s: float) -> Iterator[Request]:
    """Users' requests, those of a shared beginning with its ids."""
    groups, tokens = world.sharing
    size = world.parameters.prefix_block_tokens
    new_state = 1 << 40
    for each in AzureConversation(world.rate_per_s, daily_amplitude=0.0).requests(rng, 0.0, duration_s):
        prompt, output = world.background(rng)
        prefix: tuple[int, ...] = ()
        if tokens:
            prompt += tokens
            new_state += 1
            first = rng.randrange(groups) if groups else new_state
            prefix = tuple((first << 8) + block for block in range(tokens // size)) if world.caching else ()
        yield Request(each.arrival_s, prompt, output, prefix, True)


def very_long(world: World, rng: Random, duration_s: float) -> Iterator[Request]:
    """Others' long prompts."""
    at_s = rng.expovariate(world.long_per_s) if world.long_per_s else duration_s
    while at_s < duration_s:
        yield Request(at_s, rng.randrange(*world.long_prompt), rng.randrange(50, 200), (), True)
        at_s += rng.expovariate(world.long_per_s)


def probes(world: World, rng: Random, duration_s: float) -> Iterator[Request]:
    """The prober's, half of them with a prefix where the workload has one."""
    at_s = rng.expovariate(PROBES_PER_S)
    while at_s < duration_s:
        prompt = rng.randrange(*world.probe_prompt)
        warm = bool(world.probe_prefix) and rng.random() < 0.5
        ids = range(world.probe_prefix // world.parameters.prefix_block_tokens) if warm else ()
        yield Request(at_s, prompt, rng.randrange(24, 64), tuple((1 << 50) + i for i in ids))
        at_s += rng.expovariate(PROBES_PER_S)


def result(world: World, served: Served, rng: Random) -> ProbeResult:
    """The truth through the network."""
    request, truth = served
    warm = bool(request.prefix)
    start = round(request.arrival_s * 1e9)

    def ns(seconds: float) -> int:
        return round(seconds * 1e9)

    connect_s = 2 * world.rtt_s + rng.expovariate(1 / 0.0002)
    connection = Connection(start - 10**9, start - 10**9 + ns(connect_s), 10**9, tcp_s=connect_s)
    timeline = Timeline(start, connection, start, acknowledged_ns=start + ns(world.rtt_s))
    name = "warmable_warm" if warm else "warmable"
    outcome = Outcome.OK if truth.end is End.COMPLETE else Outcome.RESET
    if outcome is Outcome.OK:
        first_s = world.rtt_s + world.api_s + (rng.uniform(0.7, 1.3) * world.front_s if world.front_s else 0.0)
        stamps: list[int] = []
        for at_s in (*truth.token_times_s(),):
            heard = start + ns(at_s - request.arrival_s + first_s + rng.expovariate(1 / JITTER_S))
            stamps.append(max(heard, stamps[-1]) if stamps else heard)
        usage = Usage(request.prompt_tokens, request.output_tokens)
        timeline = replace(
            timeline,
            first_ns=stamps[0],
            end_ns=stamps[-1],
            content_ns=tuple(stamps),
            usage=usage,
            finish_reason="length",
        )
    return ProbeResult("t", name, "id", request.arrival_s, outcome, "", timeline)


class Log:
    """Observations by time as an engine's histogram has counted them by any moment."""

    def __init__(self, seen_at: list[tuple[float, float, float]]) -> None:
        """(time, sum of values, their number)."""
        seen_at.sort()
        self._times = [when for when, _, _ in seen_at]
        self._sums = [0.0, *accumulate(value for _, value, _ in seen_at)]
        self._counts = [0.0, *accumulate(count for _, _, count in seen_at)]

    def until(self, at_s: float) -> EngineHistogram:
        place = bisect_right(self._times, at_s)
        return EngineHistogram((), (self._counts[place],), self._sums[place])


@dataclass(frozen=True, slots=True)
class Logs:
    """The engine's histograms, by the time at which it counts a request."""

    ttft: Log
    queue: Log
    itl: Log
    prompt: Log

    @classmethod
    def of(cls, world: World, served: Sequence[Served]) -> "Logs":
        begun = [s for s in served if s.truth.first_token_s is not None and s.truth.admitted_s is not None]
        over = [s.truth for s in begun if s.truth.end is End.COMPLETE]
        if world.counts_at_end:
            begun = [s for s in begun if s.truth.end is End.COMPLETE]

        def log(value: Callable[[Served], float]) -> Log:
            return Log(
                [((s.truth.end_s if world.counts_at_end else s.truth.first_token_s) or 0, value(s), 1) for s in begun]
            )

        return cls(
            log(lambda s: s.front_s + (s.truth.ttft_s or 0) + world.api_s),
            log(
                lambda s: (s.truth.admitted_s or 0) - (s.request if world.front_is_queue else s.truth.request).arrival_s
            ),
            Log([(t.end_s or 0, (t.tpot_s or 0) * (t.tokens - 1), t.tokens - 1) for t in over if t.tokens > 1]),
            Log([(t.end_s or 0, t.request.prompt_tokens, 1) for t in over]),
        )


def page(world: World, states: Sequence[State], logs: Logs) -> EngineSignals:
    """The engine's page at one moment: all replicas together."""
    lost = sum(fault.blocks for fault in world.faults if isinstance(fault, KvLost))
    at_s, usage = states[0].at_s, [max(state.kv_usage_ratio, world.least_usage) for state in states]

    def total(name: str) -> float:
        return float(sum(getattr(state, name) for state in states))

    return EngineSignals(
        info=EngineInfo("vllm"),
        ranks=len(states),
        requests_running=total("running"),
        requests_waiting=total("waiting"),
        kv_cache_usage_ratio_max=max(usage),
        kv_cache_usage_ratio_mean=sum(usage) / len(usage),
        kv_cache_capacity_tokens=float(
            len(states) * (world.parameters.kv_blocks - lost) * world.parameters.block_tokens
        ),
        preemptions_total=total("preemptions"),
        prefix_cache_queries_tokens_total=total("prefix_queries"),
        prefix_cache_hits_tokens_total=total("prefix_hits"),
        prompt_tokens_total=total("prompt_tokens"),
        generation_tokens_total=total("generation_tokens"),
        requests_finished_total=total("completed"),
        ttft_seconds=logs.ttft.until(at_s),
        queue_seconds=logs.queue.until(at_s),
        itl_seconds=logs.itl.until(at_s),
        prompt_tokens=logs.prompt.until(at_s),
    )


@dataclass(frozen=True, slots=True)
class Window:
    """All that there is of one."""

    probes: list[ProbeResult]
    readings: list[Reading]
    devices: list[list[GpuReading]]
    hardware: Hardware


def watched(world: World, duration_s: float, seed: int) -> Window:
    """A window of this world, after a lead that is not looked at."""
    load, long, own, inside, way, gpu = (Random(f"{seed} {part}") for part in range(6))
    engines, end_s = (
        [Engine(world.parameters, inside, world.faults) for _ in range(world.replicas)],
        LEAD_S + duration_s,
    )
    states: list[list[State]] = []
    served: list[Served] = []
    due, front_free_s = LEAD_S, 0.0
    for number, request in enumerate(
        merge(requests(world, load, end_s), very_long(world, long, end_s), probes(world, own, end_s))
    ):
        front_free_s = max(front_free_s, request.arrival_s) + world.tokenizer_s
        while due <= front_free_s and due < end_s:
            for engine in engines:
                engine.advance(due)
            states.append([engine.state._replace(at_s=due) for engine in engines])
            due += EVERY_S
        prefix = request.prefix if world.caching else ()
        truth = engines[number % len(engines)].submit(request._replace(prefix=prefix, arrival_s=front_free_s))
        served.append(Served(request, truth))  # marked warm by the prober, cached or not
    for engine in engines:
        engine.advance(end_s + 120.0)
    logs = Logs.of(world, served)
    return Window(
        [
            result(world, one, way)
            for one in served
            if not one.request.background and one.request.arrival_s > LEAD_S and one.truth.end is not None
        ],
        [(at[0].at_s, page(world, at, logs)) for at in states],
        [[card(world, state, gpu) for state in at] for at in states],
        Hardware(world.model, world.bandwidth),
    )


def card(world: World, state: State, rng: Random) -> GpuReading:
    """The GPU: now and then at its power cap, as they are."""
    throttled = set(world.throttled) | ({ThrottleReason.POWER_CAP} if rng.random() < 0.1 else set())
    busy = 0.97 if state.running else 0.05
    clock = CLOCK * world.clock * rng.uniform(0.97, 1.0)
    return GpuReading(0, "u", "n", utilization_ratio=busy, sm_clock_hertz=clock, throttled=frozenset(throttled))
