"""Cron in an explicit time zone. A job only calls back.

The wall clock may be changed. If it is set forward past a due time, the call is late or, after more than MAX_LATENESS_S, reported as
missed; if it is set back, a due time is not called again.
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

MAX_DUE_TIMES = 2_000
MAX_COUNTED_DUE_TIMES = 12_000  # over a week of one a minute
WAKEUP_INTERVAL_S = 30.0  # the wall clock may have been changed
MAX_LATENESS_S = 600  # a later call, such as after a suspension, counts as missed


class BadSchedule(ValueError):
    """An invalid schedule. key: the configuration key, schedule or timezone."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def zone(name: str) -> ZoneInfo:
    """The time zone of that name. Raises BadSchedule."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadSchedule("timezone", f"{name!r} is not a time zone; write one such as UTC or Europe/Berlin") from None


def trigger(schedule: str, timezone: str) -> CronTrigger:
    """Trigger of a cron schedule in a time zone. Raises BadSchedule."""
    where = zone(timezone)
    try:
        return CronTrigger.from_crontab(schedule, timezone=where)
    except ValueError as problem:
        raise BadSchedule("schedule", f"{schedule!r}: {problem}; write five fields, such as 15 3 * * *") from None


def longest_gap_s(schedule: str, timezone: str, blackout: Collection[WeeklySpan] = ()) -> float | None:
    """Longest time in seconds between consecutive due times of the next five weeks, without those in `blackout`.

    None for fewer than two. Raises BadSchedule.
    """
    cron, where = trigger(schedule, timezone), zone(timezone)
    at: datetime | None = datetime.now(where)
    end, due_times = datetime.now(where) + timedelta(weeks=5), list[datetime]()
    while len(due_times) < MAX_DUE_TIMES and (at := cron.get_next_fire_time(at, at)) is not None and at < end:
        if not any(span.contains(at) for span in blackout):
            due_times.append(at)
        at += timedelta(seconds=1)
    return max(((after - before).total_seconds() for before, after in pairwise(due_times)), default=None)


@cache
def max_due_times(
    schedule: str, timezone: str, blackout: tuple[WeeklySpan, ...], min_gap_s: float, within_s: float
) -> int:
    """Maximum number of due times in any span of `within_s`, over five weeks from the first. Raises BadSchedule.

    Due times in `blackout`, or sooner than `min_gap_s` after a counted one, do not count.
    """
    cron, where = trigger(schedule, timezone), zone(timezone)
    begin = at = cron.get_next_fire_time(None, datetime.now(where))
    counted: list[float] = []
    while at is not None and at - begin < timedelta(weeks=5) and len(counted) < MAX_COUNTED_DUE_TIMES:
        next_s = at.timestamp() + 1.0
        if not any(span.contains(at) for span in blackout):
            counted.append(at.timestamp())
            next_s = at.timestamp() + max(1.0, min_gap_s)
        at = cron.get_next_fire_time(None, datetime.fromtimestamp(next_s, where))
    most = first = 0
    for last, due_s in enumerate(counted):
        while due_s - counted[first] >= within_s:
            first += 1
        most = max(most, last - first + 1)
    return most


class Cron:
    """Callbacks on cron schedules, one per key. Needs a running event loop."""

    def __init__(self) -> None:
        self._scheduler = AsyncIOScheduler(timezone=ZoneInfo("UTC"))
        self._due_s: dict[str, float] = {}
        self._missed: dict[str, Callable[[float], None]] = {}
        self._scheduler.add_listener(self._on_submitted, EVENT_JOB_SUBMITTED)
        self._scheduler.add_listener(self._on_missed, EVENT_JOB_MISSED)
        self._scheduler.start()
        self._wakeup_timer = asyncio.get_running_loop().call_later(WAKEUP_INTERVAL_S, self._wake_up)

    def set(
        self,
        key: str,
        schedule: str,
        timezone: str,
        on_due: Callable[[float], None],
        on_missed: Callable[[float], None] = lambda _: None,
    ) -> None:
        """Set the schedule of `key`, replacing an earlier one. Raises BadSchedule.

        on_due: called with the due time (Unix seconds).
        on_missed: called instead if the due time is over MAX_LATENESS_S ago.
        """

        async def run_on_loop() -> None:  # the scheduler would run a plain function in a thread
            on_due(self._due_s[key])

        self._scheduler.add_job(
            run_on_loop,
            trigger(schedule, timezone),
            id=key,
            replace_existing=True,
            coalesce=True,
            max_instances=1,
            misfire_grace_time=MAX_LATENESS_S,
        )
        self._missed[key] = on_missed

    def remove(self, key: str) -> None:
        """Remove the schedule of `key`."""
        if self._scheduler.get_job(key):
            self._scheduler.remove_job(key)

    def next(self, key: str) -> datetime | None:
        """Next due time of `key`, None without one."""
        job = self._scheduler.get_job(key)
        return job.next_run_time if job else None

    def _on_submitted(self, event: JobSubmissionEvent) -> None:
        """Record the due time: the job itself does not get it."""
        self._due_s[event.job_id] = event.scheduled_run_times[-1].timestamp()

    def _on_missed(self, event: JobExecutionEvent) -> None:
        if (on_missed := self._missed.get(event.job_id)) is not None:
            on_missed(event.scheduled_run_time.timestamp())

    def _wake_up(self) -> None:
        self._scheduler.wakeup()
        self._wakeup_timer = asyncio.get_running_loop().call_later(WAKEUP_INTERVAL_S, self._wake_up)

    def stop(self) -> None:
        """Stop all schedules."""
        self._wakeup_timer.cancel()
        self._scheduler.shutdown(wait=False)
