"""The prober's own receive error: how late it stamps bytes, measured all the time on a connection to itself.

A thread writes the time to a loopback connection at random moments, and `Exchange` stamps what arrives, by the same code as the bytes
of a target. The difference is what the kernel, the scheduler and a busy event loop add to every timestamp of an answer. The moments are
exponential, and the thread's own, so that a busy loop cannot put them off.
"""

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable
from random import Random

from prober.net.clock import Clock
from prober.net.exchange import Exchange

MEAN_INTERVAL_S = 0.5
MAX_INTERVAL_S = 5.0
_TIME = struct.Struct("=q")


class Interrupted(Exception):
    """The loopback connection ended during the measurement."""


class _Receiver(Exchange):
    """An exchange whose bytes are times of writing instead of HTTP."""

    __slots__ = ("_on_error", "_partial")

    def __init__(self, clock: Clock, on_error: Callable[[float], None]) -> None:
        super().__init__(None, clock)
        self._on_error = on_error
        self._partial = b""

    def _parse(self, at_ns: int, data: bytes) -> None:
        data = self._partial + data
        end = len(data) - len(data) % _TIME.size
        self._partial = data[end:]
        for (written_ns,) in _TIME.iter_unpack(data[:end]):
            self._on_error((at_ns - written_ns) / 1e9)


def _write(writer: socket.socket, stopping: threading.Event, rng: Random, mean_s: float) -> None:
    """Write the time at random moments until `stopping` is set or the connection ends, and close it."""
    with writer:
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
    clock: Clock, on_error: Callable[[float], None], rng: Random, mean_interval_s: float = MEAN_INTERVAL_S
) -> None:
    """Call `on_error` with the receive error of each write, in seconds, until cancelled. clock: of the kernel.

    Raises OSError if there is no loopback connection, Interrupted if it ends, and what `on_error` raises.
    """
    reader, writer = _pair()
    stopping = threading.Event()
    receiver = _Receiver(clock, on_error)
    thread = threading.Thread(
        target=_write, args=(writer, stopping, rng, mean_interval_s), name="receive-error", daemon=True
    )
    try:
        await asyncio.get_running_loop().create_connection(lambda: receiver, sock=reader)
        thread.start()
        await receiver.ended
        raise Interrupted(receiver.broken.detail if receiver.broken else "the connection was closed")
    finally:
        stopping.set()
        receiver.abort()
        if thread.ident is None:
            writer.close()
