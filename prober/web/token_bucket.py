"""Token buckets by key, with a maximum number of keys."""

from collections import OrderedDict


class Rates:
    """One token bucket with rate `per_s` and size `burst` per key. Beyond `most` keys the least recently used one is dropped."""

    def __init__(self, per_s: float, burst: int, most: int = 1024) -> None:
        self.per_s, self.burst, self._most = per_s, burst, most
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when they were counted

    def take(self, key: str, now_s: float) -> float:
        """Take a token and return 0, or return the seconds until one is available."""
        left, at_s = self._left.get(key, (float(self.burst), now_s))
        left = min(float(self.burst), left + max(0.0, now_s - at_s) * self.per_s)
        wait_s = 0.0 if left >= 1.0 else (1.0 - left) / self.per_s
        self._left[key] = (left if wait_s else left - 1.0, now_s)
        self._left.move_to_end(key)
        if len(self._left) > self._most:
            self._left.popitem(last=False)
        return wait_s


class TooMany(Exception):
    """A request exceeds a limit; the message names the limit. It may be repeated after `wait_s` seconds."""

    def __init__(self, wait_s: float, why: str) -> None:
        super().__init__(why)
        self.wait_s = wait_s
