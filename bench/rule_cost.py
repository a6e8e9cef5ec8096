"""What do the rules cost a Prometheus in an outage? Seconds of one evaluation of each group, while every SLO of every target burns.

A real Prometheus loads the rules of `prober rules` and a block of series that ends now, made with `promtool tsdb create-blocks-from
openmetrics`: counters at a sample every 15 s for as long as a group reads them, the tiles that three days of evaluations would have
recorded, and the facts that alerts quote. Half of all events are bad, so each target has an alert for each of its four SLOs, whose
texts are evaluated too. Reported is what Prometheus measures of each group, the median of three rounds.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from bench.report import goal, require, show
from bench.stage import free_port
from prober.cli.rules import as_yaml
from prober.daemon.rules import groups
from prober.exposition.alerting import RuleOptions
from prober.exposition.buckets import bounds

SCRAPE_S, TILE_S, ROUNDS = 15, 240, 3
WITH_HISTOGRAMS = 100  # targets; the cost of the group of latencies is proportional to them
SLOS = ("ttft", "tpot", "e2e", "success")
LABELS = {"cluster": "eu-west-1", "env": "prod", "team": "search", "tier": "gold"}
LABELLED = RuleOptions(group_labels=("cluster",), target_labels=("env", "team", "tier"))


def main() -> None:
    """Print the seconds of each group, and the goals."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", type=int, default=1_000)
    targets = parser.parse_args().targets
    plain, alerts = _evaluation_s(targets, RuleOptions(), "")
    labelled, _ = _evaluation_s(targets, LABELLED, "".join(f',{name}="{value}"' for name, value in LABELS.items()))
    show(
        "rule_cost",
        [
            goal("all groups once, every SLO of every target burning", sum(plain.values()), 2.0, "s"),
            goal("the group that pages", plain["llm-slo-probes"], 1.0, "s"),
            goal("the same with three labels of targets, and clusters apart", labelled["llm-slo-probes"], 1.5, "s"),
        ],
        targets=targets,
        slos=len(SLOS),
        alerts=alerts,
        seconds=plain,
        with_labels=labelled,
    )


def _evaluation_s(targets: int, options: RuleOptions, labels: str) -> tuple[dict[str, float], int]:
    """(seconds of each group, active alerts). labels: of every series, beside its own"""
    with tempfile.TemporaryDirectory(prefix="rule-cost-") as folder:
        rules = groups(None, options)
        (Path(folder) / "rules.yaml").write_text(as_yaml({"groups": rules}))
        text, end_s = Path(folder) / "series.om", round(time.time()) + 10 + targets // 50
        with text.open("w") as file:
            _write(file, targets, labels, end_s)
        create_block(text, folder)
        with prometheus(folder, f"rule_files: [{folder}/rules.yaml]\nglobal: {{evaluation_interval: 15s}}\n") as url:
            return _measured(url, len(rules))


def _measured(url: str, count: int) -> tuple[dict[str, float], int]:
    """Medians of the durations of each group's evaluations; those of the first, which finds nothing recorded, are left out."""
    durations: dict[str, list[float]] = {}
    last: dict[str, float] = {}
    for _ in range(3_000):
        found = json.load(urllib.request.urlopen(f"{url}/api/v1/rules", timeout=60))["data"]["groups"]
        for group in found:
            at, name = group["lastEvaluation"], group["name"]
            if group["evaluationTime"] and last.get(name) != at:
                last[name] = at
                durations.setdefault(name, []).append(group["evaluationTime"])
        quick = [name for name, times in durations.items() if len(times) >= ROUNDS + 1]
        if len(durations) == count and "llm-slo-probes" in quick:
            break
        time.sleep(0.5)
    active = json.load(urllib.request.urlopen(f"{url}/api/v1/alerts", timeout=60))["data"]["alerts"]
    burning = sum(alert["labels"]["alertname"] == "LLMErrorBudgetBurn" for alert in active)
    return {name: round(statistics.median(times[1:] or times), 3) for name, times in durations.items()}, burning


