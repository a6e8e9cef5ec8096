"""Counts the events of every SLO, for series and page alike."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prober.exposition.families import Registry
from prober.features.slo import series
from prober.features.slo.status import SloStatus, slo_status
from prober.measure.objective import JudgedStream, Slo
from prober.measure.outcome import ANSWERED
from prober.measure.result import ProbeResult
from prober.measure.slo_events import count_events
from prober.probing.observer import NamedSpec, TargetObserver


class SloMonitor:
    """The SLOs of all targets."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._targets: dict[str, TargetSlos] = {}

    def observe(self, observed: NamedSpec) -> "TargetSlos":
        """Observe the SLOs of one target. One that takes over the name of a target that still ends goes on with its counts."""
        observer = TargetSlos(self._registry, observed, self._forget, self._targets.get(observed.name))
        self._targets[observed.name] = observer
        return observer

    def _forget(self, target: "TargetSlos") -> None:
        if self._targets.get(target.name) is target:
            del self._targets[target.name]


@dataclass(slots=True)
class _Count:
    """Events of one SLO in one workload since both appeared.

    last_ns: due time of the last probe that was an event
    why_no_event: why the last answer was no event of TPOT or ITL, "" if it was one
    """

    slo: Slo
    stream: JudgedStream
    events: int = 0
    bad: int = 0
    last_ns: int | None = None
    why_no_event: str = ""


class TargetSlos(TargetObserver):
    """The SLOs of one target, by workload and by the name of the SLO."""

    def __init__(
        self,
        registry: Registry,
        observed: NamedSpec,
        on_removed: Callable[["TargetSlos"], None],
        before: "TargetSlos | None",
    ) -> None:
        self.name = observed.name
        self._registry, self._observed, self._on_removed = registry, observed, on_removed
        self._counts: dict[tuple[str, str], _Count] = dict(before._counts) if before is not None else {}
        self.configured()

    def configured(self) -> None:
        before, self._counts = self._counts, {}
        for slo, stream in self._observed.spec.uses():
            key = stream.workload, slo.name
            count = before.get(key)
            if count is None or count.slo != slo:
                # Events of another threshold or signal must not be added to the old ones.
                count = _Count(slo, stream)
            count.stream = stream
            self._counts[key] = count
        self._declare({key for key, count in self._counts.items() if before.get(key) is count})

    def probe_ended(self, result: ProbeResult) -> None:
        for (workload, slo_name), count in self._counts.items():
            if workload != result.workload:
                continue
            events, bad = count_events(count.slo, result)
            if result.outcome in ANSWERED:
                is_decode = count.slo.signal in ("tpot", "itl")
                count.why_no_event = result.timeline.why_no_tpot if is_decode and not events else ""
            if events:
                count.events, count.bad, count.last_ns = (
                    count.events + events,
                    count.bad + bad,
                    result.timeline.intended_ns,
                )
                self._registry.value(series.SLO_EVENTS, self.name, workload, slo_name).inc(events)
                self._registry.value(series.SLO_BAD_EVENTS, self.name, workload, slo_name).inc(bad)

    def removed(self) -> None:
        self._on_removed(self)

    def statuses(self, *, trusted: bool, now_ns: int) -> Iterator[SloStatus]:
        """The status of each SLO in each workload; now_ns: of the monotonic clock."""
        for count in self._counts.values():
            quiet_s = None if count.last_ns is None else (now_ns - count.last_ns) / 1e9
            yield slo_status(
                *(count.slo, count.stream, count.events, count.bad),
                trusted=trusted,
                quiet_s=quiet_s,
                why_no_event=count.why_no_event,
            )

    def _declare(self, unchanged: set[tuple[str, str]]) -> None:
        """Export objective and threshold as configured, and counters; counters of changed SLOs start again at 0."""
        registry, name = self._registry, self.name
        counters = {(name, *key) for key in unchanged}
        for counter in (series.SLO_EVENTS, series.SLO_BAD_EVENTS):
            registry.keep(counter, counters, name)
        gauges = {(name, *key, self._counts[key].slo.signal) for key in unchanged}
        for gauge in (series.SLO_OBJECTIVE, series.SLO_THRESHOLD):
            registry.keep(gauge, gauges, name)
        for (workload, slo_name), count in self._counts.items():
            labels = name, workload, slo_name
            registry.value(series.SLO_EVENTS, *labels)
            registry.value(series.SLO_BAD_EVENTS, *labels)
            registry.show(series.SLO_OBJECTIVE, float(count.slo.objective), *labels, count.slo.signal)
            if count.slo.threshold_s is not None:
                registry.show(series.SLO_THRESHOLD, count.slo.threshold_s, *labels, count.slo.signal)
