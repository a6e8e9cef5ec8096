"""Timeline of one probe: turns timestamped bytes into TTFT, TPOT, ITL and E2E.

All timestamps are nanoseconds of one monotonic clock; durations are seconds. A quantity that was not measured is None and never
estimated: without usage there is no TPOT, without a stream no TTFT.
"""

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import sub

from prober.measure import chat
from prober.measure.outcome import ObservedEnd, Verdict
from prober.measure.sse import LineTooLong, SseDecoder, SseEvent

MAX_CHUNKS = 100_000
MAX_TEXT_CHARS = 2_000
MAX_ANSWER_CHARS = 1 << 19
MAX_UNPARSED_BYTES = 64 << 10
EVENT_ENDS = (b"}\n\n", b"}\r\n\r\n")
MAX_DONE_BYTES = 64  # longer event data is not `[DONE]`, whatever white space surrounds it


@dataclass(frozen=True, slots=True)
class Connection:
    """Setup of one new connection. A phase that did not happen is None."""

    start_ns: int
    ready_ns: int | None = None
    dns_s: float | None = None
    tcp_s: float | None = None
    proxy_s: float | None = None
    tls_s: float | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """Timestamps of one probe.

    intended_ns: due time of the probe; latencies are measured from it
    first_ns: first content of any kind; first_answer_ns: first content that is not reasoning
    content_ns: arrival of each chunk with content, shape (chunks,)
    content_tokens: tokens in each of these chunks, shape (chunks,), or None unless the engine reported usage in all of them
    answered_model: id of the model that answered, as the answer itself says; "" if it does not
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
    answered_model: str = ""

    @property
    def send_lag_s(self) -> float | None:
        """Delay caused by the prober: sent − max(intended, connection ready)."""
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
        """Gaps between content chunks, not divided by tokens, shape (chunks − 1,)."""
        return [(b - a) / 1e9 for a, b in pairwise(self.content_ns)]

    @property
    def itls_s(self) -> list[float]:
        """Inter-token latencies, shape (chunks − 1,): the gap before a chunk ÷ the tokens in it, if known, else the gap."""
        gaps = self.chunk_gaps_s
        if self.content_tokens is None:
            return gaps
        return [gap / max(1, n) for gap, n in zip(gaps, self.content_tokens[1:], strict=True)]

    @property
    def tpot_s(self) -> float | None:
        """(last content − first content) ÷ (n − tokens of the first chunk), where n is the server's `completion_tokens`."""
        n = self.usage.completion_tokens if self.usage else None
        if n is None or len(self.content_ns) < 2:
            return None
        after_first = n - (max(1, self.content_tokens[0]) if self.content_tokens else 1)
        return (self.content_ns[-1] - self.content_ns[0]) / 1e9 / after_first if after_first > 0 else None


