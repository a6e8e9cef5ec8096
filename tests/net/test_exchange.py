"""An exchange without a network: the end of an answer and the deadlines depend only on timestamps."""

import asyncio
import ssl
from typing import Any, cast

import orjson
import pytest

from prober.config.target import Timeouts
from prober.measure.outcome import ExpectedAnswer, Outcome, Verdict, classify
from prober.measure.recording import MAX_CHUNKS, Recording
from prober.measure.timeline import Timeline
from prober.net import exchange as module
from prober.net.clock import Clock
from prober.net.exchange import Exchange
from prober.net.stamped_socket import StampedSocket

pytestmark = pytest.mark.virtual_time
SECOND = 1_000_000_000
LIMITS = Timeouts(connect=1, first_token=5, stall=2, total=20)
FRAMINGS = {
    "chunked": b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
    "no length": b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n",
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n",
    "a length that is too long": b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 99999\r\n\r\n",
}


class Wire:
    """A connection that only remembers whether it was closed, and has nothing to read.

    handed_ns: when the request was handed to the kernel; None: now
    """

    def __init__(self, handed_ns: int | None = None) -> None:
        self.is_cut, self.handed_ns = False, handed_ns

    def read(self) -> bool:
        return False

    def write_request(self, data: bytes) -> None:
        pass

    def close(self) -> None:
        self.is_cut = True


class Now:
    """The monotonic clock, set by hand."""

    def __init__(self) -> None:
        self.ns = 100 * SECOND

    def now_ns(self) -> int:
        return self.ns


@pytest.fixture
def now() -> Now:
    return Now()


def event(delta: dict[str, Any] | None, finish: str | None = None, end: bytes = b"\n") -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return b"data: " + orjson.dumps({"choices": choices}) + 2 * end


A = event({"content": "a"})
LAST = event({}, "stop")
DONE = b"data: [DONE]\n\n"
PING = b": keep-alive\n\n"


class Answer:
    """An exchange whose request has left, and what is sent to it."""

    def __init__(
        self,
        now: Now,
        framing: str = "chunked",
        limits: Timeouts = LIMITS,
        *,
        streamed: bool = True,
        tokens: int = MAX_CHUNKS,
        delay_ns: int = 0,
        handed_ns: int | None = None,
    ) -> None:
        self.now, self.begin_ns, self.framing = now, now.ns, framing
        self.recording = Recording(streamed=streamed, tokens=tokens)
        self.exchange = Exchange(self.recording, cast(Clock, now))
        self.wire = Wire(handed_ns)
        self.exchange.connection = cast(StampedSocket, self.wire)
        self.exchange.send(b"POST", limits, delay_ns)

    def at(self, seconds: float, *pieces: bytes) -> "Answer":
        """The pieces of the body arrive so long after the departure, each for itself."""
        self.now.ns = self.begin_ns + round(seconds * SECOND)
        for piece in pieces:
            self.exchange.receive(self.now.ns, self.framed(piece))
        return self

    def between(self, earliest_s: float, seconds: float, *pieces: bytes) -> "Answer":
        """The pieces are read together: the last one arrived so long after the departure, the others not before `earliest_s`."""
        self.now.ns = self.begin_ns + round(seconds * SECOND)
        data = b"".join(map(self.framed, pieces))
        self.exchange.receive(self.now.ns, data, self.begin_ns + round(earliest_s * SECOND))
        return self

    def framed(self, piece: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(piece), piece) if self.framing == "chunked" else piece

    def head(self, seconds: float = 0.0) -> "Answer":
        self.now.ns = self.begin_ns + round(seconds * SECOND)
        self.exchange.receive(self.now.ns, FRAMINGS[self.framing])
        return self

    def lost(self, problem: Exception | None) -> "Answer":
        self.exchange.lost(self.now.ns, problem)
        return self

    async def verdict(self) -> Verdict:
        async with asyncio.timeout(5):
            await self.exchange.ended
        ending = self.recording.observed_end(transport_verdict=self.exchange.broken, status=self.exchange.status)
        return classify(ending, ExpectedAnswer(end_mark="[DONE]" if self.recording.streamed else ""))

    @property
    def timeline(self) -> Timeline:
        return self.recording.complete(Timeline(self.begin_ns, sent_ns=self.begin_ns, end_ns=self.exchange.end_ns))

    @property
    def is_open(self) -> bool:
        """It waits for more of the answer."""
        return self.exchange.end_ns is None and not self.exchange.ended.done()


