"""Free capacity of a target: the answer of its last sweep against the demand of its users now."""

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prober.exposition.families import Registry
from prober.features.capacity import series
from prober.features.capacity.demand import Demand, DemandMeter, Totals
from prober.features.capacity.demand_query import DemandQuery
from prober.features.capacity.forecast import Peaks, forecast, peaks_of
from prober.measure.engine_signals import PageReading
from prober.probing.observer import ObservedTarget, TargetObserver
from prober.results.capacity import Capacity, binding, combined, headroom
from prober.storage.saved_rows import SavedRows

PEAK_S = 240.0  # a demand over less is a burst, and no peak of a day
DAY_S = 86_400
BOUNDS = ("lower", "estimate", "upper")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FreeCapacity:
    """Free share of the capacity at all SLOs, by its lower bound, its estimate and its upper bound; None where it is not known."""

    lower: float | None = None
    estimate: float | None = None
    upper: float | None = None


class Headroom:
    """Demand and headroom of all targets.

    saved: peaks by the targets' names, as `states` gave them to an earlier process
    prometheus_url: the Prometheus that answers `sweep.demand_query`; None: there is none
    """

    def __init__(self, registry: Registry, saved: SavedRows | None = None) -> None:
        self.registry = registry
        self.prometheus_url: str | None = None
        self._saved = saved or SavedRows()
        self._targets: dict[str, TargetDemand] = {}

    def observe(self, observed: ObservedTarget) -> "TargetDemand":
        """The demand of one target. One that takes over the name of a target that still ends goes on with its demand."""
        target = TargetDemand(self, observed, self._targets.get(observed.name))
        self._targets[observed.name] = target
        return target

    def forget(self, target: "TargetDemand") -> None:
        """A target is gone."""
        if self._targets.get(target.name) is target:
            del self._targets[target.name]

    def states(self) -> Iterator[tuple[str, bytes]]:
        """(name, peaks) of each target, to be saved."""
        for name, target in list(self._targets.items()):
            if target.peaks:
                yield name, json.dumps({unit: peaks.rows() for unit, peaks in target.peaks.items()}).encode()

    def saved_peaks(self, name: str) -> dict[str, Peaks]:
        """Peaks that an earlier process saved, by unit."""
        consequence = f"target={name}: the saved peaks of its demand cannot be read, and start again"
        return self._saved.pop(name, _peaks, consequence) or {}


def _peaks(data: bytes) -> dict[str, Peaks]:
    return {unit: peaks_of(rows) for unit, rows in json.loads(data).items()}


