"""The web server: aiohttp's, with limits of connections, and TLS whose certificates can be rotated.

The number of connections is limited, in total and per client, from before their TLS handshake on. Beyond a limit a new connection
replaces the one that has been silent longest; if none has been silent for a while, the new one gets answers to health checks only.
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

from prober.config.hosts import Address, ip_address, is_loopback
from prober.web.web_config import Loaded, WebFile

MAX_OPEN, MAX_OPEN_PER_CLIENT, MAX_BEYOND = 256, 64, 128
MIN_SILENT_S = 1.0  # before a connection may be closed for another one: its request may be on its way
HANDSHAKE_TIMEOUT_S = 5.0
REQUEST_TIMEOUT_S = 120.0  # from the begin of a connection, or its last answer, until the next request is complete
LINGER_S = 1.0  # for the rest of a body that is not read
MAX_REQUEST_BYTES = 64 << 10  # of an incomplete request
# Of the kernel, for each connection; it would grow to 4 MB, which the container is charged for.
SEND_BUFFER_BYTES = 128 << 10
MAX_BACKLOG = 1024  # that wait to be accepted; beyond it the kernel drops, and the client retries a second later
RETRY_ACCEPT_S = 0.1
LOG_INTERVAL_S = 60.0
OWN_NETWORKS = (ipaddress.IPv6Network("fc00::/7"), ipaddress.IPv6Network("fe80::/10"))  # unique local, link-local
log = logging.getLogger(__name__)


class _FaultsOnly(logging.Filter):
    """Log filter that leaves out requests that are not HTTP: they are answered with 400, and anyone could fill the log with them."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


request_log = logging.getLogger("prober.web.requests")
request_log.addFilter(_FaultsOnly())


