"""Answers to one question, put together."""

import math
from dataclasses import replace
from math import sqrt
from random import Random

import pytest

from prober.results.capacity import (
    COMMON_ERROR,
    Capacity,
    Mix,
    RateEvents,
    UndecidedEvents,
    agreed,
    binding,
    combined,
    holds_at,
    pooled,
    undecided_events,
    words,
)
from prober.statistics.sequential_test import Observations, evidence
from tests.known import known

OPEN = Capacity("e", "not_enough_data")
MODEL = Capacity("a", "found", 9.0, 10.0, 10.0 * 10 / 9, fit="model", alone_per_s=5.0)
ROUGH = Capacity("a", "found", 5.0, 10.0, 20.0)


def test_where_both_agree_each_counts_by_its_precision() -> None:
    """A rough answer hardly moves the good one; one without an interval does not."""
    found = agreed(MODEL, replace(ROUGH, lower=7.0, estimate=14.0, upper=28.0))
    assert 10.0 < known(found.estimate) < 10.3
    assert known(found.upper) / known(found.lower) < known(MODEL.upper) / known(MODEL.lower)
    assert agreed(MODEL, Capacity("a", "not_enough_data")) == MODEL


def test_where_they_differ_the_answer_is_between_and_as_wide() -> None:
    """By hand: a = ln 10, b = ln 3, s_a = 0.064, s_b = 0.175: τ² = (1.204² − 0.064² − 0.175²) ÷ 2 = 0.707."""
    other = Capacity("a", "found", 3.0 * 0.75, 3.0, 3.0 / 0.75)
    found = agreed(MODEL, other)
    s_a, s_b = math.log(10 / 9) / 1.645, math.log(4 / 3) / 1.645
    between = (math.log(10 / 3) ** 2 - s_a**2 - s_b**2) / 2
    assert between == pytest.approx(0.707, abs=1e-3)
    w_a, w_b = 1 / (s_a**2 + between), 1 / (s_b**2 + between)
    mean = math.exp((w_a * math.log(10) + w_b * math.log(3)) / (w_a + w_b))
    assert found.estimate == pytest.approx(mean)
    assert found.estimate == pytest.approx(5.5, abs=0.05)
    assert known(found.lower) < 3
    assert known(found.upper) > 10
    assert found.alone_per_s == pytest.approx(5 * mean / 10), "what fits alone moves as the knee does"


def test_an_slo_without_enough_data_leaves_only_the_upper_bound() -> None:
    """It may be missed at any rate below the knee of another one, so neither a lower bound nor an estimate holds for all."""
    both = known(combined((MODEL, OPEN)))
    assert (both.lower, both.estimate, both.upper) == (None, None, MODEL.upper)
    assert combined((OPEN,)) is None


def test_the_lower_bound_at_all_slos_is_the_lowest() -> None:
    """Also that of an SLO whose knee was not reached; one that fails at the lowest rate leaves nothing."""
    both = combined((MODEL, Capacity("b", "not_reached", lower=3.0)))
    assert both == replace(MODEL, lower=3.0)
    assert combined((MODEL, Capacity("b", "not_reached", lower=50.0))) == MODEL
    failed = Capacity("d", "below", upper=1.0)
    assert combined((MODEL, failed, OPEN)) == failed


def test_the_lowest_binds() -> None:
    """By its estimate or the rate at which it fails. A knee that was not reached binds nothing."""
    high, none = replace(MODEL, slo="b", estimate=20.0), Capacity("c", "not_reached", lower=50.0)
    assert binding((high, MODEL, none)) == MODEL
    failed = Capacity("d", "below", upper=1.0)
    assert binding((high, failed)) == failed
    assert binding((none,)) is None
    later = replace(failed, upper=15.0)
    assert binding((high, later)) == later
    assert binding((MODEL, later)) == MODEL
    both = known(combined((MODEL, later)))
    assert (both.lower, both.estimate, both.upper) == (None, None, MODEL.upper), (
        "the other one may fail at a lower rate"
    )


def at(rate_per_s: float, events: int, bad: int) -> RateEvents:
    return RateEvents(rate_per_s, Observations({0: events - bad, 1: bad}), events, bad)


def test_a_rate_holds_by_its_own_events() -> None:
    """346 good ones at 99% at one rate; those of other rates, higher or lower, do not help it."""
    assert holds_at([at(4.0, 345, 0)], 0.01) is None
    assert holds_at([at(4.0, 346, 0)], 0.01) == 4.0
    assert holds_at([at(4.0, 300, 0), at(2.0, 46, 0), at(1.0, 345, 0)], 0.01) is None
    assert holds_at([at(4.0, 300, 0), at(2.0, 46, 0), at(1.0, 500, 0)], 0.01) == 1.0
    assert holds_at([at(2.0, 500, 0), at(1.0, 500, 0), at(8.0, 20, 10)], 0.01) == 2.0
    assert holds_at([at(4.0, 200, 0), at(4.0, 146, 0)], 0.01) == 4.0, "two stages of one rate are one"
    assert holds_at([], 0.01) is None


def test_no_rate_holds_above_one_that_does_not() -> None:
    """Many bad events at a low rate speak against every higher one; too few of either kind against none."""
    assert holds_at([at(1.0, 500, 20), at(2.0, 500, 0)], 0.01) is None
    assert holds_at([at(1.0, 60, 1), at(2.0, 500, 0)], 0.01) == 2.0
    assert holds_at([at(1.0, 500, 0), at(2.0, 500, 20), at(4.0, 500, 0)], 0.01) == 1.0


