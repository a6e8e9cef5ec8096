"""Sweeps of all targets: when one may run, what ends it, and what became of it."""

import asyncio
import json
import logging
import time
import uuid
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from random import Random
from typing import Literal

from prober.analysis.capacity import words
from prober.analysis.trust import Trust
from prober.config.specs import SweepSpec
from prober.daemon.demand import Demands
from prober.daemon.drive import Drive, Unmeasurable
from prober.daemon.headroom import Headroom
from prober.daemon.history import History
from prober.daemon.leadership import Alone, Leadership, claimed_as
from prober.daemon.sweepresult import result_of
from prober.daemon.sweepseries import SweepSeries
from prober.daemon.sweepstore import SweepStore
from prober.edge.lock import Held, Lock
from prober.edge.prometheus import Unanswered, firing
from prober.edge.store import Store
from prober.edge.timetable import LATE_S, Timetable, longest_gap_s, zone
from prober.experiment.fitting import Fit, Prior
from prober.experiment.guard import burns
from prober.experiment.order import Estimate, Finished, Run
from prober.experiment.plan import plan_of
from prober.generate.alerts import of_the_capacity
from prober.generate.page.view import Sweeping
from prober.measure.devices import Device
from prober.measure.event import Event
from prober.measure.result import ProbeResult
from prober.metrics import Registry
from prober.probing.target import Target
from prober.results.ending import ending
from prober.results.result import Result
from prober.workload.arrivals import derive_seed

GUARD_EVERY_S = 1.0
ALERTS_EVERY_S = 15.0
CONTINUOUS = 20  # results of the continuous probes that a burn is judged by
SETTLED_S = 60.0  # after a change: first the engine is warm, then it is swept
OWN_ALERTS = frozenset(alert.name for alert in of_the_capacity(""))  # which a sweep is what ends
Why = Literal["schedule", "request", "change"]
log = logging.getLogger(__name__)


