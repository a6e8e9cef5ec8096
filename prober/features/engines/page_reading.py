"""Reads the signals of a parsed metrics page, with the table of its engine."""

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prober.exposition.parse import Page, Sample
from prober.measure.engine_signals import (
    AGGREGATIONS,
    COUNTER_SIGNALS,
    HISTOGRAM_SIGNALS,
    Aggregation,
    AnySource,
    Computed,
    EngineHistogram,
    EngineInfo,
    EngineSignals,
    EngineTable,
    JsonFact,
    OfModel,
    Source,
)
from prober.measure.printable import shown_name
from prober.results.facts import Fact

MAX_DIGITS = 18  # of a number in a version or label; int() is slow beyond, and refuses 4,300
MAX_VALUE = 1e21  # of a signal: more than any real count of tokens, bytes or nanoseconds
MAX_BUCKETS = 200  # per histogram
_UNDECIDED = {"", "auto", "none", "unknown"}  # values that state nothing


@dataclass(frozen=True, slots=True)
class Missing:
    """An expected signal that the page of this release lacks. names: series that would provide it"""

    signal: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """Signals of one metrics page, and the expected signals that it lacks."""

    signals: EngineSignals
    missing: tuple[Missing, ...] = ()


def recognise(page: Page, tables: Iterable[EngineTable]) -> EngineTable | None:
    """The first of `tables` whose shape fits the page; None if none fits.

    The page must be parsed with all names, or at least those of `needed_metrics(tables)`.
    """
    return next((table for table in tables if _fits(page, table)), None)


def needed_metrics(tables: Iterable[EngineTable]) -> frozenset[str]:
    """Names of the samples by which these tables are recognised and read."""
    names: set[str] = set()
    for table in tables:
        names |= {metric for metric, _ in table.flags}
        names.update(table.shape.names if table.shape else ())
        for signal, sources in table.signals.items():
            for source in sources:
                names.update(metrics(signal, source))
    return frozenset(names)


def metrics(signal: str, source: AnySource) -> tuple[str, ...]:
    """Names of the samples that a source reads."""
    if isinstance(source, Computed):
        return tuple(name for part in source.parts for name in metrics("", part))
    if signal in HISTOGRAM_SIGNALS:
        return (f"{source.metric}_bucket", f"{source.metric}_sum", f"{source.metric}_count")
    beside = source.zero_beside
    return (source.metric,) if beside in (None, source.metric) else (source.metric, beside)


def read_signals(
    page: Page,
    table: EngineTable,
    *,
    version: str | None = None,
    model: str | None = None,
    start_time_seconds: float | None = None,
    rank: str | None = None,
) -> Reading:
    """Signals of a page.

    version: version of the engine; None: every name is tried, and only signals that all releases have count as missing. model: if
    series of the page have this model as a label, those of other models are ignored.
    start_time_seconds: process start time from a response header, used if the page has none.
    rank: data-parallel rank whose series are read; None: those of all ranks
    """
    view = _View(page.samples, table, model, rank)
    release = release_of(version)
    values: dict[str, Any] = {}
    for signal, sources in table.signals.items():
        # This release's sources first, then the others: a build may differ from its version.
        for source in sorted(sources, key=lambda source: not _applies(source, release)):
            value = _evaluate(view, signal, source)
            if isinstance(value, EngineHistogram) or _plausible(value) is not None:
                values[signal] = value
                break
    if start_time_seconds is not None:
        values.setdefault("start_time_seconds", start_time_seconds)
    missing = tuple(_missing(table, values, release))
    info = EngineInfo(table.engine, version, view.model_name(model), view.flags())
    return Reading(EngineSignals(info, ranks=view.ranks(), **values), missing)


