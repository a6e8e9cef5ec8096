"""Set up a connection in timed phases: DNS, TCP, proxy, TLS."""

import asyncio
import errno
import os
import socket
import ssl
from dataclasses import replace
from typing import Any

import httptools

from prober.config.hosts import Forbidden, check, ip_address
from prober.measure.outcome import Outcome, Verdict
from prober.measure.timeline import Connection
from prober.net.endpoint import Endpoint
from prober.net.exchange import Exchange
from prober.net.stamped_socket import StampedSocket

_UNUSABLE_FAMILY = {
    errno.EADDRNOTAVAIL,
    errno.ENETUNREACH,
    errno.EAFNOSUPPORT,
}  # errors for an address family that this machine does not support
# This machine is out of file descriptors, memory or ports.
_LOCAL_ERRORS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL}


class Broken(Exception):
    """The connection could not be set up.

    verdict: outcome and detail of the probe
    connection: the completed phases
    is_refused: the target itself, not a proxy, refused the TCP connection (ECONNREFUSED)
    """

    def __init__(self, outcome: Outcome, detail: str, connection: Connection, *, is_refused: bool = False) -> None:
        super().__init__(detail)
        self.verdict = Verdict(outcome, detail)
        self.connection = connection
        self.is_refused = is_refused


async def connect(endpoint: Endpoint, exchange: Exchange, timeout_s: float, lead_ns: int = 0) -> Connection:
    """Connect `exchange` to the endpoint within `timeout_s` seconds. Raises Broken.

    lead_ns: time that this may take before it delays the request
    """
    setup = _Setup(endpoint, exchange, lead_ns)
    try:
        async with asyncio.timeout(timeout_s):
            return await setup.run()
    except TimeoutError:
        detail = f"no connection within {timeout_s:g} s (in {setup.phase})"
        raise setup.broken(Outcome.CONNECT_TIMEOUT, detail) from None
    except socket.gaierror as problem:
        if (
            exhausted := _exhausted()
        ) is not None:  # without a socket the resolver reports the same error as for an unknown name
            raise setup.broken(
                Outcome.INVALID, f"the prober itself cannot resolve {setup.host!r}: {exhausted}"
            ) from None
        raise setup.broken(Outcome.DNS, f"cannot resolve {setup.host!r}: {problem.strerror}") from None
    except ssl.SSLCertVerificationError as problem:
        raise setup.broken(Outcome.TLS, f"certificate refused: {problem.verify_message}") from None
    except Forbidden as problem:
        raise setup.broken(Outcome.REJECTED, str(problem.strerror)) from None
    except ValueError as problem:  # a name that cannot be looked up: an empty or too long part, a NUL
        name, outcome = (setup.host, Outcome.DNS) if setup.phase == "dns" else (endpoint.server_name, Outcome.TLS)
        raise setup.broken(outcome, f"{name!r} is not a host name: {problem}") from None
    except (OSError, ssl.SSLError) as problem:
        if problem.errno in _LOCAL_ERRORS or setup.phase == "dns":  # other errors of the resolver are local
            detail = f"the prober itself cannot connect: {setup.phase}: {_exhausted() or _reason_of(problem)}"
            raise setup.broken(Outcome.INVALID, detail) from None
        outcome = Outcome.TLS if setup.phase == "tls" else Outcome.CONNECT_REFUSED
        is_refused = problem.errno == errno.ECONNREFUSED and setup.phase == "tcp" and endpoint.proxy is None
        detail = f"{setup.phase} to {setup.host}:{setup.port}: {_reason_of(problem)}"
        raise setup.broken(outcome, detail, is_refused=is_refused) from None


def cert_expiry(exchange: Exchange) -> float | None:
    """Expiry of the server certificate in Unix seconds; None without a verified certificate."""
    tls_object = exchange.connection.tls if exchange.connection else None
    try:
        until = (tls_object.getpeercert() or {}).get("notAfter") if tls_object is not None else None
        return float(ssl.cert_time_to_seconds(until)) if isinstance(until, str) else None
    except ValueError:  # the handshake is not complete, or the date is invalid
        return None


