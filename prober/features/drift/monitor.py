"""Watches the latencies of all targets for drift: takes probe results, exports series and events, and saves the states."""

import asyncio
import json
import logging
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from prober.config.configuration import Configuration, DriftSpec
from prober.config.units import counted
from prober.exposition.buckets import representatives
from prober.exposition.families import Registry
from prober.features.drift import series
from prober.features.drift.blocks import BLOCK_COUNT, BLOCK_SAMPLES, DAY_S
from prober.features.drift.detector import follow_clock, present_verdict, seed, step
from prober.features.drift.serialization import dump, restore
from prober.features.drift.state import (
    Drift,
    DriftStatus,
    DriftVerdict,
    Observation,
    Settings,
    Shift,
    new_state,
    shifts,
)
from prober.measure.engine_signals import PageReading
from prober.measure.outcome import ANSWERED
from prober.measure.result import ProbeResult
from prober.measure.target_state import TargetEvent
from prober.net.prometheus import HOUR_S, QueryFailed, hourly_histograms
from prober.probing.feature import SavedTargets
from prober.probing.history import EventLog
from prober.probing.observer import ObservedTarget, TargetObserver
from prober.probing.series import TTFT
from prober.statistics.quantiles import percentile_name
from prober.storage.saved_rows import Moment, SavedRows, moment

SAVE_TIMEOUT_S = 30.0  # for a hanging disk: then a verdict is published before its state is saved
MAX_LOAD_AGE_INTERVALS = 3  # intervals of the engine's page, after which a load is too old
RECURRENCE_S = 1_800.0  # between similar times of day: evidence of a burst takes half an hour to fall
LOAD_WINDOW_S = 60.0  # in which arrivals are counted
MAX_READINGS = 128  # stored
NEEDED_SAMPLES = BLOCK_SAMPLES * BLOCK_COUNT
RECALL_HOURS = 7 * 24
RECALL_INTERVAL_S = 60.0
MAX_RECALLS = 60  # a target's model may be unknown at first; after an hour, baselines are learned from new samples

SignalKey = tuple[str, str]  # workload, signal
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Detector:
    """The detector of one signal.

    verdict: None before the first sample
    unpublished: (Unix seconds, verdict, shifts) to publish once their state is saved
    """

    state: Drift
    verdict: DriftVerdict | None = None
    shifts: tuple[Shift, ...] = ()
    unpublished: list[tuple[float, DriftVerdict, tuple[Shift, ...]]] = field(default_factory=list)


