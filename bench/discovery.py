"""Cost of following thousands of targets that come and go, and whether the fleet is right after anything has happened.

Hold: 5,000 targets from a file, 1 % of them others with each of its versions, and the longest turn of the event loop meanwhile:
in processor time of its thread, which other work on the machine does not touch, and by the wall clock, which it does. Targets are
those of the daemon with all their series; none is probed while the turns are measured, as a probe has turns of its own.

Delay: from a change of a pod until the fleet has it, through a stand-in API server in the same process.

Truth: 10,000 random changes of pods, while the server is cut off, slow, busy, breaks watches off and forgets its past; at every
thousandth it is left alone, and targets that the fleet then has wrongly, or has not, are counted.
"""

import asyncio
import gc
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from bench.report import goal, part, percentile, show
from prober.config.configuration import Configuration
from prober.config.load import load
from prober.config.target import TargetSpec
from prober.daemon.registry import FEATURES, registry
from prober.exposition.families import Registry
from prober.features.budget.monitor import Ledger
from prober.features.discovery import kubernetes
from prober.features.discovery.desired_targets import DEBOUNCE_S, DesiredTargets
from prober.measure.engines import DIALECTS
from prober.net.clock import Clock
from prober.probing.fleet import Fleet
from prober.probing.supervisor import Supervisor
from prober.probing.target_runner import RunnerContext
from tests.kubernetes.apiserver import ApiServer
from tests.kubernetes.pods import pod
from tests.observed import shared

TARGETS, CHURN, VERSIONS = 5_000, 50, 20
DELAYS = 40
EVENTS, CHECK_EVERY, MOST_PODS = 10_000, 1_000, 60
SETTLED_S = 60.0


def fleet(clock: Clock) -> tuple[Fleet, Registry]:
    """The daemon's, without its pages."""
    families = registry()
    common = shared(families, clock)
    monitors = [monitor for feature in FEATURES for monitor in feature.monitors(common)]
    observe = [monitor.observe for monitor in monitors]
    ledger = next(monitor for monitor in monitors if isinstance(monitor, Ledger))
    context = RunnerContext(clock, common.events, observe, families.remove, "bench", ledger, Supervisor(families))
    return Fleet(context), families


def configured(text: str) -> Configuration:
    """Of a configuration."""
    return load(text, source="bench", engines=DIALECTS, environment={}, read=lambda path: path)


