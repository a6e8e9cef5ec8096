"""An answer that a server writes before it has read the request is none, however early the connection was made."""

import asyncio

import pytest

from prober.measure.engines import GENERIC
from prober.measure.outcome import Outcome
from prober.measure.target_state import TargetState
from prober.probing.target import LISTEN_AGAIN_NS, LISTEN_NS, Identity, Target
from tests.probing.test_probe import send, serving, spec
from tests.virtual import make_clock
from tests.wire.events import good
from tests.wire.heads import head, joined

pytestmark = pytest.mark.virtual_time

ANSWER = head("200 OK", "content-type: text/event-stream", "connection: close") + joined(*good(16, 0.0))
BUSY = head("503 Service Unavailable", "content-length: 0", "connection: close")
PROBES = 5


async def outcomes(
    answer: bytes, *, is_asked: bool, after_s: float, lead_s: float, pause_s: float = 1.0
) -> tuple[set[str], int]:
    """(outcomes of PROBES probes, connections) of a server that answers so long after the request or the connection."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        if is_asked:
            await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(after_s)
        writer.write(answer)
        writer.close()

    async with serving(serve) as port:
        clock = make_clock()
        target = Target(spec(f"http://127.0.0.1:{port}", connect_lead=lead_s), clock)
        target.identity, target.state = Identity("m", GENERIC, "/v1"), TargetState.READY
        seen = set()
        for _ in range(PROBES):
            seen.add((await send(target, lead_s)).outcome.value)
            await asyncio.sleep(pause_s)
        clock.close()
    return seen, connections


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.01])
@pytest.mark.parametrize("lead_s", [0.0, 0.01, 1.0])
async def test_an_answer_before_the_request_is_malformed(after_s: float, lead_s: float) -> None:
    """With any lead, though without one it comes after the request was sent."""
    seen, _ = await outcomes(ANSWER, is_asked=False, after_s=after_s, lead_s=lead_s)
    assert seen == {Outcome.MALFORMED}


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.01, 0.2])
@pytest.mark.parametrize("lead_s", [0.0, 0.01, 1.0])
async def test_a_quick_answer_is_ok(after_s: float, lead_s: float) -> None:
    """It costs one connection a minute on which nothing is sent, and none if the lead is long enough."""
    is_young = lead_s < LISTEN_NS / 1e9
    assert await outcomes(ANSWER, is_asked=True, after_s=after_s, lead_s=lead_s) == ({"ok"}, PROBES + is_young)


async def test_a_server_is_listened_to_again() -> None:
    """After a minute, as it may have changed."""
    pause_s = LISTEN_AGAIN_NS / 1e9
    _, connections = await outcomes(ANSWER, is_asked=True, after_s=0.0, lead_s=0.0, pause_s=pause_s)
    assert connections == 2 * PROBES


async def test_a_server_that_is_full_says_so_unasked() -> None:
    """It is no answer to the request, and no fault of HTTP."""
    seen, _ = await outcomes(BUSY, is_asked=False, after_s=0.001, lead_s=0.0)
    assert seen == {Outcome.HTTP_5XX}
