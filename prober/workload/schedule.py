"""Start times of sweeps: cron schedules, and weekly spans without sweeps."""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

if TYPE_CHECKING:
    from apscheduler.triggers.cron import CronTrigger

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
WEEK_MINUTES = frozenset(range(7 * 24 * 60))  # since Monday 00:00
_MONDAY = datetime(2024, 1, 1)  # noqa: DTZ001 - of a leap year, in no time zone
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

    @property
    def minutes(self) -> set[int]:
        """Minutes of the week, counted from Monday 00:00, inside the span."""
        span = range(self.begin, self.end if self.begin < self.end else self.end + 24 * 60)
        return {(24 * 60 * day + minute) % len(WEEK_MINUTES) for day in self.days for minute in span}


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


def zone(name: str) -> ZoneInfo:
    """The time zone with an IANA name. Raises ValueError."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"{name!r} is not a time zone; write one such as UTC or Europe/Berlin") from None


def trigger(schedule: str, timezone: str) -> "CronTrigger":
    """Trigger of a cron schedule in a time zone. Raises ValueError."""
    from apscheduler.triggers.cron import CronTrigger  # here, as it loads slowly and few targets have a schedule

    where = zone(timezone)
    try:
        cron = CronTrigger.from_crontab(schedule, timezone=where)
    except ValueError as problem:
        raise ValueError(f"{schedule!r}: {problem}; write five fields, such as 15 3 * * *") from None
    if re.search(r"(?<![/\d])\d", schedule.split()[4]):  # APScheduler's week starts with Monday, cron's with Sunday
        raise ValueError(f"{schedule!r}: a number may be either of two days of the week; write names, such as mon-fri")
    return cron


@cache
def due_minutes(schedule: str) -> frozenset[int]:
    """Minutes of the week at which a cron schedule is due on some date. Raises ValueError, also if it is never due."""
    fields = {field.name: field for field in trigger(schedule, "UTC").fields}

    def fitting(key: str, step: timedelta, count: int) -> set[int]:
        """Numbers of the steps, from Monday 1 January, that match a field of the schedule."""
        times = [_MONDAY + step * index for index in range(count)]
        return {i for i, at in enumerate(times) if fields[key].get_next_value(at) == fields[key].get_value(at)}

    day, hour, minute = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)
    if not fitting("month", day, 366) & fitting("day", day, 366):
        raise ValueError(f"{schedule!r}: no such day ever comes; write five fields, such as 15 3 * * *")
    days, hours, minutes = fitting("day_of_week", day, 7), fitting("hour", hour, 24), fitting("minute", minute, 60)
    return frozenset((24 * day + hour) * 60 + minute for day in days for hour in hours for minute in minutes)
