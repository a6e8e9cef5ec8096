"""Demand of a target's users as a Prometheus counts it, by `sweep.demand_query`."""

import asyncio
import logging
from collections.abc import Callable

from prober.net.prometheus import QueryFailed, instant

INTERVAL_S = 30.0
log = logging.getLogger(__name__)


class DemandQuery:
    """Asks for the demand of one target every INTERVAL_S, until it is stopped. Needs a running event loop.

    target: name of the target; url: of Prometheus, None: no queries; on_answer: called with requests per second, None if unknown
    """

    def __init__(
        self, target: str, text: str, url: Callable[[], str | None], on_answer: Callable[[float | None], None]
    ) -> None:
        self.text = text
        self._target, self._url, self._on_answer = target, url, on_answer
        self._problem = ""  # that was logged
        self._task = asyncio.create_task(self._run())

    async def ask(self) -> float | None:
        """Requests per second; None if there is no answer, which is logged."""
        url = self._url()
        if url is None:
            return None
        per_s, problem = None, ""
        try:
            per_s = await instant(url, self.text)
            if per_s < 0:
                per_s, problem = None, f"{self.text!r} gives {per_s:g}/s; there is no such demand"
        except QueryFailed as unanswered:
            problem = str(unanswered)
        if problem != self._problem:
            self._problem = problem
            if problem:
                log.warning("target=%s sweep.demand_query: the demand is not known: %s", self._target, problem)
            else:
                log.info("target=%s sweep.demand_query: the demand is known again", self._target)
        return per_s

    def stop(self) -> None:
        """Stop the queries."""
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            self._on_answer(await self.ask())
            await asyncio.sleep(INTERVAL_S)
