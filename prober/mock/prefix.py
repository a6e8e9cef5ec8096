"""A prefix cache: the part of a prompt that an earlier prompt had, in blocks, as in an engine."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

BLOCK_TOKENS = 16
MAX_BLOCKS = 65_536


def chain(salt: str, prompt: Sequence[str]) -> Iterator[int]:
    """Ids of the complete blocks of 16 tokens. Equal ids mean equal salt and text up to the end of the block."""
    link = hash(salt)
    for start in range(0, len(prompt) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        link = hash((link, tuple(prompt[start : start + BLOCK_TOKENS])))
        yield link


@dataclass(slots=True)
class PrefixCache:
    """Stores chains of blocks of 16 tokens by salt and evicts the least recently used."""

    _blocks: dict[int, None] = field(default_factory=dict)

    def cached_tokens(self, salt: str, prompt: Sequence[str]) -> int:
        """Tokens at the start of `prompt` that an earlier prompt with the same salt had; stores the prompt.

        As in engines, the last token is always computed, so a prompt is never cached entirely.
        """
        matched, matching = 0, True
        for block in chain(salt, prompt):
            matching = matching and block in self._blocks
            if matching:
                matched += BLOCK_TOKENS
            # Move the block to the end, so that it is evicted last.
            self._blocks.pop(block, None)
            self._blocks[block] = None
        while len(self._blocks) > MAX_BLOCKS:
            del self._blocks[next(iter(self._blocks))]
        return min(matched, len(prompt) - len(prompt) % BLOCK_TOKENS, max(0, len(prompt) - 1))
