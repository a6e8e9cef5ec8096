"""Alarms of the precise clock."""

import asyncio
from typing import Any

import pytest

from prober.net.clock import BEAT_NS, Clock
from tests.processes import HANG_S
from tests.virtual import VirtualClock, VirtualLoop

MS = 1_000_000


async def test_alarms_ring_in_order_and_never_early() -> None:
    """Each alarm is called at or after its time, in the order of their times."""
    clock = Clock()
    start = clock.now_ns()
    rung: list[Any] = []
    done = asyncio.Event()
    for after in (6, 2, 4):
        clock.call_at(start + after * MS, lambda after=after: rung.append((after, clock.now_ns())))  # type: ignore[misc]
    clock.call_at(start + 8 * MS, done.set)
    await done.wait()
    clock.close()
    assert [after for after, _ in rung] == [2, 4, 6]
    assert all(at >= start + after * MS for after, at in rung)


async def test_an_alarm_set_by_an_alarm_does_not_delay_an_earlier_one() -> None:
    """A callback that sets a late alarm leaves the ones due before it as they were."""
    clock = Clock()
    start = clock.now_ns()
    rung: list[Any] = []
    first = asyncio.Event()

    def late() -> None:
        clock.call_at(start + 60_000 * MS, lambda: rung.append("late"))

    clock.call_at(start + 1 * MS, late)
    clock.call_at(start + 3 * MS, first.set)
    await asyncio.wait_for(first.wait(), HANG_S)
    clock.close()
    assert rung == []


async def test_an_alarm_that_fails_is_logged_and_the_others_still_ring(caplog: pytest.LogCaptureFixture) -> None:
    """An exception in the callback of one target leaves the clock armed for all others."""
    clock = Clock()
    rung = asyncio.Event()

    def fail() -> None:
        raise ZeroDivisionError

    clock.call_at(clock.now_ns() + MS, fail)
    clock.call_at(clock.now_ns() + 5 * MS, rung.set)
    await asyncio.wait_for(rung.wait(), HANG_S)
    clock.close()
    assert "ZeroDivisionError" in caplog.text


async def test_a_cancelled_alarm_stays_silent() -> None:
    """A cancelled alarm is not called; a past one is called as soon as the loop runs."""
    clock = Clock()
    rung: list[str] = []
    done = asyncio.Event()
    clock.call_at(clock.now_ns() + MS, lambda: rung.append("cancelled")).cancel()
    clock.call_at(clock.now_ns() - MS, lambda: rung.append("past"))
    clock.call_at(clock.now_ns() + 2 * MS, done.set)
    await done.wait()
    clock.close()
    assert rung == ["past"]


async def test_sleeping_until_a_past_time_returns_at_once() -> None:
    """A sleeper whose time has passed is not put to sleep, so a backlog is worked off."""
    clock = Clock()
    await asyncio.wait_for(clock.sleep_until(clock.now_ns() - MS), HANG_S)
    before = clock.now_ns()
    await clock.sleep_until(before + 2 * MS)
    assert clock.now_ns() >= before + 2 * MS
    clock.close()


@pytest.mark.virtual_time
async def test_a_standstill_is_known_to_who_began_before_its_end() -> None:
    """Before any alarm has rung, too, and by an alarm that nobody waits for any more; not to who begins afterwards."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    for is_cancelled in (False, True):
        clock = VirtualClock()
        before = clock.now_ns()
        alarm = clock.call_at(before + 10 * MS, lambda: None)
        if is_cancelled:
            alarm.cancel()
        loop.stand_still(1.5)
        assert clock.stood_still(before), "though no alarm has rung yet"
        await asyncio.sleep(0.5)
        assert clock.stood_still(before)
        after = clock.now_ns()
        await asyncio.sleep(5)
        assert clock.stood_still(before)
        assert not clock.stood_still(after)
        clock.close()


@pytest.mark.virtual_time
async def test_a_busy_loop_is_no_standstill() -> None:
    """Half a second is less than any time after which a server gives up; an alarm that is set too late is not late."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    clock = VirtualClock()
    before, rung = clock.now_ns(), asyncio.Event()
    clock.call_at(before + 10 * MS, lambda: None)
    clock.call_at(before - 60_000 * MS, rung.set)
    loop.stand_still(0.5)
    await rung.wait()
    assert not clock.stood_still(before)
    clock.close()


@pytest.mark.virtual_time
async def test_the_clock_beats_once_a_second_and_says_how_late() -> None:
    """However long it stood still: one late beat, and the next ones a second apart again."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    clock, beats = VirtualClock(beat_ns=BEAT_NS), list[tuple[float, float]]()
    begin_s = loop.time()
    clock.on_beat = lambda late_s: beats.append((round(loop.time() - begin_s, 3), round(late_s, 3)))
    await asyncio.sleep(2.5)
    loop.stand_still(4)
    await asyncio.sleep(2.25)
    clock.close()
    assert beats == [(0, 0), (1, 0), (2, 0), (6.5, 3.5), (7.5, 0), (8.5, 0)]
