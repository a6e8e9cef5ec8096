"""Answers of the site: rendered one at a time, shared by equal requests within a second, and written as fast as clients read.

A large answer is stored compressed, once for all its readers. For a client without gzip it is unpacked in slices while the client
reads.
"""

import asyncio
import re
import zlib
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

from aiohttp import web

from prober.exposition.families import choose_form
from prober.web.token_bucket import TooMany

FRESH_S = 1.0  # how long an answer is given again
SCRAPE_SHARE, VIEW_SHARE = 0.5, 0.25  # of the time, in which an answer may be made
MAX_WAITING = 16  # different answers that wait to be made
MAKE_TIMEOUT_S = 30.0
MAX_TARGET_BYTES = 4096  # of a request's path and query
MIN_GZIP_BYTES = 1 << 12
BATCH_BYTES = 1 << 19  # that are compressed at once
MAX_ANSWER_BYTES = 16 << 20  # compressed
GZIP_BITS = 31  # of zlib: the largest window, in the format of gzip
UNPACK_BYTES, UNPACKED_BYTES = 1 << 12, 1 << 15  # compressed ones given to zlib at once, and text asked of it at once
WRITE_BYTES = 1 << 16  # at once: what a connection holds for a client that does not read
STALL_S = 5.0  # for a client to take WRITE_BYTES; a slower one is cut
BUSY = "the prober is busy with other pages"
TOO_LONG = "the answer has more than 16 MiB; ask for fewer with limit=, or for one target with target=\n"
UNAVAILABLE = "the prober's measuring loop does not answer; its log may say why\n"
_EXCLUDED = re.compile(r"q=0(\.0*)?")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Pieces(web.Response):
    """A response whose body is rendered later, in pieces."""

    def __init__(self, pieces: Iterable[bytes], headers: Mapping[str, str]) -> None:
        super().__init__(headers=headers)
        self.pieces = pieces


async def complete(response: web.StreamResponse) -> web.Response:
    """The response with its body rendered, and compressed unless it is small. Other tasks run between the pieces of the body."""
    assert isinstance(response, web.Response)
    if not isinstance(response, Pieces):
        return response
    compressor = zlib.compressobj(1, wbits=GZIP_BITS)
    body, batch, size = bytearray(), list[bytes](), 0
    for piece in response.pieces:
        batch.append(piece)
        size += len(piece)
        if size < BATCH_BYTES:
            await asyncio.sleep(0)
            continue
        body += await asyncio.to_thread(_compressed, compressor, batch)
        batch, size = [], 0
        if len(body) > MAX_ANSWER_BYTES:
            return web.Response(status=413, text=TOO_LONG)
    if not body and size < MIN_GZIP_BYTES:
        return web.Response(body=b"".join(batch), headers=response.headers)
    body += await asyncio.to_thread(_compressed, compressor, batch) + compressor.flush()
    return web.Response(body=body, headers={**response.headers, "Content-Encoding": "gzip"})


def _compressed(compressor: Any, pieces: Sequence[bytes]) -> bytes:
    return b"".join(map(compressor.compress, pieces))


class Lane:
    """Makes answers one at a time. An answer is shared by all requests with the same key until FRESH_S after it was made.

    share: largest share of the time that is spent on making answers; a pause after each answer ensures it
    """

    def __init__(self, share: float) -> None:
        self._pause_ratio = 1 / share - 1
        self._turn = asyncio.Lock()
        self._next_s = 0.0
        self._answers: dict[Hashable, asyncio.Task[web.Response]] = {}
        self._waiting = 0

    async def get(self, key: Hashable, make: Callable[[], Awaitable[web.StreamResponse]]) -> web.Response:
        """The answer for this key: a fresh one, one that is being made, or a new one. Raises TooMany, and what `make` raises."""
        task = self._answers.get(key)
        if task is None:
            if self._waiting >= MAX_WAITING:
                raise TooMany(FRESH_S, BUSY)
            task = self._answers[key] = asyncio.create_task(self._make(make))
            self._waiting += 1
            task.add_done_callback(partial(self._made, key))
        return await asyncio.shield(task)

    def forget(self) -> None:
        """Discard all answers, also those that are being made."""
        self._answers.clear()

    async def _make(self, make: Callable[[], Awaitable[web.StreamResponse]]) -> web.Response:
        now = asyncio.get_running_loop().time
        async with self._turn:
            await asyncio.sleep(max(0.0, self._next_s - now()))
            begin_s = now()
            try:
                async with asyncio.timeout(MAKE_TIMEOUT_S):
                    return await complete(await make())
            except TimeoutError:
                return web.Response(status=503, text=UNAVAILABLE)
            finally:
                self._next_s = now() + self._pause_ratio * (now() - begin_s)

    def _made(self, key: Hashable, task: "asyncio.Task[web.Response]") -> None:
        self._waiting -= 1
        if task.cancelled() or task.exception() or task.result().status != HTTPStatus.OK:
            self._expire(key, task)
        else:
            asyncio.get_running_loop().call_later(FRESH_S, self._expire, key, task)

    def _expire(self, key: Hashable, task: "asyncio.Task[web.Response]") -> None:
        if self._answers.get(key) is task:
            del self._answers[key]


