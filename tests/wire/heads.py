"""HTTP/1.1 as bytes: heads, chunked framing, framing by length and by close (RFC 9112)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.wire.case import END, FIN, Mark, Script, Step

DATE = "date: Sat, 21 Nov 2026 00:08:51 GMT"
EVENTS = "content-type: text/event-stream; charset=utf-8"
CHUNKED = "transfer-encoding: chunked"
JSON = "content-type: application/json"
LAST_CHUNK = b"0\r\n\r\n"


def head(status: str = "200 OK", *fields: str, version: str = "HTTP/1.1", eol: str = "\r\n") -> bytes:
    """A status line and header fields, with the empty line."""
    return (eol.join([f"{version} {status}", *fields]) + 2 * eol).encode("latin-1")


UVICORN = head("200 OK", DATE, "server: uvicorn", EVENTS, "vary: Origin", CHUNKED)
UNTIL_CLOSE = head("200 OK", DATE, "Content-Type: text/event-stream", "Connection: close")


def chunk(data: bytes, size: str = "%x", extension: str = "") -> bytes:
    """A chunk of the chunked coding."""
    return (size % len(data)).encode() + extension.encode() + b"\r\n" + data + b"\r\n"


def frame(steps: Script, coding: Callable[[bytes], bytes] = chunk) -> Script:
    """Steps with each write as a chunk."""
    return tuple(coding(step) if isinstance(step, bytes) else step for step in steps)


def stream(*steps: Step, head: bytes = UVICORN, coding: Callable[[bytes], bytes] = chunk) -> Script:
    """A chunked answer that ends properly; the connection stays open as HTTP/1.1 says."""
    return (head, *frame(steps, coding), LAST_CHUNK)


def unended(*steps: Step, head: bytes = UVICORN) -> Script:
    """A chunked answer without the last chunk."""
    return (head, *frame(steps))


def until_close(*steps: Step, head: bytes = UNTIL_CLOSE) -> Script:
    """An answer whose end is the end of the connection."""
    return (head, *steps, FIN)


def sized(*steps: Step, fields: tuple[str, ...] = (EVENTS,), extra: int = 0) -> Script:
    """An answer with a Content-Length, wrong by `extra` bytes."""
    length = sum(len(step) for step in steps if isinstance(step, bytes)) + extra
    return (head("200 OK", DATE, *fields, f"Content-Length: {length}"), *steps)


def drip(data: bytes, size: int, pause: float = 0.001) -> Script:
    """The bytes in writes of `size` bytes with pauses between them."""
    steps: list[Step] = []
    for start in range(0, len(data), size):
        steps += [pause, data[start : start + size]]
    return tuple(steps[1:])


def joined(*steps: Step) -> bytes:
    """All writes of the steps as one; pauses and marks are left out."""
    return b"".join(step for step in steps if isinstance(step, bytes))


def unmarked(steps: Script) -> Script:
    """The steps without marks."""
    return tuple(step for step in steps if not isinstance(step, Mark))


def body(status: str, content: bytes | str | dict[str, Any] | list[Any], *fields: str) -> Script:
    """A complete answer that is no event stream."""
    if isinstance(content, dict | list):
        content = json.dumps(content, separators=(",", ":"))
    if isinstance(content, str):
        content = content.encode()
    return (END, head(status, DATE, *(fields or (JSON,)), f"content-length: {len(content)}") + content)
