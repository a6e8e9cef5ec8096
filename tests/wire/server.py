"""A server of raw bytes: executes the script of a case on a port of its own and takes the time of each marked step.

It knows nothing of HTTP except where a request ends. It runs in a thread with its own event loop, so that its times are independent
of the prober's loop.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.wire.case import FIN, HOLD, REQUEST, RST, Case, Mark

MAX_HOLD_S = 12.0
T = TypeVar("T")


@dataclass
class Served:
    """The server's record of a case.

    stamps_ns: monotonic time of the step behind each mark, immediately before it
    connections: connections that were accepted; the script runs on the first one only
    """

    port: int = 0
    stamps_ns: dict[Mark, int] = field(default_factory=dict)
    connections: int = 0


class WireServer:
    """Serves cases while its context is open."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> WireServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def serve(self, case: Case) -> Served:
        """Listen for one case; called from another event loop."""
        return await self._here(self._listen(case))

    async def _here(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _listen(self, case: Case) -> Served:
        served = Served()

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            served.connections += 1
            with suppress(OSError, EOFError, asyncio.CancelledError):
                if served.connections == 1:
                    await asyncio.wait_for(_execute(case, served, reader, writer), MAX_HOLD_S)
            writer.transport.abort()

        server = await asyncio.start_server(accepted, "127.0.0.1", 0, limit=1 << 20)
        self._servers.append(server)
        served.port = server.sockets[0].getsockname()[1]
        return served

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)


async def _execute(case: Case, served: Served, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    writer.transport.set_write_buffer_limits(high=0)
    if case.tls:
        await reader.readexactly(1)
    elif not case.before_request:
        await _request(reader)
    marks: list[Mark] = []
    for step in case.script:
        if isinstance(step, float):
            await asyncio.sleep(step)
            continue
        if isinstance(step, Mark):
            marks.append(step)
            continue
        for mark in marks:
            served.stamps_ns.setdefault(mark, time.monotonic_ns())
        marks.clear()
        if isinstance(step, bytes):
            writer.write(step)
            await writer.drain()
        elif step is REQUEST:
            await _request(reader)
        elif step is RST:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            return
        elif step is FIN:
            writer.write_eof()
            break
        else:
            assert step is HOLD
    await reader.read()


async def _request(reader: asyncio.StreamReader) -> None:
    """Read a request to its end."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"\r\ncontent-length: *(\d+)", head.lower())
    await reader.readexactly(int(length[1]) if length else 0)
