"""A target while a command measures it: its identity, the readings of its metrics page, and its probes in due order."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from dataclasses import replace
from typing import Any

from prober.config.target import TargetSpec
from prober.features.engines.page_reader import PageReader
from prober.measure.engine_signals import EngineChange, EngineSignals, PageReading
from prober.measure.outcome import ANSWERED, Outcome, Verdict
from prober.measure.result import ProbeResult, unsent
from prober.measure.warmup import WarmUpLength
from prober.net.clock import Clock
from prober.probing.pacer import pace
from prober.probing.probe import Launch, LocalRun, calibrate, new_request, run_probe
from prober.probing.target import Target
from prober.results.result import Target as Described
from prober.workload.workloads import RequestGenerator

PAGE_WAIT_S = 2.0
MAX_WARM_UP_LEAD_NS = 100_000_000


class Session:
    """A target and the metrics page of its engine, if the specification names one. Call `stop` when done.

    launch: begins its probes, here or in a worker
    readings: (ns of the monotonic clock, signals) of each reading of the page
    changes: changes of the engine during the session, as text
    """

    def __init__(self, spec: TargetSpec, clock: Clock, launch: Launch = LocalRun) -> None:
        self.spec, self.clock, self.launch = spec, clock, launch
        self.target = Target(spec, clock)
        self.changes: list[str] = []
        self.readings: list[tuple[int, EngineSignals]] = []
        self._first_reading = asyncio.Event()
        self._page: asyncio.Task[Any] | None = None

    async def start(self) -> Verdict | None:
        """Identify the target, calibrate the length of prompts and wait for a first reading of the page.

        Returns why the target was not identified, None if it was. Probes show the same failure.
        """
        if (failure := await self.target.identify()) is None:
            await calibrate(self.target)
        if self.spec.metrics is not None:
            reader = PageReader(self.target, self.spec.metrics, self.clock, self, lambda: self.spec.url)
            self._page = asyncio.create_task(reader.run())
            first_reading, wait_s = asyncio.create_task(self._first_reading.wait()), PAGE_WAIT_S * (failure is None)
            await asyncio.wait([first_reading, self._page], timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            first_reading.cancel()
        return failure

    async def stop(self) -> None:
        """Stop reading the metrics page."""
        if self._page is not None:
            self._page.cancel()
            await asyncio.wait([self._page])

    def page_read(self, reading: PageReading | None) -> None:
        """The metrics page was read."""
        if reading is not None:
            self.readings.append((reading.at_ns, reading.signals))
            self._first_reading.set()

    def engine_changed(self, change: EngineChange) -> None:
        """The engine restarted or changed."""
        self.changes.append("restarted" if change.kind == "restart" else change.text())

    def described(self) -> Described:
        """The target as results describe it."""
        identity, info = self.target.identity, self.readings[-1][1].info if self.readings else None
        description = Described(url=self.spec.url, model=self.spec.model, engine=self.spec.engine, api=self.spec.api)
        if identity is not None:
            description = replace(description, model=identity.name, engine=identity.dialect.name)
        if info is not None:
            description = replace(description, engine=info.engine, engine_version=info.version, flags=dict(info.flags))
        return description

    async def warm_up(
        self, drawer: RequestGenerator, length: WarmUpLength, target: Target | None = None
    ) -> AsyncGenerator[ProbeResult | None, None]:
        """Results of probes sent one after the other, so that a cold engine delays only one request; no latency counts.

        target: with headers of its own; None: that of the session
        """
        begin_ns, sent = self.clock.now_ns(), 0
        while not length.is_over(sent, (self.clock.now_ns() - begin_ns) / 1e9):
            lead_ns = min(round(self.spec.connect_lead * 1e9), MAX_WARM_UP_LEAD_NS)
            result = await run_probe(target or self.target, drawer, self.clock.now_ns() + lead_ns, launch=self.launch)
            sent += 1
            yield None if result is None else replace(result, warm_up=result.outcome in ANSWERED)

    async def ordered(
        self, drawer: RequestGenerator, due_times: Iterable[int]
    ) -> AsyncGenerator[ProbeResult | None, None]:
        """Send at the due times in an open loop and yield results in that order. Closing it cancels requests in flight."""
        started: asyncio.Queue[asyncio.Task[ProbeResult | None] | None] = asyncio.Queue()

        def launch(due_ns: int) -> None:
            started.put_nowait(asyncio.create_task(run_probe(self.target, drawer, due_ns, launch=self.launch)))

        def missed(due_ns: int, why: str) -> None:
            request = new_request(self.target, drawer, due_ns)  # keeps the next request the same
            if request.session is not None:
                request.session.end_turn(None, None)
            result = unsent(due_ns, Outcome.INVALID, why, is_late=True)
            started.put_nowait(asyncio.create_task(asyncio.sleep(0, result)))

        async def send() -> None:
            await pace(due_times, self.clock, self.spec, launch, missed)
            started.put_nowait(None)

        sending = asyncio.create_task(send())
        probe: asyncio.Task[ProbeResult | None] | None = None
        try:
            while (probe := await started.get()) is not None:
                yield await probe
        finally:
            sending.cancel()
            unfinished = [
                task for task in (probe, *(started.get_nowait() for _ in range(started.qsize()))) if task is not None
            ]
            for task in unfinished:
                task.cancel()
            await asyncio.gather(sending, *unfinished, return_exceptions=True)
