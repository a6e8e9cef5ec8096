"""A page and a table into signals.

Pages come from a parser as samples by name; everything here is arithmetic on them.
"""

import math
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from prober.measure.engine_signals import (
    COUNTER_SIGNALS,
    HISTOGRAM_SIGNALS,
    Aggregation,
    EngineHistogram,
    EngineInfo,
    EngineSignals,
    EngineTable,
    HistogramSource,
    LabelProductSource,
    ProductSource,
    RatioSource,
    SampleSource,
    Source,
    SumSource,
)

MAX_DIGITS = 18  # of a number in a version or label; int() is slow for longer ones and refuses 4,300


class Sample(Protocol):
    """One value of one series."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Label values by name."""

    @property
    def value(self) -> float:
        """The value as the page has it."""


class Page(Protocol):
    """A parsed page."""

    @property
    def samples(self) -> Mapping[str, Sequence[Sample]]:
        """Samples by name."""

    @property
    def eof(self) -> bool:
        """It ended as OpenMetrics does."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A signal that this release should have and the page has not. names: what it was looked for under."""

    signal: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """What one page says. missing: to be reported once by name; the caller remembers what it has said."""

    signals: EngineSignals
    missing: tuple[Missing, ...] = ()


def recognise(page: Page, tables: Iterable[EngineTable]) -> EngineTable | None:
    """The first of `tables` whose shape the page has; None if none fits.

    The page must have been parsed with all its names, or with the `wanted` ones of all these tables.
    """
    return next((table for table in tables if _fits(page, table)), None)


def wanted(tables: Iterable[EngineTable]) -> frozenset[str]:
    """Every sample name that reading with these tables, and telling them apart, looks at."""
    names: set[str] = set()
    for table in tables:
        names |= {metric for metric, _ in table.flags}
        names.update(table.shape.names if table.shape else ())
        for sources in table.signals.values():
            for source in sources:
                names.update(metrics(source))
    return frozenset(names)


def metrics(source: Source) -> tuple[str, ...]:
    """The sample names behind a source."""
    match source:
        case SampleSource(metric=metric) | LabelProductSource(metric=metric):
            return (metric,)
        case SumSource(required=first, optional=others):
            return (first.metric, *(other.metric for other in others))
        case ProductSource(factors=factors):
            return tuple(factor.metric for factor in factors)
        case RatioSource(part=part, total=total):
            return (part.metric, total.metric)
        case HistogramSource(family=family):
            return (f"{family}_bucket", f"{family}_sum", f"{family}_count")
    raise TypeError(source)


def read(
    page: Page,
    table: EngineTable,
    *,
    version: str | None = None,
    model: str | None = None,
    start_time_seconds: float | None = None,
) -> Reading:
    """The signals of a page.

    version: the engine's, where known; without it every name is tried, and only what all releases have is missed
    model: where some series of the page carry it, series of other models are left out
    start_time_seconds: of the process, where a header tells it and the page does not
    """
    slices = in_slices(page, table, version=version, model=model, start_time_seconds=start_time_seconds)
    while True:
        try:
            next(slices)
        except StopIteration as stop:
            reading: Reading = stop.value
            return reading


def in_slices(
    page: Page,
    table: EngineTable,
    *,
    version: str | None = None,
    model: str | None = None,
    start_time_seconds: float | None = None,
) -> Generator[None, None, Reading]:
    """The same, a signal at a time; other work may run between them. Returns the reading at the end."""
    view = _View(page.samples, table, model)
    release = release_of(version)
    found: dict[str, Any] = {}
    for signal, sources in table.signals.items():
        yield
        value = _first(view, _in_order(sources, release))
        if value is not None:
            found[signal] = value
    if start_time_seconds is not None:
        found.setdefault("start_time_seconds", start_time_seconds)
    missing = tuple(_missing(table, found, release))
    info = EngineInfo(table.engine, version, view.model_name(model), view.flags())
    return Reading(EngineSignals(info, ranks=view.ranks(), **found), missing)


def facts(table: EngineTable, answers: Mapping[str, object]) -> dict[str, str]:
    """What JSON answers by path tell, by what it says (`version`, `model`, …); the first path that tells it wins."""
    told: dict[str, str] = {}
    for fact in table.facts:
        at = answers.get(fact.path)
        for step in fact.json_path:
            at = _inside(at, step)
        if isinstance(at, str | int | float) and at != "":
            told.setdefault(fact.name, str(at))
    return told


