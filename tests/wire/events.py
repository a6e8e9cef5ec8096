"""Events of the four streaming APIs as bytes, as engines write them."""

from __future__ import annotations

import json
from typing import Any

from tests.wire.case import ANSWER, END, FIRST, LAST, Script, Step

MODEL = "probe-model"
DONE = b"data: [DONE]\n\n"
PAUSE = 0.02
"""Seconds between two content chunks of a good answer."""

WORDS = ("Hel", "lo ", "the", "re,", " th", "is ", "is ", "it.")


def compact(value: object) -> str:
    """JSON without spaces, as uvicorn servers and Go write it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def sse(data: object, event: str = "", eol: str = "\n", lead: str = "data: ", tail: str = "") -> bytes:
    """An event; a value that is not text is written as JSON."""
    text = data if isinstance(data, str) else compact(data)
    name = f"event: {event}{eol}" if event else ""
    return f"{name}{lead}{text}{tail}{eol}{eol}".encode()


# Chat and text completions


def payload(delta: object = None, finish: object = None, index: int = 0, **top: Any) -> dict[str, Any]:
    """A chunk of a chat completion."""
    choice = {"index": index, "delta": {} if delta is None else delta, "logprobs": None, "finish_reason": finish}
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1795219731, "model": MODEL}
    return {**chunk, "choices": [choice], **top}


def chat(delta: object = None, finish: object = None, index: int = 0, **top: Any) -> bytes:
    """An event with a chunk of a chat completion."""
    return sse(payload(delta, finish, index, **top))


def text(content: object) -> bytes:
    """An event with content."""
    return chat({"content": content})


def end(reason: object = "length") -> bytes:
    """An event with an empty delta and a finish reason."""
    return chat({}, reason)


def tokens_used(completion: object, prompt: object = 8, **more: Any) -> dict[str, Any]:
    """A usage object of the chat API."""
    total = completion + prompt if isinstance(completion, int) and isinstance(prompt, int) else None
    return {"prompt_tokens": prompt, "total_tokens": total, "completion_tokens": completion, **more}


def usage(completion: object, prompt: object = 8, **more: Any) -> bytes:
    """The usage chunk of `include_usage`: no choices."""
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1795219731, "model": MODEL}
    return sse({**chunk, "choices": [], "usage": tokens_used(completion, prompt, **more)})


ROLE = chat({"role": "assistant", "content": ""})


def content(count: int = 4, pause: float = PAUSE, role: bytes = ROLE) -> Script:
    """A role chunk and `count` content chunks, with the first and the last one marked."""
    steps: list[Step] = [role] if role else []
    for index in range(count):
        steps.append(pause)
        if index == 0:
            steps.append(FIRST)
        if index == count - 1:
            steps.append(LAST)
        steps.append(text(WORDS[index % len(WORDS)]))
    return tuple(steps)


def good(count: int = 4, pause: float = PAUSE, finish: object = "length", tail: bytes = DONE) -> Script:
    """A complete good answer with usage in its own chunk."""
    return (*content(count, pause), end(finish), usage(count), END, tail)


def legacy(text: object, finish: object = None, index: int = 0, **top: Any) -> bytes:
    """An event with a chunk of a text completion."""
    choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}
    chunk = {"id": "cmpl-1", "object": "text_completion", "created": 1795219731, "model": MODEL}
    return sse({**chunk, "choices": [choice], **top})


def reasoned(key: str = "reasoning_content") -> Script:
    """Two reasoning chunks, then two content chunks."""
    return (
        ROLE, 0.02, FIRST, chat({key: "Hmm"}), 0.02, chat({key: ", so"}), 0.04, ANSWER, text("Yes"), 0.02, LAST, text("."),
    )  # fmt: skip


def message(text: object, finish: object = "stop", usage: object = None, **more: Any) -> dict[str, Any]:
    """A chat completion that is not streamed."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **more}, "finish_reason": finish}
    answer = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1795219731,
        "model": MODEL,
        "choices": [choice],
    }
    return answer if usage is None else {**answer, "usage": usage}


# OpenAI's Responses API


def response(kind: str, **fields: Any) -> bytes:
    """A named event of the Responses API."""
    return sse({"type": kind, "sequence_number": 1, **fields}, event=kind)


