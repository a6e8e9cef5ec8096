"""Configured and discovered targets, joined; and a fleet that follows them."""

import asyncio
import json
import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from prober.config.configuration import Configuration
from prober.config.load import load
from prober.config.target import TargetSpec
from prober.daemon.registry import registry
from prober.exposition.families import AnySeries, Registry, Value
from prober.features.discovery import series as discovery_series
from prober.features.discovery.desired_targets import DesiredTargets
from prober.measure.engines import DIALECTS
from prober.probing.target_runner import TargetRunner
from tests.daemon.test_fleet import QUICK, SLOW, specs, watched
from tests.kubernetes.apiserver import ApiServer
from tests.kubernetes.pods import pod
from tests.serving import until
from tests.virtual import running

pytestmark = pytest.mark.virtual_time


def configured(text: str) -> Configuration:
    return load(text, source="c", engines=DIALECTS, environment={}, read=lambda path: path)


class Followed:
    """A roster, and every list that it has made."""

    def __init__(self) -> None:
        self.families: Registry = registry()
        self.lists: list[list[TargetSpec]] = []
        self.roster = DesiredTargets(self.families, self._change)

    async def _change(self, desired: list[TargetSpec]) -> None:
        self.lists.append(desired)

    def now(self) -> dict[str, str]:
        return {spec.key: spec.url.removeprefix("http://").removesuffix("/v1") for spec in self.lists[-1]}

    def value(self, declared: AnySeries, *labels: str) -> float:
        found = self.families[declared.name].children[labels]
        assert isinstance(found, Value)
        return found.value

    async def settled(self, discoveries: int) -> None:
        """Every source has been heard, and what it said is taken over."""
        up = self.families[discovery_series.DISCOVERY_UP.name].children
        await self.until(lambda: sum(getattr(child, "value", 0) for child in up.values()) >= discoveries)

    async def until(self, true: Callable[[], object]) -> None:
        """Take over what the sources say until it is true."""
        async with asyncio.timeout(10):
            while not true():
                await asyncio.sleep(0.01)
                await self.roster.apply()


def write(path: Path, *targets: tuple[str, str]) -> str:
    path.write_text(json.dumps([{"targets": [at], "labels": {"name": name} if name else {}} for name, at in targets]))
    return f"file: {{files: ['{path}'], interval: 1s}}"


