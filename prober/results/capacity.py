"""The capacity of a target as an interval, and the headroom below it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby
from operator import attrgetter
from typing import Literal

from prober.statistics.sequential_test import ERROR, Observations, evidence, log_evidence_below, min_observations

Verdict = Literal["found", "between", "not_reached", "below", "not_enough_data"]


MIN_RATE_S = 20.0  # a rate is kept for so long before its events can show that it holds: queues grow slowly
MAX_BUDGET_SHARE = 0.7  # with a higher share of bad events, more events would not show that the budget is kept


@dataclass(frozen=True, slots=True)
class RateEvents:
    """The events of one SLO at one rate.

    observed: one observation per request, for `sequential_test`
    events, bad: numbers of events and of bad events
    sent_per_s: rate of the observed requests, without the load of others
    """

    rate_per_s: float
    observed: Observations
    events: int
    bad: int
    sent_per_s: float = 0.0

    def plus(self, other: "RateEvents") -> "RateEvents":
        """The events of both, which are of one rate."""
        return RateEvents(
            self.rate_per_s,
            self.observed + other.observed,
            self.events + other.events,
            self.bad + other.bad,
            self.sent_per_s,
        )


@dataclass(frozen=True, slots=True)
class UndecidedEvents:
    """Events that leave an SLO undecided: their number at `rate_per_s`, and the number of bad events.

    needed: number of events that would show the objective with the same share of bad events; None if that share is too high
    """

    rate_per_s: float
    events: int
    bad: int
    needed: int | None


@dataclass(frozen=True, slots=True)
class Capacity:
    """The total rate (background load + added load) up to which an SLO holds, in requests like those of the sweep per second.

    found: an estimate of the knee with its interval; no test shows that the SLO holds at any of the three rates
    not_reached: the SLO holds at `lower`, the highest rate whose own events show it; there is no estimate
    between: the events are too few for an estimate; `estimate` is the middle of a wide interval
    below: the SLO fails at `upper`, by the events there and at all lower rates or by the engine model; no lower rate is shown to hold
    not_enough_data: the events show neither; `evidence` has their number
    tokens_per_s: prompt and output tokens at the estimate
    confidence: of the interval
    samples: number of requests whose events count
    fit: by the engine model, or by breach fractions alone
    curve: (requests per second, seconds) of the quantile that the objective is about, by the engine model; empty without one
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
    evidence: UndecidedEvents | None = None
    curve: tuple[tuple[float, float], ...] = ()


def holds_at(levels: Sequence[RateEvents], budget: float) -> float | None:
    """The highest rate whose own events show that at most a share `budget` is bad; None: no rate.

    Rates with too few events for an answer are left out. The others are tested from the lowest up, until one does not hold: a fixed
    sequence, so that the probability that any of the claims is wrong is at most `ERROR`, however many rates there are. An objective
    of 99% needs 346 events without a bad one.
    """
    least, held_per_s = min_observations(budget, ERROR), None
    for level in _by_rate(levels):
        if level.observed.count < least:
            continue
        if evidence(level.observed, budget) != "holds":
            break
        held_per_s = level.rate_per_s
    return held_per_s


def undecided_events(levels: Sequence[RateEvents], budget: float) -> UndecidedEvents | None:
    """The events at the rate where they are nearest to a decision; None without events."""
    judged = [level for level in _by_rate(levels) if level.events]
    if not judged:
        return None
    best = max(judged, key=lambda level: log_evidence_below(level.observed, budget))
    needed = None
    if best.observed.mean < MAX_BUDGET_SHARE * budget:
        requests = max(min_observations(budget, ERROR, best.observed), MIN_RATE_S * best.sent_per_s)
        needed = math.ceil(requests * best.events / best.observed.count)
    return UndecidedEvents(best.rate_per_s, best.events, best.bad, needed)


