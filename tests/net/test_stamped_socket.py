"""Connections with the kernel's times of departure and arrival: real sockets of this machine, and servers that are written by hand."""

import asyncio
import os
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import trustme

from prober.config.target import Timeouts
from prober.measure.outcome import ExpectedAnswer, Outcome, Verdict, classify
from prober.measure.recording import Recording
from prober.measure.timeline import Timeline
from prober.net import clock as clock_module
from prober.net.clock import Clock, Stamps
from prober.net.connection import Broken, connect
from prober.net.endpoint import Endpoint
from prober.net.exchange import Exchange
from prober.net.stamped_socket import READ_BYTES, StampedSocket
from tests import scripted
from tests.processes import HANG_S

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
CHUNKED_HEAD = HEAD[:-2] + b"Transfer-Encoding: chunked\r\n\r\n"
CONTENT = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'
END = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
REQUEST = b"POST / HTTP/1.1\r\n\r\n"
LIMITS = Timeouts(connect=20, first_token=20, stall=20, total=20)
Act = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
async def clock() -> AsyncIterator[Clock]:
    clock = Clock()
    yield clock
    clock.close()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@asynccontextmanager
async def serving(act: Act, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Port of a server that acts so on each connection."""
    ends: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        ends.add(task)
        try:
            await act(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.gather(*ends)


def endpoint(port: int, tls: ssl.SSLContext | None = None) -> Endpoint:
    """A server of this machine; tls: of its client"""
    trust = None if tls is None else lambda: tls
    return Endpoint("http", "127.0.0.1", port, "", trust=trust, server_name="localhost")


async def complete(exchange: Exchange, server: Endpoint, request: bytes = REQUEST) -> None:
    """Send one request, and wait for the end of its answer."""
    try:
        await connect(server, exchange, 20)
        exchange.send(request, LIMITS)
        await exchange.ended
    finally:
        exchange.abort()


async def exchanged(clock: Clock, port: int, tls: ssl.SSLContext | None = None) -> tuple[Verdict, Exchange]:
    """The verdict on one request, and its exchange."""
    recording = Recording()
    exchange = Exchange(recording, clock)
    await complete(exchange, endpoint(port, tls))
    ending = recording.observed_end(transport_verdict=exchange.broken, status=exchange.status)
    return classify(ending, ExpectedAnswer(end_mark="[DONE]")), exchange


def timeline_of(exchange: Exchange, intended_ns: int = 0) -> Timeline:
    assert exchange.recording is not None
    timeline = Timeline(intended_ns, headers_ns=exchange.headers_ns, end_ns=exchange.end_ns)
    return exchange.recording.complete(exchange.departure(timeline))


async def asked(reader: asyncio.StreamReader) -> None:
    await reader.readuntil(b"\r\n\r\n")


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, pieces: tuple[bytes, ...]) -> None:
    await asked(reader)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()


healthy = partial(answer, pieces=(HEAD, CONTENT, CONTENT, END + DONE))


@pytest.mark.usefixtures("stamping")
@pytest.mark.parametrize("is_secured", [False, True])
async def test_the_time_is_that_of_arrival_and_not_that_of_reading(
    clock: Clock, authority: trustme.CA, is_secured: bool
) -> None:
    """An event loop that is busy while content arrives does not move its stamp, with TLS neither."""
    server_tls, client_tls = contexts(authority) if is_secured else (None, None)
    written_ns: list[tuple[int, int]] = []

    async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        writer.write(HEAD)
        await asyncio.sleep(0.3)  # the head is read meanwhile; the first bytes of a system may have no stamp
        for piece in (CONTENT, CONTENT, END + DONE):
            begin_ns = time.monotonic_ns()
            writer.write(piece)
            written_ns.append((begin_ns, time.monotonic_ns()))
            busy_until_ns = time.monotonic_ns() + 20_000_000
            while time.monotonic_ns() < busy_until_ns:  # of the same event loop: nothing is read
                pass
            await asyncio.sleep(0.01)

    async with serving(act, server_tls) as port:
        verdict, exchange = await exchanged(clock, port, client_tls)
    assert verdict == Verdict(Outcome.OK)
    assert exchange.recording is not None
    assert exchange.recording.first_ns is not None
    assert exchange.recording.first_ns >= written_ns[0][0]
    delays_ns = list(clock.stamps.take_delays())
    assert sum(delay_ns >= 15_000_000 for delay_ns in delays_ns) >= 2, delays_ns
    assert exchange.recording.first_ns <= written_ns[1][0], "it was read after the loop was busy, and arrived before"


class ThreadServer:
    """A server in a thread of its own, which a busy event loop does not hold up. It sends the pieces of an answer after a request.

    pieces: (seconds to wait before, bytes) of each, in one write
    tls, proxies: secures the connection; answers a CONNECT before
    reads_after_s: seconds after which it begins to read the request
    request_bytes: of the request; 0: by its head
    asked_ns: (when it began to read, when it had read the request)
    sent_ns: (before, after) of each write
    """

    def __init__(
        self,
        *pieces: tuple[float, bytes],
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
        proxies: bool = False,
        reads_after_s: float = 0.0,
        request_bytes: int = 0,
    ) -> None:
        self._pieces, self._tls, self._proxies, self._request_bytes = pieces, tls, proxies, request_bytes
        self._reads_after_s = reads_after_s
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = socket.create_server((host, 0), family=family, dualstack_ipv6=host == "::")
        self.port: int = self._listening.getsockname()[1]
        self.asked_ns = (0, 0)
        self.sent_ns: list[tuple[int, int]] = []

    @contextmanager
    def running(self) -> Iterator["ThreadServer"]:
        thread = threading.Thread(target=self._serve)
        thread.start()
        try:
            yield self
        finally:
            self._listening.shutdown(socket.SHUT_RDWR)
            self._listening.close()
            thread.join(HANG_S)
            assert not thread.is_alive()

    def _serve(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except OSError:  # nobody came
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._proxies:
            while not connection.recv(4096).endswith(b"\r\n\r\n"):
                pass
            connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        if self._tls is not None:
            connection = self._tls.wrap_socket(connection, server_side=True)
        with connection:
            time.sleep(self._reads_after_s)
            began_ns, left, head = time.monotonic_ns(), self._request_bytes, b""
            while not left:
                head += connection.recv(1 << 20)
                start, end, body = head.lower().partition(b"\r\n\r\n")
                length = int(start.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
                if end and len(body) >= length:
                    break
            while left and (data := connection.recv(min(left, 1 << 20))):
                left -= len(data)
            self.asked_ns = began_ns, time.monotonic_ns()
            for pause_s, data in self._pieces:
                time.sleep(pause_s)
                before_ns = time.monotonic_ns()
                connection.sendall(data)
                self.sent_ns.append((before_ns, time.monotonic_ns()))


KINDS = {
    "plain": ("127.0.0.1", "127.0.0.1", False, False),
    "IPv6": ("::1", "::1", False, False),
    "IPv4 in IPv6": ("::", "::ffff:127.0.0.1", False, False),
    "TLS": ("127.0.0.1", "127.0.0.1", True, False),
    "TLS by a proxy": ("127.0.0.1", "127.0.0.1", True, True),
}


class Beginning(Exchange):
    """An exchange that remembers when its request was handed over."""

    begun_ns = 0

    def send(self, data: bytes, timeouts: Timeouts, delay_ns: int = 0) -> None:
        self.begun_ns = time.monotonic_ns()
        super().send(data, timeouts, delay_ns)


async def asked_of(clock: Clock, authority: trustme.CA, kind: str, **server: Any) -> tuple[ThreadServer, Exchange, int]:
    """A server, the exchange with it, and the time just before its request was sent. server: of `ThreadServer`"""
    listens_at, host, is_secured, is_proxied = KINDS[kind]
    server_tls, client_tls = contexts(authority) if is_secured else (None, None)
    try:
        made = ThreadServer(
            (0, HEAD), (0.01, CONTENT), (0, END + DONE), host=listens_at, tls=server_tls, proxies=is_proxied, **server
        )
    except OSError:
        pytest.skip("no IPv6 on this machine")
    exchange = Beginning(Recording(), clock)
    asked_at = replace(endpoint(made.port, client_tls), host=host)
    if is_proxied:
        asked_at = replace(asked_at, scheme="https", host="engine.test", port=1, proxy=(host, made.port))
    with made.running():
        await complete(exchange, asked_at, REQUEST.ljust(server.get("request_bytes", 0), b"x"))
    assert exchange.broken is None
    return made, exchange, exchange.begun_ns


@pytest.mark.usefixtures("stamping")
@pytest.mark.parametrize("kind", KINDS)
async def test_the_kernel_stamps_the_departure_of_a_request_and_its_acknowledgement(
    clock: Clock, authority: trustme.CA, kind: str
) -> None:
    """Whatever was sent on the connection before, and both are counted as a stamp of the kernel."""
    server, exchange, begun_ns = await asked_of(clock, authority, kind)
    timeline = timeline_of(exchange)
    assert timeline.sent_ns is not None
    assert timeline.sent_earliest_ns is None, "it is known"
    assert begun_ns <= timeline.sent_ns <= server.asked_ns[1]
    assert timeline.acknowledged_ns is not None
    assert timeline.sent_ns <= timeline.acknowledged_ns <= clock.now_ns()
    assert timeline.network_s == (timeline.acknowledged_ns - timeline.sent_ns) / 1e9
    assert timeline.round_trip_s is not None, "though the connection has ended"
    assert 0 < timeline.round_trip_s < HANG_S
    assert clock.stamps.process == 0
    assert exchange.connection is not None
    assert clock.stamps.kernel == exchange.connection.reads + 1


@pytest.mark.usefixtures("stamping")
@pytest.mark.parametrize("kind", ["plain", "TLS"])
async def test_a_request_that_the_other_end_takes_slowly_has_left_with_its_last_byte(
    clock: Clock, authority: trustme.CA, kind: str
) -> None:
    """It is longer than the buffers of the kernel, and sent in parts. The time that they wait is the target's and not the prober's."""
    size = 12 << 20
    server, exchange, begun_ns = await asked_of(clock, authority, kind, request_bytes=size, reads_after_s=0.3)
    timeline = timeline_of(exchange, begun_ns)
    assert timeline.sent_ns is not None
    assert timeline.sent_earliest_ns is None, "by the kernel, of the last part"
    assert server.asked_ns[0] <= timeline.sent_ns <= server.asked_ns[1]
    assert timeline.ttft_s is not None
    assert timeline.send_lag_s is not None
    assert timeline.ttft_s + timeline.send_lag_s >= 0.3
    assert timeline.handed_ns is not None
    assert timeline.handed_ns < server.asked_ns[0]
    assert timeline.acknowledged_ns is not None
    assert timeline.acknowledged_ns >= timeline.sent_ns


class BusyExchange(Exchange):
    """An exchange in an event loop that is busy for a quarter of a second when the head of the answer has been read."""

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        asyncio.get_running_loop().call_later(0.02, time.sleep, 0.25)


MERGED = {
    "in one segment": ([(0.1, CONTENT + CONTENT)], True),
    "in two segments": ([(0.1, CONTENT), (0.02, CONTENT)], False),
    "after a comment": ([(0.1, b": wait\n\n"), (0.02, CONTENT)], True),
    "before a comment": ([(0.1, CONTENT), (0.02, b": wait\n\n")], False),
    "with half of the next": ([(0.1, CONTENT), (0.02, CONTENT[:30])], False),
}


async def read_late(
    clock: Clock, pieces: list[tuple[float, bytes]], tls: tuple[ssl.SSLContext, ssl.SSLContext] | tuple[None, None]
) -> tuple[ThreadServer, Timeline]:
    """A server that sends the head of an answer, these pieces while the event loop is busy, and the rest."""
    server = ThreadServer((0, HEAD), *pieces, tls=tls[0])
    exchange = BusyExchange(Recording(), clock)
    with server.running():
        await complete(exchange, endpoint(server.port, tls[1]))
    assert exchange.broken is None
    return server, timeline_of(exchange)


@pytest.mark.usefixtures("stamping")
@pytest.mark.parametrize("is_secured", [False, True])
@pytest.mark.parametrize("name", MERGED)
async def test_the_bounds_of_a_first_content_that_is_read_late_hold_the_truth(
    clock: Clock, authority: trustme.CA, name: str, is_secured: bool
) -> None:
    """It is exact if it came last, or in the only segment; else it lies between the reading before and the last stamp."""
    pieces, is_exact = MERGED[name]
    rest = b"".join((CONTENT, CONTENT[30:], END, DONE)[1 if name == "with half of the next" else 2 :])
    for _ in range(3 if is_exact else 1):  # a segment that the kernel sends twice makes two
        tls = contexts(authority) if is_secured else (None, None)
        server, timeline = await read_late(clock, [*pieces, (0.4, rest)], tls)
        assert timeline.max_read_delay_s > 0.05, "it was read late"
        bounds_s = timeline.bounds_s("ttft")
        assert bounds_s is not None
        low_ns, high_ns = (timeline.origin_ns + bound_s * 1e9 for bound_s in bounds_s)
        before_ns, after_ns = server.sent_ns[2 if name == "after a comment" else 1]
        assert low_ns <= after_ns
        assert before_ns <= high_ns <= server.sent_ns[-1][0]
        if timeline.ttft_s is not None:
            break
    assert (timeline.ttft_s is not None) == (low_ns == high_ns) == is_exact
    assert ("read together with later chunks" in timeline.why_no_ttft) == (not is_exact)


def send_cut_records(listening: socket.socket, context: ssl.SSLContext) -> None:
    """Answer one request by TLS: the record after the first content comes in two pieces, the second long after the first."""
    connection, _ = listening.accept()
    with connection:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_side=True)
        for step in (tls.do_handshake, tls.read):
            while True:
                try:
                    step()
                    break
                except ssl.SSLWantReadError:
                    connection.sendall(outgoing.read())
                    incoming.write(connection.recv(1 << 16))
        records = []
        for data in (HEAD, CONTENT, CONTENT + END + DONE):
            tls.write(data)
            records.append(outgoing.read())
        for pause_s, data in ((0, records[0]), (0.1, records[1]), (0.03, records[2][:3]), (0.4, records[2][3:])):
            time.sleep(pause_s)
            connection.sendall(data)
        connection.settimeout(HANG_S)
        connection.recv(1)


@pytest.mark.usefixtures("stamping")
async def test_a_content_before_a_part_of_a_record_is_not_exact(clock: Clock, authority: trustme.CA) -> None:
    """The stamp is that of the part, of which nothing can be read yet."""
    server_tls, client_tls = contexts(authority)
    exchange = BusyExchange(Recording(), clock)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving_ = asyncio.create_task(asyncio.to_thread(send_cut_records, listening, server_tls))
        await complete(exchange, endpoint(listening.getsockname()[1], client_tls))
        await serving_
    timeline = timeline_of(exchange)
    assert len(timeline.content_ns) == 2
    bounds = timeline.bounds_s("ttft")
    assert bounds is not None
    assert bounds[1] - bounds[0] > 0.03


@pytest.mark.usefixtures("stamping")
async def test_a_segment_that_comes_between_a_read_and_the_count_of_segments_is_not_counted_as_read(
    clock: Clock,
) -> None:
    """Else the next read, of it and another one, would seem to be of one."""

    class Late(socket.socket):
        """A socket on which more arrives just before it is asked for its segments."""

        more = b""

        def getsockopt(self, *options: Any) -> Any:
            if self.more:
                theirs.sendall(self.more)
                self.more = b""
            return super().getsockopt(*options)

    received: list[tuple[int, bytes, int]] = []

    class Collector(Exchange):
        def receive(self, at_ns: int, data: bytes, earliest_ns: int | None = None, *, is_cut: bool = False) -> None:
            received.append((at_ns, data, earliest_ns or 0))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = Late()
        stamped = StampedSocket(ours, clock, Collector(None, clock))
        try:
            await stamped.connect(listening.getsockname())
            theirs, _ = listening.accept()
            with theirs:
                for first, during in ((b"a", b"b"), (b"d", b"")):
                    theirs.sendall(first)
                    ours.more = during
                    assert stamped.read()
                    if during:
                        theirs.sendall(b"c")
                        assert stamped.read()
        finally:
            stamped.close()
    assert [data for _, data, _ in received] == [b"a", b"bc", b"d"]
    assert [earliest_ns < at_ns for at_ns, _, earliest_ns in received] == [True, True, False]


@pytest.mark.usefixtures("stamping")
async def test_stamps_of_departure_keep_no_loop_busy(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait in the error queue of the socket, which wakes the loop until they are taken."""
    reads, read = 0, StampedSocket.read

    def counted(connection: StampedSocket) -> bool:
        nonlocal reads
        reads += 1
        return read(connection)

    monkeypatch.setattr(StampedSocket, "read", counted)
    server = ThreadServer((0.3, HEAD), (0, CONTENT + END + DONE), request_bytes=4 << 20, reads_after_s=0.1)
    exchange = Exchange(Recording(), clock)
    with server.running():
        await complete(exchange, endpoint(server.port), REQUEST.ljust(4 << 20))
    assert exchange.broken is None
    assert timeline_of(exchange).acknowledged_ns is not None
    assert reads < 500, "of a loop that spins there are some ten thousand"


def contexts(authority: trustme.CA) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(server)
    authority.configure_trust(client)
    return server, client


@pytest.mark.parametrize("step_ns", [3_600_000_000_000, -3_600_000_000_000])
async def test_a_wall_clock_that_is_set_in_mid_stream_moves_no_stamp(clock: Clock, step_ns: int) -> None:
    """By an hour, either way, before every second reading: the stamps go on in their order, and the request leaves when it was sent."""
    readings = 0

    def wall_ns() -> int:
        nonlocal readings
        readings += 1
        return time.time_ns() + step_ns * (readings % 2)

    clock.stamps, begun_ns = Stamps(wall_ns=wall_ns), clock.now_ns()
    async with serving(partial(answer, pieces=(HEAD, *[CONTENT] * 20, END, DONE))) as port:
        verdict, exchange = await exchanged(clock, port)
    assert verdict == Verdict(Outcome.OK)
    timeline = timeline_of(exchange)
    assert timeline.sent_ns is not None
    assert timeline.headers_ns is not None
    stamps = timeline.content_ns
    assert begun_ns <= timeline.sent_ns <= timeline.headers_ns <= stamps[0]
    assert list(stamps) == sorted(stamps)
    assert stamps[-1] <= clock.now_ns()
    assert len(stamps) == 20


@pytest.mark.parametrize("is_asked", [False, True])
async def test_without_stamps_of_the_kernel_readings_of_the_clock_are_used_and_counted(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, is_asked: bool
) -> None:
    """Another system, or a kernel that refuses the option: the departure lies between two readings, and so do the latencies."""
    if is_asked:
        monkeypatch.setattr(clock_module, "SO_TIMESTAMPING", 9999)
    else:
        clock.stamps = Stamps(by_kernel=False)
    begun_ns = clock.now_ns()
    async with serving(healthy) as port:
        verdict, exchange = await exchanged(clock, port)
    assert verdict == Verdict(Outcome.OK)
    assert clock.stamps.kernel == 0
    assert clock.stamps.process > 1
    timeline = timeline_of(exchange)
    assert timeline.sent_ns is not None
    assert timeline.sent_earliest_ns is not None
    assert timeline.first_ns is not None
    assert begun_ns < timeline.sent_earliest_ns < timeline.sent_ns < timeline.first_ns
    bounds = timeline.bounds_s("ttft")
    assert bounds is not None
    assert bounds[1] - bounds[0] == pytest.approx((timeline.sent_ns - timeline.sent_earliest_ns) / 1e9)
    assert timeline.acknowledged_ns is None


async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, pieces: tuple[bytes, ...]) -> None:
    """Send, and end with RST, whatever the other side has read."""
    await answer(reader, writer, pieces=pieces)
    scripted.reset(writer)


