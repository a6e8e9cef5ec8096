"""The actor that runs one worker on a node of a Ray cluster. It passes the bytes of the worker's channel on and reads none of them."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time

from prober import __version__

MAX_BYTES = 1 << 22  # in one answer


class RayActor:
    """A worker on this node: its process, and the channel to it. The process ends with the actor, however this ends."""

    def __init__(self, number: int, module: str) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            command = (sys.executable, "-m", module, str(number), str(theirs.fileno()), str(os.getpid()))
            self._process = subprocess.Popen(
                command,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )

    async def start(self) -> tuple[str, str]:
        """Version of the prober here, and the name of this node."""
        self._reader, self._writer = await asyncio.open_connection(sock=self._socket, limit=MAX_BYTES)
        return __version__, socket.gethostname()

    async def deliver(self, data: bytes) -> int:
        """Pass bytes to the worker. Returns the time on this node's CLOCK_MONOTONIC, which the worker stamps with."""
        self._writer.write(data)
        return time.monotonic_ns()

    async def collect(self) -> bytes:
        """Bytes of the worker as soon as there are any; none once it has ended."""
        try:
            return await self._reader.read(MAX_BYTES)
        except ConnectionError:
            return b""

    async def end(self, timeout_s: float) -> str:
        """Close the channel, kill the process after `timeout_s`, and return how it ended."""
        self._writer.close()
        try:
            code = await asyncio.to_thread(self._process.wait, timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = await asyncio.to_thread(self._process.wait)
        return signal.Signals(-code).name if code < 0 else f"exit status {code}"
