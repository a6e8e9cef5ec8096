"""Exponential buckets: where a value belongs, how wide they are, how many there are."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prober.exposition.buckets import MAX_BUCKETS, SCHEMA, ZERO_S, Exponential
from prober.exposition.families import Histogram, histogram


@given(st.lists(st.floats(0, allow_infinity=False), max_size=400))
def test_every_value_is_in_its_bucket(values: list[float]) -> None:
    """Counts are those of the definition, at whatever schema, never more than the limit; the rest is in the zero bucket."""
    histogram = Exponential()
    for value in values:
        histogram.observe([value])
    assert len(histogram.counts) <= MAX_BUCKETS
    assert histogram.zero == sum(value <= ZERO_S for value in values)
    assert sum(histogram.counts.values()) + histogram.zero == len(values)
    edge = 1e-9  # rounding of the logarithm
    for index, count in histogram.counts.items():
        low, high = (index - 1) / 2.0**histogram.schema, index / 2.0**histogram.schema
        inside = [value for value in values if value > ZERO_S and low + edge < math.log2(value) <= high - edge]
        around = [value for value in values if value > ZERO_S and low - edge <= math.log2(value) <= high + edge]
        assert len(inside) <= count <= len(around)


@given(st.lists(st.floats(-1, 1e6, allow_nan=False) | st.sampled_from([0.01, 0.0101, 0.011, 0.125]), max_size=200))
def test_values_together_count_as_one_by_one(values: list[float]) -> None:
    """In native and in classic buckets."""
    together, alone = (Histogram(histogram("x", ""), (), (0.01, 0.02, 0.125, 3.0)) for _ in range(2))
    together.observe(*values)
    for value in values:
        alone.observe(value)
    assert together.counts == alone.counts
    assert together.native is not None
    assert alone.native is not None
    if together.native.schema == alone.native.schema == SCHEMA:
        assert together.native.counts == alone.native.counts
    assert together.native.zero == alone.native.zero


@pytest.mark.parametrize("power", [-19, -3, 0, 1, 10])
def test_a_power_of_two_is_the_upper_bound_of_its_bucket(power: int) -> None:
    """At the first schema and at lower ones: the next greater float is in the next bucket."""
    value = 2.0**power
    histogram = Exponential()
    histogram.observe([value, math.nextafter(value, math.inf)])
    assert histogram.counts == {power << SCHEMA: 1, (power << SCHEMA) + 1: 1}
    for schema in range(SCHEMA - 1, -5, -1):
        histogram._halve()
        assert histogram.schema == schema
        index = math.ceil(power * 2.0**schema)
        above = math.floor(power * 2.0**schema) + 1
        assert histogram.counts == ({index: 2} if index == above else {index: 1, above: 1})


def test_what_is_no_duration_is_in_the_zero_bucket() -> None:
    """Zero, a negative value, the threshold itself; what is above it is not."""
    histogram = Exponential()
    histogram.observe([-1.0, 0.0, -0.0, ZERO_S, math.nextafter(ZERO_S, 1)])
    assert (histogram.zero, list(histogram.counts.values())) == (4, [1])


def test_more_buckets_than_the_limit_lower_the_schema() -> None:
    """160 buckets stay; one more makes them 81 twice as wide, and values after that go where they belong."""
    histogram = Exponential()
    centres = [2.0 ** ((index - 0.5) / 2**SCHEMA) for index in range(MAX_BUCKETS)]
    histogram.observe(centres)
    assert (histogram.schema, len(histogram.counts)) == (SCHEMA, MAX_BUCKETS)
    histogram.observe([2.0 ** ((MAX_BUCKETS - 0.5) / 2**SCHEMA)])
    assert (histogram.schema, len(histogram.counts)) == (SCHEMA - 1, 81)
    before = dict(histogram.counts)
    histogram.observe(centres)
    assert histogram.counts.keys() == before.keys()
    assert sum(histogram.counts.values()) == 2 * MAX_BUCKETS + 1


def test_the_whole_range_of_floats_is_held() -> None:
    """Whatever the values, the limit holds: the schema falls as far as it must."""
    histogram = Exponential()
    histogram.observe([2.0**power for power in range(-20, 1024)])
    assert histogram.schema == -3
    assert len(histogram.counts) <= MAX_BUCKETS


@given(st.dictionaries(st.integers(-400, 400), st.integers(1, 9), max_size=60))
def test_spans_hold_the_counts(counts: dict[int, int]) -> None:
    """Read as Prometheus reads them they give the counts again; gaps of one or two are bridged, larger ones begin a span."""
    histogram = Exponential()
    histogram.counts = counts
    read: dict[int, int] = {}
    index = 0
    for number, (left_out, run) in enumerate(histogram.spans()):
        assert run[0]
        assert run[-1]
        assert number == 0 or left_out > 2
        assert [0, 0, 0] not in [run[i : i + 3] for i in range(len(run))]
        index += left_out
        for count in run:
            if count:
                read[index] = count
            index += 1
    assert read == counts
