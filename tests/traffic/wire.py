"""The four streaming APIs, written from their public references: an answer in, events out. No socket and no clock here.

Each writer yields `(event, piece)`: the text of one or more events, and the piece that is due before they leave.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, groupby
from typing import Any

from tests.traffic.answers import Answer, Exchange, Piece, Refusal

_Fields = dict[str, Any]
Events = Iterator[tuple[str, Piece | None]]
MODEL = "traffic-1"


def _sse(data: dict[str, Any] | str, name: str = "") -> str:
    text = data if isinstance(data, str) else json.dumps(data)
    return (f"event: {name}\n" if name else "") + f"data: {text}\n\n"


def _usage(answer: Answer, prompt_tokens: int) -> dict[str, Any]:
    usage: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": answer.tokens - answer.reasoning_tokens * answer.excludes_reasoning,
        "total_tokens": prompt_tokens + answer.tokens,
    }
    if answer.counts_reasoning:
        usage["completion_tokens_details"] = {"reasoning_tokens": answer.reasoning_tokens}
    return usage


def chat(answer: Answer, exchange: Exchange, prompt_tokens: int, reasoning_field: str = "reasoning_content") -> Events:
    def chunk(choices: list[dict[str, Any]], **fields: Any) -> str:
        head = {
            "id": f"chatcmpl-{exchange.number}",
            "object": "chat.completion.chunk",
            "created": 1795219731,
            "model": MODEL,
        }
        return _sse(head | {"choices": choices} | fields)

    def delta(fields: dict[str, Any], reason: str | None = None) -> str:
        return chunk([{"index": 0, "delta": fields, "logprobs": None, "finish_reason": reason}])

    yield delta({"role": "assistant", "content": ""}), None
    for piece in answer.pieces:
        if not piece.is_streamed:
            yield "", piece
        elif piece.kind in ("reasoning", "summary"):
            yield delta({reasoning_field: piece.text}), piece
        elif piece.kind == "call":
            function = {"name": piece.text, "arguments": ""}
            call_id = f"call_{exchange.number}_{piece.call}"
            call = {"index": piece.call, "id": call_id, "type": "function", "function": function}
            yield delta({"tool_calls": [call]}), piece
        elif piece.kind == "arguments":
            yield delta({"tool_calls": [{"index": piece.call, "function": {"arguments": piece.text}}]}), piece
        else:
            yield delta({"content": piece.text}), piece
    if answer.error:
        yield _sse({"error": {"message": answer.error, "type": "server_error", "param": None, "code": 500}}), None
        return
    if answer.stop is None:
        return
    yield delta({}, answer.stop), None
    options = exchange.body.get("stream_options")
    if answer.has_usage and isinstance(options, dict) and options.get("include_usage"):
        yield chunk([], usage=_usage(answer, prompt_tokens)), None
    yield _sse("[DONE]"), None


def completions(answer: Answer, exchange: Exchange, prompt_tokens: int) -> Events:
    def chunk(choices: list[dict[str, Any]], **fields: Any) -> str:
        head = {"id": f"cmpl-{exchange.number}", "object": "text_completion", "created": 1795219731, "model": MODEL}
        return _sse(head | {"choices": choices} | fields)

    for piece in answer.pieces:
        text = {"index": 0, "text": piece.text, "logprobs": None, "finish_reason": None}
        yield chunk([text]) if piece.is_streamed else "", piece
    if answer.error:
        yield _sse({"error": {"message": answer.error, "type": "server_error", "param": None, "code": 500}}), None
        return
    if answer.stop is None:
        return
    yield chunk([{"index": 0, "text": "", "logprobs": None, "finish_reason": answer.stop}]), None
    options = exchange.body.get("stream_options")
    if answer.has_usage and isinstance(options, dict) and options.get("include_usage"):
        yield chunk([], usage=_usage(answer, prompt_tokens)), None
    yield _sse("[DONE]"), None


_BLOCKS = {
    "reasoning": "reasoning",
    "summary": "summary",
    "tagged": "text",
    "text": "text",
    "call": "call",
    "arguments": "call",
    "redacted": "redacted",
    "omitted": "omitted",
    "hidden": "",
}


def _blocks(answer: Answer) -> Iterator[tuple[str, list[Piece]]]:
    """The pieces as consecutive items of one kind; silence is a block of its own."""
    for (kind, _), pieces in groupby(answer.pieces, key=lambda piece: (_BLOCKS[piece.kind], piece.call)):
        yield kind, list(pieces)


@dataclass(frozen=True)
class _Item:
    """An item of a response: its events are `added`, `opening`, a `delta` for each piece, and `closing`."""

    added: _Fields
    done: _Fields
    at: _Fields
    delta: str
    opening: tuple[tuple[str, _Fields], ...] = ()
    closing: tuple[tuple[str, _Fields], ...] = ()


def _reasoning_item(index: int, text: str, name: str) -> _Item:
    """A reasoning item; `name` is `reasoning_summary` or `reasoning`."""
    is_summary = name == "reasoning_summary"
    part_event = "response.reasoning_summary_part" if is_summary else "response.content_part"
    part: _Fields = {"type": "summary_text" if is_summary else "reasoning_text", "text": text}
    added: _Fields = {"id": f"rs_{index}", "type": "reasoning", "summary": [], "status": "in_progress"}
    return _Item(
        added=added,
        done=added | {"status": "completed", "summary" if is_summary else "content": [part]},
        at={"item_id": added["id"], "output_index": index, "summary_index" if is_summary else "content_index": 0},
        delta=f"response.{name}_text.delta",
        opening=((f"{part_event}.added", {"part": part | {"text": ""}}),),
        closing=((f"response.{name}_text.done", {"text": text}), (f"{part_event}.done", {"part": part})),
    )


def _call_item(index: int, name: str, arguments: str) -> _Item:
    added: _Fields = {"id": f"fc_{index}", "type": "function_call", "call_id": f"call_{index}", "name": name}
    return _Item(
        added=added | {"arguments": "", "status": "in_progress"},
        done=added | {"arguments": arguments, "status": "completed"},
        at={"item_id": added["id"], "output_index": index},
        delta="response.function_call_arguments.delta",
        closing=(("response.function_call_arguments.done", {"name": name, "arguments": arguments}),),
    )


def _message_item(index: int, text: str) -> _Item:
    part: _Fields = {"type": "output_text", "text": text, "annotations": []}
    added: _Fields = {
        "id": f"msg_{index}",
        "type": "message",
        "status": "in_progress",
        "role": "assistant",
        "content": [],
    }
    return _Item(
        added=added,
        done=added | {"status": "completed", "content": [part]},
        at={"item_id": added["id"], "output_index": index, "content_index": 0},
        delta="response.output_text.delta",
        opening=(("response.content_part.added", {"part": part | {"text": ""}}),),
        closing=(
            ("response.output_text.done", {"text": text, "logprobs": []}),
            ("response.content_part.done", {"part": part}),
        ),
    )


def _item(kind: str, index: int, pieces: list[Piece]) -> _Item:
    text = "".join(piece.text for piece in pieces)
    if kind in ("reasoning", "summary"):
        return _reasoning_item(index, text, "reasoning" if kind == "reasoning" else "reasoning_summary")
    if kind == "call":
        return _call_item(index, pieces[0].text, text.removeprefix(pieces[0].text))
    if kind == "text":
        return _message_item(index, text)
    # Hidden reasoning is an item without a summary: announced before it, done after it.
    hidden: _Fields = {"id": f"rs_{index}", "type": "reasoning", "summary": []}
    return _Item(hidden, hidden, {"output_index": index}, "")


def _response(answer: Answer, exchange: Exchange, status: str, output: list[_Fields], usage: _Fields | None) -> _Fields:
    return {
        "id": f"resp_{exchange.number}",
        "object": "response",
        "created_at": 1795219731,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": None,
        "max_output_tokens": exchange.body.get("max_output_tokens"),
        "model": MODEL,
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": usage,
        "metadata": {},
    }


def responses(answer: Answer, exchange: Exchange, prompt_tokens: int) -> Events:
    number = count()
    output: list[_Fields] = []

    def event(type_: str, fields: _Fields) -> str:
        return _sse({"type": type_, "sequence_number": next(number)} | fields, type_)

    begun = _response(answer, exchange, "in_progress", [], None)
    yield event("response.created", {"response": begun}) + event("response.in_progress", {"response": begun}), None
    for index, (kind, pieces) in enumerate(_blocks(answer)):
        item = _item(kind, index, pieces)
        added = event("response.output_item.added", {"output_index": index, "item": item.added})
        yield added, pieces[0] if kind == "call" else None
        yield "".join(event(type_, item.at | fields) for type_, fields in item.opening), None
        for piece in pieces[1:] if kind == "call" else pieces:
            delta: _Fields = {"delta": piece.text} | ({"logprobs": []} if kind == "text" else {})
            yield event(item.delta, item.at | delta) if piece.is_streamed else "", piece
        if answer.stop is None or answer.error:
            continue
        output.append(item.done)
        yield "".join(event(type_, item.at | fields) for type_, fields in item.closing), None
        yield event("response.output_item.done", {"output_index": index, "item": item.done}), None
    if answer.error:
        yield event("error", {"code": "server_error", "message": answer.error, "param": None}), None
    elif answer.stop is not None:
        usage: _Fields = {
            "input_tokens": prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": answer.tokens,
            "output_tokens_details": {"reasoning_tokens": answer.reasoning_tokens if answer.counts_reasoning else 0},
            "total_tokens": prompt_tokens + answer.tokens,
        }
        status = "incomplete" if answer.stop == "length" else "completed"
        ended = _response(answer, exchange, status, output, usage if answer.has_usage else None)
        yield event(f"response.{status}", {"response": ended}), None


def _block(kind: str, index: int, pieces: list[Piece]) -> tuple[_Fields, str, str]:
    """The start of a content block of the Messages API, the type of its deltas, and their field."""
    if kind in ("reasoning", "summary", "omitted"):
        return {"type": "thinking", "thinking": "", "signature": ""}, "thinking_delta", "thinking"
    if kind == "redacted":
        return {"type": "redacted_thinking", "data": "RXJyZWRhY3RlZA=="}, "", ""
    if kind == "call":
        call = {"type": "tool_use", "id": f"toolu_{index}", "name": pieces[0].text, "input": {}}
        return call, "input_json_delta", "partial_json"
    return {"type": "text", "text": ""}, "text_delta", "text"


def messages(answer: Answer, exchange: Exchange, prompt_tokens: int) -> Events:
    def event(type_: str, **fields: Any) -> str:
        return _sse({"type": type_} | fields, type_)

    message: _Fields = {
        "id": f"msg_{exchange.number}",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": MODEL,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": prompt_tokens, "output_tokens": 1} if answer.has_usage else {},
    }
    yield event("message_start", message=message) + event("ping"), None
    index = 0
    for kind, pieces in _blocks(answer):
        if not kind:
            yield from (("", piece) for piece in pieces)
            continue
        block, delta, name = _block(kind, index, pieces)
        is_whole = kind in ("call", "redacted", "omitted")
        yield event("content_block_start", index=index, content_block=block), pieces[0] if is_whole else None
        for piece in pieces[1:] if is_whole else pieces:
            yield event("content_block_delta", index=index, delta={"type": delta, name: piece.text}), piece
        if block["type"] == "thinking":
            yield (
                event("content_block_delta", index=index, delta={"type": "signature_delta", "signature": "c2ln"}),
                None,
            )
        yield event("content_block_stop", index=index), None
        index += 1
    if answer.error:
        yield event("error", error={"type": "api_error", "message": answer.error}), None
    elif answer.stop is not None:
        reason = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}[answer.stop]
        usage = {"output_tokens": answer.tokens} if answer.has_usage else {}
        yield event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=usage), None
        yield event("message_stop"), None


WRITERS: dict[str, Callable[[Answer, Exchange, int], Events]] = {
    "chat": chat,
    "completions": completions,
    "responses": responses,
    "messages": messages,
}
PATHS = {"/chat/completions": "chat", "/completions": "completions", "/responses": "responses", "/messages": "messages"}


def refusal_body(refusal: Refusal, api: str) -> str:
    """The JSON of an error, as OpenAI and Anthropic document it."""
    if api == "messages":
        kinds = {
            400: "invalid_request_error",
            401: "authentication_error",
            403: "permission_error",
            413: "request_too_large",
        }
        kind = kinds.get(refusal.status, "overloaded_error" if refusal.status == 529 else "api_error")
        return json.dumps({"type": "error", "error": {"type": kind, "message": refusal.message}, "request_id": "req_1"})
    error = {
        "message": refusal.message,
        "type": "invalid_request_error",
        "param": refusal.param,
        "code": refusal.code or None,
    }
    return json.dumps({"error": error})
