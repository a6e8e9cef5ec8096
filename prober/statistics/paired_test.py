"""Paired comparison of two sides: Wilcoxon's signed-rank test and the Hodges–Lehmann estimate, distribution-free.

Under the null hypothesis each difference has either sign with equal chance, so all sign patterns are equally likely. Up to
MAX_EXACT_PAIRS pairs are counted exactly, including ties (Hollander, Wolfe, Chicken, "Nonparametric Statistical
Methods", 3.1 to 3.3). Pairs must be independent of each other; the two values of a pair need not be. In an autocorrelated series pairs
are means of batches much longer than its autocorrelation time, for Student's t (Law and Carson, Operations Research 27, 1979).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from statistics import NormalDist, fmean, stdev

from prober.statistics.quantiles import probability_of_at_least

MAX_INDEPENDENT = 1.5  # autocorrelation time that independent values can show
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


def mcnemar_p_value(only_a: int, only_b: int) -> float:
    """Two-sided p-value of McNemar's exact test (Psychometrika 12, 1947), from the pairs in which only one side has an event."""
    return min(1.0, 2 * probability_of_at_least(max(only_a, only_b), only_a + only_b, 0.5))


def hodges_lehmann(differences: Sequence[float], confidence: float = 0.95) -> Effect:
    """Median of the means of all pairs of differences, including each with itself, and its confidence interval.

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


def student_p_value(differences: Sequence[float]) -> float:
    """Two-sided p-value of Student's t-test. differences: at least two, each the mean of many values"""
    deviation = stdev(differences) if len(differences) > 1 else 0.0
    if not deviation:
        return 1.0
    return max(0.0, _beyond(abs(fmean(differences)) / deviation * math.sqrt(len(differences)), len(differences) - 1))


def student_effect(differences: Sequence[float], confidence: float = 0.95) -> Effect:
    """Mean of the differences with Student's t confidence interval; a single difference has no interval."""
    mean = fmean(differences)
    if len(differences) < 2:
        return Effect(mean, None, None)
    half = student_quantile(confidence, len(differences) - 1) * stdev(differences) / math.sqrt(len(differences))
    return Effect(mean, mean - half, mean + half)


def student_quantile(confidence: float, freedom: int) -> float:
    """The t for which Student's t is between −t and t with probability `confidence`. freedom: degrees of freedom"""
    low, high = 0.0, 1e9
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _beyond(middle, freedom) > 1 - confidence else (low, middle)
    return high


def _beyond(t: float, freedom: int) -> float:
    """Probability that Student's t is not between −t and t (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    first = 1 if freedom % 2 == 0 else 2
    term = total = 1.0 if freedom % 2 == 0 else math.cos(angle)
    for step in range(first, freedom - 2, 2):
        term *= math.cos(angle) ** 2 * step / (step + 1)
        total += term
    if freedom % 2 == 0:
        return 1 - math.sin(angle) * total
    return 1 - 2 / math.pi * (angle + (math.sin(angle) * total if freedom > 1 else 0.0))


def autocorrelation_time(series: Sequence[float]) -> float:
    """Number of successive values with as much information as one independent value: 1 + 2 × the sum of the autocorrelations.

    The sum ends by Geyer's initial monotone sequence (Statistical Science 7, 1992): sums of two neighbouring autocorrelations are
    positive and do not rise. As the mean of the series is estimated too, each autocorrelation is too low by the result ÷ the length of
    the series, which is corrected (Priestley, "Spectral Analysis and Time Series", 5.3). A constant series has the result 1.
    """
    mean = fmean(series) if series else 0.0
    deviations = [value - mean for value in series]
    variance = sum(map(mul, deviations, deviations))
    time, smallest, lag = -1.0, math.inf, 0
    for lag in range(0, len(series) - 1, 2) if variance else ():
        pair = sum(sum(map(mul, deviations, deviations[shift:])) for shift in (lag, lag + 1)) / variance
        smallest = min(smallest, pair)
        if smallest <= 0:
            break
        time += 2 * smallest
    return max(1.0, time / max(0.5, 1 - 2 * lag / max(1, len(series))))


def independent_means(series: Sequence[float], least: int = 1) -> list[float]:
    """Means of batches of twice the autocorrelation time of a series, or `least`, without its first values that fill no batch."""
    time = autocorrelation_time(series)
    size = min(max(1, len(series)), max(least, math.ceil(2 * time) if time >= MAX_INDEPENDENT else 1))
    return [fmean(series[begin : begin + size]) for begin in range(len(series) % size, len(series), size)]


def holm_adjusted(ps: Sequence[float]) -> list[float]:
    """Adjust p-values for multiple tests: the family-wise error at adjusted p ≤ a is at most a (Holm, 1979)."""
    adjusted = [1.0] * len(ps)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        highest = max(highest, min(1.0, ps[index] * (len(ps) - rank)))
        adjusted[index] = highest
    return adjusted


def min_pairs(tests: int, error: float) -> int:
    """Smallest number n of pairs with which a difference can be significant: 2 ÷ 2^n · tests ≤ error."""
    return math.ceil(math.log2(2 * tests / error))


def _doubled_ranks(sizes: Sequence[float]) -> list[int]:
    """Ranks × 2, starting at 2. Ties share their mean rank, whose double is an integer."""
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
    """For each sum of positive ranks, count the sign patterns (of 2^n) with that sum, shape (sum of ranks + 1,)."""
    counts = [1]
    for rank in ranks:
        extended = counts + [0] * rank
        for total, count in enumerate(counts):
            extended[total + rank] += count
        counts = extended
    return counts


def _excluded_means(n: int, tail: float) -> int:
    """Rank, from either end, of the mean that bounds the interval: the largest c with P(sum of ranks < c) ≤ tail.

    0 if there is no interval.
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