class DriftMonitor(SavedTargets["TargetDrift"]):
    """The drift of all targets.

    has_store: publish baselines and alarms only once their state is saved, so that a kill loses nothing published
    prometheus_url: source of past samples for missing baselines; None without a Prometheus
    """

    task, saving_task = "baselines", "states"

    def __init__(
        self,
        registry: Registry,
        events: EventLog,
        spec: DriftSpec,
        saved: SavedRows,
        *,
        has_store: bool = False,
    ) -> None:
        super().__init__(saved)
        self.registry, self.events, self.spec, self.has_store = registry, events, spec, has_store
        self.prometheus_url: str | None = None
        self._changed = asyncio.Event()
        self._unsaved: set[tuple[str, SignalKey]] = set()  # changed states not yet returned for saving
        self._saving: set[tuple[str, SignalKey]] = set()

    def observe(self, observed: ObservedTarget) -> "TargetDrift":
        """Watch one target, continuing from its saved baselines."""
        return self.add(TargetDrift(self, observed))

    def forget(self, target: "TargetDrift") -> None:
        super().forget(target)
        self._unsaved = {(name, key) for name, key in self._unsaved if name != target.name}

    def configured(self, configuration: Configuration) -> None:
        """Apply changed settings; baselines stay."""
        self.prometheus_url = configuration.prometheus_url
        if configuration.drift != self.spec:
            self.spec = configuration.drift
            for detector in (detector for target in self.targets.values() for detector in target.detectors.values()):
                settings = replace(detector.state.settings, spec=self.spec)
                if settings != detector.state.settings:
                    detector.state = restore(settings, dump(detector.state))

    def states(self) -> Iterator[tuple[str, bytes]]:
        """(name, state) of every detector, to save."""
        for name, target in list(self.targets.items()):
            for key in list(target.detectors):
                yield from self._state(name, key)

    async def wait_for_changes(self) -> None:
        await self._changed.wait()

    def changed_states(self) -> Iterator[tuple[str, bytes]]:
        """(name, state) of detectors that gained or lost a baseline or an alarm since the last call."""
        self._changed.clear()
        while self._unsaved:
            yield from self._state(*next(iter(self._unsaved)))

    def states_saved(self) -> None:
        """Publish the verdicts of the states last returned by `changed_states`, which were saved or cannot be saved."""
        for name, key in self._saving - self._unsaved:
            if (target := self.targets.get(name)) is not None:
                target.publish_waiting(key)
        self._saving.clear()

    def needs_saving(self, name: str, key: SignalKey) -> None:
        """Add the state of a detector to the next `changed_states`."""
        self._unsaved.add((name, key))
        self._changed.set()

    async def run(self) -> None:
        """Learn missing baselines from Prometheus, so that a pod of a new rollout is compared with the time before."""
        for _ in range(MAX_RECALLS):
            for name, *key in self.without_baseline("ttft"):
                if self.prometheus_url is not None and (target := self.targets.get(name)) is not None:
                    await target.recall(self.prometheus_url, (key[0], key[1]))
            await asyncio.sleep(RECALL_INTERVAL_S)

    def without_baseline(self, signal: str) -> list[tuple[str, str, str]]:
        """(target, workload, signal) of the detectors without a baseline."""
        return [
            (name, *key)
            for name, target in self.targets.items()
            for key, detector in target.detectors.items()
            if key[1] == signal and detector.state.baseline is None
        ]

    def _state(self, name: str, key: SignalKey) -> Iterator[tuple[str, bytes]]:
        self._unsaved.discard((name, key))
        target = self.targets.get(name)
        if target is not None and (state := target.state(key)) is not None:
            self._saving.add((name, key))
            yield name_of_state(name, key), state


