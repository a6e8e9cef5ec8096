"""The example for Alertmanager is one that Alertmanager takes, and a real one inhibits what it should and nothing else."""

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes import Process, free_port, get, until

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "deploy/alertmanager/alertmanager.yaml"

ROUTED = [
    ("critical", "alertname=LLMErrorBudgetBurn severity=critical", "pager"),
    ("warning", "alertname=LLMTTFTP99Drift severity=warning", "tickets"),
]


def test_the_examples_are_valid(amtool: Path, tmp_path: Path) -> None:
    """By amtool: the whole one, and that of the README."""
    of_readme = re.search(r"```yaml\n(# alertmanager\.yaml\n.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert of_readme is not None
    (tmp_path / "readme.yaml").write_text(of_readme[1])
    for config in (CONFIG, tmp_path / "readme.yaml"):
        done = subprocess.run([amtool, "check-config", config], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("severity", "labels", "receiver"), ROUTED)
def test_each_severity_has_its_receiver(amtool: Path, severity: str, labels: str, receiver: str) -> None:
    """Pages wake somebody, tickets do not."""
    command = [str(amtool), "config", "routes", "test", f"--config.file={CONFIG}", *labels.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert receiver in done.stdout, done.stdout + done.stderr


FAILING = "LLMTargetFailing critical target=llama"
BURN = "LLMErrorBudgetBurn critical target=llama workload=w slo=ok"
# What fires, what of it is not sent, and what is.
INHIBITED = {
    "an outage is one message": (
        [FAILING],
        [
            BURN,
            "LLMErrorBudgetBurn warning target=llama workload=w slo=ok",
            "LLMErrorBudgetBurn critical target=llama workload=w slo=ok999",
            "LLMErrorBudgetBurnFromVantage warning target=llama workload=w slo=ok vantage=paris",
            "LLMErrorBudgetBurnOfTraffic critical target=llama slo=ttft source=traffic",
            "LLMTTFTP99Drift warning target=llama workload=w signal=ttft",
            "LLMQualityDegraded warning target=llama workload=golden",
            "LLMSLONoData warning target=llama workload=w slo=tpot",
        ],
        [
            "LLMErrorBudgetBurn critical target=other workload=w slo=ok",
            "LLMSLONoData warning target=other workload=w slo=ok",
            "LLMProberRestarting warning instance=a",
            "LLMHeadroomLow warning target=llama",
        ],
    ),
    "of its own cluster": ([f"{FAILING} cluster=east"], [f"{BURN} cluster=east"], [f"{BURN} cluster=west", BURN]),
    "whatever its own labels": ([f"{FAILING} team=search"], [f"{BURN} team=search"], [BURN.replace("llama", "other")]),
    "from one place": (
        ["LLMTargetFailingFromVantage warning target=llama vantage=paris"],
        ["LLMErrorBudgetBurnFromVantage warning target=llama workload=w slo=ok vantage=paris"],
        [
            "LLMErrorBudgetBurnFromVantage warning target=llama workload=w slo=ok vantage=lima",
            "LLMErrorBudgetBurnFromVantage warning target=other workload=w slo=ok vantage=paris",
            BURN.replace("slo=ok", "slo=ttft"),
        ],
    ),
    "probes and all requests are one page": (
        [BURN],
        ["LLMErrorBudgetBurnOfTraffic critical target=llama slo=ok source=traffic"],
        [
            "LLMErrorBudgetBurnOfTraffic critical target=llama slo=itl source=traffic",
            "LLMErrorBudgetBurnOfTraffic critical target=other slo=ok source=traffic",
        ],
    ),
    "that of all requests needs no ticket": (
        ["LLMErrorBudgetBurnOfTraffic critical target=llama slo=ok source=traffic"],
        [
            "LLMErrorBudgetBurnOfTraffic warning target=llama slo=ok source=traffic",
            "LLMErrorBudgetBurn warning target=llama workload=w slo=ok",
        ],
        [BURN.replace("slo=ok", "slo=itl"), "LLMErrorBudgetBurn warning target=other workload=w slo=ok"],
    ),
    "a page needs no ticket": (
        [BURN],
        ["LLMErrorBudgetBurn warning target=llama workload=w slo=ok"],
        [
            "LLMErrorBudgetBurn warning target=llama workload=w slo=ttft",
            "LLMErrorBudgetBurn warning target=llama workload=rag slo=ok",
            "LLMErrorBudgetBurn warning target=other workload=w slo=ok",
        ],
    ),
    "a burn names a full cache": (
        ["LLMErrorBudgetBurn warning target=llama workload=w slo=ok"],
        ["LLMKVCachePressure warning target=llama"],
        ["LLMKVCachePressure warning target=other", BURN.replace("llama", "third")],
    ),
    "all targets of a prober fail alike": (
        [
            "LLMAllTargetsFailing critical instance=a reason=dns",
            "LLMTargetFailsWithAll none target=llama",
            "LLMTargetFailsWithAll none target=other",
        ],
        [FAILING, FAILING.replace("llama", "other"), BURN, "LLMSLONoData warning target=other workload=w slo=ok"],
        [FAILING.replace("llama", "third"), "LLMProberUntrusted warning target=llama instance=a"],
    ),
    "why there is no data": (
        ["LLMProbeRejected warning target=llama workload=w"],
        [
            "LLMSLONoData warning target=llama workload=w slo=ok",
            "LLMSLONoData warning target=llama workload=w slo=ttft",
        ],
        [
            "LLMSLONoData warning target=llama workload=rag slo=ok",
            "LLMSLONoData warning target=other workload=w slo=ok",
            BURN,
        ],
    ),
    "nobody probes": (
        ["LLMProberDown critical instance=a"],
        ["LLMSLONoData warning target=llama workload=w slo=ok"],
        [FAILING, "LLMProberDown critical instance=b", "LLMErrorBudgetBurn critical target=other workload=w slo=ok"],
    ),
    "a prober without CPU time": (
        ["LLMProberUntrusted warning target=llama instance=a"],
        ["LLMTTFTP99Drift warning target=llama workload=w signal=ttft"],
        [
            "LLMTTFTP99Drift warning target=other workload=w signal=ttft",
            "LLMSLONoData warning target=llama workload=w slo=ok",
            BURN.replace("llama", "other"),
        ],
    ),
}


@pytest.mark.parametrize("name", INHIBITED)
def test_what_an_alert_inhibits(alertmanager_binary: Path, tmp_path: Path, name: str) -> None:
    """By a real Alertmanager: these of the same target, workload, SLO, vantage or cluster, and no others."""
    sources, muted, sent = ([_labels(text) for text in texts] for texts in INHIBITED[name])
    with _alertmanager(alertmanager_binary, tmp_path) as url:
        body = json.dumps([{"labels": labels} for labels in (*sources, *muted, *sent)]).encode()
        headers = {"Content-Type": "application/json"}
        urllib.request.urlopen(urllib.request.Request(f"{url}/api/v2/alerts", body, headers), timeout=10).close()

        def states() -> dict[str, list[str]]:
            found: dict[str, list[str]] = {}
            for alert in json.loads(get(f"{url}/api/v2/alerts")):
                found.setdefault(alert["status"]["state"], []).append(_key(alert["labels"]))
            return found

        until(lambda: len(states().get("suppressed", ())) >= len(muted), "alerts to be inhibited")
        found = states()
        assert sorted(found.pop("suppressed")) == sorted(map(_key, muted))
        assert sorted(key for keys in found.values() for key in keys) == sorted(map(_key, (*sources, *sent)))


@contextmanager
def _alertmanager(binary: Path, folder: Path) -> Iterator[str]:
    """Base URL of an Alertmanager with the example, whose messages wait for an hour."""
    port, config = free_port(), folder / "alertmanager.yml"
    config.write_text(re.sub("group_wait: [0-9]+[sm]", "group_wait: 1h", CONFIG.read_text()))
    flags = (f"--config.file={config}", f"--storage.path={folder}", "--cluster.listen-address=")
    with Process(folder / "log", binary, *flags, f"--web.listen-address=127.0.0.1:{port}"):
        url = f"http://127.0.0.1:{port}"
        until(lambda: get(f"{url}/-/ready"), "Alertmanager")
        yield url


def _labels(text: str) -> dict[str, str]:
    """Labels of `ALERT SEVERITY LABEL=VALUE …`."""
    name, severity, *pairs = text.split()
    return {"alertname": name, "severity": severity} | dict(pair.split("=") for pair in pairs)


def _key(labels: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(labels.items()))
