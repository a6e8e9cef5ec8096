"""Cases that differ in one value, and parts that several cases share."""

from __future__ import annotations

from typing import Any

from tests.wire.case import END, FIRST, LAST, Case, Limits, Script, Step
from tests.wire.events import (
    DONE,
    MESSAGE_STOP,
    MODEL,
    ROLE,
    WORDS,
    blocks,
    content,
    end,
    message,
    message_delta,
    output,
    payload,
    response,
    response_state,
    response_usage,
    sse,
    text,
    tokens_used,
    usage,
)
from tests.wire.heads import CHUNKED, DATE, EVENTS, body, head, stream

FAILED = "error_in_stream"
"""A named failure whose outcome no document names."""

SHORT = Limits(first_token=0.4, stall=0.4, total=3.0)
TAIL: Script = (end(), usage(4), END, DONE)
REST: Script = (text("b"), text("c"), LAST, text("d"), *TAIL)
LEAD: Script = (ROLE, text("a"), text("b"))
CLOSING: Script = (message_delta(), END, MESSAGE_STOP)

ERROR = {"error": {"message": "words of the server", "type": "t", "param": None, "code": None}}
CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}
PIECE = {"index": 0, "function": {"arguments": '{"a":1}'}}

WHOLE = "deltas are due, and a client that reads them gets nothing"
BUSY = body("503 Service Unavailable", "too many connections\n", "content-type: text/plain")
PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01" + bytes(range(256))
NOISE = bytes((index * 167 + 91) % 256 for index in range(3000))
RESPONSE = response_state(
    "completed",
    error=None,
    output=[{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello there"}]}],
    usage=response_usage(4),
)
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "content": [{"type": "text", "text": "Hello there"}],
    "model": MODEL,
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 8, "output_tokens": 4},
}
TIMINGS = {
    "cache_n": 0,
    "prompt_n": 8,
    "prompt_ms": 31.5,
    "prompt_per_token_ms": 3.9,
    "prompt_per_second": 253.9,
    "predicted_n": 4,
    "predicted_ms": 60.4,
    "predicted_per_token_ms": 15.1,
    "predicted_per_second": 66.2,
}
"""llama.cpp's timings object."""

LLAMA_HEAD = head(
    "200 OK",
    "Keep-Alive: timeout=5, max=100",
    "Content-Type: text/event-stream",
    "Server: llama.cpp",
    "Transfer-Encoding: chunked",
    "Access-Control-Allow-Origin: ",
)
GO_HEAD = head(
    "200 OK", "Content-Type: text/event-stream", "Date: Sat, 21 Nov 2026 00:08:51 GMT", "Transfer-Encoding: chunked"
)
AXUM_HEAD = head(
    "200 OK", "content-type: text/event-stream", "x-compute-type: 1-nvidia-a10g", "cache-control: no-cache", CHUNKED
)
TABBY_HEAD = head(
    "200 OK", DATE, "server: uvicorn", "cache-control: no-store", "x-accel-buffering: no", EVENTS, CHUNKED
)


def lines_end_with(eol: bytes, steps: Script) -> Script:
    """The steps with another line end."""
    return tuple(step.replace(b"\n", eol) if isinstance(step, bytes) else step for step in steps)


def replaced(old: bytes, new: bytes, steps: Script) -> Script:
    """The steps with a text replaced in each write."""
    return tuple(step.replace(old, new) if isinstance(step, bytes) else step for step in steps)


def prefixed(prefix: bytes, steps: Script) -> Script:
    """The steps with a text in front of each write."""
    return tuple(prefix + step if isinstance(step, bytes) else step for step in steps)


def unnamed(steps: Script) -> Script:
    """Named events without their names."""
    return tuple(step.split(b"\n", 1)[1] if isinstance(step, bytes) else step for step in steps)


def choices(*deltas: object) -> bytes:
    """An event of one chunk with several choices."""
    listed = [{"index": index, "delta": delta, "finish_reason": None} for index, delta in enumerate(deltas)]
    return sse({**payload(), "choices": listed})


def whole(text: object, finish: str = "stop", **more: Any) -> bytes:
    """An event with a chat completion that is not streamed."""
    return sse(message(text, finish, tokens_used(4), **more))


def said(
    name: str,
    event: bytes,
    words: str,
    why: str = "an error object inside a 200",
    verdict: str = "error_in_stream",
    lead: Script = LEAD,
    tail: Script = (DONE,),
    **more: Any,
) -> Case:
    """A stream with an error event after some content."""
    return Case(name, verdict, stream(*lead, event, *tail), why, detail=words, **more)


