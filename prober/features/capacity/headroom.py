"""How much of a target's capacity is left: the last sweep's answer against what the engine does now."""

import json
import logging
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from prober.exposition.families import Registry, Series
from prober.features.capacity import series as capacity_series
from prober.features.capacity.forecast import Peaks, forecast, peaks_of
from prober.measure.engine_signals import PageReading
from prober.probing.observer import ObservedTarget, TargetObserver
from prober.results.capacity import Capacity, binding, headroom

WINDOW_S = 300.0
MIN_COVERED_S = 60.0  # a rate over less is not stated
MIN_COVERED_RATIO = 0.9  # of the span of a rate: the rest is where totals must not be subtracted, such as at a restart
PEAK_S = 240.0  # a demand over less is a burst, and no peak of a day
DAY_S = 86_400
BOUNDS = ("lower", "estimate", "upper")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Demand:
    """What the engine does, per second: requests finished, prompt and output tokens; None where it does not count them."""

    requests_per_s: float | None
    tokens_per_s: float | None

    @property
    def tokens_per_request(self) -> float | None:
        """Mean of production's requests."""
        return self.tokens_per_s / self.requests_per_s if self.tokens_per_s and self.requests_per_s else None


UNKNOWN = Demand(None, None)


@dataclass(frozen=True, slots=True)
class FreeCapacity:
    """Share of the capacity that is free, of its lower bound, its estimate and its upper bound; None where it is not known."""

    lower: float | None = None
    estimate: float | None = None
    upper: float | None = None


class _Reading(NamedTuple):
    """Totals of the engine's page at a moment. epoch: across two of them totals must not be subtracted."""

    at_s: float
    epoch: int
    requests: float | None
    tokens: float | None


class _Rate(NamedTuple):
    """A counter's rate, and the seconds of readings that it is over."""

    per_s: float
    covered_s: float


@dataclass(slots=True)
class _Load:
    """A target's demand. readings: of the last minutes.

    counted: the demand that the readings show; last: what was told, or the demand of before a sweep
    swept: a sweep adds to the counters now, so they are not read
    queried: demand is not counted, but told; told_s: when it last was
    settling: a sweep has ended since; settled_s: until then what is told may have its requests in it, and until then `last` is
    shown where the readings after the sweep are still too few
    peaks: of each day, in tokens where the engine counts them, else in requests; day: that of the last forecast
    shape: tokens of a request at the capacity over those of one of production; exhaustion_unix_s: as forecast; free: by unit
    """

    readings: deque[_Reading] = field(default_factory=deque)
    counted: Demand = UNKNOWN
    capacities: tuple[Capacity, ...] = ()
    swept: bool = False
    queried: bool = False
    told_s: float = -math.inf
    settling: bool = False
    settled_s: float = -math.inf
    last: Demand = UNKNOWN
    peaks: dict[str, Peaks] = field(default_factory=dict)
    day: int = -1
    shape: float | None = None
    exhaustion_unix_s: float | None = None
    free: dict[str, FreeCapacity] = field(default_factory=dict)

    def demand(self) -> Demand:
        """Of the last minutes; that of before a sweep while the sweep spoils it, and until it is known again."""
        return self.last if self.counted == UNKNOWN else self.counted

    def forget(self) -> None:
        """Nothing is known of the demand."""
        self.readings.clear()
        self.counted = self.last = UNKNOWN

    def take(self, reading: _Reading) -> float:
        """Add a reading and state the demand anew; seconds that it is over, 0 if it is not known.

        Of a page that counts requests and tokens both rates are known or none: requests alone would pass for requests of the
        sweep's size.
        """
        self.readings.append(reading)
        while self.readings[0].at_s < reading.at_s - WINDOW_S:
            self.readings.popleft()
        requests = _rate(self.readings, [each.requests for each in self.readings])
        tokens = _rate(self.readings, [each.tokens for each in self.readings])
        known = [rate for rate in (requests, tokens) if rate is not None]
        if not known or len(known) < sum(total is not None for total in (reading.requests, reading.tokens)):
            self.counted = UNKNOWN
            return 0.0
        self.counted = Demand(requests.per_s if requests else None, tokens.per_s if tokens else None)
        return min(rate.covered_s for rate in known)


def _rate(readings: Sequence[_Reading], totals: Sequence[float | None]) -> _Rate | None:
    """A counter's rate up to the newest reading, over the longest span that is covered well enough; None without one."""
    if totals[-1] is None:
        return None
    newest, later, total = readings[-1], readings[-1], totals[-1]
    found, grown, covered_s = None, 0.0, 0.0
    for reading, before in zip(reversed(readings), reversed(totals), strict=True):
        if before is None:
            continue
        if reading.epoch == later.epoch:
            if before > total:
                break  # a restart that was not recognised: older readings are another process's
            grown += total - before
            covered_s += later.at_s - reading.at_s
        if covered_s >= max(MIN_COVERED_S, MIN_COVERED_RATIO * (newest.at_s - reading.at_s)):
            found = _Rate(grown / covered_s, covered_s)
        later, total = reading, before
    return found


