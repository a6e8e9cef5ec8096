"""What clients meet: connections, TLS, passwords, limits, health, and answers that are fetched from the site and shared.

The site (`site.Site`) renders, in the process that measures. The front fetches its answers over socket pairs, each kind one at a
time, so that any number of clients costs the measuring no more than one of each kind. A large answer comes compressed, and is
held so for all who read it: for a client that takes no gzip it is unpacked in slices as it reads.
"""

import asyncio
import logging
import re
import socket
import zlib
from collections.abc import Awaitable, Callable, Iterator
from http import HTTPStatus
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from prober.exposition.form import choose_form
from prober.web.access_control import SAFE_METHODS, AccessControl
from prober.web.lane import Answer, Deliveries, Lane
from prober.web.listener import IDLE_TIMEOUT_S, Limits, Listener
from prober.web.overflow import Overflow
from prober.web.pieces import PiecewiseResponse

LINGER_S = 1.0  # for the rest of a body that is not read
FETCH_TIMEOUT_S = 30.0
SCRAPE_SHARE, VIEW_SHARE = 0.5, 0.25  # of one core of the measuring process
MAX_ANSWER_BYTES = 32 << 20
MAX_TARGET_BYTES = 4096  # of a request's path and query
UNPACK_BYTES, UNPACKED_BYTES = 1 << 12, 1 << 15  # compressed ones given to zlib at once, and text asked of it at once
GZIP_BITS = 31  # of zlib: the largest window, in the format of gzip
FORWARDED = ("Accept", "X-Prometheus-Scrape-Timeout-Seconds")
RETURNED = ("Content-Type", "Content-Encoding", "Cache-Control", "Location", "Retry-After", "Allow")
SITE = "http://site"
_EXCLUDED = re.compile(r"q=0(\.0*)?")
TOO_LONG = "the answer has more than 32 MiB; ask for fewer with limit=, or for one target with target=\n"
UNAVAILABLE = "the prober's measuring process does not answer; its log may say why\n"
log = logging.getLogger(__name__)


