"""One probe's timeline: stamped bytes in, the quantities of the field out.

All stamps are nanoseconds of one monotonic clock; quantities are seconds. A quantity that was not measured is None, never a
guess: no usage, no TPOT; no stream, no TTFT.
"""

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import sub

from prober.measure import chat
from prober.measure.outcome import Ending, Verdict
from prober.measure.sse import Event, LineTooLong, SseDecoder

MAX_CHUNKS = 100_000
MAX_TEXT = 2_000
MAX_ANSWER = 1 << 19
MAX_UNREAD_BYTES = 64 << 10
EVENT_ENDS = (b"}\n\n", b"}\r\n\r\n")
MAX_DONE_BYTES = 64  # of an event's data: a longer one is not `[DONE]`, however much white space is around it


@dataclass(frozen=True, slots=True)
class Connection:
    """Set-up of one fresh connection; each phase in seconds, None where it did not happen."""

    start_ns: int
    ready_ns: int | None = None
    dns_s: float | None = None
    tcp_s: float | None = None
    proxy_s: float | None = None
    tls_s: float | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """What happened when.

    content_ns: stamps of the chunks that carried content, shape (chunks,)
    content_tokens: tokens each of them carried, shape (chunks,), or None where the engine did not tell for every chunk
    """

    intended_ns: int
    connection: Connection | None = None
    sent_ns: int | None = None
    headers_ns: int | None = None
    first_ns: int | None = None
    first_answer_ns: int | None = None
    end_ns: int | None = None
    content_ns: Sequence[int] = ()
    content_tokens: Sequence[int] | None = None
    usage: chat.Usage | None = None
    finish_reason: str | None = None

    @property
    def send_lag_s(self) -> float | None:
        """The prober's own lateness: sent − max(intended, connection ready)."""
        if self.sent_ns is None:
            return None
        ready = self.connection.ready_ns if self.connection else None
        return (self.sent_ns - max(self.intended_ns, ready or 0)) / 1e9

    @property
    def ttft_s(self) -> float | None:
        """First content of any kind − intended."""
        return None if self.first_ns is None else (self.first_ns - self.intended_ns) / 1e9

    @property
    def ttft_answer_s(self) -> float | None:
        """First content that is not reasoning − intended."""
        return None if self.first_answer_ns is None else (self.first_answer_ns - self.intended_ns) / 1e9

    @property
    def e2e_s(self) -> float | None:
        """End of the answer − intended."""
        return None if self.end_ns is None else (self.end_ns - self.intended_ns) / 1e9

    @property
    def chunk_gaps_s(self) -> list[float]:
        """Raw gaps between content chunks, shape (chunks − 1,)."""
        return [(b - a) / 1e9 for a, b in pairwise(self.content_ns)]

    @property
    def itls_s(self) -> list[float]:
        """Inter-token latencies, one a content chunk after the first: its gap ÷ the tokens it carried, where told."""
        gaps = self.chunk_gaps_s
        if self.content_tokens is None:
            return gaps
        return [gap / max(1, n) for gap, n in zip(gaps, self.content_tokens[1:], strict=True)]

    @property
    def tpot_s(self) -> float | None:
        """(last content − first content) ÷ (n − tokens of the first chunk), n as the server's usage counts."""
        n = self.usage.completion_tokens if self.usage else None
        if n is None or len(self.content_ns) < 2:
            return None
        after_first = n - (max(1, self.content_tokens[0]) if self.content_tokens else 1)
        return (self.content_ns[-1] - self.content_ns[0]) / 1e9 / after_first if after_first > 0 else None