ENDINGS = [
    space + b"[DONE]" + more for space in (b"data: ", b"data:") for more in (b"\n\n", b"\r\r", b"\r\n\r\n", b" \n\n")
]


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("done", ENDINGS)
async def test_done_ends_the_answer_wherever_it_is_split(now: Now, framing: str, done: bytes) -> None:
    """The byte that ends the line of `[DONE]` ends the answer, though the connection stays open; E2E is the stamp of that byte."""
    line = len(done.rstrip(b"\r\n")) + 1
    for split in range(len(done)):
        answer = Answer(now, framing).head().at(1, A, LAST)
        answer.at(1.5, *filter(None, [done[:split]]))
        assert answer.is_open == (split < line), split
        answer.at(1.75, done[split:])
        assert not answer.is_open
        assert await answer.verdict() == Verdict(Outcome.OK)
        assert answer.timeline.e2e_s == (1.5 if split >= line else 1.75)
        assert not answer.wire.is_cut, "the server may close first"
        answer.exchange.abort()


NOT_THE_END = [
    event({"content": "[DONE]"}),
    event({"content": "\n\ndata: [DONE]\n\n"}),
    event({"reasoning": "data: [DONE]\r\r"}),
    b": [DONE]\n\n",
    b":data: [DONE]\n\n",
    b"event: [DONE]\n\n",
    b"id: [DONE]\n\n",
    b"metadata: [DONE]\n\n",
    b"data: [DONE]",
]


@pytest.mark.parametrize("content", NOT_THE_END)
async def test_done_inside_something_else_ends_nothing(now: Now, content: bytes) -> None:
    """Generated text, comments, other fields and half a line are no end, wherever they are split."""
    for split in range(len(content) + 1):
        answer = Answer(now).head().at(1, A).at(1.25, *filter(None, [content[:split], content[split:]]))
        assert answer.is_open
        if content.endswith(b"\n"):
            answer.at(1.5, LAST, DONE)
            assert await answer.verdict() == Verdict(Outcome.OK)
            assert answer.timeline.e2e_s == 1.5
        answer.exchange.abort()


@pytest.mark.parametrize("after", [b": keep-alive\n\n", A, b"data: {broken\n\n", b"data: " + b"x" * (2 << 20)])
async def test_what_follows_done_is_ignored(now: Now, after: bytes) -> None:
    """In the same bytes and in later ones: it is no content, no error, and moves no stamp."""
    same = Answer(now, "no length").head().at(1, A + LAST + DONE + after)
    later = Answer(now, "no length").head().at(1, A + LAST + DONE).at(1.5, after)
    for answer in (same, later):
        assert await answer.verdict() == Verdict(Outcome.OK)
        assert (answer.timeline.e2e_s, len(answer.timeline.content_ns)) == (1, 1)
        answer.exchange.abort()


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("problem", [None, ConnectionResetError("reset"), ssl.SSLError("bad record"), OSError("gone")])
async def test_how_the_connection_ends_after_done_costs_nothing(
    now: Now, framing: str, problem: Exception | None
) -> None:
    """FIN, RST and errors of TLS after it, in the same turn of the loop too, leave outcome and E2E as they are."""
    answer = Answer(now, framing).head().at(1, *[A] * 20, LAST, DONE).lost(problem)
    assert await answer.verdict() == Verdict(Outcome.OK)
    assert answer.timeline.e2e_s == 1


async def test_bytes_that_are_no_http_after_done_cost_nothing(now: Now) -> None:
    """A chunk that is framed wrongly, in the same bytes as `[DONE]`."""
    answer = Answer(now).head()
    body = A + LAST + DONE
    answer.exchange.receive(now.ns, b"%x\r\n%b\r\nnot a length\r\n" % (len(body), body))
    assert await answer.verdict() == Verdict(Outcome.OK)
    assert answer.timeline.e2e_s == 0
    answer.exchange.abort()


async def test_a_connection_that_stays_open_is_closed_soon(now: Now) -> None:
    """A server that does not close after `[DONE]` is left after a short wait."""
    answer = Answer(now).head().at(1, A, LAST, DONE)
    await answer.verdict()
    assert not answer.wire.is_cut
    await asyncio.sleep(module.LINGER_S)
    assert answer.wire.is_cut


