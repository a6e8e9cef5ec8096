"""Calendar work by cron, in a time zone that is said. Jobs only ring: what they start is somebody else's.

The clock on the wall may be set meanwhile. Set forward over a ring it is late, and if too late for it, missed, which is told;
set back it does not ring again for what it rang for.
"""

import asyncio
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from apscheduler.events import EVENT_JOB_MISSED, EVENT_JOB_SUBMITTED, JobExecutionEvent, JobSubmissionEvent
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.cron import CronTrigger

from prober.workload.blackout import WeeklySpan

MOST_RINGS = 2_000
MAX_COUNTED_RINGS = 12_000  # over a week of one a minute
LOOK_S = 30.0  # between two looks at the clock on the wall, which may have been set
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


def longest_gap_s(schedule: str, timezone: str, blackout: Collection[WeeklySpan] = ()) -> float | None:
    """Seconds between the two rings that are furthest apart in five weeks, those in `blackout` left out. Raises BadSchedule.

    None if there are not two.
    """
    rings, where = trigger(schedule, timezone), zone(timezone)
    at: datetime | None = datetime.now(where)
    end, found = datetime.now(where) + timedelta(weeks=5), list[datetime]()
    while len(found) < MOST_RINGS and (at := rings.get_next_fire_time(at, at)) is not None and at < end:
        if not any(span.contains(at) for span in blackout):
            found.append(at)
        at += timedelta(seconds=1)
    return max(((after - before).total_seconds() for before, after in pairwise(found)), default=None)


@cache
def most_rings(
    schedule: str, timezone: str, blackout: tuple[WeeklySpan, ...], min_gap_s: float, within_s: float
) -> int:
    """The most rings within `within_s` of each other, in the five weeks after the first one. Raises BadSchedule.

    Those in `blackout`, and those sooner than `min_gap_s` after one that counted, are left out.
    """
    rings, where = trigger(schedule, timezone), zone(timezone)
    begin = at = rings.get_next_fire_time(None, datetime.now(where))
    counted: list[float] = []
    while at is not None and at - begin < timedelta(weeks=5) and len(counted) < MAX_COUNTED_RINGS:
        next_s = at.timestamp() + 1.0
        if not any(span.contains(at) for span in blackout):
            counted.append(at.timestamp())
            next_s = at.timestamp() + max(1.0, min_gap_s)
        at = rings.get_next_fire_time(None, datetime.fromtimestamp(next_s, where))
    most = first = 0
    for last, ring_s in enumerate(counted):
        while ring_s - counted[first] >= within_s:
            first += 1
        most = max(most, last - first + 1)
    return most


class Timetable:
    """Rings by key. Needs a running event loop."""

    def __init__(self) -> None:
        self._scheduler = AsyncIOScheduler(timezone=ZoneInfo("UTC"))
        self._due_s: dict[str, float] = {}
        self._missed: dict[str, Callable[[float], None]] = {}
        self._scheduler.add_listener(self._submitted, EVENT_JOB_SUBMITTED)
        self._scheduler.add_listener(self._tell_missed, EVENT_JOB_MISSED)
        self._scheduler.start()
        self._looking = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def set(
        self,
        key: str,
        schedule: str,
        timezone: str,
        ring: Callable[[float], None],
        missed: Callable[[float], None] = lambda _: None,
    ) -> None:
        """Ring for `key` from now on by this schedule, and by no other; says when that was due (Unix seconds). Raises BadSchedule.

        missed: told instead where it is too late to ring.
        """

        async def on_the_loop() -> None:  # the scheduler runs plain functions in threads, where no task can begin
            ring(self._due_s[key])

        self._scheduler.add_job(
            on_the_loop,
            trigger(schedule, timezone),
            id=key,
            replace_existing=True,
            coalesce=True,
            max_instances=1,
            misfire_grace_time=LATE_S,
        )
        self._missed[key] = missed

    def remove(self, key: str) -> None:
        """Ring for `key` no more."""
        if self._scheduler.get_job(key):
            self._scheduler.remove_job(key)

    def next(self, key: str) -> datetime | None:
        """When it rings next."""
        job = self._scheduler.get_job(key)
        return job.next_run_time if job else None

    def _submitted(self, event: JobSubmissionEvent) -> None:
        """Before the job runs, which is not told for when."""
        self._due_s[event.job_id] = event.scheduled_run_times[-1].timestamp()

    def _tell_missed(self, event: JobExecutionEvent) -> None:
        if (tell := self._missed.get(event.job_id)) is not None:
            tell(event.scheduled_run_time.timestamp())

    def _look(self) -> None:
        self._scheduler.wakeup()
        self._looking = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def stop(self) -> None:
        """Ring for nobody any more."""
        self._looking.cancel()
        self._scheduler.shutdown(wait=False)
