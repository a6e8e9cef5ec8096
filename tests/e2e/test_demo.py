"""`prober demo` as a person starts it, with its trouble after some seconds: what it promises is to be seen, and nothing of it stays."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families as read_text

from prober.cli.demo import ENGINES
from prober.cli.scenes import SCENES
from tests.commands import prober
from tests.processes import HANG_S, get, until

TROUBLE_S = 20.0
COMPARED = ("healthy", "regressing")
COMMAND = [sys.executable, "-m", "prober", "demo"]
Samples = dict[str, dict[str, float]]  # by series and target, summed over the other labels


class Demo:
    """A demo that runs, and what it told."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.output: list[str] = []
        assert process.stdout is not None
        for line in process.stdout:
            self.output.append(line.rstrip())
            if line.startswith("Ctrl-C"):
                break

    def address(self, name: str) -> str:
        assert self.process.poll() is None, self.process.stdout and self.process.stdout.read()
        (url,) = (re.search(r"http://[\d.:]+", line) for line in self.output if line.startswith(name))
        assert url is not None
        return url[0]

    @property
    def children(self) -> set[int]:
        """Processes that it started and that are there."""
        number = self.process.pid
        return {int(part) for part in Path(f"/proc/{number}/task/{number}/children").read_text().split()}

    def samples(self) -> Samples:
        samples: Samples = {}
        for family in read_text(get(f"{self.address('prober')}/metrics")):
            for sample in family.samples:
                by_target = samples.setdefault(sample.name, {})
                name = sample.labels.get("target", "")
                by_target[name] = by_target.get(name, 0.0) + sample.value
        return samples

    def targets(self) -> dict[str, Any]:
        targets = json.loads(get(f"{self.address('prober')}/api/v1/targets"))["data"]
        return {target["name"]: target for target in targets}


