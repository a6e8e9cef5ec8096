"""Every scene of `prober demo`, judged by what its text says: its engines, configuration and rules, with the daemon in virtual time."""

import asyncio
import json
import re
import statistics
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prober.cli import demo, simulated_past
from prober.cli import mock as mock_command
from prober.cli.scenes import SCENES, Engine, engines_of
from prober.mock.service import Settings
from prober.web.api_types import dumped
from prober.web.views import Snapshots
from tests.commands import prober
from tests.daemon.promtool import expects, groups_of, run_cases
from tests.virtual import running
from tests.virtual_daemon import MIDNIGHT, Daemon, virtual_clock

pytestmark = [
    pytest.mark.virtual_time,
    pytest.mark.usefixtures("garbage_collector"),
]
TROUBLE_S, SCRAPE_S = 60, 15
DRIFT = "drift"
OTHERS = [name for name in SCENES if name != DRIFT]
ALSO_TRUE = {  # alerts that a text need not name
    "full": {"LLMKVCachePressure"},
    "loading": {"LLMErrorBudgetBurn", "LLMSLONoData"},  # of the failures before its health was asked
    "draining": {"LLMErrorBudgetBurn", "LLMSLONoData"},
}
HAPPENING = {  # by the diagnosis; nothing in the other scenes
    **dict.fromkeys(("dead", "broken", "flaky", "cut"), "failing"),
    **dict.fromkeys(("slow", "upgraded", DRIFT), "slow_decode"),
    **{"limited": "refusing", "full": "cache_pressure", "loading": "loading", "draining": "draining"},
}
NAMED_AFTER_S = 180  # of the trouble


class Shown:
    """What a run has shown: the last snapshot, and the probes and events of all. probes: only those that were due in the trouble"""

    def __init__(self, daemon: Daemon, snapshots: list[dict[str, Any]]) -> None:
        self.daemon = daemon
        self.targets = {target["name"]: target for target in snapshots[-1]["targets"]}
        self.events = [event for snapshot in snapshots for event in snapshot["events"]]
        self.probes = [probe for snapshot in snapshots for probe in snapshot["probes"]]

    def outcomes(self, name: str) -> Counter[str]:
        """Of the probes in the trouble."""
        return Counter(probe["outcome"] for probe in self.probes if probe["target"] == name and in_trouble(probe))

    def tpot_ms(self, name: str, trouble: bool) -> float:
        tpots = [
            probe["tpot_s"]
            for probe in self.probes
            if probe["target"] == name and probe["tpot_s"] and in_trouble(probe) == trouble
        ]
        return 1e3 * float(statistics.median(tpots))

    def happening(self, time_s: int) -> dict[str, str]:
        """Names of the diagnosis by target, with `unknown` and those that are not confirmed."""
        found = re.compile(r'llmslo_cause_since_timestamp_seconds\{target="(.+?)",cause="(.+?)",.+\}')
        active = [found.fullmatch(sample) for sample in self.daemon.scrapes[time_s]]
        return {match[1]: match[2] for match in active if match}

    def reads_page(self, name: str, time_s: int) -> bool:
        return f'llmslo_engine_requests_running{{target="{name}"}}' in self.daemon.scrapes[time_s]


def in_trouble(probe: Mapping[str, Any]) -> bool:
    return bool(probe["time"] > MIDNIGHT + TROUBLE_S + 2)  # the engines start one after the other


