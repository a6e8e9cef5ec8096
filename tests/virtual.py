"""An event loop in virtual time with a network in memory: the daemon and its engines run in it unchanged.

The loop is where asyncio reaches time, sockets, threads and processes, so nothing else is replaced. Its time jumps to the next timer
when nothing is ready. A connection is a socket pair, on which data arrive at once. A function that would run in a thread or another
process runs at once and takes no time.

Tests marked `virtual_time` run in this loop.
"""

import asyncio
import errno
import os
import selectors
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from prober.mock.server import running as mock_running
from prober.net.clock import Clock

START_S = 1000.0
FIRST_FREE_PORT = 50_000
BEAT_NS = 10 * 10**9


class _Server:
    """A listening address of a `VirtualLoop`."""

    def __init__(
        self, servers: "dict[tuple[str, int], _Server]", address: tuple[str, int], make: Any, tls: Any
    ) -> None:
        self._servers, self._address, self._make, self._tls = servers, address, make, tls
        self._accepting: set[asyncio.Task[Any]] = set()
        servers[address] = self

    @property
    def sockets(self) -> "tuple[_Server, ...]":
        return (self,)

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def accept(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        accepting = loop.create_task(loop.connect_accepted_socket(self._make, sock, ssl=self._tls))
        self._accepting.add(accepting)
        accepting.add_done_callback(self._accepting.discard)

    def close(self) -> None:
        if self._servers.get(self._address) is self:
            del self._servers[self._address]

    async def wait_closed(self) -> None:
        pass


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time."""

    def __init__(self) -> None:
        self._now_s = START_S
        self._is_real = False
        self._servers: dict[tuple[str, int], _Server] = {}
        loop = self

        class Jump(selectors.DefaultSelector):
            def select(self, timeout: float | None = None) -> Any:
                ready = super().select(timeout if loop._is_real else 0)
                if not ready and not loop._is_real:
                    assert timeout is not None, "the loop waits for an event that nothing can cause"
                    loop._now_s += timeout
                return ready

        super().__init__(Jump())
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._now_s

    def stand_still(self, seconds: float) -> None:
        """Stop the process for so long: time passes and nothing runs."""
        self._now_s += seconds

    @contextmanager
    def real_network(self) -> Iterator[None]:
        """Connections to addresses that are not served in memory go to the real network, and time stands still."""
        self._is_real = True
        try:
            yield
        finally:
            self._is_real = False

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":  # type: ignore[override]
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as problem:
            done.set_exception(problem)
        return done

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        port = port or max((used for _, used in self._servers), default=FIRST_FREE_PORT - 1) + 1
        if (host, port) in self._servers:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        return _Server(self._servers, (host, port), protocol_factory, options.get("ssl"))

    def listen(self, host: str, port: int, server: Any) -> None:
        """Have `server.accept` take the sockets of connections to this address."""
        self._servers[host, port] = server

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        if (sock := options.get("sock")) is not None:
            options["sock"] = socket.socket(fileno=sock.detach())  # of the family that it has now
        elif self._is_virtual(host, port):
            host, port, options["sock"] = None, None, await self._connect(host, port)
        return await super().create_connection(protocol_factory, host, port, **options)

    def sock_connect(self, sock: socket.socket, address: Any) -> Awaitable[None]:  # type: ignore[override]
        if self._is_virtual(*address[:2]):
            return self._connect_in_memory(sock, address)
        return super().sock_connect(sock, address)

    def _is_virtual(self, host: str, port: int) -> bool:
        return not self._is_real or (host, port) in self._servers

    async def _connect_in_memory(self, sock: socket.socket, address: Any) -> None:
        """The socket becomes one end of the pair: its descriptor is another one now."""
        with await self._connect(*address[:2]) as connected:
            os.dup2(connected.fileno(), sock.fileno(), inheritable=False)

    async def _connect(self, host: str, port: int) -> socket.socket:
        server = self._servers.get((host, port))
        if server is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setblocking(False)
        server.accept(theirs)
        return ours


class VirtualClock(Clock):
    """The prober's clock in the time of the loop. unix_s: wall clock at the start of the loop."""

    def __init__(self, unix_s: float = 1_700_000_000.0, beat_ns: int = BEAT_NS) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(lambda: unix_s + loop.time() - START_S, lambda: round(loop.time() * 1e9), beat_ns)


def make_clock(beat_ns: int = BEAT_NS) -> Clock:
    """The clock of the running loop: a virtual one, or the product's in a test in real time. beat_ns: of a virtual one"""
    return VirtualClock(beat_ns=beat_ns) if isinstance(asyncio.get_running_loop(), VirtualLoop) else Clock()


running = partial(mock_running, make_clock=make_clock)
"""A mock in the time and the network of the running loop."""
