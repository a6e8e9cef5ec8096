"""Budgets over a sliding day."""

import pytest

from prober.workload.budget import HOUR_NS, Budget, BudgetDemand


def test_spending_never_exceeds_the_limit_in_any_24_hours() -> None:
    """A reservation counts immediately and is released only after a whole day."""
    budget = Budget(100)
    assert budget.reserve(60, 0)
    assert not budget.reserve(50, HOUR_NS)
    assert budget.reserve(40, 2 * HOUR_NS)
    assert not budget.reserve(1, 24 * HOUR_NS)
    assert budget.reserve(60, 25 * HOUR_NS)
    assert not budget.reserve(1, 25 * HOUR_NS)


def test_settling_replaces_the_reservation_by_the_use() -> None:
    """The amount used may be smaller or larger than the reservation."""
    budget = Budget(100)
    assert budget.reserve(80, 0)
    budget.settle(80, 30, 1)
    assert budget.spent(2) == 30
    assert budget.remaining_ratio(2) == 0.7
    budget.settle(0, 90, 3)
    assert budget.remaining_ratio(4) == 0


def test_a_refund_counts_in_the_hour_of_its_reservation() -> None:
    """A request reserved in one hour and ended in the next counts in the first, and leaves no credit behind."""
    budget = Budget(2000)
    assert budget.reserve(900, HOUR_NS - 1)
    assert budget.reserve(700, HOUR_NS)
    budget.settle(900, 100, HOUR_NS - 1)
    assert budget.spent(HOUR_NS) == 800
    assert budget.spent(25 * HOUR_NS) == 700
    assert budget.spent(26 * HOUR_NS) == 0


def test_restored_amounts_keep_their_hours() -> None:
    """On the same clock exactly; on another clock they count up to an hour longer, never shorter."""
    budget = Budget(1000)
    assert budget.reserve(100, 0)
    assert budget.reserve(200, 5 * HOUR_NS)
    same, other = Budget(1000), Budget(1000)
    same.restore(budget.hours, 0, 7 * HOUR_NS)
    assert [same.spent(hour * HOUR_NS) for hour in (7, 24, 25, 29, 30)] == [300, 300, 200, 200, 0]
    now = 107 * HOUR_NS + HOUR_NS // 2  # a clock that is 100.5 hours ahead, an hour later
    other.restore(budget.hours, now - 7 * HOUR_NS, now)
    assert [other.spent(now + hour * HOUR_NS) for hour in (0, 18, 19, 23, 24)] == [300, 300, 200, 200, 0]


HOUR_S = 3600.0
STEADY = BudgetDemand(10 / HOUR_S)  # ten per hour, of which 25 hours may count


def simulate_probes(hours: int, limit: float = 1000.0) -> Budget:
    """A budget after `hours` of STEADY."""
    budget = Budget(limit)
    for hour in range(hours):
        assert budget.reserve(10, hour * HOUR_NS)
    return budget


@pytest.mark.parametrize("hours", [0, 1, 12, 24, 25, 60])
def test_spending_the_available_amount_never_stops_the_other_demand(hours: int) -> None:
    """If it is spent at once, the other demand fits for the next two days; with a little more it would not."""
    for more, stops in ((0.0, False), (11.0, True)):
        budget = simulate_probes(hours)
        spare = budget.available(hours * HOUR_NS, STEADY)
        assert spare == pytest.approx(1000 - 250)
        budget.settle(0, spare + more, hours * HOUR_NS)
        refused = [hour for hour in range(hours, hours + 48) if not budget.reserve(10, hour * HOUR_NS + HOUR_NS // 2)]
        assert bool(refused) == stops


def test_spending_makes_room_only_after_leaving_the_window() -> None:
    """Tokens of an earlier sweep become available in the hour in which they no longer count."""
    budget = Budget(1000)
    assert budget.reserve(500, 0)
    assert budget.available(HOUR_NS, BudgetDemand()) == 500
    assert budget.available(24 * HOUR_NS, BudgetDemand()) == 500
    assert budget.available(24 * HOUR_NS, STEADY) == 490, "ten in its last hour; the 240 after it have its room"
    assert budget.available(25 * HOUR_NS, BudgetDemand()) == 1000


def test_a_reservation_that_leaves_too_little_for_other_demand_is_refused() -> None:
    """Nothing is reserved then; a reservation without other demand may use the whole limit."""
    budget = Budget(1000)
    assert not budget.reserve(800, 0, STEADY)
    assert budget.spent(0) == 0
    assert budget.reserve(700, 0, STEADY)
    assert not budget.reserve(60, 0, STEADY)
    assert budget.reserve(300, 0)
    assert budget.available(0, STEADY) == -250


def test_random_arrivals_need_four_standard_deviations_above_the_mean() -> None:
    """Requests that take twice as much need twice as much."""
    need = BudgetDemand(1.0, 25.0)
    assert need.max_over(100) == 100 + 4 * 50
    assert need.scaled(2).max_over(100) == 2 * need.max_over(100)
    assert need.max_over(0) == 0