@pytest.fixture(autouse=True)
def same_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedules of the probes follow from the name of the pod; what is learnt is of the days before."""
    monkeypatch.setenv("POD_NAME", "virtual")
    monkeypatch.setattr(simulated_past, "time", SimpleNamespace(time=lambda: MIDNIGHT))


@pytest.fixture
def mocks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Settings, float | None]]:
    """Settings and duration of every mock that is started by its command, instead of the mock."""
    started = list[tuple[Settings, float | None]]()

    def serve(settings: Settings, host: str, port: int, limit_s: float | None) -> None:
        started.append((replace(settings, seed=1), limit_s))

    monkeypatch.setattr(mock_command, "_serve", serve)
    monkeypatch.setattr(mock_command, "asyncio", SimpleNamespace(run=lambda _: None))
    return started


@asynccontextmanager
async def engine(mocks: list[tuple[Settings, float | None]], name: str, port: int, plan: Engine) -> AsyncIterator[None]:
    """The engine, and its successor."""

    async def serve(*commands: tuple[str, ...]) -> None:
        for options in commands:
            done = prober(*demo._mock(name, port, options, TROUBLE_S)[3:])
            assert done.returncode == 0, done.stderr
            settings, limit_s = mocks.pop()
            async with running(settings, port, make_clock=virtual_clock):
                await asyncio.sleep(limit_s or 1e9)

    serving = asyncio.create_task(serve(plan.options, *filter(None, [plan.successor])))
    await asyncio.sleep(0.1)
    yield
    if serving.done():
        serving.result()
    serving.cancel()


async def show(folder: Path, names: list[str], rate: str, until_s: int, mocks: Any) -> Shown:
    """Run these scenes with their neighbours."""
    engines = engines_of(names)
    ports = {name: 8000 + place for place, name in enumerate(engines)}
    snapshots = list[dict[str, Any]]()

    async def watch(source: Snapshots) -> None:
        while True:
            await asyncio.sleep(SCRAPE_S)
            snapshots.append(json.loads(dumped(await source.take())))

    daemon = Daemon(folder, demo.configuration(engines, ports).replace("rate: 4/s", f"rate: {rate}", 1), watch)
    (folder / "store").mkdir()
    if learnt := [name for name, plan in engines.items() if plan.has_past]:
        simulated_past.store_past(str(folder / "store"), learnt)
    async with AsyncExitStack() as stack:
        for name, plan in engines.items():
            await stack.enter_async_context(engine(mocks, name, ports[name], plan))
        await stack.enter_async_context(daemon.running())
        await daemon.scrape_at(range(SCRAPE_S, until_s + 1, SCRAPE_S))
    return Shown(daemon, snapshots)


def check_alerts(promtool: Path, folder: Path, daemon: Daemon, names: list[str], quiet_s: int, until_s: int) -> None:
    """The demo's rules fire nothing at `quiet_s`, and at the end the alerts that the text of a scene names, and no other."""
    demo._prometheus("prometheus", daemon.config, {"prober": 9742, "Prometheus": 9090})
    rules = folder / "rules.yaml"
    queries = [expects('ALERTS{alertstate="firing",target!=""}', f"{quiet_s - SCRAPE_S}s", {})]
    for name in engines_of(names):
        named = set(re.findall(r"LLM\w+", SCENES[name].shown)) if name in SCENES else set()
        more = "|".join(sorted(ALSO_TRUE.get(name, set()) - named)) or "none"
        expr = f'ALERTS{{alertstate="firing",target="{name}",alertname!~"{more}"}}'
        firing = {f'alertname="{alert}"': 1.0 for alert in sorted(named)}
        queries.append(expects(f"count by (alertname) ({expr}) > bool 0", f"{until_s - SCRAPE_S}s", firing))
    series = daemon.series(rules, range(SCRAPE_S, until_s + 1, SCRAPE_S))
    case = {"interval": f"{SCRAPE_S}s", "input_series": series, "promql_expr_test": queries}
    run_cases(promtool, folder, groups_of(rules), [case], f"{SCRAPE_S}s")


