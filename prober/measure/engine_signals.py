"""What an engine says of itself, in one vocabulary for all engines, and how a table tells where it stands on a page.

A table is data: for each field of `Signals` the sources to try in order. Absent is None everywhere, never 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any, NamedTuple, TypeVar

S = TypeVar("S", bound="Source")


class EngineChange(NamedTuple):
    """The engine was restarted, or became another. kind: `restart`, `engine`, `version`, `model`, `driver`, or the name of a flag."""

    kind: str
    old: str = ""
    new: str = ""

    def text(self) -> str:
        """The change for people: `restart`, or `version was 0.9, is 0.10`."""
        return self.kind if self.kind == "restart" else f"{self.kind} was {self.old}, is {self.new}"


@dataclass(frozen=True, slots=True)
class Histogram:
    """An engine's own histogram, with its own buckets: `counts` of observations up to each of `bounds`, then of all.

    bounds: finite and ascending, in the unit of the signal; sum: None where the page has none
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float | None


@dataclass(frozen=True, slots=True)
class Info:
    """Who speaks. flags: settings seen in info series, by the engine's own names; ranks that differ are joined by `|`."""

    engine: str
    version: str | None = None
    model: str | None = None
    flags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Signals:
    """One reading of one engine, ranks and servers behind one page taken together. None: the engine does not say.

    ranks: how many series the running requests came in, so how many ranks or replicas answered
    requests_waiting: all that wait; requests_waiting_for_capacity: those that wait for memory or a slot, where told apart
    context_tokens: the longest prompt and answer together
    kv_cache_usage_ratio_*: 0 to 1, the fullest rank and the mean; kv_cache_capacity_tokens: of all ranks together
    prefix_cache_*: prompt tokens looked up, and those of them found
    prompt_tokens_total: those from the cache too
    requests_finished_total: for whatever reason
    ttft_seconds … e2e_seconds: the engine's own histograms. itl is an observation a step or token, tpot one a request
    prompt_tokens, output_tokens: lengths of its requests that are over, as histograms
    start_time_seconds: of the process, Unix; uptime_seconds: where only that is told
    """

    info: Info
    ranks: int | None = None
    context_tokens: float | None = None
    requests_running: float | None = None
    requests_waiting: float | None = None
    requests_waiting_for_capacity: float | None = None
    kv_cache_usage_ratio_max: float | None = None
    kv_cache_usage_ratio_mean: float | None = None
    kv_cache_capacity_tokens: float | None = None
    preemptions_total: float | None = None
    prefix_cache_queries_tokens_total: float | None = None
    prefix_cache_hits_tokens_total: float | None = None
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    requests_finished_total: float | None = None
    ttft_seconds: Histogram | None = None
    itl_seconds: Histogram | None = None
    tpot_seconds: Histogram | None = None
    queue_seconds: Histogram | None = None
    e2e_seconds: Histogram | None = None
    prompt_tokens: Histogram | None = None
    output_tokens: Histogram | None = None
    start_time_seconds: float | None = None
    uptime_seconds: float | None = None


class PageReading(NamedTuple):
    """One reading of an engine's page as part of a continuous record.

    at_ns: nanoseconds of the monotonic clock
    epoch: totals of readings of different epochs must not be subtracted: between them counters fell, or ranks came or went
    signals: with totals that never fall
    """

    at_ns: int
    epoch: int
    signals: Signals


COUNTERS = (
    "preemptions_total",
    "prefix_cache_queries_tokens_total",
    "prefix_cache_hits_tokens_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "requests_finished_total",
)
HISTOGRAMS = (
    *("ttft_seconds", "itl_seconds", "tpot_seconds", "queue_seconds", "e2e_seconds"),
    *("prompt_tokens", "output_tokens"),
)


def without_buckets(signals: Signals) -> Signals:
    """The same with histograms of one bucket, which is what many readings can be kept of."""
    told = ((name, getattr(signals, name)) for name in HISTOGRAMS)
    slim: dict[str, Any] = {name: Histogram((), each.counts[-1:], each.sum) for name, each in told if each is not None}
    return replace(signals, **slim)


