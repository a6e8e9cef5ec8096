"""The running targets, reconciled with the configuration by key: what did not change goes on and keeps its statistics."""

import asyncio
import gc
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from random import Random
from types import MappingProxyType
from typing import TypeVar

from prober.config.specs import ProbeSpec, TargetSpec
from prober.features.budget.checkpoints import Ledger
from prober.features.capacity.headroom import Headroom
from prober.features.capacity.monitor import Sweeps
from prober.features.diagnosis.monitor import Explanation
from prober.features.drift.monitor import Watch
from prober.features.engines import series as engines_series
from prober.features.engines.continuity import Change, Continuity, Told
from prober.features.engines.page_reader import EnginePage
from prober.features.replicas.shard import Shard, shard_of
from prober.features.slo.windows import promql
from prober.measure.engine_signals import Signals
from prober.measure.event import Event
from prober.measure.gpu_reading import Device
from prober.measure.outcome import BAD, NEUTRAL, Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.metrics import Recorder
from prober.net.clock import Clock
from prober.net.endpoint import BadEndpoint
from prober.probing.history import History
from prober.probing.pacer import due_times, pace
from prober.probing.probe import run_probe
from prober.probing.target import Target
from prober.probing.trust import Trust
from prober.workload.arrivals import derive_seed
from prober.workload.workloads import Drawer

UNNAMED = "undiscovered"
EXPLAIN_EVERY_S = 15.0
START_GAP_S, START_WITHIN_S = 0.02, 60.0  # many new targets: 50 begin in a second, or all of them within a minute
FREEZE = 50  # targets that are made until the collector is told to leave them alone: 10,000 objects or so
WRITTEN_S = 2.0  # what targets that begin wait for the disk
ASK_EVERY_S = 2.0  # a target that refuses connections and has never answered
SLICE = 200  # targets that are compared in one turn of the event loop
T = TypeVar("T")
log = logging.getLogger(__name__)