class TargetDrift(TargetObserver):
    """Drift of one target that streams: per workload, a detector for TTFT and one for ITL.

    detectors: by workload and signal
    """

    def __init__(self, monitor: DriftMonitor, observed: ObservedTarget) -> None:
        self.name = observed.name
        self._monitor, self._observed = monitor, observed
        # (ns of the monotonic clock, epoch, requests that arrived at the engine)
        self._arrivals: deque[tuple[int, int, float]] = deque(maxlen=MAX_READINGS)
        self.detectors: dict[SignalKey, Detector] = {}
        for probe in observed.spec.probes if observed.spec.stream else ():
            for workload, _, rate, _ in probe.judged():
                for signal in ("ttft", "itl"):
                    key, settings = (workload, signal), Settings(rate, monitor.spec)
                    consequence = (
                        f"target={self.name} workload={workload} signal={signal}: the saved baseline is learned again"
                    )
                    saved = monitor.saved.pop(name_of_state(self.name, key), partial(restore, settings), consequence)
                    self.detectors[key] = Detector(saved or new_state(settings))
                    self._declare(key)

    def probe_ended(self, result: ProbeResult) -> None:
        """Pass two samples to the detectors: TTFT, and the p99 of the answer's ITLs (the longest, if fewer than 100)."""
        if result.outcome not in ANSWERED or result.warm_up or result.cached:
            return
        load = self._load_at(result.timeline.intended_ns)
        at = moment(result.timeline.intended_ns, result.unix_s)
        bounds, itls = result.timeline.bounds_s("ttft"), sorted(result.timeline.itls_s)
        if bounds is not None:
            # The middle of an interval. Its width depends on the prober, so leaving wide ones out would bias the samples.
            self._step((result.workload, "ttft"), Observation(at.unix_s, sum(bounds) / 2, load), at)
        if itls:
            p99 = itls[math.ceil(0.99 * len(itls)) - 1]
            self._step((result.workload, "itl"), Observation(at.unix_s, max(p99, 1e-9), load), at)

    def page_read(self, reading: PageReading | None) -> None:
        if reading is not None and (arrived := reading.signals.requests_arrived_total) is not None:
            self._arrivals.append((reading.at_ns, reading.epoch, arrived))

    def removed(self) -> None:
        self._monitor.forget(self)

    def summary(self) -> dict[str, Any]:
        statuses = [
            DriftStatus(*key, detector.verdict or present_verdict(detector.state), detector.shifts)
            for key, detector in self.detectors.items()
        ]
        return {"drift": statuses}

    def states(self) -> Iterator[tuple[str, bytes]]:
        for key, detector in self.detectors.items():
            yield name_of_state(self.name, key), dump(detector.state)

    def state(self, key: SignalKey) -> bytes | None:
        """The state of a detector to save; None if the signal is not watched."""
        detector = self.detectors.get(key)
        return dump(detector.state) if detector is not None else None

    def seed(self, key: SignalKey, samples: list[Observation]) -> None:
        """Learn a baseline from past samples, unless there is one. Raises ValueError for too few."""
        detector = self.detectors.get(key)
        if detector is not None and detector.state.baseline is None:
            detector.state = seed(detector.state, samples)
            self._monitor.needs_saving(self.name, key)

    async def recall(self, url: str, key: SignalKey) -> None:
        """Learn a TTFT baseline from its series in the Prometheus at `url`; failures are logged."""
        (workload, signal), now_unix_s = key, self._observed.target.clock.unix_s()
        labels = {"target": self.name, "workload": workload}
        try:
            hours = await hourly_histograms(url, TTFT.name, labels, now_unix_s, RECALL_HOURS)
            observations = sum(buckets[-1][1] for _, buckets in hours)
            if observations < NEEDED_SAMPLES:
                return
            per_hour = math.ceil(1.05 * NEEDED_SAMPLES / len(hours))
            samples = [
                Observation(middle + HOUR_S * ((i + 0.5) / per_hour - 0.5), value)
                for middle, buckets in hours
                for i, value in enumerate(representatives(buckets, per_hour))
            ]
            self.seed(key, samples)
            text = "target=%s workload=%s signal=%s: baseline from %s, %.0f samples"
            log.info(text, self.name, workload, signal, url, observations)
        except (QueryFailed, ValueError) as problem:
            text = "prometheus.url: no baseline of target=%s signal=%s from the past: %s"
            log.warning(text, self.name, signal, problem)

    def publish_waiting(self, key: SignalKey) -> None:
        """Publish the verdicts whose state is now saved."""
        if (detector := self.detectors.get(key)) is not None:
            waiting, detector.unpublished = detector.unpublished, []
            for verdict in waiting:
                self._publish(key, detector, *verdict)

    def _load_at(self, at_ns: int) -> float | None:
        """Requests per second in the minute before the last page reading before `at_ns`; None if that is too old.

        The number of requests in the engine is no measure of load: it rises if the engine gets slower (Little's law).
        """
        metrics = self._observed.target.spec.metrics
        if metrics is None:
            return None
        readings = (reading for reading in reversed(self._arrivals) if reading[0] <= at_ns)
        last = next(readings, None)
        if last is None or at_ns - last[0] > MAX_LOAD_AGE_INTERVALS * metrics.interval * 1e9:
            return None
        longest_s = MAX_LOAD_AGE_INTERVALS * max(LOAD_WINDOW_S, metrics.interval)
        for read_ns, epoch, arrived in readings:
            if epoch != last[1] or (last[0] - read_ns) / 1e9 > longest_s:
                break
            if (last[0] - read_ns) / 1e9 >= LOAD_WINDOW_S:
                return max(0.0, last[2] - arrived) / ((last[0] - read_ns) / 1e9)
        return None

    def _step(self, key: SignalKey, observation: Observation, at: Moment) -> None:
        detector = self.detectors.get(key)
        if detector is None:
            return
        follow_clock(detector.state, at.boot, at.unix_s, at.monotonic_ns / 1e9)
        detector.state, verdict = step(detector.state, observation)
        moved = tuple(shifts(detector.state)) if verdict.active else ()
        if verdict.event:
            self._monitor.needs_saving(self.name, key)
        if self._monitor.has_store and (verdict.event or detector.unpublished):
            detector.unpublished.append((observation.unix_s, verdict, moved))
            if observation.unix_s - detector.unpublished[0][0] > SAVE_TIMEOUT_S:
                self.publish_waiting(key)
        else:
            self._publish(key, detector, observation.unix_s, verdict, moved)

    def _publish(
        self, key: SignalKey, detector: Detector, unix_s: float, verdict: DriftVerdict, moved: tuple[Shift, ...]
    ) -> None:
        was_drift = detector.verdict is not None and detector.verdict.is_drift
        detector.verdict, detector.shifts = verdict, moved
        self._show(key, verdict, moved)
        workload, signal = key
        if verdict.is_drift != was_drift:
            self._observed.drifted(workload, signal, active=verdict.is_drift)
        if verdict.event:
            text = f"{signal} of {workload}: {verdict.event}" + (f", {verdict.why}" if verdict.active else "")
            if verdict.event in ("burst", "alarm"):
                text += self._recurrence(f"{signal} of {workload}: ", unix_s)
            self._monitor.events.record(log, TargetEvent(unix_s, self.name, "drift", text), f"drift: {text}")

    def _recurrence(self, latency: str, unix_s: float) -> str:
        """Text with the number of earlier days in the event log with a burst or alarm at about this time of day; or ""."""
        events = self._monitor.events.latest(self.name)
        kinds = (latency + "burst", latency + "alarm")
        ago = [(unix_s - event.unix_s) / DAY_S for event in events if event.text.startswith(kinds)]
        days = {round(day) for day in ago if abs(day - round(day)) * DAY_S <= RECURRENCE_S} - {0}
        return f", as on {counted(len(days), 'earlier day')} at about this time" if days else ""

    def _declare(self, key: SignalKey) -> None:
        """Export the state that is saved or new: the first sample may be long in coming."""
        for event in series.DRIFT_EVENT_KINDS:
            self._monitor.registry.value(series.DRIFT_EVENTS, self.name, *key, event)
        self._show(key, present_verdict(self.detectors[key].state), ())

    def _show(self, key: SignalKey, verdict: DriftVerdict, moved: tuple[Shift, ...]) -> None:
        """Export the verdict. Start and size of a shift are only exported while it is active."""
        registry, labels = self._monitor.registry, (self.name, *key)
        registry.show(series.DRIFT_EVIDENCE, verdict.evidence, *labels)
        registry.show_one(series.DRIFT_ACTIVE, verdict.cause if verdict.active else None, series.DRIFT_CAUSES, *labels)
        registry.show_one(series.BASELINE_STATE, verdict.phase, series.DRIFT_PHASES, *labels)
        registry.show_one(series.DRIFT_LOAD, verdict.load, series.DRIFT_LOADS, *labels)
        if verdict.event:
            registry.value(series.DRIFT_EVENTS, *labels, verdict.event).inc()
        registry.show(series.DRIFT_SINCE, verdict.since_unix_s if verdict.active else None, *labels)
        ratios = {
            (*labels, percentile_name(shift.q), bound): ratio
            for shift in moved
            for bound, ratio in (("lower", shift.lower), ("estimate", shift.ratio), ("upper", shift.upper))
        }
        registry.keep(series.DRIFT_SHIFT, ratios, *labels)
        for shift_labels, ratio in ratios.items():
            registry.show(series.DRIFT_SHIFT, ratio, *shift_labels)


def name_of_state(name: str, key: SignalKey) -> str:
    """Key of a state in the store."""
    return json.dumps((name, *key))
