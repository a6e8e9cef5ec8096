"""From a fault to a message and back: mock engines, probers, a real Prometheus with our rules, a real Alertmanager, a webhook.

Everything is what is shipped, on a clock twenty times faster: the durations of the rules and the time that a drift must last are
divided by twenty, nothing else of them is changed, and probes are as much more frequent. All stories run side by side in one run;
beside those with a fault stands one target without, about which nothing may ever arrive. Drift has a run of its own, since it
must first learn a baseline. The SLO's threshold and the fault that exceeds it are seconds, beyond any pause of a busy machine.
"""

import asyncio
import json
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from aiohttp import web

from prober.cli.rules import as_yaml
from prober.features.drift.serialization import dump, restore
from prober.features.drift.state import Settings
from prober.storage.store import Store
from tests import commands, processes
from tests.processes import Process, Program, Prometheus, free_port, get, value
from tests.serving import serving

ROOT = Path(__file__).parents[2]
FASTER = 20
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
QUICK = {"global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"}}
CONFIG = """
slos:
  ttft: {{signal: ttft, threshold: 4s, objective: 99%}}
defaults: {{warmup: 0, timeouts: {{first_token: 20s}}}}
workloads:
  short: {{prompt_tokens: 20, output_tokens: 4}}
targets:
{targets}
"""
DRIFTY, USUAL = "60/s", "8/s"
HASTENED = f"from prober.features.drift import detector; detector.MIN_CHANGE_S /= {FASTER}; from prober.cli.main import main; main()"
TEAMS = {"burning": "search"}


def shrunk(text: str) -> str:
    """A PromQL duration divided by FASTER, at least a second."""
    seconds = sum(int(count) * SECONDS[unit] for count, unit in re.findall(r"(\d+)([smhd])", text))
    return f"{max(1, round(seconds / FASTER))}s"


def ranges(text: str) -> str:
    """The text in brackets: a range, and the step of a subquery."""
    return ":".join(shrunk(part) if part else "" for part in text.split(":"))


