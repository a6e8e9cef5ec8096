"""Alarms of the precise clock."""

import asyncio
import time
from typing import Any

import pytest

from prober.net.clock import BEAT_NS, Clock
from tests.processes import HANG_S
from tests.virtual import VirtualClock

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


async def test_an_alarm_that_is_due_is_called_within_a_turn_of_the_loop() -> None:
    """A turn that reads many answers asks between two of them; an alarm is called once, and none within another one."""
    now_ns = MS
    clock = Clock(monotonic_ns=lambda: now_ns)
    rung: list[str] = []

    def first() -> None:
        clock.run_due()
        rung.append("first")

    for callback in (first, lambda: rung.append("second")):
        clock.call_at(60_000 * MS, callback)
    clock.run_due()
    assert rung == []
    now_ns = 60_000 * MS
    for _ in range(2):
        clock.run_due()
        assert rung == ["first", "second"]
    clock.close()


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


async def test_a_loop_that_was_held_up_is_known_to_have_been() -> None:
    """By as long as it was, less a beat; whoever begins afterwards is told nothing of it, and who asks first is told at once."""
    clock = Clock()
    heard: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    clock.on_beat = lambda _, late_s: heard.set_result(late_s) if late_s >= 0.2 and not heard.done() else None
    before = clock.now_ns()
    with clock.watched():
        await asyncio.sleep(0.01)
        time.sleep(0.5)  # the loop is held up, which is what is tested  # noqa: ASYNC251
        assert clock.late_s(before) >= 0.2, "though no alarm has rung yet"
        await asyncio.wait_for(heard, HANG_S)
    assert clock.late_s(before) >= 0.2
    after = clock.now_ns()
    assert clock.late_s(after) < clock.late_s(before)
    clock.close()


@pytest.mark.virtual_time
async def test_the_clock_beats_often_only_while_it_is_watched() -> None:
    """An idle prober wakes once a second; from the first request under way to the end of the last it is fifty times."""
    clock, beats = VirtualClock(beat_ns=BEAT_NS), list[int]()
    clock.on_beat = lambda now_ns, _: beats.append(now_ns)

    async def beats_of(seconds: float) -> int:
        beats.clear()
        await asyncio.sleep(seconds)
        return len(beats)

    await asyncio.sleep(0.3)
    assert await beats_of(10) == 10
    with clock.watched():
        with clock.watched():
            assert 99 <= await beats_of(2) <= 100
        assert 99 <= await beats_of(2) <= 100
    assert await beats_of(10) <= 11
    clock.close()


async def test_an_alarm_set_too_late_is_not_the_clock_s_lateness() -> None:
    """It rings at once, which is as soon as it can."""
    clock = Clock()
    done = asyncio.Event()
    before = clock.now_ns()
    clock.call_at(before - 60_000 * MS, done.set)
    await done.wait()
    assert clock.late_s(before) < 30
    clock.close()
