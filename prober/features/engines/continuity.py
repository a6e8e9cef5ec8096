"""Successive readings of one page as one story, whatever restarts in between."""

from collections import deque
from collections.abc import Mapping
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
)

STEADY = 10  # readings of one line before a refused page is believed again
START_TOLERANCE_S = 1.0  # between two start times of one process: some are computed from an uptime
FALLS, WITHIN = 3, 20  # so many falls in so many readings are no restarts; at one reading in 5 s, three in 100 s


@dataclass(frozen=True, slots=True)
class ContinuousReading:
    """One reading as part of the story.

    signals: with counters and histograms that never fall; None while the page is refused, and `refused` says why
    restarted: the engine was restarted, as two readings agree; changes: since the last reading that was believed
    """

    signals: EngineSignals | None
    restarted: bool = False
    changes: tuple[EngineChange, ...] = ()
    refused: str | None = None


class EngineIdentity:
    """Engine, version, model, flags and driver as last read; a fact that differs is a change. `facts` can be saved."""

    def __init__(self, before: Mapping[str, str] | None = None) -> None:
        self.facts = dict(before or {})

    def update(self, facts: Mapping[str, str]) -> tuple[EngineChange, ...]:
        """The facts that changed. A fact that appears for the first time, or is missing now, has not changed."""
        changes = tuple(
            EngineChange(name, self.facts[name], new) for name, new in facts.items() if self.facts.get(name, new) != new
        )
        self.facts |= facts
        return changes


class _Step(Enum):
    ON = auto()
    FELL = auto()
    BACK = auto()


class Continuity:
    """Successive readings of one page into one story. Nothing here is timed: a missed reading does no harm.

    A counter that falls means a restart, or another engine behind the same address. So the reading at which it falls adds
    nothing; if the next one goes on from there it was a restart, and what was counted before is kept as an offset. If start
    times go back, or counters fall again and again, the page is a different engine's each time and is refused until it has been
    one engine's for `STEADY` readings; then counting goes on from where it stood. `identity`: what an
    earlier process or an earlier reader of the page knew.

    epoch: changes with each reading whose totals must not be subtracted from: the difference to the reading before it is not what
    the engine did in between (counters fell or were held level, ranks came or went, or the process may be another one)
    """

    def __init__(self, identity: EngineIdentity | None = None, epoch: int = 0) -> None:
        self.epoch = epoch
        self._gap = False  # readings are missing before the next one
        self.identity = identity or EngineIdentity()
        self._raw: EngineSignals | None = None  # the last reading, believed or not
        self._believed: EngineSignals | None = None  # the last one that was
        self._in_doubt = False  # counters fell at the last reading
        self._falls: deque[bool] = deque(maxlen=WITHIN)
        self._refused: str | None = None
        self._steady = 0
        self._offsets: dict[str, float | EngineHistogram] = {}
        self._totals: dict[str, Any] = {}  # by name of the signal, float or Histogram

    def gap(self) -> None:
        """Readings are missing before the next one: its counters continue the last ones only if its start time says so."""
        self._gap = True

    def take(self, now: EngineSignals) -> ContinuousReading:
        """The next reading."""
        before = self._raw
        self._raw = now if before is None else _with_what_went(now, before)
        if before is None:
            return self._go_on(now)
        step = _step(before, now)
        gap, self._gap = self._gap, False
        unsure = gap and not _is_same_process(before, now)
        if unsure or self._in_doubt or step is not _Step.ON or _is_regrouped(before, now):
            self.epoch += 1
        doubted, self._in_doubt = self._in_doubt, step is not _Step.ON
        returned = doubted and step is _Step.ON and self._returned(now)
        self._falls.append(step is not _Step.ON or returned)
        if step is _Step.BACK:
            self._refuse("the start time of its process goes back")
        elif sum(self._falls) >= FALLS:
            self._refuse(f"its counters fell {sum(self._falls)} times in {len(self._falls)} readings")
        if self._refused is not None:
            return self._wait(now, step)
        if step is _Step.FELL:
            return ContinuousReading(replace(now, **self._totals))
        if doubted and not returned:
            self._offsets = dict(self._totals)
            return replace(self._go_on(now), restarted=True)
        return self._go_on(now)

    def _returned(self, now: EngineSignals) -> bool:
        """Whether a reading after a fall is again where it was before it: two engines, not one that restarted."""
        believed = self._believed
        return believed is not None and _step(believed, now) is _Step.ON

    def _refuse(self, sign: str) -> None:
        self._falls.clear()
        self._steady = 0
        self._refused = (
            f"the page is a different engine's each time: {sign}; scrape each engine by its own address, "
            "not through a service or gateway that picks one (or the engine restarts every few seconds)"
        )

    def _wait(self, now: EngineSignals, step: _Step) -> ContinuousReading:
        self._steady = self._steady + 1 if step is _Step.ON else 0
        if self._steady < STEADY:
            return ContinuousReading(None, refused=self._refused)
        self._refused = None
        for name, raw in _counting(now).items():
            if name in self._totals:
                self._offsets[name] = _plus(self._totals[name], raw, -1.0)
        return self._go_on(now)

    def _go_on(self, now: EngineSignals) -> ContinuousReading:
        changes = self.identity.update(_telling(now.info))
        self._believed = self._raw
        totals: dict[str, Any] = {}
        for name, raw in _counting(now).items():
            last = self._totals.get(name)
            total = _plus(self._offsets.get(name), raw)
            if last is not None and _level(total) < _level(last) and _alike(total, last):
                # One counter of many fell, or a rank left: what it had counted was not lost.
                self._offsets[name] = _plus(last, raw, -1.0)
                total = last
                self.epoch += 1
            totals[name] = self._totals[name] = total
        return ContinuousReading(replace(now, **totals), changes=changes)