class TargetDemand(TargetObserver):
    """Demand, capacity and headroom of one target.

    peaks: of each day, by unit: tokens if the engine counts them, else requests
    headroom: by unit (`requests`, `tokens`); shape: tokens of a request at the capacity over those of one of production
    exhaustion_unix_s: when the demand is forecast to reach the capacity; None without a forecast
    """

    def __init__(self, monitor: Headroom, observed: ObservedTarget, before: "TargetDemand | None") -> None:
        self.name = observed.name
        self._monitor, self._observed, self._registry = monitor, observed, monitor.registry
        self._clock = observed.target.clock
        self._url: str = observed.target.spec.url if before is None else before._url
        self._meter: DemandMeter = DemandMeter() if before is None else before._meter
        self.peaks: dict[str, Peaks] = monitor.saved_peaks(self.name) if before is None else before.peaks
        self._capacities: tuple[Capacity, ...] = () if before is None else before._capacities
        self._query: DemandQuery | None = None
        self._forecast_day = -1
        self._is_gone = False
        self.headroom: dict[str, FreeCapacity] = {}
        self.shape: float | None = None
        self.exhaustion_unix_s: float | None = None
        if before is not None:
            before._leave()
            if before._url != observed.target.spec.url:
                self._meter.forget_page()
        self.configured()

    @property
    def demand(self) -> Demand:
        """Demand of the users as known now."""
        return self._meter.demand

    def configured(self) -> None:
        if self._is_gone:
            return
        spec = self._observed.target.spec
        text = spec.sweep.demand_query if spec.sweep is not None else None
        if text != (self._query.text if self._query is not None else None):
            self._stop_query()
            self._meter.change_source(is_queried=text is not None)
            if text is not None:
                self._query = DemandQuery(self.name, text, lambda: self._monitor.prometheus_url, self.query_answered)
        if spec.url != self._url:
            self._url = spec.url
            self.show_capacity(())
        self._show()

    def page_read(self, reading: PageReading | None) -> None:
        if reading is None:
            self._meter.lose_page()
            self._show()
            return
        signals, unix_s = reading.signals, self._clock.unix_s()
        prompt, generated = signals.prompt_tokens_total, signals.generation_tokens_total
        tokens = None if prompt is None or generated is None else prompt + generated
        covered_s = self._meter.count(
            Totals(reading.at_ns / 1e9, reading.epoch, signals.requests_finished_total, tokens)
        )
        if covered_s is None:
            return
        if covered_s >= PEAK_S:
            self._take_peaks(unix_s)
        self._update(unix_s)

    def page_changed(self) -> None:
        self._meter.forget_page()
        self._show()

    def removed(self) -> None:
        self._leave()
        self._monitor.forget(self)

    def query_answered(self, requests_per_s: float | None) -> None:
        """The answer of `demand_query`; None: not known."""
        unix_s = self._clock.unix_s()
        if self._meter.answer(self._clock.now_ns() / 1e9, requests_per_s):
            if requests_per_s is not None:
                self._take_peaks(unix_s)
            self._update(unix_s)

    async def queried(self) -> float | None:
        """Requests per second as `demand_query` answers now; None without a query or an answer."""
        return await self._query.ask() if self._query is not None else None

    def sweep_began(self) -> None:
        """A sweep starts: the engine's counters no longer show its users' demand alone."""
        self._meter.begin_sweep()
        self._show()

    def sweep_ended(self) -> None:
        """The sweep sends nothing any more."""
        self._meter.end_sweep()

    def show_capacity(self, capacities: Sequence[Capacity]) -> None:
        """Show the answer of the last sweep that found a capacity; none: the capacity is not known."""
        if self._is_gone:
            return
        self._capacities = tuple(capacities)
        self._registry.keep(series.CAPACITY, (), self.name)
        self._registry.keep(series.CAPACITY_TOKENS, (), self.name)
        self._registry.keep(series.CAPACITY_SHAPE, (), self.name)
        self._registry.keep(series.HEADROOM, (), self.name)
        for capacity in capacities:
            for bound in BOUNDS:
                self._registry.show(series.CAPACITY, getattr(capacity, bound), self.name, capacity.slo, bound)
        self._show()
        self._forecast(self._clock.unix_s())

    def _leave(self) -> None:
        """The target is gone, or another one has its name: what was handed on is not changed here any more."""
        self._is_gone = True
        self._meter, self.peaks = DemandMeter(), {}
        self._stop_query()

    def _stop_query(self) -> None:
        if self._query is not None:
            self._query.stop()
            self._query = None

    def _take_peaks(self, unix_s: float) -> None:
        demand = self._meter.demand
        for unit, per_s in (("tokens", demand.tokens_per_s), ("requests", demand.requests_per_s)):
            if per_s is not None:
                self.peaks.setdefault(unit, Peaks()).take(unix_s, per_s)

    def _update(self, unix_s: float) -> None:
        self._show()
        if int(unix_s // DAY_S) != self._forecast_day:
            self._forecast(unix_s)

    def _forecast(self, unix_s: float) -> None:
        """Forecast once a day and after each sweep, in tokens where both capacity and peaks are known in them."""
        if self._is_gone:
            return
        self._forecast_day = int(unix_s // DAY_S)
        capacity, result = combined(self._capacities), None
        if capacity and capacity.lower is not None and capacity.estimate is not None and capacity.upper is not None:
            has_tokens = capacity.tokens_per_s and "tokens" in self.peaks and not self._meter.is_queried
            factor = capacity.tokens_per_s / capacity.estimate if capacity.tokens_per_s and has_tokens else 1.0
            peaks = self.peaks.get("tokens" if has_tokens else "requests")
            if peaks is not None:
                bounds = (capacity.lower * factor, capacity.estimate * factor, capacity.upper * factor)
                result = forecast(peaks.of_complete_days(unix_s), bounds, unix_s)
        self.exhaustion_unix_s = result.estimate_s if result else None
        times = (result.earliest_s, result.estimate_s, result.latest_s) if result else (None, None, None)
        for bound, at_s in zip(("earliest", "estimate", "latest"), times, strict=True):
            self._registry.show(series.CAPACITY_EXHAUSTION, at_s, self.name, bound)

    def _show(self) -> None:
        """Show demand and headroom. A request of production is not one of the sweep: the capacity in requests is scaled to it."""
        if self._is_gone:
            return
        demand, first, capacity = self.demand, binding(self._capacities), combined(self._capacities)
        self._registry.show(series.DEMAND, demand.requests_per_s, self.name)
        self._registry.show(series.DEMAND_TOKENS, demand.tokens_per_s, self.name)
        self.headroom, self.shape = {}, None
        if capacity is None or first is None or first.estimate is None:
            return
        per_request = first.tokens_per_s / first.estimate if first.tokens_per_s else None
        if per_request and demand.tokens_per_request:
            self.shape = per_request / demand.tokens_per_request
        self._registry.show(series.CAPACITY_SHAPE, self.shape, self.name)
        for bound in BOUNDS:
            tokens_per_s = _times(getattr(capacity, bound), per_request)
            self._registry.show(series.CAPACITY_TOKENS, tokens_per_s, self.name, bound)
        self._show_headroom("requests", demand.requests_per_s, capacity, self.shape or 1.0)
        self._show_headroom("tokens", demand.tokens_per_s, capacity, per_request)

    def _show_headroom(self, unit: str, demand_per_s: float | None, capacity: Capacity, factor: float | None) -> None:
        """factor: of `unit` per request of the capacity; None: not known."""
        free: dict[str, float | None] = {}
        for bound in BOUNDS:
            per_s = _times(getattr(capacity, bound), factor)
            free[bound] = headroom(demand_per_s, per_s) if demand_per_s is not None and per_s else None
            self._registry.show(series.HEADROOM, free[bound], self.name, unit, bound)
        self.headroom[unit] = FreeCapacity(**free)


def _times(value: float | None, factor: float | None) -> float | None:
    return None if value is None or factor is None else value * factor
