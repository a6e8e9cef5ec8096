"""Recorded quantiles of latencies, evaluated by promtool of Prometheus 2 and 3."""

from pathlib import Path

import pytest

from prober.probing.series import record
from tests.daemon.promtool import JOB, case, expects, run_cases

MINUTE = 130
# Of a hundred probes a minute ninety take up to 0.1 s and ten up to 1 s; Prometheus interpolates linearly within a bucket.
COUNTS = {"0.1": 90, "1": 100, "+Inf": 100}


def ttft(target: str, minutes: int, after: str) -> dict[str, str]:
    labels = f'{JOB},target="{target}",workload="chat"'
    series = {f'llmslo_ttft_seconds_bucket{{{labels},le="{le}"}}': count for le, count in COUNTS.items()}
    series |= {f"llmslo_ttft_seconds_count{{{labels}}}": 100, f"llmslo_probes_total{{{labels}}}": 100}
    return {name: f"0+{count}x{minutes}{after}" for name, count in series.items()}


@pytest.mark.parametrize("release", ["promtool", "newer_promtool"])
def test_quantiles_of_two_hours_are_recorded_for_targets_that_are_still_probed(
    release: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """p99 of the one that is probed; nothing of one removed an hour ago, whose buckets are in the window."""
    series = ttft("llama", MINUTE, "") | ttft("removed", 60, " stale")
    shown = {'target="llama",workload="chat",signal="ttft"': 0.91}
    tests = [
        expects("round(workload:llmslo_latency_seconds:p99_2h, 0.01)", f"{MINUTE}m", shown),
        expects("count(workload:llmslo_latency_seconds:p99_2h)", "60m", {"": 2}),
    ]
    rules = [{"name": "latency", "rules": [record()]}]
    run_cases(request.getfixturevalue(release), tmp_path, rules, [case(series, promql_expr_test=tests)])
