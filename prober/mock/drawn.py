"""An engine with a queue and background load, whose delays are drawn from distributions."""

import asyncio
from collections.abc import Coroutine, Iterator
from random import Random
from typing import Any

from prober.mock.adapters import AdapterPool, AdapterSettings, Lease
from prober.mock.completion_request import CompletionRequest
from prober.mock.engine import Behaviour, Emission, Queue, Ticket, emissions
from prober.mock.faults import Schedule
from prober.mock.page import Page
from prober.mock.prefix import PrefixCache
from prober.mock.record import Record
from prober.mock.service import Place
from prober.net.clock import Alarm, Clock

BACKGROUND_PROMPT_TOKENS = 256
BACKGROUND_TOKENS = (16, 112)


class DrawnPlace:
    """A place in the queue; the plan is drawn at once when it is requested."""

    known = None

    def __init__(self, service: "DrawnService", record: Record, at_ns: int) -> None:
        self.record = record
        self._service = service
        self._granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ticket: Ticket | None = None
        self._alarm: Alarm | None = None
        self._lease: Lease | None = None
        if record.adapter:
            self._lease = service.adapters.acquire(record.adapter, at_ns, self._adapter_known)
        else:
            self._queue(at_ns)

    async def wait(self, timeout_s: float | None = None) -> int | None:
        """See `Place`."""
        if self.record.started_ns is None:
            await asyncio.wait([self._granted], timeout=timeout_s)
        return self.record.started_ns

    def plan(self, tokens: int | None, factor: float = 1.0) -> Iterator[Emission]:
        """See `Place`."""
        return emissions(self._service.behaviour, tokens, Random(self._service.rng.getrandbits(64)), factor)

    def leave(self, at_ns: int) -> None:
        """Leave the queue and the adapter."""
        if self._alarm is not None:
            self._alarm.cancel()
        if self._ticket is not None:
            self._service.queue.leave(self._ticket, at_ns)
        if self._lease is not None:
            self.record.load_ns = self._lease.load_ns
            self._service.adapters.release(self._lease, at_ns)

    def _adapter_known(self, ready_ns: int) -> None:
        """Enter the queue when the adapter is loaded."""
        if ready_ns <= self._service.pacer.now_ns():
            self._queue(ready_ns)
        else:
            self._alarm = self._service.pacer.call_at(ready_ns, lambda: self._queue(ready_ns))

    def _queue(self, at_ns: int) -> None:
        self._ticket = self._service.queue.enter(at_ns, self._start)
        if self._ticket.started_ns is not None:
            self._start()

    def _start(self) -> None:
        assert self._ticket is not None
        self.record.started_ns = self._ticket.started_ns
        if not self._granted.done():
            self._granted.set_result(None)


class DrawnService:
    """See `Service`."""

    def __init__(
        self,
        behaviour: Behaviour,
        model: str,
        seed: int | None,
        clock: Clock,
        adapters: AdapterSettings,
    ) -> None:
        self.behaviour = behaviour
        self.pacer = clock
        self.page = Page(model, self.pacer.unix_s())
        self.queue = Queue(behaviour.slots)
        self._prefixes = PrefixCache()
        self.rng = Random(seed)
        self.adapters = AdapterPool(adapters, Random(self.rng.getrandbits(64)))
        self._background: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """See `Service`."""
        if self.behaviour.background_per_s:
            self._spawn(self._arrivals(Random(self.rng.getrandbits(64)), self.behaviour.background_per_s))

    async def stop(self) -> None:
        """See `Service`."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self.pacer.close()

    def schedule(self, schedule: Schedule) -> None:
        """Do nothing: faults are applied to each request."""

    def enter(self, record: Record, completion: CompletionRequest, at_ns: int, *, endless: bool) -> DrawnPlace:
        """See `Service`."""
        record.prompt_tokens = len(completion.prompt)
        record.cached_tokens = self._prefixes.cached_tokens(completion.salt, completion.prompt)
        return self._enter(record, at_ns)

    def leave(self, place: Place, reason: str | None, at_ns: int) -> None:
        """See `Service`."""
        assert isinstance(place, DrawnPlace)
        place.leave(at_ns)
        self.page.finish(place.record, reason, at_ns)

    def render(self, now_ns: int) -> str:
        """See `Service`."""
        self.page.settle(now_ns)
        return self.page.render(self.page.gauges(running=self.queue.serving, waiting=self.queue.waiting))

    def _enter(self, record: Record, at_ns: int) -> DrawnPlace:
        self.page.begin(record)
        return DrawnPlace(self, record, at_ns)

    async def _arrivals(self, rng: Random, rate_per_s: float) -> None:
        due_ns = self.pacer.now_ns()
        while True:
            due_ns += round(rng.expovariate(rate_per_s) * 1e9)
            await self.pacer.sleep_until(due_ns)
            self._spawn(self._serve_background(due_ns, rng.randint(*BACKGROUND_TOKENS)))

    async def _serve_background(self, at_ns: int, tokens: int) -> None:
        record = Record("background", at_ns, prompt_tokens=BACKGROUND_PROMPT_TOKENS)
        place = self._enter(record, at_ns)
        end_ns = None
        try:
            started_ns = await place.wait()
            assert started_ns is not None
            for due_ns, size, _ in place.plan(tokens):
                record.writes.append(started_ns + due_ns)
                record.tokens.append(size)
            await self.pacer.sleep_until(record.writes[-1])
            end_ns = record.writes[-1]
        finally:
            self.leave(place, "length" if end_ns else None, end_ns or self.pacer.now_ns())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
