"""Times of arrival by the kernel, in the monotonic clock: how late this process reads does not matter.

Linux stamps the segments of TCP on request (`SO_TIMESTAMPNS`), in the time of the wall clock; `recvmsg` returns the stamp beside the
bytes. Of segments that were read together it is the stamp of the last. Without such a stamp (another system, gVisor), and where a step
of the wall clock has spoilt it, the time of reading is used, and counted as such.
"""

import contextlib
import socket
import struct
import sys
import time
from array import array
from collections.abc import Callable, Iterable

SO_TIMESTAMPNS = 35  # of Linux (asm-generic), which Python does not name; also the kind of the ancillary data
_TIMESPEC = struct.Struct("ll")
ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)
MAX_READING_NS = 20_000  # between the readings of both clocks: a longer time would be an error of the stamp
MAX_READINGS = 3
MAX_DELAYS = 10_000  # that wait for their reader


class Stamps:
    """Stamps the bytes that this process receives, and counts the stamps of the kernel and its own.

    kernel, process: number of reads that the kernel and this process have stamped
    delays_ns: time of reading − stamp of the reads that the kernel has stamped, since the last `take_delays`
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
        """Have the kernel stamp what arrives on a socket from now on, if it can."""
        if self._by_kernel:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

    def arrival_ns(self, ancillary: Iterable[tuple[int, int, bytes]], earliest_ns: int) -> tuple[int, bool]:
        """(time of arrival of bytes that were read just now, whether the kernel stamped them).

        ancillary: of `recvmsg`; earliest_ns: no bytes arrived before this
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
        """The delays since the last call."""
        delays, self.delays_ns = self.delays_ns, array("q")
        return delays
