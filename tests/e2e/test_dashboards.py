"""Every panel of every dashboard on a real Prometheus: mock engines, a prober, the shipped rules; data where there should be some.

Five targets are probed for real: one healthy, one slow, one whose KV cache is full, one that fails each request, one that is not
there. What takes hours (drift), GPUs or a sweep is a sixth: a page of this test, written with the declared series by the prober's
own writer. Beside them is the page of a DCGM exporter on the node of the healthy one, whose prober reads no GPU. Rules are what is
shipped, but judged each second and without their waiting times.
"""

import asyncio
import itertools
import json
import re
import time
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from prober.daemon.configuration_file import read_config
from prober.daemon.dashboards import files
from prober.daemon.registry import ALL as ALL_SERIES
from prober.daemon.registry import registry
from prober.daemon.rules import groups
from prober.exposition.alerting import RuleOptions
from prober.exposition.families import AnySeries, Value, page
from prober.features.capacity import series as capacity_series
from prober.features.slo import series as slo_series
from prober.probing import series as probe_series
from tests.processes import Program, Prometheus, free_port
from tests.serving import serving
from tools.dashboard_lint.rules import expressions
from tools.dashboard_lint.rules import panels as all_panels

DCGM_PAGE = Path(__file__).parents[1] / "daemon/dcgm_exporter.prom"
CONFIG = """
slos:
  start: {{signal: ttft, threshold: 2s, objective: 99%}}
  flow: {{signal: itl, threshold: 2s, objective: 99%}}
  success: {{signal: success, objective: 99%}}
  quality: {{signal: quality, objective: 95%, window: 7d}}
defaults: {{warmup: 0, rate: 4/s, max_in_flight: 100, timeouts: {{first_token: 20s}}}}
workloads:
  short: {{prompt_tokens: 20, output_tokens: 6}}
  golden: {{golden: [{{prompt: "What is 17 + 25?", expect: {{regex: '.'}}}}]}}
targets:
{targets}
"""
MOCKS = {
    "healthy": ("--ttft", "lognormal:20ms:0.2", "--itl", "1ms", "--seed", "7"),
    "slow": ("--ttft", "4s", "--itl", "1ms"),  # its threshold is beyond a pause of a busy machine
    "full": ("--engine", "simulated", "--kv-blocks", "400", "--background", "0.7/s", "--seed", "1"),
    "failing": ("--fault", "http:503"),
}
STAGED = "staged"
SECONDS, PATIENCE = 65.0, 600.0  # demand is stated from a minute of readings on

# By dashboard and panel: which queries have no data of a target, and why there is none.
NO_SWEEP = "no sweep, so no capacity"
NO_GPU = "no GPU here"
NO_DRAFT = "the mock does not speculate"
NO_VANTAGE = "this prober has no vantage"
ENOUGH = {
    "target": {
        **dict.fromkeys(("TTFT E", "ITL E", "TPOT E", "E2E E"), "its samples are enough for a p99"),
        "Streams A": "its state is failing",
    },
    "capacity": {
        "Headroom D": "its headroom is known",
    },
    "engine": {"Requests finished, by reason C": "it counts more reasons than requests"},
}
REAL: dict[str, dict[str, str]] = {
    "target": {
        "Latest cold start": "warmup: 0, so there is none",
        "Certificate ends": "no TLS",
        "ITL E": "its samples may be enough for a p99",
        "TTFT of the answer, after reasoning": "the model does not reason",
        "Tool calls": "no workload has tools",
        "Retries of a gateway": "there is no gateway",
        "TTFT by vantage": NO_VANTAGE, "TTFT shared and added, p50": NO_VANTAGE,
        "TCP connect by vantage, p50": NO_VANTAGE, "State by vantage": NO_VANTAGE,
        "Failures by reason A": "none failed; all probes are there as a line",
        "Failures of the last 15 minutes": "none failed",
        "TPOT F": "no SLO on it", "E2E F": "no SLO on it",
    },
    "capacity": {
        "Headroom": NO_SWEEP, "Capacity age": NO_SWEEP, "Capacity exhaustion": NO_SWEEP,
        "Instances for the peak": NO_SWEEP,
        "Traffic can grow by": NO_SWEEP, "Demand against capacity A": NO_SWEEP, "Demand against capacity B": NO_SWEEP,
        "Demand against capacity C": NO_SWEEP, "Headroom over time": NO_SWEEP,
        "Knee found by sweeps": NO_SWEEP, "TTFT over load": NO_SWEEP,
        "TPOT over load": NO_SWEEP, "ITL over load": NO_SWEEP, "Throughput over load": NO_SWEEP, "Last sweep ended": NO_SWEEP,
        "Sweeps by result": NO_SWEEP, "Output tokens per GPU": NO_GPU,
        "Cost and energy of 1,000 output tokens": NO_GPU,
    },
    "engine": {
        "Last engine change A": "it has not changed",
        "Decode ÷ memory bound": NO_GPU, "GPUs": NO_GPU, "Utilisation": NO_GPU,
        "Memory bandwidth in use": NO_GPU, "SM occupancy and tensor units": NO_GPU, "Memory in use": NO_GPU,
        "Processes": NO_GPU, "Power": NO_GPU,
        "SM clock": NO_GPU, "Throttling": NO_GPU, "Temperature": NO_GPU, "Errors": NO_GPU, "PCIe and NVLink": NO_GPU,
        "What happens": "nothing is wrong",
        "Requests finished, by reason B": "no errors", "Requests finished, by reason C": "the mock counts every reason",
        "KV transfer, and failed ones": "the mock does not disaggregate",
        **dict.fromkeys(
            (
                *(f"Failed and rejected requests {part}" for part in "BCDEF"), "Prefill and decode A", "Prefill and decode B",
                "Deferred requests, and sleep B", "KV cache offload", "Predicted against measured latency",
            ),
            "the mock has neither a router nor these series",
        ),
        "Drafted tokens accepted": NO_DRAFT, "Tokens per draft": NO_DRAFT, "Tokens drafted and accepted A": NO_DRAFT,
        "Tokens drafted and accepted B": NO_DRAFT,
    },
}  # fmt: skip
FLEET = {
    "overview": dict.fromkeys(("TTFT p99 by target B", "ITL p99 by target B"), "two hours may hold samples enough")
}
# What the target that answers nothing has none of: quantiles are of answers.
SILENT = {"Streams A", "TTFT A", "ITL A", "TPOT A", "E2E A", "Quantiles now A", "TTFT by client and by engine A"}


