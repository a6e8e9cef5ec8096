"""Latest probes of each target, failures for longer than successes; latency samples for quantiles; and the events of all targets:
changes of state and engine, drift, diagnoses, changed SLOs, sweeps.
"""

import asyncio
import json
import logging
from array import array
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from heapq import merge
from typing import Any, get_args
from zlib import crc32

from prober.config.units import counted, first_names
from prober.measure.outcome import ANSWERED, Outcome
from prober.measure.result import ProbeResult
from prober.measure.target_state import SILENT_STATES, EventKind, TargetEvent, TargetState
from prober.probing.feature import Monitor, Stateful
from prober.probing.observer import ObservedTarget, TargetObserver
from prober.statistics.quantiles import Quantile, quantiles
from prober.storage.saved_rows import SavedRows

SAMPLES, SPARE = 4096, 512
MARK_S, RECENT_S, LATEST_S = 300.0, 600.0, 60.0
STEP_S = 10.0  # resolution of the times of recent values
FAILURE_FACTOR = 4  # ratio of stored failures to successes, because people look for failures
MAX_RESULTS = 25_000  # for all targets together
MAX_BYTES = 48 << 20  # for all targets together; the largest target loses its oldest results
RESULT_BYTES = 1_850  # of a result, without texts and timestamps
MIN_SUCCESSES = 4  # per target, however many targets there are


@dataclass(slots=True)
class Samples:
    """The latest `SAMPLES` values of one latency, in single precision."""

    _values: "array[float]" = field(default_factory=lambda: array("f"))
    _quantiles: dict[int, list[Quantile]] = field(default_factory=dict)  # computed ones, by start
    _marks: deque[tuple[float, int]] = field(default_factory=deque)  # (time, values before it), MARK_S apart or more
    _steps: deque[tuple[float, int]] = field(default_factory=deque)  # the same for RECENT_S, at least STEP_S apart
    _count: int = 0
    _latest_unix_s: float = 0.0

    def add(self, unix_s: float, *values: float) -> None:
        """Add values of one time; the oldest values are dropped."""
        if not values:
            return
        if not self._marks or abs(unix_s - self._marks[-1][0]) >= MARK_S:
            self._marks.append((unix_s, self._count))
        if not self._steps or abs(unix_s - self._steps[-1][0]) >= STEP_S:
            self._steps.append((unix_s, self._count))
        while unix_s - self._steps[0][0] > RECENT_S:
            self._steps.popleft()
        self._values.extend(values)
        self._quantiles.clear()
        self._count, self._latest_unix_s = self._count + len(values), unix_s
        if len(self._values) >= SAMPLES + SPARE:
            del self._values[:-SAMPLES]
        while len(self._marks) > 1 and self._marks[1][1] <= self._count - SAMPLES:
            self._marks.popleft()

    def span_unix_s(self) -> tuple[float, float] | None:
        """(time of the oldest value, at most MARK_S too early; time of the latest); None without values."""
        return (self._marks[0][0], self._latest_unix_s) if self._marks else None

    def quantiles(self, since_unix_s: float = 0.0) -> list[Quantile]:
        """Quantiles with counts and confidence intervals of the values since a time within the last RECENT_S, or of all values."""
        marks = self._steps if since_unix_s else ()
        first = next((before for unix_s, before in marks if unix_s >= since_unix_s), self._count if marks else 0)
        number = min(SAMPLES, self._count - first)
        if number and number not in self._quantiles:
            self._quantiles[number] = quantiles(self._values[-number:])
        return self._quantiles.get(number, [])


