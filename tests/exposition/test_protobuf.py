"""The protobuf page, read back by a decoder that knows nothing of the writer."""

import math
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families as read_text

from prober.daemon.registry import ALL
from prober.exposition import families as classic
from prober.exposition.buckets import MAX_BUCKETS, ZERO_S
from prober.exposition.families import AnySeries, Family, Registry, Series
from prober.exposition.protobuf import page

BOUNDS = (0.1, 1.0)

# The part of io.prometheus.client's metrics.proto that is used: number to name and type; [] are repeated, {} messages.
PAIR = {1: ("name", "text"), 2: ("value", "text")}
TIMESTAMP = {1: ("seconds", "int"), 2: ("nanos", "int")}
EXEMPLAR = {1: ("label", [PAIR]), 2: ("value", "double"), 3: ("timestamp", TIMESTAMP)}
BUCKET = {1: ("cumulative_count", "int"), 2: ("upper_bound", "double"), 3: ("exemplar", EXEMPLAR)}
SPAN = {1: ("offset", "sint"), 2: ("length", "int")}
HISTOGRAM = {
    1: ("sample_count", "int"),
    2: ("sample_sum", "double"),
    3: ("bucket", [BUCKET]),
    5: ("schema", "sint"),
    6: ("zero_threshold", "double"),
    7: ("zero_count", "int"),
    15: ("created_timestamp", TIMESTAMP),
    12: ("positive_span", [SPAN]),
    13: ("positive_delta", "packed sint"),
}
METRIC = {
    1: ("label", [PAIR]),
    2: ("gauge", {1: ("value", "double")}),
    3: ("counter", {1: ("value", "double"), 3: ("created_timestamp", TIMESTAMP)}),
    7: ("histogram", HISTOGRAM),
}
FAMILY = {1: ("name", "text"), 2: ("help", "text"), 3: ("type", "int"), 4: ("metric", [METRIC]), 5: ("unit", "text")}


