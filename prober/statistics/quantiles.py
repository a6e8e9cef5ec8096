"""Quantiles with sample count and distribution-free confidence interval."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

# With fewer samples a quantile is marked as uncertain and is not compared with a threshold.
MIN_SAMPLES_BY_QUANTILE = {0.5: 20, 0.75: 40, 0.9: 100, 0.95: 200, 0.99: 1_000, 0.999: 100_000}
REPORTED_QUANTILES = (*MIN_SAMPLES_BY_QUANTILE, 1.0)


def percentile_name(q: float) -> str:
    """Text such as `p99.9`; `max` for 1."""
    return "max" if q == 1 else f"p{q * 100:g}"


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


def quantiles(
    samples: Sequence[float], qs: Sequence[float] = tuple(MIN_SAMPLES_BY_QUANTILE), at_least: Sequence[float] = ()
) -> list[Quantile]:
    """Returns the known quantiles of `samples`, empty if there are none.

    at_least: lower bounds of further samples whose values are not known (right-censored). A quantile is known if it is below
        all of them, whatever these values are; `quantile_bounds` has the others
    The estimate is the order statistic at ceil(q·n). The interval is (x_l, x_u) with ranks from the binomial distribution
    of the number of samples below the true quantile (Conover, Practical Nonparametric Statistics, 3.2), by its normal
    approximation with continuity correction; a bound whose rank is outside 1..n, or not known, is None.
    """
    return [quantile for quantile, is_known in _quantiles(samples, qs, at_least) if is_known]


def quantile_bounds(samples: Sequence[float], qs: Sequence[float], at_least: Sequence[float]) -> list[Quantile]:
    """Returns the quantiles that are not known, with a lower bound as estimate; arguments as of `quantiles`."""
    return [quantile for quantile, is_known in _quantiles(samples, qs, at_least) if not is_known]


def _quantiles(samples: Sequence[float], qs: Sequence[float], at_least: Sequence[float]) -> list[tuple[Quantile, bool]]:
    """Returns (quantile, is known). A larger value of a censored sample makes no order statistic smaller."""
    ordered = sorted((*samples, *at_least))
    n = len(ordered)
    known = bisect_right(sorted(samples), min(at_least)) if at_least else n  # ranks up to this one
    results: list[tuple[Quantile, bool]] = []
    for q in qs if n else ():
        spread = 1.96 * math.sqrt(n * q * (1 - q))
        rank, low, high = max(1, math.ceil(q * n)), math.floor(n * q - spread), math.ceil(n * q + spread) + 1
        quantile = Quantile(
            q,
            ordered[rank - 1],
            ordered[low - 1] if 1 <= low <= n else None,
            ordered[high - 1] if 1 <= high <= known else None,
            n,
        )
        results.append((quantile, rank <= known))
    return results
