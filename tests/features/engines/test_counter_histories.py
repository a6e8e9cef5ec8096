"""The engine's counters as a Prometheus judges them, over histories of both sides: restarts of the engine and of the prober, reloads,
outages and moves to another engine.

Engines here serve single requests at random times and keep a ledger of all of them. A scraper takes the exported counter every 15 s
and computes increases as Prometheus does: a value that falls is a restart from 0. Those increases are held against the ledger.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from prober.config.load import load
from prober.daemon.registry import registry
from prober.exposition.families import Histogram, Value
from prober.features.budget.monitor import Ledger
from prober.features.capacity.headroom import Headroom
from prober.features.engines.monitor import EngineMonitor
from prober.measure.engines import DIALECTS
from prober.measure.target_state import TargetState
from prober.net.scrape import Fetched, UnreadablePage
from prober.probing.fleet import Fleet
from prober.probing.history import EventLog
from prober.probing.supervisor import Supervisor
from prober.probing.target import Identity, Target
from prober.probing.target_runner import RunnerContext
from prober.storage.saved_rows import SavedRows
from tests.virtual import VirtualClock, VirtualLoop

SCRAPE_S = 15
REQUESTS, TOKENS = "llmslo_engine_requests_total", "llmslo_engine_generation_tokens_total"
TTFTS, RESTARTS = "llmslo_engine_ttft_seconds", ("llmslo_engine_changes_total", "restart")
PAGE = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{{model_name="m"}} 2.0
# TYPE sglang:num_requests_total counter
sglang:num_requests_total{{model_name="m"}} {requests}
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{{model_name="m"}} {prompt}
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{{model_name="m"}} {generated}
# TYPE sglang:time_to_first_token_seconds histogram
sglang:time_to_first_token_seconds_bucket{{le="{bound}",model_name="m"}} {requests}
sglang:time_to_first_token_seconds_bucket{{le="+Inf",model_name="m"}} {requests}
sglang:time_to_first_token_seconds_sum{{model_name="m"}} {requests}
sglang:time_to_first_token_seconds_count{{model_name="m"}} {requests}
"""


class ServingEngine:
    """An engine that writes down each request that it serves. before: requests of its process before the history begins."""

    def __init__(self, seed: int, per_s: float, before: int, now_s: Callable[[], float], *, tells_start: bool) -> None:
        self.rng, self.per_s, self.now_s, self.tells_start = Random(seed), per_s, now_s, tells_start
        self.served_s: list[float] = []
        self.next_s = now_s() + self.rng.expovariate(per_s)
        self.of_process, self.counted = before, 0  # before: not in the ledger
        self.down_until_s, self.started_s, self.bound = 0.0, 50.0, 0.5

    def serve(self) -> None:
        while self.next_s <= self.now_s():
            if self.next_s >= self.down_until_s:
                self.served_s.append(self.next_s)
                self.of_process += 1
            self.next_s += self.rng.expovariate(self.per_s)

    def restart(self, down_s: float = 3.0) -> None:
        self.serve()
        self.of_process, self.down_until_s = 0, self.now_s() + down_s
        self.started_s = self.down_until_s

    def page(self) -> str:
        self.serve()
        if self.now_s() < self.down_until_s:
            raise UnreadablePage("connection refused")
        n = self.of_process
        text = PAGE.format(requests=n, prompt=n * 700, generated=n * 90, bound=self.bound)
        return text + (f"process_start_time_seconds {self.started_s}\n" if self.tells_start else "")

    def served(self, since_s: float, until_s: float) -> int:
        return sum(since_s < at_s <= until_s for at_s in self.served_s)