async def half_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, pieces: tuple[bytes, ...]) -> None:
    """Send, end this direction only, and wait for the client."""
    await answer(reader, writer, pieces=pieces)
    writer.write_eof()
    await reader.read()


ENDS: dict[str, tuple[Act, Outcome]] = {
    "closed": (healthy, Outcome.OK),
    "closed without its end": (partial(answer, pieces=(HEAD, CONTENT)), Outcome.TRUNCATED),
    "closed without a head": (partial(answer, pieces=(HEAD[:9],)), Outcome.TRUNCATED),
    "half closed": (partial(half_closed, pieces=(HEAD, CONTENT, END + DONE)), Outcome.OK),
    "half closed without its end": (partial(half_closed, pieces=(HEAD, CONTENT)), Outcome.TRUNCATED),
    "reset with all of it unread": (partial(reset, pieces=(HEAD + CONTENT + END + DONE,)), Outcome.OK),
    "reset with a part unread": (partial(reset, pieces=(HEAD + CONTENT,)), Outcome.RESET),
    "reset before any answer": (partial(reset, pieces=()), Outcome.RESET),
}


@pytest.mark.parametrize("name", ENDS)
async def test_how_a_connection_ends(clock: Clock, name: str) -> None:
    """What was sent before counts, also what waits in the socket when RST comes."""
    act, outcome = ENDS[name]
    async with serving(act) as port:
        verdict, _ = await exchanged(clock, port)
    assert verdict.outcome is outcome, verdict


