"""Keeps the dashboards of one Grafana up to date and annotates events there, in a thread, so that no request is delayed."""

import asyncio
import html
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from prober.config.configuration import GrafanaSpec
from prober.exposition.families import Registry
from prober.features.grafana import GrafanaError, series
from prober.measure.printable import one_line
from prober.measure.target_state import TargetEvent
from prober.net.clock import Clock
from prober.probing.history import EventLog
from prober.results.result import Result
from prober.storage.watched_file import Secret

if TYPE_CHECKING:
    from grafana_client import GrafanaApi

    from prober.features.grafana.push import PushResult

TAG = "llm-slo-prober"
MAX_TAG_CHARS = 100  # size of the column in Grafana's table of tags
# Frequent, shown by the dashboards themselves, or of the configuration.
NOT_MARKED = frozenset(("state", "diagnosis", "slo"))
CHECK_INTERVAL_S = 5.0  # for new events, and for the lease
MARKS_INTERVAL_S = 60.0
MAX_FOUND_MARKS = 1000  # more than there are events in the log
RETRY_S, MAX_RETRY_S = 30.0, 3600.0
NOT_REPLACED = ("edited", "provisioned", "failed")  # states of dashboards, and values of the label
log = logging.getLogger(__name__)

Mark = dict[str, Any]  # arguments of the library's `add_annotation`; times are Unix milliseconds


def mark_of(event: TargetEvent, began_unix_s: float | None = None) -> Mark:
    """Annotation of an event. began_unix_s: start of a span that ends with the event. The text is HTML."""
    end_ms = round(event.unix_s * 1e3)
    return {
        "time_from": end_ms if began_unix_s is None else round(began_unix_s * 1e3),
        "time_to": None if began_unix_s is None else end_ms,
        "tags": [TAG, one_line(event.target)[:MAX_TAG_CHARS], event.kind],
        "text": html.escape(one_line(f"{event.target}: {event.text}"), quote=False),
    }


def annotate(api: "GrafanaApi", marks: Sequence[Mark]) -> None:
    """Create the annotations that do not exist yet, oldest first. Raises GrafanaError, after which some may exist."""
    begin_ms = min(mark["time_from"] for mark in marks) - 1
    end_ms = max(mark["time_to"] or mark["time_from"] for mark in marks) + 1
    existing = api.annotations.find_annotations(
        time_from=begin_ms, time_to=end_ms, ann_type="annotation", tags=[TAG], limit=MAX_FOUND_MARKS
    )
    known = {(item["time"], item["text"]) for item in existing}
    for mark in sorted(marks, key=lambda mark: mark["time_from"]):
        if (mark["time_from"], mark["text"]) not in known:
            api.annotations.add_annotation(**mark)


@contextmanager
def _connected(spec: GrafanaSpec) -> "Iterator[GrafanaApi]":
    """The configured Grafana. The token is read, and the library imported, for each synchronisation. Raises GrafanaError."""
    from prober.features.grafana.client import connected

    secret = Secret(spec.auth.secret_file)
    token = secret.read()
    if token is None:
        raise GrafanaError(f"grafana.{secret.problem}")
    with connected(spec.url, token, spec.tls) as api:
        yield api


