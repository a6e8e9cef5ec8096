"""Quantile intervals, shares, sequential and paired tests against SciPy, which shares no code with them."""

import math
from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from scipy import stats

from prober.statistics.paired_test import (
    hodges_lehmann,
    mcnemar_p_value,
    student_effect,
    student_p_value,
    student_quantile,
    wilcoxon_p_value,
)
from prober.statistics.quantiles import (
    MIN_SAMPLES_BY_QUANTILE,
    probability_of_at_least,
    quantiles,
    share_bounds,
    student_t_975,
)
from prober.statistics.sequential_test import (
    Observations,
    confidence_bounds,
    log_evidence_above,
    log_evidence_below,
    min_observations,
)

SIZES = (*range(20, 400, 7), 500, 1_000, 2_357, 10_000, 20_011)
ERROR = 0.05


def ranks(count: int, q: float) -> tuple[int, int, int | None, int | None]:
    """Count, and ranks of estimate, lower and upper bound: those of samples that are their ranks."""
    (found,) = quantiles(range(1, count + 1), (q,))
    bounds = [None if bound is None else int(bound) for bound in (found.lower, found.upper)]
    return count, int(found.estimate), bounds[0], bounds[1]


@pytest.mark.parametrize("q", [0.5, 0.75, 0.9, 0.95, 0.99])
def test_the_order_statistics_of_an_interval_hold_the_quantile_with_95_percent_by_the_binomial_distribution(
    q: float,
) -> None:
    """P(rank below ≤ samples below the true quantile < rank above): 94% or more exactly, wherever both bounds exist."""
    for count, estimate, lower, upper in (ranks(size, q) for size in SIZES):
        assert estimate == math.ceil(round(q * count, 9))
        if lower is None or upper is None:
            continue
        below = stats.binom(count, q)
        assert below.cdf(upper - 1) - below.cdf(lower - 1) >= 0.94, count


@pytest.mark.parametrize("q", [0.5, 0.9, 0.99])
def test_the_interval_is_that_of_the_exact_quantile_test_but_for_two_ranks(q: float) -> None:
    """SciPy's exact interval ends at most two order statistics from it, at sample sizes that are judged."""
    for size in (MIN_SAMPLES_BY_QUANTILE[q], 2_000, 5_003):
        _, _, lower, upper = ranks(size, q)
        exact = stats.quantile_test(np.arange(1, size + 1), p=q).confidence_interval()
        assert lower is not None
        assert abs(lower - exact.low) <= 2
        if upper is not None:
            assert abs(upper - exact.high) <= 2


def test_an_interval_has_no_bound_only_where_no_order_statistic_is_one() -> None:
    """Without an upper bound, even the largest sample is below the quantile with 0.3% and more; the same below."""
    for q in (0.05, 0.5, 0.9, 0.99):
        for count, _, lower, upper in (ranks(size, q) for size in range(1, 700, 3)):
            if upper is None:
                assert stats.binom(count, q).sf(count - 1) > 0.003
            if lower is None:
                assert stats.binom(count, q).cdf(0) > 0.003


