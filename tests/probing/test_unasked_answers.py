"""An answer that a server writes before it has read the request is none."""

import asyncio

import pytest

from prober.measure.outcome import Outcome
from tests.probing.test_probe import known, send, serving
from tests.wire.events import good
from tests.wire.heads import head, joined

ANSWER = head("200 OK", "content-type: text/event-stream", "connection: close") + joined(*good(16, 0.0))
BUSY = head("503 Service Unavailable", "content-length: 0", "connection: close")


@pytest.mark.virtual_time
@pytest.mark.parametrize("after_s", [0.0, 0.01])
@pytest.mark.parametrize(
    ("answer", "lead_s", "outcome"),
    [(ANSWER, 0.1, Outcome.MALFORMED), (ANSWER, 1.0, Outcome.MALFORMED), (BUSY, 0.0, Outcome.HTTP_5XX)],
)
async def test_an_answer_before_the_request_is_malformed(
    answer: bytes, lead_s: float, outcome: Outcome, after_s: float
) -> None:
    """But a server that is full may say so at once."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(after_s)
        writer.write(answer)
        writer.close()

    async with serving(serve) as port:
        clock, target = known(f"http://127.0.0.1:{port}", connect_lead=lead_s)
        assert (await send(target, lead_s)).outcome is outcome
        clock.close()
