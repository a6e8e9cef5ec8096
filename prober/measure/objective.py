"""Objectives as declared, and the streams of probes that they judge."""

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, get_args

Signal = Literal["ttft", "ttft_answer", "tpot", "itl", "e2e", "success", "quality"]
SIGNALS: tuple[Signal, ...] = get_args(Signal)
WITHOUT_THRESHOLD: tuple[Signal, ...] = ("success", "quality")
WITHOUT_STREAM: tuple[Signal, ...] = ("e2e", "success", "quality")


@dataclass(frozen=True, slots=True)
class Slo:
    """`objective` of the events of `signal` shall be good over any `window_s`.

    threshold_s: seconds up to which an event is good, None for `success` and `quality`; objective: exact ratio of good events;
    window_s: seconds.
    """

    name: str
    signal: Signal
    threshold_s: float | None
    objective: Decimal
    window_s: float

    @property
    def budget(self) -> Decimal:
        """The error budget: the ratio of events that may be bad."""
        return 1 - self.objective


@dataclass(frozen=True, slots=True)
class JudgedStream:
    """One stream of probes that an SLO judges. mean_tokens, most_tokens: length of the answers that it asks for."""

    target: str
    workload: str
    rate_per_s: float
    mean_tokens: float
    most_tokens: int


def percent(ratio: Decimal) -> str:
    """99.9%, without needless digits."""
    return f"{float(ratio * 100):.4g}%"


def rate_text(per_s: float) -> str:
    """A rate that is at least `per_s`, as a configuration writes it."""
    for unit, size in (("s", 1), ("min", 60), ("h", 3_600)):
        if per_s * size >= 0.1 or unit == "h":
            return f"{math.ceil(per_s * size * 100) / 100:g}/{unit}"
    raise AssertionError
