"""Replay of a sweep's record through a simulated engine with given parameters."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from random import Random
from statistics import fmean
from typing import NamedTuple

from prober.features.capacity.sweep_record import Record, other_counts
from prober.measure.engine_signals import EngineHistogram
from prober.simulation.engine import Engine
from prober.simulation.parameters import Parameters
from prober.simulation.request import Request, Run, Truth

GAPS = 150
LEAD_S = 10.0  # of background load before the first observation: the engine was not empty
GRACE_S = 2.0  # extra time of a partial replay
SAMPLE = 1_000  # lengths that represent a distribution
FEW = 50  # minimum requests of others for a distribution from their histogram
_TYPICAL = 0.6  # spread (sigma of a lognormal) of lengths of which only the mean is known


class Pair(NamedTuple):
    """Prompt and output tokens of a request."""

    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Background:
    """Background load: rate and a sample of lengths. known: whether requests or counters show it."""

    per_s: float
    lengths: tuple[Pair, ...]
    known: bool


@dataclass(frozen=True, slots=True)
class Scene:
    """What to replay. Times are seconds from the beginning.

    requests: all, in the order of time; own: which of them are the sweep's own, by their number in the record, else -1
    looks_s: when the page was read; gaps_of: own requests whose gaps are looked at, at some cost
    """

    requests: tuple[Request, ...]
    own: tuple[int, ...]
    looks_s: tuple[float, ...]
    until_s: float
    from_s: float
    gaps_of: frozenset[int]


class Shown(NamedTuple):
    """Latencies of a replayed request; None if the replay ends before."""

    ttft_s: float | None
    tpot_s: float | None
    gap_s: float | None
    gap_most_s: float | None


class Look(NamedTuple):
    """Values of the engine's page in a replay."""

    running: int
    waiting: int
    kv_tokens: float


def background(record: Record, rng: Random) -> Background:
    """From requests known one by one; else from the page's counters, as their rate and mean lengths; else none."""
    rate = record.other_per_s
    if rate is None:
        return Background(0.0, (), known=False)
    if record.others is not None:
        return Background(
            rate, tuple(Pair(each.prompt_tokens, each.output_tokens) for each in record.others), known=True
        )
    own = [each for each in record.asked if each.end_s is not None]
    prompts = _told([s.prompt_tokens for _, s in record.readings], [each.prompt_tokens for each in own], rng)
    outputs = _told([s.output_tokens for _, s in record.readings], [each.output_tokens for each in own], rng)
    prompt, output = _mean_lengths(record)
    if rate <= 0 or prompt <= 0 or output <= 0:
        return Background(0.0, (), known=True)
    prompts, outputs = prompts or _about(prompt, rng), outputs or _about(output, rng)
    return Background(rate, tuple(Pair(p, o) for p, o in zip(prompts, outputs, strict=True)), known=True)


def _told(histograms: Sequence[EngineHistogram | None], own: Sequence[int], rng: Random) -> list[int]:
    """Lengths as the engine's histogram of all its past has them, less the sweep's own; empty where it tells too little."""
    told = [each for each in histograms if each is not None]
    if not told or told[-1].sum is None or told[-1].counts[-1] - len(own) < FEW:
        return []
    bounds, counts = (0.0, *told[-1].bounds, 2 * told[-1].bounds[-1]), (0.0, *told[-1].counts)
    weights = [after - before for before, after in pairwise(counts)]
    for length in own:
        weights[bisect_left(told[-1].bounds, length)] -= 1
    weights = [max(0.0, each) for each in weights]
    cells = rng.choices(range(len(weights)), weights, k=SAMPLE)
    lengths = [max(1.0, bounds[cell]) * (bounds[cell + 1] / max(1.0, bounds[cell])) ** rng.random() for cell in cells]
    # The position within a bucket is unknown; the overall mean is known.
    by = (told[-1].sum - sum(own)) / max(1.0, told[-1].counts[-1] - len(own)) / fmean(lengths)
    return [max(1, round(length * by)) for length in lengths]


def _about(mean: float, rng: Random) -> list[int]:
    """Lengths of which only the mean is known. exp(N(-sigma²/2, sigma²)) has mean 1."""
    return [max(1, round(mean * rng.lognormvariate(-(_TYPICAL**2) / 2, _TYPICAL))) for _ in range(SAMPLE)]


