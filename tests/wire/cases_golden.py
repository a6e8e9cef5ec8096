"""Golden prompts."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import Case
from tests.wire.events import DONE, ROLE, chat, end, text, usage
from tests.wire.heads import stream

# fmt: off
CASES = (
    Case("golden prompt: the right words", "ok", stream(ROLE, text("The answer"), text(" is "), text("42"), text("."), end("stop"), usage(4), DONE), "contains the text", engine="", golden="42"),
    Case("golden prompt: the words in reasoning only", "wrong_answer", stream(ROLE, chat({"reasoning_content": "is it 42?"}), text("No"), text("."), end("stop"), usage(4), DONE), "reasoning is no answer", engine="", golden="42", arguable=True),
    Case("golden prompt: a surrogate pair split over chunks", "ok", stream(ROLE, text("@").replace(b"@", b"\\ud83d"), text("@").replace(b"@", b"\\ude00"), end("stop"), usage(4), DONE), "two halves of one character, joined", engine="", golden="😀"),
)
