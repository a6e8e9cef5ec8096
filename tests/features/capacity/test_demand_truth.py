"""Demand and headroom against the engines' true demand, over histories of reloads, restarts and outages, in virtual time.

The engines here know what their users asked of them at each moment; the prober sees only their pages. Whatever it states is held
against that truth: the mean over some span of one to five minutes that ends now, or a few readings ago.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from prober.config.load import load
from prober.config.target import TargetSpec
from prober.daemon.registry import registry
from prober.exposition.families import Value
from prober.features.budget.monitor import Ledger
from prober.features.capacity.headroom import Headroom, TargetDemand
from prober.features.capacity.monitor import Sweeps
from prober.features.engines.monitor import EngineMonitor
from prober.measure.engines import DIALECTS
from prober.measure.target_state import TargetState
from prober.net.scrape import Fetched, UnreadablePage
from prober.probing.fleet import Fleet
from prober.probing.history import EventLog
from prober.probing.recorder import TargetProbes
from prober.probing.supervisor import Supervisor
from prober.probing.target import Identity, Target
from prober.probing.target_runner import RunnerContext
from prober.results.capacity import Capacity, Mix
from prober.storage.saved_rows import SavedRows
from tests.observed import shared
from tests.virtual import VirtualClock, VirtualLoop

UNIX_S = 1_700_000_000.0
CAPACITY_PER_S = 10.0
TOKENS = (300, 200)  # of each request's prompt and answer
TOLERANCE = 0.15  # of the demand: around a restart as much as a tenth of the span is left out
PROBE_S = 8.0  # that each probe takes, which a reload waits for
DEMAND, HEADROOM = "llmslo_demand_requests_per_second", "llmslo_headroom_ratio"
PAGE = """\
vllm:num_requests_running{{engine="0",model_name="m"}} 1.0
vllm:num_requests_waiting{{engine="0",model_name="m"}} 0.0
vllm:prompt_tokens_total{{engine="0",model_name="m"}} {prompt}
vllm:generation_tokens_total{{engine="0",model_name="m"}} {generated}
vllm:request_success_total{{engine="0",finished_reason="stop",model_name="m"}} {finished}
"""


@dataclass
class SimulatedEngine:
    """Users ask `rate_per_s` of it; while it is down nothing is done. Its page counts since its start, theirs and a sweep's."""

    tells_start: bool
    rate_per_s: float
    now_s: Callable[[], float]
    users: float = 0.0  # requests in all, which no restart takes back
    swept: float = 0.0
    sweep_per_s: float = 0.0
    at_start: float = -500.0  # requests in all when its process began
    started_s: float = 1.0
    at_s: float = 1000.0
    down_until_s: float = 0.0
    hidden_until_s: float = 0.0
    disturbed_s: float = 0.0
    course: list[float] = field(default_factory=list)  # `users` at each second

    def advance(self) -> None:
        now_s = self.now_s()
        up_s = max(0.0, now_s - max(self.at_s, min(self.down_until_s, now_s)))
        self.users += up_s * self.rate_per_s
        self.swept += up_s * self.sweep_per_s
        self.at_s = now_s

    def ask(self, per_s: float) -> None:
        self.advance()
        self.rate_per_s = per_s

    def restart(self, down_s: float) -> None:
        self.advance()
        self.down_until_s = max(self.down_until_s, self.now_s() + down_s)
        self.at_start, self.started_s = self.users + self.swept, self.now_s() + down_s
        self.disturb(down_s)

    def hide(self, for_s: float) -> None:
        self.hidden_until_s = self.now_s() + for_s
        self.disturb(for_s)

    def disturb(self, for_s: float = 0.0) -> None:
        self.disturbed_s = max(self.disturbed_s, self.now_s() + for_s)

    def page(self) -> str:
        self.advance()
        if self.now_s() < max(self.down_until_s, self.hidden_until_s):
            raise UnreadablePage("down")
        done = int(self.users + self.swept - self.at_start)
        text = PAGE.format(finished=done, prompt=done * TOKENS[0], generated=done * TOKENS[1])
        return text + (f"process_start_time_seconds {self.started_s}\n" if self.tells_start else "")

    def mean(self, ago_s: int, span_s: int) -> float | None:
        end = len(self.course) - 1 - ago_s
        return (self.course[end] - self.course[end - span_s]) / span_s if end >= span_s else None

    def truths(self) -> list[float]:
        """Mean demand over each span that a statement of now may be about."""
        spans = [(ago, span) for ago in range(0, 33, 8) for span in (60, *range(65, 400, 15))]
        return [mean for ago, span in spans if (mean := self.mean(ago, span)) is not None]


