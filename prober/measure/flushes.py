"""Flushes of a stream: content that arrived together.

An engine makes one token after the other. Chunks that arrive closer to each other than an engine makes tokens were therefore held
back on their way (by a gateway, the kernel or the prober itself) and released together. Their gaps say how fast they were
transferred, and nothing about the engine.
"""

from collections.abc import Sequence
from itertools import pairwise

# Content closer than this belongs to one flush. On a quiet machine a stream of 3,300 tokens/s stays above it in 9 of 10 gaps; the
# events of a held-back answer that a relay writes one by one stay below it in 9 of 10 gaps (`bench/buffering.py`).
FLUSH_GAP_NS = 250_000


def flush_starts(stamps_ns: Sequence[int]) -> list[int]:
    """Indices of the first chunk of each flush, shape (flushes,). stamps_ns: arrival of each content chunk, shape (chunks,).

    All chunks are one flush if their mean gap is below FLUSH_GAP_NS: a long answer that was held back takes several reads, some of
    them further apart.
    """
    if not stamps_ns:
        return []
    if stamps_ns[-1] - stamps_ns[0] < FLUSH_GAP_NS * (len(stamps_ns) - 1):
        return [0]
    return [0, *(index for index, (a, b) in enumerate(pairwise(stamps_ns), 1) if b - a >= FLUSH_GAP_NS)]
