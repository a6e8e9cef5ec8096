"""Continuous totals from successive readings of one metrics page, across restarts of the engine and of the prober."""

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

from prober.measure.engine_signals import (
    COUNTER_SIGNALS,
    HISTOGRAM_SIGNALS,
    EngineChange,
    EngineHistogram,
    EngineInfo,
    EngineSignals,
    SteadySize,
)

_OF_PROCESS = ("ranks", "start_time_seconds", "uptime_seconds")
STEADY_READINGS = 10  # of one process, after which a refused page is accepted
START_TOLERANCE_S = 1.0  # between start times of one process: some are computed from an uptime
MAX_FALLS, FALL_WINDOW_READINGS = 3, 20  # with a reading every 5 s: three falls in 100 s are not restarts

Amount = float | EngineHistogram


@dataclass(frozen=True, slots=True)
class CounterState:
    """State of the counters of one page.

    read: the last accepted reading: its counters, and the fields that identify the process
    offsets: amounts to add to the counters of the page, by signal
    """

    read: EngineSignals
    offsets: Mapping[str, Amount]


@dataclass(frozen=True, slots=True)
class ContinuousReading:
    """A reading with continuous totals.

    signals: the reading with counters and histograms that never fall; None while the page is refused.
    restarted: whether the engine was restarted, confirmed by two readings.
    changes: since the last accepted reading.
    refused: why the page is refused; None while it is accepted.
    """

    signals: EngineSignals | None
    restarted: bool = False
    changes: tuple[EngineChange, ...] = ()
    refused: str | None = None


class EngineIdentity:
    """The engine's identity as last read. facts: engine, version, model, flags and driver; size: both are to be saved"""

    def __init__(self, before: Mapping[str, str] | None = None, size: Mapping[str, float] | None = None) -> None:
        self.facts, self.size = dict(before or {}), SteadySize(size or {})

    def update(self, facts: Mapping[str, str]) -> tuple[EngineChange, ...]:
        """Store facts and return the changes. A fact that appears or disappears is no change."""
        changes = tuple(
            EngineChange(name, self.facts[name], new) for name, new in facts.items() if self.facts.get(name, new) != new
        )
        self.facts |= facts
        return changes


class _Step(Enum):
    """Kind of change between two readings, such as a restart."""

    CONTINUED = auto()
    FELL = auto()  # counters fell or a later process answered: a restart, or another engine
    WENT_BACK = auto()  # an earlier process answered: certainly another engine