def varint(body: bytes, at: int) -> tuple[int, int]:
    """(value, position after it)."""
    value = shift = 0
    while True:
        byte = body[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            assert value < 1 << 64
            return value, at


def signed(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


def fields(body: bytes) -> Iterator[tuple[int, int, Any]]:
    """(number, wire type, raw value) of each field."""
    at = 0
    while at < len(body):
        key, at = varint(body, at)
        value: Any
        if key & 7 == 0:
            value, at = varint(body, at)
        elif key & 7 == 1:
            (value,), at = struct.unpack_from("<d", body, at), at + 8
        else:
            assert key & 7 == 2
            length, at = varint(body, at)
            assert at + length <= len(body)
            value, at = body[at : at + length], at + length
        yield key >> 3, key & 7, value


WIRE_TYPES = {"int": 0, "sint": 0, "double": 1}


def decode(body: bytes, message: dict[int, Any]) -> dict[str, Any]:
    """By name; a field that is not in `message`, comes twice or is of another wire type fails."""
    values: dict[str, Any] = {}
    for number, wire, raw in fields(body):
        name, kind = message[number]
        assert wire == (WIRE_TYPES.get(kind, 2) if isinstance(kind, str) else 2), name
        if isinstance(kind, list):
            values.setdefault(name, []).append(decode(raw, kind[0]))
            continue
        assert name not in values, name
        values[name] = decode(raw, kind) if isinstance(kind, dict) else plain(kind, raw)
    return values


def plain(kind: str, raw: Any) -> Any:
    if kind == "text":
        return raw.decode()
    if kind == "packed sint":
        numbers, at = [], 0
        while at < len(raw):
            number, at = varint(raw, at)
            numbers.append(signed(number))
        return numbers
    return signed(raw) if kind == "sint" else raw


def read(families: list[Family]) -> list[dict[str, Any]]:
    body = b"".join(page(families))
    messages, at = [], 0
    while at < len(body):
        length, at = varint(body, at)
        assert at + length <= len(body)
        messages.append(decode(body[at : at + length], FAMILY))
        at += length
    return messages


def native_buckets(histogram: dict[str, Any]) -> list[tuple[float, float, int]]:
    """(lower bound, upper bound, count), ascending, the zero bucket first."""
    buckets = [(0.0, histogram["zero_threshold"], histogram["zero_count"])]
    deltas = iter(histogram.get("positive_delta", []))
    index = count = 0
    base = 2.0 ** (2.0 ** -histogram["schema"])
    for span in histogram.get("positive_span", []):
        index += span["offset"]
        for _ in range(span["length"]):
            count += next(deltas)
            buckets.append((base ** (index - 1), base**index, count))
            index += 1
    assert next(deltas, None) is None
    return buckets


def quantile(buckets: list[tuple[float, float, int]], q: float) -> float:
    """The algorithm of histogram_quantile in Prometheus 3: exponential interpolation, linear in the zero bucket."""
    rank = q * sum(count for *_, count in buckets)
    below = 0
    for low, high, count in buckets:
        if count and below + count >= rank:
            share = (rank - below) / count
            return float(low * (high / low) ** share if low else high * share)
        below += count
    raise AssertionError("no observations")


def histogram_of(families: list[Family]) -> dict[str, Any]:
    (message,) = read(families)
    (metric,) = message["metric"]
    return dict(metric["histogram"])


@given(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.floats(allow_nan=False),
    st.sampled_from(["gauge", "counter"]),
)
def test_any_label_and_any_value_come_back(label: str, value: float, kind: str) -> None:
    """Labels as UTF-8 of any length, floats in full."""
    family = Family(Series("x_total", kind, 'what\n"x" is', ("a", "b")))
    family.value(label, "z").value = value
    (message,) = read([family])
    pairs = [{"name": "a", "value": label}, {"name": "b", "value": "z"}]
    number = {"counter": 0, "gauge": 1}[kind]
    expected = {"name": "x_total", "help": 'what\n"x" is', "type": number}
    assert message == {**expected, "metric": [{"label": pairs, kind: {"value": value}}]}


def test_every_declared_series_says_what_the_text_says() -> None:
    """Names, types, help, labels and all samples of all series of this prober."""
    families = [Family(declared) for declared in ALL]
    for family in families:
        labels = tuple("v" * 200 for _ in family.series.labels)
        if family.series.kind == "histogram":
            family.histogram(BOUNDS, *labels).observe(0.05, 0.5, *[7.0] * 300)
        else:
            family.value(*labels).inc(3)
    text = b"".join(classic.page(families, openmetrics=False)).decode()
    expected = {
        (sample.name, tuple(sample.labels.items()), sample.value) for f in read_text(text) for sample in f.samples
    }
    messages = read(families)
    assert [f["name"] for f in messages] == [declared.name for declared in ALL]
    assert [f["help"] for f in messages] == [declared.help for declared in ALL]
    assert {f.get("unit", "") for f in messages} == {"", "seconds", "ratio", "dollars"}
    assert all(f["name"].removesuffix("_total").endswith(f.get("unit", "")) for f in messages)
    assert set(samples(messages)) == expected


def samples(messages: list[dict[str, Any]]) -> Iterator[tuple[str, tuple[tuple[str, str], ...], float]]:
    """Samples in the form of the text page."""
    for family in messages:
        kind = {0: "counter", 1: "gauge", 4: "histogram"}[family["type"]]
        for metric in family["metric"]:
            labels = tuple((pair["name"], pair["value"]) for pair in metric.get("label", []))
            if kind != "histogram":
                yield family["name"], labels, metric[kind]["value"]
                continue
            histogram = metric["histogram"]
            for bucket in histogram["bucket"]:
                le = classic.number(bucket["upper_bound"])
                yield f"{family['name']}_bucket", (*labels, ("le", le)), bucket["cumulative_count"]
            yield f"{family['name']}_count", labels, histogram["sample_count"]
            yield f"{family['name']}_sum", labels, histogram["sample_sum"]


@given(st.lists(st.floats(0.0, 1e4), min_size=1, max_size=MAX_BUCKETS), st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_of_the_native_buckets_is_within_5_percent(values: list[float], q: float) -> None:
    """Of any observations as many as there may be buckets; below a microsecond it is below a microsecond."""
    family = Family(Series("y_seconds", "histogram", "y"))
    family.histogram(BOUNDS).observe(*values)
    histogram = histogram_of([family])
    buckets = native_buckets(histogram)
    assert sum(count for *_, count in buckets) == histogram["sample_count"] == len(values)
    exact = sorted(values)[max(0, math.ceil(q * len(values)) - 1)]
    estimate = quantile(buckets, q)
    if exact <= ZERO_S:
        assert 0 <= estimate <= ZERO_S
    else:
        assert estimate == pytest.approx(exact, rel=0.05)


def test_a_histogram_without_observations_is_native_too() -> None:
    """Its zero threshold marks it, so that Prometheus does not store it as classic until the first observation."""
    family = Family(Series("y_seconds", "histogram", "y"))
    family.histogram(BOUNDS)
    histogram = histogram_of([family])
    assert histogram["zero_threshold"] > 0
    assert (histogram["sample_count"], histogram["zero_count"], "positive_span" in histogram) == (0, 0, False)


def test_another_programs_histogram_is_classic_only() -> None:
    """It has no values to sort into other buckets."""
    family = Family(Series("y_seconds", "histogram", "y"))
    family.histogram(BOUNDS).take_over((1.0, 3.0, 4.0), 2.5)
    histogram = histogram_of([family])
    assert histogram.keys() == {"sample_count", "sample_sum", "bucket"}
    assert [bucket["cumulative_count"] for bucket in histogram["bucket"]] == [1, 3, 4]
    assert (histogram["sample_count"], histogram["sample_sum"]) == (4, 2.5)


def test_counters_and_histograms_tell_when_they_were_zero() -> None:
    """From their creation on, to the millisecond; gauges do not, nor what another program has counted."""
    declared: list[AnySeries] = [
        Series(name, kind, "x") for name, kind in (("a_total", "counter"), ("g", "gauge"), ("h_seconds", "histogram"))
    ]
    others: list[AnySeries] = [
        Series(name, kind, "x") for name, kind in (("b_total", "counter"), ("i_seconds", "histogram"))
    ]
    now = iter([1_700_000_000.1234, 1_700_000_001.0, 1_700_000_002.0, 1_700_000_003.0, 1_700_000_004.0])
    registry = Registry([*declared, *others], unix_s=lambda: next(now))
    for series in declared[:2]:
        registry.value(series).inc()
    registry.histogram(declared[2], BOUNDS).observe(0.5)
    registry.show(others[0], 7.0)
    registry.histogram(others[1], BOUNDS).take_over((1.0, 3.0, 4.0), 2.5)
    for _ in range(2):  # a later page says the same
        counter, gauge, histogram, *taken = (message["metric"][0] for message in read(list(registry.values())))
        assert counter["counter"]["created_timestamp"] == {"seconds": 1_700_000_000, "nanos": 123_000_000}
        assert histogram["histogram"]["created_timestamp"] == {"seconds": 1_700_000_002, "nanos": 0}
        assert gauge["gauge"] == {"value": 1.0}
        assert not any("created_timestamp" in part for metric in taken for part in metric.values())


def test_an_exemplar_has_its_label_value_and_time() -> None:
    """On the bucket of its value, +Inf too, and at once although the page was written before; to the millisecond."""
    family = Family(Series("y_seconds", "histogram", "y"))
    histogram = family.histogram(BOUNDS)
    histogram.observe(0.5, 7.0)
    assert not any("exemplar" in bucket for bucket in histogram_of([family])["bucket"])
    histogram.exemplar(0.5, (("trace_id", "4b"), ("request_id", "slo-probe-1")), 1_700_000_000.1234)
    histogram.exemplar(7.0, (("request_id", "slo-probe-2"),), 1_700_000_001.0)
    first, second, third = histogram_of([family])["bucket"]
    assert "exemplar" not in first
    assert second["exemplar"] == {
        "label": [{"name": "trace_id", "value": "4b"}, {"name": "request_id", "value": "slo-probe-1"}],
        "value": 0.5,
        "timestamp": {"seconds": 1_700_000_000, "nanos": 123_000_000},
    }
    assert third["exemplar"]["timestamp"] == {"seconds": 1_700_000_001, "nanos": 0}
    assert third["upper_bound"] == math.inf


def test_a_page_grows_with_what_is_observed() -> None:
    """The cached histogram is reused until a value is observed."""
    family = Family(Series("y_seconds", "histogram", "y", ("a",)))
    histogram = family.histogram(BOUNDS, "b")
    list(page([family]))
    packed = histogram.packed
    list(page([family]))
    assert histogram.packed is packed
    histogram.observe(0.5)
    assert histogram_of([family])["sample_count"] == 1
    histogram.take_over((1.0, 3.0, 4.0), 2.5)
    assert histogram_of([family])["sample_count"] == 4


def test_a_family_without_children_is_left_out() -> None:
    """So that no family has an empty list of metrics."""
    values = Family(Series("x", "gauge", "x", ("a",)))
    for number in range(3):
        values.value(str(number))
    assert [len(family["metric"]) for family in read([Family(Series("z", "gauge", "none")), values])] == [3]


def test_the_text_pages_say_nothing_of_native_buckets() -> None:
    """Neither form has a line for them, however many there are."""
    family = Family(Series("y_seconds", "histogram", "y"))
    family.histogram(BOUNDS).observe(*[2.0 ** (i / 20) for i in range(300)])
    for openmetrics in (False, True):
        text = b"".join(classic.page([family], openmetrics=openmetrics)).decode()
        names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if line[0] != "#"}
        assert names == {"y_seconds_bucket", "y_seconds_count", "y_seconds_sum"}
        assert text.count("_bucket") == 3
