"""The capacity of a target as an interval, and the headroom below it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby
from operator import attrgetter, mul
from typing import Literal

from prober.statistics.sequential_test import ERROR, Observations, evidence, log_evidence_below, min_observations

Verdict = Literal["found", "between", "not_reached", "below", "not_enough_data"]


MIN_RATE_S = 20.0  # a shorter time does not show that a rate holds: queues grow slowly
MIN_LOG_ERROR = 1e-6  # of an estimate whose interval has no width
COMMON_ERROR = 0.9  # share of the variance that is common to all sweeps of an engine (bench/headroom_independent.py)
MAX_BUDGET_SHARE = 0.7  # above this share of bad events, more events would not prove that the budget is kept


@dataclass(frozen=True, slots=True)
class RateEvents:
    """The events of one SLO at one rate.

    observed: one observation per request, for `statistics.sequential_test`
    events, bad: numbers of events and of bad events
    sent_per_s: rate of the observed requests, without background load
    """

    rate_per_s: float
    observed: Observations
    events: int
    bad: int
    sent_per_s: float = 0.0

    def plus(self, other: "RateEvents") -> "RateEvents":
        """Add the events of two parts, which must have the same rate."""
        return RateEvents(
            self.rate_per_s,
            self.observed + other.observed,
            self.events + other.events,
            self.bad + other.bad,
            self.sent_per_s,
        )


@dataclass(frozen=True, slots=True)
class UndecidedEvents:
    """Events and bad events at `rate_per_s` that do not decide whether the SLO holds.

    needed: events that would prove that the SLO holds at this share of bad events; None if the share is too high
    """

    rate_per_s: float
    events: int
    bad: int
    needed: int | None


@dataclass(frozen=True, slots=True)
class Mix:
    """The mean request at a knee, of those that were there and those that the sweep sent, and how the knee moves with it.

    prompt_tokens, output_tokens: mean tokens of a request; cached prompt tokens are not counted
    prompt_power, output_power: the knee falls with these powers of the mean tokens
    error: standard error of ln(knee) at another mix, per log of its tokens
    """

    prompt_tokens: float
    output_tokens: float
    prompt_power: float = 0.5
    output_power: float = 0.5
    error: float = 0.5

    def cost(self, prompt_tokens: float, output_tokens: float) -> tuple[float, float]:
        """How much of the engine a request of these mean tokens takes, relative to one of the mix, and the log's standard error."""
        prompts = math.log(max(1.0, prompt_tokens) / self.prompt_tokens)
        outputs = math.log(max(1.0, output_tokens) / self.output_tokens)
        cost = math.exp(self.prompt_power * prompts + self.output_power * outputs)
        return cost, self.error * (abs(prompts) + abs(outputs)) / 2


@dataclass(frozen=True, slots=True)
class Capacity:
    """The total rate up to which an SLO holds: background load during the sweep plus the sweep's own requests.

    found: `estimate` of the knee with its confidence interval; none of the three rates is proved to hold
    not_reached: the SLO holds at `lower`, the highest rate proved by its own events; there is no estimate
    between: too few events for an estimate; `estimate` is the middle of a wide interval
    below: the SLO fails at `upper`, by the events up to there or by the engine model; no lower rate is proved to hold
    not_enough_data: neither is proved; `evidence` has the numbers
    confidence: confidence level of the interval, such as 0.9
    samples: number of requests with counted events
    fit: source of the estimate: the engine model, or only shares of bad events
    curve: (requests per second, seconds): the SLO's latency quantile by rate in the engine model; empty without a model
    slope: dlog share of bad events ÷ dlog rate at the knee, in the engine model; None without one
    users: rates are numbers of concurrent users, judged by their own requests: "found" is proved to fail at `upper` and hold at `lower`
    mix: the mean request at these rates; None if the background load or its tokens are unknown
    alone_per_s: the estimate, or the only known bound, in requests like the sweep's without background load; None without `mix`
    others_per_s: background load during the sweep; None without `mix`
    """

    slo: str
    verdict: Verdict
    lower: float | None = None
    estimate: float | None = None
    upper: float | None = None
    confidence: float = 0.9
    samples: int = 0
    fit: Literal["model", "fractions"] = "fractions"
    evidence: UndecidedEvents | None = None
    curve: tuple[tuple[float, float], ...] = ()
    mix: Mix | None = None
    alone_per_s: float | None = None
    others_per_s: float | None = None
    slope: float | None = None
    users: bool = False

    def text(self, load: float | None) -> str:
        """Format a rate or a number of users."""
        return f"{load or 0:.3g}/s" if not self.users else f"{load or 0:,.0f} user{'' if load == 1 else 's'}"

    @property
    def alone(self) -> "Capacity":
        """The capacity in requests like the sweep's, without background load; unchanged if that is unknown."""
        per_s = self.estimate or self.lower or self.upper
        if self.alone_per_s is None or not per_s:
            return self
        factor = self.alone_per_s / per_s
        lower, estimate, upper = (
            None if bound is None else factor * bound for bound in (self.lower, self.estimate, self.upper)
        )
        return replace(self, lower=lower, estimate=estimate, upper=upper, others_per_s=None, curve=())

    @property
    def log_error(self) -> float | None:
        """Standard error of ln(estimate); None without an interval."""
        if not self.lower or not self.estimate or not self.upper:
            return None
        return math.log(self.upper / self.lower) / 2 / Z[self.confidence]


def pooled(logs: Sequence[float], errors: Sequence[float]) -> tuple[float, float]:
    """Pool logs of estimates of one engine by several sweeps: (mean, standard error).

    A share COMMON_ERROR of their (harmonic) mean variance does not shrink, because all sweeps use the same model.
    """
    weights = [max(error, MIN_LOG_ERROR) ** -2 for error in errors]
    mean = sum(map(mul, weights, logs)) / sum(weights)
    variance = len(weights) / sum(weights)
    return mean, math.sqrt(variance * (COMMON_ERROR + (1 - COMMON_ERROR) / len(weights)))


