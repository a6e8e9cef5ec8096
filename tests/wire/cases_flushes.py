"""Gateways that hold a stream back."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import END, FIRST, LAST, Case
from tests.wire.events import DONE, ROLE, content, end, text, usage
from tests.wire.families import flushes
from tests.wire.heads import stream

# fmt: off
CASES = (
    Case("all tokens in one flush at the end", "ok", stream(*flushes(16, 16, 0.2)), "TPOT is not measurable", tokens=16, chunks=16, completion=16, tokens_after_first=None),
    Case("eight tokens at a time, two flushes", "ok", stream(*flushes(16, 8, 0.16)), "TPOT is the time after the first flush over its 8 tokens: 20 ms", tokens=16, chunks=16, completion=16, tokens_after_first=8),
    Case("two flushes of unequal size", "ok", stream(ROLE, FIRST, text("a") * 12, 0.12, LAST, text("b") * 4, end(), usage(16), END, DONE), "TPOT is 120 ms over the 4 tokens after the first flush", tokens=16, chunks=16, completion=16, tokens_after_first=4),
    Case("one chunk with all tokens", "ok", stream(ROLE, 0.1, FIRST, LAST, text("all of the answer at once"), end(), usage(16), END, DONE), "TPOT is not measurable", tokens=16, chunks=1, completion=16, tokens_after_first=None),
    Case("one token in all", "ok", stream(*content(1), end(), usage(1), END, DONE), "TPOT needs two tokens", tokens=1, chunks=1, completion=1, tokens_after_first=None),
)
