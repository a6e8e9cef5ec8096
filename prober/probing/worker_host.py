"""A worker's process on a machine, and the prober's end of its channel. On a node of a Ray cluster this is an actor.

The actor relays the bytes of the channel without reading them.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from prober import __version__
from prober.probing.channel import Channel, Offset

MAX_BYTES = 1 << 22  # per answer
START_S = 30.0
CLOSE_S = 2.0


class WorkerHost:
    """Starts the process of a worker. The worker ends with the process that started it, even if that is killed.

    socket: the prober's end of the channel
    """

    def __init__(self, number: int, module: str) -> None:
        self.socket, theirs = socket.socketpair()
        self._writer: asyncio.StreamWriter | None = None
        with theirs:
            # A separate session: Ctrl-C in a terminal only reaches the prober, which decides.
            self.process = subprocess.Popen(
                (sys.executable, "-m", module, str(number), str(theirs.fileno()), str(os.getpid())),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )

    async def end(self, timeout_s: float) -> str:
        """Wait for the end of the process, kill it after `timeout_s` seconds, and return how it ended."""
        if self._writer is not None:
            self._writer.close()
        try:
            code = await asyncio.to_thread(self.process.wait, timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = await asyncio.to_thread(self.process.wait)
        return signal.Signals(-code).name if code < 0 else f"exit status {code}"

    async def relay(self) -> tuple[str, str]:
        """Begin to relay bytes. Returns (version of the prober on this node, name of this node)."""
        self._reader, self._writer = await asyncio.open_connection(sock=self.socket, limit=MAX_BYTES)
        return __version__, socket.gethostname()

    async def deliver(self, data: bytes) -> int:
        """Pass bytes to the worker. Returns the time on this node's CLOCK_MONOTONIC, which is the worker's clock."""
        assert self._writer is not None
        self._writer.write(data)
        return time.monotonic_ns()

    async def collect(self) -> bytes:
        """Return bytes from the worker as soon as there are any; none once it has ended."""
        try:
            return await self._reader.read(MAX_BYTES)
        except ConnectionError:
            return b""


class WorkersUnavailable(Exception):
    """A worker cannot be started; the message says which."""


class WorkerProcess:
    """A worker, from the prober's side. node: name of its machine, "" for this one"""

    node = ""

    def __init__(self, number: int, received: Callable[["WorkerProcess", Any], None]) -> None:
        self.number = number
        self.silent_beats = 0
        self.started, self.lost = asyncio.Event(), asyncio.Event()
        self.channel = Channel(lambda message: received(self, message), self.lost.set)
        self.host: WorkerHost | None = None

    async def start(self, module: str) -> None:
        """Start the process and wait until it runs. Raises WorkersUnavailable."""
        await self._open(module)
        events = [asyncio.create_task(event.wait()) for event in (self.started, self.lost)]
        await asyncio.wait(events, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
        for event in events:
            event.cancel()
        if not self.started.is_set():
            raise WorkersUnavailable(f"worker {self.number} does not start ({await self.end(CLOSE_S)})")

    def clock_offset(self) -> Offset:
        """The worker's clock minus the prober's, now."""
        return Offset(0, 0)

    def clock_text(self) -> str:
        """A sentence on the worker's clock; "" if it is the prober's."""
        return ""

    async def _open(self, module: str) -> None:
        """Start the process and open its channel."""
        self.host = WorkerHost(self.number, module)
        await asyncio.get_running_loop().create_connection(lambda: self.channel, sock=self.host.socket)

    async def end(self, timeout_s: float) -> str:
        """Close the channel, kill the process after `timeout_s` seconds, and return how it ended."""
        self.channel.close()
        return await self.host.end(timeout_s) if self.host is not None else "not started"


def automatic_count() -> int:
    """Number of workers on this machine: one per core, without one core for the prober."""
    return max(1, len(os.sched_getaffinity(0)) - 1)
