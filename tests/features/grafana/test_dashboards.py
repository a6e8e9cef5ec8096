"""Dashboards: what is committed is what is generated, it is clean, and each rule of the lint finds what it is for."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from prober.daemon.registry import ALL as ALL_SERIES
from prober.exposition.families import Series
from prober.features.grafana.dashboards import BOARDS, files
from prober.features.grafana.dashboards.board import UIDS
from prober.features.grafana.dashboards.lint import expressions, known, panels, problems
from prober.features.grafana.dashboards.promql import Selector, Unreadable, read
from prober.features.slo.rules import example_rules

ROOT = Path(__file__).parents[3]
KNOWN = known(ALL_SERIES, example_rules())
FILES = files()
CHOSEN = {"$__rate_interval": "5m", "$__range": "3h", "$window": "2h", "$1": "one"}
# What no panel shows, and why.
NOT_SHOWN = {
    "llmslo_gpu_price_dollars_per_hour": "in the cost of 1,000 tokens, by the rules",
    "llmslo_gpu_energy_joules_total": "in the energy of 1,000 tokens, by the rules",
    "llmslo_chunk_gap_seconds": "ITL has the same, divided by the tokens of a chunk; gaps matter with large chunks only",
    "llmslo_sweep_requests_total": "the rate that a sweep adds says when and how much",
    "llmslo_sweep_tokens_total": "as above",
    "llmslo_sweep_period_seconds": "for an alert",
}


def chosen(text: str) -> str:
    """An expression with a reader's choice in the place of every variable."""
    for name, value in CHOSEN.items():
        text = text.replace(name, value)
    return re.sub(r"\$\w+", ".*", text)


def board(name: str = "overview") -> dict[str, Any]:
    """A dashboard of our own to break."""
    document: dict[str, Any] = json.loads(FILES[f"{name}.json"])
    return document


