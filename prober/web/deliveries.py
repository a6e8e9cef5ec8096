"""Bodies that clients are reading: however many and slow they are, these take bounded memory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prober.web.lane import Answer

MAX_BYTES = (
    16 << 20
)  # of all bodies that are being read; each counts once. A single larger one is delivered all the same


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
