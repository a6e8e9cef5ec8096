"""The prober's own receive error: how late it stamps bytes, measured all the time on a connection to itself.

A thread writes the time to a loopback connection at random moments, and the event loop stamps what arrives as it stamps the bytes of a
target: the first thing that it does with them. The difference is what the kernel, the scheduler and a busy event loop add to every
timestamp of an answer. The moments are exponential, and the thread's own, so that a busy loop cannot put them off.
"""

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable
from random import Random

MEAN_INTERVAL_S = 0.5
MAX_INTERVAL_S = 5.0
_TIME = struct.Struct("=q")


class _Receiver(asyncio.Protocol):
    """Stamps what arrives, as `Exchange` does."""

    def __init__(self, now_ns: Callable[[], int], on_error: Callable[[float], None]) -> None:
        self._now_ns, self._on_error = now_ns, on_error
        self._partial = b""

    def data_received(self, data: bytes) -> None:
        at_ns = self._now_ns()
        data = self._partial + data
        end = len(data) - len(data) % _TIME.size
        self._partial = data[end:]
        for (written_ns,) in _TIME.iter_unpack(data[:end]):
            self._on_error((at_ns - written_ns) / 1e9)


def _write(writer: socket.socket, stopping: threading.Event, rng: Random, mean_s: float) -> None:
    """Write the time at random moments until `stopping` is set or the connection ends."""
    while not stopping.wait(min(rng.expovariate(1 / mean_s), MAX_INTERVAL_S)):
        try:
            writer.send(_TIME.pack(time.monotonic_ns()))
        except OSError:  # the connection is closed, or nothing has been read from it for long
            return


def _pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection on loopback: the reading one, and the writing one, which never blocks."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        writer = socket.create_connection(server.getsockname())
        reader, _ = server.accept()
    writer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    writer.setblocking(False)
    return reader, writer


async def measure_receive_error(
    on_error: Callable[[float], None], rng: Random, mean_interval_s: float = MEAN_INTERVAL_S
) -> None:
    """Call `on_error` with the receive error of each write, in seconds of the kernel's monotonic clock, until cancelled.

    Raises OSError if there is no loopback connection.
    """
    reader, writer = _pair()
    stopping = threading.Event()
    loop = asyncio.get_running_loop()
    thread = threading.Thread(
        target=_write, args=(writer, stopping, rng, mean_interval_s), name="receive-error", daemon=True
    )
    with writer:
        transport, _ = await loop.create_connection(lambda: _Receiver(time.monotonic_ns, on_error), sock=reader)
        try:
            thread.start()
            await loop.create_future()  # until cancelled
        finally:
            stopping.set()
            transport.abort()