def facts(wanted: Iterable[JsonFact], answers: Mapping[str, object], model: str = "") -> dict[str, Fact]:
    """Facts by name (`version`, `model`, …), each from the first document that has it, with the document's path as source.

    answers: documents by path; model: name of the requested model
    """
    found: dict[str, Fact] = {}
    for fact in wanted:
        if fact.name not in found and (value := _json_value(fact, answers, model)) is not None:
            found[fact.name] = Fact(fact.name, value, fact.path.partition("?")[0])
    return found


def release_of(version: str | None) -> tuple[int, ...] | None:
    """Numbers of a release, to compare it: `v0.8.5.post1` is (0, 8, 5), `b10488-1a2b3c4` is (10488,).

    None if the version is no release, such as `0.1.dev1+gabc`, or has a number of more than MAX_DIGITS digits.
    """
    match = re.match(r"[vb]?([0-9]+(?:\.[0-9]+)*)", version or "")
    parts = match[1].split(".") if match is not None else []
    if not parts or "dev" in (version or "") or max(map(len, parts)) > MAX_DIGITS:
        return None
    return tuple(map(int, parts))


def _json_value(fact: JsonFact, answers: Mapping[str, object], model: str) -> str | None:
    """The value of a fact as text; None if no document has it."""
    value, name = answers.get(fact.path), fact.json_path[-1]
    for key in fact.json_path[:-1]:
        match value, key:
            case list(), OfModel(of):
                value = next((item for item in value if isinstance(item, dict) and item.get(of) == model), None)
            case dict(), str():
                value = value.get(key)
            case list(), int():
                value = value[key] if key < len(value) else None
            case _:
                return None
    if not isinstance(value, dict) or name not in value:
        return None
    value = value[name]
    if fact.is_setting and isinstance(value, str | int | float | None):
        return shown_name("none" if value is None else str(value)) or None
    if value is None:
        return fact.absent
    if isinstance(value, bool) or not isinstance(value, str | int | float) or str(value).lower() in _UNDECIDED:
        return None
    if fact.is_text:
        digest = hashlib.sha256(str(value).encode("utf-8", "surrogatepass")).hexdigest()[:12]
        return f"{len(str(value)):,} characters, sha256 {digest}"
    return shown_name(str(value)).removeprefix("torch.").removeprefix("(guessed) ") or None


def _fits(page: Page, table: EngineTable) -> bool:
    shape = table.shape
    if shape is None or (shape.openmetrics is not None and shape.openmetrics != page.eof):
        return False
    if any(name in page.samples for name in shape.without_names):
        return False
    if shape.names and all(name in page.samples for name in shape.names):
        return True
    prefixed = [samples for name, samples in page.samples.items() if name.startswith(shape.prefixes)]

    def has_label(label: str) -> bool:
        return any(label in sample.labels for samples in prefixed for sample in samples)

    if not prefixed or (shape.with_label is not None and not has_label(shape.with_label)):
        return False
    return shape.without_label is None or not has_label(shape.without_label)


def _applies(source: AnySource, release: tuple[int, ...] | None) -> bool:
    """True if the pages of this release have the source. For an unknown release, True if no release removed it."""
    if release is None:
        return source.until is None
    since, until = release_of(source.since), release_of(source.until)
    return (since is None or _padded(release) >= _padded(since)) and (
        until is None or _padded(release) < _padded(until)
    )


def _padded(release: tuple[int, ...]) -> tuple[int, ...]:
    return (*release, 0, 0, 0, 0)[:4]


def _missing(table: EngineTable, values: Mapping[str, Any], release: tuple[int, ...] | None) -> Iterator[Missing]:
    """Expected signals without a value. Before its first request, an engine with a lazy page lacks counters and histograms.

    For an unknown release, only signals that all releases have are expected.
    """
    worked = any(values.get(counter, 0.0) > 0.0 for counter in COUNTER_SIGNALS)
    for signal, sources in table.signals.items():
        if signal in values or (
            table.lazy and not worked and (signal in COUNTER_SIGNALS or signal in HISTOGRAM_SIGNALS)
        ):
            continue
        if release is None:
            expected = sources if any(source.since is None for source in sources) else ()
        else:
            expected = tuple(source for source in sources if _applies(source, release))
        names = tuple(_source_name(signal, source) for source in expected if source.expected)
        if names:
            yield Missing(signal, names)


