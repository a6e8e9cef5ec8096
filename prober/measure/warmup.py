"""Which successes are warm-up: they pay for graph capture, compilation and allocation, and are no one's usual latency."""

from collections import deque
from dataclasses import dataclass, field

HOUR_NS = 3600 * 10**9
IDLE_NS = 600 * 10**9
PER_HOUR = 10


@dataclass(slots=True)
class WarmUp:
    """Counts down the warm-up successes of one target.

    The first `count` successes after start, after `restarted`, or after `idle_ns` without a success are warm-up; at most ten an
    hour, so that an engine in a crash loop is not in warm-up for ever. Failures are never warm-up.
    """

    count: int
    idle_ns: int = IDLE_NS
    _left: int = 0
    _last_ns: int | None = None
    _taken: deque[int] = field(default_factory=deque)

    def restarted(self) -> None:
        """The engine behind the target was seen to go away and come back."""
        self._last_ns = None

    def take(self, now_ns: int) -> bool:
        """A probe succeeded at `now_ns`: is it warm-up?"""
        if self._last_ns is None or now_ns - self._last_ns > self.idle_ns:
            self._left = self.count
        self._last_ns = now_ns
        while self._taken and now_ns - self._taken[0] >= HOUR_NS:
            self._taken.popleft()
        if self._left <= 0 or len(self._taken) >= PER_HOUR:
            return False
        self._left -= 1
        self._taken.append(now_ns)
        return True
