"""Stops a load at once when it harms the requests beside it, by the thresholds of sweeps.

An overload is there to be measured, so it is no harm that requests wait: `waiting` ends it where the queue is worth as many TTFT
thresholds as a request may take at most.
"""

from collections import deque

from prober.features.capacity.stop_conditions import StopConditions
from prober.features.capacity.sweep_plan import Guards
from prober.measure.engine_signals import EngineSignals
from prober.measure.outcome import BAD
from prober.measure.result import ProbeResult
from prober.measure.timeline import format_duration

LATE_RESULTS = 20
GUARDS = Guards(waiting_share=Guards().ttft_factor)


class LoadGuard:
    """Judges requests and pages while the load is sent. Times in seconds of one clock.

    ttft_s: TTFT threshold of the requests beside the load
    rate_per_s: of all requests
    harm: why the load must end, "" if it may go on
    """

    def __init__(self, ttft_s: float, rate_per_s: float, guards: Guards = GUARDS) -> None:
        self._ttft_s, self._rate_per_s, self._guards = ttft_s, rate_per_s, guards
        self._conditions = StopConditions(guards, ttft_s)
        self._late: deque[bool] = deque(maxlen=LATE_RESULTS)
        self._ended = self._failed = 0
        self._is_sending = False
        self.harm = ""

    def began(self) -> None:
        """Mark the start of the load; pages read earlier are the baseline."""
        self._is_sending = True
        self._conditions.began()

    def result(self, result: ProbeResult) -> None:
        """Judge a request that ended, of the load or beside it."""
        if not self._is_sending:
            return
        failed = result.outcome in BAD
        self._ended += 1
        self._failed += failed
        self._late.append(result.has_prober_fault)
        late = sum(self._late)
        if self._failed > 1 and self._failed > self._guards.failed_ratio * self._ended and failed:
            self._end(f"{self._failed} of {self._ended} requests failed, the last with {result.outcome.value}")
        elif late > 2 and late > self._guards.late_ratio * len(self._late):
            self._end(f"the prober was late in {late} of the last {len(self._late)} requests")

    def waited(self, ttft_s: float) -> None:
        """Judge the TTFT of a request beside the load, or its wait so far."""
        if ttft_s > self._guards.ttft_factor * self._ttft_s:
            self._end(
                f"a TTFT of {format_duration(ttft_s)} or more, over {self._guards.ttft_factor:g} times the threshold"
            )

    def page(self, at_s: float, signals: EngineSignals) -> None:
        """Judge a reading of the engine's page."""
        change = self._conditions.change(signals)
        condition = self._conditions.reading(at_s, signals, self._rate_per_s, [])
        if change is not None:
            self._end(f"the engine's page shows {change[0].replace('_', ' ')}: {change[1]}")
        elif condition is not None:
            self._end(f"the engine's page shows too much {condition.replace('_', ' ')}")

    def tick(self, at_s: float) -> None:
        """Check that a page that was readable still is."""
        read_s = self._conditions.last_s
        if read_s is not None and at_s - read_s > self._guards.page_lost_s:
            self._end(f"no reading of the engine's page for {at_s - read_s:.1f} s")

    def _end(self, harm: str) -> None:
        if self._is_sending and not self.harm:
            self.harm = harm