def holds_at(levels: Sequence[RateEvents], budget: float) -> float | None:
    """The highest rate whose own events prove that at most a share `budget` is bad; None without one.

    Rates with too few events are left out. The others are tested in ascending order until one does not hold. With this fixed order
    the probability that any claim is wrong is at most `ERROR`, however many rates there are. An objective of 99% needs 346 events
    without a bad one.
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
    """The events at the rate closest to a decision; None without events."""
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
    """Yield the combined events of each rate in ascending order."""
    by_rate = attrgetter("rate_per_s")
    for _, same_rate in groupby(sorted(levels, key=by_rate), key=by_rate):
        yield reduce(RateEvents.plus, same_rate)


Z = {0.9: 1.645, 0.95: 1.960}  # half-widths of a normal interval, in standard errors


def agreed(one: Capacity, other: Capacity) -> Capacity:
    """Combine two estimates: their mean on a log scale, each weighted by its precision; `one` if the other is none.

    If they differ beyond their errors (Cochran's Q above 1), the variance between them is added to each (random effects:
    DerSimonian, Laird, "Meta-analysis in clinical trials", 1986), so that the interval of the mean covers their difference.
    """
    if one.estimate is None or other.estimate is None or one.log_error is None or other.log_error is None:
        return one
    a, b, variances = math.log(one.estimate), math.log(other.estimate), (one.log_error**2, other.log_error**2)
    between = max(0.0, ((a - b) ** 2 - sum(variances)) / 2)
    weights = [1 / (variance + between) for variance in variances]
    at = math.exp((weights[0] * a + weights[1] * b) / sum(weights))
    wide = math.exp(Z[one.confidence] / math.sqrt(sum(weights)))
    alone_per_s = one.alone_per_s and one.alone_per_s * at / one.estimate
    return replace(one, lower=at / wide, estimate=at, upper=at * wide, alone_per_s=alone_per_s)


def binding(capacities: tuple[Capacity, ...]) -> Capacity | None:
    """The capacity of the SLO that fails first: lowest estimate, or else upper bound, of the knee; None if unknown."""
    failing = [capacity for capacity in capacities if capacity.upper is not None]
    return min(failing, key=lambda capacity: capacity.estimate or capacity.upper or 0.0, default=None)


def combined(capacities: Sequence[Capacity]) -> Capacity | None:
    """The capacity for all SLOs together: that of the binding SLO, with the lowest of all lower bounds; None if unknown.

    If an SLO lacks data, only the upper bound is known, because that SLO may fail at a lower rate.
    """
    first = binding(tuple(capacities))
    if first is None or first.verdict == "below":
        return first
    if any(capacity.lower is None for capacity in capacities):
        return replace(first, lower=None, estimate=None)
    return replace(first, lower=min(capacity.lower for capacity in capacities if capacity.lower is not None))


def undecided(capacities: Sequence[Capacity]) -> list[str]:
    """Names of the SLOs without enough data."""
    return [capacity.slo for capacity in capacities if capacity.verdict == "not_enough_data"]


def words(capacities: Sequence[Capacity]) -> str:
    """The capacities as one sentence: each as a total, with the load of others that was there, and without it."""
    texts = []
    for capacity in capacities:
        beside, per_s = "", capacity.estimate or capacity.lower or capacity.upper or 0.0
        if capacity.others_per_s and capacity.alone_per_s:
            beside = f", beside {capacity.others_per_s:.3g}/s of others"
            if capacity.verdict != "between":
                added_per_s = max(0.0, per_s - capacity.others_per_s)
                beside += f": +{added_per_s:.3g}/s, alone {capacity.alone_per_s:.3g}/s"
        match capacity:
            case Capacity(slo, "found", float() as lower, _, float() as upper, samples=samples, users=True):
                texts.append(
                    f"{slo}: holds for {capacity.text(lower)} and fails for {capacity.text(upper)}, by {samples:,} requests"
                )
            case Capacity(slo, "found", float() as lower, float() as estimate, float() as upper):
                texts.append(
                    f"{slo}: estimated knee {estimate:.3g}/s, {capacity.confidence:.0%} interval {lower:.3g} to {upper:.3g}{beside}"
                )
            case Capacity(slo, "between", float() as lower, _, float() as upper, samples=samples):
                texts.append(f"{slo}: knee between {lower:.3g} and {upper:.3g}/s by {samples:,} requests, wide{beside}")
            case Capacity(slo, "not_reached", float() as lower):
                texts.append(f"{slo} holds at {capacity.text(lower)}{beside}; no knee was reached")
            case Capacity(slo, "below", upper=float() as upper, samples=samples):
                texts.append(
                    f"{slo}: fails at {capacity.text(upper)}, its knee is below, by {samples:,} requests{beside}"
                )
            case _:
                texts.append(f"{capacity.slo}: not enough data{lacking(capacity)}")
    return "; ".join(texts) or "nothing can be said"


def lacking(capacity: Capacity) -> str:
    """Describe the events so far and those needed, such as `: 127 events at 1/s, about 390 needed`."""
    if (evidence := capacity.evidence) is None:
        return ""
    bad = f", {evidence.bad:,} of them bad" if evidence.bad else ""
    needed = f"about {evidence.needed:,} needed" if evidence.needed is not None else "too many for the objective"
    noun = "event" if evidence.events == 1 else "events"
    return f": {evidence.events:,} {noun} at {capacity.text(evidence.rate_per_s)}{bad}, {needed}"