class Line:
    """One target being probed: its schedules, and its probes under way."""

    def __init__(self, spec: TargetSpec, fleet: "Fleet", before: "Line | None") -> None:
        self.target = Target(spec, fleet.clock)
        self.name: str | None = None
        self._told, self._told_token = self.target.state, ""
        self._fleet = fleet
        self.told: Told = before.told if before is not None else Told(fleet.told.get(spec.key))
        same_page = before is not None and _is_same_page(before.target.spec, spec)
        self.continuity: Continuity = before.continuity if before is not None and same_page else Continuity(self.told)
        metrics = spec.metrics
        self._page = (
            EnginePage(
                self.target, metrics, fleet.clock, self, self.told, lambda: self.name or UNNAMED, self.continuity
            )
            if metrics
            else None
        )
        self._waiting: asyncio.TimerHandle | None = None
        self._schedules: list[asyncio.Task[None]] = []
        self._launches: list[Callable[[int], None]] = []  # of each schedule: start a probe that is due then
        self._probes: set[asyncio.Task[None]] = set()
        self.target.waiting_since_ns = fleet.clock.now_ns()
        if before is not None:
            self._inherit(before)
        fleet.ledger.enter(self.target)
        if name := spec.name or self.name:
            self._rename(name)
            if before is not None and not same_page:
                fleet.headroom.forget_demand(name)

    def start(self, pause_s: float = 0.0) -> None:
        """Begin all schedules, after a pause. The first probe of each is due then: it is the warm-up."""
        if pause_s > 0:
            self._waiting = asyncio.get_running_loop().call_later(pause_s, self._begin)
        else:
            self._begin()

    def _begin(self) -> None:
        for probe in self.target.spec.probes:
            self._schedules.append(asyncio.create_task(self._run(probe)))
        if self._page is not None:
            self._schedules.append(asyncio.create_task(self._page.run()))
        self._schedules.append(asyncio.create_task(self._await_first_answer()))

    async def stop(self, drain_s: float) -> None:
        """End the schedules, let probes under way end within `drain_s`, cancel the rest."""
        if self._waiting is not None:
            self._waiting.cancel()
        for schedule in self._schedules:
            schedule.cancel()
        await asyncio.gather(*self._schedules, return_exceptions=True)
        if self._probes:
            _, late = await asyncio.wait(self._probes, timeout=drain_s)
            for probe in late:
                probe.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        self._page = None  # it knows this line: a circle, which only the collector would end

    def pause(self, unix_s: float | None) -> None:
        """Send nothing from now on, and end a sweep; probes under way end as they would. None: send again."""
        if (unix_s is None) == (self.target.paused_unix_s is None):
            return
        self.target.paused_unix_s = unix_s
        if unix_s is not None and self.name is not None:
            self._fleet.sweeps.stop(self.name)
        text = "paused on request" if unix_s is not None else "resumed on request"
        log.info("target=%s %s", self.name or UNNAMED, text)
        self._fleet.history.happened(Event(time.time(), self.name or UNNAMED, "state", text))

    def record(self, result: ProbeResult, *, is_fault: bool = False) -> None:
        """A probe of this target has ended: into series, history, trust and state.

        is_fault: an exception inside the prober ended it, which says nothing of how late the prober is
        """
        identity = self.target.identity
        found = self.target.spec.name or (identity.model if identity else None) or self.name or UNNAMED
        if self._is_taken(found):
            found = self.target.spec.key
        if found != self.name:
            self._rename(found)
        result = replace(result, target=found)
        fleet = self._fleet
        if not is_fault:
            fleet.trust.probe(fleet.clock.now_ns(), invalid=result.outcome is Outcome.INVALID)
        self._inform(fleet.recorder.record, result)
        self._inform(self._show_state)
        self._inform(self._record_budgets, found)
        self._inform(fleet.history.add, result)
        self._inform(self._observe, result)
        self._inform(fleet.explanation.probe, result)
        self._inform(fleet.sweeps.probe, result)
        if result.outcome in BAD or result.outcome in NEUTRAL:
            log.debug("target=%s workload=%s outcome=%s %s", found, result.workload, result.outcome, result.detail)

    def _inform(self, listener: Callable[..., object], *args: object) -> None:
        """Call a listener; its exception is logged, and the others still hear."""
        try:
            listener(*args)
        except Exception:
            name = getattr(listener, "__qualname__", repr(listener))
            log.exception("target=%s: %s failed inside the prober; please report this", self.name or UNNAMED, name)

    def _record_budgets(self, name: str) -> None:
        for kind, budget in self.target.budgets.items():
            self._fleet.recorder.budget(name, kind, budget.remaining_ratio(self._fleet.clock.now_ns()))

    def _observe(self, result: ProbeResult) -> None:
        load = self._page.load_at(result.timeline.intended_ns) if self._page else None
        self._fleet.watch.observe(result, load)

    def engine(self, signals: Signals | None) -> None:
        """The engine's page was read, or cannot be read any more."""
        if self.name is not None:
            self._fleet.recorder.engine(self.name, signals)
            if signals is None:
                self._fleet.headroom.page_lost(self.name)
            else:
                now_s = self._fleet.clock.now_ns() / 1e9
                self._fleet.explanation.reading(self.name, now_s, signals)
                self._fleet.headroom.reading(self.name, now_s, signals, time.time(), self.continuity)

    def engine_changed(self, change: Change) -> None:
        """The engine, or what it runs on, is another one."""
        text = change.what if change.what == "restart" else f"{change.what} was {change.old}, is {change.new}"
        log.info("target=%s engine: %s", self.name or UNNAMED, text)
        if self.name is not None:
            kind = change.what if change.what in engines_series.ENGINE_CHANGE_KINDS else "flags"
            self._fleet.recorder.engine_changed(self.name, kind)
            self._fleet.history.happened(Event(time.time(), self.name, "engine", text))
            self._fleet.sweeps.changed(self.name, change.what)

    def gpus(self, devices: Sequence[Device], driver: str) -> None:
        """The GPUs that serve it were read."""
        if self.name is not None:
            self._fleet.recorder.gpus(self.name, devices)
            self._fleet.explanation.devices(self.name, self._fleet.clock.now_ns() / 1e9, devices)
            self._fleet.sweeps.devices(self.name, devices)
        if devices and driver:
            for change in self.told.take({"driver": driver}):
                self.engine_changed(change)

    def _rename(self, name: str) -> None:
        if self.name is not None and self.name != name:
            self._fleet.names.get(self.name, set()).discard(self.target.spec.key)
            if not self._fleet.names.get(self.name):
                self._fleet.names.pop(self.name, None)
                self._inform(self._fleet.forget, self.name)
        self._fleet.names.setdefault(name, set()).add(self.target.spec.key)
        self.name = name
        self._inform(self._fleet.recorder.declare, name, self.target.spec)
        self._inform(self._fleet.watch.declare, name, self.target.spec)
        self._inform(self._fleet.explanation.declare, name, self.target.spec, self._fleet.clock.now_ns() / 1e9)
        self._inform(self._fleet.sweeps.declare, name, self.target)
        if self._page is not None:
            self._inform(self._fleet.recorder.declare_engine, name)
        self._inform(self._show_state)

    def starting_since_and_until_unix_s(self) -> tuple[float, float] | None:
        """Since when a target that refuses connections is waited for, and until when that is no failure; None for others."""
        target, now_ns = self.target, self._fleet.clock.now_ns()
        until_ns = target.starting_until_ns
        if not target.is_refusing or until_ns is None or target.waiting_since_ns is None:
            return None
        since_s, until_s = ((at_ns - now_ns) / 1e9 + time.time() for at_ns in (target.waiting_since_ns, until_ns))
        return float(round(since_s)), float(round(until_s))

    def _show_state(self) -> None:
        """The target's state as series."""
        if self.name is not None:
            self._fleet.recorder.state(self.name, self.target.state)
            start = self.starting_since_and_until_unix_s()
            self._fleet.recorder.starting_until(self.name, start[1] if start else None)

    def _is_taken(self, name: str) -> bool:
        """Another target goes by `name`: a model that is called like it must not share its series."""
        return not self._fleet.names.get(name, set()) <= {self.target.spec.key}

    def _inherit(self, before: "Line") -> None:
        """A changed target is the same target: what it has used of its budget, its warm-up and its pause stay."""
        self.name = before.name
        self.target.paused_unix_s = before.target.paused_unix_s
        for kind, budget in self.target.budgets.items():
            if kind in before.target.budgets:
                self.target.budgets[kind] = before.target.budgets[kind].limited(budget.limit)
        if before.target.spec.url == self.target.spec.url:
            self.target.warm_up = replace(before.target.warm_up, count=self.target.spec.warmup)
            self.target.state = before.target.state
        self.target.inherit_start(before.target)

    async def _await_first_answer(self) -> None:
        """Ask a target that refuses connections since its start every few seconds, and probe it as soon as it answers."""
        target, refused = self.target, False
        while target.starting_until_ns is not None or target.is_refusing:
            await asyncio.sleep(ASK_EVERY_S)
            if target.is_refusing and target.paused_unix_s is None:
                refused = True
                await target.awake()
                self._follow_state(None)
        if refused and target.has_answered:
            lead_ns = round(target.spec.connect_lead_s * 1e9)
            for launch in self._launches:
                launch(self._fleet.clock.now_ns() + lead_ns)

    async def _run(self, probe: ProbeSpec) -> None:
        fleet = self._fleet
        rng = Random(derive_seed(fleet.instance, self.target.spec.key, probe.workload.name))
        drawer = Drawer(probe.workload, rng)
        start = fleet.clock.now_ns()
        schedule: Iterable[int] = due_times(probe, rng, start)
        if self.target.state == "pending":
            schedule = chain([start], schedule)

        def launch(due_ns: int) -> None:
            if self.target.paused_unix_s is not None:
                return
            task = asyncio.create_task(self._probe(probe, drawer, due_ns))
            self._probes.add(task)
            task.add_done_callback(self._probes.discard)

        def missed(due_ns: int) -> None:
            if self.target.paused_unix_s is not None:
                return
            fleet.trust.missed(fleet.clock.now_ns())
            late_s = (fleet.clock.now_ns() - due_ns) / 1e9
            detail = f"the prober woke {late_s:.1f} s after the due time and did not send"
            self.record(self._unsent(probe, due_ns, Outcome.INVALID, detail))

        self._launches.append(launch)
        await pace(schedule, fleet.clock, round(self.target.spec.connect_lead_s * 1e9), launch, missed)

    async def _probe(self, probe: ProbeSpec, drawer: Drawer, due_ns: int) -> None:
        is_fault = False
        try:
            result = await run_probe(self.target, drawer, due_ns)
        except asyncio.CancelledError:
            result = self._unsent(probe, due_ns, Outcome.CANCELLED, "the prober ended it")
        except Exception:
            # It counts as `invalid` for this target only: the prober is not late, so it still trusts the results of the others.
            log.exception("target=%s: a probe failed inside the prober; please report this", self.name or UNNAMED)
            is_fault = True
            detail = "a fault inside the prober; please report it with the trace in the log"
            result = self._unsent(probe, due_ns, Outcome.INVALID, detail)
        if result is not None:
            self.record(result, is_fault=is_fault)
        self._follow_state(result)

    def _follow_state(self, result: ProbeResult | None) -> None:
        """Show the state, and log a change of it."""
        if self.target.is_refusing and self.name is None:
            self._rename(UNNAMED if not self._is_taken(UNNAMED) else self.target.spec.key)
        if result is None:
            self._inform(self._show_state)
        self._inform(self._tell, result)

    def _tell(self, result: ProbeResult | None) -> None:
        """Log a change of state, and of what is wrong with the token file."""
        if self.target.state != self._told:
            before, self._told = self._told, self.target.state
            if self.target.is_refusing:
                limit = promql(self.target.spec.starting_timeout_s)
                detail = f": refuses connections; counted as failures after {limit} (starting_timeout)"
            else:
                detail = f": {result.outcome} ({result.detail})" if result and result.detail else ""
            log.info("target=%s is %s, was %s%s", self.name, self.target.state, before, detail)
            text = f"{self.target.state}, was {before}{detail}"
            self._fleet.history.happened(Event(time.time(), self.name or UNNAMED, "state", text))
        problem = self.target.endpoint.secret.problem if self.target.endpoint.secret else ""
        if problem != self._told_token:
            self._told_token = problem
            log.warning("target=%s: %s", self.name, problem or "the token file is readable again")

    def _unsent(self, probe: ProbeSpec, due_ns: int, outcome: Outcome, detail: str) -> ProbeResult:
        return ProbeResult("", probe.workload.series[0], "", 0.0, outcome, detail, Timeline(intended_ns=due_ns))


