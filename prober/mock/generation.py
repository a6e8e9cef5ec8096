"""Generates one answer, streamed or not."""

import asyncio
from dataclasses import replace

from aiohttp import web

from prober.mock.completion_request import CompletionRequest, error_body
from prober.mock.delivery import Delivery
from prober.mock.faults import Fault
from prober.mock.record import Record
from prober.mock.script import CUTS, answer, opening, whole
from prober.mock.service import Place, Service
from prober.mock.structured_answer import deltas, spoiled
from prober.mock.wire import Chunks, Wire, plain_answer

HEADERS = {"Server": "uvicorn"}
_STREAM_HEADERS = HEADERS | {"Content-Type": "text/event-stream; charset=utf-8"}
_SILENT = frozenset({"no_first_token", "role_then_keepalive", "endless"})


class Generation:
    """Serves one valid request and fills in its record."""

    def __init__(self, service: Service, wire: Wire, request: web.Request, record: Record, fault: Fault | None) -> None:
        self._service, self._request, self._record, self._fault = service, request, record, fault
        self._name = fault.name if fault else ""
        if self._name == "no_usage":
            wire = replace(wire, usage="none")
        if self._name == "wrong_done":
            wire = replace(wire, done=False)
        self._wire = wire
        self._factor = fault.argument if fault and self._name == "latency" else 1.0

    async def serve(self, completion: CompletionRequest) -> web.StreamResponse:
        """Queue, answer and leave the queue. Raises ConnectionError, or is cancelled, if the client leaves."""
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
        entered_ns = self._service.pacer.now_ns()
        place = self._service.enter(record, completion, entered_ns, endless=self._name == "endless")
        due_ns = entered_ns
        try:
            if self._fault and self._name == "late_headers":
                await self._service.pacer.sleep_until(record.received_ns + round(self._fault.argument * 1e9))
            response, due_ns = await (self._stream if completion.stream else self._complete)(
                completion, place, entered_ns
            )
            return response
        finally:
            # A complete answer frees its slot at its due time, even if its last write was late.
            complete = record.ended == "complete"
            reason = completion.finish_reason if complete else "error" if record.ended == "cut" else None
            self._service.leave(place, reason, due_ns if complete else self._service.pacer.now_ns())

    def _structured(self, completion: CompletionRequest) -> CompletionRequest:
        """Returns the request with the length of its JSON, which is cut if fewer tokens are requested."""
        completion = replace(completion, document=spoiled(completion.document, self._name))
        self._factor *= self._service.behaviour.json_factor
        needed = self._service.behaviour.reasoning
        needed += len(deltas(completion.document, completion.tool, self._wire.calls))
        if needed > completion.tokens:
            return replace(completion, finish_reason="length")
        return replace(completion, tokens=needed, finish_reason="tool_calls" if completion.tool else "stop")

    async def _stream(
        self, completion: CompletionRequest, place: Place, entered_ns: int
    ) -> tuple[web.StreamResponse, int]:
        wire, fault = self._wire, self._fault
        tokens = None if self._name == "endless" else completion.tokens
        role = wire.role_chunk if completion.chat else "none"
        chunks = Chunks(wire, completion, self._record, int(self._service.pacer.unix_s()))
        response = web.StreamResponse(headers=_STREAM_HEADERS)
        delivery = Delivery(response, self._request, self._record, self._service.pacer)
        async with delivery.prepared(wire.keepalive_s, chunks.comment):
            await delivery.send(opening(chunks, role, fault), entered_ns)
            started_ns = await place.wait()
            plan = place.plan(tokens, self._factor)
            steps = answer(chunks, plan, tokens=tokens, role=role, done=wire.done, fault=fault)
            return response, await delivery.send(steps, started_ns, place.known)

    async def _complete(
        self, completion: CompletionRequest, place: Place, entered_ns: int
    ) -> tuple[web.StreamResponse, int]:
        due_ns = started_ns = await place.wait()
        tokens = 0 if self._name == "empty" else completion.tokens
        plan = place.plan(max(1, tokens), self._factor)
        while True:
            if place.known:
                await place.known()
            if (emission := next(plan, None)) is None:
                break
            due_ns = started_ns + emission.due_ns
        await self._service.pacer.sleep_until(due_ns)
        if self._name in _SILENT:
            await asyncio.get_running_loop().create_future()
        reasoning = min(self._service.behaviour.reasoning, tokens)
        body = plain_answer(self._wire, completion, self._record, int(self._service.pacer.unix_s()), tokens, reasoning)
        if self._name == "error_in_stream":
            body = error_body("EngineCore encountered an issue.", "InternalServerError", 500)
        elif self._name == "malformed":
            body = body[: len(body) // 2]
        elif self._fault and self._name == "big_line":
            body += b" " * self._fault.count
        response = web.StreamResponse(headers=HEADERS | {"Content-Type": "application/json"})
        response.content_length = len(body)
        if self._name in CUTS:
            response.force_close()
        delivery = Delivery(response, self._request, self._record, self._service.pacer)
        async with delivery.prepared():
            return response, await delivery.send(whole(body, tokens, self._name), due_ns)
