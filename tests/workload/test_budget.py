"""Budgets over a sliding day."""

import pytest

from prober.workload.budget import HOUR_NS, Budget, Need


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


def test_what_is_kept_is_never_less_than_what_was_spent() -> None:
    """A mark is ahead of the spending; killed at any moment, the next process counts all of it and at most the reserve more."""
    budget, kept = Budget(10_000, typical=30), None
    for request in range(200):
        at_ns = request * 60 * 10**9
        if kept is None or budget.low:
            kept = budget.mark(at_ns)
            budget.kept(kept)
        assert budget.reserve(30, at_ns)
        assert budget.covered
        after = Budget(10_000)
        after.recall(kept, at_ns, at_ns - kept.at_ns)
        assert 0 <= after.spent(at_ns) - budget.spent(at_ns) <= budget.ahead == 60


def test_a_mark_that_is_not_kept_covers_nothing() -> None:
    """So a request knows that it has to wait for the disk; a larger one than ever before, too."""
    budget = Budget(10_000, typical=30)
    assert budget.reserve(30, 0)
    assert budget.low
    assert not budget.covered
    budget.kept(budget.mark(0))
    assert budget.covered
    assert budget.reserve(500, 0)
    assert not budget.covered


def test_a_clean_stop_is_exact_and_hours_go_as_they_would_have() -> None:
    """On the same clock the same hours; on another one up to an hour longer, and never shorter."""
    budget = Budget(1000)
    assert budget.reserve(100, 0)
    assert budget.reserve(200, 5 * HOUR_NS)
    last = budget.mark(6 * HOUR_NS, last=True)
    same, other = Budget(1000), Budget(1000)
    same.recall(last, 7 * HOUR_NS, HOUR_NS)
    assert [same.spent(hour * HOUR_NS) for hour in (7, 24, 25, 29, 30)] == [300, 300, 200, 200, 0]
    now = 107 * HOUR_NS + HOUR_NS // 2  # a clock that is 100.5 hours ahead
    other.recall(last, now, HOUR_NS)
    assert [other.spent(now + hour * HOUR_NS) for hour in (0, 18, 19, 23, 24)] == [300, 300, 200, 200, 0]


def test_what_was_taken_beyond_the_reservation_is_in_the_next_mark() -> None:
    """An answer may use more than was asked for."""
    budget = Budget(10_000, typical=30)
    budget.kept(budget.mark(0))
    budget.settle(0, 500, 0)
    assert not budget.covered
    mark = budget.mark(0)
    again = Budget(10_000)
    again.recall(mark, 0, 0)
    assert again.spent(0) >= 500


HOUR_S = 3600.0
STEADY = Need(10 / HOUR_S)  # ten an hour, of which 25 hours may count


def probed(hours: int, limit: float = 1000.0) -> Budget:
    """After so many hours of STEADY."""
    budget = Budget(limit)
    for hour in range(hours):
        assert budget.reserve(10, hour * HOUR_NS)
    return budget


@pytest.mark.parametrize("hours", [0, 1, 12, 24, 25, 60])
def test_what_may_be_taken_leaves_the_others_what_they_need_at_any_time(hours: int) -> None:
    """However long they were there before: taken at once, it never stops them in the next two days; a little more would."""
    for more, stops in ((0.0, False), (11.0, True)):
        budget = probed(hours)
        spare = budget.spare(hours * HOUR_NS, STEADY)
        assert spare == pytest.approx(1000 - 250)
        budget.settle(0, spare + more, hours * HOUR_NS)
        refused = [hour for hour in range(hours, hours + 48) if not budget.reserve(10, hour * HOUR_NS + HOUR_NS // 2)]
        assert bool(refused) == stops


def test_what_leaves_the_window_makes_room_only_when_it_has_left() -> None:
    """An earlier sweep's tokens are not there for the others before the hour in which they count no more."""
    budget = Budget(1000)
    assert budget.reserve(500, 0)
    assert budget.spare(HOUR_NS, Need()) == 500
    assert budget.spare(24 * HOUR_NS, Need()) == 500
    assert budget.spare(24 * HOUR_NS, STEADY) == 490, "ten in its last hour; the 240 after it have its room"
    assert budget.spare(25 * HOUR_NS, Need()) == 1000


def test_a_reservation_beside_others_is_refused_where_theirs_would_not_fit() -> None:
    """And nothing is set aside; they themselves are not held back by what they need."""
    budget = Budget(1000)
    assert not budget.reserve(800, 0, STEADY)
    assert budget.spent(0) == 0
    assert budget.reserve(700, 0, STEADY)
    assert not budget.reserve(60, 0, STEADY)
    assert budget.reserve(300, 0)
    assert budget.spare(0, STEADY) == -250


def test_random_arrivals_need_more_than_their_mean() -> None:
    """Four standard deviations; of requests that take twice as much twice as much."""
    need = Need(1.0, 25.0)
    assert need.within(100) == 100 + 4 * 50
    assert need.scaled(2).within(100) == 2 * need.within(100)
    assert need.within(0) == 0
