"""Diagnosis: the simulated engine in each regime, and in troubles that no regime stands for. How often is it named rightly?

Every case has a healthy window and one of the breach; evidence is what a prober would have: its probes' timelines (with the
network's delay and its own lateness in them), the engine's page every 5 s, the GPU beside it. Thresholds were tuned on the
seeds of `--tune`; the figures are those of other seeds. A second round leaves evidence out at random: there `unknown` is right, a wrong
name is not.

python -m bench.diagnosis [--tune] [--variants N]
"""

import argparse
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import accumulate
from multiprocessing import Pool
from random import Random
from typing import Any

from bench.report import goal, show
from prober.features.diagnosis.clues import Evidence, Name
from prober.features.diagnosis.diagnosis import diagnose
from prober.features.diagnosis.window import Hardware, Reading, window_features
from prober.measure.bandwidth_bound import DecodeModel
from prober.measure.chat import Usage
from prober.measure.engine_signals import EngineHistogram, EngineInfo, EngineSignals
from prober.measure.gpu_reading import GpuReading, ThrottleReason
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Connection, Timeline
from prober.simulation.engine import Engine, State
from prober.simulation.faults import Crash, Fault, KvLost, Slow, Tail
from prober.simulation.load import AzureConversation, lengths
from prober.simulation.parameters import Parameters
from prober.simulation.request import End, Request, Truth

