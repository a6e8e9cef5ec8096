"""Tokenizers of the mock: texts into tokens, in the manner of real vocabularies of different structure, and tokens into blocks."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

TEMPLATE_TOKEN = "<|template|>"
BLOCK_TOKENS = 16
# Pieces of up to four letters with the space before them; each digit and each other character is its own token.
_SUBWORDS = re.compile(r"\d| ?[^\W\d]{1,4}|\s|[^\w\s]|_")


def _bytes(text: str) -> list[str]:
    """Pieces of four bytes, regardless of words."""
    data = text.encode()
    return [data[at : at + 4].hex() for at in range(0, len(data), 4)]


def _triples(text: str) -> list[str]:
    """Three tokens a word: its start, its end and the space after it."""
    return [part for word in text.split() for part in (word[: len(word) // 2], word[len(word) // 2 :], " ")]


TOKENIZERS: dict[str, Callable[[str], list[str]]] = {
    "words": str.split,
    "bytes": _bytes,
    "subwords": _SUBWORDS.findall,
    "triples": _triples,
}


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A tokenizer and its chat template.

    kind: a key of TOKENIZERS
    template_tokens: tokens that the template puts before a chat's text
    """

    kind: str = "words"
    template_tokens: int = 0

    def tokens(self, text: str, *, is_chat: bool) -> tuple[str, ...]:
        """Tokens of a prompt; equal beginnings of texts have equal beginnings of tokens."""
        return (*[TEMPLATE_TOKEN] * (self.template_tokens if is_chat else 0), *TOKENIZERS[self.kind](text))


def block_ids(salt: str, prompt: Sequence[str]) -> Iterator[int]:
    """Ids of the complete blocks of BLOCK_TOKENS. Equal ids mean equal salt and text up to the end of the block."""
    link = hash(salt)
    for start in range(0, len(prompt) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        link = hash((link, tuple(prompt[start : start + BLOCK_TOKENS])))
        yield link
