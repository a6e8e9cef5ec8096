"""Tasks that run as long as the prober or a target. A failed task is counted and restarted."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from prober.exposition.families import Registry
from prober.probing import series

MIN_RESTART_S, MAX_RESTART_S = 1.0, 60.0
SETTLED_S = 300.0  # a task that ran this long restarts after MIN_RESTART_S
log = logging.getLogger(__name__)


class Supervisor:
    """Starts tasks, and restarts them after an exception with a growing pause. Needs a running event loop."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def start(self, name: str, work: Callable[[], Awaitable[None]], of: str = "") -> "asyncio.Task[None]":
        """Run `work` until it returns or the task is cancelled. After any other end, log and count it and run `work` again.

        name: value of the label `task`; of: text for the log line, such as the name of the target
        """
        self._registry.value(series.TASK_FAILURES, name)
        return asyncio.create_task(self._run(name, work, of))

    async def _run(self, name: str, work: Callable[[], Awaitable[None]], of: str) -> None:
        loop, pause_s = asyncio.get_running_loop(), MIN_RESTART_S
        while True:
            started_s = loop.time()
            try:
                await work()
                return
            except (Exception, asyncio.CancelledError):
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                if loop.time() - started_s > SETTLED_S:
                    pause_s = MIN_RESTART_S
                self._registry.value(series.TASK_FAILURES, name).inc()
                log.exception(
                    "task=%s %sfailed and is started again in %g s; please report this",
                    name,
                    of and f"{of} ",
                    pause_s,
                )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_RESTART_S)
