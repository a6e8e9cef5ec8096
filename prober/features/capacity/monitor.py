"""Sweeps of all targets: when one may run, what ends it, and what became of it."""

import asyncio
import json
import logging
import sqlite3
import uuid
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from math import inf
from random import Random
from typing import Literal

from prober.config.sweep import SweepSpec
from prober.config.target import needs_of
from prober.exposition.families import Registry
from prober.features.capacity.actions import Estimate, Finished, Run
from prober.features.capacity.cron import MAX_LATENESS_S, Cron, longest_gap_s, zone
from prober.features.capacity.fitting import Fit, Prior
from prober.features.capacity.headroom import Headroom
from prober.features.capacity.prometheus_demand import Demands
from prober.features.capacity.stop_conditions import burns
from prober.features.capacity.sweep_plan import WARM_UP, plan_of
from prober.features.capacity.sweep_progress import Sweeping
from prober.features.capacity.sweep_result import result_of
from prober.features.capacity.sweep_runner import Drive, Unmeasurable
from prober.features.capacity.sweep_series import SweepSeries
from prober.features.capacity.sweep_store import KEPT_S, SweepArchive, SweepStore
from prober.measure.engine_signals import EngineChange
from prober.measure.event import TargetEvent
from prober.measure.gpu_reading import GpuReading
from prober.measure.result import ProbeResult
from prober.measure.target_state import TargetState
from prober.net.clock import Clock
from prober.net.prometheus import QueryFailed, firing
from prober.probing.event_log import EventLog
from prober.probing.leadership import Alone, Leadership, claimed_as
from prober.probing.observer import ObservedTarget, TargetObserver
from prober.probing.page_source import OpenPage
from prober.probing.target import Target
from prober.probing.trust import Trust
from prober.results.capacity import words
from prober.results.result import Result
from prober.results.stop_reason import ending
from prober.storage.elapsed import Moment, moment
from prober.storage.lock import Lock, LockHeld
from prober.storage.store import Store
from prober.workload.arrivals import derive_seed
from prober.workload.budget import BudgetDemand

GUARD_EVERY_S = 1.0
ALERTS_EVERY_S = 15.0
CONTINUOUS = 20  # results of the continuous probes that a burn is judged by
SWEPT = "swept"  # kind of what is in the store: when a target's last sweep began
CLEAN_UP_AFTER_S = 5.0  # first what the series need is read
READ_WITHIN_S = 5.0  # how long a page waits for results that are in the store only
SETTLED_S = 60.0  # after a change: first the engine is warm, then it is swept
# Alerts that a sweep ends: while they fire a sweep may begin.
CAPACITY_ALERTS = frozenset({"LLMHeadroomLow", "LLMCapacityExhaustionForecast", "LLMSweepStale"})
KINDS = ("tokens", "cost")  # of a budget, in the order of `Target.amounts`
Why = Literal["schedule", "request", "change"]
log = logging.getLogger(__name__)


