"""Answers of a language model as values: pieces, what they cost, and the truth about them. Nothing here knows an API."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

PAUSE_S = 0.012

# reasoning: streamed as such; summary: streamed in place of hidden tokens; hidden: takes its time, nothing is streamed;
# redacted and omitted: the Messages API's blocks of hidden reasoning; tagged: reasoning inside the text, as the model wrote it;
# text, call, arguments: the answer.
Kind = Literal["reasoning", "summary", "hidden", "redacted", "omitted", "tagged", "text", "call", "arguments"]
HIDDEN: tuple[Kind, ...] = ("summary", "hidden", "redacted", "omitted")
ANSWER: tuple[Kind, ...] = ("text", "call", "arguments")


@dataclass(frozen=True)
class Piece:
    """One chunk of a stream, or one stretch of silence.

    Args:
        tokens: tokens that the model generated for it; a summary stands for more tokens than it has.
        answer: the part of `text` that is the answer, where a chunk has reasoning too.
        call: index of the call that it belongs to.
    """

    kind: Kind
    text: str = ""
    tokens: int = 1
    answer: str | None = None
    call: int = 0

    @property
    def is_streamed(self) -> bool:
        return bool(self.text) or self.kind == "call"


@dataclass(frozen=True)
class Answer:
    """A whole answer.

    Args:
        stop: why it ended, in the words of chat completions; None: the stream ends without a reason (cut).
        has_usage: whether the server counts its tokens.
        counts_reasoning: whether the usage says how many of them were reasoning, where the API can.
        excludes_reasoning: whether `completion_tokens` leaves the reasoning out, as xAI's does.
        error: an error object in the stream, in place of its end.
    """

    pieces: tuple[Piece, ...]
    stop: Literal["stop", "length", "tool_calls"] | None = "stop"
    has_usage: bool = True
    counts_reasoning: bool = True
    excludes_reasoning: bool = False
    error: str = ""

    @property
    def tokens(self) -> int:
        return sum(piece.tokens for piece in self.pieces)

    @property
    def reasoning_tokens(self) -> int:
        return sum(piece.tokens for piece in self.pieces if piece.kind not in (*ANSWER, "tagged"))

    @property
    def text(self) -> str:
        """The answer to a reader who skips the reasoning."""
        texts = (piece.text if piece.answer is None else piece.answer for piece in self.pieces if piece.kind == "text")
        return "".join(texts)

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Name and arguments of each call."""
        names = [piece for piece in self.pieces if piece.kind == "call"]
        return [
            (name.text, "".join(p.text for p in self.pieces if p.kind == "arguments" and p.call == name.call))
            for name in names
        ]


@dataclass(frozen=True)
class Refusal:
    """A request that is not answered.

    Args:
        code: the API's word for it; empty: none, as gateways do.
        param: the request field that is blamed.
    """

    status: int
    message: str
    code: str = ""
    param: str | None = None


@dataclass
class Exchange:
    """The server's truth about one request. Times are seconds of its own loop's clock."""

    number: int
    api: str
    body: dict[str, object]
    received_s: float
    reply: Answer | Refusal | None = None
    stamps: list[tuple[Piece, float]] = field(default_factory=list)
    ended_s: float | None = None

    @property
    def prompt(self) -> str:
        """All text of the request, in order; a later turn of a conversation begins with the prompt of an earlier one."""
        if isinstance(prompt := self.body.get("prompt"), str):
            return prompt
        messages = self.body.get("messages", self.body.get("input", []))
        if isinstance(messages, str):
            return messages
        assert isinstance(messages, list)
        return "\n".join(_words(message.get("content", message.get("output", ""))) for message in messages)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, as this server counts them: its words, and seven of a template."""
        return len(self.prompt.split()) + 7

    def continues(self, earlier: Exchange) -> bool:
        return len(self.prompt) > len(earlier.prompt) and self.prompt.startswith(earlier.prompt)

    def _streamed(self, *kinds: Kind) -> list[tuple[Piece, float]]:
        return [(piece, at) for piece, at in self.stamps if piece.is_streamed and (not kinds or piece.kind in kinds)]

    @property
    def ttft_s(self) -> float | None:
        streamed = self._streamed()
        return streamed[0][1] - self.received_s if streamed else None

    @property
    def ttft_answer_s(self) -> float | None:
        streamed = self._streamed(*ANSWER)
        return streamed[0][1] - self.received_s if streamed else None

    @property
    def pace_s(self) -> float | None:
        """Seconds per streamed token after the first; beside a summary, whose tokens were not streamed, those of the answer."""
        has_summary = any(piece.kind == "summary" for piece, _ in self.stamps)
        streamed = self._streamed(*ANSWER) if has_summary else self._streamed()
        later = sum(piece.tokens for piece, _ in streamed[1:])
        return (streamed[-1][1] - streamed[0][1]) / later if later else None

    @property
    def mean_pause_s(self) -> float:
        """Mean pause between two pieces, as it was: a busy machine stretches it."""
        times = [at for _, at in self.stamps]
        return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else PAUSE_S


def _words(content: object) -> str:
    if isinstance(content, str | None):
        return content or ""
    assert isinstance(content, list)
    return "".join(part.get("text", part.get("content", "")) for part in content)


# --- a small language for the tables: `|` separates pieces


def say(text: str, tokens: int = 1) -> tuple[Piece, ...]:
    return tuple(Piece("text", part, tokens) for part in text.split("|"))


def think(text: str) -> tuple[Piece, ...]:
    return tuple(Piece("reasoning", part) for part in text.split("|"))


def tag(text: str) -> tuple[Piece, ...]:
    return tuple(Piece("tagged", part) for part in text.split("|"))


def both(reasoning: str, answer: str) -> tuple[Piece, ...]:
    """One chunk with the end of the reasoning and the beginning of the answer."""
    return (Piece("text", reasoning + answer, 2, answer),)


def hide(tokens: int, kind: Kind = "hidden") -> tuple[Piece, ...]:
    """Silence of three pauses, for any number of tokens; the last of them brings the block, where the API has one."""
    return (Piece("hidden", "", tokens - 2), Piece("hidden"), Piece(kind))


def summarise(text: str, tokens: int) -> tuple[Piece, ...]:
    """A summary of so many hidden tokens."""
    parts = text.split("|")
    return (Piece("hidden", "", tokens - len(parts)), *(Piece("summary", part) for part in parts))


def call(name: str, arguments: str, index: int = 0) -> tuple[Piece, ...]:
    return (Piece("call", name, call=index), *(Piece("arguments", part, call=index) for part in arguments.split("|")))
