"""Counters, gauges and histograms whose text is cheap to write repeatedly.

A metrics library is not used: its linear search for buckets takes 0.5 ms for the 128 values of a probe, and its text writer 7 µs per
line. Here a value costs a bisection, the constant part of each line is built once, and a child without new values keeps its text.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from itertools import pairwise
from typing import Any, Generic, TypeVar, TypeVarTuple

from prober.exposition.buckets import Exponential

Labels = tuple[str, ...]
ConstantLabels = tuple[tuple[str, str], ...]
Names = TypeVarTuple("Names")
Child = TypeVar("Child", "Value", "Histogram")


@dataclass(frozen=True, slots=True)
class Series(Generic[*Names]):
    """Declaration of a metric family. Its type parameters are one `str` per label, so a wrong number of label values is a type error.

    kind: counter, gauge or histogram
    name: ends in `_total` for a counter
    """

    name: str
    kind: str
    help: str
    labels: tuple[Any, ...] = ()

    def __str__(self) -> str:
        """The name, for use in PromQL expressions."""
        return self.name


AnySeries = Series[*tuple[Any, ...]]


def counter(name: str, help_: str, *labels: *Names) -> Series[*Names]:
    """Declare a counter; `name` ends in `_total`."""
    return Series(name, "counter", help_, labels)


def gauge(name: str, help_: str, *labels: *Names) -> Series[*Names]:
    """Declare a gauge."""
    return Series(name, "gauge", help_, labels)


def histogram(name: str, help_: str, *labels: *Names) -> Series[*Names]:
    """Declare a histogram."""
    return Series(name, "histogram", help_, labels)


def label_text(names: tuple[str, ...], values: Labels, *more: tuple[str, str]) -> str:
    """`{a="b",…}` with escaped values; empty without labels."""
    pairs = [*zip(names, values, strict=True), *more]
    escaped = ((n, v.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")) for n, v in pairs)
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}" if pairs else ""


def number(value: float) -> str:
    """A float in the canonical form of OpenMetrics: 1.0, 0.05, +Inf."""
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))


@lru_cache(maxsize=256)
def _ends(bounds: tuple[float, ...]) -> tuple[str, ...]:
    """Text that follows the labels in the line of each bucket; shared by all histograms with these bounds."""
    return tuple(f'le="{number(bound)}"}} ' for bound in (*bounds, math.inf))


class Value:
    """A counter or gauge.

    start_unix_s: when a counter was 0, in Unix seconds; None where that is not known
    packed_labels: its labels and start as protobuf; None until protobuf is requested
    """

    __slots__ = ("_line", "packed_labels", "start_unix_s", "value")

    def __init__(self, series: AnySeries, labels: Labels, constant: ConstantLabels = ()) -> None:
        self.value = 0.0
        self.start_unix_s: float | None = None
        self._line = f"{series.name}{label_text(series.labels, labels, *constant)} "
        self.packed_labels: bytes | None = None

    def inc(self, amount: float = 1.0) -> None:
        """Increase the value."""
        self.value += amount

    def text(self, exemplars: bool) -> str:
        """The line in the text format."""
        return f"{self._line}{number(self.value)}\n"


class Histogram:
    """Counts per bucket, and the sum of the values.

    native: the same observations in exponential buckets, for protobuf; None for a histogram taken over from another program
    start_unix_s: when it had no observation, in Unix seconds; None where that is not known
    packed: the histogram as protobuf, None after a change; packed_labels: its labels as protobuf
    """

    __slots__ = (
        *("_bucket", "_count_line", "_ends", "_sum_line", "_text"),
        *("bounds", "counts", "exemplars", "native", "packed", "packed_labels", "start_unix_s", "sum"),
    )

    def __init__(
        self, series: AnySeries, labels: Labels, bounds: tuple[float, ...], constant: ConstantLabels = ()
    ) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.native: Exponential | None = Exponential()
        self.exemplars: dict[int, tuple[ConstantLabels, float, float]] = {}
        self._ends = _ends(bounds)
        name, text = series.name, label_text(series.labels, labels, *constant)
        self._bucket = f"{name}_bucket{text[:-1]}{',' if text else '{'}"
        self._count_line, self._sum_line = f"{name}_count{text} ", f"{name}_sum{text} "
        self._text: dict[bool, str] = {}
        self.start_unix_s: float | None = None
        self.packed: bytes | None = None
        self.packed_labels: bytes | None = None

    def observe(self, *values: float) -> None:
        """Count values. If one is NaN or infinite, which would spoil the sum, count none and raise ValueError."""
        total = sum(values)
        if not math.isfinite(total):
            raise ValueError(f"{self._sum_line.strip()}: {values} are not all finite")
        bounds, counts = self.bounds, self.counts
        ordered = sorted(values)
        start, end = 0, len(ordered)
        while start < end:
            bucket = bisect_left(bounds, ordered[start])
            after = bisect_right(ordered, bounds[bucket], start) if bucket < len(bounds) else end
            counts[bucket] += after - start
            start = after
        if self.native is not None:
            self.native.observe(ordered)
        self.sum += total
        self.packed = None
        self._text.clear()

    def take_over(self, upto: Sequence[float], total: float) -> None:
        """Replace the contents by another program's histogram. upto: cumulative counts per bound, then of all; total: sum"""
        self.counts = [round(b - a) for a, b in pairwise((0.0, *upto))]
        self.sum = total
        self.native = self.packed = self.start_unix_s = None
        self._text.clear()

    def exemplar(self, value: float, labels: ConstantLabels, unix_s: float) -> None:
        """Store an exemplar of the bucket that contains `value`. labels: at most 128 characters, by OpenMetrics"""
        self.exemplars[bisect_left(self.bounds, value)] = (labels, value, unix_s)
        self.packed = None
        self._text.pop(True, None)

    def text(self, exemplars: bool) -> str:
        """The lines in the text format."""
        cached = self._text.get(exemplars)
        if cached is None:
            cached = self._text[exemplars] = self._write(exemplars)
        return cached

    def _write(self, exemplars: bool) -> str:
        total, out = 0, []
        for index, count in enumerate(self.counts):
            total += count
            out.append(f"{self._bucket}{self._ends[index]}{total}.0")
            if exemplars and index in self.exemplars:
                labels, value, unix_s = self.exemplars[index]
                out.append(f" # {label_text((), (), *labels)} {number(value)} {unix_s:.3f}")
            out.append("\n")
        out.append(f"{self._count_line}{total}.0\n{self._sum_line}{number(self.sum)}\n")
        return "".join(out)


