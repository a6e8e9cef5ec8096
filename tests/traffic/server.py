"""A server of scripted answers, which notes its own truth of every request.

The first segment of a URL's path names the script, so one server plays all cases: `http://127.0.0.1:PORT/NAME/v1`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.scripted import Asked, scripted
from tests.scripted import Script as Steps
from tests.traffic.answers import PAUSE_S, Answer, Exchange, Refusal
from tests.traffic.wire import MODEL, PATHS, WRITERS, refusal_body
from tests.wire.case import Step
from tests.wire.heads import CHUNKED, EVENTS, LAST_CHUNK, body, chunk, head

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
        self._serving = scripted(self._reply)
        self._url = ""

    async def __aenter__(self) -> Server:
        self._url = await self._serving.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._serving.__aexit__(None, None, None)

    def url(self, name: str) -> str:
        return f"{self._url}/{name}/v1"

    def _reply(self, asked: Asked) -> Steps:
        name, _, path = asked.path.partition("?")[0].removeprefix("/").partition("/")
        play, api = self._plays.get(name), PATHS.get("/" + path.removeprefix("v1/"))
        if play is None or (api is None and path != "v1/models"):
            return body("404 Not Found", {"detail": "Not Found"})
        if api is None:
            models = [{"id": MODEL, "object": "model", "created": 1795219731, "owned_by": play.owner}]
            return body("200 OK", {"object": "list", "data": models})
        return self._answer(play, Exchange(len(play.exchanges), api, asked.json, asked.at_s))

    @staticmethod
    def _answer(play: Play, exchange: Exchange) -> Iterator[Step]:
        clock = asyncio.get_running_loop().time
        reply = exchange.reply = play.script(exchange, play.exchanges)
        play.exchanges.append(exchange)
        try:
            if isinstance(reply, Refusal):
                yield from body(f"{reply.status} Refused", refusal_body(reply, exchange.api))
                return
            yield head("200 OK", EVENTS, CHUNKED, "connection: close")
            for event, piece in WRITERS[exchange.api](reply, exchange, exchange.prompt_tokens):
                if piece is not None:
                    yield play.pause_s
                    exchange.stamps.append((piece, clock()))
                if event:
                    yield chunk(event.encode())
            yield LAST_CHUNK
        finally:
            exchange.ended_s = clock()
