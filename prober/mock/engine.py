"""The engine: when each piece of an answer is due, and who has to wait for a slot. Nanoseconds in, nanoseconds out.

An answer's first chunk is due one TTFT after its service began, each further chunk one ITL a token after the one before. All
due times follow from the start of the service, so a late write shifts nothing.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from prober.mock.delays import Constant, Delay


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What the engine is like.

    slots: requests served at a time, the others wait in order of arrival; 0: no one waits
    background_per_s: rate of the engine's other load, which takes slots and shows on the page
    tokens_per_chunk: tokens of every chunk, the first one too; reasoning: how many tokens of an answer are reasoning
    """

    ttft: Delay = Constant(0.05)
    itl: Delay = Constant(0.01)
    slots: int = 0
    background_per_s: float = 0.0
    tokens_per_chunk: int = 1
    reasoning: int = 0


class Emission(NamedTuple):
    """One chunk of an answer: due so long after the start of the service."""

    due_ns: int
    tokens: int
    reasoning: bool


def chunk_tokens(behaviour: Behaviour, sent: int, tokens: int | None) -> int:
    """Tokens of the chunk after `sent` tokens, of an answer of `tokens` (None: it never ends).

    A chunk holds reasoning or answer, never both, so the last chunk of reasoning and of all may be smaller.
    """
    reasoning = behaviour.reasoning if tokens is None else min(behaviour.reasoning, tokens)
    bound = reasoning if sent < reasoning else tokens
    return behaviour.tokens_per_chunk if bound is None else min(behaviour.tokens_per_chunk, bound - sent)


def emissions(behaviour: Behaviour, tokens: int | None, rng: Random, factor: float = 1.0) -> Iterator[Emission]:
    """The chunks of an answer of `tokens` tokens (None: it never ends), every delay multiplied by `factor`."""
    due_ns, sent = 0, 0
    while tokens is None or sent < tokens:
        size = chunk_tokens(behaviour, sent, tokens)
        if sent == 0:
            due_ns = round(behaviour.ttft.draw_ns(rng) * factor)
        else:
            due_ns += sum(round(behaviour.itl.draw_ns(rng) * factor) for _ in range(size))
        yield Emission(due_ns, size, sent < behaviour.reasoning)
        sent += size


@dataclass(slots=True, eq=False)
class Ticket:
    """One request's place: `started_ns` is None while it waits."""

    entered_ns: int
    started: Callable[[], None]
    started_ns: int | None = None


@dataclass(slots=True)
class Queue:
    """`slots` servers and one line, first come, first served; 0 slots: as many servers as requests."""

    slots: int = 0
    serving: int = 0
    _line: deque[Ticket] = field(default_factory=deque)

    @property
    def waiting(self) -> int:
        """Requests in the line."""
        return len(self._line)

    def enter(self, at_ns: int, started: Callable[[], None]) -> Ticket:
        """A request came; `started` is called once it is served, unless that is now (see `started_ns`)."""
        ticket = Ticket(at_ns, started)
        if self.slots and self.serving >= self.slots:
            self._line.append(ticket)
        else:
            self.serving += 1
            ticket.started_ns = at_ns
        return ticket

    def leave(self, ticket: Ticket, at_ns: int) -> None:
        """A request is over, or given up while it waited. The next one's service begins at `at_ns`, late or not."""
        if ticket.started_ns is None:
            self._line.remove(ticket)
            return
        self.serving -= 1
        if self._line:
            following = self._line.popleft()
            following.started_ns = max(following.entered_ns, at_ns)
            self.serving += 1
            following.started()