def _is_same_page(before: TargetSpec, after: TargetSpec) -> bool:
    """Whether both read the engine's page at the same address: the configured one, or the one found on the target's server."""
    if before.metrics is None or after.metrics is None or before.metrics.url != after.metrics.url:
        return False
    return after.metrics.url is not None or (before.url, before.engine) == (after.url, after.engine)


async def _in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """The same, with a turn of the event loop after every few."""
    for index, item in enumerate(items, 1):
        yield item
        if not index % SLICE:
            await asyncio.sleep(0)


class Fleet:
    """All targets. `instance` makes the schedules of two probers different; kept: `states` of an earlier process."""

    def __init__(
        self,
        clock: Clock,
        recorder: Recorder,
        history: History,
        watch: Watch,
        headroom: Headroom,
        sweeps: Sweeps,
        trust: Trust,
        instance: str,
        kept: Mapping[str, bytes] = MappingProxyType({}),
    ) -> None:
        self.told: dict[str, dict[str, str]] = {key: json.loads(told) for key, told in kept.items()}
        self.clock, self.recorder, self.history, self.watch, self.trust = clock, recorder, history, watch, trust
        self.explanation, self.headroom, self.sweeps = Explanation(recorder, history, watch), headroom, sweeps
        self.instance = instance
        self.rng = Random()
        self.lines: dict[str, Line] = {}
        self.names: dict[str, set[str]] = {}  # keys of the targets that go by each name
        self._wanted: dict[str, TargetSpec] = {}
        self._turning: dict[str, asyncio.Task[None]] = {}
        self._by_turns = asyncio.Lock()
        self._next_start = 0.0
        self.shard = Shard()  # of the targets, the ones that this prober has
        self._elsewhere: set[str] = set()  # keys of those that it has not
        self.ledger = Ledger()  # until there is one with a store

    async def reconcile(self, specs: Iterable[TargetSpec], drain_s: float) -> None:
        """Make the running targets those of `specs`; return when those that go or change have ended."""
        await self.change(specs, drain_s)
        await self.settled()

    async def settled(self) -> None:
        """Return when all that goes or changes has ended."""
        while self._turning:
            await asyncio.wait(list(self._turning.values()))

    async def change(self, specs: Iterable[TargetSpec], drain_s: float) -> None:
        """The same, and return at once: what goes or changes ends beside the rest, within `drain_s`. One call at a time.

        However many there are, one target is made or removed in a turn of the event loop, and they begin one after another.
        """
        wanted: dict[str, TargetSpec] = {}
        elsewhere: set[str] = set()
        async for spec in _in_turns(specs):
            if self.shard.has(spec.key):
                wanted[spec.key] = spec
            else:
                elsewhere.add(spec.key)
        self._wanted, self._elsewhere = wanted, elsewhere
        async for key, line in _in_turns(list(self.lines.items())):
            if key not in self._turning and self._is_stale(line):
                self._turning[key] = asyncio.create_task(self._turn(key, drain_s))
                await asyncio.sleep(0)
        fresh = [spec for key, spec in wanted.items() if key not in self.lines]
        made: list[Line] = []
        for spec in fresh:
            if spec.key not in self.lines:
                made += filter(None, [self._make(spec, None)])
                await asyncio.sleep(0)
                self._freeze(len(made))
        if made:
            await self.ledger.written(WRITTEN_S)  # so that no first probe has to wait for it
        async for line in _in_turns(made):
            line.start(self._pause_s(len(made)))
        self._freeze(FREEZE * (len(made) // FREEZE))

    @staticmethod
    def _freeze(made: int) -> None:
        """What is made in such numbers stays: the collector need not walk it while stamps are taken."""
        if made and not made % FREEZE:
            gc.freeze()

    def _is_stale(self, line: Line) -> bool:
        wanted = self._wanted.get(line.target.spec.key)
        return wanted is not line.target.spec and wanted != line.target.spec

    async def _turn(self, key: str, drain_s: float) -> None:
        """End a target, and begin it anew where it is still wanted, until it is as it should be."""
        try:
            while (line := self.lines.get(key)) is not None and self._is_stale(line):
                await line.stop(drain_s)
                async with self._by_turns:
                    spec = self._wanted.get(key)
                    after = self._make(spec, line) if spec is not None else None
                    if after is None:
                        self._remove(line)
                    await asyncio.sleep(0)
                if after is not None:
                    await self.ledger.written(WRITTEN_S)
                    after.start(self._pause_s(len(self._turning)))
        finally:
            del self._turning[key]

    def _make(self, spec: TargetSpec, before: Line | None) -> Line | None:
        """A target, not begun yet; None, and said, if its certificates cannot be used any more."""
        try:
            line = Line(spec, self, before)
        except BadEndpoint as problem:
            log.error("target=%s is not probed: %s", spec.key, problem)
            return None
        self.lines[spec.key] = line
        return line

    def _remove(self, line: Line) -> None:
        key = line.target.spec.key
        del self.lines[key]
        self.ledger.leave(line.target)
        if line.name is not None:
            self.names[line.name].discard(key)
            if not self.names[line.name]:
                del self.names[line.name]
                self.forget(line.name)

    def _pause_s(self, among: int) -> float:
        """How long the next of as many targets has to wait, so that they do not begin at once."""
        now = asyncio.get_running_loop().time()
        begin = max(now, self._next_start)
        self._next_start = begin + min(START_GAP_S, START_WITHIN_S / among)
        return begin - now if begin - now <= START_WITHIN_S else self.rng.uniform(0.0, START_WITHIN_S)

    async def stop(self, drain_s: float) -> None:
        """End all probing."""
        turning = list(self._turning.values())
        for task in turning:
            task.cancel()
        await asyncio.gather(*turning, return_exceptions=True)
        await asyncio.gather(*(line.stop(drain_s) for line in list(self.lines.values())))

    def find(self, name: str) -> Line | None:
        """The target whose label is `name`; one that has none yet goes by its key."""
        named = next((self.lines[key] for key in self.names.get(name, ()) if key in self.lines), None)
        return named or (self.lines.get(name) if name in self.lines and self.lines[name].name is None else None)

    def elsewhere(self, name: str) -> Shard | None:
        """The shard that has the target with this name, or with this URL where it has none, if it is not this one's."""
        if name not in self._elsewhere:
            return None
        return Shard(shard_of(name, self.shard.count), self.shard.count)

    @property
    def configured(self) -> int:
        """Targets of all shards."""
        return len(self._wanted) + len(self._elsewhere)

    async def explain(self) -> None:
        """Look at every target now and then, for ever."""
        while True:
            await asyncio.sleep(EXPLAIN_EVERY_S)
            for name in [line.name for line in self.lines.values() if line.name is not None]:
                self.explanation.look(name, self.clock.now_ns() / 1e9, time.time())
                await asyncio.sleep(0)

    def states(self) -> Iterator[tuple[str, bytes]]:
        """Who each target's engine said it is, by key, so that a change over a restart of the prober is seen."""
        for key, line in list(self.lines.items()):
            if line.told.now:
                yield key, json.dumps(line.told.now).encode()

    def forget(self, name: str) -> None:
        """Take a name's series and history away."""
        self.recorder.remove(name)
        self.history.remove(name)
        self.watch.remove(name)
        self.explanation.remove(name)
        self.headroom.remove(name)
        self.sweeps.remove(name)
