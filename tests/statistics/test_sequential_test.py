"""Sequential tests of a share: worked by hand, and held to their error by simulation."""

import math
from itertools import product
from random import Random

import pytest

from prober.statistics.sequential_test import FEWER, MORE, Observed, above, below, bounds, least


def test_evidence_is_the_weighted_mean_of_likelihood_ratios() -> None:
    """Of rivals with r times the odds: for 2 bad of 5 at a share of 0.2 worked out from Bernoulli's probabilities."""
    for rivals, evidence in ((FEWER, below), (MORE, above)):
        expected = 0.0
        for odds, weight in rivals:
            rival = odds * 0.25 / (1 + odds * 0.25)  # its share, from its odds
            expected += weight * (rival / 0.2) ** 2 * ((1 - rival) / 0.8) ** 3
        assert evidence(Observed(5, 2), 0.2) == pytest.approx(math.log(expected))
    assert sum(weight for _, weight in FEWER) == pytest.approx(1)
    assert sum(weight for _, weight in MORE) == pytest.approx(1)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.5, 0.9])
def test_mean_evidence_is_one_where_the_share_is_as_claimed(share: float) -> None:
    """Exactly, over all sequences of eight; and less where the truth lies on the other side: that is what bounds the error."""
    for truth, evidences in ((share, (below, above)), (share * 0.7, (above,)), (1 - 0.7 * (1 - share), (below,))):
        for evidence in evidences:
            mean = sum(
                truth ** sum(path) * (1 - truth) ** (8 - sum(path)) * math.exp(evidence(Observed(8, sum(path)), share))
                for path in product((0, 1), repeat=8)
            )
            assert mean == pytest.approx(1) if truth == share else mean < 1


def test_observations_between_good_and_bad_are_bounded_too() -> None:
    """For two values with the mean m, however far apart, the mean evidence after one is at most 1."""
    for low, high, m in ((0.0, 1.0, 0.3), (0.2, 0.4, 0.3), (0.29, 0.9, 0.3)):
        chance = (m - low) / (high - low)
        for evidence in (below, above):
            mean = chance * math.exp(evidence(Observed().plus(high), m))
            mean += (1 - chance) * math.exp(evidence(Observed().plus(low), m))
            assert mean <= 1 + 1e-12


def test_bounds_are_where_the_evidence_is_enough() -> None:
    """At either end exactly 1 ÷ error; nothing bad has the lower end 0, nothing good the upper end 1."""
    seen = Observed(400, 6)
    lower, upper = bounds(seen, 0.05)
    assert lower < 6 / 400 < upper
    assert above(seen, lower) == pytest.approx(math.log(20), abs=1e-3)
    assert below(seen, upper) == pytest.approx(math.log(20), abs=1e-3)
    assert bounds(Observed(50, 0), 0.05)[0] == 0
    assert bounds(Observed(50, 50), 0.05)[1] == 1
    assert bounds(Observed(), 0.05) == (0, 1)


@pytest.mark.parametrize(("budget", "count"), [(0.1, 34), (0.05, 68), (0.01, 346), (0.001, 3475)])
def test_the_fewest_that_can_show_a_share(budget: float, count: int) -> None:
    """About 3.5 ÷ budget (three would do for one look alone); one fewer is not enough."""
    assert least(budget, 0.05) == count
    assert below(Observed(count), budget) >= math.log(20) > below(Observed(count - 1), budget)
    assert least(budget, 0.05, budget / 3) > count


def test_looking_after_every_observation_does_not_raise_the_error() -> None:
    """At the share itself over 2,000 looks either claim is made in at most 5% of 400 runs; a fixed test would in most."""
    rng = Random(5)
    wrong, naive = [0, 0], 0
    for _ in range(400):
        seen, told, fooled = Observed(), [False, False], False
        for count in range(1, 2_001):
            seen = seen.plus(rng.random() < 0.1)
            if count % 5 == 0:
                told[0] |= below(seen, 0.1) >= math.log(20)
                told[1] |= above(seen, 0.1) >= math.log(20)
                fooled |= count > 50 and abs(seen.bad - 0.1 * count) > 1.96 * math.sqrt(0.09 * count)
        wrong = [wrong[0] + told[0], wrong[1] + told[1]]
        naive += fooled
    assert max(wrong) <= 27, wrong  # 20 are allowed on average; 27 is 95% of Binomial(400, 0.05)
    assert naive > 150, "what this is good for"
