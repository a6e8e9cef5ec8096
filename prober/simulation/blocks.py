"""KV cache of the simulated engine: used blocks, and prefix blocks cached for later requests."""

from collections.abc import Iterable, Sequence


class Blocks:
    """Used KV cache blocks, and cached prefix blocks by id. A prefix block counts as `per_prefix` blocks.

    used: blocks held by requests; a prefix block counts once, even if several requests hold it. As in vLLM, prefix blocks that no
    request holds count as free; they stay cached until their room is needed, the least recently used being evicted first.
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
        """Used ÷ available blocks; 1 if fewer are available than used."""
        return min(1.0, self.used / self.capacity) if self.capacity else 1.0

    def take(self, count: int) -> None:
        """Allocate `count` private blocks."""
        self.used += count
        if self._idle:
            self._make_room()

    def cached_count(self, ids: Sequence[int], most: int) -> int:
        """Number of the first `most` ids that are cached, counted from the start up to the first gap."""
        for at, block in enumerate(ids[:most]):
            if block not in self._holders and block not in self._idle:
                return at
        return min(most, len(ids))

    def cost(self, ids: Iterable[int]) -> int:
        """Number of blocks by which `used` grows if one more request holds these cached ids."""
        return self._per * sum(block in self._idle for block in ids)

    def hold(self, ids: Iterable[int]) -> None:
        """Count one more request as a holder of these cached prefix blocks."""
        for block in ids:
            if block in self._idle:
                del self._idle[block]
                self.used += self._per
            self._holders[block] = self._holders.get(block, 0) + 1
        self._make_room()

    def publish(self, ids: Iterable[int]) -> list[int]:
        """Cache the prefix blocks of a computed prompt, held by its request. Returns those that were not cached before."""
        new = [block for block in dict.fromkeys(ids) if block not in self._holders and block not in self._idle]
        self._holders.update(dict.fromkeys(new, 1))
        return new

    def release(self, count: int, shared: Sequence[int]) -> None:
        """Release a request's `count` blocks, of which the `shared` prefix blocks stay cached."""
        self.used -= count - self._per * len(shared)
        for block in reversed(shared):  # evict the end of a prompt before its beginning
            if self._holders[block] > 1:
                self._holders[block] -= 1
            else:
                del self._holders[block]
                self._idle[block] = None
                self.used -= self._per

    def lose(self, count: int) -> None:
        """Make `count` of all blocks unavailable; 0 makes all available again."""
        self.capacity = max(0, self.total - count)
        self._make_room()

    def flush(self) -> None:
        """Drop the cached prefix blocks that no request holds."""
        self._idle.clear()

    def _make_room(self) -> None:
        room = max(0, self.capacity - self.used) // self._per
        while len(self._idle) > room:
            del self._idle[next(iter(self._idle))]