LABELS: dict[str, tuple[str, ...]] = {
    "workload": ("probe",), "slo": ("start", "flow", "success"), "signal": ("ttft", "itl", "tpot", "e2e"),
    "bound": ("lower", "estimate", "upper", "earliest", "latest"), "percentile": ("p50", "p90", "p95", "p99"),
    "phase": ("dns", "tcp", "proxy", "tls"),
    "stage": ("00", "01", "02", "03"),
    "gpu": ("0", "1"), "state": ("failing", "ready", "met", "settled"), "finished_reason": ("shed", "rejected", "error"),
    "reason": ("shed", "thermal", "power_cap", "rejected", "error"),
    "cause": ("regression",), "event": ("alarm",), "check": ("regex",), "token_type": ("prompt", "completion"),
    "limit": ("requests", "tokens"), "period": ("baseline", "since", "present", "usual"), "budget": ("tokens",),
    "verdict": ("found",), "change": ("version",), "direction": ("sent", "received"), "source": ("process",),
}  # fmt: skip
VALUES = {"lower": 0.9, "estimate": 1.0, "upper": 1.1, "00": 1.0, "01": 2.0, "02": 3.0, "03": 4.0}


class Page:
    """The staged target: each declared series with each of its usual labels, counters that rise with each scrape."""

    def __init__(self, vantage: str) -> None:
        self._families = registry(vantage)
        for declared in ALL_SERIES:
            names = [name for name in declared.labels if name != "target"]
            for values in itertools.product(*(LABELS.get(name, ("x",)) for name in names)):
                chosen = dict(zip(names, values, strict=True)) | {"target": STAGED}
                labels = [chosen[name] for name in declared.labels]
                if declared.kind == "histogram":
                    self._families[declared.name].histogram((0.01, 0.1, 1.0, 10.0), *labels)
                else:
                    self._families[declared.name].value(*labels).value = self._value(declared, values)

    def _value(self, declared: AnySeries, values: tuple[str, ...]) -> float:
        if declared.name.endswith("_timestamp_seconds"):
            return time.time() + 86_400
        if declared in (slo_series.SLO_OBJECTIVE, slo_series.TRAFFIC_OBJECTIVE):
            return 0.99
        if declared is capacity_series.SWEEP_RATE:
            return 0.0  # while it is swept its demand is not its own
        if declared is probe_series.STATE:
            return float("failing" in values)
        return next((VALUES[value] for value in values if value in VALUES), 1.0)

    async def answer(self, request: web.Request) -> web.Response:
        for declared in ALL_SERIES:
            for child in self._families[declared.name].children.values():
                if not isinstance(child, Value):
                    child.observe(*[0.05] * 400, 0.5)
                elif declared.kind == "counter":
                    child.inc(50 if declared is slo_series.SLO_EVENTS else 5)
        return web.Response(body=b"".join(page(list(self._families.values()), openmetrics=False)))