async def test_a_name_or_a_url_belongs_to_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Configured ones go first, then discoveries in their order, then names by the alphabet; each refusal is told once."""
    one = write(tmp_path / "a.json", ("a", "h1:1"), ("static", "h2:1"), ("b", "h9:1"), ("c", "h1:1"), ("a", "h1:1"))
    two = write(tmp_path / "b.json", ("a", "h3:1"), ("z", "h4:1"), ("bad", "h4:1/x"))
    seen = Followed()
    with caplog.at_level(logging.WARNING):
        text = f"targets: [{{name: static, url: 'http://h9:1'}}]\ndiscovery: [{{name: x, {one}}}, {{name: y, {two}}}]"
        await seen.roster.configure(configured(text))
        assert not seen.roster.is_applied  # no source has answered yet
        await seen.settled(2)
        await seen.roster.apply()
    assert seen.roster.is_applied
    assert seen.now() == {"static": "h9:1", "a": "h1:1", "z": "h4:1"}
    refused = {
        (name, reason): seen.value(discovery_series.DISCOVERY_REFUSED, name, reason)
        for name in "xy"
        for reason in discovery_series.DISCOVERY_REFUSALS
    }
    assert {key: count for key, count in refused.items() if count} == {
        ("x", "duplicate"): 3,
        ("y", "duplicate"): 1,
        ("y", "unfit"): 1,
    }
    assert caplog.text.count("a (http://h3:1/v1): another target has this name or URL") == 1
    assert caplog.text.count("__address__ 'h4:1/x' is not host:port") == 1
    await seen.roster.close()


async def test_the_limit_keeps_those_that_are_probed(tmp_path: Path) -> None:
    """A new target whose name comes first does not push out one that runs; it is counted as refused."""
    path = tmp_path / "a.json"
    source = write(path, ("m", "h1:1"), ("n", "h2:1"))
    seen = Followed()
    await seen.roster.configure(configured(f"discovery: [{{{source}, limit: 2}}]"))
    await seen.settled(1)
    write(path, ("a", "h0:1"), ("m", "h1:1"), ("n", "h2:1"))
    await seen.until(lambda: seen.value(discovery_series.DISCOVERY_REFUSED, "file", "limit"))
    assert seen.now().keys() == {"m", "n"}
    assert seen.value(discovery_series.DISCOVERY_TARGETS, "file") == 2
    await seen.roster.close()


async def test_another_configuration_leaves_no_gap(tmp_path: Path) -> None:
    """Another template counts at once, another source as soon as it is heard; a discovery that is gone leaves no series."""
    one = write(tmp_path / "a.json", ("a", "h1:1"))
    seen = Followed()
    await seen.roster.configure(configured(f"discovery: [{{name: x, {one}}}]"))
    await seen.settled(1)
    lists = len(seen.lists)
    await seen.roster.configure(configured(f"discovery: [{{name: x, {one}, target: {{rate: 1/min}}}}]"))
    assert [spec.probes[0].rate for spec in seen.lists[lists]] == [pytest.approx(1 / 60)]
    two = write(tmp_path / "b.json", ("b", "h2:1"))
    await seen.roster.configure(configured(f"discovery: [{{name: x, {two}}}]"))
    assert seen.now().keys() == {"a"}
    await seen.settled(1)
    assert seen.now().keys() == {"b"}
    assert all(desired for desired in seen.lists[lists:])
    await seen.roster.configure(configured("targets: [{url: 'http://h'}]"))
    assert len(seen.lists[-1]) == 1
    for declared in (
        discovery_series.DISCOVERY_TARGETS,
        discovery_series.DISCOVERY_UP,
        discovery_series.DISCOVERY_REFUSED,
        discovery_series.DISCOVERY_FAILURES,
    ):
        assert not seen.families[declared.name].children
    await seen.roster.close()


async def test_a_source_that_fails_keeps_its_targets_and_says_so(tmp_path: Path) -> None:
    """`llmslo_discovery_up` falls, failures are counted, the list stays."""
    path = tmp_path / "a.json"
    source = write(path, ("a", "h1:1"))
    seen = Followed()
    await seen.roster.configure(configured(f"discovery: [{{{source}}}]"))
    await seen.settled(1)
    path.write_text("{")
    await seen.until(lambda: not seen.value(discovery_series.DISCOVERY_UP, "file"))
    assert seen.value(discovery_series.DISCOVERY_FAILURES, "file") >= 1
    assert seen.now().keys() == {"a"}
    await seen.roster.close()


async def test_a_burst_is_one_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many events within the pause make the fleet anew once."""
    monkeypatch.setattr("prober.features.discovery.desired_targets.DEBOUNCE_S", 0.2)
    seen = Followed()
    sources = ", ".join(f"{{{write(tmp_path / f'{i}.json', (f't{i}', f'h{i}:1'))}}}" for i in range(20))
    await seen.roster.configure(configured(f"discovery: [{sources}]"))
    task = asyncio.create_task(seen.roster.run())
    await until(lambda: len(seen.lists[-1]) == 20)
    assert len(seen.lists) <= 3
    task.cancel()
    await seen.roster.close()


async def test_what_ends_slowly_holds_up_nobody() -> None:
    """A removed target's probe under way has its time; others come meanwhile; then its series go."""
    async with running(SLOW) as slow, running(QUICK) as quick, watched() as seen:
        await seen.reconcile(specs(f"name: a, url: '{slow}', rate: 5/s"), 1.0)
        await until(lambda: seen.fleet.runners["a"].target.in_flight)
        await seen.fleet.change(specs(f"name: b, url: '{quick}'"), 5.0)
        assert seen.fleet.runners["a"].target.in_flight
        await until(lambda: seen.probes("b") >= 1)
        await seen.fleet.wait_until_stopped()
        assert seen.fleet.runners.keys() == {"b"}
        assert seen.named("a") == set()


async def test_a_target_that_comes_back_before_it_has_gone_goes_on() -> None:
    """The counters never fall, and the target is probed again."""
    async with running(SLOW) as url, watched() as seen:
        one = specs(f"name: a, url: '{url}', rate: 20/s")
        await seen.reconcile(one, 1.0)
        await until(lambda: seen.probes("a") >= 1 and seen.fleet.runners["a"].target.in_flight)
        before = seen.probes("a")
        await seen.fleet.change((), 5.0)
        await seen.fleet.change(one, 5.0)
        await seen.fleet.wait_until_stopped()
        assert seen.fleet.runners.keys() == {"a"}
        await until(lambda: seen.probes("a") > before + 5)


