"""Waking coroutines at absolute times of the monotonic clock, to some tens of microseconds.

The timers of event loops count in milliseconds, and uvloop's may even fire early. On Linux one timerfd serves all waiters;
elsewhere the loop's timer does, and writes are up to 2 ms late (never early, and stamped truly all the same).
"""

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

_CLOCK_MONOTONIC, _TFD_NONBLOCK, _TFD_CLOEXEC, _TFD_TIMER_ABSTIME = 1, 0o4000, 0o2000000, 1


class Pacer:
    """One alarm for any number of waiters. Belongs to the running loop; `close` it before that ends."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._number = count()
        self._alarm = _TimerFd(self._ring) if sys.platform == "linux" else _LoopTimer(self._ring)

    async def until(self, due_ns: int) -> None:
        """Return at `due_ns` of the monotonic clock, never before; at once if that is past."""
        if due_ns <= time.monotonic_ns():
            return
        future = self._loop.create_future()
        entry = (due_ns, next(self._number), future)
        heappush(self._waiting, entry)
        if self._waiting[0] is entry:
            self._alarm.set(due_ns)
        await future

    def close(self) -> None:
        """Wakes no one any more."""
        self._alarm.close()

    def _ring(self) -> None:
        now_ns = time.monotonic_ns()
        waiting = self._waiting
        while waiting and waiting[0][0] <= now_ns:
            future = heappop(waiting)[2]
            if not future.done():
                future.set_result(None)
        self._alarm.set(waiting[0][0] if waiting else 0)


class _TimerFd:
    """Linux's timerfd through the C library (`os.timerfd_create` came with Python 3.13)."""

    def __init__(self, ring: Callable[[], None]) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._set_time = libc.timerfd_settime
        self._fd = libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, ring)
        self._spec = (ctypes.c_long * 4)()  # struct itimerspec: interval s, ns; value s, ns

    def set(self, due_ns: int) -> None:
        """Ring at `due_ns`; 0: not at all. Setting it anew also silences an alarm that is ringing."""
        self._spec[2], self._spec[3] = divmod(due_ns, 1_000_000_000)
        self._set_time(self._fd, _TFD_TIMER_ABSTIME, self._spec, None)

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)


class _LoopTimer:
    """The event loop's own timer, asked to be late rather than early."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None

    def set(self, due_ns: int) -> None:
        """Ring within 2 ms after `due_ns`; 0: not at all."""
        self.close()
        if due_ns:
            left_ms = -(-(due_ns - time.monotonic_ns()) // 1_000_000)
            self._handle = self._loop.call_later(max(0, left_ms) / 1000, self._ring)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
