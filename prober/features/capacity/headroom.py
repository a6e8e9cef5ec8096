"""Headroom of a target: how much its users' traffic can grow. The free share is 1 − used, and it can grow by the factor 1 ÷ used."""

import asyncio
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from prober.config.configuration import Configuration
from prober.exposition.families import Registry
from prober.features.capacity import series
from prober.features.capacity.demand import QUERY_INTERVAL_S, WINDOW_S, Demand, DemandMeter
from prober.features.capacity.forecast import Forecast, Load, Peaks, forecast, peaks_of
from prober.features.capacity.used_share import Bounds, UsedShare
from prober.features.capacity.users_requests import UsersRequests, users_requests_of
from prober.features.capacity.windows import Windows
from prober.measure.engine_signals import PageReading
from prober.measure.objective import Slo
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.net.prometheus import QueryFailed, instant
from prober.probing.feature import SavedTargets
from prober.probing.observer import ObservedTarget, TargetObserver
from prober.results.capacity import Capacity
from prober.storage.saved_rows import SavedRows
from prober.workload.workloads import Workload

PEAK_S = 240.0  # a demand over a shorter time is a burst, not a day's peak
DAY_S = 86_400
# Requests that arrived in WINDOW_S and have not ended, and the share of them that must wait, for a demand beyond the engine's limit.
MIN_EXCESS, WAITING_SHARE = 20, 0.5
BOUNDS = ("lower", "estimate", "upper")
log = logging.getLogger(__name__)


class Headroom(SavedTargets["TargetDemand"]):
    """Demand and headroom of all targets.

    prometheus_url: the Prometheus that answers `sweep.demand_query`; None without one
    """

    def __init__(self, registry: Registry, saved: SavedRows | None = None) -> None:
        self.registry = registry
        self.prometheus_url: str | None = None
        super().__init__(saved or SavedRows())

    def observe(self, observed: ObservedTarget) -> "TargetDemand":
        """Create the demand of one target, continuing from its saved peaks."""
        return self.add(TargetDemand(self, observed))

    def configured(self, configuration: Configuration) -> None:
        self.prometheus_url = configuration.prometheus_url


def _restored(data: bytes) -> tuple[Peaks, UsersRequests]:
    """Read the state that `TargetDemand.states` returned."""
    state: Mapping[str, Any] = json.loads(data)
    return peaks_of(state["peaks"]), users_requests_of(state["requests"])


