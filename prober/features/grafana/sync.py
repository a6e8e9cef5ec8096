"""Synchronisation of dashboards and annotations with one Grafana, in a thread, so that no request is delayed."""

import asyncio
import html
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from threading import Event
from typing import TYPE_CHECKING, Any

from prober.config.configuration import GrafanaSpec
from prober.exposition.families import Registry
from prober.features.grafana import series as grafana_series
from prober.measure.printable import one_line
from prober.measure.target_state import TargetEvent
from prober.net.clock import Clock
from prober.probing.history import EventLog
from prober.results.result import Result
from prober.storage.watched_file import Secret

if TYPE_CHECKING:
    from prober.features.grafana.server import Server

TAG = "llm-slo-prober"
_MAX_TAG_CHARS = 100  # size of the column in Grafana's table of tags
# Frequent, shown by the dashboards themselves, or of the configuration.
NOT_MARKED = frozenset(("state", "diagnosis", "slo"))
CHECK_INTERVAL_S = 5.0
MARKS_INTERVAL_S = 60.0  # between two synchronisations of annotations only
MAX_PENDING_MARKS = 200  # while Grafana is unreachable; the oldest are dropped
MAX_MARKS_PER_HOUR = 100
RETRY_S, MAX_RETRY_S = 30.0, 3600.0
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Mark:
    """An annotation to create. Times are Unix milliseconds; end_ms: None for a point in time"""

    time_ms: int
    end_ms: int | None
    tags: tuple[str, ...]
    text: str


def mark_of(event: TargetEvent, began_unix_s: float | None = None) -> Mark:
    """Annotation of an event. began_unix_s: start of a span that ends with the event. The text is HTML."""
    end_ms = round(event.unix_s * 1e3)
    time_ms = end_ms if began_unix_s is None else round(began_unix_s * 1e3)
    text = html.escape(one_line(f"{event.target}: {event.text}"), quote=False)
    return Mark(
        time_ms,
        None if began_unix_s is None else end_ms,
        (TAG, one_line(event.target)[:_MAX_TAG_CHARS], event.kind),
        text,
    )


def annotate(server: "Server", marks: Sequence[Mark]) -> int:
    """Create the annotations that do not exist yet, oldest first. Returns their number. Existing ones are recognised by time and text.

    Raises GrafanaError. Annotations that were created before the error are recognised by the next call.
    """
    if not marks:
        return 0
    begin = min(mark.time_ms for mark in marks)
    end = max(mark.end_ms or mark.time_ms for mark in marks)
    existing = server.annotations(begin - 1, end + 1, TAG)
    by_key = {(mark.time_ms, mark.text): mark for mark in sorted(marks, key=lambda mark: mark.time_ms)}
    new = [mark for key, mark in by_key.items() if key not in existing]
    for mark in new:
        server.annotate(mark.time_ms, mark.end_ms, list(mark.tags), mark.text)
    return len(new)


@dataclass(slots=True)
class _PeriodicTask:
    """A task that repeats. due_s: on the monotonic clock; failures: number of consecutive failures"""

    name: str
    due_s: float = 0.0
    failures: int = 0

    def failed(self, now_s: float) -> float:
        """Schedule a retry with exponential backoff; return the seconds until then."""
        wait_s: float = min(RETRY_S * 2 ** min(self.failures, 10), MAX_RETRY_S)
        self.failures, self.due_s = self.failures + 1, now_s + wait_s
        return wait_s

    def done(self, due_s: float) -> None:
        """Schedule the next run at `due_s`."""
        self.failures, self.due_s = 0, due_s


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """Work of one synchronisation: push the dashboards, create annotations from the marks, until `stopping` is set."""

    spec: GrafanaSpec
    dashboards: bool
    marks: tuple[Mark, ...] = ()
    stopping: Event = field(default_factory=Event)


@dataclass(frozen=True, slots=True)
class SyncResult:
    """Result of a synchronisation.

    dashboards: (title, state, detail) of each dashboard; None if none was pushed.
    failures: error message by task.
    """

    dashboards: list[tuple[str, str, str]] | None = None
    failures: dict[str, str] = field(default_factory=dict)


def synchronise(documents: Callable[[], Iterable[dict[str, Any]]], request: SyncRequest) -> SyncResult:
    """Run one synchronisation; a failed task does not stop the other. documents: builds the dashboards."""
    # Only here: the client library takes 25 MB, and 0.2 s to import.
    from prober.features.grafana.push import PushOptions, push
    from prober.features.grafana.server import GrafanaError, Server

    spec = request.spec
    secret = Secret(spec.auth.secret_file)
    token = secret.read()
    if token is None:
        return SyncResult(failures=dict.fromkeys(("dashboards", "annotations"), f"grafana.{secret.problem}"))
    failures: dict[str, str] = {}
    states: list[tuple[str, str, str]] | None = None
    with Server(spec.url, token, spec.tls, stopping=request.stopping) as server:
        if request.dashboards:
            try:
                report = push(server, documents(), PushOptions(spec.folder, spec.datasource))
                states = [(result.title, result.state, result.detail) for result in report.dashboards]
                failed = [result.detail for result in report.dashboards if result.state == "failed"]
                failures |= {"dashboards": failed[0]} if failed else {}
            except GrafanaError as error:
                failures["dashboards"] = str(error)
        try:
            annotate(server, request.marks)
        except GrafanaError as error:
            failures["annotations"] = str(error)
    return SyncResult(states, failures)


