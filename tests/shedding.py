"""A server that sheds, written apart from the product and its mock: a limit of requests in progress, and a record of what it did."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from tests.serving import serving

TOKENS = 4


@dataclass
class SheddingServer:
    """Answers in `service_s` while fewer than `slots` requests are in progress, else with `status` at once.

    retry_after: text of the header, "" for none; pause_s: after it shed, it sheds everything for so long
    sheds: sheds only requests whose Authorization has this text
    log: (seconds of the loop, Authorization, status) of each request, in the order of arrival
    """

    slots: int
    service_s: float
    retry_after: str = "2"
    status: int = 429
    pause_s: float = 0.0
    sheds: str = ""
    log: list[tuple[float, str, int]] = field(default_factory=list)
    _busy: int = 0
    _closed_until_s: float = 0.0

    @asynccontextmanager
    async def run(self) -> AsyncIterator[str]:
        """Serve until the end of the block."""
        async with serving(self._answer) as url:
            yield url

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/models"):
            return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})
        if request.method != "POST":
            return web.Response(status=404)
        await request.read()
        now_s, key = asyncio.get_running_loop().time(), request.headers.get("Authorization", "")
        may_shed = self.sheds in key
        if may_shed and (self._busy >= self.slots or now_s < self._closed_until_s):
            if self._busy >= self.slots:
                self._closed_until_s = now_s + self.pause_s
            self.log.append((now_s, key, self.status))
            headers = {"Retry-After": self.retry_after} if self.retry_after else {}
            return web.json_response({"error": {"message": "busy"}}, status=self.status, headers=headers)
        self.log.append((now_s, key, 200))
        self._busy += may_shed
        try:
            return await self._stream(request)
        finally:
            self._busy -= may_shed

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for index in range(TOKENS):
            await asyncio.sleep(self.service_s / TOKENS)
            reason = "length" if index == TOKENS - 1 else None
            await self._event(response, {"index": 0, "delta": {"content": "a "}, "finish_reason": reason})
        usage = {"prompt_tokens": 20, "completion_tokens": TOKENS, "total_tokens": 20 + TOKENS}
        await self._event(response, usage=usage)
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _event(self, response: web.StreamResponse, *choices: dict[str, object], **more: object) -> None:
        event = {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": choices, **more}
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
