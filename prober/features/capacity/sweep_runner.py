"""Carries a sweep out: paces its requests, reads the engine's page beside them, and cuts what is in flight when it is over."""

import asyncio
import ctypes
import multiprocessing
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from random import Random
from types import MappingProxyType

from prober.features.capacity.actions import Estimate, Finished, Run
from prober.features.capacity.estimate import estimated
from prober.features.capacity.fitting import Fit, Prior
from prober.features.capacity.sweep import PAGE_NEAR_S, PAGE_S, Sweep
from prober.features.capacity.sweep_plan import Plan, Spent
from prober.features.capacity.sweep_progress import Sweeping
from prober.features.capacity.sweep_record import Record
from prober.measure.engine_signals import EngineChange, EngineSignals, PageReading
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.probing.page_source import OpenPage, PageSource
from prober.probing.probe import Flight
from prober.probing.target import Target
from prober.results.capacity import Capacity
from prober.workload.arrivals import poisson
from prober.workload.budget import BudgetDemand
from prober.workload.workloads import Mix, RequestGenerator, Workload

TICK_NS = 250_000_000
LEAD_NS = 200_000_000  # a connection is begun so long before its request is due
SPENT: dict[str, Spent] = {"tokens": "token_budget", "cost": "cost_budget"}  # by budget of the target
BEFORE_S = 3.0  # how long the load that is there is looked at first
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


class Unmeasurable(Exception):
    """The target does not even say who it is; the message says why."""


@dataclass(frozen=True, slots=True)
class Driven:
    """A sweep as it went. probes: (stage, result) in the order they ended; readings: (seconds of the monotonic clock, page).

    model: of the engine, fitted to what was seen; None where it could not be, or is not to be believed
    quiet_s: how long the target still asks to be left alone
    """

    finished: Finished
    model: Fit | None
    began_ns: int
    probes: tuple[tuple[int, ProbeResult], ...]
    readings: tuple[tuple[float, EngineSignals], ...]
    quiet_s: float = 0.0


async def nobody() -> None:
    """No demand is known."""


