"""When a target is swept: due times of its schedule, and whether a sweep may start now, or why not.

Pure: `TargetSweeps` reads clocks, lease and store, and calls this when a sweep is wanted and again before it begins.
The wall clock may change. If set forward past a due time, the sweep is late, or after MAX_LATENESS_S missed; if
set back, a due time does not recur.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice, pairwise
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from prober.config.sweep import SweepSpec
from prober.features.capacity.actions import Refused, StartRequest
from prober.measure.target_state import TargetState
from prober.workload.schedule import WeeklySpan, trigger, zone

if TYPE_CHECKING:
    from apscheduler.triggers.cron import CronTrigger

COUNTED_S = 5 * 7 * 86_400.0
MAX_DUE_TIMES = 2_000  # per period: a schedule of every minute would take half a second
MAX_LATENESS_S = 600  # a later start, such as after a suspension, is missed
CLOCKS_DIFFER_S = 1.0  # a schedule follows the wall clock, a gap the monotonic one


class DueTime(NamedTuple):
    """A due time that has passed. late_s: seconds since then, without the schedule's delay"""

    unix_s: float
    late_s: float

    @property
    def is_missed(self) -> bool:
        """True if it is too late to start."""
        return self.late_s > MAX_LATENESS_S


class SweepSchedule:
    """Due times of a target's sweeps. delay_s: from a due time to the start"""

    def __init__(self, schedule: str, timezone: str, unix_s: float, delay_s: float = 0.0) -> None:
        self._cron, self._delay_s = trigger(schedule, timezone), delay_s
        self._due_s = _next_s(self._cron, unix_s)

    @property
    def next_s(self) -> float:
        """Unix seconds of the next start; infinite without another due time."""
        return self._due_s + self._delay_s

    def due(self, unix_s: float) -> DueTime | None:
        """Latest due time whose start has passed at `unix_s`; None without one. Each is returned once."""
        due_s, delayed_s = None, unix_s - self._delay_s
        while self._due_s <= delayed_s:
            due_s = self._due_s
            self._due_s = _next_s(self._cron, max(due_s + 1.0, delayed_s - MAX_LATENESS_S))
        return None if due_s is None else DueTime(due_s, delayed_s - due_s)


@dataclass(frozen=True, slots=True)
class Situation:
    """The facts that decide whether a sweep of a target may start.

    spec: configuration of its sweeps; None without one, or if the target was removed
    unix_s: the present time
    lease: name of the lease, "" without one; holder: last known holder, "" if unknown; is_leader: this prober holds it
    claim_unix_s: due time of the last sweep that any replica claimed at the lease, 0 without one; claim_seen_s: seconds since it was
    first seen
    running: name of another target that is being swept; "" for none
    start_age_s: seconds since this prober's last sweep started; quiet_s: remaining seconds of a pause that the target requested
    state: state of the target; is_paused: by a person, or because its server ends
    shortage: what the daily budgets lack for a warm-up; "" if nothing
    """

    spec: SweepSpec | None
    unix_s: float
    lease: str = ""
    holder: str = ""
    is_leader: bool = True
    claim_unix_s: float = 0.0
    claim_seen_s: float = 0.0
    running: str = ""
    start_age_s: float = inf
    quiet_s: float = 0.0
    state: TargetState = TargetState.READY
    is_paused: bool = False
    shortage: str = ""

    @property
    def last_start_age_s(self) -> float:
        """Seconds since the last sweep started, on any replica. A claim in the future, from a wrong clock, counts from when it was
        first seen.
        """
        since_s = self.unix_s - self.claim_unix_s
        return min(self.start_age_s, since_s if since_s >= 0 else self.claim_seen_s)


def refusal(request: StartRequest, at: Situation) -> Refused | None:
    """Why no sweep may start, by the first unmet condition; None: it may."""
    spec, is_asked = at.spec, request.trigger == "request"
    if not at.is_leader:
        holder = at.holder or "nobody that is known"
        return Refused("no_lease", f"lease {at.lease} is held by {holder}; only its holder sweeps")
    # A claim from the far future, from a wrong clock, does not count.
    if 0 < request.due_unix_s <= at.claim_unix_s <= at.unix_s + MAX_LATENESS_S:
        return Refused("no_lease", "another replica began the one that was due")
    if at.running:
        wait = "one at a time" if is_asked else "this one waits for its end"
        return Refused("running", f"a sweep of {at.running!r} is under way; {wait}")
    if spec is None:
        return Refused("not_configured", "the target was removed")
    # An engine that changed is swept soon, see `TargetSweeps`.
    if request.trigger == "schedule" and at.last_start_age_s < spec.min_gap - CLOCKS_DIFFER_S:
        return Refused("min_gap", f"the last one began {at.last_start_age_s:.0f} s ago; min_gap is {spec.min_gap:g} s")
    if at.quiet_s > 0:
        return Refused("retry_after", f"the target asks to be left alone for {at.quiet_s:.0f} s more (Retry-After)")
    local = datetime.fromtimestamp(at.unix_s, zone(spec.timezone))
    if any(span.contains(local) for span in spec.blackout):
        return Refused("blackout", f"{local:%a %H:%M} is in sweep.blackout")
    if at.is_paused:
        return Refused("not_ready", "the target is paused")
    if at.state is not TargetState.READY:
        return Refused("not_ready", f"the target is {at.state}")
    return Refused("over_budget", at.shortage) if at.shortage else None


def longest_gap_s(schedule: str, timezone: str, blackout: tuple[WeeklySpan, ...], from_unix_s: float) -> float | None:
    """Longest time in seconds between due times in the next five weeks, outside `blackout`; None for under two."""
    times = due_times(schedule, timezone, blackout, from_unix_s, most=MAX_DUE_TIMES)
    return max((after_s - before_s for before_s, after_s in pairwise(times)), default=None)


def due_times(
    schedule: str,
    timezone: str,
    blackout: tuple[WeeklySpan, ...],
    from_unix_s: float,
    min_gap_s: float = 0.0,
    most: int | None = None,
) -> tuple[float, ...]:
    """Due times in Unix seconds over five weeks from the first, outside `blackout` and at least `min_gap_s` apart.

    most: maximum number of due times
    """
    cron = trigger(schedule, timezone)

    def allowed() -> Iterator[float]:
        from_s = _next_s(cron, from_unix_s)
        until_s = from_s + COUNTED_S
        while (due_s := _next_s(cron, from_s)) < until_s:
            is_allowed = not any(span.contains(datetime.fromtimestamp(due_s, cron.timezone)) for span in blackout)
            if is_allowed:
                yield due_s
            from_s = due_s + (max(1.0, min_gap_s) if is_allowed else 1.0)

    return tuple(islice(allowed(), most))


def _next_s(cron: "CronTrigger", from_s: float) -> float:
    """First due time at or after `from_s` (Unix seconds); infinite without one."""
    at = cron.get_next_fire_time(None, datetime.fromtimestamp(from_s, cron.timezone))
    return inf if at is None else float(at.timestamp())
