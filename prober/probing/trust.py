"""Does the prober trust itself? Over a sliding five minutes: probes invalid, event loop late, due times missed."""

from collections import deque
from dataclasses import dataclass, field

WINDOW_NS = 300 * 10**9
STEP_NS = 10 * 10**9
SHARE = 0.01


@dataclass(slots=True)
class _Step:
    start_ns: int
    probes: int = 0
    invalid: int = 0
    lags: int = 0
    late: int = 0
    missed: int = 0


@dataclass(slots=True)
class Trust:
    """Counts in steps of ten seconds. `max_send_lag_s`: loop lag that 99% of readings must stay under."""

    max_send_lag_s: float
    _steps: deque[_Step] = field(default_factory=deque)

    def probe(self, now_ns: int, *, invalid: bool) -> None:
        """A probe ended."""
        step = self._step(now_ns)
        step.probes += 1
        step.invalid += invalid

    def lag(self, now_ns: int, lag_s: float) -> None:
        """The event loop was this late."""
        step = self._step(now_ns)
        step.lags += 1
        step.late += lag_s > self.max_send_lag_s

    def missed(self, now_ns: int) -> None:
        """A due time passed without its probe being sent, for want of the prober."""
        self._step(now_ns).missed += 1

    def trusted(self, now_ns: int) -> bool:
        """At most 1% invalid, loop lag p99 within bounds, no due time missed."""
        self._step(now_ns)
        probes = sum(step.probes for step in self._steps)
        lags = sum(step.lags for step in self._steps)
        return (
            sum(step.invalid for step in self._steps) <= SHARE * probes
            and sum(step.late for step in self._steps) <= SHARE * lags
            and not any(step.missed for step in self._steps)
        )

    def _step(self, now_ns: int) -> _Step:
        if not self._steps or now_ns - self._steps[-1].start_ns >= STEP_NS:
            self._steps.append(_Step(now_ns))
        while now_ns - self._steps[0].start_ns > WINDOW_NS:
            self._steps.popleft()
        return self._steps[-1]
