"""Quantiles of samples that come in clusters, such as the gaps of one answer: intervals that know that such gaps are alike.

A stalled answer is one event however many gaps it has, so an interval that takes gaps for independent is too narrow. Here the
variance of the share below the quantile is taken between clusters (Taylor's linearisation of a ratio: Woodruff, J. Am. Stat.
Assoc. 47, 1952; Francisco and Fuller, Ann. Stat. 19, 1991). It says as how many independent samples they count, with Student's
t for the number of clusters (Korn and Graubard, Survey Methodology 24, 1998), and the interval is that of so many.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import chain

from prober.statistics.quantiles import ENOUGH, Quantile

Z = 1.96


def clustered_quantiles(clusters: Sequence[Sequence[float]], qs: Sequence[float] = tuple(ENOUGH)) -> list[Quantile]:
    """Quantiles of all samples together, empty if there are none; clusters are independent of each other, samples in one are not.

    The estimate and the count are those of `quantiles`. The interval is never narrower; of one cluster alone there is none.
    """
    rows = [sorted(each) for each in clusters if each]
    ordered = sorted(chain.from_iterable(rows))
    return [_quantile(q, ordered, rows) for q in qs] if ordered else []


def _quantile(q: float, ordered: Sequence[float], rows: Sequence[Sequence[float]]) -> Quantile:
    n = len(ordered)
    estimate = ordered[max(1, math.ceil(q * n)) - 1]
    if len(rows) < 2:
        return Quantile(q, estimate, None, None, n)
    like = n if q >= 1 else _effective(estimate, rows, n)
    spread = Z * math.sqrt(like * q * (1 - q))
    low, high = math.floor(like * q - spread), math.ceil(like * q + spread) + 1
    return Quantile(
        q,
        estimate,
        ordered[math.floor(low * n / like) - 1] if low >= 1 else None,
        ordered[min(n, math.ceil(high * n / like)) - 1] if high <= like else None,
        n,
    )


def _effective(value: float, rows: Sequence[Sequence[float]], n: int) -> float:
    """As how many independent samples these `n` tell the share that is at most `value`."""
    clusters = len(rows)
    below = [bisect_right(row, value) for row in rows]
    share = sum(below) / n
    variance = clusters / (clusters - 1) * sum((b - share * len(row)) ** 2 for b, row in zip(below, rows, strict=True))
    alone = n * share * (1 - share)  # n² times the variance of a share of independent samples
    like = n * alone / variance if variance and alone else clusters
    return min(float(n), like * (Z / _student(clusters - 1)) ** 2)


def _student(freedom: int) -> float:
    """The 97.5% quantile of Student's t (Abramowitz and Stegun 26.7.5; 3% too low at 2 degrees of freedom, exact in the limit)."""
    return (
        Z
        + (Z**3 + Z) / (4 * freedom)
        + (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * freedom**2)
        + (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / (384 * freedom**3)
    )
