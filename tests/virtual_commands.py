"""Commands of the prober in virtual time, beside the servers that they are sent to: times are exact, and nobody waits for them."""

import asyncio
import importlib
import pkgutil
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, contextmanager
from functools import partial
from random import Random
from typing import Any, TypeVar
from unittest.mock import patch

import prober.cli
from prober.mock.service import Settings
from tests.virtual import FIRST_FREE_PORT, VirtualClock, VirtualLoop, running

T = TypeVar("T")
Serve = Callable[[], AbstractAsyncContextManager[Any]]
REPLACED = {"Clock": VirtualClock, "Random": lambda seed=1: Random(seed), "random_seed": lambda: 1}
"""Parts of the modules of commands, and of those that send for them, that differ from run to run."""
SENDING = ("prober.probing.session", "prober.features.experiments.compare_run")


def mock(settings: Settings) -> Serve:
    """A mock engine."""
    return partial(running, settings)


@contextmanager
def beside(*servers: Serve) -> Iterator[list[str]]:
    """Run commands in virtual time, each beside new servers; the servers' addresses, in their order."""

    def run(main: Coroutine[Any, Any, T]) -> T:
        async def beside_servers() -> T:
            async with AsyncExitStack() as stack:
                for serve in servers:
                    await stack.enter_async_context(serve())
                return await main

        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(beside_servers())

    with ExitStack() as patches:
        patches.enter_context(patch.object(asyncio, "run", run))
        for name in (*(info.name for info in pkgutil.iter_modules(prober.cli.__path__, "prober.cli.")), *SENDING):
            module = importlib.import_module(name)
            for part in REPLACED.keys() & vars(module).keys():
                patches.enter_context(patch.object(module, part, REPLACED[part]))
        yield [f"http://127.0.0.1:{FIRST_FREE_PORT + number}" for number in range(len(servers))]
