"""Weekly time spans, such as blackout times of a sweep."""

import re
from dataclasses import dataclass
from datetime import datetime

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_SPAN = re.compile(r"(?:([a-z]{3})(?:-([a-z]{3}))?\s+)?(\d{1,2}):(\d{2})-(\d{1,2}):(\d{2})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class WeeklySpan:
    """A daily time span on some days of the week. If `end` is before `begin`, it continues into the next day.

    days: days on which it begins, 0 = Monday
    begin, end: minutes since midnight
    """

    days: frozenset[int]
    begin: int
    end: int

    def contains(self, at: datetime) -> bool:
        """Returns True if `at`, in the time zone of the span, is inside. `begin` is inside, `end` is not."""
        day, minute = at.weekday(), 60 * at.hour + at.minute
        if self.begin < self.end:
            return day in self.days and self.begin <= minute < self.end
        return (day in self.days and minute >= self.begin) or ((day - 1) % 7 in self.days and minute < self.end)


def parse_weekly_span(text: str) -> WeeklySpan:
    """Parses `Mon-Fri 08:00-20:00`, `Sun 00:00-24:00`, or `22:00-06:00` for every day. Raises ValueError."""
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a time span; write it like Mon-Fri 08:00-20:00")
    first, last, *clock = match.groups()
    hours = [int(part) for part in clock]
    begin, end = 60 * hours[0] + hours[1], 60 * hours[2] + hours[3]
    if max(hours[1], hours[3]) > 59 or max(begin, end) > 24 * 60 or begin == end:
        raise ValueError(f"{text!r}: times must differ and be from 00:00 to 24:00")
    names = [name.lower() for name in (first, last) if name]
    if any(name not in DAYS for name in names):
        raise ValueError(f"{text!r}: use the days {', '.join(day.title() for day in DAYS)}")
    if not names:
        return WeeklySpan(frozenset(range(7)), begin, end)
    start, stop = DAYS.index(names[0]), DAYS.index(names[-1])
    days = frozenset((start + i) % 7 for i in range((stop - start) % 7 + 1))
    return WeeklySpan(days, begin, end)
