"""The engine of each target: its page is read while the target is probed, and shown as series."""

import asyncio
import json
import logging
from collections.abc import Iterator, Mapping, Sequence

from prober.config.target import TargetSpec
from prober.exposition.families import Registry
from prober.features.engines import series
from prober.features.engines.continuity import Continuity, EngineIdentity
from prober.features.engines.page_reader import PageReader
from prober.measure.engine_signals import EngineChange, PageReading
from prober.measure.event import TargetEvent
from prober.measure.gpu_reading import GpuReading
from prober.probing.event_log import EventLog
from prober.probing.observer import ObservedTarget, TargetObserver

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
log = logging.getLogger(__name__)


class EngineMonitor:
    """The engines of all targets. saved: facts of their engines by the targets' keys, as `states` gave them to an earlier process."""

    def __init__(self, registry: Registry, events: EventLog, saved: Mapping[str, bytes]) -> None:
        self.registry, self.events = registry, events
        self._saved = dict(saved)
        self._targets: dict[str, TargetEngine] = {}  # by key

    def observe(self, observed: ObservedTarget) -> "TargetEngine":
        """The engine of one target; under another name it is the same engine."""
        key = observed.target.spec.key
        before = self._targets.get(key)
        if before is None:
            continuity = Continuity(EngineIdentity(json.loads(self._saved.pop(key, b"{}"))))
        else:
            continuity = before.continuity
        observer = self._targets[key] = TargetEngine(self, observed, continuity)
        return observer

    def forget(self, target: "TargetEngine") -> None:
        """A target is gone, unless it has another observer by now."""
        if self._targets.get(target.key) is target:
            del self._targets[target.key]

    def states(self) -> Iterator[tuple[str, bytes]]:
        """(key of the target, facts of its engine), so that a change over a restart of the prober is seen."""
        for key, target in list(self._targets.items()):
            if target.continuity.identity.facts:
                yield key, json.dumps(target.continuity.identity.facts).encode()


class TargetEngine(TargetObserver):
    """The engine of one target. What its page does not say has no series."""

    def __init__(self, monitor: EngineMonitor, observed: ObservedTarget, continuity: Continuity) -> None:
        self.key, self.continuity = observed.target.spec.key, continuity
        self._monitor, self._registry = monitor, monitor.registry
        self._observed, self._name, self._spec = observed, observed.name, observed.target.spec
        self._reading: asyncio.Task[None] | None = None
        self._declare()

    def configured(self) -> None:
        before, self._spec = self._spec, self._observed.target.spec
        if not _is_same_page(before, self._spec):
            self.continuity = Continuity(self.continuity.identity, self.continuity.epoch + 1)
            self._observed.page_changed()
            self._observed.page_read(None)
        self._declare()

    def started(self) -> None:
        target = self._observed.target
        if target.spec.metrics is not None and self._reading is None:
            reader = PageReader(
                target, target.spec.metrics, target.clock, self._observed, lambda: self._name, self.continuity
            )
            self._reading = asyncio.create_task(reader.run())

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
                child = registry.family(declared).histogram(histogram.bounds, name)
                child.take_over(histogram.counts, histogram.sum or 0.0)
        info = signals.info if signals else None
        labels = (name, info.engine, info.version or "", info.model or "") if info else None
        registry.keep(series.ENGINE_INFO, {labels} if labels else (), name)
        if labels:
            registry.show(series.ENGINE_INFO, 1.0, *labels)

    def gpus_read(self, devices: Sequence[GpuReading], driver: str) -> None:
        if devices and driver:
            for change in self.continuity.identity.update({"driver": driver}):
                self._observed.engine_changed(change)

    def engine_changed(self, change: EngineChange) -> None:
        kind = change.kind if change.kind in series.ENGINE_CHANGE_KINDS else "flags"
        self._registry.value(series.ENGINE_CHANGES, self._name, kind).inc()
        log.info("target=%s engine: %s", self._name, change.text())
        unix_s = self._observed.target.clock.unix_s()
        self._monitor.events.append(TargetEvent(unix_s, self._name, "engine", change.text()))

    def _declare(self) -> None:
        if self._spec.metrics is not None:
            self._registry.value(series.ENGINE_UP, self._name)
            for kind in series.ENGINE_CHANGE_KINDS:
                self._registry.value(series.ENGINE_CHANGES, self._name, kind)


def _is_same_page(before: TargetSpec, after: TargetSpec) -> bool:
    """Whether both read the page at the same address: the configured one, or the one found on the server of the target."""
    if before.metrics is None or after.metrics is None or before.metrics.url != after.metrics.url:
        return False
    return after.metrics.url is not None or (before.url, before.engine) == (after.url, after.engine)
