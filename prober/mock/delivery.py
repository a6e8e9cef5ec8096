"""Writes the steps of an answer at their due times, with a timestamp immediately before each write."""

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress

from aiohttp import web

from prober.mock.record import Record
from prober.mock.script import Kind, Step
from prober.net.clock import Clock


class Delivery:
    """Writes one answer to its connection. A client that leaves causes ConnectionError or cancellation."""

    def __init__(self, response: web.StreamResponse, request: web.Request, record: Record, pacer: Clock) -> None:
        self._response, self._request, self._record, self._pacer = response, request, record, pacer
        self._last_ns = 0

    @asynccontextmanager
    async def prepared(self, keepalive_s: float = 0.0, comment: bytes = b"") -> AsyncIterator[None]:
        """Context that sends the headers, and `comment` after each `keepalive_s` without a write (0: never)."""
        write_at_once(self._request)
        await self._response.prepare(self._request)
        self._last_ns = self._pacer.now_ns()
        keepalive = asyncio.create_task(self._keep_alive(round(keepalive_s * 1e9), comment)) if keepalive_s else None
        try:
            yield
        finally:
            if keepalive:
                keepalive.cancel()

    async def send(
        self, steps: Iterable[Step], start_ns: int, known: Callable[[], Awaitable[None]] | None = None
    ) -> int:
        """Write the steps, whose times count from `start_ns`. Returns the due time of the last one; never returns if a step is SILENCE.

        known: awaited before the first step; it returns when that step is known
        """
        if known:
            await known()
        record, response, until, now = self._record, self._response, self._pacer.sleep_until, self._pacer.now_ns
        due_ns = start_ns
        for offset_ns, kind, data, tokens in steps:
            due_ns = start_ns + offset_ns
            if due_ns > now():
                await until(due_ns)
            stamp_ns = now()
            if kind is Kind.CONTENT:
                record.writes.append(stamp_ns)
                record.tokens.append(tokens)
                record.completion_tokens += tokens
                record.late_ns = max(record.late_ns, stamp_ns - due_ns)
            elif kind is not Kind.OTHER:
                await self._end(kind, stamp_ns)
                break
            if record.first_write_ns is None:
                record.first_write_ns = stamp_ns
            self._last_ns = stamp_ns
            await response.write(data)
            if known and kind is Kind.CONTENT:  # the last step of its emission: wait for the next one
                await known()
        return due_ns

    async def _keep_alive(self, every_ns: int, comment: bytes) -> None:
        with suppress(ConnectionError):  # the client left
            while True:
                await self._pacer.sleep_until(self._last_ns + every_ns)
                now_ns = self._pacer.now_ns()
                if now_ns < self._last_ns + every_ns:
                    continue
                self._last_ns = now_ns
                if self._record.first_write_ns is None:
                    self._record.first_write_ns = now_ns
                await self._response.write(comment)

    async def _end(self, kind: Kind, stamp_ns: int) -> None:
        self._record.ended = "complete" if kind is Kind.END else "cut"
        if kind is Kind.SILENCE:
            await asyncio.get_running_loop().create_future()
        self._record.end_ns = stamp_ns
        if kind is Kind.CRASH:
            os._exit(1)
        if kind is Kind.RESET:
            reset(self._request)
        else:
            await self._response.write_eof()


def write_at_once(request: web.Request) -> None:
    """Set the write limit to 0, so that `drain` waits until the kernel has taken all bytes."""
    if request.transport is not None:
        request.transport.set_write_buffer_limits(high=0)


async def send_response(response: web.Response, request: web.Request, record: Record, clock: Clock) -> web.Response:
    """Send an answer without content, and return it."""
    write_at_once(request)
    await response.prepare(request)
    record.ended = "complete"
    record.first_write_ns = record.end_ns = clock.now_ns()
    await response.write_eof()
    return response


def reset(request: web.Request) -> None:
    """Close the connection with a TCP reset."""
    transport = request.transport
    if transport is None:
        return
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
