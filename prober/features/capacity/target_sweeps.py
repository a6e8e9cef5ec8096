"""Sweeps of one target: the schedule, earlier results, and the running sweep."""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any

from prober.config.sweep import WARM_UP, SweepSpec
from prober.config.target import needs_of
from prober.features.capacity.actions import Refused, StartRequest
from prober.features.capacity.headroom import Headroom, TargetDemand
from prober.features.capacity.series import UNKNOWN
from prober.features.capacity.sweep_pauses import SweepPauses
from prober.features.capacity.sweep_result import bounded, has_capacity, has_figure
from prober.features.capacity.sweep_runner import SweepProgress, SweepRunner
from prober.features.capacity.sweep_schedule import MAX_LATENESS_S, Situation, SweepSchedule, longest_gap_s, refusal
from prober.features.capacity.sweep_series import SweepSeries
from prober.features.capacity.sweep_store import SweepArchive, SweepStore
from prober.features.capacity.users_requests import is_like_users
from prober.measure.engine_signals import EngineChange, PageReading, SteadySize, size_change
from prober.measure.gpu_reading import GpuReading
from prober.measure.objective import BURN_PROBES
from prober.measure.result import ProbeResult
from prober.net.prometheus import QueryFailed, firing
from prober.probing.feature import Shared
from prober.probing.observer import ObservedTarget, TargetObserver
from prober.probing.replicas import claimed_as
from prober.probing.target import Target
from prober.results.capacity import Capacity, words
from prober.results.result import Result, result_url
from prober.workload.arrivals import derive_seed
from prober.workload.budget import BudgetDemand

# Alerts that a sweep resolves: a sweep may start while they fire.
CAPACITY_ALERTS = frozenset({"LLMHeadroomLow", "LLMCapacityExhaustionForecast", "LLMSweepStale"})
# Added to `limits.time` of another replica's sweep, for its look-ups and for cutting requests.
MARGIN_S = 60.0
MAX_POOLED = 4  # sweeps of one engine, pooled for the headroom
ENDED = "the target was removed, or its configuration has changed"
SETTLED_S = 60.0  # after a change of the engine, until it is warm and may be swept; and between tries
CHANGE_GAP_S = 3600.0  # between sweeps of an engine that changes often; at most min_gap
WAKEUP_INTERVAL_S = 30.0  # of a schedule, because the wall clock may change
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SweptCapacity:
    """Capacities from the last sweep with a figure, and the present demand. None: unknown.

    at_unix_s: when the sweep ended
    demand_per_s: requests now arriving at the engine
    shape: (mean computed prompt tokens, mean output tokens) of a present request
    workload: that the sweep sent; "" if unknown
    exhausted_unix_s: forecast time at which demand reaches the capacity
    """

    capacities: Sequence[Capacity]
    at_unix_s: float
    demand_per_s: float | None = None
    exhausted_unix_s: float | None = None
    shape: tuple[float, float] | None = None
    workload: str = ""

    @property
    def is_like_users(self) -> bool:
        """True if the sweep sent requests like the users' own."""
        return is_like_users(self.workload)


@dataclass(slots=True)
class SweepParts:
    """Parts shared by the sweeps of all targets.

    shared: with all features; its `instance` determines the delays of the schedules
    headroom: observes the targets' demand; its Prometheus is also asked for firing alerts
    archive: results on disk; None: only `in_memory`, by target key
    """

    shared: Shared
    headroom: Headroom
    pauses: SweepPauses
    archive: SweepArchive | None
    in_memory: dict[str, SweepStore] = field(default_factory=dict)


