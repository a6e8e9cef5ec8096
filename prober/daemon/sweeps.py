"""Sweeps of all targets: when one may run, what ends it, and what became of it."""

import asyncio
import json
import logging
import sqlite3
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import Literal, get_args

from prober import series
from prober.analysis.capacity import Capacity
from prober.analysis.trust import Trust
from prober.config.specs import SweepSpec, TargetSpec
from prober.daemon.drive import Drive, Unmeasurable
from prober.daemon.headroom import Headroom
from prober.daemon.history import History
from prober.daemon.sweepresult import result_of, without_gaps
from prober.edge.lock import Held, Lock
from prober.edge.prometheus import Unanswered, firing
from prober.edge.store import Store
from prober.edge.timetable import Timetable, longest_gap_s, zone
from prober.experiment.fitting import Fit, Prior
from prober.experiment.plan import Budget, Guards, Plan
from prober.experiment.sweep import Estimate, Finished, Reason, Run
from prober.generate.alerts import of_the_capacity
from prober.measure.devices import Device
from prober.measure.event import Event
from prober.measure.result import ProbeResult
from prober.metrics import Registry
from prober.probing.target import Target
from prober.results.result import Result
from prober.results.stored import from_json, to_json
from prober.slo.events import events
from prober.workload.arrivals import derive_seed
from prober.workload.workloads import lengths

SWEEP = "sweep"  # kind of what is in the store
KEPT, KEPT_S = 20, 90 * 86_400.0  # results of a target, and how long they are kept
LENGTHS = 3_000  # draws of the workload that a forecast rests on
GUARD_EVERY_S = 1.0
ALERTS_EVERY_S = 15.0
CONTINUOUS = 20  # results of the continuous probes that a burn is judged by
MOST_BAD = 0.8  # share of bad ones: no burn rate of a loose objective is above 1 ÷ its budget
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
    """One target's sweeps. last_s: Unix seconds at which the last one began; model: when it was fitted, and the engine."""

    name: str
    target: Target
    spec: SweepSpec
    last_s: float = 0.0
    results: dict[str, Result] = field(default_factory=dict)
    model: tuple[float, Fit] | None = None
    recent: deque[ProbeResult] = field(default_factory=lambda: deque(maxlen=CONTINUOUS))
    devices: Sequence[Device] = ()
    drive: Drive | None = None


