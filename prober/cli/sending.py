"""Sends one row of a workload matrix, in an open or a closed loop, and a row that is its load beside it."""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from random import Random

from prober.cli.gpus import read_gpus
from prober.cli.session import Session
from prober.config.rows import Row
from prober.config.target import TargetSpec
from prober.features.capacity.load_guard import LoadGuard
from prober.features.experiments.matrix import as_sent, due_times, warming
from prober.measure.engine_signals import EngineSignals
from prober.measure.gpu_reading import GpuReading
from prober.measure.outcome import ANSWERED, Outcome, Verdict
from prober.measure.request import Conversation, Drawer
from prober.measure.result import ProbeResult, unsent
from prober.measure.warmup import WarmUpLength
from prober.net.clock import Clock
from prober.net.endpoint import endpoint
from prober.probing.pacer import pace
from prober.probing.probe import Launch, LocalRun, ProbeRun, run_probe
from prober.probing.target import Target
from prober.results.disturbance import Disturbance, disturbance_of
from prober.results.refused_requests import refused_requests
from prober.results.result import WarmUp
from prober.workload.workloads import RequestGenerator

GUARD_INTERVAL_S = 0.25  # between judgements of a load by the requests in flight
RETRY_PAUSE_S = 0.1  # of a closed loop after an unanswered request, to spare a target that is down


class Watched(Session):
    """A session that also reads the GPUs, and keeps each reading with its time, in ns of the monotonic clock."""

    def __init__(self, spec: TargetSpec, clock: Clock, launch: Launch = LocalRun) -> None:
        super().__init__(spec, clock, launch)
        self.gpus: list[tuple[int, Sequence[GpuReading]]] = []
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> Verdict | None:
        """Start the session, and read the GPUs from now on."""
        failure = await super().start()
        self._reading = asyncio.create_task(read_gpus(self.target, self.gpus_read))
        return failure

    async def stop(self) -> None:
        """Stop reading the page and the GPUs."""
        await super().stop()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    def gpus_read(self, devices: Sequence[GpuReading]) -> None:
        """The GPUs that serve the target were read."""
        self.gpus.append((self.clock.now_ns(), devices))