async def test_what_arrived_before_a_deadline_counts_though_it_is_read_after_it(now: Now) -> None:
    """A timer first reads what waits in the socket: its stamp decides, not the time of reading."""
    for seconds, outcome in ((3, Outcome.OK), (3.001, Outcome.TIMEOUT_STALL)):
        answer = Answer(now).head().at(1, A)
        waiting = [LAST, DONE]

        def read(answer: Answer = answer, waiting: list[bytes] = waiting, seconds: float = seconds) -> bool:
            if not waiting:
                return False
            piece = waiting.pop(0)
            at_ns = answer.begin_ns + round(seconds * SECOND)
            answer.exchange.receive(at_ns, b"%x\r\n%b\r\n" % (len(piece), piece))
            return True

        answer.wire.read = read  # type: ignore[method-assign]
        now.ns = answer.begin_ns + 10 * SECOND
        await asyncio.sleep(2.1)
        assert (await answer.verdict()).outcome is outcome
        now.ns = answer.begin_ns
        answer.exchange.abort()


@pytest.mark.parametrize(
    ("flood", "tokens"),
    [(b"data:{}\n\n" * 100_000, 16), (b":\n" * 100_000, 16), (A * 100_000, 64), (b"data: " + b"x" * (1 << 18), 10**5)],
)
async def test_a_flood_is_malformed(now: Now, flood: bytes, tokens: int) -> None:
    """Too many lines, pieces or bytes for the requested length, or a line that is too long; little of it is kept."""
    answer = Answer(now, "no length", tokens=tokens).head()
    for at in range(0, len(flood), 1 << 18):
        answer.exchange.receive(now.ns, flood[at : at + (1 << 18)])
    verdict = await answer.verdict()
    assert verdict.outcome is Outcome.MALFORMED
    assert "too many events" in verdict.detail or "a line of more than" in verdict.detail
    assert answer.wire.is_cut
    assert len(answer.timeline.content_ns) < 10_000


ROLE = event({"role": "assistant", "content": ""})
STALLS = {
    "between the first two contents": [(1, A), (3.001, A), (3.1, LAST + DONE)],
    "though a role chunk came before": [(0.5, ROLE), (1, A), (3.001, A), (3.1, LAST + DONE)],
    "late in the answer": [(1, A), (2.9, A), (4.8, A), (6.801, A), (6.9, LAST + DONE)],
    "though keep-alives came": [(1, A), (2, PING), (2.9, PING), (3.001, A), (3.1, LAST + DONE)],
    "though chunks without content came": [(1, A), (2, ROLE), (2.9, event(None)), (3.001, A), (3.1, LAST + DONE)],
    "before the finish reason": [(1, A), (3.001, LAST), (3.002, DONE)],
    "between finish reason and end": [(1, A), (1.1, LAST), (3.001, DONE)],
    "before an error": [(1, A), (3.001, b'data: {"error": "died"}\n\n')],
}


@pytest.mark.parametrize("name", STALLS)
async def test_a_gap_above_the_limit_is_a_stall_wherever_it_lies(now: Now, name: str) -> None:
    """By the stamps: no timer ran in this test, and the answer went on after the gap."""
    answer = Answer(now).head()
    for seconds, piece in STALLS[name]:
        answer.at(seconds, piece)
    verdict = await answer.verdict()
    assert verdict.outcome is Outcome.TIMEOUT_STALL, verdict
    assert "2 s" in verdict.detail
    assert answer.wire.is_cut


@pytest.mark.parametrize("name", STALLS)
async def test_a_gap_within_the_limit_is_none(now: Now, name: str) -> None:
    """The same with gaps of exactly the limit, and a healthy end."""
    answer = Answer(now).head()
    for seconds, piece in STALLS[name]:
        if not piece.startswith(b'data: {"error"'):
            answer.at(round(seconds, 1), piece)
    if answer.is_open:
        answer.at(3, LAST + DONE)
    assert await answer.verdict() == Verdict(Outcome.OK)
    answer.exchange.abort()


