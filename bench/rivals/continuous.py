"""Continuous: the daemon and blackbox_exporter at the engines of `prober demo`, each with a fault: cost, and what is noticed.

The module of blackbox_exporter posts a streamed chat completion and requires status 200 and `[DONE]`, as much as it can say of an
answer. It has no memory, so this program probes each engine once a second through it and compares the time after the fault with the
time before it: a fault is noticed if 5 points more of the probes fail, or the median duration is longer by a quarter. Of the daemon,
what its API, its alerts in Prometheus and its series `llmslo_engine_up` say at the end. Cloudprober is in no index that is used here.
"""

import contextlib
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.report import goal, part
from bench.rivals.clients import Memory, Words
from bench.stage import TICKS, free_port, stage
from bench.states import EXPECTED, addresses
from prober.cli.scenes import SCENES

TROUBLE_S, SETTLED_S = 45.0, 10.0
LENGTH_S = 165.0  # of which two minutes are after the begin of the faults
STARTED_WITHIN_S = 60.0
COST_RATE, COST_S = 4.0, 15.0
BLACKBOX = "blackbox_exporter"
OURS = "prober run"
CLOUDPROBER = "cloudprober"
BODY = {
    "messages": [{"role": "user", "content": "Write a line about the sea. " * 8}],
    "max_tokens": 64,
    "stream": True,
    "ignore_eos": True,
}
HTTP = {
    "method": "POST",
    "headers": {"Content-Type": "application/json"},
    "valid_status_codes": [200],
    "fail_if_body_not_matches_regexp": [r"data: \[DONE\]"],
    "preferred_ip_protocol": "ip4",
}
COST_CONFIG = f"""
defaults: {{rate: {COST_RATE:g}/s, max_in_flight: 100}}
slos: {{ttft: {{signal: ttft, threshold: 500ms, objective: 99%}}}}
workloads: {{fixed: {{prompt_tokens: 64, output_tokens: 64}}}}
targets:
  - {{name: mock, url: "{{mock}}", probes: [{{workload: fixed}}]}}
"""


@dataclass(frozen=True)
class Probe:
    """A probe by blackbox_exporter. at_s: of the monotonic clock"""

    at_s: float
    is_success: bool
    duration_s: float


@contextlib.contextmanager
def blackbox(clients: Path, urls: dict[str, str]) -> Iterator[tuple[str, int]]:
    """Address and process of a blackbox_exporter with a module for each engine, as each has a model of its own."""
    modules = {}
    for name, url in urls.items():
        model = get(f"{url}/v1/models")["data"][0]["id"]
        http = HTTP | {"body": json.dumps(BODY | {"model": model})}
        modules[name] = {"prober": "http", "timeout": "10s", "http": http}
    with tempfile.TemporaryDirectory(prefix="prober-bench-") as folder, (Path(folder) / "log").open("wb") as log:
        config = Path(folder) / "blackbox.yml"  # JSON is YAML too
        config.write_text(json.dumps({"modules": modules}))
        program, port = clients / "blackbox/usr/bin/prometheus-blackbox-exporter", free_port()
        words: Words = [program, f"--config.file={config}", f"--web.listen-address=127.0.0.1:{port}"]
        with subprocess.Popen(words, stdout=log, stderr=log) as process:
            try:
                time.sleep(1.0)
                yield f"http://127.0.0.1:{port}", process.pid
            finally:
                process.terminate()


def probe(exporter: str, name: str, url: str) -> Probe:
    """A probe of an engine."""
    target = urllib.parse.urlencode({"module": name, "target": f"{url}/v1/chat/completions"})
    at_s = time.monotonic()
    with urllib.request.urlopen(f"{exporter}/probe?{target}", timeout=30) as answer:
        text = answer.read().decode()
    values = dict(re.findall(r"^(probe_success|probe_duration_seconds) (\S+)$", text, re.MULTILINE))
    return Probe(at_s, float(values["probe_success"]) == 1, float(values["probe_duration_seconds"]))


@contextlib.contextmanager
def probing(exporter: str, urls: dict[str, str], rate_per_s: float) -> Iterator[dict[str, list[Probe]]]:
    """Probes of each engine meanwhile."""
    probes: dict[str, list[Probe]] = {name: [] for name in urls}
    ended = threading.Event()

    def probe_always(name: str) -> None:
        due_s = time.monotonic()
        while not ended.wait(max(0.0, due_s - time.monotonic())):
            with contextlib.suppress(OSError):
                probes[name].append(probe(exporter, name, urls[name]))
            due_s += 1 / rate_per_s

    threads = [threading.Thread(target=probe_always, args=(name,), daemon=True) for name in urls]
    for thread in threads:
        thread.start()
    try:
        yield probes
    finally:
        ended.set()
        for thread in threads:
            thread.join(30)


def get(url: str) -> Any:
    """The JSON of a page, as soon as somebody serves it."""
    deadline_s = time.monotonic() + STARTED_WITHIN_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.loads(answer.read())
        except OSError:
            if time.monotonic() > deadline_s:
                raise
        time.sleep(0.2)


def by_name(prober: str) -> dict[str, dict[str, Any]]:
    """The targets as the API shows them."""
    return {target["name"]: target for target in get(f"{prober}/api/v1/targets")["data"]}


def noticed_by_blackbox(probes: list[Probe], begin_s: float) -> str:
    """What is different since the fault; empty: nothing."""
    before = [one for one in probes if one.at_s < begin_s - 2]
    after = [one for one in probes if one.at_s >= begin_s + SETTLED_S]
    if not before or not after:
        return f"not known: {len(before)} probes before the fault, and {len(after)} after it"
    failed = [sum(not one.is_success for one in part) / len(part) for part in (before, after)]
    if failed[1] > failed[0] + 0.05:
        return f"{failed[1]:.0%} of the probes fail"
    medians = [statistics.median(one.duration_s for one in part) for part in (before, after)]
    if medians[1] > 1.25 * medians[0]:
        return f"probes take {medians[1] / medians[0]:.1f} times as long"
    return ""


