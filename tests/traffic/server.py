"""An HTTP/1.1 server of scripted answers on raw asyncio streams, which notes its own truth of every request.

The first segment of a URL's path names the script, so one server plays all cases: `http://127.0.0.1:PORT/NAME/v1`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.traffic.answers import PAUSE_S, Answer, Exchange, Refusal
from tests.traffic.wire import MODEL, PATHS, WRITERS, refusal_body

Script = Callable[[Exchange, list[Exchange]], Answer | Refusal]


@dataclass
class Play:
    """A script, and the exchanges so far.

    Args:
        script: the reply to a request, by it and the exchanges before it.
        owner: `owned_by` in the list of models, which tells the engine.
        pause_s: time before each piece.
    """

    script: Script
    owner: str = "traffic"
    pause_s: float = PAUSE_S
    exchanges: list[Exchange] = field(default_factory=list)


class Server:
    """Serve `plays` by name until the block ends."""

    def __init__(self, plays: dict[str, Play]) -> None:
        self._plays = plays
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def __aenter__(self) -> Server:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.port}/{name}/v1"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._serve(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        request, *lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        target = request.split(" ")[1].split("?")[0]
        name, _, path = target.removeprefix("/").partition("/")
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        play = self._plays.get(name)
        api = PATHS.get("/" + path.removeprefix("v1/"))
        if play is None or (api is None and path != "v1/models"):
            return await self._document(writer, 404, json.dumps({"detail": "Not Found"}))
        if api is None:
            models = [{"id": MODEL, "object": "model", "created": 1795219731, "owned_by": play.owner}]
            return await self._document(writer, 200, json.dumps({"object": "list", "data": models}))
        clock = asyncio.get_running_loop().time
        exchange = Exchange(len(play.exchanges), api, json.loads(body), clock())
        reply = exchange.reply = play.script(exchange, play.exchanges)
        play.exchanges.append(exchange)
        try:
            if isinstance(reply, Refusal):
                return await self._document(writer, reply.status, refusal_body(reply, api))
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
            )
            for event, piece in WRITERS[api](reply, exchange, exchange.prompt_tokens):
                if piece is not None:
                    await asyncio.sleep(play.pause_s)
                    exchange.stamps.append((piece, clock()))
                if event:
                    data = event.encode()
                    writer.write(b"%x\r\n%b\r\n" % (len(data), data))
                    await writer.drain()
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        finally:
            exchange.ended_s = clock()

    async def _document(self, writer: asyncio.StreamWriter, status: int, body: str) -> None:
        data = body.encode()
        writer.write(
            b"HTTP/1.1 %d Status\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (status, len(data), data)
        )
        await writer.drain()