def _telling(info: EngineInfo) -> dict[str, str]:
    named = {"engine": info.engine, "version": info.version, "model": info.model}
    return {what: text for what, text in named.items() if text is not None} | dict(info.flags)


def _counting(signals: EngineSignals) -> dict[str, float | EngineHistogram]:
    found = {name: getattr(signals, name) for name in (*COUNTER_SIGNALS, *HISTOGRAM_SIGNALS)}
    return {name: value for name, value in found.items() if value is not None}


def _with_what_went(now: EngineSignals, before: EngineSignals) -> EngineSignals:
    """A reading with the last raw values of counters that are not on the page now: a lazy engine's after its restart."""
    there: dict[str, Any] = _counting(before) | _counting(now)
    return replace(now, **there)


def _level(value: float | EngineHistogram) -> float:
    return value.counts[-1] if isinstance(value, EngineHistogram) else value


def _alike(one: float | EngineHistogram, other: float | EngineHistogram) -> bool:
    """Whether they can be added: histograms only with the same bounds."""
    if isinstance(one, EngineHistogram) and isinstance(other, EngineHistogram):
        return one.bounds == other.bounds
    return not isinstance(one, EngineHistogram) and not isinstance(other, EngineHistogram)


def _plus(
    base: float | EngineHistogram | None, more: float | EngineHistogram, sign: float = 1.0
) -> float | EngineHistogram:
    """base + sign × more; `more` alone if they cannot be added: a histogram with new bounds starts anew."""
    if isinstance(base, EngineHistogram) and isinstance(more, EngineHistogram) and base.bounds == more.bounds:
        counts = tuple(a + sign * b for a, b in zip(base.counts, more.counts, strict=True))
        total = base.sum + sign * more.sum if base.sum is not None and more.sum is not None else None
        return EngineHistogram(base.bounds, counts, total)
    if isinstance(base, float | int) and not isinstance(more, EngineHistogram):
        return base + sign * more
    return more


def _is_same_process(before: EngineSignals, now: EngineSignals) -> bool:
    """Whether both readings tell the same start time. An uptime alone may be that of a later process."""
    old, new = before.start_time_seconds, now.start_time_seconds
    return old is not None and new is not None and abs(new - old) <= START_TOLERANCE_S


def _is_regrouped(before: EngineSignals, now: EngineSignals) -> bool:
    """Whether other ranks or another engine were counted: a rank that joins brings all that it has counted so far."""
    return (before.ranks, before.info.engine) != (now.ranks, now.info.engine)


def _step(before: EngineSignals, now: EngineSignals) -> _Step:
    """What happened between two readings, by start time and uptime where they are told, else by the counters."""
    old, new = before.start_time_seconds, now.start_time_seconds
    if old is not None and new is not None:
        if abs(new - old) <= START_TOLERANCE_S:
            return _Step.ON
        return _Step.FELL if new > old else _Step.BACK
    if before.uptime_seconds is not None and now.uptime_seconds is not None:
        return _Step.FELL if now.uptime_seconds < before.uptime_seconds else _Step.ON
    if (now.ranks or 0) < (before.ranks or 0):
        return _Step.ON  # a rank or replica left, and took its counts along
    levels = _counting(now)
    pairs = [(_level(value), _level(levels[name])) for name, value in _counting(before).items() if name in levels]
    counted = [(was, is_) for was, is_ in pairs if was > 0.0]
    fell = sum(is_ < was for was, is_ in counted)
    return _Step.FELL if fell * 2 > len(counted) else _Step.ON
