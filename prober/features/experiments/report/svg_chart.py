"""A chart as inline SVG without scripts. Colours are CSS variables of the page, so that it is legible in light and dark mode."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal

from prober.measure.timeline import format_duration
from prober.statistics.quantiles import percentile_name

Form = Literal["linear", "log", "tail"]
TAIL = (0.5, 0.9, 0.99, 0.999)
MAX_INTERVALS = 7  # between ticks of a linear axis


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis from `low` to `high`.

    form: `log` is for seconds, labelled with durations; `tail` for quantiles: each further nine is as wide as the first
    """

    low: float
    high: float
    form: Form = "linear"

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
            return percentile_name(value)
        return format_duration(value) if self.form == "log" else f"{value:,.10g}"

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


def around(values: list[float], form: Form = "linear") -> Scale:
    """Scale that shows all of `values`, with a margin; a linear one starts at 0."""
    drawable = [value for value in values if form != "log" or value > 0]
    if not drawable:
        return Scale(0.001, 1.0, form) if form == "log" else Scale(0.0, 1.0, form)
    if form == "log":
        return Scale(min(drawable) / 1.25, max(drawable) * 1.25, form)
    return Scale(min(0.0, *drawable), (max(drawable) or 1.0) * 1.06, form)


WIDTH, HEIGHT = 560, 330
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 30, 44
COLOURS = 6


def colour(index: int) -> str:
    """Colour that distinguishes line `index` from the others."""
    return f"var(--c{index % COLOURS})"


def shade(place: int, count: int) -> str:
    """Colour of index `place` in a sequence, from blue for the first to red for the last; legible on white and on black."""
    return f"hsl({215 - 215 * place / max(1, count - 1):.0f} 70% var(--shade))"


