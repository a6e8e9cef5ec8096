"""Generates one answer, streamed or not, and writes it at its due times, each write preceded by a timestamp."""

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from enum import Enum, auto
from typing import NamedTuple

from aiohttp import web

from prober.mock.completion_request import CompletionRequest, error_body
from prober.mock.faults import Fault
from prober.mock.record import Record
from prober.mock.service import Place, Service
from prober.mock.structured_answer import deltas, spoiled
from prober.mock.wire import COMMENT, DONE, Chunks, Wire, plain_answer
from prober.net.clock import Clock

HEADERS = {"Server": "uvicorn"}
_STREAM_HEADERS = HEADERS | {"Content-Type": "text/event-stream; charset=utf-8"}
_ROLE_ONLY = frozenset({"no_first_token", "role_then_keepalive"})
_SILENT = _ROLE_ONLY | {"endless"}  # no answer if not streamed


class Kind(Enum):
    """Kind of a step: a write (CONTENT, OTHER) or an end: complete, cut, by TCP reset, by exit of the process, or never (SILENCE)."""

    CONTENT = auto()
    OTHER = auto()
    END = auto()
    CUT = auto()
    RESET = auto()
    CRASH = auto()
    SILENCE = auto()


_CUTS = {"truncated": Kind.CUT, "reset": Kind.RESET, "crash": Kind.CRASH, "stall": Kind.SILENCE}  # by fault
_INTERRUPTIONS = frozenset({*_CUTS, "error_in_stream", "malformed", "big_line"})


class Step(NamedTuple):
    """A write or end. due_ns: on the monotonic clock; tokens: number of tokens in the content"""

    due_ns: int
    kind: Kind
    data: bytes = b""
    tokens: int = 0


