"""The OpenAI dialects: what to send each engine, and what a chunk of its stream says.

Reading is one tolerant reader for all engines; only what is sent, and what a proper end looks like, differs by `Dialect`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

DONE = b"[DONE]"
MOST_TOKENS = 1_000_000_000  # of one answer: more is no count
LONGEST_SAID = 300  # characters kept of what a server says of itself: its errors, and why it ended


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one engine's OpenAI endpoint differs from the specification, as data.

    owned_by: what `/v1/models` says in `owned_by`; header: a response header only this engine sends
    sends_done: the stream ends with `data: [DONE]`
    force_length: request fields that make the answer exactly N tokens long (`Dialect.TOKENS` stands for N); empty: cannot
    cache_bypass: request fields that keep a prompt out of the prefix cache (`Dialect.SALT` stands for a unique text)
    continuous_usage: understands `stream_options.continuous_usage_stats`, so that every chunk tells its tokens
    stream_options, user: accepts these standard fields
    health: path of the health page; loads_listening: it answers 503 there while it loads its model
    """

    name: str
    owned_by: str | None = None
    header: str | None = None
    sends_done: bool = True
    force_length: Mapping[str, Any] = field(default_factory=dict)
    cache_bypass: Mapping[str, Any] = field(default_factory=dict)
    continuous_usage: bool = False
    stream_options: bool = True
    user: bool = True
    health: str | None = "/health"
    loads_listening: bool = False

    TOKENS = "$tokens"
    SALT = "$salt"


class Usage(NamedTuple):
    """Token counts as the server reports them; None where it does not say."""

    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class Chunk(NamedTuple):
    """What one event of the stream says.

    text: generated text of any kind, "" if none; generated: it carries content (text, reasoning or a tool call)
    answer: the content is not reasoning; error: message of an error object, None if none
    """

    generated: bool = False
    answer: bool = False
    text: str = ""
    finish_reason: str | None = None
    usage: Usage | None = None
    error: str | None = None


class Malformed(ValueError):
    """The payload is not a chunk of an OpenAI stream."""


def request_body(
    dialect: Dialect,
    *,
    api: str,
    model: str,
    messages: Sequence[tuple[str, str]],
    max_tokens: int,
    stream: bool,
    sampling: Mapping[str, Any],
    salt: str | None,
    user: str,
    forced: bool = True,
) -> bytes:
    """JSON body of one probe. `api` is "chat" or "completions"; `salt` None lets the prefix cache work.

    `forced`: `max_tokens` is the length of the answer wherever the engine can be forced to it, else only its bound. There is
    never a `seed`: with a temperature and a long prompt it has killed a real engine.
    """
    body: dict[str, Any] = {"model": model, **sampling, "max_tokens": max_tokens, "stream": stream}
    if api == "chat":
        body["messages"] = [{"role": role, "content": content} for role, content in messages]
    else:
        body["prompt"] = "\n".join(content for _, content in messages)
    if stream and dialect.stream_options:
        body["stream_options"] = {"include_usage": True}
        if dialect.continuous_usage:
            body["stream_options"]["continuous_usage_stats"] = True
    if dialect.user:
        body["user"] = user
    for name, value in dialect.force_length.items() if forced else ():
        body[name] = max_tokens if value == Dialect.TOKENS else value
    if salt is not None:
        for name, value in dialect.cache_bypass.items():
            body[name] = salt if value == Dialect.SALT else value
    return orjson.dumps(body)


def parse_chunk(payload: bytes) -> Chunk:
    """One event's payload (not `[DONE]`) of a chat or completions stream. Raises Malformed."""
    document = _load(payload)
    if ("error" in document or document.get("object") == "error") and (error := _error(document)) is not None:
        return Chunk(error=error)
    usage = _usage(document)
    choices = document.get("choices")
    if not choices:
        return Chunk(usage=usage)
    choice = choices[0] if isinstance(choices, list) else None
    if not isinstance(choice, dict):
        raise Malformed("`choices` is not a list of objects")
    said = choice.get("delta")
    if said is None:
        said = {"content": choice.get("text")}
    elif not isinstance(said, dict):
        raise Malformed("`delta` is not an object")
    answer, reasoning = _content(said)
    finish = choice.get("finish_reason")
    text = answer or reasoning
    return Chunk(text != "", answer != "", text, _brief(_text(finish)) if finish else None, usage, None)


