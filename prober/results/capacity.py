"""The capacity of a target as an interval, and the headroom below it."""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby
from operator import attrgetter, mul
from typing import Literal

from prober.statistics.sequential_test import ERROR, Observations, evidence, log_evidence_below, min_observations

Verdict = Literal["found", "between", "not_reached", "below", "not_enough_data"]


MIN_RATE_S = 20.0  # a shorter time does not show that a rate holds: queues grow slowly
ERROR_BEYOND = 0.25  # of a capacity in logs, per log of tokens beyond the computed shapes
MIN_LOG_ERROR = 1e-6  # of an estimate whose interval has no width
COMMON_ERROR = 0.7  # share of the variance that is common to all sweeps of an engine
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
class ShapeCapacity:
    """The rate of requests of one shape up to which an SLO holds, on an engine without other load.

    The SLO is judged on requests of the sweep's shape, a few of which are then sent too.
    prompt_tokens, output_tokens: mean tokens of a request; cached prompt tokens are not counted
    per_s: an estimate, or the only known bound of `Capacity`
    log_error: standard error of ln(per_s)
    """

    prompt_tokens: float
    output_tokens: float
    per_s: float
    log_error: float


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
    users: rates are numbers of concurrent users, judged by their own requests: "found" is proved to fail at `upper` and hold at `lower`
    own: capacity in requests of the sweep's shape, without background load; None if that load is unknown
    shapes: the same for a grid of other shapes, sorted by prompt and output tokens; empty if unknown
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
    own: ShapeCapacity | None = None
    shapes: tuple[ShapeCapacity, ...] = ()
    users: bool = False

    def text(self, load: float | None) -> str:
        """Format a rate or a number of users."""
        return f"{load or 0:.3g}/s" if not self.users else f"{load or 0:,.0f} user{'' if load == 1 else 's'}"

    def of_shape(self, shape: ShapeCapacity) -> "Capacity":
        """The capacity in requests of this shape, on an engine without other load."""
        factor = math.exp(Z[self.confidence] * shape.log_error)
        is_modelled = self.fit == "model"
        return replace(
            self,
            lower=shape.per_s / factor if is_modelled or self.lower is not None else None,
            estimate=shape.per_s if is_modelled or self.estimate is not None else None,
            upper=shape.per_s * factor if is_modelled or self.upper is not None else None,
            curve=(),
        )

    def at(self, prompt_tokens: float, output_tokens: float) -> ShapeCapacity | None:
        """The capacity in requests of these mean tokens; None if unknown.

        Logarithms are interpolated, because a request costs about a power of its tokens. Beyond the largest of `shapes` the cost
        is proportional to the tokens, and the error grows with the distance; smaller requests count as the smallest.
        """
        if not self.shapes:
            return None
        prompts, outputs = (sorted({getattr(shape, name) for shape in self.shapes}) for name in _AXES)
        x, at_x, x_ratio = _place(prompts, prompt_tokens)
        y, at_y, y_ratio = _place(outputs, output_tokens)
        corners = [self.shapes[(x + i) * len(outputs) + y + j] for i in (0, 1) for j in (0, 1)]
        weights = [(at_x if i else 1 - at_x) * (at_y if j else 1 - at_y) for i in (0, 1) for j in (0, 1)]
        log_per_s = sum(weight * math.log(corner.per_s) for weight, corner in zip(weights, corners, strict=True))
        near = max(zip(weights, corners, strict=True), key=lambda pair: pair[0])[1]
        beyond = abs(math.log(x_ratio)) + abs(math.log(y_ratio))
        log_error = math.hypot(near.log_error, ERROR_BEYOND * beyond)
        return ShapeCapacity(prompt_tokens, output_tokens, math.exp(log_per_s) / max(1.0, x_ratio, y_ratio), log_error)


_AXES = ("prompt_tokens", "output_tokens")


def _place(axis: Sequence[float], value: float) -> tuple[int, float, float]:
    """Locate a value on a log axis: (index, fraction towards the next point, ratio to the end of the axis if beyond)."""
    inside = min(max(value, axis[0]), axis[-1])
    index = min(bisect_right(axis, inside) - 1, len(axis) - 2)
    share = math.log(inside / axis[index]) / math.log(axis[index + 1] / axis[index])
    return index, share, value / inside if value > 0 else 1.0


