"""Watches the efficiency of all targets' engines: takes readings of pages and GPUs, exports series and events, saves the states."""

import logging
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from zlib import crc32

from prober.config.configuration import Configuration, DriftSpec
from prober.exposition.families import Registry
from prober.features.drift import efficiency_series as series
from prober.features.drift.efficiency import (
    HOUR_S,
    MAX_ROW_S,
    Efficiency,
    Event,
    Fall,
    Held,
    Measure,
    dump,
    restore,
    totals_of,
)
from prober.measure.engine_signals import EngineChange, PageReading
from prober.measure.gpu_reading import GpuReading, without_parts
from prober.measure.target_state import TargetEvent
from prober.probing.feature import SavedTargets
from prober.probing.history import EventLog
from prober.probing.observer import ObservedTarget, TargetObserver
from prober.storage.saved_rows import SavedRows

MAX_CHANGES = 8  # of an engine: only those near a fall are named
MAX_AGE_S = 2 * MAX_ROW_S + HOUR_S  # of the start of the last judged row, when the longest one after it ends
log = logging.getLogger(__name__)


class EfficiencyMonitor(SavedTargets["TargetEfficiency"]):
    """The efficiency of all targets' engines."""

    def __init__(self, registry: Registry, events: EventLog, spec: DriftSpec, saved: SavedRows) -> None:
        super().__init__(saved)
        self.registry, self.events, self.spec = registry, events, spec

    def observe(self, observed: ObservedTarget) -> "TargetEfficiency":
        """Watch one target, continuing from its saved hours."""
        return self.add(TargetEfficiency(self, observed))

    def configured(self, configuration: Configuration) -> None:
        if configuration.drift != self.spec:
            self.spec = configuration.drift
            for target in self.targets.values():
                target.state = restore(self.spec, dump(target.state))

    def states(self) -> Iterator[tuple[str, bytes]]:
        """(target name, hours and baselines) to save: of each target once an hour, as a state is large."""
        for target in list(self.targets.values()):
            if target.is_due():
                yield from target.states()