async def unfinished(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, pieces: tuple[bytes, ...]) -> None:
    """Send, and close TCP without `close_notify`."""
    await answer(reader, writer, pieces=pieces)
    with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as beneath:
        beneath.shutdown(socket.SHUT_WR)
    await reader.read()


TLS_ENDS: dict[str, tuple[Act, Outcome]] = {
    "close_notify": (healthy, Outcome.OK),
    "close_notify without its end": (partial(answer, pieces=(HEAD, CONTENT)), Outcome.TRUNCATED),
    "no close_notify": (partial(unfinished, pieces=(HEAD, CONTENT, END + DONE)), Outcome.OK),
    "no close_notify, and without its end": (partial(unfinished, pieces=(HEAD, CONTENT)), Outcome.TRUNCATED),
    "reset": (partial(reset, pieces=(HEAD, CONTENT)), Outcome.RESET),
    "a large piece": (partial(answer, pieces=(HEAD + CONTENT * 3_000, END + DONE)), Outcome.OK),
}


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("name", TLS_ENDS)
async def test_how_a_secured_connection_ends(
    clock: Clock, authority: trustme.CA, name: str, version: ssl.TLSVersion
) -> None:
    """As without TLS, whether or not the server says by TLS that it closes."""
    act, outcome = TLS_ENDS[name]
    server_tls, client_tls = contexts(authority)
    server_tls.maximum_version = version
    async with serving(act, server_tls) as port:
        verdict, exchange = await exchanged(clock, port, client_tls)
    assert verdict.outcome is outcome, verdict
    if name == "a large piece":
        assert exchange.recording is not None
        assert exchange.recording.answer.chunks == 3_000


