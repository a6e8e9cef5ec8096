"""One vocabulary for the metrics of all engines, and the tables that map an engine's metrics page to it.

A table is data: for each field of `EngineSignals`, the sources to try in order. A missing value is None, never 0.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from prober.measure.printable import shown_name


class EngineChange(NamedTuple):
    """A restart or change of the engine. kind: `restart`, `engine`, `version`, `model`, `size`, `driver`, or a flag's name"""

    kind: str
    old: str = ""
    new: str = ""

    def text(self) -> str:
        """The change as text: `restart`, or `version was 0.9, is 0.10`."""
        return self.kind if self.kind == "restart" else f"{self.kind} was {self.old}, is {self.new}"


@dataclass(frozen=True, slots=True)
class EngineHistogram:
    """A histogram exported by the engine, with the engine's own buckets.

    bounds: finite and ascending, in the unit of the signal
    counts: cumulative observations up to each bound, then the total
    sum: None if the page has no `_sum`
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float | None = None


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Identity of an engine. Each text is one printable line of limited length.

    flags: settings in info series, by the engine's own names; values that differ between ranks are joined by `|`
    """

    engine: str
    version: str | None = None
    model: str | None = None
    flags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, text in (("version", self.version), ("model", self.model)):
            object.__setattr__(self, name, shown_name(text) if text is not None else None)
        object.__setattr__(self, "flags", {name: shown_name(text) for name, text in self.flags.items()})

    def redacted(self, redact: Callable[[str], str]) -> "EngineInfo":
        """The identity with `redact` applied to each text."""
        version, model = (None if text is None else redact(text) for text in (self.version, self.model))
        return EngineInfo(self.engine, version, model, {name: redact(text) for name, text in self.flags.items()})