class Generation:
    """Serves one valid request and fills its record."""

    def __init__(self, service: Service, wire: Wire, request: web.Request, record: Record, fault: Fault | None) -> None:
        self._service, self._clock, self._request, self._record = service, service.pacer, request, record
        self._fault, self._name = fault, fault.name if fault else ""
        if self._name == "no_usage":
            wire = replace(wire, has_usage=False)
        if self._name == "wrong_done":
            wire = replace(wire, done=False)
        self._wire = wire
        self._factor = fault.argument if fault and self._name == "latency" else 1.0

    async def serve(self, completion: CompletionRequest) -> web.StreamResponse:
        """Queue, answer and leave the queue. If the client leaves, it raises ConnectionError or is cancelled."""
        if self._fault and self._name == "short":
            completion = replace(
                completion,
                tokens=min(completion.tokens, self._fault.count or completion.tokens // 2),
                finish_reason="stop",
            )
        if completion.document:
            completion = self._structured(completion)
        if self._name == "empty":
            completion = replace(completion, finish_reason="stop")
        record = self._record
        entered_ns = self._clock.now_ns()
        endless = self._name == "endless"
        place = self._service.enter(record, completion, entered_ns, endless=endless, factor=self._factor)
        due_ns = entered_ns
        try:
            if self._fault and self._name == "late_headers":
                await self._clock.sleep_until(record.received_ns + round(self._fault.argument * 1e9))
            response, due_ns = await (self._stream if completion.stream else self._complete)(
                completion, place, entered_ns
            )
            return response
        finally:
            # A complete answer frees its slot when due, even if its last write was late.
            complete = record.ended == "complete"
            reason = completion.finish_reason if complete else "error" if record.ended == "cut" else None
            self._service.leave(place, reason, due_ns if complete else self._clock.now_ns())

    def _structured(self, completion: CompletionRequest) -> CompletionRequest:
        """The request with the length of its JSON, which is cut if fewer tokens are requested."""
        completion = replace(completion, document=spoiled(completion.document, self._name))
        self._factor *= self._service.behaviour.json_factor
        needed = self._service.behaviour.reasoning + len(deltas(completion.document, completion.tool))
        if needed > completion.tokens:
            return replace(completion, finish_reason="length")
        return replace(completion, tokens=needed, finish_reason="tool_calls" if completion.tool else "stop")

    async def _stream(
        self, completion: CompletionRequest, place: Place, entered_ns: int
    ) -> tuple[web.StreamResponse, int]:
        chunks = Chunks(self._wire, completion, self._record, int(self._clock.unix_s()))
        response = web.StreamResponse(headers=_STREAM_HEADERS)
        await _prepare(response, self._request)
        if self._name in _ROLE_ONLY:
            await self._send(response, _in_turn(Step(entered_ns, Kind.OTHER, chunks.role())))
        started_ns = await place.wait()
        return response, await self._send(response, self._steps(completion, chunks, started_ns, place))

    async def _steps(
        self, completion: CompletionRequest, chunks: Chunks, started_ns: int, place: Place
    ) -> AsyncIterator[Step]:
        """Yield the steps of a streamed answer, changed by the fault.

        Steps are generated one at a time, so that the usage chunk includes the measurements before it.
        """
        fault, due_ns, sent = self._fault, started_ns, 0
        tokens = None if self._name == "endless" else completion.tokens
        if fault and self._name in _ROLE_ONLY:
            while fault.argument:
                due_ns += round(fault.argument * 1e9)
                yield Step(due_ns, Kind.OTHER, COMMENT)
            yield Step(due_ns, Kind.SILENCE)
            return
        # The fault acts at the first content after its number of tokens.
        interruption = fault if self._name in _INTERRUPTIONS else None
        async for due_ns in place.plan(tokens):
            if sent == 0 and completion.chat:
                yield Step(due_ns, Kind.OTHER, chunks.role())
            if self._name == "empty":
                yield Step(due_ns, Kind.OTHER, chunks.finish())
                break
            data = chunks.content(sent, reasoning=sent < self._service.behaviour.reasoning, last=sent + 1 == tokens)
            if interruption and sent >= (1 if self._name == "big_line" else interruption.count):
                for step in _interruption(chunks, interruption, due_ns):
                    yield step
                    if step.kind is not Kind.OTHER:
                        return
                interruption = None
            yield Step(due_ns, Kind.CONTENT, data, 1)
            sent += 1
        for data in chunks.ending(self._wire.done):
            yield Step(due_ns, Kind.OTHER, data)
        yield Step(due_ns, Kind.END)

    async def _complete(
        self, completion: CompletionRequest, place: Place, entered_ns: int
    ) -> tuple[web.StreamResponse, int]:
        await place.wait()
        tokens = 0 if self._name == "empty" else completion.tokens
        due_ns = [due_ns async for due_ns in place.plan(max(1, tokens))][-1]
        await self._clock.sleep_until(due_ns)
        if self._name in _SILENT:
            await asyncio.get_running_loop().create_future()
        reasoning = min(self._service.behaviour.reasoning, tokens)
        body = plain_answer(self._wire, completion, self._record, int(self._clock.unix_s()), tokens, reasoning)
        if self._name == "error_in_stream":
            body = error_body("EngineCore encountered an issue.", "InternalServerError", 500)
        elif self._name == "malformed":
            body = body[: len(body) // 2]
        elif self._fault and self._name == "big_line":
            body += b" " * self._fault.count
        steps = [Step(due_ns, Kind.CONTENT if tokens else Kind.OTHER, body, tokens), Step(due_ns, Kind.END)]
        response = web.StreamResponse(headers=HEADERS | {"Content-Type": "application/json"})
        response.content_length = len(body)
        if self._name in _CUTS:
            steps = [Step(due_ns, Kind.OTHER, body[: len(body) // 2]), Step(due_ns, _CUTS[self._name])]
            response.force_close()
        await _prepare(response, self._request)
        return response, await self._send(response, _in_turn(*steps))

    async def _send(self, response: web.StreamResponse, steps: AsyncIterator[Step]) -> int:
        """Write the steps. Returns the due time of the last one; never returns after a SILENCE."""
        record, until, now = self._record, self._clock.sleep_until, self._clock.now_ns
        due_ns = 0
        async for due_ns, kind, data, tokens in steps:
            if due_ns > now():
                await until(due_ns)
            stamp_ns = now()
            if kind is Kind.CONTENT:
                record.writes.append(stamp_ns)
                record.tokens.append(tokens)
                record.completion_tokens += tokens
                record.late_ns = max(record.late_ns, stamp_ns - due_ns)
            elif kind is not Kind.OTHER:
                await self._end(response, kind, stamp_ns)
                break
            if record.first_write_ns is None:
                record.first_write_ns = stamp_ns
            await response.write(data)
        return due_ns

    async def _end(self, response: web.StreamResponse, kind: Kind, stamp_ns: int) -> None:
        self._record.ended = "complete" if kind is Kind.END else "cut"
        if kind is Kind.SILENCE:
            await asyncio.get_running_loop().create_future()
        self._record.end_ns = stamp_ns
        if kind is Kind.CRASH:
            os._exit(1)
        if kind is Kind.RESET:
            _reset(self._request)
        else:
            await response.write_eof()


async def _in_turn(*steps: Step) -> AsyncIterator[Step]:
    for step in steps:
        yield step


def _interruption(chunks: Chunks, fault: Fault, due_ns: int) -> Iterator[Step]:
    match fault.name:
        case "error_in_stream":
            yield Step(due_ns, Kind.OTHER, chunks.error())
            yield Step(due_ns, Kind.OTHER, DONE)
            yield Step(due_ns, Kind.CUT)
        case "malformed":
            yield Step(due_ns, Kind.OTHER, chunks.broken())
        case "big_line":
            for data in chunks.huge(fault.count):
                yield Step(due_ns, Kind.OTHER, data)
        case name:
            yield Step(due_ns, _CUTS[name])


async def send_response(response: web.Response, request: web.Request, record: Record, clock: Clock) -> web.Response:
    """Send an answer without content, and return it."""
    await _prepare(response, request)
    record.ended = "complete"
    record.first_write_ns = record.end_ns = clock.now_ns()
    await response.write_eof()
    return response


async def _prepare(response: web.StreamResponse, request: web.Request) -> None:
    """Send the headers. The write limit is 0, so that each write waits until the kernel has taken all bytes."""
    if request.transport is not None:
        request.transport.set_write_buffer_limits(high=0)
    await response.prepare(request)


def _reset(request: web.Request) -> None:
    """Close the connection with a TCP reset."""
    transport = request.transport
    if transport is None:
        return
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
