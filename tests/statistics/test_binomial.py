"""Tail of the binomial distribution."""

import pytest

from prober.statistics.quantiles import probability_of_at_least, share_bounds


def test_the_tail_is_that_of_a_small_example() -> None:
    """By hand: two or more of four at 1%; zero or more is certain."""
    by_hand = 6 * 0.01**2 * 0.99**2 + 4 * 0.01**3 * 0.99 + 0.01**4
    assert probability_of_at_least(2, 4, 0.01) == pytest.approx(by_hand)
    assert probability_of_at_least(0, 4, 0.01) == 1.0


def test_bounds_of_a_share_are_exact() -> None:
    """Clopper and Pearson's: rule of three without an event, the published table for 5 of 10, the normal limit for thousands."""
    assert share_bounds(0, 10, 0.05) == pytest.approx((0.0, 1 - 0.05**0.1), abs=2e-6)
    assert share_bounds(10, 10, 0.05) == pytest.approx((0.05**0.1, 1.0), abs=2e-6)
    assert share_bounds(5, 10, 0.025) == pytest.approx((0.1871, 0.8129), abs=1e-4)
    assert share_bounds(1_500, 3_000, 0.05) == pytest.approx((0.4848, 0.5152), abs=5e-4)
