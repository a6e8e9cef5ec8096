"""Golden prompts. Held back."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import FIN, Case
from tests.wire.events import DONE, ROLE, end, text, usage
from tests.wire.heads import LAST_CHUNK, UVICORN, drip, frame, joined, stream, unended

# fmt: off
CASES = (
    Case("golden prompt: other words", "wrong_answer", stream(ROLE, text("The answer"), text(" is "), text("41"), text("."), end("stop"), usage(4), DONE), "does not contain the text", engine="", golden="42"),
    Case("golden prompt: the words split over chunks and UTF-8", "ok", (UVICORN, *frame(drip(joined(ROLE, text("Gr"), text("üß"), text("e!"), end("stop"), usage(4), DONE), 9, 0.0)), LAST_CHUNK), "chunks are joined", engine="", golden="Grüße"),
    Case("golden prompt: the words after a truncated answer", "truncated", (*unended(ROLE, text("42")), FIN), "only an answer that ended can be right", engine="", golden="42"),
)