def refused(
    name: str,
    content: Any,
    words: str,
    *fields: str,
    verdict: str = "error_in_stream",
    why: str = "a 2xx that is no event stream: its first line is shown",
    **more: Any,
) -> Case:
    """A 200 whose body is no event stream."""
    return Case(name, verdict, body("200 OK", content, *fields), why, detail=words, **more)


def status(
    line: str,
    verdict: str,
    why: str = "the status decides",
    content: Any = None,
    *fields: str,
    words: str = "words of the server",
    name: str = "",
    **more: Any,
) -> Case:
    """An answer with a status; OpenAI's error object if nothing else is named."""
    return Case(
        name or f"status {line}",
        verdict,
        body(line, ERROR if content is None else content, *fields),
        why,
        detail=words,
        **more,
    )


def ended(
    name: str,
    reason: object,
    verdict: str = "ok",
    engine: str = "vllm",
    why: str = "",
    count: int = 4,
    asked: int = 4,
    **more: Any,
) -> Case:
    """An answer of `count` tokens that ends for a reason."""
    failed = verdict == FAILED
    done = () if engine == "transformers" else (DONE,)
    more.setdefault("detail", str(reason) if failed else "")
    default = "an unknown reason, or one of failure, is a named failure" if failed else "a reason of this engine"
    return Case(
        f"finish reason, {name}",
        verdict,
        stream(*content(count), end(reason), usage(count), END, *done),
        why or default,
        engine=engine,
        tokens=asked,
        **more,
    )


def counted(
    name: str,
    used: object,
    completion: int | tuple[int | None, ...] | None,
    verdict: str = "ok",
    why: str = "an absurd usage is refused",
    engine: str = "",
    **more: Any,
) -> Case:
    """A good answer of four chunks whose usage chunk is `used`, or counts `used` completion tokens."""
    event = used if isinstance(used, bytes) else usage(used)
    script = stream(*content(), end("length"), event, END, DONE)
    return Case(name, verdict, script, why, engine=engine, completion=completion, chunks=4, **more)


def flushes(count: int, size: int, pause: float) -> Script:
    """Content in flushes of `size` chunks, `pause` seconds apart, and the end of the answer."""
    steps: list[Step] = [ROLE]
    for first in range(0, count, size):
        steps += [pause, *([FIRST] if first == 0 else []), *([LAST] if first + size >= count else [])]
        steps.append(b"".join(text(WORDS[index % 8]) for index in range(first, min(first + size, count))))
    return (*steps, end(), usage(count), END, DONE)


def plain(
    name: str,
    verdict: str,
    answer: Any,
    why: str = "a complete answer has no TTFT",
    status: str = "200 OK",
    engine: str = "",
    **more: Any,
) -> Case:
    """A complete JSON answer where no stream was requested."""
    return Case(f"not streamed: {name}", verdict, body(status, answer), why, stream=False, engine=engine, **more)


def item(kind: str, **fields: Any) -> bytes:
    """The start of an output item of the Responses API."""
    return response(
        "response.output_item.added",
        output_index=0,
        item={"id": "it_1", "type": kind, "status": "in_progress", **fields},
    )


def reply(
    name: str, verdict: str, script: Script, why: str = "the Responses API's events", engine: str = "", **more: Any
) -> Case:
    """A case of the Responses API."""
    return Case(name, verdict, script, why, api="responses", engine=engine, **more)


def broken(
    name: str,
    event: bytes,
    words: str,
    verdict: str = "error_in_stream",
    why: str = "an error inside a 200",
    **more: Any,
) -> Case:
    """An answer of the Responses API with an error after two deltas."""
    return reply(name, verdict, stream(*output(2), event), why, detail=words, **more)


def mail(
    name: str, verdict: str, script: Script, why: str = "the Messages API's events", engine: str = "", **more: Any
) -> Case:
    """A case of the Messages API."""
    return Case(name, verdict, script, why, api="messages", engine=engine, **more)


def unsaid(
    name: str,
    event: bytes,
    words: str,
    verdict: str = "error_in_stream",
    why: str = "an error inside a 200",
    **more: Any,
) -> Case:
    """An answer of the Messages API with an error after two deltas."""
    return mail(name, verdict, stream(*blocks(2)[:-1], event), why, detail=words, **more)
