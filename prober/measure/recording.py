"""Recording of one answer: from timestamped bytes to the fields of its timeline and to the observations for its verdict."""

from array import array
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import sub

import orjson

from prober.measure import chat
from prober.measure.api import CHAT, Api
from prober.measure.outcome import CALL_REASONS, ObservedEnd, Verdict, reason_word
from prober.measure.payload import (
    Malformed,
    NoObject,
    error_message,
    error_of,
    excerpt,
    first_line,
    is_json_object,
    joined_surrogates,
    json_object,
)
from prober.measure.printable import shown_name
from prober.measure.quality import CHECKED_CHARS_PER_TOKEN, MIN_CHECKED_CHARS
from prober.measure.reasoning_marks import ReasoningMarks
from prober.measure.request import AssistantMessage, ToolUse
from prober.measure.sse import STRAY, LineTooLong, SseDecoder, SseEvent, is_done
from prober.measure.timeline import HiddenTokens, Timeline
from prober.measure.tool_calls import ToolCall, ToolCalls
from prober.measure.usage import NO_COUNT, Usage

MAX_CHUNKS = 100_000
MAX_TEXT_CHARS = 2_000
MAX_ANSWER_CHARS = 1 << 16
MAX_KEPT_BODY_BYTES = 64 << 10
MAX_STRAY_CHARS = 200
# The work that an answer may cost: one for each byte, more for each line and each piece, which take about as long as so many bytes. An
# engine sends a chunk of some 300 bytes and three lines a token; byte by byte that is 13,000. A flood is given up at this bound.
LINE_WORK, PIECE_WORK = 200, 40
WORK_PER_TOKEN, FREE_WORK = 16 << 10, 1 << 20
USAGE_SLACK, FREE_COMPLETION_TOKENS, FREE_PROMPT_TOKENS = 2, 64, 1 << 16
MAX_CHARACTER_BYTES = 4
EVENT_STREAM, JSON = "text/event-stream", "application/json"
NOTHING = chat.Chunk()


