"""Input of a replay: the requests of a sweep's record and of its background."""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt
from random import Random
from typing import NamedTuple

from prober.features.capacity.sweep_record import Record
from prober.features.capacity.users_requests import by_bucket, lengths
from prober.measure.engine_signals import EngineHistogram
from prober.simulation.serving import Course, Doubles, Service, Stream, serve

MAX_REQUESTS_WITH_GAPS = 150  # requests of a replay with computed gaps
LEAD_S = 10.0  # of background load before the first observation, as the engine was not empty
GRACE_S = 2.0  # extra time of a partial replay
SAMPLE_SIZE = 1_000  # lengths that represent a distribution
MIN_HISTOGRAM_COUNT = 50  # background requests in the engine's histogram needed for a distribution of lengths
MIN_COMPUTED_SHARE = 0.02  # of a cached prompt: its last block
BURST_S = 2.0  # over which the rate of a background is constant
USUAL_EXCESS, USUAL_EXCESS_ERROR = 0.1, 0.15  # square of its variation: people's requests come in bursts
TYPICAL_SIGMA = 0.6  # of a lognormal distribution of lengths with known mean only


class RequestLengths(NamedTuple):
    """Prompt and output tokens of a request."""

    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Background:
    """Background load: rate, and a sample of lengths without cached prompt tokens.

    known: the page's counters show the load; has_lengths: they also show its tokens; if not, lengths are the sweep's
    variation: standard deviation of the rate ÷ its mean, over BURST_S; 0: Poisson arrivals
    """

    per_s: float
    lengths: tuple[RequestLengths, ...]
    known: bool
    has_lengths: bool = True
    variation: float = 0.0


@dataclass(frozen=True, slots=True)
class Scene:
    """Input of a replay. Times are seconds from its begin, LEAD_S before the record's.

    stream: requests of the sweep and the background, by arrival
    own: index in the stream of each request of the record; a partial replay has only the first ones
    readings_s: times of the page readings
    until_s: end of the replay
    """

    stream: Stream
    own: "array[int]"
    readings_s: Doubles
    until_s: float

    def replayed(self, service: Service) -> Course:
        """Replay the stream with a service and return its course."""
        return serve(service, self.stream, self.until_s, self.readings_s)


def background(record: Record, rng: Random, unseen_per_s: float = 0.0) -> Background:
    """Background load of a record, from the page's counters and histograms.

    unseen_per_s: assumed rate if the page shows none; these requests are like the sweep's
    """
    rate_per_s = record.other_per_s
    own = tuple(RequestLengths(request.computed_tokens, request.output_tokens) for request in record.requests)
    if rate_per_s is None:
        return Background(unseen_per_s, own if unseen_per_s else (), known=False)
    ended = [request for request in record.requests if request.end_s is not None]
    prompts = _histogram_sample(
        [signals.prompt_tokens for _, signals in record.readings], [request.prompt_tokens for request in ended], rng
    )
    outputs = _histogram_sample(
        [signals.output_tokens for _, signals in record.readings], [request.output_tokens for request in ended], rng
    )
    prompt_mean, output_mean = _mean_lengths(record)
    if rate_per_s <= 0:
        return Background(0.0, (), known=True)
    if prompt_mean <= 0 or output_mean <= 0:  # a page without tokens: like the sweep's
        return Background(rate_per_s, own, True, has_lengths=False, variation=_variation(record))
    prompts = prompts or _lognormal_sample(prompt_mean, rng)
    outputs = outputs or _lognormal_sample(output_mean, rng)
    computed = _computed_share(record)
    prompts = [max(1, round(prompt * computed)) for prompt in prompts]
    lengths_of = tuple(map(RequestLengths, prompts, outputs))
    return Background(rate_per_s, lengths_of, known=True, variation=_variation(record))


def _variation(record: Record) -> float:
    """Standard deviation of the background's rate ÷ its mean: what the counts over BURST_S vary beyond random arrivals.

    The observed value is averaged with a usual one, weighted by the inverse squares of their errors: few arrivals show little.
    """
    windows: list[tuple[float, float]] = []
    span_s = counted = 0.0
    for begin_s, end_s, count in record.other_counts:
        span_s, counted = span_s + end_s - begin_s, counted + count
        if span_s >= BURST_S:
            windows.append((span_s, counted))
            span_s = counted = 0.0
    total_s = sum(span_s for span_s, _ in windows)
    per_s = sum(counted for _, counted in windows) / total_s if total_s else 0.0
    if per_s <= 0:
        return 0.0
    # A window of several bursts varies less: by the share that the mean of several independent rates does.
    rows = [(counted, per_s * span_s, min(1.0, BURST_S / span_s)) for span_s, counted in windows]
    squares = sum((shown * mean) ** 2 for _, mean, shown in rows)
    excess = sum(shown * ((counted - mean) ** 2 - mean) for counted, mean, shown in rows) / squares
    weight, usual = squares / 2, USUAL_EXCESS_ERROR**-2
    return sqrt(max(0.0, (weight * excess + usual * USUAL_EXCESS) / (weight + usual)))


