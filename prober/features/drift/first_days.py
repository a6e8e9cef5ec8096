"""Detects unusual latencies before a baseline over days is learned: compares the latest median with medians of the last two hours.

This is no drift: its rate of false alarms is not stated, and it raises no alert. It follows a rise over hours, as a day has busy hours.
A baseline that knows the load judges by it and does not need this.
"""

import math
from statistics import median
from typing import NamedTuple

from prober.features.drift.state import Drift, Event

SAMPLES = 40  # per median: over three minutes at 0.2/s, so that a burst of a minute is not unusual
STRIDE_S = 5.0  # mean time between them at higher rates
BLOCKS = 36  # earlier medians: two hours
MIN_RISE = math.log(1.5)
SPREADS = (
    4.0  # of usual medians, by which the median is higher; the largest tenth of independent ones is 1.3 sd away, 5 sd
)
MAX_S = 3 * 3_600.0  # then it counts as usual, and is learned


class Level(NamedTuple):
    """Logs of the usual median, and of the limit above which a latency is unusual."""

    usual: float
    limit: float


def judge(state: Drift, unix_s: float, log: float, *, linked: bool) -> Event | None:
    """Add a sample. Returns the event that begins or ends an unusual time (`Drift.unusual_since_s`)."""
    if state.settled or state.covers_days or (state.baseline is not None and state.baseline.factor == "load"):
        if state.latest:
            _forget(state)
        return None
    state.passed += 1
    taken, is_left_out = divmod(state.passed, max(1, round(STRIDE_S * state.settings.rate_per_s)))
    if is_left_out:
        return None
    state.latest = [*(state.latest if linked else ()), round(log, 4)][-SAMPLES:]
    if len(state.latest) == SAMPLES:
        present, level = median(state.latest), level_of(state)
        if state.unusual_since_s is not None:
            return _end(state, unix_s, present, level)
        if state.alarm is not None:
            return None
        if present > level.limit:
            return _begin(state, unix_s, level)
        if not taken % SAMPLES:
            state.medians = [*state.medians, present][-BLOCKS:]
    return None


def _begin(state: Drift, unix_s: float, level: Level) -> Event:
    above = sum(sample > (level.usual + level.limit) / 2 for sample in state.latest)
    state.unusual_since_s = unix_s - above * max(STRIDE_S, 1 / state.settings.rate_per_s)
    state.medians.pop()  # it may share samples with these
    for blocks in (state.stretch, state.spread):
        if blocks is not None:
            blocks.cut()
    return "unusual"


def _end(state: Drift, unix_s: float, present: float, level: Level) -> Event | None:
    if unix_s - (state.unusual_since_s or unix_s) > MAX_S:
        _forget(state)
        return "accepted"
    if present < (level.usual + level.limit) / 2:
        state.unusual_since_s = None
        return "recovered"
    return None


def _forget(state: Drift) -> None:
    state.medians, state.latest, state.unusual_since_s = [], [], None


def level_of(state: Drift) -> Level:
    """The level before the latest median, whose samples may include the change."""
    ordered = sorted(state.medians if state.unusual_since_s is not None else state.medians[:-1])
    if not ordered:
        return Level(math.nan, math.inf)
    usual = median(ordered)
    return Level(usual, usual + max(MIN_RISE, SPREADS * (ordered[len(ordered) * 9 // 10] - usual)))
