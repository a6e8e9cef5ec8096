"""Counters of an engine's page as they outlive the prober: what was read last, and what earlier processes of the engine counted."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from prober.measure.engine_signals import COUNTER_SIGNALS, EngineHistogram, EngineInfo, EngineSignals

HISTOGRAMS = ("ttft_seconds", "itl_seconds", "queue_seconds")  # those with series
NAMES = (*COUNTER_SIGNALS, *HISTOGRAMS)
_OF_PROCESS = ("ranks", "start_time_seconds", "uptime_seconds")

Amount = float | EngineHistogram


@dataclass(frozen=True, slots=True)
class CounterState:
    """State of the counters of one page.

    read: the last accepted reading; only its counters and what identifies the process
    offsets: by signal, to be added to what the page counts
    """

    read: EngineSignals
    offsets: Mapping[str, Amount]

    def as_json(self) -> dict[str, Any]:
        """Value for JSON, without histograms that have no series; `state_of` reads it."""
        return {
            "engine": self.read.info.engine,
            "process": {name: getattr(self.read, name) for name in _OF_PROCESS},
            "read": {name: _row(amount) for name in NAMES if (amount := getattr(self.read, name, None)) is not None},
            "offsets": {name: _row(amount) for name, amount in self.offsets.items() if name in NAMES},
        }


def state_of(value: Any) -> CounterState:
    """The state from the result of `as_json`. Raises ValueError, TypeError, KeyError."""
    read: dict[str, Any] = {name: _amount(name, row) for name, row in value["read"].items()}
    process: dict[str, Any] = {name: None if row is None else _finite(row) for name, row in value["process"].items()}
    signals = replace(EngineSignals(EngineInfo(str(value["engine"]))), **read, **process)
    return CounterState(signals, {name: _amount(name, row) for name, row in value["offsets"].items()})


def _row(amount: Amount) -> Any:
    return [amount.bounds, amount.counts, amount.sum] if isinstance(amount, EngineHistogram) else amount


def _amount(name: str, row: Any) -> Amount:
    if name not in NAMES:
        raise ValueError(f"{name!r} is no counter")
    if name not in HISTOGRAMS:
        return _finite(row)
    bounds, counts, total = row
    histogram = EngineHistogram(
        tuple(map(_finite, bounds)), tuple(map(_finite, counts)), None if total is None else _finite(total)
    )
    if len(histogram.counts) != len(histogram.bounds) + 1:
        raise ValueError(f"{name} has {len(histogram.counts)} counts for {len(histogram.bounds)} bounds")
    return histogram


def _finite(row: Any) -> float:
    if isinstance(row, bool) or not isinstance(row, int | float) or not math.isfinite(row):
        raise ValueError(f"{row!r} is no finite number")
    return float(row)
