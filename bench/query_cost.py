"""What does the overview cost a Prometheus? Seconds of all queries of one refresh at 20 and 100 targets, and of each.

A real Prometheus reads a block of what the overview's queries name: a sample every 15 s of what is scraped, every minute or four of
what the rules record, over the three hours that the dashboard shows and the two of its windows. Every query is answered as Grafana
asks it: at the end of the range, or at each step of it, which is 15 s or the panel's own interval; one after the other, each three
times, and the median counts; the processor time of Prometheus depends less on what else runs on the machine, and the samples that
Prometheus says it read (`stats=all`) on nothing else. Annotations and variables are queries too. A query that finds nothing would
cost nothing, so that ends the program. 1,000 targets are reckoned from 100.
"""

import itertools
import json
import re
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO, get_args

from bench.report import goal, part, show
from bench.rule_cost import SCRAPE_S, create_block, prometheus
from prober.daemon.dashboards import documents
from prober.daemon.registry import ALL as ALL_SERIES
from prober.daemon.rules import example_rules
from prober.exposition.buckets import bounds
from prober.exposition.dashboards.board import ANNOTATION_STEP
from prober.features.drift.state import Phase
from prober.features.slo.compliance import Compliance
from prober.measure.outcome import BAD
from tools.dashboard_lint.promql import parse
from tools.dashboard_lint.rules import expressions, labels_of_series, panels

END_S, REPEATS = 1_700_000_000, 3
TARGETS = (20, 100)
RANGE_S, WINDOW_S = 3 * 3_600, 2 * 3_600
HISTORY_S = RANGE_S + WINDOW_S
RECORDED_S, SLOW_S = 60, 240
WORST_ALERTING = 10  # of the targets one in so many has alerts, and what is rare
RARE = ("llmslo_engine_changes_total", "llmslo_drift_active", "llmslo_sweep_rate_per_second")
VALUE_OF = {"llmslo_slo_objective_ratio": 0.99}
SLOS = ("ttft", "itl", "success")
VALUES = {
    "slo": SLOS,
    "signal": SLOS[:2],
    "state": ("ready", "pending", "starting", "draining", "failing"),
    "bound": ("lower", "estimate", "upper"),
    "finished_reason": ("stop", "length", "error"),
    "reason": tuple(sorted(reason.value for reason in BAD)),
    "change": ("engine", "version", "model", "flags", "driver", "restart"),
    "cause": ("regression",),
    "workload": ("w",),
    "model": ("m",),
    "severity": ("critical",),
    "alertname": ("LLMErrorBudgetBurn",),
    "alertstate": ("firing",),
    "le": (*map(str, bounds("request", (0.5,))), "+Inf"),
}
STATES = {  # of series whose state is not that of a target
    "llmslo_slo_state": get_args(Compliance),
    "llmslo_drift_baseline_state": get_args(Phase),
    "llmslo_cause_since_timestamp_seconds": ("confirmed", "probable"),
}
VARIABLES = {"$__rate_interval": "1m", "$__range": "3h", "$window": "2h", "$cluster": "x"}


def main() -> None:
    """Print the seconds of a refresh, and the goal."""
    document = documents()["overview.json"]
    refreshes = {targets: part(f"{targets} targets", _refresh_s(document, targets)) for targets in TARGETS}
    costs = {targets: cost for targets, (cost, _) in refreshes.items()}
    seconds = {targets: sum(s for s, _ in cost.values()) for targets, cost in costs.items()}
    show(
        "query_cost",
        [goal("queries of a refresh of the overview, 100 targets", seconds[100], 1.0, "s")],
        seconds={targets: round(value, 3) for targets, value in seconds.items()},
        prometheus_cpu_s={targets: round(cpu_s, 3) for targets, (_, cpu_s) in refreshes.items()},
        reckoned_s={1_000: round(10 * seconds[100], 2)},
        samples_read={targets: sum(samples for _, samples in cost.values()) for targets, cost in costs.items()},
        dearest={
            place: {"s": round(cost_s, 3), "samples": samples}
            for place, (cost_s, samples) in sorted(costs[100].items(), key=lambda item: -item[1][0])[:8]
        },
    )


def _refresh_s(document: dict[str, Any], targets: int) -> tuple[dict[str, tuple[float, int]], float]:
    """Seconds and samples of each query by its place, and the processor time that Prometheus took for all of them."""
    with tempfile.TemporaryDirectory(prefix="query-cost-") as folder:
        text = Path(folder) / "series.om"
        with text.open("w") as file:
            _write(file, document, targets)
        create_block(text, folder)
        with prometheus(folder) as url:
            begin_s = _cpu_s(url)
            costs = {place: _cost(url, place, expr, step_s) for place, expr, step_s in _queries(document)}
            return costs, (_cpu_s(url) - begin_s) / REPEATS


