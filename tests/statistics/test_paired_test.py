"""Wilcoxon's test against an enumeration of sign patterns, Hodges–Lehmann against its definition, Holm by hand."""

import math
from itertools import product
from math import comb
from random import Random
from statistics import fmean, median, stdev

import pytest

from prober.statistics import paired_test
from prober.statistics.paired_test import (
    MAX_EXACT_PAIRS,
    autocorrelation_time,
    hodges_lehmann,
    holm_adjusted,
    mcnemar_p_value,
    min_pairs,
    student_effect,
    student_p_value,
    wilcoxon_p_value,
)
from tests.known import known


def mean_ranks(sizes: list[float]) -> list[float]:
    """Ranks from 1; ties share their mean rank."""
    return [sum(x < size for x in sizes) + (sum(x == size for x in sizes) + 1) / 2 for size in sizes]


def enumerated(differences: list[float]) -> float:
    """p-value by definition: the share of the 2^n sign patterns at least as far from the middle."""
    kept = [each for each in differences if each]
    ranks = mean_ranks([abs(each) for each in kept])
    middle = sum(ranks) / 2
    seen = abs(sum(rank for rank, each in zip(ranks, kept, strict=True) if each > 0) - middle)
    patterns = list(product((0, 1), repeat=len(kept)))
    far = sum(abs(sum(r * s for r, s in zip(ranks, signs, strict=True)) - middle) >= seen for signs in patterns)
    return far / len(patterns)


@pytest.mark.parametrize(
    "differences",
    [
        [1.0, 2.0, 3.0, 4.0, 5.0],
        [1.0, -2.0, 3.0, -4.0, 5.0, 6.0, 7.0],
        [1.0, 1.0, -1.0, 2.0, 2.0, 2.0, -3.0, 0.0, 0.0],  # ties and zeros
        [-0.1, 0.1, -0.1, 0.1],
        [2.5, 2.5, 2.5, 2.5, 2.5, 2.5, -1.0, 0.5],
    ],
)
def test_small_samples_are_exact(differences: list[float]) -> None:
    """The p-value equals the enumeration of all sign patterns, with ties and zeros."""
    assert wilcoxon_p_value(differences) == pytest.approx(enumerated(differences))
    assert wilcoxon_p_value([-each for each in differences]) == pytest.approx(wilcoxon_p_value(differences))


def test_published_values() -> None:
    """Six of six positive: 2/64. A rank sum of 8 of ten pairs: p = 0.0488, the tabulated 5% value. No difference: 1."""
    assert wilcoxon_p_value([1, 2, 3, 4, 5, 6]) == 2 / 64
    assert wilcoxon_p_value([-1, -2, -5, 3, 4, 6, 7, 8, 9, 10]) == pytest.approx(0.0488, abs=5e-5)
    assert wilcoxon_p_value([0.0, 0.0]) == 1
    assert wilcoxon_p_value([]) == 1


@pytest.mark.parametrize("tied", [False, True])
def test_the_approximation_agrees_with_the_exact_count(monkeypatch: pytest.MonkeyPatch, tied: bool) -> None:
    """For 50 pairs, with and without ties, p agrees within 8% and the ends of the interval within 0.01."""
    rng = Random(3)
    for shift in (0.1, 0.3, 0.5):
        draws = [rng.gauss(shift, 1) for _ in range(MAX_EXACT_PAIRS)]
        many = [round(each, 1) for each in draws] if tied else draws
        exact, interval = wilcoxon_p_value(many), hodges_lehmann(draws)
        with monkeypatch.context() as patched:
            patched.setattr(paired_test, "MAX_EXACT_PAIRS", 10)
            assert wilcoxon_p_value(many) == pytest.approx(exact, rel=0.08, abs=5e-4)
            approximate = hodges_lehmann(draws)
        assert approximate.lower == pytest.approx(interval.lower, abs=0.01)
        assert approximate.upper == pytest.approx(interval.upper, abs=0.01)


def test_no_difference_gives_uniform_p() -> None:
    """Under the null hypothesis, over 2,000 samples of twelve, P(p ≤ a) ≤ a."""
    rng = Random(7)
    ps = [wilcoxon_p_value([rng.gauss(0, 1) for _ in range(12)]) for _ in range(2_000)]
    for level in (0.01, 0.05, 0.2):
        assert sum(p <= level for p in ps) / 2_000 <= level + 3 * math.sqrt(level / 2_000)