class TargetSweeps(TargetObserver):
    """Sweeps of one target. Without `sweep:` in its configuration it is never swept and has no series.

    demand: the users' demand, without a sweep's requests
    start: starts a sweep of this target and returns its id, or raises Refused; forget: called when the target is removed
    recent: last scheduled probes; devices: GPUs that serve the target
    runner: runner of the running sweep, once started
    series: None without `sweep:`, and once the target is removed
    """

    def __init__(
        self,
        parts: SweepParts,
        observed: ObservedTarget,
        demand: TargetDemand,
        start: Callable[["TargetSweeps", StartRequest], str],
        forget: Callable[["TargetSweeps"], None],
    ) -> None:
        self.name, self.parts, self.observed, self.demand = observed.name, parts, observed, demand
        self._start, self._forget = start, forget
        self.recent: list[ProbeResult] = []
        self.devices: Sequence[GpuReading] = ()
        self.runner: SweepRunner | None = None
        self.series: SweepSeries | None = None
        self._seen_claim = 0.0, 0.0  # at the lease: its Unix seconds, and when first seen (monotonic)
        self._is_swept_by_other = False
        self._schedule: SweepSchedule | None = None
        self._timer: asyncio.TimerHandle | None = None  # for the schedule
        self._settling: asyncio.TimerHandle | None = None
        self._size = SteadySize()  # by the engine's page
        self._changed_s = -math.inf  # of the monotonic clock: last change of the engine, its size included
        # Last sweep that a change started, or in an earlier process any sweep.
        self._swept_for_change_s = parts.shared.clock.now_ns() / 1e9 - parts.pauses.start_age_s(observed.spec.key)
        self._last_refusal = ""  # reason of the last refused sweep after a change
        self._results: SweepStore | None = None
        if (sweep := observed.spec.sweep) is not None:
            period_s, unix_s = None, parts.shared.clock.unix_s()
            if sweep.schedule is not None:
                gap_s = longest_gap_s(sweep.schedule, sweep.timezone, sweep.blackout, unix_s)
                period_s = None if gap_s is None else max(gap_s, sweep.min_gap)
                rng = Random(derive_seed(parts.shared.instance, observed.spec.key, "sweep"))
                delay_s = rng.uniform(0.0, sweep.spread)
                self._schedule = SweepSchedule(sweep.schedule, sweep.timezone, unix_s, delay_s=delay_s)
            self.series = SweepSeries(parts.shared.registry, self.name)
            self.series.declare(period_s)
            self._timer = asyncio.get_running_loop().call_later(0.0, self._start_due)
            if parts.archive is not None:
                parts.archive.read_later(self.name, self.recall)
            else:
                self._show_known()

    @property
    def results(self) -> SweepStore:
        """Earlier results. Created on first use, because few of thousands of targets are swept."""
        if self._results is None:
            archive, key = self.parts.archive, self.target.spec.key
            in_memory = self.parts.in_memory
            self._results = archive.of(key) if archive is not None else in_memory.setdefault(key, SweepStore(None, key))
        return self._results

    @property
    def target(self) -> Target:
        """The target with its present configuration."""
        return self.observed.target

    @property
    def spec(self) -> SweepSpec | None:
        """Configuration `sweep:` of the target; None without one, or once the target is removed."""
        return self.target.spec.sweep if self.series is not None else None

    def with_workload(self, sweep: SweepSpec) -> SweepSpec:
        """The sweep with requests like the users' own, if no workload is configured and their lengths are known."""
        users = self.demand.workload() if "workload" not in sweep.model_fields_set else None
        return sweep if users is None else sweep.model_copy(update={"workload": users})

    # --- events of the target

    def probe_ended(self, result: ProbeResult) -> None:
        if self.series is None:
            return
        self.recent = [*self.recent[1 - BURN_PROBES :], result.stored]
        if result.retry_after_s is not None:
            self.retry_after(result.retry_after_s, self.target.spec.url)
            if self.runner is not None:
                self.runner.retry_after(result.retry_after_s)

    def page_read(self, reading: PageReading | None) -> None:
        if reading is not None and self.series is not None:
            before = self._size.size
            self._size.take(reading.signals.size)
            if self._size.size != before:
                self._engine_is_other()
        # Exclude another replica's sweep from user demand.
        claim_s, seen_s = self._claim()
        longest_s = self.spec.limits.time + MARGIN_S if self.spec is not None else 0.0
        # A claim's number is its sweep's due time.
        is_recent = abs(self.parts.shared.clock.unix_s() - claim_s) < longest_s + MAX_LATENESS_S
        is_swept = is_recent and seen_s < longest_s and self.parts.shared.leadership.held() is None
        if is_swept == self._is_swept_by_other:
            return
        self._is_swept_by_other = is_swept
        if self.runner is None:
            if is_swept:
                self.demand.sweep_began()
            else:
                self.demand.sweep_ended()

    def gpus_read(self, devices: Sequence[GpuReading], driver: str) -> None:
        self.devices = devices
        if self.runner is not None and devices:
            self.runner.session.gpus_read(devices)

    def engine_changed(self, change: EngineChange) -> None:
        if change.kind == "restart" or self.spec is None:
            return
        self._changed_s, self._last_refusal = self.parts.shared.clock.now_ns() / 1e9, ""
        if change.kind != "size":  # results of this size may still be valid
            self.parts.pauses.changed(self.target.spec.key)
        self._engine_is_other()
        self._sweep_later()

    def paused(self) -> None:
        self.stop("the server is being ended" if self.target.is_ending else "stopped on request")

    def stopped(self) -> None:
        """End the running sweep; its result is stored."""
        self.stop(ENDED)
        self.cancel_timers()

    def removed(self) -> None:
        self.stopped()  # one may have begun
        if self.series is not None:
            self.series.close()
            self.series = None
            self.results.forget()
        self._forget(self)

    def _engine_is_other(self) -> None:
        """Show only what sweeps of the present engine have found."""
        self.show_capacity()
        if self.parts.archive is not None:
            self.parts.archive.read_later(self.name, self.recall)

    # --- the start of a sweep

    def _sweep_later(self) -> None:
        """Sweep the changed engine once it has settled."""
        if self.spec is not None and self.spec.after_change:
            if self._settling is not None:
                self._settling.cancel()
            self._settling = asyncio.get_running_loop().call_later(SETTLED_S, self._sweep_changed)

    def _sweep_changed(self) -> None:
        """Sweep the changed engine; try again until a sweep has started, or one of this engine is known."""
        self._settling, now_s = None, self.parts.shared.clock.now_ns() / 1e9
        if self.spec is None:
            return
        started_s = now_s - self.parts.pauses.start_age_s(self.target.spec.key)
        claimed_s = now_s - self.parts.shared.clock.unix_s() + self._claim()[0]
        if max(started_s, claimed_s) >= self._changed_s:
            self._swept_for_change_s = now_s
        elif not self._comparable():
            if now_s - self._swept_for_change_s >= min(self.spec.min_gap, CHANGE_GAP_S):
                self._try(StartRequest("change"))
            self._sweep_later()

    def check(self, request: StartRequest, running: str = "") -> None:
        """Check that a sweep may start now. Raises Refused. running: name of the target being swept; "" for none"""
        target, parts, leadership = self.target, self.parts, self.parts.shared.leadership
        claim_unix_s, claim_seen_s = self._claim()
        situation = Situation(
            spec=self.spec,
            unix_s=parts.shared.clock.unix_s(),
            lease=leadership.where,
            holder=leadership.holder,
            is_leader=leadership.held() is not None,
            claim_unix_s=claim_unix_s,
            claim_seen_s=claim_seen_s,
            running=running,
            start_age_s=parts.pauses.start_age_s(target.spec.key),
            quiet_s=parts.pauses.quiet_s(target.spec.key, result_url(self.target.spec.url)),
            state=target.state,
            is_paused=target.paused_unix_s is not None,
            shortage=self._shortage(),
        )
        if (refused := refusal(request, situation)) is not None:
            raise refused

    async def check_alerts(self) -> None:
        """Check that no alert fires for the target. Raises Refused. An unreachable Prometheus is logged and refuses nothing."""
        if (url := self.parts.headroom.prometheus_url) is None:
            return
        try:
            names = await firing(url, self.name, CAPACITY_ALERTS)
        except QueryFailed as problem:
            log.warning("prometheus.url: whether alerts fire is not known: %s", problem)
            return
        if names:
            raise Refused("alert_firing", f"an alert fires: {', '.join(names)}")

    def _shortage(self) -> str:
        """What the daily budgets lack for a warm-up after the scheduled probes; "" if nothing."""
        if self.spec is None:
            return ""
        target, requests, workload = self.target, WARM_UP.requests or 0, self.with_workload(self.spec).workload
        warm_up = target.amounts(*(round(requests * tokens) for tokens in workload.mean_tokens()))
        for kind, need in self.probe_needs().items():
            spare = target.budgets[kind].available(target.clock.now_ns(), need)
            if spare < warm_up[kind]:
                unit = "tokens" if kind == "tokens" else "dollars"
                return (
                    f"its scheduled probes leave {max(0.0, spare):,.6g} {unit} of budget.{kind}_per_day in these 24 hours, and "
                    f"a warm-up takes {warm_up[kind]:,.6g}; raise the budget, or lower the probes' rate"
                )
        return ""

    def retry_after(self, pause_s: float, url: str) -> None:
        """Refuse sweeps of the target at this URL for `pause_s`, as it requested; a restart keeps this."""
        self.parts.pauses.retry_after(self.target.spec.key, result_url(url), pause_s)

    def refused(self, request: StartRequest, refusal: Refused) -> None:
        """Log and count a sweep that was not started; one that is tried again, once for each reason."""
        if request.trigger == "change":
            if refusal.reason == self._last_refusal:
                return
            self._last_refusal = refusal.reason
        log.info("target=%s sweep (%s) not begun: %s", self.name, request.trigger, refusal)
        if self.series is not None:
            self.series.refused(refusal.reason)

    def probe_needs(self) -> dict[str, BudgetDemand]:
        """Part of each daily budget that scheduled probes need, by their workloads; more if the server counts more tokens."""
        target = self.target
        needs = {kind: need for kind, need in needs_of(target.spec).items() if kind in target.budgets}
        counted = [(probe, usage) for probe in self.recent if (usage := probe.timeline.usage) is not None]
        requested = [
            target.amounts(probe.requested_prompt_tokens, probe.requested_output_tokens) for probe, _ in counted
        ]
        used = [target.amounts(usage.prompt_tokens or 0, usage.completion_tokens or 0) for _, usage in counted]
        for kind in needs:
            before, after = (sum(amounts[kind] for amounts in rows) for rows in (requested, used))
            if 0 < before < after:
                needs[kind] = needs[kind].scaled(after / before)
        return needs

    # --- current and earlier sweeps

    def stop(self, why: str) -> bool:
        """End the running sweep, keeping its measurements. Returns True if there was one."""
        if self.runner is None:
            return False
        self.runner.stop(why)
        return True

    def progress(self) -> SweepProgress | None:
        """Progress of the running sweep; None without one."""
        return self.runner.progress() if self.runner is not None and self.series is not None else None

    def latest(self) -> list[Result]:
        """This target's results in memory, latest first; `results.read` loads the others."""
        return self.results.latest() if self.series is not None else []

    def summary(self) -> dict[str, Any]:
        results, demand, swept = self.latest(), self.demand, self.last_capacity()
        shown: dict[str, Any] = {
            "sweep": self.progress(),
            "sweeps": results,
            "last_sweep": results[0] if results else None,
            "sweepable": self.spec is not None,
            "headroom_unknown": UNKNOWN.get(demand.why_unknown, ""),
        }
        if swept is None:
            return shown
        load = demand.demand.load
        ended, (free, added) = datetime.fromtimestamp(swept.ended_unix_s, UTC), demand.least
        if free.upper is not None:
            bounds = (free.lower, free.estimate, free.upper, added.lower, added.estimate, added.upper)
            names = ("lower", "estimate", "upper", "addable_lower", "addable", "addable_upper")
            shown["headroom"] = dict(zip(names, bounds, strict=True))
        return shown | {
            "capacity": f"{words(swept.capacities)}, as of {ended:%Y-%m-%d %H:%M} UTC",
            "swept": SweptCapacity(
                swept.capacities,
                swept.ended_unix_s,
                demand.demand.requests_per_s,
                demand.exhaustion_unix_s,
                load and (load.prompt_tokens, load.output_tokens),
                swept.load.workload or "",
            ),
        }

    def last_capacity(self) -> Result | None:
        """The first of `_comparable`; None without one."""
        return next(iter(self._comparable()), None)

    def last_curve(self) -> Result | None:
        """Result with the load curve to show: the last with a capacity, or else with measurements, of the target at its URL."""
        url = result_url(self.target.spec.url)
        measured = (result for result in self.latest() if result.stages and result.target.url == url)
        return self.last_capacity() or next(measured, None)

    async def recall(self) -> None:
        """Read results until enough have a comparable capacity, then show them."""
        try:
            await self.results.read(lambda _: len(self._comparable()) >= MAX_POOLED)
        finally:
            self._show_known()

    def _show_known(self) -> None:
        """Show the last capacity, load curve and end of a sweep from the results in memory."""
        if (series := self.series) is None:
            return
        self.show_capacity()
        series.stages(self.last_curve())
        if latest := self.latest():
            series.last_end(latest[0].ended_unix_s, latest[0].stop or "")

    def show_capacity(self) -> None:
        """Show the last capacity, and the headroom from it and earlier comparable sweeps."""
        if self.series is None:
            return
        swept = self._with_capacity()
        self.series.figure_time(next((result.ended_unix_s for result in swept if has_figure(result)), None))
        if not (results := self._comparable()):
            self.demand.show_capacity((), why_none="engine_changed" if swept else "no_capacity")
            if swept and self._settling is None:
                self._changed_s = self.parts.shared.clock.now_ns() / 1e9
                self._sweep_later()
            return
        earlier = [capacity for result in results[1:] for capacity in result.capacities]
        is_like = is_like_users(results[0].load.workload)
        self.demand.show_capacity(results[0].capacities, earlier, is_like_users=is_like)

    def _with_capacity(self) -> list[Result]:
        """Results in memory with a capacity of the target at its URL, of whichever engine."""
        url = result_url(self.target.spec.url)
        return [result for result in self.latest() if result.target.url == url and has_capacity(result)]

    def _comparable(self) -> list[Result]:
        """Results in memory with figures of the present engine and of the SLOs last swept; latest first, at most MAX_POOLED.

        Bounds of later sweeps clip the first. Without a figure: the last bound.
        """
        results = [result for result in self._with_capacity() if self._is_of_this_engine(result)]
        alike = [(of.target, of.slos) for of in results]
        results = [of for of, kind in zip(results, alike, strict=True) if kind == alike[0]]
        figures = [place for place, result in enumerate(results) if has_figure(result)][:MAX_POOLED]
        if not figures:
            return results[:1]
        return [bounded(results[figures[0]], results[: figures[0]]), *(results[place] for place in figures[1:])]

    def _try(self, request: StartRequest) -> None:
        with suppress(Refused):  # counted and logged already
            self._start(self, request)

    def _start_due(self) -> None:
        """Start the due sweep, and wake for the next one, or earlier in case the wall clock changes."""
        if (schedule := self._schedule) is None:
            return
        unix_s = self.parts.shared.clock.unix_s()
        due = schedule.due(unix_s)
        wait_s = min(max(0.0, schedule.next_s - unix_s), WAKEUP_INTERVAL_S)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._start_due)
        if due is not None and due.is_missed:
            text = f"it was due {unix_s - due.unix_s:.0f} s ago; {MAX_LATENESS_S} s is too late"
            self.refused(StartRequest("schedule", due.unix_s), Refused("missed", text))
        elif due is not None:
            self._try(StartRequest("schedule", due.unix_s))

    def _claim(self) -> tuple[float, float]:
        """(Unix seconds of the last claim at the lease, 0 without one; seconds since it was first seen)."""
        claim_s = self.parts.shared.leadership.claimed(claimed_as(self.target.spec.key))
        now_s = self.parts.shared.clock.now_ns() / 1e9
        if self._seen_claim[0] != claim_s:
            self._seen_claim = claim_s, now_s
        return claim_s, now_s - self._seen_claim[1]

    def _is_of_this_engine(self, result: Result) -> bool:
        """True if the engine has not changed since; a size that the page or the result does not tell is no change."""
        change_unix_s = self.parts.shared.clock.unix_s() - self.parts.pauses.change_age_s(self.target.spec.key)
        return result.started_unix_s >= change_unix_s and size_change(result.size, self._size.size) is None

    def cancel_timers(self) -> None:
        """Cancel sweeps that the schedule, or a changed engine that is settling, would start."""
        for timer in (self._timer, self._settling):
            if timer is not None:
                timer.cancel()
        self._schedule = self._settling = None
