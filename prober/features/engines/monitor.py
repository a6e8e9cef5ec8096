"""Reads the metrics page of each target's engine while the target is probed, exports its signals as series, and follows the model
that its answers name."""

import asyncio
import json
import logging
from collections.abc import Iterator, Sequence

from prober.config.target import TargetSpec
from prober.exposition.families import Registry
from prober.features.engines import series
from prober.features.engines.answering_model import AnsweringModel
from prober.features.engines.continuity import Continuity, EngineIdentity
from prober.features.engines.page_reader import PageReader
from prober.measure.engine_signals import EngineChange, EngineInfo, PageReading
from prober.measure.event import TargetEvent
from prober.measure.gpu_reading import GpuReading
from prober.measure.result import ProbeResult
from prober.probing.event_log import EventLog
from prober.probing.observer import ObservedTarget, TargetObserver
from prober.probing.supervisor import Supervisor
from prober.storage.saved_rows import SavedRows

_VALUES = (
    (series.ENGINE_CONTEXT, "context_tokens"),
    (series.ENGINE_RUNNING, "requests_running"),
    (series.ENGINE_WAITING, "requests_waiting"),
    (series.ENGINE_KV_USAGE, "kv_cache_usage_ratio_max"),
    (series.ENGINE_KV_CAPACITY, "kv_cache_capacity_tokens"),
    (series.ENGINE_PREEMPTIONS, "preemptions_total"),
    (series.ENGINE_PREFIX_QUERIES, "prefix_cache_queries_tokens_total"),
    (series.ENGINE_PREFIX_HITS, "prefix_cache_hits_tokens_total"),
    (series.ENGINE_PROMPT_TOKENS, "prompt_tokens_total"),
    (series.ENGINE_GENERATION_TOKENS, "generation_tokens_total"),
    (series.ENGINE_REQUESTS, "requests_finished_total"),
)
_HISTOGRAMS = (
    (series.ENGINE_TTFT, "ttft_seconds"),
    (series.ENGINE_ITL, "itl_seconds"),
    (series.ENGINE_QUEUE, "queue_seconds"),
)
_ANSWERED_MODEL = "answered_model"  # among the saved facts
log = logging.getLogger(__name__)


class EngineMonitor:
    """Engines of all targets. saved: facts of engines by key of the target, from `states` of an earlier process."""

    def __init__(self, registry: Registry, events: EventLog, saved: SavedRows) -> None:
        self.registry, self.events, self.supervisor = registry, events, Supervisor(registry)
        self._saved = saved
        self._targets: dict[str, TargetEngine] = {}  # by key

    def observe(self, observed: ObservedTarget) -> "TargetEngine":
        """Observe the engine of one target; a renamed target keeps its engine."""
        key = observed.target.spec.key
        before = self._targets.get(key)
        if before is None:
            facts = (
                self._saved.pop(key, _facts, f"target={observed.name}: the saved facts of its engine cannot be read")
                or {}
            )
            answering = AnsweringModel(facts.pop(_ANSWERED_MODEL, ""))
            continuity = Continuity(EngineIdentity(facts))
        else:
            continuity, answering = before.continuity, before.answering
        observer = self._targets[key] = TargetEngine(self, observed, continuity, answering)
        return observer

    def forget(self, target: "TargetEngine") -> None:
        """Forget a removed target, unless it has a new observer."""
        if self._targets.get(target.key) is target:
            del self._targets[target.key]

    def states(self) -> Iterator[tuple[str, bytes]]:
        """(key of the target, facts of its engine), to recognise changes across restarts of the prober."""
        for key, target in list(self._targets.items()):
            answered = {_ANSWERED_MODEL: target.answering.model} if target.answering.model else {}
            if facts := target.continuity.identity.facts | answered:
                yield key, json.dumps(facts).encode()


def _facts(data: bytes) -> dict[str, str]:
    """Saved facts of an engine. Raises ValueError."""
    facts = json.loads(data)
    if not isinstance(facts, dict) or not all(isinstance(fact, str) for fact in facts.values()):
        raise ValueError("these are no facts of an engine")
    return facts