class Headroom:
    """Demand, capacity and headroom of all targets, as series."""

    def __init__(self, families: Registry, kept: Mapping[str, bytes] = MappingProxyType({})) -> None:
        self._families = families
        self._loads: dict[str, _Load] = {}
        self._kept = dict(kept)
        self._observers: dict[str, TargetDemand] = {}

    def observe(self, observed: ObservedTarget) -> "TargetDemand":
        """The demand of one target."""
        observer = self._observers[observed.name] = TargetDemand(self, observed)
        return observer

    def reading(self, name: str, reading: PageReading, unix_s: float) -> None:
        """The engine's page was read: newest demand, newest headroom. What a sweep adds is no demand of users."""
        load = self._load(name)
        if load.queried or load.swept:
            return
        at_s, signals = reading.at_ns / 1e9, reading.signals
        if load.settling:
            load.settling, load.settled_s = False, at_s + WINDOW_S
        prompt, generated = signals.prompt_tokens_total, signals.generation_tokens_total
        tokens = None if prompt is None or generated is None else prompt + generated
        covered_s = load.take(_Reading(at_s, reading.epoch, signals.requests_finished_total, tokens))
        if covered_s > 0 or at_s >= load.settled_s:
            load.last = UNKNOWN
        if covered_s >= PEAK_S:
            for unit, per_s in (("tokens", load.counted.tokens_per_s), ("requests", load.counted.requests_per_s)):
                if per_s is not None:
                    load.peaks.setdefault(unit, Peaks()).take(unix_s, per_s)
        self._now(name, load, unix_s)

    def page_lost(self, name: str) -> None:
        """The engine's page cannot be read: its demand is unknown until it can."""
        load = self._loads.get(name)
        if load is not None and not load.queried and not load.swept and load.demand() != UNKNOWN:
            load.counted = load.last = UNKNOWN
            self._show(name, load)

    def forget_demand(self, name: str) -> None:
        """Another page is read from now on, or none: what the last one counted is not the demand of this target."""
        load = self._loads.get(name)
        if load is not None and not load.queried:
            load.forget()
            self._show(name, load)

    def queried(self, name: str, *, on: bool) -> None:
        """Whether a target's demand is `told` from now on, and not counted by its engine."""
        if not on and name not in self._loads:
            return
        load = self._load(name)
        if load.queried != on:
            load.queried, load.told_s = on, -math.inf
            load.forget()
            self._show(name, load)

    def told(self, name: str, at_s: float, per_s: float | None, unix_s: float) -> None:
        """Demand in requests per second as somebody else counts it; None: not known, which after some minutes it is here too."""
        load = self._load(name)
        if load.settling:
            load.settling, load.settled_s = False, at_s + WINDOW_S
        if load.swept or at_s < load.settled_s:
            return
        if per_s is not None:
            load.last, load.told_s = Demand(per_s, None), at_s
            load.peaks.setdefault("requests", Peaks()).take(unix_s, per_s)
        elif at_s - load.told_s > WINDOW_S:
            load.last = UNKNOWN
        self._now(name, load, unix_s)

    def sweeping(self, name: str, *, begins: bool) -> None:
        """A sweep of the target begins or has ended: what the engine counts meanwhile is not its users'."""
        if not begins and name not in self._loads:
            return  # it was removed meanwhile
        load = self._load(name)
        load.last, load.counted = load.demand(), UNKNOWN
        load.swept, load.settling = begins, not begins
        load.readings.clear()

    def found(self, name: str, capacities: Sequence[Capacity], unix_s: float) -> None:
        """A sweep has found these; they stand until another one does."""
        load = self._load(name)
        load.capacities = tuple(capacities)
        for declared in (
            capacity_series.CAPACITY,
            capacity_series.CAPACITY_TOKENS,
            capacity_series.CAPACITY_SHAPE,
            capacity_series.HEADROOM,
        ):
            children = self._families[declared.name].children
            for labels in [labels for labels in children if labels[0] == name]:
                del children[labels]
        for each in capacities:
            for bound in BOUNDS:
                self._set(capacity_series.CAPACITY, getattr(each, bound), name, each.slo, bound)
        self._show(name, load)
        self._foresee(name, load, unix_s)

    def demand(self, name: str) -> Demand:
        """What is known of a target's demand now."""
        load = self._loads.get(name)
        return load.demand() if load else UNKNOWN

    def free(self, name: str, unit: str) -> FreeCapacity:
        """The headroom of a target in `requests` or `tokens`."""
        load = self._loads.get(name)
        return load.free.get(unit, FreeCapacity()) if load else FreeCapacity()

    def shape(self, name: str) -> float | None:
        """Tokens of a request at the capacity over those of a request of production; None: not known."""
        load = self._loads.get(name)
        return load.shape if load else None

    def exhaustion_unix_s(self, name: str) -> float | None:
        """When demand is expected to reach the capacity; None where that is not foreseen."""
        load = self._loads.get(name)
        return load.exhaustion_unix_s if load else None

    def removed(self, name: str, observer: "TargetDemand") -> None:
        """A target is gone; one that took its name over goes on."""
        if self._observers.get(name) is observer:
            del self._observers[name]
            self.remove(name)

    def remove(self, name: str) -> None:
        """Forget a target."""
        self._loads.pop(name, None)

    def states(self) -> Iterator[tuple[str, bytes]]:
        """The peaks of each target, which are weeks of its past."""
        for name, load in list(self._loads.items()):
            if load.peaks:
                yield name, json.dumps({unit: peaks.rows() for unit, peaks in load.peaks.items()}).encode()

    def _load(self, name: str) -> _Load:
        load = self._loads.get(name)
        if load is None:
            load = self._loads[name] = _Load()
            try:
                kept = json.loads(self._kept.pop(name, b"{}"))
                load.peaks = {unit: peaks_of(rows) for unit, rows in kept.items()}
            except (ValueError, AttributeError, TypeError) as problem:
                log.error("target=%s: the kept peaks of its demand are begun anew: %s", name, problem)
        return load

    def _now(self, name: str, load: _Load, unix_s: float) -> None:
        self._show(name, load)
        if int(unix_s // DAY_S) != load.day:
            self._foresee(name, load, unix_s)

    def _foresee(self, name: str, load: _Load, unix_s: float) -> None:
        """When demand reaches the capacity, once a day and after each sweep: in tokens where both are known in them."""
        load.day = int(unix_s // DAY_S)
        least, found = binding(load.capacities), None
        if least is not None and least.estimate is not None and least.lower is not None and least.upper is not None:
            counted = least.tokens_per_s and "tokens" in load.peaks and not load.queried
            by = least.tokens_per_s / least.estimate if least.tokens_per_s and counted else 1.0
            peaks = load.peaks.get("tokens" if counted else "requests")
            if peaks is not None:
                bounds = (least.lower * by, least.estimate * by, least.upper * by)
                found = forecast(peaks.whole(unix_s), bounds, unix_s)
        load.exhaustion_unix_s = found.estimate_s if found else None
        times = (found.earliest_s, found.estimate_s, found.latest_s) if found else (None, None, None)
        for bound, at_s in zip(("earliest", "estimate", "latest"), times, strict=True):
            self._set(capacity_series.CAPACITY_EXHAUSTION, at_s, name, bound)

    def _show(self, name: str, load: _Load) -> None:
        demand = load.demand()
        self._set(capacity_series.DEMAND, demand.requests_per_s, name)
        self._set(capacity_series.DEMAND_TOKENS, demand.tokens_per_s, name)
        load.free, load.shape = {}, None
        least = binding(load.capacities)
        if least is None or least.estimate is None:
            return
        shape = None
        if least.tokens_per_s and demand.tokens_per_request:
            # A production request is not the sweep's: its own rate at the same tokens is what the target can carry of it.
            shape = least.tokens_per_s / least.estimate / demand.tokens_per_request
        load.shape = shape
        self._set(capacity_series.CAPACITY_SHAPE, shape, name)
        tokens = scaled(least, least.tokens_per_s / least.estimate) if least.tokens_per_s else None
        for bound in BOUNDS:
            tokens_per_s = getattr(tokens, bound) if tokens else None
            self._set(capacity_series.CAPACITY_TOKENS, tokens_per_s, name, bound)
            requests_per_s = getattr(scaled(least, shape or 1.0), bound)
            for unit, load_per_s, capacity_per_s in (
                ("requests", demand.requests_per_s, requests_per_s),
                ("tokens", demand.tokens_per_s, tokens_per_s),
            ):
                free = headroom(load_per_s, capacity_per_s) if load_per_s is not None and capacity_per_s else None
                self._set(capacity_series.HEADROOM, free, name, unit, bound)
                load.free[unit] = replace(load.free.get(unit, FreeCapacity()), **{bound: free})

    def _set(self, declared: Series, value: float | None, *labels: str) -> None:
        if value is None:
            self._families[declared.name].children.pop(labels, None)
        else:
            self._families[declared.name].value(*labels).value = value


class TargetDemand(TargetObserver):
    """Hears of one target for `Headroom`."""

    def __init__(self, headroom: Headroom, observed: ObservedTarget) -> None:
        self._headroom, self._name, self._clock = headroom, observed.name, observed.target.clock

    def page_read(self, reading: PageReading | None) -> None:
        if reading is None:
            self._headroom.page_lost(self._name)
        else:
            self._headroom.reading(self._name, reading, self._clock.unix_s())

    def page_changed(self) -> None:
        self._headroom.forget_demand(self._name)

    def removed(self) -> None:
        self._headroom.removed(self._name, self)


def scaled(capacity: Capacity, by: float) -> Capacity:
    """The same in another unit."""
    times = {bound: value * by for bound in BOUNDS if (value := getattr(capacity, bound)) is not None}
    return replace(capacity, **times)
