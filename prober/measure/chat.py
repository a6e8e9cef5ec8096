"""OpenAI API: request bodies per engine dialect, and a parser for the chunks of an answer.

One tolerant parser serves all engines. Only the request and the proper end of a stream depend on the `Dialect`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

DONE = b"[DONE]"
MAX_COUNTED_TOKENS = 1_000_000_000  # per answer; a larger number is ignored
MAX_SERVER_TEXT_CHARS = 300  # of an error message or a finish reason


@dataclass(frozen=True, slots=True)
class Dialect:
    """Differences of one engine's OpenAI endpoint from the specification, as data.

    owned_by: value of `owned_by` in `/v1/models`
    header: a response header that only this engine sends
    sends_done: the stream ends with `data: [DONE]`
    force_length: request fields that force an answer of exactly N tokens (`Dialect.TOKENS` stands for N); empty: not possible
    cache_bypass: request fields that keep a prompt out of the prefix cache (`Dialect.SALT` stands for a unique text)
    continuous_usage: supports `stream_options.continuous_usage_stats`, so that every chunk reports its tokens
    stream_options, user: accepts these standard fields
    health: path of the health endpoint
    listens_while_loading: the health endpoint answers 503 while the model is loading
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
    listens_while_loading: bool = False

    TOKENS = "$tokens"
    SALT = "$salt"


class Usage(NamedTuple):
    """Token counts as the server reports them; None if not reported."""

    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class Chunk(NamedTuple):
    """Parsed content of one event of the stream.

    has_content: carries text, reasoning or a tool call
    is_answer: the content is not reasoning
    text: generated text of any kind, "" if none
    error: message of an error object, None if none
    model: id of the model that generates the answer, "" if not reported
    """

    has_content: bool = False
    is_answer: bool = False
    text: str = ""
    finish_reason: str | None = None
    usage: Usage | None = None
    error: str | None = None
    model: str = ""


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
    force_length: bool = True,
) -> bytes:
    """Returns the JSON body of one probe request.

    api: "chat" or "completions"
    salt: unique text that keeps the prompt out of the prefix cache; None allows the prefix cache
    force_length: force the answer to exactly `max_tokens` where the engine supports it; otherwise `max_tokens` is a limit

    A `seed` is never sent: with a temperature and a long prompt it has crashed a real engine.
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
    for name, value in dialect.force_length.items() if force_length else ():
        body[name] = max_tokens if value == Dialect.TOKENS else value
    if salt is not None:
        for name, value in dialect.cache_bypass.items():
            body[name] = salt if value == Dialect.SALT else value
    return orjson.dumps(body)


def parse_chunk(payload: bytes) -> Chunk:
    """Parses the payload of one event (not `[DONE]`) of a chat or completions stream. Raises Malformed."""
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
    delta = choice.get("delta")
    if delta is None:
        delta = {"content": choice.get("text")}
    elif not isinstance(delta, dict):
        raise Malformed("`delta` is not an object")
    answer, reasoning = _content(delta)
    finish = choice.get("finish_reason")
    text = answer or reasoning
    finish_reason = _shortened(_text(finish)) if finish else None
    return Chunk(text != "", answer != "", text, finish_reason, usage, None, _model(document))


def parse_answer(payload: bytes) -> Chunk:
    """Parses a complete answer to a request with `stream: false`. Raises Malformed."""
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
        _shortened(_text(finish)) if finish else None,
        _usage(document),
        None,
        _model(document),
    )


def error_message(payload: bytes, limit: int = MAX_SERVER_TEXT_CHARS) -> str:
    """Returns the message of an error response: that of the error object, else the beginning of the body."""
    try:
        message = _error(orjson.loads(payload))
    except (orjson.JSONDecodeError, AttributeError, Malformed):
        message = None
    text = message if message is not None else payload[: 4 * limit].decode("utf-8", "replace")
    return _shortened(" ".join(text.split()), limit)


def _load(payload: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(payload)
    except orjson.JSONDecodeError as problem:
        raise Malformed(f"not JSON ({problem}): {_excerpt(payload)}") from None
    if not isinstance(document, dict):
        raise Malformed(f"not a JSON object: {_excerpt(payload)}")
    return document


def _excerpt(payload: bytes) -> str:
    return repr(payload[:80].decode("utf-8", "replace")) + ("…" if len(payload) > 80 else "")


def _content(message: dict[str, Any]) -> tuple[str, str]:
    """Returns (answer text, reasoning text) of a message or delta. A tool call counts as answer."""
    answer = message.get("content")
    if type(answer) is str and answer:
        return answer, ""
    answer = answer or message.get("refusal") or ""
    if not answer and message.get("tool_calls"):
        answer = message["tool_calls"]
    reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
    return _text(answer), _text(reasoning)


def _model(document: dict[str, Any]) -> str:
    model = document.get("model")
    return _shortened(model) if type(model) is str else ""


def _error(document: dict[str, Any]) -> str | None:
    error = document.get("error")
    if not error:
        if document.get("object") != "error":
            return None
        error = document
    if isinstance(error, dict):
        error = error.get("message") or error
    return _shortened(_text(error))


def _text(value: object) -> str:
    """Returns a string unchanged, anything else as JSON. Raises Malformed for a value nested too deeply to serialise."""
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError as problem:
        raise Malformed(f"nested too deeply ({problem})") from None


def _shortened(text: str, limit: int = MAX_SERVER_TEXT_CHARS) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _usage(document: dict[str, Any]) -> Usage | None:
    """Returns `usage`, else llama.cpp's `timings`, else None. A usage of zeros, which Ollama sends per chunk, is ignored."""
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
        # llama.cpp's `prompt_n` excludes the prompt tokens found in its cache.
        prompt = None if processed is None else processed + (cached or 0)
        return Usage(prompt, _count(timings, "predicted_n"), cached)
    return None


def _count(table: Any, key: str) -> int | None:
    value = table.get(key) if isinstance(table, dict) else None
    return value if type(value) is int and 0 <= value <= MAX_COUNTED_TOKENS else None