class Site:
    """A prober with a victim `v` on the engine `one`, a neighbour `n` on an engine of its own, and a scraper."""

    def __init__(self, *, tells_start: bool) -> None:
        now_s = asyncio.get_running_loop().time
        self.now_s = now_s
        self.engines = {
            "one": ServingEngine(1, 5.0, 40_000, now_s, tells_start=tells_start),
            "two": ServingEngine(2, 2.0, 3_000_000, now_s, tells_start=tells_start),
            "near": ServingEngine(3, 3.0, 900, now_s, tells_start=tells_start),
        }
        self.victim, self.cap = "one", 4
        self.saved: dict[str, bytes] = {}
        self.samples: dict[tuple[str, str], list[tuple[float, float]]] = {}
        self.told = 0.0  # restarts that were counted before the last configuration or start
        self.boot()

    def boot(self) -> None:
        """A prober that knows what an earlier one saved."""
        self.families, clock, events = registry(), VirtualClock(1.7e9), EventLog()
        self.monitor = EngineMonitor(self.families, events, SavedRows(self.saved))
        features = (self.monitor.observe, Headroom(self.families).observe)
        context = RunnerContext(
            *(clock, events, features, self.families.remove, "i", Ledger(), Supervisor(self.families))
        )
        self.fleet = Fleet(context)

    async def configure(self) -> None:
        rows = [("v", self.victim), ("n", "near")]
        text = "targets:\n" + "".join(
            f"  - {{name: {name}, url: 'http://{engine}.test', engine: sglang, rate: 1/m, max_in_flight: {self.cap},"
            " metrics: {url: auto, interval: 5s}}\n"
            for name, engine in rows
        )
        specs = load(text, source="c", engines=DIALECTS, environment={}, read=lambda path: path).targets
        self.told += self.value(RESTARTS[0], "v", RESTARTS[1]) or 0.0
        await self.fleet.change(specs, 20.0)
        await self.fleet.wait_until_stopped()

    async def reload(self) -> None:
        self.cap += 1
        await self.configure()

    def save(self) -> None:
        self.saved = dict(self.monitor.states())

    async def stop(self, *, killed: bool = False) -> None:
        if not killed:
            self.save()
        self.told += self.value(RESTARTS[0], "v", RESTARTS[1]) or 0.0
        await self.fleet.stop(0.0)

    async def start(self) -> None:
        self.boot()
        await self.configure()

    def value(self, name: str, *labels: str) -> float | None:
        child = self.families[name].children.get(labels)
        return child.value if isinstance(child, Value) else None

    def restarts(self) -> float:
        return self.told + (self.value(RESTARTS[0], "v", RESTARTS[1]) or 0.0)

    async def scrape(self) -> None:
        while True:
            await asyncio.sleep(SCRAPE_S)
            for engine in self.engines.values():
                engine.serve()
            for target in ("v", "n"):
                for name in (REQUESTS, TOKENS):
                    if (value := self.value(name, target)) is not None:
                        self.samples.setdefault((target, name), []).append((self.now_s(), value))
                ttfts = self.families[TTFTS].children.get((target,))
                if isinstance(ttfts, Histogram):
                    self.samples.setdefault((target, TTFTS), []).append((self.now_s(), sum(ttfts.counts)))

    def judge(self, served: Callable[[str, float, float], int], *, slack: float = 12.0) -> None:
        """Every increase between two scrapes is what was served meanwhile, but for what two readings before and after may miss."""
        for (target, name), samples in self.samples.items():
            unit = 90 if name == TOKENS else 1
            for (before_s, before), (at_s, value) in pairwise(samples):
                where = f"{target} {name} from {before_s:.0f} to {at_s:.0f} s: {before:.0f}, {value:.0f}"
                assert value >= before, f"{where}: a counter falls"
                most = served(target, before_s - slack, at_s) + 1
                assert (value - before) / unit <= most, f"{where}: more than the {most} that were served"
            (since_s, first), (until_s, last) = samples[0], samples[-1]
            least = 0.75 * served(target, since_s, until_s - slack)
            assert (last - first) / unit >= least, f"{target} {name}: fewer than served"


@contextmanager
def network(site: Site) -> Iterator[None]:
    async def fetch(url: str, **options: Any) -> Fetched:
        authority, _, path = url.removeprefix("http://").partition("/")
        if path != "metrics":
            raise UnreadablePage("404")
        return Fetched(site.engines[authority.partition(".")[0]].page().encode(), {})

    async def run_probe(target: Target, *_: Any) -> None:
        target.identity, target.state = Identity("m", DIALECTS["sglang"], "/v1"), TargetState.READY
        await asyncio.sleep(1.0)

    with (
        patch("prober.features.engines.page_reader.fetch", fetch),
        patch("prober.probing.target_runner.run_probe", run_probe),
    ):
        yield


def play(history: Callable[[Site], Awaitable[None]], *, tells_start: bool) -> Site:
    """Two minutes, the history, and two minutes more."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)

    async def run() -> Site:
        site = Site(tells_start=tells_start)
        with network(site):
            await site.configure()
            scraper = asyncio.create_task(site.scrape())
            await asyncio.sleep(120.0)
            await history(site)
            await asyncio.sleep(120.0)
            assert not scraper.done(), scraper.result()
            scraper.cancel()
            await site.fleet.stop(0.0)
        return site

    try:
        return loop.run_until_complete(run())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def served_by_one(site: Site) -> Callable[[str, float, float], int]:
    return lambda target, since_s, until_s: site.engines["one" if target == "v" else "near"].served(since_s, until_s)


both = pytest.mark.parametrize("tells_start", [True, False])


@both
def test_a_restart_of_the_prober_long_after_one_of_the_engine_adds_nothing(tells_start: bool) -> None:
    """What the engine's earlier process served stays in the counter, so that no rate shows the whole of the present one again."""

    async def history(site: Site) -> None:
        site.engines["one"].restart()
        await asyncio.sleep(300.0)
        await site.stop()
        await asyncio.sleep(4.0)
        await site.start()

    site = play(history, tells_start=tells_start)
    site.judge(served_by_one(site))
    assert site.restarts() == 1


