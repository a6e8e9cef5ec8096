"""How often: token buckets, one a key, and no more of them than are allowed."""

from collections import OrderedDict


class Rates:
    """`per_s` a second and `burst` at once for each key; of more than `most` keys the one least seen is forgotten."""

    def __init__(self, per_s: float, burst: int, most: int = 1024) -> None:
        self.per_s, self.burst, self._most = per_s, burst, most
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, at which second

    def take(self, key: str, now_s: float) -> float:
        """0 if one more is allowed now, which is then counted; else the seconds until it is."""
        left, at_s = self._left.get(key, (float(self.burst), now_s))
        left = min(float(self.burst), left + max(0.0, now_s - at_s) * self.per_s)
        wait_s = 0.0 if left >= 1.0 else (1.0 - left) / self.per_s
        self._left[key] = (left if wait_s else left - 1.0, now_s)
        self._left.move_to_end(key)
        if len(self._left) > self._most:
            self._left.popitem(last=False)
        return wait_s

    def __len__(self) -> int:
        return len(self._left)
