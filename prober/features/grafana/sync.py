"""Dashboards and events kept in Grafana, beside the measuring: each visit there is a process of its own (see edge/grafana/visit)."""

import asyncio
import logging
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from itertools import takewhile

from prober.config.specs import GrafanaSpec
from prober.exposition.families import Registry
from prober.features.grafana import series as grafana_series
from prober.features.grafana.client.marks import Mark, mark
from prober.features.grafana.client.visit import Came, Order, came_of
from prober.measure.event import TargetEvent
from prober.probing.event_log import EventLog
from prober.results.result import Result

NOT_MARKED = frozenset(("state", "diagnosis"))  # they come and go with every trouble; the dashboards draw them
LOOK_EVERY_S = 5.0
MARKS_EVERY_S = 60.0  # between two visits for events only
MARKS_KEPT = 200  # while Grafana is away; the oldest go
MARKS_AN_HOUR = 100
RETRY_S, LONGEST_RETRY_S = 30.0, 3600.0
LONGEST_VISIT_S = 330.0
log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Duty:
    """What is to be done again and again. due_s: on the monotonic clock; failures: in a row."""

    name: str
    due_s: float = 0.0
    failures: int = 0

    def failed(self, now_s: float) -> float:
        """Seconds until the next try, each time twice as long."""
        wait_s: float = min(RETRY_S * 2 ** min(self.failures, 10), LONGEST_RETRY_S)
        self.failures, self.due_s = self.failures + 1, now_s + wait_s
        return wait_s

    def done(self, due_s: float) -> None:
        """And due again then."""
        self.failures, self.due_s = 0, due_s