@dataclass(slots=True)
class Recording:
    """Turns the pieces of one answer into a timeline, in any number of steps; memory is bounded.

    `answer` is the text that is not reasoning, if it `keeps_answer`; `text` the beginning of either.
    `feed` with each piece and the stamp of its arrival, `read` to parse the JSON of events that were fed, `finish` once the body
    has ended properly. `feed` knows `[DONE]` at once; all other fields are those of the events that were read.
    """

    streamed: bool = True
    first_ns: int | None = None
    first_answer_ns: int | None = None
    last_ns: int | None = None
    finish_reason: str | None = None
    done: bool = False
    error: str | None = None
    malformed: str | None = None
    usage: chat.Usage | None = None
    text: str = ""
    keeps_answer: bool = False
    answer: str = ""
    _stamps: "array[int]" = field(default_factory=lambda: array("q"))
    _totals: "array[int]" = field(default_factory=lambda: array("q"))
    _sse: SseDecoder = field(default_factory=SseDecoder)
    _whole: bytearray = field(default_factory=bytearray)
    _unread: deque[tuple[int, bytes | Event]] = field(default_factory=deque)
    _unread_bytes: int = 0
    _is_between: bool = False  # the last piece ended with an event
    _whole_sse: SseDecoder = field(default_factory=lambda: _between())  # of pieces that hold whole events

    @property
    def over(self) -> bool:
        """Nothing that may still come can change the verdict, except the end of the body."""
        return self.error is not None or self.malformed is not None

    @property
    def content(self) -> int:
        """Number of chunks (of a plain answer: 0 or 1) that carried content."""
        return len(self._stamps)

    def feed(self, at_ns: int, data: bytes) -> bool:
        """A piece of the body that arrived at `at_ns`. True once the answer has ended: what follows is ignored."""
        if self.done or self.error is not None or self.malformed is not None:
            return True
        if not self.streamed:
            self._whole += data
            self.last_ns = at_ns
            return False
        ends_event = data.endswith(EVENT_ENDS)
        if ends_event and self._is_between and chat.DONE not in data:
            self._unread.append((at_ns, data))  # whole events, none of them `[DONE]`, as nearly every piece is
            self._unread_bytes += len(data)
        else:
            self._is_between = ends_event
            if self._split(at_ns, data):
                return True
        if self._unread_bytes <= MAX_UNREAD_BYTES:
            return False
        self.read()
        return self.over

    def read(self, most: int | None = None) -> bool:
        """Parse the pieces that wait, `most` at most. True if there are more."""
        unread = self._unread
        for _ in range(len(unread) if most is None else min(most, len(unread))):
            at_ns, piece = unread.popleft()
            if isinstance(piece, Event):
                self._unread_bytes -= len(piece.data)
                self._read_event(at_ns, piece)
            else:
                self._unread_bytes -= len(piece)
                events, too_long = _events(self._whole_sse, piece)
                for event in events:
                    self._read_event(at_ns, event)
                if too_long and not self.over:
                    self.malformed = too_long
        return bool(unread)

    def finish(self) -> None:
        """The body ended as HTTP says it should."""
        self.read()
        if self.over or self.done:
            return
        try:
            if self.streamed:
                for event in self._sse.finish():
                    if _is_done(event.data):
                        self.done = True
                    else:
                        self._event(self.last_ns or 0, event)
            else:
                self._answer(chat.parse_answer(bytes(self._whole)))
        except (LineTooLong, chat.Malformed) as problem:
            self.malformed = str(problem)

    def complete(self, timeline: Timeline) -> Timeline:
        """`timeline` with what this recording saw."""
        # Running totals count only if every content chunk had one; a single usage at the end tells nothing of chunks.
        told = len(self._totals) == len(self._stamps) > 0
        steps = array("q", map(sub, self._totals, (0, *self._totals))) if told else None
        return replace(
            timeline,
            first_ns=self.first_ns if self.streamed else None,
            first_answer_ns=self.first_answer_ns if self.streamed else None,
            content_ns=self._stamps[:] if self.streamed else (),  # in an array, which takes a fifth of a tuple's memory
            content_tokens=steps,
            usage=self.usage,
            finish_reason=self.finish_reason,
        )

    def ending(self, *, broken: Verdict | None, status: int | None, status_detail: str = "") -> Ending:
        """What the classifier needs to know."""
        return Ending(
            broken=broken,
            status=status,
            status_detail=status_detail,
            error=self.error,
            malformed=self.malformed,
            finish_reason=self.finish_reason,
            done=self.done,
            content=self.content,
            completion_tokens=self.usage.completion_tokens if self.usage else None,
            answer=self.answer,
        )

    def _split(self, at_ns: int, data: bytes) -> bool:
        """Split a piece into events. True if the answer has ended.

        `[DONE]` counts at the end of its line already: no data line after it could make the event a chunk, and some servers
        send no blank line and keep the connection open.
        """
        events, too_long = _events(self._sse, data)
        for event in events:
            if _is_done(event.data):
                self.done = True
                return True
            self._unread.append((at_ns, event))
            self._unread_bytes += len(event.data)
        if len(pending := self._sse.pending) == 1 and _is_done(pending[0]):
            self.done = True
        elif too_long:
            self.read()
            if not self.over:
                self.malformed = too_long
        return self.done or too_long is not None

    def _read_event(self, at_ns: int, event: Event) -> None:
        try:
            self._event(at_ns, event)
        except chat.Malformed as problem:
            self.malformed = str(problem)

    def _event(self, at_ns: int, event: Event) -> None:
        if self.error is not None or self.malformed is not None:
            return
        payload = event.data
        if payload[:1] != b"{":
            payload = payload.strip()
        if event.name not in (b"", b"message", b"error"):
            return
        if not event.complete:
            return  # the stream was cut inside this event: that is `truncated`, not `malformed`
        chunk = chat.parse_chunk(payload)
        if chunk.generated:
            self._content(at_ns, chunk)
        self._facts(chunk)

    def _content(self, at_ns: int, chunk: chat.Chunk) -> None:
        stamps = self._stamps
        if len(stamps) >= MAX_CHUNKS:
            self.malformed = f"more than {MAX_CHUNKS} content chunks in one stream"
            return
        stamps.append(at_ns)
        self.last_ns = at_ns
        if self.first_ns is None:
            self.first_ns = at_ns
        if self.first_answer_ns is None and chunk.answer:
            self.first_answer_ns = at_ns
        if chunk.usage is not None and chunk.usage.completion_tokens:
            self._totals.append(chunk.usage.completion_tokens)

    def _answer(self, chunk: chat.Chunk) -> None:
        if chunk.generated:
            self._stamps.append(self.last_ns or 0)
        self._facts(chunk)

    def _facts(self, chunk: chat.Chunk) -> None:
        if chunk.error is not None:
            self.error = chunk.error
        if chunk.usage is not None:
            self.usage = chunk.usage
        if chunk.finish_reason is not None:
            self.finish_reason = chunk.finish_reason
        if chunk.text and len(self.text) < MAX_TEXT:
            self.text = (self.text + chunk.text)[:MAX_TEXT]
        if self.keeps_answer and chunk.answer and len(self.answer) < MAX_ANSWER:
            self.answer += chunk.text


def _is_done(data: bytes) -> bool:
    return len(data) <= MAX_DONE_BYTES and data.strip() == chat.DONE


def _between() -> SseDecoder:
    decoder = SseDecoder()
    decoder.feed(b"\n")  # it is past the place of a byte-order mark
    return decoder


def _events(decoder: SseDecoder, data: bytes) -> tuple[list[Event], str | None]:
    """Events completed by `data`, and what is wrong with the line after them."""
    try:
        return decoder.feed(data), None
    except LineTooLong as problem:
        return problem.events, str(problem)