def test_many_rates_err_no_oftener_than_it_says() -> None:
    """Engines that are just bad enough at every rate, 2,000 grids of 30 rates: at most 5%, though each rate has enough events."""
    rng, wrong = Random(1), 0
    for _ in range(2_000):
        levels = [at(1.15**n, 100, sum(rng.random() < 0.05 for _ in range(100))) for n in range(30)]
        wrong += holds_at(levels, 0.05) is not None
    assert wrong <= 0.05 * 2_000 + 3 * sqrt(0.05 * 2_000)


def test_an_slo_fails_by_two_bad_events_at_least() -> None:
    """A single bad event of one is no evidence, two of four are; two of twenty may be chance."""
    shown = [evidence(at(1.0, n, bad).observed, 0.01) for n, bad in ((1, 1), (2, 2), (4, 2), (20, 2))]
    assert shown == ["undecided", "fails", "fails", "undecided"]


def test_what_lacks_is_told() -> None:
    """Events at the rate that comes nearest, and how many if things go on so; none where too many are bad."""
    assert undecided_events([at(4.0, 100, 0), at(1.0, 27, 0)], 0.01) == UndecidedEvents(4.0, 100, 0, 346)
    found = known(undecided_events([at(4.0, 300, 1)], 0.01))
    assert 600 < known(found.needed) < 1_500
    assert holds_at([at(4.0, known(found.needed) * 5, round(known(found.needed) / 60))], 0.01) == 4.0
    assert undecided_events([at(4.0, 100, 5)], 0.01) == UndecidedEvents(4.0, 100, 5, None)
    assert undecided_events([], 0.01) is None
    assert words([Capacity("a", "not_enough_data")]) == "a: not enough data"


def test_only_a_tested_rate_is_said_to_hold() -> None:
    """A knee is an estimate with its interval, of a model or of fractions; the gate's test is passed at no rate of it."""
    assert words([MODEL]) == "a: estimated knee 10/s, 90% interval 9 to 11.1"
    assert "holds" not in words([MODEL, ROUGH])
    assert words([Capacity("a", "not_reached", lower=5.9)]) == "a holds at 5.9/s; no knee was reached"


def test_a_wide_interval_and_an_upper_bound_are_told() -> None:
    """With the number of requests that they rest on."""
    wide = Capacity("a", "between", 1.5, 1.9, 2.3, samples=60)
    assert words([wide]) == "a: knee between 1.5 and 2.3/s by 60 requests, wide"
    assert (
        words([Capacity("a", "below", upper=0.5, samples=9)]) == "a: fails at 0.5/s, its knee is below, by 9 requests"
    )


def test_a_knee_is_told_with_the_load_that_was_there_and_without() -> None:
    """One knee in one unit: in all, what can be added to the others, and requests of the sweep alone."""
    beside = Capacity("a", "found", 12.0, 15.9, 19.0, mix=Mix(400, 100), alone_per_s=15.4, others_per_s=13.1)
    rates = "a: estimated knee 15.9/s, 90% interval 12 to 19"
    assert words([beside]) == f"{rates}, beside 13.1/s of others: +2.8/s, alone 15.4/s"
    assert words([beside.alone]) == "a: estimated knee 15.4/s, 90% interval 11.6 to 18.4"
    assert words([replace(beside, others_per_s=0.0)]) == rates
    assert words([replace(beside, others_per_s=17.0)]) == f"{rates}, beside 17/s of others: +0/s, alone 15.4/s"
    holds = Capacity("a", "not_reached", 14.0, mix=Mix(400, 100), alone_per_s=13.0, others_per_s=13.1)
    assert words([holds]) == "a holds at 14/s, beside 13.1/s of others: +0.9/s, alone 13/s; no knee was reached"
    wide = replace(beside, verdict="between", samples=60)
    assert words([wide]) == "a: knee between 12 and 19/s by 60 requests, wide, beside 13.1/s of others"


def test_the_capacity_of_a_single_sweep_is_its_own() -> None:
    """And more sweeps that agree narrow it, but not to nothing: all use the same model."""
    assert pooled([0.7], [0.1]) == pytest.approx((0.7, 0.1))
    mean, error = pooled([0.7, 0.7, 0.7], [0.1, 0.1, 0.1])
    assert mean == pytest.approx(0.7)
    assert sqrt(COMMON_ERROR) * 0.1 < error < 0.1


def test_a_larger_request_takes_more_of_the_engine_and_is_less_certain() -> None:
    """By hand: twice the prompt at power 0.5 is √2; four times the output at power 1 is 4; a request of the mix is 1."""
    mix = Mix(100, 20, 0.5, 1.0, error=0.2)
    assert mix.cost(100, 20) == (1.0, 0.0)
    assert mix.cost(200, 20) == pytest.approx((math.sqrt(2), 0.2 * math.log(2) / 2))
    assert mix.cost(100, 80) == pytest.approx((4.0, 0.2 * math.log(4) / 2))


def test_the_capacity_alone_has_the_width_of_the_one_beside_others() -> None:
    """In requests of the sweep: 10/s of a mix are 5/s of larger ones."""
    alone = MODEL.alone
    assert (alone.lower, alone.estimate, alone.upper) == pytest.approx((4.5, 5.0, 5.0 * 10 / 9))
    assert ROUGH.alone == ROUGH, "how many of them fit alone is unknown"
