"""Gateways that hold a stream back. Held back."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import END, FIRST, LAST, Case
from tests.wire.events import DONE, ROLE, chat, content, end, good, text, tokens_used, usage
from tests.wire.families import flushes
from tests.wire.heads import joined, stream

# fmt: off
CASES = (
    Case("all tokens, head and end in one flush", "ok", (0.2, FIRST, joined(*stream(*good(16)))), "TPOT is not measurable", tokens=16, chunks=16, completion=16, tokens_after_first=None),
    Case("eight tokens at a time, four flushes", "ok", stream(*flushes(32, 8, 0.08)), "TPOT is 3 × 80 ms over 24 tokens: 10 ms", tokens=32, chunks=32, completion=32, tokens_after_first=24),
    Case("first token alone, the rest in one flush", "ok", stream(ROLE, FIRST, text("a"), 0.15, LAST, text("b") * 15, end(), usage(16), END, DONE), "TPOT is 150 ms over 15 tokens: 10 ms", tokens=16, chunks=16, completion=16, tokens_after_first=15),
    Case("two chunks of eight tokens", "ok", stream(ROLE, FIRST, chat({"content": "eight tokens are in this chunk"}, usage=tokens_used(8)), 0.16, LAST, chat({"content": "and eight in this"}, "length", usage=tokens_used(16)), usage(16), END, DONE), "160 ms over 8 tokens: 20 ms", tokens=16, chunks=2, completion=16, tokens_after_first=8),
    Case("two tokens, 60 ms apart", "ok", stream(*content(2, 0.06), end(), usage(2), END, DONE), "60 ms over one token", tokens=2, chunks=2, completion=2, tokens_after_first=1),
)
