"""`promtool` on rules, and the series of one target that the tests write."""

import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

Series = dict[str, str]  # values in promtool's notation, one a minute, by series
Rules = dict[str, Any]

JOB = 'job="llm-slo-prober",instance="a"'
TARGET = f'{JOB},target="llama"'
PROBE = f'{TARGET},workload="probe"'
GOLDEN = f'{TARGET},workload="golden"'


def slo(name: str, events: str, bad: str) -> Series:
    """Counters and declaration of one SLO."""
    values, stale, _ = events.partition(" stale")
    count = sum(int(part.rsplit("x", 1)[1]) + 1 if "x" in part else 1 for part in values.split())
    found = {
        f'llmslo_slo_events_total{{{PROBE},slo="{name}"}}': events,
        f'llmslo_slo_bad_events_total{{{PROBE},slo="{name}"}}': bad,
        f'llmslo_slo_objective_ratio{{{PROBE},slo="{name}"}}': f"0.99+0x{count - 1}{stale}",
    }
    if name == "itl":
        found[f'llmslo_slo_events_per_probe{{{PROBE},slo="itl"}}'] = f"48+0x{count - 1}{stale}"
    return found


def traffic(name: str, events: str, bad: str) -> Series:
    """The same of all requests of the engine, and the bound that they are judged by."""
    of_probes = {series.replace(',workload="probe"', ""): values for series, values in slo(name, events, bad).items()}
    found = {series.replace("llmslo_slo_", "llmslo_slo_traffic_"): values for series, values in of_probes.items()}
    bound = next(values for series, values in found.items() if "objective" in series).replace("0.99", "0.5")
    return found | {f'llmslo_slo_traffic_threshold_seconds{{{TARGET},slo="{name}"}}': bound}


def headroom(values: str, *bounds: str, by: str = "headroom_ratio") -> Series:
    """Of these bounds, or else of the estimate and the upper bound alike."""
    figures = {f'llmslo_{by}{{{TARGET},bound="{bound}"}}': values for bound in bounds or ("estimate", "upper")}
    return figures | {f'llmslo_target_state{{{TARGET},state="failing"}}': "0+0x300"}


def sweeping(values: str) -> Series:
    return {f"llmslo_sweep_rate_per_second{{{TARGET}}}": values}


def exhausted(values: str, bound: str = "estimate") -> Series:
    return {f'llmslo_capacity_exhaustion_timestamp_seconds{{{TARGET},bound="{bound}"}}': values}


def swept(success: str = "", period: str = "21600+0x2000") -> Series:
    """Series of a target with a sweep every six hours; success: Unix seconds of the last capacity."""
    last = {f"llmslo_sweep_last_success_timestamp_seconds{{{TARGET}}}": success} if success else {}
    return last | ({f"llmslo_sweep_period_seconds{{{TARGET}}}": period} if period else {})


def case(series: Series, **expected: Any) -> dict[str, Any]:
    """One test of `promtool test rules`. expected: its `promql_expr_test` or `alert_rule_test`, and `name`."""
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    return {"interval": "1m", "input_series": inputs, **expected}


def expects(expr: str, at: str, samples: dict[str, float]) -> dict[str, Any]:
    """Expectation of a case: the series that the expression has at that time, by their labels, and no other."""
    expected = [{"labels": f"{{{labels}}}", "value": float(value)} for labels, value in samples.items()]
    return {"expr": expr, "eval_time": at, "exp_samples": expected}


def alerts(name: str, at: str, labels: dict[str, str], notes: dict[str, str]) -> dict[str, Any]:
    """Expectation of a case: the one alert of that name that fires at that time, with its labels and annotations."""
    fired = {"exp_labels": labels, "exp_annotations": notes}
    return {"eval_time": at, "alertname": name, "exp_alerts": [fired]}


def groups_of(rules: Path) -> list[Rules]:
    """The groups of a file of rules."""
    groups: list[Rules] = yaml.load(rules.read_text(), yaml.CSafeLoader)["groups"]
    return groups


def write_cases(folder: Path, groups: list[Rules], cases: Iterable[dict[str, Any]], interval: str = "1m") -> Path:
    """The file of these cases for `promtool test rules` on groups of rules.

    Annotations, whose queries promtool asks at each step of an alert, are left out where no case expects them: most of its time. The
    links to a prober are left out always: tests/e2e/test_alerting.py follows them.
    """
    tests = list(cases)
    stated = {expected["alertname"] for test in tests for expected in test.get("alert_rule_test", ())}
    groups = [group | {"rules": [_with_annotations_of(stated, rule) for rule in group["rules"]]} for group in groups]
    rules, path = folder / "stated_rules.yaml", folder / "cases.yaml"
    rules.write_text(json.dumps({"groups": groups}))
    path.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": interval, "tests": tests}))
    return path


def _with_annotations_of(alerts: set[str], rule: Rules) -> Rules:
    if rule.get("alert") not in alerts:
        return {key: value for key, value in rule.items() if key != "annotations"}
    links = ("prober_url", "runbook_url")
    return rule | {"annotations": {key: text for key, text in rule["annotations"].items() if key not in links}}


def run_cases(
    promtool: Path, folder: Path, groups: list[Rules], cases: Iterable[dict[str, Any]], interval: str = "1m"
) -> None:
    """Run `promtool test rules`; a failure names expression and minute."""
    run(promtool, "test", write_cases(folder, groups, cases, interval))


def check_expressions(promtool: Path, folder: Path, expressions: Iterable[str]) -> None:
    """Check that promtool accepts every expression."""
    rules = [{"record": f"checked:{number}", "expr": text} for number, text in enumerate(expressions)]
    path = folder / "expressions.yaml"
    path.write_text(json.dumps({"groups": [{"name": "checked", "rules": rules}]}))
    run(promtool, "check", path)


def run(promtool: Path, action: str, *paths: Path) -> None:
    """Run `promtool ACTION rules PATHS`, which must succeed. GOGC: with more memory it needs a quarter less time."""
    environment = os.environ | {"GOGC": "400"}
    command = [str(promtool), action, "rules", *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
