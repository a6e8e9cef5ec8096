"""A target that refuses connections and has never answered is starting, up to a bound; whatever else fails is a failure."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.target_state import TargetState
from prober.mock.faults import Fault
from prober.net.clock import Clock
from prober.probing.probe import run_probe
from prober.probing.target import Target
from prober.workload.workloads import RequestGenerator
from tests.probing.test_probe import QUICK, SHORT, full_backlog, serving, spec
from tests.processes import free_port
from tests.virtual import make_clock, running

pytestmark = pytest.mark.virtual_time

MINUTE_NS = 60 * 10**9


@contextmanager
def ticking() -> Iterator[Clock]:
    clock = make_clock()
    try:
        yield clock
    finally:
        clock.close()


def target(clock: Clock, url: str, **changes: Any) -> Target:
    """A target of the daemon, which waits for its first answer from now on."""
    found = Target(spec(url, **({"timeouts": SHORT} | changes)), clock)
    found.waiting_since_ns = clock.now_ns()
    return found


async def send(found: Target) -> ProbeResult | None:
    """One probe that is due now; the health page is asked each time, without its pause of a second."""
    found._health_ns = -(10**18)
    return await run_probe(found, RequestGenerator(found.spec.probes[0].workload, Random(1)), found.clock.now_ns())


async def later(found: Target) -> ProbeResult | None:
    """One probe, a second after the one before."""
    await asyncio.sleep(1)
    return await send(found)


@asynccontextmanager
async def silent() -> AsyncIterator[str]:
    """A server that accepts connections and closes them, and says nothing over HTTP."""

    async def close(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with serving(close) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("engine", ["vllm", "openai", None])
async def test_an_engine_that_does_not_listen_yet_is_starting_up_to_the_bound(engine: str | None) -> None:
    """Nothing is counted before the bound, everything after it; also of an engine that has no health page."""
    with ticking() as clock:
        found = target(clock, f"http://127.0.0.1:{free_port()}", engine=engine)
        for minute in (0, 1, 10, 19):
            found.waiting_since_ns = clock.now_ns() - minute * MINUTE_NS
            assert await send(found) is None
            assert (found.state, found.is_refusing) == (TargetState.STARTING, True)
        found.waiting_since_ns = clock.now_ns() - 20 * MINUTE_NS
        results = [await later(found) for _ in range(3)]
        assert [result and result.outcome for result in results] == [Outcome.CONNECT_REFUSED] * 3
        assert (found.state, found.is_refusing, found.starting_until_ns) == (TargetState.FAILING, False, None)


@pytest.mark.parametrize("engine", ["vllm", "openai", None])
async def test_it_is_probed_once_it_listens_and_its_first_success_is_warm_up(engine: str | None) -> None:
    """What answers after the start is a cold engine; a refusal after any answer is an outage, within the bound too."""
    port = free_port()
    with ticking() as clock:
        found = target(
            clock, f"http://127.0.0.1:{port}", engine=engine, timeouts=SHORT.model_copy(update={"total": 20.0})
        )
        assert await send(found) is None
        async with running(QUICK, port):
            first = await send(found)
        assert first is not None
        assert (first.outcome, first.warm_up) == (Outcome.OK, True), first.detail
        results = [await later(found) for _ in range(3)]
        assert [result and result.outcome for result in results] == [Outcome.CONNECT_REFUSED] * 3
        assert found.state == TargetState.FAILING


async def test_an_answer_that_says_it_is_loading_is_an_answer() -> None:
    """An engine that listened, said 503 and then refuses has died: its failures count."""
    port = free_port()
    with ticking() as clock:
        found = target(clock, f"http://127.0.0.1:{port}")
        assert await send(found) is None
        async with running(replace(QUICK, faults=(Fault("starting"),)), port):
            assert await send(found) is None
            assert (found.state, found.is_refusing) == (TargetState.STARTING, False)
        result = await send(found)
    assert result is not None
    assert result.outcome is Outcome.CONNECT_REFUSED


async def test_where_nobody_waits_for_a_start_a_refusal_is_a_failure() -> None:
    """As `prober once` and experiments have it, and a bound of 0."""
    url = f"http://127.0.0.1:{free_port()}"
    with ticking() as clock:
        for found in (Target(spec(url), clock), target(clock, url, starting_timeout=0.0)):
            result = await send(found)
            assert result is not None
            assert result.outcome is Outcome.CONNECT_REFUSED


@pytest.mark.real_time
async def test_a_connection_that_is_closed_or_never_made_is_no_start() -> None:
    """Only a refusal is: not a reset, a full backlog, a name that is not there."""
    with ticking() as clock, full_backlog() as port:
        async with silent() as url:
            for where in (url, f"http://127.0.0.1:{port}", "http://does-not-exist.invalid:1"):
                found = target(clock, where)
                assert await send(found) is not None, where
                assert not found.is_refusing


async def test_a_proxy_that_refuses_is_no_start_of_the_target() -> None:
    """The target behind it may be well: its probes are sent and fail."""
    with ticking() as clock:
        found = target(clock, "http://127.0.0.1:1", proxy_url=f"http://127.0.0.1:{free_port()}")
        result = await send(found)
    assert result is not None
    assert result.outcome is Outcome.CONNECT_REFUSED


async def test_a_name_that_appears_late_does_not_make_a_refusal_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS failures count and make it failing; once the name is there, and refuses, it is starting, and stays so."""
    with ticking() as clock:
        found = target(clock, "http://engine.example:1")
        loop = asyncio.get_running_loop()
        there = False

        async def resolve(*_: Any, **__: Any) -> list[Any]:
            if not there:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 1))]

        monkeypatch.setattr(loop, "getaddrinfo", resolve)
        outcomes = [result.outcome for _ in range(3) if (result := await later(found))]
        assert (outcomes, found.state) == ([Outcome.DNS] * 3, TargetState.FAILING)
        there = True
        for _ in range(3):
            assert await send(found) is None
            assert found.state == TargetState.STARTING


async def test_localhost_without_ipv6_refuses_as_its_one_address_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address of a family that the machine has not says nothing of the target, wherever it stands in the list."""
    with ticking() as clock:
        loop = asyncio.get_running_loop()

        async def connect(_socket: socket.socket, address: tuple[str, int]) -> None:
            number = errno.EADDRNOTAVAIL if ":" in address[0] else errno.ECONNREFUSED
            raise OSError(number, "no")

        monkeypatch.setattr(loop, "sock_connect", connect)
        for order in (["::1", "127.0.0.1"], ["127.0.0.1", "::1"]):

            async def resolve(*_: Any, order: list[str] = order, **__: Any) -> list[Any]:
                return [(socket.AF_INET, 0, 0, "", (address, 1)) for address in order]

            monkeypatch.setattr(loop, "getaddrinfo", resolve)
            assert await send(target(clock, "http://localhost:1")) is None
