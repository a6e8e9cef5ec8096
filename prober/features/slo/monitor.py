"""Counts the good and bad events of every SLO, for its series and, over its window, for the page."""

import asyncio
import json
import logging
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any, get_args

from prober.config.units import counted, duration_text, first_names
from prober.exposition.families import Registry
from prober.features.slo import series
from prober.features.slo.compliance import Burn, Compliance, SloStatus, compliance, silence_s
from prober.features.slo.traffic import STREAM, bound_of, carried, gained, judged_text
from prober.measure.engine_signals import PageReading
from prober.measure.objective import (
    BOUNDED_SIGNALS,
    MIN_BAD_EVENTS,
    JudgedStream,
    Slo,
    count_events,
    format_percent,
    is_burn,
    is_undecided,
    max_events_per_probe,
    mean_events_per_probe,
)
from prober.measure.outcome import ANSWERED, BAD
from prober.measure.result import ProbeResult
from prober.measure.target_state import NO_DATA_STATES, STATE_OF_OUTCOME, TargetEvent
from prober.probing.feature import SavedTargets
from prober.probing.history import MAX_NAMES, MAX_TOLD_APART, EventLog
from prober.probing.observer import NamedSpec, TargetObserver
from prober.storage.saved_rows import Moment, SavedRows, moment_now, moment_of

SHOW_EVERY_S = 15.0
SPANS = 60  # per window, which may be counted up to a 60th too short
# Present state: the last five minutes, or more with few probes; a burn begins and ends by the last 50 s of them.
RECENT_S, RECENT_PROBES, LATEST_SPANS = 300.0, 30, SPANS // 6
# Burn rates of the workbook's second and third pair: for the latest events, and for minutes, by which a burn begins.
BEGINS, SLOW_BEGINS = 6, 3
MAX_QUIET_SPANS = (
    2 * LATEST_SPANS
)  # within a burn; at 0.2/s and one bad answer in five, one pause in a hundred is longer
log = logging.getLogger(__name__)


class WindowCount:
    """Events and bad events in the last window, counted in 60 equal spans. All times are of one monotonic clock.

    begun_ns: start of counting; negative if before the start of the machine
    last_ns: the last event; None before the first
    burned_ns: the last bad event during a burn; None if unknown
    """

    def __init__(self, window_s: float, begun_ns: int) -> None:
        self.begun_ns = begun_ns
        self.last_ns: int | None = None
        self.burned_ns: int | None = None
        self.span_ns = round(window_s * 1e9) // SPANS
        self._newest = 0
        self._events, self._bad = array("q", [0]) * SPANS, array("q", [0]) * SPANS

    def add(self, now_ns: int, events: int, bad: int) -> None:
        """Count events, of which `bad` are bad."""
        self._move(now_ns)
        place = self._newest % SPANS
        self._events[place] += events
        self._bad[place] += bad
        self.last_ns = now_ns

    def total(self, now_ns: int, spans: int = SPANS) -> tuple[int, int]:
        """Return (events, bad events) of the window that ends now, or of its latest spans."""
        self._move(now_ns)
        if spans == SPANS:
            return sum(self._events), sum(self._bad)
        latest = [(self._newest - age) % SPANS for age in range(spans)]
        return sum(map(self._events.__getitem__, latest)), sum(map(self._bad.__getitem__, latest))

    def oldest_bad_ns(self, spans: int) -> int:
        """Start of the oldest span with a bad event among the latest `spans`."""
        ages = (age for age in range(spans) if self._bad[(self._newest - age) % SPANS])
        return self.begun_ns + (self._newest - max(ages, default=0)) * self.span_ns

    def since_ns(self, now_ns: int) -> int:
        """Start of the span that `total` counts."""
        self._move(now_ns)
        return self.begun_ns + max(0, self._newest - SPANS + 1) * self.span_ns

    def saved(self, now_ns: int) -> dict[str, Any]:
        """The counts as JSON for `restored`; times are stored as ages."""
        self._move(now_ns)
        return {
            "age_ns": now_ns - self.begun_ns,
            "quiet_ns": None if self.last_ns is None else now_ns - self.last_ns,
            "burned_ns": None if self.burned_ns is None else now_ns - self.burned_ns,
            "events": self._events.tolist(),
            "bad": self._bad.tolist(),
        }

    @classmethod
    def restored(cls, window_s: float, saved_ns: int, saved: Any) -> "WindowCount":
        """Restore saved counts of an earlier process. saved_ns: time of saving, on this process's clock. Raises ValueError."""
        try:
            age_ns, quiet_ns, burned_ns = int(saved["age_ns"]), saved["quiet_ns"], saved["burned_ns"]
            count = cls(window_s, saved_ns - age_ns)
            count.last_ns = None if quiet_ns is None else saved_ns - int(quiet_ns)
            count.burned_ns = None if burned_ns is None else saved_ns - int(burned_ns)
            count._newest = age_ns // count.span_ns
            count._events, count._bad = array("q", saved["events"]), array("q", saved["bad"])
        except (KeyError, TypeError, ValueError, OverflowError) as problem:
            raise ValueError(f"these are no counts of an SLO: {problem!r}") from None
        if (
            not all(
                count.begun_ns <= at_ns <= saved_ns
                for at_ns in (saved_ns, count.last_ns, count.burned_ns)
                if at_ns is not None
            )
            or not len(count._events) == len(count._bad) == SPANS
            or not all(0 <= bad <= events for events, bad in zip(count._events, count._bad, strict=True))
        ):
            raise ValueError(f"these are no counts of an SLO over {window_s:g} s: {json.dumps(saved)[:100]}")
        return count

    def _move(self, now_ns: int) -> None:
        """Clear the spans that are older than the window."""
        now = (now_ns - self.begun_ns) // self.span_ns
        for span in range(self._newest + 1, min(now, self._newest + SPANS) + 1):
            self._events[span % SPANS] = self._bad[span % SPANS] = 0
        self._newest = max(self._newest, now)