class TargetEfficiency(TargetObserver):
    """The efficiency of one target's engine."""

    def __init__(self, monitor: EfficiencyMonitor, observed: ObservedTarget) -> None:
        self.name, self._monitor, self._observed = observed.name, monitor, observed
        consequence = f"target={self.name}: what its engine's efficiency usually is, is learned again"
        read = partial(restore, monitor.spec)
        self.state: Efficiency = monitor.saved.pop(self.name, read, consequence) or Efficiency(monitor.spec)
        self._saved_unix_s = observed.target.clock.unix_s()
        self._page: PageReading | None = None
        self._totals: dict[str, float] = {}
        # Energy and generated tokens between readings of the GPUs; (epoch, tokens, energy by device) at the last one.
        self._energy: dict[str, float] = {}
        self._at_gpus: tuple[int, float, dict[str, float]] | None = None
        self._show()

    def states(self) -> Iterator[tuple[str, bytes]]:
        """(target name, hours and baselines) to save."""
        yield self.name, dump(self.state)

    def is_due(self) -> bool:
        """True once an hour, when the state is to be saved."""
        now_s = self._observed.target.clock.unix_s()
        is_due = abs(now_s - self._saved_unix_s) >= HOUR_S
        self._saved_unix_s = now_s if is_due else self._saved_unix_s
        return is_due

    def page_read(self, reading: PageReading | None) -> None:
        self._show()  # a verdict may have become too old
        if reading is None:
            return
        before, totals = self._page, totals_of(reading.signals) | self._energy
        last, self._page, self._totals = self._totals, reading, totals
        if before is None or before.epoch != reading.epoch or reading.at_ns - before.at_ns > HOUR_S * 1e9:
            return
        grown = {name: total - last[name] for name, total in totals.items() if name in last}
        unix_s = self._observed.target.clock.unix_s()
        # Learning what is usual takes up to 0.2 s: each target has its own minute, or a fleet would stop the event loop.
        minute_s = crc32(self.name.encode()) % 60 * 60.0
        found = self.state.add(unix_s, grown, (reading.at_ns - before.at_ns) / 1e9, minute_s)
        for finding in found or ():
            text = words(*finding, unix_s)
            self._monitor.events.record(log, TargetEvent(unix_s, self.name, "drift", text), f"efficiency: {text}")
        if found is not None:
            self._show()

    def _is_recent(self, held: Held) -> bool:
        """True if the last judged row still tells of the present: the page is read, and has requests enough."""
        age_s = self._observed.target.clock.unix_s() - held.drift.last_s
        return self._observed.spec.metrics is not None and age_s <= MAX_AGE_S

    def gpus_read(self, devices: Sequence[GpuReading], driver: str) -> None:
        """Pair the energy of all devices with the tokens of the same time; without the energy of one of them there is none."""
        energy = {device.uuid: device.energy_joules for device in without_parts(devices)}
        known = {uuid: joules for uuid, joules in energy.items() if joules is not None}
        tokens = self._page.signals.generation_tokens_total if self._page is not None else None
        last, self._at_gpus = self._at_gpus, None
        if self._page is None or tokens is None or not known or len(known) < len(energy):
            return
        self._at_gpus = (self._page.epoch, tokens, known)
        if last is None or last[0] != self._page.epoch or last[2].keys() != known.keys():
            return
        used = sum(max(0.0, joules - last[2][uuid]) for uuid, joules in known.items())
        for name, more in (("joules", used), ("joule_tokens", tokens - last[1])):
            self._energy[name] = self._energy.get(name, 0.0) + more

    def engine_changed(self, change: EngineChange) -> None:
        self.state.changes = [*self.state.changes, (self._observed.target.clock.unix_s(), change.text())][-MAX_CHANGES:]

    def removed(self) -> None:
        self._monitor.forget(self)

    def summary(self) -> dict[str, list[str]]:
        falls = ((held.measure, held.fall) for held in self.state.held.values() if self._is_recent(held))
        return {"efficiency": [words("dropped", measure, fall) for measure, fall in falls if fall is not None]}

    def _show(self) -> None:
        """Export the verdicts of the measures that have one."""
        registry = self._monitor.registry
        for name, held in self.state.held.items():
            is_recent, labels = self._is_recent(held), (self.name, name)
            fall, latest = (held.fall, held.latest) if is_recent else (None, None)
            cause = None if fall is None else "engine_change" if fall.change else "unknown"
            for each in series.EFFICIENCY_CAUSES:
                registry.show(
                    series.EFFICIENCY_DROPPED, None if latest is None else float(each == cause), *labels, each
                )
            registry.show(series.EFFICIENCY_SINCE, fall.since_unix_s if fall else None, *labels)
            for period, log_cost in zip(series.EFFICIENCY_PERIODS, latest or (None, None), strict=True):
                value = None if log_cost is None else held.measure.value(log_cost)
                registry.show(series.EFFICIENCY, value, *labels, period)


def words(event: Event, measure: Measure, fall: Fall, until_unix_s: float = 0.0) -> str:
    """A fall as a sentence: in the present tense while it lasts, then in the past tense."""
    usual, present = (measure.shown.format(measure.value(log_cost)) for log_cost in (fall.usual, fall.present))
    change = f"; the engine changed at {_clock(fall.change[0])} ({fall.change[1]})" if fall.change else ""
    begun = _clock(fall.since_unix_s)
    if event == "dropped":
        return f"{measure.subject}: {present} since {begun}, {usual} is usual for such requests{change}"
    ended = "usual again" if event == "recovered" else "no longer compared, what is usual is learned again"
    return (
        f"{measure.subject}: was {present} from {begun} to {_clock(until_unix_s)}, {usual} was usual{change}; {ended}"
    )


def _clock(unix_s: float) -> str:
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M} UTC"
