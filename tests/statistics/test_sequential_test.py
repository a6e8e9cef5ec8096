"""Sequential tests of a share: values computed by hand, and error rates by simulation."""

import math
from itertools import product
from random import Random

import pytest

from prober.statistics.sequential_test import (
    RIVALS_ABOVE,
    RIVALS_BELOW,
    Observations,
    confidence_bounds,
    log_evidence_above,
    log_evidence_below,
    min_observations,
)


def zeros_and_ones(count: int, bad: int) -> Observations:
    return Observations({0: count - bad, 1: bad})


def test_evidence_is_the_weighted_mean_of_likelihood_ratios() -> None:
    """For 2 bad of 5 at a share of 0.2 it equals the value computed from Bernoulli probabilities, with r times the odds."""
    for rivals, evidence in ((RIVALS_BELOW, log_evidence_below), (RIVALS_ABOVE, log_evidence_above)):
        expected = 0.0
        for odds, weight in rivals:
            rival = odds * 0.25 / (1 + odds * 0.25)  # its share, from its odds
            expected += weight * (rival / 0.2) ** 2 * ((1 - rival) / 0.8) ** 3
        assert evidence(zeros_and_ones(5, 2), 0.2) == pytest.approx(math.log(expected))
    assert sum(weight for _, weight in RIVALS_BELOW) == pytest.approx(1)
    assert sum(weight for _, weight in RIVALS_ABOVE) == pytest.approx(1)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.5, 0.9])
def test_mean_evidence_is_one_at_the_claimed_share(share: float) -> None:
    """Over all sequences of eight the mean is exactly 1 at the share and less on the other side, which bounds the error."""
    for truth, evidences in (
        (share, (log_evidence_below, log_evidence_above)),
        (share * 0.7, (log_evidence_above,)),
        (1 - 0.7 * (1 - share), (log_evidence_below,)),
    ):
        for evidence in evidences:
            mean = sum(
                truth ** sum(path) * (1 - truth) ** (8 - sum(path)) * math.exp(evidence(Observations(path), share))
                for path in product((0, 1), repeat=8)
            )
            assert mean == pytest.approx(1) if truth == share else mean < 1


def test_mean_evidence_of_fractional_observations_is_one_too() -> None:
    """For any two values with mean m, the mean evidence after one observation is exactly 1: nothing is lost to a bound."""
    for low, high, m in ((0.0, 1.0, 0.3), (0.2, 0.4, 0.3), (0.29, 0.9, 0.3)):
        chance = (m - low) / (high - low)
        for evidence in (log_evidence_below, log_evidence_above):
            mean = chance * math.exp(evidence(Observations([high]), m))
            mean += (1 - chance) * math.exp(evidence(Observations([low]), m))
            assert mean == pytest.approx(1)


def test_confidence_bounds_are_where_the_evidence_suffices() -> None:
    """At either end the evidence is 1 ÷ error; without bad ones the lower end is 0, without good ones the upper end is 1."""
    seen = zeros_and_ones(400, 6)
    lower, upper = confidence_bounds(seen, 0.05)
    assert lower < 6 / 400 < upper
    assert log_evidence_above(seen, lower) == pytest.approx(math.log(20), abs=1e-3)
    assert log_evidence_below(seen, upper) == pytest.approx(math.log(20), abs=1e-3)
    assert confidence_bounds(zeros_and_ones(50, 0), 0.05)[0] == 0
    assert confidence_bounds(zeros_and_ones(50, 50), 0.05)[1] == 1
    assert confidence_bounds(Observations(), 0.05) == (0, 1)


@pytest.mark.parametrize(("budget", "count"), [(0.1, 34), (0.05, 68), (0.01, 346), (0.001, 3475)])
def test_min_observations_is_the_fewest_that_prove_a_share(budget: float, count: int) -> None:
    """About 3.5 ÷ budget (a single evaluation would need 3 ÷ budget); one fewer is not enough."""
    assert min_observations(budget, 0.05) == count
    assert (
        log_evidence_below(zeros_and_ones(count, 0), budget)
        >= math.log(20)
        > log_evidence_below(zeros_and_ones(count - 1, 0), budget)
    )
    assert min_observations(budget, 0.05, Observations([budget / 3])) > count


def test_means_of_blocks_decide_as_soon_as_their_spread_allows() -> None:
    """68 blocks of ten, each with a tenth of the budget bad on average, show 95% almost as soon as 68 without a bad one."""
    blocks = Observations({0.0: 94, 0.1: 6})
    assert log_evidence_below(blocks, 0.05) >= math.log(20)
    assert log_evidence_below(zeros_and_ones(100, 6), 0.05) < 0, "six bad of a hundred, each alone"
    bad = Observations({0.2: 2, 0.3: 3})
    assert log_evidence_above(bad, 0.05) >= math.log(20), "five blocks with five times the budget"


def test_repeated_evaluation_does_not_raise_the_error() -> None:
    """At the share itself, over 2,000 observations, each claim is made in at most 5% of 400 runs; a fixed test fails in most."""
    rng = Random(5)
    wrong, naive = [0, 0], 0
    for _ in range(400):
        seen, claimed, naive_claimed = Observations(), [False, False], False
        for count in range(1, 2_001):
            seen.add(float(rng.random() < 0.1))
            if count % 5 == 0:
                claimed[0] |= log_evidence_below(seen, 0.1) >= math.log(20)
                claimed[1] |= log_evidence_above(seen, 0.1) >= math.log(20)
                naive_claimed |= count > 50 and abs(seen.mean - 0.1) * count > 1.96 * math.sqrt(0.09 * count)
        wrong = [wrong[0] + claimed[0], wrong[1] + claimed[1]]
        naive += naive_claimed
    assert max(wrong) <= 27, wrong  # 20 are allowed on average; 27 is 95% of Binomial(400, 0.05)
    assert naive > 150, "a fixed test evaluated repeatedly must fail, or this test proves nothing"


def test_the_mean_of_less_than_one_observation_is_their_mean() -> None:
    """Counts that are divided by a design effect may be below one; a mean that is too small asks for observations without end."""
    assert Observations({0.0: 0.25, 0.012: 0.25}).mean == pytest.approx(0.006)
