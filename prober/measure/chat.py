"""OpenAI's chat and text completions: request bodies per engine dialect, and a parser for the chunks of an answer.

One tolerant parser serves all engines. Only the request and the regular end of a stream depend on the `Dialect`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from prober.measure.chunk import Chunk, Usage, no_answer, read_usage, reported_count, total
from prober.measure.payload import Malformed, error_of, finish_reason, json_object, service_tier, shortened, text_of
from prober.measure.printable import shown_name
from prober.measure.request import AssistantMessage, Message, Request
from prober.measure.server_timing import reported_parts
from prober.measure.tool_calls import CallPiece, argument_text

MAX_CHOICES = 128  # read per answer; OpenAI's API allows no more
USER = "llm-slo-prober"  # field `user` in requests
OPTIONAL_FIELDS = ("user", "stream_options", "metadata", "store")  # in requests; `sampling` can remove them


@dataclass(frozen=True, slots=True)
class Dialect:
    """How an engine's OpenAI endpoint differs from the specification, as data.

    owned_by: value of `owned_by` in `/v1/models`
    header: a response header that identifies the engine
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


def request_body(dialect: Dialect, request: Request, model: str, stream: bool, *, is_chat: bool) -> bytes:
    """The JSON body of a request. If `sampling` sets `max_tokens` to null, a chat request has `max_completion_tokens` instead.

    `seed` is never sent: with a temperature and a long prompt it has crashed a real engine.
    """
    max_tokens = request.output_tokens
    is_renamed = is_chat and request.sampling.get("max_tokens", max_tokens) is None
    needed: dict[str, Any] = {"max_completion_tokens" if is_renamed else "max_tokens": max_tokens, "stream": stream}
    if is_chat:
        needed["messages"] = [part for message in request.messages for part in _messages(message)]
    else:
        texts = (
            message.content if isinstance(message, AssistantMessage) else message[1] for message in request.messages
        )
        needed["prompt"] = "\n".join(texts)
    optional: dict[str, Any] = {"user": USER} if dialect.user else {}
    if stream and dialect.stream_options:
        optional["stream_options"] = {"include_usage": True}
        if dialect.continuous_usage:
            optional["stream_options"]["continuous_usage_stats"] = True
    for key, value in dialect.force_length.items() if request.is_length_forced else ():
        needed[key] = max_tokens if value == Dialect.TOKENS else value
    if request.salt is not None:
        for key, value in dialect.cache_bypass.items():
            needed[key] = request.salt if value == Dialect.SALT else value
    return encoded(request, model, needed, optional)


def _messages(message: Message | AssistantMessage) -> list[dict[str, Any]]:
    if not isinstance(message, AssistantMessage):
        return [{"role": message[0], "content": message[1]}]
    calls = [
        {"id": tool.call_id, "type": "function", "function": {"name": tool.name, "arguments": tool.arguments}}
        for tool in message.tools
    ]
    return [
        {"role": "assistant", "content": message.text or None, "tool_calls": calls},
        *({"role": "tool", "tool_call_id": tool.call_id, "content": tool.result} for tool in message.tools),
    ]


def encoded(request: Request, model: str, needed: Mapping[str, Any], optional: Mapping[str, Any]) -> bytes:
    """The JSON of a request. Its `sampling` replaces fields in `optional`, but not in `needed`."""
    chosen = {name: value for name, value in {**optional, **request.sampling}.items() if value is not None}
    return orjson.dumps({"model": model, **chosen, **needed})


# Words in OpenAI's and others' refusals of `max_tokens` for reasoning models.
OTHER_LIMIT = re.compile(r"\buse\b.{0,30}\bmax_completion_tokens\b", re.IGNORECASE)


def parse_event(event_name: bytes, payload: bytes) -> Chunk:
    """Parse one event of a stream, except `[DONE]`. Raises Malformed.

    Events have no name in this API. Data of named events is parsed too, as OpenAI's SDKs do; if it is no chunk, such as
    SGLang's `sglext_ids`, it is not part of the answer.
    """
    if event_name in (b"", b"message"):
        return _chunk(json_object(payload))
    try:
        document = json_object(payload)
        if event_name == b"error":
            return Chunk(error=error_of({"error": document}) or "no message")
        return _chunk(document)
    except Malformed:
        words = shortened(payload[:1200].decode("utf-8", "replace").strip()) or "no message"
        return Chunk(error=words) if event_name == b"error" else Chunk()


def _chunk(document: dict[str, Any]) -> Chunk:
    """Convert a JSON document to a chunk: the choice with index 0, or else the first; `has_content` covers all choices."""
    choices = document.get("choices")
    if (not choices or "error" in document) and (error := error_of(document)) is not None:
        return Chunk(error=error)
    if choices and type(choices) is not list:
        raise Malformed("`choices` is not a list of objects")
    if choices and (len(choices) > 1 or not isinstance(choices[0], dict)):
        return _chunk_of_several(document, choices)
    if not choices:
        named, timing = shown_name(document.get("model")), reported_parts(document)
        tier = service_tier(document.get("service_tier"))
        return Chunk(usage=_usage(document, {}), model=named, timing=timing, tier=tier)
    choice = choices[0]
    message = choice.get("delta")
    is_whole = message is None and isinstance(choice.get("message"), dict)
    if message is None:
        message = choice["message"] if is_whole else {"content": choice.get("text")}
    elif not isinstance(message, dict):
        raise Malformed("`delta` is not an object")
    if choice.get("error"):
        return Chunk(error=error_of(document))
    answer, reasoning = _content(message)
    # Details that report reasoning whose tokens are not in the text of the message.
    hidden = (
        detail
        for detail in _reasoning_details(message)
        if detail.get("signature") or str(detail.get("type")) in _HIDDEN
    )
    calls = message.get("tool_calls") or message.get("function_call")
    finish, index, model = choice.get("finish_reason"), choice.get("index"), document.get("model")
    return Chunk(
        answer,
        reasoning,
        _texts(calls) if calls and not answer else "",
        finish_reason(finish) if finish else None,
        _usage(document, choice),
        None,
        model if type(model) is str else "",
        tuple(_call_pieces(message, is_complete=is_whole)) if calls else (),
        index if type(index) is int else 0,
        is_whole=is_whole,
        hides_reasoning=any(hidden),
        timing=reported_parts(document) if finish else None,
        tier=service_tier(document.get("service_tier")),
    )


