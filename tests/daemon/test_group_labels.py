"""Targets of one name in two clusters, and labels of targets on their alerts, in `promtool test rules`.

What a user of Prometheus expects was written down first: a cluster's trouble is its own, whatever its neighbour of the same name
does, and an alert bears the labels by which Alertmanager routes.
"""

import re
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from prober.daemon.rules import example_rules, groups
from prober.exposition.alerting import RuleOptions, with_options
from tests.daemon.alert_scenes import BURN, QUIET, SCENES, Scene, failing, series_of, silent
from tests.daemon.promtool import Rules, Series, alerts, case, expects, run_cases, slo
from tests.daemon.test_alerts import play

OPTIONS = RuleOptions(group_labels=("cluster",), target_labels=("team",))
WITH_PLACES = replace(OPTIONS, has_several_probers=True)
BAD = slo("ttft", "0+12x120", "0+6x120")  # half of the events
GOOD = slo("ttft", "0+1200x120", "0+0x120")  # a hundred times as many
FAILING = {"berlin": failing("1+0x120"), "delhi": failing("0+0x120")}


def of(cluster: str, team: str, series: Series) -> Series:
    """The series as the prober of a cluster exports them, whose address is that of the other cluster's."""
    return {
        re.sub(r"}$", f',cluster="{cluster}"' + (f',team="{team}"' if "target=" in name else "") + "}", name): values
        for name, values in series.items()
    }


def count_firing(name: str, minute: int, expected: dict[str, int]) -> list[dict[str, Any]]:
    """Expectation of how many alerts of that name fire, by what follows the name of the alert in the selector."""
    return [
        expects(
            f'count(ALERTS{{alertname="{name}",alertstate="firing",{more}}})',
            f"{minute}m",
            {"": count} if count else {},
        )
        for more, count in expected.items()
    ]


def rules_of(options: RuleOptions) -> list[Rules]:
    return [group for group in groups(None, options) if group["name"] in ("llm-slo-probes", "llm-slo-prober")]


def test_equal_names_of_two_clusters_never_merge_and_alerts_bear_the_team(promtool: Path, tmp_path: Path) -> None:
    """A cluster whose target burns its budget, or fails, is paged for; its healthy neighbour neither hides it nor is blamed."""
    burning = of("berlin", "search", BAD) | of("delhi", "chat", GOOD)
    broken = of("berlin", "search", FAILING["berlin"]) | of("delhi", "chat", FAILING["delhi"])
    burns = {'severity="critical",cluster="berlin",team="search"': 1, 'cluster="delhi"': 0, 'team="chat"': 0}
    fails = {'cluster="berlin",team="search"': 1, 'cluster="delhi"': 0, 'cluster=""': 0}
    cases = [
        case(burning, promql_expr_test=count_firing(BURN, 60, burns)),
        case(broken, promql_expr_test=count_firing("LLMTargetFailing", 30, fails)),
    ]
    run_cases(promtool, tmp_path, rules_of(OPTIONS), cases)


def test_every_alert_fires_for_its_own_cluster_only(promtool: Path, tmp_path: Path) -> None:
    """In its first scene, as it does alone, beside a healthy neighbour of the same name, for which it is silent. Scenes of hours are
    left out for their time, and one for which the neighbour has no rules either."""
    quiet = of("delhi", "chat", QUIET)
    played: dict[str, list[Scene]] = {}
    for alert, scenes in SCENES.items():
        firing = (scene for scene in scenes if scene.is_firing and scene.minute <= 60)
        for scene in islice(firing, 1):
            series = of("berlin", "search", scene.series) | quiet
            own = replace(scene, series=series, labels=scene.labels | {"cluster": "berlin"})
            played[alert] = [own, silent(scene.text, scene.minute, series, cluster="delhi")]
    assert len(played) >= 22
    play(promtool, tmp_path, lambda minutes: groups(None, replace(WITH_PLACES, slow_s=60 * minutes)), played)