class Refused(Exception):
    """No sweep now; `reason` is one of REASONS, the message says more."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(slots=True)
class _Swept:
    """One target's sweeps. model: when it was fitted, and the engine.

    recalled: what is known of earlier sweeps has been read, as far as it decides whether one may begin
    claim: a claim of the lease that is in the future, and when it was first seen by the monotonic clock
    quiet_until_s: seconds of the monotonic clock until which the target asked to be left alone; removed: it is no target any more
    """

    observed: ObservedTarget
    target: Target
    spec: SweepSpec
    results: SweepStore
    recalled: asyncio.Event = field(default_factory=asyncio.Event)
    claim: tuple[float, int] | None = None
    quiet_until_s: float = 0.0
    removed: bool = False
    model: tuple[float, Fit] | None = None
    recent: deque[ProbeResult] = field(default_factory=lambda: deque(maxlen=CONTINUOUS))
    devices: Sequence[GpuReading] = ()
    drive: Drive | None = None

    @property
    def name(self) -> str:
        """The label of the target."""
        return self.observed.name


class Sweeps:
    """One at a time: two of them would spoil each other's stamps. `prometheus_url`: asked for alerts and demand, None: nobody.

    leadership: of several replicas only the one that has it sweeps. What is due is written down there before it is begun, so
    that whoever has it next does not begin the same again; what was due while nobody had it is begun then.
    """

    def __init__(
        self,
        families: Registry,
        events: EventLog,
        headroom: Headroom,
        trust: Trust,
        clock: Clock,
        store: Store | None,
        open_page: OpenPage,
        leadership: Leadership | None = None,
    ) -> None:
        self._series, self._events, self._headroom, self._trust = SweepSeries(families), events, headroom, trust
        self._clock, self._store, self._open_page = clock, store, open_page
        self._demands = Demands(headroom, clock)
        self._cron = Cron(clock)
        self._swept: dict[str, _Swept] = {}
        self._busy: str | None = None
        self._waiting: dict[str, tuple[Why, float]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._standing: dict[str, float] = {}  # when a schedule rang while another replica had the lease
        self._archive = SweepArchive(store, clock.unix_s) if store is not None else None
        self._starts = _starts(store, moment(clock.now_ns(), clock.unix_s())) if store is not None else {}
        self._to_recall: asyncio.Queue[_Swept] = asyncio.Queue()
        if self._archive is not None:
            self._keep(asyncio.create_task(self._recall_all(self._archive)))
            self._keep(asyncio.create_task(self._clean_up(self._archive)))
        self._leadership = leadership or Alone()
        self._leadership.listen(self._lost, self._won)

    @property
    def prometheus_url(self) -> str | None:
        """Base address."""
        return self._demands.url

    @prometheus_url.setter
    def prometheus_url(self, url: str | None) -> None:
        self._demands.url = url

    # --- what the fleet tells

    def observe(self, observed: ObservedTarget) -> "TargetSweeps":
        """The sweeps of one target."""
        return TargetSweeps(self, observed)

    def declare(self, observed: ObservedTarget) -> None:
        """Sweep a target as its configuration says from now on; one that is not to be swept is left alone."""
        name, target = observed.name, observed.target
        spec = target.spec.sweep
        before = self._swept.get(name)
        if before is not None and before.drive is not None:
            before.target = target
            before.drive.reconfigured(target, self._needs(before))
        if spec is None:
            self._demands.declare(name, None)
            self.remove(name)
            return
        if before is None:
            key = target.spec.key
            results = self._archive.of(key) if self._archive is not None else SweepStore(None, key)
            swept = self._swept[name] = _Swept(observed, target, spec, results)
            if self._archive is None:
                swept.recalled.set()
            else:
                self._to_recall.put_nowait(swept)
        else:
            before.observed, before.target, before.spec = observed, target, spec
        self._demands.declare(name, spec.demand_query)
        if spec.schedule is None:
            self._cron.remove(name)
            self._series.declare(name, None)
            return
        self._cron.set(
            name, spec.schedule, spec.timezone, partial(self._ring, name, "schedule"), partial(self._missed, name)
        )
        gap_s = longest_gap_s(spec.schedule, spec.timezone, spec.blackout, self._clock.unix_s())
        self._series.declare(name, None if gap_s is None else max(gap_s, spec.min_gap))

    def removed(self, observed: ObservedTarget) -> None:
        """A target is gone; one that took its name over goes on."""
        swept = self._swept.get(observed.name)
        if swept is None or swept.observed is observed:
            self.remove(observed.name)

    def remove(self, name: str) -> None:
        """Sweep a target no more; one under way ends."""
        swept = self._swept.pop(name, None)
        self._waiting.pop(name, None)
        self._standing.pop(name, None)
        self._cron.remove(name)
        self._demands.remove(name)
        if swept is None:
            return
        swept.removed = True
        swept.results.forget()
        if swept.drive is not None:
            swept.drive.guard("target removed")

    def probe(self, result: ProbeResult) -> None:
        """A continuous probe has ended."""
        if (swept := self._swept.get(result.target)) is not None:
            swept.recent.append(result)

    def devices(self, name: str, devices: Sequence[GpuReading]) -> None:
        """The target's GPUs were read."""
        if (swept := self._swept.get(name)) is not None:
            swept.devices = devices

    def changed(self, name: str, what: str) -> None:
        """The engine is another one: what was found of the old one holds no more."""
        swept = self._swept.get(name)
        if swept is None or what == "restart":
            return
        swept.model = None
        if swept.spec.after_change:
            self._keep(asyncio.create_task(self._after_a_while(name)))

    # --- what people ask

    def ask(self, name: str, why: Why, due_unix_s: float = 0.0) -> str:
        """Begin a sweep, and say its id; due_unix_s: when its schedule rang. Raises Refused, which is counted."""
        try:
            swept = self._may(name, why, due_unix_s)
        except Refused as refusal:
            if name in self._swept:
                self._not_begun(self._swept[name], why, refusal)
            raise
        self._busy = name
        identity = uuid.uuid4().hex[:12]
        self._keep(asyncio.create_task(self._sweep(swept, identity, why, due_unix_s)))
        return identity

    def stop(self, name: str) -> bool:
        """End a target's sweep, keeping what was measured; whether there was one."""
        swept = self._swept.get(name)
        if swept is None or swept.drive is None:
            return False
        swept.drive.guard("stopped on request")
        return True

    @property
    def under_way(self) -> str | None:
        """The target that is being swept."""
        return self._busy

    def progress(self, name: str) -> Sweeping | None:
        """How far a target's sweep is; None without one."""
        swept = self._swept.get(name)
        return swept.drive.progress() if swept is not None and swept.drive is not None else None

    def results(self, name: str | None = None) -> list[Result]:
        """Results that are in memory, latest first; `read` brings the others there."""
        if name is not None:
            return self._swept[name].results.latest() if name in self._swept else []
        found = [result for each in self._swept.values() for result in each.results.latest()]
        return sorted(found, key=lambda result: result.started_unix_s, reverse=True)

    async def read(self, name: str | None = None) -> None:
        """Read the results of a target, or of all, from the store, as far as it answers in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(READ_WITHIN_S):
                for swept in [each for each in self._swept.values() if name in (None, each.name)]:
                    await swept.results.read()

    async def result(self, identity: str) -> Result | None:
        """One result; None if there is none with this id."""
        if self._archive is not None:
            await self._archive.listed.wait()
        for swept in list(self._swept.values()):
            if swept.results.has(identity):
                await swept.results.read(lambda each: each.id == identity)
        return next((each for each in self.results() if each.id == identity), None)

    async def close(self) -> None:
        """End what is under way."""
        self._cron.stop()
        await self._demands.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # --- one sweep

    def _ring(self, name: str, why: Why, due_unix_s: float = 0.0) -> None:
        if why == "schedule" and self._leadership.held() is None:
            self._standing[name] = due_unix_s
        with suppress(Refused):  # it is counted and told
            self.ask(name, why, due_unix_s)

    def _missed(self, name: str, due_unix_s: float) -> None:
        """The prober was stopped when a schedule rang, or its clock was set over it."""
        if (swept := self._swept.get(name)) is not None:
            late_s = self._clock.unix_s() - due_unix_s
            self._not_begun(
                swept, "schedule", Refused("missed", f"it was due {late_s:.0f} s ago; {MAX_LATENESS_S} s is too late")
            )

    async def _after_a_while(self, name: str) -> None:
        await asyncio.sleep(SETTLED_S)
        self._ring(name, "change")

    def _lost(self) -> None:
        """At once, and before anybody else may begin."""
        for swept in self._swept.values():
            if swept.drive is not None:
                swept.drive.lease_lost()

    def _won(self) -> None:
        """What rang a little while ago, and nobody has begun, is begun now."""
        standing, self._standing = self._standing, {}
        for name, due_unix_s in standing.items():
            if name in self._swept and self._clock.unix_s() - due_unix_s <= MAX_LATENESS_S:
                self._ring(name, "schedule", due_unix_s)

    def _may(self, name: str, why: Why, due_unix_s: float) -> _Swept:
        """The target, if one may be begun now. Raises Refused."""
        swept = self._swept.get(name)
        if swept is None:
            known = ", ".join(sorted(self._swept)) or "none"
            raise Refused(
                "not_configured", f"target {name!r} has no `sweep:` in the configuration; those that have: {known}"
            )
        if self._leadership.held() is None:
            where, holder = self._leadership.where, self._leadership.holder
            raise Refused(
                "no_lease", f"lease {where} is held by {holder or 'nobody that is known'}; only its holder sweeps"
            )
        self._unclaimed(swept, due_unix_s)
        if self._busy is not None and why != "request" and name != self._busy:
            self._waiting[name] = why, due_unix_s
            raise Refused("running", f"a sweep of {self._busy!r} is under way; this one waits for its end")
        if self._busy is not None:
            raise Refused("running", f"a sweep of {self._busy!r} is under way; one at a time")
        self._soon(swept, why)
        at = datetime.fromtimestamp(self._clock.unix_s(), zone(swept.spec.timezone))
        if any(span.contains(at) for span in swept.spec.blackout):
            raise Refused("blackout", f"{at:%a %H:%M} is in sweep.blackout")
        if swept.target.paused_unix_s is not None:
            raise Refused("not_ready", "the target is paused")
        if swept.target.state is not TargetState.READY:
            raise Refused("not_ready", f"the target is {swept.target.state}")
        self._afford(swept)
        return swept

    def _soon(self, swept: _Swept, why: Why) -> None:
        """Raises Refused if the last sweep is too recent, or the target asked to be left alone."""
        since_s = self._since_s(swept)
        if since_s < swept.spec.min_gap and why != "request":
            raise Refused("min_gap", f"the last one began {since_s:.0f} s ago; min_gap is {swept.spec.min_gap:g} s")
        if (left_s := swept.quiet_until_s - self._now_s()) > 0:
            raise Refused("retry_after", f"the target asks to be left alone for {left_s:.0f} s more (Retry-After)")

    def _since_s(self, swept: _Swept) -> float:
        """Seconds since its last sweep began, here or at another replica; infinite if none is known of.

        A time in the future is of a clock that was wrong then or is wrong now: it counts from when it was first seen.
        """
        key, now_ns, unix_s = swept.target.spec.key, self._clock.now_ns(), self._clock.unix_s()
        since_s = (now_ns - self._starts[key]) / 1e9 if key in self._starts else inf
        claimed_s = self._leadership.claimed(claimed_as(key))
        if claimed_s <= unix_s:
            return min(since_s, unix_s - claimed_s if claimed_s else inf)
        if swept.claim is None or swept.claim[0] != claimed_s:
            swept.claim = claimed_s, now_ns
        return min(since_s, (now_ns - swept.claim[1]) / 1e9)

    def _unclaimed(self, swept: _Swept, due_unix_s: float) -> None:
        """Raises Refused if another replica began the sweep that is due. A claim from far in the future says nothing of it."""
        claimed_s = self._leadership.claimed(claimed_as(swept.target.spec.key))
        if 0 < due_unix_s <= claimed_s <= self._clock.unix_s() + MAX_LATENESS_S:
            raise Refused("no_lease", "another replica began the one that was due")

    def _afford(self, swept: _Swept) -> None:
        """Raises Refused where the target's daily budgets leave too little for a warm-up, beside what its probes need."""
        target, needs = swept.target, self._needs(swept)
        prompt, output = swept.spec.workload.mean_tokens()
        amounts = target.amounts(round(WARM_UP * prompt), round(WARM_UP * output))
        for kind, amount in zip(KINDS, amounts, strict=True):
            if kind not in needs:
                continue
            spare = target.budgets[kind].available(target.clock.now_ns(), needs[kind])
            if spare < amount:
                unit = "tokens" if kind == "tokens" else "dollars"
                raise Refused(
                    "over_budget",
                    f"its scheduled probes leave {max(0.0, spare):,.6g} {unit} of budget.{kind}_per_day in these 24 hours, and a "
                    f"warm-up takes {amount:,.6g}; raise the budget, or lower the probes' rate",
                )

    def _needs(self, swept: _Swept) -> dict[str, BudgetDemand]:
        """What its scheduled probes take of each budget: by their workloads, and more where the server counts more tokens."""
        target = swept.target
        needs = {kind: need for kind, need in needs_of(target.spec).items() if kind in target.budgets}
        told = [(each, usage) for each in swept.recent if (usage := each.timeline.usage) is not None]
        asked = [target.amounts(each.requested_prompt_tokens, each.requested_output_tokens) for each, _ in told]
        used = [target.amounts(usage.prompt_tokens or 0, usage.completion_tokens or 0) for _, usage in told]
        for index, kind in enumerate(KINDS):
            before, after = (sum(each[index] for each in amounts) for amounts in (asked, used))
            if kind in needs and 0 < before < after:
                needs[kind] = needs[kind].scaled(after / before)
        return needs

    async def _begun(self, swept: _Swept, why: Why) -> None:
        """Write down that a sweep begins, so that min_gap outlives a kill.

        Raises Refused where that is not possible: it would be swept again after each restart. People may ask nevertheless.
        """
        now, key = moment(self._clock.now_ns(), self._clock.unix_s()), swept.target.spec.key
        if self._store is not None:
            try:
                await asyncio.to_thread(self._store.save, SWEPT, [(key, _row(now))], now.unix_s)
            except sqlite3.Error as problem:
                said = f"that it begins cannot be written to --storage.path: {problem}; make room there, or mend the volume"
                if why != "request":
                    raise Refused("not_recorded", said) from None
                log.warning("target=%s sweep (%s): %s", swept.name, why, said)
        self._starts[key] = now.monotonic_ns

    async def _sweep(self, swept: _Swept, identity: str, why: Why, due_unix_s: float) -> None:
        name = swept.name
        try:
            await swept.recalled.wait()
            self._soon(swept, why)
            await self._check_alerts(swept)
            with Lock(swept.target.spec.url, f"prober run, a sweep of {name}"):
                self._unclaimed(swept, due_unix_s)  # the lease may have been another one's meanwhile
                number = max(due_unix_s, self._clock.unix_s())
                fence = await self._leadership.claim(claimed_as(swept.target.spec.key), number)
                if fence is None:
                    raise Refused("no_lease", f"lease {self._leadership.where} was lost before it began")
                await self._begun(swept, why)
                await self._driven(swept, identity, why, fence)
        except Refused as refusal:
            self._not_begun(swept, why, refusal)
        except LockHeld as other:
            self._not_begun(swept, why, Refused("locked", f"it is loaded by {other} on this machine"))
        except Unmeasurable as problem:
            self._failed(swept)
            log.warning("target=%s sweep (%s) failed: %s", name, why, problem)
        except Exception:
            # A fault of the prober must not pass as an answer, and leaves the last capacity with its old time.
            self._failed(swept)
            log.exception("target=%s: a sweep failed inside the prober; please report this", name)
        finally:
            self._busy = None
            if self._waiting:
                following = next(iter(self._waiting))
                self._ring(following, *self._waiting.pop(following))

    def _not_begun(self, swept: _Swept, why: Why, refusal: Refused) -> None:
        log.info("target=%s sweep (%s) not begun: %s", swept.name, why, refusal)
        if not swept.removed:
            self._series.refused(swept.name, refusal.reason)

    def _failed(self, swept: _Swept) -> None:
        if not swept.removed:
            self._series.failed(swept.name)

    async def _driven(self, swept: _Swept, identity: str, why: Why, fence: int) -> None:
        """Raises Refused, Unmeasurable."""
        if swept.removed:
            raise Refused("not_configured", "the target was removed")
        spec, target, name = swept.spec, swept.target.spec, swept.name
        started = self._clock.unix_s()

        def heard(order: Run | Estimate | Finished) -> None:
            if not swept.removed:
                self._series.rate(name, order.rate_per_s if isinstance(order, Run) else 0.0)

        rng = Random(derive_seed(identity, target.key, "sweep"))
        prior = None
        if swept.model is not None:
            fitted_s, fit = swept.model
            prior = Prior(fit.parameters, fit.front_s, age_s=started - fitted_s)
        demand = partial(self._demands.now, name)

        def may() -> bool:
            return self._leadership.held() == fence

        drive = Drive(
            swept.target,
            spec.workload,
            plan_of(spec, target),
            rng,
            self._open_page,
            heard,
            prior,
            demand,
            may,
            self._needs(swept),
        )
        swept.drive = drive
        self._headroom.sweeping(name, begins=True)
        log.info("target=%s sweep %s (%s) begins: %s up to %g/s", name, identity, why, spec.mode, spec.max_rate)
        watching = asyncio.create_task(self._watch(swept, drive))
        try:
            driven = await drive.run()
        finally:
            watching.cancel()
            swept.drive = None
            # Also where the target goes on and only its `sweep:` was removed: its demand is counted again.
            self._headroom.sweeping(name, begins=False)
            if not swept.removed:
                self._series.rate(name, 0.0)
                swept.observed.budget_spent()
        swept.quiet_until_s = self._now_s() + driven.quiet_s
        where = self._leadership.where
        result = await asyncio.to_thread(
            result_of,
            driven,
            target,
            spec,
            identity=identity,
            started_unix_s=started,
            ended_unix_s=self._clock.unix_s(),
            told={"why": why} | ({"lease": where, "lease_transitions": fence} if where else {}),
            devices=swept.devices,
        )
        if driven.model is not None:
            swept.model = started, driven.model
        await self._ended(swept, driven.finished, result)

    async def _ended(self, swept: _Swept, finished: Finished, result: Result) -> None:
        """Into series, store, history. A stopped sweep without an answer leaves the last capacity with its old time."""
        await swept.results.keep(result)
        if swept.removed:
            return
        name = swept.name
        self._series.ended(name, finished, result)
        if any(each.estimate is not None for each in finished.capacities):
            self._headroom.found(name, finished.capacities, result.ended_unix_s)
            self._series.found(name, result.ended_unix_s)
        found = words(finished.capacities)
        text = f"sweep: {finished.verdict}, {found}; why it ended: {ending(finished.reason, finished.detail)}"
        log.info("target=%s %s (%s)", name, text, finished.reason)
        self._events.append(TargetEvent(result.ended_unix_s, name, "sweep", text))

    # --- what ends it from outside

    async def _watch(self, swept: _Swept, drive: Drive) -> None:
        """The guards that the machine cannot see: the continuous probes, the target's state, the prober itself, alerts."""
        asked_s, began_ns, spec = self._now_s(), self._clock.now_ns(), swept.spec
        while True:
            await asyncio.sleep(GUARD_EVERY_S)
            swept.observed.budget_spent()
            if swept.target.state is TargetState.FAILING:
                drive.guard("the target fails")
            elif burns(
                [each for each in swept.recent if each.timeline.intended_ns >= began_ns], spec.slos, spec.guard.burn
            ):
                drive.guard("the continuous probes burn their budget")
            elif not self._trust.trusted(self._clock.now_ns()):
                drive.guard("the prober does not trust itself")
            if self._now_s() - asked_s >= ALERTS_EVERY_S:
                asked_s = self._now_s()
                try:
                    await self._check_alerts(swept)
                except Refused as refusal:
                    drive.guard(str(refusal))

    async def _check_alerts(self, swept: _Swept) -> None:
        """Raises Refused if an alert for the target fires. A Prometheus that does not answer is told, and stops nothing."""
        if self.prometheus_url is None:
            return
        try:
            names = await firing(self.prometheus_url, swept.name, CAPACITY_ALERTS)
        except QueryFailed as problem:
            log.warning("prometheus.url: whether alerts fire is not known: %s", problem)
            return
        if names:
            raise Refused("alert_firing", f"an alert fires: {', '.join(names)}")

    # --- what earlier processes found

    async def _recall_all(self, archive: SweepArchive) -> None:
        """One target after another: the disk, and the interpreter, are also needed by others."""
        await archive.index()
        while True:
            swept = await self._to_recall.get()
            try:
                await self._recall(swept)
            except Exception:
                log.exception("target=%s: its earlier sweeps are not known; please report this", swept.name)
            finally:
                swept.recalled.set()

    async def _recall(self, swept: _Swept) -> None:
        """The newest capacity that is kept stands, with its own time; the other results are read when somebody asks."""
        await swept.results.read(lambda _: True)
        if latest := swept.results.latest():
            key, now = swept.target.spec.key, self._clock.unix_s()
            if key not in self._starts:  # of a version that wrote results only
                ago_s = max(0.0, now - latest[0].started_unix_s)
                self._starts[key] = self._clock.now_ns() - round(ago_s * 1e9)
            quiet_s = latest[0].retry_after_s
            swept.quiet_until_s = self._now_s() + min(quiet_s, latest[0].ended_unix_s + quiet_s - now)
        await swept.results.read(_has_capacity)
        found = next((each for each in swept.results.latest() if _has_capacity(each)), None)
        if found is not None and not swept.removed:
            self._headroom.found(swept.name, found.capacities, self._clock.unix_s())
            self._series.found(swept.name, found.ended_unix_s)

    async def _clean_up(self, archive: SweepArchive) -> None:
        await archive.listed.wait()
        await asyncio.sleep(CLEAN_UP_AFTER_S)
        await archive.clean_up()

    def _now_s(self) -> float:
        return self._clock.now_ns() / 1e9

    def _keep(self, task: "asyncio.Task[None]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class TargetSweeps(TargetObserver):
    """Hears of one target for `Sweeps`."""

    def __init__(self, sweeps: Sweeps, observed: ObservedTarget) -> None:
        self._sweeps, self._observed = sweeps, observed
        self.configured()

    def configured(self) -> None:
        self._sweeps.declare(self._observed)

    def probe_ended(self, result: ProbeResult) -> None:
        self._sweeps.probe(result)

    def gpus_read(self, devices: Sequence[GpuReading], driver: str) -> None:
        self._sweeps.devices(self._observed.name, devices)

    def engine_changed(self, change: EngineChange) -> None:
        self._sweeps.changed(self._observed.name, change.kind)

    def paused(self) -> None:
        self._sweeps.stop(self._observed.name)

    def removed(self) -> None:
        self._sweeps.removed(self._observed)


def _has_capacity(result: Result) -> bool:
    return any(each.estimate is not None for each in result.capacities)


def _row(at: Moment) -> bytes:
    return json.dumps({"boot": at.boot, "monotonic_ns": at.monotonic_ns, "unix_s": at.unix_s}).encode()


def _starts(store: Store, now: Moment) -> dict[str, int]:
    """When the last sweep of each target began, by its key, in nanoseconds of this process's monotonic clock.

    The clock on the wall tells where the machine was started since. By one that was set back it may have begun in the future: then
    it begins now, once and for all.
    """
    found, moved = dict[str, int](), list[str]()
    for key, data in store.load(SWEPT, now.unix_s - KEPT_S).items():
        try:
            row = json.loads(data)
            boot, monotonic_ns, unix_s = str(row["boot"]), int(row["monotonic_ns"]), float(row["unix_s"])
            ago_ns = round((now.unix_s - unix_s) * 1e9)
        except (ValueError, KeyError, TypeError, OverflowError) as problem:
            log.error("target=%s: when its last sweep began cannot be read: %r", key, problem)
            continue
        if boot and boot == now.boot and monotonic_ns <= now.monotonic_ns:
            ago_ns = now.monotonic_ns - monotonic_ns
        elif ago_ns < 0:
            ago_ns = 0
            moved.append(key)
        found[key] = now.monotonic_ns - ago_ns
    if moved:
        try:
            store.save(SWEPT, [(key, _row(now)) for key in moved], now.unix_s)
        except sqlite3.Error as problem:
            log.error("when sweeps began cannot be written down: %s", problem)
    return found
