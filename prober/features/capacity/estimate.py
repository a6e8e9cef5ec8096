"""Estimates the capacity of a target from the record of a sweep.

Two estimates, that of an engine model and that of the fractions of bad events, each with its error, make one (`capacity.agreed`).
A knee is stated only if the target degraded. If it did not, or if its breaches do not rise with the rate, only event counts remain:
the highest rate at which they prove that the objective holds (`capacity.holds_at`), or not enough data.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, hypot, log, sqrt
from random import Random

import numpy as np

from prober.features.capacity.capacity_model import CapacityModel, Knee
from prober.features.capacity.fitting import Fit, fit
from prober.features.capacity.knee import Step, knee
from prober.features.capacity.replay import SAMPLE_SIZE, Background, RequestLengths, background
from prober.features.capacity.sweep_record import Record, RequestRecord, Stage, observed, settled_requests
from prober.measure.objective import Slo
from prober.results.capacity import Capacity, Mix, RateEvents, Verdict, agreed, holds_at, undecided_events
from prober.statistics.quantiles import probability_of_at_least
from prober.statistics.sequential_test import Observations, evidence

CONFIDENCE, Z = 0.9, 1.645  # of intervals; Z: half-width in standard errors
# Standard error of log K that a record cannot show where no page shows the background, by `python -m bench.knee_independent`.
ERROR_UNKNOWN = 0.12
# Of the log of its knee, above which a model says nothing. A gentle sweep, which has little else, keeps a wide answer.
MAX_MODEL_ERROR = 1.0
# Ratio of its knee to the highest rate, above which it says nothing either: with a page, but without breaches at the target's limit;
# else.
MAX_EXTRAPOLATION, MAX_BEYOND_REACHED = 3.0, 1.6
ERROR_OF_SLOPE = 1.2  # additional, ÷ local slope: a wrong share moves a flat knee far
ERROR_OF_CALIBRATION = 0.5  # of the tail, as a share of its log factor: the model cannot explain it
MAX_SHIFT = 0.5  # of a bootstrap model's knee, in logs
# Additional if sending ended before the target's limit or a breach: an unseen limit may be near, more likely for a
# distant knee.
ERROR_NOT_REACHED, ERROR_PER_LOG_DISTANCE = 0.08, 0.25
# By how much, in logs, such a knee is too high: limits that show only when they bind are in no model. The median over the development
# half of bench/headroom_independent.py.
BIAS_NOT_REACHED = 0.1
# The same, where no page shows the load of others: both estimates take it as little or nothing (bench/knee_independent.py).
BIAS_UNSEEN = 0.06
# By how much a short stage overstates the knee, in logs, for signals without a queue before them.
SHORT_STAGE_BIAS = 0.2
# Log growth of the own rate per second in a ramp, and the largest corrected excess.
GROWTH_PER_S, MAX_BIAS = log(1.15) / 4, 0.5
LONG_STAGE_S = 20.0
ERROR_OF_FRACTIONS = 0.14
# Instead, if the sending ended before the target's limit: the tail of the latencies is extrapolated.
ERROR_BEFORE_BREACHES = 0.5
MIN_BREACHES = 2  # for an estimate by fractions
# That the share does not rise with the rate: above it, breaches are no knee; the same for a model that knows the engine's page.
MAX_FLAT_PROBABILITY, MAX_FLAT_WITH_PAGE = 0.5, 0.65
# Of as many breaches at rates where the objective holds: where a page shows the engine's load, so few may be chance, and say nothing
# against a knee (bench/headroom_independent.py).
CHANCE = 0.05
MAX_FOUND_RATIO = 4.0  # of the interval's ends: a wider one is `between`, as of engines that miss at every rate
# Fitted curve: points, simulated requests per point, and its end as multiples of the knee's upper bound and the threshold.
CURVE_POINTS, CURVE_REQUESTS, CURVE_BEYOND, CURVE_HEIGHT = 16, 30_000, 1.05, 3.0
# Longer requests, whose knees show how the knee falls with tokens; the share that is judged; simulation effort.
LONGER, JUDGED_RATIO, EFFORT_OF_SHAPES = 2.0, 0.1, 0.3
USUAL_POWER, MAX_POWER = 0.5, 2.0  # without such knees, and the largest
# Of a knee in logs, per log of tokens by which the traffic differs from the mix of the sweep: with these powers, and without.
ERROR_OF_SHAPE, ERROR_OF_UNKNOWN_SHAPE = 0.45, 0.6
MODELLED_SIGNALS = ("ttft", "tpot", "itl", "e2e")


@dataclass(frozen=True, slots=True)
class CapacityEstimate:
    """Estimate for a record.

    capacities: one per SLO, in order
    fit: the engine model; None with too few answers, or if no replay answers most requests
    """

    capacities: tuple[Capacity, ...]
    fit: Fit | None


def estimate_capacity(record: Record, seed: int = 0, effort: float = 1.0) -> CapacityEstimate:
    """Estimate the capacity for each SLO of the record; deterministic.

    Takes seconds of CPU: call it in another process than the one that sends (arguments and result can be pickled).
    effort: as in `CapacityModel`.
    """
    rng = Random(seed)
    model = fit(record, rng) if (record.readings or record.reached) and _can_be_replayed(record) else None
    results = [_capacity(record, slo, model, rng, effort) for slo in record.slos]
    if record.readings and any(capacity.fit == "model" for capacity in results):
        # Another SLO fails far earlier: one without a breach holds longer.
        results = [
            _capacity(record, slo, model, rng, effort, may_be_far=True)
            if capacity.verdict == "not_enough_data" and not any(request.breaches(slo) for request in record.requests)
            else capacity
            for slo, capacity in zip(record.slos, results, strict=True)
        ]
    load = model.background if model is not None else background(record, rng)
    if load.known and load.has_lengths:
        results = [capacity if capacity.mix else _with_mix(capacity, _lengths(record), load) for capacity in results]
    return CapacityEstimate(tuple(results), model)


def _by_stage(record: Record, slo: Slo) -> dict[int, list[RequestRecord]]:
    """Requests with counted events, by stage."""
    by_stage: dict[int, list[RequestRecord]] = {stage.number: [] for stage in record.stages}
    for request in record.requests:
        is_judged = not record.stages or record.stages[request.stage].is_judged
        if request.valid and slo.name in request.events and is_judged:
            by_stage.setdefault(request.stage, []).append(request)
    return by_stage


def _can_be_replayed(record: Record) -> bool:
    """True if a replay can explain the record: no request failed, and most answers came token by token.

    A grid needs no replay, because it measured each rate.
    """
    has_failures = any(request.failed for request in record.requests if request.valid)
    is_grid = any(stage.phase == "grid" for stage in record.stages)
    held_back = [request.held_back for request in record.requests if request.valid and request.end_s is not None]
    return not has_failures and not is_grid and 2 * sum(held_back) <= len(held_back)


def _capacity(
    record: Record, slo: Slo, model: Fit | None, rng: Random, effort: float, *, may_be_far: bool = False
) -> Capacity:
    """Capacity for an SLO. may_be_far: believe a model's knee far above all tried rates"""
    by_stage = _by_stage(record, slo)
    samples = sum(map(len, by_stage.values()))
    if not samples and (model is None or record.cut):
        return Capacity(slo.name, "not_enough_data", samples=samples)
    stages = [stage for stage in record.stages if stage.is_judged]
    levels = [_rate_events(slo, stage, by_stage[stage.number]) for stage in stages]
    lowest_per_s = min((stage.total_per_s for stage in stages), default=0.0)
    below = _below(slo, levels, samples)
    if below is not None and below.upper == lowest_per_s:
        return below
    kept = [settled_requests(stage, record.requests, by_stage[stage.number]) for stage in stages]
    kept_levels = [_rate_events(slo, stage, requests) for stage, requests in zip(stages, kept, strict=True) if requests]
    if record.cut:
        return _by_events(slo, kept_levels, levels, samples)
    by_fractions, flat = _by_fractions(record, slo, by_stage)
    modelled = None
    max_flat = MAX_FLAT_WITH_PAGE if record.readings else MAX_FLAT_PROBABILITY
    if model is not None and slo.signal in MODELLED_SIGNALS and flat <= max_flat:
        modelled = _by_model(record, slo, model, rng, effort, may_be_far=may_be_far)
    knee = agreed(modelled, by_fractions) if modelled and by_fractions else modelled or by_fractions
    if knee is None or knee.estimate is None:
        return below or _by_events(slo, kept_levels, levels, samples)
    if knee.estimate < lowest_per_s:
        # Nothing was sent there: only a bound, or what a gentle sweep, which has little else, can say.
        if below is None and not record.reached and MAX_EXTRAPOLATION * knee.estimate >= lowest_per_s:
            return replace(knee, verdict="between")
        upper = below.upper if below is not None else knee.upper
        return replace(knee, verdict="below", lower=None, estimate=None, upper=upper, curve=())
    is_wide = (knee.upper or 0.0) > MAX_FOUND_RATIO * (knee.lower or 0.0)
    return replace(knee, verdict="between") if is_wide else knee


