"""Event streams: WHATWG's text, and deviations of servers."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import END, FIRST, LAST, Case
from tests.wire.events import (
    DONE,
    MESSAGE_STOP,
    ROLE,
    blocks,
    completed,
    content,
    end,
    good,
    message_delta,
    output,
    sse,
    text,
    usage,
)
from tests.wire.families import REST, lines_end_with, prefixed, replaced
from tests.wire.heads import stream, until_close

# fmt: off
CASES = (
    Case("CRLF line ends and pings, as sse-starlette sends them", "ok", stream(*lines_end_with(b"\r\n", (b": ping - 2026-11-21 00:08:51.120000\n\n", *good()))), "WHATWG: a line ends with CRLF, LF or CR", engine="tabbyapi", chunks=4),
    Case("line ends of all three kinds mixed", "ok", stream(ROLE, 0.02, FIRST, text("a").replace(b"\n", b"\r\n"), 0.02, text("b").replace(b"\n", b"\r"), 0.02, text("c"), 0.02, LAST, text("d")[:-2] + b"\r\n\n", end(), usage(4), END, DONE), "WHATWG: a line ends with CRLF, LF or CR", chunks=4),
    Case("byte order mark before the first event", "ok", stream(b"\xef\xbb\xbf" + ROLE, 0.02, FIRST, text("a"), *REST), "WHATWG: one leading BOM is ignored", chunks=4),
    Case("byte order mark split over two writes", "ok", stream(b"\xef", 0.01, b"\xbb\xbf" + text("a"), *REST), "WHATWG: UTF-8 decode", chunks=4),
    Case("`data:` with nothing as a heartbeat", "ok", stream(b"data:\n\n", ROLE, b"data:\n\n", FIRST, text("a"), b"data: \n\n", *REST), "empty data carries nothing to read", chunks=4),
    Case("`id` and `retry` fields on every event", "ok", stream(*prefixed(b"id: 7\nretry: 3000\n", good())), "WHATWG: fields of reconnection", chunks=4),
    Case("unknown fields", "ok", stream(ROLE, FIRST, b"foo: bar\nData: x\n" + text("a"), *REST), "WHATWG: field names are case-sensitive; unknown ones are ignored", chunks=4),
    Case("named event that is unknown: SGLang's sglext_ids", "ok", stream(ROLE, sse({"token_ids": [1, 2]}, event="sglext_ids"), FIRST, text("a"), *REST), "unknown named events are ignored", engine="sglang", chunks=4),
    Case("`event: ping` with an empty object", "ok", stream(ROLE, sse({}, event="ping"), FIRST, text("a"), sse({}, event="ping"), *REST), "a heartbeat of gateways", chunks=4),
    Case("name of an event after its data", "ok", stream(ROLE, FIRST, text("a")[:-1] + b"event: message\n\n", *REST), "WHATWG: the order of fields is free", chunks=4),
    Case("last event without a blank line", "ok", until_close(*content(), end(), usage(4), END, b"data: [DONE]"), "the OpenAI client reads the last line at the end of the body", chunks=4),
    Case("U+2028 and U+0085 inside a line", "ok", stream(ROLE, FIRST, text("a\u2028b\u0085c"), *REST), "WHATWG: only CR and LF end a line", chunks=4),
    Case("lone surrogate in content", "ok", stream(ROLE, FIRST, text("a").replace(b'"a"', b'"\\ud83d"'), text("b").replace(b'"b"', b'"\\ude00"'), text("c"), text("d"), end(), usage(4), DONE), "JSON text may carry it; clients read it", chunks=4, completion=4),
    Case("duplicate keys in the JSON", "ok", stream(ROLE, FIRST, text("a").replace(b'"model":', b'"model":"x","model":'), *REST), "RFC 8259 §4: the last one counts for most", chunks=4),
    Case("deeply nested JSON in what nobody reads", "malformed", stream(ROLE, FIRST, text("a").replace(b'"logprobs":null', b'"logprobs":' + b"[" * 3000 + b"]" * 3000), *REST), "must not hurt the prober"),
    Case("data that is no JSON", "malformed", stream(ROLE, text("a"), b"data: hello world\n\n", text("b"), end(), DONE), "not JSON", detail="hello world"),
    Case("an object without choices as a heartbeat", "ok", stream(ROLE, FIRST, text("a"), sse({"id": "chatcmpl-1", "object": "chat.completion.chunk"}), *REST), "clients see a chunk without content", chunks=4),
    Case("CR line ends", "ok", stream(*lines_end_with(b"\r", good())), "WHATWG: a line ends with CRLF, LF or CR", chunks=4, completion=4),
    Case("CR and LF of one line end in two chunks", "ok", stream(ROLE[:-2] + b"\r", b"\n\r", b"\n" + text("a")[:-2] + b"\r", 0.01, b"\n\r\n", text("b"), text("c"), text("d"), end(), usage(4), DONE), "a CR at the end of a write waits for its LF or is a line end by itself", chunks=4),
    Case("no space behind data:", "ok", stream(ROLE.replace(b"data: ", b"data:"), 0.02, FIRST, text("a").replace(b"data: ", b"data:"), *replaced(b"data: ", b"data:", REST)), "WHATWG: one space is optional", engine="tgi", chunks=4),
    Case("space behind the JSON", "ok", stream(ROLE[:-2] + b" \n\n", FIRST, text("a")[:-2] + b" \n\n", *REST), "TensorRT-LLM writes it", engine="trtllm", chunks=4),
    Case("comments do not start TTFT", "ok", stream(b": keep-alive\n\n", 0.1, b": keep-alive\n\n", 0.1, ROLE, FIRST, text("a"), *REST), "TTFT: never a comment or keep-alive", chunks=4),
    Case("JSON over several data lines", "ok", stream(ROLE, FIRST, b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","model":"probe-model",\ndata: "choices":[{"index":0,\ndata:"delta":{"content":"a"},"finish_reason":null}]}\n\n', *REST), "WHATWG: data lines are joined with line feeds", chunks=4),
    Case("`event: completion` on content, `event: done` on [DONE]", "ok", stream(*prefixed(b"event: completion\n", (*content(), end(), usage(4))), END, b"event: done\ndata: [DONE]\n\n"), "the OpenAI client reads data whatever the event's name", chunks=4, completion=4),
    Case("event split so that its blank line comes later", "ok", stream(ROLE, 0.02, text("a")[:-1], 0.2, FIRST, b"\n", *REST), "WHATWG: the blank line dispatches", chunks=4),
    Case("content event without a blank line at the end of the body", "truncated", until_close(ROLE, text("a"), text("b"), text("c")[:-2]), "WHATWG: an incomplete event is discarded; no finish reason in any case"),
    Case("invalid UTF-8 inside content", "malformed", stream(ROLE, FIRST, text("a").replace(b'"a"', b'"a\xff\xfe"'), *REST), "JSON is UTF-8 (RFC 8259 §8.1); the OpenAI client raises"),
    Case("NaN in what nobody reads", "ok", stream(ROLE, FIRST, text("a").replace(b'"logprobs":null', b'"logprobs":NaN'), text("b").replace(b'"logprobs":null', b'"logprobs":-Infinity'), text("c"), text("d"), end(), usage(4), DONE), "Python servers write NaN; the OpenAI client reads it", chunks=4, completion=4),
    *(Case(f"data that is {value}", "ok", stream(ROLE, FIRST, text("a"), f"data: {value}\n\n".encode(), *REST), "JSON of no object carries nothing to read, as empty data", chunks=4, completion=4) for value in ("null", "[]", "[1,2]", '"ping"', "0", "true", "1.5", '[{"id":1}]')),
    *(Case(f"responses: data that is {value}", "ok", stream(*output(), f"data: {value}\n\n".encode(), END, completed(4)), "JSON of no object carries nothing to read", api="responses", engine="", chunks=4, completion=4) for value in ("null", '"ping"', "[]")),
    *(Case(f"messages: data that is {value}", "ok", stream(*blocks(), f"data: {value}\n\n".encode(), message_delta(), END, MESSAGE_STOP), "JSON of no object carries nothing to read", api="messages", engine="", chunks=4, completion=4) for value in ("null", '"ping"', "0")),
    *(Case(f"choices that are {value}", "ok", stream(ROLE, FIRST, text("a"), f'data: {{"choices":{value}}}\n\n'.encode(), *REST), "no choice is an object", chunks=4, completion=4) for value in ("[null]", "[]", "null", '["a"]', "[null,null]")),
    *(Case(f"data that begins as JSON: {value}", "malformed", stream(ROLE, text("a"), f"data: {value}\n\n".encode(), *REST), "not JSON", detail="not JSON") for value in ("nul", '"ping', "[1,2", "ping", "{}{}")),
    Case("only data that is null", "truncated", stream(b"data: null\n\n"), "nothing was said"),
    Case("a data line of 1 MB of content", "malformed", stream(ROLE, FIRST, text("x" * 1_000_000), *REST), "a line of an answer of 4 tokens is bounded"),
)