@dataclass(frozen=True, slots=True)
class EngineSignals:
    """Signals of one engine: all ranks and servers on one metrics page combined. None: the engine does not report the value.

    ranks: number of ranks or replicas, counted by the series of running requests
    requests_max: requests that may run at once
    context_tokens: maximum length of prompt and answer together
    requests_waiting: all waiting requests
    requests_deferred: those of them that wait for something other than capacity, such as an adapter or a KV transfer
    sleeping: 1 while all ranks sleep, that is, have released their GPU memory on request; 0 while one is awake
    kv_cache_usage_ratio_*: 0 to 1; maximum and mean over the ranks; the maximum is that of the fullest pool of a hybrid model
    kv_cache_capacity_tokens: of all ranks together
    prefix_cache_*: prompt tokens looked up, and prompt tokens found
    prompt_tokens_total: includes cached tokens
    requests_finished_total: for any reason
    finished_*_total: by reason; `length`: a length limit was reached; `abort`: aborted by the client or a timeout
    requests_judged_total: requests by which the engine's success is judged: served, failed and rejected ones; without aborted ones and
    those that were wrong themselves (400, 404, 422), where the page tells them apart
    requests_failed_total: those that the server failed: status 5xx, errors and timeouts of the engine
    requests_rejected_total: those that it turned away because of its load: status 429, or a queue limit
    http_errors_total: answers with status 5xx; only where an engine counts its failures in another place too, so that one failure may
    be in both
    grammar_timeouts_total: requests whose grammar for structured output was not compiled in time
    *_slo_violations_total: requests that missed the latency that they asked the router for
    speculation_drafts_total: drafts that the model verified, each of several tokens
    speculation_draft_tokens_total, speculation_accepted_tokens_total: tokens of these drafts, and those that the model accepted
    speculation_acceptance_ratio, speculation_length_tokens: accepted share of draft tokens, and tokens per draft including the one that
    the model adds; computed by the engine, maximum over the ranks
    ttft_seconds … e2e_seconds: the engine's own histograms; itl has one observation per step or token, tpot one per request
    prefill_seconds: from the first step of a request to its first token, without its time in the queue
    decode_seconds: from the first token of a request to its last
    predicted_*_seconds: TTFT and TPOT that a router predicted for requests; outcome_*_seconds: what it then measured of the same ones
    prompt_tokens, output_tokens: histograms of the lengths of finished requests
    kv_transfer_seconds: time to transfer a KV cache from the engine that prefills to the one that decodes; one observation per
    transfer, several per request if there are several ranks
    kv_transfer_failures_total: transfers that failed, or whose KV cache expired before it was fetched
    kv_offload_load_*_total: loads of KV cache from offload storage (host memory or disk) to the GPU: their time and bytes
    kv_offload_failures_total: loads of offloaded KV cache from a slower tier that failed
    pool_saturation_ratio: load of a router's pool by its own measure, 1 at its limit
    start_time_seconds: start of the process, Unix time
    uptime_seconds: set only if the engine reports no start time
    """

    info: EngineInfo
    ranks: int | None = None
    requests_max: float | None = None
    context_tokens: float | None = None
    requests_running: float | None = None
    requests_waiting: float | None = None
    requests_deferred: float | None = None
    sleeping: float | None = None
    kv_cache_usage_ratio_max: float | None = None
    kv_cache_usage_ratio_mean: float | None = None
    kv_cache_capacity_tokens: float | None = None
    preemptions_total: float | None = None
    prefix_cache_queries_tokens_total: float | None = None
    prefix_cache_hits_tokens_total: float | None = None
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    requests_finished_total: float | None = None
    finished_stop_total: float | None = None
    finished_length_total: float | None = None
    finished_abort_total: float | None = None
    finished_error_total: float | None = None
    finished_repetition_total: float | None = None
    requests_judged_total: float | None = None
    requests_failed_total: float | None = None
    requests_rejected_total: float | None = None
    http_errors_total: float | None = None
    grammar_timeouts_total: float | None = None
    ttft_slo_violations_total: float | None = None
    tpot_slo_violations_total: float | None = None
    speculation_drafts_total: float | None = None
    speculation_draft_tokens_total: float | None = None
    speculation_accepted_tokens_total: float | None = None
    speculation_acceptance_ratio: float | None = None
    speculation_length_tokens: float | None = None
    ttft_seconds: EngineHistogram | None = None
    itl_seconds: EngineHistogram | None = None
    tpot_seconds: EngineHistogram | None = None
    queue_seconds: EngineHistogram | None = None
    e2e_seconds: EngineHistogram | None = None
    prefill_seconds: EngineHistogram | None = None
    decode_seconds: EngineHistogram | None = None
    predicted_ttft_seconds: EngineHistogram | None = None
    predicted_tpot_seconds: EngineHistogram | None = None
    outcome_ttft_seconds: EngineHistogram | None = None
    outcome_tpot_seconds: EngineHistogram | None = None
    prompt_tokens: EngineHistogram | None = None
    output_tokens: EngineHistogram | None = None
    kv_transfer_seconds: EngineHistogram | None = None
    kv_transfer_failures_total: float | None = None
    kv_offload_load_seconds_total: float | None = None
    kv_offload_load_bytes_total: float | None = None
    kv_offload_failures_total: float | None = None
    pool_saturation_ratio: float | None = None
    start_time_seconds: float | None = None
    uptime_seconds: float | None = None

    @property
    def requests_queued(self) -> float | None:
        """Requests that wait for capacity: the waiting ones, without deferred ones where the page tells them apart."""
        if self.requests_waiting is None:
            return None
        return max(0.0, self.requests_waiting - (self.requests_deferred or 0.0))

    @property
    def requests_arrived_total(self) -> float | None:
        """Requests that have arrived: finished, running and waiting ones."""
        if self.requests_finished_total is None or self.requests_running is None:
            return None
        return self.requests_finished_total + self.requests_running + (self.requests_waiting or 0.0)

    @property
    def size(self) -> dict[str, float]:
        """What bounds the engine's capacity, by name; 0 is unknown, as pages write it early after a start."""
        sizes = {
            "ranks": self.ranks,
            "slots": self.requests_max,
            "tokens of context": self.context_tokens,
            "tokens of KV cache": self.kv_cache_capacity_tokens,
        }
        return {name: float(value) for name, value in sizes.items() if value}


# Of a size: profiling of the free memory at each start of vLLM gives a KV cache of another size, by a few percent.
SIZE_TOLERANCE = 0.05
SIZE_READINGS = 2  # in a row that show another size: a page of several engines may lose one for a moment


def size_change(before: Mapping[str, float], now: Mapping[str, float]) -> EngineChange | None:
    """The change of an engine's size by more than SIZE_TOLERANCE; None without one. A size that either lacks is no change."""
    names = [name for name in now if name in before and abs(now[name] - before[name]) > SIZE_TOLERANCE * before[name]]
    texts = (
        ", ".join(f"{size[name]:,.0f} {name.removesuffix('s') if size[name] == 1 else name}" for name in names)
        for size in (before, now)
    )
    return EngineChange("size", *texts) if names else None


