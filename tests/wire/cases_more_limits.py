"""Time limits: first token, stall, total. Held back."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import END, FIRST, HOLD, LAST, Case, Limits
from tests.wire.events import DONE, ROLE, chat, content, end, good, text, usage
from tests.wire.families import SHORT
from tests.wire.heads import LAST_CHUNK, UVICORN, chunk, frame, stream, unended

# fmt: off
CASES = (
    Case("silent after the head", "timeout_first_token", (UVICORN, HOLD), "headers are no content", limits=SHORT),
    Case("role chunks again and again", "timeout_first_token", (UVICORN, *((chunk(ROLE), 0.1) * 8), HOLD), "a role chunk does not feed the limit", limits=SHORT),
    Case("empty deltas again and again", "timeout_first_token", (UVICORN, chunk(ROLE), *((chunk(text("")), 0.1) * 8), HOLD), "an empty chunk is no content", limits=SHORT),
    Case("half a content event, then silence", "timeout_first_token", (*unended(ROLE, text("a")[:40]), HOLD), "half an event is no content", limits=SHORT),
    Case("slow first content within the limit", "ok", stream(0.3, *good()), "within the limit", limits=Limits(first_token=0.9)),
    Case("a gap above the limit, then a good end", "timeout_stall", stream(*content(2), 0.6, text("c"), text("d"), end(), usage(4), DONE), "a gap above the limit is timeout_stall wherever it lies", limits=SHORT),
    Case("a gap above the limit that empty deltas fill", "timeout_stall", (*unended(*content(2)), *((0.1, chunk(text(""))) * 8), *frame((text("c"), text("d"), end(), usage(4), DONE)), LAST_CHUNK), "an empty chunk does not feed the limit", limits=SHORT),
    Case("a gap above the limit before the last content", "timeout_stall", stream(*content(3), 0.6, text("d"), end(), usage(4), DONE), "the limit counts from the last content at once", limits=SHORT),
    Case("a gap above the limit before the finish reason", "timeout_stall", stream(*content(4), 0.6, end(), usage(4), DONE), "a gap above the limit is timeout_stall wherever it lies", limits=SHORT, arguable=True),
    Case("two gaps just below the limit", "ok", stream(ROLE, FIRST, text("a"), 0.3, text("b"), 0.3, text("c"), LAST, text("d"), end(), usage(4), END, DONE), "each gap is below the limit", limits=Limits(first_token=1.0, stall=0.6)),
    Case("stall limit above the total limit", "timeout_total", (*unended(*content(2)), HOLD), "the total limit comes first", limits=Limits(stall=2.0, total=0.6)),
    Case("tool call fragments feed the stall limit", "ok", stream(ROLE, FIRST, chat({"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}]}), 0.3, chat({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}), 0.3, LAST, chat({"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}), end("tool_calls"), usage(3), END, DONE), "tool calls are content", engine="", limits=Limits(first_token=1.0, stall=0.7)),
    Case("keep-alives after the last content, before the finish", "timeout_stall", (*unended(*content(4)), *((0.1, chunk(b": keep-alive\n\n")) * 8), HOLD), "a keep-alive does not feed the limit", limits=SHORT),
)