class Continuity:
    """Continuous totals of one page. Only the order of readings matters, not their times.

    A counter that falls means a restart, or another engine behind the same address. That reading adds nothing to the totals. If the
    next reading continues from it, it was a restart, and the earlier total becomes an offset. If start times go back or
    counters fall repeatedly, several engines answer in turn, and the page is refused until `STEADY_READINGS` readings come from one
    process; then the totals continue from their last values.

    identity: facts known from an earlier process or an earlier reader of the page.
    before: state of the page that an earlier prober saved.
    epoch: changes with each reading whose difference to the previous totals is not work of the engine: counters fell or were held,
    ranks came or went, or another process may have answered.
    """

    def __init__(
        self, identity: EngineIdentity | None = None, epoch: int = 0, before: CounterState | None = None
    ) -> None:
        self.epoch = epoch
        self._gap = before is not None  # readings are missing before the next one
        self.identity = identity or EngineIdentity()
        self._raw: EngineSignals | None = before.read if before else None  # last reading, accepted or not
        self._accepted: EngineSignals | None = self._raw  # last accepted reading
        self._has_fallen = False  # at the last reading
        self._falls: deque[bool] = deque(maxlen=FALL_WINDOW_READINGS)
        self._refused: str | None = None
        self._steady = 0
        self._offsets: dict[str, Amount] = dict(before.offsets) if before else {}
        self._totals: dict[str, Any] = {}  # by name of the signal, float or Histogram
        if before is not None:
            self._totals = {name: _plus(self._offsets.get(name), raw) for name, raw in _counters(before.read).items()}

    @property
    def has_readings(self) -> bool:
        """True if this process, or the one that saved the state, has read the page."""
        return self._accepted is not None

    def state(self, shown: Collection[str]) -> CounterState | None:
        """The counters to save; None before the first reading. shown: names of the histograms to include"""
        if self._accepted is None:
            return None
        saved = {*COUNTER_SIGNALS, *shown}
        counters: dict[str, Any] = {name: amount for name, amount in _counters(self._accepted).items() if name in saved}
        process: dict[str, Any] = {name: getattr(self._accepted, name) for name in _OF_PROCESS}
        offsets = {name: amount for name, amount in self._offsets.items() if name in saved}
        return CounterState(EngineSignals(EngineInfo(self._accepted.info.engine), **process, **counters), offsets)

    def of_other_page(self) -> "Continuity":
        """Copy for another page of the target: totals continue from their last values, whatever that page counts."""
        other = Continuity(self.identity, self.epoch + 1)
        other._totals = dict(self._totals)
        return other

    def gap(self) -> None:
        """Record that readings are missing. The next one then continues the last one only with an equal start time."""
        self._gap = True

    def take(self, now: EngineSignals) -> ContinuousReading:
        """Add the next reading of the page, and return it with continuous totals."""
        before = self._raw
        self._raw = now
        if before is None:
            self._keep_totals(now)
            return self._continue(now)
        # Counters that the page lacks now keep their last values, as after a restart of a lazy engine.
        present: dict[str, Any] = _counters(before) | _counters(now)
        self._raw = replace(now, **present)
        step = _step(before, now)
        gap, self._gap = self._gap, False
        may_be_other = gap and not _is_same_process(before, now)
        # A joining rank brings its earlier counts.
        is_regrouped = (before.ranks, before.info.engine) != (now.ranks, now.info.engine)
        if may_be_other or self._has_fallen or step is not _Step.CONTINUED or is_regrouped:
            self.epoch += 1
        had_fallen, self._has_fallen = self._has_fallen, step is not _Step.CONTINUED
        # A reading that continues the one before a fall proves two engines, not a restart.
        returned = (
            had_fallen
            and step is _Step.CONTINUED
            and self._accepted is not None
            and _step(self._accepted, now) is _Step.CONTINUED
        )
        self._falls.append(step is not _Step.CONTINUED or returned)
        if step is _Step.WENT_BACK:
            self._refuse("the start time of its process goes back")
        elif sum(self._falls) >= MAX_FALLS:
            self._refuse(f"its counters fell {sum(self._falls)} times in {len(self._falls)} readings")
        if self._refused is not None:
            return self._wait(now, step)
        if step is _Step.FELL:
            return ContinuousReading(replace(now, **self._totals), changes=self._resized(now))
        if had_fallen and not returned:
            self._offsets = dict(self._totals)
            return replace(self._continue(now), restarted=True)
        return self._continue(now)

    def _refuse(self, sign: str) -> None:
        self._falls.clear()
        self._steady = 0
        self._refused = (
            f"several engines answer in turn at this address: {sign}; read the page of each engine at its own address, "
            "not through a service or gateway (or the engine restarts every few seconds)"
        )

    def _wait(self, now: EngineSignals, step: _Step) -> ContinuousReading:
        self._steady = self._steady + 1 if step is _Step.CONTINUED else 0
        if self._steady < STEADY_READINGS:
            return ContinuousReading(None, refused=self._refused)
        self._refused = None
        self._keep_totals(now)
        return self._continue(now)

    def _keep_totals(self, now: EngineSignals) -> None:
        """Set offsets so that the totals continue from their last values, although another process counted this reading."""
        for name, raw in _counters(now).items():
            last = self._totals.get(name)
            if last is not None and _can_be_added(last, raw):
                self._offsets[name] = _plus(last, raw, -1.0)
            else:
                self._offsets.pop(name, None)

    def _resized(self, now: EngineSignals) -> tuple[EngineChange, ...]:
        change = self.identity.size.take(now.size)
        return () if change is None else (change,)

    def _continue(self, now: EngineSignals) -> ContinuousReading:
        known = {"engine": now.info.engine, "version": now.info.version, "model": now.info.model}
        facts = {name: text for name, text in known.items() if text is not None} | dict(now.info.flags)
        changes = self.identity.update(facts) + self._resized(now)
        self._accepted = self._raw
        totals: dict[str, Any] = {}
        for name, raw in _counters(now).items():
            last = self._totals.get(name)
            total = _plus(self._offsets.get(name), raw)
            if last is not None and _level(total) < _level(last) and _can_be_added(total, last):
                # One of several counters fell, or a rank left: the total keeps its earlier counts.
                self._offsets[name] = _plus(last, raw, -1.0)
                total = last
                self.epoch += 1
            totals[name] = self._totals[name] = total
        return ContinuousReading(replace(now, **totals), changes=changes)


