"""Connections that are closed or reset, at every place."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import FIN, RST, Case
from tests.wire.events import ROLE, content, end, text, usage
from tests.wire.heads import JSON, UNTIL_CLOSE, UVICORN, chunk, head, sized, stream, unended

# fmt: off
CASES = (
    Case("reset before the answer", "reset", (RST,), "reset"),
    Case("closed inside the status line", "truncated", (b"HTTP/1.1 20", 0.02, FIN), "clean end, no answer", arguable=True),
    Case("reset inside the head", "reset", (b"HTTP/1.1 200 OK\r\ncontent-ty", 0.02, RST), "reset"),
    Case("reset behind the head", "reset", (UVICORN, 0.02, RST), "reset"),
    Case("reset behind the role chunk", "reset", (*unended(ROLE), 0.02, RST), "reset"),
    Case("last chunk between two content chunks", "truncated", stream(*content(2)), "clean end without finish reason", chunks=2),
    Case("reset between two content chunks", "reset", (*unended(*content(2)), 0.02, RST), "reset", chunks=2),
    Case("closed inside a UTF-8 character", "truncated", (*unended(*content(2)), b"ff\r\n" + text("日").split("日".encode())[0] + b"\xe6", 0.02, FIN), "clean end without finish reason", chunks=2),
    Case("reset inside a JSON text", "reset", (UNTIL_CLOSE, *content(2), b'data: {"choices":[{"index":0,"delta":{"cont', 0.02, RST), "reset", chunks=2),
    Case("Content-Length that ends in mid-answer", "truncated", sized(*content(2), extra=0), "clean end without finish reason", chunks=2),
    Case("reset after the finish reason, before [DONE]", "reset", (*unended(*content(), end()), 0.02, RST), "reset", chunks=4),
    Case("reset inside [DONE]", "reset", (UNTIL_CLOSE, *content(), end(), usage(4), b"data: [DO", 0.02, RST), "reset"),
    Case("reset while 200 kB are on the way", "reset", (UVICORN, chunk(text("x" * 200_000))[:100_000], RST), "reset", arguable=True),
    Case("closed after one token of a forced length", "truncated", (*unended(*content(1)), FIN), "truncated before short", chunks=1),
    Case("closed inside a 503's body", "http_5xx", (head("503 Service Unavailable", JSON, "content-length: 300"), b'{"error":{"message":"no healthy upstream', 0.02, FIN), "the status was clear before the end", detail="no healthy upstream"),
)
