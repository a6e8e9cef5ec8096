"""The recipes that scale by headroom: how many replicas, when nothing is known, and that KEDA and HPA ask for the same."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.daemon.promtool import JOB, Series, case, groups_of, run, run_cases

FOLDER = Path(__file__).parents[2] / "deploy/autoscaling"
NEEDED = "app:llmslo_replicas_needed:ceil"


def replica(name: str, demand: str, free: str, state: str = "1+0x99", app: str = "llama") -> Series:
    """One replica with its demand per second and the lower bound of its headroom; "": there is none."""
    of = f'{JOB},app="{app}",target="{name}"'
    series = {f'llmslo_target_state{{{of},state="ready"}}': state}
    series |= {f"llmslo_demand_requests_per_second{{{of}}}": demand} if demand else {}
    for bound, offset in {"lower": 0.0, "estimate": 0.1}.items():
        values = " ".join(f"{float(part) + offset:g}+0x{count}" for part, _, count in _parts(free))
        series |= {f'llmslo_headroom_ratio{{{of},bound="{bound}"}}': values} if free else {}
    return series


def _parts(values: str) -> list[tuple[str, str, str]]:
    return [part.partition("+0x") for part in values.split()]


def by_another_prober(series: Series) -> Series:
    """The same as a second prober exports it."""
    return {name.replace('instance="a"', 'instance="b"'): values for name, values in series.items()}


# Each replica carries 10 requests a second by the lower bound.
QUIET = replica("a", "7+0x99", "0.3+0x99") | replica("b", "7+0x99", "0.3+0x99")
# More arrives from minute 10 on: 81% is used while the SLO still holds. The third replica answers from minute 20 on, and its demand is
# known two minutes later. It was never swept, so its headroom is not known.
RISEN = {name: replica(name, "7+0x9 8.1+0x9 5.4+0x79", "0.3+0x9 0.19+0x9 0.46+0x79") for name in ("a", "b")}
GROWN = RISEN["a"] | RISEN["b"] | replica("c", "_x22 5.4+0x77", "", "_x20 1+0x79")
# A sweep of 20 minutes adds 20/s to a. Demand and headroom are those before it, see docs/methods.md.
SWEPT = QUIET | {f'llmslo_sweep_rate_per_second{{{JOB},app="llama",target="a"}}': "0+0x9 20+0x19 0+0x60"}
OTHER = replica("x", "3+0x99", "0.7+0x99", app="qwen")
SCENES: dict[str, tuple[Series, dict[int, int | None]]] = {
    "enough": (QUIET, {5: 2, 60: 2}),
    "one more before the SLO breaks, and no flapping once it serves": (
        GROWN, {5: 2, 11: 3, 19: 3, 21: None, 24: 3, 40: 3, 90: 3}
    ),
    "nothing moves through a sweep": (SWEPT, dict.fromkeys(range(8, 40, 2), 2)),
    "two probers of the same replicas": (QUIET | by_another_prober(QUIET), {60: 2}),
    "no headroom known": (replica("a", "7+0x99", "") | replica("b", "7+0x99", ""), {60: None}),
    "of one of them": (replica("a", "7+0x99", "0.3+0x99") | replica("b", "7+0x99", ""), {60: 2}),
    "the demand of a ready one is not known": (replica("a", "7+0x99", "0.3+0x99") | replica("b", "", "0.3+0x99"), {60: None}),
    "one that is not ready serves nobody": (
        replica("a", "7+0x99", "0.3+0x99") | replica("b", "", "", "0+0x99"), {60: 1}
    ),
    "its prober is gone": (replica("a", "7+0x29 stale", "0.3+0x29", "1+0x29 stale"), {20: 1, 40: None}),
    "over the capacity": (replica("a", "21+0x99", "-1.1+0x99"), {60: 3}),
}  # fmt: skip


@pytest.mark.parametrize("release", ["promtool", "newer_promtool"])
def test_the_number_of_replicas(release: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """By a rule that Prometheus takes, beside another app whose figure stays; without a value nothing is scaled."""
    rules = FOLDER / "rules.yaml"
    promtool = request.getfixturevalue(release)
    run(promtool, "check", rules)
    cases = [
        case(
            series | OTHER,
            name=name,
            promql_expr_test=[
                {
                    "expr": expr,
                    "eval_time": f"{minute}m",
                    "exp_samples": [{"labels": "{}", "value": value}] if value else [],
                }
                for minute, needed in values.items()
                for expr, value in ((f'max({NEEDED}{{app="llama"}})', needed), (f'max({NEEDED}{{app="qwen"}})', 1))
            ],
        )
        for name, (series, values) in SCENES.items()
    ]
    run_cases(promtool, tmp_path, groups_of(rules), cases)


def document(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


def test_keda_and_hpa_scale_alike() -> None:
    """By the recorded metric, one replica for each of its units, between the same bounds and with the same patience."""
    keda, hpa = document("scaledobject.yaml")["spec"], document("hpa.yaml")["spec"]
    (trigger,), (metric,), (rule,) = keda["triggers"], hpa["metrics"], document("adapter.yaml")["rules"]["external"]
    assert trigger["metadata"]["query"] == f'max({NEEDED}{{app="llama"}})'
    assert rule["seriesQuery"] == f'{NEEDED}{{app!=""}}'
    assert metric["external"]["metric"] == {"name": rule["name"]["as"], "selector": {"matchLabels": {"app": "llama"}}}
    assert (trigger["metricType"], trigger["metadata"]["threshold"]) == ("AverageValue", "1")
    assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": "1"}
    assert trigger["metadata"]["ignoreNullValues"] == "false"  # else no value is read as no need
    assert keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == hpa["behavior"]
    assert (keda["minReplicaCount"], keda["maxReplicaCount"]) == (hpa["minReplicas"], hpa["maxReplicas"])
    assert keda["scaleTargetRef"]["name"] == hpa["scaleTargetRef"]["name"]
