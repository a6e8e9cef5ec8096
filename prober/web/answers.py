"""Answers of the site: rendered one at a time, shared by equal requests within a second, and written as fast as clients read.

A large answer is stored compressed, once for all its readers, so many slow readers need little memory. For a client without gzip it
is decompressed in slices while the client reads.
"""

import asyncio
import re
import time
import zlib
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping
from http import HTTPStatus

from aiohttp import web

from prober.exposition.families import choose_form

FRESH_S = 1.0  # how long an answer is reused
MAX_STEP_S = 0.05  # of rendering: a loop blocked for a second spoils probes
MAX_TARGET_BYTES = 4096  # of a request's path and query
MAX_ANSWER_BYTES = 16 << 20  # compressed
GZIP_BITS = 31  # wbits of zlib: the largest window, gzip format
UNPACK_BYTES, UNPACKED_BYTES = 1 << 12, 1 << 15  # bytes given to zlib, and bytes of text requested from it
WRITE_BYTES = 1 << 16  # held in memory for a client that does not read
STALL_S = 5.0  # for a client to read WRITE_BYTES, else it is disconnected
TOO_LONG = "the answer has more than 16 MiB; ask for fewer with limit=, or for one target with target=\n"
_EXCLUDED = re.compile(r"q=0(\.0*)?")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Pieces(web.Response):
    """A response that is rendered and compressed later, in pieces, so that its whole text is never in memory."""

    def __init__(self, pieces: Iterable[bytes], headers: Mapping[str, str]) -> None:
        super().__init__(headers=headers)
        self.pieces = pieces


async def complete(response: web.StreamResponse) -> web.Response:
    """Render and compress the body of a response. Other tasks run after each MAX_STEP_S."""
    assert isinstance(response, web.Response)
    if not isinstance(response, Pieces):
        return response
    compressor, body, began_s = zlib.compressobj(1, wbits=GZIP_BITS), bytearray(), time.monotonic()
    for piece in response.pieces:
        body += compressor.compress(piece)
        if len(body) > MAX_ANSWER_BYTES:
            return web.Response(status=413, text=TOO_LONG)
        if time.monotonic() - began_s > MAX_STEP_S:
            await asyncio.sleep(0)
            began_s = time.monotonic()
    body += compressor.flush()
    return web.Response(body=body, headers={**response.headers, "Content-Encoding": "gzip"})


class Lane:
    """Makes one answer at a time, so that memory holds the text of one, and reuses it for equal requests for FRESH_S."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._answers: dict[Hashable, tuple[float, web.Response]] = {}  # (time until which it is fresh, answer)

    async def get(self, key: Hashable, make: Callable[[], Awaitable[web.StreamResponse]]) -> web.Response:
        """Return the answer for a key if it is fresh, else make it. Raises what `make` raises."""
        now = asyncio.get_running_loop().time
        async with self._turn:
            answers = self._answers = {at: kept for at, kept in self._answers.items() if now() <= kept[0]}
            if key in answers:
                return answers[key][1]
            answer = await complete(await make())
            if answer.status == HTTPStatus.OK:
                answers[key] = now() + FRESH_S, answer
            return answer

    def forget(self) -> None:
        """Discard all answers, including the one being made."""
        self._answers = {}


class Answers:
    """Renders and writes the answers of one site.

    prefix: path prefix of its routes; on_change: called after an action
    """

    def __init__(self, prefix: str, on_change: Callable[[], None]) -> None:
        self._prefix, self._on_change = prefix, on_change
        self._scrapes, self._pages = Lane(), Lane()  # separate, so that scrapes do not wait for pages

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request. Requests that change nothing share the answer to an equal request for a second."""
        target, path = request.rel_url.raw_path_qs, request.path.removeprefix(self._prefix)
        if len(target) > MAX_TARGET_BYTES:
            return web.Response(status=414, text=f"the address has more than {MAX_TARGET_BYTES:,} bytes\n")
        if request.method not in ("GET", "HEAD") or path == "/probe":  # a probe takes its own time
            answer = await complete(await handler(request))
            # Refused actions have changed nothing; failed reloads have.
            is_refused = HTTPStatus.BAD_REQUEST <= answer.status < HTTPStatus.INTERNAL_SERVER_ERROR
            if request.method not in ("GET", "HEAD", "OPTIONS") and not is_refused:
                self._on_change()
                for lane in (self._scrapes, self._pages):
                    lane.forget()  # so that the next answer shows the result of the action
        elif path == "/metrics":
            form = choose_form(",".join(request.headers.getall("Accept", ())))
            answer = await self._scrapes.get(form, lambda: handler(request))
        else:
            answer = await self._pages.get(target, lambda: handler(request))
        return Delivery(answer, gzip=takes_gzip(",".join(request.headers.getall("Accept-Encoding", ()))))


class Delivery(web.StreamResponse):
    """A complete response, written as fast as its client reads. Raises TimeoutError if the client stalls.

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
    """Decompress a gzipped body in slices."""
    unpacking = zlib.decompressobj(wbits=GZIP_BITS)
    for start in range(0, len(body), UNPACK_BYTES):
        packed: bytes | memoryview = memoryview(body)[start : start + UNPACK_BYTES]
        while packed:
            yield unpacking.decompress(packed, UNPACKED_BYTES)
            packed = unpacking.unconsumed_tail
    yield unpacking.flush()
