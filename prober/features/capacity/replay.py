"""Replay of a sweep's record through a simulated engine with given parameters."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, inf
from random import Random
from statistics import fmean
from typing import NamedTuple

from prober.features.capacity.sweep_record import Record, other_counts
from prober.measure.engine_signals import EngineHistogram
from prober.simulation.engine import Engine
from prober.simulation.parameters import Parameters
from prober.simulation.request import Request, Run, Truth

MAX_REQUESTS_WITH_GAPS = 150  # requests of a replay whose gaps are computed
LEAD_S = 10.0  # of background load before the first observation: the engine was not empty
GRACE_S = 2.0  # extra time of a partial replay
SAMPLE_SIZE = 1_000  # lengths that represent a distribution
MIN_HISTOGRAM_COUNT = 50  # background requests in the engine's histogram for a distribution of their lengths
TYPICAL_SIGMA = 0.6  # of the lognormal distribution of lengths of which only the mean is known


class RequestLengths(NamedTuple):
    """Prompt and output tokens of a request."""

    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Background:
    """Background load: rate and a sample of lengths. known: requests or counters show it."""

    per_s: float
    lengths: tuple[RequestLengths, ...]
    known: bool


@dataclass(frozen=True, slots=True)
class Scene:
    """Input of a replay. Times are seconds from its begin, LEAD_S before the record's.

    requests: of the sweep and the background, by arrival
    own: for each request its index in the record; -1 for the background
    readings_s: times of the page readings
    until_s: end of the replay
    from_s: begin of the replay on the record's clock
    with_gaps: indices in the record of requests whose gaps are computed, which costs time
    """

    requests: tuple[Request, ...]
    own: tuple[int, ...]
    readings_s: tuple[float, ...]
    until_s: float
    from_s: float
    with_gaps: frozenset[int]


class ReplayedRequest(NamedTuple):
    """Latencies of a request in a replay; None if the replay ends before."""

    ttft_s: float | None
    tpot_s: float | None
    gap_s: float | None
    max_gap_s: float | None


class ReplayedPage(NamedTuple):
    """Values of the engine's page in a replay."""

    running: int
    waiting: int


def background(record: Record, rng: Random) -> Background:
    """Background of a record: from individual requests, else from the page's counters and histograms; else unknown."""
    rate_per_s = record.other_per_s
    if rate_per_s is None:
        return Background(0.0, (), known=False)
    if record.background is not None:
        lengths = tuple(RequestLengths(request.prompt_tokens, request.output_tokens) for request in record.background)
        return Background(rate_per_s, lengths, known=True)
    ended = [request for request in record.requests if request.end_s is not None]
    prompts = _histogram_sample(
        [signals.prompt_tokens for _, signals in record.readings], [request.prompt_tokens for request in ended], rng
    )
    outputs = _histogram_sample(
        [signals.output_tokens for _, signals in record.readings], [request.output_tokens for request in ended], rng
    )
    prompt_mean, output_mean = _mean_lengths(record)
    if rate_per_s <= 0 or prompt_mean <= 0 or output_mean <= 0:
        return Background(0.0, (), known=True)
    prompts = prompts or _lognormal_sample(prompt_mean, rng)
    outputs = outputs or _lognormal_sample(output_mean, rng)
    return Background(rate_per_s, tuple(map(RequestLengths, prompts, outputs)), known=True)


def _histogram_sample(histograms: Sequence[EngineHistogram | None], own: Sequence[int], rng: Random) -> list[int]:
    """Sample of lengths from the latest histogram without the sweep's own; empty for fewer than MIN_HISTOGRAM_COUNT."""
    latest = next((histogram for histogram in reversed(histograms) if histogram is not None), None)
    if latest is None or latest.sum is None or latest.counts[-1] - len(own) < MIN_HISTOGRAM_COUNT:
        return []
    bounds, counts = (0.0, *latest.bounds, 2 * latest.bounds[-1]), (0.0, *latest.counts)
    weights = [after - before for before, after in pairwise(counts)]
    for length in own:
        weights[bisect_left(latest.bounds, length)] -= 1
    weights = [max(0.0, weight) for weight in weights]
    cells = rng.choices(range(len(weights)), weights, k=SAMPLE_SIZE)
    lengths = [max(1.0, bounds[cell]) * (bounds[cell + 1] / max(1.0, bounds[cell])) ** rng.random() for cell in cells]
    # The position within a bucket is unknown; the overall mean is known.
    mean = (latest.sum - sum(own)) / max(1.0, latest.counts[-1] - len(own))
    correction = mean / fmean(lengths)
    return [max(1, round(length * correction)) for length in lengths]


def _lognormal_sample(mean: float, rng: Random) -> list[int]:
    """Sample of lengths of which only the mean is known. exp(N(-sigma²/2, sigma²)) has mean 1."""
    return [
        max(1, round(mean * rng.lognormvariate(-(TYPICAL_SIGMA**2) / 2, TYPICAL_SIGMA))) for _ in range(SAMPLE_SIZE)
    ]


