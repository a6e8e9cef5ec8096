"""Panels of dashboards as values, and their JSON for Grafana.

Options have the form of Grafana 10.4; `pluginVersion` tells later releases where to start their migration.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

from prober.exposition.dashboards.style import NEUTRAL, PLAIN, Json, Steps, Unit, absent, as_steps, override

SOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
GRAFANA_VERSION = "10.4.0"
NO_DATA = "no data"
EVENT_INTERVAL = "1m"  # minimum width of bars and cells, so that neighbours do not count the same events


@dataclass(frozen=True, slots=True)
class Query:
    """A query of a panel.

    legend: name of each series; may contain {{label}}
    instant: evaluated only at the end of the range.
    exemplars: show exemplars too, where Prometheus stores them
    form: `time_series`, `table` (one row per series) or `heatmap`.
    """

    expr: str
    legend: str = ""
    instant: bool = False
    form: str = "time_series"
    exemplars: bool = False


def now(expr: str, legend: str = "") -> Query:
    """Query that is evaluated only at the end of the time range."""
    return Query(expr, legend, instant=True)


def row(expr: str) -> Query:
    """Query for the rows of a table, evaluated at the end of the time range; labels become columns."""
    return Query(expr, instant=True, form="table")


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel.

    kind: type of the panel in Grafana.
    text: the description: what the panel shows, and what a bad value looks like.
    width, height: cells of the grid, which has 24 columns.
    low, high: bounds of the axis; None for automatic.
    empty: text shown without data.
    custom: field options of this kind.
    repeat: variable for each of whose values Grafana repeats the panel; empty for none.
    interval: shortest step of the queries; empty for Grafana's choice.
    """

    kind: str
    title: str
    text: str
    unit: Unit
    queries: Sequence[Query]
    _: KW_ONLY
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
        """JSON of the panel at column `x` and line `y` of the grid. number: id of the panel"""
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
            "pluginVersion": GRAFANA_VERSION,
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
        **({"exemplar": True} if query.exemplars else {}),
    }


def series(title: str, text: str, unit: Unit, *queries: Query, bars: bool = False, **more: Any) -> Panel:
    """Panel of lines over time, or of stacked bars for counts of events."""
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
    interval = EVENT_INTERVAL if bars else ""
    defaults = {"custom": custom, "options": options, "interval": interval, "low": 0}
    return Panel("timeseries", title, text, unit, queries, **{**defaults, **more})


def stat(title: str, text: str, unit: Unit, *queries: Query, **more: Any) -> Panel:
    """Panel of large figures, coloured by thresholds. fill, text_mode: Grafana's options colorMode and textMode"""
    options = {
        "colorMode": more.pop("fill", "value"),
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": more.pop("text_mode", "auto"),
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }
    defaults = {"options": options, "width": 4, "height": 4, "color": "thresholds"}
    return Panel("stat", title, text, unit, queries, **{**defaults, **more})


def counts(title: str, text: str, *queries: Query, **more: Any) -> Panel:
    """Panel of large figures, each with the name of its series."""
    defaults = {"steps": NEUTRAL, "decimals": 0, "text_mode": "value_and_name"}
    return stat(title, text, "none", *queries, **{**defaults, **more})


def bars(title: str, text: str, unit: Unit, *queries: Query, **more: Any) -> Panel:
    """Panel of one horizontal bar per series, in the order of the queries, coloured by thresholds."""
    options = {
        "displayMode": "basic",
        "orientation": "horizontal",
        "valueMode": "color",
        "showUnfilled": True,
        "namePlacement": "left",
        "sizing": "auto",
        "minVizHeight": 12,
        "minVizWidth": 8,
        "maxVizHeight": 24,
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }
    defaults = {"options": options, "width": 9, "color": "thresholds"}
    return Panel("bargauge", title, text, unit, queries, **{**defaults, **more})


