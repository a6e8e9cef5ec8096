"""Answers that many clients ask for: made one after the other, shared by all who ask for the same, and held in bounded memory."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from prober.web.token_bucket import TooMany

FRESH_S = 1.0  # how long an answer is given again
MAX_WAITING = 16  # different answers that wait to be made
BUSY = "the prober is busy with other pages"


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """A response that is complete."""

    status: int
    headers: dict[str, str]
    body: bytes | bytearray


class Lane:
    """Makes answers one at a time.

    share: of the time that making may take; each answer is followed by a pause
    """

    def __init__(self, share: float) -> None:
        self._pause_ratio = 1 / share - 1
        self._turn = asyncio.Lock()
        self._next_s = 0.0
        self._fresh: dict[Hashable, Answer] = {}
        self._coming: dict[Hashable, asyncio.Task[Answer]] = {}
        self._generation = self._waiting = 0

    async def get(self, key: Hashable, make: Callable[[], Awaitable[Answer]]) -> Answer:
        """The answer of this key: a fresh one, one that is being made, or a new one. Raises TooMany, and what `make` raises."""
        if (answer := self._fresh.get(key)) is not None:
            return answer
        task = self._coming.get(key)
        if task is None:
            if self._waiting >= MAX_WAITING:
                raise TooMany(FRESH_S, BUSY)
            task = self._coming[key] = asyncio.create_task(self._make(key, make))
            self._waiting += 1
            task.add_done_callback(self._made)
        return await asyncio.shield(task)

    def _made(self, task: "asyncio.Task[Answer]") -> None:
        self._waiting -= 1
        task.cancelled() or task.exception()  # all clients may be gone: nobody else asks for it

    def forget(self) -> None:
        """Give no answer again that was made before now."""
        self._generation += 1
        self._fresh.clear()
        self._coming.clear()

    async def _make(self, key: Hashable, make: Callable[[], Awaitable[Answer]]) -> Answer:
        task, generation = asyncio.current_task(), self._generation
        now = asyncio.get_running_loop().time
        try:
            async with self._turn:
                await asyncio.sleep(max(0.0, self._next_s - now()))
                begin_s = now()
                answer = await make()
                end_s = now()
                self._next_s = end_s + self._pause_ratio * (end_s - begin_s)
        finally:
            if self._coming.get(key) is task:
                del self._coming[key]
        if answer.status == 200 and generation == self._generation:
            self._fresh[key] = answer
            asyncio.get_running_loop().call_later(FRESH_S, self._expire, key, answer)
        return answer

    def _expire(self, key: Hashable, answer: Answer) -> None:
        if self._fresh.get(key) is answer:
            del self._fresh[key]


# Of all bodies that are being read; each counts once. A single larger one is delivered all the same.
MAX_BYTES = 16 << 20


class Deliveries:
    """Deliveries that are under way. When they hold more than `max_bytes`, the clients of the oldest body are cut."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._clients: dict[Answer, dict[int, Callable[[], None]]] = {}  # in order of the first delivery
        self._next = 0

    @property
    def bytes(self) -> int:
        """Bytes of the bodies that are being read."""
        return sum(len(answer.body) for answer in self._clients)

    @contextmanager
    def of(self, answer: Answer, cut: Callable[[], None]) -> Iterator[None]:
        """A delivery of an answer. cut: ends its connection"""
        number = self._next
        self._next += 1
        self._clients.setdefault(answer, {})[number] = cut
        while len(self._clients) > 1 and self.bytes > self._max_bytes:
            oldest = next(each for each in self._clients if each is not answer)
            for end in self._clients.pop(oldest).values():
                end()
        try:
            yield
        finally:
            clients = self._clients.get(answer, {})
            clients.pop(number, None)
            if not clients:
                self._clients.pop(answer, None)
