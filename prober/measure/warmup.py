"""Warm-up: the first latencies of an engine include graph capture, compilation and allocation, and are not typical.

`WarmUp` recognises them among the probes of a target. `WarmUpLength` is how much a command sends before it measures.
"""

from collections import deque
from dataclasses import dataclass, field

HOUR_NS = 3600 * 10**9
DEFAULT_IDLE_NS = 600 * 10**9
MAX_WARM_UPS_PER_HOUR = 10


@dataclass(frozen=True, slots=True)
class WarmUpLength:
    """Length of a warm-up: so many requests, or for so many seconds, the other one is None; with both, what comes first."""

    requests: int | None = None
    seconds: float | None = None

    def is_over(self, requests: int, elapsed_s: float) -> bool:
        """True if the warm-up is complete after so many requests and seconds."""
        is_long = self.seconds is not None and elapsed_s >= self.seconds
        return is_long or (requests >= self.requests if self.requests is not None else self.seconds is None)

    def __str__(self) -> str:
        return f"{self.requests}" if self.requests is not None else f"{self.seconds or 0.0:g}s"


@dataclass(slots=True)
class WarmUp:
    """Counts the warm-up probes of one target.

    The first `count` successes after the start, after `restarted` or after `idle_ns` without a success are warm-up, but at most
    MAX_WARM_UPS_PER_HOUR, so that an engine in a crash loop does not stay in warm-up forever. Failures are never warm-up.
    """

    count: int
    idle_ns: int = DEFAULT_IDLE_NS
    _remaining: int = 0
    _last_ns: int | None = None
    _warm_ups: deque[int] = field(default_factory=deque)

    def restarted(self) -> None:
        """Start a new warm-up: the engine behind the target was restarted."""
        self._last_ns = None

    @property
    def done(self) -> int:
        """Warm-up probes that were answered since the warm-up began."""
        return self.count - self._remaining if self._last_ns is not None else 0

    def record_success(self, now_ns: int) -> bool:
        """Record a success at `now_ns`. Returns True if it is warm-up."""
        if self._last_ns is None or now_ns - self._last_ns > self.idle_ns:
            self._remaining = self.count
        self._last_ns = now_ns
        while self._warm_ups and now_ns - self._warm_ups[0] >= HOUR_NS:
            self._warm_ups.popleft()
        if self._remaining <= 0 or len(self._warm_ups) >= MAX_WARM_UPS_PER_HOUR:
            return False
        self._remaining -= 1
        self._warm_ups.append(now_ns)
        return True
