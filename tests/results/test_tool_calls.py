"""Tool calls of a stage."""

from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.results.stage_parts import tool_calls_of

MS = 1_000_000


def probe(calls: int = 1, first_ms: int | None = 50, arguments_ms: int | None = 70, **fields: object) -> ProbeResult:
    times = [None if at_ms is None else at_ms * MS for at_ms in (first_ms, arguments_ms)]
    timeline = Timeline(10 * MS, calls=calls, call_ns=times[0], arguments_ns=times[1])
    values = {"outcome": Outcome.OK, "check": "tool_call"} | fields
    return ProbeResult("t", "w", "id", 0.0, detail="", timeline=timeline, **values)  # type: ignore[arg-type]


def test_answers_calls_and_times_are_counted() -> None:
    """Failures, warm-ups and cached prompts do not count; an answer without a call and one with broken arguments do."""
    broken = probe(arguments_ms=None, outcome=Outcome.WRONG_ANSWER)
    ignored = (probe(outcome=Outcome.RESET), probe(warm_up=True), probe(cached=True))
    calls = tool_calls_of([probe(), probe(2, 90, 110), probe(0, None, None), broken, *ignored])
    assert calls is not None
    assert (calls.answers, calls.calling, calls.calls) == (4, 3, 4)
    assert [(values[0].count, values[-1].estimate) for values in (calls.ttft_call, calls.arguments)] == [
        (3, 0.08),
        (2, 0.1),
    ]
    assert calls.text() == (
        "3 of 4 answers call tools (4 calls); first call after p50 40 ms, p99 80 ms*; its complete arguments after p50 60 ms, "
        "p99 100 ms*; 1 of them without complete arguments"
    )


def test_without_tools_there_is_nothing() -> None:
    """Answers to requests without tools are not counted; of answers that are not streamed there are no times."""
    assert tool_calls_of([probe(0, None, None, check=None)]) is None
    plain = tool_calls_of([probe(1, None, None)])
    assert plain is not None
    assert plain.text() == "1 of 1 answers call tools (1 calls)"