def check_text(shown: Shown, name: str) -> None:
    """State, SLOs and figures of the target are those of the text."""
    text, target = SCENES[name].shown, shown.targets[name]
    (state,) = re.findall(r"^(?:failing|starting|draining)\b", text) or ["ready"]
    assert target["state"] == state, name
    missed = {slo["signal"] for slo in target["slos"] if slo["state"] == "missed"}
    named = {signal for signal in ("ttft", "tpot", "success") if signal in text.lower()}
    if "miss" in text:
        assert named <= missed, name
    elif state == "ready":
        assert not missed, name
    if figures := re.search(r"TPOT goes from (\d+) to (\d+) ms", text):
        before_ms, after_ms = (shown.tpot_ms(name, trouble) for trouble in (False, True))
        assert (before_ms, after_ms) == pytest.approx((int(figures[1]), int(figures[2])), rel=0.1)


@pytest.mark.parametrize("rate", ["0.5/s", pytest.param("4/s", marks=pytest.mark.slow)])
async def test_the_scenes_show_what_they_say(rate: str, tmp_path: Path, promtool: Path, mocks: Any) -> None:
    """State, SLOs, figures and alerts of every scene but the one with drift are those of its text; its neighbour is healthy.

    The diagnosis names what happens within minutes.
    """
    until_s = TROUBLE_S + 360
    shown = await show(tmp_path, OTHERS, rate, until_s, mocks)
    for name in OTHERS:
        check_text(shown, name)
    assert shown.targets["healthy"]["state"] == "ready"
    assert "missed" not in {slo["state"] for slo in shown.targets["healthy"]["slos"]}

    assert set(shown.outcomes("dead")) == {"connect_refused"}
    assert set(shown.outcomes("broken")) == {"http_5xx"}
    assert "503" in shown.targets["broken"]["reason"]
    for name, outcome, share in (("flaky", "http_5xx", 0.2), ("limited", "http_429", 0.5), ("cut", "truncated", 0.3)):
        outcomes = shown.outcomes(name)
        assert set(outcomes) == {"ok", outcome}
        assert outcomes[outcome] / outcomes.total() == pytest.approx(share, abs=4 * (0.25 / outcomes.total()) ** 0.5)
    for name in ("loading", "draining"):
        last_s = max(probe["time"] for probe in shown.probes if probe["target"] == name) - MIDNIGHT - TROUBLE_S
        assert 0 < last_s < 20, "some seconds"
    assert shown.happening(TROUBLE_S) == {}
    happening = [shown.happening(time_s) for time_s in range(TROUBLE_S + NAMED_AFTER_S, until_s + 1, SCRAPE_S)]
    full = [names.pop("full", None) for names in happening]  # requests wait or are preempted again and again
    assert set(full) <= {HAPPENING["full"], "queueing", None}
    assert full.count(HAPPENING["full"]) >= len(full) / 3
    assert full.count("queueing") <= 1, "some seconds after it begins again nothing has been preempted yet"
    for names in (happening[0], happening[-1]):
        assert names == {name: HAPPENING[name] for name in OTHERS if name in HAPPENING and name != "full"}
    assert shown.reads_page("hidden", TROUBLE_S)
    assert not shown.reads_page("hidden", until_s)
    assert any("0.33.0" in event["text"] for event in shown.events if event["target"] == "upgraded")
    assert shown.tpot_ms("upgraded", trouble=True) == pytest.approx(shown.tpot_ms("slow", trouble=True), rel=0.1)
    check_alerts(promtool, tmp_path, shown.daemon, OTHERS, TROUBLE_S, until_s)


async def test_the_scene_with_drift_shows_what_it_says(tmp_path: Path, promtool: Path, mocks: Any) -> None:
    """After three to twelve minutes, as its text says; never of its neighbour."""
    assert "after another three to twelve minutes" in SCENES[DRIFT].shown
    earliest_s, latest_s = TROUBLE_S + 3 * 60, TROUBLE_S + 12 * 60
    shown = await show(tmp_path, [DRIFT], "4/s", latest_s, mocks)
    check_text(shown, DRIFT)
    assert shown.happening(latest_s) == {DRIFT: HAPPENING[DRIFT]}
    check_alerts(promtool, tmp_path, shown.daemon, [DRIFT], earliest_s, latest_s)