class _FaultsOnly(logging.Filter):
    """Leaves out requests that are no HTTP: they are answered with 400, and anyone could fill the log with them."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


server_log = logging.getLogger("prober.web.server")
server_log.addFilter(_FaultsOnly())


class _Connector(aiohttp.BaseConnector):
    """Connections to the site: socket pairs, one end of which `hand_over` brings to it."""

    def __init__(self, hand_over: Callable[[socket.socket], Awaitable[None]]) -> None:
        super().__init__(limit=0, keepalive_timeout=IDLE_TIMEOUT_S)
        self._hand_over = hand_over

    async def _create_connection(self, req: Any, traces: Any, timeout: Any) -> Any:
        ours, theirs = socket.socketpair()
        try:
            await self._hand_over(theirs)
            _, protocol = await asyncio.get_running_loop().create_connection(self._factory, sock=ours)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return protocol


class Front:
    """The server that clients reach. Call `start`, then `close`.

    hand_over: gives the site one end of a connection to it; the caller closes its own copy
    """

    def __init__(
        self, access: AccessControl, prefix: str, hand_over: Callable[[socket.socket], Awaitable[None]]
    ) -> None:
        self._access, self._prefix, self._hand_over = access, prefix, hand_over
        self._scrapes, self._views, self._files = Lane(SCRAPE_SHARE), Lane(VIEW_SHARE), Lane(1.0)
        self._deliveries = Deliveries()

    async def start(self, sockets: list[socket.socket], limits: Limits | None = None) -> Listener:
        """Serve connections of listening sockets."""
        self._site = aiohttp.ClientSession(connector=_Connector(self._hand_over), auto_decompress=False)
        app = web.Application(middlewares=[self._access.middleware])
        app.router.add_route("*", "/{path:.*}", self._answer, expect_handler=_ignore_expect)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=server_log,
            shutdown_timeout=1.0,
            keepalive_timeout=IDLE_TIMEOUT_S,
            lingering_time=LINGER_S,
        )
        await self._runner.setup()
        assert self._runner.server is not None
        overflow = Overflow(self._access.overflow_answer)
        self._listener = self._access.listener = Listener(self._access.file, self._runner.server, overflow, limits)
        self._listener.start(sockets)
        return self._listener

    async def close(self) -> None:
        """Stop listening and close all connections."""
        await self._listener.close()
        await self._runner.cleanup()
        self._access.close()
        await self._site.close()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if health := self._access.health(request.path):
            return web.Response(status=health[0], text=health[1])
        target = request.rel_url.raw_path_qs
        if len(target) > MAX_TARGET_BYTES:
            return web.Response(status=414, text=f"the address has more than {MAX_TARGET_BYTES:,} bytes\n")
        path = request.path.removeprefix(self._prefix)
        if request.method not in ("GET", "HEAD") or path == "/probe":
            answer = await self._fetch(request.method, target, request)
            # What is refused has changed nothing; a reload that fails has.
            is_refused = HTTPStatus.BAD_REQUEST <= answer.status < HTTPStatus.INTERNAL_SERVER_ERROR
            if request.method not in SAFE_METHODS and not is_refused:
                for lane in (self._scrapes, self._views):
                    lane.forget()  # whoever acts sees what it did
            return self._response(request, answer)
        if path == "/metrics":
            form = choose_form(",".join(request.headers.getall("Accept", ())))
            answer = await self._scrapes.get(form, lambda: self._fetch("GET", request.rel_url.raw_path, request))
        else:
            is_file = path.startswith(("/static/", "/runbooks/"))
            lane = self._files if is_file else self._views
            answer = await lane.get(target, lambda: self._fetch("GET", target, request))
        return self._response(request, answer)

    def _response(self, request: web.Request, answer: Answer) -> "_Delivered":
        response = _Delivered(
            self._deliveries, answer, gzip=takes_gzip(",".join(request.headers.getall("Accept-Encoding", ())))
        )
        if answer.status == 429:
            response.force_close()  # a retry needs a new connection, and those are rate limited
        return response

    async def _fetch(self, method: str, target: str, request: web.Request) -> Answer:
        """The site's complete answer."""
        limit_s = FETCH_TIMEOUT_S if method == "GET" and not target.startswith(f"{self._prefix}/probe") else None
        try:
            headers = {name: ",".join(request.headers.getall(name)) for name in FORWARDED if name in request.headers}
            async with self._site.request(
                method,
                URL(SITE + target, encoded=True),
                headers=headers | {"Accept-Encoding": "gzip"},
                skip_auto_headers=("Accept", "User-Agent"),
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=limit_s),
            ) as answer:
                body = bytearray()
                async for piece in answer.content.iter_any():
                    body += piece
                    if len(body) > MAX_ANSWER_BYTES:
                        return _sentence(413, TOO_LONG)
                returned = {name: answer.headers[name] for name in RETURNED if name in answer.headers}
                return Answer(answer.status, returned, body)
        except (aiohttp.ClientError, OSError, TimeoutError) as problem:
            log.debug("the site does not answer %s: %r", target, problem)
            return _sentence(503, UNAVAILABLE)


class _Delivered(PiecewiseResponse):
    """A response with a shared body. gzip: whether the client takes it compressed"""

    def __init__(self, deliveries: Deliveries, answer: Answer, *, gzip: bool) -> None:
        if gzip or "Content-Encoding" not in answer.headers:
            super().__init__((answer.body,), answer.status, answer.headers)
        else:
            super().__init__(_unpacked(answer.body), answer.status, answer.headers)
            del self.headers["Content-Encoding"]
            self.content_length = int.from_bytes(answer.body[-4:], "little")  # RFC 1952, 2.3.1: ISIZE
        self._deliveries, self._answer = deliveries, answer

    async def write_eof(self, data: bytes = b"") -> None:
        transport = self._req.transport if self._req is not None else None
        with self._deliveries.of(self._answer, transport.abort if transport is not None else lambda: None):
            await super().write_eof()


async def _ignore_expect(_: web.Request) -> None:
    """Let the answer follow at once, whatever `Expect` says: no operation needs a body."""


def takes_gzip(accept: str) -> bool:
    """Whether an Accept-Encoding names gzip without excluding it by a weight of 0 (RFC 9110, 12.5.3)."""
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


def _sentence(status: int, text: str) -> Answer:
    return Answer(status, {"Content-Type": "text/plain; charset=utf-8"}, text.encode())