def hastened(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for group in groups:
        if "interval" in group:  # the length of tiles, which are added up
            group["interval"] = shrunk(group["interval"])
        for rule in group["rules"]:
            rule["expr"] = re.sub(r"\[([^]]+)\]", lambda found: f"[{ranges(found[1])}]", rule["expr"])
            if "for" in rule:
                rule["for"] = shrunk(rule["for"])
    return groups


async def until(true: Callable[[], Any], event: str, seconds: float = 300) -> None:
    await asyncio.to_thread(processes.until, true, event, seconds)


class Inbox:
    """The messages that the webhook received."""

    def __init__(self) -> None:
        self.alerts: list[dict[str, Any]] = []
        self.receivers: dict[tuple[str, str], set[str]] = {}  # by the labels `team`, empty without one, and `severity`

    def has(self, status: str, name: str, **labels: str) -> dict[str, Any] | None:
        """The first message about such an alert."""
        return next((a for a in self.alerts if a["status"] == status and self._is(a, name, labels)), None)

    @staticmethod
    def _is(alert: dict[str, Any], name: str, labels: dict[str, str]) -> bool:
        return bool(alert["labels"]["alertname"] == name and labels.items() <= alert["labels"].items())

    def about(self, **labels: str) -> list[str]:
        return [a["labels"]["alertname"] for a in self.alerts if labels.items() <= a["labels"].items()]


@asynccontextmanager
async def webhook() -> AsyncIterator[tuple[Inbox, int]]:
    inbox = Inbox()

    async def take(request: web.Request) -> web.Response:
        alerts = (await request.json())["alerts"]
        inbox.alerts.extend(alerts)
        for alert in alerts:
            route = alert["labels"].get("team", ""), alert["labels"]["severity"]
            inbox.receivers.setdefault(route, set()).add(request.match_info["receiver"])
        return web.Response()

    app = web.Application()
    app.add_routes([web.post("/{receiver}", take)])
    port = free_port()
    async with serving(app, port):
        yield inbox, port


class Stage:
    """Mocks to break, one to leave alone, two probers, Prometheus and Alertmanager."""

    def __init__(
        self,
        folder: Path,
        started: ExitStack,
        prometheus: Path,
        alertmanager: Path,
        hook: int,
        rates: dict[str, str],
    ) -> None:
        self._folder, self._started = folder, started
        self.mocks = {name: free_port() for name in rates}
        self.probers = {name: free_port() for name in ("main", "doomed")}
        self.running: dict[str, Process] = {name: self.mock(name) for name in self.mocks}
        for port in self.mocks.values():  # else they are failing from the start
            processes.until(lambda port=port: get(f"http://127.0.0.1:{port}/version"), "a mock")  # type: ignore[misc]
        self.running["main"] = self.prober("main", rates)
        self.running["doomed"] = self.prober("doomed", {"other": USUAL})
        for port in self.probers.values():
            processes.until(lambda port=port: get(f"http://127.0.0.1:{port}/-/ready"), "a prober")  # type: ignore[misc]
        self._alertmanager(alertmanager, hook)
        self._prometheus(prometheus)

    def mock(self, name: str) -> Program:
        options = ("--ttft", "lognormal:150ms:0.2", "--itl", "5ms", "--model", name)
        words = ("mock", "--port", self.mocks[name], *options)
        return self._started.enter_context(Program(self._folder / f"{name}.log", *words))

    def prober(self, name: str, targets: dict[str, str]) -> Process:
        listed = "".join(
            f"  - {{name: {target}, url: 'http://127.0.0.1:{self.mocks.get(target, self.mocks['quiet'])}', rate: {rate}, "
            f"max_in_flight: 200, probes: [{{workload: short}}], labels: {{team: '{TEAMS.get(target, '')}'}}}}\n"
            for target, rate in targets.items()
        )
        config = self._folder / f"{name}.yaml"
        config.write_text(CONFIG.format(targets=listed))
        address = f"127.0.0.1:{self.probers[name]}"
        store = ("--storage.path", str(self._folder / f"{name}.store"))
        words = ("run", "--config.file", config, "--web.listen-address", address, *store)
        log = self._folder / f"{name}.log"
        return self._started.enter_context(Process(log, sys.executable, "-c", HASTENED, *words))

    def fault(self, name: str, schedule: list[str]) -> None:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.mocks[name]}/mock/fault", json.dumps({"faults": schedule}).encode(), method="POST"
        )
        urllib.request.urlopen(request, timeout=processes.HANG_S).close()

    def _alertmanager(self, binary: Path, hook: int) -> None:
        document = yaml.safe_load((ROOT / "deploy/alertmanager/alertmanager.yaml").read_text())
        document["route"]["routes"].insert(0, {"matchers": ['team="search"'], "receiver": "search"})
        document["receivers"].append({"name": "search", "webhook_configs": [{"url": "", "send_resolved": True}]})
        for receiver in document["receivers"]:
            for webhook in receiver.get("webhook_configs", ()):
                webhook["url"] = f"http://127.0.0.1:{hook}/{receiver['name']}"
        for route in (document["route"], *document["route"].get("routes", ())):
            route |= {"group_wait": "1s", "group_interval": "1s"}
        config = self._folder / "alertmanager.yml"
        config.write_text(yaml.safe_dump(document))
        self.alertmanager = free_port()
        words = (f"--config.file={config}", f"--storage.path={self._folder}/am", "--cluster.listen-address=")
        listen = f"--web.listen-address=127.0.0.1:{self.alertmanager}"
        self._started.enter_context(Process(self._folder / "alertmanager.log", binary, *words, listen))

    def _prometheus(self, binary: Path) -> None:
        written = commands.prober("rules", "--config.file", self._folder / "main.yaml")
        rules = self._folder / "rules.yaml"
        rules.write_text(as_yaml({"groups": hastened(yaml.safe_load(written.stdout)["groups"])}))
        targets = [f"127.0.0.1:{port}" for port in self.probers.values()]
        document = {
            **QUICK,
            "rule_files": [str(rules)],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{self.alertmanager}"]}]}]},
            "scrape_configs": [{"job_name": "llm-slo-prober", "static_configs": [{"targets": targets}]}],
        }
        flag = "--rules.alert.resend-delay=1s"
        self.prometheus = self._started.enter_context(Prometheus(binary, self._folder, document, flag))
        # A prober is known by what it exported, whatever its scrape job is called.
        processes.until(lambda: len(self.prometheus.query("llmslo_build_info")) == len(targets), "both to be scraped")


