"""Anthropic's Messages API: request bodies, and a parser for the events of an answer.

An answer ends with `message_stop`. Source: Anthropic's API reference, "Streaming Messages". No field forces the length of an answer: a
requested length is only a limit.
"""

from typing import Any

import orjson

from prober.measure.chat import USER, Chunk, Dialect, encoded
from prober.measure.payload import Malformed, error_of, event_type, excerpt, finish_reason, json_object, text_of
from prober.measure.printable import shown_name
from prober.measure.request import AssistantMessage, Message, Request
from prober.measure.tool_calls import CallPiece
from prober.measure.usage import Usage, read_usage, reported_count, total

HEADERS = (("anthropic-version", "2023-06-01"),)


def request_body(dialect: Dialect, request: Request, model: str, stream: bool) -> bytes:
    """Returns the JSON body of a request. System messages go to their own field."""
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
    """Parses one event of a stream. Raises Malformed. Its type is that in the data, else the name of the event."""
    document = json_object(payload)
    kind = event_type(document, event_name)
    match kind:
        case "content_block_delta":
            delta = document.get("delta")
            content = _content(delta)
            text = delta.get("partial_json") if isinstance(delta, dict) else None
            if isinstance(text, str) and text:
                content = content._replace(calls=(CallPiece(_index(document), arguments=text),), prose="")
            return content
        case "content_block_start":
            block = document.get("content_block")
            content = _content(block)
            calls, begins_reasoning = _calls(block, _index(document)), not content.has_content and _is_thinking(block)
            return content._replace(calls=calls, begins_reasoning=begins_reasoning, prose="" if calls else None)
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
    if kind == "error" or "error" in document:
        return Chunk(error=error_of(document) or "no message")
    if "choices" in document:
        raise Malformed("a chunk of the chat API, though `api: messages` was asked")
    return Chunk(error=None if kind == "ping" else error_of(document))


def parse_answer(payload: bytes) -> Chunk:
    """Parses a complete answer to a request with `stream: false`. Raises Malformed."""
    message = json_object(payload)
    if not isinstance(message.get("content"), list):
        if (error := error_of(message)) is not None:
            return Chunk(error=error)
        raise Malformed(f"the answer has no list `content`: {excerpt(payload)}")
    return _message(message)


def _message(message: dict[str, Any]) -> Chunk:
    """Returns the chunk of a message with all its blocks. The message that begins a stream has no blocks yet."""
    blocks = message["content"] if isinstance(message.get("content"), list) else []
    contents = [_content(block) for block in blocks]
    answer = "".join(content.text for content in contents if content.is_answer)
    reasoning = "".join(content.text for content in contents if not content.is_answer)
    return Chunk(
        bool(answer or reasoning),
        bool(answer),
        answer or reasoning,
        finish_reason(message.get("stop_reason")),
        _usage(message, is_start=not blocks),
        None,
        shown_name(message.get("model")),
        calls=tuple(piece for number, block in enumerate(blocks) for piece in _calls(block, number, is_complete=True)),
        is_whole=True,
        begins_reasoning=not reasoning and any(map(_is_thinking, blocks)),
        prose="".join(
            content.text
            for content, block in zip(contents, blocks, strict=True)
            if content.is_answer and not _calls(block, None)
        ),
    )


def _is_thinking(block: Any) -> bool:
    """True if a content block is thinking. It has no text if it is redacted or its display is omitted."""
    return isinstance(block, dict) and block.get("type") in ("thinking", "redacted_thinking")


def _index(document: dict[str, Any]) -> int | None:
    index = document.get("index")
    return index if type(index) is int else None


def _calls(block: Any, index: int | None, *, is_complete: bool = False) -> tuple[CallPiece, ...]:
    """Returns the tool call that a content block begins, if any; deltas may bring its input. Calls by the server have another type."""
    if not isinstance(block, dict) or block.get("type") != "tool_use":
        return ()
    text = text_of(block["input"]) if block.get("input") or (is_complete and "input" in block) else ""
    return (CallPiece(index, shown_name(block.get("id")), shown_name(block.get("name")), text),)


def _content(block: Any) -> Chunk:
    """Returns the content of a block or its delta: text, thinking, or a tool's name and input, but no signatures or citations."""
    if not isinstance(block, dict):
        raise Malformed("a content block is not an object")
    if isinstance(thinking := block.get("thinking"), str) and thinking:
        return Chunk(True, False, thinking)
    is_tool = str(block.get("type")).endswith("tool_use")
    for text in (block.get("text"), block.get("partial_json"), block.get("name") if is_tool else None):
        if isinstance(text, str) and text:
            return Chunk(True, True, text)
    # The text of Claude 4's thinking is a summary, which its signature does not tell from that of Claude 3.7.
    return Chunk(hides_reasoning=True) if block.get("type") == "signature_delta" and block.get("signature") else Chunk()


def _usage(holder: dict[str, Any], *, is_start: bool = False) -> Usage | None:
    """Returns the tokens of the prompt, including those read from and written to the cache, and the tokens of the answer so far."""
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
