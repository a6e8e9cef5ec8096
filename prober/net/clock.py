"""Monotonic clock with alarms that are accurate to tens of microseconds, and times of arrival by the kernel in it.

Event loops round timers to milliseconds (epoll counts in them), which would delay probes. On Linux a timerfd, an
absolute kernel timer in nanoseconds, wakes the loop instead; elsewhere the loop's own timers cost up to a millisecond.

Linux stamps the segments of TCP on request (`SO_TIMESTAMPNS`), in the time of the wall clock; `recvmsg` returns the stamp beside the
bytes. Segments that are read together have the stamp of the last one. With kernel stamps it does not matter how late this process
reads. The time of reading is used, and counted as such, without a stamp (another system, gVisor) or if a step of the wall clock has
spoilt it.
"""

import asyncio
import contextlib
import ctypes
import heapq
import itertools
import logging
import os
import socket
import struct
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

SO_TIMESTAMPNS = 35  # of Linux (asm-generic), which Python does not name; also the kind of the ancillary data
_TIMESPEC = struct.Struct("ll")
ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)
MAX_READING_NS = 20_000  # between the readings of both clocks: a longer time would be an error of the stamp
MAX_READINGS = 3
MAX_DELAYS = 10_000  # that wait for their reader


class Stamps:
    """Timestamps the bytes that this process receives, and counts timestamps of the kernel and its own.

    kernel, process: number of reads that the kernel and this process have stamped
    delays_ns: time of reading − kernel stamp, for the reads since the last `take_delays`
    """

    def __init__(
        self,
        now_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
        *,
        by_kernel: bool = sys.platform == "linux",
    ) -> None:
        self.now_ns, self._wall_ns, self._by_kernel = now_ns, wall_ns, by_kernel
        self.kernel = self.process = 0
        self.delays_ns = array("q")

    def request(self, sock: socket.socket) -> None:
        """Ask the kernel to stamp what arrives on a socket, if it can."""
        if self._by_kernel:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

    def arrival_ns(self, ancillary: Iterable[tuple[int, int, bytes]], earliest_ns: int) -> tuple[int, bool]:
        """Returns (time of arrival of bytes that were read just now, True if it is a kernel stamp).

        ancillary: ancillary data of `recvmsg`; earliest_ns: time before which the bytes cannot have arrived
        """
        now_ns = self.now_ns()
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) == _TIMESPEC.size:
                wall_ns = self._wall_ns()
                for _ in range(MAX_READINGS):
                    if (then_ns := self.now_ns()) - now_ns <= MAX_READING_NS:
                        break
                    now_ns, wall_ns = then_ns, self._wall_ns()
                seconds, nanoseconds = _TIMESPEC.unpack(data)
                at_ns: int = now_ns - (wall_ns - seconds * 1_000_000_000 - nanoseconds)
                if earliest_ns - MAX_READING_NS <= at_ns <= now_ns:
                    at_ns = max(at_ns, earliest_ns)  # two readings of the clocks differ a little
                    self.kernel += 1
                    if len(self.delays_ns) < MAX_DELAYS:
                        self.delays_ns.append(now_ns - at_ns)
                    return at_ns, True
        self.process += 1
        return now_ns, False

    def take_delays(self) -> "array[int]":
        """Return the delays since the last call, and forget them."""
        delays, self.delays_ns = self.delays_ns, array("q")
        return delays


BEAT_NS, IDLE_BEAT_NS = 20_000_000, 1_000_000_000
LATENESS_HISTORY_NS = 600 * 10**9  # longer than any probe takes
MIN_RECORDED_LATENESS_NS = 1_000_000
log = logging.getLogger(__name__)
_MONOTONIC, _NONBLOCK, _CLOEXEC, _ABSOLUTE = 1, 0o4000, 0o2000000, 1


