"""Watches whether the answers of each target arrive held back, and shows it as a series and as an event."""

import logging

from prober.exposition.families import Registry
from prober.measure.buffering import Buffering
from prober.measure.event import TargetEvent
from prober.measure.outcome import ANSWERED
from prober.measure.result import ProbeResult
from prober.probing import series
from prober.probing.event_log import EventLog
from prober.probing.observer import ObservedTarget, TargetObserver

log = logging.getLogger(__name__)


class TargetBuffering(TargetObserver):
    """The verdict on one target. All workloads are judged together, since they take the same way."""

    def __init__(self, registry: Registry, events: EventLog, observed: ObservedTarget) -> None:
        self._registry, self._events, self._observed = registry, events, observed
        self.buffering = Buffering()

    def probe_ended(self, result: ProbeResult) -> None:
        if result.outcome not in ANSWERED:
            return
        before, self.buffering = self.buffering.is_buffered, self.buffering.after(result.timeline)
        now, name = self.buffering.is_buffered, self._observed.name
        self._registry.show(series.BUFFERED, None if now is None else float(now), name)
        if now != before and (now or before):
            text = f"buffered: {self.buffering.text}" if now else f"no longer buffered: {self.buffering.text}"
            log.info("target=%s %s", name, text)
            self._events.append(TargetEvent(self._observed.target.clock.unix_s(), name, "state", text))