def _exhausted() -> str | None:
    """Name of the resource of this process that is exhausted; None if there is none."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as problem:
        return _reason_of(problem)
    return None


def _reason_of(problem: Exception) -> str:
    if isinstance(problem, OSError) and problem.errno is not None and not isinstance(problem, ssl.SSLError):
        return os.strerror(problem.errno)
    return (getattr(problem, "strerror", None) or getattr(problem, "reason", None) or str(problem)).strip()


class _Setup:
    def __init__(self, endpoint: Endpoint, exchange: Exchange, lead_ns: int) -> None:
        self._endpoint = endpoint
        self._exchange = exchange
        self._loop = asyncio.get_running_loop()
        self.host, self.port = endpoint.proxy or (endpoint.host, endpoint.port)
        self.phase = "dns"
        self._now_ns = exchange.clock.now_ns
        self._connection = Connection(self._now_ns(), lead_ns=lead_ns)
        self._reached_ns = self._connection.start_ns  # end of the last phase, without the prober's own delay

    def broken(self, outcome: Outcome, detail: str, *, is_refused: bool = False) -> Broken:
        return Broken(outcome, detail, self._connection, is_refused=is_refused)

    async def run(self) -> Connection:
        check(self._endpoint.host, allow_link_local=self._endpoint.allow_link_local)
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        addresses: list[tuple[int, Any]] = [(family, (self.host, self.port))]
        if ip_address(self.host) is None:
            resolving = self._loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
            addresses = list(dict.fromkeys((found[0], found[4]) for found in await resolving))
            self._ended("dns", self._connection.start_ns, self._now_ns())
        self.phase, begun_ns = "tcp", self._now_ns()
        connection, ready_ns = await self._tcp(addresses)
        self._ended("tcp", begun_ns, ready_ns)
        context = self._endpoint.tls
        if context is not None and self._endpoint.proxy:
            self.phase, begun_ns, tunnel = "proxy", self._now_ns(), _Tunnel()
            connection.hand_over(tunnel)
            await tunnel.open(self._endpoint, connection)
            connection.hand_over(self._exchange)
            self._ended("proxy", begun_ns, connection.arrived_ns)
        if context is not None:
            self.phase, begun_ns = "tls", self._now_ns()
            await connection.start_tls(context, self._endpoint.server_name)
            self._ended("tls", begun_ns, connection.arrived_ns)
        return replace(self._connection, ready_ns=self._reached_ns)

    def _ended(self, phase: str, begun_ns: int, ended_ns: int) -> None:
        """Record how long a phase took."""
        took_ns = max(0, ended_ns - begun_ns)
        self._reached_ns += took_ns
        seconds = {f"{phase}_s": took_ns / 1e9}
        self._connection = replace(self._connection, **seconds)  # type: ignore[arg-type]

    async def _tcp(self, addresses: list[tuple[int, Any]]) -> tuple[StampedSocket, int]:
        """Connect to the first address that accepts. Returns (connection, time in ns at which it was established).

        addresses: (family, address) pairs in the order in which they are tried
        """
        problems: list[OSError] = []
        for family, address in addresses:
            connection: StampedSocket | None = None
            try:
                check(address[0], allow_link_local=self._endpoint.allow_link_local)
                sock = socket.socket(family, socket.SOCK_STREAM)
                connection = StampedSocket(sock, self._exchange.clock, self._exchange)
                self._exchange.connection = connection  # now, so that a timeout closes it in any case
                return connection, await connection.connect(address)
            except OSError as problem:
                problems.append(problem)
                if connection is not None:
                    connection.close()
        if problems[-1].errno in _UNUSABLE_FAMILY:
            # `localhost` is also ::1; without IPv6 the result is that of 127.0.0.1.
            problems += [problem for problem in problems if problem.errno == errno.ECONNREFUSED]
        raise problems[-1]


class _Tunnel:
    """Requests a tunnel from a proxy with CONNECT (RFC 9110, 9.3.6)."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)

    async def open(self, endpoint: Endpoint, connection: StampedSocket) -> None:
        target = (
            f"{endpoint.host}:{endpoint.port}" if ":" not in endpoint.host else f"[{endpoint.host}]:{endpoint.port}"
        )
        head = f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{endpoint.proxy_authorization}\r\n"
        connection.write(head.encode())
        status = await self._answer
        if not 200 <= status < 300:
            raise ConnectionRefusedError(f"the proxy answered {status} to CONNECT {target}")

    def receive(self, at_ns: int, data: bytes, earliest_ns: int, *, is_cut: bool = False) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as problem:
            self._fail(ConnectionRefusedError(f"the proxy does not speak HTTP ({problem})"))

    def on_headers_complete(self) -> None:
        if not self._answer.done():
            self._answer.set_result(self._parser.get_status_code())

    def lost(self, at_ns: int, problem: Exception | None) -> None:
        self._fail(ConnectionResetError("the proxy closed the connection"))

    def _fail(self, problem: Exception) -> None:
        if not self._answer.done():
            self._answer.set_exception(problem)