def _write(file: TextIO, targets: int, more: str, end_s: int) -> None:
    """The series that the rules read, until `end_s`."""

    def gauge(name: str, labels: str, values: Iterator[tuple[str, float]]) -> None:
        file.write(f"# TYPE {name} gauge\n")
        for own, value in values:
            for at_s in range(end_s - 900, end_s, SCRAPE_S):
                file.write(f"{name}{{{own}{more}{labels}}} {value} {at_s}\n")

    names = [f'job="llm-slo-prober",instance="{target}",target="{target}"' for target in range(targets)]
    for kind, growth in (("events", 3.0), ("bad_events", 1.5)):
        file.write(f"# TYPE llmslo_slo_{kind} counter\n")
        for own in names:
            for slo in SLOS:
                for count, at_s in enumerate(range(end_s - 3_660, end_s, SCRAPE_S)):
                    file.write(
                        f'llmslo_slo_{kind}_total{{{own}{more},workload="w",slo="{slo}"}} {growth * count:g} {at_s}\n'
                    )
    declared = (f'{own},workload="w",slo="{slo}"' for own in names for slo in SLOS)
    gauge("llmslo_slo_objective_ratio", "", ((own, 0.99) for own in declared))
    gauge("llmslo_target_state", ',state="failing"', ((own, 0) for own in names))
    gauge(
        "llmslo_cause_since_timestamp_seconds",
        ',cause="queueing",state="confirmed",text="x"',
        ((own, 1) for own in names),
    )
    gauge("llmslo_failure_info", ',reason="http_5xx",text="no backend"', ((own, 1) for own in names))
    gauge("llmslo_build_info", "", ((own.rpartition(",")[0], 1) for own in names))
    _write_tiles(file, targets, more, end_s)
    _write_latencies(file, names[:WITH_HISTOGRAMS], more, end_s)
    file.write("# EOF\n")


def _write_tiles(file: TextIO, targets: int, more: str, end_s: int) -> None:
    for name, growth in (("events", 48.0), ("bad_events", 24.0)):
        file.write(f"# TYPE slo:llmslo_{name}:increase4m gauge\n")
        for target in range(targets):
            for slo in SLOS:
                labels = f'target="{target}",workload="w",slo="{slo}"{more}'
                for at_s in range(end_s - 3 * 86_400, end_s, TILE_S):
                    file.write(f"slo:llmslo_{name}:increase4m{{{labels}}} {growth} {at_s}\n")


def _write_latencies(file: TextIO, names: list[str], more: str, end_s: int) -> None:
    for name, kind, threshold_s in (("ttft", "request", 0.5), ("itl", "token", 0.05)):
        file.write(f"# TYPE llmslo_{name}_seconds histogram\n")
        for own in names:
            for le in (*bounds(kind, (threshold_s,)), "+Inf"):
                for count, at_s in enumerate(range(end_s - 7_200, end_s, SCRAPE_S)):
                    file.write(
                        f'llmslo_{name}_seconds_bucket{{{own}{more},workload="w",le="{le}"}} {3 * count} {at_s}\n'
                    )


def create_block(text: Path, folder: str) -> None:
    """A block of the series in `text`, which it removes, where `prometheus` of the folder reads it."""
    require("promtool", "prometheus")
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(text), f"{folder}/data"]
    subprocess.run([*command, "--max-block-duration=1458h"], check=True, stdout=subprocess.DEVNULL)
    text.unlink()


@contextmanager
def prometheus(folder: str, configuration: str = "global: {}\n") -> Iterator[str]:
    """Address of a Prometheus that serves the folder's block."""
    address = f"127.0.0.1:{free_port()}"
    config = Path(folder) / "prometheus.yml"
    config.write_text(configuration)
    options = [
        "--storage.tsdb.retention.time=100y",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}",
    ]
    with open(f"{folder}/log", "wb") as log, subprocess.Popen(
        ["prometheus", f"--config.file={config}", "--query.max-samples=500000000", *options], stdout=log, stderr=log
    ) as process:  # fmt: skip
        try:
            for _ in range(600):
                with suppress(OSError):
                    urllib.request.urlopen(f"http://{address}/-/ready", timeout=1).close()
                    break
                time.sleep(0.1)
            yield f"http://{address}"
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
