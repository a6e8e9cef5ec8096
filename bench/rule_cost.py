"""What do the rules cost a Prometheus? Seconds of one evaluation of each group of one SLO and of latencies, by targets.

A real Prometheus reads a block of counters that grow at a sample every 15 s, made with `promtool tsdb create-blocks-from openmetrics`,
and answers each expression of a group as the rule manager would, one after the other; the sum is the group's evaluation. Recorded
series that other rules of the group read are made as well. What pages is also measured with labels of targets and clusters apart
(`prober rules --group-label`), which make keys and joins longer. A block holds no more than its group reaches back: six hours for what
pages, 30 days of tiles for what can wait, two hours of the buckets of latencies. At 1,000 targets the slow groups are
reckoned from 100, as their cost is proportional to targets: at 20 and 100 that is measured.
"""

import json
import os
import re
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, TextIO

from bench.report import goal, part, require, show
from prober.daemon.rules import groups
from prober.exposition.alerting import Rule, RuleOptions
from prober.exposition.buckets import bounds
from prober.measure.objective import JudgedStream, Slo
from tests.processes import free_port

END_S = 1_700_000_000
SCRAPE_S = 15
SLO = Slo("ok", "success", None, Decimal("0.99"), 30 * 86_400.0)
REACHES_S = {"llm-slo-ok": 6 * 3_600}
LATENCY, LATENCY_REACH_S = "llm-slo-latency", 2 * 3_600
TILE_STEP_S = 240
REPEATS = 3
LABELS = {"cluster": "eu-west-1", "env": "prod", "team": "search", "tier": "gold"}
LABELLED = RuleOptions(group_labels=("cluster",), target_labels=("env", "team", "tier"))
MEASURED = {
    "llm-slo-ok": (20, 100, 1_000),
    "llm-slo-ok-slow": (20, 100),
    LATENCY: (20, 100),
}


def main() -> None:
    """Print the seconds of each group, and the goals."""
    uses = {SLO: [JudgedStream("t", "w", 0.2, 32.0, 48)]}
    rules = groups(uses, RuleOptions())
    seconds: dict[str, dict[int, float]] = {}
    for group in rules:
        for targets in MEASURED.get(group["name"], ()):
            name = group["name"]
            seconds.setdefault(name, {})[targets] = part(f"{name}, {targets}", _evaluation_s(group, targets))
    reckoned = {name: round(of[100] * 10, 3) for name, of in seconds.items() if 1_000 not in of}
    pages = seconds["llm-slo-ok"][1_000]
    (paging,) = (group for group in groups(uses, LABELLED) if group["name"] == "llm-slo-ok")
    labelled = _evaluation_s(paging, 1_000, "".join(f',{name}="{value}"' for name, value in LABELS.items()))
    show(
        "rule_cost",
        [
            goal("evaluation of the group that pages, 1,000 targets", pages, 1.0, "s"),
            goal("the same with three labels of targets, and clusters apart", labelled, 1.0, "s"),
            goal("evaluation of the dearest slow group, 1,000 targets, reckoned", max(reckoned.values()), 60.0, "s"),
        ],
        seconds={name: {targets: round(value, 3) for targets, value in of.items()} for name, of in seconds.items()},
        reckoned_s=reckoned,
    )


def _evaluation_s(group: Rule, targets: int, labels: str = "") -> float:
    """Sum over the rules of the group of the median time of their query. labels: of every series, beside its own"""
    with tempfile.TemporaryDirectory(prefix="rule-cost-") as folder:
        text = Path(folder) / "series.om"
        with text.open("w") as file:
            _write(file, group["name"], targets, labels)
        create_block(text, folder)
        with prometheus(folder) as url:
            return sum(
                _median_s(url, rule["expr"], targets if _reads_counters(rule) else None) for rule in group["rules"]
            )


def _write(file: TextIO, group: str, targets: int, more: str) -> None:
    """The series that the group reads."""
    begin_s = END_S - REACHES_S.get(group, 900)
    for kind in ("events", "bad_events"):
        file.write(f"# TYPE llmslo_slo_{kind} counter\n")
        growth = 3 if kind == "events" else 0.02
        for target in range(targets):
            name = f'llmslo_slo_{kind}_total{{{_labels(target)}{more},slo="ok"}}'
            for count, at_s in enumerate(range(begin_s, END_S + 1, SCRAPE_S)):
                file.write(f"{name} {growth * count:g} {at_s}\n")
    gauges = {"llmslo_slo_objective_ratio": (',slo="ok"', 0.99), "up": ("", 1), "llmslo_trusted": ("", 1)}
    for gauge, (labels, value) in gauges.items():
        file.write(f"# TYPE {gauge} gauge\n")
        for target in range(targets):
            own = _labels(target) if gauge != "up" else f'job="llm-slo-prober",instance="{target}"'
            for at_s in range(END_S - 900, END_S + 1, SCRAPE_S):
                file.write(f"{gauge}{{{own}{more}{labels}}} {value} {at_s}\n")
    _write_recorded(file, group, targets, more)
    if group == LATENCY:
        _write_latencies(file, targets)
    file.write("# EOF\n")


