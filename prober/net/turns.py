"""Work on received bytes in small steps: all answers of an event loop share it, each in its turn.

Between two turns the loop takes the bytes and the timers that are due, so no timestamp waits for more than one step and TURN_NS.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from weakref import WeakKeyDictionary

TURN_NS = 200_000
_TURNS: "WeakKeyDictionary[asyncio.AbstractEventLoop, Turns]" = WeakKeyDictionary()


class Turns:
    """The steps that wait for their turn on one event loop. Create it with `turns()`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call_soon = loop.call_soon
        self._steps: deque[Callable[[], bool]] = deque()
        self._is_scheduled = False

    def add(self, step: Callable[[], bool]) -> None:
        """Call `step` soon, and again as long as it returns True. It must not raise."""
        self._steps.append(step)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._run)

    def _run(self) -> None:
        steps, end_ns = self._steps, perf_counter_ns() + TURN_NS
        while steps:
            step = steps.popleft()
            if step():
                steps.append(step)
            if perf_counter_ns() >= end_ns:
                break
        self._is_scheduled = bool(steps)
        if steps:
            self._call_soon(self._run)


def turns() -> Turns:
    """The turns of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _TURNS:
        _TURNS[loop] = Turns(loop)
    return _TURNS[loop]
