"""Tail of the binomial distribution."""

import pytest

from prober.statistics.binomial import probability_of_at_least


def test_the_tail_is_that_of_a_small_example() -> None:
    """By hand: two or more of four at 1%; zero or more is certain."""
    by_hand = 6 * 0.01**2 * 0.99**2 + 4 * 0.01**3 * 0.99 + 0.01**4
    assert probability_of_at_least(2, 4, 0.01) == pytest.approx(by_hand)
    assert probability_of_at_least(0, 4, 0.01) == 1.0
