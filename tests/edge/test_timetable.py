"""Cron, in the time zone that is said."""

import asyncio
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from apscheduler.triggers.date import DateTrigger

from prober.edge import timetable as module
from prober.edge.timetable import BadSchedule, Timetable, longest_gap_s, trigger
from prober.limits.calendar import span


def test_a_schedule_is_in_its_own_time_zone() -> None:
    """A quarter past three in Berlin, summer and winter."""
    at = trigger("15 3 * * *", "Europe/Berlin")
    for day, hour in (("2026-07-01", 1), ("2026-12-01", 2)):
        after = datetime.fromisoformat(f"{day}T00:00+00:00")
        rings = at.get_next_fire_time(None, after).astimezone(ZoneInfo("UTC"))
        assert (rings.hour, rings.minute) == (hour, 15)


@pytest.mark.parametrize(
    ("schedule", "timezone", "key", "message"),
    [
        ("at night", "UTC", "schedule", "'at night': Wrong number of fields; got 2, expected 5; write five fields"),
        ("61 3 * * *", "UTC", "schedule", "'61 3"),
        ("15 3 * * *", "Mars", "timezone", "'Mars' is no time zone; write one like UTC or Europe/Berlin"),
        ("15 3 * * *", "../etc", "timezone", "is no time zone"),
    ],
)
def test_what_is_no_schedule_is_told(schedule: str, timezone: str, key: str, message: str) -> None:
    """With what is wrong and what to write."""
    with pytest.raises(BadSchedule, match=message) as told:
        trigger(schedule, timezone)
    assert told.value.key == key


def test_the_longest_gap_between_rings() -> None:
    """Over a weekend, and where a blackout swallows some."""
    day = 86_400
    assert longest_gap_s("0 3 * * *", "UTC") == day
    assert longest_gap_s("0 3 * * mon-fri", "UTC") == 3 * day
    assert longest_gap_s("0 * * * *", "UTC", [span("08:00-20:00")]) == 13 * 3600
    assert longest_gap_s("0 3 * * *", "UTC", [span("00:00-24:00")]) is None


async def test_it_rings_for_each_key_and_no_more_once_removed() -> None:
    """A key has one schedule at a time."""
    timetable = Timetable()
    try:
        timetable.set("a", "0 0 1 1 *", "UTC", lambda: None)
        first = timetable.next("a")
        timetable.set("a", "0 0 2 1 *", "UTC", lambda: None)
        second = timetable.next("a")
        assert first is not None
        assert second is not None
        assert (first.day, second.day) == (1, 2)
        timetable.remove("a")
        timetable.remove("a")
        assert timetable.next("a") is None
        await asyncio.sleep(0)
    finally:
        timetable.stop()


async def test_it_rings_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """What rings may begin a task, which a thread cannot."""
    monkeypatch.setattr(module, "trigger", lambda schedule, timezone: DateTrigger(datetime.now(UTC)))
    begun = asyncio.get_running_loop().create_future()
    timetable = Timetable()
    try:
        timetable.set("a", "* * * * *", "UTC", lambda: begun.set_result(asyncio.get_running_loop()))
        assert await asyncio.wait_for(begun, 10) is asyncio.get_running_loop()
    finally:
        timetable.stop()