def parse_answer(payload: bytes) -> Chunk:
    """A whole answer, as it comes where `stream: false` was asked for. Raises Malformed."""
    document = _load(payload)
    error = _error(document)
    if error is not None:
        return Chunk(error=error)
    choices = document.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        raise Malformed("the answer has no `choices`")
    message = choice.get("message")
    answer, reasoning = _content(message if isinstance(message, dict) else {"content": choice.get("text")})
    finish = choice.get("finish_reason")
    return Chunk(
        bool(answer or reasoning),
        bool(answer),
        answer or reasoning,
        _brief(_text(finish)) if finish else None,
        _usage(document),
        None,
    )


def error_message(payload: bytes, limit: int = LONGEST_SAID) -> str:
    """The readable part of an error answer's body: the error object's message, else the start of the text."""
    try:
        message = _error(orjson.loads(payload))
    except (orjson.JSONDecodeError, AttributeError, Malformed):
        message = None
    text = message if message is not None else payload[: 4 * limit].decode("utf-8", "replace")
    return _brief(" ".join(text.split()), limit)


def _load(payload: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(payload)
    except orjson.JSONDecodeError as problem:
        raise Malformed(f"not JSON ({problem}): {_shown(payload)}") from None
    if not isinstance(document, dict):
        raise Malformed(f"not a JSON object: {_shown(payload)}")
    return document


def _shown(payload: bytes) -> str:
    return repr(payload[:80].decode("utf-8", "replace")) + ("…" if len(payload) > 80 else "")


def _content(said: dict[str, Any]) -> tuple[str, str]:
    """(answer text, reasoning text); a tool call counts as answer."""
    answer = said.get("content")
    if type(answer) is str and answer:
        return answer, ""
    answer = answer or said.get("refusal") or ""
    if not answer and said.get("tool_calls"):
        answer = said["tool_calls"]
    reasoning = said.get("reasoning") or said.get("reasoning_content") or ""
    return _text(answer), _text(reasoning)


def _error(document: dict[str, Any]) -> str | None:
    error = document.get("error")
    if not error:
        if document.get("object") != "error":
            return None
        error = document
    if isinstance(error, dict):
        error = error.get("message") or error
    return _brief(_text(error))


def _text(value: object) -> str:
    """A text as it is, anything else as JSON. Raises Malformed for what is nested more deeply than can be written."""
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError as problem:
        raise Malformed(f"nested too deeply ({problem})") from None


def _brief(text: str, limit: int = LONGEST_SAID) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _usage(document: dict[str, Any]) -> Usage | None:
    """`usage` wherever it stands, else llama.cpp's `timings`. A usage of zeros only (Ollama sends one a chunk) is none."""
    usage = document.get("usage")
    if isinstance(usage, dict):
        prompt, completion = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
        if not prompt and not completion:
            return None
        cached = reasoning = None
        if details := usage.get("prompt_tokens_details"):
            cached = _count(details, "cached_tokens")
        if details := usage.get("completion_tokens_details"):
            reasoning = _count(details, "reasoning_tokens")
        return Usage(prompt, completion, cached, reasoning)
    timings = document.get("timings")
    if isinstance(timings, dict):
        processed, cached = _count(timings, "prompt_n"), _count(timings, "cache_n")
        # llama.cpp's `prompt_n` leaves out the prompt tokens it found in its cache.
        prompt = None if processed is None else processed + (cached or 0)
        return Usage(prompt, _count(timings, "predicted_n"), cached)
    return None


def _count(table: Any, key: str) -> int | None:
    value = table.get(key) if isinstance(table, dict) else None
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None