def _random_effects(logs: Sequence[float], errors: Sequence[float]) -> tuple[float, float, bool]:
    """Combine estimates with standard errors: (mean, its standard error, True if they differ beyond their errors).

    Random effects (DerSimonian, Laird, "Meta-analysis in clinical trials", 1986): the excess variance is added to each.
    """
    weights = [max(error, MIN_LOG_ERROR) ** -2 for error in errors]
    mean = sum(map(mul, weights, logs)) / sum(weights)
    if len(logs) == 1:
        return logs[0], 1 / math.sqrt(weights[0]), False
    excess = sum(weight * (log - mean) ** 2 for weight, log in zip(weights, logs, strict=True)) - (len(weights) - 1)
    if excess > 0:
        between = excess / (sum(weights) - sum(weight**2 for weight in weights) / sum(weights))
        weights = [1 / (1 / weight + between) for weight in weights]
        mean = sum(map(mul, weights, logs)) / sum(weights)
    return mean, 1 / math.sqrt(sum(weights)), excess > 0


def pooled(capacities: Sequence[ShapeCapacity]) -> ShapeCapacity:
    """Pool the capacities of several sweeps of an engine for one shape.

    A share COMMON_ERROR of the smallest variance does not shrink: all sweeps use the same model.
    """
    errors = [capacity.log_error for capacity in capacities]
    mean, error, _ = _random_effects([math.log(capacity.per_s) for capacity in capacities], errors)
    variance = COMMON_ERROR * min(errors) ** 2 + (1 - COMMON_ERROR) * error**2
    return replace(capacities[0], per_s=math.exp(mean), log_error=math.sqrt(variance))


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
    """Combine two estimates: `one` unchanged if they agree, because agreement does not narrow it, else their mean on a log scale.

    The confidence interval of the mean covers their difference.
    """
    pairs = [_log(one), _log(other)]
    if pairs[0] is None or pairs[1] is None:
        return one
    (a, s_a), (b, s_b) = pairs[0], pairs[1]
    mean, log_error, is_apart = _random_effects((a, b), (s_a, s_b))
    if not is_apart:
        return one
    at, wide = math.exp(mean), Z[one.confidence] * log_error

    def moved(shape: ShapeCapacity) -> ShapeCapacity:
        of_shape = math.sqrt(max(0.0, shape.log_error**2 - s_a**2))
        return replace(shape, per_s=shape.per_s * at / math.exp(a), log_error=math.hypot(of_shape, log_error))

    return replace(
        one,
        lower=at * math.exp(-wide),
        estimate=at,
        upper=at * math.exp(wide),
        own=moved(one.own) if one.own is not None else None,
        shapes=tuple(map(moved, one.shapes)),
    )


def _log(capacity: Capacity) -> tuple[float, float] | None:
    """(ln of the estimate, its standard error); None without a confidence interval."""
    match capacity:
        case Capacity(lower=float() as lower, estimate=float() as estimate, upper=float() as upper) if lower > 0:
            return math.log(estimate), math.log(upper / lower) / 2 / Z[capacity.confidence]
    return None


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


def headroom(demand_per_s: float, capacity_per_s: float) -> float:
    """Unused share of the capacity, 1 − demand ÷ capacity; negative under overload. Raises ValueError."""
    if capacity_per_s <= 0 or demand_per_s < 0:
        raise ValueError(
            f"a demand of {demand_per_s}/s and a capacity of {capacity_per_s}/s: need a demand of 0 or more and a capacity above 0"
        )
    return 1 - demand_per_s / capacity_per_s


def words(capacities: Sequence[Capacity]) -> str:
    """The capacities as one sentence."""
    texts = []
    for capacity in capacities:
        match capacity:
            case Capacity(slo, "found", float() as lower, _, float() as upper, samples=samples, users=True):
                texts.append(
                    f"{slo}: holds for {capacity.text(lower)} and fails for {capacity.text(upper)}, by {samples:,} requests"
                )
            case Capacity(slo, "found", float() as lower, float() as estimate, float() as upper):
                texts.append(
                    f"{slo}: estimated knee {estimate:.3g}/s, {capacity.confidence:.0%} interval {lower:.3g} to {upper:.3g}"
                )
            case Capacity(slo, "between", float() as lower, _, float() as upper, samples=samples):
                texts.append(f"{slo}: knee between {lower:.3g} and {upper:.3g}/s by {samples:,} requests, wide")
            case Capacity(slo, "not_reached", float() as lower):
                texts.append(f"{slo} holds at {capacity.text(lower)}; no knee was reached")
            case Capacity(slo, "below", upper=float() as upper, samples=samples):
                texts.append(f"{slo}: knee below {capacity.text(upper)} by {samples:,} requests")
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
