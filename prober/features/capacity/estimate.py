"""From the record of a sweep to what the target can carry: by the engine model where its replay shows what was seen, else by the
fractions of breaches alone, whose interval is wider.

A knee is told where the target gave way. Where it did not, or where its breaches do not rise with the rate, only events speak:
the SLO holds at the highest rate at which they show it (`capacity.holds_at`), or there is not enough data.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import exp, hypot, log, sqrt
from random import Random

from prober.features.capacity.capacity_model import CapacityModel, Knee
from prober.features.capacity.fitting import Fit, Prior, fit
from prober.features.capacity.knee import Step, knee
from prober.features.capacity.replay import Pair
from prober.features.capacity.request_record import RequestRecord
from prober.features.capacity.sweep_record import UNJUDGED, Phase, Record, Stage, observed
from prober.measure.objective import Slo
from prober.results.capacity import Capacity, RateEvents, agreed, evidence, fails, holds_at

Z = 1.645  # of the 90% interval
# Standard errors of log K that a record cannot show: errors of the model, by how well the background was known. Calibrated by
# `python -m bench.knee`.
MODEL, COUNTED, UNKNOWN = 0.02, 0.045, 0.10
FLAT = 0.4  # more, divided by the local slope: an error of the share moves a flat knee far
# Additional if sending ended before the target's limit: a limit may be near and unseen, more likely for a more distant knee.
EARLY, FARTHER, BEYOND = 0.08, 0.25, 3.0  # beyond BEYOND times the highest rate there is no estimate
# How much too high a knee a stage of that kind shows, in logs: its queue had no time to grow, unless it lasted; and the spread.
LATE: dict[Phase, float] = {"ramp": 0.2, "climb": 0.12}
LASTED_S = 20.0
FRACTIONS = 0.14
BREACHES, STEEP = 2, 3.0  # from so many on, and from such a local slope, their fractions have a say beside the model
FLAT_ODDS = 0.5  # of a share that does not rise with the rate: above, breaches are no knee
MODELLED = ("ttft", "tpot", "itl", "e2e")


@dataclass(frozen=True, slots=True)
class Estimated:
    """capacities: one an SLO, in their order; found: the engine model, None where there is none or it is not to be believed

    knees: the model's, one an SLO, None where it was not asked or has none: their slopes say how sharply the target gives way
    """

    capacities: tuple[Capacity, ...]
    found: Fit | None
    knees: tuple[Knee | None, ...] = ()


def estimate(record: Record) -> tuple[Capacity, ...]:
    """Capacity for each SLO of the record, in its order."""
    return estimated(record).capacities


def estimated(record: Record, seed: int = 0, prior: Prior | None = None, effort: float = 1.0) -> Estimated:
    """What a record says. Pure, the same for the same arguments. Seconds of CPU in one piece: call it in another process
    (arguments and result can be pickled), never in the one whose clock stamps chunks. effort: as in `CapacityModel`.
    """
    rng = Random(seed)
    # A replay has no failing requests, and without a page no background load. A grid has measured each rate.
    told = record.readings or record.others is not None
    failed = any(each.failed for each in record.asked if each.valid)
    walked = any(each.phase == "grid" for each in record.stages)
    found = fit(record, rng, prior) if told and not failed and not walked and not record.spoilt else None
    if found is not None and not found.good:
        found = None
    both = [_capacity(record, slo, found, rng, effort) for slo in record.slos]
    return Estimated(tuple(each for each, _ in both), found, tuple(each for _, each in both))


def _capacity(record: Record, slo: Slo, found: Fit | None, rng: Random, effort: float) -> tuple[Capacity, Knee | None]:
    judged = [each for each in record.asked if each.valid and slo.name in each.events and _ramp(record, each)]
    if not judged or record.spoilt:
        return Capacity(slo.name, "not_enough_data", samples=len(judged)), None
    levels = [
        _level(slo, stage, [each for each in judged if each.stage == stage.number])
        for stage in record.stages
        if stage.phase not in UNJUDGED
    ]
    lowest = _fails_at_once(record, slo, levels)
    if lowest is not None:
        return Capacity(slo.name, "below_lowest", upper=lowest, samples=len(judged)), None
    if record.cut:
        return _by_events(slo, levels, len(judged)), None
    if found is not None and slo.signal in MODELLED:
        modelled, at = _modelled(record, slo, found, _lengths(record), rng, effort)
        if modelled is not None:
            # Without breaches the fractions only say that the knee is not far below, which the model knows; and where it is flat
            # they are too few to say anything.
            tells = at is not None and at.slope >= STEEP
            rough = _by_fractions(record, slo, judged) if tells else None
            return agreed(modelled, rough) if rough is not None else modelled, at
    return _by_fractions(record, slo, judged) or _by_events(slo, levels, len(judged)), None


def _modelled(
    record: Record, slo: Slo, found: Fit, lengths: Sequence[Pair], rng: Random, effort: float
) -> tuple[Capacity | None, Knee | None]:
    """Capacity by the model, or None if it has no knee."""
    ahead = CapacityModel(found.parameters, found.front_s, lengths, found.background, effort)
    top = max((each.total_per_s for each in record.stages), default=1.0)
    at = ahead.knee(slo, top, rng)
    if at is None:
        return None, None
    samples = sum(each.valid for each in record.asked)
    if not record.reached and at.rate_per_s > top * BEYOND:
        return None, at
    repeats = [replace(ahead, parameters=parameters, front_s=front_s) for parameters, front_s in found.repeats]
    wide = Z * _error(record, found, at, ahead.moved(repeats, slo, at, rng))
    tokens = sum(each.prompt + each.output for each in lengths) / len(lengths)
    capacity = Capacity(
        slo.name,
        "found",
        at.rate_per_s * exp(-wide),
        at.rate_per_s,
        at.rate_per_s * exp(wide),
        tokens * at.rate_per_s,
        0.9,
        samples,
        "model",
    )
    return capacity, at


def _error(record: Record, found: Fit, at: Knee, moves: Sequence[float]) -> float:
    """Standard error of log K from bootstrap weights, simulation noise, and errors that neither shows."""
    spread = sum(min(0.5, abs(each)) ** 2 for each in moves) / max(1, len(moves))
    least = MODEL if record.others is not None else COUNTED if found.background.known else UNKNOWN
    top = max((each.total_per_s for each in record.stages), default=1.0)
    early = 0.0 if record.reached else hypot(EARLY, FARTHER * max(0.0, log(at.rate_per_s / top)))
    # Minutes of the load that was there are a sample of it: so many requests, whose lengths vary about as much as their mean.
    per_s = found.background.per_s
    others = 0.0
    if per_s > 0:
        others = min(1.0, per_s / at.rate_per_s) * sqrt(2 / max(1.0, per_s * (record.until_s - record.from_s)))
    return sqrt(spread + at.error**2 + least**2 + (FLAT / at.slope) ** 2 + early**2 + others**2)


def _by_fractions(record: Record, slo: Slo, judged: Sequence[RequestRecord]) -> Capacity | None:
    """By the shares of bad events; None where they show no knee: too few breaches, breaches that do not rise with the rate, or a
    knee below every rate that was tried, of which only the prior speaks.
    """
    steps = [_step(slo, stage, [each for each in judged if each.stage == stage.number]) for stage in record.stages]
    found = knee(steps, float(slo.error_budget_ratio))
    if found is None or not record.reached or sum(each.bad for each in steps) < BREACHES:
        return None
    lengths = _lengths(record)
    tokens = sum(each.prompt + each.output for each in lengths) / len(lengths)
    lower = exp(-hypot(log(found.estimate / found.lower), Z * FRACTIONS))
    upper = exp(hypot(log(found.upper / found.estimate), Z * FRACTIONS))
    at, lowest = found.estimate, min(each.rate_per_s for each in steps if each.events)
    if at * upper <= lowest:
        return Capacity(slo.name, "below_lowest", upper=_lowest(record).total_per_s, samples=len(judged))
    if found.lower < lowest or found.never > FLAT_ODDS:
        return None
    return Capacity(slo.name, "found", at * lower, at, at * upper, tokens * at, 0.9, len(judged))


def _by_events(slo: Slo, levels: Sequence[RateEvents], samples: int) -> Capacity:
    """Capacity from event counts only: the highest rate at which they show that the objective is met."""
    budget = float(slo.error_budget_ratio)
    held = holds_at(levels, budget)
    if held is None:
        return Capacity(slo.name, "not_enough_data", samples=samples, evidence=evidence(levels, budget))
    return Capacity(slo.name, "not_reached", lower=held, samples=samples)


def _level(slo: Slo, stage: Stage, judged: Sequence[RequestRecord]) -> RateEvents:
    counts = [(*each.events[slo.name], each.output_tokens) for each in judged]
    events, bad = (sum(each[part] for each in counts) for part in (0, 1))
    return RateEvents(_long_run(stage), observed(slo, counts), events, bad)


def _long_run(stage: Stage) -> float:
    """Long-run rate that corresponds to a stage. A queue grows slowly: a short stage looks like a lower rate."""
    lasted = stage.ended_s - stage.began_s >= LASTED_S
    return stage.total_per_s * exp(-(0.0 if lasted else LATE.get(stage.phase, 0.0)))


def _step(slo: Slo, stage: Stage, judged: Sequence[RequestRecord]) -> Step:
    limit_s = slo.threshold_s
    shares: tuple[float, ...] = ()
    if slo.signal == "ttft" and limit_s:
        shares = tuple((each.ttft_s or each.known_s - each.at_s) / limit_s for each in judged)
    count, bad = (sum(each.events[slo.name][part] for each in judged) for part in (0, 1))
    return Step(_long_run(stage), count, bad, shares)


def _fails_at_once(record: Record, slo: Slo, levels: Sequence[RateEvents]) -> float | None:
    """The lowest rate, if its events show that the SLO fails there."""
    judged = [stage for stage in record.stages if stage.phase not in UNJUDGED]
    if not judged:
        return None
    first = _lowest(record)
    at = [level for stage, level in zip(judged, levels, strict=True) if stage.rate_per_s == first.rate_per_s]
    return first.total_per_s if fails(reduce(RateEvents.plus, at), float(slo.error_budget_ratio)) else None


def _lowest(record: Record) -> Stage:
    """The first stage with the lowest rate."""
    return min((each for each in record.stages if each.phase not in UNJUDGED), key=lambda each: each.rate_per_s)


def _ramp(record: Record, each: RequestRecord) -> bool:
    return not record.stages or record.stages[each.stage].phase not in UNJUDGED


def _lengths(record: Record) -> list[Pair]:
    pairs = record.lengths or tuple((each.prompt_tokens, each.output_tokens) for each in record.asked)
    return [Pair(*each) for each in pairs]
