"""A target during an experiment: identity, facts, readings of metrics page and GPUs, and its requests."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import replace
from random import Random, SystemRandom
from typing import Any, Self

from prober import __version__
from prober.config.target import TargetSpec
from prober.measure.engine_signals import EngineChange, EngineSignals, PageReading
from prober.measure.gpu_reading import GpuReading
from prober.measure.outcome import ANSWERED, Verdict
from prober.measure.request import Request
from prober.measure.result import ProbeResult
from prober.measure.target_state import WarmUpLength
from prober.net.clock import Clock
from prober.probing.observer import OpenPage
from prober.probing.probe import Launch, LocalRun, ProbeRun, always, calibrate, new_request
from prober.probing.sender import Sender
from prober.probing.target import Target
from prober.results.context import with_context
from prober.results.facts import Fact
from prober.results.result import Kind, Load, MeasuredTarget, Result, Stage, WarmUp, result_url
from prober.results.steadiness import SteadinessTest
from prober.workload.workloads import RequestGenerator

PAGE_WAIT_S = 2.0
MAX_TRAVEL_NS = 10 * 10**9  # from a request's due time until the engine counts it
MAX_WARM_UP_LEAD_NS = 100_000_000
# Calls a function with each reading of the GPUs that serve a target, until cancelled.
ReadGpus = Callable[[Target, Callable[[Sequence[GpuReading]], None]], Coroutine[Any, Any, None]]
# Reads facts about a target once before a run. Second argument: UUIDs of the GPUs that serve it; None: unknown.
ReadFacts = Callable[[Target, Collection[str] | None], Awaitable[list[Fact]]]


def random_seed() -> int:
    """A random seed for a run; the result states it."""
    return SystemRandom().getrandbits(32)


class UnidentifiedTarget(Exception):
    """The target cannot be identified; the message says why."""


class Session:
    """A target during an experiment. In its context, the metrics page and the GPUs are read.

    open_page: opens the engine's metrics page; None: the page is not read
    launch: wraps the argument, and counts the request as the session's own
    target: if the daemon probes it meanwhile, with a prompt calibration; devices: GPUs that serve it, None: unknown
    seed, rng: for random numbers; origin_ns: start, on the clock of the timelines
    failure: why the target was not identified; None if it was. Requests then fail alike
    facts: facts about the target, read at the start
    readings, gpus: (ns of the monotonic clock, signals of the metrics page) and (ns, devices), in order of time
    changes: restarts and changes of the engine during the session, as text
    warmed: the latest warm-up, so far
    """

    def __init__(
        self,
        spec: TargetSpec,
        clock: Clock,
        open_page: OpenPage | None,
        read_facts: ReadFacts | None = None,
        read_gpus: ReadGpus | None = None,
        launch: Launch = LocalRun,
        target: Target | None = None,
        devices: Sequence[GpuReading] | None = None,
        seed: int | None = None,
    ) -> None:
        self.spec, self.clock, self.devices = spec, clock, devices
        self._launch, self._due_ns = launch, list[int]()
        self.target, self._is_own_target = target or Target(spec, clock), target is None
        self.seed = random_seed() if seed is None else seed
        self.rng = Random(self.seed)
        self.started_unix_s, self.origin_ns = clock.unix_s(), clock.now_ns()
        self.failure: Verdict | None = None
        self.facts: list[Fact] = []
        self.changes: list[str] = []
        self.warmed = WarmUp(0)
        self.readings: list[tuple[int, EngineSignals]] = []
        self.gpus: list[tuple[int, Sequence[GpuReading]]] = []
        self._open_page, self._read_facts, self._read_gpus = open_page, read_facts, read_gpus
        self._first_reading = asyncio.Event()
        self._readers: list[asyncio.Task[Any]] = []

    def launch(self, target: Target, request: Request, is_allowed: Callable[[], bool] = always) -> ProbeRun:
        """Begin a request and count it as this session's."""
        self._due_ns.append(request.due_ns)
        return self._launch(target, request, is_allowed)

    async def __aenter__(self) -> Self:
        """Identify the target, calibrate prompt lengths, wait for a first reading of the metrics page, and read the facts."""
        try:
            self.failure = await self.target.identify()
            if self.failure is None and self._is_own_target:
                await calibrate(self.target)
            if self.spec.metrics is not None and self._open_page is not None:
                source = self._open_page(self.target, self.spec.metrics, self.clock, self, lambda: self.spec.url)
                page = asyncio.create_task(source.run())
                self._readers.append(page)
                first, wait_s = asyncio.create_task(self._first_reading.wait()), PAGE_WAIT_S * (self.failure is None)
                await asyncio.wait([first, page], timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                first.cancel()
            if self._read_gpus is not None:
                self._readers.append(asyncio.create_task(self._read_gpus(self.target, self.gpus_read)))
            if self._read_facts is not None:
                uuids = None if self.devices is None else [device.uuid for device in self.devices]
                self.facts = await self._read_facts(self.target, uuids)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop reading the metrics page and the GPUs."""
        for reader in self._readers:
            reader.cancel()
            await asyncio.wait([reader])

    def page_read(self, reading: PageReading | None) -> None:
        """Store a reading of the metrics page; skip None, an unreadable page."""
        if reading is not None:
            self.readings.append((reading.at_ns, reading.signals))
            self._first_reading.set()

    def gpus_read(self, devices: Sequence[GpuReading]) -> None:
        """Store a reading of the GPUs that serve the target."""
        self.gpus.append((self.clock.now_ns(), devices))

    def engine_changed(self, change: EngineChange) -> None:
        """Store a restart or change of the engine, as text."""
        self.changes.append("restarted" if change.kind == "restart" else change.text())

    def described(self) -> MeasuredTarget:
        """The target for a result."""
        identity, info = self.target.identity, self.readings[-1][1].info if self.readings else None
        description = MeasuredTarget(
            url=result_url(self.spec.url), model=self.spec.model, engine=self.spec.engine, api=self.spec.api
        )
        if identity is not None:
            description = replace(description, model=identity.name, engine=identity.dialect.name)
        if info is not None:
            description = replace(description, engine=info.engine, engine_version=info.version, flags=dict(info.flags))
        return description

    def result(
        self, kind: Kind, load: Load, stages: Iterable[Stage], identity: str | None = None, **more: Any
    ) -> Result:
        """The result of the experiment so far. identity: id of the result, None: random; more: further fields of `Result`"""
        result = Result(
            id=identity or uuid.uuid4().hex[:12],
            kind=kind,
            started_unix_s=self.started_unix_s,
            ended_unix_s=self.clock.unix_s(),
            tool=f"llm-slo-prober {__version__}",
            target=self.described(),
            load=load,
            stages=tuple(stages),
            # In the middle: early after a start a page may lack it.
            size=self.readings[len(self.readings) // 2][1].size if self.readings else {},
            **{"interference": self._interference(), **more},
        )
        return completed(result, self.spec, self.facts, seed=self.seed)

    def _interference(self) -> tuple[str, ...] | None:
        """A sentence about others' requests that the engine's page certainly counts; empty for none, None if the page shows nothing.

        Doubt favours the others: requests of this session on their way during the first reading count as arriving after it, and running
        ones in the last reading as finished, because an engine may briefly count a request as both.
        """
        counted = [reading for reading in self.readings if reading[1].requests_arrived_total is not None]
        if len(counted) < 2 or self.changes:
            return None
        (first_ns, first), (last_ns, last) = counted[0], counted[-1]
        own = sum(first_ns - MAX_TRAVEL_NS <= due_ns <= last_ns for due_ns in self._due_ns)
        others = (last.requests_finished_total or 0.0) - (first.requests_arrived_total or 0.0) - own
        if others <= 0:
            return ()
        return (f"other load of {others / (last_ns - first_ns) * 1e9:.3g} requests/s or more, by the engine's page",)

    async def warm_up(
        self, drawer: RequestGenerator, length: WarmUpLength, target: Target | None = None
    ) -> AsyncGenerator[ProbeResult | None, None]:
        """Send probes one after the other and yield their results, so that a cold engine delays only one request. Their latencies do
        not count.

        target: a copy with its own headers; None: the session's target
        """
        target, began_ns, steadiness = target or self.target, self.clock.now_ns(), SteadinessTest()
        sent = ended = 0
        self.warmed = WarmUp(0, 0.0)
        lead_ns = min(round(self.spec.connect_lead * 1e9), MAX_WARM_UP_LEAD_NS)
        while not (
            length.is_over(sent, (self.clock.now_ns() - began_ns) / 1e9)
            or (length.until_steady and steadiness.is_steady)
        ):
            async with Sender(target, self.launch) as sender:
                result = await sender.begin(new_request(target, drawer, self.clock.now_ns() + lead_ns))
            sent, ended = sent + 1, ended + (result is not None)
            steadiness.add(result)
            self.warmed = steadiness.warm_up(ended, (self.clock.now_ns() - began_ns) / 1e9)
            yield None if result is None else replace(result, warm_up=result.outcome in ANSWERED)


def completed(result: Result, spec: TargetSpec, facts: Iterable[Fact], *, seed: int | None = None) -> Result:
    """Add the context to a result. facts: most trusted first; seed: seed of the run's random numbers"""
    configured, gpus = spec.context.configured, spec.gpus
    if gpus.count is not None:
        configured["gpu_count"] = str(gpus.count)
        if gpus.indices is None:  # the prober sees GPUs that need not serve the target
            result = replace(result, context=replace(result.context, gpu_count=None))
    streaming = Fact("streaming", "on" if spec.stream else "off", "requests")
    result = with_context(
        result,
        [streaming, *facts],
        configured,
        assumed=spec.context.checkpoint_facts,
        flags=spec.context.flags,
        gpu_price=gpus.price_per_hour,
        decode_model=spec.decode_bound.model if spec.decode_bound is not None else spec.context.decode_model,
    )
    return result if seed is None else replace(result, load=replace(result.load, seed=seed))
