"""Cron in an explicit time zone. A job only calls back.

The wall clock may be changed. If it is set forward past a due time, the call is late or, after more than MAX_LATENESS_S, reported as
missed; if it is set back, a due time is not called again.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import islice, pairwise
from math import inf
from typing import TYPE_CHECKING

from prober.net.clock import Clock
from prober.workload.schedule import WeeklySpan, trigger

if TYPE_CHECKING:
    from apscheduler.triggers.cron import CronTrigger

COUNTED_S = 5 * 7 * 86_400.0
MAX_DUE_TIMES = 2_000
MAX_COUNTED_DUE_TIMES = 12_000  # over a week of one a minute
WAKEUP_INTERVAL_S = 30.0  # the wall clock may have been changed
MAX_LATENESS_S = 600  # a later call, such as after a suspension, counts as missed
log = logging.getLogger(__name__)


def longest_gap_s(schedule: str, timezone: str, blackout: Collection[WeeklySpan], from_unix_s: float) -> float | None:
    """Longest time in seconds between consecutive due times of the next five weeks, without those in `blackout`.

    None for fewer than two.
    """
    cron = trigger(schedule, timezone)
    due_times = islice(_due_times(cron, blackout, from_unix_s, from_unix_s + COUNTED_S), MAX_DUE_TIMES)
    return max((after_s - before_s for before_s, after_s in pairwise(due_times)), default=None)


@cache
def shortest_gap_s(schedule: str, timezone: str, blackout: tuple[WeeklySpan, ...], min_gap_s: float) -> float | None:
    """Shortest time in seconds between due times of five weeks, without those in `blackout` or within `min_gap_s` of the last.

    None for fewer than two.
    """
    cron = trigger(schedule, timezone)
    begin_s = _next_s(cron, time.time())
    due_times = islice(_due_times(cron, blackout, begin_s, begin_s + COUNTED_S, min_gap_s), MAX_DUE_TIMES)
    return min((after_s - before_s for before_s, after_s in pairwise(due_times)), default=None)


@cache
def max_due_times(
    schedule: str, timezone: str, blackout: tuple[WeeklySpan, ...], min_gap_s: float, within_s: float
) -> int:
    """Maximum number of due times in any span of `within_s`, over five weeks from the first.

    Due times in `blackout`, or sooner than `min_gap_s` after a counted one, do not count.
    """
    cron = trigger(schedule, timezone)
    begin_s = _next_s(cron, time.time())
    counted = list(islice(_due_times(cron, blackout, begin_s, begin_s + COUNTED_S, min_gap_s), MAX_COUNTED_DUE_TIMES))
    most = first = 0
    for last, due_s in enumerate(counted):
        while due_s - counted[first] >= within_s:
            first += 1
        most = max(most, last - first + 1)
    return most


@dataclass(slots=True)
class _Job:
    """A schedule and its callbacks. next_s: Unix seconds, infinite without another due time; delay_s: of each call."""

    trigger: "CronTrigger"
    next_s: float
    on_due: Callable[[float], None]
    on_missed: Callable[[float], None]
    delay_s: float


class Cron:
    """Callbacks on cron schedules, one per key. Needs a running event loop."""

    def __init__(self, clock: Clock) -> None:
        self._unix_s = clock.unix_s
        self._jobs: dict[str, _Job] = {}
        self._timer: asyncio.TimerHandle | None = None

    def set(
        self,
        key: str,
        schedule: str,
        timezone: str,
        on_due: Callable[[float], None],
        on_missed: Callable[[float], None],
        delay_s: float = 0.0,
    ) -> None:
        """Set the schedule of `key`, replacing an earlier one.

        on_due: called with the due time (Unix seconds), `delay_s` after it.
        on_missed: called instead if that was over MAX_LATENESS_S ago.
        """
        cron = trigger(schedule, timezone)
        job = self._jobs[key] = _Job(cron, _next_s(cron, self._unix_s()), on_due, on_missed, delay_s)
        self._wake_up_at(job.next_s + delay_s)

    def remove(self, key: str) -> None:
        """Remove the schedule of `key`."""
        self._jobs.pop(key, None)

    def stop(self) -> None:
        """Stop all schedules."""
        self._jobs.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _run_due(self) -> None:
        """Call back for the latest due time of each schedule that has passed, and wake up for the next one."""
        self._timer, now_s = None, self._unix_s()
        for key, job in list(self._jobs.items()):
            due_s, delayed_s = None, now_s - job.delay_s
            while job.next_s <= delayed_s:
                due_s = job.next_s
                job.next_s = _next_s(job.trigger, max(due_s + 1.0, delayed_s - MAX_LATENESS_S))
            if due_s is not None and self._jobs.get(key) is job:
                try:
                    (job.on_due if delayed_s - due_s <= MAX_LATENESS_S else job.on_missed)(due_s)
                except Exception:
                    log.exception("schedule of %s: the call failed; please report this", key)
        self._wake_up_at(min((job.next_s + job.delay_s for job in self._jobs.values()), default=inf))

    def _wake_up_at(self, unix_s: float) -> None:
        """Wake up at this time, unless an earlier wake-up is set: in WAKEUP_INTERVAL_S at the latest."""
        loop = asyncio.get_running_loop()
        wait_s = max(0.0, min(unix_s - self._unix_s(), WAKEUP_INTERVAL_S))
        if self._timer is not None:
            if self._timer.when() <= loop.time() + wait_s:
                return
            self._timer.cancel()
        self._timer = loop.call_later(wait_s, self._run_due)


def _next_s(cron: "CronTrigger", from_s: float) -> float:
    """First due time at `from_s` (Unix seconds) or later; infinite if there is none."""
    at = cron.get_next_fire_time(None, datetime.fromtimestamp(from_s, cron.timezone))
    return inf if at is None else float(at.timestamp())


def _due_times(
    cron: "CronTrigger", blackout: Collection[WeeklySpan], from_s: float, until_s: float, min_gap_s: float = 0.0
) -> Iterator[float]:
    """Due times in Unix seconds at least `min_gap_s` apart, without those in `blackout`."""
    while (due_s := _next_s(cron, from_s)) < until_s:
        is_allowed = not any(span.contains(datetime.fromtimestamp(due_s, cron.timezone)) for span in blackout)
        if is_allowed:
            yield due_s
        from_s = due_s + (max(1.0, min_gap_s) if is_allowed else 1.0)
