"""Targets of one name in two clusters, and labels of targets on their alerts, in `promtool test rules`.

What a user of Prometheus expects was written down first: a cluster's trouble is its own, whatever its neighbour of the same name
does, and an alert bears the labels by which Alertmanager routes.
"""

import re
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from prober.daemon.configuration_file import read_config
from prober.daemon.rules import example_rules, groups
from prober.exposition.alerting import RuleOptions, with_group_labels
from prober.features.slo import messages
from tests.daemon.alert_scenes import BURN, QUIET, SCENES, Scene, failing, series_of, silent
from tests.daemon.promtool import Rules, Series, case, run_cases, slo
from tests.daemon.test_alerts import play

SELECTOR = RuleOptions().selector
OPTIONS = RuleOptions(group_labels=("cluster",), target_labels=("team",))
CONFIGURATION = read_config(str(Path(__file__).parents[2] / "deploy/prober.yaml"))
USES, TRAFFIC = CONFIGURATION.uses(), CONFIGURATION.traffic_slos()
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
        {
            "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing",{more}}})',
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": "{}", "value": count}] if count else [],
        }
        for more, count in expected.items()
    ]


def rules_of(options: RuleOptions) -> list[Rules]:
    return [group for group in groups(USES, options) if group["name"] in ("llm-slo-ttft", "llm-slo-prober")]


def test_equal_names_of_two_clusters_never_merge_and_alerts_bear_the_team(promtool: Path, tmp_path: Path) -> None:
    """A cluster whose target burns its budget, or fails, is paged for; its healthy neighbour neither hides it nor is blamed."""
    burning = of("berlin", "search", BAD) | of("delhi", "chat", GOOD)
    broken = of("berlin", "search", FAILING["berlin"]) | of("delhi", "chat", FAILING["delhi"])
    cases = [
        case(
            burning,
            promql_expr_test=count_firing(
                BURN,
                60,
                {
                    'severity="critical",cluster="berlin",team="search"': 1,
                    'cluster="delhi"': 0,
                    'team="chat"': 0,
                },
            ),
        ),
        case(
            broken,
            promql_expr_test=count_firing(
                "LLMTargetFailing", 30, {'cluster="berlin",team="search"': 1, 'cluster="delhi"': 0, 'cluster=""': 0}
            ),
        ),
    ]
    run_cases(promtool, tmp_path, rules_of(OPTIONS), cases)


def test_every_alert_fires_for_its_own_cluster_only(promtool: Path, tmp_path: Path) -> None:
    """In its first scene, as it does alone, beside a healthy neighbour of the same name, for which it is silent. Scenes of hours are
    left out for their time, and one for which the neighbour has no rules either."""
    quiet = of("delhi", "chat", QUIET)
    played: dict[str, list[Scene]] = {}
    for alert, scenes in SCENES.items():
        firing = (scene for scene in scenes if scene.is_firing and scene.minute <= 60)
        for scene in islice((scene for scene in firing if scene.labels.get("slo") != "added"), 1):
            series = of("berlin", "search", scene.series) | quiet
            own = replace(scene, series=series, labels=scene.labels | {"cluster": "berlin"})
            played[alert] = [own, silent(scene.text, scene.minute, series, cluster="delhi")]
    assert len(played) >= 22
    play(promtool, tmp_path, lambda minutes: groups(USES, replace(OPTIONS, slow_s=60 * minutes), TRAFFIC), played)


def test_without_the_labels_they_merge(promtool: Path, tmp_path: Path) -> None:
    """Why the option exists: a hundred times the traffic of the neighbour hides the trouble."""
    burning = of("berlin", "search", BAD) | of("delhi", "chat", GOOD)
    run_cases(
        promtool,
        tmp_path,
        rules_of(RuleOptions()),
        [case(burning, promql_expr_test=count_firing(BURN, 60, {'slo="ttft"': 0}))],
    )


def test_a_target_without_the_label_is_paged_for_as_well(promtool: Path, tmp_path: Path) -> None:
    """As one that was declared before the label was thought of."""
    cases = [case(BAD, promql_expr_test=count_firing(BURN, 60, {'severity="critical",team=""': 1}))]
    run_cases(promtool, tmp_path, rules_of(OPTIONS), cases)


