"""Finds what is unusual before a baseline of days is learnt: the median of the latest samples against medians of the last two hours.

It is no drift: its rate of false alarms is not stated, and it raises no alert. A rise over hours is followed, as a day has busy hours.
A baseline that knows the load judges by it, and needs no help.
"""

import math
from statistics import median
from typing import NamedTuple

from prober.features.drift.state import Drift, Event

SAMPLES = 40  # of one median: over three minutes at 0.2/s, so that a burst of a minute is not unusual
STRIDE_S = 5.0  # between them, on average, at higher rates
BLOCKS = 36  # medians that are compared with: two hours
MIN_RISE = math.log(1.5)
SPREADS = 4.0  # by which the median exceeds the usual ones: of independent medians, of which the largest tenth is 1.3 sd away, 5 sd
MAX_S = 3 * 3_600.0  # after which it is usual, and learnt


class Level(NamedTuple):
    """Logs of the usual median and of the one from which a latency is unusual."""

    usual: float
    limit: float


def judge(state: Drift, unix_s: float, log: float, *, linked: bool) -> Event | None:
    """Add a sample. Returns the event that begins or ends an unusual time, which `Drift.unusual_since_s` says."""
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
    state.medians.pop()  # its samples may be some of these
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
    """The level before the latest median, in whose samples a change may have begun."""
    ordered = sorted(state.medians if state.unusual_since_s is not None else state.medians[:-1])
    if not ordered:
        return Level(math.nan, math.inf)
    usual = median(ordered)
    return Level(usual, usual + max(MIN_RISE, SPREADS * (ordered[len(ordered) * 9 // 10] - usual)))