def test_hodges_lehmann_is_the_median_of_means() -> None:
    """The interval of ten pairs excludes eight means at each end (exactly 95.1%); five pairs have no interval."""
    draws = [1.0, 4.0, 2.0, 8.0, 5.0, 7.0, 3.0, 6.0, 10.0, 9.0]
    means = sorted((draws[i] + draws[j]) / 2 for i in range(10) for j in range(i, 10))
    found = hodges_lehmann(draws)
    assert (found.estimate, found.lower, found.upper) == (median(means), means[8], means[-9])
    assert hodges_lehmann(draws[:5]).lower is None
    assert hodges_lehmann(draws[:6]).lower == 1.0
    with pytest.raises(ValueError, match="no pair was measured"):
        hodges_lehmann([])


@pytest.mark.parametrize("count", [10, MAX_EXACT_PAIRS + 10])
def test_the_interval_covers(count: int) -> None:
    """The interval contains the true shift in 95% of the samples of a skewed distribution made symmetric by pairing."""
    rng = Random(count)
    covered = 0
    for _ in range(600 if count <= MAX_EXACT_PAIRS else 200):
        draws = [0.3 + rng.expovariate(1) - rng.expovariate(1) for _ in range(count)]
        found = hodges_lehmann(draws)
        covered += known(found.lower) <= 0.3 <= known(found.upper)
    total = 600 if count <= MAX_EXACT_PAIRS else 200
    assert covered / total >= 0.95 - 2.5 * math.sqrt(0.0475 / total)


def test_holm_by_hand() -> None:
    """Smallest × 3, next × 2, last × 1, never decreasing, at most 1."""
    assert holm_adjusted([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm_adjusted([0.5, 0.9]) == [1.0, 1.0]
    assert holm_adjusted([]) == []


def test_min_pairs_is_the_smallest_number_that_can_be_significant() -> None:
    """The smallest possible p-value of n pairs is 2 ÷ 2^n."""
    for tests, error in ((1, 0.05), (7, 0.05), (14, 0.01)):
        n = min_pairs(tests, error)
        assert wilcoxon_p_value([1.0] * n) * tests <= error < wilcoxon_p_value([1.0] * (n - 1)) * tests


@pytest.mark.parametrize(("phi", "expected"), [(0.0, 1.0), (0.5, 3.0), (0.9, 19.0)])
def test_the_autocorrelation_time_is_that_of_theory(phi: float, expected: float) -> None:
    """Of autoregressive values it is (1 + phi) ÷ (1 − phi)."""
    rng, value, series = Random(2), 0.0, []
    for _ in range(20_000):
        value = phi * value + rng.gauss(0, 1)
        series.append(value)
    assert autocorrelation_time(series) == pytest.approx(expected, rel=0.15)


def test_the_autocorrelation_time_of_little() -> None:
    """Nothing, one value, values without spread, values that alternate: each is worth one value."""
    for series in ([], [1.0], [2.0] * 9, [1.0, -1.0] * 9):
        assert autocorrelation_time(series) == 1.0


@pytest.mark.parametrize(("pairs", "t"), [(2, 12.706), (3, 4.303), (5, 2.776), (6, 2.571), (11, 2.228)])
def test_students_test_is_that_of_the_tables(pairs: int, t: float) -> None:
    """At the tabulated 97.5% quantile p is 5%, and the interval ends at zero; without a deviation nothing is claimed."""
    unit = [float(number) for number in range(pairs)]
    error = stdev(unit) / math.sqrt(pairs)
    shifted = [value - fmean(unit) + t * error for value in unit]
    assert student_p_value(shifted) == pytest.approx(0.05, abs=1e-4)
    effect = student_effect(shifted)
    assert (effect.estimate, effect.lower, effect.upper) == pytest.approx((t * error, 0.0, 2 * t * error), abs=1e-3)
    assert student_p_value([0.02, 0.02]) == student_p_value([1.0]) == 1.0
    assert student_effect([1.0]).lower is None


@pytest.mark.parametrize(
    ("only_a", "only_b", "p"),
    [
        (0, 0, 1.0),
        (0, 5, 2 / 32),
        (1, 9, 22 / 1024),
        (3, 3, 1.0),
        (86, 150, 2 * sum(comb(236, count) for count in range(150, 237)) / 2**236),
    ],
)
def test_mcnemars_test_is_exact(only_a: int, only_b: int, p: float) -> None:
    """By counting coins, and the same from either side."""
    assert mcnemar_p_value(only_a, only_b) == pytest.approx(p)
    assert mcnemar_p_value(only_b, only_a) == mcnemar_p_value(only_a, only_b)
