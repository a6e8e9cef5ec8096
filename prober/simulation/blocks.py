"""The KV cache: how many blocks are held, and the prefix blocks that stay in it for the next request."""

from collections.abc import Iterable, Sequence


class Blocks:
    """Counts of blocks, and prefix blocks by id. A prefix block is `per_prefix` blocks.

    used: held by requests, a prefix block once, however many requests hold it. Prefix blocks that no one holds are free, as
    vLLM counts them, and are known until their room is needed; the longest unused goes first.
    """

    __slots__ = ("_holders", "_idle", "_per", "capacity", "total", "used")

    def __init__(self, total: int, per_prefix: int) -> None:
        self.total = self.capacity = total
        self.used = 0
        self._per = per_prefix
        self._holders: dict[int, int] = {}
        self._idle: dict[int, None] = {}

    @property
    def usage_ratio(self) -> float:
        """Held, of those that are there; 1 if more are held than a loss has left."""
        return min(1.0, self.used / self.capacity) if self.capacity else 1.0

    def take(self, count: int) -> None:
        """`count` more are held, by one request each."""
        self.used += count
        if self._idle:
            self._make_room()

    def known(self, ids: Sequence[int], most: int) -> int:
        """How many of the first `most` ids are known before the first that is not."""
        for at, block in enumerate(ids[:most]):
            if block not in self._holders and block not in self._idle:
                return at
        return min(most, len(ids))

    def cost(self, ids: Iterable[int]) -> int:
        """Blocks by which `used` grows when known ids are held once more."""
        return self._per * sum(block in self._idle for block in ids)

    def hold(self, ids: Iterable[int]) -> None:
        """A request holds known prefix blocks too."""
        for block in ids:
            if block in self._idle:
                del self._idle[block]
                self.used += self._per
            self._holders[block] = self._holders.get(block, 0) + 1
        self._make_room()

    def publish(self, ids: Iterable[int]) -> list[int]:
        """The prefix blocks of a computed prompt become known; returns those that were not, now held as known ones."""
        new = [block for block in dict.fromkeys(ids) if block not in self._holders and block not in self._idle]
        self._holders.update(dict.fromkeys(new, 1))
        return new

    def give(self, count: int, shared: Sequence[int]) -> None:
        """A request lets go of its `count` blocks, those of the ids in `shared` among them."""
        self.used -= count - self._per * len(shared)
        for block in reversed(shared):  # the end of a prompt is forgotten before its beginning
            if self._holders[block] > 1:
                self._holders[block] -= 1
            else:
                del self._holders[block]
                self._idle[block] = None
                self.used -= self._per

    def lose(self, count: int) -> None:
        """`count` blocks of all are not there (0: all are)."""
        self.capacity = max(0, self.total - count)
        self._make_room()

    def flush(self) -> None:
        """Forget the prefix blocks that no one holds; the others cannot be spared."""
        self._idle.clear()

    def _make_room(self) -> None:
        room = max(0, self.capacity - self.used) // self._per
        while len(self._idle) > room:
            del self._idle[next(iter(self._idle))]
