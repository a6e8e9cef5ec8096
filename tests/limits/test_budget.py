"""Budgets over a sliding day."""

from prober.limits.budget import HOUR_NS, Budget


def test_never_more_than_the_limit_in_any_24_hours() -> None:
    """What is reserved counts at once, and is free again only after a whole day."""
    budget = Budget(100)
    assert budget.reserve(60, 0)
    assert not budget.reserve(50, HOUR_NS)
    assert budget.reserve(40, 2 * HOUR_NS)
    assert not budget.reserve(1, 24 * HOUR_NS)
    assert budget.reserve(60, 25 * HOUR_NS)
    assert not budget.reserve(1, 25 * HOUR_NS)


def test_what_was_not_used_is_given_back() -> None:
    """Settling replaces the reservation by the use, more or less."""
    budget = Budget(100)
    assert budget.reserve(80, 0)
    budget.settle(80, 30, 1)
    assert budget.spent(2) == 30
    assert budget.remaining_ratio(2) == 0.7
    budget.settle(0, 90, 3)
    assert budget.remaining_ratio(4) == 0


def test_what_is_given_back_does_not_outlive_what_it_is_taken_off() -> None:
    """A request reserved in one hour and ended in the next counts in the first, and leaves no credit behind it."""
    budget = Budget(2000)
    assert budget.reserve(900, HOUR_NS - 1)
    assert budget.reserve(700, HOUR_NS)
    budget.settle(900, 100, HOUR_NS - 1)
    assert budget.spent(HOUR_NS) == 800
    assert budget.spent(25 * HOUR_NS) == 700
    assert budget.spent(26 * HOUR_NS) == 0