@dataclass(slots=True)
class Family:
    """A declared series and its children by label values.

    constant: (name, value) of labels that every child has after its own
    of_targets: further labels for the children of a target, by name of the target; shared by all families
    unix_s: clock that tells when a child was created; None: not to be told
    """

    series: AnySeries
    constant: ConstantLabels = ()
    of_targets: Mapping[str, ConstantLabels] = field(default_factory=dict, repr=False)
    unix_s: Callable[[], float] | None = None
    children: dict[Labels, Value | Histogram] = field(default_factory=dict)
    _by_first: dict[str, tuple[Labels, ...]] = field(default_factory=dict, repr=False)  # may include removed ones

    def value(self, *labels: str) -> Value:
        """The counter or gauge with these labels, created at 0 on first use."""
        child = self.children.get(labels)
        if child is None:
            child = self._add(labels, Value(self.series, labels, self.more_labels(labels)))
        assert isinstance(child, Value)
        return child

    def histogram(self, bounds: tuple[float, ...], *labels: str) -> Histogram:
        """The histogram with these labels; a new one if its bounds have changed."""
        child = self.children.get(labels)
        if not isinstance(child, Histogram) or child.bounds != bounds:
            child = self._add(labels, Histogram(self.series, labels, bounds, self.more_labels(labels)))
        return child

    def more_labels(self, labels: Labels) -> ConstantLabels:
        """Labels that follow a child's own labels."""
        if not self.of_targets or self.series.labels[:1] != ("target",):
            return self.constant
        return (*self.constant, *self.of_targets.get(labels[0], ()))

    def of(self, *first: str) -> list[Labels]:
        """Label values of the children whose first values are `first`, without iterating over the others."""
        known = tuple(labels for labels in self._by_first.get(first[0], ()) if labels in self.children)
        if known:
            self._by_first[first[0]] = known
        else:
            self._by_first.pop(first[0], None)
        return [labels for labels in known if labels[: len(first)] == first]

    def _add(self, labels: Labels, child: Child) -> Child:
        self.children[labels] = child
        child.start_unix_s = self.unix_s() if self.unix_s else None
        if labels:
            self._by_first[labels[0]] = (*dict.fromkeys((*self._by_first.get(labels[0], ()), labels)),)
        return child

    def head(self, openmetrics: bool) -> str:
        """The HELP and TYPE lines, with a UNIT line in OpenMetrics."""
        name = self.series.name
        if openmetrics and self.series.kind == "counter":
            name = name.removesuffix("_total")
        text = self.series.help.replace("\\", "\\\\").replace("\n", "\\n")
        head = f"# HELP {name} {text}\n# TYPE {name} {self.series.kind}\n"
        if openmetrics and (unit := self.unit()):
            head += f"# UNIT {name} {unit}\n"
        return head

    def unit(self) -> str:
        """Unit for the UNIT line, from the end of the name; empty if the name ends in none."""
        unit = self.series.name.removesuffix("_total").rsplit("_", 1)[-1]
        return unit if unit in ("seconds", "ratio", "dollars") else ""