def _by_model(
    record: Record, slo: Slo, fitted: Fit, rng: Random, effort: float, *, may_be_far: bool = False
) -> Capacity | None:
    """Estimate by the model; None if it has no knee, or one that is too uncertain or too far above the tried rates.

    If the background alone overloads the model, the knee is for the mix of loads at the lowest rate.
    """
    model = CapacityModel(fitted.service, fitted.front_s, np.array(_lengths(record)), fitted.background, effort)
    highest_per_s = max((stage.total_per_s for stage in record.stages), default=1.0)
    tail = fitted.tail if slo.signal == "ttft" else None
    slo, exact = _calibrated(slo, tail.log_factor if tail else 0.0), slo
    knee = model.knee(slo, highest_per_s, rng)
    if knee is None and fitted.background.known and fitted.background.per_s > 0:
        lowest = min(record.stages, key=lambda stage: stage.total_per_s)
        knee = replace(model, own_ratio=lowest.rate_per_s / lowest.total_per_s).knee(slo, highest_per_s, rng)
    farthest = MAX_EXTRAPOLATION if record.readings and not _shows_limit(record, exact) else MAX_BEYOND_REACHED
    if knee is None or (knee.rate_per_s > farthest * highest_per_s and not may_be_far):
        return None
    beyond = max(0.0, log(knee.rate_per_s / highest_per_s))
    error = _model_error(record, (slo, exact), fitted, model, knee, beyond, rng)
    # Unproved background is not part of the rates: the capacity is what can be added to it.
    unseen_per_s = 0.0 if fitted.background.known else fitted.background.per_s
    unseen_limits = _bias(record)
    per_s = (knee.rate_per_s - unseen_per_s) * unseen_limits
    if per_s <= 0:
        return None
    error *= knee.rate_per_s / per_s
    if error > MAX_MODEL_ERROR and record.reached:
        return None
    half_width = Z * error
    capacity = Capacity(
        slo.name,
        "found",
        per_s * exp(-half_width),
        per_s,
        per_s * exp(half_width),
        CONFIDENCE,
        sum(map(len, _by_stage(record, slo).values())),
        "model",
        slope=knee.slope,
    )
    curve = _curve(record, model, slo, exact, capacity, unseen_per_s)
    if not (fitted.background.known and fitted.background.has_lengths):
        return replace(capacity, curve=curve)
    model = replace(model, effort=EFFORT_OF_SHAPES * model.effort)
    powers = _powers(model, slo, knee, rng)
    mixed = _with_mix(capacity, _lengths(record), fitted.background, powers, ERROR_OF_SHAPE)
    if fitted.background.per_s > 0:
        alone = replace(model, background=Background(0.0, (), known=True)).knee(slo, knee.rate_per_s, rng)
        mixed = replace(mixed, alone_per_s=alone.rate_per_s * unseen_limits if alone is not None else mixed.alone_per_s)
    return replace(mixed, curve=curve)


