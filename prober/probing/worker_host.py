"""A worker's process on one machine, and the prober's end of its channel. On a node of a Ray cluster this is an actor.

The actor relays the bytes of the channel without reading them.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time

from prober import __version__

MAX_BYTES = 1 << 22  # in one answer


class WorkerHost:
    """Starts the process of a worker. The worker ends with the process that started it, however that one ends.

    socket: the prober's end of the channel
    """

    def __init__(self, number: int, module: str) -> None:
        self.socket, theirs = socket.socketpair()
        self._writer: asyncio.StreamWriter | None = None
        with theirs:
            # A session of its own: Ctrl-C in a terminal goes to the prober, which decides.
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
        """Returns bytes from the worker as soon as there are any; none once it has ended."""
        try:
            return await self._reader.read(MAX_BYTES)
        except ConnectionError:
            return b""
