"""Headroom of a target: how much its traffic can grow, and how many requests shaped like the sweep's can be added.

A request takes a share of the engine that depends on its prompt and output tokens (`Capacity.at`). So the free share
is 1 − requests/s ÷ the capacity in requests of their present shape, and they can grow by the factor 1 ÷ (1 − free share).
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from prober.config.configuration import Configuration
from prober.exposition.families import Registry
from prober.features.capacity import series
from prober.features.capacity.demand import QUERY_INTERVAL_S, WINDOW_S, Demand, DemandMeter, totals_of
from prober.features.capacity.forecast import Forecast, Load, Peaks, forecast, peaks_of
from prober.measure.engine_signals import PageReading
from prober.net.prometheus import QueryFailed, instant
from prober.probing.feature import Monitor
from prober.probing.observer import ObservedTarget, TargetObserver
from prober.results.capacity import Capacity, ShapeCapacity, combined, headroom, pooled
from prober.storage.saved_rows import SavedRows

PEAK_S = 240.0  # a demand over a shorter time is a burst, not a day's peak
DAY_S = 86_400
BOUNDS = ("lower", "estimate", "upper")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower bound, estimate and upper bound; None if unknown."""

    lower: float | None = None
    estimate: float | None = None
    upper: float | None = None


class Headroom(Monitor):
    """Demand and headroom of all targets.

    saved: peaks by target name that `states` returned in an earlier process
    prometheus_url: the Prometheus that answers `sweep.demand_query`; None without one
    """

    def __init__(self, registry: Registry, saved: SavedRows | None = None) -> None:
        self.registry = registry
        self.prometheus_url: str | None = None
        self._saved = saved or SavedRows()
        self._targets: dict[str, TargetDemand] = {}

    def observe(self, observed: ObservedTarget) -> "TargetDemand":
        """Create the demand of one target, continuing from its saved peaks."""
        target = self._targets[observed.name] = TargetDemand(self, observed)
        return target

    def configured(self, configuration: Configuration) -> None:
        self.prometheus_url = configuration.prometheus_url

    def forget(self, target: "TargetDemand") -> None:
        """Remove a target. Its peaks are kept in case it returns."""
        del self._targets[target.name]
        self._saved.put(target.state())

    def states(self) -> Iterator[tuple[str, bytes]]:
        """(name, peaks) of each target, to save."""
        for target in list(self._targets.values()):
            yield from target.state()

    def saved_peaks(self, name: str) -> Peaks:
        """Peaks saved by an earlier process."""
        consequence = f"target={name}: the saved peaks of its demand cannot be read, and start again"
        return self._saved.pop(name, lambda data: peaks_of(json.loads(data)), consequence) or Peaks()


