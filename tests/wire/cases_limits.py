"""Time limits (first token, stall, total), and floods."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import ANSWER, END, FIRST, HOLD, LAST, Case, Limits
from tests.wire.events import DONE, ROLE, chat, content, end, good, text, usage
from tests.wire.families import SHORT
from tests.wire.heads import JSON, LAST_CHUNK, UVICORN, chunk, frame, head, stream, unended, unmarked

# fmt: off
CASES = (
    Case("silent after the request", "timeout_first_token", (HOLD,), "no content in time", limits=SHORT),
    Case("keep-alive comments again and again", "timeout_first_token", (UVICORN, *((chunk(b": keep-alive\n\n"), 0.1) * 8), HOLD), "a keep-alive does not feed the limit", limits=SHORT),
    Case("bytes of a head that never ends", "timeout_first_token", (b"HTTP/1.1 200 OK\r\n", *((b"x-a: b\r\n", 0.1) * 8), HOLD), "headers are no content", limits=SHORT),
    Case("first content just late", "timeout_first_token", (*unended(ROLE), 0.6, *frame(good()), LAST_CHUNK), "a gap above the limit counts wherever it lies", limits=SHORT),
    Case("stall between two content chunks", "timeout_stall", (*unended(*content(2)), HOLD), "a gap above the limit", limits=SHORT, chunks=2),
    Case("a gap above the limit that keep-alives fill", "timeout_stall", (*unended(*content(2)), *((0.1, chunk(b": keep-alive\n\n")) * 8), *frame((text("c"), text("d"), end(), usage(4), DONE)), LAST_CHUNK), "a keep-alive does not feed the limit", limits=SHORT),
    Case("silence after the last content, before the finish reason", "timeout_stall", (*unended(*content(4)), HOLD), "the limit counts from the last content at once", limits=SHORT),
    Case("silence between finish reason and [DONE]", "timeout_stall", (*unended(*content(4), end()), HOLD), "the limit counts from the last content", limits=Limits(first_token=0.4, stall=0.4, total=1.0)),
    Case("steady content past the total limit", "timeout_total", (*unended(*content(4)), *((0.1, chunk(text("x"))) * 15), HOLD), "until the end of the answer", tokens=100, limits=Limits(stall=0.5, total=0.8)),
    Case("reasoning feeds the stall limit", "ok", stream(ROLE, FIRST, chat({"reasoning": "a"}), 0.3, chat({"reasoning": "b"}), 0.3, ANSWER, text("c"), 0.3, LAST, text("d"), end(), usage(4), END, DONE), "reasoning is content", limits=Limits(first_token=1.0, stall=0.7)),
    Case("a 200's JSON body that never ends", "timeout_first_token", (head("200 OK", JSON, "content-length: 1000"), b'{"id":', HOLD), "nothing was answered in time", limits=Limits(first_token=0.4, total=0.8)),
    Case("half a content event, then silence", "timeout_first_token", (*unended(ROLE, text("a")[:40]), HOLD), "half an event is no content", limits=SHORT),
    Case("slow first content within the limit", "ok", stream(0.3, *good()), "within the limit", limits=Limits(first_token=0.9)),
    Case("a gap above the limit that empty deltas fill", "timeout_stall", (*unended(*content(2)), *((0.1, chunk(text(""))) * 8), *frame((text("c"), text("d"), end(), usage(4), DONE)), LAST_CHUNK), "an empty chunk does not feed the limit", limits=SHORT),
    Case("a gap above the limit before the finish reason", "timeout_stall", stream(*content(4), 0.6, end(), usage(4), DONE), "a gap above the limit is timeout_stall wherever it lies", limits=SHORT),
    Case("two gaps just below the limit", "ok", stream(ROLE, FIRST, text("a"), 0.3, text("b"), 0.3, text("c"), LAST, text("d"), end(), usage(4), END, DONE), "each gap is below the limit", limits=Limits(first_token=1.0, stall=0.6)),
    Case("stall limit above the total limit", "timeout_total", (*unended(*content(2)), HOLD), "the total limit comes first", limits=Limits(stall=2.0, total=0.6)),
    Case("tool call fragments feed the stall limit", "ok", stream(ROLE, FIRST, chat({"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}]}), 0.3, chat({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}), 0.3, LAST, chat({"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}), end("tool_calls"), usage(3), END, DONE), "tool calls are content", engine="", limits=Limits(first_token=1.0, stall=0.7)),
    Case("100,000 comments at once", "malformed", (UVICORN, chunk(b":\n\n" * 100_000), *frame(unmarked(good())), LAST_CHUNK), "must not harm neighbours", limits=Limits(5, 5, 8)),
    Case("100,000 empty events at once", "malformed", (UVICORN, chunk(b"data:{}\n\n" * 100_000), *frame(unmarked(good())), LAST_CHUNK), "too many events", limits=Limits(5, 5, 8)),
    Case("a line without end", "malformed", (UVICORN, chunk(b"data: "), *((chunk(b"x" * 65_536), 0.001) * 300), HOLD), "a line has a bound", limits=Limits(first_token=1.5, total=2.0)),
    Case("content without end after the forced length", "malformed", (UVICORN, *frame(unmarked(content(2))), *((chunk(text("x") * 200), 0.005) * 300), HOLD), "far more than was asked for", limits=Limits(first_token=1.0, stall=1.0, total=1.2)),
    Case("an event of data lines without end", "malformed", (UVICORN, *((chunk(b"data: x\n" * 4000), 0.001) * 200), HOLD), "an event has a bound", limits=Limits(first_token=1.5, total=2.0)),
    Case("an error body of 20 MB", "http_5xx", (head("500 Internal Server Error", "content-type: text/plain", "content-length: 20000000"), b"start of the words ", *((b"x" * 65_536,) * 300), HOLD), "the status decides; its body has a bound", detail="start of the words", limits=Limits(first_token=1.5, total=2.0)),
)
