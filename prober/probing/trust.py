"""Trust in the prober's own timing: its event loop must not stand still for more than 1% of the last ten seconds."""

from collections import deque
from dataclasses import dataclass, field

WINDOW_S = 10.0
SHARE = 0.01


@dataclass(slots=True)
class Trust:
    """Record of standstills. max_send_lag_s: lateness of the event loop that is no standstill"""

    max_send_lag_s: float
    _standstills: deque[tuple[int, float]] = field(default_factory=deque)  # (its end in ns, seconds)

    def lag(self, now_ns: int, lag_s: float) -> None:
        """Record that the event loop was this late."""
        if lag_s > self.max_send_lag_s:
            self._standstills.append((now_ns, lag_s))

    def trusted(self, now_ns: int) -> bool:
        """True if the event loop stood still for less than the limit, so that latencies are judged."""
        while self._standstills and (now_ns - self._standstills[0][0]) / 1e9 > WINDOW_S:
            self._standstills.popleft()
        return sum(seconds for _, seconds in self._standstills) <= SHARE * WINDOW_S
