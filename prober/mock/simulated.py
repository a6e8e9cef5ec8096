"""A simulated mock engine: all requests and the background load share one batch, driven by the monotonic clock.

A step is fixed when it begins, so the due times of its tokens are known one step ahead. A departing client or a fault takes effect
with the next step.
"""

import asyncio
import math
from collections import deque
from collections.abc import Iterator
from random import Random

from prober.mock.completion_request import CompletionRequest, bad_request, block_ids
from prober.mock.faults import Schedule
from prober.mock.record import Record
from prober.mock.service import Behaviour, Place, Service
from prober.net.clock import Clock
from prober.simulation.engine import Engine
from prober.simulation.faults import Fault, Flush, KvLost, Slow, Tail
from prober.simulation.load import AzureConversation
from prober.simulation.parameters import Parameters
from prober.simulation.request import End, Request, Truth

TAIL_STEP_RATIO = 0.04  # of the steps that only decode


class SimulatedPlace(Place):
    """A request in the batch. Its tokens are known one step ahead of the clock."""

    def __init__(self, record: Record, truth: Truth) -> None:
        super().__init__(record)
        self.truth, self.tokens_out = truth, 0
        self._due_ns: deque[int] = deque()  # of tokens not yet in a chunk

    def step_begun(self, started_ns: int | None, tokens: int, at_ns: int) -> None:
        """Record that a step began, which generates the answer up to `tokens` tokens at `at_ns`."""
        self.record.started_ns = started_ns
        self.record.cached_tokens = self.truth.cached_tokens
        self._due_ns.extend([at_ns] * (tokens - self.tokens_out))
        self.tokens_out = tokens
        self.progressed()

    async def due_ns(self) -> int:
        while not self._due_ns:
            await self.next_progress()
        return self._due_ns.popleft()


class SimulatedService(Service):
    """The simulated engine, advanced to the clock's time."""

    def __init__(
        self, behaviour: Behaviour, model: str, seed: int | None, clock: Clock, parameters: Parameters
    ) -> None:
        super().__init__(behaviour, model, seed, clock)
        self._parameters = parameters
        self._engine = Engine(parameters, Random(self.rng.getrandbits(64)))
        self._live: dict[SimulatedPlace, None] = {}
        self._since_ns = self.pacer.now_ns()
        self._load: Iterator[Request] = iter(())
        self._next: Request | None = None
        self._alarm: asyncio.TimerHandle | None = None
        if behaviour.background_per_s:
            load = AzureConversation(behaviour.background_per_s, daily_amplitude=0.0)
            self._load = load.requests(Random(self.rng.getrandbits(64)), self.page.started_unix_s, math.inf)
            self._next = next(self._load)
        self._tick()

    async def stop(self) -> None:
        if self._alarm:
            self._alarm.cancel()
        self.pacer.close()

    def schedule(self, schedule: Schedule) -> None:
        begin_s = self._seconds(schedule.since_ns)
        faults: list[Fault] = []
        for fault in schedule.faults:
            start_s, end_s = begin_s + fault.start_s, begin_s + fault.end_s
            match fault.name:
                case "latency":
                    faults.append(Slow(fault.argument, start_s, end_s))
                case "itl_tail":
                    faults.append(Tail(TAIL_STEP_RATIO, fault.argument, start_s, end_s))
                case "kv_lost":
                    faults.append(KvLost(fault.count, start_s, end_s))
                case "prefix_flush":
                    faults.append(Flush(max(start_s, self._engine.at_s)))  # the running step is fixed
        self._engine.set_faults(faults)

    def enter(
        self, record: Record, completion: CompletionRequest, at_ns: int, *, endless: bool, factor: float
    ) -> SimulatedPlace:
        record.prompt_tokens = max(1, len(completion.prompt))
        room = self._parameters.kv_blocks * self._parameters.block_tokens - record.prompt_tokens
        prefix = tuple(block_ids(completion.salt, completion.prompt))
        self._catch_up(at_ns)
        arrival_s = self._seconds(at_ns)
        try:
            tokens = max(1, room) if endless else completion.tokens
            truth = self._engine.submit(Request(arrival_s, record.prompt_tokens, tokens, prefix))
        except ValueError:
            message = (
                f"The prompt and answer are longer than the KV cache, of which {room} tokens would be for the answer."
            )
            raise bad_request(message) from None
        self.page.begin(record)
        place = SimulatedPlace(record, truth)
        self._live[place] = None
        self._set_alarm()
        return place

    def leave(self, place: Place, reason: str | None, at_ns: int) -> None:
        assert isinstance(place, SimulatedPlace)
        self._live.pop(place, None)
        self._engine.cancel(place.truth)
        self.page.finish(place.record, reason, at_ns)

    def render(self, now_ns: int) -> str:
        self._catch_up(now_ns)
        self.page.settle(now_ns)
        return self.page.render(self._engine.state, self._parameters.kv_blocks)

    def _tick(self) -> None:
        self._catch_up(self.pacer.now_ns())
        self._set_alarm()

    def _set_alarm(self) -> None:
        """Set an alarm for the next step or the next background request."""
        if self._alarm:
            self._alarm.cancel()
        wakes = [self._engine.at_s] if self._engine.busy else []
        if self._next:
            wakes.append(self._next.arrival_s)
        self._alarm = self.pacer.call_at(self._ns(min(wakes)) + 1, self._tick) if wakes else None

    def _catch_up(self, now_ns: int) -> None:
        """Run all steps that begin before `now_ns`."""
        now_s = self._seconds(now_ns)
        while self._next and self._next.arrival_s <= now_s:
            self._run(self._next.arrival_s)
            self._engine.submit(self._next)
            self._next = next(self._load)
        self._run(now_s)

    def _run(self, to_s: float) -> None:
        engine = self._engine
        while engine.step(to_s):
            at_ns = self._ns(engine.at_s)
            for place in self._live:
                truth = place.truth
                started_ns = None if truth.admitted_s is None else self._ns(truth.admitted_s)
                place.step_begun(started_ns, engine.tokens(truth), at_ns)
        for truth in engine.advance(to_s):
            if truth.request.background and truth.end is End.COMPLETE:
                self._count(truth)

    def _count(self, truth: Truth) -> None:
        """Add an ended background request to the histograms."""
        record = Record("background", self._ns(truth.request.arrival_s), prompt_tokens=truth.request.prompt_tokens)
        record.started_ns = self._ns(truth.admitted_s or 0.0)
        record.writes = [self._ns(at_s) for at_s in truth.token_times_s()]
        record.tokens = [1] * len(record.writes)
        self.page.begin(record)
        self.page.finish(record, "length", record.writes[-1])

    def _ns(self, at_s: float) -> int:
        """Convert seconds of the engine's time to ns of the monotonic clock."""
        return self._since_ns + round(at_s * 1e9)

    def _seconds(self, at_ns: int) -> float:
        """Convert ns of the monotonic clock to seconds of the engine's time."""
        return max(0.0, (at_ns - self._since_ns) / 1e9)