@pytest.mark.parametrize("framing", ["chunked", "no length"])
@pytest.mark.parametrize("problem", [ConnectionResetError("reset"), None])
async def test_a_connection_that_ends_after_a_stall_is_a_stall_once_that_was_checked(
    now: Now, framing: str, problem: Exception | None
) -> None:
    """The end of a connection has no stamp: an end that is read after the limit may have come in time."""
    answer = Answer(now, framing).head().at(1, A)
    now.ns += 2 * SECOND + 1
    assert (await answer.lost(problem).verdict()).outcome in (Outcome.RESET, Outcome.TRUNCATED)
    answer = Answer(now, framing).head().at(1, A)
    now.ns += 2 * SECOND + 1
    await asyncio.sleep(3)  # the timer
    assert (await answer.lost(problem).verdict()).outcome is Outcome.TIMEOUT_STALL


@pytest.mark.parametrize(("late_ns", "outcome"), [(0, Outcome.OK), (1, Outcome.TIMEOUT_FIRST_TOKEN)])
async def test_the_first_content_is_in_time_to_the_nanosecond(now: Now, late_ns: int, outcome: Outcome) -> None:
    """A first content after its limit is late though the timer has not looked yet; a role chunk before it is none."""
    answer = Answer(now).head().at(1, ROLE)
    now.ns = answer.begin_ns + 5 * SECOND + late_ns
    answer.exchange.receive(now.ns, b"%x\r\n%b\r\n" % (len(A), A))
    answer.at(5.5, LAST, DONE)
    assert (await answer.verdict()).outcome is outcome
    answer.exchange.abort()


@pytest.mark.parametrize(("early_s", "outcome"), [(5, Outcome.OK), (5.001, Outcome.TIMEOUT_FIRST_TOKEN)])
async def test_what_may_have_arrived_in_time_is_no_timeout(now: Now, early_s: float, outcome: Outcome) -> None:
    """A first content that was read with later ones, and came before or after its limit; then the next limits apply."""
    answer = Answer(now).head().between(early_s, 6, ROLE, A, A)
    assert answer.exchange.ended.done() == (outcome is not Outcome.OK)
    answer.at(7.5, LAST, DONE)
    assert (await answer.verdict()).outcome is outcome
    if outcome is Outcome.OK:
        assert answer.timeline.bounds_s("ttft") == (5, 6)
    answer.exchange.abort()


@pytest.mark.parametrize(("early_s", "outcome"), [(3, Outcome.OK), (3.001, Outcome.TIMEOUT_STALL)])
async def test_what_may_have_arrived_before_a_stall_is_none(now: Now, early_s: float, outcome: Outcome) -> None:
    """The same after content; a stall after what was read counts from its last possible time."""
    answer = Answer(now).head().at(1, A).between(early_s, 4, A, A)
    assert (await answer.at(6, LAST, DONE).verdict()).outcome is outcome
    stalled = Answer(now).head().at(1, A).between(1.5, 4, A, A)
    assert (await stalled.at(6.001, LAST, DONE).verdict()).outcome is Outcome.TIMEOUT_STALL
    answer.exchange.abort()


@pytest.mark.parametrize(("at_s", "outcome"), [(4, Outcome.OK), (4.001, Outcome.TIMEOUT_FIRST_TOKEN)])
async def test_a_deadline_counts_from_the_departure_less_the_delay_of_the_target(
    now: Now, at_s: float, outcome: Outcome
) -> None:
    """A connection that was ready a second late has left a second less; how late the prober was takes nothing away."""
    handed_ns = now.ns
    now.ns += 3 * SECOND  # while the request was handed to the kernel
    answer = Answer(now, delay_ns=SECOND, handed_ns=handed_ns)
    answer.begin_ns = handed_ns
    answer.head(3).at(at_s, A)
    answer.at(4.5, LAST, DONE)
    assert (await answer.verdict()).outcome is outcome
    answer.exchange.abort()


@pytest.mark.parametrize(
    ("pieces", "is_exact"),
    [
        ((A,), True),
        ((ROLE, A), True),
        ((PING, A), True),
        ((A, A), False),
        ((A, ROLE), False),
        ((A, PING), False),  # a comment is no event, and came later
        ((A, LAST + DONE), False),
        ((A[:-1], A[-1:]), False),  # in two pieces of the framing: too little is left to be sure
        ((ROLE, A[:9], A[9:]), False),
        ((A, A[:20]), False),
        ((A, A[:-1]), False),
    ],
)
@pytest.mark.parametrize("framing", ["chunked", "no length"])
async def test_a_first_content_that_came_last_is_exact(
    now: Now, framing: str, pieces: tuple[bytes, ...], is_exact: bool
) -> None:
    """Only the last bytes of a read have its stamp, and whatever else came with them may have come before."""
    if framing == "no length" and b"".join(pieces) in (A, ROLE + A):
        is_exact = True  # no framing lies between its pieces, and the last one ends it
    answer = Answer(now, framing).head().between(0.25, 1, *pieces)
    assert answer.timeline.bounds_s("ttft") == ((1, 1) if is_exact else (0.25, 1))
    assert answer.timeline.ttft_s == (1 if is_exact else None)
    answer.exchange.abort()