class Refused(Exception):
    """No sweep now; `reason` is one of REASONS, the message says more."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(slots=True)
class _Swept:
    """One target's sweeps. last_s: Unix seconds at which the last one began; model: when it was fitted, and the engine.

    quiet_until_s: seconds of the monotonic clock until which the target asked to be left alone; removed: it is no target any more
    """

    name: str
    target: Target
    spec: SweepSpec
    results: SweepStore
    last_s: float = 0.0
    quiet_until_s: float = 0.0
    removed: bool = False
    model: tuple[float, Fit] | None = None
    recent: deque[ProbeResult] = field(default_factory=lambda: deque(maxlen=CONTINUOUS))
    devices: Sequence[Device] = ()
    drive: Drive | None = None


class Sweeps:
    """One at a time: two of them would spoil each other's stamps. `prometheus_url`: asked for alerts and demand, None: nobody.

    leadership: of several replicas only the one that has it sweeps. What is due is written down there before it is begun, so
    that whoever has it next does not begin the same again; what was due while nobody had it is begun then.
    """

    def __init__(
        self,
        families: Registry,
        history: History,
        headroom: Headroom,
        trust: Trust,
        store: Store | None,
        leadership: Leadership | None = None,
    ) -> None:
        self._series, self._history, self._headroom, self._trust = SweepSeries(families), history, headroom, trust
        self._demands, self._store = Demands(headroom), store
        self._timetable = Timetable()
        self._swept: dict[str, _Swept] = {}
        self._busy: str | None = None
        self._waiting: dict[str, tuple[Why, float]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._standing: dict[str, float] = {}  # when a schedule rang while another replica had the lease
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

    def declare(self, name: str, target: Target) -> None:
        """Sweep a target as its configuration says from now on; one that is not to be swept is left alone."""
        spec = target.spec.sweep
        if spec is None:
            self._demands.declare(name, None)
            self.remove(name)
            return
        before = self._swept.get(name)
        if before is None:
            swept = self._swept[name] = _Swept(name, target, spec, SweepStore(self._store, target.spec.key))
            self._recall(swept)
        else:
            swept, before.target, before.spec = before, target, spec
        self._demands.declare(name, spec.demand_query)
        if spec.schedule is None:
            self._timetable.remove(name)
            self._series.declare(name, None)
            return
        self._timetable.set(
            name, spec.schedule, spec.timezone, partial(self._ring, name, "schedule"), partial(self._missed, name)
        )
        gap_s = longest_gap_s(spec.schedule, spec.timezone, spec.blackout)
        self._series.declare(name, None if gap_s is None else max(gap_s, spec.min_gap_s))

    def remove(self, name: str) -> None:
        """Sweep a target no more; one under way ends."""
        swept = self._swept.pop(name, None)
        self._waiting.pop(name, None)
        self._standing.pop(name, None)
        self._timetable.remove(name)
        self._demands.remove(name)
        if swept is None:
            return
        swept.removed = True
        if swept.drive is not None:
            swept.drive.guard("target removed")

    def probe(self, result: ProbeResult) -> None:
        """A continuous probe has ended."""
        if (swept := self._swept.get(result.target)) is not None:
            swept.recent.append(result)

    def devices(self, name: str, devices: Sequence[Device]) -> None:
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
        """Stored results, latest first."""
        swept = [each for each in self._swept.values() if name in (None, each.name)]
        found = [result for each in swept for result in each.results.latest()]
        return sorted(found, key=lambda result: result.started_unix_s, reverse=True)

    async def close(self) -> None:
        """End what is under way."""
        self._timetable.stop()
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
            late_s = time.time() - due_unix_s
            self._not_begun(
                swept, "schedule", Refused("missed", f"it was due {late_s:.0f} s ago; {LATE_S} s is too late")
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
            if name in self._swept and time.time() - due_unix_s <= LATE_S:
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
        claimed_s = self._unclaimed(swept, due_unix_s)
        if self._busy is not None and why != "request" and name != self._busy:
            self._waiting[name] = why, due_unix_s
            raise Refused("running", f"a sweep of {self._busy!r} is under way; this one waits for its end")
        if self._busy is not None:
            raise Refused("running", f"a sweep of {self._busy!r} is under way; one at a time")
        now = time.time()
        since_s = now - max(swept.last_s, claimed_s)
        if since_s < swept.spec.min_gap_s and why != "request":
            raise Refused("min_gap", f"the last one began {since_s:.0f} s ago; min_gap is {swept.spec.min_gap_s:g} s")
        at = datetime.fromtimestamp(now, zone(swept.spec.timezone))
        if (left_s := swept.quiet_until_s - time.monotonic()) > 0:
            raise Refused("retry_after", f"the target asks to be left alone for {left_s:.0f} s more (Retry-After)")
        if any(span.holds(at) for span in swept.spec.blackout):
            raise Refused("blackout", f"{at:%a %H:%M} is in sweep.blackout")
        if swept.target.paused_unix_s is not None:
            raise Refused("not_ready", "the target is paused")
        if swept.target.state != "ready":
            raise Refused("not_ready", f"the target is {swept.target.state}")
        return swept

    def _unclaimed(self, swept: _Swept, due_unix_s: float) -> float:
        """When its last sweep began, by whatever replica. Raises Refused if that was the one that is due."""
        claimed_s = self._leadership.claimed(claimed_as(swept.target.spec.key))
        if 0 < due_unix_s <= claimed_s:
            raise Refused("no_lease", "another replica began the one that was due")
        return claimed_s

    async def _sweep(self, swept: _Swept, identity: str, why: Why, due_unix_s: float) -> None:
        name = swept.name
        try:
            await self._check_alerts(swept)
            with Lock(swept.target.spec.url, f"prober run, a sweep of {name}"):
                self._unclaimed(swept, due_unix_s)  # the lease may have been another one's meanwhile
                number = max(due_unix_s, time.time())
                fence = await self._leadership.claim(claimed_as(swept.target.spec.key), number)
                if fence is None:
                    raise Refused("no_lease", f"lease {self._leadership.where} was lost before it began")
                await self._driven(swept, identity, why, fence)
        except Refused as refusal:
            self._not_begun(swept, why, refusal)
        except Held as other:
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
        swept.last_s = started = time.time()

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

        drive = Drive(swept.target, spec.workload, plan_of(spec, target), rng, heard, prior, demand, may)
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
        swept.quiet_until_s = time.monotonic() + driven.quiet_s
        where = self._leadership.where
        result = await asyncio.to_thread(
            result_of,
            driven,
            target,
            spec,
            identity=identity,
            started_unix_s=started,
            ended_unix_s=time.time(),
            told={"why": why, "retry_after_s": driven.quiet_s}
            | ({"lease": where, "lease_transitions": fence} if where else {}),
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
        self._history.happened(Event(result.ended_unix_s, name, "sweep", text))

    # --- what ends it from outside

    async def _watch(self, swept: _Swept, drive: Drive) -> None:
        """The guards that the machine cannot see: the continuous probes, the target's state, the prober itself, alerts."""
        asked_s, began_ns, spec = time.monotonic(), time.monotonic_ns(), swept.spec
        while True:
            await asyncio.sleep(GUARD_EVERY_S)
            if swept.target.state == "failing":
                drive.guard("the target fails")
            elif burns(
                [each for each in swept.recent if each.timeline.intended_ns >= began_ns], spec.slos, spec.guard_burn
            ):
                drive.guard("the continuous probes burn their budget")
            elif not self._trust.trusted(time.monotonic_ns()):
                drive.guard("the prober does not trust itself")
            if time.monotonic() - asked_s >= ALERTS_EVERY_S:
                asked_s = time.monotonic()
                try:
                    await self._check_alerts(swept)
                except Refused as refusal:
                    drive.guard(str(refusal))

    async def _check_alerts(self, swept: _Swept) -> None:
        """Raises Refused if an alert for the target fires. A Prometheus that does not answer is told, and stops nothing."""
        if self.prometheus_url is None:
            return
        try:
            names = await firing(self.prometheus_url, swept.name, OWN_ALERTS)
        except Unanswered as problem:
            log.warning("prometheus.url: whether alerts fire is not known: %s", problem)
            return
        if names:
            raise Refused("alert_firing", f"an alert fires: {', '.join(names)}")

    def _recall(self, swept: _Swept) -> None:
        """The newest capacity that is kept stands, with its own time."""
        latest = swept.results.latest()
        if latest:
            swept.last_s = latest[0].started_unix_s
            quiet_s = json.loads(latest[0].configuration or "{}").get("retry_after_s", 0.0)
            swept.quiet_until_s = time.monotonic() + latest[0].ended_unix_s + quiet_s - time.time()
        for result in latest:
            if any(each.estimate is not None for each in result.capacities):
                self._headroom.found(swept.name, result.capacities, time.time())
                self._series.found(swept.name, result.ended_unix_s)
                break

    def _keep(self, task: "asyncio.Task[None]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