class TargetEngine(TargetObserver):
    """Engine of one target. Signals that its page lacks have no series."""

    def __init__(
        self, monitor: EngineMonitor, observed: ObservedTarget, continuity: Continuity, answering: AnsweringModel
    ) -> None:
        self.key, self.continuity, self.answering = observed.target.spec.key, continuity, answering
        self._monitor, self._registry = monitor, monitor.registry
        self._observed, self._name, self._spec = observed, observed.name, observed.target.spec
        self._reading: asyncio.Task[None] | None = None
        self._page_info: EngineInfo | None = None
        self._requested_model = self._engine = ""  # of the last answer that named a model
        self._changed_to = ""  # model of the last change
        self._declare()

    @property
    def other_model(self) -> str:
        """The model that answers name, or several of them, if it is not the one that is asked for; else ""."""
        answered = self.answering.text
        return answered if self._requested_model not in ("", answered) else ""

    def configured(self) -> None:
        before, self._spec = self._spec, self._observed.target.spec
        if not _is_same_page(before, self._spec):
            self.continuity = Continuity(self.continuity.identity, self.continuity.epoch + 1)
            self._observed.page_changed()
            self._observed.page_read(None)
        if (before.url, before.model) != (self._spec.url, self._spec.model):
            self.answering = AnsweringModel()
            self._show_info()
        self._declare()

    def started(self) -> None:
        target = self._observed.target
        if target.spec.metrics is not None and self._reading is None:
            reader = PageReader(
                target, target.spec.metrics, target.clock, self._observed, lambda: self._name, self.continuity
            )
            self._reading = self._monitor.supervisor.start("engine_page", reader.run, f"target={self._name}")

    def stopped(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def removed(self) -> None:
        self.stopped()
        self._monitor.forget(self)

    def page_read(self, reading: PageReading | None) -> None:
        registry, name = self._registry, self._name
        signals = reading.signals if reading else None
        if signals is None and self._spec.metrics is None:
            registry.show(series.ENGINE_UP, None, name)
        else:
            registry.show(series.ENGINE_UP, float(signals is not None), name)
        for declared, field in _VALUES:
            registry.show(declared, getattr(signals, field) if signals else None, name)
        for declared, field in _HISTOGRAMS:
            histogram = getattr(signals, field) if signals else None
            if histogram is None:
                registry.show(declared, None, name)
            else:
                child = registry.histogram(declared, histogram.bounds, name)
                child.take_over(histogram.counts, histogram.sum or 0.0)
        self._page_info = signals.info if signals else None
        self._show_info()

    def probe_ended(self, result: ProbeResult) -> None:
        answered, sent_ns = result.timeline.answered_model, result.timeline.sent_ns
        if not answered or sent_ns is None or result.adapter:
            return
        is_first, before = not self.answering.model, (self._requested_model, self._engine, self.answering.text)
        self._requested_model, self._engine = result.model, result.engine
        change = self.answering.take(answered, sent_ns / 1e9)
        if change is not None and change.new != self._changed_to:  # else the page has told it
            self._observed.engine_changed(change)
        if is_first and answered != result.model:
            self._record(f"answers name the model {answered}, requested is {result.model}")
        if before != (self._requested_model, self._engine, self.answering.text):
            self._show_info()

    def gpus_read(self, devices: Sequence[GpuReading], driver: str) -> None:
        if devices and driver:
            for change in self.continuity.identity.update({"driver": driver}):
                self._observed.engine_changed(change)

    def engine_changed(self, change: EngineChange) -> None:
        kind = change.kind if change.kind in series.ENGINE_CHANGE_KINDS else "flags"
        self._registry.value(series.ENGINE_CHANGES, self._name, kind).inc()
        self._registry.show(series.ENGINE_LAST_CHANGE, self._observed.target.clock.unix_s(), self._name, kind)
        self._record(change.text())
        if kind == "model":
            self._changed_to = change.new

    def _record(self, text: str) -> None:
        log.info("target=%s engine: %s", self._name, text)
        unix_s = self._observed.target.clock.unix_s()
        self._monitor.events.append(TargetEvent(unix_s, self._name, "engine", text))

    def _show_info(self) -> None:
        """Export the identity: that of the page, with the model that answers name if it is not the one asked for."""
        info, answered = self._page_info, self.answering.text
        if info is None and answered:
            info = EngineInfo(self._engine, model=answered)
        model = self.other_model or (info.model if info else None) or ""
        labels = (self._name, info.engine, info.version or "", model) if info else None
        self._registry.keep(series.ENGINE_INFO, {labels} if labels else (), self._name)
        if labels:
            self._registry.show(series.ENGINE_INFO, 1.0, *labels)

    def _declare(self) -> None:
        if self._spec.metrics is not None:
            self._registry.value(series.ENGINE_UP, self._name)
        for kind in series.ENGINE_CHANGE_KINDS if self._spec.metrics is not None else ("model",):
            self._registry.value(series.ENGINE_CHANGES, self._name, kind)


def _is_same_page(before: TargetSpec, after: TargetSpec) -> bool:
    """Whether both read the page at the same address: the configured one, or the one found on the server of the target."""
    if before.metrics is None or after.metrics is None or before.metrics.url != after.metrics.url:
        return False
    return after.metrics.url is not None or (before.url, before.engine) == (after.url, after.engine)
