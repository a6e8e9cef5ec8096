"""Servers that close idle connections: not blamed, and connected to later."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import orjson
import pytest

from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.net.connection import connect
from prober.probing import probe as probe_module
from prober.probing.pacer import REMEMBERED_NS, ConnectLead
from prober.probing.probe import MAX_RECONNECTIONS
from prober.probing.target import Target
from tests.probing.test_probe import Busy, Handler, known, send, serving
from tests.scripted import reset
from tests.wire.events import good
from tests.wire.heads import joined, stream

pytestmark = pytest.mark.virtual_time
SECOND_NS = 10**9
LEAD_S = 1.0
TIMED_OUT = b"HTTP/1.1 408 Request Time-out\r\nConnection: close\r\n"


async def stays_open(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    reset(writer)


def writes(data: bytes, then: Handler) -> Handler:
    async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await then(reader, writer)

    return end


ENDS = {
    "FIN": closes,
    "408": writes(TIMED_OUT + b"\r\n", closes),
    "408 in HTTP/1.0": writes(b"HTTP/1.0 408 Request Time-out\r\n\r\n<html>", closes),
    "408 with a body": writes(TIMED_OUT + b"Content-Length: 2\r\n\r\nno", closes),
    "408 that stays open": writes(TIMED_OUT + b"Content-Length: 99\r\n\r\nno", stays_open),
}


@dataclass
class Impatient:
    """A server that ends a connection on which no request arrives within `idle_s`. connections: those of probes."""

    idle_s: float
    end: Handler = closes
    answers: Callable[[int], bytes] = lambda n: joined(*stream(*good(n)))
    connections: int = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            async with asyncio.timeout(self.idle_s):
                head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET"):
                self.connections -= 1
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                return
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            asked = orjson.loads(await reader.readexactly(length))
            writer.write(self.answers(asked["max_tokens"]))
            await writer.drain()
        except TimeoutError:
            await self.end(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def probing(server: Impatient) -> AsyncIterator[Target]:
    async with serving(server.handle) as port:
        clock, target = known(f"http://127.0.0.1:{port}")
        yield target
        clock.close()


def ttft_s(result: ProbeResult) -> float:
    assert result.outcome is Outcome.OK, result.detail
    assert result.timeline.ttft_s is not None
    return result.timeline.ttft_s


@pytest.mark.parametrize("idle_s", [0.02, 0.3, 0.7, 0.95])
@pytest.mark.parametrize("end", ENDS)
async def test_a_server_that_ends_idle_connections_is_not_blamed(end: str, idle_s: float) -> None:
    """Each probe is `ok` without a latency of it; soon each connects once, and later."""
    server = Impatient(idle_s, ENDS[end])
    async with probing(server) as target:
        for _ in range(2):
            assert ttft_s(await send(target, LEAD_S)) < 0.01
        assert server.connections <= 5
        server.connections = 0
        for _ in range(5):
            result = await send(target, LEAD_S)
            assert ttft_s(result) < 0.01
            assert result.timeline.send_lag_s == pytest.approx(0, abs=0.001)
        assert server.connections == 5


@pytest.mark.real_time
async def test_a_reset_of_an_idle_connection_is_like_its_end() -> None:
    """RST instead of FIN."""
    server = Impatient(1.4, resets)  # 0.6 s before the due time; the second connection has 0.8 s left then
    async with probing(server) as target:
        results = [await send(target, 2.0) for _ in range(3)]
    assert [result.outcome for result in results] == [Outcome.OK] * 3
    assert server.connections > 3


async def test_the_whole_lead_is_tried_again_after_an_hour(caplog: pytest.LogCaptureFixture) -> None:
    """The log says when it is shortened; a server that has changed gets the configured lead again."""
    caplog.set_level("INFO")
    server = Impatient(0.3)
    async with probing(server) as target:
        for _ in range(5):
            await send(target, LEAD_S)
        assert caplog.text.count("closes idle connections (after 0.3 s)") == 1
        await asyncio.sleep(3600)
        server.idle_s, server.connections = 60.0, 0
        result = await send(target, LEAD_S)
        assert result.timeline.connection is not None
        assert result.timeline.intended_ns - result.timeline.connection.start_ns == pytest.approx(
            LEAD_S * 1e9, rel=0.01
        )
        assert server.connections == 1


async def test_a_connection_that_is_closed_as_soon_as_it_is_made_is_reset() -> None:
    """It was not idle: a user's request would have met the same, and is not sent a second time."""
    server = Impatient(0.0)
    async with probing(server) as target:
        result = await send(target, LEAD_S)
    assert (result.outcome, server.connections) == (Outcome.RESET, 1)
    assert "before the request was sent" in result.detail


