"""Colours, thresholds, value mappings and overrides of panels."""

from collections.abc import Sequence
from typing import Any, Literal

Json = dict[str, Any]
Steps = tuple[tuple[float | None, str], ...]  # (lower bound, colour) in ascending order; the first bound is None
# fmt: off
Unit = Literal[  # Grafana's units that panels use
    "none", "short", "s", "percentunit", "reqps", "cps", "ops", "Bps", "watt", "hertz", "celsius", "joule", "currencyUSD",
    "dateTimeFromNow", "bytes",
]
# fmt: on
GREEN, YELLOW, ORANGE, RED, GREY, BLUE = "green", "yellow", "orange", "red", "#808790", "blue"
LOGARITHMIC = {"type": "log", "log": 10}
SYMLOG: Json = {"type": "symlog", "log": 10, "linearThreshold": 1}
PLAIN: Steps = ((None, GREEN),)
NEUTRAL: Steps = ((None, "text"),)


def as_steps(steps: Steps) -> list[Json]:
    """JSON of thresholds and their colours."""
    return [{"value": value, "color": color} for value, color in steps]


def absent(text: str) -> Json:
    """Value mapping that shows `text` for an absent value, which would otherwise get the colour of the first threshold."""
    result = {"text": text, "color": "transparent", "index": 99}
    return {"type": "special", "options": {"match": "null+nan", "result": result}}


def text_mapping(colors: dict[str, str]) -> list[Json]:
    """Value mappings that show each text in its colour. colors: colour by text"""
    return [
        {
            "type": "value",
            "options": {word: {"color": color, "index": place} for place, (word, color) in enumerate(colors.items())},
        }
    ]


def words_mapping(words: dict[str, str], color: str) -> list[Json]:
    """Value mappings that replace each text by a word, all in one colour. words: shown word by text"""
    results = {
        text: {"text": shown, "color": color, "index": place} for place, (text, shown) in enumerate(words.items())
    }
    return [{"type": "value", "options": results}]


def index_mapping(*pairs: tuple[str, str]) -> list[Json]:
    """Value mappings that show the numbers 0, 1, 2 … as texts. pairs: (text, colour) for each number"""
    options = {str(place): {"text": text, "color": color, "index": place} for place, (text, color) in enumerate(pairs)}
    return [{"type": "value", "options": options}]


def override(matcher: str, fields: str, properties: Sequence[tuple[str, Any]]) -> Json:
    """JSON of an override: properties for the fields that a matcher selects. fields: argument of the matcher"""
    return {
        "matcher": {"id": matcher, "options": fields},
        "properties": [{"id": name, "value": value} for name, value in properties],
    }


def named(pattern: str, *properties: tuple[str, Any]) -> Json:
    """Override for the series whose full legend matches the regular expression."""
    return override("byRegexp", pattern, properties)


def fixed_color(pattern: str, color: str, *properties: tuple[str, Any]) -> Json:
    """Override that gives matching series a fixed colour. pattern: regular expression for the full legend"""
    return named(pattern, ("color", {"mode": "fixed", "fixedColor": color}), *properties)


def dashed(pattern: str, color: str = RED, *, in_legend: bool = False) -> Json:
    """Override for limits: dashed lines without fill, by default not in the legend. An empty colour keeps the series' own."""
    properties = (
        ("custom.lineStyle", {"fill": "dash", "dash": [8, 6]}),
        ("custom.fillOpacity", 0),
        ("custom.lineWidth", 1),
        ("custom.hideFrom", {"legend": not in_legend, "tooltip": False, "viz": False}),
    )
    return fixed_color(pattern, color, *properties) if color else named(pattern, *properties)


def dotted(ref: str) -> Json:
    """Override for the query `ref`, which selects values with too few samples: grey dots over the line of all values."""
    properties = (
        ("custom.lineStyle", {"fill": "dot", "dash": [2, 12]}),
        ("custom.lineWidth", 3),
        ("custom.hideFrom", {"legend": True, "tooltip": False, "viz": False}),
        ("color", {"mode": "fixed", "fixedColor": GREY}),
    )
    return override("byFrameRefID", ref, properties)


def band(lower: str, upper: str, color: str = BLUE) -> list[Json]:
    """Overrides that fill the area between two series, such as the ends of a confidence interval. lower, upper: their legends"""
    return [
        fixed_color(lower, color, ("custom.lineWidth", 1), ("custom.fillOpacity", 0)),
        fixed_color(upper, color, ("custom.lineWidth", 1), ("custom.fillOpacity", 20), ("custom.fillBelowTo", lower)),
    ]


def on_the_right(pattern: str, unit: Unit) -> Json:
    """Override that gives matching series an axis on the right, without maximum and thresholds."""
    axis, unmarked = ("custom.axisPlacement", "right"), ("custom.thresholdsStyle", {"mode": "off"})
    return named(pattern, axis, ("unit", unit), ("custom.fillOpacity", 0), ("max", None), unmarked)
