"""Event streams: line ends, comments, fields, named events (WHATWG, interpreting an event stream). Held back."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import END, FIRST, Case
from tests.wire.events import DONE, ROLE, content, end, good, text, usage
from tests.wire.families import REST, lines_end_with, prefixed, replaced
from tests.wire.heads import stream, until_close

# fmt: off
CASES = (
    Case("CR line ends", "ok", stream(*lines_end_with(b"\r", good())), "WHATWG: a line ends with CRLF, LF or CR", chunks=4, completion=4),
    Case("CR and LF of one line end in two chunks", "ok", stream(ROLE[:-2] + b"\r", b"\n\r", b"\n" + text("a")[:-2] + b"\r", 0.01, b"\n\r\n", text("b"), text("c"), text("d"), end(), usage(4), DONE), "a CR at the end of a write waits for its LF or is a line end by itself", chunks=4),
    Case("byte order mark in front of the first content", "ok", stream(b"\xef\xbb\xbf" + text("a"), *REST), "WHATWG: one leading BOM is ignored; the content of the event is read", chunks=4),
    Case("no space behind data:", "ok", stream(ROLE.replace(b"data: ", b"data:"), 0.02, FIRST, text("a").replace(b"data: ", b"data:"), *replaced(b"data: ", b"data:", REST)), "WHATWG: one space is optional", engine="tgi", chunks=4),
    Case("space behind the JSON", "ok", stream(ROLE[:-2] + b" \n\n", FIRST, text("a")[:-2] + b" \n\n", *REST), "TensorRT-LLM writes it", engine="trtllm", chunks=4),
    Case("comments do not start TTFT", "ok", stream(b": keep-alive\n\n", 0.1, b": keep-alive\n\n", 0.1, ROLE, FIRST, text("a"), *REST), "TTFT: never a comment or keep-alive", chunks=4),
    Case("`data` without a colon as a heartbeat", "ok", stream(b"data\n\n", ROLE, FIRST, text("a"), b"data\n\n", *REST), "empty data carries nothing to read", chunks=4),
    Case("blank lines between events", "ok", stream(b"\n\n\n", ROLE, b"\n", FIRST, text("a"), b"\n\n\n\n", *REST), "empty data carries nothing to read", chunks=4),
    Case("an event of `retry` alone", "ok", stream(b"retry: 3000\n\n", *good()), "empty data carries nothing to read", chunks=4),
    Case("JSON over several data lines", "ok", stream(ROLE, FIRST, b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","model":"probe-model",\ndata: "choices":[{"index":0,\ndata:"delta":{"content":"a"},"finish_reason":null}]}\n\n', *REST), "WHATWG: data lines are joined with line feeds", chunks=4),
    Case("every event is named `message`", "ok", stream(*prefixed(b"event: message\n", good())), "WHATWG: `message` is the default type; clients read it", chunks=4, completion=4),
    Case("`event: completion` on content, `event: done` on [DONE]", "ok", stream(*prefixed(b"event: completion\n", (*content(), end(), usage(4))), END, b"event: done\ndata: [DONE]\n\n"), "the OpenAI client reads data whatever the event's name", chunks=4, completion=4),
    Case("`event:` with an empty name", "ok", stream(ROLE, FIRST, b"event:\n" + text("a"), *REST), "WHATWG: an empty type is `message`", chunks=4),
    Case("event split so that its blank line comes later", "ok", stream(ROLE, 0.02, text("a")[:-1], 0.2, FIRST, b"\n", *REST), "WHATWG: the blank line dispatches", chunks=4),
    Case("content event without a blank line at the end of the body", "truncated", until_close(ROLE, text("a"), text("b"), text("c")[:-2]), "WHATWG: an incomplete event is discarded; no finish reason in any case"),
    Case("JSON with a tab before it", "ok", stream(ROLE, FIRST, text("a").replace(b"data: ", b"data: \t"), *REST), "JSON white space", chunks=4),
    Case("invalid UTF-8 inside content", "malformed", stream(ROLE, FIRST, text("a").replace(b'"a"', b'"a\xff\xfe"'), *REST), "JSON is UTF-8 (RFC 8259 §8.1); the OpenAI client raises", arguable=True),
    Case("NaN in what nobody reads", "ok", stream(ROLE, FIRST, text("a").replace(b'"logprobs":null', b'"logprobs":NaN'), text("b").replace(b'"logprobs":null', b'"logprobs":-Infinity'), text("c"), text("d"), end(), usage(4), DONE), "Python servers write NaN; the OpenAI client reads it", chunks=4, completion=4),
    Case("number of 400 digits in what nobody reads", "ok", stream(ROLE, FIRST, text("a").replace(b'"created":1795219731', b'"created":' + b"1" * 400), *REST), "JSON has no bound", arguable=True),
    Case("JSON that is cut inside an event", "malformed", stream(ROLE, text("a"), b'data: {"choices":[{"index":0,"delta":{"con\n\n', text("b"), end(), DONE), "not JSON"),
    Case("data that is a JSON array", "malformed", stream(ROLE, text("a"), b"data: [1,2]\n\n", text("b"), end(), DONE), "no chunk", arguable=True),
    Case("data that is null", "malformed", stream(ROLE, FIRST, text("a"), b"data: null\n\n", *REST), "no chunk; nothing said either", arguable=True),
    Case("a data line of 1 MB of content", "malformed", stream(ROLE, FIRST, text("x" * 1_000_000), *REST), "a line of an answer of 4 tokens is bounded", arguable=True),
)