def _powers(model: CapacityModel, slo: Slo, knee: Knee, rng: Random) -> tuple[float, float]:
    """Powers of the mean prompt and output tokens with which the knee falls.

    Most requests get longer; a few like the sweep's are among them and judged.
    """
    seed, knees = rng.getrandbits(32), []
    lengths = model.background.lengths or tuple(RequestLengths(*of) for of in model.lengths[:SAMPLE_SIZE].tolist())
    for prompts, outputs in ((1.0, 1.0), (LONGER, 1.0), (1.0, LONGER)):
        longer = tuple(RequestLengths(round(of.prompt * prompts), round(of.output * outputs)) for of in lengths)
        load = replace(model.background, lengths=longer)
        knees.append(replace(model, background=load, own_ratio=JUDGED_RATIO).knee(slo, knee.rate_per_s, Random(seed)))
    present, *others = knees
    powers = [
        USUAL_POWER if present is None or of is None else log(present.rate_per_s / of.rate_per_s) / log(LONGER)
        for of in others
    ]
    return min(MAX_POWER, max(0.0, powers[0])), min(MAX_POWER, max(0.0, powers[1]))


def _with_mix(
    capacity: Capacity,
    own: Sequence[RequestLengths],
    load: Background,
    powers: tuple[float, float] = (USUAL_POWER, USUAL_POWER),
    error: float = ERROR_OF_UNKNOWN_SHAPE,
) -> Capacity:
    """Add the mean request at the knee, and the capacity in requests of the sweep alone. own: lengths of the sweep's requests"""
    per_s = capacity.estimate or capacity.lower or capacity.upper
    if per_s is None:
        return capacity
    share = min(1.0, load.per_s / per_s)
    mine, others = (np.mean(of, axis=0) for of in (own, load.lengths or own))
    prompts, outputs = (share * others + (1 - share) * mine).tolist()
    mix = Mix(prompts, outputs, *powers, error)
    return replace(capacity, mix=mix, alone_per_s=per_s / mix.cost(*mine.tolist())[0], others_per_s=load.per_s)