def _source_name(signal: str, source: AnySource) -> str:
    if isinstance(source, Computed):
        return " with ".join(dict.fromkeys(metrics(signal, source)))
    return f"{source.metric}{{{', '.join(source.labels)}}}" if source.labels else source.metric


class _View:
    """Series of a page that belong to one model, and to one rank if it is given, without duplicates."""

    def __init__(
        self,
        samples: Mapping[str, Sequence[Sample]],
        table: EngineTable,
        model: str | None,
        rank: str | None,
    ) -> None:
        self._samples = samples
        self._table = table
        self._of_rank = {table.rank_label: (rank,)} if rank is not None else {}
        self._models: set[str] = set()
        self._other_models: set[int] = set()  # ids of label mappings, which the parser shares
        if table.model_labels:
            self._find_models(model.casefold() if model is not None else None)

    def series(self, metric: str, where: Mapping[str, tuple[str, ...]], *, needs_labels: bool = False) -> list[Sample]:
        chosen = list(self._samples.get(metric, ()))
        if needs_labels:
            chosen = [sample for sample in chosen if where.keys() <= sample.labels.keys()]
        if self._other_models:
            chosen = [sample for sample in chosen if id(sample.labels) not in self._other_models]
        for label, values in {**where, **self._of_rank}.items():
            chosen = [sample for sample in chosen if sample.labels.get(label, values[0]) in values]
        if self._of_rank and metric.endswith("_total"):  # without the label a counter counts the events of all ranks
            chosen = [sample for sample in chosen if self._of_rank.keys() <= sample.labels.keys()]
        copies = self._table.duplicate_labels
        if len(chosen) < 2 or not any(copy in sample.labels for copy in copies for sample in chosen):
            return chosen
        originals: dict[tuple[tuple[str, str], ...], Sample] = {}
        for sample in sorted(chosen, key=lambda sample: [_rank(sample.labels.get(copy, "")) for copy in copies]):
            own = tuple(sorted(pair for pair in sample.labels.items() if pair[0] not in copies))
            originals.setdefault(own, sample)
        return list(originals.values())

    def has(self, metric: str, labels: Iterable[str]) -> bool:
        """True if the page has the metric, with these labels."""
        return any(sample.labels.keys() >= set(labels) for sample in self.series(metric, {}))

    def ranks(self) -> int | None:
        for source in self._table.signals.get("requests_running", ()):
            first = source.parts[0] if isinstance(source, Computed) else source
            if series := self.series(first.metric, first.where):
                return len(series)
        return None

    def model_name(self, requested: str | None) -> str | None:
        """Name of the only model on the page; `requested` if there is no model or there are several."""
        names = self._models - {"", "undefined", "None"}
        return next(iter(names)) if len(names) == 1 else requested

    def flags(self) -> dict[str, str]:
        values_by_label: dict[str, set[str]] = {}
        for metric, labels in self._table.flags:
            for sample in self._samples.get(metric, ()):
                for label in labels:
                    if label in sample.labels:
                        values_by_label.setdefault(label, set()).add(sample.labels[label])
        return {label: "|".join(sorted(values)) for label, values in values_by_label.items()}

    def _find_models(self, wanted_model: str | None) -> None:
        """Find the models on the page, and if it has the wanted one, the series of the others."""
        by_mapping: dict[int, set[str]] = {}
        labels = self._table.model_labels
        for metric in needed_metrics((self._table,)) & self._samples.keys():
            for sample in self._samples[metric]:
                if id(sample.labels) not in by_mapping:
                    named = {shown_name(sample.labels[label]) for label in labels if label in sample.labels}
                    by_mapping[id(sample.labels)] = named
                    self._models |= named
        folded = {at: {name.casefold() for name in named} for at, named in by_mapping.items()}
        if any(wanted_model in named for named in folded.values()):  # some series of Dynamo have it in lower case
            self._other_models = {at for at, named in folded.items() if named and wanted_model not in named}


