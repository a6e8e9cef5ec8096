"""Positions and labels of values on an axis."""

import math
from dataclasses import dataclass
from typing import Literal

from prober.measure.timeline_text import format_duration

Form = Literal["linear", "log", "tail"]
TAIL = (0.5, 0.9, 0.99, 0.999)
MAX_INTERVALS = 7  # between the ticks of a linear axis


@dataclass(frozen=True, slots=True)
class Scale:
    """Axis from `low` to `high`.

    form: tail is for quantiles: each further nine is as wide as the first
    seconds: labels are durations
    """

    low: float
    high: float
    form: Form = "linear"
    seconds: bool = False

    def at(self, value: float) -> float:
        """Position of a value: 0 at `low` and below, 1 at `high` and above."""
        low, high, position = (self._transformed(edge) for edge in (self.low, self.high, value))
        return min(1.0, max(0.0, (position - low) / (high - low))) if high > low else 0.5

    def ticks(self) -> list[tuple[float, str]]:
        """Values and their labels, from low to high."""
        values = {"linear": self._linear, "log": self._log, "tail": self._tail}[self.form]()
        return [(value, self._label(value)) for value in values]

    def _transformed(self, value: float) -> float:
        if self.form == "log":
            return math.log10(max(value, 1e-9))
        return -math.log10(max(1 - value, 1e-6)) if self.form == "tail" else value

    def _label(self, value: float) -> str:
        if self.form == "tail":
            return f"p{value * 100:g}"
        return format_duration(value) if self.seconds else f"{value:,.10g}"

    def _linear(self) -> list[float]:
        step = 10 ** math.floor(math.log10((self.high - self.low) / 2)) if self.high > self.low else 1.0
        step *= next((factor for factor in (1, 2, 5) if (self.high - self.low) / (step * factor) <= MAX_INTERVALS), 10)
        first = math.ceil(self.low / step - 1e-9)
        return [round(i * step, 12) for i in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def _log(self) -> list[float]:
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        span = math.log10(self.high / self.low)
        steps = (1, 1.5, 2, 3, 5, 7) if span < 0.9 else (1, 2, 5) if span < 2.4 else (1,)
        ticks = [step * 10.0**decade for decade in decades for step in steps]
        return [tick for tick in ticks if self.low * 0.999 <= tick <= self.high * 1.001]

    def _tail(self) -> list[float]:
        return [q for q in TAIL if self.low <= q <= self.high]


def around(values: list[float], form: Form = "linear", *, seconds: bool = False) -> Scale:
    """Scale that shows all of `values`, with a margin; a linear one starts at 0."""
    drawable = [value for value in values if form != "log" or value > 0]
    if not drawable:
        return Scale(0.001, 1.0, form, seconds) if form == "log" else Scale(0.0, 1.0, form, seconds)
    if form == "log":
        return Scale(min(drawable) / 1.25, max(drawable) * 1.25, form, seconds)
    return Scale(min(0.0, *drawable), (max(drawable) or 1.0) * 1.06, form, seconds)