async def test_an_alert_after_the_handshake_is_tls(clock: Clock, authority: trustme.CA) -> None:
    """TLS 1.3 judges a missing certificate of the client after the client's part of the handshake."""
    server_tls, client_tls = contexts(authority)
    server_tls.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(server_tls)

    def refuse(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, pytest.raises(ssl.SSLError):
            server_tls.wrap_socket(connection, server_side=True)

    with socket.create_server(("127.0.0.1", 0)) as server:
        refusing = asyncio.create_task(asyncio.to_thread(refuse, server))
        verdict, _ = await exchanged(clock, server.getsockname()[1], client_tls)
        await refusing
    assert verdict.outcome is Outcome.TLS
    assert "tls.cert_file" in verdict.detail


@pytest.mark.parametrize("is_secured", [False, True])
async def test_a_flood_leaves_other_answers_their_turns(clock: Clock, authority: trustme.CA, is_secured: bool) -> None:
    """A megabyte of tiny chunks is handed over a read in each turn of the loop, and ends by its bound of work."""
    server_tls, client_tls = contexts(authority) if is_secured else (None, None)
    turns, reads = 0, list[tuple[int, int]]()

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    class Watched(Exchange):
        def receive(self, at_ns: int, data: bytes, earliest_ns: int | None = None, *, is_cut: bool = False) -> None:
            reads.append((turns, len(data)))
            super().receive(at_ns, data, earliest_ns, is_cut=is_cut)

    counting = asyncio.create_task(count_turns())
    flood = partial(answer, pieces=(CHUNKED_HEAD + b"1\r\n:\r\n" * 170_000,))
    async with serving(flood, server_tls) as port:
        await complete(Watched(Recording(tokens=16), clock), endpoint(port, client_tls))
    counting.cancel()
    assert len(reads) > 10
    assert max(size for _, size in reads) <= READ_BYTES
    assert max(Counter(turn for turn, _ in reads).values()) <= 2


async def test_an_alarm_that_reads_the_connection_leaves_its_bytes_in_order(clock: Clock) -> None:
    """What is due reads connections before the loop does: a request that is sent its own, one that finds no slot all others."""
    numbers = b"".join(b"%08d" % number for number in range(100_000))
    received = bytearray()

    class Collector(Exchange):
        def receive(self, at_ns: int, data: bytes, earliest_ns: int | None = None, *, is_cut: bool = False) -> None:
            received.extend(data)

    exchange = Collector(None, clock)

    def read() -> None:
        if not exchange.ended.done() and exchange.connection is not None:
            exchange.connection.read()
            clock.call_at(clock.now_ns() + 20_000, read)

    async with serving(partial(answer, pieces=(numbers,))) as port:
        await connect(endpoint(port), exchange, 20)
        exchange.send(REQUEST, LIMITS)
        read()
        await exchange.ended
        exchange.abort()
    assert received == numbers


class SlowSocket(socket.socket):
    """A socket whose connection is under way when `connect` returns, as on a busy machine."""

    def connect(self, address: Any) -> None:
        super().connect(address)
        raise BlockingIOError


async def test_a_connection_that_is_given_up_leaves_nothing_to_the_next_of_its_number(clock: Clock) -> None:
    """A probe that is late when it connects is given up; its descriptor is the next probe's, in the same turn of the loop."""
    async with serving(partial(answer, pieces=(HEAD,))) as port:
        exchange = Exchange(Recording(), clock)
        given_up_socket = SlowSocket()
        given_up, number = StampedSocket(given_up_socket, clock, exchange), given_up_socket.fileno()
        connecting = asyncio.create_task(given_up.connect(("127.0.0.1", port)))
        await asyncio.sleep(0)
        given_up.close()
        next_socket = SlowSocket()
        assert next_socket.fileno() == number
        following = StampedSocket(next_socket, clock, exchange)
        connecting.cancel()
        try:
            async with asyncio.timeout(HANG_S):
                await following.connect(("127.0.0.1", port))
        finally:
            following.close()


async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer without TLS whatever comes."""
    writer.write(HEAD)


def descriptors() -> Iterator[str]:
    for name in os.listdir("/proc/self/fd"):
        try:
            yield os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
async def test_connections_leave_no_descriptor_behind(clock: Clock, authority: trustme.CA, count: int) -> None:
    """However they end: healthy, reset, refused in the handshake, or given up during it."""
    _, client_tls = contexts(authority)
    with socket.create_server(("127.0.0.1", 0), backlog=count) as unanswered:
        silent = unanswered.getsockname()[1]
        bad_act = ENDS["reset with a part unread"][0]
        async with serving(healthy) as good, serving(bad_act) as bad, serving(plain) as no_tls:
            before = sum(link.startswith("socket:") for link in descriptors())
            for number in range(count):
                if number % 4 < 2:
                    await exchanged(clock, (good, bad)[number % 2])
                    continue
                port, timeout_s, phase = (
                    (no_tls, 20.0, "tls to") if number % 4 == 2 else (silent, 0.001, "no connection")
                )
                exchange = Exchange(None, clock)
                with pytest.raises(Broken, match=phase):
                    await connect(endpoint(port, client_tls), exchange, timeout_s)
                exchange.abort()
        assert sum(link.startswith("socket:") for link in descriptors()) < before