def cli(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "prober", "dashboards", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_what_is_committed_is_what_is_generated_and_clean() -> None:
    """The command says so, and exits with 0."""
    done = cli("check", "--output", ROOT / "dashboards")
    assert (done.returncode, done.stderr) == (0, "")


def test_check_names_what_is_missing_stale_or_foreign(tmp_path: Path) -> None:
    """Each file with what to do; writing again mends the first two."""
    assert cli("write", "--output", tmp_path / "new").returncode == 0
    (tmp_path / "new/overview.json").write_text("{}")
    (tmp_path / "new/slo.json").unlink()
    (tmp_path / "new/mine.json").write_text("{}")
    done = cli("check", "--output", tmp_path / "new")
    assert done.returncode == 1
    assert "overview.json is not what is generated" in done.stderr
    assert "slo.json is missing; `prober dashboards write" in done.stderr
    assert "mine.json is none of the generated dashboards" in done.stderr
    cli("write", "--output", tmp_path / "new")
    assert cli("check", "--output", tmp_path / "new").stderr.count("\n") == 1


def test_an_action_that_is_none_is_a_wrong_call() -> None:
    """With the two there are."""
    done = cli("paint")
    assert done.returncode == 2
    assert "'write', 'check'" in done.stderr


@pytest.mark.parametrize("name", FILES)
def test_each_is_clean(name: str) -> None:
    """By its form and every rule."""
    assert problems(json.loads(FILES[name]), KNOWN) == []


def test_uids_are_those_that_people_have() -> None:
    """Bookmarks and alerts hold them: this list only grows."""
    documents = [json.loads(text) for text in FILES.values()]
    assert [each["uid"] for each in documents] == [
        "llm-slo", "llm-slo-target", "llm-slo-budget", "llm-slo-capacity", "llm-slo-engine", "llm-slo-drift",
    ]  # fmt: skip
    assert len(BOARDS) == len(UIDS)


@pytest.mark.parametrize("name", ["target", "capacity", "engine"])
def test_a_dashboard_of_one_target_bears_a_link_with_all(name: str) -> None:
    """Links bring `target`, all of them if need be; the panels are of `one`, which is among them and is never all."""
    document = board(name)
    brought, one = variable(document, "target"), variable(document, "one")
    assert (brought["multi"], brought["includeAll"]) == (True, True)
    assert (one["multi"], one["includeAll"]) == (False, False)
    assert 'target=~"$target"' in one["query"]["query"]
    assert not [place for place, text in expressions(document) if "$target" in text and place != "variable 'one'"]


def test_links_of_alerts_lead_somewhere() -> None:
    """Every path is a dashboard, every variable one of its own."""
    uids = {each["uid"]: each for each in map(json.loads, FILES.values())}
    for group in yaml.safe_load((ROOT / "deploy/prometheus/rules.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                link = re.search(r"/d/([\w-]+)(?:\?var-(\w+)=)?", rule["annotations"]["dashboard_url"])
                assert link is not None
                names = {variable["name"] for variable in uids[link[1]]["templating"]["list"]}
                assert link[2] is None or link[2] in names


@pytest.mark.parametrize("declared", ALL_SERIES, ids=lambda declared: declared.name)
def test_every_series_is_shown(declared: Series) -> None:
    """On some dashboard, or it is said here why not."""
    text = " ".join(FILES.values())
    recorded = (ROOT / "deploy/prometheus/rules.yaml").read_text()
    if NOT_SHOWN.get(declared.name):
        assert declared.name not in text
        return
    assert declared.name in text or declared.name in recorded, "show it, or say in NOT_SHOWN why not"


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("release", ["2", "3"])
def test_prometheus_reads_every_expression(
    name: str, release: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """promtool of the oldest release that is meant, and of a newer one."""
    promtool = request.getfixturevalue("promtool" if release == "2" else "newer_promtool")
    found = list(expressions(board(name.removesuffix(".json"))))
    assert len(found) > 10
    rules = [{"record": f"x:{place}", "expr": chosen(text)} for place, (_, text) in enumerate(found)]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "x", "rules": rules}]}))
    done = subprocess.run([promtool, "check", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", FILES)
def test_limits_are_those_of_the_signal(name: str) -> None:
    """Whatever their SLOs are called: thresholds are chosen by `signal`, or each is shown beside the name of its own SLO."""
    asked = [
        selector.matchers
        for _, text in expressions(board(name.removesuffix(".json")))
        for selector in read(text).selectors
        if selector.name == "llmslo_slo_threshold_seconds"
    ]
    if name == "slo.json":
        assert [("slo", "=~", "$slo") in matchers for matchers in asked] == [True]
        return
    by = [{label: value for label, _, value in matchers} for matchers in asked]
    assert all("signal" in each and "slo" not in each for each in by)
    assert bool(by) == (name != "drift.json")


@pytest.mark.parametrize("name", FILES)
def test_what_may_explain_a_change_is_marked(name: str) -> None:
    """Sweeps, drift and other engines from the prober's series, deployments from Grafana's own annotations by their tag."""
    marks = {each["name"]: each for each in board(name.removesuffix(".json"))["annotations"]["list"]}
    assert set(marks) == {"Engine changed", "Drift", "Sweep", "Deployment"}
    assert marks["Deployment"]["datasource"] == {"type": "grafana", "uid": "-- Grafana --"}
    assert marks["Deployment"]["target"]["tags"] == ["deployment"]


def panel(document: dict[str, Any], place: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = panels(document)[place]
    return found


def asking(expr: str) -> Callable[[dict[str, Any]], object]:
    return lambda d: panel(d)["targets"][0].update(expr=expr)


def variable(document: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in document["templating"]["list"] if each["name"] == name)
    return found


BROKEN: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "uid": (lambda d: d.update(uid="other"), "uid 'other' is none of those that links know"),
    "tag": (lambda d: d.update(tags=["x"]), "the tag 'llm-slo-prober' is missing"),
    "a link too few": (lambda d: d["links"].pop(0), "no link to /d/llm-slo-target"),
    "a link without time": (
        lambda d: d["links"][0].update(keepTime=False),
        "link 'Target' loses the target or the time",
    ),
    "a link to nowhere": (
        lambda d: panel(d, 5)["fieldConfig"]["overrides"][0]["properties"].append(
            {"id": "links", "value": [{"title": "x", "url": "/d/nowhere?x=1"}]}
        ),
        "a link to /d/nowhere, which is no dashboard of these",
    ),
    "no data source": (lambda d: d["templating"]["list"].pop(0), "no variable `datasource` for a Prometheus"),
    "another data source": (
        lambda d: panel(d).update(datasource={"type": "prometheus", "uid": "P1"}),
        "panel 'Targets failing' has the data source 'P1' instead of ${datasource}",
    ),
    "a query's data source": (
        lambda d: panel(d)["targets"][0].update(datasource={"type": "prometheus", "uid": "P1"}),
        "panel 'Targets failing', query A has the data source 'P1'",
    ),
    "an annotation's": (
        lambda d: d["annotations"]["list"][0].update(datasource={"type": "prometheus", "uid": "P1"}),
        "annotation 'Engine changed' has the data source 'P1'",
    ),
    "a title twice": (lambda d: panel(d).update(title="SLOs"), "two panels are called 'SLOs'"),
    "no sentence": (lambda d: panel(d).update(description="TTFT"), "its description is no sentence"),
    "nothing bad": (
        lambda d: panel(d).update(description="One two three four five six seven."),
        "its description does not say what bad looks like",
    ),
    "a unit": (lambda d: panel(d)["fieldConfig"]["defaults"].update(unit="seconds"), "unit 'seconds' is not known"),
    "over another": (
        lambda d: panel(d, 1)["gridPos"].update(x=2),
        "panel 'SLOs' lies over 'Targets failing'",
    ),
    "beyond the grid": (lambda d: panel(d, 4)["gridPos"].update(x=21), "is wider than the grid"),
    "an id twice": (lambda d: panel(d, 1).update(id=1), "has the id of another one, 1"),
    "repeated beside": (lambda d: panel(d).update(repeat="target"), "is repeated and not alone on its line"),
    "a variable that is not there": (
        asking('sum(llmslo_target_state{state=~"$nobody"})'),
        "variable $nobody is used and not there",
    ),
    "a variable for nothing": (
        lambda d: d["templating"]["list"].append({**variable(d, "window"), "name": "idle"}),
        "variable $idle is there and not used",
    ),
    "no target": (
        lambda d: variable(d, "target").update(name="tgt"),
        "no variable `target`, which the links of alerts set",
    ),
    "an override for nothing": (
        lambda d: panel(d, 8)["fieldConfig"]["overrides"][0]["matcher"].update(options="limit"),
        "the override for 'limit' matches nothing",
    ),
    "a refId twice": (
        lambda d: panel(d)["targets"].append(panel(d)["targets"][0]),
        "two queries have the same refId",
    ),
    "neither instant nor range": (
        lambda d: panel(d)["targets"][0].update(instant=False),
        "query A is both of an instant and of a range, or neither",
    ),
    "unreadable": (asking('sum(llmslo_target_state{target="x"}'), "( is not closed"),
    "no series": (asking("vector(1)"), "it asks for no series"),
    "a series nobody exports": (asking('llmslo_ttft_millis{target="x"}'), "no series is called llmslo_ttft_millis"),
    "a pattern of names": (asking('{__name__=~"llmslo_nothing.+"}'), "no series is called"),
    "no selector": (asking("sum(llmslo_target_state)"), "llmslo_target_state is asked for without a selector"),
    "a label that it has not": (
        asking('llmslo_target_state{workload="x"}'),
        "llmslo_target_state has no label 'workload'",
    ),
    "a grouping that it has not": (
        asking('sum by (phase) (llmslo_target_state{target="x"})'),
        "no series here has the label 'phase'",
    ),
    "a fixed range": (
        asking('rate(llmslo_probes_total{target="x"}[5m])'),
        "the range [5m] is none of $__range, $__rate_interval, $window",
    ),
    "a bare counter": (
        asking('sum(llmslo_probes_total{target="x"})'),
        "llmslo_probes_total is a counter: its rate or increase is wanted",
    ),
    "in an annotation": (
        lambda d: d["annotations"]["list"][0].update(expr="sum(llmslo_drift_active)"),
        "annotation 'Engine changed': llmslo_drift_active is asked for without a selector",
    ),
    "in a variable": (
        lambda d: variable(d, "workload")["query"].update(query="label_values(llmslo_nothing, workload)"),
        "variable 'workload': no series is called llmslo_nothing",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_rule_finds_what_it_is_for(name: str) -> None:
    """A dashboard that is broken in one way is told so."""
    document = board()
    spoil, said = BROKEN[name]
    spoil(document)
    found = problems(document, KNOWN)
    assert any(said in each for each in found), found


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda d: d.pop("uid"), "$: 'uid' is a required property"),
        (lambda d: d.update(panel=[]), "$: Additional properties are not allowed ('panel' was unexpected)"),
        (lambda d: panel(d).pop("description"), "$.panels[0]: 'description' is a required property"),
        (lambda d: panel(d).update(type="graph"), "$.panels[0].type: 'graph' is not one of"),
        (lambda d: panel(d)["gridPos"].update(w=25), "$.panels[0].gridPos.w: 25 is greater than the maximum of 24"),
        (lambda d: panel(d)["targets"][0].update(expr=""), "$.panels[0].targets[0].expr: '' should be non-empty"),
        (lambda d: panel(d)["fieldConfig"]["defaults"]["thresholds"]["steps"][0].update(value=0), "steps[0].value"),
        (lambda d: d.update(uid="a b"), "$.uid: 'a b' does not match"),
        (lambda d: d["annotations"]["list"][3]["datasource"].update(uid="x"), "'-- Grafana --' was expected"),
    ],
)
def test_what_has_not_the_form_of_a_dashboard_is_told(spoil: Callable[[dict[str, Any]], object], said: str) -> None:
    """With its place."""
    document = board()
    spoil(document)
    assert any(said in each for each in problems(document, KNOWN))


def test_an_expression_is_read() -> None:
    """Selectors with what narrows them and their range, and labels that are grouped by; not functions, not words of the language."""
    found = read(
        'max by (a) (rate(x_total{b="1",c!~"d|\\"e"}[$w] offset 1d) / on (f) group_left () y:z:w{} > bool 1.5e3) or {g="h"}'
    )
    assert found.labels == {"a", "f"}
    assert found.selectors == (
        Selector("x_total", (("b", "=", "1"), ("c", "!~", 'd|\\"e')), "$w"),
        Selector("y:z:w", ()),
        Selector("", (("g", "=", "h"),)),
    )


@pytest.mark.parametrize("text", ["sum(x", "x)", "x{a=b}", "x{a}", "`x`", "x{a='b'}", "(x]"])
def test_what_is_no_expression_is_refused(text: str) -> None:
    """As far as can be told without Prometheus; matchers here have double quotes."""
    with pytest.raises(Unreadable):
        read(text)
