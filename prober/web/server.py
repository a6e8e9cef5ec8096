"""The web server: aiohttp's, with a limit of connections, and with TLS whose certificates can be rotated.

A connection counts from before its TLS handshake. Beyond the limit a new connection replaces the one that has been silent longest,
so no client can lock out a kubelet's health check, whose address other clients of its node may share.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict, CIMultiDictProxy

from prober.config.hosts import ip_address, is_loopback
from prober.web.web_config import Loaded, WebFile

MAX_OPEN = 256
HANDSHAKE_TIMEOUT_S = 5.0
REQUEST_TIMEOUT_S = 120.0  # from the start or the last answer of a connection until the next request is complete
LINGER_S = 1.0  # for the rest of an unread body
MAX_REQUEST_BYTES = 64 << 10  # of an incomplete request
# Kernel buffer of each connection; it would grow to 4 MB, which count as memory of the container.
SEND_BUFFER_BYTES = 128 << 10
MAX_BACKLOG = 1024  # waiting to be accepted; beyond it the kernel drops them, and clients retry after a second
RETRY_ACCEPT_S = 0.1
LOG_INTERVAL_S = 60.0
OWN_NETWORKS = (ipaddress.IPv6Network("fc00::/7"), ipaddress.IPv6Network("fe80::/10"))  # unique local, link-local
log = logging.getLogger(__name__)


class _FaultsOnly(logging.Filter):
    """Log filter that drops requests that are not HTTP: they get a 400, and anyone could fill the log with them."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


request_log = logging.getLogger("prober.web.requests")
request_log.addFilter(_FaultsOnly())


class Connection(web.RequestHandler):
    """A client's connection. aiohttp closes it if no request is complete within REQUEST_TIMEOUT_S.

    Args:
        open_connections: all connections, the longest silent one first
        loaded: web configuration when the connection was accepted

    connecting: task that accepts it, with the TLS handshake. is_busy: a request is being answered
    """

    def __init__(
        self,
        server: web.Server,
        accepted: socket.socket,
        client_key: str,
        open_connections: "dict[Connection, None]",
        loaded: Loaded,
    ) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=REQUEST_TIMEOUT_S,
            logger=request_log,
            access_log=None,  # type: ignore[arg-type] # of aiohttp's declaration only
            lingering_time=LINGER_S,
        )
        self.client_key = client_key
        self.is_busy = False
        self.wire: asyncio.Transport | None = None  # exists as long as `transport`, also while the client does not read
        self._accepted, self._open, self._loaded = accepted, open_connections, loaded
        self._request_bytes = 0
        self.connecting = asyncio.create_task(self._connect())

    async def _connect(self) -> None:
        tls = self._loaded.tls
        patience: Any = {"ssl_handshake_timeout": HANDSHAKE_TIMEOUT_S, "ssl_shutdown_timeout": 1.0} if tls else {}
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: self, self._accepted, ssl=tls, **patience)
        except (OSError, ValueError):  # the handshake failed, such as a scanner's
            self._accepted.close()
            self._open.pop(self, None)

    def abort(self) -> None:
        """Close the connection at once, also during its handshake."""
        self._open.pop(self, None)
        if self.wire is not None:
            self.wire.abort()
        else:
            with contextlib.suppress(OSError):  # the connection has ended
                self._accepted.shutdown(socket.SHUT_RDWR)

    def response_sent(self) -> None:
        """Mark the connection as silent, since its response is complete."""
        self.is_busy, self._request_bytes = False, 0
        if self in self._open:
            self._open[self] = self._open.pop(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        self.wire = self.transport
        # The kernel takes each piece before the next is made (`answers`). asyncio's TLS treats a limit of 0 as always full.
        self.wire.set_write_buffer_limits(high=1, low=0)
        if not self._loaded.admits(transport.get_extra_info("peercert")):
            self.wire.abort()

    def data_received(self, data: bytes) -> None:
        if not self.is_busy:
            if self._request_bytes > MAX_REQUEST_BYTES:
                self.abort()
                return
            self._request_bytes += len(data)
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._open.pop(self, None)
        super().connection_lost(exc)


class PageServer:
    """Serves an application. Call `start`, then `close`, which closes the sockets too.

    Args:
        file: web configuration file, for TLS
    """

    def __init__(self, app: web.Application, file: WebFile, sockets: list[socket.socket]) -> None:
        self._runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=1.0)
        self._file, self._sockets = file, sockets
        self.open_connections: dict[Connection, None] = {}  # longest silent first
        self.addresses = [listening.getsockname() for listening in sockets]
        self._accepting: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to accept connections."""
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        server.request_factory = partial(_without_expect, server.request_factory)
        self._accepting = [asyncio.create_task(self._accept(listening, server)) for listening in self._sockets]

    async def close(self) -> None:
        """Stop listening and close all connections."""
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for listening in self._sockets:
            listening.close()
        await self._runner.cleanup()
        remaining = list(self.open_connections)  # in their handshake, or with clients that do not read
        for connection in remaining:
            connection.abort()
        await asyncio.gather(*(connection.connecting for connection in remaining))

    async def _accept(self, listening: socket.socket, server: web.Server) -> None:
        logged_s = -LOG_INTERVAL_S
        while True:
            try:
                accepted, address = await asyncio.get_running_loop().sock_accept(listening)
            except OSError as problem:  # most likely out of file descriptors, which is temporary
                if time.monotonic() - logged_s >= LOG_INTERVAL_S:
                    logged_s = time.monotonic()
                    log.warning("web: connections are not accepted: %s", problem.strerror)
                await asyncio.sleep(RETRY_ACCEPT_S)
                continue
            loaded = await self._file.current()
            if len(self.open_connections) >= MAX_OPEN:
                silent = (connection for connection in self.open_connections if not connection.is_busy)
                next(silent, next(iter(self.open_connections))).abort()
            client_key = client(str(address[0])) if address else ""
            connection = Connection(server, accepted, client_key, self.open_connections, loaded)
            self.open_connections[connection] = None


def _without_expect(make: Callable[..., web.BaseRequest], message: Any, *rest: Any) -> web.BaseRequest:
    """Remove the request's `Expect` header, so that it is answered at once: no operation needs a body."""
    if "Expect" in message.headers:
        headers = CIMultiDict((name, value) for name, value in message.headers.items() if name.lower() != "expect")
        message = message._replace(headers=CIMultiDictProxy(headers))
    return make(message, *rest)


