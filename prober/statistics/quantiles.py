"""Quantiles with sample count and distribution-free confidence interval."""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

Z_95 = 1.96
# With fewer samples a quantile is marked as uncertain and not compared with a threshold.
MIN_SAMPLES_BY_QUANTILE = {0.5: 20, 0.75: 40, 0.9: 100, 0.95: 200, 0.99: 1_000, 0.999: 100_000}
REPORTED_QUANTILES = (*MIN_SAMPLES_BY_QUANTILE, 1.0)


def percentile_name(q: float) -> str:
    """Text such as `p99.9`; `max` for 1."""
    return "max" if q == 1 else f"p{q * 100:g}"


@dataclass(frozen=True, slots=True)
class Quantile:
    """Estimate and 95% confidence interval, in the unit of the samples; a bound is None with too few samples."""

    q: float
    estimate: float
    lower: float | None
    upper: float | None
    count: int

    @property
    def has_enough_samples(self) -> bool:
        """True if there are enough samples to compare the estimate with a threshold."""
        return self.count >= MIN_SAMPLES_BY_QUANTILE.get(self.q, math.inf)


def quantiles(
    samples: Sequence[float], qs: Sequence[float] = tuple(MIN_SAMPLES_BY_QUANTILE), at_least: Sequence[float] = ()
) -> list[Quantile]:
    """Those of the quantiles `qs` that the samples determine; empty without samples.

    at_least: lower bounds of further samples with unknown values (right-censored). A quantile is determined only if it is below all of
    these; `quantile_bounds` returns the others
    The estimate is the order statistic at ceil(q·n). The interval is (x_l, x_u) with ranks from the binomial distribution
    of the number of samples below the true quantile (Conover, Practical Nonparametric Statistics, 3.2), by its normal approximation
    with continuity correction; a bound whose rank is outside 1..n, or whose value is not determined, is None.
    """
    return [quantile for quantile, is_known in _quantiles(samples, qs, at_least) if is_known]


def quantile_bounds(samples: Sequence[float], qs: Sequence[float], at_least: Sequence[float]) -> list[Quantile]:
    """The quantiles that `quantiles` omits, each with a lower bound as its estimate. Same arguments."""
    return [quantile for quantile, is_known in _quantiles(samples, qs, at_least) if not is_known]


def _quantiles(samples: Sequence[float], qs: Sequence[float], at_least: Sequence[float]) -> list[tuple[Quantile, bool]]:
    """(quantile, True if it is determined). Larger values of censored samples would lower no order statistic."""
    ordered = sorted((*samples, *at_least))
    n = len(ordered)
    known = bisect_right(sorted(samples), min(at_least)) if at_least else n  # the highest known rank
    results: list[tuple[Quantile, bool]] = []
    for q in qs if n else ():
        spread = Z_95 * math.sqrt(n * q * (1 - q))
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


def probability_of_at_least(count: int, trials: int, share: float) -> float:
    """Probability of `count` events or more in `trials`, each with probability `share` (0 <= share < 1)."""
    if count <= 0 or count > trials or share <= 0:
        return float(count <= 0)
    fewer, log_term, log_odds = 0.0, trials * math.log1p(-share), math.log(share) - math.log1p(-share)
    for events in range(count):
        fewer += math.exp(log_term)
        log_term += math.log((trials - events) / (events + 1)) + log_odds
    return max(0.0, 1.0 - fewer)


def share_bounds(count: int, trials: int, error: float) -> tuple[float, float]:
    """Lower and upper bound of the true share, each wrong with probability `error` at most (Clopper, Pearson, 1934).

    count: observed events; trials: above 0
    """
    lower = _largest_share(lambda share: probability_of_at_least(count, trials, share) <= error) if count else 0.0
    fewest = count + 1
    upper = _largest_share(lambda share: 1 - probability_of_at_least(fewest, trials, share) >= error)
    return lower, upper


def _largest_share(holds: Callable[[float], bool]) -> float:
    """Largest share, to one in 10⁶, for which `holds` is true. `holds` is true for all smaller shares."""
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def clustered_quantiles(
    clusters: Sequence[Sequence[float]], qs: Sequence[float] = tuple(MIN_SAMPLES_BY_QUANTILE)
) -> list[Quantile]:
    """Quantiles of all samples together; empty without samples.

    The values of one cluster, such as the gaps of one answer, are correlated: a stalled answer is one event, however many gaps it has,
    so an interval that assumes independent gaps is too narrow. Here the variance of the share of samples below the quantile is computed
    between clusters (Taylor's linearisation of a ratio: Woodruff, J. Am. Stat. Assoc. 47, 1952; Francisco and Fuller, Ann. Stat. 19,
    1991). It gives the effective sample size, with Student's t for the number of clusters (Korn and Graubard, Survey Methodology 24,
    1998), and the interval is that of as many independent samples.

    Clusters must be independent of each other; samples within one need not be. Estimate and count equal those of `quantiles`. The
    confidence interval is never narrower than that of `quantiles`; with a single cluster there is none.
    """
    rows = [sorted(cluster) for cluster in clusters if cluster]
    ordered = sorted(chain.from_iterable(rows))
    return [_quantile(q, ordered, rows) for q in qs] if ordered else []


def _quantile(q: float, ordered: Sequence[float], rows: Sequence[Sequence[float]]) -> Quantile:
    n = len(ordered)
    estimate = ordered[max(1, math.ceil(q * n)) - 1]
    if len(rows) < 2:
        return Quantile(q, estimate, None, None, n)
    effective = n if q >= 1 else _effective_sample_size(estimate, rows, n)
    spread = Z_95 * math.sqrt(effective * q * (1 - q))
    low, high = math.floor(effective * q - spread), math.ceil(effective * q + spread) + 1
    return Quantile(
        q,
        estimate,
        ordered[math.floor(low * n / effective) - 1] if low >= 1 else None,
        ordered[min(n, math.ceil(high * n / effective)) - 1] if high <= effective else None,
        n,
    )


def _effective_sample_size(value: float, rows: Sequence[Sequence[float]], n: int) -> float:
    """Number of independent samples that estimate the share of values up to `value` as precisely as these `n`."""
    clusters = len(rows)
    below = [bisect_right(row, value) for row in rows]
    share = sum(below) / n
    variance = clusters / (clusters - 1) * sum((b - share * len(row)) ** 2 for b, row in zip(below, rows, strict=True))
    independent = n * share * (1 - share)  # n² × the variance of a share of independent samples
    effective = n * independent / variance if variance and independent else clusters
    return min(float(n), effective * (Z_95 / student_t_975(clusters - 1)) ** 2)


def student_t_975(freedom: int) -> float:
    """97.5% quantile of Student's t (Abramowitz and Stegun 26.7.5; 3% too low at 2 degrees of freedom)."""
    return (
        Z_95
        + (Z_95**3 + Z_95) / (4 * freedom)
        + (5 * Z_95**5 + 16 * Z_95**3 + 3 * Z_95) / (96 * freedom**2)
        + (3 * Z_95**7 + 19 * Z_95**5 + 17 * Z_95**3 - 15 * Z_95) / (384 * freedom**3)
    )
