"""A TCP connection, plain or with TLS, whose received bytes have the kernel's time of arrival.

All waiting bytes are read at once, since the kernel's stamp is that of the last one. They are handed over in small parts, between which
other connections and timers of the event loop run. With TLS, bytes have the stamp of the read that completed their record.
"""

import asyncio
import ssl
import sys
from socket import IPPROTO_TCP, TCP_INFO, TCP_NODELAY, socket
from typing import Any, Protocol

from prober.net.clock import ANCILLARY_BYTES, Clock

READ_BYTES, PART_BYTES = 64 << 10, 4 << 10


class Receiver(Protocol):
    """Receiver of the bytes of a connection."""

    def receive(self, at_ns: int, data: bytes) -> None:
        """Process bytes that arrived at `at_ns`. Must not raise."""

    def lost(self, at_ns: int, problem: Exception | None) -> None:
        """Process the end of the connection. problem: None if the server closed it. Must not raise."""


class StampedSocket:
    """A connection of the running event loop. Call `connect`, and `close` in any case.

    by_process: number of reads that the kernel has not stamped
    tls: the TLS object, once the handshake has begun; None without TLS
    """

    __slots__ = (
        *("_backlog", "_clock", "_earliest_ns", "_handshake", "_incoming", "_loop", "_outgoing", "_recvmsg"),
        *("_receiver", "_rest", "_socket", "_unsent", "_write_problem", "by_process", "tls"),
    )

    def __init__(self, sock: socket, clock: Clock, receiver: Receiver) -> None:
        """Wrap `sock`, which is not connected yet."""
        self._loop = asyncio.get_running_loop()
        self._socket, self._clock, self._earliest_ns = sock, clock, clock.now_ns()
        self._receiver: Receiver | None = receiver  # None: closed
        self._recvmsg = sock.recvmsg
        self.by_process = 0
        self._unsent = b""
        self._write_problem: OSError | None = None
        self._rest = b""  # was read and not handed over yet; of a connection without TLS
        self._backlog: asyncio.Handle | None = None  # hands over the next part
        self.tls: ssl.SSLObject | None = None
        self._handshake: asyncio.Future[None] | None = None

    @property
    def local_address(self) -> str:
        """Address of this end; "" for a socket without one."""
        name = self._socket.getsockname()
        return str(name[0]) if isinstance(name, tuple) else ""

    @property
    def round_trip_s(self) -> float:
        """Round trip of this connection as the kernel measured it (`tcpi_rtt` of Linux); 0 if it has none."""
        return int.from_bytes(self._socket.getsockopt(IPPROTO_TCP, TCP_INFO, 72)[68:], sys.byteorder) / 1e6

    async def connect(self, address: Any) -> None:
        """Connect and begin to read. Raises OSError."""
        self._socket.setblocking(False)
        self._socket.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        self._clock.stamps.request(self._socket)
        await self._loop.sock_connect(self._socket, address)
        self._loop.add_reader(self._socket, self.read)

    async def start_tls(self, context: ssl.SSLContext, server_name: str) -> None:
        """Do the TLS handshake; all later bytes are encrypted. Raises OSError (SSLError is one) and ValueError."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self._handshake = self._loop.create_future()
        self._shake_hands()
        await self._handshake

    def hand_over(self, receiver: Receiver) -> None:
        """Hand bytes that arrive from now on to another receiver."""
        self._receiver = receiver

    def write(self, data: bytes) -> None:
        """Send now; bytes beyond the kernel's buffer are sent later. A failure is reported after the last received byte."""
        if self.tls is not None:
            sent = 0
            while sent < len(data):
                sent += self.tls.write(data[sent:])
            data = self._outgoing.read()
        self._send(data)

    def read(self) -> bool:
        """Hand the next received bytes to the receiver, after reading if none are left.

        Returns False if nothing has arrived, not even the end.
        """
        self._clock.run_due()
        receiver = self._receiver
        if receiver is None:
            return False
        if self._backlog is not None:
            self._backlog.cancel()
            self._backlog = None
        else:
            try:
                data, ancillary, _, _ = self._recvmsg(READ_BYTES, ANCILLARY_BYTES)
            except (BlockingIOError, InterruptedError):
                return False
            except OSError as problem:
                self._end(problem)
                return True
            if not data:
                self._end(self._write_problem)
                return True
            self._earliest_ns, is_by_kernel = self._clock.stamps.arrival_ns(ancillary, self._earliest_ns)
            self.by_process += not is_by_kernel
            if self.tls is None:
                self._rest = data
            else:
                self._incoming.write(data)
        if self._handshake is not None:
            self._shake_hands()
            return True
        if self.tls is None:
            data, self._rest = self._rest[:PART_BYTES], self._rest[PART_BYTES:]
        else:
            data = self._decrypted_part()
        if data:
            receiver.receive(self._earliest_ns, data)
            self._schedule_rest()
        return True

    def close(self) -> None:
        """Close the connection. Nothing more is handed over."""
        if self._receiver is None:
            return
        self._receiver = None
        # Both, before the descriptor is free: that of a connection under way would stand for the next socket of the same number.
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket.fileno())  # by number: to find none of an object costs asyncio its text
        if self._backlog is not None:
            self._backlog.cancel()
        if self._handshake is not None and not self._handshake.done():
            self._handshake.cancel()
        self._socket.close()

    def _decrypted_part(self) -> bytes:
        """A part of the bytes received with TLS; empty if none are complete, or at the end of the connection."""
        assert self.tls is not None
        problem: ssl.SSLError | None = None
        try:
            if data := self.tls.read(PART_BYTES):
                return data
        except ssl.SSLWantReadError:
            self._flush()  # an answer of TLS itself, such as to an update of its keys
            return b""
        except ssl.SSLZeroReturnError:
            pass
        except ssl.SSLError as failure:
            self._flush()
            problem = failure
        self._end(problem)
        return b""

    def _schedule_rest(self) -> None:
        """Hand over the remaining bytes in the next turn of the event loop."""
        is_left = self._rest if self.tls is None else self._incoming.pending or self.tls.pending()
        if is_left and self._receiver is not None:
            self._backlog = self._loop.call_soon(self.read)

    def _shake_hands(self) -> None:
        handshake = self._handshake
        assert handshake is not None
        assert self.tls is not None
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except (ssl.SSLError, ssl.CertificateError) as problem:
            self._flush()  # the alert
            self._handshake = None
            if not handshake.done():
                handshake.set_exception(problem)
            return
        self._flush()
        self._handshake = None
        if not handshake.done():
            handshake.set_result(None)
        self._schedule_rest()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._send(self._outgoing.read())

    def _send(self, data: bytes) -> None:
        if self._receiver is None or self._write_problem is not None:
            return
        if self._unsent:
            self._unsent += data
            return
        self._unsent = data
        self._send_part()
        if self._unsent:
            self._loop.add_writer(self._socket, self._send_rest)

    def _send_rest(self) -> None:
        self._send_part()
        if not self._unsent:
            self._loop.remove_writer(self._socket)

    def _send_part(self) -> None:
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as problem:  # what the server has sent before can still be read
            self._unsent, self._write_problem = b"", problem

    def _end(self, problem: Exception | None) -> None:
        """Process the end of the connection."""
        handshake, self._handshake = self._handshake, None
        receiver = self._receiver
        self.close()
        if handshake is not None and not handshake.done():
            handshake.set_exception(problem or ConnectionResetError("closed in the TLS handshake"))
        if receiver is not None:
            receiver.lost(self._clock.now_ns(), problem)
