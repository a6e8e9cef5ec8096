"""The test of steadiness: answers with drawn latencies, whose true change is known."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import repeat
from math import exp
from random import Random

import pytest

from prober.measure.chunk import Usage
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.results.steadiness import LOOKS, SteadinessTest
from tests.known import known
from tests.seeds import seeds

Curve = Callable[[int], float]
TOKENS = 11


def answer(ttft_s: float, tpot_s: float, outcome: Outcome = Outcome.OK) -> ProbeResult:
    first_ns = round(ttft_s * 1e9)
    stamps = tuple(first_ns + round(token * tpot_s * 1e9) for token in range(TOKENS))
    usage = Usage(10, TOKENS, None)
    timeline = Timeline(0, sent_ns=0, first_ns=first_ns, content_ns=stamps, end_ns=stamps[-1], usage=usage)
    return ProbeResult("t", "w", "id", 0.0, outcome, "", timeline)


def fed(results: Iterable[ProbeResult | None]) -> tuple[SteadinessTest, int]:
    """(test, number of results until it is steady or they end)."""
    test, count = SteadinessTest(), 0
    for result in results:
        test.add(result)
        count += 1
        if test.is_steady:
            break
    return test, count


def drawn(curve: Curve, spread: float, seed: int, *, correlation: float = 0.0, tail: float = 0.0) -> list[ProbeResult]:
    """Lognormal latencies around 100 ms × curve and 10 ms × curve. tail: share of answers whose TTFT is four times as long, or more"""
    rng, own, answers = Random(seed), Random(seed).gauss(0, 1), []
    for at in range(LOOKS[-1]):
        own = correlation * own + (1 - correlation**2) ** 0.5 * rng.gauss(0, 1)
        slow = 4 * rng.paretovariate(1) if rng.random() < tail else 1.0
        answers.append(
            answer(0.1 * curve(at) * slow * exp(spread * own), 0.01 * curve(at) * exp(spread / 4 * rng.gauss(0, 1)))
        )
    return answers


@pytest.mark.parametrize(
    ("curve", "cold"),
    [
        (lambda at: 1.0, 0),
        (lambda at: 5.0 if at < 8 else 1.0, 8),
        (lambda at: 3.0 if 10 <= at < 14 else 1.0, 14),
        (lambda at: 1 + 3 * exp(-at / 20), 55),
    ],
    ids=["constant", "step", "compilation later", "decay"],
)
@pytest.mark.parametrize(
    "noise", [{}, {"correlation": 0.6}, {"tail": 0.1}], ids=["independent", "AR 0.6", "heavy tail"]
)
@seeds(10)
def test_a_warm_up_ends_after_the_cold_answers(curve: Curve, cold: int, noise: dict[str, float], seeds: range) -> None:
    """Whatever the noise: never among answers that are slower by more than 20%, and before the last look."""
    for seed in seeds:
        test, count = fed(drawn(curve, 0.1, seed, **noise))
        assert test.is_steady
        assert count > cold


@seeds(20)
def test_a_drift_that_goes_on_is_never_steady(seeds: range) -> None:
    """1% a request is 20% between the compared thirds at 60 answers; noise does not hide it, as it must be shown to be absent."""
    for seed in seeds:
        test, _ = fed(drawn(lambda at: exp(-0.01 * at), 0.2, seed))
        assert test.is_steady is False
        assert test.changes["TTFT"][1] < -0.2


@seeds(20)
def test_the_stated_error_holds_in_the_worst_case(seeds: range) -> None:
    """TTFT that falls by 21% between the compared thirds at every look, and answers that depend on each other: one in 20 at most."""
    ended = [fed(drawn(lambda at: (at + 1) ** -0.45, 0.2, seed, correlation=0.6))[0].is_steady for seed in seeds]
    assert sum(map(bool, ended)) <= 1


def test_a_small_drift_is_seen_where_there_is_little_noise() -> None:
    """10% between the compared thirds is within the margin, and a trend all the same."""
    test, _ = fed(drawn(lambda at: 1.05 ** (-at / 4), 0.001, 1)[:36])
    assert test.is_steady is False


def test_noise_alone_is_no_steadiness() -> None:
    """Of 54 answers that vary by half, nobody knows; the bounds say how little."""
    test, _ = fed(drawn(lambda at: 1.0, 0.5, 2)[:54])
    low, high = test.changes["TTFT"]
    assert test.is_steady is False
    assert high - low > 0.4


def test_what_has_no_latency_is_not_counted() -> None:
    """Failures and pauses while the engine loads; before the first look nothing is known."""
    good = answer(0.1, 0.01)
    unusable = [None, answer(9.0, 0.9, Outcome.HTTP_5XX)]
    test, count = fed([*[good] * 23, *unusable * 9])
    assert (test.is_steady, test.changes, count) == (None, {}, 41)
    test.add(good)
    assert test.is_steady
    assert set(test.changes) == {"TTFT", "TPOT"}
    assert str(test.warm_up(24, 2.0)) == "steady after 24 requests in 2 s"


def test_an_answer_whose_first_token_was_read_late_has_its_ttft_in_the_middle() -> None:
    """It is a streamed answer as the others are, and no E2E is looked at in its place."""
    good = answer(0.1, 0.01)
    first_ns = known(good.timeline.first_ns)
    unsure = replace(good, timeline=replace(good.timeline, earliest_ns={first_ns: first_ns - 50_000_000}))
    assert unsure.timeline.ttft_s is None
    test, count = fed([*[good] * 8, *[unusable for unusable in [good, unsure] for _ in range(8)]])
    assert (test.is_steady, set(test.changes), count) == (False, {"TTFT", "TPOT"}, 24)
    low, high = test.changes["TTFT"]
    assert (low, high) == pytest.approx((-0.25, -0.25)), "75 ms in the place of 100 ms"


def test_answers_that_are_not_streamed_have_their_whole_time() -> None:
    """There is no TTFT to look at."""
    whole = ProbeResult("t", "w", "id", 0.0, Outcome.OK, "", Timeline(0, sent_ns=0, end_ns=10**8))
    test, count = fed(repeat(whole, 100))
    assert (test.is_steady, set(test.changes), count) == (True, {"E2E"}, 24)