def response_state(status: str = "in_progress", **fields: Any) -> dict[str, Any]:
    """The response object that created, completed, incomplete and failed events carry."""
    return {"id": "resp_1", "object": "response", "created_at": 1795219731, "status": status, "model": MODEL, **fields}


CREATED = response("response.created", response=response_state(error=None, usage=None))
IN_PROGRESS = response("response.in_progress", response=response_state(error=None, usage=None))
ITEM = response(
    "response.output_item.added",
    output_index=0,
    item={"id": "msg_1", "type": "message", "status": "in_progress", "role": "assistant", "content": []},
)
PART = response(
    "response.content_part.added",
    output_index=0,
    content_index=0,
    item_id="msg_1",
    part={"type": "output_text", "text": "", "annotations": []},
)
OPENING = (CREATED, IN_PROGRESS, ITEM, PART)


def output_text(delta: object, kind: str = "response.output_text.delta", **fields: Any) -> bytes:
    """A text delta of the Responses API."""
    return response(kind, item_id="msg_1", output_index=0, content_index=0, delta=delta, logprobs=[], **fields)


def response_usage(output: object, input: object = 8) -> dict[str, Any]:
    """A usage object of the Responses API."""
    total = output + input if isinstance(output, int) and isinstance(input, int) else None
    details: dict[str, Any] = {
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    return {"input_tokens": input, "output_tokens": output, "total_tokens": total, **details}


def completed(
    tokens: object = 4, status: str = "completed", kind: str = "response.completed", /, **fields: Any
) -> bytes:
    """The last event of a response."""
    return response(kind, response=response_state(status, usage=response_usage(tokens), **fields))


INCOMPLETE = completed(4, "incomplete", "response.incomplete", incomplete_details={"reason": "max_output_tokens"})


def output(count: int = 4, pause: float = PAUSE, opening: Script = OPENING) -> Script:
    """The opening events and `count` text deltas."""
    steps: list[Step] = [*opening]
    for index in range(count):
        steps += [pause, *([FIRST] if index == 0 else []), *([LAST] if index == count - 1 else [])]
        steps.append(output_text(WORDS[index % len(WORDS)]))
    return tuple(steps)


def text_done(text: str = "Hello there,") -> Script:
    """The closing events of a message item."""
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": [part]}
    return (
        response("response.output_text.done", item_id="msg_1", output_index=0, content_index=0, text=text),
        response("response.content_part.done", item_id="msg_1", output_index=0, content_index=0, part=part),
        response("response.output_item.done", output_index=0, item=item),
    )


# Anthropic's Messages API


def event(kind: str, **fields: Any) -> bytes:
    """A named event of the Messages API."""
    return sse({"type": kind, **fields}, event=kind)


def message_start(input: object = 8, output: object = 1, **usage: Any) -> bytes:
    """The first event of a message."""
    used = {"input_tokens": input, "output_tokens": output, **usage}
    fields = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": MODEL}
    return event("message_start", message={**fields, "stop_reason": None, "stop_sequence": None, "usage": used})


def block_start(index: int = 0, **block: Any) -> bytes:
    """The start of a content block; text if nothing else is named."""
    return event("content_block_start", index=index, content_block=block or {"type": "text", "text": ""})


def block_delta(kind: str, index: int = 0, **fields: Any) -> bytes:
    """A delta of a content block."""
    return event("content_block_delta", index=index, delta={"type": kind, **fields})


def block_text(text: object, index: int = 0) -> bytes:
    """A text delta."""
    return block_delta("text_delta", index, text=text)


def block_stop(index: int = 0) -> bytes:
    """The end of a content block."""
    return event("content_block_stop", index=index)


def message_delta(reason: object = "max_tokens", output: object = 4, **usage: Any) -> bytes:
    """Stop reason and cumulative usage."""
    return event(
        "message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage={"output_tokens": output, **usage}
    )


PING = event("ping")
MESSAGE_STOP = event("message_stop")


def blocks(count: int = 4, pause: float = PAUSE) -> Script:
    """The start of a message with one text block and `count` text deltas."""
    steps: list[Step] = [message_start(), block_start(), PING]
    for index in range(count):
        steps += [pause, *([FIRST] if index == 0 else []), *([LAST] if index == count - 1 else [])]
        steps.append(block_text(WORDS[index % len(WORDS)]))
    return (*steps, block_stop())
