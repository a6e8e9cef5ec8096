"""Time limits: first token, stall, total."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import ANSWER, END, FIRST, HOLD, LAST, Case, Limits
from tests.wire.events import DONE, ROLE, chat, content, end, good, text, usage
from tests.wire.families import SHORT
from tests.wire.heads import JSON, LAST_CHUNK, UVICORN, chunk, frame, head, stream, unended

# fmt: off
CASES = (
    Case("silent after the request", "timeout_first_token", (HOLD,), "no content in time", limits=SHORT),
    Case("silent after the role chunk", "timeout_first_token", (*unended(ROLE), HOLD), "a role chunk is no content", limits=SHORT),
    Case("keep-alive comments again and again", "timeout_first_token", (UVICORN, *((chunk(b": keep-alive\n\n"), 0.1) * 8), HOLD), "a keep-alive does not feed the limit", limits=SHORT),
    Case("bytes of a head that never ends", "timeout_first_token", (b"HTTP/1.1 200 OK\r\n", *((b"x-a: b\r\n", 0.1) * 8), HOLD), "headers are no content", limits=SHORT),
    Case("first content just late", "timeout_first_token", (*unended(ROLE), 0.6, *frame(good()), LAST_CHUNK), "a gap above the limit counts wherever it lies", limits=SHORT),
    Case("stall between two content chunks", "timeout_stall", (*unended(*content(2)), HOLD), "a gap above the limit", limits=SHORT, chunks=2),
    Case("a gap above the limit that keep-alives fill", "timeout_stall", (*unended(*content(2)), *((0.1, chunk(b": keep-alive\n\n")) * 8), *frame((text("c"), text("d"), end(), usage(4), DONE)), LAST_CHUNK), "a keep-alive does not feed the limit", limits=SHORT),
    Case("a gap above the limit right after the first content", "timeout_stall", stream(ROLE, LAST, FIRST, text("a"), 0.6, text("b"), text("c"), text("d"), end(), usage(4), DONE), "the limit counts from the last content at once", limits=SHORT),
    Case("silence after the last content, before the finish reason", "timeout_stall", (*unended(*content(4)), HOLD), "the limit counts from the last content at once", limits=SHORT),
    Case("silence between finish reason and [DONE]", "timeout_stall", (*unended(*content(4), end()), HOLD), "the limit counts from the last content", limits=Limits(first_token=0.4, stall=0.4, total=1.0), arguable=True),
    Case("steady content past the total limit", "timeout_total", (*unended(*content(4)), *((0.1, chunk(text("x"))) * 15), HOLD), "until the end of the answer", tokens=100, limits=Limits(stall=0.5, total=0.8)),
    Case("reasoning feeds the stall limit", "ok", stream(ROLE, FIRST, chat({"reasoning": "a"}), 0.3, chat({"reasoning": "b"}), 0.3, ANSWER, text("c"), 0.3, LAST, text("d"), end(), usage(4), END, DONE), "reasoning is content", limits=Limits(first_token=1.0, stall=0.7)),
    Case("a 200's JSON body that never ends", "timeout_first_token", (head("200 OK", JSON, "content-length: 1000"), b'{"id":', HOLD), "nothing was answered in time", limits=Limits(first_token=0.4, total=0.8)),
)