@dataclass(frozen=True)
class Configured:
    """A target of the configuration file."""

    name: str
    engine: str
    interval_s: float = 5.0
    metrics: bool = True
    edits: int = 0  # of something that has nothing to do with its page

    def text(self) -> str:
        page = f"{{url: auto, interval: {self.interval_s}s}}" if self.metrics else "{url: none}"
        return (
            f"  - {{name: {self.name}, url: 'http://{self.engine}.test:8000', engine: vllm, metrics: {page}, "
            f"rate: 1/m, max_in_flight: {self.edits + 1}}}\n"
        )


class World:
    """Engines, a prober, and what the prober states of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tells_start: bool) -> None:
        self.loop = loop
        self.engines = {
            name: SimulatedEngine(tells_start, rate, loop.time) for name, rate in (("x", 4.0), ("y", 1.0), ("z", 2.5))
        }
        self.targets = {"victim": Configured("a", "x"), "neighbour": Configured("b", "z")}
        self.changed_s = {"victim": loop.time(), "neighbour": loop.time()}
        self.reloading = False
        self.removed: Configured | None = None
        self.before_sweep: list[float] = []
        self.swept: Configured | None = None  # the target of the last sweep
        self.sweeping = False
        self.sweep_ended_s = -1e9
        self.stated: set[str] = set()
        self.begin()

    def begin(self) -> None:
        """A prober that knows nothing of an earlier one."""
        self.families = registry()
        self.headroom, events, clock = Headroom(self.families), EventLog(), VirtualClock(UNIX_S)
        sweeps = Sweeps(shared(self.families, clock, events=events), self.headroom)
        features = (
            partial(TargetProbes, self.families),
            EngineMonitor(self.families, events, SavedRows()).observe,
            self.headroom.observe,
            sweeps.observe,
        )
        self.fleet = Fleet(
            RunnerContext(
                clock,
                events,
                features,
                self.families.remove,
                "test",
                Ledger(),
                Supervisor(self.families),
            )
        )

    async def reload(self) -> None:
        text = "targets:\n" + "".join(target.text() for target in self.targets.values())
        specs: tuple[TargetSpec, ...] = load(
            text, source="c", engines=DIALECTS, environment={}, read=lambda path: path
        ).targets
        self.reloading = True
        await self.fleet.change(specs, 20.0)
        await self.fleet.wait_until_stopped()
        self.reloading = False
        for target in self.targets.values():
            mix = Mix(*TOKENS, prompt_power=0.0, output_power=1.0, error=0.0)
            found = Capacity("ttft", "found", *(3 * (CAPACITY_PER_S,)), mix=mix)
            self.demand(target.name).show_capacity([found])

    async def change(self, who: str, **changes: Any) -> None:
        self.targets[who] = replace(self.targets[who], **changes)
        self.forget_sweep_of_another()
        self.end_sweep()  # of a target that is removed, and comes back changed
        await self.reload()
        self.changed_s[who] = self.loop.time()

    def forget_sweep_of_another(self) -> None:
        """Only the target that was swept may still show the demand of before the sweep, while it reads the same page."""
        victim, swept = self.targets.get("victim"), self.swept
        same = victim is not None and swept is not None and victim.metrics
        if not same or (victim.name, victim.engine) != (swept.name, swept.engine):  # type: ignore[union-attr]
            self.before_sweep = []

    def demand(self, name: str) -> TargetDemand:
        runner = self.fleet.find(name)
        demand = runner.find(TargetDemand) if runner is not None else None
        assert demand is not None
        return demand

    def value(self, name: str, *labels: str) -> float | None:
        child = self.families[name].children.get(labels)
        return child.value if isinstance(child, Value) else None

    def count(self, name: str, *labels: str) -> float:
        return self.value(name, *labels) or 0.0

    # --- what is true of all that is stated

    def check(self) -> None:
        now_s = self.loop.time()
        named = {target.name: (who, target) for who, target in self.targets.items()}
        names = {labels[0] for family in (DEMAND, HEADROOM) for labels in self.families[family].children}
        assert self.reloading or names <= set(named), "something is stated of a target that is none"
        for name, (who, target) in named.items():
            if self.reloading and who == "victim":
                continue  # it is still the one of before, or already the other
            engine = self.engines[target.engine]
            per_s, free = self.value(DEMAND, name), self.value(HEADROOM, name, "estimate")
            where = f"{name} of engine {target.engine} at {now_s - 1000:.0f} s"
            assert (per_s is None) == (free is None), where
            if per_s is None or free is None:
                calm_s = now_s - max(engine.disturbed_s, self.changed_s[who])
                due = target.metrics and not (who == "victim" and self.sweeping)
                assert not due or calm_s < 90 + 15 * target.interval_s, f"{where}: nothing is stated for {calm_s:.0f} s"
                continue
            self.stated.add(who)
            truths = engine.truths()
            if who == "victim" and (self.sweeping or now_s < self.sweep_ended_s + 320):
                truths = [*truths, *self.before_sweep]
            assert truths, f"{where}: {per_s:.2f}/s is stated, and nothing can be known yet"
            low, high = min(truths) * (1 - TOLERANCE) - 0.05, max(truths) * (1 + TOLERANCE) + 0.05
            assert low <= per_s <= high, f"{where}: {per_s:.2f}/s is stated, true is {low:.2f} to {high:.2f}/s"
            assert free == pytest.approx(1 - per_s / CAPACITY_PER_S, abs=0.05), where

    def check_peaks(self) -> None:
        """No peak of a day is above what some engine's users ever asked for on the span that a peak is of."""
        for name, state in self.headroom.states():
            courses = [self.engines[each].course for each in (("z",) if name == "b" else ("x", "y"))]
            most = max((course[i] - course[i - 240]) / 240 for course in courses for i in range(240, len(course)))
            highest = max(per_s for _, _, per_s, *_ in json.loads(state)["peaks"])
            assert highest <= most * (1 + TOLERANCE) + 0.05, f"{name}: a peak of {highest:.2f}/s, true is {most:.2f}/s"

    async def watch(self) -> None:
        """Second by second."""
        begun = self.loop.time()
        while True:
            for engine in self.engines.values():
                engine.advance()
                engine.course.append(engine.users)
            self.check()
            await asyncio.sleep(max(0.0, begun + len(self.engines["x"].course) - self.loop.time()))

    # --- what may happen

    async def happen(self, what: str, value: float) -> None:
        """One event of a history. value: 0 to 1, how much of it."""
        target = self.targets.get("victim")
        engine = self.engines[target.engine if target else "x"]
        match what:
            case "remove":
                await self.remove_or_add()
            case "prober":
                await self.restart_prober()
            case "restart":
                engine.restart(value * 40.0 if value > 0.4 else value)
            case "hide":
                engine.hide(value * 60.0)
            case "demand":
                engine.ask(0.0 if value < 0.05 else 0.2 + value * 15.0)
            case _ if target is None:
                return
            case "edit with a restart":
                engine.restart(value)
                await self.change("victim", edits=target.edits % 50 + 1)
            case "sweep":
                self.sweep(engine, value)
            case _:
                changes: dict[str, dict[str, Any]] = {
                    "edit": {"edits": target.edits % 50 + 1},
                    "interval": {"interval_s": (2.5, 5.0, 10.0)[int(value * 2.99)]},
                    "metrics": {"metrics": not target.metrics},
                    "move": {"engine": "y" if target.engine == "x" else "x"},
                    "rename": {"name": "a2" if target.name == "a" else "a"},
                }
                await self.change("victim", **changes[what])

    async def remove_or_add(self) -> None:
        if (target := self.targets.pop("victim", None)) is not None:
            self.removed = target
            self.forget_sweep_of_another()
            self.end_sweep()
        elif self.removed is not None:
            self.targets["victim"] = self.removed
        await self.reload()
        self.changed_s["victim"] = self.loop.time()

    async def restart_prober(self) -> None:
        await self.fleet.stop(0.0)
        self.end_sweep()
        self.before_sweep = []
        self.begin()
        await self.reload()
        self.changed_s = dict.fromkeys(self.changed_s, self.loop.time())

    def sweep(self, engine: SimulatedEngine, value: float) -> None:
        if self.sweeping:
            self.end_sweep()
            return
        self.swept, self.sweeping = self.targets["victim"], True
        before = self.value(DEMAND, self.swept.name)
        self.before_sweep = [] if before is None else [before]
        engine.advance()
        engine.sweep_per_s = 20.0 * value
        self.demand(self.swept.name).sweep_began()
        self.swept_demand = self.demand(self.swept.name)

    def end_sweep(self) -> None:
        if not self.sweeping or self.swept is None:
            return
        for each in self.engines.values():
            each.advance()
            each.sweep_per_s = 0.0
        self.sweep_ended_s = self.changed_s["victim"] = self.loop.time()
        self.swept_demand.sweep_ended()
        self.sweeping = False


