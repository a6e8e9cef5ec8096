"""Which events a probe is: the table of the method, line by line."""

from decimal import Decimal

import pytest

from prober.measure.chat import Usage
from prober.measure.objective import Signal, Slo
from prober.measure.outcome import BAD, NEUTRAL, Outcome
from prober.measure.result import ProbeResult
from prober.measure.slo_events import events
from prober.measure.timeline import Timeline

MS = 1_000_000


def judged(signal: Signal, threshold_ms: float | None = 100.0) -> Slo:
    return Slo("s", signal, None if threshold_ms is None else threshold_ms / 1e3, Decimal("0.99"), 30 * 86400.0)


def probe(
    outcome: Outcome = Outcome.OK,
    content_ms: tuple[int, ...] = (50, 60, 200),
    tokens: int | None = 3,
    answer_ms: int | None = 50,
    golden: str | None = None,
    *,
    warm_up: bool = False,
    cached: bool = False,
) -> ProbeResult:
    timeline = Timeline(
        0,
        first_ns=content_ms[0] * MS if content_ms else None,
        first_answer_ns=None if answer_ms is None else answer_ms * MS,
        end_ns=content_ms[-1] * MS if content_ms else None,
        content_ns=tuple(ms * MS for ms in content_ms),
        usage=Usage(10, tokens) if tokens is not None else None,
    )
    return ProbeResult("t", "w", "id", 0.0, outcome, "", timeline, warm_up=warm_up, cached=cached, golden=golden)


ONE_EACH: list[tuple[Signal, float | None, tuple[int, int]]] = [
    ("success", None, (1, 0)),
    ("ttft", 50, (1, 0)),  # up to the threshold is good
    ("ttft", 49, (1, 1)),
    ("ttft_answer", 49, (1, 1)),
    ("e2e", 200, (1, 0)),
    ("e2e", 199, (1, 1)),
    ("tpot", 75, (1, 0)),
    ("tpot", 74, (1, 1)),
    ("itl", 100, (2, 1)),
    ("itl", 9, (2, 2)),
    ("quality", None, (0, 0)),
]


@pytest.mark.parametrize(("signal", "threshold", "expected"), ONE_EACH)
def test_a_good_probe_is_judged_by_its_threshold(
    signal: Signal, threshold: float | None, expected: tuple[int, int]
) -> None:
    """One event a probe, for ITL one a gap; what is no golden prompt has no quality."""
    assert events(judged(signal, threshold), probe()) == expected


@pytest.mark.parametrize("outcome", sorted(BAD))
def test_a_bad_outcome_is_a_bad_event(outcome: Outcome) -> None:
    """An overload that drops requests is not fast. Without a token there is no TPOT and no gap."""
    dropped = probe(outcome, content_ms=(), tokens=None, answer_ms=None)
    for signal in ("success", "ttft", "ttft_answer", "e2e"):
        assert events(judged(signal, None if signal == "success" else 100), dropped) == (1, 1)
    assert events(judged("tpot"), dropped) == (0, 0)
    assert events(judged("itl"), dropped) == (0, 0)
    assert events(judged("quality", None), probe(outcome, golden="text")) == (1, 1)


def test_a_stream_that_died_has_its_gaps_and_one_bad_one() -> None:
    """What was seen counts, and the gap that never ended."""
    assert events(judged("itl"), probe(Outcome.RESET, (50, 60, 70), tokens=None)) == (3, 1)
    assert events(judged("itl"), probe(Outcome.RESET, (50,), tokens=None)) == (1, 1)


@pytest.mark.parametrize("outcome", sorted(NEUTRAL))
def test_a_neutral_outcome_is_no_event(outcome: Outcome) -> None:
    """Not the target's doing, in no SLI."""
    for signal in ("success", "ttft", "itl", "tpot", "e2e", "quality"):
        assert events(judged(signal), probe(outcome, golden="text")) == (0, 0)


@pytest.mark.parametrize("warm_up", [True, False])
def test_the_latency_of_a_cold_engine_or_a_warm_cache_is_no_event(warm_up: bool) -> None:
    """It was answered, which is a success; how fast says nothing."""
    for signal in ("ttft", "ttft_answer", "tpot", "itl", "e2e"):
        assert events(judged(signal), probe(warm_up=warm_up, cached=not warm_up)) == (0, 0)
    assert events(judged("success", None), probe(warm_up=warm_up, cached=not warm_up)) == (1, 0)
    assert events(judged("quality", None), probe(golden="text", warm_up=warm_up, cached=not warm_up)) == (1, 0)


def test_a_wrong_answer_is_bad_for_quality_only() -> None:
    """It came, and in time."""
    wrong = probe(Outcome.WRONG_ANSWER, golden="regex")
    assert events(judged("quality", None), wrong) == (1, 1)
    assert events(judged("success", None), wrong) == (1, 0)
    assert events(judged("ttft"), wrong) == (1, 0)


def test_one_token_and_an_answer_that_never_began_are_no_events() -> None:
    """TPOT takes two tokens; a model that only reasoned within its length gave no answer to time."""
    assert events(judged("tpot"), probe(content_ms=(50,), tokens=1)) == (0, 0)
    assert events(judged("tpot"), probe(tokens=None)) == (0, 0)
    assert events(judged("ttft_answer"), probe(answer_ms=None)) == (0, 0)
