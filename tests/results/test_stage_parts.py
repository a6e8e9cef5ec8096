"""Parts of a stage: its series, its reasoning, its tool calls."""

from dataclasses import replace
from random import Random

import pytest

from prober.config.target import TargetSpec
from prober.measure.chunk import Usage
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult, RetryKind
from prober.measure.timeline import Timeline
from prober.mock.delays import constant
from prober.mock.service import Behaviour, Settings
from prober.mock.wire import Wire
from prober.probing.probe import run_probe
from prober.probing.target import Target
from prober.results.stage_parts import reasoning_of, retries_of, series_of, tool_calls_of
from prober.workload.shapes import Fixed
from prober.workload.workloads import RequestGenerator, Workload
from tests.known import known
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


def test_retries_are_counted_among_the_responses_that_tell() -> None:
    """Failures among them; without a header there is no figure."""
    plain = probe(500, None)
    told: list[dict[RetryKind, int]] = [{"retry": 0}, {"retry": 2, "fallback": 0}, {"retry": 0, "fallback": 1}, {}]
    probes = [replace(plain, retries=retries) for retries in told]
    found = known(retries_of([*probes, replace(plain, outcome=Outcome.HTTP_5XX, retries={"retry": 3})]))
    assert found.text() == "2 of 4 responses came after a retry of the gateway, 1 after its fallback to another model"
    assert retries_of([plain]) is None


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
    found = known(reasoning_of(probes))
    assert (found.requests, found.unanswered, found.counted) == (4, 1, 3)
    assert (found.reasoning_tokens, found.answer_tokens) == (90, 30)
    assert {quantile.q: quantile.estimate for quantile in found.ttft_answer}[0.5] == 0.7
    assert found.text() == (
        "4 answers began with reasoning; 30 reasoning and 10 answer tokens each in the mean (of 3); first token of the answer "
        "after p50 700 ms, p99 900 ms*; 1 reached their length before the answer"
    )


def test_tokens_that_the_server_does_not_tell_are_not_estimated() -> None:
    """Nor is anything said of answers without reasoning."""
    found = known(reasoning_of([probe(500, Usage(10, 40))]))
    assert "the server does not tell how many of their tokens are reasoning" in found.text()
    assert reasoning_of([probe(100, Usage(10, 40))]) is None


def test_hidden_reasoning_is_told_with_what_it_leaves_unknown() -> None:
    """Answers that count reasoning and do not show it: their number, and why they have neither TPOT nor a TTFT of the answer."""
    hidden = replace(probe(None, Usage(10, 60, None, 40)).timeline, content_ns=(MS, 31 * MS), hidden_tokens="before")
    used_up = replace(hidden, first_ns=None, content_ns=(), usage=Usage(10, 60, None, 60))
    found = known(reasoning_of(replace(probe(500, None), timeline=timeline) for timeline in (hidden, hidden, used_up)))
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
        behaviour=Behaviour(ttft=constant(0.02), itl=constant(0.005), reasoning=30), wire=Wire(reasoning_field=field)
    )
    async with running(settings) as url:
        clock = make_clock()
        try:
            target = Target(TargetSpec.model_validate({"url": url, "name": "t"}), clock)
            drawer = RequestGenerator(Workload("w", Fixed(20), Fixed(40)), Random(1))
            await target.identify()
            results = [await run_probe(target, drawer, clock.now_ns() + 20_000_000) for _ in range(4)]
        finally:
            clock.close()
    found = known(reasoning_of(replace(result, warm_up=False) for result in results if result is not None))
    assert (found.requests, found.counted, found.unanswered) == (4, 4, 0)
    assert (found.reasoning_tokens, found.answer_tokens) == (120, 40)
    assert found.ttft_answer[0].estimate == pytest.approx(0.02 + 30 * 0.005, abs=0.001)


def of_series(series: str, ttft_ms: int, usage: Usage | None) -> ProbeResult:
    return ProbeResult("t", series, "id", 0.0, Outcome.OK, "", Timeline(0, first_ns=ttft_ms * MS, usage=usage))


