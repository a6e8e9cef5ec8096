"""Of several replicas one sweeps, nothing that is due is swept twice, and a sweep ends with the lease."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from aiohttp import web

from prober.config.load import load
from prober.config.target import Timeouts
from prober.daemon.registry import registry
from prober.exposition.families import Registry
from prober.features.capacity import sweep_runner, target_sweeps
from prober.features.capacity.actions import Refused
from prober.features.capacity.headroom import Headroom
from prober.features.capacity.monitor import Sweeps
from prober.features.capacity.sweep_schedule import MAX_LATENESS_S
from prober.features.replicas.leadership import KubernetesLeadership, KubernetesLease
from prober.features.replicas.lease_machine import Timing
from prober.measure.engines import DIALECTS
from prober.measure.target_state import TargetState
from prober.mock.delays import constant
from prober.mock.server import create_app
from prober.mock.service import Behaviour, Settings
from prober.net.clock import Clock
from prober.net.exchange import Exchange
from prober.net.kubernetes import Api
from prober.probing.observer import ObservedTarget
from prober.probing.replicas import Leadership, Listener, claimed_as
from prober.probing.target import Target
from tests.kubernetes.apiserver import ApiServer
from tests.observed import shared
from tests.serving import serving, until

TIMING = Timing(3.0)
TEXT = """
slos: {{quick: {{signal: ttft, threshold: 2s, objective: 90%}}}}
workloads: {{tiny: {{prompt_tokens: 20, output_tokens: 40}}}}
targets: [{{name: t, url: '{url}', metrics: {{url: none}},
  sweep: {{workload: tiny, min_rate: 20/s, max_rate: 30/s, mode: grid, min_gap: {gap}}}}}]
"""


class Seat(Leadership):
    """A lease in this process, handed round by the test."""

    where = "default/test-0"

    def __init__(self) -> None:
        self.fence: int | None = None
        self.claims: dict[str, float] = {}
        self.deaf = False  # a claim gets no answer in time
        self._listeners: list[tuple[Listener, Listener]] = []

    @property
    def holder(self) -> str:
        return "another"

    def held(self) -> int | None:
        return self.fence

    def claimed(self, key: str) -> float:
        return self.claims.get(key, 0.0)

    async def claim(self, key: str, number: float) -> int | None:
        await asyncio.sleep(0)
        if self.fence is None or self.deaf:
            return None
        self.claims[key] = number
        return self.fence

    def listen(self, lost: Listener, won: Listener) -> None:
        self._listeners.append((lost, won))

    def give(self, fence: int | None) -> None:
        self.fence = fence
        for lost, won in self._listeners:
            (lost if fence is None else won)()

    def silently(self, fence: int | None) -> None:
        """No listener hears of it."""
        self.fence = fence


class Engine:
    """A mock whose answers take 0.4 s. came: when each request came; open: answers under way."""

    def __init__(self) -> None:
        self.came: list[float] = []
        self.open = 0
        self.url = ""

    @web.middleware
    async def count(self, request: web.Request, handler: Callable[[web.Request], Any]) -> Any:
        is_answer = request.path == "/v1/chat/completions"
        self.came += [time.monotonic()] * is_answer
        self.open += is_answer
        try:
            return await handler(request)
        finally:
            self.open -= is_answer


@asynccontextmanager
async def engine() -> AsyncIterator[Engine]:
    found = Engine()
    app = create_app(Settings(behaviour=Behaviour(ttft=constant(0.05), itl=constant(0.01))))
    app.middlewares.append(found.count)
    async with serving(app) as found.url:
        yield found


class Replica:
    def __init__(self, url: str, leadership: Leadership, gap: str, families: Registry | None = None) -> None:
        spec = load(TEXT.format(url=url, gap=gap), source="c", engines=DIALECTS, environment={}, read=str).targets[0]
        self.families, self.clock = families or registry(), Clock()
        self.headroom = Headroom(self.families)
        self.sweeps = Sweeps(shared(self.families, self.clock, leadership=leadership), self.headroom)
        self.target = Target(spec, self.clock)
        self.target.state = TargetState.READY
        self.observed = ObservedTarget(self.target, (self.headroom.observe, self.sweeps.observe))

    @property
    def sending(self) -> bool:
        return self.families["llmslo_sweep_rate_per_second"].value("t").value > 0

    def refused(self) -> float:
        return self.families["llmslo_sweeps_refused_total"].value("t", "no_lease").value

    def stops(self, reason: str) -> float:
        return self.families["llmslo_sweep_stops_total"].value("t", reason).value

    def rings(self, due_s: float) -> None:
        """As its schedule does."""
        with suppress(Refused):
            self.sweeps.start("t", "schedule", due_s)


@asynccontextmanager
async def replica(
    url: str, leadership: Leadership, gap: str = "0s", families: Registry | None = None
) -> AsyncIterator[Replica]:
    made = Replica(url, leadership, gap, families)
    try:
        yield made
    finally:
        await made.sweeps.close()
        made.clock.close()


def sending(monkeypatch: pytest.MonkeyPatch, leadership: Leadership) -> list[int | None]:
    """What the lease is at each moment at which a request leaves, from now on."""
    found: list[int | None] = []
    send = Exchange.send

    def seen(exchange: Exchange, data: bytes, timeouts: Timeouts, delay_ns: int = 0) -> None:
        found.append(leadership.held())
        send(exchange, data, timeouts, delay_ns)

    monkeypatch.setattr(Exchange, "send", seen)
    return found


@pytest.fixture(autouse=True)
def short_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the load that is there, before a sweep."""
    monkeypatch.setattr(sweep_runner, "BEFORE_S", 0.05)


