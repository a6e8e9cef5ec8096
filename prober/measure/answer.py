"""One answer: its text, reasoning, tool calls and tokens, assembled from its chunks in bounded memory."""

from dataclasses import dataclass, field

import orjson

from prober.measure.chat import MAX_CHOICES
from prober.measure.chunk import NO_COUNT, Chunk, Usage
from prober.measure.outcome import CALL_REASONS, reason_word
from prober.measure.payload import joined_surrogates
from prober.measure.printable import shown_name
from prober.measure.quality import CHECKED_CHARS_PER_TOKEN, MIN_CHECKED_CHARS
from prober.measure.reasoning_marks import ReasoningMarks
from prober.measure.request import AssistantMessage, ToolUse
from prober.measure.server_timing import NO_PARTS, TimeParts
from prober.measure.timeline import HiddenTokens
from prober.measure.tool_calls import ToolCall, ToolCalls

MAX_TEXT_CHARS = 2_000
MAX_ANSWER_CHARS = 1 << 16
USAGE_SLACK, FREE_COMPLETION_TOKENS, FREE_PROMPT_TOKENS = 2, 64, 1 << 16
MAX_CHARACTER_BYTES = 4


@dataclass(slots=True)
class Answer:
    """The content of an answer. Call `add` with each chunk. If there are several choices, only one is recorded: index 0, if it comes.

    tokens: requested length
    keeps_prose: collect the text without reasoning and tool calls, for `prose`
    request_bytes: size of the request, which bounds the tokens of its prompt
    chunks: number of chunks with content
    prose_chunk: number of the first content chunk that is not reasoning; None before it
    streams_reasoning: reasoning was received, in its own fields or between marks
    choices: number of choices; the usage counts the tokens of all of them
    timing: parts of the request's time that the server has reported
    """

    tokens: int
    keeps_prose: bool = False
    request_bytes: int = 0
    finish_reason: str | None = None
    model: str = ""
    tier: str = ""
    chunks: int = 0
    prose_chunk: int | None = None
    streams_reasoning: bool = False
    choices: int = 1
    timing: TimeParts = NO_PARTS
    _choice: int | None = None
    _reported: Usage | None = None
    _marks: ReasoningMarks = field(default_factory=ReasoningMarks)
    # Hidden tokens so far, and before the last block: a block of reasoning counts as hidden until its text arrives.
    _hidden_tokens: HiddenTokens = ""
    _hidden_before_block: HiddenTokens = ""
    _calls: ToolCalls = field(default_factory=ToolCalls)
    _has_call: bool = False
    _texts: list[str] = field(default_factory=list)
    _text_chars: int = 0
    _prose: list[str] = field(default_factory=list)
    _prose_chars: int = 0
    _generated_bytes: int = 0

    def add(self, at_ns: int, chunk: Chunk) -> bool:
        """Add a chunk that arrived at `at_ns`. Returns True if it has content of the recorded choice."""
        has_content, called = chunk.has_content, chunk.called
        self.choices = min(MAX_CHOICES, max(self.choices, chunk.choices, chunk.choice + 1))
        if has_content or chunk.finish_reason is not None:
            if self._choice and chunk.choice == 0 and has_content:
                # Discard the recorded choice, and record choice 0.
                self._choice, self.finish_reason, self._calls, self._marks = 0, None, ToolCalls(), ReasoningMarks()
                self._texts, self._text_chars, self._prose, self._prose_chars = [], 0, [], 0
            elif self._choice is None:
                self._choice = chunk.choice
            if chunk.choice != self._choice:
                return False
        for piece in chunk.calls:
            if self._calls.add(at_ns, piece) and not has_content:  # the call arrived complete, at its end
                called, has_content = piece.name + (piece.rest or ""), True
        if has_content:
            self._add_content(chunk, called)
        # Ollama sends a usage of zeros in each chunk.
        if (usage := chunk.usage) is not None and not (self._reported and usage[:2] == (0, 0)):
            self._reported = usage if self._reported is None else usage.over(self._reported)
        if chunk.finish_reason is not None:
            self.finish_reason = chunk.finish_reason
        if chunk.model and not self.model:
            self.model = shown_name(chunk.model)
        self.timing = chunk.timing or self.timing
        self.tier = chunk.tier or self.tier
        if chunk.begins_reasoning or chunk.hides_reasoning:
            self._note_hidden(begins_block=chunk.begins_reasoning)
        return has_content

    @property
    def usage(self) -> Usage | None:
        """Token counts of the server; None if it reported none, or if they are unusable."""
        return None if self.unusable_usage else self._reported

    @property
    def unusable_usage(self) -> str:
        """Why the server's usage is not used: one of its counts is impossible. "" if all are possible.

        Limit for the answer: each received token has at least one byte; unseen ones (special tokens, hidden reasoning) are limited by
        the requested length. Limit for the prompt: the bytes of the request, and a margin for what the server adds.
        """
        if self._reported is None:
            return ""
        prompt, completion, cached, reasoning = (number or 0 for number in self._reported)
        has_prompt, has_completion = (number is not None for number in self._reported[:2])
        max_tokens = (USAGE_SLACK * max(self.tokens, self._generated_bytes) + FREE_COMPLETION_TOKENS) * self.choices
        claims = {
            "a count is no number of tokens": NO_COUNT in self._reported,
            f"0 tokens, in an answer of {self.chunks} chunks": has_completion and not completion and self.chunks,
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
        """Upper bound of the tokens received so far: each has at least one byte."""
        return max(self.chunks, self._generated_bytes)

    @property
    def text(self) -> str:
        """The first MAX_TEXT_CHARS of the generated text, reasoning included."""
        return joined_surrogates("".join(self._texts))[:MAX_TEXT_CHARS]

    @property
    def prose(self) -> str:
        """The text without reasoning and tool calls, up to the checked length; collected only if `keeps_prose` is set."""
        return joined_surrogates("".join(self._prose))[: self._max_prose_chars]

    @property
    def calls(self) -> list[ToolCall]:
        """The stored tool calls, in the order in which they began."""
        return self._calls.stored

    @property
    def call_count(self) -> int:
        """Number of tool calls, including those that are not stored."""
        return self._calls.count

    @property
    def length_problem(self) -> str:
        """Why the answer cannot be checked: it is far longer than requested. "" if it can."""
        if self._prose_chars <= self._max_prose_chars:
            return ""
        return (
            f"the answer is not checked: it has more than {self._max_prose_chars:,} characters, "
            f"though {self.tokens:,} tokens were asked for"
        )

    @property
    def call_problem(self) -> str:
        """The fault of an answer whose finish reason announces a tool call that is missing; "" without this fault."""
        is_announced = reason_word(self.finish_reason) in CALL_REASONS
        return (
            f"finish reason {self.finish_reason!r}, but no tool is called"
            if is_announced and not self._has_call
            else ""
        )

    @property
    def message(self) -> AssistantMessage | None:
        """The answer as a message of a later request; None if it is far too long, or if its tool calls cannot be sent again.

        APIs and chat templates refuse calls whose arguments are no JSON object.
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
        length = self._prose_chars + sum(len(tool.arguments) for tool in tools)
        if length > self._max_prose_chars or not self._calls.is_complete:
            return None
        return AssistantMessage("assistant", self.prose, tuple(tools))

    @property
    def hides_reasoning(self) -> bool:
        """True if the model generated reasoning that was not sent: a block without text, or reasoning only in the usage."""
        return self._hidden_tokens != "" or self._only_counts_reasoning

    @property
    def shows_prose(self) -> bool:
        """True if the stream marks the end of reasoning, or has no reasoning."""
        return self._hidden_tokens != "" or not self._only_counts_reasoning

    @property
    def hidden_tokens(self) -> HiddenTokens:
        """Place of tokens that the server counted but did not stream; see `Timeline`."""
        if self.choices > 1:
            return "choices"
        if self.hides_reasoning:
            return self._hidden_tokens or "before"
        counted = (self.usage and self.usage.completion_tokens) or 0
        return "some" if counted > self._generated_bytes else ""

    @property
    def _only_counts_reasoning(self) -> bool:
        is_counted = self._reported is not None and (self._reported.reasoning_tokens or 0) > 0
        return is_counted and not self.streams_reasoning

    @property
    def _max_prose_chars(self) -> int:
        return min(MAX_ANSWER_CHARS, max(MIN_CHECKED_CHARS, CHECKED_CHARS_PER_TOKEN * self.tokens))

    def _note_hidden(self, *, begins_block: bool) -> None:
        """Note that reasoning may be unsent: a block that has no text yet, or another sign of it."""
        if not begins_block:
            self._hidden_tokens = self._hidden_before_block = self._hidden_tokens or "before"
            return
        self._hidden_before_block = self._hidden_tokens
        is_before = self.prose_chunk is None and self._hidden_tokens != "within"
        self._hidden_tokens = "before" if is_before else "within"

    def _add_content(self, chunk: Chunk, called: str) -> None:
        prose, text = chunk.answer, chunk.answer + called or chunk.reasoning
        has_call = called != "" or bool(chunk.calls)
        self._has_call |= has_call
        number = self.chunks
        self.chunks += 1
        self._generated_bytes += len(text) * (1 if text.isascii() else MAX_CHARACTER_BYTES)
        if self._text_chars < MAX_TEXT_CHARS:
            self._texts.append(text[:MAX_TEXT_CHARS])
            self._text_chars += len(text)
        if not (prose or called) and (text or chunk.other == "reasoning"):
            self.streams_reasoning = True
            if not chunk.hides_reasoning:
                self._hidden_tokens = self._hidden_before_block
            return
        if prose and (self._marks.has_reasoning or not self.streams_reasoning):
            was_reasoning, prose = self._marks.feed(prose)
            if was_reasoning:
                self.streams_reasoning = True
                self.prose_chunk, self._prose, self._prose_chars = None, [], 0
        if self.prose_chunk is None and (prose or has_call or not text):
            self.prose_chunk = number
        if prose and self.keeps_prose and self._prose_chars <= self._max_prose_chars:
            self._prose.append(prose)
            self._prose_chars += len(prose)
