"""Writes the metrics page as length-delimited `io.prometheus.client.MetricFamily` messages, the only format with native histograms.

Encoded by hand: it is ten small messages, and needs no dependency. Field numbers are those of client_model's
io/prometheus/client/metrics.proto; each key below is `number << 3 | wire type`. A family starts with its length, so it is assembled
when its last child is written; a histogram is encoded again only after a change.

Histograms have classic and native buckets. Exemplars are on the classic ones; Prometheus uses them for the native ones too. Counters
and histograms of the prober have their start (`created_timestamp`); the text has no `_created`, which would be further series.
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from struct import Struct

from prober.exposition.buckets import ZERO_S, Exponential
from prober.exposition.families import ConstantLabels, Family, Histogram, Labels, Value

_TYPES = {"counter": 0, "gauge": 1, "histogram": 4}
_DOUBLE = Struct("<d").pack
_SMALL = [bytes([number]) for number in range(128)]


def page(families: list[Family]) -> Iterator[bytes]:
    """Yields the metrics page, family by family."""
    for family in families:
        if not family.children:
            continue
        metrics = [_head(family)]
        for labels, child in family.children.items():
            if isinstance(child, Histogram):
                metrics.append(_histogram(family, labels, child))
            else:
                # MetricFamily.metric with its Counter or Gauge.
                metrics.append(_message(b"\x22", _packed_labels(family, labels, child) + _DOUBLE(child.value)))
        yield _varint(sum(map(len, metrics))) + b"".join(metrics)


def _head(family: Family) -> bytes:
    """Encodes the fields name, help, type and unit of a MetricFamily."""
    series = family.series
    unit = family.unit()
    return (
        _text(b"\x0a", series.name)
        + _text(b"\x12", series.help)
        + b"\x18"
        + _SMALL[_TYPES[series.kind]]
        + (_text(b"\x2a", unit) if unit else b"")
    )


def _histogram(family: Family, labels: Labels, child: Histogram) -> bytes:
    """Encodes a Metric with its Histogram, as a field of MetricFamily."""
    if child.packed is None:
        body = _classic(child) + (_native(child.native) if child.native is not None else b"")
        body += _moment(b"\x7a", child.start_unix_s)
        child.packed = _message(b"\x22", _packed_labels(family, labels, child) + _message(b"\x3a", body))
    return child.packed


def _packed_labels(family: Family, labels: Labels, child: Value | Histogram) -> bytes:
    """Encodes the labels of a Metric, and its Counter or Gauge up to the number; the result is cached in the child."""
    if child.packed_labels is None:
        more = family.more_labels(labels)
        names, values = zip(*more, strict=True) if more else ((), ())
        child.packed_labels = _labels((*family.series.labels, *names), (*labels, *values))
        if isinstance(child, Value):
            is_counter = family.series.kind == "counter"
            start = _moment(b"\x1a", child.start_unix_s) if is_counter else b""
            child.packed_labels += (b"\x1a" if is_counter else b"\x12") + _SMALL[len(start) + 9] + start + b"\x09"
    return child.packed_labels


def _classic(child: Histogram) -> bytes:
    """Encodes the classic part of a Histogram: sample_count, sample_sum, and the buckets with their exemplars."""
    total, count_field, exemplars = 0, b"\x08\x00", child.exemplars
    begin = _bucket_start(count_field)
    out: list[bytes] = []
    for index, (count, bound) in enumerate(zip(child.counts, _upper(child.bounds), strict=True)):
        if count:
            total += count
            count_field = b"\x08" + _varint(max(0, total))
            begin = _bucket_start(count_field)
        if index in exemplars:
            out.append(_message(b"\x1a", count_field + bound + _exemplar(*exemplars[index])))
        else:
            out += (begin, bound)
    out.append(count_field + b"\x11" + _DOUBLE(child.sum))
    return b"".join(out)


def _bucket_start(count_field: bytes) -> bytes:
    """Encodes the beginning of a Bucket without exemplar: its count, up to the nine bytes of its bound."""
    return b"\x1a" + _SMALL[len(count_field) + 9] + count_field


def _native(native: Exponential) -> bytes:
    """Encodes the native part of a Histogram: schema, zero_threshold, zero_count, positive_span and positive_delta.

    The threshold, which is never 0, distinguishes a native histogram without observations from a classic one.
    """
    out = [b"\x28", _varint(_zigzag(native.schema)), b"\x31", _DOUBLE(ZERO_S), b"\x38", _varint(native.zero)]
    deltas = bytearray()
    before = 0
    for offset, counts in native.spans():
        out.append(_message(b"\x62", b"\x08" + _varint(_zigzag(offset)) + b"\x10" + _varint(len(counts))))
        for count in counts:
            delta = _zigzag(count - before)
            if delta < 128:
                deltas.append(delta)
            else:
                deltas += _varint(delta)
            before = count
    if deltas:
        out.append(_message(b"\x6a", bytes(deltas)))
    return b"".join(out)


def _exemplar(labels: ConstantLabels, value: float, unix_s: float) -> bytes:
    """Encodes the exemplar of a Bucket."""
    names, values = zip(*labels, strict=True)
    return _message(b"\x1a", _labels(names, values) + b"\x11" + _DOUBLE(value) + _moment(b"\x1a", unix_s))


def _moment(key: bytes, unix_s: float | None) -> bytes:
    """Encodes a Timestamp to the millisecond, as in the text format; nothing for None."""
    if unix_s is None:
        return b""
    seconds, ms = divmod(round(unix_s * 1000), 1000)
    return _message(key, b"\x08" + _varint(seconds) + b"\x10" + _varint(ms * 1_000_000))


def _labels(names: tuple[str, ...], values: Labels) -> bytes:
    """Encodes the LabelPairs of a Metric or Exemplar."""
    return b"".join(
        _message(b"\x0a", _text(b"\x0a", name) + _text(b"\x12", value))
        for name, value in zip(names, values, strict=True)
    )


@lru_cache(maxsize=256)
def _upper(bounds: tuple[float, ...]) -> list[bytes]:
    return [b"\x11" + _DOUBLE(bound) for bound in (*bounds, math.inf)]


def _text(key: bytes, text: str) -> bytes:
    return _message(key, text.encode())


def _message(key: bytes, body: bytes) -> bytes:
    return key + _varint(len(body)) + body


def _varint(number: int) -> bytes:
    """Encodes an integer in groups of seven bits, the lowest first, one per byte."""
    if number < 128:
        return _SMALL[number]
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _zigzag(number: int) -> int:
    """Encodes a signed integer as unsigned: 0, −1, 1, −2 become 0, 1, 2, 3."""
    return number * 2 if number >= 0 else -number * 2 - 1
