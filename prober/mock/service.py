"""The running engine: requests take their places in its queue, its other load comes and goes, its page counts both."""

import asyncio
import time
from collections.abc import Coroutine, Iterator
from random import Random
from typing import Any

from prober.edge.clock import Clock
from prober.mock.engine import Behaviour, Emission, Queue, Ticket, emissions
from prober.mock.page import Page
from prober.mock.prefix import PrefixCache
from prober.mock.record import Record

BACKGROUND_PROMPT_TOKENS = 256
BACKGROUND_TOKENS = (16, 112)


class Place:
    """One request's place in the engine, from `Service.enter` to `Service.leave`."""

    def __init__(self, queue: Queue, record: Record, at_ns: int) -> None:
        self.record = record
        self._granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ticket: Ticket = queue.enter(at_ns, self._start)
        record.started_ns = self.ticket.started_ns

    async def wait(self, timeout_s: float | None = None) -> int | None:
        """The time the service began; None if that is not within `timeout_s` (None: however long it takes)."""
        if self.ticket.started_ns is None:
            await asyncio.wait([self._granted], timeout=timeout_s)
        return self.ticket.started_ns

    def _start(self) -> None:
        self.record.started_ns = self.ticket.started_ns
        if not self._granted.done():
            self._granted.set_result(None)


class Service:
    """The engine of one mock. Belongs to the running loop; `start` it, then `stop` it."""

    def __init__(self, behaviour: Behaviour, model: str, seed: int | None) -> None:
        self.behaviour = behaviour
        self.pacer = Clock()
        self.page = Page(model, time.time())
        self._queue = Queue(behaviour.slots)
        self._prefixes = PrefixCache()
        self._rng = Random(seed)
        self._background: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Let the background load begin."""
        if self.behaviour.background_per_s:
            self._spawn(self._arrivals(Random(self._rng.getrandbits(64)), self.behaviour.background_per_s))

    async def stop(self) -> None:
        """Give up all that is not finished."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self.pacer.close()

    def enter(self, record: Record, at_ns: int) -> Place:
        """A request whose record tells its prompt asks to be served."""
        self.page.begin(record)
        return Place(self._queue, record, at_ns)

    def leave(self, place: Place, reason: str | None, at_ns: int) -> None:
        """It is over at `at_ns`, for one of vLLM's reasons or because its client left (None)."""
        self._queue.leave(place.ticket, at_ns)
        self.page.finish(place.record, reason, at_ns)

    def plan(self, tokens: int | None, factor: float = 1.0) -> Iterator[Emission]:
        """When the chunks of one answer are due after the start of its service."""
        return emissions(self.behaviour, tokens, Random(self._rng.getrandbits(64)), factor)

    def cached_tokens(self, salt: str, words: tuple[str, ...]) -> int:
        """How much of a prompt the prefix cache has; it keeps the prompt."""
        return self._prefixes.cached_tokens(salt, words)

    def render(self, now_ns: int) -> str:
        """The metrics page."""
        return self.page.render(now_ns, running=self._queue.serving, waiting=self._queue.waiting)

    async def _arrivals(self, rng: Random, rate_per_s: float) -> None:
        due_ns = time.monotonic_ns()
        while True:
            due_ns += round(rng.expovariate(rate_per_s) * 1e9)
            await self.pacer.sleep_until(due_ns)
            self._spawn(self._serve_background(due_ns, rng.randint(*BACKGROUND_TOKENS)))

    async def _serve_background(self, at_ns: int, tokens: int) -> None:
        record = Record("background", at_ns, prompt_tokens=BACKGROUND_PROMPT_TOKENS)
        place = self.enter(record, at_ns)
        end_ns = None
        try:
            started_ns = await place.wait()
            assert started_ns is not None
            for due_ns, size, _ in self.plan(tokens):
                record.writes.append(started_ns + due_ns)
                record.tokens.append(size)
            await self.pacer.sleep_until(record.writes[-1])
            end_ns = record.writes[-1]
        finally:
            self.leave(place, "length" if end_ns else None, end_ns or time.monotonic_ns())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