class Alarm:
    """A scheduled call. due_ns: never before the time of scheduling"""

    __slots__ = ("callback", "due_ns")

    def __init__(self, due_ns: int, callback: Callable[[], None]) -> None:
        self.due_ns = due_ns
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Drop the scheduled call. Does nothing if it was made already."""
        self.callback = None


class Clock:
    """Time, alarms of the running event loop and their lateness. Call `close` when done.

    The clock wakes (beats) fifty times a second while `watched`, else once a second. A blocked loop or a stopped process delays beats,
    and alarms that are due then. on_beat: called at each beat with (now_ns, seconds late)

    now_ns: nanoseconds of the monotonic clock, for all timestamps
    unix_s: seconds of the wall clock
    monotonic_ns: returns the time of the event loop, whose timers then wake the clock; None: use the kernel's time and timer
    stamps: times of arrival on this clock
    """

    def __init__(
        self,
        unix_s: Callable[[], float] = time.time,
        monotonic_ns: Callable[[], int] | None = None,
        beat_ns: int = BEAT_NS,
    ) -> None:
        self.unix_s, self._beat_ns = unix_s, beat_ns
        self.now_ns = monotonic_ns or time.monotonic_ns
        self.stamps = Stamps(self.now_ns, by_kernel=monotonic_ns is None and sys.platform == "linux")
        self._loop = asyncio.get_running_loop()
        self._heap: list[tuple[int, int, Alarm]] = []
        self._order = itertools.count()
        self._armed_ns: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.on_beat: Callable[[int, float], None] | None = None
        self._late: deque[tuple[int, int]] = deque()  # (time of the alarm, lateness), in order of decreasing lateness
        self._fd = _timerfd_create() if monotonic_ns is None else None
        if self._fd is not None:
            self._loop.add_reader(self._fd, self._on_readable)
        self._watches = 0
        self._next_beat = self.call_at(self.now_ns(), self._beat)

    def call_at(self, due_ns: int, callback: Callable[[], None]) -> Alarm:
        """Call `callback` at `due_ns`, or at once if that has passed."""
        alarm = Alarm(max(due_ns, self.now_ns()), callback)
        heapq.heappush(self._heap, (due_ns, next(self._order), alarm))
        if self._armed_ns is None or due_ns < self._armed_ns:
            self._arm(due_ns)
        return alarm

    async def sleep_until(self, due_ns: int) -> None:
        """Return at `due_ns`, never before; at once if that has passed."""
        if due_ns <= self.now_ns():
            return
        waiter = self._loop.create_future()
        alarm = self.call_at(due_ns, lambda: None if waiter.done() else waiter.set_result(None))
        try:
            await waiter
        finally:
            alarm.cancel()

    def run_due(self) -> None:
        """Run the alarms that are due. Call between two reads, as one turn of the event loop may read for milliseconds."""
        if self._armed_ns and self._armed_ns <= self.now_ns():
            self._run_due()

    def late_s(self, since_ns: int) -> float:
        """Longest standstill of the event loop since `since_ns`, up to now, in seconds; at most one beat too low."""
        now = self.now_ns()
        overdue = now - self._heap[0][2].due_ns if self._heap else 0
        standstills = itertools.chain(((now, overdue),), self._late)
        return max(0, *(min(late, at - since_ns) for at, late in standstills)) / 1e9

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Context in which the clock beats often, so that a standstill during a request is noticed."""
        if not self._watches:
            self._next_beat.cancel()
            self._next_beat = self.call_at(self.now_ns() + self._beat_ns, self._beat)
        self._watches += 1
        try:
            yield
        finally:
            self._watches -= 1

    def close(self) -> None:
        """Drop all alarms and release the timer."""
        self._heap.clear()
        if self._timer:
            self._timer.cancel()
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def _beat(self) -> None:
        now, due_ns = self.now_ns(), self._next_beat.due_ns
        beat_ns = self._beat_ns if self._watches else max(self._beat_ns, IDLE_BEAT_NS)
        self._next_beat = self.call_at(due_ns + beat_ns, self._beat)  # first: the clock beats on if the callback fails
        if self.on_beat is not None:
            self.on_beat(now, (now - due_ns) / 1e9)

    def _record_lateness(self, now: int, late: int) -> None:
        if late < MIN_RECORDED_LATENESS_NS:
            return
        while self._late and self._late[-1][1] <= late:
            self._late.pop()  # a later and larger value replaces it for every question
        self._late.append((now, late))
        while self._late[0][0] < now - LATENESS_HISTORY_NS:
            self._late.popleft()

    def _arm(self, due_ns: int) -> None:
        self._armed_ns = due_ns
        if self._fd is not None:
            _timerfd_settime(self._fd, due_ns)
            return
        if self._timer:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(0.0, (due_ns - self.now_ns()) / 1e9), self._run_due)

    def _on_readable(self) -> None:
        try:
            os.read(self._fd or 0, 8)
        except BlockingIOError:
            return
        self._run_due()

    def _run_due(self) -> None:
        self._armed_ns = 0  # alarms set by callbacks do not arm the timer; it is armed once below, for the earliest
        while self._heap and self._heap[0][0] <= self.now_ns():
            alarm = heapq.heappop(self._heap)[2]
            now = self.now_ns()
            self._record_lateness(now, now - alarm.due_ns)
            if alarm.callback is not None:
                try:
                    alarm.callback()
                except Exception:  # in one target's callback; the other alarms still run
                    log.exception("an alarm failed; please report this")
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


TRUST_WINDOW_S = 10.0
MAX_STANDSTILL_RATIO = 0.01


@dataclass(slots=True)
class Trust:
    """Trust in the prober's own timing: its event loop must not stand still for more than MAX_STANDSTILL_RATIO of
    the last TRUST_WINDOW_S.

    max_send_lag_s: lateness of the event loop, in seconds, above which it is a standstill
    """

    max_send_lag_s: float
    _standstills: deque[tuple[int, float]] = field(default_factory=deque)  # (its end in ns, seconds)

    def lag(self, now_ns: int, lag_s: float) -> None:
        """Record how late the event loop was: by `lag_s` seconds at `now_ns`."""
        if lag_s > self.max_send_lag_s:
            self._standstills.append((now_ns, lag_s))

    def trusted(self, now_ns: int) -> bool:
        """True if the event loop stood still for less than the limit, so that latencies are judged."""
        while self._standstills and (now_ns - self._standstills[0][0]) / 1e9 > TRUST_WINDOW_S:
            self._standstills.popleft()
        return sum(seconds for _, seconds in self._standstills) <= MAX_STANDSTILL_RATIO * TRUST_WINDOW_S