def table(title: str, text: str, columns: Sequence["Column"], *, sort: str | Sequence[str] = "", **more: Any) -> Panel:
    """Table with a row per label set of the columns' queries.

    hide: labels that are not shown
    sort: name of the column to sort by, or several names; a `-` before a name sorts in descending order
    """
    by = [sort] if isinstance(sort, str) else sort
    exprs = [column.expr for column in columns if column.expr]
    values = [f"Value #{chr(ord('A') + place)}" for place in range(len(exprs))]
    names, hidden = dict[str, str](), ["Time", *more.pop("hide", ())]
    for column in columns:
        fields = [values[exprs.index(column.expr)]] if column.expr else []
        if fields and len(exprs) == 1:
            fields = ["Value", *fields]  # releases of Grafana differ in the name for a single query's values
        if column.label:
            names[column.label] = column.name
            hidden += fields
        else:
            names |= dict.fromkeys(fields, column.name)
    transformations: list[Json] = [
        {"id": "merge", "options": {}},
        {
            "id": "organize",
            "options": {
                "excludeByName": dict.fromkeys(hidden, True),
                "indexByName": {name: place for place, name in enumerate(names)},
                "renameByName": names,
            },
        },
    ]
    options = {
        "showHeader": True,
        "cellHeight": "sm",
        "footer": {"show": False, "reducer": ["sum"], "fields": ""},
        "sortBy": [{"displayName": name.lstrip("-"), "desc": name.startswith("-")} for name in by if name],
    }
    defaults = {
        "custom": {"align": "auto", "cellOptions": {"type": "auto"}, "filterable": False},
        "options": options,
        "overrides": [override for column in columns if (override := column.as_override())],
        "transformations": transformations,
        "width": 24,
        "color": "thresholds",
        "steps": NEUTRAL,
    }
    queries = [Query(expr, instant=True, form="table") for expr in exprs]
    return Panel("table", title, text, "short", queries, **{**defaults, **more})


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: the values of a query, or a label.

    expr: PromQL, evaluated at the end of the time range; empty if other columns' queries have the label
    label: label whose value is shown; empty: the value of `expr` is shown
    steps: thresholds that colour the cell
    link: URL; may contain ${__value.text}
    """

    name: str
    expr: str = ""
    label: str = ""
    _: KW_ONLY
    unit: Unit | Literal[""] = ""
    steps: Steps = ()
    mappings: Sequence[Json] = ()
    width: int = 0
    decimals: int | None = None
    link: str = ""
    link_title: str = ""
    empty: str = ""

    def as_override(self) -> Json | None:
        """JSON of the options that differ from the table's defaults; None if none differ."""
        is_coloured = bool(self.steps or self.mappings)
        options: dict[str, Any] = {
            "unit": self.unit,
            "decimals": self.decimals,
            "thresholds": {"mode": "absolute", "steps": as_steps(self.steps)} if self.steps else None,
            "noValue": self.empty,
            "mappings": [*self.mappings, absent(self.empty or NO_DATA)] if is_coloured else None,
            "custom.cellOptions": {"type": "color-background", "mode": "basic"} if is_coloured else None,
            "custom.width": self.width or None,
            "links": [{"title": self.link_title, "url": self.link}] if self.link else None,
        }
        chosen = [(name, value) for name, value in options.items() if value is not None and value != ""]
        return override("byName", self.name, chosen) if chosen else None


def heatmap(title: str, text: str, *queries: Query, **more: Any) -> Panel:
    """Heatmap of the counts per classic bucket over time."""
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
        "heatmap", title, text, "s", queries, options=options, interval=EVENT_INTERVAL, **{"width": 12, **more}
    )


def states(title: str, text: str, mappings: Sequence[Json], *queries: Query, **more: Any) -> Panel:
    """State timeline: one band per series, coloured by its state."""
    options = {
        "alignValue": "left",
        "mergeValues": True,
        "rowHeight": 0.85,
        "showValue": "auto",
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "single", "sort": "none"},
    }
    defaults = {
        "mappings": mappings,
        "custom": {"fillOpacity": 80, "lineWidth": 0},
        "options": options,
        "width": 24,
        "color": "thresholds",
        "steps": NEUTRAL,
    }
    return Panel("state-timeline", title, text, "none", queries, **{**defaults, **more})