@contextmanager
def demo(*options: str) -> Iterator[Demo]:
    process = subprocess.Popen([*COMMAND, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    with process.stdout:
        try:
            yield Demo(process)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(HANG_S)


def tpots(samples: Samples, target: str, since: Samples | None = None, part: str = "count") -> float:
    """Count or sum of TPOTs, in total or since an earlier page."""
    name = f"llmslo_tpot_seconds_{part}"
    return samples[name][target] - (since[name][target] if since else 0.0)


def mean(samples: Samples, target: str, since: Samples | None = None) -> float:
    """TPOT in seconds."""
    return tpots(samples, target, since, "sum") / tpots(samples, target, since)


def is_running(number: int) -> bool:
    """Whether a process is there, and not only its exit status."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def meets_its_slos(target: dict[str, Any]) -> bool:
    """The share of bad events of each SLO is within its budget."""
    return all(slo["bad_events"] <= (1 - slo["objective"]) * slo["events"] for slo in target["slos"])


def test_it_shows_what_it_says_and_leaves_nothing(prometheus_binary: Path) -> None:
    """An engine stays healthy and meets its SLOs, another gets slower, one fills up, one fails; at the end all processes are gone."""
    with demo("--trouble-after", f"{TROUBLE_S:g}s") as running:
        until(lambda: len(running.targets()) == 4, "four targets")
        assert set(running.targets()) == set(ENGINES)
        until(lambda: min(tpots(running.samples(), name) for name in COMPARED) >= 15, "probes before the trouble")
        before = running.samples()
        assert running.targets()["failing"]["state"] == "ready"
        until(lambda: running.targets()["failing"]["state"] == "failing", "the failing one fails")
        changed = running.samples()
        until(lambda: min(tpots(running.samples(), name, changed) for name in COMPARED) >= 40, "probes after it")
        after = running.samples()
        assert mean(after, "regressing", changed) > 1.3 * mean(before, "regressing")
        assert mean(after, "healthy", changed) < 1.3 * mean(before, "healthy")
        assert {name: target["state"] for name, target in running.targets().items()} == {
            "healthy": "ready", "regressing": "ready", "full": "ready", "failing": "failing",
        }  # fmt: skip
        # A stop of the machine makes bad events, whose share falls as good ones come.
        until(lambda: meets_its_slos(running.targets()["healthy"]), "the healthy one to meet its SLOs")
        state = 'llmslo_slo_state{target="%s",state="%s"} == 1'
        left = 'llmslo_slo_error_budget_remaining_ratio{target="healthy"} > 0'
        until(lambda: query(running, left) == 2, "both SLOs of the healthy one have a budget")
        missed, late = state % ("failing", "missed"), "llmslo_trusted == 0"  # a late prober gives no data
        until(lambda: query(running, f"{missed} or {late}") > 0, "the failing one misses an SLO")
        filled = "max_over_time(llmslo_engine_kv_cache_usage_ratio{target='full'}[5m]) > 0.8"
        until(lambda: query(running, filled) == 1, "the full one fills up")
        assert {target["engine"] for _ in range(5) if (target := running.targets()["failing"])} == {"vllm"}
        assert "LLMTargetFailing" in get(alerts(running))
        texts = [rule["annotations"] for rule in rules(running) if rule["type"] == "alerting"]
        home = running.address("prober")
        assert not any("dashboard_url" in text for text in texts), "the demo has no Grafana"
        (alert,) = until(lambda: alerts_of(running, "LLMTargetFailing"), "the alert")
        assert alert["annotations"]["runbook_url"] == f"{home}/runbooks/LLMTargetFailing"
        assert "<h1>LLMTargetFailing" in get(alert["annotations"]["runbook_url"])
        started = running.children
        assert len(started) == 6
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(HANG_S) == 0
        assert [number for number in started if is_running(number)] == []


def alerts_of(running: Demo, name: str) -> list[dict[str, Any]]:
    """Those of one rule, pending and firing."""
    return next(list(rule["alerts"]) for rule in rules(running) if rule["name"] == name)


def alerts(running: Demo) -> str:
    """The address of Prometheus's page of alerts, as it is told."""
    (line,) = (line for line in running.output if line.startswith("Prometheus"))
    return line.split()[1]


def rules(running: Demo) -> list[dict[str, Any]]:
    """Of its Prometheus."""
    groups = json.loads(get(f"{running.address('Prometheus')}/api/v1/rules"))["data"]["groups"]
    return [rule for group in groups for rule in group["rules"]]


def called(running: Demo, word: bytes) -> list[int]:
    """Processes of the demo that have the word in their command."""
    return [number for number in running.children if word in Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")]


def query(running: Demo, expr: str) -> int:
    """The number of series that the demo's Prometheus returns."""
    query = urllib.parse.urlencode({"query": expr})
    return len(json.loads(get(f"{running.address('Prometheus')}/api/v1/query?{query}"))["data"]["result"])


def test_a_port_that_is_taken_is_told_and_another_one_is_used() -> None:
    """Ctrl-C at once is taken too: it ends with 0, and without a word about it."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            held.bind(("127.0.0.1", 9742))
            held.listen()
        except OSError:
            pass  # something else has it, which serves as well
        with demo() as running:
            assert not running.address("prober").endswith(":9742")
            assert [line for line in running.output if "port 9742 is taken by another program: prober is at" in line]
            started = running.children
            running.process.send_signal(signal.SIGINT)
            assert running.process.wait(HANG_S) == 0
            assert [number for number in started if is_running(number)] == []


def test_an_engine_that_ends_by_itself_ends_the_demo() -> None:
    """With its name, and what it said; a demo with a hole in it would mislead."""
    with demo() as running:
        until(lambda: len(called(running, b"--port")) == len(ENGINES), "every engine")
        started = running.children
        (engine,) = called(running, b"regressing")
        os.kill(engine, signal.SIGKILL)
        assert running.process.wait(HANG_S) == 1
        assert running.process.stdout is not None
        assert "regressing exited with -9" in running.process.stdout.read()
        assert [number for number in started if is_running(number)] == []


def test_scenes_are_listed_and_an_unknown_one_is_told() -> None:
    """With all their names."""
    listed = prober("demo", "--scene", "list").stdout
    assert [line.split()[0] for line in listed.splitlines()] == list(SCENES)
    done = prober("demo", "--scene", "none")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"prober demo: --scene: 'none' is not a scene; all, or one of:\n{listed}"


def test_an_engine_that_ends_in_its_scene_does_not_end_the_demo() -> None:
    """The target fails, its neighbour does not."""
    with demo("--scene", "dead", "--trouble-after", "8s") as running:
        until(lambda: running.targets()["dead"]["state"] == "ready", "it answers")
        until(lambda: running.targets()["dead"]["state"] == "failing", "it is dead")
        assert running.targets()["healthy"]["state"] == "ready"
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(HANG_S) == 0