def _counters(signals: EngineSignals) -> dict[str, Amount]:
    values = {name: getattr(signals, name) for name in (*COUNTER_SIGNALS, *HISTOGRAM_SIGNALS)}
    return {name: value for name, value in values.items() if value is not None}


def _level(value: Amount) -> float:
    return value.counts[-1] if isinstance(value, EngineHistogram) else value


def _can_be_added(one: Amount, other: Amount) -> bool:
    """True if both are numbers, or both are histograms with the same bounds."""
    if isinstance(one, EngineHistogram) and isinstance(other, EngineHistogram):
        return one.bounds == other.bounds
    return not isinstance(one, EngineHistogram) and not isinstance(other, EngineHistogram)


def _plus(base: Amount | None, more: Amount, sign: float = 1.0) -> Amount:
    """base + sign × more; `more` alone if they cannot be added, such as histograms with different bounds."""
    if isinstance(base, EngineHistogram) and isinstance(more, EngineHistogram) and base.bounds == more.bounds:
        counts = tuple(a + sign * b for a, b in zip(base.counts, more.counts, strict=True))
        total = base.sum + sign * more.sum if base.sum is not None and more.sum is not None else None
        return EngineHistogram(base.bounds, counts, total)
    if isinstance(base, float | int) and not isinstance(more, EngineHistogram):
        return base + sign * more
    return more


def _is_same_process(before: EngineSignals, now: EngineSignals) -> bool:
    """True if both readings have the same start time. Equal uptimes prove nothing."""
    old, new = before.start_time_seconds, now.start_time_seconds
    return old is not None and new is not None and abs(new - old) <= START_TOLERANCE_S


def _step(before: EngineSignals, now: EngineSignals) -> _Step:
    """Classify the change between two readings by start time or uptime, or by the counters if the page has neither."""
    old, new = before.start_time_seconds, now.start_time_seconds
    if old is not None and new is not None:
        if abs(new - old) <= START_TOLERANCE_S:
            return _Step.CONTINUED
        return _Step.FELL if new > old else _Step.WENT_BACK
    if before.uptime_seconds is not None and now.uptime_seconds is not None:
        return _Step.FELL if now.uptime_seconds < before.uptime_seconds else _Step.CONTINUED
    if (now.ranks or 0) < (before.ranks or 0):
        return _Step.CONTINUED  # a rank or replica left, with its counts
    levels = _counters(now)
    pairs = [(_level(value), _level(levels[name])) for name, value in _counters(before).items() if name in levels]
    positive = [(old_level, level) for old_level, level in pairs if old_level > 0.0]
    fell = sum(level < old_level for old_level, level in positive)
    return _Step.FELL if fell * 2 > len(positive) else _Step.CONTINUED