def _chunk_of_several(document: dict[str, Any], choices: list[Any]) -> Chunk:
    chunks = [_chunk({**document, "choices": [part]}) for part in choices[:MAX_CHOICES] if isinstance(part, dict)]
    if len(chunks) < 2:
        return chunks[0] if chunks else _chunk({**document, "choices": None})
    first = min(chunks, key=lambda chunk: chunk.choice != 0)
    is_answer = any(chunk.answer or chunk.called for chunk in chunks)
    has_content = any(chunk.has_content for chunk in chunks)
    return first._replace(choices=len(chunks), other="answer" if is_answer else "reasoning" if has_content else "")


def parse_answer(payload: bytes) -> Chunk:
    """Parse a complete answer to a request with `stream: false`. Raises Malformed."""
    document = json_object(payload)
    chunk = _chunk(document)
    is_answer = any(isinstance(part, dict) for part in document.get("choices") or ())
    return chunk if is_answer or chunk.error is not None else no_answer(document, "choices", payload)


def _call_pieces(message: dict[str, Any], *, is_complete: bool) -> Iterator[CallPiece]:
    """Yield the pieces of tool calls in a delta, or the calls in a complete message."""
    calls = message.get("tool_calls") or [{"function": message.get("function_call")}]
    for number, call in enumerate(calls if isinstance(calls, list) else ()):
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            index = call.get("index")
            yield CallPiece(
                number if is_complete else index if type(index) is int else None,
                shown_name(call.get("id")),
                shown_name(function.get("name")),
                argument_text(function.get("arguments")),
            )


def _content(message: dict[str, Any]) -> tuple[str, str]:
    """(answer text, reasoning text) of a message or delta. Refusals and audio count as answer."""
    answer = message.get("content")
    if type(answer) is str and answer:
        return answer, ""
    reasoning = ""
    if isinstance(answer, list):
        answer, reasoning = _parts(answer)
    elif not isinstance(answer, str):
        answer = "" if answer is None else text_of(answer)
    if not answer and isinstance(refusal := message.get("refusal"), str):
        answer = refusal
    if not answer and (audio := message.get("audio")):
        answer = _texts(audio)
    for key in ("reasoning", "reasoning_content", "thinking"):
        if not reasoning and message.get(key):
            value = message[key]
            reasoning = value if isinstance(value, str) else _texts(value)
    if not reasoning and (details := _reasoning_details(message)):
        reasoning = "".join(_parts(details))
    return answer, reasoning


def _reasoning_details(message: dict[str, Any]) -> list[Any]:
    """OpenRouter's reasoning details, or LiteLLM's blocks."""
    details = message.get("reasoning_details") or message.get("thinking_blocks")
    return [detail for detail in details if isinstance(detail, dict)] if type(details) is list else []


def _parts(parts: list[Any]) -> tuple[str, str]:
    """(answer text, reasoning text) of content in parts, as Mistral sends it."""
    texts: tuple[list[str], list[str]] = ([], [])
    for part in parts:
        if isinstance(part, str):
            texts[0].append(part)
        elif isinstance(part, dict):
            is_reasoning = part.get("type") in ("thinking", "reasoning")
            texts[is_reasoning].append(
                _texts({key: part.get(key) for key in ("text", "thinking", "reasoning", "summary")})
            )
    return "".join(texts[0]), "".join(texts[1])


# Keys that identify tool calls and parts, and are not generated text.
_IDENTIFIERS = frozenset({"id", "type", "index", "object", "expires_at", "format"})
_HIDDEN = frozenset({"reasoning.summary", "reasoning.encrypted", "redacted_thinking"})


def _texts(value: Any, depth: int = 0) -> str:
    """Join the generated texts inside a tool call, a function call or a part."""
    if isinstance(value, str):
        return value
    if depth < 6 and isinstance(value, list):
        return "".join(_texts(item, depth + 1) for item in value)
    if depth < 6 and isinstance(value, dict):
        return "".join(_texts(item, depth + 1) for key, item in value.items() if key not in _IDENTIFIERS)
    return ""


def _usage(document: dict[str, Any], choice: Mapping[str, Any]) -> Usage | None:
    """Read `usage` (also Groq's, or the one in Moonshot's choice), or llama.cpp's `timings`; None without either."""
    groq, timings = document.get("x_groq"), document.get("timings")
    usage = document.get("usage") or choice.get("usage") or (isinstance(groq, dict) and groq.get("usage"))
    if usage or not isinstance(timings, dict):
        return read_usage(usage, "prompt", "completion")
    processed, cached = reported_count(timings, "prompt_n"), reported_count(timings, "cache_n")
    # llama.cpp's `prompt_n` excludes prompt tokens found in its cache.
    return Usage(total(processed, cached), reported_count(timings, "predicted_n"), cached)