class Grafana:
    """Synchronisation with one configured Grafana.

    results: returns the sweeps of a target, to find the start of a sweep for its annotation.
    exclusive: returns True if this replica may write; called before each synchronisation.
    run_sync: runs one synchronisation, in a thread.
    first: True if this shard also writes the dashboards.
    """

    def __init__(
        self,
        families: Registry,
        event_log: EventLog,
        results: Callable[[str], Iterable[Result]],
        clock: Clock,
        exclusive: Callable[[], bool],
        run_sync: Callable[[SyncRequest], SyncResult],
        *,
        first: bool = True,
    ) -> None:
        self._clock = clock
        self._run_sync, self._first = run_sync, first
        self._stopping = Event()  # of the running synchronisation
        self._families, self._event_log, self._results, self._exclusive = families, event_log, results, exclusive
        self._spec: GrafanaSpec | None = None
        self._configured = asyncio.Event()
        self._dashboards, self._annotations = _PeriodicTask("dashboards"), _PeriodicTask("annotations")
        self._last: TargetEvent | None = None
        self._marks: deque[Mark] = deque(maxlen=MAX_PENDING_MARKS)
        self._created_s: deque[float] = deque()
        self._reported: object = None

    def configure(self, spec: GrafanaSpec | None) -> None:
        """Use this configuration and synchronise the dashboards at once; None stops synchronisation."""
        if spec != self._spec:
            for declared in (
                grafana_series.GRAFANA_FAILURES,
                grafana_series.GRAFANA_SUCCESS,
                grafana_series.GRAFANA_DASHBOARDS,
            ):
                self._families[declared.name].children.clear()
        self.stop()
        self._spec = spec
        self._dashboards, self._annotations = _PeriodicTask("dashboards"), _PeriodicTask("annotations")
        if spec is None or not spec.annotations:
            self._marks.clear()
        if spec is None:
            self._configured.clear()
            return
        for task, is_enabled in ((self._dashboards, spec.dashboards), (self._annotations, spec.annotations)):
            if is_enabled:
                self._families.value(grafana_series.GRAFANA_FAILURES, task.name)
        self._configured.set()

    async def run(self) -> None:
        """Check for due tasks until cancelled; wait while no Grafana is configured."""
        while True:
            await self._configured.wait()
            await self.run_due(self._clock.now_ns() / 1e9)
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def run_due(self, now_s: float) -> None:
        """Synchronise if a task is due. now_s: present time on the monotonic clock"""
        spec = self._spec
        if spec is None:
            return
        events = self._event_log.latest()
        new = list(takewhile(lambda event: event is not self._last, events))
        self._last = events[0] if events else None
        if spec.annotations:
            for event in reversed(new):
                if event.kind not in NOT_MARKED:
                    sweeps = self._results(event.target) if event.kind == "sweep" else ()
                    began = (sweep.started_unix_s for sweep in sweeps if sweep.ended_unix_s == event.unix_s)
                    self._marks.append(mark_of(event, next(began, None)))
        dashboards = spec.dashboards and self._first and now_s >= self._dashboards.due_s
        while self._created_s and now_s - self._created_s[0] > 3600:
            self._created_s.popleft()
        allowed = MAX_MARKS_PER_HOUR - len(self._created_s) if now_s >= self._annotations.due_s else 0
        marks = tuple(self._marks)[:allowed]
        if not dashboards and not marks:
            return
        if self._exclusive():
            await self._sync(SyncRequest(spec, dashboards, marks), now_s)
        else:
            self._marks.clear()  # the replica that writes has the same events

    def stop(self) -> None:
        """Stop a running synchronisation after its current call, and ignore its result, as the lease or the configuration is gone."""
        self._stopping.set()

    async def _sync(self, request: SyncRequest, now_s: float) -> None:
        self._stopping = request.stopping
        try:
            result = await asyncio.to_thread(self._run_sync, request)
        except asyncio.CancelledError:
            self.stop()
            raise
        if request.stopping.is_set():
            return
        if request.dashboards:
            self._record(self._dashboards, result, now_s, request.spec.interval)
        if request.marks and self._record(self._annotations, result, now_s, MARKS_INTERVAL_S):
            for mark in request.marks:
                self._created_s.append(now_s)
                if self._marks and self._marks[0] is mark:  # it may have been dropped as the oldest
                    self._marks.popleft()
        if result.dashboards is not None:
            self._report(result.dashboards)

    def _record(self, task: _PeriodicTask, result: SyncResult, now_s: float, again_s: float) -> bool:
        """Record the result of a task in series and log. Returns True if the task succeeded."""
        reason = result.failures.get(task.name)
        if reason is None:
            task.done(now_s + again_s)
            self._families.value(grafana_series.GRAFANA_SUCCESS, task.name).value = self._clock.unix_s()
            return True
        self._families.value(grafana_series.GRAFANA_FAILURES, task.name).inc()
        log.warning(
            "grafana: synchronisation of %s failed, next try in %g s: %s", task.name, task.failed(now_s), reason
        )
        return False

    def _report(self, dashboards: list[tuple[str, str, str]]) -> None:
        counts = self._families[grafana_series.GRAFANA_DASHBOARDS.name]
        for state in grafana_series.GRAFANA_DASHBOARD_STATES:
            counts.value(state).value = float(sum(_label(result) == state for _, result, _ in dashboards))
        not_replaced = [(title, state, detail) for title, state, detail in dashboards if _label(state) != "current"]
        for title, state, _ in dashboards:
            if state in ("created", "updated"):
                log.info("grafana: dashboard %r %s", title, state)
        if not_replaced != self._reported:
            for title, state, detail in not_replaced:
                log.warning("grafana: dashboard %r not replaced (%s): %s", title, state, detail)
        self._reported = not_replaced


def _label(state: str) -> str:
    """The state of a dashboard as the value of the label `state`; `current` for a state that the label does not have."""
    return state if state in grafana_series.GRAFANA_DASHBOARD_STATES else "current"
