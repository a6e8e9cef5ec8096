"""Accepts connections for the site with limits, so that network clients cannot starve the measurement.

Connections are limited in number and rate, in total and per address. Clients that send no complete request within the timeout are
disconnected; if there are too many connections, the one that has been silent longest is. A new connection uses the current TLS
configuration, so that certificates can be rotated. A connection beyond the limits gets an answer to a health check, or a refusal
(`overflow`).
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from aiohttp import web

from prober.config.hosts import Address, ip_address, is_loopback
from prober.web.overflow import Overflow
from prober.web.token_bucket import Rates
from prober.web.web_config import Loaded, WebFile

HANDSHAKE_TIMEOUT_S = 5.0
FIRST_REQUEST_TIMEOUT_S = 10.0  # until the first request is complete
IDLE_TIMEOUT_S = 120.0  # until the next request is complete
MAX_REQUEST_BYTES = 64 << 10  # of an incomplete request
# Of the kernel, for each connection; it would grow to 4 MB, which the container is charged for.
SEND_BUFFER_BYTES = 128 << 10
CHECK_INTERVAL_S = 1.0
MAX_BACKLOG = 1024  # while the event loop is busy; beyond it the kernel drops, and the client retries a second later
MAX_ACCEPTED = 16  # connections per turn of the event loop
LOG_INTERVAL_S = 60.0
OWN_NETWORKS = (ipaddress.IPv6Network("fc00::/7"), ipaddress.IPv6Network("fe80::/10"))  # unique local, link-local
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of connections. most, of_one: open ones, in total and of one address; per_s, burst: new ones per second."""

    max_open: int = 256
    max_open_per_client: int = 64
    per_s: float = 200.0
    per_s_per_client: float = 50.0
    burst: int = 200
    tls_per_s: float = 20.0  # a handshake takes up to a millisecond of the event loop
    tls_per_s_per_client: float = 10.0
    tls_burst: int = 40
    tls_gap_s: float = 0.02  # between two of them, however many are allowed
    tls_wait_s: float = 0.4  # for its turn; who would have to wait longer is beyond the limits