async def test_what_was_due_while_nobody_held_it_is_swept_once_by_the_next_holder() -> None:
    """And not what another replica has begun, nor what is long past; with its number in the result."""
    key, now = claimed_as("t"), time.time()
    for before, due, runs in ((0.0, now, True), (now, now, False), (0.0, now - MAX_LATENESS_S - 60, False)):
        seat = Seat()
        seat.claims[key] = before
        async with engine() as there, replica(there.url, seat) as here:
            here.rings(due)
            seat.give(7)
            assert (here.sweeps.under_way == "t") is runs
            if not runs:
                continue
            await until(lambda: here.sending)
            assert seat.claims[key] >= due
            here.rings(due)
            assert here.sweeps.stop("t")
            await until(lambda: here.sweeps.under_way is None)
            (result,) = here.sweeps.results("t")
            told = json.loads(result.configuration or "")
            assert (told["lease"], told["lease_transitions"]) == ("default/test-0", 7)
            here.rings(due)
            assert here.sweeps.under_way is None


@pytest.mark.parametrize(
    ("lose", "fence"),
    [(Seat.give, None), (Seat.silently, None), (Seat.silently, 3)],
    ids=["told", "stopped", "new tenure"],
)
async def test_a_sweep_ends_at_once_when_the_lease_is_lost(
    lose: Callable[[Seat, int | None], None], fence: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing leaves any more, what is in flight is cut, and it is recorded as that. A process that was stopped, whom nobody tells,
    asks its clock before each request; another number is another holder, even where it is the same process.
    """
    seat = Seat()
    async with engine() as there, replica(there.url, seat) as here:
        seat.give(1)
        here.sweeps.start("t")
        await until(lambda: len(there.came) > 10 and there.open)
        sent = sending(monkeypatch, seat)
        await until(lambda: len(sent) > 3)
        lose(seat, fence)
        await until(lambda: here.stops("lease_lost"))
        await until(lambda: there.open == 0)
        assert set(sent) == {1}
        (result,) = here.sweeps.results("t")
        assert (result.stop, result.stop_detail) == ("lease_lost", "another prober may sweep now")


async def test_what_could_not_be_written_down_is_not_begun() -> None:
    """The holder that hears nothing from the server sends nothing."""
    seat = Seat()
    async with engine() as there, replica(there.url, seat) as here:
        seat.give(1)
        seat.deaf = True
        here.sweeps.start("t")
        await until(lambda: here.sweeps.under_way is None)
        assert here.refused() == 1
        assert there.came == []


async def test_a_lease_that_came_back_meanwhile_begins_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alerts are asked for first, which may take longer than another one's whole tenure."""
    asked, answer = asyncio.Event(), asyncio.Event()

    async def slow(*_: object) -> list[str]:
        asked.set()
        await answer.wait()
        return []

    monkeypatch.setattr(target_sweeps, "firing", slow)
    seat, due = Seat(), time.time()
    async with engine() as there, replica(there.url, seat) as here:
        here.headroom.prometheus_url = "http://127.0.0.1:1"
        seat.give(1)
        here.rings(due)
        await asked.wait()
        seat.give(None)
        seat.claims[claimed_as("t")] = due
        seat.give(3)
        answer.set()
        await until(lambda: here.sweeps.under_way is None)
        assert there.came == []
        assert here.refused() == 1


async def test_a_leader_that_is_cut_off_in_mid_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sweep stops within the lease time, the other one takes over, and what was due is not swept a second time."""
    async with engine() as there, ApiServer() as server:

        def lease(who: str, families: Registry) -> KubernetesLeadership:
            kept = KubernetesLease(Api(server.url(who)), "default", "prober-0")
            return KubernetesLeadership(kept, who, TIMING, families)

        one, two = registry(), registry()
        a, b = lease("a", one), lease("b", two)
        async with replica(there.url, a, families=one) as first, replica(there.url, b, families=two) as second:
            tasks = [asyncio.create_task(a.run())]
            try:
                await until(lambda: a.held() is not None)
                tasks.append(asyncio.create_task(b.run()))
                await until(lambda: b.holder == "a")
                due = time.time()
                first.rings(due)
                second.rings(due)
                await until(lambda: len(there.came) > 10)
                sent = sending(monkeypatch, a)
                server.faults("a").cut = "requests"
                await asyncio.sleep(TIMING.renew_s)
                assert a.held() is None, "before anybody else may take it"
                await until(lambda: b.held() is not None)
                await until(lambda: first.stops("lease_lost"))
                assert sent, "it had gone on until then"
                assert set(sent) == {0}
                await until(lambda: there.open == 0)
                assert second.sweeps.under_way is None, "it was due once"
                assert second.sweeps.results() == []
                later = time.time()
                first.rings(later)
                second.rings(later)
                await until(lambda: second.sending)
                assert first.sweeps.under_way is None
                assert second.sweeps.stop("t")
                await until(lambda: second.sweeps.under_way is None)
                (result,) = second.sweeps.results("t")
                assert json.loads(result.configuration or "")["lease_transitions"] >= 1
            finally:
                server.heal("a")
                await b.close()
                await a.close()
                assert all(task.done() for task in tasks)