@dataclass(slots=True)
class Recording:
    """Builds a timeline from the pieces of one answer, incrementally and in bounded memory.

    Call `feed` with each piece and its arrival time, `parse_pending` to parse the JSON of the events fed so far, and `finish`
    once the body has ended properly. `feed` detects `[DONE]` immediately; all other fields reflect the parsed events only.

    text: the first MAX_TEXT_CHARS of the generated text, reasoning included
    answer: the text without reasoning, collected only if `keep_answer` is set
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
    answered_model: str = ""
    text: str = ""
    keep_answer: bool = False
    answer: str = ""
    _stamps: "array[int]" = field(default_factory=lambda: array("q"))
    _totals: "array[int]" = field(default_factory=lambda: array("q"))
    _sse: SseDecoder = field(default_factory=SseDecoder)
    _body: bytearray = field(default_factory=bytearray)  # of an answer that is not streamed
    _unparsed: deque[tuple[int, bytes | SseEvent]] = field(default_factory=deque)
    _unparsed_bytes: int = 0
    _at_event_boundary: bool = False  # the previous piece ended with an event
    _boundary_sse: SseDecoder = field(
        default_factory=lambda: _decoder_after_bom()
    )  # for pieces made of complete events

    @property
    def has_failed(self) -> bool:
        """An error object or malformed data was seen: only the end of the body can still change the verdict."""
        return self.error is not None or self.malformed is not None

    @property
    def content_chunks(self) -> int:
        """Number of chunks with content (0 or 1 for an answer that is not streamed)."""
        return len(self._stamps)

    def feed(self, at_ns: int, data: bytes) -> bool:
        """Add a piece of the body that arrived at `at_ns`. Returns True once the answer has ended; later data is ignored."""
        if self.done or self.error is not None or self.malformed is not None:
            return True
        if not self.streamed:
            self._body += data
            self.last_ns = at_ns
            return False
        ends_event = data.endswith(EVENT_ENDS)
        if ends_event and self._at_event_boundary and chat.DONE not in data:
            self._unparsed.append((at_ns, data))  # the usual case: complete events, none of them `[DONE]`
            self._unparsed_bytes += len(data)
        else:
            self._at_event_boundary = ends_event
            if self._split(at_ns, data):
                return True
        if self._unparsed_bytes <= MAX_UNPARSED_BYTES:
            return False
        self.parse_pending()
        return self.has_failed

    def parse_pending(self, max_pieces: int | None = None) -> bool:
        """Parse up to `max_pieces` of the unparsed pieces, all by default. Returns True if some remain."""
        unparsed = self._unparsed
        for _ in range(len(unparsed) if max_pieces is None else min(max_pieces, len(unparsed))):
            at_ns, piece = unparsed.popleft()
            if isinstance(piece, SseEvent):
                self._unparsed_bytes -= len(piece.data)
                self._parse_event(at_ns, piece)
            else:
                self._unparsed_bytes -= len(piece)
                events, too_long = _decode(self._boundary_sse, piece)
                for event in events:
                    self._parse_event(at_ns, event)
                if too_long and not self.has_failed:
                    self.malformed = too_long
        return bool(unparsed)

    def finish(self) -> None:
        """Process the end of a body that ended as HTTP requires."""
        self.parse_pending()
        if self.has_failed or self.done:
            return
        try:
            if self.streamed:
                for event in self._sse.finish():
                    if _is_done(event.data):
                        self.done = True
                    else:
                        self._handle_event(self.last_ns or 0, event)
            else:
                self._handle_answer(chat.parse_answer(bytes(self._body)))
        except (LineTooLong, chat.Malformed) as problem:
            self.malformed = str(problem)

    def complete(self, timeline: Timeline) -> Timeline:
        """Return `timeline` with the fields that this recording measured."""
        # Running totals give tokens per chunk only if every content chunk had one; one usage at the end does not.
        has_totals = len(self._totals) == len(self._stamps) > 0
        steps = array("q", map(sub, self._totals, (0, *self._totals))) if has_totals else None
        return replace(
            timeline,
            first_ns=self.first_ns if self.streamed else None,
            first_answer_ns=self.first_answer_ns if self.streamed else None,
            content_ns=self._stamps[:] if self.streamed else (),  # an array takes a fifth of the memory of a tuple
            content_tokens=steps,
            usage=self.usage,
            finish_reason=self.finish_reason,
            answered_model=self.answered_model,
        )

    def observed_end(
        self, *, transport_verdict: Verdict | None, status: int | None, status_detail: str = ""
    ) -> ObservedEnd:
        """The input of `outcome.classify`."""
        return ObservedEnd(
            transport_verdict=transport_verdict,
            status=status,
            status_detail=status_detail,
            error=self.error,
            malformed=self.malformed,
            finish_reason=self.finish_reason,
            done=self.done,
            content_chunks=self.content_chunks,
            completion_tokens=self.usage.completion_tokens if self.usage else None,
            answer=self.answer,
        )

    def _split(self, at_ns: int, data: bytes) -> bool:
        """Split a piece into events. Returns True if the answer has ended.

        `[DONE]` counts as soon as its line ends, without the blank line that completes the event: no further data line can turn
        the event into a chunk, and some servers omit the blank line and keep the connection open.
        """
        events, too_long = _decode(self._sse, data)
        for event in events:
            if _is_done(event.data):
                self.done = True
                return True
            self._unparsed.append((at_ns, event))
            self._unparsed_bytes += len(event.data)
        if len(pending := self._sse.pending) == 1 and _is_done(pending[0]):
            self.done = True
        elif too_long:
            self.parse_pending()
            if not self.has_failed:
                self.malformed = too_long
        return self.done or too_long is not None

    def _parse_event(self, at_ns: int, event: SseEvent) -> None:
        try:
            self._handle_event(at_ns, event)
        except chat.Malformed as problem:
            self.malformed = str(problem)

    def _handle_event(self, at_ns: int, event: SseEvent) -> None:
        if self.error is not None or self.malformed is not None:
            return
        payload = event.data
        if payload[:1] != b"{":
            payload = payload.strip()
        if event.name not in (b"", b"message", b"error"):
            return
        if not event.complete:
            return  # the stream was cut inside this event: the outcome is `truncated`, not `malformed`
        chunk = chat.parse_chunk(payload)
        if chunk.has_content:
            self._record_content(at_ns, chunk)
        self._record_metadata(chunk)

    def _record_content(self, at_ns: int, chunk: chat.Chunk) -> None:
        stamps = self._stamps
        if len(stamps) >= MAX_CHUNKS:
            self.malformed = f"more than {MAX_CHUNKS} content chunks in one stream"
            return
        stamps.append(at_ns)
        self.last_ns = at_ns
        if self.first_ns is None:
            self.first_ns = at_ns
        if self.first_answer_ns is None and chunk.is_answer:
            self.first_answer_ns = at_ns
        if chunk.usage is not None and chunk.usage.completion_tokens:
            self._totals.append(chunk.usage.completion_tokens)

    def _handle_answer(self, chunk: chat.Chunk) -> None:
        if chunk.has_content:
            self._stamps.append(self.last_ns or 0)
        self._record_metadata(chunk)

    def _record_metadata(self, chunk: chat.Chunk) -> None:
        if chunk.error is not None:
            self.error = chunk.error
        if chunk.usage is not None:
            self.usage = chunk.usage
        if chunk.finish_reason is not None:
            self.finish_reason = chunk.finish_reason
        if chunk.model and not self.answered_model:
            self.answered_model = chunk.model
        if chunk.text and len(self.text) < MAX_TEXT_CHARS:
            self.text = (self.text + chunk.text)[:MAX_TEXT_CHARS]
        if self.keep_answer and chunk.is_answer and len(self.answer) < MAX_ANSWER_CHARS:
            self.answer += chunk.text


def _is_done(data: bytes) -> bool:
    return len(data) <= MAX_DONE_BYTES and data.strip() == chat.DONE


def _decoder_after_bom() -> SseDecoder:
    decoder = SseDecoder()
    decoder.feed(b"\n")  # no byte-order mark is expected any more
    return decoder


def _decode(decoder: SseDecoder, data: bytes) -> tuple[list[SseEvent], str | None]:
    """Returns the events completed by `data` and the error in the line after them, if any."""
    try:
        return decoder.feed(data), None
    except LineTooLong as problem:
        return problem.events, str(problem)