class ProbeHistory(Monitor):
    """The histories of all targets. limit: successes stored per target; fewer if many targets share MAX_BYTES"""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._targets: dict[str, TargetHistory] = {}
        self._bytes: Counter[str] = Counter()  # by target
        self._total_bytes = 0

    def observe(self, observed: ObservedTarget) -> "TargetHistory":
        """Create the history of one target."""
        observer = self._targets[observed.name] = TargetHistory(self, observed.name)
        return observer

    def forget(self, target: "TargetHistory") -> None:
        """Remove a target and its share of the stored bytes."""
        del self._targets[target.name]
        self._total_bytes -= self._bytes.pop(target.name, 0)

    def resize(self, target: str, by_bytes: int) -> None:
        """Account for `by_bytes` more of a target's results. Beyond MAX_BYTES the largest targets drop their oldest results."""
        self._bytes[target] += by_bytes
        self._total_bytes += by_bytes
        while by_bytes > 0 and self._total_bytes > MAX_BYTES:
            largest = max(self._targets.values(), key=lambda history: self._bytes[history.name])
            if not largest.drop_oldest():
                return

    @property
    def max_successes(self) -> int:
        """Number of successes currently stored per target."""
        share = MAX_RESULTS // (1 + FAILURE_FACTOR) // max(1, len(self._targets))
        return min(self._limit, max(MIN_SUCCESSES, share))


class TargetHistory(TargetObserver):
    """Results of a target's recent probes, for pages and the API.

    outcomes: scheduled probes by outcome, since the target appeared
    answered_unix_s: due time of the last scheduled probe that was answered; None before the first
    """

    def __init__(self, history: ProbeHistory, name: str) -> None:
        self._history, self.name = history, name
        self._successes: deque[ProbeResult] = deque()
        self._failures: deque[ProbeResult] = deque()
        self.outcomes: Counter[str] = Counter()
        self.samples: dict[tuple[str, str], Samples] = {}  # by workload and signal
        self.answered_unix_s: float | None = None

    def summary(self) -> dict[str, Any]:
        return {"outcomes": dict(self.outcomes.most_common()), "answered": self.answered_unix_s}

    def probe_ended(self, result: ProbeResult) -> None:
        self.add(result)
        self.outcomes[result.outcome.value] += 1
        if result.outcome in ANSWERED:
            self.answered_unix_s = result.unix_s
        if result.outcome not in ANSWERED or result.warm_up or result.cached:
            return
        timeline = result.timeline
        for signal, value in (("ttft", timeline.ttft_s), ("tpot", timeline.tpot_s), ("e2e", timeline.e2e_s)):
            if value is not None:
                self._samples(result.workload, signal).add(result.unix_s, value)
        self._samples(result.workload, "itl").add(result.unix_s, *timeline.itls_s)

    def removed(self) -> None:
        self._history.forget(self)

    def add(self, result: ProbeResult) -> None:
        """Store a probe without counting it, such as a probe on request."""
        result, limit = result.stored, self._history.max_successes
        for results, most in ((self._successes, limit), (self._failures, FAILURE_FACTOR * limit)):
            if (results is self._successes) == (result.outcome is Outcome.OK):
                results.append(result)
                while len(results) > most:
                    self._history.resize(self.name, -_size(results.popleft()))
        self._history.resize(self.name, _size(result))

    def drop_oldest(self) -> bool:
        """Drop the oldest result of the more numerous kind, success or failure. Returns False if at most one is left."""
        results = max(self._successes, self._failures, key=len)
        if len(results) <= 1:
            return False
        self._history.resize(self.name, -_size(results.popleft()))
        return True

    def recent(self) -> Iterator[ProbeResult]:
        """Yield the probes stored at the time of the call, latest first, merged lazily."""
        return merge(reversed(tuple(self._successes)), reversed(tuple(self._failures)), key=_latest_first)

    def _samples(self, workload: str, signal: str) -> Samples:
        return self.samples.setdefault((workload, signal), Samples())


def latest_first(snapshots: Iterable[Iterable[ProbeResult]]) -> Iterator[ProbeResult]:
    """The probes of several targets, latest first, merged lazily. snapshots: one per target, each latest first"""
    return merge(*snapshots, key=_latest_first)


def _size(result: ProbeResult) -> int:
    timeline = result.timeline
    stamps = len(timeline.content_ns) * (8 if timeline.content_tokens is None else 16)
    return RESULT_BYTES + stamps + 4 * (len(result.text) + len(result.detail))


def _latest_first(result: ProbeResult) -> int:
    return -result.timeline.intended_ns


