"""Panels as values, and as Grafana's JSON. What is common to all stands here once: data source, no data that says so, legends.

Only options that Grafana 10.4 knows, in the form it has them; `pluginVersion` tells later ones from where to migrate.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
Steps = tuple[tuple[float | None, str], ...]  # from this value on, this colour; the first from None
SOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
WRITTEN_FOR = "10.4.0"
NO_DATA = "no data"
EVENTS = "1m"  # of bars and cells: those that follow each other count no event twice, but for what a rate takes more than a step
GREEN, YELLOW, ORANGE, RED, GREY, BLUE = "green", "yellow", "orange", "red", "#808790", "blue"
LOGARITHMIC = {"type": "log", "log": 10}
PLAIN: Steps = ((None, GREEN),)
NEUTRAL: Steps = ((None, "text"),)


@dataclass(frozen=True, slots=True)
class Query:
    """legend: with {{label}}s; form: `time_series`, `table` (a row a series) or `heatmap`; instant: the end of the range only."""

    expr: str
    legend: str = ""
    instant: bool = False
    form: str = "time_series"


def as_steps(steps: Steps) -> list[Json]:
    """Thresholds as Grafana has them."""
    return [{"value": value, "color": color} for value, color in steps]


def now(expr: str, legend: str = "") -> Query:
    """The value at the end of the range."""
    return Query(expr, legend, instant=True)


def row(expr: str) -> Query:
    """The same as a table, its labels as columns."""
    return Query(expr, instant=True, form="table")


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """text: one sentence, what it means, and one, what bad looks like; custom: options of the fields that depend on `kind`."""

    kind: str
    title: str
    text: str
    queries: Sequence[Query]
    unit: str
    width: int = 8
    height: int = 8
    steps: Steps = PLAIN
    color: str = "palette-classic"
    low: float | None = None
    high: float | None = None
    decimals: int | None = None
    empty: str = NO_DATA
    mappings: Sequence[Json] = ()
    custom: Json = field(default_factory=dict)
    options: Json = field(default_factory=dict)
    overrides: Sequence[Json] = ()
    transformations: Sequence[Json] = ()
    repeat: str = ""
    interval: str = ""

    def as_json(self, number: int, x: int, y: int) -> Json:
        """As a dashboard holds it, at its place on the grid of 24 columns."""
        bounds = {"min": self.low, "max": self.high, "decimals": self.decimals}
        defaults: Json = {
            "unit": self.unit,
            **({"noValue": self.empty} if self.empty else {}),
            "color": {"mode": self.color},
            "thresholds": {"mode": "absolute", "steps": as_steps(self.steps)},
            "mappings": list(self.mappings),
            "custom": self.custom,
            **{name: value for name, value in bounds.items() if value is not None},
        }
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.text,
            "datasource": SOURCE,
            "pluginVersion": WRITTEN_FOR,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "targets": [_target(query, index) for index, query in enumerate(self.queries)],
            "fieldConfig": {"defaults": defaults, "overrides": list(self.overrides)},
            "options": self.options,
            "transformations": list(self.transformations),
            **({"interval": self.interval} if self.interval else {}),
            **({"repeat": self.repeat, "repeatDirection": "h", "maxPerRow": 2} if self.repeat else {}),
        }


def _target(query: Query, index: int) -> Json:
    return {
        "refId": chr(ord("A") + index),
        "datasource": SOURCE,
        "editorMode": "code",
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
        "format": query.form,
        "instant": query.instant,
        "range": not query.instant,
    }


def series(title: str, text: str, unit: str, *queries: Query, bars: bool = False, **more: Any) -> Panel:
    """Lines over time; or stacked bars, for counts of events."""
    custom: Json = {
        "drawStyle": "bars" if bars else "line",
        "lineWidth": 1,
        "fillOpacity": 70 if bars else 0,
        "showPoints": "never",
        "spanNulls": False,
        "lineInterpolation": "linear",
        "stacking": {"mode": "normal" if bars else "none", "group": "A"},
        "thresholdsStyle": {"mode": "off"},
        **more.pop("custom", {}),
    }
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return Panel(
        kind="timeseries",
        title=title,
        text=text,
        unit=unit,
        queries=queries,
        custom=custom,
        options=options,
        interval=EVENTS if bars else "",
        **{"low": 0, **more},
    )


def stat(title: str, text: str, unit: str, *queries: Query, **more: Any) -> Panel:
    """Large figures, coloured by their thresholds."""
    options = {
        "colorMode": more.pop("fill", "value"),
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": more.pop("text_mode", "auto"),
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }
    return Panel(
        kind="stat",
        title=title,
        text=text,
        unit=unit,
        queries=queries,
        options=options,
        **{"width": 4, "height": 4, "color": "thresholds", **more},
    )


def table(title: str, text: str, columns: Sequence["Column"], *queries: Query, sort: str = "", **more: Any) -> Panel:
    """A row for each set of labels, a column for each query and label that is named; others are left out."""
    names = {column.source: column.name for column in columns}
    shown = [column.source for column in columns]
    transformations: list[Json] = [
        {"id": "merge", "options": {}},
        {
            "id": "organize",
            "options": {
                "excludeByName": {"Time": True} | dict.fromkeys(more.pop("hide", ()), True),
                "indexByName": {name: place for place, name in enumerate(shown)},
                "renameByName": names,
            },
        },
    ]
    options = {
        "showHeader": True,
        "cellHeight": "sm",
        "footer": {"show": False, "reducer": ["sum"], "fields": ""},
        "sortBy": [{"displayName": sort.lstrip("-"), "desc": sort.startswith("-")}] if sort else [],
    }
    return Panel(
        kind="table",
        title=title,
        text=text,
        unit=more.pop("unit", "short"),
        queries=queries,
        custom={"align": "auto", "cellOptions": {"type": "auto"}, "filterable": False},
        options=options,
        overrides=list({column.name: override for column in columns if (override := column.override())}.values()),
        transformations=transformations,
        **{"width": 24, "color": "thresholds", "steps": NEUTRAL, "decimals": None, **more},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """source: a label, or `Value #A` of the first query; steps: colours of the cell; link: address, with ${__value.text}."""

    source: str
    name: str
    unit: str = ""
    steps: Steps = ()
    mappings: Sequence[Json] = ()
    width: int = 0
    decimals: int | None = None
    link: str = ""
    link_title: str = ""
    empty: str = ""

    def override(self) -> Json | None:
        """What makes this column different, None: nothing."""
        found: list[Json] = []
        if self.unit:
            found.append({"id": "unit", "value": self.unit})
        if self.decimals is not None:
            found.append({"id": "decimals", "value": self.decimals})
        if self.steps:
            found.append({"id": "thresholds", "value": {"mode": "absolute", "steps": as_steps(self.steps)}})
        if self.empty:
            found.append({"id": "noValue", "value": self.empty})
        if self.steps or self.mappings:
            found.append({"id": "mappings", "value": [*self.mappings, _absent(self.empty or NO_DATA)]})
        if self.steps or self.mappings:
            found.append({"id": "custom.cellOptions", "value": {"type": "color-background", "mode": "basic"}})
        if self.width:
            found.append({"id": "custom.width", "value": self.width})
        if self.link:
            found.append({"id": "links", "value": [{"title": self.link_title, "url": self.link}]})
        return {"matcher": {"id": "byName", "options": self.name}, "properties": found} if found else None


def heatmap(title: str, text: str, *queries: Query, **more: Any) -> Panel:
    """Counts by bucket over time, of classic buckets."""
    options = {
        "calculate": False,
        "cellGap": 1,
        "color": {
            "mode": "scheme",
            "scheme": "Oranges",
            "steps": 64,
            "reverse": False,
            "exponent": 0.5,
            "fill": "dark-orange",
        },
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "showValue": "never",
        "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": False},
        "yAxis": {"axisPlacement": "left", "reverse": False, "unit": "s"},
        "cellValues": {"unit": "short", "decimals": 1},
    }
    return Panel(
        kind="heatmap",
        title=title,
        text=text,
        unit="s",
        queries=queries,
        options=options,
        interval=EVENTS,
        **{"width": 12, **more},
    )


def states(title: str, text: str, mappings: Sequence[Json], *queries: Query, **more: Any) -> Panel:
    """A band a series, coloured by what it was when."""
    options = {
        "alignValue": "left",
        "mergeValues": True,
        "rowHeight": 0.85,
        "showValue": "auto",
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "single", "sort": "none"},
    }
    return Panel(
        kind="state-timeline",
        title=title,
        text=text,
        unit="none",
        queries=queries,
        mappings=mappings,
        custom={"fillOpacity": 80, "lineWidth": 0},
        options=options,
        **{"width": 24, "color": "thresholds", "steps": NEUTRAL, **more},
    )


def _absent(text: str) -> Json:
    """Else a cell without a value has the colour of the first threshold."""
    result = {"text": text, "color": "transparent", "index": 99}
    return {"type": "special", "options": {"match": "null+nan", "result": result}}


def coloured(colors: dict[str, str]) -> list[Json]:
    """A mapping of words to colours."""
    return [
        {
            "type": "value",
            "options": {word: {"color": color, "index": place} for place, (word, color) in enumerate(colors.items())},
        }
    ]


def words(*pairs: tuple[str, str]) -> list[Json]:
    """A mapping of 0, 1, 2 … to words with their colours."""
    options = {str(place): {"text": text, "color": color, "index": place} for place, (text, color) in enumerate(pairs)}
    return [{"type": "value", "options": options}]


def named(pattern: str, *properties: tuple[str, Any]) -> Json:
    """An override for the series whose whole legend the pattern matches."""
    return {
        "matcher": {"id": "byRegexp", "options": pattern},
        "properties": [{"id": name, "value": value} for name, value in properties],
    }


def dashed(pattern: str, color: str = RED, *, in_legend: bool = False) -> Json:
    """Limits: dashed, without fill. Not in the legend, where there are many of them that look alike. No color: each its own."""
    return named(
        pattern,
        *([("color", {"mode": "fixed", "fixedColor": color})] if color else []),
        ("custom.lineStyle", {"fill": "dash", "dash": [8, 6]}),
        ("custom.fillOpacity", 0),
        ("custom.lineWidth", 1),
        ("custom.hideFrom", {"legend": not in_legend, "tooltip": False, "viz": False}),
    )


def dotted(ref: str) -> Json:
    """Where samples are too few: this query's series are grey dots on the line that they repeat, so that it keeps its colour."""
    properties = {
        "custom.lineStyle": {"fill": "dot", "dash": [2, 12]},
        "custom.lineWidth": 3,
        "custom.hideFrom": {"legend": True, "tooltip": False, "viz": False},
        "color": {"mode": "fixed", "fixedColor": GREY},
    }
    return {
        "matcher": {"id": "byFrameRefID", "options": ref},
        "properties": [{"id": name, "value": value} for name, value in properties.items()],
    }


def band(lower: str, upper: str, color: str = BLUE) -> list[Json]:
    """An interval: the space between two series is filled, their lines are thin."""
    fixed = ("color", {"mode": "fixed", "fixedColor": color})
    return [
        named(lower, fixed, ("custom.lineWidth", 0), ("custom.fillOpacity", 0)),
        named(upper, fixed, ("custom.lineWidth", 0), ("custom.fillOpacity", 20), ("custom.fillBelowTo", lower)),
    ]


def on_the_right(pattern: str, unit: str) -> Json:
    """An axis of its own, up to what there is; thresholds are of the other one."""
    placed, unmarked = ("custom.axisPlacement", "right"), ("custom.thresholdsStyle", {"mode": "off"})
    return named(pattern, placed, ("unit", unit), ("custom.fillOpacity", 0), ("max", None), unmarked)
