"""A dashboard around its panels: grid, variables, links to the others, annotations."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prober.features.grafana.dashboards.panels import SOURCE, Json, Panel

TAG = "llm-slo-prober"
COLUMNS = 24
# Addresses of dashboards never change: alerts and people's bookmarks hold them.
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
DEFAULT_WINDOW = "2h"  # the first that holds a thousand samples at the default of 0.2 probes a second

Rows = Mapping[str, Sequence[Panel]]


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard. one_target: its panels are of one target at a time; rows: titles of rows and what they hold.

    Links take `target` along, which may be several or all. A dashboard of one target has `one` besides, the first of them unless
    chosen: a variable of one value would take "all" from a link as the name of a target.
    """

    name: str
    text: str
    rows: Rows
    one_target: bool = False
    variables: tuple[str, ...] = ("target", "workload", "window")

    def as_json(self) -> Json:
        """As Grafana imports it."""
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
            "annotations": {"list": self._of_one(_annotations())},
            "templating": {"list": self._variables()},
            "panels": self._of_one(placed(self.rows)),
        }

    def _of_one(self, parts: list[Json]) -> list[Json]:
        found: list[Json] = json.loads(json.dumps(parts).replace("$target", "$one")) if self.one_target else parts
        return found

    def _variables(self) -> list[Json]:
        known = {
            "target": _targets("Targets" if self.one_target else "Target"),
            "workload": _labels(
                "workload", "Workload", 'label_values(llmslo_probes_total{target=~"$target"}, workload)'
            ),
            "slo": _labels("slo", "SLO", 'label_values(llmslo_slo_objective_ratio{target=~"$target"}, slo)'),
            "instance": _labels("instance", "Prober", 'label_values(llmslo_build_info{version!=""}, instance)'),
            "window": _window(),
        }
        chosen = [known[name] for name in self.variables]
        if self.one_target:
            chosen = [chosen[0], _one(), *self._of_one(chosen[1:])]
        return [_source(), _model(), *chosen]


def placed(rows: Rows) -> list[Json]:
    """Panels from left to right, in a new line when one is full; a line is as high as its highest panel."""
    found: list[Json] = []
    y = 0
    for title, panels in rows.items():
        if title:
            found.append(_row(len(found) + 1, title, y))
            y += 1
        x = height = 0
        for panel in panels:
            if x + panel.width > COLUMNS or (panel.repeat and x):
                x, y, height = 0, y + height, 0
            found.append(panel.as_json(len(found) + 1, x, y))
            x, height = x + (COLUMNS if panel.repeat else panel.width), max(height, panel.height)
        y += height
    return found


def _row(number: int, title: str, y: int) -> Json:
    place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _link(name: str) -> Json:
    """To the same target at the same time."""
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
    """An address for a link in a table: another dashboard with the row's target, at the time shown, from the same source."""
    return f"/d/{UIDS[name]}?var-target={value}&${{__url_time_range}}&${{datasource:queryparam}}"


def _annotations() -> list[Json]:
    every = "$__rate_interval"
    return [
        _annotation(
            "Engine changed",
            "purple",
            f'sum by (target, what) (increase(llmslo_engine_changes_total{{target=~"$target"}}[{every}])) > 0',
            "{{target}}: {{what}}",
        ),
        _annotation(
            "Drift",
            "orange",
            'max by (target, workload, signal, cause) (llmslo_drift_active{target=~"$target"}) == 1',
            "{{target}}, {{workload}}: {{signal}} is slower than its baseline ({{cause}})",
        ),
        _annotation(
            "Sweep",
            "blue",
            'max by (target) (llmslo_sweep_rate_per_second{target=~"$target"}) > 0',
            "{{target}}: a sweep adds load",
        ),
        _deployments(),
    ]


def _deployments() -> Json:
    """What others have marked in Grafana itself, by its tag: a rollout's pipeline, or a person."""
    return {
        "name": "Deployment",
        "datasource": {"type": "grafana", "uid": "-- Grafana --"},
        "enable": True,
        "hide": False,
        "iconColor": "green",
        "target": {"type": "tags", "tags": ["deployment"], "matchAny": True, "limit": 100},
    }


def _annotation(name: str, color: str, expr: str, text: str) -> Json:
    """The query stands twice, since releases of Grafana read it from different places."""
    return {
        "name": name,
        "datasource": SOURCE,
        "enable": True,
        "hide": False,
        "iconColor": color,
        "expr": expr,
        "step": "60s",
        "target": {"refId": "Anno", "expr": expr, "interval": "60s", "instant": False, "range": True},
        "titleFormat": name,
        "textFormat": text,
        "tagKeys": "target",
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


def _asked(name: str, label: str, query: str, regex: str, form: int, one: bool, every: str) -> Json:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery", "qryType": form},
        "definition": query,
        "regex": regex,
        "refresh": 2,  # when the time range changes: targets come and go
        "sort": 1,
        "hide": 0,
        "multi": not one,
        "includeAll": not one,
        "options": [],
        **({"current": {}} if one else {"allValue": every, "current": {"text": ["All"], "value": ["$__all"]}}),
    }


def _labels(name: str, label: str, query: str) -> Json:
    return _asked(name, label, query, "", 1, one=False, every=".*")


def _model() -> Json:
    query = 'label_values(llmslo_engine_info{target!=""}, model)'
    return _asked("model", "Model", query, "", 1, one=False, every=".*")


def _one() -> Json:
    query = 'query_result(group by (target) (llmslo_target_state{target=~"$target"}))'
    return _asked("one", "Target", query, '/target="([^"]+)"/', 3, one=True, every="")


def _targets(label: str) -> Json:
    """Those of the chosen models; one whose engine does not say its model belongs to every choice."""
    others = 'llmslo_engine_info{model!~"$model"}'
    query = f'query_result(group by (target) (llmslo_target_state{{target!=""}}) unless on (target) {others})'
    return _asked("target", label, query, '/target="([^"]+)"/', 3, one=False, every=".*")


def _window() -> Json:
    options = [{"text": each, "value": each, "selected": each == DEFAULT_WINDOW} for each in WINDOWS]
    return {
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
    }
