"""The prober's own receive error, on a real loopback connection."""

import asyncio
import threading
import time
from contextlib import suppress
from random import Random

from prober.net.receive_error import measure_receive_error


async def _measured(errors: list[float], seconds: float) -> None:
    task = asyncio.create_task(measure_receive_error(errors.append, Random(1), 0.01))
    await asyncio.sleep(seconds)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_each_write_is_measured() -> None:
    """Errors are positive and small where nothing else runs, and the thread ends with the measurement."""
    errors: list[float] = []
    await _measured(errors, 0.5)
    assert len(errors) >= 5
    assert min(errors) > 0
    assert sorted(errors)[len(errors) // 2] < 0.05
    for thread in threading.enumerate():
        if thread.name == "receive-error":
            await asyncio.to_thread(thread.join, 10)
            assert not thread.is_alive()


async def test_a_blocked_event_loop_shows() -> None:
    """Bytes that arrive while the loop does something else are stamped late, and the error says by how much."""
    errors: list[float] = []
    task = asyncio.create_task(measure_receive_error(errors.append, Random(1), 0.01))
    await asyncio.sleep(0.1)
    time.sleep(0.5)  # noqa: ASYNC251 - the blocked loop is what is measured
    await asyncio.sleep(0.1)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert 0.3 < max(errors) < 5
