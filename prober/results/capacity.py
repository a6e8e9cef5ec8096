"""The capacity of a target as an interval, and the headroom below it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from prober.statistics.sequential_test import Observations, log_evidence_above, log_evidence_below, min_observations

Verdict = Literal["found", "not_reached", "below_lowest", "not_enough_data"]


ERROR = 0.05  # largest probability that "holds" or "fails" is wrong, as in `prober gate`
LEAST_BAD = 2  # requests; a single bad one proves nothing


@dataclass(frozen=True, slots=True)
class RateEvents:
    """The events of one SLO at one rate. observed: one observation a request, as `sequential_test` takes them; events, bad: counts."""

    rate_per_s: float
    observed: Observations
    events: int
    bad: int

    def plus(self, other: "RateEvents") -> "RateEvents":
        """The events of both, at the rate of `other`."""
        observed = Observations(self.observed.count + other.observed.count, self.observed.bad + other.observed.bad)
        return RateEvents(other.rate_per_s, observed, self.events + other.events, self.bad + other.bad)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Events that were not enough for a decision: their number at `rate_per_s` and above, and how many were bad.

    needed: events that would show the objective at the same share of bad ones; None: the share is too high
    """

    rate_per_s: float
    events: int
    bad: int
    needed: int | None


@dataclass(frozen=True, slots=True)
class Capacity:
    """The rate in all (load already there + load added) up to which an SLO holds, in requests of the sweep's shape per second.

    found: the interval holds the knee. not_reached: it holds at `lower`, the highest rate at which its events show it; there is
    no estimate. below_lowest: it failed at the lowest rate, `upper` is that. not_enough_data: its events show neither;
    `evidence` says how many there were.
    confidence: of the interval; samples: requests that were judged; fit: by the engine model, or by breach fractions alone
    tokens_per_s: prompt and output tokens in all, at the estimate
    """

    slo: str
    verdict: Verdict
    lower: float | None = None
    estimate: float | None = None
    upper: float | None = None
    tokens_per_s: float | None = None
    confidence: float = 0.9
    samples: int = 0
    fit: Literal["model", "fractions"] = "fractions"
    evidence: Evidence | None = None


def holds_at(levels: Sequence[RateEvents], budget: float) -> float | None:
    """The highest rate at which the events show that at most a share `budget` is bad; None: at no rate.

    Breaches grow with the rate, so the share at a rate is at most that of all events at it and above, which are pooled. The
    test is that of `prober gate` (`log_evidence_below`, an e-process): rates are asked from the highest down, each adds its
    events, and by Ville's inequality the chance that any of the answers is wrong is at most `ERROR`. With 99% and no bad event
    it takes 346.
    """
    held = (
        each.rate_per_s for each in _pooled(levels) if log_evidence_below(each.observed, budget) >= -math.log(ERROR)
    )
    return next(held, None)


def fails(at: RateEvents, budget: float) -> bool:
    """Whether the events at one rate show that more than a share `budget` is bad: the same test, with at least two bad ones."""
    return at.bad >= LEAST_BAD and log_evidence_above(at.observed, budget) >= -math.log(ERROR)


def evidence(levels: Sequence[RateEvents], budget: float) -> Evidence | None:
    """How far the events are from a decision, at the rate where they are nearest to it; None without events."""
    pooled = [each for each in _pooled(levels) if each.events]
    if not pooled:
        return None
    best = max(pooled, key=lambda each: log_evidence_below(each.observed, budget))
    mean = best.observed.bad / best.observed.count
    needed = None
    if mean < TOO_NEAR * budget:
        needed = math.ceil(min_observations(budget, ERROR, mean) * best.events / best.observed.count)
    return Evidence(best.rate_per_s, best.events, best.bad, needed)


TOO_NEAR = 0.7  # of the budget; above it, more events of the same kind do not show that the budget is kept


def _pooled(levels: Sequence[RateEvents]) -> Iterator[RateEvents]:
    """For each rate, from the highest down: the events at it and above."""
    pooled = RateEvents(math.inf, Observations(), 0, 0)
    for _, at in groupby(sorted(levels, key=lambda each: -each.rate_per_s), key=lambda each: each.rate_per_s):
        for each in at:
            pooled = pooled.plus(each)
        yield pooled