@dataclass(slots=True)
class Recording:
    """Builds a timeline from the pieces of one answer, incrementally and in bounded memory.

    Call `feed` with each piece and its arrival time, and `finish` once the body has ended, or `cut` if it broke off.

    tokens: requested length of the answer, which bounds the work to process it
    keep_answer: collect the text of the answer, without reasoning, for `answer`
    ended_ns: arrival of the event that ended the answer; None without one
    stray_text: first text of the server that is no part of an answer: a line that is no event, or an unknown object; "" if none
    streams_reasoning: reasoning was received, in its own fields or between marks
    request_bytes: size of the request, which bounds the tokens of its prompt
    """

    streamed: bool = True
    api: Api = CHAT
    tokens: int = MAX_CHUNKS
    keep_answer: bool = False
    first_ns: int | None = None
    first_answer_ns: int | None = None
    last_ns: int | None = None
    ended_ns: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    malformed: str | None = None
    answered_model: str = ""
    stray_text: str = ""
    streams_reasoning: bool = False
    request_bytes: int = 0
    _reported: Usage | None = None
    _choices: int = 1  # one of them is recorded; the usage counts the tokens of all
    _marks: ReasoningMarks = field(default_factory=ReasoningMarks)
    # By the blocks of the answer; the last block of reasoning hides its own tokens until its text comes.
    _hidden_tokens: HiddenTokens = ""
    _hidden_before_block: HiddenTokens = ""
    _calls: ToolCalls = field(default_factory=ToolCalls)
    _has_call: bool = False
    _texts: list[str] = field(default_factory=list)
    _text_chars: int = 0
    _answers: list[str] = field(default_factory=list)
    _answer_chars: int = 0
    _generated_bytes: int = 0
    _stamps: "array[int]" = field(default_factory=lambda: array("q"))
    _totals: "array[int]" = field(default_factory=lambda: array("q"))
    _earliest_ns: dict[int, int] = field(default_factory=dict)  # see `Timeline`
    _sse: SseDecoder = field(default_factory=SseDecoder)
    _body: bytearray = field(default_factory=bytearray)  # until the first event; of an answer that is not streamed all
    _work: int = 0
    _has_event: bool = False
    _choice: int | None = None
    _fed_ns: int = 0
    _max_work: int = 0
    _max_answer_chars: int = 0

    def __post_init__(self) -> None:
        self._max_work = FREE_WORK + WORK_PER_TOKEN * self.tokens
        self._max_answer_chars = min(MAX_ANSWER_CHARS, max(MIN_CHECKED_CHARS, CHECKED_CHARS_PER_TOKEN * self.tokens))

    @property
    def done(self) -> bool:
        """The event that ends the answer was received, and nothing failed before it."""
        return self.ended_ns is not None and not self.has_failed

    @property
    def has_failed(self) -> bool:
        """An error object or malformed data was seen: only the end of the body can still change the verdict."""
        return self.error is not None or self.malformed is not None

    @property
    def is_over(self) -> bool:
        """True if no later data can be part of the answer."""
        return self.ended_ns is not None or self.has_failed

    @property
    def content_chunks(self) -> int:
        """Number of chunks with content (0 or 1 for an answer that is not streamed)."""
        return len(self._stamps)

    @property
    def has_totals(self) -> bool:
        """Every content chunk had a running total of tokens, which gives the tokens of each; one usage at the end does not."""
        return len(self._totals) == len(self._stamps) > 0 and self.usage is not None and self._choices == 1

    @property
    def usage(self) -> Usage | None:
        """The tokens that the server counted; None if it reported none, or if they are unusable."""
        return None if self.unusable_usage else self._reported

    @property
    def unusable_usage(self) -> str:
        """Why the server's usage is not used: one of its counts is impossible. "" if all can be right.

        Bounds of the answer: each received token has at least one byte, and others (special tokens, hidden reasoning) are limited by
        the requested length. Bound of the prompt: the bytes of the request, and a margin for what the server adds.
        """
        if self._reported is None:
            return ""
        prompt, completion, cached, reasoning = (number or 0 for number in self._reported)
        has_prompt, has_completion = (number is not None for number in self._reported[:2])
        max_tokens = (USAGE_SLACK * max(self.tokens, self._generated_bytes) + FREE_COMPLETION_TOKENS) * self._choices
        claims = {
            "a count is no number of tokens": NO_COUNT in self._reported,
            f"0 tokens, in an answer of {len(self._stamps)} chunks": has_completion and not completion and self._stamps,
            f"{reasoning} tokens of reasoning among {completion} tokens of the answer": has_completion
            and reasoning > completion,
            f"{completion} tokens, in an answer of {self._generated_bytes} bytes": completion > max_tokens,
            f"{prompt} prompt tokens, for a request of {self.request_bytes} bytes": prompt
            > self.request_bytes + FREE_PROMPT_TOKENS,
            f"{cached} cached tokens among {prompt} prompt tokens": has_prompt and cached > prompt,
        }
        claim = next((claim for claim, is_impossible in claims.items() if is_impossible), "")
        return claim and f"the server's usage is unusable: {claim}"

    @property
    def max_received_tokens(self) -> int:
        """Upper bound of the tokens received so far: each has a byte at least."""
        return max(self.content_chunks, self._generated_bytes)

    @property
    def text(self) -> str:
        """The first MAX_TEXT_CHARS of the generated text, reasoning included."""
        return joined_surrogates("".join(self._texts))[:MAX_TEXT_CHARS]

    @property
    def answer(self) -> str:
        """The text without reasoning and tool calls, up to the length that is checked; collected only if `keep_answer` is set."""
        return joined_surrogates("".join(self._answers))[: self._max_answer_chars]

    @property
    def length_problem(self) -> str:
        """Why the answer is not checked: it is far longer than requested. "" if it can be checked."""
        if self._answer_chars <= self._max_answer_chars:
            return ""
        return (
            f"the answer is not checked: it has more than {self._max_answer_chars:,} characters, "
            f"though {self.tokens:,} tokens were asked for"
        )

    @property
    def call_problem(self) -> str:
        """Fault of an answer that ends as one with a tool call, and has none; "" for all others."""
        is_announced = reason_word(self.finish_reason) in CALL_REASONS
        return (
            f"finish reason {self.finish_reason!r}, but no tool is called"
            if is_announced and not self._has_call
            else ""
        )

    @property
    def message(self) -> AssistantMessage | None:
        """The answer as a message of a later request; None if it is far longer than requested, or its tool calls cannot be sent again.

        The APIs, and the chat templates of engines, refuse calls whose arguments are no JSON object.
        """
        tools = []
        for call in self.calls:
            arguments = joined_surrogates(call.arguments) or "{}"
            try:
                is_object = isinstance(orjson.loads(arguments), dict)
            except orjson.JSONDecodeError:
                is_object = False
            if not is_object:
                return None
            tools.append(ToolUse(call.id, call.name, arguments))
        length = self._answer_chars + sum(len(tool.arguments) for tool in tools)
        if length > self._max_answer_chars or not self._calls.is_complete:
            return None
        return AssistantMessage("assistant", self.answer, tuple(tools))

    @property
    def calls(self) -> list[ToolCall]:
        """The stored tool calls, in the order in which they began."""
        return self._calls.stored

    def feed(self, at_ns: int, data: bytes, earliest_ns: int | None = None, read: bytes = b"") -> bool:
        """Add a piece of the body, which arrived at `at_ns`. Returns True once the answer has ended; later data is ignored.

        earliest_ns: all but what came last may have arrived since then; None: it arrived at once
        read: the bytes that were read, of which the last one came last; empty: what came last is not among these bytes
        """
        if self.ended_ns is not None or self.error is not None or self.malformed is not None:
            return True
        self._fed_ns = at_ns
        if not self.streamed:
            self._body += data
            self.last_ns = at_ns
            return False
        self._work += len(data) + LINE_WORK * (data.count(b"\n") or data.count(b"\r")) + PIECE_WORK
        if self._work > self._max_work:
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
            self._take_event(at_ns, event)
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
        """Process the end of the body. content_type: of the response, for the error message if the body is not an answer"""
        if self.is_over:
            return
        body, kind = bytes(self._body), content_type.partition(";")[0].strip() or "no content type"
        words = first_line(body, MAX_STRAY_CHARS)
        try:
            if not self.streamed:
                if kind != JSON and not is_json_object(body):
                    raise Malformed(f"expected {JSON}, got {kind}: {words!r}")
                self._record(self.last_ns or 0, self.api.parse_answer(body))
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
        """Process the end of a body that broke off, also inside an event."""
        if not self.is_over and self.streamed:
            with suppress(LineTooLong):
                self._finish_event()
        if not self._has_event and self.streamed:
            self.stray_text = first_line(bytes(self._body), MAX_STRAY_CHARS) or self.stray_text

    def complete(self, timeline: Timeline) -> Timeline:
        """Return `timeline` with the fields that this recording measured."""
        steps = array("q", map(sub, self._totals, (0, *self._totals))) if self.has_totals else None
        call = self.calls[0] if self.calls and self.streamed else None
        is_object = call is not None and call.closed_ns is not None and is_json_object(call.arguments.encode())
        shows_answer = self.streams_reasoning or self._hidden_tokens or not self._hides_reasoning
        hidden_tokens: HiddenTokens = self._hidden_tokens or ("before" if self._hides_reasoning else "")
        usage = self.usage
        if self._choices > 1:
            hidden_tokens = "choices"
        elif not hidden_tokens and usage and (usage.completion_tokens or 0) > self._generated_bytes:
            hidden_tokens = "some"
        first_ns = self.first_ns if self.streamed else None
        first_answer_ns = self.first_answer_ns if self.streamed and shows_answer else None
        call_ns, arguments_ns = (call.first_ns, call.closed_ns if is_object else None) if call else (None, None)
        shown_ns = (first_ns, first_answer_ns, call_ns, arguments_ns)
        return replace(
            timeline,
            first_ns=first_ns,
            first_answer_ns=first_answer_ns,
            content_ns=self._stamps[:] if self.streamed else (),  # an array takes a fifth of the memory of a tuple
            content_tokens=steps,
            usage=usage,
            unusable_usage=self.unusable_usage,
            finish_reason=self.finish_reason,
            answered_model=self.answered_model,
            streams_reasoning=self.streams_reasoning,
            hidden_tokens=hidden_tokens,
            calls=self._calls.count,
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
            finish_reason=self.finish_reason,
            done=self.done,
            content_chunks=self.content_chunks,
            completion_tokens=usage.completion_tokens if (usage := self.usage) else None,
            hides_reasoning=self._hides_reasoning,
            stray_text=self.stray_text,
        )

    @property
    def _hides_reasoning(self) -> bool:
        """True if the model generated reasoning that was not sent: a block without text, or reasoning that only the usage counts."""
        is_counted = self._reported is not None and (self._reported.reasoning_tokens or 0) > 0
        return self._hidden_tokens != "" or (is_counted and not self.streams_reasoning)

    def _finish_event(self) -> None:
        """Process the event that is incomplete at the end of the body. Raises LineTooLong."""
        for event in self._sse.finish():
            if not self.has_failed:
                self._take_event(self._fed_ns, event)

    def _take_event(self, at_ns: int, event: SseEvent) -> None:
        """Process an event of the stream. An incomplete one, at the end of a stream that broke off, counts only if it is an error."""
        name, payload = event.name, event.data.strip()
        if name == STRAY:
            self.stray_text = first_line(payload, MAX_STRAY_CHARS)
            with suppress(Malformed):  # an error that the server wrote into the stream without the syntax of an event
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
            self._take_chunk(at_ns, chunk, payload)
        except NoObject as other:  # carries nothing to read, as an empty event, unless it is an error
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

    def _take_chunk(self, at_ns: int, chunk: chat.Chunk, payload: bytes) -> None:
        """Process the content of an event. Raises Malformed."""
        if chunk.is_end:
            self.ended_ns = at_ns
        self._choices = min(chat.MAX_CHOICES, max(self._choices, chunk.choices, chunk.choice + 1))
        if chunk.is_whole:  # the pieces before it were all of the answer
            if chunk.has_content and not self._stamps:
                raise Malformed(f"expected an answer in pieces, got the whole answer in one event: {excerpt(payload)}")
            chunk = chunk._replace(has_content=False, is_answer=False, text="", calls=(), begins_reasoning=False)
        if chunk.has_content or chunk.finish_reason is not None:
            if self._choice and chunk.choice == 0 and chunk.has_content:  # instead of the choice that came first
                self._choice, self.finish_reason, self._calls = 0, None, ToolCalls()
                self._texts, self._text_chars, self._answers, self._answer_chars = [], 0, [], 0
                self._marks = ReasoningMarks()
            elif self._choice is None:
                self._choice = chunk.choice
            if chunk.choice != self._choice:
                return
        elif chunk == NOTHING and not (self.stray_text or self.api.end_event or b'"choices"' in payload):
            self.stray_text = first_line(payload, MAX_STRAY_CHARS)
        self._record(at_ns, chunk)

    def _record(self, at_ns: int, chunk: chat.Chunk) -> None:
        """Record the content of an event, or of an answer that is not streamed. Raises Malformed."""
        if chunk.has_content:
            self._record_content(at_ns, chunk)
        for piece in chunk.calls:
            if self._calls.add(at_ns, piece) and not chunk.has_content:  # the call came whole, at its end
                call = chat.Chunk(True, True, piece.name + (piece.rest or ""), calls=(piece,), prose="")
                self._record_content(at_ns, call)
        if chunk.error is not None:
            self.error = chunk.error
        # Ollama sends zeros in each chunk.
        if (usage := chunk.usage) is not None and not (self._reported and usage[:2] == (0, 0)):
            self._reported = usage if self._reported is None else usage.over(self._reported)
            if chunk.has_content and (so_far := usage.completion_tokens or 0) > 0:
                self._totals.append(so_far)
        if chunk.finish_reason is not None:
            self.finish_reason = chunk.finish_reason
        if chunk.model and not self.answered_model:
            self.answered_model = shown_name(chunk.model)
        if chunk.begins_reasoning:
            self._hidden_before_block = self._hidden_tokens
            self._hidden_tokens = (
                "before" if self.first_answer_ns is None and self._hidden_tokens != "within" else "within"
            )
        elif chunk.hides_reasoning:
            self._hidden_tokens = self._hidden_before_block = self._hidden_tokens or "before"

    def _record_content(self, at_ns: int, chunk: chat.Chunk) -> None:
        if len(self._stamps) >= MAX_CHUNKS:
            raise Malformed(f"more than {MAX_CHUNKS} content chunks in one stream")
        text = chunk.text
        answer = text if chunk.prose is None else chunk.prose
        has_call = bool(chunk.calls) or answer != text
        self._has_call |= has_call
        self._stamps.append(at_ns)
        self.last_ns = at_ns
        if self.first_ns is None and self.streamed:
            self.first_ns = at_ns
        self._generated_bytes += len(text) * (1 if text.isascii() else MAX_CHARACTER_BYTES)
        if self._text_chars < MAX_TEXT_CHARS:
            self._texts.append(text[:MAX_TEXT_CHARS])
            self._text_chars += len(text)
        if not chunk.is_answer:
            self.streams_reasoning = True
            if not chunk.hides_reasoning:
                self._hidden_tokens = self._hidden_before_block
            return
        if answer and (self._marks.has_reasoning or not self.streams_reasoning):
            was_reasoning, answer = self._marks.feed(answer)
            if was_reasoning:
                self.streams_reasoning = True
                self.first_answer_ns, self._answers, self._answer_chars = None, [], 0
        if self.first_answer_ns is None and (answer or has_call or not text):
            self.first_answer_ns = at_ns
        if answer and self.keep_answer and self._answer_chars <= self._max_answer_chars:
            self._answers.append(answer)
            self._answer_chars += len(answer)
