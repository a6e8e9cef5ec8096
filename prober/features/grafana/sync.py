"""Updates the dashboards of one Grafana and marks events there, in a thread, so that no probe is delayed."""

import asyncio
import html
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
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
MAX_TAG_CHARS = 100  # size of the tag column in Grafana's database
# Kinds of events that are frequent, shown by the dashboards, or caused by the configuration.
NOT_MARKED = frozenset(("state", "diagnosis", "slo"))
INTERVAL_S = 30.0  # between checks for new events, and between retries
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


@contextmanager
def _connected(spec: GrafanaSpec) -> "Iterator[GrafanaApi]":
    """Connect to the configured Grafana. Reads the token and imports the library each time. Raises GrafanaError."""
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
    documents: builds the dashboards, in a thread; None in a shard that does not push them
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
        self._push_due_s = 0.0  # on the event loop's clock
        self._marked: TargetEvent | None = None  # the latest event that is marked or needs no mark
        self._problems: dict[str, str] = {}  # last logged problem of each part

    def configure(self, spec: GrafanaSpec | None) -> None:
        """Use this configuration and synchronise at once; None stops synchronisation."""
        if spec != self._spec:
            for declared in (series.GRAFANA_FAILURES, series.GRAFANA_SUCCESS, series.GRAFANA_DASHBOARDS):
                self._families[declared.name].children.clear()
        self._spec, self._push_due_s = spec, 0.0
        self._configured.set()

    async def run(self) -> None:
        """Synchronise until cancelled. Events from before the start are not marked."""
        now = asyncio.get_running_loop().time
        self._marked = next(iter(self._event_log.latest()), None)
        while True:
            self._configured.clear()
            spec, events = self._spec, self._event_log.latest()
            if spec is not None and not self._exclusive():
                self._marked = next(iter(events), None)  # the replica that held the lease before has marked these
            elif spec is not None:
                if spec.dashboards and self._documents and now() >= self._push_due_s:
                    self._push_due_s = now() + spec.interval
                    if not await self._synchronised("dashboards", self._push(spec)):
                        self._push_due_s = 0.0
                new = takewhile(lambda event: event is not self._marked, events)
                marks = [(event, self._mark(event)) for event in new if event.kind not in NOT_MARKED]
                if spec.annotations and marks:
                    await self._synchronised("annotations", asyncio.to_thread(self._annotate, spec, marks[::-1]))
            with suppress(TimeoutError):
                async with asyncio.timeout(INTERVAL_S):
                    await self._configured.wait()

    async def _synchronised(self, what: str, work: Awaitable[None]) -> bool:
        """Wait for `work` to end and count the result. Returns False if it failed."""
        failures = self._families.value(series.GRAFANA_FAILURES, what)
        try:
            await work
        except GrafanaError as error:
            failures.inc()
            self._report(what, f"synchronisation of {what} fails, and is tried every {INTERVAL_S:g} s: {error}")
            return False
        self._report(what, "")
        self._families.value(series.GRAFANA_SUCCESS, what).value = self._clock.unix_s()
        return True

    def _report(self, what: str, problem: str) -> None:
        """Log a problem unless it was the last one logged for `what`. problem: "" for none"""
        if problem and problem != self._problems.get(what):
            log.warning("grafana: %s", problem)
        self._problems[what] = problem

    async def _push(self, spec: GrafanaSpec) -> None:
        """Push the dashboards and report their states. Raises GrafanaError if one failed."""
        results = await asyncio.to_thread(self._push_in_thread, spec)
        count = Counter(result.state if result.state in NOT_REPLACED else "current" for result in results)
        for state in ("current", *NOT_REPLACED):
            self._families.value(series.GRAFANA_DASHBOARDS, state).value = float(count[state])
        for result in results:
            reason = f"dashboard {result.title!r} not replaced ({result.state}): {result.detail}"
            self._report(result.uid, reason if result.state in NOT_REPLACED else "")
        for result in results:
            if result.state == "failed":
                raise GrafanaError(result.detail)

    def _push_in_thread(self, spec: GrafanaSpec) -> "list[PushResult]":
        from prober.features.grafana.push import push

        with _connected(spec) as api:
            return push(api, self._documents() if self._documents else (), spec.folder, spec.datasource)

    def _mark(self, event: TargetEvent) -> Mark:
        sweeps = self._results(event.target) if event.kind == "sweep" else ()
        began = (sweep.started_unix_s for sweep in sweeps if sweep.ended_unix_s == event.unix_s)
        return mark_of(event, next(began, None))

    def _annotate(self, spec: GrafanaSpec, marks: Sequence[tuple[TargetEvent, Mark]]) -> None:
        """Mark the events. Raises GrafanaError, possibly after marking some."""
        with _connected(spec) as api:
            for event, mark in marks:
                api.annotations.add_annotation(**mark)
                self._marked = event
