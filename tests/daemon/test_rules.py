"""Rules from a configuration: stable, exact, in both formats, valid for Prometheus 2 and 3."""

import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml

from prober.daemon.rules import example_rules
from tests.commands import prober
from tests.daemon.promtool import TARGET, case, groups_of, run, run_cases, slo

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "deploy/prober.yaml"


@cache
def rules(*options: str, config: Path = EXAMPLE) -> subprocess.CompletedProcess[str]:
    return prober("rules", "--config.file", config, *options)


def test_the_committed_rules_are_up_to_date() -> None:
    """`prober rules` reproduces the committed file; --check reports a difference."""
    committed = ROOT / "deploy/prometheus/rules.yaml"
    assert rules().stdout == committed.read_text()
    assert rules("--output", str(committed), "--check").returncode == 0
    stale = rules("--output", str(committed), "--check", "--label", "team=a")
    assert stale.returncode == 1
    assert f"{committed} is out of date with {EXAMPLE}" in stale.stderr


def test_the_operator_format_holds_the_same_groups() -> None:
    """The groups are the spec of a PrometheusRule."""
    document = yaml.safe_load(rules("--format", "operator").stdout)
    assert (document["apiVersion"], document["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert document["spec"] == yaml.safe_load(rules().stdout)


def test_objectives_are_exact() -> None:
    """Thresholds have no float rounding errors: 14.4 x 0.5% is 0.072."""
    text = rules().stdout
    assert "> bool 0.144)" in text
    assert "> bool 0.072)" in text
    assert "0.0719" not in text
    assert "00000" not in text


def test_options_reach_every_rule() -> None:
    """Selector, labels and both base URLs are in every rule."""
    found = rules(
        "--job-selector", 'job="x",env="prod"', "--label", "team=a", "--label", "tier=gold",
        "--runbook-url", "https://r/", "--dashboard-url", "https://d",
    ).stdout  # fmt: skip
    for group in yaml.safe_load(found)["groups"]:
        for rule in group["rules"]:
            for part in ("llmslo_slo_events_total{", "llmslo_drift_active{", "up{"):
                assert rule["expr"].count(part) == rule["expr"].count(part + 'job="x",env="prod"')
            if "alert" in rule:
                assert {"team": "a", "tier": "gold"}.items() <= rule["labels"].items()
                assert rule["annotations"]["runbook_url"] == f"https://r/{rule['alert']}"
                assert rule["annotations"]["dashboard_url"].startswith("https://d/d/")


def test_one_slo_takes_at_most_20_recording_rules() -> None:
    """With those of latencies and GPUs; and one alert of each name and severity. All requests take 11 more."""
    found = [rule for rule in example_rules() if "record" in rule]
    records = [rule for rule in found if rule.get("labels", {}).get("source") != "traffic"]
    alerts = [(rule["alert"], rule["labels"]["severity"]) for rule in example_rules() if "alert" in rule]
    assert len(records) <= 20
    assert len(found) - len(records) <= 11
    assert len(alerts) == len(set(alerts))


def test_a_malformed_label_is_an_error() -> None:
    """The error shows the expected form."""
    done = rules("--label", "team")
    assert (done.returncode, done.stderr) == (2, "--label 'team': write NAME=VALUE, such as team=inference\n")


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
    """`check` prints the table and warns if an SLO window is longer than Prometheus's default retention."""
    done = prober("check", "--config.file", EXAMPLE)
    assert "104 of 720 in 1h" in done.stdout
    assert "warning: its window of 30d is longer than the 15d" in done.stdout
    assert "slos.quality: warning" not in done.stdout


@pytest.mark.parametrize("release", ["promtool", "newer_promtool"])
def test_the_rules_are_valid_in_prometheus_2_and_3(
    release: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """promtool accepts the rules and a burn alert fires in both versions."""
    promtool: Path = request.getfixturevalue(release)
    everything = tmp_path / "all.yaml"
    everything.write_text(rules().stdout)
    run(promtool, "check", everything)
    expected = {
        "expr": 'count(ALERTS{alertname="LLMErrorBudgetBurn",alertstate="firing",severity="critical"})',
        "eval_time": "20m",
        "exp_samples": [{"labels": "{}", "value": 1}],
    }
    run_cases(
        promtool, tmp_path, groups_of(everything), [case(slo("ttft", "0+12x30", "0+6x30"), promql_expr_test=[expected])]
    )


@pytest.mark.parametrize(
    ("gpus", "per_gpu", "dollars"),
    [
        ({f'llmslo_gpu_info{{{TARGET},gpu="{gpu}"}}': "1x20" for gpu in (0, 1)}, 50.0, 2 * 3.6 / 3600 * 1000 / 100),
        ({f"llmslo_gpus{{{TARGET}}}": "4x20"}, 25.0, 4 * 3.6 / 3600 * 1000 / 100),
        (
            {f"llmslo_gpus{{{TARGET}}}": "4x20", f'llmslo_gpu_info{{{TARGET},gpu="0"}}': "1x20"},
            25.0,
            4 * 3.6 / 3600 * 1000 / 100,
        ),
        ({}, None, None),
    ],
)
def test_tokens_and_cost_per_gpu(
    promtool: Path, tmp_path: Path, gpus: dict[str, str], per_gpu: float | None, dollars: float | None
) -> None:
    """By the configured number of GPUs, else by those that the prober sees; without either there is no figure."""
    series = {
        f"llmslo_engine_generation_tokens_total{{{TARGET}}}": "0+6000x20",
        f"llmslo_gpu_price_dollars_per_hour{{{TARGET}}}": "3.6x20",
    }
    expected = [
        {
            "expr": name,
            "eval_time": "20m",
            "exp_samples": []
            if value is None
            else [{"labels": f'{name}{{target="llama"}}', "value": round(value, 12)}],
        }
        for name, value in (
            ("target:llmslo_engine_generation_tokens_per_gpu:rate5m", per_gpu),
            ("target:llmslo_gpu_cost_dollars_per_1k_tokens:rate5m", dollars),
        )
    ]
    groups = groups_of(ROOT / "deploy/prometheus/rules.yaml")
    run_cases(promtool, tmp_path, groups, [case(series | gpus, name="gpus", promql_expr_test=expected)])