class Sending:
    """Sends one row; `on_request` is called after each request that ended.

    begin_ns, end_ns: span in which requests count; begin_ns is None before
    warmed: the warm-up that was sent
    results: sorted by due time after the end
    loading: number of requests not sent because the engine is loading or shutting down
    """

    def __init__(
        self, session: Watched, row: Row, rng: Random, warm_up: WarmUpLength, on_request: Callable[[], None]
    ) -> None:
        self._warm_up = warm_up
        self._session, self._row, self._rng, self._on_request = session, row, rng, on_request
        self._clock = session.clock
        self._target = with_headers(session.target, row.headers)
        self._pending: set[ProbeRun] = set()
        self._drawer = RequestGenerator(row.workload, rng)
        self._started = 0
        self.begin_ns: int | None = None
        self.end_ns = 0
        self.warmed = WarmUp(0)
        self.results: list[ProbeResult] = []
        self.loading = 0

    async def run(self) -> None:
        """Warm up and send. If cancelled, it keeps the results so far and leaves no request in flight."""
        await self.warm_up()
        await self.send()

    async def warm_up(self) -> None:
        """Send what does not count."""
        warm = RequestGenerator(warming(self._row.workload), self._rng)
        warm_ns = self._clock.now_ns()
        async with aclosing(self._session.warm_up(warm, self._warm_up, self._target)) as first:
            sent = [result async for result in first if result is not None]
        self.warmed = WarmUp(len(sent), (self._clock.now_ns() - warm_ns) / 1e9)

    async def send(self) -> None:
        """Send what counts. If cancelled, it keeps the results so far and leaves no request in flight."""
        try:
            await (self._closed_loop() if self._row.closed else self._open_loop())
        finally:
            self.end_ns = self._clock.now_ns()
            self.results.sort(key=lambda result: result.timeline.intended_ns)

    @property
    def readings(self) -> list[EngineSignals]:
        """Readings of the metrics page while requests counted."""
        return [signals for at_ns, signals in self._session.readings if (self.begin_ns or 0) <= at_ns <= self.end_ns]

    @property
    def gpus(self) -> list[Sequence[GpuReading]]:
        """Readings of the GPUs while requests counted."""
        return [devices for at_ns, devices in self._session.gpus if (self.begin_ns or 0) <= at_ns <= self.end_ns]

    def max_wait_s(self) -> float:
        """Longest TTFT of the requests in flight, or time waited for it, in seconds; 0 without any."""
        waited_ns = ((run.first_ns or self._clock.now_ns()) - run.request.due_ns for run in self._pending)
        return max(waited_ns, default=0) / 1e9

    def sending_s(self, *, is_complete: bool) -> float:
        """Time during which requests were sent, in seconds. is_complete: the row was not interrupted."""
        assert self.begin_ns is not None
        if is_complete and self._row.duration is not None:
            return self._row.duration
        last_ns = max((result.timeline.intended_ns for result in self.results), default=self.begin_ns)
        return max(0.0, (last_ns - self.begin_ns) / 1e9)

    async def _open_loop(self) -> None:
        lead_ns = round(self._session.spec.connect_lead * 1e9)
        self.begin_ns = self._clock.now_ns() + lead_ns
        async with asyncio.TaskGroup() as in_flight:

            def launch(due_ns: int) -> None:
                in_flight.create_task(self._converse(due_ns))

            def missed(due_ns: int, why: str) -> None:
                self.results.append(unsent(due_ns, Outcome.INVALID, why, is_late=True))

            await pace(due_times(self._row, self._rng, self.begin_ns), self._clock, self._session.spec, launch, missed)

    async def _closed_loop(self) -> None:
        self.begin_ns = self._clock.now_ns()
        async with asyncio.TaskGroup() as in_flight:
            for _ in range(self._row.concurrency or 0):
                in_flight.create_task(self._send_serially(self.begin_ns))

    async def _send_serially(self, begin_ns: int) -> None:
        row, end_ns = self._row, begin_ns + (self._row.duration or 0.0) * 1e9
        while self._started < row.requests if row.requests is not None else self._clock.now_ns() < end_ns:
            self._started += 1
            result, _ = await self._send(self._clock.now_ns(), self._drawer, math.inf)
            if result is None or result.outcome not in ANSWERED:
                await asyncio.sleep(RETRY_PAUSE_S)

    async def _converse(self, due_ns: int) -> None:
        """Send one request, and the turns that follow their answers after a think time until the row ends.

        A connection that the think time is too short for is in no latency, for as long as every request has for its connection.
        """
        lead_ns = round(self._session.spec.connect_lead * 1e9)
        end_ns = math.inf if self._row.duration is None else (self.begin_ns or 0) + self._row.duration * 1e9
        drawer: Drawer = self._drawer
        latest_ns = due_ns
        while True:
            result, session = await self._send(due_ns, drawer, latest_ns)
            if result is None or session is None or session.think_s is None or not session.turns_left:
                return
            now_ns = self._clock.now_ns()
            due_ns = max((result.timeline.end_ns or now_ns) + round(session.think_s * 1e9), now_ns)
            if due_ns >= end_ns:
                return
            drawer, latest_ns = session, max(due_ns, now_ns + lead_ns)
            await self._clock.sleep_until(due_ns - lead_ns)

    async def _send(
        self, due_ns: int, drawer: Drawer, latest_ns: float
    ) -> tuple[ProbeResult | None, Conversation | None]:
        """Send one request; its result, None while the engine is loading, and its session.

        latest_ns: until then its due time waits for its connection
        """
        runs: list[ProbeRun] = []

        def begun(run: ProbeRun) -> None:
            runs.append(run)
            self._pending.add(run)

        try:
            result = await run_probe(self._target, drawer, due_ns, begun, self._session.launch)
        except asyncio.CancelledError:
            if due_ns <= self._clock.now_ns():
                self.results.append(unsent(due_ns, Outcome.CANCELLED, "cut when the row was interrupted"))
            raise
        finally:
            self._pending.difference_update(runs)
        if result is None:
            self.loading += 1
        else:
            self.results.append(as_sent(result, latest_ns))
        self._on_request()
        return result, runs[0].request.session if runs else None


