"""Calendar work by cron, in a time zone that is said. Jobs only ring: what they start is somebody else's."""

from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.cron import CronTrigger

from prober.limits.calendar import Span

MOST_RINGS = 2_000
LATE_S = 600  # a ring that is later than this, after a suspension, is left out


class BadSchedule(ValueError):
    """`key` is what is wrong: schedule or timezone."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def zone(name: str) -> ZoneInfo:
    """Raises BadSchedule."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadSchedule("timezone", f"{name!r} is no time zone; write one like UTC or Europe/Berlin") from None


def trigger(schedule: str, timezone: str) -> CronTrigger:
    """Raises BadSchedule."""
    where = zone(timezone)
    try:
        return CronTrigger.from_crontab(schedule, timezone=where)
    except ValueError as problem:
        raise BadSchedule("schedule", f"{schedule!r}: {problem}; write five fields, such as 15 3 * * *") from None


def longest_gap_s(schedule: str, timezone: str, blackout: Collection[Span] = ()) -> float | None:
    """Seconds between the two rings that are furthest apart in five weeks, those in `blackout` left out. Raises BadSchedule.

    None if there are not two.
    """
    rings, where = trigger(schedule, timezone), zone(timezone)
    at: datetime | None = datetime.now(where)
    end, found = datetime.now(where) + timedelta(weeks=5), list[datetime]()
    while len(found) < MOST_RINGS and (at := rings.get_next_fire_time(at, at)) is not None and at < end:
        if not any(span.holds(at) for span in blackout):
            found.append(at)
        at += timedelta(seconds=1)
    return max(((after - before).total_seconds() for before, after in pairwise(found)), default=None)


class Timetable:
    """Rings by key. Needs a running event loop."""

    def __init__(self) -> None:
        self._scheduler = AsyncIOScheduler(timezone=ZoneInfo("UTC"))
        self._scheduler.start()

    def set(self, key: str, schedule: str, timezone: str, ring: Callable[[], None]) -> None:
        """Ring for `key` from now on by this schedule, and by no other. Raises BadSchedule."""

        async def on_the_loop() -> None:  # the scheduler runs plain functions in threads, where no task can begin
            ring()

        self._scheduler.add_job(
            on_the_loop,
            trigger(schedule, timezone),
            id=key,
            replace_existing=True,
            coalesce=True,
            max_instances=1,
            misfire_grace_time=LATE_S,
        )

    def remove(self, key: str) -> None:
        """Ring for `key` no more."""
        if self._scheduler.get_job(key):
            self._scheduler.remove_job(key)

    def next(self, key: str) -> datetime | None:
        """When it rings next."""
        job = self._scheduler.get_job(key)
        return job.next_run_time if job else None

    def stop(self) -> None:
        """Ring for nobody any more."""
        self._scheduler.shutdown(wait=False)
