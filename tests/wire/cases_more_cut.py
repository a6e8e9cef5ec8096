"""Connections that are closed or reset, at every place. Held back."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import FIN, HOLD, RST, Case, Limits
from tests.wire.events import ROLE, content, end, good, usage
from tests.wire.heads import JSON, UVICORN, head, sized, unended, until_close

# fmt: off
CASES = (
    Case("closed before the answer", "reset", (FIN,), "no byte of an answer; RFC 9112 §8", arguable=True),
    Case("reset 50 ms after the request", "reset", (0.05, RST), "reset"),
    Case("closed inside the head", "truncated", (b"HTTP/1.1 200 OK\r\ncontent-ty", 0.02, FIN), "clean end, no answer", arguable=True),
    Case("closed behind the head", "truncated", (UVICORN, 0.02, FIN), "clean end without finish reason", arguable=True),
    Case("closed behind the role chunk", "truncated", (*unended(ROLE), 0.02, FIN), "clean end without finish reason"),
    Case("closed between two content chunks", "truncated", (*unended(*content(2)), 0.02, FIN), "clean end without finish reason", chunks=2),
    Case("closed in mid-answer, body until close", "truncated", until_close(*content(2)), "clean end without finish reason", chunks=2),
    Case("closed inside a chunk-size line", "truncated", (*unended(*content(2)), b"1", 0.02, FIN), "clean end without finish reason", chunks=2),
    Case("closed inside a JSON text", "truncated", until_close(*content(2), b'data: {"choices":[{"index":0,"delta":{"cont', 0.02), "clean end without finish reason", chunks=2),
    Case("Content-Length not reached in mid-answer", "truncated", (*sized(*content(2), extra=400), 0.02, FIN), "RFC 9112 §8: incomplete", chunks=2),
    Case("closed after the finish reason, before [DONE]", "truncated", (*unended(*content(), end()), 0.02, FIN), "vLLM sends [DONE]", chunks=4),
    Case("closed inside [DONE]", "truncated", until_close(*content(), end(), usage(4), b"data: [DO", 0.02), "[DONE] did not come"),
    Case("half-closed by the server, which reads on", "truncated", until_close(*content(3)), "FIN ends the body", chunks=3),
    Case("body until close ends right after [DONE]", "ok", until_close(*good()), "the plain end", chunks=4, completion=4),
    Case("reset after a 500's head", "http_5xx", (head("500 Internal Server Error", JSON, "content-length: 100"), b'{"error"', 0.02, RST), "the status was clear before the reset", arguable=True),
    Case("head only of a 429, held open", "http_429", (head("429 Too Many Requests", JSON, "content-length: 300", "retry-after: 1"), HOLD), "the status is the verdict", limits=Limits(first_token=0.5, total=0.8), arguable=True),
)