def _curve(
    record: Record, model: CapacityModel, slo: Slo, exact: Slo, capacity: Capacity, unseen_per_s: float
) -> tuple[tuple[float, float], ...]:
    """The model's (requests/s, latency quantile in s), from the lowest rate of the record to beyond the knee.

    slo: with the threshold for modelled latencies; exact: with the configured threshold
    """
    lowest_per_s = min((stage.total_per_s for stage in record.stages if stage.phase != "warm_up"), default=0.0)
    highest_per_s = CURVE_BEYOND * (capacity.upper or 0.0)
    if not 0 < lowest_per_s < highest_per_s or not slo.threshold_s or not exact.threshold_s:
        return ()
    points: list[tuple[float, float]] = []
    requests = round(CURVE_REQUESTS * model.effort)
    for place in range(CURVE_POINTS):
        per_s = lowest_per_s * (highest_per_s / lowest_per_s) ** (place / (CURVE_POINTS - 1))
        latency_s = model.latency_s(slo, per_s + unseen_per_s, requests, Random(0))  # common random numbers: smooth
        if latency_s is None or latency_s > CURVE_HEIGHT * slo.threshold_s:
            break
        points.append((per_s, latency_s * exact.threshold_s / slo.threshold_s))
    return tuple(points)


def _bias(record: Record) -> float:
    """Factor that takes the known bias from an estimate."""
    return exp(-(BIAS_UNSEEN if record.other_per_s is None else 0.0) - (0.0 if record.reached else BIAS_NOT_REACHED))


