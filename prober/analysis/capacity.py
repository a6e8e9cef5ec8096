"""What a target can carry, as an interval, and how much of it is left."""

from dataclasses import dataclass
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