@dataclass(slots=True)
class Canvas:
    """A chart, drawn in the units of its scales. width, height: in pixels. A `title` is shown as a tooltip."""

    x: Scale
    y: Scale
    width: int = WIDTH
    height: int = HEIGHT
    _parts: list[str] = field(default_factory=list)
    _labels: list[tuple[float, float, float]] = field(default_factory=list)

    def line(self, points: Sequence[tuple[float, float]], colour: str, kind: str = "") -> None:
        """Draw a line through (x, y)."""
        if len(points) > 1:
            path = "L".join(f"{self._x(x):.1f} {self._y(y):.1f}" for x, y in points)
            self._path(f"data {kind}", f"M{path}", colour)

    def dot(self, x: float, y: float, colour: str, title: str, *, hollow: bool = False, link: str = "") -> None:
        """Draw a point; hollow if the value is uncertain. link: id of the page element to which it links"""
        kind = "hollow" if hollow else "dot"
        circle = (
            f'<circle class="{kind}" style="--colour:{colour}" cx="{self._x(x):.1f}" cy="{self._y(y):.1f}" r="4">'
            f"<title>{escape(title)}</title></circle>"
        )
        self._parts.append(f'<a href="#{escape(link)}" aria-label="{escape(title)}">{circle}</a>' if link else circle)

    def specks(self, points: Sequence[tuple[float, float]], colour: str) -> None:
        """Draw many small points."""
        self._path("data specks", "".join(f"M{self._x(x) - 1.5:.1f} {self._y(y):.1f}h3" for x, y in points), colour)

    def crosses(self, xs: Sequence[float]) -> None:
        """Draw crosses at the upper edge, for failures."""
        self._path("cross", "".join(f"M{self._x(x) - 3:.1f} {TOP + 3}l6 6m0 -6l-6 6" for x in xs))

    def whisker(self, x: float, low: float, high: float, colour: str) -> None:
        """Draw a vertical interval from `low` to `high` at `x`."""
        self._path("whisker", f"M{self._x(x):.1f} {self._y(low):.1f}V{self._y(high):.1f}", colour)

    def rule(self, y: float, label: str) -> None:
        """Draw a horizontal line at the threshold `y`, with its label."""
        place = self._y(y)
        self._path("rule", f"M{LEFT} {place:.1f}H{self.width - RIGHT}")
        self._parts.append(f'<text class="rule-label" x="{LEFT + 6}" y="{place - 5:.1f}">{escape(label)}</text>')

    def band(self, low: float, high: float, at: float | None, colour: str, title: str, label: str = "") -> None:
        """Draw a vertical band from `low` to `high` on the x axis, a line at the estimate `at`, and a label above."""
        left, right = self._x(low), self._x(high)
        height = self.height - TOP - BOTTOM
        self._parts.append(
            f'<rect class="band" style="--colour:{colour}" x="{left:.1f}" y="{TOP}" '
            f'width="{max(1.0, right - left):.1f}" height="{height}"><title>{escape(title)}</title></rect>'
        )
        if at is not None:
            self._path("knee", f"M{self._x(at):.1f} {TOP}v{height}", colour)
        middle = min(max((left + right) / 2, LEFT + 3.5 * len(label)), self.width - 3.5 * len(label))
        if label:
            self._parts.append(
                f'<text class="strong" x="{middle:.1f}" y="{TOP - 4}" text-anchor="middle">{escape(label)}</text>'
            )

    def stripe(self, low: float, high: float, label: str, *, filled: bool) -> None:
        """Draw a named span from `low` to `high` on the x axis."""
        left, right = self._x(low), self._x(high)
        if filled:
            self._parts.append(
                f'<rect class="stripe" x="{left:.1f}" y="{TOP}" width="{right - left:.1f}" height="{self.height - TOP - BOTTOM}"/>'
            )
        if right - left > 7 * len(label):
            self._parts.append(
                f'<text x="{(left + right) / 2:.1f}" y="{TOP - 4}" text-anchor="middle">{escape(label)}</text>'
            )

    def label(self, x: float, y: float, text: str) -> None:
        """Write a text next to a point, unless it would overlap an earlier one."""
        left, top, width = self._x(x) + 7, self._y(y) - 6, 7 * len(text)
        if left + width > self.width:
            left -= 14 + width
        if all(left > end or left + width < begin or abs(top - above) > 14 for begin, end, above in self._labels):
            self._labels.append((left, left + width, top))
            self._parts.append(f'<text x="{left:.1f}" y="{top:.1f}">{escape(text)}</text>')

    def svg(self, x_label: str, y_label: str) -> str:
        """Chart with axes, as SVG."""
        bottom, right = self.height - BOTTOM, self.width - RIGHT
        grid = []
        for value, text in self.x.ticks():
            at = self._x(value)
            grid.append(f'<path class="grid" d="M{at:.1f} {TOP}V{bottom}"/>')
            grid.append(f'<text x="{at:.1f}" y="{bottom + 17}" text-anchor="middle">{escape(text)}</text>')
        for value, text in self.y.ticks():
            at = self._y(value)
            grid.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{right}"/>')
            grid.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{escape(text)}</text>')
        labels = (
            f'<text class="strong" x="{right}" y="{self.height - 8}" text-anchor="end">{escape(x_label)}</text>'
            f'<text class="strong" x="0" y="14">{escape(y_label)}</text>'
        )
        frame = f'<path class="frame" fill="none" d="M{LEFT} {TOP}V{bottom}H{right}"/>'
        role = "group" if any(part.startswith("<a ") for part in self._parts) else "img"  # an image hides its links
        return (
            f'<svg class="chart" viewBox="0 0 {self.width} {self.height}" role="{role}" '
            f'aria-label="{escape(f"{y_label} over {x_label}")}">{"".join(grid)}{frame}{"".join(self._parts)}{labels}</svg>'
        )

    def _path(self, kind: str, path: str, colour: str = "") -> None:
        """Draw a path, unless it is empty."""
        style = f' style="--colour:{colour}"' if colour else ""
        self._parts += [f'<path class="{kind}"{style} d="{path}"/>'] if path else []

    def _x(self, value: float) -> float:
        return LEFT + self.x.at(value) * (self.width - LEFT - RIGHT)

    def _y(self, value: float) -> float:
        return self.height - BOTTOM - self.y.at(value) * (self.height - TOP - BOTTOM)
