"""The examples of docs/scaling.md are what Prometheus takes, and send on what the rules record."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from prober.daemon.registry import ALL as ALL_SERIES

ROOT = Path(__file__).parents[2]
FLEET = ROOT / "deploy/prometheus/fleet"
RULES = ROOT / "deploy/prometheus/rules.yaml"


def recorded() -> list[str]:
    """Every name that the rules record, but of GPUs, whose figures stay in their cluster."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    names = [rule["record"] for group in groups for rule in group["rules"] if "record" in rule]
    return [name for name in names if not name.startswith("gpu:")]


def read(name: str) -> Any:
    return yaml.safe_load((FLEET / name).read_text())


@pytest.mark.parametrize(("name", "flags"), [("cluster.yaml", ()), ("agent.yaml", ("--agent",)), ("global.yaml", ())])
def test_prometheus_takes_the_examples(promtool: Path, name: str, flags: tuple[str, ...]) -> None:
    """By promtool: the Prometheus of a cluster with its rules, an agent, and one that federates."""
    ran = subprocess.run(
        [promtool, "check", "config", *flags, FLEET / name], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_all_that_is_recorded_is_sent_on() -> None:
    """The remote write keeps every recorded series; of the prober's own it names only such as there are."""
    (rule,) = read("cluster.yaml")["remote_write"][0]["write_relabel_configs"]
    assert rule["action"] == "keep"
    sent = re.compile(rule["regex"])
    assert [name for name in recorded() if not sent.fullmatch(name)] == []
    names = {series.name for series in ALL_SERIES}
    sent_names = {name for name in names if sent.fullmatch(name)}
    assert {"llmslo_ttft_seconds", "llmslo_slo_events_total", "llmslo_trusted", "llmslo_slo_state"} <= sent_names
    assert len(sent_names) == 23, "a name in the regular expression has no series any more"
    assert not {name for name in names if name.startswith("llmslo_gpu_")} & sent_names
    assert not sent.fullmatch("gpu:llmslo_exporter:max")


def test_all_that_is_recorded_is_federated() -> None:
    """The selectors take every recorded series, and no histogram."""
    selectors = read("global.yaml")["scrape_configs"][0]["params"]["match[]"]
    taken = [re.compile(match[1]) for selector in selectors if (match := re.search(r'__name__=~"(.+)"', selector))]
    assert [name for name in recorded() if not any(pattern.fullmatch(name) for pattern in taken)] == []
    assert not any(pattern.fullmatch("llmslo_ttft_seconds_bucket") for pattern in taken)


@pytest.mark.parametrize("name", ["cluster.yaml", "agent.yaml"])
def test_what_is_dropped_is_in_no_rule(name: str) -> None:
    """Histograms that are left out where targets are many are asked for by no rule and no alert."""
    (dropped,) = read(name)["scrape_configs"][0]["metric_relabel_configs"]
    regex = re.compile(dropped["regex"])
    used = set(re.findall(r"llmslo_\w+", RULES.read_text()))
    assert regex.fullmatch("llmslo_chunk_gap_seconds_bucket")
    assert not [name for name in used if regex.fullmatch(name)]
