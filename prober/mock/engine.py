"""The drawn engine: due times of chunks, in nanoseconds.

The first chunk of an answer is due one TTFT after the start of its service, each further chunk one ITL per token after its
predecessor. All due times count from the start of the service, so a late write does not shift later ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from prober.mock.delays import Constant, Delay


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Latencies, slots and chunk sizes of the engine.

    slots: requests served at a time; the others wait in order of arrival; 0: no limit
    background_per_s: rate of background requests, which take slots and are counted on the page
    tokens_per_chunk: also of the first chunk
    reasoning: reasoning tokens at the start of an answer
    json_factor: all delays of an answer that must be JSON, as if by a grammar; drawn only
    """

    ttft: Delay = Constant(0.05)
    itl: Delay = Constant(0.01)
    slots: int = 0
    background_per_s: float = 0.0
    tokens_per_chunk: int = 1
    reasoning: int = 0
    json_factor: float = 1.0


class Emission(NamedTuple):
    """A chunk of an answer. due_ns: after the start of the service."""

    due_ns: int
    tokens: int
    reasoning: bool


def chunk_tokens(behaviour: Behaviour, sent: int, tokens: int | None) -> int:
    """Tokens of the chunk after `sent` tokens, of an answer of `tokens` (None: endless).

    A chunk holds reasoning or answer, never both, so the last chunk of reasoning and of all may be smaller.
    """
    reasoning = behaviour.reasoning if tokens is None else min(behaviour.reasoning, tokens)
    bound = reasoning if sent < reasoning else tokens
    return behaviour.tokens_per_chunk if bound is None else min(behaviour.tokens_per_chunk, bound - sent)


def emissions(behaviour: Behaviour, tokens: int | None, rng: Random, factor: float = 1.0) -> Iterator[Emission]:
    """The chunks of an answer of `tokens` tokens (None: endless), every delay multiplied by `factor`."""
    due_ns, sent = 0, 0
    while tokens is None or sent < tokens:
        size = chunk_tokens(behaviour, sent, tokens)
        if sent == 0:
            due_ns = round(behaviour.ttft.draw_ns(rng) * factor)
        else:
            due_ns += sum(round(behaviour.itl.draw_ns(rng) * factor) for _ in range(size))
        yield Emission(due_ns, size, sent < behaviour.reasoning)
        sent += size
