"""A budget is charged what a request used; where the server does not say, what it may have used."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from prober.daemon.registry import registry
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.probing import series
from prober.probing.observer import ObservedTarget
from prober.probing.recorder import TargetProbes
from prober.probing.target import Target
from prober.workload.budget import Budget
from tests.config.reading import loaded
from tests.probing.test_probe import send
from tests.scripted import Asked, scripted
from tests.virtual import make_clock
from tests.wire.case import RST, Step
from tests.wire.events import block_text, message_start, sse
from tests.wire.heads import LAST_CHUNK, UVICORN, body, chunk, joined

pytestmark = pytest.mark.virtual_time


def target(url: str, api: str = "chat") -> Target:
    """A target with two budgets, whose requests ask for 64 tokens to a prompt of 9."""
    text = f"""
workloads: {{w: {{prompt_tokens: 9, output_tokens: 64}}}}
targets:
  - {{name: t, url: '{url}/v1', api: {api}, model: m, engine: openai, probes: [{{workload: w}}], warmup: 0,
      budget: {{tokens_per_day: 100M, cost_per_day: 1000, price_per_million: {{prompt: 1, completion: 2}}}}}}
"""
    return Target(loaded(text).targets[0], make_clock())


HEAD = UVICORN


def answer(status: str, message: str) -> bytes:
    return joined(*body(status, {"type": "error", "error": {"type": "some_error", "message": message}}))


def event(**fields: Any) -> bytes:
    return chunk(sse(fields))


def content(text: str) -> bytes:
    return event(choices=[{"delta": {"content": text}}])


USAGE = event(choices=[], usage={"prompt_tokens": 20, "completion_tokens": 2})
CACHED = event(
    choices=[],
    usage={"prompt_tokens": 20, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 21}},
)
ZERO = event(choices=[], usage={"prompt_tokens": 100, "completion_tokens": 0})
PROMPTLESS = event(choices=[], usage={"prompt_tokens": 0, "completion_tokens": 2})
LONG = event(choices=[], usage={"prompt_tokens": 20, "completion_tokens": 99})
STOP = event(choices=[{"delta": {}, "finish_reason": "stop"}])
DONE = chunk(b"data: [DONE]\n\n") + LAST_CHUNK
MESSAGE = HEAD + chunk(message_start(20))
# Answers to a request of 9 and 64 tokens, and what a budget is charged for them: tokens of the prompt and of the answer.
CHARGES = {
    "401": (answer("401 Unauthorized", "no such key"), (0, 0)),
    "400": (answer("400 Bad Request", "no such field"), (0, 0)),
    "404": (answer("404 Not Found", "no such model"), (0, 0)),
    "429": (answer("429 Too Many Requests", "slow down"), (0, 0)),
    "500": (answer("500 Internal Server Error", "oops"), (0, 0)),
    "529": (answer("529 Overloaded", "overloaded"), (0, 0)),
    "429, then a reset": (answer("429 Too Many Requests", "slow down")[:-9], (0, 0)),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", (0, 0)),
    "a login page": (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 4\r\n\r\n<a/>", (0, 0)),
    "an error in the stream": (HEAD + event(error={"message": "overloaded"}) + DONE, (0, 0)),
    "an error after content": (HEAD + content("four") + event(error={"message": "overloaded"}) + DONE, (9, 4)),
    "an answer with usage": (
        HEAD + content("four") + STOP + USAGE + DONE,
        (20, 2),
    ),
    "more cached tokens than the prompt has": (HEAD + content("four") + STOP + CACHED + DONE, (9, 64)),
    "no tokens beside content": (HEAD + content("four") + STOP + ZERO + DONE, (9, 64)),
    "no tokens of the prompt": (HEAD + content("four") + STOP + PROMPTLESS + DONE, (9, 2)),
    "more tokens than asked for": (HEAD + content("four") + STOP + LONG + DONE, (20, 64)),
    "an answer without usage": (HEAD + content("four") + STOP + DONE, (9, 64)),
    "an empty answer without usage": (HEAD + STOP + DONE, (0, 0)),
    "a reset before the answer": (b"", (9, 0)),
    "a stream that is cut": (HEAD + content("four") + content("five5"), (9, 9)),
    "a long stream that is cut": (HEAD + content("word " * 40), (9, 64)),
    "a message that is cut": (MESSAGE + chunk(block_text("four")), (20, 4)),
    "a message that is cut before its content": (MESSAGE, (20, 1)),
}


@pytest.mark.parametrize("name", CHARGES)
async def test_a_budget_is_charged_what_an_answer_used_or_may_have_used(name: str) -> None:
    """Usable usage, else an upper bound; an answer without content and usage is free. Nothing stays reserved, and the series of the
    cost says the same."""
    raw, charged = CHARGES[name]
    async with scripted(lambda _: (raw,) if raw.endswith(b"0\r\n\r\n") else (raw, RST)) as url:
        found = target(url, "messages" if "message" in name else "chat")
        result = await send(found)
        spent = [budget.spent(found.clock.now_ns()) for budget in found.budgets.values()]
        found.clock.close()
    assert result.timeline.charged_tokens == charged
    assert spent == [sum(charged), pytest.approx(found.amounts(*charged)["cost"])]
    families = registry()
    TargetProbes(families, ObservedTarget(found, ())).probe_ended(result)
    assert families.value(series.COST, "t").value == pytest.approx(spent[1])
    is_missing = result.outcome is Outcome.OK and (result.timeline.usage is None)
    assert families.value(series.USAGE_MISSING, "t", "w").value == is_missing


async def test_what_is_in_flight_is_reserved_and_given_back_when_it_is_refused_or_cancelled() -> None:
    """Two requests fit: a third one is over budget while they are in flight, and is sent once they were refused."""
    release = asyncio.Event()

    async def refuse(_: Asked) -> AsyncGenerator[Step, None]:
        await release.wait()
        yield answer("401 Unauthorized", "no such key")

    async with scripted(refuse) as url:
        found = target(url)
        found.budgets["tokens"] = Budget(150)
        flights = [asyncio.ensure_future(send(found)) for _ in range(3)]
        await asyncio.sleep(1)
        assert found.budgets["tokens"].spent(found.clock.now_ns()) == 2 * 73
        flights[0].cancel()
        release.set()
        _, refused, over = await asyncio.gather(*flights, return_exceptions=True)
        again = await send(found)
        assert found.budgets["tokens"].spent(found.clock.now_ns()) == 9  # of the prompt that was cancelled
        found.clock.close()
    assert isinstance(refused, ProbeResult)
    assert isinstance(over, ProbeResult)
    assert [result.outcome for result in (refused, over, again)] == ["rejected", "over_budget", "rejected"]
