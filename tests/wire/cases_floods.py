"""Floods: too many events, too many bytes."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import HOLD, Case, Limits
from tests.wire.events import content, good, text
from tests.wire.heads import LAST_CHUNK, UVICORN, chunk, frame, unmarked

# fmt: off
CASES = (
    Case("100,000 comments at once", "malformed", (UVICORN, chunk(b":\n\n" * 100_000), *frame(unmarked(good())), LAST_CHUNK), "must not harm neighbours", arguable=True, limits=Limits(5, 5, 8)),
    Case("100,000 empty events at once", "malformed", (UVICORN, chunk(b"data:{}\n\n" * 100_000), *frame(unmarked(good())), LAST_CHUNK), "too many events", limits=Limits(5, 5, 8), arguable=True),
    Case("a line without end", "malformed", (UVICORN, chunk(b"data: "), *((chunk(b"x" * 65_536), 0.001) * 300), HOLD), "a line has a bound", limits=Limits(first_token=1.5, total=2.0)),
    Case("100,000 chunks of one byte of comment", "malformed", (UVICORN, (chunk(b":") + chunk(b"\n")) * 50_000, *frame(unmarked(good())), LAST_CHUNK), "must not harm neighbours", limits=Limits(5, 5, 8), arguable=True),
    Case("content without end after the forced length", "malformed", (UVICORN, *frame(unmarked(content(2))), *((chunk(text("x") * 200), 0.005) * 300), HOLD), "far more than was asked for", limits=Limits(first_token=1.0, stall=1.0, total=1.2)),
)
