"""The drawn engine (`--engine drawn`): a queue and background load, with delays drawn from given distributions."""

import asyncio
from collections import deque
from collections.abc import Coroutine
from random import Random
from typing import Any

from prober.mock.completion_request import BLOCK_TOKENS, CompletionRequest, block_ids
from prober.mock.page import KV_BLOCKS
from prober.mock.record import Record
from prober.mock.service import Behaviour, Place, Service
from prober.net.clock import Clock
from prober.simulation.blocks import Blocks
from prober.workload.shapes import LengthDistribution

BACKGROUND_PROMPT_TOKENS = 256
BACKGROUND_TOKENS = (16, 112)
CACHED_BLOCKS = 65_536  # in the prefix cache


class DrawnPlace(Place):
    """A request in the queue of the drawn engine. The delays of its answer are drawn with its chunks.

    seeds: random generator of the engine; the place takes a seed when its answer begins
    factor: multiplies all delays
    """

    def __init__(self, behaviour: Behaviour, record: Record, seeds: Random, factor: float) -> None:
        super().__init__(record)
        self.entered_ns = 0  # when it entered the queue
        self._behaviour, self._rng, self._factor = behaviour, seeds, factor
        self._due_ns: int | None = None

    async def due_ns(self) -> int:
        """Draw the due time: the first token one TTFT after the begin of service, later ones an ITL after the one before."""
        if self._due_ns is None:
            assert self.record.started_ns is not None
            self._rng = Random(self._rng.getrandbits(64))
            self._due_ns = self.record.started_ns + self._draw_ns(self._behaviour.ttft)
        else:
            self._due_ns += self._draw_ns(self._behaviour.itl)
        return self._due_ns

    def _draw_ns(self, delay: LengthDistribution) -> int:
        return round(delay.draw(self._rng) * self._factor)


class DrawnService(Service):
    """The drawn engine: requests queue, first come, first served, for the slots of `behaviour`; 0 slots: no limit."""

    def __init__(self, behaviour: Behaviour, model: str, seed: int | None, clock: Clock) -> None:
        super().__init__(behaviour, model, seed, clock)
        self._serving = 0
        self._waiting: deque[DrawnPlace] = deque()
        self._prefixes = Blocks(CACHED_BLOCKS, 1)
        self._background: set[asyncio.Task[None]] = set()
        if behaviour.background_per_s:
            self._spawn(self._arrivals(Random(self.rng.getrandbits(64)), behaviour.background_per_s))

    async def stop(self) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self.pacer.close()

    def enter(
        self, record: Record, completion: CompletionRequest, at_ns: int, *, endless: bool, factor: float
    ) -> DrawnPlace:
        record.prompt_tokens = len(completion.prompt)
        ids = tuple(block_ids(completion.salt, completion.prompt))
        # As in engines, the last token is always computed, so no prompt is fully cached.
        cached = ids[: self._prefixes.cached_count(ids, max(0, record.prompt_tokens - 1) // BLOCK_TOKENS)]
        record.cached_tokens = len(cached) * BLOCK_TOKENS
        self._prefixes.hold(cached)
        new = self._prefixes.publish(ids)
        self._prefixes.take(len(new))
        self._prefixes.release(len(cached) + len(new), [*cached, *new])
        return self._enter(record, at_ns, factor)

    def leave(self, place: Place, reason: str | None, at_ns: int) -> None:
        assert isinstance(place, DrawnPlace)
        if place in self._waiting:
            self._waiting.remove(place)
        elif place.record.started_ns is not None:
            self._serving -= 1
            if self._waiting:
                following = self._waiting.popleft()
                self._serve(following, max(following.entered_ns, at_ns))
        self.page.finish(place.record, reason, at_ns)

    def render(self, now_ns: int) -> str:
        self.page.settle(now_ns)
        return self.page.render(self.page.state(running=self._serving, waiting=len(self._waiting)), KV_BLOCKS)

    def _enter(self, record: Record, at_ns: int, factor: float) -> DrawnPlace:
        self.page.begin(record)
        place = DrawnPlace(self.behaviour, record, self.rng, factor)
        if self.behaviour.slots and self._serving >= self.behaviour.slots:
            place.entered_ns = at_ns
            self._waiting.append(place)
        else:
            self._serve(place, at_ns)
        return place

    def _serve(self, place: DrawnPlace, at_ns: int) -> None:
        self._serving += 1
        place.record.started_ns = at_ns
        place.progressed()

    async def _arrivals(self, rng: Random, rate_per_s: float) -> None:
        due_ns = self.pacer.now_ns()
        while True:
            due_ns += round(rng.expovariate(rate_per_s) * 1e9)
            await self.pacer.sleep_until(due_ns)
            self._spawn(self._serve_background(due_ns, rng.randint(*BACKGROUND_TOKENS)))

    async def _serve_background(self, at_ns: int, tokens: int) -> None:
        record = Record("background", at_ns, prompt_tokens=BACKGROUND_PROMPT_TOKENS)
        place = self._enter(record, at_ns, 1.0)
        end_ns = None
        try:
            await place.wait()
            async for due_ns in place.plan(tokens):
                record.writes.append(due_ns)
                record.tokens.append(1)
            await self.pacer.sleep_until(record.writes[-1])
            end_ns = record.writes[-1]
        finally:
            self.leave(place, "length" if end_ns else None, end_ns or self.pacer.now_ns())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