def test_turns_have_their_own_ttft_and_cached_share() -> None:
    """Answers that count nowhere else do not count here; without cached tokens of the server there is no share.

    What was not answered stands beside them with the most frequent reason, also where nothing was.
    """
    probes = [
        of_series("chat_turn2", 40, Usage(200, 5, 100)),
        of_series("chat_turn2", 60, Usage(200, 5, 60)),
        of_series("chat_turn2", 60, Usage(900, 5)),
        of_series("chat_turn1", 100, Usage(100, 5)),
        replace(of_series("chat_turn1", 9_000, None), warm_up=True),
        replace(of_series("chat_turn1", 9_000, None), cached=True),
        replace(of_series("chat_turn1", 9_000, None), outcome=Outcome.RESET),
        *[replace(of_series("chat_turn3", 1, None), outcome=Outcome.REJECTED, detail="HTTP 400: too long")] * 2,
        replace(of_series("chat_turn3", 1, None), outcome=Outcome.SHED, detail="no session"),
        replace(of_series("", 1, None), outcome=Outcome.CANCELLED),
    ]
    first, second, third = series_of(probes)
    assert third.text() == "chat_turn3 no TTFT of 0, 3 not answered, most often rejected: HTTP 400: too long"
    assert (first.name, first.requests, first.prompt_tokens) == ("chat_turn1", 1, 0)
    assert first.text() == "chat_turn1 TTFT p50 100 ms*, p99 100 ms* of 1, 1 not answered, most often reset"
    assert (second.requests, second.prompt_tokens, second.cached_tokens) == (3, 400, 160)
    assert second.text() == "chat_turn2 TTFT p50 60 ms*, p99 60 ms* of 3, 40% of the prompt cached"


def test_a_single_series_is_not_repeated() -> None:
    """The figures are those of the stage."""
    assert series_of([of_series("chat", 40, None)] * 3) == ()


def calling(calls: int = 1, first_ms: int | None = 50, arguments_ms: int | None = 70, **fields: object) -> ProbeResult:
    times = [None if at_ms is None else at_ms * MS for at_ms in (first_ms, arguments_ms)]
    timeline = Timeline(10 * MS, calls=calls, call_ns=times[0], arguments_ns=times[1])
    values = {"outcome": Outcome.OK, "check": "tool_call"} | fields
    return ProbeResult("t", "w", "id", 0.0, detail="", timeline=timeline, **values)  # type: ignore[arg-type]


def test_answers_calls_and_times_are_counted() -> None:
    """Failures, warm-ups and cached prompts do not count; an answer without a call and one with broken arguments do."""
    broken = calling(arguments_ms=None, outcome=Outcome.WRONG_ANSWER)
    ignored = (calling(outcome=Outcome.RESET), calling(warm_up=True), calling(cached=True))
    calls = known(tool_calls_of([calling(), calling(2, 90, 110), calling(0, None, None), broken, *ignored]))
    assert (calls.answers, calls.calling, calls.calls) == (4, 3, 4)
    assert [(values[0].count, values[-1].estimate) for values in (calls.ttft_call, calls.arguments)] == [
        (3, 0.08),
        (2, 0.1),
    ]
    assert calls.text() == (
        "3 of 4 answers call tools (4 calls); first call after p50 40 ms, p99 80 ms*; its complete arguments after p50 60 ms, "
        "p99 100 ms*; 1 of them without complete arguments"
    )


def test_an_answer_whose_times_are_not_known_has_complete_arguments_all_the_same() -> None:
    """Its arrivals were read together by a late prober; what the server sent is known. Of these too, those without an end count."""

    def late(probe: ProbeResult) -> ProbeResult:
        stamps = (probe.timeline.call_ns, probe.timeline.arguments_ns)
        earliest_ns = {at_ns: probe.timeline.intended_ns for at_ns in stamps if at_ns is not None}
        return replace(probe, timeline=replace(probe.timeline, earliest_ns=earliest_ns))

    calls = known(tool_calls_of([calling(), calling(), *[late(calling())] * 11]))
    assert (calls.calling, calls.incomplete, calls.arguments[0].count) == (13, 0, 2)
    assert "without complete arguments" not in calls.text()
    calls = known(tool_calls_of([calling(), late(calling()), late(calling(arguments_ms=None))]))
    assert calls.text().endswith("; 1 of them without complete arguments")
    all_late = known(tool_calls_of([late(calling())]))
    assert all_late.text() == "1 of 1 answers call tools (1 calls)"


def test_without_tools_there_is_nothing() -> None:
    """Answers to requests without tools are not counted; of answers that are not streamed there are no times."""
    assert tool_calls_of([calling(0, None, None, check=None)]) is None
    plain = known(tool_calls_of([calling(1, None, None)]))
    assert plain.text() == "1 of 1 answers call tools (1 calls)"
