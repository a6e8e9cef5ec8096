"""Monotonic clock with alarms of the event loop, and the kernel's send and receive times on that clock.

On request, Linux stamps sent and received TCP data with its wall clock (`SO_TIMESTAMPING`, Documentation/networking/timestamping.rst of
the kernel), so a late send or read of this process does not matter. Without a stamp (another system, gVisor), or if a step of the wall
clock has spoilt it, the clock readings around the call are used instead, and counted separately.
"""

import asyncio
import contextlib
import socket
import struct
import sys
import time
from array import array
from collections.abc import Callable, Iterable
from typing import NamedTuple

from prober.net.libc import wake_sooner

# Constants of Linux (asm-generic, linux/net_tstamp.h, linux/errqueue.h) that Python does not name. SO_TIMESTAMPING is also the type of
# the ancillary data that contains the stamp: three timespecs, the first of which is the kernel's software stamp.
SO_TIMESTAMPING = 37
TX_SOFTWARE, RX_SOFTWARE, SOFTWARE, OPT_ID, TX_ACK, OPT_TSONLY = 1 << 1, 1 << 3, 1 << 4, 1 << 7, 1 << 9, 1 << 11
IP_RECVERR, IPV6_RECVERR = 11, 25
TSTAMP_SND, TSTAMP_ACK = 0, 2
_TIMESPEC = struct.Struct("ll")
_EXTENDED_ERROR = struct.Struct("IBBBBII")  # the last two fields: the kind of the stamp, and the number of the byte
STAMP_BYTES = 3 * _TIMESPEC.size
ANCILLARY_BYTES = socket.CMSG_SPACE(STAMP_BYTES)
ERROR_BYTES = ANCILLARY_BYTES + socket.CMSG_SPACE(_EXTENDED_ERROR.size + 28)  # 28: the address that follows
MAX_READING_NS = 20_000  # between the readings of both clocks: a longer time would be an error of the stamp
MAX_READINGS = 3
MAX_DELAYS = 10_000  # stored until they are read


class Departure(NamedTuple):
    """A kernel stamp of sent bytes. is_acknowledged: the other end has received them; False: they have left this machine

    last_byte: number of the last of these bytes in the connection, from 0, modulo 2^32
    """

    at_ns: int
    is_acknowledged: bool
    last_byte: int


class Stamps:
    """Timestamps TCP data that this process sends and receives, and counts which stamps are the kernel's and which its own.

    kernel, process: number of sends and reads stamped by the kernel and by this process
    delays_ns: time of reading − kernel stamp, for the reads since the last `take_delays`
    """

    def __init__(
        self,
        now_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
        *,
        by_kernel: bool = sys.platform == "linux",
    ) -> None:
        self.now_ns, self._wall_ns, self.by_kernel = now_ns, wall_ns, by_kernel
        self.kernel = self.process = 0
        self.delays_ns = array("q")

    def request(self, sock: socket.socket, more: int = 0) -> None:
        """Ask the kernel, if it can, to stamp what arrives on a socket. more: further flags, such as to stamp what is sent"""
        if self.by_kernel:
            with contextlib.suppress(OSError):
                flags = RX_SOFTWARE | SOFTWARE | OPT_TSONLY | more
                sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, flags)

    def arrival_ns(self, ancillary: Iterable[tuple[int, int, bytes]], earliest_ns: int) -> tuple[int, bool]:
        """Returns (time of arrival of bytes that were read just now, True if it is a kernel stamp).

        ancillary: ancillary data of `recvmsg`; earliest_ns: time before which the bytes cannot have arrived
        """
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPING and len(data) == STAMP_BYTES:
                now_ns, at_ns = self._on_this_clock(data, earliest_ns)
                if at_ns is not None:
                    self.kernel += 1
                    if len(self.delays_ns) < MAX_DELAYS:
                        self.delays_ns.append(now_ns - at_ns)
                    return at_ns, True
        self.process += 1
        return self.now_ns(), False

    def departure(self, ancillary: Iterable[tuple[int, int, bytes]], earliest_ns: int) -> Departure | None:
        """Read the departure of sent bytes from a message of a socket's error queue; None if it has none, or an impossible time.

        earliest_ns: time before which the bytes cannot have left
        """
        at_ns, stamp, last_byte = None, None, 0
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPING and len(data) == STAMP_BYTES:
                _, at_ns = self._on_this_clock(data, earliest_ns)
            elif (level, kind) in ((socket.IPPROTO_IP, IP_RECVERR), (socket.IPPROTO_IPV6, IPV6_RECVERR)):
                *_, stamp, last_byte = _EXTENDED_ERROR.unpack_from(data)
        if at_ns is None or stamp not in (TSTAMP_SND, TSTAMP_ACK):
            return None
        return Departure(at_ns, stamp == TSTAMP_ACK, last_byte)

    def count_departure(self, *, by_kernel: bool) -> None:
        """Count a request that was sent. by_kernel: its departure has a kernel stamp"""
        self.kernel += by_kernel
        self.process += not by_kernel

    def _on_this_clock(self, data: bytes, earliest_ns: int) -> tuple[int, int | None]:
        """Convert a kernel stamp to the monotonic clock: (now, its time), the time None unless between `earliest_ns` and now."""
        now_ns = self.now_ns()
        wall_ns = self._wall_ns()
        for _ in range(MAX_READINGS):
            if (then_ns := self.now_ns()) - now_ns <= MAX_READING_NS:
                break
            now_ns, wall_ns = then_ns, self._wall_ns()
        seconds, nanoseconds = _TIMESPEC.unpack_from(data)
        at_ns: int = now_ns - (wall_ns - seconds * 1_000_000_000 - nanoseconds)
        if earliest_ns - MAX_READING_NS <= at_ns <= now_ns:
            return now_ns, max(at_ns, earliest_ns)  # the two clocks are not read at the same instant
        return now_ns, None

    def take_delays(self) -> "array[int]":
        """Return the delays since the last call, and forget them."""
        delays, self.delays_ns = self.delays_ns, array("q")
        return delays