class TargetDemand(TargetObserver):
    """Demand, capacity and headroom of one target.

    peaks: daily peaks, if the engine counts requests and tokens
    readings: readings of the engine's page in the last five minutes, except of another engine or during a sweep; only for targets that
    are swept
    headroom: free share of the capacity for all SLOs
    addable: requests per second, shaped like the sweep's, that can be added to the demand
    exhaustion_unix_s: when the demand is forecast to reach the capacity; None without a forecast
    """

    def __init__(self, monitor: Headroom, observed: ObservedTarget) -> None:
        self.name = observed.name
        self._monitor, self._observed, self._registry = monitor, observed, monitor.registry
        self._clock, sweep = observed.target.clock, observed.spec.sweep
        self._query = sweep.demand_query if sweep is not None else None  # PromQL
        self._meter = DemandMeter(is_queried=self._query is not None)
        self.peaks = monitor.saved_peaks(self.name)
        self._capacities: tuple[Capacity, ...] = ()
        self._earlier: tuple[Capacity, ...] = ()
        self._why_no_capacity = "no_capacity" if sweep is None else "starting"
        self._querying = None if self._query is None else asyncio.create_task(self._ask_repeatedly())
        self._query_problem = ""  # last logged problem
        self._forecast_day = -1
        self.readings: list[PageReading] = []
        self.headroom = self.addable = Bounds()
        self.exhaustion_unix_s: float | None = None
        self._show()

    def state(self) -> Iterator[tuple[str, bytes]]:
        """(name, peaks) to save; nothing without peaks."""
        if self.peaks.days:
            yield self.name, json.dumps(self.peaks.rows()).encode()

    @property
    def demand(self) -> Demand:
        """Latest known demand of the users."""
        return self._meter.demand

    @property
    def why_unknown(self) -> str:
        """Why the headroom has no estimate, as a key of `series.UNKNOWN`; empty if it has one."""
        if self.headroom.estimate is not None:
            return ""
        if self.headroom != Bounds():
            return "only_bound"
        if all(capacity.upper is None for capacity in self._capacities):
            return self._why_no_capacity
        if not self._of_shape(lambda capacity: capacity.own):
            return "others_unseen"
        if self._meter.is_queried:
            return "query_without_tokens"
        if self.demand.requests_per_s is None:
            return "sweep_runs" if self._meter.is_swept else "demand_unknown"
        if self.demand.tokens_per_s is None:
            return "no_tokens"
        return "none_ended" if self.demand.shape is None else "others_unseen"

    def page_read(self, reading: PageReading | None) -> None:
        if reading is None:
            self._meter.lose_page()
            self._show()
            return
        unix_s, covered_s = self._clock.unix_s(), self._meter.count(totals_of(reading))
        if covered_s is None:
            return
        if self._observed.target.spec.sweep is not None:
            signals = replace(reading.signals, itl_seconds=None, tpot_seconds=None, queue_seconds=None)  # unused
            alike = [of for of in self.readings if (of.epoch, of.signals.info) == (reading.epoch, signals.info)]
            recent_ns = reading.at_ns - WINDOW_S * 1e9
            self.readings = [of for of in alike if of.at_ns >= recent_ns] + [reading._replace(signals=signals)]
        if covered_s >= PEAK_S and (load := self._load) is not None:
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
        self, capacities: Sequence[Capacity], earlier: Sequence[Capacity] = (), why_none: str = "no_capacity"
    ) -> None:
        """Show the capacities of the last successful sweep of the present engine.

        earlier: capacities from earlier sweeps of the engine, which narrow the headroom's interval
        why_none: why there are none, as a key of `series.UNKNOWN`
        """
        self._why_no_capacity = why_none
        self._capacities, self._earlier = tuple(capacities), tuple(earlier)
        self._registry.keep(series.CAPACITY, (), self.name)
        for capacity in capacities:
            for bound in BOUNDS:
                self._registry.show(series.CAPACITY, getattr(capacity, bound), self.name, capacity.slo, bound)
        self._show()
        self._forecast(self._clock.unix_s())

    def _update(self, unix_s: float) -> None:
        self._show()
        if int(unix_s // DAY_S) != self._forecast_day:
            self._forecast(unix_s)

    def _forecast(self, unix_s: float) -> None:
        """Forecast daily and after each sweep, in shares of the capacity, because requests of different peaks differ in length."""
        self._forecast_day = int(unix_s // DAY_S)
        result, peaks = Forecast(), self.peaks.of_complete_days(unix_s)
        capacities = {day: self._capacity(load.prompt_tokens, load.output_tokens) for day, load in peaks.items()}
        used = {
            day: load.requests_per_s / capacity.estimate
            for day, load in peaks.items()
            if (capacity := capacities[day]) is not None and capacity.estimate
        }
        last = capacities[max(used)] if used else None
        if last is not None and last.lower and last.estimate and last.upper:
            bounds = (last.lower / last.estimate, 1.0, last.upper / last.estimate)
            result = forecast(used, bounds, unix_s)
        self.exhaustion_unix_s = result.estimate_s
        for bound, at_s in zip(("earliest", "estimate", "latest"), result, strict=True):
            self._registry.show(series.CAPACITY_EXHAUSTION, at_s, self.name, bound)

    @property
    def _load(self) -> Load | None:
        """The demand in requests per second, with mean tokens of a request; None while unknown."""
        demand = self.demand
        if demand.requests_per_s is None or (shape := demand.shape) is None:
            return None
        return Load(demand.requests_per_s, *shape)

    def _capacity(self, prompt_tokens: float, output_tokens: float) -> Capacity | None:
        """The capacity for all SLOs in requests per second of these mean tokens; None if unknown."""
        return combined(self._of_shape(lambda capacity: capacity.at(prompt_tokens, output_tokens)))

    def _of_shape(self, shape: Callable[[Capacity], ShapeCapacity | None]) -> list[Capacity]:
        """The capacity for each SLO in requests of one shape, pooled with earlier sweeps; empty if one is unknown."""
        capacities = []
        for capacity in self._capacities:
            alike = [other for other in self._earlier if other.slo == capacity.slo and other.estimate is not None]
            several = (capacity, *alike) if capacity.estimate is not None else (capacity,)
            known = [found for of in several if (found := shape(of)) is not None]
            if known:
                capacities.append(capacity.of_shape(pooled(known)))
            elif capacity.verdict == "not_enough_data":
                capacities.append(capacity)
            else:
                return []
        return capacities

    def _show(self) -> None:
        """Compute the headroom, and export demand and headroom."""
        demand, load = self.demand, self._load
        self._registry.show(series.DEMAND, demand.requests_per_s, self.name)
        self._registry.show(series.DEMAND_TOKENS, demand.tokens_per_s, self.name)
        self.headroom = self.addable = Bounds()
        own = combined(self._of_shape(lambda capacity: capacity.own))
        if own is not None and load is not None and (capacity := self._capacity(*load[1:])) is not None:
            free, addable = dict[str, float](), dict[str, float]()
            for bound in BOUNDS:
                per_s, own_per_s = getattr(capacity, bound), getattr(own, bound)
                if per_s is not None:
                    free[bound] = headroom(load.requests_per_s, per_s)
                if per_s is not None and own_per_s is not None:
                    addable[bound] = max(0.0, free[bound]) * own_per_s
            self.headroom, self.addable = Bounds(**free), Bounds(**addable)
        elif own is not None and demand.requests_per_s == 0:
            self.headroom = Bounds(*(None if getattr(own, bound) is None else 1.0 for bound in BOUNDS))
            self.addable = Bounds(own.lower, own.estimate, own.upper)
        for bound in BOUNDS:
            self._registry.show(series.HEADROOM, getattr(self.headroom, bound), self.name, bound)
            self._registry.show(series.ADDABLE, getattr(self.addable, bound), self.name, bound)
        if self._observed.spec.sweep is not None:
            labels = [(self.name, reason)] if (reason := self.why_unknown) else []
            self._registry.keep(series.HEADROOM_UNKNOWN, labels, self.name)
            for label in labels:
                self._registry.show(series.HEADROOM_UNKNOWN, 1.0, *label)
