"""Quantiles with their uncertainty: no number without its sample count and a distribution-free interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Samples below which a quantile is marked as not enough and no threshold may rest on it.
ENOUGH = {0.5: 20, 0.75: 40, 0.9: 100, 0.95: 200, 0.99: 1_000, 0.999: 100_000}


@dataclass(frozen=True, slots=True)
class Quantile:
    """Estimate and 95% interval, in the samples' unit; a bound is None where the samples cannot give one."""

    q: float
    estimate: float
    lower: float | None
    upper: float | None
    count: int

    @property
    def enough(self) -> bool:
        """There are enough samples to rest a judgement on."""
        return self.count >= ENOUGH.get(self.q, math.inf)


def quantiles(samples: Sequence[float], qs: Sequence[float] = tuple(ENOUGH)) -> list[Quantile]:
    """Quantiles of `samples`, empty if there are none.

    The estimate is the order statistic at ceil(q·n). The interval is (x_l, x_u) with ranks from the binomial distribution
    of the number of samples below the true quantile (Conover, Practical Nonparametric Statistics, 3.2), by its normal
    approximation with continuity correction; a rank outside 1..n is no bound.
    """
    ordered = sorted(samples)
    n = len(ordered)
    found: list[Quantile] = []
    for q in qs if n else ():
        spread = 1.96 * math.sqrt(n * q * (1 - q))
        low, high = math.floor(n * q - spread), math.ceil(n * q + spread) + 1
        found.append(
            Quantile(
                q,
                ordered[max(1, math.ceil(q * n)) - 1],
                ordered[low - 1] if 1 <= low <= n else None,
                ordered[high - 1] if 1 <= high <= n else None,
                n,
            )
        )
    return found
