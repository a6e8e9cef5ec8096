"""Wilcoxon's test against every pattern of signs, Hodges–Lehmann against its definition, Holm by hand."""

import math
from itertools import product
from random import Random
from statistics import median

import pytest

from prober.statistics import paired_test
from prober.statistics.paired_test import EXACT, hodges_lehmann, holm, least_pairs, signed_rank


def mean_ranks(sizes: list[float]) -> list[float]:
    """Ranks from 1, equal sizes sharing their mean."""
    return [sum(x < size for x in sizes) + (sum(x == size for x in sizes) + 1) / 2 for size in sizes]


def enumerated(differences: list[float]) -> float:
    """The definition: the share of the 2^n patterns of signs at least as far from the middle."""
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
def test_small_samples_are_counted(differences: list[float]) -> None:
    """Equal to the enumeration of all signs, with ties and zeros."""
    assert signed_rank(differences) == pytest.approx(enumerated(differences))
    assert signed_rank([-each for each in differences]) == pytest.approx(signed_rank(differences))


def test_published_values() -> None:
    """All of six one way: 2/64. A rank sum of 8 of ten pairs: p = 0.0488, the table's 5% value. None: 1."""
    assert signed_rank([1, 2, 3, 4, 5, 6]) == 2 / 64
    assert signed_rank([-1, -2, -5, 3, 4, 6, 7, 8, 9, 10]) == pytest.approx(0.0488, abs=5e-5)
    assert signed_rank([0.0, 0.0]) == 1
    assert signed_rank([]) == 1


@pytest.mark.parametrize("tied", [False, True])
def test_the_approximation_agrees_with_the_count(monkeypatch: pytest.MonkeyPatch, tied: bool) -> None:
    """Of 50 pairs, with ties and without: p within 8%, the interval's ends where they were."""
    rng = Random(3)
    for shift in (0.1, 0.3, 0.5):
        draws = [rng.gauss(shift, 1) for _ in range(EXACT)]
        many = [round(each, 1) for each in draws] if tied else draws
        exact, interval = signed_rank(many), hodges_lehmann(draws)
        with monkeypatch.context() as patched:
            patched.setattr(paired_test, "EXACT", 10)
            assert signed_rank(many) == pytest.approx(exact, rel=0.08, abs=5e-4)
            approximate = hodges_lehmann(draws)
        assert approximate.lower == pytest.approx(interval.lower, abs=0.01)
        assert approximate.upper == pytest.approx(interval.upper, abs=0.01)


def test_no_difference_gives_uniform_p() -> None:
    """Over 2,000 samples of twelve, p ≤ a happens with a chance of at most a."""
    rng = Random(7)
    ps = [signed_rank([rng.gauss(0, 1) for _ in range(12)]) for _ in range(2_000)]
    for level in (0.01, 0.05, 0.2):
        assert sum(p <= level for p in ps) / 2_000 <= level + 3 * math.sqrt(level / 2_000)


def test_hodges_lehmann_is_the_median_of_means() -> None:
    """By its definition; the interval of ten leaves out eight means at each end (exact 95.1%), five pairs have none."""
    draws = [1.0, 4.0, 2.0, 8.0, 5.0, 7.0, 3.0, 6.0, 10.0, 9.0]
    means = sorted((draws[i] + draws[j]) / 2 for i in range(10) for j in range(i, 10))
    found = hodges_lehmann(draws)
    assert (found.estimate, found.lower, found.upper) == (median(means), means[8], means[-9])
    assert hodges_lehmann(draws[:5]).lower is None
    assert hodges_lehmann(draws[:6]).lower == 1.0
    with pytest.raises(ValueError, match="nothing was measured"):
        hodges_lehmann([])


@pytest.mark.parametrize("count", [10, EXACT + 10])
def test_the_interval_covers(count: int) -> None:
    """The true shift in 95% of 600 samples, of a skewed distribution made symmetric by pairing; exact and approximate."""
    rng = Random(count)
    covered = 0
    for _ in range(600 if count <= EXACT else 200):
        draws = [0.3 + rng.expovariate(1) - rng.expovariate(1) for _ in range(count)]
        found = hodges_lehmann(draws)
        assert found.lower is not None
        assert found.upper is not None
        covered += found.lower <= 0.3 <= found.upper
    total = 600 if count <= EXACT else 200
    assert covered / total >= 0.95 - 2.5 * math.sqrt(0.0475 / total)


def test_holm_by_hand() -> None:
    """Smallest × 3, next × 2, last × 1, never falling, at most 1."""
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_fewer_rounds_than_can_ever_tell() -> None:
    """The smallest p of n pairs is 2 ÷ 2^n."""
    for tests, error in ((1, 0.05), (7, 0.05), (14, 0.01)):
        n = least_pairs(tests, error)
        assert signed_rank([1.0] * n) * tests <= error < signed_rank([1.0] * (n - 1)) * tests
