"""OpenAI's Responses API: request bodies, and a parser for the events of an answer.

An answer ends with `response.completed`, `response.incomplete` or `response.failed`. Source: OpenAI's API reference, "Streaming
events". No field forces the length of an answer: a requested length is only a limit.
"""

from typing import Any

from prober.measure.chat import USER, Dialect, encoded
from prober.measure.chunk import Chunk, no_answer, other_event, read_usage, whole
from prober.measure.payload import Malformed, error_of, event_type, finish_reason, json_object, service_tier
from prober.measure.printable import shown_name
from prober.measure.request import AssistantMessage, Message, Request
from prober.measure.server_timing import reported_parts
from prober.measure.tool_calls import CallPiece, argument_text

ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
AUDIO = frozenset({"response.audio.delta", "response.output_audio.delta"})


def request_body(dialect: Dialect, request: Request, model: str, stream: bool) -> bytes:
    """The JSON body of a request, which asks the server to store nothing."""
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
    """Parse one event of a stream. Its type is in the data, as in OpenAI's SDKs, or else the event's name. Raises Malformed."""
    document = json_object(payload)
    kind = event_type(document, event_name)
    if kind.endswith(".delta"):
        delta = document.get("delta")
        text = delta if isinstance(delta, str) else ""
        if kind == "response.function_call_arguments.delta":
            place = _position(document, document.get("item_id"))
            return Chunk(called=text, calls=(CallPiece(place, arguments=text),))
        if "reasoning" in kind:
            return Chunk(reasoning=text, hides_reasoning="summary" in kind)
        return Chunk(text and "[audio]" if kind in AUDIO else text)
    if kind in ENDS:
        response = document.get("response")
        if not isinstance(response, dict):
            raise Malformed(f"`{kind}` has no `response`")
        return _end(response, shown_name(response.get("status")) or kind.partition(".")[2])
    if document.get("object") == "response":
        return _end(document, shown_name(document.get("status")))
    if kind == "response.output_item.added":
        return _item(document.get("item"), _position(document, None))
    if kind == "response.function_call_arguments.done":
        rest = argument_text(document.get("arguments"))
        return Chunk(calls=(CallPiece(_position(document, document.get("item_id")), rest=rest),))
    if kind == "response.output_item.done":  # repeats the call, or contains all of it
        calls = _item(document.get("item"), _position(document, None)).calls
        return Chunk(calls=tuple(call._replace(arguments="", rest=call.arguments) for call in calls))
    if kind in ("response.created", "response.in_progress", "response.queued"):
        response = document.get("response")
        return Chunk(model=shown_name(response.get("model")) if isinstance(response, dict) else "")
    return other_event(document, kind, "responses", is_known=kind.startswith("response."))


def parse_answer(payload: bytes) -> Chunk:
    """Parse a complete answer to a request with `stream: false`. Raises Malformed."""
    response = json_object(payload)
    if "output" not in response:
        return no_answer(response, "output", payload)
    return _end(response, shown_name(response.get("status")) or "completed")


def _position(document: dict[str, Any], item_id: object) -> int | str | None:
    """Position of an item in the output, or its id, as llama.cpp sends no positions."""
    place = document.get("output_index")
    return place if type(place) is int else shown_name(item_id) or None


def _item(item: Any, place: int | str | None) -> Chunk:
    """Convert an output item, complete or not, to a chunk. A tool call begins with the tool's name.

    Calls that the server makes itself, or that take text, have other types than tool calls.
    """
    if not isinstance(item, dict):
        return Chunk()
    kind = str(item.get("type"))
    parts = [part for key in ("content", "summary") if isinstance(item.get(key), list) for part in item[key]]
    texts = [part.get("text") or part.get("refusal") for part in parts if isinstance(part, dict)]
    texts += [item.get("name"), item.get("arguments")] if kind.endswith("_call") else []
    text = "".join(text for text in texts if isinstance(text, str))
    if kind == "reasoning":
        return Chunk(reasoning=text, begins_reasoning=True)
    if kind != "function_call":
        return Chunk(text)
    if place is None:
        place = shown_name(item.get("id")) or None
    call_id, tool = shown_name(item.get("call_id")), shown_name(item.get("name"))
    return Chunk(called=text, calls=(CallPiece(place, call_id, tool, argument_text(item.get("arguments"))),))


def _end(response: dict[str, Any], status: str) -> Chunk:
    """The last chunk of an answer, with all its content. Its finish reason is the status, or why the answer is incomplete."""
    usage, model = read_usage(response.get("usage"), "input", "output"), shown_name(response.get("model"))
    error = response.get("error")
    if error or status == "failed":
        words = error_of({"error": error or {"message": f"status {status}"}})
        return Chunk(error=words, usage=usage, model=model, is_end=True)
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    items = response["output"] if isinstance(response.get("output"), list) else []
    chunk = whole(_item(item, number) for number, item in enumerate(items))
    tier = service_tier(response.get("service_tier"))  # earlier events repeat what was asked
    chunk = chunk._replace(usage=usage, model=model, timing=reported_parts(response), tier=tier)
    return chunk._replace(finish_reason=finish_reason(reason or status), is_end=True)
