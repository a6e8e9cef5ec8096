"""Anthropic's Messages API: request bodies, and a parser for the events of an answer.

An answer ends with `message_stop`. Source: Anthropic's API reference, "Streaming Messages". No field forces the length of an answer: a
requested length is only a limit.
"""

from typing import Any

import orjson

from prober.measure.chat import USER, Dialect, encoded
from prober.measure.chunk import Chunk, Usage, no_answer, other_event, read_usage, reported_count, total, whole
from prober.measure.payload import Malformed, event_type, finish_reason, json_object, service_tier, text_of
from prober.measure.printable import shown_name
from prober.measure.request import AssistantMessage, Message, Request
from prober.measure.tool_calls import CallPiece

HEADERS = (("anthropic-version", "2023-06-01"),)


def request_body(dialect: Dialect, request: Request, model: str, stream: bool) -> bytes:
    """The JSON body of a request. System messages go to their own field."""
    needed: dict[str, Any] = {
        "messages": [part for message in request.messages for part in _messages(message)],
        "max_tokens": request.output_tokens,
        "stream": stream,
    }
    plain = (message for message in request.messages if not isinstance(message, AssistantMessage))
    if system := "\n".join(content for role, content in plain if role == "system"):
        needed["system"] = system
    return encoded(request, model, needed, {"metadata": {"user_id": USER}} if dialect.user else {})


def _messages(message: Message | AssistantMessage) -> list[dict[str, Any]]:
    if not isinstance(message, AssistantMessage):
        role, content = message
        return [{"role": role, "content": content}] if role != "system" else []
    text = [{"type": "text", "text": message.text}] if message.text else []  # an empty block is refused
    uses = [
        {"type": "tool_use", "id": tool.call_id, "name": tool.name, "input": orjson.Fragment(tool.arguments)}
        for tool in message.tools
    ]
    results = [{"type": "tool_result", "tool_use_id": tool.call_id, "content": tool.result} for tool in message.tools]
    return [{"role": "assistant", "content": [*text, *uses]}, {"role": "user", "content": results}]


def parse_event(event_name: bytes, payload: bytes) -> Chunk:
    """Parse one event of a stream; its type is in the data, or else the event's name. Raises Malformed."""
    document = json_object(payload)
    kind = event_type(document, event_name)
    match kind:
        case "content_block_delta":
            return _content(document.get("delta"), _index(document))
        case "content_block_start":
            return _content(document.get("content_block"), _index(document))
        case "content_block_stop":
            # A tool without input has no deltas.
            return Chunk(calls=(CallPiece(_index(document), rest="{}"),))
        case "message_start" | "message":
            message = document.get("message") if kind == "message_start" else document
            if not isinstance(message, dict):
                raise Malformed("`message_start` has no `message`")
            return _message(message)
        case "message_delta":
            delta = document.get("delta")
            reason = delta.get("stop_reason") if isinstance(delta, dict) else None
            return Chunk(finish_reason=finish_reason(reason), usage=_usage(document))
        case "message_stop":
            return Chunk(is_end=True)
    return other_event(document, kind, "messages", is_known=kind == "ping")


def parse_answer(payload: bytes) -> Chunk:
    """Parse a complete answer to a request with `stream: false`. Raises Malformed."""
    message = json_object(payload)
    return _message(message) if isinstance(message.get("content"), list) else no_answer(message, "content", payload)


def _message(message: dict[str, Any]) -> Chunk:
    """Convert a message with all its blocks to a chunk. The message that begins a stream has no blocks yet."""
    usage = message.get("usage")
    blocks = message["content"] if isinstance(message.get("content"), list) else []
    return whole(_content(block, number, is_complete=True) for number, block in enumerate(blocks))._replace(
        finish_reason=finish_reason(message.get("stop_reason")),
        usage=_usage(message, is_start=not blocks),
        model=shown_name(message.get("model")),
        tier=service_tier(usage.get("service_tier")) if isinstance(usage, dict) else "",
    )


def _index(document: dict[str, Any]) -> int | None:
    index = document.get("index")
    return index if type(index) is int else None


def _content(block: Any, index: int | None, *, is_complete: bool = False) -> Chunk:
    """Convert a block or its delta to a chunk: text, thinking, or a tool's name and input, without signatures and citations.

    A tool's input may come in deltas. Calls made by the server have another type than `tool_use`.
    """
    if not isinstance(block, dict):
        raise Malformed("a content block is not an object")
    kind, thinking, name = str(block.get("type")), block.get("thinking"), block.get("name")
    if isinstance(thinking, str) and thinking:
        return Chunk(reasoning=thinking)
    if kind in ("thinking", "redacted_thinking"):  # redacted_thinking, or thinking whose text is omitted
        return Chunk(begins_reasoning=True)
    if kind == "tool_use":
        text = text_of(block["input"]) if block.get("input") or (is_complete and "input" in block) else ""
        call = CallPiece(index, shown_name(block.get("id")), shown_name(name), text)
        return Chunk(called=name if isinstance(name, str) else "", calls=(call,))
    if isinstance(partial := block.get("partial_json"), str) and partial:
        return Chunk(called=partial, calls=(CallPiece(index, arguments=partial),))
    content = block.get("text") or (name if kind.endswith("tool_use") else "")
    # Claude 4's thinking text is a summary; its signature looks like that of Claude 3.7's full text.
    is_signature = kind == "signature_delta" and bool(block.get("signature"))
    return Chunk(content if isinstance(content, str) else "", hides_reasoning=is_signature)


def _usage(holder: dict[str, Any], *, is_start: bool = False) -> Usage | None:
    """Tokens of the prompt, with those read from and written to the cache, and tokens of the answer so far."""
    usage = holder.get("usage")
    if (used := read_usage(usage, "input", "output")) is None:
        return None
    cached, created = (reported_count(usage, f"cache_{kind}_input_tokens") for kind in ("read", "creation"))
    return Usage(
        total(used.prompt_tokens, cached, created) or None,
        None if is_start and not used.completion_tokens else used.completion_tokens,
        cached,
        reported_count(usage, "output_tokens_details", "thinking_tokens"),
    )