class Load:
    """Sends a row beside another one from its start on, and ends it at once for harm; `sending` has its requests."""

    def __init__(self, session: Watched, host: Sending, host_row: Row, sending: Sending, row: Row) -> None:
        assert host_row.ttft is not None
        assert host_row.ttft.threshold_s is not None
        self._session, self._host, self._row, self.sending = session, host, row, sending
        self._slo = host_row.ttft
        self._guard = LoadGuard(host_row.ttft.threshold_s, (host_row.rate or 0.0) + (row.rate or 0.0))
        self._end_ns: int | None = None

    async def run(self) -> None:
        """Warm both rows up and send both."""
        await self._host.warm_up()
        await self.sending.warm_up()
        async with asyncio.TaskGroup() as rows:
            rows.create_task(self._host.send())
            rows.create_task(self._send())

    @property
    def harm(self) -> str:
        """Why the load ended early, "" if it did not."""
        return self._guard.harm

    def disturbance(self) -> Disturbance | None:
        """The effect on the other row, which must have ended; None if the load was not sent to its end, or to a guard, or if too
        many requests of either were refused.
        """
        if self._host.begin_ns is None or self.sending.begin_ns is None or self._end_ns is None:
            return None
        if any(refused_requests(sending.results).is_too_many for sending in (self._host, self.sending)):
            return None
        return disturbance_of(
            self._slo,
            self._host.results,
            name=self._row.name,
            ended=self.harm,
            stage_begin_ns=self._host.begin_ns,
            begin_ns=self.sending.begin_ns,
            end_ns=self._end_ns,
        )

    async def _send(self) -> None:
        clock, guard = self._session.clock, self._guard
        lead_s = self._session.spec.connect_lead
        judged = (0, 0, len(self._session.readings))
        sending: asyncio.Task[None] | None = None
        begin_ns = clock.now_ns() + round(self._row.start * 1e9)
        end_ns = begin_ns + round((lead_s + (self._row.duration or 0.0)) * 1e9)
        try:
            while clock.now_ns() < end_ns and not guard.harm:
                if sending is None and clock.now_ns() >= begin_ns:
                    sending = asyncio.create_task(self.sending.send())
                    guard.began()
                judged = self._judge(*judged)
                next_ns = clock.now_ns() + round(GUARD_INTERVAL_S * 1e9)
                await clock.sleep_until(min(next_ns, end_ns if sending else begin_ns))
            self._end_ns = min(clock.now_ns(), end_ns)
            if sending is not None and not guard.harm:
                await sending
        finally:
            if sending is not None:
                sending.cancel()
                await asyncio.wait([sending])

    def _judge(self, of_host: int, of_load: int, readings: int) -> tuple[int, int, int]:
        """Show the guard what is new. Takes and returns the numbers of results of both rows, and of readings, that it has seen."""
        for result in self._host.results[of_host:]:
            self._guard.result(result)
            self._guard.waited(result.timeline.ttft_s or 0.0)
        for result in self.sending.results[of_load:]:
            self._guard.result(result)
        for at_ns, signals in self._session.readings[readings:]:
            self._guard.page(at_ns / 1e9, signals)
        self._guard.waited(self._host.max_wait_s())
        self._guard.tick(self._session.clock.now_ns() / 1e9)
        return len(self._host.results), len(self.sending.results), len(self._session.readings)


def with_headers(target: Target, headers: Mapping[str, str]) -> Target:
    """The target with these headers, in place of its own ones and of its key where they have the same name."""
    if not headers:
        return target
    other, spec = target.beside(), target.spec
    replaced = {name.lower() for name in headers}
    own = {name: value for name, value in spec.headers.items() if name.lower() not in replaced}
    secret_header = spec.auth.credential("")[0].lower() if spec.auth is not None else ""
    auth = None if secret_header in replaced else spec.auth
    other.spec = spec.model_copy(update={"headers": {**own, **headers}, "auth": auth})
    other.endpoint = endpoint(other.spec)
    return other
