"""Cron, in the time zone that is said."""

import asyncio
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from apscheduler.triggers.date import DateTrigger

from prober.features.capacity import cron as module
from prober.features.capacity.cron import BadSchedule, Cron, longest_gap_s, max_due_times, trigger
from prober.workload.blackout import parse_weekly_span


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
        ("15 3 * * *", "Mars", "timezone", "'Mars' is not a time zone; write one such as UTC or Europe/Berlin"),
        ("15 3 * * *", "../etc", "timezone", "is not a time zone"),
    ],
)
def test_what_is_no_schedule_is_told(schedule: str, timezone: str, key: str, message: str) -> None:
    """With what is wrong and what to write."""
    with pytest.raises(BadSchedule, match=message) as told:
        trigger(schedule, timezone)
    assert told.value.key == key


def test_the_longest_gap_between_due_times() -> None:
    """Over a weekend, and where a blackout swallows some."""
    day = 86_400
    assert longest_gap_s("0 3 * * *", "UTC") == day
    assert longest_gap_s("0 3 * * mon-fri", "UTC") == 3 * day
    assert longest_gap_s("0 * * * *", "UTC", [parse_weekly_span("08:00-20:00")]) == 13 * 3600
    assert longest_gap_s("0 3 * * *", "UTC", [parse_weekly_span("00:00-24:00")]) is None


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


async def test_each_key_has_one_schedule_until_it_is_removed() -> None:
    """A key has one schedule at a time."""
    cron = Cron()
    try:
        cron.set("a", "0 0 1 1 *", "UTC", lambda _: None)
        first = cron.next("a")
        cron.set("a", "0 0 2 1 *", "UTC", lambda _: None)
        second = cron.next("a")
        assert first is not None
        assert second is not None
        assert (first.day, second.day) == (1, 2)
        cron.remove("a")
        cron.remove("a")
        assert cron.next("a") is None
        await asyncio.sleep(0)
    finally:
        cron.stop()


async def test_callbacks_run_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A callback can start a task, which is impossible in a thread; it gets the due time, not the time of the call."""
    due = datetime.now(UTC) - timedelta(seconds=30)
    monkeypatch.setattr(module, "trigger", lambda schedule, timezone: DateTrigger(due))
    begun = asyncio.get_running_loop().create_future()
    cron = Cron()
    try:
        cron.set("a", "* * * * *", "UTC", lambda due_s: begun.set_result((asyncio.get_running_loop(), due_s)))
        assert await asyncio.wait_for(begun, 10) == (asyncio.get_running_loop(), due.timestamp())
    finally:
        cron.stop()


async def test_a_due_time_that_the_clock_skips_is_reported_as_missed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over the allowed lateness: reported as missed with the due time; a smaller lateness still calls back."""
    monkeypatch.setattr(module, "WAKEUP_INTERVAL_S", 0.02)
    cron = Cron()
    rung: list[float] = []
    missed: list[float] = []
    cron.set("a", "15 3 * * *", "UTC", rung.append, missed.append)
    cron.set("b", "15 3 * * *", "UTC", rung.append, missed.append)
    now = datetime.now(UTC)
    long_ago, just_now = now - timedelta(hours=1), now - timedelta(minutes=1)
    cron._scheduler.get_job("a").modify(next_run_time=long_ago)
    cron._scheduler.get_job("b").modify(next_run_time=just_now)
    while not (rung and missed):  # noqa: ASYNC110 - two things are waited for
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    cron.stop()
    assert rung == [just_now.timestamp()]
    assert missed == [long_ago.timestamp()]


async def test_the_scheduler_wakes_up_regularly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a schedule that was hours away by the old clock would sleep through its time by the new one."""
    monkeypatch.setattr(module, "WAKEUP_INTERVAL_S", 0.01)
    cron = Cron()
    looks: list[int] = []
    wakeup = cron._scheduler.wakeup

    def look() -> None:
        looks.append(1)
        wakeup()

    monkeypatch.setattr(cron._scheduler, "wakeup", look)
    while len(looks) < 3:  # noqa: ASYNC110 - three times the same
        await asyncio.sleep(0.01)
    cron.stop()