Z = {0.9: 1.645, 0.95: 1.960}  # of a normal interval


def agreed(one: Capacity, other: Capacity) -> Capacity:
    """Combine two estimates: `one` unchanged if they agree, else a mean whose interval covers their difference.

    Random effects of two studies on log rates (DerSimonian, Laird, "Meta-analysis in clinical trials", 1986): what they differ
    by beyond their own errors, τ² = ((a − b)² − s_a² − s_b²) ÷ 2, is in both, and the mean weighs each by 1 ÷ (s² + τ²). Where
    τ² is 0, `one` is returned unchanged: agreement does not narrow it.
    """
    pairs = [_log(each) for each in (one, other)]
    if pairs[0] is None or pairs[1] is None:
        return one
    (a, s_a), (b, s_b) = pairs[0], pairs[1]
    between = ((a - b) ** 2 - s_a**2 - s_b**2) / 2
    if between <= 0:
        return one
    weights = 1 / (s_a**2 + between), 1 / (s_b**2 + between)
    mean = (weights[0] * a + weights[1] * b) / sum(weights)
    wide = Z[one.confidence] * math.sqrt(1 / sum(weights))
    at, before = math.exp(mean), math.exp(a)
    tokens = one.tokens_per_s * at / before if one.tokens_per_s is not None else None
    return replace(one, lower=at * math.exp(-wide), estimate=at, upper=at * math.exp(wide), tokens_per_s=tokens)


def _log(capacity: Capacity) -> tuple[float, float] | None:
    """Log of the estimate and its standard error; None without an interval."""
    match capacity:
        case Capacity(lower=float() as lower, estimate=float() as estimate, upper=float() as upper) if lower > 0:
            return math.log(estimate), math.log(upper / lower) / 2 / Z[capacity.confidence]
    return None


def binding(capacities: tuple[Capacity, ...]) -> Capacity | None:
    """The SLO that is missed first: one that failed at the lowest rate, else the lowest estimate; None if unknown."""
    failed = [each for each in capacities if each.verdict == "below_lowest"]
    found = [each for each in capacities if each.estimate is not None]
    return failed[0] if failed else min(found, key=lambda each: each.estimate or 0.0) if found else None


def headroom(demand_per_s: float, capacity_per_s: float) -> float:
    """Free share of the capacity, 1 − demand ÷ capacity; negative under overload. Raises ValueError."""
    if capacity_per_s <= 0 or demand_per_s < 0:
        raise ValueError(
            f"a demand of {demand_per_s}/s and a capacity of {capacity_per_s}/s: need a demand of 0 or more and a capacity above 0"
        )
    return 1 - demand_per_s / capacity_per_s


def words(capacities: Sequence[Capacity]) -> str:
    """The capacities in a sentence."""
    told = []
    for each in capacities:
        match each.verdict, each.lower, each.estimate, each.upper:
            case "found", float() as lower, float() as estimate, float() as upper:
                told.append(f"{each.slo} holds up to {estimate:.3g}/s ({lower:.3g} to {upper:.3g})")
            case "not_reached", float() as lower, _, _:
                told.append(f"{each.slo} holds at {lower:.3g}/s; no knee was reached")
            case "below_lowest", _, _, float() as upper:
                told.append(f"{each.slo} does not hold at {upper:.3g}/s, the lowest rate")
            case _:
                told.append(f"{each.slo}: not enough data{_lacking(each.evidence)}")
    return "; ".join(told) or "nothing can be said"


def _lacking(found: Evidence | None) -> str:
    """`: 127 events at 1/s and above, about 390 needed`."""
    if found is None:
        return ""
    bad = f", {found.bad:,} of them bad" if found.bad else ""
    needed = f"about {found.needed:,} needed" if found.needed is not None else "too many for the objective"
    return f": {found.events:,} events at {found.rate_per_s:.3g}/s and above{bad}, {needed}"
