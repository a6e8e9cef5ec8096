"""The prober's own receive error, on a real loopback connection."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from random import Random

import pytest

from prober.net import receive_error
from prober.net.clock import Clock
from prober.net.exchange import Exchange
from prober.net.receive_error import Interrupted, measure_receive_error


@pytest.fixture
async def clock() -> AsyncIterator[Clock]:
    made = Clock()
    yield made
    made.close()


async def _measured(clock: Clock, errors: list[float], seconds: float) -> None:
    task = asyncio.create_task(measure_receive_error(clock, errors.append, Random(1), 0.01))
    await asyncio.sleep(seconds)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_each_write_is_measured(clock: Clock) -> None:
    """Errors are positive and small where nothing else runs, and the thread ends with the measurement."""
    errors: list[float] = []
    await _measured(clock, errors, 0.5)
    assert len(errors) >= 5
    assert min(errors) > 0
    assert sorted(errors)[len(errors) // 2] < 0.05
    for thread in threading.enumerate():
        if thread.name == "receive-error":
            await asyncio.to_thread(thread.join, 10)
            assert not thread.is_alive()


async def test_a_blocked_event_loop_shows(clock: Clock) -> None:
    """Bytes that arrive while the loop does something else are stamped late, and the error says by how much."""
    errors: list[float] = []
    task = asyncio.create_task(measure_receive_error(clock, errors.append, Random(1), 0.01))
    await asyncio.sleep(0.1)
    time.sleep(0.5)  # noqa: ASYNC251 - the blocked loop is what is measured
    await asyncio.sleep(0.1)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert 0.3 < max(errors) < 5


async def test_the_bytes_are_stamped_by_the_code_of_the_answers(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delay in the code that stamps answers is a delay of the receive error."""
    stamp = Exchange.data_received

    def slow(self: Exchange, data: bytes) -> None:
        time.sleep(0.05)  # the stamp waits
        stamp(self, data)

    monkeypatch.setattr(Exchange, "data_received", slow)
    errors: list[float] = []
    await _measured(clock, errors, 0.5)
    assert min(errors) > 0.05


@pytest.mark.parametrize("end", ["reader", "writer"])
async def test_a_connection_that_ends_is_an_error(clock: Clock, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """The task raises, so that it is started again: without it the histogram would stand still and look well."""
    ends: dict[str, socket.socket] = {}

    def pair() -> tuple[socket.socket, socket.socket]:
        ends["reader"], ends["writer"] = made = make()
        return made

    make = receive_error._pair
    monkeypatch.setattr(receive_error, "_pair", pair)
    errors: asyncio.Queue[float] = asyncio.Queue()
    task = asyncio.create_task(measure_receive_error(clock, errors.put_nowait, Random(1), 0.01))
    await asyncio.wait_for(errors.get(), 10)
    ends[end].shutdown(socket.SHUT_RDWR)
    with pytest.raises(Interrupted):
        await asyncio.wait_for(task, 10)


async def test_an_error_of_the_receiver_is_raised(clock: Clock) -> None:
    def failing(seconds: float) -> None:
        raise ArithmeticError(seconds)

    with pytest.raises(ArithmeticError):
        await asyncio.wait_for(measure_receive_error(clock, failing, Random(1), 0.01), 10)