class Sweeps:
    """One at a time: two of them would spoil each other's stamps. `prometheus_url` is asked for firing alerts, None: nobody."""

    def __init__(
        self, families: Registry, history: History, headroom: Headroom, trust: Trust, store: Store | None
    ) -> None:
        self.prometheus_url: str | None = None
        self._families, self._history, self._headroom, self._trust = families, history, headroom, trust
        self._store = store
        self._timetable = Timetable()
        self._swept: dict[str, _Swept] = {}
        self._busy: str | None = None
        self._waiting: dict[str, Why] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # --- what the fleet tells

    def declare(self, name: str, target: Target) -> None:
        """Sweep a target as its configuration says from now on; one that is not to be swept is left alone."""
        spec = target.spec.sweep
        if spec is None:
            self.remove(name)
            return
        before = self._swept.get(name)
        if before is None:
            swept = self._swept[name] = _Swept(name, target, spec)
            self._recall(swept)
        else:
            swept, before.target, before.spec = before, target, spec
        for reason in series.SWEEP_REFUSALS:
            self._families[series.SWEEPS_REFUSED.name].value(name, reason)
        for verdict in series.SWEEP_VERDICTS:
            self._families[series.SWEEPS.name].value(name, verdict)
        for reason in (reason for part in get_args(Reason) for reason in get_args(part)):
            self._families[series.SWEEP_STOPS.name].value(name, reason)
        self._families[series.SWEEP_RATE.name].value(name)
        periods = self._families[series.SWEEP_PERIOD.name]
        periods.children.pop((name,), None)
        if spec.schedule is None:
            self._timetable.remove(name)
            return
        self._timetable.set(name, spec.schedule, spec.timezone, self._ringing(name, "schedule"))
        if (gap_s := longest_gap_s(spec.schedule, spec.timezone, spec.blackout)) is not None:
            periods.value(name).value = max(gap_s, spec.min_gap_s)

    def remove(self, name: str) -> None:
        """Sweep a target no more; one under way ends."""
        swept = self._swept.pop(name, None)
        self._waiting.pop(name, None)
        self._timetable.remove(name)
        if swept is not None and swept.drive is not None:
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

    def ask(self, name: str, why: Why) -> str:
        """Begin a sweep, and say its id. Raises Refused, which is counted."""
        try:
            swept = self._may(name, why)
        except Refused as refusal:
            if name in self._swept:
                self._families[series.SWEEPS_REFUSED.name].value(name, refusal.reason).inc()
                log.info("target=%s sweep (%s) not begun: %s", name, why, refusal)
            raise
        self._busy = name
        identity = uuid.uuid4().hex[:12]
        self._keep(asyncio.create_task(self._sweep(swept, identity, why)))
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

    def results(self, name: str | None = None) -> list[Result]:
        """Stored results, latest first."""
        found = [
            result for swept in self._swept.values() if name in (None, swept.name) for result in swept.results.values()
        ]
        return sorted(found, key=lambda result: result.started_unix_s, reverse=True)

    async def close(self) -> None:
        """End what is under way."""
        self._timetable.stop()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # --- one sweep

    def _ringing(self, name: str, why: Why) -> Callable[[], None]:
        def ring() -> None:
            try:
                self.ask(name, why)
            except Refused:
                return  # it is counted and told

        return ring

    async def _after_a_while(self, name: str) -> None:
        await asyncio.sleep(SETTLED_S)
        self._ringing(name, "change")()

    def _may(self, name: str, why: Why) -> _Swept:
        """The target, if one may be begun now. Raises Refused."""
        swept = self._swept.get(name)
        if swept is None:
            known = ", ".join(sorted(self._swept)) or "none"
            raise Refused(
                "not_configured", f"target {name!r} has no `sweep:` in the configuration; those that have: {known}"
            )
        if self._busy is not None and why != "request" and name != self._busy:
            self._waiting[name] = why
            raise Refused("running", f"a sweep of {self._busy!r} is under way; this one waits for its end")
        if self._busy is not None:
            raise Refused("running", f"a sweep of {self._busy!r} is under way; one at a time")
        now = time.time()
        since_s = now - swept.last_s
        if since_s < swept.spec.min_gap_s and why != "request":
            raise Refused("min_gap", f"the last one began {since_s:.0f} s ago; min_gap is {swept.spec.min_gap_s:g} s")
        at = datetime.fromtimestamp(now, zone(swept.spec.timezone))
        if any(span.holds(at) for span in swept.spec.blackout):
            raise Refused("blackout", f"{at:%a %H:%M} is in sweep.blackout")
        if swept.target.state != "ready":
            raise Refused("not_ready", f"the target is {swept.target.state}")
        return swept

    async def _sweep(self, swept: _Swept, identity: str, why: Why) -> None:
        name = swept.name
        try:
            await self._check_alerts(swept)
            with Lock(swept.target.spec.url):
                await self._driven(swept, identity, why)
        except Refused as refusal:
            self._families[series.SWEEPS_REFUSED.name].value(name, refusal.reason).inc()
            log.info("target=%s sweep (%s) not begun: %s", name, why, refusal)
        except Held:
            self._families[series.SWEEPS_REFUSED.name].value(name, "locked").inc()
            log.info("target=%s sweep (%s) not begun: another prober of this machine sweeps it", name, why)
        except Unmeasurable as problem:
            self._families[series.SWEEPS.name].value(name, "failed").inc()
            log.warning("target=%s sweep (%s) failed: %s", name, why, problem)
        except Exception:
            # A fault of the prober must not pass as an answer, and leaves the last capacity with its old time.
            self._families[series.SWEEPS.name].value(name, "failed").inc()
            log.exception("target=%s: a sweep failed inside the prober; please report this", name)
        finally:
            swept.drive = None
            self._busy = None
            self._headroom.sweeping(name, begins=False)
            self._families[series.SWEEP_RATE.name].value(name).value = 0.0
            if self._waiting:
                following = next(iter(self._waiting))
                self._ringing(following, self._waiting.pop(following))()

    async def _driven(self, swept: _Swept, identity: str, why: Why) -> None:
        spec, name = swept.spec, swept.name
        swept.last_s = started = time.time()
        plan = plan_of(spec, swept.target.spec)
        rate = self._families[series.SWEEP_RATE.name].value(name)

        def heard(order: Run | Estimate | Finished) -> None:
            rate.value = order.rate_per_s if isinstance(order, Run) else 0.0

        rng = Random(derive_seed(identity, swept.target.spec.key, "sweep"))
        prior = None
        if swept.model is not None:
            fitted_s, fit = swept.model
            prior = Prior(fit.parameters, fit.front_s, age_s=started - fitted_s)
        drive = swept.drive = Drive(swept.target, spec.workload, plan, rng, heard, prior)
        self._headroom.sweeping(name, begins=True)
        log.info("target=%s sweep %s (%s) begins: %s up to %g/s", name, identity, why, spec.mode, spec.max_rate)
        watching = asyncio.create_task(self._watch(swept, drive))
        try:
            driven = await drive.run()
        finally:
            watching.cancel()
        result = await asyncio.to_thread(
            result_of,
            driven,
            swept.target.spec,
            spec.workload,
            spec.slos,
            started_unix_s=started,
            ended_unix_s=time.time(),
            configuration=configuration_of(spec) | {"id": identity, "why": why},
            devices=swept.devices,
        )
        if driven.model is not None:
            swept.model = started, driven.model
        await self._ended(swept, driven.finished, result)

    async def _ended(self, swept: _Swept, finished: Finished, result: Result) -> None:
        """Into series, store, history. A stopped sweep without an answer leaves the last capacity with its old time."""
        name, families = swept.name, self._families
        verdict = verdict_of(finished)
        kept = without_gaps(result)
        swept.results[result.id] = kept
        while len(swept.results) > KEPT:
            del swept.results[min(swept.results, key=lambda each: swept.results[each].started_unix_s)]
        if self._store is not None:
            key = json.dumps([swept.target.spec.key, result.id])
            await asyncio.to_thread(_save, self._store, key, kept)
        families[series.SWEEPS.name].value(name, verdict).inc()
        families[series.SWEEP_STOPS.name].value(name, finished.reason).inc()
        families[series.SWEEP_REQUESTS.name].value(name).inc(len(result.requests))
        used = sum((each.prompt_tokens or 0) + (each.output_tokens or 0) for each in result.requests)
        families[series.SWEEP_TOKENS.name].value(name).inc(used)
        if any(each.estimate is not None for each in finished.capacities):
            self._headroom.found(name, finished.capacities, result.ended_unix_s)
            families[series.SWEEP_SUCCESS.name].value(name).value = result.ended_unix_s
        self._show_stages(name, result)
        text = (
            f"sweep: {verdict}, {words(finished.capacities)}; it ended by {finished.reason} {finished.detail}".rstrip()
        )
        log.info("target=%s %s", name, text)
        self._history.happened(Event(result.ended_unix_s, name, "sweep", text))

    def _show_stages(self, name: str, result: Result) -> None:
        for declared in (series.SWEEP_STAGE_RATE, series.SWEEP_STAGE_TOKENS, series.SWEEP_STAGE_LATENCY):
            children = self._families[declared.name].children
            for labels in [labels for labels in children if labels[0] == name]:
                del children[labels]
        for index, stage in enumerate(result.stages):
            label = f"{index:02d}"
            total = (stage.rate_per_s or 0.0) + (stage.demand_per_s or 0.0)
            self._families[series.SWEEP_STAGE_RATE.name].value(name, label).value = total
            if stage.output_tokens_per_s is not None:
                self._families[series.SWEEP_STAGE_TOKENS.name].value(name, label).value = stage.output_tokens_per_s
            for signal, found in stage.latencies.items():
                for quantile in found:
                    if quantile.enough or quantile.q == 0.5:
                        labels = (name, label, signal, f"{quantile.q:g}")
                        self._families[series.SWEEP_STAGE_LATENCY.name].value(*labels).value = quantile.estimate

    # --- what ends it from outside

    async def _watch(self, swept: _Swept, drive: Drive) -> None:
        """The guards that the machine cannot see: the continuous probes, the target's state, the prober itself, alerts."""
        asked_s = time.monotonic()
        while True:
            await asyncio.sleep(GUARD_EVERY_S)
            if swept.target.state == "failing":
                drive.guard("the target fails")
            elif burns(swept.recent, swept.spec, swept.last_s):
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
        """What the store holds of earlier sweeps; the newest capacity stands, with its own time."""
        if self._store is None:
            return
        for key, data in self._store.load(SWEEP, time.time() - KEPT_S).items():
            owner, identity = json.loads(key)
            if owner == swept.target.spec.key:
                try:
                    swept.results[identity] = from_json(data.decode(), f"stored sweep {identity}")
                except ValueError as problem:
                    log.error("target=%s a stored sweep is left out: %s", swept.name, problem)
        latest = sorted(swept.results.values(), key=lambda each: each.started_unix_s)
        if latest:
            swept.last_s = latest[-1].started_unix_s
        for result in reversed(latest):
            if any(each.estimate is not None for each in result.capacities):
                self._headroom.found(swept.name, result.capacities, time.time())
                self._families[series.SWEEP_SUCCESS.name].value(swept.name).value = result.ended_unix_s
                break

    def _keep(self, task: "asyncio.Task[None]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _save(store: Store, key: str, result: Result) -> None:
    try:
        store.save(SWEEP, [(key, to_json(result).encode())], time.time())
    except sqlite3.Error as problem:
        log.error("a sweep's result could not be saved: %s", problem)


def plan_of(spec: SweepSpec, target: TargetSpec) -> Plan:
    """The plan of a configured sweep."""
    budget = target.budget
    prompt, completion = (budget.prompt_price or 0.0, budget.completion_price or 0.0) if budget else (0.0, 0.0)
    return Plan(
        slos=spec.slos,
        mode=spec.mode,
        start_per_s=spec.min_rate,
        highest_per_s=spec.max_rate,
        guards=Guards(
            waiting=spec.guard_waiting,
            kv_usage=spec.guard_kv_usage,
            production_ttft_s=spec.guard_production_ttft_s,
            in_flight=spec.max_in_flight,
        ),
        budget=Budget(spec.requests, spec.tokens, spec.time_s, spec.cost, prompt / 1e6, completion / 1e6),
        lengths=lengths(spec.workload, Random(0), LENGTHS),
    )


def configuration_of(spec: SweepSpec) -> dict[str, object]:
    """What a result says it was told."""
    return {
        "mode": spec.mode,
        "workload": spec.workload.name,
        "slos": [slo.name for slo in spec.slos],
        "min_rate": spec.min_rate,
        "max_rate": spec.max_rate,
        "max_in_flight": spec.max_in_flight,
        "limits": {"requests": spec.requests, "tokens": spec.tokens, "time_s": spec.time_s, "cost": spec.cost},
    }


def verdict_of(finished: Finished) -> str:
    """One of series.SWEEP_VERDICTS."""
    if finished.void:
        return "void"
    least = finished.binding
    if least is not None:
        return least.verdict
    return "not_reached" if any(each.verdict == "not_reached" for each in finished.capacities) else "not_enough_data"


def words(capacities: Sequence[Capacity]) -> str:
    """What was found, for people."""
    told = []
    for each in capacities:
        match each.verdict, each.lower, each.estimate, each.upper:
            case "found", float() as lower, float() as estimate, float() as upper:
                told.append(f"{each.slo} holds up to {estimate:.3g}/s ({lower:.3g} to {upper:.3g})")
            case "not_reached", float() as lower, _, _:
                told.append(f"{each.slo} holds at {lower:.3g}/s and was not pushed further")
            case "below_lowest", _, _, float() as upper:
                told.append(f"{each.slo} does not hold at {upper:.3g}/s, the lowest rate")
            case _:
                told.append(f"{each.slo}: not enough data")
    return "; ".join(told) or "nothing can be said"


def burns(recent: Sequence[ProbeResult], spec: SweepSpec, since_unix_s: float) -> bool:
    """Whether the continuous probes since then burn an SLO's budget faster than the guard allows, by three bad ones at least."""
    for slo in spec.slos:
        counts = [events(slo, each) for each in recent if each.unix_s >= since_unix_s]
        seen, bad = (sum(count[place] for count in counts) for place in (0, 1))
        if bad >= 3 and bad > min(spec.guard_burn * float(slo.budget), MOST_BAD) * seen:
            return True
    return False