def build_scene(record: Record, load: Background, rng: Random) -> Scene:
    """The record's requests and the background, whose requests are drawn where they are not known individually."""
    from_s = record.from_s
    rows = [
        (request.at_s - from_s, request.prompt_tokens, request.output_tokens, index)
        for index, request in enumerate(record.requests)
    ]
    if record.background is not None:
        rows += [
            (request.arrival_s - from_s, request.prompt_tokens, request.output_tokens, -1)
            for request in record.background
        ]
    elif load.lengths:
        rows += [(at_s, *rng.choice(load.lengths), -1) for at_s in _background_times_s(record, rng)]
    if load.lengths:
        at_s = -LEAD_S
        while (at_s := at_s + rng.expovariate(load.per_s)) < 0:
            rows.append((at_s, *rng.choice(load.lengths), -1))
    rows.sort()
    stride = ceil(len(record.requests) / MAX_REQUESTS_WITH_GAPS)
    return Scene(
        tuple(Request(at_s + LEAD_S, prompt, output, (), own < 0) for at_s, prompt, output, own in rows),
        tuple(own for *_, own in rows),
        tuple(at_s - from_s + LEAD_S for at_s, _ in record.readings),
        record.until_s - from_s + LEAD_S,
        from_s - LEAD_S,
        frozenset(range(0, len(record.requests), max(1, stride))),
    )


def beginning(scene: Scene, last_s: float, until_s: float) -> Scene:
    """Part of a scene: requests up to `last_s`, replayed up to `until_s` (seconds since the record's begin)."""
    count = sum(request.arrival_s <= last_s + LEAD_S for request in scene.requests)
    return replace(
        scene,
        requests=scene.requests[:count],
        own=scene.own[:count],
        readings_s=tuple(reading_s for reading_s in scene.readings_s if reading_s <= until_s + LEAD_S),
        until_s=until_s + LEAD_S + GRACE_S,
    )


def min_kv_blocks(scene: Scene, block_tokens: int) -> int:
    """KV blocks of the longest request, for which the engine has room."""
    longest = max(request.prompt_tokens + request.output_tokens for request in scene.requests)
    return ceil(longest / block_tokens) + 1


def replay(parameters: Parameters, scene: Scene) -> tuple[list[ReplayedRequest], list[ReplayedPage]]:
    """Results of the sweep's requests and page readings. Takes about 40 µs per request."""
    engine = Engine(parameters, Random(0))
    truths: list[Truth] = []
    pages: list[ReplayedPage] = []
    due = iter((*scene.readings_s, inf))
    reading_s = next(due)
    for request, own in zip(scene.requests, scene.own, strict=True):
        while reading_s <= request.arrival_s:
            pages.append(_page(engine, reading_s))
            reading_s = next(due)
        truth = engine.submit(request)
        if own >= 0:
            truths.append(truth)
    while reading_s <= scene.until_s:
        pages.append(_page(engine, reading_s))
        reading_s = next(due)
    engine.advance(scene.until_s + 1e-9)
    return [_replayed(truth, with_gaps=index in scene.with_gaps) for index, truth in enumerate(truths)], pages


def _page(engine: Engine, at_s: float) -> ReplayedPage:
    engine.advance(at_s)
    return ReplayedPage(engine.running, engine.waiting)


def _replayed(truth: Truth, *, with_gaps: bool) -> ReplayedRequest:
    if truth.end_s is None or truth.first_token_s is None or truth.tokens < 2:
        return ReplayedRequest(truth.ttft_s, None, None, None)
    tpot_s = (truth.end_s - truth.first_token_s) / (truth.tokens - 1)
    if not with_gaps:
        return ReplayedRequest(truth.ttft_s, tpot_s, None, None)
    max_gap_s = max(first_s + max(0.0, slope_s * (n - 1)) for n, first_s, slope_s in truth.runs)
    return ReplayedRequest(truth.ttft_s, tpot_s, _median_gap_s(truth.runs), max_gap_s)


def _median_gap_s(runs: Sequence[Run]) -> float:
    """Mean gap of the run that contains the median gap."""
    means = sorted((first_s + slope_s * (n - 1) / 2, n) for n, first_s, slope_s in runs)
    remaining = sum(n for _, n in means) / 2
    for mean_s, n in means:
        remaining -= n
        if remaining <= 0:
            return mean_s
    return means[-1][0]


def _background_times_s(record: Record, rng: Random) -> Iterator[float]:
    """Arrival times of background requests, uniform between the two readings whose counters include them."""
    owed = 0.0
    for begin_s, end_s, count in other_counts(record):
        owed += count
        for _ in range(max(0, round(owed))):
            yield rng.uniform(begin_s, end_s) - record.from_s
            owed -= 1


def _mean_lengths(record: Record) -> tuple[float, float]:
    """Mean prompt and output tokens of the background: the engine's counters less the sweep's own tokens."""
    readings = [
        (at_s, signals.prompt_tokens_total, signals.generation_tokens_total)
        for at_s, signals in record.readings
        if signals.prompt_tokens_total is not None and signals.generation_tokens_total is not None
    ]
    count = sum(count for *_, count in other_counts(record))
    if len(readings) < 2 or count < 1:
        return 0.0, 0.0
    (begin_s, prompts_before, outputs_before), (end_s, prompts_after, outputs_after) = readings[0], readings[-1]
    gaps_s = sorted(request.gap_s for request in record.requests if request.gap_s)
    gap_s = gaps_s[len(gaps_s) // 2] if gaps_s else 1.0
    own_prompts = own_outputs = 0.0
    for request in record.requests:
        if request.first_s is not None and begin_s <= request.first_s <= end_s:
            own_prompts += request.prompt_tokens
            has_ended = request.end_s is not None and request.end_s <= end_s
            generated = request.output_tokens if has_ended else 1 + (end_s - request.first_s) / gap_s
            own_outputs += min(request.output_tokens, generated)
    prompt_tokens = prompts_after - prompts_before - own_prompts
    output_tokens = outputs_after - outputs_before - own_outputs
    return max(0.0, prompt_tokens / count), max(0.0, output_tokens / count)
