"""Rules from a configuration: stable, exact, in both formats, valid for Prometheus 2 and 3."""

import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from prober.daemon.rules import example_rules
from tests.commands import prober
from tests.daemon.promtool import case, expects, groups_of, run, run_cases, slo

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs/examples/prober.yaml"


@cache
def rules(*options: str, config: Path = EXAMPLE) -> subprocess.CompletedProcess[str]:
    return prober("rules", "--config.file", config, *options)


def test_a_file_of_rules_is_checked(tmp_path: Path) -> None:
    """--check passes a file that `prober rules` has written, and reports a difference."""
    written = tmp_path / "rules.yaml"
    assert rules("--output", str(written)).returncode == 0
    assert rules().stdout == written.read_text()
    assert rules("--output", str(written), "--check").returncode == 0
    stale = rules("--output", str(written), "--check", "--label", "team=a")
    assert stale.returncode == 1
    assert f"{written} is out of date with {EXAMPLE}" in stale.stderr


def test_the_operator_format_holds_the_same_groups() -> None:
    """The groups are the spec of a PrometheusRule."""
    document = yaml.safe_load(rules("--format", "operator").stdout)
    assert (document["apiVersion"], document["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert document["spec"] == yaml.safe_load(rules().stdout)


def test_objectives_are_exact() -> None:
    """Rates are the workbook's, without float rounding errors."""
    text = rules().stdout
    assert "> 14.4 * slo:llmslo_budget:ratio" in text
    assert "> 6 * slo:llmslo_budget:ratio" in text
    assert "00000" not in text
    assert "99999" not in text


SELECTOR = 'job="x",env="prod"'


def test_options_reach_every_rule() -> None:
    """Selector, labels and both base URLs are in every rule; the selector also in the queries of texts."""
    found = rules(
        "--selector", SELECTOR, "--label", "team=a", "--label", "tier=gold",
        "--runbook-url", "https://r/", "--dashboard-url", "https://d",
    ).stdout  # fmt: skip
    exported = re.compile(r'(?<![\w:"])(llmslo_\w+|up|process_start_time_seconds)(?![\w:(])')
    for group in yaml.safe_load(found)["groups"]:
        for rule in group["rules"]:
            names = exported.findall(rule["expr"])
            assert rule["expr"].count(SELECTOR) == len(names), rule["expr"]
            if "alert" in rule:
                assert {"team": "a", "tier": "gold"}.items() <= rule["labels"].items()
            if rule["labels"]["severity"] != "none" if "alert" in rule else False:
                notes = rule["annotations"]
                assert notes["runbook_url"] == f"https://r/{rule['alert']}"
                assert notes.get("dashboard_url", "https://d/d/").startswith("https://d/d/")
                asked = " ".join(re.findall(r'printf "((?:[^"\\\\]|\\\\.)*)"', notes["description"]))
                assert asked.count(SELECTOR.replace('"', '\\"')) == len(exported.findall(asked))


def test_without_a_selector_no_rule_depends_on_the_name_of_the_scrape_job() -> None:
    """Series called llmslo_ are nobody else's."""
    assert 'job="' not in rules().stdout
    assert "job=~" not in rules().stdout


def test_no_rule_reads_alerts() -> None:
    """Alertmanager decides which of two alerts about one trouble is sent."""
    assert not [rule for rule in example_rules() if "ALERTS" in rule["expr"] + str(rule.get("annotations"))]


def size(tmp_path: Path, more: str) -> tuple[int, list[dict[str, Any]]]:
    """(bytes of the rules of one target, the rules). more: further lines of the configuration"""
    config = tmp_path / "c.yaml"
    config.write_text(f"targets: [{{url: 'http://h', rate: 0.5/s{more}")
    text = rules(config=config).stdout
    return len(text.encode()), [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def test_rules_are_short_enough_to_be_read(tmp_path: Path) -> None:
    """Of one target and one SLO, and of four SLOs that judge all requests too: bytes, rules, expressions and texts."""
    one, found = size(tmp_path, "}]\nslos: {ttft: {signal: ttft, threshold: 500ms, objective: 99%}}")
    assert one <= 20 * 1024
    assert sum("record" in rule for rule in found) <= 13
    assert sum("alert" in rule for rule in found) <= 18
    lengths = sorted(len(rule["expr"]) for rule in found)
    assert lengths[-2] <= 900
    assert lengths[-1] <= 1250, "the join of GPU exporters, once for all panels"
    texts = [text for rule in found for text in rule.get("annotations", {}).values()]
    assert max(map(len, texts)) <= 700
    assert max(text.count("| query") for text in texts) <= 2
    slos = "".join(
        f"  {name}: {{signal: {name}, threshold: 500ms, objective: 99%}}\n" for name in ("ttft", "tpot", "itl", "e2e")
    )
    four, _ = size(tmp_path, f", metrics: {{slos: [ttft, tpot, itl, e2e]}}}}]\nslos:\n{slos}")
    assert four <= 60 * 1024


def test_a_malformed_label_is_an_error() -> None:
    """The error shows the expected form."""
    done = rules("--label", "team")
    assert (done.returncode, done.stderr) == (
        2,
        "prober rules: --label 'team': write NAME=VALUE, such as team=inference\n",
    )


def test_an_alert_that_cannot_fire_is_an_error(tmp_path: Path) -> None:
    """The error has path, figures and remedy; no file is written."""
    config = tmp_path / "c.yaml"
    config.write_text("slos: {ok: {signal: success, objective: 90%}}\ntargets: [{url: http://h}]")
    done = rules("--output", str(tmp_path / "out"), config=config)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{config}: slos.ok: h, workload probe: its alert cannot fire: burn rate 14.4")
    assert not (tmp_path / "out").exists()
    assert prober("check", "--config.file", config).returncode == 1


def test_check_shows_the_bad_probes_that_fire_each_alert() -> None:
    """`check` prints the table."""
    done = prober("check", "--config.file", EXAMPLE)
    assert "104 of 720 in 1h" in done.stdout


@pytest.mark.parametrize("release", ["promtool", "newer_promtool"])
def test_the_rules_are_valid_in_prometheus_2_and_3(
    release: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """promtool accepts the rules and a burn alert fires in both versions."""
    promtool: Path = request.getfixturevalue(release)
    everything = tmp_path / "all.yaml"
    everything.write_text(rules().stdout)
    run(promtool, "check", everything)
    pages = 'count(ALERTS{alertname="LLMErrorBudgetBurn",alertstate="firing",severity="critical"})'
    burning = case(slo("ttft", "0+12x30", "0+6x30"), promql_expr_test=[expects(pages, "20m", {"": 1})])
    run_cases(promtool, tmp_path, groups_of(everything), [burning])