class SloMonitor(SavedTargets["TargetSlos"]):
    """The SLOs of all targets. Windows are measured on the monotonic clock; wall time is only shown.

    now: returns the present moment
    is_trusted: returns whether the latencies of a target are judged
    """

    task = "slos"

    def __init__(
        self,
        registry: Registry,
        now: Callable[[], Moment] = moment_now,
        saved: SavedRows | None = None,
        events: EventLog | None = None,
        is_trusted: Callable[[str], bool] = lambda _target: True,
    ) -> None:
        self.registry, self.now, self.is_trusted = registry, now, is_trusted
        self.events = events or EventLog()
        self.changes: dict[tuple[Slo, Slo], set[str]] = {}  # target names by (old, new) definition
        super().__init__(saved or SavedRows())

    def observe(self, observed: NamedSpec) -> "TargetSlos":
        """Observe the SLOs of one target, continuing from the saved counts."""
        consequence = (
            f"target={observed.name}: the saved events of its SLOs cannot be read, and are counted from now on"
        )
        saved = self.saved.pop(observed.name, partial(_saved_counts, self.now()), consequence)
        return self.add(TargetSlos(self, observed, saved or {}))

    async def run(self) -> None:
        """Export the status of all SLOs every SHOW_EVERY_S until cancelled."""
        while True:
            await asyncio.sleep(SHOW_EVERY_S)
            self.report_changes()
            for target in list(self.targets.values()):
                target.show_standing()

    def report_changes(self) -> None:
        """Log, and record as events, which counts restarted because their SLO was redefined."""
        for (before, slo), names in self.changes.items():
            now, was = _definition(slo), _definition(before)
            changes = ", ".join(f"{key} {now[key]}, was {was[key]}" for key in now if now[key] != was[key])
            text = f"SLO {slo.name}: its events are counted anew, as its configuration changed: {changes}"
            if len(names) > MAX_TOLD_APART:
                text += f" ({counted(len(names), 'target')}: {first_names(names, MAX_NAMES)})"
            for name in sorted(names) if len(names) <= MAX_TOLD_APART else [""]:
                self.events.record(log, TargetEvent(self.now().unix_s, name, "slo", text))
        self.changes.clear()


def _definition(slo: Slo) -> dict[str, str]:
    threshold = "none" if slo.threshold_s is None else duration_text(slo.threshold_s)
    objective, window = format_percent(slo.objective), duration_text(slo.window_s)
    return {"signal": slo.signal, "threshold": threshold, "objective": objective, "window": window}


