"""Quantiles of clustered samples, such as the gaps of one answer, whose values are correlated.

A stalled answer is one event however many gaps it has, so an interval that assumes independent gaps is too narrow. Here the
variance of the share below the quantile is computed between clusters (Taylor's linearisation of a ratio: Woodruff, J. Am. Stat.
Assoc. 47, 1952; Francisco and Fuller, Ann. Stat. 19, 1991). It gives the effective sample size, with Student's t for the number
of clusters (Korn and Graubard, Survey Methodology 24, 1998), and the interval is that of so many independent samples.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import chain

from prober.statistics.quantiles import MIN_SAMPLES_BY_QUANTILE, Quantile

Z_95 = 1.96


def clustered_quantiles(
    clusters: Sequence[Sequence[float]], qs: Sequence[float] = tuple(MIN_SAMPLES_BY_QUANTILE)
) -> list[Quantile]:
    """Returns quantiles of all samples together, empty if there are none.

    Clusters must be independent of each other; samples within one need not be. Estimate and count equal those of `quantiles`.
    The interval is never narrower than there; with one cluster only there is none.
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
    """Returns the number of independent samples that estimate the share of values up to `value` as precisely as these `n`."""
    clusters = len(rows)
    below = [bisect_right(row, value) for row in rows]
    share = sum(below) / n
    variance = clusters / (clusters - 1) * sum((b - share * len(row)) ** 2 for b, row in zip(below, rows, strict=True))
    independent = n * share * (1 - share)  # n² × the variance of a share of independent samples
    effective = n * independent / variance if variance and independent else clusters
    return min(float(n), effective * (Z_95 / student_t_975(clusters - 1)) ** 2)


def student_t_975(freedom: int) -> float:
    """Returns the 97.5% quantile of Student's t (Abramowitz and Stegun 26.7.5; 3% too low at 2 degrees of freedom)."""
    return (
        Z_95
        + (Z_95**3 + Z_95) / (4 * freedom)
        + (5 * Z_95**5 + 16 * Z_95**3 + 3 * Z_95) / (96 * freedom**2)
        + (3 * Z_95**7 + 19 * Z_95**5 + 17 * Z_95**3 - 15 * Z_95) / (384 * freedom**3)
    )