class Grafana:
    """One Grafana, as the configuration says.

    results: a target's sweeps, which say when one began. exclusive: asked before each visit whether this prober is the one that
    writes; of several replicas only one may. first: of several that write (one a shard), the one that keeps the dashboards.
    visited: what goes there.
    """

    def __init__(
        self,
        families: Registry,
        event_log: EventLog,
        results: Callable[[str], Iterable[Result]],
        exclusive: Callable[[], bool] = lambda: True,
        visited: Callable[[Order], Awaitable[Came]] | None = None,
        *,
        first: bool = True,
    ) -> None:
        self._visited, self._first = visited or visit, first
        self._going: asyncio.Future[Came] | None = None
        self._families, self._event_log, self._results, self._exclusive = families, event_log, results, exclusive
        self._spec: GrafanaSpec | None = None
        self._configured = asyncio.Event()
        self._dashboards, self._annotations = _Duty("dashboards"), _Duty("annotations")
        self._last: TargetEvent | None = None
        self._marks: deque[Mark] = deque(maxlen=MARKS_KEPT)
        self._made_s: deque[float] = deque()
        self._told: object = None

    def configure(self, spec: GrafanaSpec | None) -> None:
        """Go by this from now on, and look at the dashboards at once; None: Grafana is left alone."""
        if spec != self._spec:
            for declared in (
                grafana_series.GRAFANA_FAILURES,
                grafana_series.GRAFANA_SUCCESS,
                grafana_series.GRAFANA_DASHBOARDS,
            ):
                self._families[declared.name].children.clear()
        self._spec = spec
        self._dashboards, self._annotations = _Duty("dashboards"), _Duty("annotations")
        if spec is None or not spec.annotations:
            self._marks.clear()
        if spec is None:
            self._configured.clear()
            return
        for duty, wanted in ((self._dashboards, spec.dashboards), (self._annotations, spec.annotations)):
            if wanted:
                self._families[grafana_series.GRAFANA_FAILURES.name].value(duty.name)
        self._configured.set()

    async def run(self) -> None:
        """Look for ever, while there is a configuration."""
        while True:
            await self._configured.wait()
            await self.look(time.monotonic())
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self, now_s: float) -> None:
        """Visit if something is due. now_s: on the monotonic clock."""
        spec = self._spec
        if spec is None:
            return
        self._gather(spec)
        dashboards = spec.dashboards and self._first and now_s >= self._dashboards.due_s
        marks = self._room(now_s) if now_s >= self._annotations.due_s else ()
        if (dashboards or marks) and self._writes():
            await self._visit(Order(spec, dashboards, marks), now_s)

    def _gather(self, spec: GrafanaSpec) -> None:
        """Events since the last look."""
        events = self._event_log.latest()
        new = list(takewhile(lambda event: event is not self._last, events))
        self._last = events[0] if events else None
        if spec.annotations:
            self._marks.extend(mark(each, self._began(each)) for each in reversed(new) if each.kind not in NOT_MARKED)

    def _began(self, event: TargetEvent) -> float | None:
        """When the sweep that an event tells of began, Unix seconds; None for what is a moment."""
        if event.kind != "sweep":
            return None
        results = self._results(event.target)
        return next((each.started_unix_s for each in results if each.ended_unix_s == event.unix_s), None)

    def _room(self, now_s: float) -> tuple[Mark, ...]:
        """Those that may be made now: so many an hour, whatever happens."""
        while self._made_s and now_s - self._made_s[0] > 3600:
            self._made_s.popleft()
        return tuple(self._marks)[: MARKS_AN_HOUR - len(self._made_s)]

    def _writes(self) -> bool:
        if self._exclusive():
            return True
        self._marks.clear()  # the prober that writes has seen them too
        return False

    def lost(self) -> None:
        """This prober writes no more: a visit under way ends."""
        if self._going is not None:
            self._going.cancel()

    async def _visit(self, order: Order, now_s: float) -> None:
        began = self._dashboards
        going = self._going = asyncio.ensure_future(self._visited(order))
        try:
            await asyncio.wait([going])
        finally:
            going.cancel()
            self._going = None
        if going.cancelled():
            return
        try:
            came = going.result()
        except (OSError, ValueError, TimeoutError) as problem:
            why = f"the visit to {order.spec.url} failed: {str(problem) or type(problem).__name__}"
            came = Came(failures=dict.fromkeys((self._dashboards.name, self._annotations.name), why))
        if self._dashboards is not began:
            return  # a reload came between; it is looked at anew
        if order.dashboards:
            self._came(self._dashboards, came, now_s, order.spec.interval_s)
        if order.marks and self._came(self._annotations, came, now_s, MARKS_EVERY_S):
            self._made(order.marks, now_s)
        if came.dashboards is not None:
            self._tell(came.dashboards)

    def _came(self, duty: _Duty, came: Came, now_s: float, again_s: float) -> bool:
        """Whether a duty is done, into series and log."""
        why = came.failures.get(duty.name)
        if why is None:
            duty.done(now_s + again_s)
            self._families[grafana_series.GRAFANA_SUCCESS.name].value(duty.name).value = time.time()
            return True
        self._families[grafana_series.GRAFANA_FAILURES.name].value(duty.name).inc()
        log.warning("grafana: %s not in step, the next try is in %g s: %s", duty.name, duty.failed(now_s), why)
        return False

    def _made(self, marks: Iterable[Mark], now_s: float) -> None:
        for each in marks:
            self._made_s.append(now_s)
            if self._marks and self._marks[0] is each:  # unless it was the oldest of too many
                self._marks.popleft()

    def _tell(self, dashboards: list[tuple[str, str, str]]) -> None:
        counts = self._families[grafana_series.GRAFANA_DASHBOARDS.name]
        for state in grafana_series.GRAFANA_DASHBOARD_STATES:
            counts.value(state).value = float(sum(_shown(found) == state for _, found, _ in dashboards))
        left = [(title, state, detail) for title, state, detail in dashboards if _shown(state) != "current"]
        for title, state, _ in dashboards:
            if state in ("made", "updated"):
                log.info("grafana: dashboard %r %s", title, state)
        if left != self._told:
            for title, state, detail in left:
                log.warning("grafana: dashboard %r not replaced (%s): %s", title, state, detail)
        self._told = left


def _shown(state: str) -> str:
    """The label of what became of a dashboard."""
    return state if state in grafana_series.GRAFANA_DASHBOARD_STATES else "current"


async def visit(order: Order) -> Came:
    """Go there, in a process that ends. Raises OSError, ValueError, TimeoutError; cancelled, it ends the process.

    A thread starts it, as uvloop's own way holds the loop for 15 ms; this one takes half a millisecond.
    """
    started: list[subprocess.Popen[bytes]] = []
    cancelled = threading.Event()

    def run() -> Came:
        command = [sys.executable, "-P", "-m", "prober.features.grafana.client.visit"]
        pipe = subprocess.PIPE
        # a session of its own: Ctrl-C is for the prober, which ends it
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True) as process:
            started.append(process)
            if cancelled.is_set():
                process.kill()
            try:
                out, err = process.communicate(order.as_json().encode(), LONGEST_VISIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise TimeoutError(f"it took longer than {LONGEST_VISIT_S:g} s") from None
        if process.returncode != 0:
            last = err.decode(errors="replace").strip().rpartition("\n")[2]
            raise OSError(f"it ended with {process.returncode}: {last}")
        return came_of(out.decode())

    try:
        return await asyncio.to_thread(run)
    except asyncio.CancelledError:
        cancelled.set()
        for process in started:
            process.kill()
        raise