def _shows_limit(record: Record, slo: Slo) -> bool:
    """True if the target's limit ended the sending, and breaches show it."""
    known = [request.events[slo.name][1] for request in record.requests if request.valid and slo.name in request.events]
    return record.reached and sum(known) >= MIN_BREACHES


def _calibrated(slo: Slo, log_factor: float) -> Slo:
    """The SLO with its threshold ÷ exp(log_factor), for replayed TTFTs, which are too small by that factor."""
    return slo if slo.threshold_s is None else replace(slo, threshold_s=slo.threshold_s / exp(log_factor))


def _model_error(
    record: Record,
    slos: tuple[Slo, Slo],
    fitted: Fit,
    model: CapacityModel,
    knee: Knee,
    beyond: float,
    rng: Random,
) -> float:
    """Standard error of the log of a model's knee: bootstrap, tail, simulation noise, and errors that none of these shows.

    slos: (SLO with the threshold for modelled latencies, SLO with the configured threshold)
    beyond: log(knee under the load of the sweep ÷ highest rate of the record), at least 0
    """
    slo, exact = slos
    cases = [(replace(model, service=service, front_s=front_s), slo) for service, front_s in fitted.repeats]
    if (tail := fitted.tail if slo.signal == "ttft" else None) is not None:
        error = hypot(tail.error, ERROR_OF_CALIBRATION * tail.log_factor)
        cases += [(model, _calibrated(exact, tail.log_factor + sign * error)) for sign in (-1, 1)]
    shifts = model.knee_shifts(cases, slo, knee, rng)
    repeats = len(fitted.repeats)
    of_tail = sum(map(abs, shifts[repeats:])) / 2
    bootstrap = sqrt(sum(min(MAX_SHIFT, abs(shift)) ** 2 for shift in shifts[:repeats]) / max(1, repeats))
    unseen = 0.0 if fitted.background.known else ERROR_UNKNOWN
    not_reached = 0.0
    if not _shows_limit(record, slo):
        not_reached = hypot(ERROR_NOT_REACHED, ERROR_PER_LOG_DISTANCE * beyond)
    # The background of some minutes is a sample; lengths vary about as much as their mean.
    background_per_s, sampling = fitted.background.per_s, 0.0
    if background_per_s > 0:
        count = background_per_s * (record.until_s - record.from_s)
        sampling = min(1.0, background_per_s / knee.rate_per_s) * sqrt(2 / max(1.0, count))
    # A model that misses the latencies by a factor may miss the rate by the same factor.
    of_fit = fitted.error
    return hypot(of_tail, bootstrap, of_fit, knee.error, unseen, ERROR_OF_SLOPE / knee.slope, not_reached, sampling)


def _by_fractions(
    record: Record, slo: Slo, by_stage: Mapping[int, Sequence[RequestRecord]]
) -> tuple[Capacity | None, float]:
    """(estimate by the shares of bad events, probability that the share does not rise with the rate).

    The verdict is `between` with few bad events, if the sending ended before the target's limit, or if the interval begins below all
    tried rates. No estimate without a knee: no bad event at the limit, a share that does not rise with the rate, or an estimate below
    all tried rates. The probability is 0 where a page shows the load and the breaches may be chance.
    """
    steps: list[Step] = []
    for stage in record.stages:
        judged = by_stage[stage.number]
        ratios: tuple[float, ...] = ()
        if slo.signal == "ttft" and slo.threshold_s:
            ratios = tuple((request.ttft_s or request.known_s - request.at_s) / slo.threshold_s for request in judged)
        steps.append(Step(_long_run_per_s(stage, slo), *_counts(slo, judged), ratios))
    interval = knee(steps, float(slo.error_budget_ratio))
    bad = sum(step.bad for step in steps)
    if interval is None or (record.reached and not bad):
        return None, 0.0
    error = Z * (ERROR_OF_FRACTIONS if record.reached else ERROR_BEFORE_BREACHES)
    lower = exp(-hypot(log(interval.estimate / interval.lower), error))
    upper = exp(hypot(log(interval.upper / interval.estimate), error))
    estimate, samples = interval.estimate * _bias(record), sum(map(len, by_stage.values()))
    lowest_per_s = min(step.rate_per_s for step in steps if step.events)
    events = sum(step.events for step in steps)
    may_be_chance = record.readings and probability_of_at_least(bad, events, float(slo.error_budget_ratio)) > CHANCE
    flat = 0.0 if may_be_chance else interval.flat
    if estimate < lowest_per_s or flat > MAX_FLAT_PROBABILITY:
        return None, flat
    is_found = record.reached and bad >= MIN_BREACHES and interval.lower >= lowest_per_s
    verdict: Verdict = "found" if is_found else "between"
    capacity = Capacity(slo.name, verdict, estimate * lower, estimate, estimate * upper, CONFIDENCE, samples)
    return capacity, flat