def test_without_the_labels_they_merge(promtool: Path, tmp_path: Path) -> None:
    """Why the option exists: a hundred times the traffic of the neighbour hides the trouble."""
    burning = of("berlin", "search", BAD) | of("delhi", "chat", GOOD)
    cases = [case(burning, promql_expr_test=count_firing(BURN, 60, {'slo="ttft"': 0}))]
    run_cases(promtool, tmp_path, rules_of(RuleOptions()), cases)


def test_a_target_without_the_label_is_paged_for_as_well(promtool: Path, tmp_path: Path) -> None:
    """As one that was declared before the label was thought of."""
    cases = [case(BAD, promql_expr_test=count_firing(BURN, 60, {'severity="critical",team=""': 1}))]
    run_cases(promtool, tmp_path, rules_of(OPTIONS), cases)


def test_an_alert_speaks_of_its_own_cluster(promtool: Path, tmp_path: Path) -> None:
    """Its events, what happens and the server's words are not those of its namesake with a hundred times the probes."""
    series: Series = {}
    for cluster, team, events in (("berlin", "search", BAD), ("delhi", "chat", GOOD)):
        cause = series_of(
            "cause_since_timestamp_seconds", "1+0x120", cause="c", state="confirmed", text=f"words of {cluster}"
        )
        series |= of(cluster, team, events | cause)
    rules = [rule for group in rules_of(OPTIONS) for rule in group["rules"]]
    (rule,) = (rule for rule in rules if rule.get("alert") == BURN)
    rule["annotations"] = {"says": rule["annotations"]["description"].partition(" Burns")[0]}
    labels = rule["labels"] | {
        "target": "llama",
        "workload": "probe",
        "slo": "ttft",
        "cluster": "berlin",
        "team": "search",
    }
    text = "Last 5 min: 30 of 60 events bad. confirmed: words of berlin (since 1970-01-01 00:00:01 +0000 UTC)."
    expected = alerts(BURN, "60m", labels, {"says": text})
    run_cases(promtool, tmp_path, [{"name": "all", "rules": rules}], [case(series, alert_rule_test=[expected])])


def test_every_look_up_is_of_one_cluster() -> None:
    """The values stay in the order of their places."""
    query = '{{ printf "x{target=%[1]q,workload=%[2]q} or y{target=%[1]q}" $labels.target $labels.workload | query }}'
    rule = {"expr": "x", "annotations": {"d": query}}
    text = with_options(rule, RuleOptions(group_labels=("a", "b")))["annotations"]["d"]
    assert text == (
        '{{ printf "x{target=%[1]q,b=%[4]q,a=%[3]q,workload=%[2]q} or y{target=%[1]q,b=%[4]q,a=%[3]q}" '
        "$labels.target $labels.workload $labels.a $labels.b | query }}"
    )


def test_no_rule_sums_over_clusters() -> None:
    """Neither in an expression, nor in what a text looks up by the target's name."""
    for rule in [with_options(each, OPTIONS) for each in example_rules()]:
        clauses = re.findall(r"\b(?:by|on) \(([^()]*)\)", rule["expr"])
        assert all("cluster" in clause for clause in clauses), rule["expr"]
        assert all("team" in clause for clause in clauses if "target" in clause), rule["expr"]
        assert not re.search(r"\b(?:sum|min|max|avg|count|group)\(", rule["expr"]), rule["expr"]
        for text in rule.get("annotations", {}).values():
            assert text.count("target=%") == text.count("cluster=%"), text


def test_the_dashboard_opens_with_the_alerts_own_cluster() -> None:
    """Of labels that no dashboard chooses by there is nothing in the link."""
    for group in groups(None, RuleOptions(dashboard_url="http://g", group_labels=("cluster", "region"))):
        for rule in group["rules"]:
            if "dashboard_url" in rule.get("annotations", {}):
                url = rule["annotations"]["dashboard_url"]
                assert url.count("var-cluster={{ $labels.cluster | urlquery }}&") == 1, url
                assert "region" not in url


def test_rules_without_labels_are_as_they_were() -> None:
    """Not a character changes for those who need none."""
    for rule in example_rules():
        assert with_options(rule, RuleOptions()) == rule
