"""The monotonic clock and its alarms, exact to tens of microseconds.

Event loops round timers to milliseconds (libuv and epoll both count in them), which at the intended time of a probe would be
the prober's own lateness. On Linux one timerfd, an absolute timer of the kernel in nanoseconds, wakes the loop instead;
elsewhere the loop's own timers serve and cost up to a millisecond.
"""

import asyncio
import ctypes
import heapq
import itertools
import os
import sys
import time
from collections import deque
from collections.abc import Callable

BEAT_NS = 250_000_000
REMEMBERED_NS = 600 * 10**9  # of lateness: longer than any probe takes
SLIGHT_NS = 1_000_000
_MONOTONIC, _NONBLOCK, _CLOEXEC, _ABSOLUTE = 1, 0o4000, 0o2000000, 1


class Alarm:
    """A call that is due, at the earliest when it is made; `cancel` forgets it."""

    __slots__ = ("callback", "due_ns")

    def __init__(self, due_ns: int, callback: Callable[[], None]) -> None:
        self.due_ns = due_ns
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Do not call."""
        self.callback = None


class Clock:
    """Alarms of one running event loop, and how late they are. `close` when done.

    A clock beats four times a second: a loop that is held up, or a process that is stopped, misses beats, and what it stamped
    then is not when it happened. heard: called with each beat, (now, seconds late).
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._heap: list[tuple[int, int, Alarm]] = []
        self._order = itertools.count()
        self._armed_ns: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.heard: Callable[[int, float], None] | None = None
        self._late: deque[tuple[int, int]] = (
            deque()
        )  # (when an alarm rang, how late), none of which is followed by a later one
        self._fd = _timerfd_create()
        if self._fd is not None:
            self._loop.add_reader(self._fd, self._woken)
        self._due_ns = self.now_ns()
        self._beat()

    @staticmethod
    def now_ns() -> int:
        """Nanoseconds of the monotonic clock, the one all stamps share."""
        return time.monotonic_ns()

    def call_at(self, due_ns: int, callback: Callable[[], None]) -> Alarm:
        """Call at `due_ns`, or as soon as the loop runs if that is past."""
        alarm = Alarm(max(due_ns, self.now_ns()), callback)
        heapq.heappush(self._heap, (due_ns, next(self._order), alarm))
        if self._armed_ns is None or due_ns < self._armed_ns:
            self._arm(due_ns)
        return alarm

    async def sleep_until(self, due_ns: int) -> None:
        """Return at `due_ns`, never before; at once if that is past."""
        if due_ns <= self.now_ns():
            return
        waiter = self._loop.create_future()
        alarm = self.call_at(due_ns, lambda: None if waiter.done() else waiter.set_result(None))
        try:
            await waiter
        finally:
            alarm.cancel()

    def late_s(self, since_ns: int) -> float:
        """The longest by which an alarm has rung too late since then, or is late now; short of the truth by a beat at most."""
        now = self.now_ns()
        overdue = max(0, now - self._heap[0][2].due_ns) if self._heap else 0
        return max(overdue, next((late for at, late in self._late if at >= since_ns), 0)) / 1e9

    def close(self) -> None:
        """Forget all alarms."""
        self._heap.clear()
        if self._timer:
            self._timer.cancel()
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def _beat(self) -> None:
        now = self.now_ns()
        if self.heard is not None:
            self.heard(now, (now - self._due_ns) / 1e9)
        self._due_ns = max(self._due_ns + BEAT_NS, now)
        self.call_at(self._due_ns, self._beat)

    def _rang(self, now: int, late: int) -> None:
        if late < SLIGHT_NS:
            return
        while self._late and self._late[-1][1] <= late:
            self._late.pop()  # whoever asks for the longest since an earlier moment is told the later one
        self._late.append((now, late))
        while self._late[0][0] < now - REMEMBERED_NS:
            self._late.popleft()

    def _arm(self, due_ns: int) -> None:
        self._armed_ns = due_ns
        if self._fd is not None:
            _timerfd_settime(self._fd, due_ns)
            return
        if self._timer:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(0.0, (due_ns - self.now_ns()) / 1e9), self._due)

    def _woken(self) -> None:
        try:
            os.read(self._fd or 0, 8)
        except BlockingIOError:
            return
        self._due()

    def _due(self) -> None:
        self._armed_ns = 0  # callbacks that set alarms need not arm: that is done once, below, for the earliest of all
        while self._heap and self._heap[0][0] <= self.now_ns():
            alarm = heapq.heappop(self._heap)[2]
            now = self.now_ns()
            self._rang(now, now - alarm.due_ns)
            if alarm.callback is not None:
                alarm.callback()
        self._armed_ns = None
        if self._heap:
            self._arm(self._heap[0][0])


class _Spec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _timerfd_create() -> int | None:
    if _libc is None:
        return None
    fd: int = _libc.timerfd_create(_MONOTONIC, _NONBLOCK | _CLOEXEC)
    return fd if fd >= 0 else None


def _timerfd_settime(fd: int, due_ns: int) -> None:
    due_ns = max(1, due_ns)  # zero would disarm it
    spec = _Spec(0, 0, due_ns // 10**9, due_ns % 10**9)
    assert _libc is not None
    if _libc.timerfd_settime(fd, _ABSOLUTE, ctypes.byref(spec), None) != 0:
        raise OSError(ctypes.get_errno(), "timerfd_settime")
