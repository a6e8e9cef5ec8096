"""Cron, in the time zone that is said."""

import asyncio
from datetime import UTC, datetime
from typing import cast
from zoneinfo import ZoneInfo

import pytest

from prober.features.capacity.cron import (
    MAX_LATENESS_S,
    WAKEUP_INTERVAL_S,
    Cron,
    longest_gap_s,
    max_due_times,
)
from prober.net.clock import Clock
from prober.workload.schedule import parse_weekly_span, trigger
from tests.virtual import START_S

pytestmark = pytest.mark.virtual_time
HOUR_S, DAY_S = 3600.0, 86_400.0
BEGIN_S = datetime(2026, 3, 2, tzinfo=UTC).timestamp()
DUE_S = BEGIN_S + 3.25 * HOUR_S


def test_a_schedule_is_in_its_own_time_zone() -> None:
    """A quarter past three in Berlin, summer and winter."""
    at = trigger("15 3 * * *", "Europe/Berlin")
    for day, hour in (("2026-07-01", 1), ("2026-12-01", 2)):
        after = datetime.fromisoformat(f"{day}T00:00+00:00")
        rings = at.get_next_fire_time(None, after).astimezone(ZoneInfo("UTC"))
        assert (rings.hour, rings.minute) == (hour, 15)


def test_the_longest_gap_between_due_times() -> None:
    """Over a weekend, and where a blackout swallows some."""
    day = 86_400
    assert longest_gap_s("0 3 * * *", "UTC", [], BEGIN_S) == day
    assert longest_gap_s("0 3 * * mon-fri", "UTC", [], BEGIN_S) == 3 * day
    assert longest_gap_s("0 * * * *", "UTC", [parse_weekly_span("08:00-20:00")], BEGIN_S) == 13 * 3600
    assert longest_gap_s("0 3 * * *", "UTC", [parse_weekly_span("00:00-24:00")], BEGIN_S) is None


@pytest.mark.parametrize(
    ("schedule", "blackout", "min_gap_s", "a_day"),
    [
        ("15 3 * * *", "", 0, 1),
        ("15 3 * * *", "", 6 * 3600, 1),
        ("0 0,3,4 * * *", "", 0, 3),
        ("0 * * * *", "", 6 * 3600, 4),
        ("*/5 * * * *", "", 240, 288),
        ("* * * * *", "", 0, 1440),
        ("0 * * * *", "08:00-20:00", 0, 12),
        ("0 3 * * sat,sun", "", 0, 1),
        ("0 3 1 1 *", "", 0, 1),
        ("0 3 * * *", "00:00-24:00", 0, 0),
    ],
)
def test_how_often_it_may_ring_in_a_day(schedule: str, blackout: str, min_gap_s: float, a_day: int) -> None:
    """Of the busiest day in five weeks, without what a blackout or the gap after another one swallows."""
    spans = (parse_weekly_span(blackout),) if blackout else ()
    assert max_due_times(schedule, "Europe/Berlin", spans, min_gap_s, 86_400) == a_day


def test_once_a_day_is_twice_in_somewhat_more_than_a_day() -> None:
    """At the same time on the next day."""
    assert max_due_times("15 3 * * *", "UTC", (), 0, 25 * 3600) == 2


class Wall:
    """A wall clock in the time of the loop, ahead of it by `ahead_s`."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def unix_s(self) -> float:
        return BEGIN_S + asyncio.get_running_loop().time() - START_S + self.ahead_s


class Rung:
    """The daily schedule 03:15 UTC from `BEGIN_S` on, and its calls."""

    def __init__(self, schedule: str = "15 3 * * *", delay_s: float = 0.0) -> None:
        self.wall = Wall()
        self.cron = Cron(cast(Clock, self.wall))
        self.calls: list[float] = []
        self.missed: list[float] = []
        self.cron.set("a", schedule, "UTC", self.calls.append, self.missed.append, delay_s)


async def test_each_key_has_one_schedule_until_it_is_removed() -> None:
    """A key has one schedule at a time."""
    rung = Rung()
    rung.cron.set("a", "0 4 * * *", "UTC", rung.calls.append, rung.missed.append)
    await asyncio.sleep(DAY_S)
    assert rung.calls == [BEGIN_S + 4 * HOUR_S]
    rung.cron.remove("a")
    rung.cron.remove("a")
    await asyncio.sleep(DAY_S)
    assert len(rung.calls) == 1


async def test_a_callback_gets_its_due_time_at_that_time() -> None:
    """Once a day; a callback that fails ends neither its schedule nor others."""
    rung = Rung()
    at: list[float] = []

    def fail(due_s: float) -> None:
        at.append(rung.wall.unix_s())
        raise ZeroDivisionError

    rung.cron.set("b", "15 3 * * *", "UTC", fail, rung.missed.append)
    await asyncio.sleep(3 * DAY_S)
    assert rung.calls == [DUE_S, DUE_S + DAY_S, DUE_S + 2 * DAY_S]
    assert at == pytest.approx(rung.calls, abs=0.001)
    assert rung.missed == []


@pytest.mark.parametrize(("late_s", "is_called"), [(MAX_LATENESS_S - 60, True), (MAX_LATENESS_S + 60, False)])
async def test_a_due_time_that_the_clock_is_set_over_is_called_late_or_missed(late_s: float, is_called: bool) -> None:
    """Once, with its due time, and within half a minute although the schedule was hours away by the old clock."""
    rung = Rung()
    rung.wall.ahead_s = DUE_S + late_s - BEGIN_S
    await asyncio.sleep(30.0)
    assert (rung.calls, rung.missed) == (([DUE_S], []) if is_called else ([], [DUE_S]))
    await asyncio.sleep(HOUR_S)
    assert len(rung.calls + rung.missed) == 1


async def test_of_several_due_times_that_have_passed_the_latest_is_called() -> None:
    """After a suspension a schedule of every minute is called once."""
    rung = Rung("* * * * *")
    rung.wall.ahead_s = 5 * DAY_S + 30
    await asyncio.sleep(1.0)
    assert rung.calls == [BEGIN_S + 5 * DAY_S]


async def test_a_clock_that_is_set_back_calls_no_due_time_again() -> None:
    """The next day it is called as usual."""
    rung = Rung()
    await asyncio.sleep(4 * HOUR_S)
    rung.wall.ahead_s = -2 * HOUR_S
    await asyncio.sleep(4 * HOUR_S)
    assert rung.calls == [DUE_S]
    await asyncio.sleep(DAY_S)
    assert rung.calls == [DUE_S, DUE_S + DAY_S]


@pytest.mark.parametrize("schedule", ["15 3 * * *", "* * * * *"])
async def test_a_delay_moves_the_call_and_not_its_due_time(schedule: str) -> None:
    """Also one that is longer than the period."""
    rung = Rung(schedule, delay_s=90.0)
    first_s = BEGIN_S if schedule.startswith("*") else DUE_S
    await asyncio.sleep(first_s - BEGIN_S + 89.0)
    assert rung.calls == []
    await asyncio.sleep(2.0)
    assert rung.calls == [first_s]


@pytest.mark.parametrize(("late_s", "is_called"), [(MAX_LATENESS_S + 60, True), (MAX_LATENESS_S + 120, False)])
async def test_a_delayed_call_is_missed_by_its_delayed_time(late_s: float, is_called: bool) -> None:
    rung = Rung(delay_s=90.0)
    rung.wall.ahead_s = DUE_S + late_s - BEGIN_S
    await asyncio.sleep(WAKEUP_INTERVAL_S)
    assert (rung.calls, rung.missed) == (([DUE_S], []) if is_called else ([], [DUE_S]))
