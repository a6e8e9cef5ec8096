"""Answers connections beyond the limits: health checks normally, everything else with a refusal.

A kubelet shares the address of its node with other clients, so a limit of connections cannot exempt its health checks before
their request is read. A separate thread reads it: OpenSSL does TLS handshakes without the GIL, so they do not delay the event loop
that timestamps probes. Connections, their bytes and duration and the thread's CPU time are limited.
"""

import contextlib
import logging
import selectors
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from prober.web.web_config import Loaded

MAX_CONNECTIONS = 128  # a further one replaces the oldest
MAX_HEAD_BYTES = 8 << 10
MAX_AGE_S = 2.0
MAX_CPU_RATIO = 0.4  # of one core: some 400 handshakes a second with an RSA key of 2,048 bits, 1,000 with an ECDSA key
MAX_PASS_CPU_S = 0.02  # processor time before the thread pauses
PAUSE_AFTER_FAULT_S = 0.1
RECEIVE_BYTES = 4096
log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Connection:
    sock: socket.socket
    loaded: Loaded
    until_s: float
    head: bytearray = field(default_factory=bytearray)
    handshaken: bool = False


class Overflow:
    """Thread for connections beyond the limits. Call `start`, `offer`, `close`.

    Args:
        answer: makes the response, with its headers, of a request's head; called in the thread.
    """

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer = answer
        self._offered: deque[tuple[socket.socket, Loaded]] = deque()
        self._connections: dict[_Connection, None] = {}  # in order of arrival
        self._selector = selectors.DefaultSelector()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        for end in (self._wake_receiver, self._wake_sender):
            end.setblocking(False)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="overflow", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def offer(self, accepted: socket.socket, loaded: Loaded) -> None:
        """Hand over a connection; it is answered, closed, or replaced by a newer one."""
        if len(self._offered) >= MAX_CONNECTIONS:
            with contextlib.suppress(IndexError):  # the thread may have taken it
                self._offered.popleft()[0].close()
        accepted.setblocking(False)
        self._offered.append((accepted, loaded))
        self._wake()

    def close(self) -> None:
        """End the thread and close its connections; blocks for one pass."""
        self._closing = True
        if self._thread.is_alive():
            self._wake()
            self._thread.join()
        for sock in (*(sock for sock, _ in self._offered), *(connection.sock for connection in self._connections)):
            sock.close()
        self._selector.close()
        self._wake_receiver.close()
        self._wake_sender.close()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: the thread will wake up
            self._wake_sender.send(b"\0")

    def _run(self) -> None:
        while not self._closing:
            timeout_s = None
            if self._connections:
                timeout_s = max(0.0, next(iter(self._connections)).until_s - time.monotonic())
            ready = self._selector.select(timeout_s)
            begin_s = time.thread_time()
            try:
                self._pass(ready, begin_s + MAX_PASS_CPU_S)
            except Exception:  # the thread goes on: health checks depend on it
                log.exception("web: connections beyond the limits were not served; please report this")
                time.sleep(PAUSE_AFTER_FAULT_S)
            used_s = time.thread_time() - begin_s
            time.sleep(used_s * (1 / MAX_CPU_RATIO - 1))

    def _pass(self, ready: list[tuple[selectors.SelectorKey, int]], until_cpu_s: float) -> None:
        """Serve ready connections; the rest is ready in the next pass."""
        with contextlib.suppress(BlockingIOError):
            self._wake_receiver.recv(RECEIVE_BYTES)
        for key, _ in ready:
            if key.data is not None and key.data in self._connections and time.thread_time() < until_cpu_s:
                self._serve(key.data)
        while self._offered and time.thread_time() < until_cpu_s:
            self._add(*self._offered.popleft())
        if self._offered:
            self._wake()
        now_s = time.monotonic()
        for connection in [connection for connection in self._connections if connection.until_s <= now_s]:
            self._end(connection)

    def _add(self, accepted: socket.socket, loaded: Loaded) -> None:
        while len(self._connections) >= MAX_CONNECTIONS:
            self._end(next(iter(self._connections)))
        if loaded.tls is not None:
            try:
                accepted = loaded.tls.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
            except (OSError, ValueError):  # the peer has disconnected
                accepted.close()
                return
        connection = _Connection(accepted, loaded, time.monotonic() + MAX_AGE_S, handshaken=loaded.tls is None)
        self._connections[connection] = None
        self._selector.register(accepted, selectors.EVENT_READ, connection)
        self._serve(connection)  # the request usually arrives with the connection

    def _serve(self, connection: _Connection) -> None:
        try:
            self._answer_request(connection)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except (OSError, ValueError):  # reset, or not TLS
            pass
        except Exception:
            log.exception("web: a connection beyond the limits was not answered; please report this")
        self._end(connection)

    def _answer_request(self, connection: _Connection) -> None:
        """Return when the connection is finished. Raises the errors of a non-blocking socket otherwise."""
        if isinstance(connection.sock, ssl.SSLSocket) and not connection.handshaken:
            connection.sock.do_handshake()
            connection.handshaken = True
            if not connection.loaded.admits(connection.sock.getpeercert()):
                return
        while b"\r\n\r\n" not in connection.head and len(connection.head) < MAX_HEAD_BYTES:
            data = connection.sock.recv(RECEIVE_BYTES)
            if not data:
                return
            connection.head += data
        connection.sock.send(self._answer(bytes(connection.head)))
        connection.sock.shutdown(socket.SHUT_WR)

    def _end(self, connection: _Connection) -> None:
        if connection in self._connections:
            del self._connections[connection]
            self._selector.unregister(connection.sock)
            connection.sock.close()
