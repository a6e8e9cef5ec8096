"""The lint of the dashboards: each rule reports a dashboard that breaks it, and selectors are read from PromQL."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from prober.daemon.dashboards import files
from prober.daemon.registry import ALL as ALL_SERIES
from prober.daemon.rules import example_rules
from tools.dashboard_lint.promql import InvalidExpression, Selector, parse
from tools.dashboard_lint.rules import labels_of_series, panels, problems

LABELS = labels_of_series(ALL_SERIES, example_rules())


def overview() -> dict[str, Any]:
    """A new copy of a dashboard without problems."""
    document: dict[str, Any] = json.loads(files()["overview.json"])
    return document


def panel(document: dict[str, Any], place: int = 0) -> dict[str, Any]:
    document_of_panel: dict[str, Any] = panels(document)[place]
    return document_of_panel


def querying(expr: str) -> Callable[[dict[str, Any]], object]:
    return lambda d: panel(d)["targets"][0].update(expr=expr)


def variable(document: dict[str, Any], name: str) -> dict[str, Any]:
    variables: list[dict[str, Any]] = document["templating"]["list"]
    return next(variable for variable in variables if variable["name"] == name)


BROKEN: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a duplicate title": (lambda d: panel(d).update(title="SLOs"), "two panels are called 'SLOs'"),
    "no description": (lambda d: panel(d).update(description="TTFT"), "its description is not a sentence"),
    "no bad values described": (
        lambda d: panel(d).update(description="One two three four five six seven."),
        "its description does not say what bad looks like",
    ),
    "an unknown variable": (
        querying('sum(llmslo_target_state{state=~"$nobody"})'),
        "variable $nobody is used but does not exist",
    ),
    "an unused variable": (
        lambda d: d["templating"]["list"].append({**variable(d, "window"), "name": "idle"}),
        "variable $idle is not used",
    ),
    "no target": (
        lambda d: variable(d, "target").update(name="tgt"),
        "no variable `target`, which links in alerts set",
    ),
    "an override that matches nothing": (
        lambda d: panel(d, 8)["fieldConfig"]["overrides"][0]["matcher"].update(options="limit"),
        "the override for 'limit' matches nothing",
    ),
    "invalid expression": (querying('sum(llmslo_target_state{target="x"}'), "( is not closed"),
    "no series": (querying("vector(1)"), "it selects no series"),
    "an unknown series": (querying('llmslo_ttft_millis{target="x"}'), "no series is called llmslo_ttft_millis"),
    "an unmatched pattern of names": (querying('{__name__=~"llmslo_nothing.+"}'), "no series is called"),
    "no matcher": (querying("sum(llmslo_target_state)"), "llmslo_target_state has no matcher"),
    "an unknown label": (
        querying('llmslo_target_state{workload="x"}'),
        "llmslo_target_state has no label 'workload'",
    ),
    "an unknown grouping label": (
        querying('sum by (phase) (llmslo_target_state{target="x"})'),
        "no series here has the label 'phase'",
    ),
    "a fixed range": (
        querying('rate(llmslo_probes_total{target="x"}[7m])'),
        "the range [7m] is none of $__range, $__rate_interval, $window, 15m, 2h, 5m",
    ),
    "a counter without rate": (
        querying('sum(llmslo_probes_total{target="x"})'),
        "llmslo_probes_total is a counter: use its rate or increase",
    ),
    "in an annotation": (
        lambda d: d["annotations"]["list"][0].update(expr="sum(llmslo_drift_active)"),
        "annotation 'Engine changed': llmslo_drift_active has no matcher",
    ),
    "in a variable": (
        lambda d: variable(d, "workload")["query"].update(query="label_values(llmslo_nothing, workload)"),
        "variable 'workload': no series is called llmslo_nothing",
    ),
}


def closed_row(document: dict[str, Any]) -> dict[str, Any]:
    """The last row of the engine dashboard."""
    row: dict[str, Any] = document["panels"][-1]
    assert row["collapsed"]
    return row


BROKEN_ROWS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "closed without panels": (lambda row: row.update(panels=[]), "[] should be non-empty"),
    "open with panels": (lambda row: row.update(collapsed=False), "is expected to be empty"),
    "a panel without a word": (lambda row: row["panels"][0].update(description="x"), "its description is not"),
    "an unknown series": (
        lambda row: row["panels"][0]["targets"][0].update(expr='DCGM_FI_DEV_GPU_UTILISATION{gpu="0"}'),
        "no series is called DCGM_FI_DEV_GPU_UTILISATION",
    ),
    "an unknown variable in the title": (lambda row: row.update(title="GPUs: $gpu"), "variable $gpu is used"),
    "a title that does not tell": (lambda row: row.update(title="GPUs"), "variable $gpus is not used"),
}


@pytest.mark.parametrize("name", BROKEN_ROWS)
def test_a_broken_closed_row_is_reported(name: str) -> None:
    """Its panels are held to the rules of all others."""
    document: dict[str, Any] = json.loads(files()["engine.json"])
    assert problems(document, LABELS) == []
    change, message = BROKEN_ROWS[name]
    change(closed_row(document))
    messages = problems(document, LABELS)
    assert any(message in text for text in messages), messages


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_dashboard_is_reported(name: str) -> None:
    """Each entry of BROKEN breaks one rule."""
    document = overview()
    change, message = BROKEN[name]
    change(document)
    messages = problems(document, LABELS)
    assert any(message in text for text in messages), messages


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("uid"), "$: 'uid' is a required property"),
        (lambda d: d.update(panel=[]), "$: Additional properties are not allowed ('panel' was unexpected)"),
        (lambda d: panel(d).pop("description"), "$.panels[0]: 'description' is a required property"),
        (lambda d: panel(d).update(type="graph"), "$.panels[0].type: 'graph' is not one of"),
        (lambda d: panel(d)["gridPos"].update(w=25), "$.panels[0].gridPos.w: 25 is greater than the maximum of 24"),
        (lambda d: panel(d)["targets"][0].update(expr=""), "$.panels[0].targets[0].expr: '' should be non-empty"),
        (lambda d: panel(d)["fieldConfig"]["defaults"]["thresholds"]["steps"][0].update(value=0), "steps[0].value"),
        (lambda d: d.update(uid="a b"), "$.uid: 'a b' does not match"),
        (lambda d: d["annotations"]["list"][-1]["datasource"].update(uid="x"), "'-- Grafana --' was expected"),
    ],
)
def test_a_violation_of_the_schema_is_reported_with_its_place(
    change: Callable[[dict[str, Any]], object], message: str
) -> None:
    """Only the schema is checked then."""
    document = overview()
    change(document)
    assert any(message in text for text in problems(document, LABELS))


def test_an_expression_is_read() -> None:
    """Selectors with matchers and range, and the labels of groupings and joins; functions and keywords are neither."""
    expression = parse(
        'max by (a) (rate(x_total{b="1",c!~"d|\\"e"}[$w] offset 1d) / on (f) group_left () y:z:w{} > bool 1.5e3) or {g="h"}'
    )
    assert expression.labels == {"a", "f"}
    assert parse('min by (a, b) (label_join(x{c="d"}, "b", "", "c"))').labels == {"a"}, "it makes the label b itself"
    assert expression.selectors == (
        Selector("x_total", (("b", "=", "1"), ("c", "!~", 'd|\\"e')), "$w"),
        Selector("y:z:w", ()),
        Selector("", (("g", "=", "h"),)),
    )


@pytest.mark.parametrize("text", ["sum(x", "x)", "x{a=b}", "x{a}", "`x`", "x{a='b'}", "(x]"])
def test_an_invalid_expression_is_refused(text: str) -> None:
    """Unbalanced brackets, unknown tokens, and matchers without double quotes."""
    with pytest.raises(InvalidExpression):
        parse(text)