async def exporter(_: web.Request) -> web.Response:
    return web.Response(text=DCGM_PAGE.read_text())


def prober(folder: Path, running: ExitStack) -> int:
    """A prober of five targets, and its port."""
    ports = {name: free_port() for name in (*MOCKS, "gone")}
    for name, options in MOCKS.items():
        running.enter_context(Program(folder / name, "mock", "--port", ports[name], "--model", name, *options))
    both = "[{workload: short, slos: [start, flow, success]}, {workload: golden, rate: 1/s, slos: [quality]}]"
    budget = "{tokens_per_day: 400M, cost_per_day: 500, price_per_million: {prompt: 0.60, completion: 0.60}}"
    targets = "".join(
        f"  - {{name: {name}, url: 'http://127.0.0.1:{ports[name]}', probes: {both}, budget: {budget}, "
        "metrics: {slos: [start]}}\n"
        for name in ports
    )
    (folder / "prober.yaml").write_text(CONFIG.format(targets=targets))
    port = free_port()
    config = ("--config.file", folder / "prober.yaml", "--storage.path", folder / "store")
    running.enter_context(Program(folder / "log", "run", *config, "--web.listen-address", f"127.0.0.1:{port}"))
    return port


def prometheus(folder: Path, ports: tuple[int, ...], dcgm: int | None = None) -> dict[str, Any]:
    """The configuration of a Prometheus. dcgm: port of the exporter."""
    rules = {"groups": groups(read_config(str(folder / "prober.yaml")), RuleOptions(slow_s=5))}
    for group in rules["groups"]:
        group["interval"] = "1s"
        for rule in group["rules"]:
            rule.pop("for", None)
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    scraped = {"job_name": "llm-slo-prober", "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}]}
    of_node = {"targets": [f"127.0.0.1:{dcgm}"], "labels": {"target": "healthy"}}
    gpus = {"job_name": "dcgm-exporter", "static_configs": [of_node] if dcgm else []}
    return {
        # A scrape may take as long as its interval: the pages come last on a busy machine.
        "global": {"scrape_interval": "3s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / "rules.yaml")],
        "scrape_configs": [scraped, gpus],
    }


class Reader:
    """Asks what Grafana would ask."""

    def __init__(self, asked: Prometheus) -> None:
        self._asked = asked

    def result(self, expr: str, target: str, at: float) -> list[dict[str, Any]]:
        """Each series that an expression has at that time, with its value or histogram."""
        for name, value in (("$__rate_interval", "15s"), ("$__range", "1m"), ("$window", "15s")):
            expr = expr.replace(name, value)
        expr = expr.replace("$target", target).replace("$one", target).replace("$cluster", "")
        expr = re.sub(r"\$(workload|slo|instance|model|namespace|job)\b", ".*", expr)
        return self._asked.query(expr, time=at)

    def frames(self, expr: str, target: str, at: float) -> int:
        """The number of series of the panel."""
        return len(self.result(expr, target, at))

    def column(self, name: str, target: str, at: float) -> float:
        """A figure of that target in the overview's table of latencies."""
        (table,) = (
            panel for panel in board("overview")["panels"] if panel["title"] == "Latencies" and "targets" in panel
        )
        renamed = table["transformations"][-1]["options"]["renameByName"]
        (source,) = (key for key, title in renamed.items() if title == name)
        (query,) = (target for target in table["targets"] if f"Value #{target['refId']}" == source)
        return self.value(query["expr"], target, at)

    def value(self, expr: str, target: str, at: float) -> float:
        """Of the one series that it has."""
        rows = self.result(expr, target, at)
        assert len(rows) == 1, f"{len(rows)} series for {target or 'all targets'} at {at}: {expr}"
        return float(rows[0]["value"][1])

    def empty(self, target: str, *, one: bool, at: float) -> dict[str, list[str]]:
        """By dashboard, the queries without data: `Title A`; only those dashboards that show one target, or the others."""
        panels: dict[str, list[str]] = {}
        for name, text in files().items():
            document = json.loads(text)
            if one != any(variable["name"] == "one" for variable in document["templating"]["list"]):
                continue
            panels[name.removesuffix(".json")] = [
                f"{panel['title']} {query['refId']}"
                for panel in all_panels(document)
                for query in panel["targets"]
                if not self.frames(query["expr"], target, at)
            ]
        return panels


def query_of(name: str, title: str, label: str) -> str:
    """The query of a table whose rows have that label."""
    (table,) = (panel for panel in board(name)["panels"] if panel["title"] == title and "targets" in panel)
    (expr,) = (query["expr"] for query in table["targets"] if f", {label})" in query["expr"])
    assert isinstance(expr, str)
    return expr


def board(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(files()[f"{name}.json"])
    return document


def unexpected(empty: dict[str, list[str]], expected: dict[str, dict[str, str]]) -> dict[str, list[str]]:
    """Queries without data that are not named, by themselves or by their panel."""
    left = {
        board: [
            query
            for query in queries
            if query not in expected.get(board, {}) and query[:-2] not in expected.get(board, {})
        ]
        for board, queries in empty.items()
    }
    return {board: queries for board, queries in left.items() if queries}


async def test_every_panel_has_data_where_there_is_some(tmp_path: Path, prometheus_binary: Path) -> None:
    """All of the staged target's; of the real ones all but what is listed with its reason."""
    staged = (serving(Page(vantage).answer) for vantage in ("paris", "tokyo"))
    async with AsyncExitStack() as pages:
        urls = [await pages.enter_async_context(page) for page in (*staged, serving(exporter))]
        paris, tokyo, dcgm = (int(url.rpartition(":")[2]) for url in urls)
        with ExitStack() as running:
            port = prober(tmp_path, running)
            asked = []
            for name, document, flags in (
                ("classic", prometheus(tmp_path, (port, paris, tokyo), dcgm), ()),
                ("native", prometheus(tmp_path, (port,)), ("--enable-feature=native-histograms",)),
            ):
                (tmp_path / name).mkdir()
                started = await asyncio.to_thread(Prometheus, prometheus_binary, tmp_path / name, document, *flags)
                asked.append(Reader(running.enter_context(started)))
            await asyncio.to_thread(judged, *asked)


def judged(reader: Reader, native: Reader) -> None:
    """Waits until everything is there, as programs start late on a busy machine."""
    end = time.monotonic() + PATIENCE
    time.sleep(SECONDS)
    while True:
        at = time.time() - 1
        try:
            judge(reader, at)
            judge_native(native, at)
            return
        except AssertionError:
            if time.monotonic() > end:
                raise
        time.sleep(2)


def judge_native(reader: Reader, at: float) -> None:
    """Panels use native histograms if only these are stored."""
    if reader.frames('llmslo_ttft_seconds_bucket{target="healthy"}', "healthy", at):
        return  # a later release that keeps both has been judged above
    assert unexpected(reader.empty("healthy", one=True, at=at), REAL) == {}


def judge(reader: Reader, at: float) -> None:
    staged_one = reader.empty(STAGED, one=True, at=at)
    assert unexpected(staged_one, ENOUGH) == {}
    assert unexpected(reader.empty(".*", one=False, at=at), FLEET) == {}
    for name in files():
        for place, expr in expressions(board(name.removesuffix(".json"))):
            if place.startswith("variable"):
                assert reader.frames(expr, ".*", at), f"{name}: {place} offers nothing to choose"
    for name in ("healthy", "slow", "full"):
        assert unexpected(reader.empty(name, one=True, at=at), REAL) == {}, name
    assert reader.column("TTFT burn", "healthy", at) < 1 < reader.column("TTFT burn", "slow", at)
    assert reader.column("ITL burn", "slow", at) < 1
    assert reader.value('max_over_time(llmslo_engine_kv_cache_usage_ratio{target="full"}[1m])', "", at) > 0.8
    assert reader.value('max_over_time(llmslo_engine_requests_waiting{target="full"}[1m])', "", at) > 0
    failing = reader.empty("failing", one=True, at=at)
    assert "Failures by reason A" not in failing["target"], "what fails is shown with its reason"
    reasons = [
        row["metric"]["reason"] for row in reader.result(query_of("overview", "Targets", "reason"), "failing", at)
    ]
    assert reasons == ["http_5xx"], "and the overview says which is the most frequent"
    assert set(failing["target"]) >= SILENT, "no latency is made up for a target that answers nothing"
    gone = reader.empty("gone", one=True, at=at)
    assert "State A" not in gone["target"], "a target that is not there has a state"
    assert "Engine metrics page A" in gone["engine"], "and of a page that was never there nothing is said"
    by_exporter = {"GPUs A", "Utilisation A", "Memory in use A", "Temperature A", "PCIe and NVLink A"}
    assert by_exporter.isdisjoint(reader.empty("healthy", one=True, at=at)["engine"]), "the exporter's GPUs are shown"
    assert by_exporter <= set(reader.empty("slow", one=True, at=at)["engine"]), "of the target of that node alone"