class SteadySize:
    """The size of an engine by the readings of its page; another one counts once SIZE_READINGS in a row agree on it."""

    def __init__(self, size: Mapping[str, float] = MappingProxyType({})) -> None:
        self.size = dict(size)
        self._next: Mapping[str, float] = {}
        self._agreeing = 0

    def take(self, size: Mapping[str, float]) -> EngineChange | None:
        """Add the size in the next reading; return a change that it confirms. Sizes that the reading lacks stay."""
        change = size_change(self.size, size)
        if change is None:
            self.size, self._agreeing = {**size, **self.size}, 0
            return None
        self._agreeing = 1 if not self._agreeing or size_change(self._next, size) else self._agreeing + 1
        self._next = size
        if self._agreeing < SIZE_READINGS:
            return None
        self.size, self._agreeing = {**self.size, **size}, 0
        return change


class PageReading(NamedTuple):
    """One reading of an engine's metrics page within a continuous record.

    at_ns: nanoseconds of the monotonic clock
    epoch: changes if counters fall or ranks come or go: never subtract totals of different epochs
    signals: its totals never fall within an epoch
    """

    at_ns: int
    epoch: int
    signals: EngineSignals


FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
COUNTER_SIGNALS = tuple(signal.name for signal in fields(EngineSignals) if signal.name.endswith("_total"))
HISTOGRAM_SIGNALS = tuple(signal.name for signal in fields(EngineSignals) if signal.type == EngineHistogram | None)


def without_buckets(signals: EngineSignals) -> EngineSignals:
    """The signals with only count and sum of each histogram, to store many readings in less memory."""
    histograms = ((name, getattr(signals, name)) for name in HISTOGRAM_SIGNALS)
    totals: dict[str, Any] = {
        name: EngineHistogram((), histogram.counts[-1:], histogram.sum)
        for name, histogram in histograms
        if histogram is not None
    }
    return replace(signals, **totals)


class Aggregation(Enum):
    """How the series of several ranks, servers or models combine into one value."""

    SUM = "sum"
    MAX = "max"
    MEAN = "mean"
    FIRST = "first"


@dataclass(frozen=True, slots=True)
class Source:
    """A metric from which a signal is read: value × scale + offset of its samples, at least 0; or its histogram for a histogram signal.

    metric: name of the samples; for a histogram without `_bucket`, `_sum`, `_count`
    aggregation: None: as in AGGREGATIONS for the signal, else a sum
    where: allowed values per label; a series without the label is included, unless `zero_beside` is set
    zero_beside: a metric whose presence shows that the page counts this too: a counter whose series appear with the first event is then
        0 before it, instead of missing. If it is `metric` itself, the labels of `where` must be on it
    labels: numeric labels of an info series whose product is the value; missing unless all are numbers
    scale: converts the unit of the value, or of the bounds of the histogram
    since, until: releases with the metric: from `since`, before `until`
    expected: these releases export it by default, so its absence is reported
    """

    metric: str
    aggregation: Aggregation | None = None
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    scale: float = 1.0
    offset: float = 0.0
    since: str | None = None
    until: str | None = None
    expected: bool = True
    zero_beside: str | None = None

    def renamed(self, old: str, new: str) -> "Source":
        """The same source in an engine with another prefix."""
        beside = self.zero_beside and self.zero_beside.replace(old, new, 1)
        return replace(self, metric=self.metric.replace(old, new, 1), zero_beside=beside)


@dataclass(frozen=True, slots=True)
class Computed:
    """A value computed from several metrics. A sum and a maximum need only the first of them; a product and a ratio (of two) need all.

    A ratio is missing if the second value is 0. since, until, expected: as in `Source`
    """

    operation: Literal["sum", "max", "product", "ratio"]
    parts: tuple[Source, ...]
    since: str | None = None
    until: str | None = None
    expected: bool = True

    def renamed(self, old: str, new: str) -> "Computed":
        """The same source in an engine with another prefix."""
        return replace(self, parts=tuple(part.renamed(old, new) for part in self.parts))


AnySource = Source | Computed


def optional(metric: str) -> Source:
    """A metric that the engine does not export by default: its absence is not reported."""
    return Source(metric, expected=False)


SERVER_ERRORS = tuple(map(str, range(500, 600)))  # status codes


def total(*parts: Source) -> Computed:
    """The sum of several metrics, the first of which must be there; its absence is not reported."""
    return Computed("sum", parts, expected=False)


def counted(metric: str, label: str, values: tuple[str, ...], beside: str | None = None) -> Source:
    """A counter by a label whose series appear with the first event; 0 before it. beside: see `Source.zero_beside`"""
    return Source(metric, where={label: values}, zero_beside=beside or metric, expected=False)


