"""Quantiles with sample count and distribution-free confidence interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

# With fewer samples a quantile is marked as uncertain and is not compared with a threshold.
MIN_SAMPLES_BY_QUANTILE = {0.5: 20, 0.75: 40, 0.9: 100, 0.95: 200, 0.99: 1_000, 0.999: 100_000}


@dataclass(frozen=True, slots=True)
class Quantile:
    """Estimate and 95% confidence interval, in the unit of the samples; a bound is None if there are too few samples for it."""

    q: float
    estimate: float
    lower: float | None
    upper: float | None
    count: int

    @property
    def has_enough_samples(self) -> bool:
        """There are enough samples to compare the estimate with a threshold."""
        return self.count >= MIN_SAMPLES_BY_QUANTILE.get(self.q, math.inf)


def quantiles(samples: Sequence[float], qs: Sequence[float] = tuple(MIN_SAMPLES_BY_QUANTILE)) -> list[Quantile]:
    """Returns the quantiles of `samples`, empty if there are none.

    The estimate is the order statistic at ceil(q·n). The interval is (x_l, x_u) with ranks from the binomial distribution
    of the number of samples below the true quantile (Conover, Practical Nonparametric Statistics, 3.2), by its normal
    approximation with continuity correction; a bound whose rank is outside 1..n is None.
    """
    ordered = sorted(samples)
    n = len(ordered)
    results: list[Quantile] = []
    for q in qs if n else ():
        spread = 1.96 * math.sqrt(n * q * (1 - q))
        low, high = math.floor(n * q - spread), math.ceil(n * q + spread) + 1
        results.append(
            Quantile(
                q,
                ordered[max(1, math.ceil(q * n)) - 1],
                ordered[low - 1] if 1 <= low <= n else None,
                ordered[high - 1] if 1 <= high <= n else None,
                n,
            )
        )
    return results
