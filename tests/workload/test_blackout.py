"""Weekly time spans."""

from datetime import datetime

import pytest

from prober.workload.blackout import parse_weekly_span


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
