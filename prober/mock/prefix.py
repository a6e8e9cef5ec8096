"""The prefix cache: which part of a prompt was seen before, in whole blocks, as an engine keeps it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

BLOCK_TOKENS = 16
CAPACITY_BLOCKS = 65_536


def chain(salt: str, prompt: Sequence[str]) -> Iterator[int]:
    """An id of each whole block of 16 tokens: equal ids, equal salt and text up to the block's end."""
    link = hash(salt)
    for start in range(0, len(prompt) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        link = hash((link, tuple(prompt[start : start + BLOCK_TOKENS])))
        yield link


@dataclass(slots=True)
class PrefixCache:
    """Remembers chains of blocks of 16 tokens by salt; the oldest blocks give way."""

    _blocks: dict[int, None] = field(default_factory=dict)

    def cached_tokens(self, salt: str, prompt: Sequence[str]) -> int:
        """Tokens at the start of `prompt` that an earlier prompt of the same salt had; the prompt is remembered.

        The last token is always computed, as engines do, so a prompt is never wholly cached.
        """
        matched, matching = 0, True
        for block in chain(salt, prompt):
            matching = matching and block in self._blocks
            if matching:
                matched += BLOCK_TOKENS
            # Anew at the end: what is used stays.
            self._blocks.pop(block, None)
            self._blocks[block] = None
        while len(self._blocks) > CAPACITY_BLOCKS:
            del self._blocks[next(iter(self._blocks))]
        return min(matched, len(prompt) - len(prompt) % BLOCK_TOKENS, max(0, len(prompt) - 1))
