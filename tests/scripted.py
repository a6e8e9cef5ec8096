"""The server of tests: it answers each request by a script, in the event loop of a test or in a thread of its own.

A script has the steps of the wire suite (`tests.wire.case`): bytes are written, numbers are pauses in the time of the loop, an `Act`
closes, resets or holds the connection; marks are passed over. A script ends with its connection. `tests.wire.events` and
`tests.wire.heads` have the words for answers:

    async with scripted(lambda asked: until_close(*good(asked.json["max_tokens"]))) as url:
        ...

An engine that acts in time, or learns when its client leaves, replies with a generator: it is closed then.
"""

import asyncio
import json
import re
import socket
import ssl
import struct
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from threading import Thread
from typing import Any

from tests.wire.case import FIN, HOLD, RST, Step

HANG_S = (
    180.0  # of real time, only against a hang: longer than anything takes on a busy machine, shorter than a test may
)
TLS_HANDSHAKE = b"\x16"  # begins what a client says that expects TLS


@dataclass(frozen=True)
class Asked:
    """A request. at_s: time of the loop at which it had come"""

    head: bytes
    body: bytes
    at_s: float

    @property
    def method(self) -> str:
        """GET, POST or another."""
        return self.head.split(b" ", 1)[0].decode()

    @property
    def path(self) -> str:
        """With its query."""
        return self.head.split(b" ", 2)[1].decode("latin-1")

    @cached_property
    def headers(self) -> dict[str, str]:
        """By names in small letters."""
        lines = (line.partition(": ") for line in self.head.decode("latin-1").split("\r\n")[1:-2])
        return {name.lower(): value for name, _, value in lines}

    @cached_property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)


Script = bytes | Iterable[Step] | AsyncIterable[Step]
Reply = Callable[[Asked], Script]


@asynccontextmanager
async def scripted(
    reply: Reply, port: int = 0, tls: ssl.SSLContext | None = None, *, connected: Callable[[], object] = bool
) -> AsyncIterator[str]:
    """The base URL of a server; at the end of the block it cuts its connections. connected: called with each connection"""
    connections: set[asyncio.Task[Any]] = set()

    async def connect(reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        connected()
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await serve(reply, reader, writer)
        finally:
            connections.discard(task)
            writer.close()

    server = await asyncio.start_server(connect, "127.0.0.1", port, ssl=tls, limit=1 << 20)
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.sleep(0)  # connections that were just accepted have their tasks
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


@contextmanager
def threaded(reply: Reply) -> Iterator[str]:
    """The same in a thread, for processes and for tests without an event loop."""
    started: Future[tuple[str, Callable[[], object]]] = Future()

    async def run() -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        async with scripted(reply) as url:
            started.set_result((url, partial(loop.call_soon_threadsafe, ended.set)))
            await ended.wait()

    thread = Thread(target=asyncio.run, args=(run(),))
    thread.start()
    url, end = started.result(HANG_S)
    try:
        yield url
    finally:
        end()
        thread.join(HANG_S)


async def serve(reply: Reply, reader: StreamReader, writer: StreamWriter) -> None:
    """Answer the request of a connection. Raises OSError and IncompleteReadError if its client leaves before."""
    first = await reader.readexactly(1)
    if first == TLS_HANDSHAKE:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        return
    head = first + await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    body = await reader.readexactly(int(length[1]) if length else 0)
    gone = asyncio.ensure_future(reader.read())
    try:
        async with aclosing(_steps(reply(Asked(head, body, asyncio.get_running_loop().time())))) as steps:
            async for step in steps:
                if isinstance(step, bytes):
                    writer.write(step)
                    await writer.drain()
                elif isinstance(step, int | float):
                    await asyncio.wait([gone], timeout=step)
                elif step is HOLD:
                    await gone
                elif step in (FIN, RST):
                    if step is RST:
                        reset(writer)
                    return
                if gone.done():
                    return
    finally:
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)


async def _steps(script: Script) -> AsyncGenerator[Step, None]:
    if isinstance(script, bytes):
        yield script
    elif isinstance(script, AsyncGenerator):
        async with aclosing(script):
            async for step in script:
                yield step
    else:
        assert isinstance(script, Iterable)
        for step in script:
            yield step


def reset(writer: StreamWriter) -> None:
    """Close with RST, as a process that is killed with unread data does."""
    with suppress(OSError):  # the client was faster
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