def page(families: list[Family], *, openmetrics: bool) -> Iterator[bytes]:
    """Yields the metrics page, family by family; without `# EOF`."""
    for family in families:
        if family.children:
            texts = (child.text(openmetrics) for child in family.children.values())
            yield "".join((family.head(openmetrics), *texts)).encode()


class Registry(dict[str, Family]):
    """All families by name. Series of a target have `target` as first label; those of a workload `workload` as second.

    constant: labels of every series about a target
    unix_s: clock of the start timestamps of counters and histograms; None: they have none
    """

    def __init__(
        self,
        declared: Iterable[AnySeries] = (),
        constant: ConstantLabels = (),
        unix_s: Callable[[], float] | None = None,
    ) -> None:
        self._of_targets: dict[str, ConstantLabels] = {}
        super().__init__(
            (series.name, Family(series, constant if "target" in series.labels else (), self._of_targets, unix_s))
            for series in declared
        )

    def label(self, target: str, labels: ConstantLabels) -> None:
        """Set further labels of all series of a target, before it has any."""
        self._of_targets[target] = labels

    def family(self, declared: AnySeries) -> Family:
        """The family that `declared` declares."""
        return self[declared.name]

    def value(self, declared: Series[*Names], *labels: *Names) -> Value:
        """A counter or gauge, created at 0 on first use."""
        values: tuple[Any, ...] = labels
        return self[declared.name].value(*values)

    def histogram(self, declared: Series[*Names], bounds: tuple[float, ...], *labels: *Names) -> Histogram:
        """A histogram, created on first use and if its bounds have changed."""
        values: tuple[Any, ...] = labels
        return self[declared.name].histogram(bounds, *values)

    def show(self, declared: Series[*Names], value: float | None, *labels: *Names) -> None:
        """Set a gauge, or a counter of another program, whose start is not known; remove it if the value is None."""
        values: tuple[Any, ...] = labels
        if value is None:
            self[declared.name].children.pop(values, None)
        else:
            child = self[declared.name].value(*values)
            child.value, child.start_unix_s = value, None

    def show_one(
        self, declared: Series[*Names, str], chosen: str | None, choices: Iterable[str], *labels: *Names
    ) -> None:
        """Set the gauge of the state `chosen` to 1 and those of the other `choices` to 0. The state is the last label."""
        values: tuple[Any, ...] = labels
        for choice in choices:
            self[declared.name].value(*values, choice).value = float(choice == chosen)

    def keep(self, declared: Series[*Names], remaining: Collection[tuple[*Names]], *first: str) -> None:
        """Remove the children whose first labels are `first`, except those in `remaining`."""
        family = self[declared.name]
        for labels in family.of(*first) if family.children else ():
            if labels not in remaining:
                del family.children[labels]

    def remove(self, target: str) -> None:
        """Remove all series of a target, and its labels."""
        self._of_targets.pop(target, None)
        for family in self.values():
            if family.series.labels[:1] == ("target",):
                for labels in family.of(target):
                    del family.children[labels]
                family.of(target)  # drops the labels of removed children


_FAMILY = "io.prometheus.client.MetricFamily"


class Form(Enum):
    """A format of the metrics page; the value is the Content-Type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    PROTOBUF = f"application/vnd.google.protobuf; proto={_FAMILY}; encoding=delimited"


def choose_form(accept: str) -> Form:
    """Returns the format with the highest q in an Accept header (RFC 9110, 12.5.1), the first of equals; without a match, text.

    A wildcard selects text. Versions are not compared, because each format has only one. Of the protobuf encodings only `delimited` is
    supported.
    """
    best, preferred = 0.0, Form.TEXT
    for entry in accept.split(","):
        media, *rest = (part.strip() for part in entry.lower().split(";"))
        parameters = {name.strip(): value.strip(' "') for name, _, value in (part.partition("=") for part in rest)}
        form = {"application/openmetrics-text": Form.OPENMETRICS, "text/plain": Form.TEXT}.get(media)
        if media == "application/vnd.google.protobuf":
            requested = (parameters.get("proto"), parameters.get("encoding"))
            form = Form.PROTOBUF if requested == (_FAMILY.lower(), "delimited") else None
        try:
            quality = float(parameters.get("q", "1"))
        except ValueError:
            continue
        if form is not None and best < quality <= 1.0:
            best, preferred = quality, form
    return preferred