AGGREGATIONS: Mapping[str, Aggregation] = {  # for signals that are not summed over ranks and servers
    "kv_cache_usage_ratio_max": Aggregation.MAX,
    "kv_cache_usage_ratio_mean": Aggregation.MEAN,
    "pool_saturation_ratio": Aggregation.MAX,
    "speculation_acceptance_ratio": Aggregation.MAX,
    "speculation_length_tokens": Aggregation.MAX,
    "start_time_seconds": Aggregation.FIRST,
    "uptime_seconds": Aggregation.FIRST,
}


def signals(**places: str | AnySource | tuple[str | AnySource, ...]) -> dict[str, tuple[AnySource, ...]]:
    """Build {signal: sources in the order to try}. A text is the name of a metric.

    `kv_cache_usage_ratio` sets kv_cache_usage_ratio_max and kv_cache_usage_ratio_mean.
    """
    sources: dict[str, tuple[AnySource, ...]] = {}
    for name, value in places.items():
        in_order = value if isinstance(value, tuple) else (value,)
        of_signal = tuple(Source(place) if isinstance(place, str) else place for place in in_order)
        is_usage = name == "kv_cache_usage_ratio"
        sources.update(dict.fromkeys((f"{name}_max", f"{name}_mean") if is_usage else (name,), of_signal))
    return sources


@dataclass(frozen=True, slots=True)
class PageShape:
    """How to recognise a metrics page: it has a metric with one of `prefixes`, or all of `names`.

    with_label, without_label: label of at least one of the prefixed series; label of none of them
    without_names: metrics that the page must lack
    openmetrics: the page ends with `# EOF`; None: not checked
    """

    prefixes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    with_label: str | None = None
    without_label: str | None = None
    without_names: tuple[str, ...] = ()
    openmetrics: bool | None = None


@dataclass(frozen=True, slots=True)
class OfModel:
    """A step of a JSON path: the item of a list whose `key` is the name of the requested model."""

    key: str


@dataclass(frozen=True, slots=True)
class JsonFact:
    """A fact that the engine reports as JSON, outside its metrics page.

    name: version, model, context_tokens, capacity_tokens or requests_max. For the context of a result: a field of `Context`,
        engine_version, or tensor_parallel, pipeline_parallel and data_parallel, which form `parallelism`
    path: URL path of the JSON document, with its query
    json_path: keys and indexes of the value
    absent: the fact if the value is null; None: the fact is then unknown
    is_text: a long text; the result stores a digest of it
    is_setting: a flag, whose change is a change of the engine: every value counts, also `auto`, true and false; null is `none`
    """

    name: str
    path: str
    json_path: tuple[str | int | OfModel, ...]
    absent: str | None = None
    is_text: bool = False
    is_setting: bool = False


@dataclass(frozen=True, slots=True)
class EngineTable:
    """The metrics page of one generation of an engine, as data.

    engine: name of the engine; equal to the name of its dialect, if it has one
    paths: URL paths of the metrics page, to try in order; empty: the engine has none, and `note` says so
    port: port of the metrics page; None: that of the API
    model_labels: labels that contain the model name
    rank_label: label with the data-parallel rank that a client can choose; "": it cannot
    duplicate_labels: series that differ only in these labels are copies
    flags: (info series, its labels that are settings)
    lazy: counters and histograms appear only after the first request
    needs: how to enable the metrics page
    note: other information for the operator
    """

    engine: str
    shape: PageShape | None = None
    signals: Mapping[str, tuple[AnySource, ...]] = field(default_factory=dict)
    paths: tuple[str, ...] = ("/metrics",)
    port: int | None = None
    model_labels: tuple[str, ...] = ("model_name",)
    rank_label: str = ""
    duplicate_labels: tuple[str, ...] = ()
    flags: tuple[tuple[str, tuple[str, ...]], ...] = ()
    lazy: bool = False
    facts: tuple[JsonFact, ...] = ()
    start_time_header: str | None = None
    needs: str = ""
    note: str = ""


def with_renamed_metrics(table: EngineTable, *, engine: str, old: str, new: str, shape: PageShape) -> EngineTable:
    """The table of an engine that exports another engine's metrics under its own prefix."""
    signals = {
        signal: tuple(source.renamed(old, new) for source in sources) for signal, sources in table.signals.items()
    }
    flags = tuple((metric.replace(old, new, 1), labels) for metric, labels in table.flags)
    return replace(table, engine=engine, shape=shape, signals=signals, flags=flags)


def latest_release(table: EngineTable) -> EngineTable:
    """The table with only the newest release's sources, for an engine with these metrics but its own version numbers."""
    signals = {
        signal: tuple(replace(source, since=None) for source in sources if source.until is None)
        for signal, sources in table.signals.items()
    }
    return replace(table, signals=signals)