def test_tails_of_the_binomial_distribution() -> None:
    """P(events ≥ count), to 10⁻¹⁰."""
    for trials in (1, 7, 60, 800):
        for share in (1e-4, 0.01, 0.3, 0.9):
            for count in {0, 1, trials // 10, trials // 2, trials, trials + 1}:
                expected = stats.binom(trials, share).sf(count - 1)
                assert probability_of_at_least(count, trials, share) == pytest.approx(expected, abs=1e-10, rel=1e-6)


def test_bounds_of_a_share_are_those_of_clopper_and_pearson() -> None:
    """To the stated one in 10⁶."""
    for trials in (1, 12, 150, 2_000):
        for count in {0, 1, trials // 7, trials - 1, trials}:
            exact = stats.binomtest(count, trials).proportion_ci(1 - 2 * ERROR, method="exact")
            assert share_bounds(count, trials, ERROR) == pytest.approx((exact.low, exact.high), abs=2e-6)


def test_quantiles_of_students_distribution() -> None:
    """The bisection to 10⁻⁶; the expansion within 3% from 2 degrees of freedom on, within 0.1% from 6."""
    for freedom in (1, 2, 3, 6, 10, 31, 200):
        for confidence in (0.5, 0.9, 0.95, 0.999):
            expected = stats.t(freedom).ppf((1 + confidence) / 2)
            assert student_quantile(confidence, freedom) == pytest.approx(expected, rel=1e-6)
    for freedom in range(2, 60):
        error = student_t_975(freedom) / stats.t(freedom).ppf(0.975) - 1
        assert abs(error) < (0.031 if freedom < 6 else 0.001), freedom


def chance_of_a_claim(log_evidence: Callable[[Observations, float], float], budget: float, longest: int) -> float:
    """Exact chance that evidence reaches 1 ÷ `ERROR` at any of `longest` observations whose mean is the budget itself.

    Evidence depends on the number of bad observations only: the chances of those numbers, step by step, without what was claimed.
    """
    chances, claimed = np.array([1.0]), 0.0
    for count in range(1, longest + 1):
        grown = np.append(chances, 0.0) * (1 - budget)
        grown[1:] += chances * budget
        for bad in np.flatnonzero(grown > 1e-12):
            observed = Observations({0.0: count - int(bad), 1.0: int(bad)})
            if log_evidence(observed, budget) >= -math.log(ERROR):
                claimed += grown[bad]
                grown[bad] = 0.0
        chances = grown
    assert chances.sum() + claimed == pytest.approx(1.0, abs=1e-6)
    return float(claimed)


@pytest.mark.parametrize("budget", [0.01, 0.1, 0.4])
@pytest.mark.parametrize("log_evidence", [log_evidence_below, log_evidence_above], ids=["below", "above"])
def test_a_sequential_test_that_looks_every_time_errs_at_most_as_stated(
    log_evidence: Callable[[Observations, float], float], budget: float
) -> None:
    """By exact enumeration over 300 looks and more; and not so seldom that the test would be useless."""
    chance = chance_of_a_claim(log_evidence, budget, max(300, round(6 / budget)))
    assert chance <= ERROR
    assert chance > 0.002


@pytest.mark.parametrize("mean", [0.02, 0.2])
def test_observations_between_0_and_1_err_at_most_as_stated(mean: float) -> None:
    """120 series of 200 beta-distributed observations, looked at every tenth; a binomial test at 10⁻³ of both claims."""
    draws = stats.beta(0.3, 0.3 * (1 - mean) / mean).rvs((120, 200), random_state=np.random.default_rng(4)).round(3)
    for log_evidence in (log_evidence_below, log_evidence_above):
        wrong = 0
        for series in draws.tolist():
            looks = (Observations(series[:count]) for count in range(10, 201, 10))
            wrong += any(log_evidence(observed, mean) >= -math.log(ERROR) for observed in looks)
        assert stats.binomtest(wrong, len(draws), ERROR, "greater").pvalue > 1e-3


def test_bounds_that_hold_at_any_time_are_no_tighter_than_the_best_for_one_time() -> None:
    """Clopper and Pearson's bounds are those of the most powerful test of a fixed length."""
    for trials in (5, 40, 300, 4_000):
        for bad in {0, 1, trials // 20, trials // 4, trials}:
            lower, upper = confidence_bounds(Observations({0.0: trials - bad, 1.0: bad}), ERROR)
            exact = stats.binomtest(bad, trials).proportion_ci(1 - 2 * ERROR, method="exact")
            assert lower <= exact.low + 1e-5
            assert upper >= exact.high - 1e-5


def test_no_fewer_observations_prove_a_budget_than_an_exact_test_needs() -> None:
    """All good: at least ln(error) ÷ ln(1 − budget), and at most half as many again."""
    for budget in (0.001, 0.01, 0.1, 0.3):
        least = math.log(ERROR) / math.log1p(-budget)
        assert least <= min_observations(budget, ERROR) <= 1.5 * least + 1


def differences(rng: Random, count: int, digits: int) -> list[float]:
    """Differences around 0.3; few digits make ties and zeros."""
    return [round(rng.gauss(0.3, 1.0), digits) for _ in range(count)]


@pytest.mark.parametrize("count", [1, 4, 9, 20, 50])
def test_wilcoxon_without_ties_is_exact(count: int) -> None:
    """SciPy's exact distribution."""
    rng = Random(count)
    for _ in range(10):
        values = differences(rng, count, 12)
        assert wilcoxon_p_value(values) == pytest.approx(stats.wilcoxon(values, method="exact").pvalue, rel=1e-9)


@pytest.mark.parametrize("count", [4, 8, 10])
def test_wilcoxon_with_ties_and_zeros_counts_every_pattern_of_signs(count: int) -> None:
    """SciPy's enumeration of all patterns of the differences that are not zero."""
    rng = Random(count)
    for _ in range(3):
        values = differences(rng, count, 0)
        nonzero = [value for value in values if value] or [1.0]
        by_signs = stats.PermutationMethod(n_resamples=1 << len(nonzero))
        expected = stats.wilcoxon(nonzero, method=by_signs).pvalue if any(values) else 1.0
        assert wilcoxon_p_value(values) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("digits", [1, 12])
def test_wilcoxon_of_many_pairs_is_the_corrected_normal_approximation(digits: int) -> None:
    """With and without ties."""
    values = differences(Random(3), 90, digits)
    expected = stats.wilcoxon(values, method="asymptotic", correction=True, zero_method="wilcox").pvalue
    assert wilcoxon_p_value(values) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("count", [1, 2, 7, 30, 61])
def test_hodges_and_lehmann_by_brute_force(count: int) -> None:
    """The median of all means of two; the interval holds the shifts that SciPy's test does not reject, and no others."""
    values = np.array(differences(Random(count), count, 12))
    means = np.sort((values[:, None] + values[None, :])[np.triu_indices(count)] / 2)
    effect = hodges_lehmann(values.tolist())
    assert effect.estimate == pytest.approx(float(np.median(means)))
    method = "exact" if count <= 50 else "asymptotic"

    def p_value(shift: float) -> float:
        return float(stats.wilcoxon(values - shift, method=method, correction=True).pvalue)

    if effect.lower is None or effect.upper is None:
        assert p_value(float(means[0]) - 1.0) > ERROR  # even all of one sign is no proof
        return
    for end, outwards in ((effect.lower, -1.0), (effect.upper, 1.0)):
        place = int(np.argmin(np.abs(means - end)))
        assert means[place] == pytest.approx(end)
        beyond = (
            float(means[place] + means[place + int(outwards)]) / 2 if 0 < place < means.size - 1 else end + outwards
        )
        within = float(means[place] + means[place - int(outwards)]) / 2
        assert p_value(within) > ERROR - 0.002
        assert p_value(beyond) <= ERROR + 0.002


def test_student_and_mcnemar() -> None:
    """p-values and the interval of a mean; McNemar's test is a binomial test of the pairs that differ."""
    rng = Random(8)
    for count in (2, 5, 40):
        values = differences(rng, count, 12)
        tested = stats.ttest_1samp(values, 0.0)
        assert student_p_value(values) == pytest.approx(tested.pvalue, rel=1e-9, abs=1e-12)
        effect, interval = student_effect(values), tested.confidence_interval(0.95)
        assert (effect.lower, effect.upper) == pytest.approx((interval.low, interval.high), rel=1e-6)
    for only_a, only_b in ((0, 0), (1, 0), (3, 9), (20, 20), (2, 40)):
        expected = stats.binomtest(only_a, only_a + only_b).pvalue if only_a + only_b else 1.0
        assert mcnemar_p_value(only_a, only_b) == pytest.approx(expected, rel=1e-9)