TUNED, HELD_OUT = 0, 2_000  # the first seed of each set
LEAD_S, BEFORE_S, NOW_S = 180.0, 1_800.0, 900.0
EVERY_S, PROBES_PER_S, MAX_LAG_S = 5.0, 0.2, 0.010
CLOCK = 1.4e9
Lengths = Callable[[Random], tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A window's truth. rtt_s: of the network; front_s: what a gateway adds; api_s: what the engine's own front adds.

    background: lengths of users' requests; sharing: (prefix ids, tokens) of them, 0 ids: none; long_per_s: very long prompts
    probe_prompt: from, to; probe_prefix: tokens that half of the probes share; late_s: mean lateness of the prober
    """

    parameters: Parameters
    model: DecodeModel
    bandwidth: float
    rate_per_s: float
    background: Lengths = lengths
    sharing: tuple[int, int] = (0, 0)
    long_per_s: float = 0.0
    probe_prompt: tuple[int, int] = (64, 512)
    probe_prefix: int = 0
    caching: bool = True
    rtt_s: float = 0.002
    front_s: float = 0.0
    api_s: float = 0.0
    late_s: float = 0.0001
    faults: tuple[Fault, ...] = ()
    clock: float = 1.0
    throttled: frozenset[ThrottleReason] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class Case:
    """What is true, the windows, and the SLOs: thresholds over 90th percentiles of before, below 1 over its medians."""

    truth: frozenset[str]
    before: World
    now: World
    ttft_slack: float = 1.3
    tpot_slack: float = 1.3


# What a prober sees


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
    """Rare prompts of tens of thousands of tokens."""
    at_s = rng.expovariate(world.long_per_s) if world.long_per_s else duration_s
    while at_s < duration_s:
        yield Request(at_s, rng.randrange(12_000, 32_000), rng.randrange(50, 200), (), True)
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


def result(world: World, truth: Truth, rng: Random) -> ProbeResult:
    """The truth through the network, and as late as the prober reads it."""
    request = truth.request
    lag_s = rng.expovariate(1 / world.late_s)
    warm = bool(request.prefix)
    start = round(request.arrival_s * 1e9)

    def ns(seconds: float) -> int:
        return round(seconds * 1e9)

    connect_s = 2 * world.rtt_s + rng.expovariate(1 / 0.0002)
    connection = Connection(start - 10**9, start - 10**9 + ns(connect_s), tcp_s=connect_s)
    timeline = Timeline(start, connection, start + ns(lag_s))
    name = "warmable_warm" if warm else "warmable"
    outcome = Outcome.OK if truth.end is End.COMPLETE else Outcome.RESET
    if lag_s > MAX_LAG_S:
        outcome = Outcome.INVALID
    elif outcome is Outcome.OK:
        first_s = lag_s + world.rtt_s + world.api_s + (rng.uniform(0.7, 1.3) * world.front_s if world.front_s else 0.0)
        stamps: list[int] = []
        for at_s in (*truth.token_times_s(),):
            heard = start + ns(at_s - request.arrival_s + first_s + rng.expovariate(1 / world.late_s))
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


def page(world: World, state: State, ttft: Log, queue: Log, itl: Log) -> EngineSignals:
    """The engine's page at one moment."""
    return EngineSignals(
        info=EngineInfo("vllm"),
        requests_running=float(state.running),
        requests_waiting=float(state.waiting),
        kv_cache_usage_ratio_max=state.kv_usage_ratio,
        kv_cache_usage_ratio_mean=state.kv_usage_ratio,
        kv_cache_capacity_tokens=float(
            (world.parameters.kv_blocks - sum(f.blocks for f in world.faults if isinstance(f, KvLost)))
            * world.parameters.block_tokens
        ),
        preemptions_total=float(state.preemptions),
        prefix_cache_queries_tokens_total=float(state.prefix_queries),
        prefix_cache_hits_tokens_total=float(state.prefix_hits),
        prompt_tokens_total=float(state.prompt_tokens),
        generation_tokens_total=float(state.generation_tokens),
        ttft_seconds=ttft.until(state.at_s),
        queue_seconds=queue.until(state.at_s),
        itl_seconds=itl.until(state.at_s),
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
    engine, end_s = Engine(world.parameters, inside, world.faults), LEAD_S + duration_s
    states: list[State] = []
    truths: list[Truth] = []
    due = LEAD_S
    for request in merge(requests(world, load, end_s), very_long(world, long, end_s), probes(world, own, end_s)):
        while due <= request.arrival_s:
            engine.advance(due)
            states.append(engine.state._replace(at_s=due))
            due += EVERY_S
        prefix = request.prefix if world.caching else ()
        truths.append(engine.submit(request._replace(prefix=prefix)))
        if prefix != request.prefix:  # the prober marked it warm all the same
            truths[-1].request = request
    engine.advance(end_s + 120.0)
    begun = [truth for truth in truths if truth.first_token_s is not None and truth.admitted_s is not None]
    over = [truth for truth in begun if truth.end is End.COMPLETE and truth.tokens > 1]
    ttft = Log([(t.first_token_s or 0, (t.ttft_s or 0) + world.api_s, 1) for t in begun])
    queue = Log([(t.first_token_s or 0, (t.admitted_s or 0) - t.request.arrival_s, 1) for t in begun])
    itl = Log([(t.end_s or 0, (t.tpot_s or 0) * (t.tokens - 1), t.tokens - 1) for t in over])
    return Window(
        [
            result(world, truth, way)
            for truth in truths
            if not truth.request.background and truth.request.arrival_s > LEAD_S and truth.end is not None
        ],
        [(state.at_s, page(world, state, ttft, queue, itl)) for state in states],
        [[card(world, state, gpu)] for state in states],
        Hardware(world.model, world.bandwidth),
    )


def card(world: World, state: State, rng: Random) -> GpuReading:
    """The GPU: now and then at its power cap, as they are."""
    throttled = set(world.throttled) | ({ThrottleReason.POWER_CAP} if rng.random() < 0.1 else set())
    busy = 0.97 if state.running else 0.05
    clock = CLOCK * world.clock * rng.uniform(0.97, 1.0)
    return GpuReading(0, "u", "n", utilization_ratio=busy, sm_clock_hertz=clock, throttled=frozenset(throttled))


def evidence(case: Case, seed: int, missing: frozenset[str] = frozenset()) -> Evidence:
    """Both windows, less what is missing: page, histograms, gpu (readings and the bound), before, warm."""
    sides = []
    breached: dict[str, float] = {}
    windows = [watched(case.before, BEFORE_S, seed), watched(case.now, NOW_S, seed + 500_000)]
    for window in windows:
        readings = [] if "page" in missing else window.readings
        if "histograms" in missing:
            bare = {"ttft_seconds": None, "queue_seconds": None, "itl_seconds": None}
            readings = [(at, replace(signals, **bare)) for at, signals in readings]  # type: ignore[arg-type]
        gone = "gpu" in missing
        kept = [each for each in window.probes if "warm" not in missing or not each.workload.endswith("_warm")]
        sides.append(window_features(kept, readings, () if gone else window.devices, None if gone else window.hardware))
    for name, slack in (("ttft", case.ttft_slack), ("tpot", case.tpot_slack)):
        before, now = (
            sorted(value for probe in window.probes if (value := getattr(probe.timeline, f"{name}_s")) is not None)
            for window in windows
        )
        threshold = before[int((0.9 if slack > 1 else 0.5) * len(before))] * slack
        if sum(value > threshold for value in now) > 0.1 * len(now):
            breached[name] = threshold
    before_seen = sides[0]
    if "before" in missing:
        before_seen = type(before_seen)()
    return Evidence(sides[1], before_seen, breached, "vllm")


# Cases


def healthy(rng: Random) -> World:
    """An engine of today on one of two GPUs, at a moderate load, probed with one of three workloads."""
    bandwidth, flops = rng.choice([(2.039e12, 312e12), (3.35e12, 989e12)])
    parameters = rng.uniform(7e9, 9e9)
    kv = 131_072.0
    step_s = parameters * 2 / bandwidth / rng.uniform(0.8, 0.95) + 0.0003
    prefill_s = 2 * parameters / flops / rng.uniform(0.35, 0.6)
    engine = Parameters(
        step_s=step_s, prefill_token_s=prefill_s, kv_token_s=kv / bandwidth / rng.uniform(0.75, 0.95), kv_blocks=25_000
    )
    low, high, prefix = rng.choice([(64, 512, 0), (100, 3_000, 0), (1_100, 2_600, 1_024)])
    return World(
        parameters=engine,
        model=DecodeModel(parameters, 2, kv),
        bandwidth=bandwidth,
        rate_per_s=rng.uniform(0.5, 2.0),
        probe_prompt=(low, high),
        probe_prefix=prefix,
        rtt_s=10 ** rng.uniform(-3.3, -2.2),
    )


def tuned(world: World, **changes: Any) -> World:
    """With other parameters of the engine."""
    return replace(world, parameters=replace(world.parameters, **changes))


def capacity_per_s(world: World) -> float:
    """Requests of the trace's kind that prefill alone would allow."""
    return 1 / (1_155 * world.parameters.prefill_token_s + 0.2 * world.parameters.step_s)


def prefill_bound(rng: Random) -> Case:
    """Computing a prompt costs more, or always cost what the SLO does not allow."""
    base = healthy(rng)
    if rng.random() < 0.6:
        factor = rng.uniform(2.5, 5)
        cost = factor * base.parameters.prefill_token_s
        base = replace(
            base, probe_prompt=(100, 3_000), probe_prefix=0, rate_per_s=min(base.rate_per_s, 0.3 / 1_155 / cost)
        )
        return Case(frozenset({"prefill_bound"}), base, tuned(base, prefill_token_s=cost))
    rate = min(0.3, 0.15 / 1_155 / base.parameters.prefill_token_s)
    base = replace(base, probe_prompt=(1_500, 8_000), probe_prefix=0, rate_per_s=rate)
    return Case(frozenset({"prefill_bound"}), base, base, ttft_slack=rng.uniform(0.5, 0.8))


def queueing(rng: Random) -> Case:
    """Too much load, too few slots, or long prompts in front of short ones."""
    base = healthy(rng)
    kind = rng.random()
    if kind < 0.35:
        return Case(
            frozenset({"queueing"}), base, replace(base, rate_per_s=capacity_per_s(base) * rng.uniform(0.8, 1.0))
        )
    if kind < 0.7:
        running = base.rate_per_s * 211 * base.parameters.step_s * 1.3
        slots = max(1, round(running * rng.uniform(0.9, 1.3)))
        return Case(frozenset({"queueing"}), base, tuned(base, max_sequences=slots))
    long = rng.uniform(0.3, 0.5) / (22_000 * base.parameters.prefill_token_s)
    return Case(frozenset({"queueing"}), base, replace(base, long_per_s=long))


def chats(rng: Random) -> tuple[int, int]:
    """Long conversations."""
    return rng.randrange(1_000, 6_000), rng.randrange(500, 2_000)


def cache_pressure(rng: Random) -> Case:
    """Blocks are missing, or conversations are longer than the cache can hold."""
    base = replace(healthy(rng), background=chats)
    util, step_s = rng.uniform(0.1, 0.25), base.parameters.step_s * 1.6
    most = rng.uniform(0.2, 0.4) * 25_000 * 16 / (1_250 * step_s * 4_400)
    base = replace(base, rate_per_s=min(most, util / (3_500 * base.parameters.prefill_token_s)))
    held = base.rate_per_s * 1_250 * step_s * 4_400 / 16
    left = max(600, round(held * rng.uniform(0.6, 0.95)))
    return Case(frozenset({"cache_pressure"}), base, replace(base, faults=(KvLost(max(1, 25_000 - left)),)))


def prefix_miss(rng: Random) -> Case:
    """Beginnings are unique now, the cache is off, or there are too many of them for it."""
    base = healthy(rng)
    tokens = rng.choice([1_024, 2_048, 3_072])
    per_s = rng.uniform(0.3, 0.5) / ((1_155 + tokens) * base.parameters.prefill_token_s)
    base = replace(base, sharing=(rng.randrange(3, 15), tokens), rate_per_s=per_s)
    kind = rng.random()
    if kind < 0.35:
        now = replace(base, sharing=(0, tokens))
    elif kind < 0.7:
        now = replace(base, caching=False)
    else:
        now = replace(base, sharing=(rng.randrange(3_000, 9_000), tokens))
    return Case(frozenset({"prefix_miss"}), base, now)


def decode_far_from_bound(rng: Random) -> Case:
    """Clocks, a foreign process, a slow host; or slow kernels from the first day."""
    base = healthy(rng)
    base = replace(base, rate_per_s=min(base.rate_per_s, 0.3 * capacity_per_s(base)))
    factor, kind = rng.uniform(1.45, 3.0), rng.random()
    if kind < 0.3:
        now = replace(base, faults=(Slow(factor),), clock=1 / factor, throttled=frozenset({ThrottleReason.THERMAL}))
    elif kind < 0.55:
        now = replace(base, faults=(Slow(factor),))
    elif kind < 0.8:
        now = tuned(base, step_s=base.parameters.step_s * factor)
    else:
        base = tuned(base, step_s=base.parameters.step_s * rng.uniform(2.0, 4.0))
        base = replace(base, rate_per_s=min(base.rate_per_s, 0.15 * capacity_per_s(base)))
        return Case(frozenset({"decode_far_from_bound"}), base, base, tpot_slack=rng.uniform(0.5, 0.8))
    return Case(frozenset({"decode_far_from_bound"}), base, now)


def long_answers(rng: Random) -> tuple[int, int]:
    """Much context for little prefill."""
    return rng.randrange(2_000, 5_000), rng.randrange(3_000, 6_000)


def memory_bound_decode(rng: Random) -> Case:
    """Longer contexts in the batch, heavier weights, or an SLO that this GPU cannot meet."""
    base = replace(healthy(rng), rate_per_s=rng.uniform(0.1, 0.4))
    kind = rng.random()
    truth = frozenset({"memory_bound_decode"})
    if kind < 0.35:
        prefill = 0.12 / (3_500 * base.parameters.prefill_token_s)
        need = rng.uniform(0.35, 0.6) * base.parameters.step_s / base.parameters.kv_token_s  # tokens of context
        rate = min(prefill, need / (4_500 * 1.7 * base.parameters.step_s * 5_750))
        return Case(truth, base, replace(base, background=long_answers, rate_per_s=rate))
    if kind < 0.65:
        light = tuned(base, step_s=base.parameters.step_s * rng.uniform(0.5, 0.7))
        light = replace(light, model=replace(base.model, bytes_per_weight=1))
        return Case(truth, light, base)
    return Case(truth, base, base, tpot_slack=rng.uniform(0.5, 0.8))


def network(rng: Random) -> Case:
    """A longer way, or a gateway that takes its time."""
    base = healthy(rng)
    extra = rng.uniform(0.05, 0.25)
    now = replace(base, rtt_s=base.rtt_s + extra) if rng.random() < 0.5 else replace(base, front_s=extra)
    return Case(frozenset({"network"}), base, now)


def prober_late(rng: Random) -> Case:
    """Its loop is held up for milliseconds."""
    base = healthy(rng)
    return Case(frozenset({"prober_late"}), base, replace(base, late_s=rng.uniform(0.005, 0.04)))


def nothing(rng: Random) -> Case:
    """Troubles that no regime stands for, and none."""
    base = healthy(rng)
    nows = (
        base,
        replace(base, rate_per_s=base.rate_per_s * rng.uniform(0.7, 1.2)),
        replace(base, api_s=rng.uniform(0.05, 0.4)),
        replace(base, faults=(Tail(rng.uniform(0.03, 0.1), rng.uniform(4, 15)),)),
        replace(base, faults=tuple(Crash(300.0 * i, 300.0 * i + 60) for i in range(1, 4))),
        replace(base, faults=(Slow(0.6),)),
    )
    return Case(frozenset({"unknown"}), base, nows[rng.randrange(len(nows))])


REGIMES: dict[Name, Callable[[Random], Case]] = {
    "prefill_bound": prefill_bound,
    "queueing": queueing,
    "cache_pressure": cache_pressure,
    "prefix_miss": prefix_miss,
    "decode_far_from_bound": decode_far_from_bound,
    "memory_bound_decode": memory_bound_decode,
    "network": network,
    "prober_late": prober_late,
    "unknown": nothing,
}
SECOND: dict[str, Callable[[World, Random], World]] = {
    "network": lambda world, rng: replace(world, rtt_s=world.rtt_s + rng.uniform(0.05, 0.25)),
    "decode_far_from_bound": lambda world, rng: replace(world, faults=(*world.faults, Slow(rng.uniform(1.5, 2.5)))),
    "prober_late": lambda world, rng: replace(world, late_s=rng.uniform(0.005, 0.04)),
    "queueing": lambda world, rng: replace(world, long_per_s=0.4 / (22_000 * world.parameters.prefill_token_s)),
}


def two(rng: Random) -> Case:
    """Two faults at once."""
    first = rng.choice([name for name in REGIMES if name != "unknown"])
    second = rng.choice([name for name in SECOND if name != first])
    case = REGIMES[first](rng)
    return Case(
        frozenset({first, second}), case.before, SECOND[second](case.now, rng), case.ttft_slack, case.tpot_slack
    )


LEFT_OUT = ("page", "histograms", "gpu", "before", "warm")


def drawn(name: str, seed: int, *, less: bool) -> tuple[Case, frozenset[str], Evidence]:
    """The case of this seed, what is left out of its evidence, and that. Drawn again until an SLO is breached: only a breach is
    explained. A late prober needs none, and a quarter of the cases of no regime have none.
    """
    calm = name == "prober_late" or (name == "unknown" and seed % 4 == 0)
    for attempt in range(20):
        rng = Random(f"{name} {less} {seed} {attempt}")
        case = two(rng) if name == "two" else REGIMES[name](rng)  # type: ignore[index]
        missing = frozenset(rng.sample(LEFT_OUT, rng.randint(1, 3))) if less else frozenset()
        found = evidence(case, seed, missing)
        if found.breached or calm:
            break
    return case, missing, found


def one(task: tuple[str, int]) -> tuple[str, str, str, int, float]:
    """(set, truth, verdict, breached, seconds of the diagnosis) of one case."""
    kind, seed = task
    case, _, found = drawn(kind.removesuffix(" / less"), seed, less=kind.endswith(" / less"))
    begin = time.perf_counter()
    verdict = diagnose(found).regime
    return kind, " or ".join(sorted(case.truth)), verdict, len(found.breached), time.perf_counter() - begin


def shares(rows: Sequence[tuple[str, str, str, int, float]]) -> dict[str, float]:
    """Right, unknown, wrong (a name that is not true)."""
    right = sum(verdict in truth.split(" or ") for _, truth, verdict, _, _ in rows)
    wrong = sum(verdict != "unknown" and verdict not in truth.split(" or ") for _, truth, verdict, _, _ in rows)
    return {"cases": len(rows), "right": right / len(rows), "wrong": wrong / len(rows)}


def confusion(rows: Sequence[tuple[str, str, str, int, float]]) -> dict[str, dict[str, int]]:
    """Truth by verdict."""
    table: dict[str, Counter[str]] = {}
    for _, truth, verdict, _, _ in rows:
        table.setdefault(truth, Counter())[verdict] += 1
    return {truth: dict(counts.most_common()) for truth, counts in sorted(table.items())}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tune", action="store_true", help="the seeds that the thresholds were tuned on")
    parser.add_argument("--variants", type=int, default=20)
    options = parser.parse_args()
    first = TUNED if options.tune else HELD_OUT
    seeds = range(first, first + options.variants)
    tasks = [(f"{name}{part}", seed) for name in REGIMES for part in ("", " / less") for seed in seeds]
    tasks += [("two", first + i) for i in range(3 * options.variants)]
    with Pool(2) as pool:
        rows = pool.map(one, tasks, chunksize=4)
    full = [row for row in rows if row[0] in REGIMES]
    less = [row for row in rows if row[0].endswith(" / less")]
    both = [row for row in rows if row[0] == "two"]
    each = {name: shares([row for row in full if row[0] == name]) for name in REGIMES}
    doubly = sum(v != "unknown" and v not in truth.split(" or ") for _, truth, v, _, _ in both) / len(both)
    goals = [
        goal("not rightly named, all evidence", 1 - shares(full)["right"], 0.05, "share"),
        goal("wrongly named, all evidence", shares(full)["wrong"], 0.02, "share"),
        *(goal(f"not rightly named, {name}", 1 - found["right"], 0.10, "share") for name, found in each.items()),
        goal("wrongly named, evidence left out", shares(less)["wrong"], 0.05, "share"),
        goal("neither of two faults nor unknown", doubly, 0.05, "share"),
    ]
    show(
        "diagnosis",
        goals,
        seeds=[seeds.start, seeds.stop],
        confusion=confusion(full),
        confusion_evidence_left_out=confusion(less),
        rightly_named_evidence_left_out=shares(less)["right"],
        two_faults=confusion(both),
        cases_without_a_breach={name: sum(row[0] == name and not row[3] for row in full) for name in REGIMES},
        diagnose_us_max=round(1e6 * max(row[4] for row in rows)),
    )


if __name__ == "__main__":
    main()
