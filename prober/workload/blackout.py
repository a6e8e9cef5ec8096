"""Times of the week in which something must not be done."""

import re
from dataclasses import dataclass
from datetime import datetime

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_SPAN = re.compile(r"(?:([a-z]{3})(?:-([a-z]{3}))?\s+)?(\d{1,2}):(\d{2})-(\d{1,2}):(\d{2})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Span:
    """Minutes of a day on days of the week (0: Monday); one that ends before it begins goes on into the next day."""

    days: frozenset[int]
    begin: int
    end: int

    def holds(self, at: datetime) -> bool:
        """Whether `at`, in the time zone that is meant, is in it; its end is not."""
        day, minute = at.weekday(), 60 * at.hour + at.minute
        if self.begin < self.end:
            return day in self.days and self.begin <= minute < self.end
        return (day in self.days and minute >= self.begin) or ((day - 1) % 7 in self.days and minute < self.end)


def span(text: str) -> Span:
    """`Mon-Fri 08:00-20:00`, `Sun 00:00-24:00`, or `22:00-06:00` of every day. Raises ValueError."""
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no span; write it like Mon-Fri 08:00-20:00")
    first, last, *clock = found.groups()
    hours = [int(part) for part in clock]
    begin, end = 60 * hours[0] + hours[1], 60 * hours[2] + hours[3]
    if max(hours[1], hours[3]) > 59 or max(begin, end) > 24 * 60 or begin == end:
        raise ValueError(f"{text!r}: times are from 00:00 to 24:00, and differ")
    names = [name.lower() for name in (first, last) if name]
    if any(name not in DAYS for name in names):
        raise ValueError(f"{text!r}: days are {', '.join(day.title() for day in DAYS)}")
    if not names:
        return Span(frozenset(range(7)), begin, end)
    start, stop = DAYS.index(names[0]), DAYS.index(names[-1])
    days = frozenset((start + i) % 7 for i in range((stop - start) % 7 + 1))
    return Span(days, begin, end)
