"""How much of a target's capacity is left: the last sweep's answer against what the engine does now."""

import json
import logging
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from prober import series
from prober.analysis.capacity import Capacity, binding, headroom
from prober.analysis.forecast import Peaks, forecast, peaks_of
from prober.exposition.families import Series
from prober.measure.signals import Signals
from prober.metrics import Registry

WINDOW_S = 300.0
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


@dataclass(slots=True)
class _Load:
    """Counters of the last minutes: (seconds, requests, tokens). swept: a sweep adds to them now, so they are not taken.

    queried: demand is not counted, but told; told_s: when it last was; settling: a sweep has ended since, and what is told may
    have its requests in it until settled_s
    peaks: of each day, in tokens where the engine counts them, else in requests; day: that of the last forecast
    """

    counts: deque[tuple[float, float | None, float | None]] = field(default_factory=deque)
    capacities: tuple[Capacity, ...] = ()
    swept: bool = False
    queried: bool = False
    told_s: float = -math.inf
    settling: bool = False
    settled_s: float = -math.inf
    last: Demand = Demand(None, None)
    peaks: dict[str, Peaks] = field(default_factory=dict)
    day: int = -1

    def demand(self) -> Demand:
        """Of the last minutes; the last that was known, while a sweep spoils it or they are too few."""
        now = Demand(self._per_s(1), self._per_s(2))
        if now.requests_per_s is not None or now.tokens_per_s is not None:
            self.last = now
        return self.last

    def _per_s(self, place: int) -> float | None:
        known = [(each[0], value) for each in self.counts if (value := each[place]) is not None]
        if len(known) < 2 or known[-1][0] <= known[0][0]:
            return None
        return max(0.0, known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0])


class Headroom:
    """Demand, capacity and headroom of all targets, as series."""

    def __init__(self, families: Registry, kept: Mapping[str, bytes] = MappingProxyType({})) -> None:
        self._families = families
        self._loads: dict[str, _Load] = {}
        self._kept = dict(kept)

    def reading(self, name: str, at_s: float, signals: Signals, unix_s: float) -> None:
        """The engine's page was read: newest demand, newest headroom. What a sweep adds is nobody's demand."""
        load = self._load(name)
        if load.swept or load.queried:
            return
        prompt, generated = signals.prompt_tokens_total, signals.generation_tokens_total
        tokens = None if prompt is None or generated is None else prompt + generated
        load.counts.append((at_s, signals.requests_finished_total, tokens))
        while load.counts[0][0] < at_s - WINDOW_S:
            load.counts.popleft()
        if at_s - load.counts[0][0] >= PEAK_S:
            demand = load.demand()
            for unit, per_s in (("tokens", demand.tokens_per_s), ("requests", demand.requests_per_s)):
                if per_s is not None:
                    load.peaks.setdefault(unit, Peaks()).take(unix_s, per_s)
        self._now(name, load, unix_s)

    def queried(self, name: str, *, on: bool) -> None:
        """Whether a target's demand is `told` from now on, and not counted by its engine."""
        if not on and name not in self._loads:
            return
        load = self._load(name)
        if load.queried != on:
            load.queried, load.last, load.told_s = on, Demand(None, None), -math.inf
            load.counts.clear()

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
            load.last = Demand(None, None)
        self._now(name, load, unix_s)

    def sweeping(self, name: str, *, begins: bool) -> None:
        """A sweep of the target begins or has ended: what the engine counts meanwhile is not its users'."""
        load = self._load(name)
        load.demand()
        load.swept, load.settling = begins, not begins
        load.counts.clear()

    def found(self, name: str, capacities: Sequence[Capacity], unix_s: float) -> None:
        """A sweep has found these; they stand until another one does."""
        load = self._load(name)
        load.capacities = tuple(capacities)
        for declared in (series.CAPACITY, series.CAPACITY_TOKENS, series.CAPACITY_SHAPE, series.HEADROOM):
            children = self._families[declared.name].children
            for labels in [labels for labels in children if labels[0] == name]:
                del children[labels]
        for each in capacities:
            for bound in BOUNDS:
                self._set(series.CAPACITY, getattr(each, bound), name, each.slo, bound)
        self._show(name, load)
        self._foresee(name, load, unix_s)

    def demand(self, name: str) -> Demand:
        """What is known of a target's demand now."""
        load = self._loads.get(name)
        return load.demand() if load else Demand(None, None)

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
        times = (found.earliest_s, found.estimate_s, found.latest_s) if found else (None, None, None)
        for bound, at_s in zip(("earliest", "estimate", "latest"), times, strict=True):
            self._set(series.CAPACITY_EXHAUSTION, at_s, name, bound)

    def _show(self, name: str, load: _Load) -> None:
        demand = load.demand()
        self._set(series.DEMAND, demand.requests_per_s, name)
        self._set(series.DEMAND_TOKENS, demand.tokens_per_s, name)
        least = binding(load.capacities)
        if least is None or least.estimate is None:
            return
        shape = None
        if least.tokens_per_s and demand.tokens_per_request:
            # A production request is not the sweep's: its own rate at the same tokens is what the target can carry of it.
            shape = least.tokens_per_s / least.estimate / demand.tokens_per_request
        self._set(series.CAPACITY_SHAPE, shape, name)
        tokens = scaled(least, least.tokens_per_s / least.estimate) if least.tokens_per_s else None
        for bound in BOUNDS:
            tokens_per_s = getattr(tokens, bound) if tokens else None
            self._set(series.CAPACITY_TOKENS, tokens_per_s, name, bound)
            requests_per_s = getattr(scaled(least, shape or 1.0), bound)
            for unit, load_per_s, capacity_per_s in (
                ("requests", demand.requests_per_s, requests_per_s),
                ("tokens", demand.tokens_per_s, tokens_per_s),
            ):
                free = headroom(load_per_s, capacity_per_s) if load_per_s is not None and capacity_per_s else None
                self._set(series.HEADROOM, free, name, unit, bound)

    def _set(self, declared: Series, value: float | None, *labels: str) -> None:
        if value is None:
            self._families[declared.name].children.pop(labels, None)
        else:
            self._families[declared.name].value(*labels).value = value


def scaled(capacity: Capacity, by: float) -> Capacity:
    """The same in another unit."""
    times = {bound: value * by for bound in BOUNDS if (value := getattr(capacity, bound)) is not None}
    return replace(capacity, **times)