class Connection(web.RequestHandler):
    """A connection of a client. aiohttp closes it if no request is complete within REQUEST_TIMEOUT_S.

    Args:
        open_connections: all connections, the longest silent one first
        loaded: web configuration when the connection was accepted

    connecting: task of accepting it, with its TLS handshake. silent_since_s: time of its begin or of its last answer.
    is_busy: a request is being answered. is_beyond: it is beyond the limits, so only health checks are answered.
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
        self.is_busy = self.is_beyond = False
        self.wire: asyncio.Transport | None = (
            None  # as long as `transport`, and while the client does not read the rest
        )
        self.silent_since_s = time.monotonic()
        self._accepted, self._open, self._loaded = accepted, open_connections, loaded
        self._request_bytes = 0
        self.connecting = asyncio.create_task(self._connect())

    async def _connect(self) -> None:
        tls = self._loaded.tls
        patience: Any = {"ssl_handshake_timeout": HANDSHAKE_TIMEOUT_S, "ssl_shutdown_timeout": 1.0} if tls else {}
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: self, self._accepted, ssl=tls, **patience)
        except (OSError, ValueError):  # a failed handshake, such as of a scanner
            self._accepted.close()
            self._open.pop(self, None)

    def abort(self) -> None:
        """Close the connection at once, also during its handshake."""
        self._open.pop(self, None)
        if self.wire is not None:
            self.wire.abort()
        else:
            with contextlib.suppress(OSError):  # it has ended
                self._accepted.shutdown(socket.SHUT_RDWR)

    def request_received(self) -> None:
        """Mark the connection as busy: a request is complete."""
        self.is_busy = True

    def response_sent(self) -> None:
        """The response is complete; from now on the connection is silent."""
        self.is_busy, self._request_bytes, self.silent_since_s = False, 0, time.monotonic()
        if self in self._open:
            self._open[self] = self._open.pop(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        self.wire = self.transport
        # A piece is taken by the kernel before the next is made (`answers`). TLS of asyncio takes a limit of 0 for always full.
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
        self.open_connections: dict[Connection, None] = {}  # those that have been silent longest first
        self.addresses = [listening.getsockname() for listening in sockets]
        self._accepting: list[asyncio.Task[None]] = []
        self._logged_s = -LOG_INTERVAL_S

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
        handshaking = [connection for connection in self.open_connections if not connection.connecting.done()]
        for connection in handshaking:
            connection.abort()
        await asyncio.gather(*(connection.connecting for connection in handshaking))
        await self._runner.cleanup()
        for connection in list(self.open_connections):  # of clients that do not read the rest
            connection.abort()

    async def _accept(self, listening: socket.socket, server: web.Server) -> None:
        while True:
            try:
                accepted, address = await asyncio.get_running_loop().sock_accept(listening)
            except OSError as problem:  # most likely out of file descriptors, which is temporary
                self._log(f"connections are not accepted: {problem.strerror}")
                await asyncio.sleep(RETRY_ACCEPT_S)
                continue
            loaded = await self._file.current()
            client_key = client(str(address[0]), _reached_at(accepted)) if address else ""
            self._admit(Connection(server, accepted, client_key, self.open_connections, loaded))

    def _admit(self, connection: Connection) -> None:
        """Add the connection; beyond a limit, close another connection for it, if one has been silent for a while."""
        crowd = [other for other in self.open_connections if other.client_key == connection.client_key]
        if len(crowd) < MAX_OPEN_PER_CLIENT:
            crowd = list(self.open_connections) if len(self.open_connections) >= MAX_OPEN else []
        if crowd:
            until_s = time.monotonic() - MIN_SILENT_S
            replaced = next((other for other in crowd if not other.is_busy and other.silent_since_s <= until_s), None)
            if replaced is None:
                connection.is_beyond = True
                self._log(
                    "too many connections, all of them busy: requests on further ones are refused, except health checks"
                )
                beyond = [other for other in self.open_connections if other.is_beyond]
                replaced = beyond[0] if len(beyond) >= MAX_BEYOND else None
            if replaced is not None:
                replaced.abort()
        self.open_connections[connection] = None

    def _log(self, text: str) -> None:
        """Log the text, but at most once a minute."""
        if time.monotonic() - self._logged_s >= LOG_INTERVAL_S:
            self._logged_s = time.monotonic()
            log.warning("web: %s", text)


def _without_expect(make: Callable[..., web.BaseRequest], message: Any, *rest: Any) -> web.BaseRequest:
    """The request without its `Expect` header, so that it is answered at once: no operation needs a body."""
    if "Expect" in message.headers:
        headers = CIMultiDict((name, value) for name, value in message.headers.items() if name.lower() != "expect")
        message = message._replace(headers=CIMultiDictProxy(headers))
    return make(message, *rest)


def client(address: str, own: str = "") -> str:
    """Key of a client: its IPv4 address, its IPv6 address in the prober's own network, or else its IPv6 /64, which one machine gets.

    Pods and their kubelet share a /64, which is also the prober's, or have unique local addresses (RFC 4193).

    own: the address at which the client reached the prober
    """
    at, reached = ip_address(address), ip_address(own)
    if isinstance(at, ipaddress.IPv6Address):
        if at.ipv4_mapped or any(at in network for network in OWN_NETWORKS) or _network(at) == _network(reached):
            return str(at.ipv4_mapped or at)
        return str(_network(at))
    return address if at is None else str(at)


def _reached_at(accepted: socket.socket) -> str:
    try:
        return str(accepted.getsockname()[0])
    except OSError:  # the client has disconnected
        return ""


def _network(address: Address | None) -> ipaddress.IPv6Network | None:
    """The /64 of an IPv6 address."""
    if not isinstance(address, ipaddress.IPv6Address):
        return None
    return ipaddress.IPv6Network((int(address) >> 64 << 64, 64))


async def listening_sockets(host: str | None, port: int) -> list[socket.socket]:
    """Sockets that listen on a host. host: None for all addresses of the machine, for which one socket takes IPv4 and IPv6 if both
    are available. Raises OSError.
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
        opened.pop_all()  # they stay open
        return sockets


def _listening(family: int, address: Any, *, dualstack_ipv6: bool = False) -> socket.socket:
    listening = socket.create_server(address, family=family, backlog=MAX_BACKLOG, dualstack_ipv6=dualstack_ipv6)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    listening.setblocking(False)
    return listening


def is_reachable(host: str | None) -> bool:
    """True if other machines can reach a listener on this address."""
    return host is None or not is_loopback(host)
