"""Records one answer: from timestamped bytes to the fields of its timeline and the observations for its verdict."""

from array import array
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import sub

from prober.measure.answer import Answer
from prober.measure.api import CHAT, Api
from prober.measure.chunk import Chunk
from prober.measure.outcome import ObservedEnd, Verdict
from prober.measure.payload import (
    Malformed,
    NoObject,
    error_message,
    error_of,
    excerpt,
    first_line,
    is_json_object,
    json_object,
)
from prober.measure.sse import STRAY, LineTooLong, SseDecoder, SseEvent, is_done
from prober.measure.timeline import Timeline

MAX_CHUNKS = 100_000
MAX_KEPT_BODY_BYTES = 64 << 10
MAX_STRAY_CHARS = 200
# Maximum work per answer: one unit per byte, more per line and piece, which cost as much as that many bytes. An engine sends a chunk of
# some 300 bytes in three lines per token; byte by byte that is 13,000. Beyond the limit the answer is given up.
LINE_WORK, PIECE_WORK = 200, 40
WORK_PER_TOKEN, FREE_WORK = 16 << 10, 1 << 20
EVENT_STREAM, JSON = "text/event-stream", "application/json"
NOTHING = Chunk()


@dataclass(slots=True)
class Recording:
    """Takes the pieces of one answer, in bounded memory: `answer` has the content, the recording its times of arrival.

    Call `feed` with each piece and its arrival time, then `finish` at the end of the body, or `cut` if it broke off.

    tokens: requested length, which limits the work for the answer
    keeps_prose: see `Answer`
    ended_ns: arrival of the event that ended the answer; None without one
    error: message of an error object; malformed: why the body cannot be parsed
    stray_text: first text of the server that is no part of the answer: a line that is no event, or an unknown object; "" for none
    """

    streamed: bool = True
    api: Api = CHAT
    tokens: int = MAX_CHUNKS
    keeps_prose: bool = False
    answer: Answer = field(init=False)
    ended_ns: int | None = None
    error: str | None = None
    malformed: str | None = None
    stray_text: str = ""
    _stamps: "array[int]" = field(default_factory=lambda: array("q"))  # of each chunk with content
    _totals: "array[int]" = field(default_factory=lambda: array("q"))
    _earliest_ns: dict[int, int] = field(default_factory=dict)  # see `Timeline`
    _sse: SseDecoder = field(default_factory=SseDecoder)
    _body: bytearray = field(default_factory=bytearray)  # until the first event; the whole body if not streamed
    _work: int = 0
    _has_event: bool = False
    _fed_ns: int = 0

    def __post_init__(self) -> None:
        self.answer = Answer(self.tokens, self.keeps_prose)

    @property
    def done(self) -> bool:
        """True if the event that ends the answer was received, without a failure before it."""
        return self.ended_ns is not None and not self.has_failed

    @property
    def has_failed(self) -> bool:
        """True after an error object or malformed data: only the end of the body can still change the verdict."""
        return self.error is not None or self.malformed is not None

    @property
    def is_over(self) -> bool:
        """True if no later data can be part of the answer."""
        return self.ended_ns is not None or self.has_failed

    @property
    def first_ns(self) -> int | None:
        """Arrival of the first content; None before it, and without a stream."""
        return self._stamps[0] if self._stamps and self.streamed else None

    @property
    def last_ns(self) -> int | None:
        """Arrival of the last content so far."""
        return self._stamps[-1] if self._stamps else None

    @property
    def has_totals(self) -> bool:
        """True if every content chunk had a running total of tokens, so that the tokens of each are known."""
        is_total_each = len(self._totals) == len(self._stamps) > 0
        return is_total_each and self.answer.usage is not None and self.answer.choices == 1

    def feed(self, at_ns: int, data: bytes, earliest_ns: int | None = None, read: bytes = b"") -> bool:
        """Add a piece of the body that arrived at `at_ns`. Returns True once the answer has ended; later data is ignored.

        earliest_ns: earliest arrival of everything but the last byte; None: all arrived at `at_ns`
        read: the bytes of the read, whose last byte came last; empty: the last byte is not among these
        """
        if self.ended_ns is not None or self.error is not None or self.malformed is not None:
            return True
        self._fed_ns = at_ns
        if not self.streamed:
            self._body += data
            return False
        self._work += len(data) + LINE_WORK * (data.count(b"\n") or data.count(b"\r")) + PIECE_WORK
        if self._work > FREE_WORK + WORK_PER_TOKEN * self.tokens:
            self.malformed = f"too many events or bytes for an answer of {self.tokens} tokens"
            return True
        if not self._has_event and len(self._body) < MAX_KEPT_BODY_BYTES:
            self._body += data
        try:
            events, too_long = self._sse.feed(data), None
        except LineTooLong as problem:
            events, too_long = problem.events, str(problem)
        early_ns = at_ns if earliest_ns is None else earliest_ns
        for event in events:
            chunks = len(self._stamps)
            self._process_event(at_ns, event)
            if early_ns < at_ns and len(self._stamps) > chunks:
                # Not if a comment, an incomplete event or the framing of a later piece follows.
                size, end = len(event.data), read.rstrip(b"\r\n")
                ends_here = end[-size:] == event.data[-len(end) :] != b""
                if not (event is events[-1] and self._sse.is_between_events and ends_here):
                    self._earliest_ns[at_ns] = early_ns
            if self.is_over:
                return True
        self.malformed = too_long
        if self._has_event and self._body:
            self._body.clear()
        return self.has_failed

    def finish(self, content_type: str = "") -> None:
        """Process the end of the body. content_type: of the response, used in the error message if the body is no answer"""
        if self.is_over:
            return
        body, kind = bytes(self._body), content_type.partition(";")[0].strip() or "no content type"
        words = first_line(body, MAX_STRAY_CHARS)
        try:
            if not self.streamed:
                if kind != JSON and not is_json_object(body):
                    raise Malformed(f"expected {JSON}, got {kind}: {words!r}")
                self._record(self._fed_ns, self.api.parse_answer(body))
                return
            self._finish_event()
        except (LineTooLong, Malformed) as problem:
            self.malformed = str(problem)
        if self.stray_text and not self._has_event and not self.has_failed:
            with suppress(Malformed):
                self.error = error_of(json_object(body))
            if self.error is None:
                got = "" if kind == EVENT_STREAM else f"{kind}: "
                self.malformed = f"expected {EVENT_STREAM}, got {got}{words or self.stray_text!r}"

    def cut(self) -> None:
        """Process the end of a body that broke off, perhaps within an event."""
        if not self.is_over and self.streamed:
            with suppress(LineTooLong):
                self._finish_event()
        if not self._has_event and self.streamed:
            self.stray_text = first_line(bytes(self._body), MAX_STRAY_CHARS) or self.stray_text

    def complete(self, timeline: Timeline) -> Timeline:
        """Return `timeline` with the fields measured by this recording."""
        answer, stamps = self.answer, self._stamps if self.streamed else array("q")
        call = answer.calls[0] if answer.calls and self.streamed else None
        is_object = call is not None and call.closed_ns is not None and is_json_object(call.arguments.encode())
        is_shown = bool(stamps) and answer.prose_chunk is not None and answer.shows_prose
        first_answer_ns = stamps[answer.prose_chunk or 0] if is_shown else None
        call_ns, arguments_ns = (call.first_ns, call.closed_ns if is_object else None) if call else (None, None)
        shown_ns = (self.first_ns, first_answer_ns, call_ns, arguments_ns)
        return replace(
            timeline,
            first_ns=self.first_ns,
            first_answer_ns=first_answer_ns,
            content_ns=stamps[:],  # an array takes a fifth of the memory of a tuple
            content_tokens=array("q", map(sub, self._totals, (0, *self._totals))) if self.has_totals else None,
            usage=answer.usage,
            unusable_usage=answer.unusable_usage,
            finish_reason=answer.finish_reason,
            answered_model=answer.model,
            service_tier=answer.tier,
            streams_reasoning=answer.streams_reasoning,
            hidden_tokens=answer.hidden_tokens,
            calls=answer.call_count,
            call_ns=call_ns,
            arguments_ns=arguments_ns,
            earliest_ns={at_ns: early_ns for at_ns, early_ns in self._earliest_ns.items() if at_ns in shown_ns},
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
            finish_reason=self.answer.finish_reason,
            done=self.done,
            content_chunks=self.answer.chunks,
            completion_tokens=usage.completion_tokens if (usage := self.answer.usage) else None,
            hides_reasoning=self.answer.hides_reasoning,
            stray_text=self.stray_text,
        )

    def _finish_event(self) -> None:
        """Process an event that is incomplete at the end of the body. Raises LineTooLong."""
        for event in self._sse.finish():
            if not self.has_failed:
                self._process_event(self._fed_ns, event)

    def _process_event(self, at_ns: int, event: SseEvent) -> None:
        """Process an event of the stream. An incomplete one, from a stream that broke off, counts only if it is an error."""
        name, payload = event.name, event.data.strip()
        if name == STRAY:
            self.stray_text = first_line(payload, MAX_STRAY_CHARS)
            with suppress(Malformed):  # an error without the syntax of an event
                self.error = error_of(json_object(payload))
            return
        if payload[:1] != b"{":
            if is_done(event.data):
                self._has_event, self.ended_ns = True, at_ns
                return
            if not payload and not (name == b"error" and event.complete):
                return  # a heartbeat
        try:
            chunk = self.api.parse_event(name, payload)
            if not event.complete:
                self.error = chunk.error
                return
            self._has_event = True
            self._process_chunk(at_ns, chunk, payload)
        except NoObject as other:  # no content, like an empty event, unless it is an error
            first = other.value[0] if isinstance(other.value, list) and other.value else None
            if name == b"error":
                self.error = error_message(payload)
            elif isinstance(first, dict):
                self.error = error_of(first)
            if other.value and not self.stray_text:
                self._has_event, self.stray_text = True, first_line(payload, MAX_STRAY_CHARS)
        except Malformed as problem:
            if event.complete:
                self._has_event, self.malformed = True, str(problem)

    def _process_chunk(self, at_ns: int, chunk: Chunk, payload: bytes) -> None:
        """Process the content of an event. Raises Malformed."""
        if chunk.is_end:
            self.ended_ns = at_ns
        if chunk.is_whole:  # the pieces before it were the whole answer
            if chunk.has_content and not self._stamps:
                raise Malformed(f"expected an answer in pieces, got the whole answer in one event: {excerpt(payload)}")
            chunk = chunk._replace(answer="", reasoning="", called="", other="", calls=(), begins_reasoning=False)
        elif chunk == NOTHING and not (self.stray_text or self.api.end_event or b'"choices"' in payload):
            self.stray_text = first_line(payload, MAX_STRAY_CHARS)
        self._record(at_ns, chunk)

    def _record(self, at_ns: int, chunk: Chunk) -> None:
        """Record the content of an event or of an unstreamed answer. Raises Malformed."""
        if len(self._stamps) >= MAX_CHUNKS and (chunk.has_content or chunk.calls):
            raise Malformed(f"more than {MAX_CHUNKS} content chunks in one stream")
        if self.answer.add(at_ns, chunk):
            self._stamps.append(at_ns)
            if chunk.usage is not None and (so_far := chunk.usage.completion_tokens or 0) > 0:
                self._totals.append(so_far)
        if chunk.error is not None:
            self.error = chunk.error
