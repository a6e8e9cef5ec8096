"""What a target can carry, as an interval, and how much of it is left."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

Verdict = Literal["found", "not_reached", "below_lowest", "not_enough_data"]


@dataclass(frozen=True, slots=True)
class Capacity:
    """The rate in all (load already there + load added) up to which an SLO holds, in requests of the sweep's shape per second.

    found: the interval holds the knee. not_reached: it held at the highest rate, `lower` is that, there is no estimate.
    below_lowest: it failed at the lowest rate, `upper` is that. not_enough_data: nothing can be said.
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


Z = {0.9: 1.645, 0.95: 1.960}  # of a normal interval


def agreed(one: Capacity, other: Capacity) -> Capacity:
    """Two answers to one question as one: `one` as it is where they agree, else between them and as wide as they differ.

    Random effects of two studies on log rates (DerSimonian, Laird, "Meta-analysis in clinical trials", 1986): what they differ
    by beyond their own errors, τ² = ((a − b)² − s_a² − s_b²) ÷ 2, is in both, and the mean weighs each by 1 ÷ (s² + τ²). Where
    τ² is 0 the better one stands: that the other says the same makes it no surer.
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
    """Log of the estimate and its standard error."""
    match capacity:
        case Capacity(lower=float() as lower, estimate=float() as estimate, upper=float() as upper) if lower > 0:
            return math.log(estimate), math.log(upper / lower) / 2 / Z[capacity.confidence]
    return None


def binding(capacities: tuple[Capacity, ...]) -> Capacity | None:
    """The SLO that gives way first: the lowest estimate found, or one that failed at the lowest rate; None if none is known."""
    failed = [each for each in capacities if each.verdict == "below_lowest"]
    found = [each for each in capacities if each.estimate is not None]
    return failed[0] if failed else min(found, key=lambda each: each.estimate or 0.0) if found else None


def headroom(demand_per_s: float, capacity_per_s: float) -> float:
    """Share of the capacity that is free, below 0 where there is more load than it: 1 − demand ÷ capacity. Raises ValueError."""
    if capacity_per_s <= 0 or demand_per_s < 0:
        raise ValueError(f"a demand of {demand_per_s}/s and a capacity of {capacity_per_s}/s: there is no such target")
    return 1 - demand_per_s / capacity_per_s


def words(capacities: Sequence[Capacity]) -> str:
    """What was found, for people."""
    told = []
    for each in capacities:
        match each.verdict, each.lower, each.estimate, each.upper:
            case "found", float() as lower, float() as estimate, float() as upper:
                told.append(f"{each.slo} holds up to {estimate:.3g}/s ({lower:.3g} to {upper:.3g})")
            case "not_reached", float() as lower, _, _:
                told.append(f"{each.slo} holds at {lower:.3g}/s and was not pushed further")
            case "below_lowest", _, _, float() as upper:
                told.append(f"{each.slo} does not hold at {upper:.3g}/s, the lowest rate")
            case _:
                told.append(f"{each.slo}: not enough data")
    return "; ".join(told) or "nothing can be said"
