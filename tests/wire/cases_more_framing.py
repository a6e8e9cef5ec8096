"""HTTP: heads, chunked framing, framing by length and by close. Held back."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import END, FIN, HOLD, Case, Limits
from tests.wire.events import DONE, ROLE, end, good, text, usage
from tests.wire.heads import (
    CHUNKED,
    EVENTS,
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
    Case("the whole answer in one write", "ok", (END, joined(*stream(*good()))), "one segment; all tokens in one flush have no TPOT", chunks=4, completion=4, tokens_after_first=None),
    Case("HTTP/1.0 answer that ends with the connection", "ok", until_close(*good(), head=head("200 OK", EVENTS, version="HTTP/1.0")), "RFC 9112 §6.3: the body lasts until close", chunks=4, completion=4),
    Case("HTTP/1.0 answer that is held open after [DONE]", "ok", (head("200 OK", EVENTS, version="HTTP/1.0"), *good(), HOLD), "[DONE] ends the answer", chunks=4, completion=4),
    Case("header names in capitals", "ok", stream(*good(), head=head("200 OK", "CONTENT-TYPE: TEXT/EVENT-STREAM", "TRANSFER-ENCODING: CHUNKED")), "RFC 9110 §5.1: names ignore case; media types and codings too", chunks=4),
    Case("white space behind the field values", "ok", stream(*good(), head=head("200 OK", "Content-Type:   text/event-stream  ", "Transfer-Encoding: \tchunked ")), "RFC 9112 §5: optional white space", chunks=4),
    Case("status line that ends behind the code", "ok", stream(*good(), head=head("200", EVENTS, CHUNKED)), "curl, h11 and http.client take it", chunks=4, arguable=True),
    Case("obsolete folded header field", "malformed", stream(*good(), head=head("200 OK", EVENTS, "X-Long: one,\r\n two", CHUNKED)), "RFC 9112 §5.2: a sender must not fold, and this reader refuses it", arguable=True),
    Case("chunk extensions", "ok", stream(*good(), coding=lambda data: chunk(data, extension=';name="a;b"')), "RFC 9112 §7.1.1: extensions are ignored", chunks=4, completion=4),
    Case("chunks that split events and UTF-8 characters", "ok", (UVICORN, *frame(drip(joined(ROLE, text("é€𝄞 Grüße"), text("日本"), text("語"), text("😀"), end(), usage(4), DONE), 7, 0.0)), LAST_CHUNK), "chunks have nothing to do with events", chunks=4, completion=4),
    Case("CR and LF behind a chunk in two writes", "ok", (UVICORN, *frame((ROLE, text("a"), text("b"), text("c"), text("d"), end(), usage(4))), chunk(DONE)[:-1], 0.01, b"\n", 0.01, LAST_CHUNK), "TCP has no message bounds", chunks=4),
    Case("103 Early Hints and 102 Processing before the answer", "ok", (head("103 Early Hints", "Link: </x>; rel=preload"), 0.01, head("102 Processing"), *stream(*good())), "RFC 9110 §15.2, RFC 8297", chunks=4),
    Case("interim answer glued to the final one", "ok", (head("100 Continue") + UVICORN, *frame(good()), LAST_CHUNK), "RFC 9110 §15.2", chunks=4),
    Case("no Content-Type at all", "ok", stream(*good(), head=head("200 OK", CHUNKED)), "clients read the body, not the type", chunks=4, completion=4),
    Case("a good event stream under application/octet-stream", "ok", stream(*good(), head=head("200 OK", "content-type: application/octet-stream", CHUNKED)), "the OpenAI client does not look at the type", chunks=4, arguable=True),
    Case("charset in quotes and further parameters", "ok", stream(*good(), head=head("200 OK", 'Content-Type: text/event-stream; charset="utf-8"; boundary=x', CHUNKED)), "RFC 9110 §8.3.1", chunks=4),
    Case("head in three writes with pauses", "ok", (b"HTTP/1.", 0.01, b"1 200 OK\r\nContent-Ty", 0.01, b"pe: text/event-stream\r\ntransfer-encoding: chunked\r\n\r", 0.01, b"\n", *frame(good()), LAST_CHUNK), "TCP has no message bounds", chunks=4),
    Case("headers at once, content later", "ok", stream(0.15, *good()), "TTFT is not taken from headers", chunks=4),
    Case("a header field of 6 kB", "ok", stream(*good(), head=head("200 OK", EVENTS, CHUNKED, "set-cookie: " + "c" * 6000)), "cookies of gateways are long; 8 kB is the usual limit", chunks=4, arguable=True),
    Case("two equal Content-Length fields", "malformed", sized(*good(), fields=(EVENTS, f"Content-Length: {len(joined(*good()))}")), "RFC 9110 §8.6: may be taken as one", arguable=True),
    Case("Content-Length that is no number", "malformed", (head("200 OK", EVENTS, "Content-Length: many"), *good(), FIN), "RFC 9112 §6.3: unrecoverable error"),
    Case("chunk size that is no number", "malformed", (UVICORN, *frame((ROLE, text("a"))), b"zz\r\nhello\r\n", FIN), "RFC 9112 §7.1"),
    Case("chunk size beyond 64 bits", "malformed", (UVICORN, *frame((ROLE, text("a"))), b"fffffffffffffffffffff\r\nabc\r\n", FIN), "RFC 9112 §7.1: guard against overflow"),
    Case("raw events under chunked coding", "malformed", (UVICORN, *good(), FIN), "a proxy that kept the header and dropped the coding"),
    Case("status line of an unknown HTTP version", "malformed", (head("200 OK", EVENTS, version="HTTP/9.9"), *good(), FIN), "RFC 9112 §2.3", arguable=True),
    Case("NUL in a header value", "malformed", stream(*good(), head=head("200 OK", EVENTS, "x-bad: a\0b", CHUNKED)), "RFC 9110 §5.5: reject or replace", arguable=True),
    Case("endless header fields", "malformed", (b"HTTP/1.1 200 OK\r\n", *((b"x-pad: " + b"p" * 1000 + b"\r\n",) * 300), HOLD), "a head has a bound", limits=Limits(first_token=0.6)),
    Case("an empty line before the status line", "ok", (b"\r\n", *stream(*good())), "some servers leave a CRLF behind", arguable=True),
    Case("unknown transfer coding", "ok", stream(*good(), head=head("200 OK", EVENTS, "transfer-encoding: gzip, chunked")), "nobody asked for gzip", arguable=True),
    Case("an answer of 600 chunks of content", "ok", stream(ROLE, *((text("tok "), 0.0005) * 600), end(), usage(600), DONE), "long answers are answers", tokens=600, chunks=600, completion=600),
)
