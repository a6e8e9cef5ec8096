"""What users demand of a target, as a Prometheus counts it, where the configuration says what to ask it."""

import asyncio
import logging

from prober.features.capacity.headroom import Headroom
from prober.net.clock import Clock
from prober.net.prometheus import QueryFailed, instant

EVERY_S = 30.0
log = logging.getLogger(__name__)


class Demands:
    """Asks for every target that has a query, and tells `headroom`. url: of the Prometheus, None: nobody is asked."""

    def __init__(self, headroom: Headroom, clock: Clock) -> None:
        self.url: str | None = None
        self._headroom, self._clock = headroom, clock
        self._queries: dict[str, str] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._told: dict[str, str] = {}

    def declare(self, name: str, query: str | None) -> None:
        """Ask so from now on; None: not at all, and the engine's own counters are the demand."""
        if self._queries.get(name) not in (None, query):
            self._headroom.queried(name, on=False)  # what another query told is not the demand
        self._headroom.queried(name, on=query is not None)
        if self._queries.get(name) == query:
            return
        self.remove(name)
        if query is not None:
            self._queries[name] = query
            self._asking[name] = asyncio.create_task(self._ask_often(name))

    def remove(self, name: str) -> None:
        """Ask no more."""
        self._queries.pop(name, None)
        self._told.pop(name, None)
        if (task := self._asking.pop(name, None)) is not None:
            task.cancel()

    async def now(self, name: str) -> float | None:
        """Requests per second; None where no query is configured, and where it has no answer, which is logged."""
        query = self._queries.get(name)
        if query is None or self.url is None:
            return None
        per_s, problem = None, ""
        try:
            per_s = await instant(self.url, query)
            if per_s < 0:
                per_s, problem = None, f"{query!r} gives {per_s:g}/s; there is no such demand"
        except QueryFailed as unanswered:
            problem = str(unanswered)
        if problem != self._told.get(name, ""):
            self._told[name] = problem
            if problem:
                log.warning("target=%s sweep.demand_query: the demand is not known: %s", name, problem)
            else:
                log.info("target=%s sweep.demand_query: the demand is known again", name)
        return per_s

    async def close(self) -> None:
        """Ask nobody any more."""
        tasks = list(self._asking.values())
        for name in list(self._queries):
            self.remove(name)
        if tasks:
            await asyncio.wait(tasks)

    async def _ask_often(self, name: str) -> None:
        while True:
            per_s = await self.now(name)
            self._headroom.told(name, self._clock.now_ns() / 1e9, per_s, self._clock.unix_s())
            await asyncio.sleep(EVERY_S)
