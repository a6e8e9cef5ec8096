"""The product's drift detector over a null signal, and over copies of it that change."""

import math
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass

import numpy as np

from bench.nulls import CHANGES, DAY, INTERVAL_S, NULLS, Array, Change, Source
from prober.features.drift.baseline import Baseline
from prober.features.drift.detector import adopt, step
from prober.features.drift.state import Drift, DriftVerdict, Observation, Settings, new_state

SETTINGS = Settings(rate_per_s=1 / INTERVAL_S)
CHUNK = 720  # samples drawn at once
NULL_DAYS = 9


def unchanged(logs: Array, _since: int, _rng: np.random.Generator) -> Array:
    """The null signal."""
    return logs


@dataclass
class DriftCounts:
    """Events of a signal without change."""

    alarms: int = 0
    improvements: int = 0


def observe(
    state: Drift, times: Array, logs: Array, loads: Array | None, baseline: Baseline | None
) -> Iterator[DriftVerdict]:
    """Verdicts of samples, given as arrays of shape (n,): Unix seconds, log seconds, and load if it is known.

    baseline: after an alarm or an improvement the detector starts from nothing with this one; None while it learns
    """
    settled = state.settled
    values = np.exp(logs).tolist()
    load_values = [None] * len(values) if loads is None else loads.tolist()
    for time_s, value, load in zip(times.tolist(), values, load_values, strict=True):
        _, verdict = step(state, Observation(time_s, value, load))
        if baseline is not None and verdict.event in ("alarm", "improved"):
            adopt(state, baseline, settled=settled)
            state.alarm = state.spread = None
        yield verdict


def is_alarm(verdict: DriftVerdict) -> bool:
    """A slowdown is reported."""
    return verdict.event == "alarm"


class WatchedSignal:
    """A signal of one null and the detector that has learned it. provisional: judge by the coarse baseline, and keep it."""

    def __init__(self, null: str, seed: tuple[int, ...], *, provisional: bool = False) -> None:
        self.source = Source(NULLS[null], np.random.default_rng(seed), 1)
        self.state = new_state(SETTINGS)
        self.baseline: Baseline | None = None
        while self.state.baseline is None or self.state.settled is provisional:
            for _ in self._verdicts(CHUNK):
                pass
        self.state.alarm = self.state.spread = None
        self.baseline = self.state.baseline

    def copy(self, seed: tuple[int, ...]) -> "WatchedSignal":
        """The same signal and state with another future."""
        copy = deepcopy(self)
        copy.source.rng = np.random.default_rng(seed)
        return copy

    def null_counts(self, samples: int = NULL_DAYS * DAY) -> DriftCounts:
        """Events in so many samples without change."""
        counts = DriftCounts()
        for _ in range(samples // CHUNK):
            for verdict in self._verdicts(CHUNK):
                counts.alarms += is_alarm(verdict)
                counts.improvements += verdict.event == "improved"
        return counts

    def delay(self, change: str, seed: tuple[int, ...]) -> float:
        """Samples from the change to the alarm; infinite after a day without."""
        rng = np.random.default_rng(seed)
        for since in range(0, DAY, CHUNK):
            for number, verdict in enumerate(self._verdicts(CHUNK, CHANGES[change], since, rng), since + 1):
                if is_alarm(verdict):
                    return number
        return math.inf

    def _verdicts(
        self, count: int, change: Change = unchanged, since: int = 0, rng: np.random.Generator | None = None
    ) -> Iterator[DriftVerdict]:
        times = self.source.times(count)
        logs, loads = self.source.draw(count)
        logs = change(logs, since, rng or self.source.rng)
        return observe(self.state, times, logs[0], None if loads is None else loads[0], self.baseline)