MAX_EVENTS = 500  # for all targets together
FOLD_S = 600.0
MAX_TOLD_APART = 10  # targets with separate events; the same change of more targets is one event
MAX_NAMES = 3  # shown in an event of many targets


class EventLog(Stateful):
    """The latest events of all targets. saved: events that `states` returned in an earlier process"""

    saving_task = "events"

    def __init__(self, saved: SavedRows | None = None) -> None:
        saved = saved or SavedRows()
        consequence = "an event of an earlier process is not shown, it cannot be read"
        events = (saved.pop(key, _read_event, consequence) for key in saved)
        known = sorted((event for event in events if event is not None), key=lambda event: event.unix_s)
        self._events = deque(known, maxlen=MAX_EVENTS)
        self._unsaved: deque[TargetEvent] = deque(maxlen=MAX_EVENTS)
        self._changed = asyncio.Event()

    def record(self, log: logging.Logger, event: TargetEvent, line: str = "") -> None:
        """Log an event and append it. line: text for the log, if it differs from the event's"""
        trace = f" (trace_id={event.trace_id})" if event.trace_id else ""
        log.info("%s%s%s", f"target={event.target} " if event.target else "", line or event.text, trace)
        self.append(event)

    def append(self, event: TargetEvent) -> None:
        """Add an event; the oldest is dropped."""
        self._events.append(event)
        self._unsaved.append(event)
        self._changed.set()

    def states(self) -> Iterator[tuple[str, bytes]]:
        """(key, event) of each event, to save. Keys sort by time."""
        yield from map(_saved_event, tuple(self._events))

    async def wait_for_changes(self) -> None:
        await self._changed.wait()

    def changed_states(self) -> Iterator[tuple[str, bytes]]:
        self._changed.clear()
        while self._unsaved:
            yield _saved_event(self._unsaved.popleft())

    def latest(self, target: str | None = None) -> list[TargetEvent]:
        """The events of one target, or of all, latest first, including removed targets."""
        return [event for event in reversed(self._events) if target in (None, event.target)]

    def folded(self, target: str | None = None) -> list[TargetEvent]:
        """Like `latest`, but equal events at most FOLD_S apart are merged into the latest, with their number and first time."""
        folded, places = list[TargetEvent](), dict[tuple[str, str, str], int]()
        for event in self.latest(target):
            same = (event.target, event.kind, event.text)
            later = folded[places[same]] if same in places else None
            if later is not None and (later.since_unix_s or later.unix_s) - event.unix_s <= FOLD_S:
                folded[places[same]] = replace(later, times=later.times + 1, since_unix_s=event.unix_s)
            else:
                places[same] = len(folded)
                folded.append(event)
        return folded


def _saved_event(event: TargetEvent) -> tuple[str, bytes]:
    data = json.dumps(asdict(event)).encode()
    return f"{event.unix_s:017.6f} {crc32(data):08x}", data


def _read_event(data: bytes) -> TargetEvent:
    row = json.loads(data)
    if type(row["unix_s"]) is not float or row["kind"] not in get_args(EventKind):
        raise ValueError(f"{data[:80]!r} is no event")
    return TargetEvent(**row)


class FirstAnswers:
    """Reports the first answers of targets that start together as one event, once each has answered or failed.

    names: names of the targets; report: called with the text of the event
    """

    def __init__(self, names: Collection[str], report: Callable[[str], None]) -> None:
        self._waiting, self._names, self._report = set(names), list[str](), report

    def include(self, name: str, state: TargetState) -> bool:
        """Take a state of a target. Returns True if the change is part of the common event."""
        if name not in self._waiting or state is TargetState.PENDING or state in SILENT_STATES:
            return False
        self._waiting.discard(name)
        if state is TargetState.READY:
            self._names.append(name)
        if not self._waiting:
            self.end()
        return state is TargetState.READY

    def end(self) -> None:
        """Report the event now. Targets that answer later have their own events."""
        self._waiting.clear()
        if self._names:
            are = "is" if len(self._names) == 1 else "are"
            self._report(f"{counted(len(self._names), 'target')} {are} ready: {first_names(self._names, MAX_NAMES)}")
            self._names.clear()