def _by_events(slo: Slo, kept: Sequence[RateEvents], levels: Sequence[RateEvents], samples: int) -> Capacity:
    """Estimate from event counts only: the highest rate whose own events prove that the objective holds.

    kept: events at rates that lasted long enough; levels: events at all rates
    """
    budget = float(slo.error_budget_ratio)
    held_per_s = holds_at(kept, budget)
    if held_per_s is None:
        return Capacity(slo.name, "not_enough_data", samples=samples, evidence=undecided_events(kept or levels, budget))
    return Capacity(slo.name, "not_reached", lower=held_per_s, samples=samples)


def _counts(slo: Slo, judged: Sequence[RequestRecord]) -> tuple[int, int]:
    """(events, bad events) of the requests."""
    events = sum(request.events[slo.name][0] for request in judged)
    return events, sum(request.events[slo.name][1] for request in judged)


def _rate_events(slo: Slo, stage: Stage, judged: Sequence[RequestRecord]) -> RateEvents:
    observations = observed(slo, [(*request.events[slo.name], request.output_tokens) for request in judged])
    return RateEvents(stage.total_per_s, observations, *_counts(slo, judged), stage.rate_per_s)


def _long_run_per_s(stage: Stage, slo: Slo) -> float:
    """Long-run rate that corresponds to a stage, whose queue had little time to grow.

    If the log rate grows by g per second beyond the knee, the wait grows by g·t per second and takes √(2·wait ÷ g)
    to reach the threshold; meanwhile the log rate grows by √(2·g·wait).
    """
    if stage.ended_s - stage.began_s >= LONG_STAGE_S or stage.phase == "grid":
        return stage.total_per_s
    bias = SHORT_STAGE_BIAS
    if slo.signal == "ttft" and slo.threshold_s:
        growth_per_s = GROWTH_PER_S * stage.rate_per_s / stage.total_per_s
        bias = min(MAX_BIAS, sqrt(2 * growth_per_s * slo.threshold_s))
    return stage.total_per_s * exp(-bias)


def _below(slo: Slo, levels: Sequence[RateEvents], samples: int) -> Capacity | None:
    """Capacity if events prove that the objective fails at some rate: the lowest such rate is its upper bound.

    None without such a rate. If the share of bad events over several rates exceeds the budget, it does so at the highest of
    them. If the objective holds, the error over any number of rates is that of one test.
    """
    observations = Observations()
    for level in sorted(levels, key=lambda level: level.rate_per_s):
        observations += level.observed
        if evidence(observations, float(slo.error_budget_ratio)) == "fails":
            return Capacity(slo.name, "below", upper=level.rate_per_s, samples=samples)
    return None


def _lengths(record: Record) -> list[RequestLengths]:
    """Sample of the workload's lengths; without one, the lengths of sent requests."""
    pairs = record.lengths or tuple((request.computed_tokens, request.output_tokens) for request in record.requests)
    return [RequestLengths(*pair) for pair in pairs]
