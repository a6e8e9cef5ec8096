"""Two sides measured in pairs: is there a difference, and how large? Wilcoxon's signed ranks, no distribution assumed.

Under "no difference" each pair's difference is as likely the other way round, so every pattern of signs is equally likely: that
distribution is counted, not approximated, ties and all, up to EXACT pairs (Hollander, Wolfe, Chicken, "Nonparametric Statistical
Methods", 3.1 to 3.3). Pairs must be independent of each other; what happens within one does not matter.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

EXACT = 50  # pairs up to which all patterns of signs are counted; n³ steps


@dataclass(frozen=True, slots=True)
class Effect:
    """Hodges–Lehmann's estimate of the difference with its interval, in the differences' unit. None: too few pairs for one."""

    estimate: float
    lower: float | None
    upper: float | None


def signed_rank(differences: Sequence[float]) -> float:
    """The chance, with no difference, of ranks at least so one-sided: Wilcoxon's two-sided p.

    Pairs without a difference are left out, as Wilcoxon did; equal ones share their mean rank. 1.0 if none is left.
    """
    kept = [each for each in differences if each]
    if not kept:
        return 1.0
    doubled = _doubled_ranks([abs(each) for each in kept])
    positive = sum(rank for rank, each in zip(doubled, kept, strict=True) if each > 0)
    smaller = min(positive, sum(doubled) - positive)
    if len(kept) <= EXACT:
        patterns: int = 2 ** len(kept)
        return min(1.0, 2 * sum(_ways(doubled)[: smaller + 1]) / patterns)
    # In single ranks: mean n(n+1)/4, variance Σ rank²/4 (that is n(n+1)(2n+1)/24 less Σ(t³−t)/48 for ties of t), ½ for continuity.
    mean, variance = sum(doubled) / 4, sum(rank * rank for rank in doubled) / 16
    return min(1.0, 2 * NormalDist().cdf((smaller / 2 - mean + 0.5) / math.sqrt(variance)))


def hodges_lehmann(differences: Sequence[float], confidence: float = 0.95) -> Effect:
    """Median of the means of all pairs of differences (each with itself too); the interval are the differences not refuted.

    Its ends are order statistics of those means; coverage is `confidence` or more (with ties, about). Raises ValueError for none.
    """
    if not differences:
        raise ValueError("no differences: nothing was measured on both sides")
    n = len(differences)
    means = sorted((differences[i] + differences[j]) / 2 for i in range(n) for j in range(i, n))
    middle = len(means) // 2
    estimate = means[middle] if len(means) % 2 else (means[middle - 1] + means[middle]) / 2
    out = _left_out(n, (1 - confidence) / 2)
    return Effect(estimate, means[out - 1], means[-out]) if out else Effect(estimate, None, None)


def holm(ps: Sequence[float]) -> list[float]:
    """Adjusted for being several: claims at adjusted p ≤ a err, in any of them, with a chance of at most a (Holm, 1979)."""
    adjusted = [1.0] * len(ps)
    highest = 0.0
    for place, index in enumerate(sorted(range(len(ps)), key=lambda each: ps[each])):
        highest = max(highest, min(1.0, ps[index] * (len(ps) - place)))
        adjusted[index] = highest
    return adjusted


def least_pairs(tests: int, error: float) -> int:
    """Pairs without which no difference, however large, can be claimed: 2 ÷ 2^n · tests ≤ error."""
    return math.ceil(math.log2(2 * tests / error))


def _doubled_ranks(sizes: Sequence[float]) -> list[int]:
    """Twice the rank of each, from 2; of equal ones the mean, which doubled is whole."""
    order = sorted(range(len(sizes)), key=lambda each: sizes[each])
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


def _ways(ranks: Sequence[int]) -> list[int]:
    """In how many of the 2^n patterns of signs the positive ranks sum to each value, shape (sum of ranks + 1,)."""
    ways = [1]
    for rank in ranks:
        longer = ways + [0] * rank
        for total, count in enumerate(ways):
            longer[total + rank] += count
        ways = longer
    return ways


def _left_out(n: int, tail: float) -> int:
    """How many means at each end to count in to the interval's end: the largest c with P(sum of ranks < c) ≤ tail; 0: none."""
    if n > EXACT:
        deviation = math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
        return max(0, math.floor(n * (n + 1) / 4 + NormalDist().inv_cdf(tail) * deviation))
    ways, allowed = _ways(range(1, n + 1)), tail * 2**n
    count, below = 0, 0
    while count < len(ways) and below + ways[count] <= allowed:
        below += ways[count]
        count += 1
    return count
