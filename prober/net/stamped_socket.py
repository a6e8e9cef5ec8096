"""A TCP connection, plain or with TLS, with the kernel's send and receive times for its bytes.

One read returns one stamp: that of its last segment. If several segments were read, the others arrived after the previous read that
found nothing left, and before that stamp. With TLS, bytes have the stamp of the read that completed their record.
"""

import asyncio
import ssl
from socket import IPPROTO_TCP, TCP_NODELAY, socket
from struct import Struct
from typing import Any, NamedTuple, Protocol

from prober.net.clock import ANCILLARY_BYTES, ERROR_BYTES, OPT_ID, TX_ACK, TX_SOFTWARE, Clock

READ_BYTES = 64 << 10
TCP_INFO, MSG_ERRQUEUE = 11, 0x2000  # Linux (linux/tcp.h, linux/socket.h); Python does not name them on other systems
# Fields of Linux's `tcp_info` (since 4.6): smoothed round trip in µs, retransmitted segments, received bytes, received data segments.
_TCP_INFO = Struct("=68xI28xI24xQ16xI")
RECORD_HEADER_BYTES = 5  # header of a TLS record; its last two bytes are the length of the rest (RFC 8446, 5.1)


class TcpInfo(NamedTuple):
    """The kernel's data on a connection: smoothed round trip in µs, retransmitted segments, received bytes and data segments."""

    round_trip_us: int
    retransmitted: int
    received_bytes: int
    data_segments: int


class Receiver(Protocol):
    """Consumer of the bytes of a connection."""

    def receive(self, at_ns: int, data: bytes, earliest_ns: int, *, is_cut: bool = False) -> None:
        """Process bytes: the last arrived at `at_ns`, the others at `earliest_ns` or later. Must not raise.

        is_cut: the last byte may have arrived earlier too, because only a part of a TLS record came at `at_ns`
        """

    def lost(self, at_ns: int, problem: Exception | None) -> None:
        """Process the end of the connection. problem: None if the server closed it. Must not raise."""