def _write_recorded(file: TextIO, group: str, targets: int, more: str) -> None:
    """What other rules of the group have recorded."""
    for target in range(targets):
        for window in ("1h", "6h", "1d", "3d"):
            labels = f'target="{target}",workload="w"{more},slo="ok",long="{window}"'
            file.write(f"target_workload_slo:llmslo_slo_burn_rate:min{{{labels}}} 0.7 {END_S}\n")
    for kind in ("events", "bad_events") if group.endswith("-slow") else ():
        for target in range(targets):
            name = f'target_workload_slo:llmslo_slo_{kind}:tile4m{{target="{target}",workload="w"{more},slo="ok"}}'
            for at_s in range(END_S - 30 * 86_400, END_S + 1, TILE_STEP_S):
                file.write(f"{name} 48 {at_s}\n")


def _write_latencies(file: TextIO, targets: int) -> None:
    """Classic histograms of TTFT and ITL with the prober's bounds."""
    times = range(END_S - LATENCY_REACH_S, END_S + 1, SCRAPE_S)
    for name, kind in (("ttft", "request"), ("itl", "token")):
        file.write(f"# TYPE llmslo_{name}_seconds histogram\n")
        for target in range(targets):
            for le in (*bounds(kind, (0.5 if kind == "request" else 0.05,)), "+Inf"):
                for count, at_s in enumerate(times):
                    file.write(f'llmslo_{name}_seconds_bucket{{{_labels(target)},le="{le}"}} {3 * count} {at_s}\n')
            for count, at_s in enumerate(times):
                file.write(f"llmslo_{name}_seconds_count{{{_labels(target)}}} {3 * count} {at_s}\n")
    file.write("# TYPE llmslo_probes counter\n")
    for target in range(targets):
        for at_s in range(END_S - 900, END_S + 1, SCRAPE_S):
            file.write(f"llmslo_probes_total{{{_labels(target)}}} 1 {at_s}\n")


def _labels(target: int) -> str:
    return f'job="llm-slo-prober",instance="{target}",target="{target}",workload="w"'


def create_block(text: Path, folder: str) -> None:
    """A block of the series in `text`, which it removes, where `prometheus` of the folder reads it."""
    require("promtool", "prometheus")
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(text), f"{folder}/data"]
    subprocess.run([*command, "--max-block-duration=1458h"], check=True, stdout=subprocess.DEVNULL)
    text.unlink()


@contextmanager
def prometheus(folder: str) -> Iterator[str]:
    """Address of a Prometheus that serves the folder's block."""
    address = f"127.0.0.1:{free_port()}"
    config = Path(folder) / "prometheus.yml"
    config.write_text("global: {}\n")
    options = [
        "--storage.tsdb.retention.time=100y",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}",
    ]
    with open(os.devnull, "wb") as nothing, subprocess.Popen(
        ["prometheus", f"--config.file={config}", "--query.max-samples=500000000", *options], stdout=nothing, stderr=nothing
    ) as process:  # fmt: skip
        try:
            for _ in range(600):
                try:
                    urllib.request.urlopen(f"http://{address}/-/ready", timeout=1).close()
                    break
                except OSError:
                    time.sleep(0.1)
            yield f"http://{address}"
        finally:
            process.terminate()


def _reads_counters(rule: Rule) -> bool:
    return "vantage" not in rule["expr"] and any(
        part in rule.get("record", "") for part in (":burn_rate", ":tile", "_2h")
    )


def _median_s(url: str, expr: str, series: int | None) -> float:
    """series: that must be found; None: any number."""
    times = []
    for _ in range(REPEATS):
        query = urllib.parse.urlencode({"query": re.sub(r"\s+", " ", expr), "time": END_S})
        begin_s = time.perf_counter()
        with urllib.request.urlopen(f"{url}/api/v1/query?{query}", timeout=600) as answer:
            found: dict[str, Any] = json.load(answer)
        times.append(time.perf_counter() - begin_s)
        assert series in (None, len(found["data"]["result"])), (expr, len(found["data"]["result"]))
    return sorted(times)[REPEATS // 2]


if __name__ == "__main__":
    main()