class Over(Enum):
    """How the series of several ranks, servers or models become one value."""

    SUM = "sum"
    MAX = "max"
    MEAN = "mean"
    FIRST = "first"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a signal stands, in releases from `since` on and before `until`.

    expected: a release in that range has it without being asked to, so its absence is worth a word
    """

    since: str | None = None
    until: str | None = None
    expected: bool = True


@dataclass(frozen=True, slots=True)
class Value(Source):
    """Samples of a name; with `where`, those whose labels have one of the given values (a series without the label passes).

    The value is what the page says × scale + offset, at least 0.
    """

    metric: str
    over: Over = Over.SUM
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scale: float = 1.0
    offset: float = 0.0


@dataclass(frozen=True, slots=True)
class LabelProduct(Source):
    """The product of numbers that stand in labels of an info series; none if one of them is no number."""

    metric: str
    labels: tuple[str, ...]
    over: Over = Over.SUM


@dataclass(frozen=True, slots=True)
class Sum(Source):
    """`first`, and `others` where they are present. Without `first` there is none."""

    first: Value
    others: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Product(Source):
    """All factors multiplied; none if one is absent."""

    factors: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Ratio(Source):
    """part ÷ whole; none if the whole is 0."""

    part: Value
    whole: Value


@dataclass(frozen=True, slots=True)
class Buckets(Source):
    """A histogram: `family` without `_bucket`, `_sum`, `_count`. `scale` turns its unit into seconds."""

    family: str
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Shape:
    """What a page looks like: a name with one of `prefixes`, or all of `names`.

    with_label, without_label: a label that some of the prefixed series carry, or none does
    openmetrics: ends with `# EOF`; None: either
    """

    prefixes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    with_label: str | None = None
    without_label: str | None = None
    openmetrics: bool | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """What a JSON answer of the engine tells beside its page.

    says: version, model, context_tokens, capacity_tokens or requests_max; where: keys and indexes down to the value
    """

    says: str
    path: str
    where: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """One engine's page in one of its generations, as data.

    engine: its name, the one of its dialect where it has one
    paths: where its page is, under the server's root, in the order to try; empty: it has none, and `note` says so
    port: the page's own port where it is not the API's
    models: labels that name the model; copies: series that differ only in these labels say the same thing
    flags: info series, and which of their labels are settings
    lazy: counters and histograms appear with the first request
    needs: how to switch the page on; note: what else an operator should know
    """

    engine: str
    shape: Shape | None = None
    signals: Mapping[str, tuple[Source, ...]] = field(default_factory=dict)
    paths: tuple[str, ...] = ("/metrics",)
    port: int | None = None
    models: tuple[str, ...] = ("model_name",)
    copies: tuple[str, ...] = ()
    flags: tuple[tuple[str, tuple[str, ...]], ...] = ()
    lazy: bool = False
    facts: tuple[Fact, ...] = ()
    start_time_header: str | None = None
    needs: str = ""
    note: str = ""


def renamed(table: Table, *, engine: str, old: str, new: str, shape: Shape) -> Table:
    """A table for an engine that has another's names under its own prefix."""
    signals = {
        signal: tuple(_renamed(source, old, new) for source in sources) for signal, sources in table.signals.items()
    }
    flags = tuple((metric.replace(old, new, 1), labels) for metric, labels in table.flags)
    return replace(table, engine=engine, shape=shape, signals=signals, flags=flags)


def latest(table: Table) -> Table:
    """The table of the newest release alone, for an engine that shares the names but not the numbers of its releases."""
    signals = {
        signal: tuple(replace(source, since=None) for source in sources if source.until is None)
        for signal, sources in table.signals.items()
    }
    return replace(table, signals=signals)


def _renamed(source: S, old: str, new: str) -> S:
    """The source with every name in it, of samples and of sources inside it, changed."""
    changes: dict[str, Any] = {}
    for part in fields(source):
        value = getattr(source, part.name)
        if part.name in ("metric", "family"):
            changes[part.name] = value.replace(old, new, 1)
        elif isinstance(value, Source):
            changes[part.name] = _renamed(value, old, new)
        elif part.name in ("others", "factors"):
            changes[part.name] = tuple(_renamed(inner, old, new) for inner in value)
    return replace(source, **changes)