@both
@pytest.mark.parametrize("down_s", [2.0, 45.0])
def test_an_engine_that_restarts_while_the_prober_is_stopped_is_told_and_its_counters_go_on(
    tells_start: bool, down_s: float
) -> None:
    """As its counters fell below what the last prober saved."""

    async def history(site: Site) -> None:
        await site.stop()
        await asyncio.sleep(down_s / 2)
        site.engines["one"].restart()
        await asyncio.sleep(down_s / 2)
        await site.start()

    site = play(history, tells_start=tells_start)
    site.judge(served_by_one(site), slack=12.0 + down_s)
    assert site.restarts() == 1


@both
def test_a_killed_prober_goes_on_from_what_was_saved_a_minute_ago(tells_start: bool) -> None:
    """The saved state is older than the last scrape."""

    async def history(site: Site) -> None:
        site.engines["one"].restart()
        await asyncio.sleep(100.0)
        site.save()
        await asyncio.sleep(55.0)
        await site.stop(killed=True)
        await site.start()

    site = play(history, tells_start=tells_start)
    site.judge(served_by_one(site))
    assert site.restarts() == 1


@both
def test_a_move_to_another_engine_does_not_count_what_that_one_served_before(tells_start: bool) -> None:
    """Three million requests of another service are no demand of this one; the way back is the same."""

    async def history(site: Site) -> None:
        for engine in ("two", "one"):
            site.victim = engine
            await site.configure()
            await asyncio.sleep(200.0)

    site = play(history, tells_start=tells_start)

    def served(target: str, since_s: float, until_s: float) -> int:
        names = ["near"] if target == "n" else ["one", "two"]
        return sum(site.engines[name].served(since_s, until_s) for name in names)

    for name, rows in site.samples.items():
        for (before_s, before), (at_s, value) in pairwise(rows):
            most = served(name[0], before_s - 12, at_s) * (90 if name[1] == TOKENS else 1) + 90
            assert 0 <= value - before <= most, f"{name} from {before_s:.0f} to {at_s:.0f} s"
    assert site.restarts() == 0


def test_a_prober_that_starts_at_another_engine_than_it_saved_does_not_mix_them() -> None:
    """The configuration was changed meanwhile: nothing of the old page is compared, and no restart or riddle is told."""

    moved_s = 0.0

    async def history(site: Site) -> None:
        nonlocal moved_s
        await site.stop()
        site.victim, moved_s = "two", site.now_s()
        await site.start()

    site = play(history, tells_start=True)
    before = [value for at_s, value in site.samples["v", REQUESTS] if at_s <= moved_s]
    after = [value for at_s, value in site.samples["v", REQUESTS] if at_s > moved_s]
    assert 0 <= after[-1] - before[-1] <= site.engines["two"].served(moved_s, site.now_s())
    assert site.restarts() == 0


@both
def test_reload_restart_and_outage_in_turn(tells_start: bool) -> None:
    """Each of them within seconds of the other, and the prober's own restart last; the neighbour notices nothing."""

    async def history(site: Site) -> None:
        engine = site.engines["one"]
        for wait_s in (0.0, 4.0, 9.0):
            await site.reload()
            await asyncio.sleep(wait_s)
            engine.restart(1.0 + wait_s)
            await site.reload()
            await asyncio.sleep(80.0)
        await site.stop()
        engine.restart(30.0)
        await site.start()
        await asyncio.sleep(60.0)
        await site.reload()

    site = play(history, tells_start=tells_start)
    site.judge(served_by_one(site), slack=45.0)
    assert site.restarts() == 4


def test_a_saved_state_that_cannot_be_read_is_left_aside(caplog: pytest.LogCaptureFixture) -> None:
    """The target starts anew; its neighbour keeps its own."""

    async def history(site: Site) -> None:
        site.engines["near"].restart()
        await asyncio.sleep(100.0)
        await site.stop()
        site.saved["v"] = b'{"facts": {}, "counters": {"read": {"requests_finished_total": "many"}}}'
        await site.start()

    site = play(history, tells_start=True)
    assert "saved facts of its engine cannot be read" in caplog.text
    neighbour = [value for _, value in site.samples["n", REQUESTS]]
    assert neighbour == sorted(neighbour)
    assert site.value(REQUESTS, "v") is not None
