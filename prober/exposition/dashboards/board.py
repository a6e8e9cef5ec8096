"""A dashboard: rows of panels on a grid, variables, links to the other dashboards, annotations.

Every dashboard has variables for the place of probers and targets: cluster, namespace and job. The scraper or collector of the series
adds these labels; `cluster` may also be a label that the configuration gives a target. Targets of two clusters may have one name,
and most panels sum over probers, so a dashboard shows one cluster at a time. Where no series has the label, Grafana chooses the
empty value, which selects them all.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prober.exposition.dashboards.panels import NO_DATA, SOURCE, Column, Panel
from prober.exposition.dashboards.queries import STATES
from prober.exposition.dashboards.style import GREEN, GREY, ORANGE, RED, YELLOW, Json, Steps, index_mapping

PLACE = ("cluster", "namespace", "job")  # variables and labels; the choices of each depend on the ones before it
_SELECTOR = re.compile(r'([\w:]*)\{((?:[^{}"]|"(?:[^"\\]|\\.)*")+)\}')
_TARGET = re.compile(r"\btarget(?:=|!=)")
_OF_TARGET = ('cluster="$cluster"', 'namespace=~"$namespace"', 'job=~"$job"')
# A prober has no label that its targets have.
_OF_PROBER = ('cluster=~"$cluster|"', *_OF_TARGET[1:])
# Rules drop these labels unless `prober rules --group-label` names them: a series without them belongs to every place.
_OF_RULES = ('cluster=~"$cluster|"', 'namespace=~"$namespace|"', 'job=~"$job|"')
_OF_EXPORTERS = _OF_TARGET[:1]  # their own namespace and job are not the prober's


def in_place(expr: str) -> str:
    """Returns the expression with matchers for the chosen cluster, namespace and job in each selector."""

    def selected(match: re.Match[str]) -> str:
        name, matchers = match[1], match[2]
        if name.startswith("gpu:"):
            places: tuple[str, ...] = _OF_EXPORTERS
        elif (name or matchers.removeprefix('__name__=~"')).startswith("llmslo_"):
            places = _OF_TARGET if _TARGET.search(matchers) else _OF_PROBER
        else:
            places = _OF_RULES
        return f"{name}{{{','.join((matchers, *places))}}}"

    return _SELECTOR.sub(selected, expr)


def _with_place(part: Any, key: str = "") -> Any:
    """Returns a part of a dashboard with `in_place` applied to each of its expressions. key: of the part in its JSON object"""
    if isinstance(part, dict):
        return {name: _with_place(value, name) for name, value in part.items()}
    if isinstance(part, list):
        return [_with_place(value) for value in part]
    return in_place(part) if key == "expr" else part


TAG = "llm-slo-prober"
COLUMNS = 24
# Never changed, because alerts and bookmarks contain them.
UIDS = {
    "overview": "llm-slo",
    "target": "llm-slo-target",
    "slo": "llm-slo-budget",
    "capacity": "llm-slo-capacity",
    "engine": "llm-slo-engine",
    "drift": "llm-slo-drift",
}
TITLES = {
    "overview": "LLM SLO / Overview",
    "target": "LLM SLO / Target",
    "slo": "LLM SLO / Error budgets",
    "capacity": "LLM SLO / Capacity",
    "engine": "LLM SLO / Engine and GPU",
    "drift": "LLM SLO / Drift and the prober",
}
WINDOWS = ("5m", "15m", "30m", "1h", "2h", "6h", "1d")
DEFAULT_WINDOW = "2h"  # the shortest with a thousand samples at the default of 0.2 probes per second

ANNOTATION_STEP = "120s"
LABEL_VALUES, QUERY_RESULT = 1, 3  # kinds of variable queries
HIDDEN = 2


@dataclass(frozen=True, slots=True)
class Collapsed:
    """Panels of a row that stays closed until the reader opens it, because many targets have no data for it.

    Grafana cannot close or hide a row that has no data: a row that repeats over no values is shown once. It sends
    no queries for a closed row, and expands variables in its title. So the title says whether there are data.

    variable: name of a hidden variable whose value is part of the title
    sources: text for the title → expression; the text of the first expression with a series is shown
    """

    panels: Sequence[Panel]
    variable: str
    sources: Mapping[str, str]

    def as_variable(self) -> Json:
        """JSON of the variable: the text of the first source with a series, else "no data"."""
        titles = [(f"group({expr})", text) for text, expr in self.sources.items()] + [("vector(0)", NO_DATA)]
        expr = " or on () ".join(f'label_replace({expr}, "told", "{text}", "", "")' for expr, text in titles)
        query = _query_result(self.variable, self.variable, expr, "told", is_single=True)
        # Otherwise a link would carry the title of another target or day.
        return query | {"hide": HIDDEN, "skipUrlSync": True}


Rows = Mapping[str, Sequence[Panel] | Collapsed]


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard.

    name: key of UIDS, and name of the file
    rows: row title → panels; panels under an empty title are in no row. The title of a collapsed row contains its variable
    one_target: the panels show one target at a time. Links pass `target` on, which may be several or all, so such a dashboard has a
    second variable, `one`: the first of these targets until the reader chooses another.
    variables: keys of `_variables`, in the order in which they are shown
    """

    name: str
    text: str
    rows: Rows
    one_target: bool = False
    variables: tuple[str, ...] = ("target", "workload", "window")

    def as_json(self, annotations: Sequence[Json]) -> Json:
        """JSON that Grafana imports."""
        return {
            "uid": UIDS[self.name],
            "title": TITLES[self.name],
            "description": self.text,
            "tags": [TAG],
            "schemaVersion": 39,
            "version": 1,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "30s",
            "time": {"from": "now-3h", "to": "now"},
            "timepicker": {},
            "timezone": "browser",
            "liveNow": False,
            "fiscalYearStartMonth": 0,
            "links": [_link(name) for name in UIDS if name != self.name],
            "annotations": {"list": self._for_one(annotations)},
            "templating": {"list": self._variables()},
            "panels": self._for_one(placed(self.rows)),
        }

    def _for_one(self, parts: Sequence[Json]) -> list[Json]:
        """Restrict `parts` to the chosen place; on a dashboard of one target, also replace `$target` by `$one`."""
        of_place: list[Json] = [_with_place(part) for part in parts]
        if self.one_target:
            of_place = json.loads(json.dumps(of_place).replace("$target", "$one"))
        return of_place

    def _variables(self) -> list[Json]:
        # A target whose engine reports no model matches every choice of models.
        of_other_models = 'llmslo_engine_info{target!="",model!~"$model"}'
        of_models = f'group by (target) (llmslo_target_state{{target!=""}}) unless on (target) {of_other_models}'
        options = [{"text": window, "value": window, "selected": window == DEFAULT_WINDOW} for window in WINDOWS]
        variables = {
            "target": _query_result(
                "target", "Targets" if self.one_target else "Target", of_models, "target", is_single=False
            ),
            "workload": _labels("workload", "Workload", 'llmslo_probes_total{target=~"$target"}'),
            "slo": _labels("slo", "SLO", 'llmslo_slo_objective_ratio{target=~"$target"}'),
            "instance": _labels("instance", "Prober", 'llmslo_build_info{version!=""}'),
            "window": {
                "name": "window",
                "label": "Quantiles over",
                "description": "A p99 takes a thousand samples: two hours at 0.2 probes a second.",
                "type": "custom",
                "query": ",".join(WINDOWS),
                "hide": 0,
                "multi": False,
                "includeAll": False,
                "options": options,
                "current": {"text": DEFAULT_WINDOW, "value": DEFAULT_WINDOW},
            },
        }
        chosen = [variables[name] for name in self.variables]
        if self.one_target:
            known_targets = 'group by (target) (llmslo_target_state{target=~"$target"})'
            single = _query_result("one", "Target", known_targets, "target", is_single=True)
            chosen = [chosen[0], single, *self._for_one(chosen[1:])]
        chosen += self._for_one([row.as_variable() for row in self.rows.values() if isinstance(row, Collapsed)])
        return [_source(), *_places(), _labels("model", "Model", 'llmslo_engine_info{target!=""}'), *chosen]


