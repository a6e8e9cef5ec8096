"""Content of one event of an answer, in the terms of all APIs: text, reasoning, tool calls, tokens, and the end of the answer."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from prober.measure.payload import Malformed, count, error_of, excerpt
from prober.measure.server_timing import TimeParts
from prober.measure.tool_calls import CallPiece

NO_COUNT = -1  # stands for an impossible number of tokens, which makes the usage unusable (`Answer.unusable_usage`)


class Usage(NamedTuple):
    """Token counts as the server reports them; None if not reported."""

    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None

    def over(self, earlier: "Usage") -> "Usage":
        """These counts; a missing one is taken from an earlier report of the same answer."""
        if earlier[2] is None and earlier[3] is None and self[0] is not None and self[1] is not None:
            return self  # the usual case: every report has the same counts
        return Usage(*(old if new is None else new for new, old in zip(self, earlier, strict=True)))


class Chunk(NamedTuple):
    """Parsed content of one event of the stream.

    answer: generated text that is neither reasoning nor a tool call
    called: generated text of tool calls: their names and arguments
    finish_reason: None until the answer ends
    error: message of an error object; None without one
    model: id of the model that generates the answer, as the server wrote it, "" if not reported
    calls: pieces of tool calls
    choice: index of the choice that the chunk belongs to
    choices: number of choices in the event
    other: kind of content in the other choices; "" for none
    is_end: the API ends answers with this event
    is_whole: the event repeats the whole answer, which was streamed in pieces before
    begins_reasoning: begins a block of reasoning, whose text may never be sent
    hides_reasoning: reports reasoning whose full text may not be sent: encrypted, redacted, summarised or signed
    timing: parts of the request's time, as the server reports them
    tier: service tier that answers, as of `payload.service_tier`; "" if not reported
    """

    answer: str = ""
    reasoning: str = ""
    called: str = ""
    finish_reason: str | None = None
    usage: Usage | None = None
    error: str | None = None
    model: str = ""
    calls: tuple[CallPiece, ...] = ()
    choice: int = 0
    choices: int = 1
    other: Literal["", "answer", "reasoning"] = ""
    is_end: bool = False
    is_whole: bool = False
    begins_reasoning: bool = False
    hides_reasoning: bool = False
    timing: TimeParts | None = None
    tier: str = ""

    @property
    def text(self) -> str:
        """Generated text of any kind; reasoning only if there is nothing else."""
        return self.answer + self.called or self.reasoning

    @property
    def has_content(self) -> bool:
        """True if the event has text, reasoning or a tool call, in any choice."""
        return (self.answer or self.reasoning or self.called or self.other) != ""


def whole(parts: Iterable[Chunk]) -> Chunk:
    """Combine the chunks of an answer's parts, in order, into the chunk of the whole answer."""
    texts, calls, begins_reasoning = (list[str](), list[str](), list[str]()), list[CallPiece](), False
    for part in parts:
        for of_kind, text in zip(texts, part[:3], strict=True):
            of_kind.append(text)
        calls += part.calls
        begins_reasoning |= part.begins_reasoning
    answer, reasoning, called = map("".join, texts)
    begins_reasoning = begins_reasoning and not reasoning
    return Chunk(answer, reasoning, called, calls=tuple(calls), is_whole=True, begins_reasoning=begins_reasoning)


def other_event(document: Mapping[str, Any], kind: str, api: str, *, is_known: bool) -> Chunk:
    """The chunk of an event that is no part of an answer: an error, or empty. is_known: the API defines events of this kind

    Raises Malformed for a chunk of the chat API.
    """
    if kind == "error" or "error" in document:
        return Chunk(error=error_of(document) or "no message")
    if "choices" in document:
        raise Malformed(f"a chunk of the chat API, though `api: {api}` was asked")
    return Chunk(error=None if is_known else error_of(document))


def no_answer(document: Mapping[str, Any], key: str, payload: bytes) -> Chunk:
    """The chunk of an error sent instead of a whole answer. Raises Malformed without an error. key: every answer has it"""
    if (error := error_of(document)) is not None:
        return Chunk(error=error)
    raise Malformed(f"the answer has no `{key}`: {excerpt(payload)}")


def read_usage(usage: Any, prompt: str, answer: str) -> Usage | None:
    """Read the counts of a usage whose keys begin with `prompt` and `answer`; None if it is empty."""
    if not usage:
        return None
    if not isinstance(usage, dict):
        return Usage(NO_COUNT, NO_COUNT)
    asked, completion = reported_count(usage, f"{prompt}_tokens"), reported_count(usage, f"{answer}_tokens")
    cached = reported_count(usage, f"{prompt}_tokens_details", "cached_tokens")
    reasoning = reported_count(usage, f"{answer}_tokens_details", "reasoning_tokens")
    if reasoning and count(usage, "total_tokens") == (asked or 0) + (completion or 0) + reasoning:
        completion = (completion or 0) + reasoning  # xAI does not count reasoning in the completion, all others do
    return Usage(asked, completion, cached, reasoning)


def reported_count(table: Any, *path: str) -> int | None:
    """Number of tokens at `path` in a usage; None if not reported, NO_COUNT if impossible."""
    for key in path[:-1]:
        table = table.get(key) if isinstance(table, dict) else None
    if not isinstance(table, dict) or table.get(path[-1]) is None:
        return None
    number = count(table, path[-1])
    return NO_COUNT if number is None else number


def total(first: int | None, *more: int | None) -> int | None:
    """Sum of the reported numbers of tokens; None without the first, NO_COUNT if one is impossible."""
    if first is None:
        return None
    parts = [first, *(number for number in more if number is not None)]
    return NO_COUNT if NO_COUNT in parts else sum(parts)