@asynccontextmanager
async def staged(
    folder: Path, prometheus: Path, alertmanager: Path, rates: dict[str, str]
) -> AsyncIterator[tuple[Stage, Inbox]]:
    """A stage whose main prober has these targets, and the messages that arrive."""
    async with webhook() as (inbox, hook):
        with ExitStack() as started:
            yield await asyncio.to_thread(Stage, folder, started, prometheus, alertmanager, hook, rates), inbox


async def arrives(inbox: Inbox, status: str, name: str, **labels: str) -> dict[str, Any]:
    """The message, once it is there."""
    await until(lambda: inbox.has(status, name, **labels), f"{name} to be {status}")
    message = inbox.has(status, name, **labels)
    assert message is not None
    return message


async def test_faults_arrive_and_resolve_and_quiet_stays_quiet(
    tmp_path: Path, prometheus_binary: Path, alertmanager_binary: Path
) -> None:
    """A burn fires after its fault and ends with it; so do a target that is gone, one without money, and a prober that was killed.

    Each is one alert.
    """
    rates = dict.fromkeys(("burning", "gone", "unpaid", "quiet"), USUAL)
    async with staged(tmp_path, prometheus_binary, alertmanager_binary, rates) as (stage, inbox):
        assert set(inbox.about()) <= {"LLMProberUntrusted"}, "nothing was wrong yet"
        stage.fault("unpaid", ["http:402"])
        unpaid = await arrives(inbox, "firing", "LLMProbeRejected", target="unpaid")
        said = "Nothing is measured. payment: HTTP 402: mock fault http:402"
        assert said in unpaid["annotations"]["description"]
        health = get(f"http://127.0.0.1:{stage.probers['main']}/health/unpaid")
        assert health.startswith("unknown: rejected: HTTP 402"), "other keys may get answers"
        stage.fault("unpaid", [])
        stage.fault("burning", ["latency:40"])
        stage.running["gone"].kill()
        stage.running["doomed"].kill()
        stories: tuple[tuple[str, dict[str, str]], ...] = (
            ("LLMErrorBudgetBurn", {"target": "burning", "severity": "critical", "slo": "ttft"}),
            ("LLMTargetFailing", {"target": "gone"}),
            ("LLMProberDown", {"instance": f"127.0.0.1:{stage.probers['doomed']}"}),
        )
        for name, labels in stories:
            await arrives(inbox, "firing", name, **labels)
        burn = await arrives(inbox, "firing", "LLMErrorBudgetBurn", target="burning")
        assert re.search(r"^Last 5 min: \d+ of \d+ events bad\.", burn["annotations"]["description"])
        stage.fault("burning", [])
        stage.running["gone"] = stage.mock("gone")
        stage.running["doomed"] = stage.prober("doomed", {"other": USUAL})
        for name, labels in stories:
            await arrives(inbox, "resolved", name, **labels)
        assert set(inbox.about(target="quiet")) <= {"LLMProberUntrusted"}  # which is true of a busy machine
        assert inbox.receivers["search", "critical"] == {"search"}
        assert inbox.receivers["", "critical"] == {"pager"}
        one_each = {
            "burning": "LLMErrorBudgetBurn critical",
            "gone": "LLMTargetFailing critical",
            "unpaid": "LLMProbeRejected warning",
        }
        fired = {
            (a["labels"].get("target"), f"{a['labels']['alertname']} {a['labels']['severity']}")
            for a in inbox.alerts
            if a["labels"]["alertname"] != "LLMProberUntrusted"  # of a busy machine it is true
        }
        assert {pair for pair in fired if pair[0] in one_each} == set(one_each.items()), "one trouble, one alert"
        assert "LLMSLONoData" not in inbox.about(), "a prober that is down is told once"
        down = [alert for alert in inbox.alerts if alert["labels"]["alertname"] == "LLMProberDown"]
        assert any(alert["annotations"]["runbook_url"] for alert in down)
        for alert in inbox.alerts:
            follow(alert, f"http://127.0.0.1:{stage.probers['main']}")