SavedCounts = Mapping[tuple[str, Slo], tuple[int, Any]]


def _saved_counts(now: Moment, data: bytes) -> SavedCounts:
    """Read a saved row: {(workload, SLO): (time of saving on this process's monotonic clock, counts)}."""
    row = json.loads(data)
    saved_ns = now.monotonic_ns - moment_of(row["at"]).age_ns(now)
    return {_slo_of(key): (saved_ns, counts) for key, counts in row["counts"].items()}


@dataclass(slots=True)
class _Count:
    """Counts the events of one SLO in one workload.

    recent: events of the last minutes
    why_no_event: why the last probe or its answer was no event; "" if it was one, or if the reason is unknown
    since_ns: start of the latest burn seen by this process
    """

    slo: Slo
    stream: JudgedStream
    window: WindowCount
    recent: WindowCount
    why_no_event: str = ""
    since_ns: int | None = None

    def add(self, now_ns: int, events: int, bad: int) -> None:
        """Count events, of which `bad` are bad."""
        self.window.add(now_ns, events, bad)
        self.recent.add(now_ns, events, bad)
        if bad and self.is_burning(now_ns):
            self.since_ns, self.window.burned_ns = self._begin_ns(now_ns), now_ns

    def _quiet_spans(self, now_ns: int) -> int:
        """Number of latest spans without a bad event of the latest burn."""
        last_ns = self.window.burned_ns
        return SPANS if last_ns is None else min(SPANS, (now_ns - last_ns) // self.recent.span_ns)

    def _begin_ns(self, now_ns: int) -> int:
        """Start of the present burn."""
        if self.since_ns is not None and self._quiet_spans(now_ns) <= MAX_QUIET_SPANS:
            return self.since_ns
        return self.recent.oldest_bad_ns(LATEST_SPANS)

    def is_burning(self, now_ns: int) -> bool:
        """True if the budget burns now: it started in seconds or over minutes, and the latest events exceed the budget."""
        quiet_spans = self._quiet_spans(now_ns)
        is_under_way = quiet_spans <= MAX_QUIET_SPANS
        events, bad = self.recent.total(now_ns, SPANS if is_under_way else quiet_spans)
        if bad < MIN_BAD_EVENTS or events < MIN_BAD_EVENTS * mean_events_per_probe(self.slo, self.stream.mean_tokens):
            return False
        latest = self.recent.total(now_ns, LATEST_SPANS)
        if is_burn(self.slo, *latest, BEGINS):
            return True
        has_begun = is_under_way or is_burn(self.slo, events, bad, SLOW_BEGINS)
        return has_begun and latest[1] > self.slo.error_budget_ratio * latest[0]

    def burn(self, now: Moment) -> Burn:
        """The state of the budget at this moment."""
        now_ns, since_ns, span_ns = now.monotonic_ns, None, self.recent.span_ns
        spans = self._quiet_spans(now_ns)
        if self.is_burning(now_ns):
            since_ns = self._begin_ns(now_ns)
            spans = min(SPANS, 1 + (now_ns - since_ns) // span_ns)
        times_s = (
            None if at_ns is None else now.unix_s - (now_ns - at_ns) / 1e9
            for at_ns in (since_ns, self.window.burned_ns)
        )
        return Burn(*self.recent.total(now_ns, spans), spans * span_ns / 1e9, *times_s)


class TargetSlos(TargetObserver):
    """The SLOs of one target, by workload and SLO name."""

    def __init__(self, monitor: SloMonitor, observed: NamedSpec, saved: SavedCounts) -> None:
        self.name = observed.name
        self._monitor = monitor
        self._counts: dict[tuple[str, str], _Count] = {}
        self._traffic = {slo.name: slo for slo in observed.spec.traffic_slos}  # those on all requests of the engine
        now_ns = self._now_ns()
        self._traffic_windows = {slo: WindowCount(slo.window_s, now_ns) for slo in self._traffic.values()}
        self._page: PageReading | None = None  # the last one
        self._bound_texts: set[str] = set()  # already logged
        former = {(workload, slo.name): slo for workload, slo in saved}
        for slo, stream in observed.spec.uses():
            key = stream.workload, slo.name
            recent = WindowCount(max(RECENT_S, RECENT_PROBES / stream.rate_per_s), now_ns)
            self._counts[key] = _Count(slo, stream, self._window(slo, saved.get((stream.workload, slo))), recent)
            if former.get(key, slo) != slo:
                monitor.changes.setdefault((former[key], slo), set()).add(self.name)
        # If an SLO on success counts failures, latency SLOs judge only answered requests.
        self._counting_failures = {key[0] for key, count in self._counts.items() if count.slo.signal == "success"}
        self._declare()

    def states(self) -> Iterator[tuple[str, bytes]]:
        """(target name, counts of its SLOs with their definitions) to save; nothing without SLOs."""
        now = self._monitor.now()
        counts = {
            _key(count.slo, count.stream): count.window.saved(now.monotonic_ns) for count in self._counts.values()
        }
        if counts:
            yield self.name, json.dumps({"at": now.as_json(), "counts": counts}, separators=(",", ":")).encode()

    def _window(self, slo: Slo, saved: tuple[int, Any] | None) -> WindowCount:
        """The saved counts of an SLO with the same definition, or new ones."""
        if saved is not None:
            try:
                return WindowCount.restored(slo.window_s, *saved)
            except ValueError as problem:
                log.error("target=%s slo=%s: %s; it is counted from now on", self.name, slo.name, problem)
        return WindowCount(slo.window_s, self._now_ns())

    def probe_ended(self, result: ProbeResult) -> None:
        for (workload, slo_name), count in self._counts.items():
            if workload != result.workload:
                continue
            events, bad = count_events(count.slo, result)
            if result.outcome in BAD and count.slo.threshold_s is not None and workload in self._counting_failures:
                events = bad = 0  # the failure was counted before
            if result.outcome in ANSWERED:
                timeline = result.timeline
                whys = {"ttft": timeline.why_no_ttft, "ttft_answer": timeline.why_no_ttft_answer}
                whys |= dict.fromkeys(("tpot", "itl"), timeline.why_no_tpot)
                count.why_no_event = "" if events else whys.get(count.slo.signal, "")
            elif STATE_OF_OUTCOME.get(result.outcome) in NO_DATA_STATES:
                count.why_no_event = f"the last probe was {result.outcome}: {result.detail}"
            if not (result.warm_up or result.cached) and is_undecided(count.slo, result):
                self._monitor.registry.value(series.SLO_UNDECIDED, self.name, workload, slo_name).inc()
            if events:
                count.add(self._now_ns(), events, bad)
                self._monitor.registry.value(series.SLO_EVENTS, self.name, workload, slo_name).inc(events)
                self._monitor.registry.value(series.SLO_BAD_EVENTS, self.name, workload, slo_name).inc(bad)

    def page_read(self, reading: PageReading | None) -> None:
        """Count what the engine's page gained since the last reading, unless another process counted it."""
        before = self._page if self._page and reading and self._page.epoch == reading.epoch else None
        if before and reading:
            reading = reading._replace(signals=carried(before.signals, reading.signals))
        self._page, registry = reading, self._monitor.registry
        for slo in self._traffic.values():
            bound = bound_of(slo, reading.signals) if reading else None
            if slo.threshold_s is not None:
                registry.show(series.TRAFFIC_THRESHOLD, bound, self.name, slo.name, slo.signal)
            text = judged_text(slo, reading.signals) if reading else ""
            if text and text not in self._bound_texts:
                self._bound_texts.add(text)
                log.info("target=%s slo=%s: %s", self.name, slo.name, text)
                if slo.threshold_s is None:  # it is not judged at all
                    event = TargetEvent(self._monitor.now().unix_s, self.name, "slo", f"SLO {slo.name}: {text}")
                    self._monitor.events.append(event)
            counts = gained(slo, before.signals, reading.signals) if before and reading else None
            if counts is not None:
                registry.value(series.TRAFFIC_EVENTS, self.name, slo.name).inc(counts[0])
                registry.value(series.TRAFFIC_BAD_EVENTS, self.name, slo.name).inc(counts[1])
                self._traffic_windows[slo].add(self._now_ns(), round(counts[0]), round(counts[1]))

    def removed(self) -> None:
        self._monitor.forget(self)

    def summary(self) -> dict[str, Any]:
        return {"slos": list(self.statuses())}

    def statuses(self) -> Iterator[SloStatus]:
        """The status of each SLO in each workload."""
        now, trusted = self._monitor.now(), self._monitor.is_trusted(self.name)
        now_ns = now.monotonic_ns
        for count in self._counts.values():
            slo, workload, last_ns = count.slo, count.stream.workload, count.window.last_ns
            events, bad = count.window.total(now_ns)
            quiet_s = None if last_ns is None else (now_ns - last_ns) / 1e9
            state, why = compliance(
                slo, count.stream, events, bad, trusted=trusted, quiet_s=quiet_s, why_no_event=count.why_no_event
            )
            since_unix_s = now.unix_s - (now_ns - count.window.since_ns(now_ns)) / 1e9
            of_answered = slo.threshold_s is not None and workload in self._counting_failures
            yield SloStatus(slo, workload, events, bad, since_unix_s, state, why, count.burn(now), of_answered)

    def show_standing(self) -> None:
        """Export the compliance, remaining budget and silence of each SLO."""
        registry, now_ns = self._monitor.registry, self._monitor.now().monotonic_ns
        for status, count in zip(self.statuses(), self._counts.values(), strict=True):
            labels = self.name, status.workload, status.slo.name
            for state in get_args(Compliance):
                registry.show(series.SLO_STATE, 1.0 if state == status.state else None, *labels, state)
            registry.show(series.SLO_WINDOW_EVENTS, float(status.events), *labels)
            registry.show(series.SLO_BUDGET_LEFT, _left(status.slo, status.events, status.bad), *labels)
            quiet_since_ns = max(count.recent.begun_ns, count.window.last_ns or count.recent.begun_ns)
            is_silent = now_ns - quiet_since_ns > silence_s([count.stream]) * 1e9
            registry.show(series.SLO_SILENT, float(is_silent), *labels)
        for slo in self._traffic.values():
            left = _left(slo, *self._traffic_windows[slo].total(now_ns))
            registry.show(series.TRAFFIC_BUDGET_LEFT, left, self.name, slo.name)

    def _now_ns(self) -> int:
        return self._monitor.now().monotonic_ns

    def _declare(self) -> None:
        """Export the configured objective and threshold, and the counters."""
        registry, name = self._monitor.registry, self.name
        for (workload, slo_name), count in self._counts.items():
            labels = name, workload, slo_name
            registry.value(series.SLO_EVENTS, *labels)
            registry.value(series.SLO_BAD_EVENTS, *labels)
            if count.slo.signal in BOUNDED_SIGNALS:
                registry.value(series.SLO_UNDECIDED, *labels)
            most = max_events_per_probe(count.slo, count.stream.max_tokens)
            registry.show(series.EVENTS_PER_PROBE, float(most) if most > 1 else None, *labels)
            registry.show(series.SLO_OBJECTIVE, float(count.slo.objective), *labels, count.slo.signal)
            if count.slo.threshold_s is not None:
                registry.show(series.SLO_THRESHOLD, count.slo.threshold_s, *labels, count.slo.signal)
        for slo in self._traffic.values():  # their bound is exported with the next reading of the page
            registry.value(series.TRAFFIC_EVENTS, name, slo.name)
            registry.value(series.TRAFFIC_BAD_EVENTS, name, slo.name)
            most = max_events_per_probe(slo, STREAM.max_tokens)
            registry.show(series.TRAFFIC_EVENTS_PER_REQUEST, float(most) if most > 1 else None, name, slo.name)
            registry.show(series.TRAFFIC_OBJECTIVE, float(slo.objective), name, slo.name, slo.signal)
        self.show_standing()


def _left(slo: Slo, events: int, bad: int) -> float | None:
    """Remaining share of the error budget; None without events."""
    return 1 - bad / events / float(slo.error_budget_ratio) if events else None


def _key(slo: Slo, stream: JudgedStream) -> str:
    """Key of the counts of an SLO in a workload. Includes the definition: counts of different definitions must not be added."""
    return json.dumps([stream.workload, slo.name, slo.signal, slo.threshold_s, str(slo.objective), slo.window_s])


def _slo_of(key: str) -> tuple[str, Slo]:
    """Read (workload, SLO) from a `_key`."""
    workload, name, signal, threshold_s, objective, window_s = json.loads(key)
    return workload, Slo(name, signal, threshold_s, Decimal(objective), window_s)
