"""Connections with the kernel's times of arrival: real sockets of this machine, and a server that is written by hand."""

import asyncio
import os
import socket
import ssl
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trustme

from prober.config.target import Timeouts
from prober.measure.outcome import ExpectedAnswer, Outcome, Verdict, classify
from prober.measure.recording import Recording
from prober.net.clock import Clock, Stamps
from prober.net.connection import Broken, connect
from prober.net.endpoint import Endpoint
from prober.net.exchange import Exchange
from prober.net.stamped_socket import PART_BYTES, StampedSocket
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
async def serving(act: Act, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> AsyncIterator[int]:
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

    server = await asyncio.start_server(handle, host, 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.gather(*ends)


async def exchanged(
    clock: Clock, port: int, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> tuple[Verdict, Exchange]:
    """The verdict on one request, and its exchange."""
    recording = Recording()
    exchange = Exchange(recording, clock)
    trust = None if tls is None else lambda: tls
    try:
        await connect(Endpoint("http", host, port, "", trust=trust, server_name="localhost"), exchange, 20)
        exchange.send(REQUEST, clock.now_ns(), LIMITS)
        await exchange.ended
    finally:
        exchange.abort()
    ending = recording.observed_end(transport_verdict=exchange.broken, status=exchange.status)
    return classify(ending, ExpectedAnswer(end_mark="[DONE]")), exchange


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


def contexts(authority: trustme.CA) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(server)
    authority.configure_trust(client)
    return server, client


@pytest.mark.parametrize("step_ns", [3_600_000_000_000, -3_600_000_000_000])
async def test_a_wall_clock_that_is_set_in_mid_stream_moves_no_stamp(clock: Clock, step_ns: int) -> None:
    """By an hour, either way, before every second reading: the stamps go on in their order, none before the request."""
    readings = 0

    def wall_ns() -> int:
        nonlocal readings
        readings += 1
        return time.time_ns() + step_ns * (readings % 2)

    clock.stamps = Stamps(wall_ns=wall_ns)
    async with serving(partial(answer, pieces=(HEAD, *[CONTENT] * 20, END, DONE))) as port:
        verdict, exchange = await exchanged(clock, port)
    assert verdict == Verdict(Outcome.OK)
    assert exchange.recording is not None
    assert exchange.sent_ns is not None
    assert exchange.headers_ns is not None
    stamps = exchange.recording._stamps
    assert exchange.sent_ns <= exchange.headers_ns <= stamps[0]
    assert list(stamps) == sorted(stamps)
    assert stamps[-1] <= clock.now_ns()
    assert len(stamps) == 20


async def test_without_stamps_of_the_kernel_the_time_of_reading_is_used_and_counted(clock: Clock) -> None:
    """Another system, or one that refuses."""
    clock.stamps = Stamps(by_kernel=False)
    async with serving(healthy) as port:
        verdict, exchange = await exchanged(clock, port)
    assert verdict == Verdict(Outcome.OK)
    assert clock.stamps.kernel == 0
    assert clock.stamps.process > 0
    assert exchange.connection is not None
    assert exchange.connection.by_process == clock.stamps.process


async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, pieces: tuple[bytes, ...]) -> None:
    """Send, and end with RST, whatever the other side has read."""
    await answer(reader, writer, pieces=pieces)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


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
        assert exchange.recording.content_chunks == 3_000


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


async def test_a_long_request_leaves_in_parts(clock: Clock, authority: trustme.CA) -> None:
    """More than the buffers of the kernel hold, plain and with TLS, to a server that first reads nothing."""
    body = os.urandom(4 << 20)
    received: list[bytes] = []

    async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        await asyncio.sleep(0.05)
        received.append(await reader.readexactly(len(body)))
        writer.write(HEAD + CONTENT + END + DONE)

    for server_tls, client_tls in ((None, None), contexts(authority)):
        async with serving(act, server_tls) as port:
            exchange = Exchange(Recording(), clock)
            trust = None if client_tls is None else lambda context=client_tls: context
            await connect(Endpoint("http", "127.0.0.1", port, "", trust=trust, server_name="localhost"), exchange, 20)
            exchange.send(REQUEST + body, clock.now_ns(), LIMITS)
            await exchange.ended
            exchange.abort()
        assert exchange.broken is None
    assert received == [body, body]


async def test_ipv6(clock: Clock) -> None:
    """An address in its own family; a machine without one skips it."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 on this machine")
    async with serving(healthy, host="::1") as port:
        verdict, _ = await exchanged(clock, port, host="::1")
    assert verdict == Verdict(Outcome.OK)


@pytest.mark.parametrize("is_secured", [False, True])
async def test_a_flood_leaves_other_answers_their_turns(clock: Clock, authority: trustme.CA, is_secured: bool) -> None:
    """A megabyte of tiny chunks is handed over in small parts, each in a turn of the loop, and ends by its bound of work."""
    server_tls, client_tls = contexts(authority) if is_secured else (None, None)
    turns, parts = 0, list[tuple[int, int]]()

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    class Watched(Exchange):
        def receive(self, at_ns: int, data: bytes) -> None:
            parts.append((turns, len(data)))
            super().receive(at_ns, data)

    counting = asyncio.create_task(count_turns())
    flood = partial(answer, pieces=(CHUNKED_HEAD + b"1\r\n:\r\n" * 170_000,))
    async with serving(flood, server_tls) as port:
        exchange = Watched(Recording(tokens=16), clock)
        trust = None if client_tls is None else lambda: client_tls
        await connect(Endpoint("http", "127.0.0.1", port, "", trust=trust, server_name="localhost"), exchange, 20)
        exchange.send(REQUEST, clock.now_ns(), LIMITS)
        await exchange.ended
        exchange.abort()
    counting.cancel()
    assert max(size for _, size in parts) <= PART_BYTES
    assert len(parts) > 100
    assert max(Counter(turn for turn, _ in parts).values()) <= 2


async def test_an_alarm_that_reads_the_connection_leaves_its_bytes_in_order(clock: Clock) -> None:
    """The clock calls what is due before each read, such as the sending of a request, which reads its own connection first."""
    numbers = b"".join(b"%08d" % number for number in range(100_000))
    received = bytearray()

    class Collector(Exchange):
        def receive(self, at_ns: int, data: bytes) -> None:
            received.extend(data)

    exchange = Collector(None, clock)

    def read() -> None:
        if not exchange.ended.done() and exchange.connection is not None:
            exchange.connection.read()
            clock.call_at(clock.now_ns() + 20_000, read)

    async with serving(partial(answer, pieces=(numbers,))) as port:
        await connect(Endpoint("http", "127.0.0.1", port, ""), exchange, 20)
        exchange.send(REQUEST, clock.now_ns(), LIMITS)
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
                endpoint = Endpoint("http", "127.0.0.1", port, "", trust=lambda: client_tls, server_name="localhost")
                with pytest.raises(Broken, match=phase):
                    await connect(endpoint, exchange, timeout_s)
                exchange.abort()
        assert sum(link.startswith("socket:") for link in descriptors()) < before
