"""Spans of the week."""

from datetime import datetime

import pytest

from prober.workload.blackout import span


@pytest.mark.parametrize(
    ("text", "at", "held"),
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
def test_a_span_holds_its_times(text: str, at: str, held: bool) -> None:
    """Its begin is in it, its end is not; over midnight it belongs to the day it begins on."""
    assert span(text).holds(datetime.fromisoformat(at)) is held


@pytest.mark.parametrize(
    "text", ["", "always", "Mon", "Mon 8-20", "Xyz 08:00-20:00", "08:00-08:00", "08:61-09:00", "08:00-25:00"]
)
def test_what_is_no_span_is_told(text: str) -> None:
    """With the text itself."""
    with pytest.raises(ValueError, match=r"span|times|days"):
        span(text)
