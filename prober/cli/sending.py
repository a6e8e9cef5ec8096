"""Sends one row of a workload matrix, in an open or a closed loop."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from random import Random

from prober.cli.session import Session
from prober.config.rows import Row
from prober.config.target import TargetSpec
from prober.features.experiments.matrix import as_sent, due_times, warming
from prober.measure.engine_signals import EngineSignals, PageReading
from prober.measure.outcome import ANSWERED, Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.net.clock import Clock
from prober.probing.pacer import pace
from prober.probing.probe import run_probe
from prober.workload.workloads import RequestGenerator

PAUSE_S = 0.1  # pause of a closed loop after an unanswered request, to spare a target that is down


class Watched(Session):
    """A session that keeps every reading of the metrics page with its time, in ns of the monotonic clock."""

    def __init__(self, spec: TargetSpec, clock: Clock) -> None:
        super().__init__(spec, clock)
        self.readings: list[tuple[int, EngineSignals]] = []

    def page_read(self, reading: PageReading | None) -> None:
        """The metrics page was read."""
        super().page_read(reading)
        if reading is not None:
            self.readings.append((reading.at_ns, reading.signals))


class Sending:
    """Sends one row; `heard` is called after each request that ended.

    begin_ns, end_ns: span in which requests count, begin_ns is None during warm-up; warmed: number of warm-up requests
    results: sorted by due time after the end; loading: requests not sent because the engine is loading or shutting down
    """

    def __init__(self, session: Watched, row: Row, rng: Random, heard: Callable[[], None]) -> None:
        self._session, self._row, self._rng, self._heard = session, row, rng, heard
        self._clock = session.clock
        self._drawer = RequestGenerator(row.workload, rng)
        self._begun = 0
        self.begin_ns: int | None = None
        self.end_ns = 0
        self.warmed = 0
        self.results: list[ProbeResult] = []
        self.loading = 0

    async def run(self) -> None:
        """Warm up and send. If cancelled, it keeps the results so far and leaves no request in flight."""
        warm = RequestGenerator(warming(self._row.workload), self._rng)
        async with aclosing(self._session.warm_up(warm, self._session.spec.warmup)) as first:
            async for result in first:
                self.warmed += result is not None
        try:
            await (self._closed_loop() if self._row.closed else self._open_loop())
        finally:
            self.end_ns = self._clock.now_ns()
            self.results.sort(key=lambda each: each.timeline.intended_ns)

    @property
    def readings(self) -> list[EngineSignals]:
        """Readings of the metrics page while requests counted."""
        return [signals for at_ns, signals in self._session.readings if (self.begin_ns or 0) <= at_ns <= self.end_ns]

    def sending_s(self, *, whole: bool) -> float:
        """Time during which requests were sent, in seconds. whole: the row was not interrupted."""
        assert self.begin_ns is not None
        if whole and self._row.duration is not None:
            return self._row.duration
        last_ns = max((each.timeline.intended_ns for each in self.results), default=self.begin_ns)
        return max(0.0, (last_ns - self.begin_ns) / 1e9)

    async def _open_loop(self) -> None:
        lead_ns = round(self._session.spec.connect_lead * 1e9)
        self.begin_ns = self._clock.now_ns() + lead_ns
        async with asyncio.TaskGroup() as flying:

            def launch(due_ns: int) -> None:
                flying.create_task(self._one(due_ns))

            await pace(due_times(self._row, self._rng, self.begin_ns), self._clock, lead_ns, launch, self._missed)

    async def _closed_loop(self) -> None:
        self.begin_ns = self._clock.now_ns()
        async with asyncio.TaskGroup() as flying:
            for _ in range(self._row.concurrency or 0):
                flying.create_task(self._one_after_another(self.begin_ns))

    async def _one_after_another(self, begin_ns: int) -> None:
        while self._goes_on(begin_ns):
            self._begun += 1
            if not await self._one(self._clock.now_ns()):
                await asyncio.sleep(PAUSE_S)

    def _goes_on(self, begin_ns: int) -> bool:
        """Whether a closed loop sends one more request."""
        if self._row.requests is not None:
            return self._begun < self._row.requests
        return self._clock.now_ns() < begin_ns + (self._row.duration or 0.0) * 1e9

    async def _one(self, due_ns: int) -> bool:
        """Send one request; whether it was answered."""
        try:
            result = await run_probe(self._session.target, self._drawer, due_ns)
        except asyncio.CancelledError:
            if due_ns <= self._clock.now_ns():
                self.results.append(_without(Outcome.CANCELLED, "cut when the row was interrupted", due_ns))
            raise
        if result is None:
            self.loading += 1
        else:
            self.results.append(as_sent(result) if self._row.closed else result)
        self._heard()
        return result is not None and result.outcome in ANSWERED

    def _missed(self, due_ns: int) -> None:
        detail = "the prober woke over a second after the due time and did not send"
        self.results.append(_without(Outcome.INVALID, detail, due_ns))


def _without(outcome: Outcome, detail: str, due_ns: int) -> ProbeResult:
    return ProbeResult("", "", "", 0.0, outcome, detail, Timeline(due_ns))