class Grafana:
    """Synchronisation with one configured Grafana.

    results: returns the sweeps of a target, to find the start of a sweep for its annotation.
    exclusive: returns True if this replica may write; called before each synchronisation.
    documents: builds the dashboards, in a thread; None in a shard that does not write them
    """

    def __init__(
        self,
        families: Registry,
        event_log: EventLog,
        results: Callable[[str], Iterable[Result]],
        clock: Clock,
        exclusive: Callable[[], bool],
        documents: Callable[[], Iterable[dict[str, Any]]] | None,
    ) -> None:
        self._families, self._event_log, self._results, self._clock = families, event_log, results, clock
        self._exclusive, self._documents = exclusive, documents
        self._spec: GrafanaSpec | None = None
        self._configured = asyncio.Event()
        self._marked: TargetEvent | None = None  # the latest event that is marked, or needs no mark
        self._reported: object = None

    def configure(self, spec: GrafanaSpec | None) -> None:
        """Use this configuration and synchronise at once; None stops synchronisation."""
        if spec != self._spec:
            for declared in (series.GRAFANA_FAILURES, series.GRAFANA_SUCCESS, series.GRAFANA_DASHBOARDS):
                self._families[declared.name].children.clear()
        self._spec = spec
        self._configured.set()

    async def run(self) -> None:
        """Synchronise until cancelled, anew after each `configure`."""
        while True:
            self._configured.clear()
            async with asyncio.TaskGroup() as tasks:
                keeping = []
                if (spec := self._spec) is not None and spec.dashboards and self._documents:
                    keeping.append(tasks.create_task(self._keep("dashboards", self._push, spec, spec.interval)))
                if spec is not None and spec.annotations:
                    keeping.append(tasks.create_task(self._keep("annotations", self._annotate, spec, MARKS_INTERVAL_S)))
                await self._configured.wait()
                for task in keeping:
                    task.cancel()

    async def _keep(
        self, what: str, work: Callable[[GrafanaSpec], Awaitable[bool]], spec: GrafanaSpec, interval_s: float
    ) -> None:
        """Repeat `work`, which returns False if there was nothing to do; later and later while it fails."""
        failures, retry_s = self._families.value(series.GRAFANA_FAILURES, what), RETRY_S
        while True:
            wait_s = CHECK_INTERVAL_S
            try:
                if not self._exclusive():
                    self._marked = next(
                        iter(self._event_log.latest()), None
                    )  # the replica that writes has the same events
                elif await work(spec):
                    self._families.value(series.GRAFANA_SUCCESS, what).value = self._clock.unix_s()
                    wait_s, retry_s = interval_s, RETRY_S
            except GrafanaError as error:
                failures.inc()
                log.warning("grafana: synchronisation of %s failed, next try in %g s: %s", what, retry_s, error)
                wait_s, retry_s = retry_s, min(2 * retry_s, MAX_RETRY_S)
            await asyncio.sleep(wait_s)

    async def _push(self, spec: GrafanaSpec) -> bool:
        """Push the dashboards and report their states. Raises GrafanaError if one failed."""
        results = await asyncio.to_thread(self._push_in_thread, spec)
        labels = [result.state if result.state in NOT_REPLACED else "current" for result in results]
        for label in ("current", *NOT_REPLACED):
            self._families.value(series.GRAFANA_DASHBOARDS, label).value = float(labels.count(label))
        not_replaced = [result for result in results if result.state in NOT_REPLACED]
        if not_replaced != self._reported:
            for result in not_replaced:
                log.warning("grafana: dashboard %r not replaced (%s): %s", result.title, result.state, result.detail)
        self._reported = not_replaced
        for result in not_replaced:
            if result.state == "failed":
                raise GrafanaError(result.detail)
        return True

    def _push_in_thread(self, spec: GrafanaSpec) -> "list[PushResult]":
        from prober.features.grafana.push import push

        with _connected(spec) as api:
            return push(api, self._documents() if self._documents else (), spec.folder, spec.datasource)

    async def _annotate(self, spec: GrafanaSpec) -> bool:
        """Mark the events that are not marked yet. Raises GrafanaError."""
        events = self._event_log.latest()
        new = takewhile(lambda event: event is not self._marked, events)
        if marks := [self._mark(event) for event in new if event.kind not in NOT_MARKED]:
            await asyncio.to_thread(self._annotate_in_thread, spec, marks)
        self._marked = events[0] if events else None
        return bool(marks)

    def _annotate_in_thread(self, spec: GrafanaSpec, marks: list[Mark]) -> None:
        with _connected(spec) as api:
            annotate(api, marks)

    def _mark(self, event: TargetEvent) -> Mark:
        sweeps = self._results(event.target) if event.kind == "sweep" else ()
        began = (sweep.started_unix_s for sweep in sweeps if sweep.ended_unix_s == event.unix_s)
        return mark_of(event, next(began, None))