class StampedSocket:
    """A connection of the running event loop. Call `connect`, and always `close`.

    arrived_ns: arrival of the latest bytes
    reads: number of reads that the kernel has stamped
    read_delay_ns, max_read_delay_ns: sum and maximum of the time from these stamps until the bytes were read
    sent_ns: departure of the last byte of the request; None until all of it is written
    sent_earliest_ns: earliest possible departure of that byte: before `sent_ns` if the kernel has not stamped it
    handed_ns: when the prober had handed over the whole request, so that only the other end can delay it; at most `sent_ns`
    acknowledged_ns: when the other end had received the whole request; None if unknown
    tls: the TLS object, once the handshake has begun; None without TLS
    """

    def __init__(self, sock: socket, clock: Clock, receiver: Receiver) -> None:
        """Wrap `sock`, which is not connected yet."""
        self._loop = asyncio.get_running_loop()
        self._socket, self._clock = sock, clock
        self.arrived_ns = self._emptied_ns = clock.now_ns()
        self._receiver: Receiver | None = receiver  # None: closed
        self._recvmsg = sock.recvmsg
        self.reads = self.read_delay_ns = self.max_read_delay_ns = 0
        self._segments: int | None = 0  # data segments read so far; None: unknown
        self._read_bytes = 0
        self._info: TcpInfo | None = None  # at the end of the connection
        self._unsent = b""
        self._is_requesting = False
        self._sent_bytes = 0
        self._request_end: int | None = None  # bytes sent up to the end of the request; None before it
        self.sent_ns: int | None = None
        self.sent_earliest_ns: int | None = None
        self.handed_ns: int | None = None
        self.acknowledged_ns: int | None = None
        self._write_problem: OSError | None = None
        self.tls: ssl.SSLObject | None = None
        self._handshake: asyncio.Future[None] | None = None

    @property
    def local_address(self) -> str:
        """Address of this end; "" for a socket without one."""
        name = self._socket.getsockname()
        return str(name[0]) if isinstance(name, tuple) else ""

    def tcp_info(self) -> TcpInfo | None:
        """The kernel's data on this connection now, or at its end; None if the system has none."""
        if not self._clock.stamps.by_kernel or self._socket.fileno() < 0:
            return self._info
        info = self._socket.getsockopt(IPPROTO_TCP, TCP_INFO, _TCP_INFO.size)
        return TcpInfo(*_TCP_INFO.unpack(info)) if len(info) == _TCP_INFO.size else None

    async def connect(self, address: Any) -> int:
        """Connect and begin to read. Returns the time in ns at which the connection was established. Raises OSError.

        That time follows from the round trip that the kernel measured, unless a segment was retransmitted.
        """
        self._socket.setblocking(False)
        self._socket.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        self._clock.stamps.request(self._socket)
        begun_ns = self._clock.now_ns()
        await self._loop.sock_connect(self._socket, address)
        self._clock.stamps.request(self._socket, OPT_ID)  # only a connected TCP socket can number its bytes
        self._loop.add_reader(self._socket, self.read)
        info = self.tcp_info()
        if info is None or info.retransmitted or not info.round_trip_us:
            return self._clock.now_ns()
        return min(begun_ns + 1000 * info.round_trip_us, self._clock.now_ns())

    async def start_tls(self, context: ssl.SSLContext, server_name: str) -> None:
        """Do the TLS handshake; all later bytes are encrypted. Raises OSError (with SSLError) and ValueError."""
        self._incoming, self._outgoing, self._record = ssl.MemoryBIO(), ssl.MemoryBIO(), bytearray()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self._handshake = self._loop.create_future()
        self._shake_hands()
        await self._handshake

    def hand_over(self, receiver: Receiver) -> None:
        """Send bytes that arrive from now on to another receiver."""
        self._receiver = receiver

    def write_request(self, data: bytes) -> None:
        """Send a request now, and stamp its departure. Call once."""
        self._is_requesting = True
        self._clock.stamps.request(self._socket, OPT_ID | TX_SOFTWARE | TX_ACK)
        self.write(data)

    def write(self, data: bytes) -> None:
        """Send now; bytes beyond the kernel's buffer are sent later. A failure is reported after the last received bytes."""
        if self.tls is not None:
            sent = 0
            while sent < len(data):
                sent += self.tls.write(data[sent:])
            data = self._outgoing.read()
        self._send(data)

    def read(self) -> bool:
        """Hand received bytes to the receiver. Returns False if nothing has arrived, not even the end of the connection."""
        receiver = self._receiver
        if receiver is None:
            return False
        begun_ns = self._clock.now_ns()
        try:
            data, ancillary, _, _ = self._recvmsg(READ_BYTES, ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            self._emptied_ns = begun_ns
            self.read_departures()  # they have woken the loop
            return False
        except OSError as problem:
            self._end(problem)
            return True
        if not data:
            self._end(self._write_problem)
            return True
        self.arrived_ns, is_by_kernel = self._clock.stamps.arrival_ns(ancillary, self.arrived_ns)
        earliest_ns = self.arrived_ns
        self._read_bytes += len(data)
        if is_by_kernel:
            self.reads += 1
            delay_ns = max(0, begun_ns - self.arrived_ns)
            self.read_delay_ns += delay_ns
            self.max_read_delay_ns = max(self.max_read_delay_ns, delay_ns)
            if not self._came_alone():
                earliest_ns = min(earliest_ns, self._emptied_ns)
        if len(data) < READ_BYTES:
            self._emptied_ns = begun_ns
        if self.acknowledged_ns is None:
            self.read_departures()
        if self.tls is None:
            receiver.receive(self.arrived_ns, data, earliest_ns)
        else:
            self._feed_tls(data)
            if self._handshake is not None:
                self._shake_hands()
            if self._handshake is None:
                self._read_tls(receiver, earliest_ns)
        return True

    def read_departures(self) -> None:
        """Read the kernel's stamps of the request from the socket's error queue."""
        while self._clock.stamps.by_kernel and self._receiver is not None:
            try:
                _, ancillary, _, _ = self._recvmsg(0, ERROR_BYTES, MSG_ERRQUEUE)
            except OSError:  # the queue is empty
                return
            stamped = self._clock.stamps.departure(ancillary, self.sent_earliest_ns or 0)
            # A request larger than the kernel's buffer is sent in parts, each with a stamp; a segment can be retransmitted.
            if (
                stamped is None
                or self._request_end is None
                or stamped.last_byte != (self._request_end - 1) & 0xFFFFFFFF
            ):
                continue
            if stamped.is_acknowledged:
                self.acknowledged_ns = stamped.at_ns
            elif self.sent_earliest_ns != self.sent_ns:
                self.sent_ns = self.sent_earliest_ns = stamped.at_ns
                self.handed_ns = min(self.handed_ns or stamped.at_ns, stamped.at_ns)

    def close(self) -> None:
        """Close the connection; the receiver gets nothing more."""
        if self._receiver is None:
            return
        self.read_departures()
        if self.sent_ns is not None:
            is_by_kernel = self._clock.stamps.by_kernel and self.sent_earliest_ns == self.sent_ns
            self._clock.stamps.count_departure(by_kernel=is_by_kernel)
        self._info = self.tcp_info()
        self._receiver = None
        # Remove both before the descriptor is free: the next socket may get the same number.
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket.fileno())  # by number: a missing object costs a formatted text
        if self._handshake is not None and not self._handshake.done():
            self._handshake.cancel()
        self._socket.close()

    def _came_alone(self) -> bool:
        """True if the last read returned a single segment, so that all its bytes arrived at the same time."""
        info, before = self._socket.getsockopt(IPPROTO_TCP, TCP_INFO, _TCP_INFO.size), self._segments
        if len(info) != _TCP_INFO.size:
            return False
        _, _, received_bytes, segments = _TCP_INFO.unpack(info)  # not as `TcpInfo`, as this runs for each token
        # Data that has arrived since the read is counted too, but was not read.
        self._segments = segments if received_bytes == self._read_bytes else None
        return before is not None and segments == before + 1

    def _feed_tls(self, data: bytes) -> None:
        """Pass received bytes to TLS, and track the bytes of the incomplete record."""
        self._incoming.write(data)
        record = self._record
        record += data
        while len(record) >= (size := RECORD_HEADER_BYTES + int.from_bytes(record[3:RECORD_HEADER_BYTES], "big")):
            del record[:size]

    def _read_tls(self, receiver: Receiver, earliest_ns: int) -> None:
        """Hand over the content of the complete records, and end the connection when TLS ends."""
        assert self.tls is not None
        parts: list[bytes] = []
        has_ended, problem = True, None
        try:
            while part := self.tls.read(READ_BYTES):
                parts.append(part)
        except ssl.SSLWantReadError:
            self._flush()  # TLS itself may answer, such as to a key update
            has_ended = False
        except ssl.SSLZeroReturnError:
            pass
        except ssl.SSLError as failure:
            self._flush()
            problem = failure
        if parts:
            receiver.receive(self.arrived_ns, b"".join(parts), earliest_ns, is_cut=bool(self._record))
        if has_ended:
            self._end(problem)

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
        begun_ns = self._clock.now_ns()
        try:
            count = self._socket.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            count = 0
        except OSError as problem:  # data that the server sent before can still be read
            self._unsent, self._write_problem = b"", problem
            return
        self._sent_bytes += count
        self._unsent = self._unsent[count:]
        if not self._is_requesting:
            return
        now_ns = self._clock.now_ns()
        self.handed_ns = self.handed_ns or now_ns
        if not self._unsent:
            self._is_requesting, self._request_end = False, self._sent_bytes
            self.sent_earliest_ns, self.sent_ns = begun_ns, now_ns
            self.read_departures()

    def _end(self, problem: Exception | None) -> None:
        """Tell the receiver, once, that the connection ended, and close the socket."""
        handshake, self._handshake = self._handshake, None
        receiver = self._receiver
        self.close()
        if handshake is not None and not handshake.done():
            handshake.set_exception(problem or ConnectionResetError("closed in the TLS handshake"))
        if receiver is not None:
            receiver.lost(self._clock.now_ns(), problem)