def client(address: str, own: str = "") -> str:
    """Client key: an IPv4 address, an IPv6 address of the prober's own network, or another IPv6 /64, which one machine gets.

    Pods, and their kubelet, share a /64, which is also the prober's, or have unique local addresses (RFC 4193).

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


class Connection(asyncio.Protocol):
    """A connection with timeouts around `inner`, the protocol of the server.

    waiting_s: start of the wait for a request; None while a response is due
    """

    def __init__(self, inner: web.RequestHandler, client_key: str, ended: Callable[["Connection"], None]) -> None:
        self.inner, self.client_key, self._ended = inner, client_key, ended
        self.transport: asyncio.Transport | None = None
        self.waiting_s: float | None = time.monotonic()
        self._timeout_s = HANDSHAKE_TIMEOUT_S + FIRST_REQUEST_TIMEOUT_S
        self._bytes = 0

    def request_received(self) -> None:
        """A request is complete."""
        self.waiting_s = None

    def response_sent(self) -> None:
        """The response is complete."""
        self.waiting_s, self._timeout_s, self._bytes = time.monotonic(), IDLE_TIMEOUT_S, 0

    def overdue(self, now_s: float) -> bool:
        """Whether the time for the request has passed."""
        return self.waiting_s is not None and now_s - self.waiting_s > self._timeout_s

    def abort(self) -> None:
        """Abort the connection."""
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        # A piece is taken by the kernel before the next is made (`pieces`). TLS of asyncio takes a limit of 0 for always full.
        self.transport.set_write_buffer_limits(high=1, low=0)
        self.waiting_s, self._timeout_s = time.monotonic(), FIRST_REQUEST_TIMEOUT_S
        self.inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self.waiting_s is not None:
            if self._bytes > MAX_REQUEST_BYTES:
                self.abort()
                return
            self._bytes += len(data)
        self.inner.data_received(data)

    def eof_received(self) -> None:
        self.inner.eof_received()

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.inner.connection_lost(exc)
        self._ended(self)


class Listener:
    """Listening sockets and their connections. Call `start`, then `close`.

    overflow: answers connections beyond the limits
    """

    def __init__(
        self, file: WebFile, make: Callable[[], web.RequestHandler], overflow: Overflow, limits: Limits | None = None
    ) -> None:
        self._file, self._make, self._overflow, self._limits = file, make, overflow, limits or Limits()
        limit = self._limits
        self._open: dict[web.RequestHandler, Connection] = {}
        self._by_client: Counter[str] = Counter()
        self._rates = {
            False: (Rates(limit.per_s, limit.burst), Rates(limit.per_s_per_client, limit.burst)),
            True: (Rates(limit.tls_per_s, limit.tls_burst), Rates(limit.tls_per_s_per_client, limit.tls_burst)),
        }
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._logged_s = -LOG_INTERVAL_S
        self._next_handshake_s = 0.0

    @property
    def addresses(self) -> list[Any]:
        """Listening addresses."""
        return [listening.getsockname() for listening in self._sockets]

    def __len__(self) -> int:
        return len(self._open)

    def start(self, sockets: list[socket.socket]) -> None:
        """Accept connections of listening sockets, which `close` closes."""
        self._sockets = sockets
        self._overflow.start()
        for listening in self._sockets:
            self._start(self._accept(listening))
        self._start(self._check_timeouts())

    async def close(self) -> None:
        """Stop listening; the server closes the connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listening in self._sockets:
            listening.close()
        await asyncio.to_thread(self._overflow.close)

    def of(self, request: web.BaseRequest) -> Connection | None:
        """Connection of a request."""
        return self._open.get(request.protocol)

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except OSError as problem:  # most likely out of file descriptors, which is temporary
                self._log(f"connections are not accepted: {problem.strerror}")
                await asyncio.sleep(0.1)
                continue
            loaded = await self._file.current()
            self._admit(accepted, address, loaded)
            for _ in range(MAX_ACCEPTED - 1):
                try:
                    accepted, address = listening.accept()
                except OSError:  # none pending; another error recurs in the next turn
                    break
                self._admit(accepted, address, loaded)
            await asyncio.sleep(0)

    def _admit(self, accepted: socket.socket, address: Any, loaded: Loaded) -> None:
        """Start a connection, or hand it to `overflow`."""
        client_key = client(str(address[0]), _reached_at(accepted)) if address else ""
        now_s = time.monotonic()
        if why := self._exceeded_limit(client_key, secured=loaded.tls is not None, now_s=now_s):
            self._log(f"{why}: requests on further ones are refused, except health checks")
            self._overflow.offer(accepted, loaded)
            return
        wait_s = 0.0
        if loaded.tls is not None:
            wait_s = max(0.0, self._next_handshake_s - now_s)
            self._next_handshake_s = now_s + wait_s + self._limits.tls_gap_s
        connection = Connection(self._make(), client_key, self._ended)
        self._open[connection.inner] = connection
        self._by_client[client_key] += 1
        self._start(self._take(connection, accepted, loaded, wait_s))

    def _exceeded_limit(self, client_key: str, *, secured: bool, now_s: float) -> str:
        """Limit that a new connection exceeds; "" if it is within the limits and counted."""
        total, per_client = self._rates[secured]
        if self._by_client[client_key] >= self._limits.max_open_per_client or per_client.take(client_key, now_s):
            return f"{client_key} has or makes too many connections"
        if secured and self._next_handshake_s - now_s > self._limits.tls_wait_s:
            return "too many TLS handshakes wait"
        if total.take("", now_s):
            return "all clients together make too many connections"
        if len(self._open) >= self._limits.max_open and not self._make_room():
            return f"there are {self._limits.max_open} connections, all of them busy"
        return ""

    async def _take(self, connection: Connection, accepted: socket.socket, loaded: Loaded, wait_s: float) -> None:
        """Handle a connection up to its first request, with a rate-limited TLS handshake first."""
        loop = asyncio.get_running_loop()
        accepted.setblocking(False)
        patience = {"ssl_handshake_timeout": HANDSHAKE_TIMEOUT_S, "ssl_shutdown_timeout": 1.0} if loaded.tls else {}
        try:
            await asyncio.sleep(wait_s)
            await loop.connect_accepted_socket(lambda: connection, accepted, ssl=loaded.tls, **patience)
        except (OSError, ValueError):  # a failed handshake, such as of a scanner
            pass
        finally:
            if connection.transport is None:
                accepted.close()
                self._ended(connection)
        if connection.transport is not None and not loaded.admits(connection.transport.get_extra_info("peercert")):
            connection.abort()

    def _ended(self, connection: Connection) -> None:
        if self._open.pop(connection.inner, None) is not None:
            self._by_client[connection.client_key] -= 1
            if not self._by_client[connection.client_key]:
                del self._by_client[connection.client_key]

    def _make_room(self) -> bool:
        """Close the connection that has waited longest; False if none waits."""
        silent = [peer for peer in self._open.values() if peer.waiting_s is not None and peer.transport is not None]
        if not silent:
            return False
        eldest = min(silent, key=lambda connection: connection.waiting_s or 0.0)
        eldest.abort()
        self._ended(eldest)
        return True

    async def _check_timeouts(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            now_s = time.monotonic()
            for connection in list(self._open.values()):
                if connection.overdue(now_s):
                    connection.abort()

    def _log(self, text: str) -> None:
        """Log at most once a minute."""
        if time.monotonic() - self._logged_s >= LOG_INTERVAL_S:
            self._logged_s = time.monotonic()
            log.warning("web: %s", text)


async def listening_sockets(host: str | None, port: int) -> list[socket.socket]:
    """Sockets that listen. host: None for all addresses of the machine, for which one socket takes IPv4 and IPv6 if both are
    available. Raises OSError.
    """
    if host is None:
        if socket.has_dualstack_ipv6():
            with contextlib.suppress(OSError):
                return [_bound(socket.AF_INET6, ("::", port), both=True)]
        return [_bound(socket.AF_INET, ("0.0.0.0", port))]
    loop = asyncio.get_running_loop()
    addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    made: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(addresses):
            made.append(_bound(family, address))
    except OSError:
        for listening in made:
            listening.close()
        raise
    return made


def _bound(family: int, address: Any, *, both: bool = False) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not both))
        bound.setblocking(False)
        bound.bind(address)
        bound.listen(MAX_BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound


def is_reachable(host: str | None) -> bool:
    """Whether other machines can reach a listener on this address."""
    return host is None or not is_loopback(host)
