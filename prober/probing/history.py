"""What the page and the API can still tell: the last probes, failures kept longer, samples enough for quantiles, and events."""

from array import array
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import merge

from prober.measure.event import Event
from prober.measure.outcome import ANSWERED, Outcome
from prober.measure.result import ProbeResult
from prober.statistics.quantiles import Quantile, quantiles

SAMPLES, SPARE = 4096, 512
EVENTS = 500  # of all targets together
FAILURES_KEPT = 4  # times as many as successes: a failure is what one comes to look for
RESULTS, FEWEST = 25_000, 4  # of all targets together, some 50 MB; of each at least so many successes, and failures


@dataclass(slots=True)
class Samples:
    """The last `SAMPLES` values of one signal, in single precision."""

    _values: "array[float]" = field(default_factory=lambda: array("f"))

    def add(self, *values: float) -> None:
        """More of them; the oldest go."""
        self._values.extend(values)
        if len(self._values) >= SAMPLES + SPARE:
            del self._values[:-SAMPLES]

    def quantiles(self) -> list[Quantile]:
        """With counts and intervals."""
        return quantiles(self._values[-SAMPLES:])


@dataclass(slots=True)
class Past:
    """One target's past."""

    good: deque[ProbeResult] = field(default_factory=deque)
    bad: deque[ProbeResult] = field(default_factory=deque)
    outcomes: Counter[str] = field(default_factory=Counter)
    samples: dict[tuple[str, str], Samples] = field(default_factory=dict)


class History:
    """Bounded memory of every target, by its name. limit: successes of each, of many targets fewer: an outage of all is kept too."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pasts: dict[str, Past] = {}
        self._events: deque[Event] = deque(maxlen=EVENTS)

    def add(self, result: ProbeResult) -> None:
        """Remember a probe; one on request is remembered and counts in nothing."""
        past = self._pasts.get(result.target)
        if past is None:
            past = self._pasts[result.target] = Past()
        most = min(self._limit, max(FEWEST, RESULTS // (1 + FAILURES_KEPT) // len(self._pasts)))
        kept = past.good if result.outcome is Outcome.OK else past.bad
        kept.append(result)
        while len(kept) > (most if kept is past.good else FAILURES_KEPT * most):
            kept.popleft()
        if result.on_request:
            return
        past.outcomes[result.outcome.value] += 1
        if result.outcome not in ANSWERED or result.warm_up or result.cached:
            return
        timeline = result.timeline
        single = (("ttft", timeline.ttft_s), ("tpot", timeline.tpot_s), ("e2e", timeline.e2e_s))
        for signal, value in single:
            if value is not None:
                self._sample(past, result.workload, signal).add(value)
        self._sample(past, result.workload, "itl").add(*timeline.itls_s)

    def happened(self, event: Event) -> None:
        """Remember an event."""
        self._events.append(event)

    def events(self, target: str | None = None) -> list[Event]:
        """Remembered events, latest first."""
        return [event for event in reversed(self._events) if target in (None, event.target)]

    def remove(self, target: str) -> None:
        """Forget a target; what has happened to it has happened."""
        self._pasts.pop(target, None)

    def probes(self, target: str | None = None) -> list[ProbeResult]:
        """Remembered probes, latest first."""
        pasts = self._pasts.values() if target is None else [p for n, p in self._pasts.items() if n == target]
        found = [result for past in pasts for kept in (past.good, past.bad) for result in kept]
        return sorted(found, key=lambda result: result.timeline.intended_ns, reverse=True)

    def recent(self, target: str) -> Iterator[ProbeResult]:
        """A target's remembered probes, latest first, no more of them looked at than are taken."""
        past = self._pasts.get(target)
        ended = (reversed(past.good), reversed(past.bad)) if past else ()
        return merge(*ended, key=lambda result: -result.timeline.intended_ns)

    def outcomes(self, target: str) -> dict[str, int]:
        """How many probes ended how, since the target appeared."""
        past = self._pasts.get(target)
        return dict(past.outcomes.most_common()) if past else {}

    def samples(self, target: str) -> dict[tuple[str, str], Samples]:
        """By workload and signal."""
        past = self._pasts.get(target)
        return dict(past.samples) if past else {}

    def quantiles(self, target: str) -> dict[tuple[str, str], list[Quantile]]:
        """The same as quantiles, where there are samples."""
        found = {key: samples.quantiles() for key, samples in self.samples(target).items()}
        return {key: value for key, value in found.items() if value}

    def _sample(self, past: Past, workload: str, signal: str) -> Samples:
        return past.samples.setdefault((workload, signal), Samples())
