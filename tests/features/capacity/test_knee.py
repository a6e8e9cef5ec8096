"""The knee from breach fractions alone."""

from random import Random

import pytest

from prober.features.capacity.knee import Step, knee, pareto_share_above_1


def steps(at: float, slope: float, rng: Random, requests: int = 200) -> list[Step]:
    """Stages from 1 to 20/s of a target with that knee for 1% of breaches."""
    found = []
    for n in range(16):
        rate = 1.22**n
        share = min(1.0, 0.01 * (rate / at) ** slope)
        bad = sum(rng.random() < share for _ in range(requests))
        found.append(Step(rate, requests, bad))
        if bad > requests / 10:
            break
    return found


def test_the_interval_holds_the_knee_and_narrows_with_its_sharpness() -> None:
    """Independent events, as good as fractions get: nine of ten intervals, and more, hold the truth."""
    for slope, most in ((3.0, 0.6), (12.0, 0.3)):
        held, off = 0, 0.0
        for seed in range(8):
            found = knee(steps(8.0, slope, Random(seed)), 0.01)
            assert found is not None
            assert found.lower < found.estimate < found.upper
            held += found.lower <= 8.0 <= found.upper
            off = max(off, abs(found.estimate / 8.0 - 1))
        assert held >= 7
        assert off < most


def test_more_requests_say_more() -> None:
    """The interval of a hundred times as many is narrower."""
    few = knee(steps(8.0, 10.0, Random(1), 20), 0.01)
    many = knee(steps(8.0, 10.0, Random(1), 2_000), 0.01)
    assert few is not None
    assert many is not None
    assert many.upper / many.lower < few.upper / few.lower


def test_without_a_breach_the_knee_is_beyond_what_was_tried() -> None:
    """The lower bound moves up with the rates that held, and most of the posterior is above them."""
    found = knee([Step(rate, 400, 0) for rate in (1.0, 2.0, 4.0, 8.0)], 0.01)
    assert found is not None
    assert found.estimate > 8.0, "the median is above the highest rate"
    assert found.lower > 4.0


def test_a_share_that_is_the_same_at_every_rate_is_no_knee() -> None:
    """`flat` weighs the two: 3% at any rate, beside a cliff of as many bad events."""
    rng = Random(6)
    flat = [Step(1.15**n, 60, sum(rng.random() < 0.03 for _ in range(60))) for n in range(16)]
    cliff = [Step(1.15**n, 60, 0 if n < 14 else 14) for n in range(16)]
    found = [knee(each, 0.01) for each in (flat, cliff)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].flat > 0.8
    assert found[1].flat < 0.01


def test_nothing_is_said_of_nothing() -> None:
    """No events, no interval."""
    assert knee([], 0.01) is None
    assert knee([Step(1.0, 0, 0)], 0.01) is None


def test_latencies_near_the_threshold_speak_before_any_breach() -> None:
    """A tail that reaches for the threshold pulls the knee down; one far below it does not."""
    rng = Random(3)
    far = tuple(0.1 * rng.paretovariate(6) for _ in range(300))
    near = tuple(0.5 * rng.paretovariate(6) for _ in range(300))
    found = [knee([Step(4.0, 300, 0, far), Step(8.0, 300, 0, shares)], 0.01) for shares in (far, near)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[1].estimate < 0.97 * found[0].estimate


def test_hill_finds_the_tail_of_a_pareto_distribution() -> None:
    """Of 1 in 32 truly beyond the threshold, and of none."""
    rng = Random(4)
    assert pareto_share_above_1([0.5 * rng.paretovariate(5) for _ in range(20_000)]) == pytest.approx(1 / 32, rel=0.15)
    assert pareto_share_above_1([0.1] * 100) == 0.0
    assert pareto_share_above_1([2.0] * 100) == 1.0