async def test_a_connection_that_is_closed_after_the_request_is_reset() -> None:
    """Nothing is sent a second time."""
    server = Impatient(60.0, answers=lambda n: b"")
    async with probing(server) as target:
        results = [await send(target, LEAD_S) for _ in range(4)]
    assert {result.outcome for result in results} == {Outcome.RESET}
    assert server.connections == 4


async def test_an_answer_of_408_after_the_request_is_http_408() -> None:
    """The server had the request, and its time to read it was its own."""
    server = Impatient(60.0, answers=lambda n: TIMED_OUT + b"Content-Length: 0\r\n\r\n")
    async with probing(server) as target:
        result = await send(target, 0.005)
    assert (result.outcome, server.connections) == (Outcome.HTTP_408, 1)


async def test_other_bytes_before_the_request_are_no_idle_timeout() -> None:
    """A server that speaks first is malformed, as before."""
    server = Impatient(0.3, writes(b"SSH-2.0-OpenSSH_9.6\r\n", closes))
    async with probing(server) as target:
        result = await send(target, LEAD_S)
    assert (result.outcome, server.connections) == (Outcome.MALFORMED, 1)


async def test_a_request_that_crosses_the_end_of_its_connection_is_reset_and_learnt_from() -> None:
    """The server cannot be told from one that fails, so the probe is `reset`; but the next ones connect later."""
    server = Impatient(60.0)
    good = server.answers
    async with probing(server) as target:
        server.answers = lambda n: b""
        outcomes = [(await send(target, LEAD_S)).outcome for _ in range(2)]
        assert target.connect_lead.learnt_ns(target.clock.now_ns()) == pytest.approx(LEAD_S * 1e9 / 2, rel=0.01)
        server.answers = good
        outcomes.append((await send(target, LEAD_S)).outcome)
    assert outcomes == [Outcome.RESET, Outcome.RESET, Outcome.OK]


async def test_a_new_connection_that_is_not_ready_in_time_counts_in_ttft(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who connects would wait for it too; it is no lateness of the prober."""

    async def slow(*args: Any) -> Any:
        begun_ns = target.clock.now_ns()
        await asyncio.sleep(0.2)
        return replace(await connect(*args), start_ns=begun_ns)

    monkeypatch.setattr(probe_module, "connect", slow)
    server = Impatient(0.7)
    async with probing(server) as target:
        result = await send(target, LEAD_S)
    assert ttft_s(result) == pytest.approx(0.1, abs=0.01)
    assert result.timeline.send_lag_s == pytest.approx(0, abs=0.001)
    assert server.connections == 2


async def test_a_server_that_ends_every_connection_ends_the_probe() -> None:
    """The number of connections of one probe is bounded."""
    server = Impatient(0.02)
    async with probing(server) as target:
        target.connect_lead.learnt_ns = lambda now_ns: None  # type: ignore[method-assign]  # it would learn to connect later
        result = await send(target, LEAD_S)
    assert (result.outcome, server.connections) == (Outcome.RESET, 1 + MAX_RECONNECTIONS)


async def test_a_probe_that_is_cut_does_not_connect_again() -> None:
    """Its connection is closed by the prober, not by the server."""
    server = Impatient(60.0)
    async with probing(server) as target:
        target.in_flight = {Busy() for _ in range(target.spec.max_in_flight)}
        assert (await send(target, LEAD_S)).outcome is Outcome.SHED
        cancelled: Awaitable[Any] = asyncio.create_task(send(target, LEAD_S))
        await asyncio.sleep(0.5)
        cancelled.cancel()  # type: ignore[attr-defined]
        await asyncio.sleep(2)
    assert server.connections == 2


def test_two_ends_within_an_hour_shorten_the_lead() -> None:
    """Half of the shorter idle time, and room for the longest set-up of the last connections."""
    lead = ConnectLead()
    for set_up_ns in (5_000_000, 30_000_000, 4_000_000):
        lead.connected(set_up_ns)
    assert not lead.closed(600_000_000, 0)
    assert lead.learnt_ns(0) is None
    assert lead.closed(400_000_000, SECOND_NS)
    assert not lead.closed(500_000_000, 2 * SECOND_NS)
    assert lead.learnt_ns(2 * SECOND_NS) == 200_000_000 + 60_000_000
    assert lead.learnt_ns(SECOND_NS + REMEMBERED_NS) is not None
    assert lead.learnt_ns(2 * SECOND_NS + REMEMBERED_NS) is None


def test_an_end_now_and_then_does_not_shorten_the_lead() -> None:
    """A gateway that restarts closes what is idle."""
    lead = ConnectLead()
    assert not any(lead.closed(10_000_000, hour * 2 * REMEMBERED_NS) for hour in range(10))
