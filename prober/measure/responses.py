"""OpenAI's Responses API: request bodies, and a parser for the events of an answer.

An answer ends with `response.completed`, `response.incomplete` or `response.failed`. Source: OpenAI's API reference, "Streaming
events". No field forces the length of an answer: a requested length is only a limit.
"""

from collections.abc import Iterator
from typing import Any

from prober.measure.chat import USER, Chunk, Dialect, encoded
from prober.measure.payload import Malformed, error_of, event_type, excerpt, finish_reason, json_object
from prober.measure.printable import shown_name
from prober.measure.request import AssistantMessage, Message, Request
from prober.measure.tool_calls import CallPiece, argument_text
from prober.measure.usage import read_usage

ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})


def request_body(dialect: Dialect, request: Request, model: str, stream: bool) -> bytes:
    """Returns the JSON body of a request, which tells the server to store nothing."""
    needed: dict[str, Any] = {
        "input": [item for message in request.messages for item in _items(message)],
        "max_output_tokens": request.output_tokens,
        "stream": stream,
    }
    if request.salt is not None:
        needed |= {key: request.salt for key, value in dialect.cache_bypass.items() if value == Dialect.SALT}
    return encoded(request, model, needed, {"store": False} | ({"user": USER} if dialect.user else {}))


def _items(message: Message | AssistantMessage) -> list[dict[str, Any]]:
    if not isinstance(message, AssistantMessage):
        return [{"role": message[0], "content": message[1]}]
    text = [{"role": "assistant", "content": message.text}] if message.text else []
    calls = [
        {"type": "function_call", "call_id": tool.call_id, "name": tool.name, "arguments": tool.arguments}
        for tool in message.tools
    ]
    results = [
        {"type": "function_call_output", "call_id": tool.call_id, "output": tool.result} for tool in message.tools
    ]
    return [*text, *calls, *results]


def parse_event(event_name: bytes, payload: bytes) -> Chunk:
    """Parses one event of a stream. Raises Malformed. Its type is that in the data, as in OpenAI's SDKs, else the name of the event."""
    document = json_object(payload)
    kind = event_type(document, event_name)
    if kind.endswith(".delta"):
        delta = document.get("delta")
        text = delta if isinstance(delta, str) else ""
        if kind == "response.audio.delta" or kind == "response.output_audio.delta":
            text = text and "[audio]"
        piece = CallPiece(_position(document, document.get("item_id")), arguments=text)
        calls = (piece,) if kind == "response.function_call_arguments.delta" else ()
        is_answer = text != "" and "reasoning" not in kind
        prose = "" if calls else None
        return Chunk(text != "", is_answer, text, calls=calls, hides_reasoning="summary" in kind, prose=prose)
    if kind in ENDS:
        response = document.get("response")
        if not isinstance(response, dict):
            raise Malformed(f"`{kind}` has no `response`")
        return _end(response, shown_name(response.get("status")) or kind.partition(".")[2])
    if document.get("object") == "response":
        return _end(document, shown_name(document.get("status")))
    if kind == "response.output_item.added":
        item = document.get("item")
        fields = item if isinstance(item, dict) else {}
        # A tool call begins with the name of the tool, which the model generates.
        tool = shown_name(fields.get("name")) if str(fields.get("type")).endswith("_call") else ""
        begun = tuple(_call_pieces(item, _position(document, None)))
        is_reasoning, prose = fields.get("type") == "reasoning", "" if begun else None
        return Chunk(tool != "", tool != "", tool, calls=begun, begins_reasoning=is_reasoning, prose=prose)
    if kind == "response.function_call_arguments.done":
        rest = argument_text(document.get("arguments"))
        return Chunk(calls=(CallPiece(_position(document, document.get("item_id")), rest=rest),))
    if kind == "response.output_item.done":  # repeats the call, or is all of it
        pieces = _call_pieces(document.get("item"), _position(document, None))
        return Chunk(calls=tuple(piece._replace(arguments="", rest=piece.arguments) for piece in pieces))
    if kind in ("response.created", "response.in_progress", "response.queued"):
        response = document.get("response")
        return Chunk(model=shown_name(response.get("model")) if isinstance(response, dict) else "")
    if kind == "error" or "error" in document:
        return Chunk(error=error_of(document) or "no message")
    if "choices" in document:
        raise Malformed("a chunk of the chat API, though `api: responses` was asked")
    return Chunk(error=None if kind.startswith("response.") else error_of(document))


def parse_answer(payload: bytes) -> Chunk:
    """Parses a complete answer to a request with `stream: false`. Raises Malformed."""
    response = json_object(payload)
    if "output" not in response:
        if (error := error_of(response)) is not None:
            return Chunk(error=error)
        raise Malformed(f"the answer has no `output`: {excerpt(payload)}")
    return _end(response, shown_name(response.get("status")) or "completed")


def _position(document: dict[str, Any], item_id: object) -> int | str | None:
    """Position of an item in the output; else its id, as llama.cpp sends no positions."""
    place = document.get("output_index")
    return place if type(place) is int else shown_name(item_id) or None


def _call_pieces(item: Any, position: int | str | None) -> Iterator[CallPiece]:
    """Yields the tool call that an item begins, if any. Calls that the server makes itself, or that take text, have other types."""
    if isinstance(item, dict) and item.get("type") == "function_call":
        yield CallPiece(
            position if position is not None else shown_name(item.get("id")) or None,
            shown_name(item.get("call_id")),
            shown_name(item.get("name")),
            argument_text(item.get("arguments")),
        )


def _end(response: dict[str, Any], status: str) -> Chunk:
    """Returns the last chunk of an answer, with all its content. Finish reason: the status, or why the answer is incomplete."""
    usage, model = read_usage(response.get("usage"), "input", "output"), shown_name(response.get("model"))
    error = response.get("error")
    if error or status == "failed":
        return Chunk(
            error=error_of({"error": error or {"message": f"status {status}"}}), usage=usage, model=model, is_end=True
        )
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    items = response["output"] if isinstance(response.get("output"), list) else []
    answer, reasoning = _output(items)
    text = answer or reasoning
    calls = tuple(piece for number, item in enumerate(items) for piece in _call_pieces(item, number))
    return Chunk(
        *(text != "", answer != "", text, finish_reason(reason or status), usage, None, model, 0, True, calls),
        is_whole=True,
        begins_reasoning=not reasoning and any(isinstance(it, dict) and it.get("type") == "reasoning" for it in items),
        prose=_output([item for item in items if not any(_call_pieces(item, None))])[0],
    )


def _output(items: list[Any]) -> tuple[str, str]:
    """Returns (answer text, reasoning text) of the items of a complete answer."""
    answer: list[str] = []
    reasoning: list[str] = []
    for item in items:
        if not isinstance(item, dict):
            continue
        parts = [part for key in ("content", "summary") if isinstance(item.get(key), list) for part in item[key]]
        texts = [part.get("text") or part.get("refusal") for part in parts if isinstance(part, dict)]
        texts += [item.get("name"), item.get("arguments")] if str(item.get("type")).endswith("_call") else []
        (reasoning if item.get("type") == "reasoning" else answer).extend(
            text for text in texts if isinstance(text, str)
        )
    return "".join(answer), "".join(reasoning)
