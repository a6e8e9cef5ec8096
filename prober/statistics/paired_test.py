"""Paired comparison of two sides: Wilcoxon's signed-rank test and the Hodges–Lehmann estimate, distribution-free.

Under the null hypothesis each difference has either sign with equal chance, so all sign patterns are equally likely. Up to
MAX_EXACT_PAIRS pairs that distribution is counted exactly, including ties (Hollander, Wolfe, Chicken, "Nonparametric Statistical
Methods", 3.1 to 3.3). Pairs must be independent of each other; the two values of a pair need not be.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

MAX_EXACT_PAIRS = 50  # exact counting takes n³ steps; above, a normal approximation is used


@dataclass(frozen=True, slots=True)
class Effect:
    """Hodges–Lehmann estimate of the difference with confidence interval, in the unit of the differences.

    lower, upper: None if there are too few pairs for an interval
    """

    estimate: float
    lower: float | None
    upper: float | None


def wilcoxon_p_value(differences: Sequence[float]) -> float:
    """Returns the two-sided p-value of Wilcoxon's signed-rank test.

    Zero differences are dropped, as in Wilcoxon's paper; ties share their mean rank. Returns 1.0 if no difference remains.
    """
    nonzero = [difference for difference in differences if difference]
    if not nonzero:
        return 1.0
    doubled = _doubled_ranks([abs(difference) for difference in nonzero])
    positive = sum(rank for rank, difference in zip(doubled, nonzero, strict=True) if difference > 0)
    smaller = min(positive, sum(doubled) - positive)
    if len(nonzero) <= MAX_EXACT_PAIRS:
        patterns: int = 2 ** len(nonzero)
        return min(1.0, 2 * sum(_sign_pattern_counts(doubled)[: smaller + 1]) / patterns)
    # In undoubled ranks: mean n(n+1)/4, variance Σ rank²/4 (n(n+1)(2n+1)/24 − Σ(t³−t)/48 for ties of t), ½ for continuity.
    mean, variance = sum(doubled) / 4, sum(rank * rank for rank in doubled) / 16
    return min(1.0, 2 * NormalDist().cdf((smaller / 2 - mean + 0.5) / math.sqrt(variance)))


def hodges_lehmann(differences: Sequence[float], confidence: float = 0.95) -> Effect:
    """Returns the median of the means of all pairs of differences, including each with itself, and its confidence interval.

    The ends of the interval are order statistics of these means; coverage is `confidence` or more (approximately, with ties).
    Raises ValueError if `differences` is empty.
    """
    if not differences:
        raise ValueError("no differences: no pair was measured on both sides")
    n = len(differences)
    means = sorted((differences[i] + differences[j]) / 2 for i in range(n) for j in range(i, n))
    middle = len(means) // 2
    estimate = means[middle] if len(means) % 2 else (means[middle - 1] + means[middle]) / 2
    rank = _excluded_means(n, (1 - confidence) / 2)
    return Effect(estimate, means[rank - 1], means[-rank]) if rank else Effect(estimate, None, None)


def holm_adjusted(ps: Sequence[float]) -> list[float]:
    """Returns p-values adjusted for multiple testing: the family-wise error at adjusted p ≤ a is at most a (Holm, 1979)."""
    adjusted = [1.0] * len(ps)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        highest = max(highest, min(1.0, ps[index] * (len(ps) - rank)))
        adjusted[index] = highest
    return adjusted


def min_pairs(tests: int, error: float) -> int:
    """Returns the fewest pairs with which any difference can be significant: 2 ÷ 2^n · tests ≤ error."""
    return math.ceil(math.log2(2 * tests / error))


def _doubled_ranks(sizes: Sequence[float]) -> list[int]:
    """Returns ranks × 2, starting at 2. Ties share their mean rank, whose double is an integer."""
    order = sorted(range(len(sizes)), key=lambda i: sizes[i])
    ranks = [0] * len(sizes)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and sizes[order[end + 1]] == sizes[order[start]]:
            end += 1
        for place in range(start, end + 1):
            ranks[order[place]] = start + end + 2
        start = end + 1
    return ranks


def _sign_pattern_counts(ranks: Sequence[int]) -> list[int]:
    """Counts, for each sum of positive ranks, the sign patterns (of 2^n) that have it, shape (sum of ranks + 1,)."""
    counts = [1]
    for rank in ranks:
        extended = counts + [0] * rank
        for total, count in enumerate(counts):
            extended[total + rank] += count
        counts = extended
    return counts


def _excluded_means(n: int, tail: float) -> int:
    """Returns the rank, from either end, of the mean that bounds the interval: the largest c with P(sum of ranks < c) ≤ tail.

    0: there is no interval.
    """
    if n > MAX_EXACT_PAIRS:
        deviation = math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
        return max(0, math.floor(n * (n + 1) / 4 + NormalDist().inv_cdf(tail) * deviation))
    counts, allowed = _sign_pattern_counts(range(1, n + 1)), tail * 2**n
    rank, below = 0, 0
    while rank < len(counts) and below + counts[rank] <= allowed:
        below += counts[rank]
        rank += 1
    return rank
