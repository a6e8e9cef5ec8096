"""Answers to one question, put together."""

import math
from dataclasses import replace

import pytest

from prober.analysis.capacity import Capacity, agreed, binding, headroom

MODEL = Capacity("a", "found", 9.0, 10.0, 10.0 * 10 / 9, 1_000.0, fit="model")
ROUGH = Capacity("a", "found", 5.0, 10.0, 20.0)


def test_where_both_agree_the_better_one_stands() -> None:
    """A rough answer that holds the good one changes nothing; one without an interval neither."""
    assert agreed(MODEL, ROUGH) == MODEL
    assert agreed(MODEL, replace(ROUGH, lower=8.0, estimate=14.0, upper=25.0)) == MODEL
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
    assert found.lower is not None
    assert found.upper is not None
    assert found.lower < 3
    assert found.upper > 10
    assert found.tokens_per_s == pytest.approx(100 * mean)


def test_the_lowest_binds_and_one_that_fails_before_all() -> None:
    """What was not reached binds nothing."""
    high, none = replace(MODEL, slo="b", estimate=20.0), Capacity("c", "not_reached", lower=50.0)
    assert binding((high, MODEL, none)) == MODEL
    failed = Capacity("d", "below_lowest", upper=1.0)
    assert binding((high, failed)) == failed
    assert binding((none,)) is None


def test_headroom_is_what_is_free() -> None:
    """Below 0 under more load than the capacity."""
    assert headroom(2.0, 8.0) == 0.75
    assert headroom(10.0, 8.0) == -0.25
    with pytest.raises(ValueError, match="there is no such target"):
        headroom(1.0, 0.0)