def placed(rows: Rows) -> list[Json]:
    """Place the panels from left to right and return their JSON. The highest panel of a line sets its height."""
    documents: list[Json] = []
    number, y = 1, 0
    for title, row in rows.items():
        first = number + bool(title)
        if isinstance(row, Collapsed):  # takes one line; its panels are placed below it as if it were open
            panels, _ = _on_grid(row.panels, first, y + 1)
            documents.append(_row(number, f"{title}: ${row.variable}", y, panels))
            number, y = first + len(panels), y + 1
            continue
        if title:
            documents.append(_row(number, title, y))
            y += 1
        panels, y = _on_grid(row, first, y)
        documents += panels
        number = first + len(panels)
    return documents


def _on_grid(panels: Sequence[Panel], first: int, y: int) -> tuple[list[Json], int]:
    """Returns (JSON of the panels, placed from line `y` on with ids from `first`, the line below them)."""
    documents: list[Json] = []
    x = height = 0
    for number, panel in enumerate(panels, first):
        if x + panel.width > COLUMNS or (panel.repeat and x):
            x, y, height = 0, y + height, 0
        documents.append(panel.as_json(number, x, y))
        x, height = x + (COLUMNS if panel.repeat else panel.width), max(height, panel.height)
    return documents, y + height


def _row(number: int, title: str, y: int, panels: Sequence[Json] = ()) -> Json:
    """JSON of a row. A row that contains its panels is closed."""
    place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
    return {
        "id": number,
        "type": "row",
        "title": title,
        "collapsed": bool(panels),
        "gridPos": place,
        "panels": list(panels),
    }