BEAT_NS = 1_000_000_000
STANDSTILL_NS = 1_000_000_000  # shorter than any timeout of a server


class Clock:
    """Time, and alarms of the running event loop. Call `close` when done.

    The clock wakes (beats) every `beat_ns`. A blocked loop or a stopped process delays beats, and alarms that are due then.
    on_beat: called at each beat with the seconds by which it is late

    now_ns: nanoseconds of the monotonic clock, for all timestamps
    unix_s: seconds of the wall clock
    monotonic_ns: returns the time of the event loop; None: the kernel's, with its stamps
    stamps: times of departure and arrival on this clock
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
        self.on_beat: Callable[[float], None] | None = None
        self._standstill_end_ns: int | None = None  # end of the last standstill
        self._next_beat_ns = self.now_ns()
        self._next_beat = self.call_at(self._next_beat_ns, self._beat)
        if monotonic_ns is None:
            wake_sooner()

    def call_at(self, due_ns: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call `callback` at `due_ns`, or as soon as the loop runs if that has passed. The loop logs its exceptions."""
        now_ns = self.now_ns()
        due_ns = max(due_ns, now_ns)
        return self._loop.call_later((due_ns - now_ns) / 1e9, self._ring, due_ns, callback)

    async def sleep_until(self, due_ns: int) -> None:
        """Return at `due_ns`, never before; at once if that has passed."""
        while due_ns > self.now_ns():
            woken = asyncio.Event()
            alarm = self.call_at(due_ns, woken.set)
            try:
                await woken.wait()
            finally:
                alarm.cancel()

    def stood_still(self, since_ns: int) -> bool:
        """True if the event loop has stood still for a second or more, and not only before `since_ns`."""
        if self.now_ns() - self._next_beat_ns >= STANDSTILL_NS:
            return True
        return self._standstill_end_ns is not None and self._standstill_end_ns > since_ns

    def close(self) -> None:
        """Stop beating."""
        self._next_beat.cancel()

    def _beat(self) -> None:
        now_ns = self.now_ns()
        late_ns = now_ns - self._next_beat_ns
        self._next_beat_ns = now_ns + self._beat_ns
        # Schedule the next beat first, so that the clock goes on if the callback fails.
        self._next_beat = self.call_at(self._next_beat_ns, self._beat)
        if self.on_beat is not None:
            self.on_beat(late_ns / 1e9)

    def _ring(self, due_ns: int, callback: Callable[[], None]) -> None:
        now_ns = self.now_ns()
        if now_ns - due_ns >= STANDSTILL_NS:
            self._standstill_end_ns = now_ns
        callback()