async def test_many_do_not_begin_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty in a second, or all within a minute."""
    pauses: list[float] = []
    monkeypatch.setattr(TargetRunner, "start", lambda self, pause_s=0.0: pauses.append(pause_s))
    async with watched() as seen:
        await seen.reconcile(specs(*(f"name: t{i}, url: 'http://h{i}'" for i in range(100))), 1.0)
        assert 1.5 < max(pauses) < 2.5
        assert sorted(pauses) == pauses
        monkeypatch.setattr("prober.probing.fleet.START_WITHIN_S", 0.5)
        pauses.clear()
        await seen.reconcile(specs(*(f"name: u{i}, url: 'http://h{i}'" for i in range(100))), 1.0)
        assert max(pauses) <= 0.5


async def test_who_comes_and_who_leaves_is_told_together(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A burst of changes is one line with the first names; no line without a change or for another template."""
    path = tmp_path / "a.json"
    many = [(f"m{index:02}", f"h{index}:1") for index in range(12)]
    source = write(path, *many)
    seen = Followed()
    with caplog.at_level(logging.INFO):
        await seen.roster.configure(configured(f"discovery: [{{name: pods, {source}}}]"))
        await seen.settled(1)
        await seen.roster.apply()
        await seen.roster.configure(configured(f"discovery: [{{name: pods, {source}, target: {{rate: 1/min}}}}]"))
        write(path, *many[:11], ("new", "h99:1"))
        await seen.until(lambda: "new" in seen.now())
    messages = [record.getMessage() for record in caplog.records if record.getMessage().startswith("discovery=pods")]
    first = ", ".join(name for name, _ in many[:10])
    assert messages == [
        f"discovery=pods 12 targets added: {first} and 2 more",
        "discovery=pods 1 target added: new; 1 target removed: m11",
    ]
    await seen.roster.close()


async def test_the_recipe_for_a_gateway_finds_what_it_routes_to() -> None:
    """The gateway, and the pods that decode; neither prefill workers nor the endpoint picker, whatever ports they have."""
    guide = (Path(__file__).parents[3] / "docs/guides/fleet.md").read_text()
    (text,) = (block for block in re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL) if "name: gateway" in block)
    serving = {"llm-d.ai/inference-serving": "true", "llm-d.ai/model": "llama"}
    async with ApiServer() as server:
        server.put("pods", pod("decode", address="10.0.0.1", labels=serving | {"llm-d.ai/role": "decode"}))
        server.put("pods", pod("both", address="10.0.0.2", port=8200, labels=serving | {"llm-d.ai/role": "both"}))
        server.put("pods", pod("plain", address="10.0.0.3", labels=serving))
        server.put("pods", pod("prefill", address="10.0.0.4", labels=serving | {"llm-d.ai/role": "prefill"}))
        server.put("pods", pod("picker", address="10.0.0.5", port=9002, labels={"app": "llama-epp"}))
        seen = Followed()
        here = f"kubernetes: {{api_server: '{server.url('p')}', namespaces: [default], "
        await seen.roster.configure(configured(text.replace("kubernetes: {", here)))
        await seen.settled(1)
        await seen.roster.apply()
        assert seen.now() == {
            "gateway": "inference-gateway.llm.svc",
            "default/decode": "10.0.0.1:8000",
            "default/both": "10.0.0.2:8000",
            "default/plain": "10.0.0.3:8000",
        }
        await seen.roster.close()


async def test_each_rank_is_a_target_of_its_own(tmp_path: Path) -> None:
    """Also of discovered targets, which have one URL; the neighbour without `ranks` stays one target without the label."""
    one = write(tmp_path / "a.json", ("found", "h2:1"))
    text = f"""
targets:
- {{name: llama, url: 'http://h1:1', ranks: 3, headers: {{x-team: a}}, labels: {{env: prod}}}}
- {{name: single, url: 'http://h3:1'}}
discovery: [{{name: x, {one}, target: {{ranks: 2}}}}]
"""
    specs = configured(text)
    assert specs.label_names == ("env", "rank")
    seen = Followed()
    await seen.roster.configure(specs)
    await seen.settled(1)
    await seen.until(lambda: len(seen.now()) == 6)
    told = {spec.key: (spec.rank, spec.headers, spec.labels) for spec in seen.lists[-1]}
    assert told["llama-rank-2"] == (
        "2",
        {"x-team": "a", "X-data-parallel-rank": "2"},
        {"env": "prod", "rank": "2"},
    )
    assert told["single"] == (None, {}, {})
    assert [*told] == ["llama-rank-0", "llama-rank-1", "llama-rank-2", "single", "found-rank-0", "found-rank-1"]
    await seen.roster.close()