def follow(alert: dict[str, Any], service: str) -> None:
    """The links of a message lead to the runbook, at a prober that was up, and to the target at the prober that has it."""
    notes, name = alert["annotations"], alert["labels"]["alertname"]
    if name == "LLMProberDown" and not notes["runbook_url"]:
        return  # Prometheus could read no prober at that moment, as on a machine that stood still
    runbook = urlsplit(notes["runbook_url"])
    assert runbook.netloc.startswith("127.0.0.1:")
    assert runbook.path == f"/runbooks/{name}"
    assert f"<h1>{name}" in get(service + runbook.path)
    if "target" not in alert["labels"]:
        assert notes["runbook_url"].startswith(service), "an alert about a prober that is down leads to another"
    if "prober_url" in notes:
        page = urlsplit(notes["prober_url"])
        assert parse_qs(page.query) == {"target": [alert["labels"]["target"]]}
        assert f"{page.scheme}://{page.netloc}" == service
        assert alert["labels"]["target"] in get(notes["prober_url"])


def count_as_days(folder: Path) -> None:
    """Call the stored baselines of minutes baselines of days: others raise no alarm, and none can be learnt in a test."""
    with closing(Store(str(folder))) as store:
        states = {key: restore(Settings(60.0), data) for key, data in store.load("drift").items()}
        for state in states.values():
            state.covers_days = True
        store.save("drift", [(key, dump(state)) for key, state in states.items()], time.time())


@pytest.mark.slow
async def test_a_drift_arrives_with_its_size_and_resolves(
    tmp_path: Path, prometheus_binary: Path, alertmanager_binary: Path
) -> None:
    """Four times as slow, within the SLO: a drift and no burn; nothing about its neighbour."""
    rates = {"drifty": DRIFTY, "quiet": USUAL}
    async with staged(tmp_path, prometheus_binary, alertmanager_binary, rates) as (stage, inbox):
        main = f"http://127.0.0.1:{stage.probers['main']}"
        learnt = {"target": "drifty", "signal": "ttft", "state": "provisional"}
        await until(
            lambda: value(main, "llmslo_drift_baseline_state", **learnt) == 1, "a baseline of 5,000 samples", 240
        )
        assert set(inbox.about()) <= {"LLMProberUntrusted"}, "nothing was wrong yet"
        assert stage.running["main"].stop() == 0
        count_as_days(tmp_path / "main.store")
        stage.running["main"] = stage.prober("main", rates)
        await until(lambda: value(main, "llmslo_drift_baseline_state", **learnt) == 1, "the baseline to be known again")
        stage.fault("drifty", ["latency:4"])
        drift = await arrives(inbox, "firing", "LLMTTFTP99Drift", target="drifty")
        # The page is read less often than probes are sent: whether the baseline knows the load depends on when it was learned.
        assert "cause" not in drift["labels"], "it may change while the alert lasts"
        assert re.search(r"is slower since \d{4}-\d\d-\d\d ", drift["annotations"]["description"])
        # A shift takes 20 probes since the change; a message that was sent before has none, and the alert gets it.
        sized = r"p50 ×(3\.[5-9]|4\.[0-4])\d, p75 ×"
        alerts = f"http://127.0.0.1:{stage.alertmanager}/api/v2/alerts"
        await until(lambda: re.search(sized, get(alerts)), "the size of the drift")
        assert drift["annotations"]["runbook_url"].endswith("/runbooks/LLMTTFTP99Drift")
        assert "Look first" in get(f"{main}/runbooks/LLMTTFTP99Drift")
        stage.fault("drifty", [])
        await arrives(inbox, "resolved", "LLMTTFTP99Drift", target="drifty")
        assert set(inbox.about(target="quiet")) <= {"LLMProberUntrusted"}  # which is true of a busy machine
        assert [name for name in inbox.about(target="drifty") if "Burn" in name] == []