def noticed_by_prober(target: dict[str, Any], alerts: list[str], events: list[str], series: str) -> list[str]:
    """What the API, the alerts and the series say."""
    is_unread = f'llmslo_engine_up{{target="{target["name"]}"}} 0.0' in series
    said = ["its page cannot be read"] if is_unread else []
    said += [f"is {target['state']}"] if target["state"] != "ready" else []
    said += [f"misses {slo['slo']}" for slo in target["slos"] if slo["state"] == "missed"]
    said += [f"drift of {drift['signal']}" for drift in target["drift"] if drift["active"]]
    return list(dict.fromkeys([*said, *alerts, *events]))


def faults(clients: Path) -> dict[str, Any]:
    """What each notices of each fault."""
    command = [sys.executable, "-m", "prober", "demo", "--scene", "all", "--trouble-after", f"{TROUBLE_S:g}s"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo:
        try:
            prober, prometheus = addresses(demo)
            begin_s, begin_unix_s = time.monotonic() + TROUBLE_S, time.time() + TROUBLE_S
            deadline_s = time.monotonic() + STARTED_WITHIN_S
            while EXPECTED.keys() - (targets := by_name(prober)).keys() and time.monotonic() < deadline_s:
                time.sleep(0.2)  # a busy prober shows them one after the other
            urls = {name: target["url"].removesuffix("/v1") for name, target in targets.items()}
            with blackbox(clients, urls) as (exporter, _), probing(exporter, urls, 1.0) as probes:
                time.sleep(LENGTH_S)
            targets = {name: target for name, target in by_name(prober).items() if name in urls}
            events = get(f"{prober}/api/v1/events")["data"]
            with urllib.request.urlopen(f"{prober}/metrics", timeout=30) as answer:
                series = answer.read().decode()
            alerts = get(f"{prometheus}/api/v1/alerts")["data"]["alerts"]
        finally:
            demo.terminate()
    said = {}
    for name, target in targets.items():
        firing = {
            one["labels"]["alertname"]
            for one in alerts
            if one["labels"].get("target") == name and one["state"] == "firing"
        }
        later = [event["text"] for event in events if event["target"] == name and event["unix_s"] >= begin_unix_s]
        said[name] = noticed_by_prober(target, sorted(firing), later, series)
    common = {words for name in said.keys() - SCENES.keys() for words in said[name]}
    return {
        name: {
            "is_fault": name in SCENES,
            "fault": SCENES[name].trouble if name in SCENES else "none",
            # What is said of a healthy engine too, as of a busy machine, is not said of the fault.
            OURS: "; ".join(word for word in words if name not in SCENES or word not in common),
            BLACKBOX: noticed_by_blackbox(probes[name], begin_s),
        }
        for name, words in said.items()
    }


def costs(clients: Path) -> dict[str, Any]:
    """Processor time and memory of each at one target, at the same rate."""
    found: dict[str, Any] = {}
    with stage(COST_CONFIG) as running:
        time.sleep(4)
        before_s = running.cpu_s()
        time.sleep(COST_S)
        found[OURS] = _cost(running.cpu_s() - before_s, COST_RATE * COST_S, running.rss_mb())
        urls = {"mock": running.mock}
        with blackbox(clients, urls) as (exporter, pid):
            with probing(exporter, urls, COST_RATE):
                time.sleep(2)
            before_s, memory = _cpu_s(pid), Memory(pid)
            with probing(exporter, urls, COST_RATE) as probes:
                time.sleep(COST_S)
            found[BLACKBOX] = _cost(_cpu_s(pid) - before_s, len(probes["mock"]), memory.end())
    return found


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _cost(cpu_s: float, probes: float, memory_mb: float) -> dict[str, float]:
    return {"cpu_ms_per_probe": round(cpu_s / probes * 1e3, 2), "memory_mb": round(memory_mb)}


def play(clients: Path, deadline_s: float) -> dict[str, Any]:
    """Costs and faults, as far as time is left."""
    found: dict[str, Any] = {CLOUDPROBER: "not measured: it is in no package index that is used here"}
    if time.monotonic() + 2 * COST_S + 20 < deadline_s:
        found["costs"] = part("costs", costs(clients))
    if time.monotonic() + LENGTH_S + 20 < deadline_s:
        found["faults"] = part("faults", faults(clients))
    return found | {"left_out": [name for name in ("costs", "faults") if name not in found]}


def goals(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The daemon notices every fault, and nothing where there is none; it costs at most what blackbox_exporter does."""
    results = []
    if "faults" in found:
        rows = found["faults"].values()
        unnoticed = sum(row["is_fault"] and not row[OURS] for row in rows)
        false = sum(not row["is_fault"] and bool(row[OURS]) for row in rows)
        results += [
            goal(f"continuous: faults of {len(SCENES)} that are not noticed", unnoticed, 0, "faults"),
            goal("continuous: healthy engines of which something is said", false, 0, "engines"),
        ]
    if "costs" in found:
        for key, title, unit in (
            ("cpu_ms_per_probe", "processor time of a probe", "ms"),
            ("memory_mb", "memory", "MB"),
        ):
            ours, other = found["costs"][OURS][key], found["costs"][BLACKBOX][key]
            results.append(goal(f"continuous: {title} (blackbox_exporter)", ours, other, unit))
    return results