@contextmanager
def virtual(world: World) -> Iterator[None]:
    """Pages come from the simulated engines, and probes only take their time."""

    async def fetch(url: str, **options: Any) -> Fetched:
        host, path = url.removeprefix("http://").split(".test:8000")
        if path != "/metrics":
            raise UnreadablePage("no such page")
        return Fetched(world.engines[host].page().encode(), {})

    async def run_probe(target: Target, *_: Any) -> None:
        target.identity, target.state = Identity("m", DIALECTS["vllm"], "/v1"), TargetState.READY
        await asyncio.sleep(PROBE_S)

    with (
        patch("prober.features.engines.page_reader.fetch", fetch),
        patch("prober.probing.target_runner.run_probe", run_probe),
    ):
        yield


def play(tells_start: bool, act: Callable[[World], Awaitable[None]]) -> World:
    """A prober and its engines for ten minutes without events, then `act`, then until all must be known again."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)

    async def whole() -> World:
        world = World(loop, tells_start)
        with virtual(world):
            tasks = [asyncio.create_task(world.watch()), asyncio.create_task(course(world))]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await world.fleet.stop(0.0)
            for task in done:
                task.result()
        world.check_peaks()
        return world

    async def course(world: World) -> None:
        await world.reload()
        await asyncio.sleep(400.0)
        await act(world)
        await asyncio.sleep(300.0)

    try:
        return loop.run_until_complete(whole())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


EVENTS = ("edit", "edit with a restart", "interval", "metrics", "move", "rename", "remove", "restart", "hide", "sweep")
HISTORIES = st.lists(
    st.tuples(
        st.sampled_from((*EVENTS, "prober", "edit", "sweep")),
        st.floats(0.0, 1.0),
        st.sampled_from([0.0, 2.0, 11.0, 40.0, 100.0, 250.0]),
    ),
    max_size=8,
)


@pytest.mark.parametrize("examples", [5, pytest.param(40, marks=pytest.mark.slow)])
def test_what_is_stated_is_true_or_absent(examples: int) -> None:
    """Whatever is reloaded, restarted, moved, lost or swept in whatever order: a demand and a headroom are within a tolerance of
    the truth or absent, are stated again soon after, and the neighbour's are stated all the time."""

    @given(st.booleans(), HISTORIES, st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3))
    @settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate),  # a history is shrunk for minutes, and says little more then
    )
    def check(tells_start: bool, history: list[tuple[str, float, float]], demands: list[float]) -> None:
        async def act(world: World) -> None:
            for number, (what, value, wait_s) in enumerate(history):
                if number % 3 == 0:
                    await world.happen("demand", demands[number // 3])
                await world.happen(what, value)
                await asyncio.sleep(wait_s)

        world = play(tells_start, act)
        assert "neighbour" in world.stated

    check()


# --- single cases


def restarts(world: World) -> float:
    return world.value("llmslo_engine_changes_total", "a", "restart") or 0.0


@pytest.mark.parametrize("tells_start", [True, False])
def test_an_edit_long_after_a_restart_of_the_engine_changes_nothing(tells_start: bool) -> None:
    """Demand is never wrong, and known again after five minutes: the page and its engine are the same."""

    async def act(world: World) -> None:
        world.engines["x"].restart(0.0)
        await asyncio.sleep(400.0)
        for edits in (1, 2):
            await world.change("victim", edits=edits)
            for second in range(330):
                await asyncio.sleep(1.0)
                per_s = world.value(DEMAND, "a")
                assert per_s == pytest.approx(4.0, rel=TOLERANCE) or (per_s is None and second < 310)
        assert restarts(world) == 0

    play(tells_start, act)


@pytest.mark.parametrize("tells_start", [True, False])
@pytest.mark.parametrize("after_s", [-6.0, -1.0, 2.0, 9.0])
def test_a_restart_near_a_reload_is_told_once(tells_start: bool, after_s: float) -> None:
    """Before it, while the old schedules end, and after it; the demand is right or absent meanwhile, and known again soon."""

    async def act(world: World) -> None:
        reloading = asyncio.get_running_loop().create_task(at(max(0.0, -after_s), world.change("victim", edits=1)))
        await asyncio.sleep(max(0.0, after_s))
        world.engines["x"].restart(0.0)
        await reloading
        await asyncio.sleep(90.0)
        assert world.value(DEMAND, "a") == pytest.approx(4.0, rel=TOLERANCE)
        assert restarts(world) == 1

    async def at(seconds: float, doing: Awaitable[None]) -> None:
        await asyncio.sleep(seconds)
        await doing

    play(tells_start, act)


def test_a_restart_during_a_reload_is_told_though_the_counters_have_grown_past_the_old_ones() -> None:
    """By the start time that the page tells."""

    async def act(world: World) -> None:
        engine = world.engines["x"]
        engine.ask(0.01)
        engine.restart(0.0)
        await asyncio.sleep(100.0)
        before = restarts(world)
        engine.restart(0.0)
        engine.ask(15.0)
        await world.change("victim", edits=1)
        await asyncio.sleep(330.0)
        assert (before, restarts(world)) == (1, 1), "the series of the changed target began at 0"
        assert world.value(DEMAND, "a") == pytest.approx(15.0, rel=TOLERANCE)

    play(True, act)


@pytest.mark.parametrize("changes", [{"engine": "y"}, {"metrics": False}, {"name": "a2"}])
def test_another_page_has_no_demand_until_it_was_read_for_a_minute(changes: dict[str, Any]) -> None:
    """Neither that of the page before, nor 0: no series, and no headroom that would rest on it."""

    async def act(world: World) -> None:
        assert world.value(DEMAND, "a") is not None
        await world.change("victim", **changes)
        name = world.targets["victim"].name
        for family in (DEMAND, "llmslo_demand_tokens_per_second", HEADROOM):
            assert not [labels for labels in world.families[family].children if labels[0] in ("a", name)]
        assert world.demand(name).demand.requests_per_s is None
        await asyncio.sleep(50.0)
        assert world.value(DEMAND, name) is None
        await asyncio.sleep(20.0)
        assert (world.value(DEMAND, name) is not None) is world.targets["victim"].metrics

    play(True, act)


def test_a_page_that_cannot_be_read_leaves_no_demand() -> None:
    """After a few readings without an answer; and the demand is there again with the page where its process is the same."""

    async def act(world: World) -> None:
        world.engines["x"].hide(40.0)
        await asyncio.sleep(25.0)
        assert world.value(DEMAND, "a") is None
        assert world.value(HEADROOM, "a", "requests", "estimate") is None
        await asyncio.sleep(25.0)
        assert world.value(DEMAND, "a") == pytest.approx(4.0, rel=0.05)

    play(True, act)
