"""A wire to a server that can be cut without a word, as a network partition cuts one: TCP only, so TLS passes through it."""

import asyncio
from contextlib import suppress
from urllib.parse import urlsplit

PIECE = 1 << 16


class Link:
    """`url` leads to the same place as the address it was made for. cut: nothing comes through, and nobody is told."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._to = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        self._parts = parts
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.delay_s = 0.0
        self.url = ""

    async def __aenter__(self) -> "Link":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = self._parts._replace(netloc=f"127.0.0.1:{port}").geturl()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    @property
    def cut(self) -> bool:
        return not self._open.is_set()

    @cut.setter
    def cut(self, cut: bool) -> None:
        if cut:
            self._open.clear()
        else:
            self._open.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(OSError, asyncio.CancelledError):
                there_reader, there_writer = await asyncio.open_connection(*self._to)
                ways = [(reader, there_writer), (there_reader, writer)]
                pumps = [asyncio.create_task(self._pump(*way)) for way in ways]
                try:
                    await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for pump in pumps:
                        pump.cancel()
                    await asyncio.wait(pumps)
                    there_writer.close()
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await reader.read(PIECE):
                await asyncio.sleep(self.delay_s)
                await self._open.wait()
                writer.write(piece)
                await writer.drain()