class Turns:
    """The longest turn of the loop: seconds of its thread's processor time, and of the wall clock.

    And the longest collection of garbage, in processor time of the thread that it falls on: it stops all of them.
    """

    def __init__(self) -> None:
        self.cpu_s = self.wall_s = self.collected_s = 0.0
        self._at: tuple[float, float] | None = None
        self._collecting = 0.0
        self._on = True
        gc.callbacks.append(self._gc)
        asyncio.get_running_loop().call_soon(self._turn)

    def clear(self) -> None:
        """Begin anew."""
        self.cpu_s = self.wall_s = self.collected_s = 0.0

    def close(self) -> None:
        """No more."""
        self._on = False
        gc.callbacks.remove(self._gc)

    def _turn(self) -> None:
        now = (time.thread_time(), time.perf_counter())
        if self._at is not None:
            self.cpu_s = max(self.cpu_s, now[0] - self._at[0])
            self.wall_s = max(self.wall_s, now[1] - self._at[1])
        self._at = now
        if self._on:
            asyncio.get_running_loop().call_soon(self._turn)

    def _gc(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = time.thread_time()
        else:
            self.collected_s = max(self.collected_s, time.thread_time() - self._collecting)


async def until(true: Callable[[], bool], within_s: float = SETTLED_S) -> bool:
    """Whether it came true in time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while not true():  # noqa: ASYNC110 -- what is waited for has no event
                await asyncio.sleep(0.005)
    return true()


async def hold(format_: str) -> dict[str, Any]:
    """The longest turns while a list of many is made, while it stays, and while a hundredth of it changes."""
    clock, rng, names = Clock(), Random(1), [f"t{index:05}" for index in range(TARGETS)]
    running, registry_ = fleet(clock)
    following = TARGETS

    def text() -> str:
        groups = [
            {"targets": [f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}:80"], "labels": {"name": f"t{i:05}"}}
            for i in map(number, names)
        ]
        return json.dumps(groups) if format_ == "json" else "".join(_yaml(group) for group in groups)

    async def change(specs: list[TargetSpec]) -> None:
        await running.change(specs, 1.0)

    running._pause_s = lambda among: 1e6  # type: ignore[method-assign] # made, and never begun
    roster = DesiredTargets(registry_, change)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"targets.{format_}")
        path.write_text(text())  # noqa: ASYNC240 -- nothing else runs yet
        specs = configured(
            f"discovery: [{{file: {{files: ['{path}'], interval: 1s}}, limit: 50000, target: {{rate: 1/h, metrics: {{url: none}}}}}}]"
        )
        turns = Turns()
        await roster.configure(specs)
        following_task = asyncio.create_task(roster.run())
        began = time.perf_counter()
        await until(lambda: len(running.runners) == TARGETS, 300)
        made = {"made_s": time.perf_counter() - began, **_turns(turns)}
        turns.clear()
        await asyncio.sleep(5.0)
        still = _turns(turns)
        churned: list[dict[str, float]] = []
        for _ in range(VERSIONS):
            rng.shuffle(names)
            names[:CHURN] = [f"t{following + index:05}" for index in range(CHURN)]
            following += CHURN
            next_, wanted = path.with_suffix(".next"), set(names)
            next_.write_text(text())
            await asyncio.sleep(0.01)  # what this program did itself is no turn of the prober's
            turns.clear()
            next_.rename(path)
            began = time.perf_counter()
            await until(lambda wanted=wanted: running.runners.keys() == wanted)  # type: ignore[misc]
            churned.append({"took_s": time.perf_counter() - began, **_turns(turns)})
        turns.close()
        following_task.cancel()
        await roster.close()
        await running.stop(0.0)
    clock.close()
    worst = {key: max(each[key] for each in churned) for key in churned[0]}
    return {"made": made, "still": still, "churned": worst, "wrong": len(running.runners.keys() ^ set(names))}


def number(name: str) -> int:
    """Of a target."""
    return int(name[1:])


def _yaml(group: dict[str, Any]) -> str:
    return f"- targets: ['{group['targets'][0]}']\n  labels:\n    name: {group['labels']['name']}\n"


def _turns(turns: Turns) -> dict[str, float]:
    return {
        "cpu_ms": round(turns.cpu_s * 1e3, 2),
        "wall_ms": round(turns.wall_s * 1e3, 2),
        "collection_ms": round(turns.collected_s * 1e3, 2),
    }


class Cluster:
    """A fleet that follows a stand-in API server."""

    def __init__(self, server: ApiServer, seed: int) -> None:
        self.server, self.rng = server, Random(seed)
        self.targets: dict[str, TargetSpec] = {}
        self.truth: dict[str, str] = {}  # name to URL
        text = (
            f"discovery: [{{kubernetes: {{api_server: '{server.url('a')}', namespaces: [a, b], label_selector: app=llm, port: http}}, "
            "limit: 10000, hosts: [10.0.0.0/8]}]"
        )
        self.roster = DesiredTargets(registry(), self._change)
        self.specs = configured(text)

    async def _change(self, specs: list[TargetSpec]) -> None:
        self.targets = {spec.key: spec for spec in specs}

    def wrong(self) -> int:
        """Targets that are there and should not be, or the other way round, or elsewhere."""
        now = {key: spec.url for key, spec in self.targets.items()}
        return len(set(now.items()) ^ set(self.truth.items()))

    def event(self) -> None:
        """One random change of a pod."""
        rng, server = self.rng, self.server
        namespace, name = rng.choice("ab"), f"p{rng.randrange(MOST_PODS)}"
        key = ("pods", namespace, name)
        if key in server.objects and rng.random() < 0.35:
            server.delete(*key)
            self.truth.pop(f"{namespace}/{name}", None)
            return
        address, port = f"10.0.{rng.randrange(256)}.{rng.randrange(256)}", rng.choice((8000, 8080))
        while any(f"//{address}:" in url for url in self.truth.values()):
            address = f"10.1.{rng.randrange(256)}.{rng.randrange(256)}"
        ready, labelled = rng.random() < 0.8, rng.random() < 0.9
        server.put(
            "pods", pod(name, namespace, address, port, ready=ready, labels={"app": "llm" if labelled else "web"})
        )
        self.truth.pop(f"{namespace}/{name}", None)
        if ready and labelled:
            self.truth[f"{namespace}/{name}"] = f"http://{address}:{port}/v1"

    def trouble(self) -> None:
        """Something goes wrong, or well again."""
        rng, server = self.rng, self.server
        faults = server.faults("a")
        match rng.randrange(8):
            case 0:
                faults.cut = rng.choice(("requests", "answers"))
            case 1:
                faults.delay_s = rng.uniform(0.0, 0.05)
            case 2:
                faults.drop = rng.randrange(1, 4)
            case 3:
                faults.refuse = [rng.choice((429, 500, 503)) for _ in range(rng.randrange(1, 4))]
            case 4:
                faults.broken_watches = rng.randrange(1, 4)
            case 5:
                server.compact()
            case _:
                server.heal("a")


async def delays() -> list[float]:
    """Seconds from a change to the fleet."""
    found: list[float] = []
    async with ApiServer() as server:
        cluster = Cluster(server, 2)
        await following(cluster, _delays(cluster, found))
    return found


async def _delays(cluster: Cluster, found: list[float]) -> None:
    await asyncio.sleep(1.0)
    while len(found) < DELAYS:
        await asyncio.sleep(cluster.rng.uniform(0.0, 1.0))
        while not cluster.wrong():
            cluster.event()
        began = time.perf_counter()
        assert await until(lambda: not cluster.wrong())
        found.append(time.perf_counter() - began)


async def truth() -> dict[str, Any]:
    """Targets that were wrong when all was quiet again."""
    async with ApiServer(bookmark_s=0.1) as server:
        cluster = Cluster(server, 3)
        found = {"events": 0, "wrong": 0, "lists": 0, "watches": 0, "settled_s": 0.0}
        await following(cluster, _truth(cluster, found))
        found["lists"], found["watches"] = server.asked["LIST pods"], server.asked["WATCH pods"]
    return found


async def _truth(cluster: Cluster, found: dict[str, Any]) -> None:
    for index in range(1, EVENTS + 1):
        cluster.event()
        if cluster.rng.random() < 0.02:
            cluster.trouble()
        if cluster.rng.random() < 0.3:
            await asyncio.sleep(cluster.rng.uniform(0.0, 0.01))
        if not index % CHECK_EVERY:
            cluster.server.heal("a")
            began = time.perf_counter()
            await until(lambda: not cluster.wrong())
            found["settled_s"] = max(found["settled_s"], round(time.perf_counter() - began, 2))
            found["wrong"] += cluster.wrong()
            found["events"] = index


async def following(cluster: Cluster, work: Awaitable[None]) -> None:
    """Do something while the cluster is followed."""
    await cluster.roster.configure(cluster.specs)
    task = asyncio.create_task(cluster.roster.run())
    try:
        await work
    finally:
        task.cancel()
        await cluster.roster.close()


def main() -> None:
    """Print one JSON object; a missed goal is reported, not an error."""
    kubernetes.WATCH_S = 5.0  # a dead connection is noticed in 15 s, not in 70
    json_, yaml_ = (part(name, asyncio.run(hold(name))) for name in ("json", "yaml"))
    waited, right = part("delays", asyncio.run(delays())), part("truth", asyncio.run(truth()))
    goals = []
    for name, each in (("JSON", json_), ("YAML", yaml_)):
        made, churned = each["made"], each["churned"]
        collected = max(made["collection_ms"], churned["collection_ms"])
        goals += [
            goal(
                f"longest turn of the loop while 1 % of {TARGETS:,} targets change, {name}", churned["cpu_ms"], 10, "ms"
            ),
            goal(f"longest turn of the loop while {TARGETS:,} targets are made, {name}", made["cpu_ms"], 10, "ms"),
            goal(f"longest collection of garbage meanwhile, {name}", collected, 10, "ms"),
        ]
    show(
        "discovery",
        [
            *goals,
            goal("from an event to the fleet, p99", percentile(waited, 0.99), 2, "s"),
            goal(f"targets wrong after {right['events']:,} events with faults", right["wrong"], 0, ""),
            goal("targets wrong after versions of a file", json_["wrong"] + yaml_["wrong"], 0, ""),
        ],
        targets=TARGETS,
        churn=CHURN / TARGETS,
        json=json_,
        yaml=yaml_,
        delay_s={f"p{q}": round(percentile(waited, q / 100), 3) for q in (50, 99)},
        debounce_s=DEBOUNCE_S,
        truth=right,
    )


if __name__ == "__main__":
    main()