def _by_rate(levels: Sequence[RateEvents]) -> Iterator[RateEvents]:
    """All events of each rate, from the lowest rate up."""
    by_rate = attrgetter("rate_per_s")
    for _, same_rate in groupby(sorted(levels, key=by_rate), key=by_rate):
        yield reduce(RateEvents.plus, same_rate)


Z = {0.9: 1.645, 0.95: 1.960}  # of a normal interval


def agreed(one: Capacity, other: Capacity) -> Capacity:
    """Combine two estimates: `one` unchanged if they agree, else a mean whose interval covers their difference.

    Random effects of two studies on log rates (DerSimonian, Laird, "Meta-analysis in clinical trials", 1986): their difference
    beyond their own errors, τ² = ((a − b)² − s_a² − s_b²) ÷ 2, is added to both, and the mean weighs them by 1 ÷ (s² + τ²). If
    τ² is 0, `one` is returned unchanged: agreement does not narrow it.
    """
    pairs = [_log(one), _log(other)]
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
    """The SLO that fails first: the lowest estimate, or rate below which its knee is; None if unknown."""
    failing = [capacity for capacity in capacities if capacity.upper is not None]
    return min(failing, key=lambda capacity: capacity.estimate or capacity.upper or 0.0, default=None)


def combined(capacities: Sequence[Capacity]) -> Capacity | None:
    """The capacity at all SLOs together: that of the binding SLO, with the lowest of all lower bounds; None if unknown.

    An SLO without enough data may fail at any lower rate: beside one, only the upper bound is known.
    """
    first = binding(tuple(capacities))
    if first is None or first.verdict == "below":
        return first
    if any(capacity.lower is None for capacity in capacities):
        return replace(first, lower=None, estimate=None, tokens_per_s=None)
    return replace(first, lower=min(capacity.lower for capacity in capacities if capacity.lower is not None))


def undecided(capacities: Sequence[Capacity]) -> list[str]:
    """Names of the SLOs without enough data."""
    return [capacity.slo for capacity in capacities if capacity.verdict == "not_enough_data"]


def headroom(demand_per_s: float, capacity_per_s: float) -> float:
    """Free share of the capacity, 1 − demand ÷ capacity; negative under overload. Raises ValueError."""
    if capacity_per_s <= 0 or demand_per_s < 0:
        raise ValueError(
            f"a demand of {demand_per_s}/s and a capacity of {capacity_per_s}/s: need a demand of 0 or more and a capacity above 0"
        )
    return 1 - demand_per_s / capacity_per_s


def words(capacities: Sequence[Capacity]) -> str:
    """The capacities in a sentence."""
    texts = []
    for capacity in capacities:
        match capacity:
            case Capacity(slo, "found", float() as lower, float() as estimate, float() as upper):
                texts.append(
                    f"{slo}: estimated knee {estimate:.3g}/s, {capacity.confidence:.0%} interval {lower:.3g} to {upper:.3g}"
                )
            case Capacity(slo, "between", float() as lower, _, float() as upper, samples=samples):
                texts.append(f"{slo}: knee between {lower:.3g} and {upper:.3g}/s by {samples:,} requests, wide")
            case Capacity(slo, "not_reached", float() as lower):
                texts.append(f"{slo} holds at {lower:.3g}/s; no knee was reached")
            case Capacity(slo, "below", upper=float() as upper, samples=samples):
                texts.append(f"{slo}: knee below {upper:.3g}/s by {samples:,} requests")
            case _:
                texts.append(f"{capacity.slo}: not enough data{_lacking(capacity.evidence)}")
    return "; ".join(texts) or "nothing can be said"


def _lacking(evidence: UndecidedEvents | None) -> str:
    """Text such as `: 127 events at 1/s, about 390 needed`."""
    if evidence is None:
        return ""
    bad = f", {evidence.bad:,} of them bad" if evidence.bad else ""
    needed = f"about {evidence.needed:,} needed" if evidence.needed is not None else "too many for the objective"
    noun = "event" if evidence.events == 1 else "events"
    return f": {evidence.events:,} {noun} at {evidence.rate_per_s:.3g}/s{bad}, {needed}"