class TargetDemand(TargetObserver):
    """Demand, capacity and headroom of one target.

    peaks: daily peaks, if the engine counts requests and tokens; requests: lengths of the users' requests
    readings: readings of the engine's page in the last five minutes, except of another engine or during a sweep; only for targets that
    are swept
    headroom: free share of the capacity for all SLOs; users_headroom: for `metrics.slos`, as the users saw them
    addable: requests per second like those that are there, that can be added to them; least: both, by whichever headroom is smaller
    exhaustion_unix_s: when the demand is forecast to reach the capacity; None without a forecast
    """

    def __init__(self, monitor: Headroom, observed: ObservedTarget) -> None:
        self.name = observed.name
        self._monitor, self._observed, self._registry = monitor, observed, monitor.registry
        self._clock, sweep = observed.target.clock, observed.spec.sweep
        self._query = sweep.demand_query if sweep is not None else None  # PromQL
        self._meter = DemandMeter(is_queried=self._query is not None)
        consequence = (
            f"target={self.name}: the saved peaks of its demand and lengths of requests cannot be read, and start again"
        )
        self.peaks, self.requests = monitor.saved.pop(self.name, _restored, consequence) or (Peaks(), UsersRequests())
        self._used = UsedShare()
        self._windows = Windows()
        self._sweeps: tuple[Sequence[Capacity], Sequence[Capacity], bool] = ((), (), False)
        self._why_no_capacity = "no_capacity" if sweep is None else "starting"
        self._querying = None if self._query is None else asyncio.create_task(self._ask_repeatedly())
        self._query_problem = ""  # last logged problem
        self._forecast_day = -1
        self.readings: list[PageReading] = []
        self.headroom = self.users_headroom = self.addable = Bounds()
        self.least = Bounds(), Bounds()
        self.exhaustion_unix_s: float | None = None
        self._show()

    def states(self) -> Iterator[tuple[str, bytes]]:
        """(name, peaks and lengths of requests) to save; nothing without any."""
        if self.peaks.days or self.requests.hours:
            state = {"peaks": self.peaks.rows(), "requests": self.requests.state()}
            yield self.name, json.dumps(state).encode()

    @property
    def demand(self) -> Demand:
        """Latest known demand of the users."""
        return self._meter.demand

    def workload(self) -> Workload | None:
        """Requests like the users' own; None if the engine's page does not tell their lengths."""
        return self.requests.workload(self._clock.unix_s(), self.readings[-1].signals) if self.readings else None

    @property
    def why_unknown(self) -> str:
        """Why the headroom has no estimate, as a key of `series.UNKNOWN`; empty if it has one."""
        if self.headroom.estimate is not None:
            return ""
        if self.headroom != Bounds():
            return "only_bound"
        if all(capacity.upper is None for capacity in self._used.capacities):
            return self._why_no_capacity
        if not any(capacity.mix for capacity in self._used.capacities):
            return "others_unseen"
        if self._meter.is_queried:
            return "query_without_tokens"
        if self.demand.requests_per_s is None:
            return "sweep_runs" if self._meter.is_swept else "demand_unknown"
        if self.demand.tokens_per_s is None:
            return "no_tokens"
        return "none_ended" if self.demand.load is None else "others_unseen"

    def probe_ended(self, result: ProbeResult) -> None:
        """Take a probe out of the demand: it is no user's request."""
        if result.outcome is not Outcome.OK:
            return
        usage = result.timeline.usage
        prompt = (usage.prompt_tokens if usage is not None else None) or result.requested_prompt_tokens
        output = (usage.completion_tokens if usage is not None else None) or result.requested_output_tokens
        self._meter.sent(prompt, output)
        self.requests.sent(self._clock.unix_s(), prompt, output)

    def page_read(self, reading: PageReading | None) -> None:
        if reading is None:
            self._meter.lose_page()
            self._show()
            return
        if not self._meter.takes(reading.at_ns / 1e9):
            return
        unix_s, before = self._clock.unix_s(), self._meter.count(reading)
        if self._observed.target.spec.sweep is not None:
            if before is not None:
                self.requests.take(unix_s, before.signals, reading.signals)
                span_s = (reading.at_ns - before.at_ns) / 1e9
                if self._windows.add(self._slos, before.signals, reading.signals, span_s):
                    self._windows.keep(unix_s, self._meter.recent.load)
                    self._weigh()
            signals = replace(reading.signals, itl_seconds=None, tpot_seconds=None, queue_seconds=None)  # unused
            alike = [of for of in self.readings if (of.epoch, of.signals.info) == (reading.epoch, signals.info)]
            recent_ns = reading.at_ns - WINDOW_S * 1e9
            self.readings = [of for of in alike if of.at_ns >= recent_ns] + [reading._replace(signals=signals)]
        if before is not None and self._meter.covered_s >= PEAK_S and (load := self.demand.load) is not None:
            self.peaks.take(unix_s, load)
        self._update(unix_s)

    def removed(self) -> None:
        if self._querying is not None:
            self._querying.cancel()
        self._monitor.forget(self)

    def query_answered(self, requests_per_s: float | None) -> None:
        """Use an answer to `demand_query`, in requests per second; None if it has no value."""
        unix_s = self._clock.unix_s()
        if self._meter.answer(self._clock.now_ns() / 1e9, requests_per_s):
            self._update(unix_s)

    async def queried(self) -> float | None:
        """Query the requests per second by `demand_query`; None without a query or an answer. A failure is logged."""
        url, query = self._monitor.prometheus_url, self._query
        if url is None or query is None:
            return None
        per_s, problem = None, ""
        try:
            per_s = await instant(url, query)
            if per_s < 0:
                per_s, problem = None, f"{query!r} gives {per_s:g}/s; there is no such demand"
        except QueryFailed as unanswered:
            problem = str(unanswered)
        if problem and problem != self._query_problem:
            log.warning("target=%s sweep.demand_query: the demand is not known: %s", self.name, problem)
        elif problem != self._query_problem:
            log.info("target=%s sweep.demand_query: the demand is known again", self.name)
        self._query_problem = problem
        return per_s

    async def _ask_repeatedly(self) -> None:
        while True:
            self.query_answered(await self.queried())
            await asyncio.sleep(QUERY_INTERVAL_S)

    def sweep_began(self) -> None:
        """Note that the engine's counters now include a sweep."""
        self._meter.begin_sweep()
        self.readings = []
        self._show()

    def sweep_ended(self) -> None:
        """Note the end of a sweep: the counters show user demand again once its last requests are counted."""
        self._meter.end_sweep()

    def show_capacity(
        self,
        capacities: Sequence[Capacity],
        earlier: Sequence[Capacity] = (),
        why_none: str = "no_capacity",
        *,
        is_like_users: bool = False,
    ) -> None:
        """Show the capacities of the last successful sweep of the present engine.

        earlier: capacities from earlier sweeps of the engine, which narrow the headroom's interval
        why_none: why there are none, as a key of `series.UNKNOWN`; if the engine changed, what users saw of it is forgotten
        is_like_users: the sweeps sent requests like the users' own
        """
        self._why_no_capacity = why_none
        if why_none == "engine_changed":
            self._windows = Windows()
        self._sweeps = capacities, earlier, is_like_users
        self._weigh()
        self._registry.keep(series.CAPACITY, (), self.name)
        for capacity in capacities:
            for bound in BOUNDS:
                self._registry.show(series.CAPACITY, getattr(capacity, bound), self.name, capacity.slo, bound)
        self._show()
        self._forecast(self._clock.unix_s())

    def _weigh(self) -> None:
        """Weigh the capacities of sweeps and what users saw in the windows."""
        budgets = {slo.name: float(slo.error_budget_ratio) for slo in self._slos}
        capacities, earlier, is_like_users = self._sweeps
        self._used = UsedShare(capacities, earlier, budgets, self._windows.kept, is_like_users=is_like_users)

    @property
    def _slos(self) -> tuple[Slo, ...]:
        """SLOs by which windows are judged: those of sweeps, and of users' latencies."""
        spec = self._observed.target.spec
        return (
            *(spec.sweep.slos if spec.sweep is not None else ()),
            *(slo for slo in spec.traffic_slos if slo.threshold_s),
        )

    def _update(self, unix_s: float) -> None:
        self._show()
        if int(unix_s // DAY_S) != self._forecast_day:
            self._forecast(unix_s)

    def _forecast(self, unix_s: float) -> None:
        """Forecast daily and after each sweep, in shares of the capacity, because requests of different peaks differ in length."""
        self._forecast_day = int(unix_s // DAY_S)
        shares = {day: self._used.of(load) for day, load in self.peaks.of_complete_days(unix_s).items()}
        used = {day: share.estimate for day, share in shares.items() if share.estimate}
        last, result = shares[max(used)] if used else Bounds(), Forecast()
        if last.lower and last.estimate and last.upper:
            result = forecast(used, (last.estimate / last.upper, 1.0, last.estimate / last.lower), unix_s)
        self.exhaustion_unix_s = result.estimate_s
        for bound, at_s in zip(("earliest", "estimate", "latest"), result, strict=True):
            self._registry.show(series.CAPACITY_EXHAUSTION, at_s, self.name, bound)

    def _overrun(self) -> float:
        """Arriving requests ÷ finished ones of the last minutes, if the rest waits in the engine's queue; else 1."""
        recent, waiting = self._meter.recent, self.readings[-1].signals.requests_queued if self.readings else None
        if not waiting or not recent.finished_per_s or recent.requests_per_s is None:
            return 1.0
        excess = WINDOW_S * (recent.requests_per_s - recent.finished_per_s)
        is_overrun = excess >= MIN_EXCESS and waiting >= WAITING_SHARE * excess
        return recent.requests_per_s / recent.finished_per_s if is_overrun else 1.0

    def _show(self) -> None:
        """Compute the headroom, and export demand and headroom."""
        demand = self.demand
        self._registry.show(series.DEMAND, demand.requests_per_s, self.name)
        self._registry.show(series.DEMAND_TOKENS, demand.tokens_per_s, self.name)
        load, mixes = demand.load, [capacity.mix for capacity in self._used.capacities if capacity.mix is not None]
        if load is None and demand.requests_per_s == 0 and mixes:
            load = Load(0.0, mixes[0].prompt_tokens, mixes[0].output_tokens)
        self.headroom = self.users_headroom = self.addable = Bounds()
        self.least = Bounds(), Bounds()
        if load is not None:
            now_per_s, one = load.requests_per_s, load._replace(requests_per_s=1.0)
            overrun = self._overrun()
            self.headroom, self.addable = _free(self._used.of(one), now_per_s, overrun)
            pairs = [(self.headroom, self.addable)]
            if users_slos := {slo.name for slo in self._observed.target.spec.traffic_slos if slo.threshold_s}:
                pairs.append(_free(self._used.of(one, users_slos), now_per_s, overrun))
                self.users_headroom = pairs[1][0]
            self.least = min(pairs, key=lambda pair: inf if pair[0].estimate is None else pair[0].estimate)
        for bound in BOUNDS:
            self._registry.show(series.HEADROOM, getattr(self.headroom, bound), self.name, bound)
            self._registry.show(series.USERS_HEADROOM, getattr(self.users_headroom, bound), self.name, bound)
            self._registry.show(series.ADDABLE, getattr(self.addable, bound), self.name, bound)
        if self._observed.spec.sweep is not None:
            labels = [(self.name, reason)] if (reason := self.why_unknown) else []
            self._registry.keep(series.HEADROOM_UNKNOWN, labels, self.name)
            for label in labels:
                self._registry.show(series.HEADROOM_UNKNOWN, 1.0, *label)


def _free(used: Bounds, now_per_s: float, overrun: float) -> tuple[Bounds, Bounds]:
    """(free share, requests per second that can be added).

    used: by one request per second; now_per_s: that are there; overrun: of which the engine finishes one part in so many at most
    """
    shares = [
        share and max(share, overrun / now_per_s if overrun > 1 else 0.0)
        for share in (used.upper, used.estimate, used.lower)
    ]
    free = (None if share is None else 1 - now_per_s * share for share in shares)
    addable = (None if not share else max(0.0, 1 / share - now_per_s) for share in shares)
    return Bounds(*free), Bounds(*addable)