def release_of(version: str | None) -> tuple[int, ...] | None:
    """The comparable numbers of a release: `v0.8.5.post1` is (0, 8, 5), `b10488-1a2b3c4` is (10488,).

    None for a version that is no release, such as `0.1.dev1+gabc`, or that has a number of more than MAX_DIGITS digits.
    """
    match = re.match(r"[vb]?([0-9]+(?:\.[0-9]+)*)", version or "")
    parts = match[1].split(".") if match is not None else []
    if not parts or "dev" in (version or "") or max(map(len, parts)) > MAX_DIGITS:
        return None
    return tuple(map(int, parts))


def _inside(at: object, step: str | int) -> object:
    match at, step:
        case dict(), str():
            return at.get(step)
        case list(), int():
            return at[step] if step < len(at) else None
    return None


def _fits(page: Page, table: EngineTable) -> bool:
    shape = table.shape
    if shape is None or (shape.openmetrics is not None and shape.openmetrics != page.eof):
        return False
    if shape.names and all(name in page.samples for name in shape.names):
        return True
    prefixed = [samples for name, samples in page.samples.items() if name.startswith(shape.prefixes)]

    def carried(label: str) -> bool:
        return any(label in sample.labels for samples in prefixed for sample in samples)

    if not prefixed or (shape.with_label is not None and not carried(shape.with_label)):
        return False
    return shape.without_label is None or not carried(shape.without_label)


def _in_order(sources: Sequence[Source], release: tuple[int, ...] | None) -> list[Source]:
    """Those of this release first; the others after them, since a build may differ from its number."""
    return sorted(sources, key=lambda source: not _applies(source, release))


def _applies(source: Source, release: tuple[int, ...] | None) -> bool:
    """Whether the release has it; of an unknown release only what has not been removed since is certain."""
    if release is None:
        return source.until is None
    since, until = release_of(source.since), release_of(source.until)
    return (since is None or _padded(release) >= _padded(since)) and (
        until is None or _padded(release) < _padded(until)
    )


def _padded(release: tuple[int, ...]) -> tuple[int, ...]:
    return (*release, 0, 0, 0, 0)[:4]


def _missing(table: EngineTable, found: Mapping[str, Any], release: tuple[int, ...] | None) -> Iterator[Missing]:
    """What should be there. Of a lazy engine, counters and histograms only once it has worked.

    Of an unknown release, only signals that every release has under one name or another.
    """
    worked = any(found.get(counter, 0.0) > 0.0 for counter in COUNTER_SIGNALS)
    for signal, sources in table.signals.items():
        if signal in found or (
            table.lazy and not worked and (signal in COUNTER_SIGNALS or signal in HISTOGRAM_SIGNALS)
        ):
            continue
        if release is None:
            due = sources if any(source.since is None for source in sources) else ()
        else:
            due = tuple(source for source in sources if _applies(source, release))
        names = tuple(_shown(source) for source in due if source.expected)
        if names:
            yield Missing(signal, names)


def _shown(source: Source) -> str:
    if isinstance(source, LabelProductSource):
        return f"{source.metric}{{{', '.join(source.labels)}}}"
    return source.family if isinstance(source, HistogramSource) else " with ".join(dict.fromkeys(metrics(source)))


class _View:
    """The series of a page that count: of one model, and one of those that say the same."""

    def __init__(self, samples: Mapping[str, Sequence[Sample]], table: EngineTable, model: str | None) -> None:
        self._samples = samples
        self._table = table
        self._models: set[str] = set()
        self._foreign: set[int] = set()  # label mappings of other models, by identity: the parser shares equal ones
        if table.model_labels:
            self._sort_out(model.casefold() if model is not None else None)

    def series(self, metric: str, where: Mapping[str, tuple[str, ...]]) -> list[Sample]:
        chosen = list(self._samples.get(metric, ()))
        if self._foreign:
            chosen = [sample for sample in chosen if id(sample.labels) not in self._foreign]
        for label, values in where.items():
            chosen = [sample for sample in chosen if sample.labels.get(label, values[0]) in values]
        copies = self._table.duplicate_labels
        if len(chosen) < 2 or not any(copy in sample.labels for copy in copies for sample in chosen):
            return chosen
        originals: dict[tuple[tuple[str, str], ...], Sample] = {}
        for sample in sorted(chosen, key=lambda sample: [_rank(sample.labels.get(copy, "")) for copy in copies]):
            own = tuple(sorted(pair for pair in sample.labels.items() if pair[0] not in copies))
            originals.setdefault(own, sample)
        return list(originals.values())

    def ranks(self) -> int | None:
        for source in self._table.signals.get("requests_running", ()):
            for metric in metrics(source)[:1]:
                where = source.where if isinstance(source, SampleSource) else {}
                if series := self.series(metric, where):
                    return len(series)
        return None

    def model_name(self, asked: str | None) -> str | None:
        """The one model of the page; the one asked for where there are several or none."""
        names = self._models - {"", "undefined", "None"}
        return next(iter(names)) if len(names) == 1 else asked

    def flags(self) -> dict[str, str]:
        found: dict[str, set[str]] = {}
        for metric, labels in self._table.flags:
            for sample in self._samples.get(metric, ()):
                for label in labels:
                    if label in sample.labels:
                        found.setdefault(label, set()).add(sample.labels[label])
        return {label: "|".join(sorted(values)) for label, values in found.items()}

    def _sort_out(self, wanted_model: str | None) -> None:
        """Find the models of the page, and, if the one asked for is among them, the series of the others."""
        by_mapping: dict[int, set[str]] = {}
        labels = self._table.model_labels
        for metric in wanted((self._table,)) & self._samples.keys():
            for sample in self._samples[metric]:
                if id(sample.labels) not in by_mapping:
                    named = {sample.labels[label] for label in labels if label in sample.labels}
                    by_mapping[id(sample.labels)] = named
                    self._models |= named
        folded = {at: {name.casefold() for name in named} for at, named in by_mapping.items()}
        if any(wanted_model in named for named in folded.values()):  # Dynamo writes it in lower case on some series
            self._foreign = {at for at, named in folded.items() if named and wanted_model not in named}