def _link(name: str) -> Json:
    """JSON of a link to another dashboard that keeps target and time range."""
    return {
        "title": TITLES[name].rpartition(" / ")[2],
        "type": "link",
        "url": f"/d/{UIDS[name]}",
        "icon": "dashboard",
        "tooltip": "",
        "tags": [],
        "asDropdown": False,
        "targetBlank": False,
        "includeVars": True,
        "keepTime": True,
    }


def to_target(name: str, value: str = "${__value.text}") -> str:
    """URL of another dashboard for a link in a table. It keeps time range, data source and place."""
    place = "&".join(f"${{{variable}:queryparam}}" for variable in ("datasource", *PLACE))
    return f"/d/{UIDS[name]}?var-target={value}&${{__url_time_range}}&{place}"


def annotation(name: str, color: str, expr: str, text: str) -> Json:
    """JSON of an annotation at each time where `expr` has a value. text: may contain {{label}}

    `expr` is stored under two keys, as releases of Grafana read different ones.
    """
    return {
        "name": name,
        "datasource": SOURCE,
        "enable": True,
        "hide": False,
        "iconColor": color,
        "expr": expr,
        "step": ANNOTATION_STEP,
        "target": {"refId": "Anno", "expr": expr, "interval": ANNOTATION_STEP, "instant": False, "range": True},
        "titleFormat": name,
        "textFormat": text,
        "tagKeys": "target",
    }


def tagged_annotation(name: str, color: str, tag: str) -> Json:
    """JSON that shows the annotations with this tag in Grafana's own store, made by pipelines or people."""
    return {
        "name": name,
        "datasource": {"type": "grafana", "uid": "-- Grafana --"},
        "enable": True,
        "hide": False,
        "iconColor": color,
        "target": {"type": "tags", "tags": [tag], "matchAny": True, "limit": 100},
    }


def _source() -> Json:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "regex": "",
        "refresh": 1,
        "hide": 0,
        "multi": False,
        "includeAll": False,
        "options": [],
        "current": {},
    }


def _query_variable(
    name: str, title: str, query: str, regex: str = "", *, kind: int = LABEL_VALUES, is_single: bool
) -> Json:
    """JSON of a variable whose values are the results of a query. is_single: the reader chooses a single value"""
    return {
        "name": name,
        "label": title,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery", "qryType": kind},
        "definition": query,
        "regex": regex,
        "refresh": 2,  # refresh when the time range changes, as targets come and go
        "sort": 1,
        "hide": 0,
        "multi": not is_single,
        "includeAll": not is_single,
        "options": [],
        **({"current": {}} if is_single else {"allValue": ".*", "current": {"text": ["All"], "value": ["$__all"]}}),
    }


def _labels(name: str, title: str, selector: str) -> Json:
    """JSON of a variable whose values are those of the label `name`."""
    return _query_variable(name, title, f"label_values({in_place(selector)}, {name})", is_single=False)


def _places() -> list[Json]:
    """JSON of the variables of the place: one cluster, as targets of two may have equal names; any namespaces and jobs."""
    selector, variables = 'llmslo_target_state{target!=""', []
    for name in PLACE:
        is_single, query = name == PLACE[0], f"label_values({selector}}}, {name})"
        variables.append(_query_variable(name, name.capitalize(), query, is_single=is_single))
        selector += f',{name}="${name}"' if is_single else f',{name}=~"${name}"'
    return variables


def _query_result(name: str, title: str, expr: str, label: str, *, is_single: bool) -> Json:
    """JSON of a variable whose values are those of a label in the result of an expression."""
    query, regex = f"query_result({in_place(expr)})", f'/{label}="([^"]+)"/'
    return _query_variable(name, title, query, regex, kind=QUERY_RESULT, is_single=is_single)


# States, thresholds and columns shared by several dashboards, in the order of queries.target_state and queries.slo_state.
TARGET_STATES = index_mapping(*zip(STATES, (GREEN, GREY, YELLOW, YELLOW, YELLOW, ORANGE, RED, RED), strict=True))
SLO_STATES = index_mapping(("met", GREEN), ("no data", GREY), ("missed", RED))
YES_NO = index_mapping(("no", RED), ("yes", GREEN))
SEVERITIES = {"critical": RED, "warning": ORANGE, "info": GREY}
GOOD_AT_ONE: Steps = ((None, RED), (1, GREEN))
BUDGET_STEPS: Steps = ((None, RED), (0, ORANGE), (0.25, GREEN))
HEADROOM_STEPS: Steps = ((None, RED), (0.1, ORANGE), (0.3, GREEN))


def target_column(**more: Any) -> Column:
    """Table column with the name of the target, linked to its dashboard."""
    return Column("Target", label="target", link=to_target("target"), link_title="The target in detail", **more)