def _rank(text: str) -> tuple[int, str]:
    is_number = text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS
    return (int(text), "") if is_number else (-1, text)


def _evaluate(view: _View, signal: str, source: AnySource) -> float | EngineHistogram | None:
    if isinstance(source, Source):
        return (
            _histogram(view, source) if signal in HISTOGRAM_SIGNALS else _value(view, source, AGGREGATIONS.get(signal))
        )
    values = [_value(view, part) for part in source.parts]
    known = [value for value in values if value is not None]
    needs_all = source.operation in ("product", "ratio")
    if values[0] is None or (needs_all and None in values):
        return None
    if source.operation == "ratio":
        return known[0] / known[1] if known[1] else None
    if source.operation == "max":
        return max(known)
    return sum(known) if source.operation == "sum" else math.prod(known)


def _plausible(value: float | None) -> float | None:
    """The value; None if it is NaN or so large (above MAX_VALUE) that sums could overflow."""
    return value if value is not None and abs(value) <= MAX_VALUE else None


def _sum(values: Iterable[float]) -> float:
    """The sum; infinite if it overflows."""
    try:
        return math.fsum(values)
    except OverflowError:
        return math.inf


def _value(view: _View, source: Source, usual: Aggregation | None = None) -> float | None:
    values, beside = [], source.zero_beside
    samples = view.series(source.metric, source.where, needs_labels=beside is not None)
    if not samples and beside is not None:
        return 0.0 if view.has(beside, source.where if beside == source.metric else ()) else None
    for sample in samples:
        value = sample.value
        if source.labels:
            try:
                value = math.prod(float(sample.labels[label]) for label in source.labels)
            except (KeyError, ValueError):  # vLLM writes None for an unknown value
                return None
        if math.isfinite(value):
            values.append(value)
        elif source.labels:
            return None
    total = _aggregate(values, source.aggregation or usual or Aggregation.SUM)
    return None if total is None else _plausible(max(0.0, total * source.scale + source.offset))


def _aggregate(values: Sequence[float], aggregation: Aggregation) -> float | None:
    if not values:
        return None
    match aggregation:
        case Aggregation.SUM:
            return _sum(values)
        case Aggregation.MAX:
            return max(values)
        case Aggregation.MEAN:
            return _sum(values) / len(values)
        case Aggregation.FIRST:
            return values[0]


def _histogram(view: _View, source: Source) -> EngineHistogram | None:
    """Histogram of a source, summed over ranks. Bounds that some rank lacks are left out."""
    buckets: dict[float, list[float]] = {}
    for sample in view.series(f"{source.metric}_bucket", source.where):
        try:
            bound = float(sample.labels["le"])
        except (KeyError, ValueError):
            continue
        if _plausible(sample.value) is not None and bound > -math.inf:  # excludes NaN too
            buckets.setdefault(bound, []).append(sample.value)
    ranks = len(buckets.get(math.inf, ()))
    if not ranks:
        return None
    bounds = sorted(bound for bound, values in buckets.items() if len(values) == ranks)
    if len(bounds) > MAX_BUCKETS:
        return None
    counts: list[float] = []
    for bound in bounds:
        counts.append(max(_sum(buckets[bound]), counts[-1] if counts else 0.0))  # the page was written during counting
    if _plausible(counts[-1]) is None or _plausible(bounds[-2] * source.scale if bounds[1:] else 0.0) is None:
        return None
    total = _value(view, Source(f"{source.metric}_sum", where=source.where, scale=source.scale))
    scaled = tuple(float(f"{bound * source.scale:.12g}") for bound in bounds[:-1])
    return EngineHistogram(scaled, tuple(counts), total)