def _rank(text: str) -> tuple[int, str]:
    is_number = text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS
    return (int(text), "") if is_number else (-1, text)


def _first(view: _View, sources: Iterable[Source]) -> float | EngineHistogram | None:
    for source in sources:
        value = _evaluate(view, source)
        if value is not None:
            return value
    return None


def _evaluate(view: _View, source: Source) -> float | EngineHistogram | None:
    match source:
        case SampleSource():
            return _value(view, source)
        case LabelProductSource():
            return _label_product(view, source)
        case SumSource(required=first, optional=others):
            start = _value(view, first)
            return None if start is None else start + sum(_value(view, other) or 0.0 for other in others)
        case ProductSource(factors=factors):
            values = [_value(view, factor) for factor in factors]
            return None if None in values else math.prod(value for value in values if value is not None)
        case RatioSource(part=part, total=total):
            above, below = _value(view, part), _value(view, total)
            return above / below if above is not None and below else None
        case HistogramSource():
            return _histogram(view, source)
    raise TypeError(source)


def _value(view: _View, source: SampleSource) -> float | None:
    values = [sample.value for sample in view.series(source.metric, source.where) if math.isfinite(sample.value)]
    together = _together(values, source.aggregation)
    return None if together is None else max(0.0, together * source.scale + source.offset)


def _label_product(view: _View, source: LabelProductSource) -> float | None:
    values = []
    for sample in view.series(source.metric, {}):
        try:
            value = math.prod(float(sample.labels[label]) for label in source.labels)
        except (KeyError, ValueError):  # vLLM writes None for what it does not know
            return None
        if not math.isfinite(value):
            return None
        values.append(value)
    return _together(values, source.aggregation)


def _together(values: Sequence[float], over: Aggregation) -> float | None:
    if not values:
        return None
    match over:
        case Aggregation.SUM:
            return math.fsum(values)
        case Aggregation.MAX:
            return max(values)
        case Aggregation.MEAN:
            return math.fsum(values) / len(values)
        case Aggregation.FIRST:
            return values[0]


def _histogram(view: _View, source: HistogramSource) -> EngineHistogram | None:
    """Ranks added up. Only bounds that all of them have can be added; the others are left out."""
    buckets: dict[float, list[float]] = {}
    for sample in view.series(f"{source.family}_bucket", source.where):
        try:
            bound = float(sample.labels["le"])
        except (KeyError, ValueError):
            continue
        if math.isfinite(sample.value):
            buckets.setdefault(bound, []).append(sample.value)
    ranks = len(buckets.get(math.inf, ()))
    if not ranks:
        return None
    bounds = sorted(bound for bound, values in buckets.items() if len(values) == ranks)
    counts: list[float] = []
    for bound in bounds:
        counts.append(max(math.fsum(buckets[bound]), counts[-1] if counts else 0.0))  # written while it counts
    total = _value(view, SampleSource(f"{source.family}_sum", where=source.where, scale=source.scale))
    scaled = tuple(float(f"{bound * source.scale:.12g}") for bound in bounds[:-1])
    return EngineHistogram(scaled, tuple(counts), total)
