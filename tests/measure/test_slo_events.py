"""SLO events per probe, signal by signal."""

from dataclasses import replace
from decimal import Decimal

import pytest

from prober.measure.chunk import Usage
from prober.measure.objective import Signal, Slo, count_events, is_undecided, max_events_per_probe
from prober.measure.outcome import BAD, NEUTRAL, Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline

MS = 1_000_000


def judged(signal: Signal, threshold_ms: float | None = 100.0) -> Slo:
    return Slo("s", signal, None if threshold_ms is None else threshold_ms / 1e3, Decimal("0.99"), 30 * 86400.0)


def probe(
    outcome: Outcome = Outcome.OK,
    content_ms: tuple[int, ...] = (50, 60, 200),
    tokens: int | None = 3,
    answer_ms: int | None = 50,
    check: str | None = None,
    *,
    requested: int = 16,
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
    return ProbeResult(
        *("t", "w", "id", 0.0, outcome, "", timeline),
        requested_output_tokens=requested,
        warm_up=warm_up,
        cached=cached,
        check=check,
    )


EVENTS_OF_A_GOOD_PROBE: list[tuple[Signal, float | None, tuple[int, int]]] = [
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


@pytest.mark.parametrize(("signal", "threshold", "expected"), EVENTS_OF_A_GOOD_PROBE)
def test_a_good_probe_is_compared_with_the_threshold(
    signal: Signal, threshold: float | None, expected: tuple[int, int]
) -> None:
    """A probe is one event, for ITL one per gap; a probe without golden prompt has no `quality` event."""
    assert count_events(judged(signal, threshold), probe()) == expected


@pytest.mark.parametrize("outcome", sorted(BAD))
def test_a_bad_outcome_is_a_bad_event(outcome: Outcome) -> None:
    """A server that drops requests does not look fast: failures are bad latency events. Without a token TPOT and ITL have none."""
    dropped = probe(outcome, content_ms=(), tokens=None, answer_ms=None)
    for signal in ("success", "ttft", "ttft_answer", "e2e"):
        assert count_events(judged(signal, None if signal == "success" else 100), dropped) == (1, 1)
    assert count_events(judged("tpot"), dropped) == (0, 0)
    assert count_events(judged("itl"), dropped) == (0, 0)
    assert count_events(judged("quality", None), probe(outcome, check="text")) == (1, 1)


@pytest.mark.parametrize("outcome", sorted(BAD))
def test_a_broken_stream_is_no_event_of_tpot(outcome: Outcome) -> None:
    """However fast it was before the break; a wrong answer ended properly."""
    assert count_events(judged("tpot"), probe(outcome)) == (0, 0)
    assert count_events(judged("tpot"), probe(Outcome.WRONG_ANSWER)) == (1, 0)


def test_a_broken_stream_counts_its_gaps_and_one_bad_event() -> None:
    """The gaps before the break count, and the gap that never ended is bad."""
    assert count_events(judged("itl"), probe(Outcome.RESET, (50, 60, 70), tokens=None)) == (3, 1)
    assert count_events(judged("itl"), probe(Outcome.RESET, (50,), tokens=None)) == (1, 1)


def test_a_runaway_answer_makes_no_more_itl_events_than_tokens_were_requested() -> None:
    """An engine that ignores the requested length cannot outvote other answers: only the first gaps count."""
    endless = tuple(range(50, 50_000, 10))
    judged_itl = judged("itl", 9)
    for outcome in (Outcome.OK, Outcome.TIMEOUT_TOTAL):
        events, bad = count_events(judged_itl, probe(outcome, endless, tokens=None, requested=16))
        assert events == bad <= max_events_per_probe(judged_itl, 16) == 16
    assert count_events(judged_itl, probe(Outcome.TIMEOUT_TOTAL, endless, tokens=None, requested=1)) == (1, 1)


def test_content_that_arrived_at_once_is_no_event_of_tpot_and_itl() -> None:
    """A held-back answer has no gaps: no event, so `no data`, and never a good event of 0 ms."""
    at_once = probe(content_ms=(200, 200, 200))
    signals: tuple[Signal, ...] = ("tpot", "itl")
    for signal in signals:
        assert count_events(judged(signal), at_once) == (0, 0)
    assert count_events(judged("e2e", 200), at_once) == (1, 0)


@pytest.mark.parametrize("outcome", sorted(NEUTRAL))
def test_a_neutral_outcome_is_no_event(outcome: Outcome) -> None:
    """An outcome that the target did not cause is in no SLI."""
    for signal in ("success", "ttft", "itl", "tpot", "e2e", "quality"):
        assert count_events(judged(signal), probe(outcome, check="text")) == (0, 0)


@pytest.mark.parametrize("warm_up", [True, False])
def test_latency_during_warm_up_or_from_the_cache_is_no_event(warm_up: bool) -> None:
    """Such a probe counts for `success` and `quality`, but its latency is not representative."""
    for signal in ("ttft", "ttft_answer", "tpot", "itl", "e2e"):
        assert count_events(judged(signal), probe(warm_up=warm_up, cached=not warm_up)) == (0, 0)
    assert count_events(judged("success", None), probe(warm_up=warm_up, cached=not warm_up)) == (1, 0)
    assert count_events(judged("quality", None), probe(check="text", warm_up=warm_up, cached=not warm_up)) == (1, 0)


def test_a_wrong_answer_is_bad_for_quality_only() -> None:
    """It counts as a success with good latency."""
    wrong = probe(Outcome.WRONG_ANSWER, check="regex")
    assert count_events(judged("quality", None), wrong) == (1, 1)
    assert count_events(judged("success", None), wrong) == (1, 0)
    assert count_events(judged("ttft"), wrong) == (1, 0)


@pytest.mark.parametrize(
    ("signal", "threshold_ms", "events"),
    [
        ("ttft", 19, (1, 1)),  # later than that in any case
        ("ttft", 20, None),
        ("ttft", 49, None),
        ("ttft", 50, (1, 0)),  # up to the threshold is good
        ("ttft_answer", 19, (1, 1)),
        ("ttft_answer", 30, None),
        ("ttft_answer", 50, (1, 0)),
        ("e2e", 199, (1, 1)),  # of the end nothing is unsure
        ("e2e", 200, (1, 0)),
    ],
)
def test_a_latency_between_two_bounds_is_an_event_unless_the_threshold_is_between_them(
    signal: Signal, threshold_ms: float, events: tuple[int, int] | None
) -> None:
    """Undecided, it is neither good nor bad, however wide the bounds are; a failure, and what users do not see, is as ever."""
    good = probe()
    unsure = replace(good, timeline=replace(good.timeline, earliest_ns={50 * MS: 20 * MS}))
    slo = judged(signal, threshold_ms)
    assert unsure.timeline.ttft_s is None
    assert count_events(slo, unsure) == (events or (0, 0))
    assert is_undecided(slo, unsure) == (events is None)
    failed = replace(unsure, outcome=Outcome.RESET)
    assert (count_events(slo, failed), is_undecided(slo, failed)) == ((1, 1), False)
    assert count_events(slo, replace(unsure, cached=True)) == (0, 0)


def test_a_departure_without_a_stamp_leaves_a_threshold_between_its_bounds_undecided() -> None:
    """The end of an answer too; gaps, successes and checked answers have no bounds."""
    good = probe(check="text")
    unsure = replace(good, timeline=replace(good.timeline, sent_ns=0, sent_earliest_ns=-2 * MS))
    signals: tuple[tuple[Signal, float, bool], ...] = (
        *(("ttft", 49, False), ("ttft", 51, True), ("ttft", 52, False), ("e2e", 201, True), ("e2e", 202, False)),
        *(("itl", 100, False), ("tpot", 75, False)),
    )
    for signal, threshold_ms, undecided in signals:
        assert is_undecided(judged(signal, threshold_ms), unsure) is undecided, signal
        assert (count_events(judged(signal, threshold_ms), unsure) == (0, 0)) is undecided, signal
    for signal in ("success", "quality"):
        assert not is_undecided(judged(signal, None), unsure)


def test_an_unmeasured_latency_is_no_event() -> None:
    """TPOT needs two tokens and a usage; an answer of reasoning only has no TTFT of the answer."""
    assert count_events(judged("tpot"), probe(content_ms=(50,), tokens=1)) == (0, 0)
    assert count_events(judged("tpot"), probe(tokens=None)) == (0, 0)
    assert count_events(judged("ttft_answer"), probe(answer_ms=None)) == (0, 0)
