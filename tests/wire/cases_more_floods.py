"""Floods: too many events, too many bytes. Held back."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import HOLD, Case, Limits
from tests.wire.events import DONE, ROLE, end, good, text, usage
from tests.wire.heads import LAST_CHUNK, UVICORN, chunk, frame, head, unmarked

# fmt: off
CASES = (
    Case("100,000 content events at once", "malformed", (UVICORN, *(chunk(text("a") * 1000) for _ in range(100)), *frame((end(), usage(100_000), DONE)), LAST_CHUNK), "too many events for the answer that was asked for", detail="too many events", limits=Limits(5, 5, 8)),
    Case("100,000 blank lines at once", "malformed", (UVICORN, chunk(b"\n" * 100_000), *frame(unmarked(good())), LAST_CHUNK), "blank lines dispatch nothing", limits=Limits(5, 5, 8), arguable=True),
    Case("an event of data lines without end", "malformed", (UVICORN, *((chunk(b"data: x\n" * 4000), 0.001) * 200), HOLD), "an event has a bound", limits=Limits(first_token=1.5, total=2.0)),
    Case("10,000 role chunks at once", "malformed", (UVICORN, *(chunk(ROLE * 500) for _ in range(20)), *frame(unmarked(good())), LAST_CHUNK), "too many events, or merely odd", limits=Limits(5, 5, 8), arguable=True),
    Case("an error body of 20 MB", "http_5xx", (head("500 Internal Server Error", "content-type: text/plain", "content-length: 20000000"), b"start of the words ", *((b"x" * 65_536,) * 300), HOLD), "the status decides; its body has a bound", detail="start of the words", limits=Limits(first_token=1.5, total=2.0)),
)
