"""Event streams: line ends, comments, fields, named events (WHATWG, interpreting an event stream)."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import END, FIN, FIRST, LAST, Case
from tests.wire.events import DONE, ROLE, content, end, good, sse, text, usage
from tests.wire.families import REST, lines_end_with, prefixed
from tests.wire.heads import LAST_CHUNK, UVICORN, chunk, joined, stream, until_close

# fmt: off
CASES = (
    Case("CRLF line ends and pings, as sse-starlette sends them", "ok", stream(*lines_end_with(b"\r\n", (b": ping - 2026-11-21 00:08:51.120000\n\n", *good()))), "WHATWG: a line ends with CRLF, LF or CR", engine="tabbyapi", chunks=4),
    Case("line ends of all three kinds mixed", "ok", stream(ROLE, 0.02, FIRST, text("a").replace(b"\n", b"\r\n"), 0.02, text("b").replace(b"\n", b"\r"), 0.02, text("c"), 0.02, LAST, text("d")[:-2] + b"\r\n\n", end(), usage(4), END, DONE), "WHATWG: a line ends with CRLF, LF or CR", chunks=4),
    Case("byte order mark before the first event", "ok", stream(b"\xef\xbb\xbf" + ROLE, 0.02, FIRST, text("a"), *REST), "WHATWG: one leading BOM is ignored", chunks=4),
    Case("byte order mark split over two writes", "ok", stream(b"\xef", 0.01, b"\xbb\xbf" + text("a"), *REST), "WHATWG: UTF-8 decode", chunks=4),
    Case("two spaces behind data:", "ok", stream(ROLE, FIRST, text("a").replace(b"data: ", b"data:  "), *REST), "WHATWG removes one; JSON ignores the other", chunks=4),
    Case("comments between all events", "ok", stream(b": hi\n\n", ROLE, b":\n\n", 0.02, FIRST, text("a"), b": keep-alive\n\n", text("b"), b":\n", text("c"), b": x\n\n", LAST, text("d"), end(), b":\n\n", usage(4), END, DONE), "WHATWG: comments are ignored", chunks=4),
    Case("`data:` with nothing as a heartbeat", "ok", stream(b"data:\n\n", ROLE, b"data:\n\n", FIRST, text("a"), b"data: \n\n", *REST), "empty data carries nothing to read", chunks=4),
    Case("two empty data lines as a heartbeat", "ok", stream(ROLE, FIRST, text("a"), b"data\ndata:\n\n", *REST), "WHATWG dispatches a line feed; there is nothing in it to read", chunks=4, arguable=True),
    Case("`id` and `retry` fields on every event", "ok", stream(*prefixed(b"id: 7\nretry: 3000\n", good())), "WHATWG: fields of reconnection", chunks=4),
    Case("unknown fields", "ok", stream(ROLE, FIRST, b"foo: bar\nData: x\n" + text("a"), *REST), "WHATWG: field names are case-sensitive; unknown ones are ignored", chunks=4),
    Case("named event that is unknown: SGLang's sglext_ids", "ok", stream(ROLE, sse({"token_ids": [1, 2]}, event="sglext_ids"), FIRST, text("a"), *REST), "unknown named events are ignored", engine="sglang", chunks=4),
    Case("every event is named `chat.completion.chunk`", "ok", stream(*prefixed(b"event: chat.completion.chunk\n", good())), "the OpenAI client reads data whatever the event's name", chunks=4, completion=4),
    Case("`event: ping` with an empty object", "ok", stream(ROLE, sse({}, event="ping"), FIRST, text("a"), sse({}, event="ping"), *REST), "a heartbeat of gateways", chunks=4),
    Case("name of an event after its data", "ok", stream(ROLE, FIRST, text("a")[:-1] + b"event: message\n\n", *REST), "WHATWG: the order of fields is free", chunks=4),
    Case("last event without a blank line", "ok", until_close(*content(), end(), usage(4), END, b"data: [DONE]"), "the OpenAI client reads the last line at the end of the body", chunks=4, arguable=True),
    Case("JSON with white space and line feeds escaped", "ok", stream(ROLE, FIRST, b'data: { "choices" : [ { "index" : 0 , "delta" : { "content" : "a\\n\\n" } , "finish_reason" : null } ] }\n\n', *REST), "JSON", chunks=4),
    Case("U+2028 and U+0085 inside a line", "ok", stream(ROLE, FIRST, text("a\u2028b\u0085c"), *REST), "WHATWG: only CR and LF end a line", chunks=4),
    Case("lone surrogate in content", "ok", stream(ROLE, FIRST, text("a").replace(b'"a"', b'"\\ud83d"'), text("b").replace(b'"b"', b'"\\ude00"'), text("c"), text("d"), end(), usage(4), DONE), "JSON text may carry it; clients read it", chunks=4, completion=4),
    Case("duplicate keys in the JSON", "ok", stream(ROLE, FIRST, text("a").replace(b'"model":', b'"model":"x","model":'), *REST), "RFC 8259 §4: the last one counts for most", chunks=4),
    Case("deeply nested JSON in what nobody reads", "malformed", stream(ROLE, FIRST, text("a").replace(b'"logprobs":null', b'"logprobs":' + b"[" * 3000 + b"]" * 3000), *REST), "must not hurt the prober", arguable=True),
    Case("data that is no JSON", "malformed", stream(ROLE, text("a"), b"data: hello world\n\n", text("b"), end(), DONE), "not JSON", detail="hello world"),
    Case("data that is a JSON string with words", "malformed", stream(ROLE, text("a"), b'data: "worker restarting"\n\n', FIN), "an engine's own words", detail="worker restarting"),
    Case("an object without choices as a heartbeat", "ok", stream(ROLE, FIRST, text("a"), sse({"id": "chatcmpl-1", "object": "chat.completion.chunk"}), *REST), "clients see a chunk without content", chunks=4, arguable=True),
    Case("events glued to the head and to each other", "ok", (FIRST, UVICORN + chunk(joined(ROLE, text("a"), text("b"))), 0.03, LAST, chunk(joined(text("c"), text("d"), end())), END, chunk(joined(usage(4), DONE)) + LAST_CHUNK), "TCP has no message bounds", chunks=4, completion=4),
)
