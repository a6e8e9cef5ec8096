"""Reasoning of answers: tokens apart, and the first token of the answer."""

from dataclasses import replace
from random import Random

import pytest

from prober.config.target import TargetSpec
from prober.measure.chat import Usage
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.mock.delays import Constant
from prober.mock.service import Behaviour
from prober.mock.settings import Settings
from prober.mock.wire import Wire
from prober.probing.probe import run_probe
from prober.probing.target import Target
from prober.results.stage_parts import reasoning_of
from prober.workload.shapes import Fixed
from prober.workload.workloads import RequestGenerator, Workload
from tests.virtual import make_clock, running

MS = 1_000_000


def probe(first_answer_ms: int | None, usage: Usage | None, first_ms: int = 100) -> ProbeResult:
    timeline = Timeline(
        0,
        first_ns=first_ms * MS,
        first_answer_ns=None if first_answer_ms is None else first_answer_ms * MS,
        usage=usage,
    )
    return ProbeResult("t", "w", "id", 0.0, Outcome.OK, "", timeline)


def test_reasoning_and_answer_are_counted_apart() -> None:
    """Means over the answers for which the server tells; an answer that never began is told, and is in no quantile."""
    probes = [
        probe(500, Usage(10, 40, None, 30)),
        probe(700, Usage(10, 60, None, 40)),
        probe(None, Usage(10, 20, None, 20)),
        probe(900, Usage(10, 60)),
        probe(100, Usage(10, 5, None, 0)),
        replace(probe(5_000, Usage(10, 40, None, 30)), warm_up=True),
        replace(probe(5_000, None), outcome=Outcome.RESET),
    ]
    found = reasoning_of(probes)
    assert found is not None
    assert (found.requests, found.unanswered, found.counted) == (4, 1, 3)
    assert (found.reasoning_tokens, found.answer_tokens) == (90, 30)
    assert {quantile.q: quantile.estimate for quantile in found.ttft_answer}[0.5] == 0.7
    assert found.text() == (
        "4 answers began with reasoning; 30 reasoning and 10 answer tokens each in the mean (of 3); first token of the answer "
        "after p50 700 ms, p99 900 ms*; 1 reached their length before the answer"
    )


def test_tokens_that_the_server_does_not_tell_are_not_estimated() -> None:
    """Nor is anything said of answers without reasoning."""
    found = reasoning_of([probe(500, Usage(10, 40))])
    assert found is not None
    assert "the server does not tell how many of their tokens are reasoning" in found.text()
    assert reasoning_of([probe(100, Usage(10, 40))]) is None


def test_hidden_reasoning_is_told_with_what_it_leaves_unknown() -> None:
    """Answers that count reasoning and do not show it: their number, and why they have neither TPOT nor a TTFT of the answer."""
    hidden = replace(probe(None, Usage(10, 60, None, 40)).timeline, content_ns=(MS, 31 * MS), hidden_tokens="before")
    used_up = replace(hidden, first_ns=None, content_ns=(), usage=Usage(10, 60, None, 60))
    found = reasoning_of(replace(probe(500, None), timeline=timeline) for timeline in (hidden, hidden, used_up))
    assert found is not None
    assert (found.requests, found.hidden, found.unanswered, found.answer_tokens) == (3, 3, 1, 40)
    assert found.text().startswith(
        "3 answers began with reasoning, which 3 of them hide; 46.67 reasoning and 13.33 answer"
    )
    for sentence in ("no TPOT of 2: not measurable", "no TTFT of the answer of 2: not measurable"):
        assert sentence in found.text()


@pytest.mark.virtual_time
@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
async def test_an_engine_that_reasons(field: str) -> None:
    """Thirty tokens of reasoning, 5 ms each, before ten of the answer, in the fields of vLLM since 0.16 and before."""
    settings = Settings(
        behaviour=Behaviour(ttft=Constant(0.02), itl=Constant(0.005), reasoning=30), wire=Wire(reasoning_field=field)
    )
    async with running(settings) as url:
        clock = make_clock()
        try:
            target = Target(TargetSpec.model_validate({"url": url, "name": "t", "max_send_lag": 5.0}), clock)
            drawer = RequestGenerator(Workload("w", Fixed(20), Fixed(40)), Random(1))
            await target.identify()
            results = [await run_probe(target, drawer, clock.now_ns() + 20_000_000) for _ in range(4)]
        finally:
            clock.close()
    found = reasoning_of(replace(result, warm_up=False) for result in results if result is not None)
    assert found is not None
    assert (found.requests, found.counted, found.unanswered) == (4, 4, 0)
    assert (found.reasoning_tokens, found.answer_tokens) == (120, 40)
    assert found.ttft_answer[0].estimate == pytest.approx(0.02 + 30 * 0.005, abs=0.001)