def client(address: str) -> str:
    """Key of a client: its IPv4 address, or its IPv6 /64, the smallest network that a machine on the internet gets.

    Each address of a private IPv6 network (RFC 4193) is a client, because pods and their kubelet share a /64.
    """
    at = ip_address(address)
    if not isinstance(at, ipaddress.IPv6Address):
        return address if at is None else str(at)
    if at.ipv4_mapped or any(at in network for network in OWN_NETWORKS):
        return str(at.ipv4_mapped or at)
    return str(ipaddress.IPv6Network((int(at) >> 64 << 64, 64)))


async def listening_sockets(host: str | None, port: int) -> list[socket.socket]:
    """Open sockets that listen on a host. host: None for all addresses of the machine, with one socket for IPv4 and IPv6 if both are
    available. Raises OSError.
    """
    if host is None and socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return [_listening(socket.AF_INET6, ("::", port), dualstack_ipv6=True)]
    loop = asyncio.get_running_loop()
    addresses = await loop.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    with contextlib.ExitStack() as opened:
        sockets = [
            opened.enter_context(_listening(family, address)) for family, _, _, _, address in dict.fromkeys(addresses)
        ]
        opened.pop_all()  # keep them open
        return sockets


def _listening(family: int, address: Any, *, dualstack_ipv6: bool = False) -> socket.socket:
    listening = socket.create_server(address, family=family, backlog=MAX_BACKLOG, dualstack_ipv6=dualstack_ipv6)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    listening.setblocking(False)
    return listening


def is_reachable(host: str | None) -> bool:
    """True if other machines can reach a listener on this host."""
    return host is None or not is_loopback(host)