def scene(record: Record, others: Background, rng: Random) -> Scene:
    """The record's requests with the background among them, which is drawn where it is not known one by one."""
    from_s = record.from_s
    rows = [(each.at_s - from_s, each.prompt_tokens, each.output_tokens, at) for at, each in enumerate(record.asked)]
    if record.others is not None:
        rows += [(each.arrival_s - from_s, each.prompt_tokens, each.output_tokens, -1) for each in record.others]
    elif others.lengths:
        rows += [(at_s, *rng.choice(others.lengths), -1) for at_s in _drawn_times(record, rng)]
    if others.lengths:
        at_s = -LEAD_S
        while (at_s := at_s + rng.expovariate(others.per_s)) < 0:
            rows.append((at_s, *rng.choice(others.lengths), -1))
    rows.sort()
    stride = -(-len(record.asked) // GAPS)
    return Scene(
        tuple(Request(at_s + LEAD_S, prompt, output, (), own < 0) for at_s, prompt, output, own in rows),
        tuple(own for *_, own in rows),
        tuple(at_s - from_s + LEAD_S for at_s, _ in record.readings),
        record.until_s - from_s + LEAD_S,
        from_s - LEAD_S,
        frozenset(range(0, len(record.asked), max(1, stride))),
    )


def until(what: Scene, last_s: float, until_s: float) -> Scene:
    """Its beginning: what came up to `last_s`, seen up to `until_s` (seconds since the record's beginning)."""
    count = sum(each.arrival_s <= last_s + LEAD_S for each in what.requests)
    return replace(
        what,
        requests=what.requests[:count],
        own=what.own[:count],
        looks_s=tuple(each for each in what.looks_s if each <= until_s + LEAD_S),
        until_s=until_s + LEAD_S + GRACE_S,
    )


def replay(parameters: Parameters, what: Scene) -> tuple[list[Shown], list[Look]]:
    """Results of each request and page reading of the sweep in the replay. Takes about 40 µs per request."""
    engine = Engine(parameters, Random(0))
    truths: list[Truth] = []
    looks: list[Look] = []
    due = iter((*what.looks_s, float("inf")))
    next_look_s = next(due)
    for request, own in zip(what.requests, what.own, strict=True):
        while next_look_s <= request.arrival_s:
            looks.append(_look(engine, next_look_s))
            next_look_s = next(due)
        truth = engine.submit(request)
        if own >= 0:
            truths.append(truth)
    while next_look_s <= what.until_s:
        looks.append(_look(engine, next_look_s))
        next_look_s = next(due)
    engine.advance(what.until_s + 1e-9)
    return [_shown(truth, number in what.gaps_of) for number, truth in enumerate(truths)], looks


def _look(engine: Engine, at_s: float) -> Look:
    engine.advance(at_s)
    state = engine.state
    total = engine.parameters.kv_blocks * engine.parameters.block_tokens
    return Look(state.running, state.waiting, state.kv_usage_ratio * total)


def _shown(truth: Truth, with_gaps: bool) -> Shown:
    if truth.end_s is None or truth.first_token_s is None or truth.tokens < 2:
        return Shown(truth.ttft_s, None, None, None)
    tpot_s = (truth.end_s - truth.first_token_s) / (truth.tokens - 1)
    if not with_gaps:
        return Shown(truth.ttft_s, tpot_s, None, None)
    most_s = max(first + max(0.0, slope * (n - 1)) for n, first, slope in truth.runs)
    return Shown(truth.ttft_s, tpot_s, _median(truth.runs), most_s)


def _median(runs: Sequence[Run]) -> float:
    """Of the gaps: the run that holds the middle one, at its mean."""
    middles = sorted((first + slope * (n - 1) / 2, n) for n, first, slope in runs)
    half = sum(n for _, n in middles) / 2
    for value, n in middles:
        half -= n
        if half <= 0:
            return value
    return middles[-1][0]


def _drawn_times(record: Record, rng: Random) -> Iterator[float]:
    """When others came, as far as two readings say: so many between them, anywhere."""
    owed = 0.0
    for begin, end, count in other_counts(record):
        owed += count
        for _ in range(max(0, round(owed))):
            yield rng.uniform(begin, end) - record.from_s
            owed -= 1


def _mean_lengths(record: Record) -> tuple[float, float]:
    """Mean prompt and output tokens of others: what the engine counted less what is the sweep's own."""
    known = [
        (at_s, signals)
        for at_s, signals in record.readings
        if signals.prompt_tokens_total is not None and signals.generation_tokens_total is not None
    ]
    came = sum(count for *_, count in other_counts(record))
    if len(known) < 2 or came < 1:
        return 0.0, 0.0
    (begin, first), (end, last) = known[0], known[-1]
    gap_s = _middle([each.gap_s for each in record.asked if each.gap_s]) or 1.0
    prompts = outputs = 0.0
    for each in record.asked:
        if each.first_s is not None and begin <= each.first_s <= end:
            prompts += each.prompt_tokens
            ended = each.end_s is not None and each.end_s <= end
            outputs += each.output_tokens if ended else min(each.output_tokens, 1 + (end - each.first_s) / gap_s)
    prompt = (last.prompt_tokens_total or 0.0) - (first.prompt_tokens_total or 0.0) - prompts
    output = (last.generation_tokens_total or 0.0) - (first.generation_tokens_total or 0.0) - outputs
    return max(0.0, prompt / came), max(0.0, output / came)


def _middle(values: Sequence[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


def blocks_of(most: Pair, block_tokens: int) -> int:
    """KV blocks of the longest request: an engine has room for it."""
    return ceil((most.prompt + most.output) / block_tokens) + 1
