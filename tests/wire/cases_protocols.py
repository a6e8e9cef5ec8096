"""Bytes before the request, and servers that speak something else."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import FIN, HOLD, REQUEST, RST, Case
from tests.wire.events import good
from tests.wire.heads import LAST_CHUNK, UVICORN, body, frame, head, stream

# fmt: off
CASES = (
    Case("head before the request, content after it", "malformed", (UVICORN, REQUEST, *frame(good()), LAST_CHUNK), "an answer that begins before the request", before_request=True),
    Case("408 before the request, then FIN", "http_408", (head("408 Request Timeout", "content-length: 0", "connection: close"), FIN), "HAProxy writes it to an idle connection; nothing before the request counts", before_request=True, arguable=True),
    Case("100 Continue before the request", "malformed", (head("100 Continue"), REQUEST, *stream(*good())), "an interim answer before the request", before_request=True, arguable=True),
    Case("half a status line before the request", "malformed", (b"HTTP/1.1 2", REQUEST, UVICORN[10:], *frame(good()), LAST_CHUNK), "an answer that begins before the request", before_request=True),
    Case("SMTP banner before the request", "malformed", (b"220 mail.example.test ESMTP\r\n", HOLD), "another protocol", before_request=True),
    Case("SSH banner after the request", "malformed", (b"SSH-2.0-OpenSSH_9.6\r\n", HOLD), "another protocol"),
    Case("HTTP/2 GOAWAY, then FIN", "malformed", (b"\x00\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01", FIN), "another protocol"),
    Case("TLS alert to a plain request", "malformed", (b"\x15\x03\x01\x00\x02\x02\x46", FIN), "the server speaks TLS"),
    Case("nginx's answer to plain HTTP on a TLS port", "rejected", body("400 Bad Request", "<html><head><title>400 The plain HTTP request was sent to HTTPS port</title></head></html>", "Content-Type: text/html"), "the status decides", detail="plain HTTP request was sent to HTTPS port"),
    Case("HTTP/0.9: a body without a head", "malformed", (b"<html>hello</html>\n", FIN), "RFC 9112 has no HTTP/0.9"),
    Case("Shoutcast's status line", "malformed", (b"ICY 200 OK\r\ncontent-type: text/event-stream\r\n\r\n", *good(), FIN), "no HTTP", arguable=True),
    Case("a megabyte of noise", "malformed", (*((bytes(range(256)) * 64,) * 64), HOLD), "another protocol"),
    Case("plain HTTP 400 to a TLS hello", "tls", (head("400 Bad Request", "content-length: 0"), FIN), "the handshake fails", tls=True, before_request=True),
    Case("reset of a TLS hello", "tls", (0.05, RST), "the handshake fails", tls=True, before_request=True, arguable=True),
    Case("SSH banner to a TLS hello", "tls", (b"SSH-2.0-OpenSSH_9.6\r\n", HOLD), "the handshake fails", tls=True, before_request=True),
    Case("a second answer behind the first", "ok", (*stream(*good()), *stream(*good())), "one request has one answer", chunks=4, completion=4),
)