def _computed_share(record: Record) -> float:
    """Share of the background's prompt tokens that miss the prefix cache and are computed; 1 if the page has no hits."""
    readings = [
        (signals.prefix_cache_hits_tokens_total, signals.prompt_tokens_total, at_s)
        for at_s, signals in record.readings
        if signals.prefix_cache_hits_tokens_total is not None and signals.prompt_tokens_total is not None
    ]
    if len(readings) < 2:
        return 1.0
    (hits_before, prompts_before, begin_s), (hits, prompts, end_s) = readings[0], readings[-1]
    own = [of for of in record.requests if of.first_s is not None and begin_s <= of.first_s <= end_s]
    tokens = prompts - prompts_before - sum(of.prompt_tokens for of in own)
    cached = hits - hits_before - sum(of.cached_tokens for of in own)
    return min(1.0, max(MIN_COMPUTED_SHARE, 1 - cached / tokens)) if tokens > 0 else 1.0


def _histogram_sample(histograms: Sequence[EngineHistogram | None], own: Sequence[int], rng: Random) -> list[int]:
    """Random lengths from the latest histogram without the sweep's requests; empty if fewer than MIN_HISTOGRAM_COUNT remain."""
    latest = next((histogram for histogram in reversed(histograms) if histogram is not None), None)
    if latest is None or latest.sum is None or latest.counts[-1] - len(own) < MIN_HISTOGRAM_COUNT:
        return []
    counts = by_bucket(latest)
    for length in own:
        counts[bisect_left(latest.bounds, length)] -= 1
    shape = lengths(latest.bounds, counts, latest.sum - sum(own))
    sample = [] if shape is None else [shape.quantile((place + 0.5) / SAMPLE_SIZE) for place in range(SAMPLE_SIZE)]
    rng.shuffle(sample)
    return sample


def _lognormal_sample(mean: float, rng: Random) -> list[int]:
    """Random lengths with known mean only. exp(N(-sigma²/2, sigma²)) has mean 1."""
    return [
        max(1, round(mean * rng.lognormvariate(-(TYPICAL_SIGMA**2) / 2, TYPICAL_SIGMA))) for _ in range(SAMPLE_SIZE)
    ]


def build_scene(record: Record, load: Background, rng: Random) -> Scene:
    """Build the scene of the record's requests and random background requests."""
    from_s = record.from_s
    rows = [
        (request.at_s - from_s, request.computed_tokens, request.output_tokens, index)
        for index, request in enumerate(record.requests)
    ]
    if load.lengths:
        rows += [(at_s, *rng.choice(load.lengths), -1) for at_s in _background_times_s(record, rng)]
        at_s, until_s = -LEAD_S, 0.0 if load.known else record.until_s - from_s
        while (at_s := at_s + rng.expovariate(load.per_s)) < until_s:
            rows.append((at_s, *rng.choice(load.lengths), -1))
    rows.sort()
    stride = max(1, ceil(len(record.requests) / MAX_REQUESTS_WITH_GAPS))
    places = sorted(range(len(rows)), key=lambda place: rows[place][3])[-len(record.requests) :]
    return Scene(
        Stream(
            array("d", [at_s + LEAD_S for at_s, *_ in rows]),
            array("d", [prompt for _, prompt, *_ in rows]),
            array("d", [output for *_, output, _ in rows]),
            bytes(own >= 0 and own % stride == 0 for *_, own in rows),
        ),
        array("q", places),
        array("d", [at_s - from_s + LEAD_S for at_s, _ in record.readings]),
        record.until_s - from_s + LEAD_S,
    )


def beginning(scene: Scene, last_s: float, until_s: float) -> Scene:
    """Part of a scene: requests up to `last_s`, replayed up to `until_s` (seconds since the record's begin)."""
    count = sum(at_s <= last_s + LEAD_S for at_s in scene.stream.at_s)
    return replace(
        scene,
        stream=Stream(*(column[:count] for column in scene.stream)),  # type: ignore[arg-type]
        own=array("q", (place for place in scene.own if place < count)),
        readings_s=array("d", [reading_s for reading_s in scene.readings_s if reading_s <= until_s + LEAD_S]),
        until_s=until_s + LEAD_S + GRACE_S,
    )


def _background_times_s(record: Record, rng: Random) -> Iterator[float]:
    """Arrival times of background requests, uniformly random between the two readings that enclose them."""
    owed = 0.0
    for begin_s, end_s, count in record.other_counts:
        owed += count
        for _ in range(max(0, round(owed))):
            yield rng.uniform(begin_s, end_s) - record.from_s
            owed -= 1


def _mean_lengths(record: Record) -> tuple[float, float]:
    """(mean prompt tokens, mean output tokens) of background requests: engine's counters minus the sweep's tokens."""
    readings = [
        (at_s, signals.prompt_tokens_total, signals.generation_tokens_total)
        for at_s, signals in record.readings
        if signals.prompt_tokens_total is not None and signals.generation_tokens_total is not None
    ]
    count = sum(count for *_, count in record.other_counts)
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