def _queries(document: dict[str, Any]) -> Iterator[tuple[str, str, int]]:
    """(place, expression, step) of each query of a refresh; step 0: at the end of the range only."""
    steps = {
        f"panel {panel['title']!r}, query {query['refId']}": (
            0 if query["instant"] else 60 * int(panel["interval"][:-1]) if "interval" in panel else SCRAPE_S
        )
        for panel in panels(document)
        for query in panel["targets"]
    }
    for place, expr in expressions(document):
        for name, value in VARIABLES.items():
            expr = expr.replace(name, value)
        yield (
            place,
            re.sub(r"\$\w+", ".*", expr),
            steps.get(place, int(ANNOTATION_STEP[:-1]) if place.startswith("annotation") else 0),
        )


def _write(file: TextIO, document: dict[str, Any], targets: int) -> None:
    """Every series that a query names, with each of its usual labels."""
    labels_of = labels_of_series(ALL_SERIES, example_rules())
    wanted = {selector.name for _, expr, _ in _queries(document) for selector in parse(expr).selectors} - {""}
    wanted |= {name for name in labels_of if re.search("^slo:llmslo_(bad_)?events:increase", name)}
    for name in sorted(wanted):
        is_counter = name.endswith("_total")
        file.write(f"# TYPE {name.removesuffix('_total')} {'counter' if is_counter else 'unknown'}\n")
        every_s, begin_s = _rhythm(name)
        for labels in _label_sets(name, labels_of[name], targets):
            first = 0 if 'state="failing"' in labels else 0.99 if name == "llmslo_slo_objective_ratio" else 1
            is_calm = name in RARE and int(labels.partition('target="')[2].partition('"')[0]) % WORST_ALERTING != 0
            growth = 3 if (is_counter or name.endswith("_bucket")) and not is_calm else 0
            first = 0 if is_calm or 'state="failing"' in labels else VALUE_OF.get(name, 1)
            for count, at_s in enumerate(range(begin_s, END_S + 1, every_s)):
                file.write(f"{name}{{{labels}}} {first + growth * count} {at_s}\n")
    file.write("# EOF\n")


def _rhythm(name: str) -> tuple[int, int]:
    """(seconds between samples, time of the first)."""
    if ":" in name:
        return SLOW_S, END_S - HISTORY_S
    if name.startswith("ALERTS"):
        return RECORDED_S, END_S - RANGE_S
    if name.endswith("_bucket"):
        return SCRAPE_S, END_S - 1_800  # read over minutes only: what is read over hours is recorded
    return SCRAPE_S, END_S - HISTORY_S


def _label_sets(name: str, labels: frozenset[str], targets: int) -> Iterator[str]:
    own = sorted(
        labels
        - {"target", "job", "instance", "vantage"}
        - ({"long", "short", "window", "__name__", "le"} if name.startswith("ALERTS") else set())
    )
    values = VALUES | ({"state": STATES[name]} if name in STATES else {})
    is_of_target = "target" in labels or ":" not in name  # or of a prober, of which each has one here
    for target in range(targets if is_of_target else 1):
        if name.startswith("ALERTS") and target % WORST_ALERTING:
            continue
        chosen = [f'instance="{target}"', 'job="llm-slo-prober"'] if ":" not in name else []
        chosen += [f'target="{target}"'] if "target" in labels else []
        names = [label for label in own if not (name == "ALERTS_FOR_STATE" and label == "alertstate")]
        for combination in itertools.product(*(values.get(label, ("x",)) for label in names)):
            matched = [f'{label}="{value}"' for label, value in zip(names, combination, strict=True)]
            if len({value for label, value in zip(names, combination, strict=True) if label in ("slo", "signal")}) < 2:
                yield ",".join((*chosen, *matched))


def _cpu_s(url: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        found = re.search(rb"^process_cpu_seconds_total (\S+)$", answer.read(), re.MULTILINE)
    assert found is not None
    return float(found[1])


def _cost(url: str, place: str, expr: str, step_s: int) -> tuple[float, int]:
    """(median of the seconds, samples read)."""
    times = []
    for _ in range(REPEATS):
        query = {"query": expr, "stats": "all"} | (
            {"start": END_S - RANGE_S, "end": END_S, "step": step_s} if step_s else {"time": END_S}
        )
        path = "query_range" if step_s else "query"
        begin_s = time.perf_counter()
        with urllib.request.urlopen(f"{url}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=600) as answer:
            found: dict[str, Any] = json.load(answer)
        times.append(time.perf_counter() - begin_s)
        if not found["data"]["result"]:
            raise SystemExit(f"{place} finds nothing in the block, so its cost is unknown: {expr}")
    return sorted(times)[REPEATS // 2], found["data"]["stats"]["samples"]["totalQueryableSamples"]


if __name__ == "__main__":
    main()