class Answers:
    """Renders and writes the answers of one site. prefix: path prefix of its routes"""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._scrapes, self._views = Lane(SCRAPE_SHARE), Lane(VIEW_SHARE)

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request. If it changes nothing, the answer may be one that was made for an equal request within a second."""
        target, path = request.rel_url.raw_path_qs, request.path.removeprefix(self._prefix)
        if len(target) > MAX_TARGET_BYTES:
            return web.Response(status=414, text=f"the address has more than {MAX_TARGET_BYTES:,} bytes\n")
        if request.method not in ("GET", "HEAD") or path == "/probe" or path.startswith("/static/"):
            answer = await complete(await handler(request))
            # What is refused has changed nothing; a reload that fails has.
            is_refused = HTTPStatus.BAD_REQUEST <= answer.status < HTTPStatus.INTERNAL_SERVER_ERROR
            if request.method not in ("GET", "HEAD", "OPTIONS") and not is_refused:
                for lane in (self._scrapes, self._views):
                    lane.forget()  # so that the next answer shows the effect of the action
        elif path == "/metrics":
            form = choose_form(",".join(request.headers.getall("Accept", ())))
            answer = await self._scrapes.get(form, lambda: handler(request))
        else:
            answer = await self._views.get(target, lambda: handler(request))
        return Delivery(answer, gzip=takes_gzip(",".join(request.headers.getall("Accept-Encoding", ()))))


class Delivery(web.StreamResponse):
    """A complete response, written as fast as its client reads. If the client stalls, TimeoutError ends the writing.

    gzip: True if the client accepts gzip
    """

    def __init__(self, answer: web.Response, *, gzip: bool) -> None:
        super().__init__(status=answer.status, headers=answer.headers)
        body = answer.body or b""
        assert isinstance(body, bytes | bytearray)
        self._pieces: Iterable[bytes | bytearray] = (body,)
        self.content_length = len(body)
        if not gzip and "Content-Encoding" in answer.headers:
            del self.headers["Content-Encoding"]
            self._pieces = _unpacked(body)
            self.content_length = int.from_bytes(body[-4:], "little")  # RFC 1952, 2.3.1: ISIZE

    async def write_eof(self, data: bytes = b"") -> None:
        """Write the body and end the response."""
        if not self._eof_sent and not self._must_be_empty_body:
            assert self._payload_writer is not None
            for piece in self._pieces:
                for start in range(0, len(piece), WRITE_BYTES):
                    async with asyncio.timeout(STALL_S):
                        await self.write(memoryview(piece)[start : start + WRITE_BYTES])
                        await self._payload_writer.drain()
        await super().write_eof()


def takes_gzip(accept: str) -> bool:
    """True if an Accept-Encoding header lists gzip without a weight of 0 (RFC 9110, 12.5.3)."""
    for part in accept.lower().split(","):
        name, *parameters = (word.strip() for word in part.split(";"))
        if name in ("gzip", "x-gzip"):
            return not any(_EXCLUDED.fullmatch(parameter) for parameter in parameters)
    return False


def _unpacked(body: bytes | bytearray) -> Iterator[bytes]:
    """The text of a gzipped body in slices."""
    unpacking = zlib.decompressobj(wbits=GZIP_BITS)
    for start in range(0, len(body), UNPACK_BYTES):
        packed: bytes | memoryview = memoryview(body)[start : start + UNPACK_BYTES]
        while packed:
            yield unpacking.decompress(packed, UNPACKED_BYTES)
            packed = unpacking.unconsumed_tail
    yield unpacking.flush()
