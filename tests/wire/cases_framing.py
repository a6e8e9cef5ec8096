"""HTTP: heads, chunked framing, framing by length and by close."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import END, FIN, FIRST, HOLD, LAST, Case, Limits
from tests.wire.events import DONE, ROLE, end, good, text, usage
from tests.wire.heads import (
    CHUNKED,
    EVENTS,
    JSON,
    LAST_CHUNK,
    UVICORN,
    chunk,
    drip,
    frame,
    head,
    joined,
    sized,
    stream,
    until_close,
)

# fmt: off
CASES = (
    Case("vLLM's answer with usage in its own chunk", "ok", stream(*good()), "the plain case", chunks=4, completion=4, finish="length", tokens_after_first=3),
    Case("one byte a write", "ok", (UVICORN, *frame((ROLE,)), 0.02, FIRST, chunk(text("Hel")), 0.02, *drip(joined(*stream(text("lo "), text("the"), text("re,"), end(), usage(4), DONE, head=b"")), 8, 0.0005)), "TCP has no message bounds", chunks=4, completion=4),
    Case("HTTP/1.1 without a length, until close", "ok", until_close(*good()), "RFC 9112 §6.3 rule 8", chunks=4, completion=4),
    Case("Content-Length stream", "ok", sized(*good()), "a length is as good as chunks", chunks=4, completion=4),
    Case("mixed case and no space behind the colon", "ok", stream(*good(), head=head("200 OK", "CoNtEnT-tYpE:text/event-stream;charset=UTF-8", "Transfer-encoding:chunked")), "RFC 9112 §5: optional white space", chunks=4),
    Case("status line without a reason phrase", "ok", stream(*good(), head=head("200 ", EVENTS, CHUNKED)), "RFC 9112 §4: the reason may be empty", chunks=4),
    Case("head with bare line feeds", "malformed", stream(*good(), head=head("200 OK", EVENTS, CHUNKED, eol="\n")), "RFC 9112 §2.2: a recipient MAY take a single LF; this one does not", arguable=True),
    Case("chunk sizes with capitals and leading zeros", "ok", stream(*good(), coding=lambda data: chunk(data, "%08X")), "RFC 9112 §7.1: 1*HEXDIG", chunks=4, completion=4),
    Case("trailers after the last chunk", "ok", (UVICORN, *frame(good()), b"0\r\nX-Total: 5\r\nServer-Timing: total;dur=5\r\n\r\n"), "RFC 9112 §7.1.2", chunks=4, completion=4),
    Case("a chunk-size line split over two writes", "ok", (UVICORN, *frame((ROLE,)), chunk(text("a"))[:1], 0.01, FIRST, chunk(text("a"))[1:], *frame((text("b"), text("c"), text("d"), end(), usage(4), DONE)), b"0\r", 0.01, b"\n\r\n"), "TCP has no message bounds", chunks=4),
    Case("100 Continue before the answer", "ok", (head("100 Continue"), 0.01, *stream(*good())), "RFC 9110 §15.2: interim answers are skipped", chunks=4),
    Case("early hints, then silence", "timeout_first_token", (head("103 Early Hints"), HOLD), "an interim answer is no content", limits=Limits(first_token=0.4)),
    Case("endless interim answers", "timeout_first_token", (*((head("100 Continue"), 0.01) * 60), HOLD), "no final answer", limits=Limits(first_token=0.5, total=0.9)),
    Case("a good event stream under text/plain", "ok", stream(*good(), head=head("200 OK", "content-type: text/plain", CHUNKED)), "the OpenAI client does not look at the type", chunks=4, arguable=True),
    Case("a good event stream under application/json", "ok", stream(*good(), head=head("200 OK", JSON, CHUNKED)), "the OpenAI client does not look at the type", chunks=4, arguable=True),
    Case("201 with a good stream", "ok", stream(*good(), head=head("201 Created", EVENTS, CHUNKED)), "any 2xx is a success for clients", arguable=True),
    Case("head, role and first content in one write", "ok", (FIRST, UVICORN + chunk(ROLE) + chunk(text("a")), *frame((0.02, text("b"), 0.02, text("c"), 0.02, LAST, text("d"), end(), usage(4), END, DONE)), LAST_CHUNK), "headers are no content and content may come with them", chunks=4, completion=4),
    Case("200 header fields", "ok", stream(*good(), head=head("200 OK", EVENTS, CHUNKED, *(f"x-h-{i}: {'v' * 20}" for i in range(90)))), "proxies add many fields", chunks=4),
    Case("both a length and chunked coding", "malformed", stream(*good(), head=head("200 OK", EVENTS, CHUNKED, "content-length: 10")), "RFC 9112 §6.1: chunked wins, or it is an error", arguable=True),
    Case("two different Content-Length fields", "malformed", sized(*good(), fields=(EVENTS, "Content-Length: 12")), "RFC 9112 §6.3: unrecoverable error"),
    Case("negative Content-Length", "malformed", (head("200 OK", EVENTS, "Content-Length: -5"), *good(), FIN), "RFC 9112 §6.3: unrecoverable error"),
    Case("chunk longer than its size", "malformed", (UVICORN, *frame((ROLE, text("a"))), b"5\r\n" + text("b") + b"\r\n", *frame((end(), DONE)), LAST_CHUNK), "RFC 9112 §7.1: CRLF must follow the data"),
    Case("negative chunk size", "malformed", (UVICORN, *frame((ROLE, text("a"))), b"-5\r\nabcde\r\n", FIN), "RFC 9112 §7.1"),
    Case("status code that is no number", "malformed", (head("OK fine", EVENTS), *good(), FIN), "RFC 9112 §4"),
    Case("header line without a colon", "malformed", stream(*good(), head=head("200 OK", EVENTS, "this is no field", CHUNKED)), "RFC 9112 §5: invalid; user agents may skip it", arguable=True),
    Case("Latin-1 in a header value", "ok", stream(*good(), head=head("200 OK", EVENTS, "x-name: J\xfcrgen", CHUNKED)), "RFC 9110 §5.5: obs-text is opaque", chunks=4),
    Case("one endless header line", "malformed", (b"HTTP/1.1 200 OK\r\nx: ", *((b"y" * 4096,) * 100), HOLD), "a head has a bound", limits=Limits(first_token=0.6)),
    Case("keep-alive and connection fields", "ok", stream(*good(), head=head("200 OK", EVENTS, CHUNKED, "Connection: keep-alive", "Keep-Alive: timeout=5")), "curl shows it from every node server", chunks=4),
    Case("chunked answer, FIN right behind the last chunk", "ok", (*stream(*good()), FIN), "uvicorn with Connection: close", chunks=4, completion=4),
)