@pytest.mark.parametrize("tail", [b"1", b"1a\r", b"1a\r\n", b"0\r\n\r\n"])
async def test_framing_that_came_after_the_first_content_makes_it_unsure(now: Now, tail: bytes) -> None:
    """The head of the next piece, or the end, was in a later segment."""
    answer = Answer(now).head()
    answer.exchange.receive(now.ns + SECOND, answer.framed(A) + tail, now.ns + SECOND // 2)
    assert answer.timeline.bounds_s("ttft") == (0.5, 1)
    answer.exchange.abort()


async def test_a_record_of_tls_that_is_cut_makes_the_last_content_unsure(now: Now) -> None:
    """The stamp is that of bytes that cannot be read yet."""
    answer = Answer(now).head()
    answer.exchange.receive(now.ns + SECOND, answer.framed(A), now.ns + SECOND // 2, is_cut=True)
    assert answer.timeline.bounds_s("ttft") == (0.5, 1)
    answer.exchange.abort()


async def test_the_end_of_an_answer_that_was_read_at_once_is_exact(now: Now) -> None:
    """Nothing comes after it, so that E2E is known though TTFT lies between two times."""
    answer = Answer(now).head().between(0.25, 1, A, A, LAST, DONE)
    timeline = answer.timeline
    assert (timeline.bounds_s("ttft"), timeline.bounds_s("e2e")) == ((0.25, 1), (1, 1))
    assert (timeline.ttft_s, timeline.e2e_s) == (None, 1)
    answer.exchange.abort()


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(("late_ns", "outcome"), [(0, Outcome.OK), (1, Outcome.TIMEOUT_TOTAL)])
async def test_the_end_is_in_time_to_the_nanosecond(now: Now, streamed: bool, late_ns: int, outcome: Outcome) -> None:
    """The last byte counts, with and without a stream."""
    answer = Answer(now, streamed=streamed).head()
    document = orjson.dumps({"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]})
    for seconds in range(1, 20) if streamed else ():
        answer.at(seconds, A)
    now.ns = answer.begin_ns + 20 * SECOND + late_ns
    body = LAST + DONE if streamed else document
    answer.exchange.receive(now.ns, b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    assert (await answer.verdict()).outcome is outcome
    answer.exchange.abort()


async def test_an_answer_that_is_no_stream_cannot_stall(now: Now) -> None:
    """With `stream: false` neither a late first byte nor a gap is judged, only the whole."""
    document = orjson.dumps({"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]})
    answer = Answer(now, streamed=False).head(1)
    answer.at(9, document[:10]).at(19, document[10:])
    answer.exchange.receive(now.ns, b"0\r\n\r\n")
    assert await answer.verdict() == Verdict(Outcome.OK)
    answer.exchange.abort()


async def test_a_status_that_comes_too_late_is_a_timeout(now: Now) -> None:
    """Limits are passed at their time, whatever the server says afterwards; in time its status says more."""
    for seconds, outcome in ((5.001, Outcome.TIMEOUT_FIRST_TOKEN), (4.999, Outcome.HTTP_5XX)):
        answer = Answer(now)
        now.ns = answer.begin_ns + round(seconds * SECOND)
        answer.exchange.receive(now.ns, b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
        assert (await answer.verdict()).outcome is outcome
        answer.exchange.abort()


@pytest.mark.parametrize("function", ["feed", "_process_event", "finish"])
@pytest.mark.parametrize("framing", ["chunked", "no length"])
async def test_an_exception_in_reading_is_raised_to_who_waits(
    now: Now, framing: str, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not hang, is told with its own type, and the connection is cut."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError("a fault")

    answer = Answer(now, framing)
    monkeypatch.setattr(Recording, function, fail)
    answer.head().at(1, A, LAST, DONE)
    with pytest.raises(ZeroDivisionError, match="a fault"):
        await answer.exchange.ended
    assert answer.exchange.received
    assert answer.wire.is_cut