class Drive:
    """One sweep of one target. `on_order` hears of each new stage, and of the end; prior: what earlier sweeps fitted.

    demand: says what the target's users ask of it, per second, None where it does not know; it is asked before the first request,
    as what it counts later may be the sweep's own
    may: asked before each request leaves; once it says no, the sweep is over (`lease_lost`)
    others: by budget of the target, what its scheduled probes need, which no request of the sweep may take
    """

    def __init__(
        self,
        target: Target,
        workload: Workload | Mix,
        plan: Plan,
        rng: Random,
        open_page: OpenPage,
        on_order: Callable[[Run | Estimate | Finished], None],
        prior: Prior | None = None,
        demand: Callable[[], Awaitable[float | None]] = nobody,
        may: Callable[[], bool] = lambda: True,
        others: Mapping[str, BudgetDemand] = MappingProxyType({}),
    ) -> None:
        # Its own view of the target: what the sweep sends has its own cap, and counts in nobody's state, but in its budgets.
        spec = target.spec.model_copy(update={"max_in_flight": plan.guards.max_in_flight, "warmup": 0})
        self._target = Target(spec, target.clock)
        self._target.budgets, self._target.ledger, self._target.others = target.budgets, target.ledger, others
        self._target.identity, self._target.state = target.identity, target.state
        self._clock = target.clock
        self._drawer, self._plan, self._rng, self._on_order = RequestGenerator(workload, rng), plan, rng, on_order
        self._open_page = open_page
        self._prior, self._demand, self._may = prior, demand, may
        self._model: Fit | None = None
        self._sweep: Sweep | None = None
        self._stopped: str | None = None  # before it began
        self._quiet_until_s = 0.0
        self._begun = [0, 0, 0]  # requests, prompt tokens, output tokens, before they are due
        self._began_s = self._now_s()
        self._flights: dict[asyncio.Task[None], Flight] = {}
        self._probes: list[tuple[int, ProbeResult]] = []
        self._readings: list[tuple[float, EngineSignals]] = []

    def guard(self, name: str) -> None:
        """Something outside speaks against going on: the sweep ends, and what was measured is kept."""
        if self._sweep is None:
            self._stopped = name
        else:
            self._sweep.guard(name, self._now_s())

    def reconfigured(self, target: Target, others: Mapping[str, BudgetDemand]) -> None:
        """The target has other settings from now on: what is sent counts in its budgets as they are now."""
        if target.budgets.keys() != self._target.budgets.keys():
            self.guard("the target's budget was changed")
            return
        self._target.spec = self._target.spec.model_copy(update={"budget": target.spec.budget})
        self._target.budgets, self._target.ledger, self._target.others = target.budgets, target.ledger, others

    def lease_lost(self) -> None:
        """It may not go on: nothing leaves any more, and what is in flight is cut."""
        if self._sweep is not None:
            self._sweep.lease_lost(self._now_s())
            self._heed(self._sweep)

    def progress(self) -> Sweeping:
        """How far it is."""
        order = self._sweep.order if self._sweep is not None else None
        phase = order.phase if isinstance(order, Run) else "looking at the target" if order is None else "estimate"
        stage, rate = (order.stage, order.rate_per_s) if isinstance(order, Run) else (None, None)
        sent = len(self._probes) + len(self._flights)
        return Sweeping(phase, stage, rate, sent, len(self._flights), self._now_s() - self._began_s)

    def page_read(self, reading: PageReading | None) -> None:
        """The engine's page was read."""
        if reading is not None:
            self._readings.append((self._now_s(), reading.signals))
            if self._sweep is not None:
                self._sweep.page(self._now_s(), reading.signals)

    def engine_changed(self, change: EngineChange) -> None:
        """The machine sees a changed engine on its page by itself."""

    async def run(self) -> Driven:
        """Sweep to the end. Raises Unmeasurable. Cancelled, it leaves nothing in flight."""
        if (verdict := await self._target.identify()) is not None:
            raise Unmeasurable(f"{self._target.spec.url}: {verdict.detail}")
        page = self._page()
        try:
            demand = await self._demand()
            if page is not None:
                await asyncio.wait([page], timeout=BEFORE_S)
            began_ns = self._clock.now_ns()
            sweep = self._sweep = Sweep(self._plan, began_ns / 1e9)
            if demand is not None:
                sweep.demand(demand)
            for at_s, signals in self._readings:
                sweep.page(at_s, signals)
            if self._stopped is not None:
                sweep.guard(self._stopped, self._now_s())
            finished = await self._send(sweep)
            quiet_s = max(0.0, self._quiet_until_s - self._now_s())
            return Driven(finished, self._model, began_ns, tuple(self._probes), tuple(self._readings), quiet_s)
        finally:
            await self._cut()
            if page is not None:
                page.cancel()
                await asyncio.wait([page])

    def _page(self) -> "asyncio.Task[None] | None":
        metrics = self._target.spec.metrics
        if metrics is None:
            return None
        spec = metrics.model_copy(update={"interval": PAGE_S})
        name = self._target.spec.name or self._target.spec.url
        return asyncio.create_task(self._read(self._open_page(self._target, spec, self._clock, self, lambda: name)))

    async def _read(self, page: PageSource) -> None:
        """As often as the machine wants, which may change its mind meanwhile."""
        while await page.read():
            read_ns = now_ns = self._clock.now_ns()
            while now_ns < (due_ns := read_ns + round((self._sweep.page_every_s if self._sweep else PAGE_S) * 1e9)):
                await self._clock.sleep_until(min(due_ns, now_ns + round(PAGE_NEAR_S * 1e9)))
                now_ns = self._clock.now_ns()

    async def _send(self, sweep: Sweep) -> Finished:
        """Do what the machine orders until it has finished."""
        order: Run | Estimate | Finished | None = None
        due: Iterator[int] = iter(())
        due_ns, tick_ns = 0, self._clock.now_ns()
        while True:
            now_ns = self._clock.now_ns()
            if not self._may():
                sweep.lease_lost(now_ns / 1e9)
            if now_ns >= tick_ns:
                self._look(sweep, now_ns)
                tick_ns = now_ns + TICK_NS
            if sweep.order != order:
                order = sweep.order
                self._on_order(order)
                if isinstance(order, Finished):
                    return order
                if isinstance(order, Estimate):
                    await self._cut()
                    sweep.estimated(await self._estimate(order.record), self._now_s())
                    continue
                due = poisson(order.rate_per_s, self._rng, now_ns + LEAD_NS)
                due_ns = next(due)
            assert isinstance(order, Run)
            if now_ns >= due_ns - LEAD_NS:
                self._launch(sweep, due_ns)
                due_ns = next(due)
            else:
                await self._clock.sleep_until(min(tick_ns, due_ns - LEAD_NS))

    def _look(self, sweep: Sweep, now_ns: int) -> None:
        """First tokens that have come, and time that has passed."""
        for flight in list(self._flights.values()):
            if (first_ns := flight.first_ns()) is not None:
                sweep.first_token(flight.request_id, first_ns / 1e9)
        sweep.tick(now_ns / 1e9)

    def _launch(self, sweep: Sweep, due_ns: int) -> None:
        flight = Flight(self._target, self._drawer, due_ns, self._may)
        begun = [before + more for before, more in zip(self._begun, (1, *flight.asked), strict=True)]
        share, limit = self._plan.budget.used(*begun)
        if share > 1:
            task = asyncio.create_task(self._refrain(sweep, limit, due_ns))
        else:
            self._begun = begun
            task = asyncio.create_task(self._fly(sweep, flight, due_ns))
        self._flights[task] = flight
        task.add_done_callback(lambda done: self._flights.pop(done, None))

    async def _refrain(self, sweep: Sweep, limit: Spent, due_ns: int) -> None:
        """What is begun before is sent still."""
        await self._clock.sleep_until(due_ns)
        sweep.spent(limit, self._now_s())

    async def _fly(self, sweep: Sweep, flight: Flight, due_ns: int) -> None:
        flying = asyncio.create_task(flight.fly())
        stage = None
        try:
            await self._clock.sleep_until(due_ns)
            if flying.done() and flying.result().outcome is Outcome.OVER_BUDGET:
                kind = self._target.lacking(*flight.asked) or next(iter(self._target.budgets), "tokens")
                said = "; the rest of the target's daily budget is for its probes"
                sweep.spent(SPENT[kind], self._now_s(), said)
                self._heed(sweep)
                return
            if isinstance(sweep.order, Run):
                stage = sweep.order.stage  # at its due time, as the machine has it
            sweep.sent(flight.request_id, due_ns / 1e9, *flight.asked)
            self._heed(sweep)
            result = await flying
        except asyncio.CancelledError:
            flying.cancel()
            await asyncio.wait([flying])
            if stage is not None:
                detail = "cut when the sweep ended"
                timeline, (prompt, output) = flight.delivered(), flight.asked
                cut = ProbeResult(
                    *("", "", flight.request_id, 0.0, Outcome.CANCELLED, detail, timeline),
                    requested_prompt_tokens=prompt,
                    requested_output_tokens=output,
                )
                self._probes.append((stage, cut))
                sweep.result(cut, self._now_s())  # else it would be waited for in what follows
            raise
        if stage is not None:
            self._probes.append((stage, result))
        if (seconds := flight.retry_after_s) is not None and result.outcome is not Outcome.OK:
            self._quiet_until_s = max(self._quiet_until_s, self._now_s() + seconds)
            sweep.retry_after(self._now_s(), seconds)
        sweep.result(result, self._now_s())
        self._heed(sweep)

    def _heed(self, sweep: Sweep) -> None:
        """The sending has ended: what is begun and not yet due does not leave any more."""
        if not isinstance(sweep.order, Run):
            for task in self._flights:
                if task is not asyncio.current_task() and not task.cancelling():
                    task.cancel()

    async def _cut(self) -> None:
        """Nothing of the sweep is in flight any more."""
        tasks = list(self._flights)
        for task in tasks:
            if not task.cancelling():  # a second time would break off what the first one says
                task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _estimate(self, record: Record) -> tuple[Capacity, ...]:
        """In another process, as it takes seconds of a processor that stamps need."""
        seed = self._rng.getrandbits(32)
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, spawn, initializer=_stand_back, initargs=(os.getpid(),)) as pool:
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(pool, estimated, record, seed, self._prior)
        self._model = found.found
        return found.capacities

    def _now_s(self) -> float:
        return self._clock.now_ns() / 1e9


def _stand_back(parent: int) -> None:
    """What measures goes before what computes; and who computes for a prober that was killed ends with it."""
    os.nice(10)
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PARENT_DEATH_SIGNAL, int(signal.SIGKILL))
    if os.getppid() != parent:  # it was killed before
        os._exit(1)