def test_an_alert_speaks_of_its_own_cluster(promtool: Path, tmp_path: Path) -> None:
    """What it looks up about the target is not its namesake's: engine, failures and latency."""
    reasons = {"berlin": "http_503", "delhi": "timeout"}
    series: Series = {}
    for cluster, engine in (("berlin", "vllm"), ("delhi", "sglang")):
        known = series_of("engine_info", "1+0x60", engine=engine, version="1")
        known |= series_of("probe_failures_total", "0+60x60", workload="w", reason=reasons[cluster])
        series |= of(cluster, "search", FAILING[cluster] | known)
    rule = {
        "alert": "A",
        "expr": 'llmslo_target_state{state="failing"} == 1',
        "annotations": {"says": messages.engine(SELECTOR)},
    }
    rules = [{"name": "all", "rules": [with_group_labels(rule, OPTIONS)]}]
    labels = {"job": "llm-slo-prober", "instance": "a", "target": "llama", "state": "failing"}
    expected = {
        "eval_time": "30m",
        "alertname": "A",
        "exp_alerts": [
            {
                "exp_labels": labels | {"cluster": "berlin", "team": "search"},
                "exp_annotations": {"says": " Engine: vllm 1."},
            }
        ],
    }
    run_cases(promtool, tmp_path, rules, [case(series, alert_rule_test=[expected])])


def test_a_burn_speaks_of_its_own_cluster(promtool: Path, tmp_path: Path) -> None:
    """Its share, number of events and window are not those of its namesake with more data and a hundred times the probes."""
    series = of("berlin", "search", slo("ttft", "_x48 0+12x72", "_x48 0+6x72")) | of("delhi", "chat", GOOD)
    rules = [rule for group in rules_of(OPTIONS) for rule in group["rules"]]
    (rule,) = (rule for rule in rules if rule.get("alert") == BURN)
    rule["annotations"] = {"says": rule["annotations"]["description"].partition(" (TTFT")[0] + "{{ end }}"}
    labels = rule["labels"] | {"target": "llama", "workload": "probe", "cluster": "berlin", "team": "search"}
    text = "50% of about 144 events of workload probe in the last 12m 0s were bad, and 50% of those in the last 5m"
    expected = {
        "eval_time": "60m",
        "alertname": BURN,
        "exp_alerts": [{"exp_labels": labels, "exp_annotations": {"says": text}}],
    }
    run_cases(promtool, tmp_path, [{"name": "all", "rules": rules}], [case(series, alert_rule_test=[expected])])


@pytest.mark.parametrize("indexed", [True, False])
def test_every_look_up_is_of_one_cluster(indexed: bool) -> None:
    """The values stay in the order of their places."""
    of_target = "target=%[1]q,workload=%[2]q" if indexed else "target=%q,workload=%q"
    rule = {
        "expr": "x",
        "annotations": {"d": f'{{{{ printf "x{{{of_target}}}" $labels.target $labels.workload | query }}}}'},
    }
    text = with_group_labels(rule, RuleOptions(group_labels=("a", "b")))["annotations"]["d"]
    assert text == (
        '{{ printf "x{target=%[1]q,b=%[4]q,a=%[3]q,workload=%[2]q}" $labels.target $labels.workload $labels.a $labels.b | query }}'
        if indexed
        else '{{ printf "x{target=%q,b=%q,a=%q,workload=%q}" $labels.target $labels.b $labels.a $labels.workload | query }}'
    )


def test_no_rule_sums_over_clusters() -> None:
    """Neither in an expression, nor in what a text looks up by the target's name."""
    for rule in [with_group_labels(each, OPTIONS) for each in example_rules()]:
        clauses = re.findall(r"\b(?:by|on) \(([^()]*)\)", rule["expr"])
        assert all("cluster" in clause for clause in clauses), rule["expr"]
        assert all("team" in clause for clause in clauses if "target" in clause), rule["expr"]
        assert not re.search(r"\b(?:sum|min|max|avg|count|group)\(", rule["expr"]), rule["expr"]
        for text in rule.get("annotations", {}).values():
            assert text.count("target=%") == text.count("cluster=%"), text


def test_the_dashboard_opens_with_the_alerts_own_cluster() -> None:
    """Also of alerts without a target; of labels that no dashboard chooses by there is nothing in the link."""
    for group in groups(USES, RuleOptions(group_labels=("cluster", "region")), TRAFFIC):
        for rule in group["rules"]:
            if "alert" in rule:
                url = rule["annotations"]["dashboard_url"]
                assert url.count("var-cluster={{ $labels.cluster | urlquery }}&") == 1, url
                assert "region" not in url


def test_rules_without_labels_are_as_they_were() -> None:
    """Not a character changes for those who need none."""
    for rule in example_rules():
        assert with_group_labels(rule, RuleOptions()) is rule
