"""Bytes before the request, and servers that speak something else. Held back."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import FIN, HOLD, REQUEST, RST, Case, Limits
from tests.wire.events import DONE, ROLE, end, good, text, usage
from tests.wire.heads import LAST_CHUNK, UVICORN, body, chunk, frame, head, joined, stream

# fmt: off
CASES = (
    Case("a complete answer before the request", "malformed", (joined(*stream(*good())), HOLD), "nothing before the request counts", before_request=True),
    Case("head and first content before the request", "malformed", (UVICORN + chunk(ROLE) + chunk(text("a")), REQUEST, *frame((text("b"), text("c"), text("d"), end(), usage(4), DONE)), LAST_CHUNK), "no TTFT is negative", before_request=True),
    Case("503 before the request, then FIN", "malformed", (*body("503 Service Unavailable", "too many connections\n", "content-type: text/plain"), FIN), "a full server; nothing before the request counts", before_request=True, arguable=True),
    Case("an empty line before the request", "malformed", (b"\r\n", REQUEST, *stream(*good())), "no answer, but bytes", before_request=True, arguable=True),
    Case("SSH banner before the request", "malformed", (b"SSH-2.0-OpenSSH_9.6\r\n", HOLD), "another protocol", before_request=True),
    Case("MySQL greeting before the request", "malformed", (b"\x4a\x00\x00\x00\x0a8.0.36\x00", HOLD), "another protocol", before_request=True),
    Case("HTTP/2 SETTINGS frame", "malformed", (b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x80\x00\x04\x00\x01\x00\x00\x00\x05\x00\xff\xff\xff", HOLD), "another protocol"),
    Case("HTTP/2 preface", "malformed", (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", HOLD), "another protocol"),
    Case("TLS alert, then reset", "malformed", (b"\x15\x03\x03\x00\x02\x02\x28", 0.02, RST), "the server speaks TLS", arguable=True),
    Case("101 Switching Protocols", "malformed", (head("101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade"), b"\x81\x05Hello", HOLD), "nobody asked for an upgrade"),
    Case("events without a head", "malformed", (*good(), FIN), "no status line"),
    Case("Redis' error line", "malformed", (b"-ERR unknown command 'POST'\r\n", HOLD), "another protocol"),
    Case("zero bytes", "malformed", (b"\x00" * 4096, HOLD), "another protocol", limits=Limits(first_token=0.6)),
    Case("TLS alert to a TLS hello", "tls", (0.02, b"\x15\x03\x03\x00\x02\x02\x28", FIN), "the handshake fails", tls=True, before_request=True),
    Case("FIN to a TLS hello", "tls", (0.05, FIN), "the handshake fails", tls=True, before_request=True),
    Case("the request echoed", "malformed", (b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n\r\n{}", HOLD), "an echo server is no HTTP server"),
)
