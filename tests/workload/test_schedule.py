"""Weekly time spans."""

from datetime import datetime

import pytest

from prober.workload.schedule import due_minutes, parse_weekly_span, trigger


@pytest.mark.parametrize(
    ("text", "at", "is_inside"),
    [
        ("Mon-Fri 08:00-20:00", "2026-11-20 08:00", True),  # a Friday
        ("Mon-Fri 08:00-20:00", "2026-11-20 20:00", False),
        ("mon-fri 8:00-20:00", "2026-11-21 12:00", False),
        ("Sat 00:00-24:00", "2026-11-21 23:59", True),
        ("Fri-Mon 10:00-11:00", "2026-11-22 10:30", True),
        ("Fri-Mon 10:00-11:00", "2026-11-24 10:30", False),
        ("Fri 22:00-06:00", "2026-11-21 05:59", True),
        ("Fri 22:00-06:00", "2026-11-21 06:00", False),
        ("Fri 22:00-06:00", "2026-11-20 05:00", False),
        ("22:00-06:00", "2026-11-18 23:00", True),
        ("Sun 22:00-06:00", "2026-11-23 01:00", True),
    ],
)
def test_a_span_contains_its_times(text: str, at: str, is_inside: bool) -> None:
    """The begin is inside, the end is not; a span over midnight belongs to the day on which it begins."""
    assert parse_weekly_span(text).contains(datetime.fromisoformat(at)) is is_inside


@pytest.mark.parametrize(
    "text", ["", "always", "Mon", "Mon 8-20", "Xyz 08:00-20:00", "08:00-08:00", "08:61-09:00", "08:00-25:00"]
)
def test_an_invalid_span_raises(text: str) -> None:
    """The error says whether the form, the times or the days are wrong."""
    with pytest.raises(ValueError, match=r"span|times|days"):
        parse_weekly_span(text)


@pytest.mark.parametrize(
    ("schedule", "timezone", "message"),
    [
        ("at night", "UTC", "'at night': Wrong number of fields; got 2, expected 5; write five fields"),
        ("61 3 * * *", "UTC", "'61 3"),
        ("15 3 * * 0", "UTC", "a number may be either of two days of the week; write names, such as mon-fri"),
        ("15 3 * * *", "Mars", "'Mars' is not a time zone; write one such as UTC or Europe/Berlin"),
        ("15 3 * * *", "../etc", "is not a time zone"),
    ],
)
def test_what_is_no_schedule_is_told(schedule: str, timezone: str, message: str) -> None:
    """With what is wrong and what to write."""
    with pytest.raises(ValueError, match=message):
        trigger(schedule, timezone)


def test_the_minutes_of_the_week_at_which_a_schedule_comes_due() -> None:
    """All fields must fit; a day of the month may be any day of the week in some year, so it leaves out none."""
    hour = 60
    assert due_minutes("30 2 * * wed") == {(2 * 24 + 2) * hour + 30}
    assert due_minutes("0 3 29 2 *") == {(day * 24 + 3) * hour for day in range(7)}
    assert len(due_minutes("*/20 8-9 * * sat,sun")) == 3 * 2 * 2
    with pytest.raises(ValueError, match="no such day ever comes"):
        due_minutes("0 0 31 4,6,9,11 *")


@pytest.mark.parametrize(
    ("text", "first", "count"),
    [("Tue 23:00-24:00", 2 * 1440 - 60, 60), ("Sun 23:30-00:30", 0, 60), ("01:00-02:00", 60, 420)],
)
def test_the_minutes_of_a_span(text: str, first: int, count: int) -> None:
    """Also those after the end of the week."""
    minutes = parse_weekly_span(text).minutes
    assert (min(minutes), len(minutes)) == (first, count)
