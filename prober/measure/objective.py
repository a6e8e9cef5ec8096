"""Declared service level objectives, and the streams of probes that they evaluate."""

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, get_args

Signal = Literal["ttft", "ttft_answer", "tpot", "itl", "e2e", "success", "quality"]
SIGNALS: tuple[Signal, ...] = get_args(Signal)
SIGNALS_WITHOUT_THRESHOLD: tuple[Signal, ...] = ("success", "quality")
SIGNALS_WITHOUT_STREAM: tuple[Signal, ...] = ("e2e", "success", "quality")


@dataclass(frozen=True, slots=True)
class Slo:
    """A service level objective: at least the ratio `objective` of the `signal` events in any window of `window_s` is good.

    threshold_s: an event is good up to this many seconds; None for `success` and `quality`
    objective: exact ratio of good events, 0 to 1
    """

    name: str
    signal: Signal
    threshold_s: float | None
    objective: Decimal
    window_s: float

    @property
    def error_budget_ratio(self) -> Decimal:
        """The ratio of events that may be bad."""
        return 1 - self.objective

    @property
    def text(self) -> str:
        """The objective as on the command line, such as ttft<0.5s:99%."""
        threshold = "" if self.threshold_s is None else f"<{self.threshold_s:g}s"
        return f"{self.signal}{threshold}:{format_percent(self.objective)}"


@dataclass(frozen=True, slots=True)
class JudgedStream:
    """A stream of probes that an SLO evaluates.

    mean_tokens, max_tokens: requested output tokens per probe
    """

    target: str
    workload: str
    rate_per_s: float
    mean_tokens: float
    max_tokens: int


def format_percent(ratio: float | Decimal) -> str:
    """Formats a ratio as a percentage without trailing zeros, such as 99.9%."""
    return f"{float(ratio) * 100:g}%"


def format_rate(per_s: float) -> str:
    """Formats a rate as in the configuration, such as 0.2/s, rounded up."""
    for unit, size in (("s", 1), ("min", 60), ("h", 3_600)):
        if per_s * size >= 0.1 or unit == "h":
            return f"{math.ceil(per_s * size * 100) / 100:g}/{unit}"
    raise AssertionError
