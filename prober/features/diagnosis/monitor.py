"""Why a target is slow: while an SLO is breached or a latency has drifted, the present window against usual ones."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from prober.config.serving import DecodeBoundSpec
from prober.exposition.families import Registry
from prober.features.diagnosis import series
from prober.features.diagnosis.clues import Evidence, WindowFeatures
from prober.features.diagnosis.diagnosis import Diagnosis, diagnose
from prober.features.diagnosis.window import WARM, Hardware, seen
from prober.measure.bandwidth_bound import UnknownFigure, memory_bandwidth
from prober.measure.engine_signals import EngineSignals, PageReading, without_buckets
from prober.measure.event import TargetEvent
from prober.measure.gpu_reading import GpuReading
from prober.measure.objective import Slo
from prober.measure.outcome import ANSWERED, Outcome
from prober.measure.result import ProbeResult
from prober.measure.slo_events import count_events
from prober.probing.event_log import EventLog
from prober.probing.observer import ObservedTarget, TargetObserver

EVALUATE_EVERY_S = 15.0
WINDOW_S = 600.0  # length of the present window, and of a usual one
# Probes of a workload that are looked at, and readings: as many as cost less than 2 ms. Rarer probes from further back.
FEWEST, MOST = 30, 150
LONGEST_S = 6 * 3600.0
USUAL_WINDOWS = 144  # windows that are remembered: a day
BURN = 3  # times the budget that the events of a window are bad, and at least
FEWEST_BAD = 3
# Outcomes that tell of speed: answers, and what was too slow or too busy to give one. A refused or broken answer is not slow.
TELLING = ANSWERED | {
    *(Outcome.TIMEOUT_FIRST_TOKEN, Outcome.TIMEOUT_STALL, Outcome.TIMEOUT_TOTAL),
    *(Outcome.HTTP_408, Outcome.HTTP_429, Outcome.SHED),
}
log = logging.getLogger(__name__)


class DiagnosisMonitor:
    """Evaluates every target now and then."""

    def __init__(self, registry: Registry, events: EventLog) -> None:
        self._registry, self._events = registry, events
        self._targets: set[TargetDiagnosis] = set()

    def observe(self, observed: ObservedTarget) -> "TargetDiagnosis":
        """The diagnosis of one target."""
        observer = TargetDiagnosis(self._registry, self._events, observed, self._targets.discard)
        self._targets.add(observer)
        return observer

    async def run(self) -> None:
        """Evaluate all targets, again and again, until cancelled."""
        while True:
            await asyncio.sleep(EVALUATE_EVERY_S)
            for target in list(self._targets):
                if target in self._targets:  # it may have been removed during this round
                    try:
                        target.evaluate()
                    except Exception:
                        log.exception("target=%s: the diagnosis failed; please report this", target.name)
                await asyncio.sleep(0)


class TargetDiagnosis(TargetObserver):
    """The evidence of one target, and its diagnosis. Workloads go together with their warm half.

    readings, devices: of the engine's page and of the GPUs, each with seconds of the monotonic clock
    diagnosis: None while there is nothing to explain
    """

    def __init__(
        self,
        registry: Registry,
        events: EventLog,
        observed: ObservedTarget,
        on_removed: Callable[["TargetDiagnosis"], None],
    ) -> None:
        self._registry, self._events, self._observed, self._on_removed = registry, events, observed, on_removed
        self.name = observed.name
        self._slos: dict[str, tuple[Slo, ...]] = {}
        self._probes: dict[str, deque[ProbeResult]] = {}
        self._usual: dict[str, deque[WindowFeatures]] = {}
        self._drifted: set[tuple[str, str]] = set()  # workload, signal
        self._window_began_s = self._now_s()
        self.decode: DecodeBoundSpec | None = None
        self.readings: deque[tuple[float, EngineSignals]] = deque(maxlen=MOST)
        self.devices: deque[tuple[float, Sequence[GpuReading]]] = deque(maxlen=MOST)
        self.diagnosis: Diagnosis | None = None
        self.configured()

    def configured(self) -> None:
        spec = self._observed.target.spec
        slos: dict[str, tuple[Slo, ...]] = {}
        for probe in spec.probes:
            for workload, _, _, judged in probe.judged():
                base = workload.removesuffix(WARM)
                slos[base] = (*slos.get(base, ()), *(slo for slo in judged if slo.threshold_s is not None))
        self._slos, self.decode = slos, spec.decode_bound
        self._show(None)

    def probe_ended(self, result: ProbeResult) -> None:
        base = result.workload.removesuffix(WARM)
        self._probes.setdefault(base, deque(maxlen=MOST)).append(result)

    def page_read(self, reading: PageReading | None) -> None:
        if reading is not None:
            self.readings.append((reading.at_ns / 1e9, without_buckets(reading.signals)))

    def gpus_read(self, devices: Sequence[GpuReading], driver: str) -> None:
        if devices:
            self.devices.append((self._now_s(), devices))

    def drifted(self, workload: str, signal: str, *, active: bool) -> None:
        (self._drifted.add if active else self._drifted.discard)((workload, signal))

    def removed(self) -> None:
        self._on_removed(self)

    def evaluate(self) -> None:
        """Diagnose a target that is in trouble, or learn from one that is not."""
        now_s = self._now_s()
        drifted = {workload.removesuffix(WARM) for workload, _ in self._drifted}
        windows = {workload: _latest(probes, now_s) for workload, probes in self._probes.items()}
        troubled, found = False, None
        for workload, probes in windows.items():
            slos = self._slos.get(workload, ())
            telling = [probe for probe in probes if probe.outcome in TELLING]
            breached = _breached(slos, telling)
            troubled |= bool(breached or _breached(slos, probes)) or workload in drifted
            if telling and (breached or workload in drifted) and (found is None or found.regime == "unknown"):
                present = _seen(self, probes)
                self._registry.show(series.BOUND_RATIO, present.over_bound, self.name)
                found = self._diagnose(workload, present, breached)
        self._take(found)
        if troubled:
            self._window_began_s = now_s
        else:
            self._learn(windows, now_s)

    def _diagnose(self, workload: str, present: WindowFeatures, breached: dict[str, float]) -> Diagnosis:
        engine = self.readings[-1][1].info.engine if self.readings else None
        return diagnose(Evidence(present, _typical(self._usual.get(workload, ())), breached, engine))

    def _take(self, found: Diagnosis | None) -> None:
        self._show(found.regime if found else None)
        if found is not None and (self.diagnosis is None or found.regime != self.diagnosis.regime):
            log.info("target=%s diagnosis: %s", self.name, found.regime)
            unix_s = self._observed.target.clock.unix_s()
            self._events.append(TargetEvent(unix_s, self.name, "diagnosis", found.text()))
        self.diagnosis = found

    def _show(self, regime: str | None) -> None:
        self._registry.show_one(series.REGIME, regime, series.REGIMES, self.name)

    def _learn(self, windows: dict[str, list[ProbeResult]], now_s: float) -> None:
        """A window without trouble is a usual one."""
        if now_s - self._window_began_s < WINDOW_S:
            return
        self._window_began_s = now_s
        for workload, probes in windows.items():
            if len(probes) >= FEWEST:
                found = _seen(self, probes)
                self._registry.show(series.BOUND_RATIO, found.over_bound, self.name)
                self._usual.setdefault(workload, deque(maxlen=USUAL_WINDOWS)).append(found)

    def _now_s(self) -> float:
        return self._observed.target.clock.now_ns() / 1e9


def _latest(probes: Sequence[ProbeResult], now_s: float) -> list[ProbeResult]:
    """Those of the last window; of workloads with fewer the last few, however old, within a limit."""
    ages = [(now_s - each.timeline.intended_ns / 1e9, each) for each in probes]
    recent = [each for age_s, each in ages if age_s <= WINDOW_S]
    return recent if len(recent) >= FEWEST else [each for age_s, each in ages[-FEWEST:] if age_s <= LONGEST_S]


def _breached(slos: Sequence[Slo], probes: Sequence[ProbeResult]) -> dict[str, float]:
    """Signal to threshold in s, of the SLOs whose budget these probes burn; the strictest where there are several."""
    found: dict[str, float] = {}
    for slo in slos:
        counts = [count_events(slo, each) for each in probes]
        seen_, bad = (sum(count[place] for count in counts) for place in (0, 1))
        if bad >= FEWEST_BAD and bad > BURN * float(slo.error_budget_ratio) * seen_ and slo.threshold_s is not None:
            found[slo.signal] = min(slo.threshold_s, found.get(slo.signal, slo.threshold_s))
    return found


def _seen(case: "TargetDiagnosis", probes: Sequence[ProbeResult]) -> WindowFeatures:
    """Of the time of these probes."""
    since_s = min((each.timeline.intended_ns for each in probes), default=0) / 1e9
    readings = [each for each in case.readings if each[0] >= since_s]
    devices = [found for at_s, found in case.devices if at_s >= since_s]
    return seen(probes, readings, devices, _hardware(case.decode, devices[-1] if devices else ()))


def _hardware(decode: DecodeBoundSpec | None, devices: Sequence[GpuReading]) -> Hardware | None:
    """None where it is not configured, or not known what it runs on."""
    if decode is None:
        return None
    bandwidth = decode.memory_bandwidth_bytes_per_s
    if bandwidth is None:
        names = {device.name for device in devices}
        found = memory_bandwidth(names.pop()) if len(names) == 1 else None
        if found is None or isinstance(found, UnknownFigure):
            return None
        bandwidth = found
    return Hardware(decode.model, bandwidth, decode.gpus or max(1, len(devices)))


def _typical(windows: Sequence[WindowFeatures]) -> WindowFeatures:
    """The window whose median TTFT is the median of all; nothing seen without any."""
    rated = sorted((each.ttft_s[0].estimate, place) for place, each in enumerate(windows) if each.ttft_s)
    return windows[rated[len(rated) // 2][1]] if rated else WindowFeatures()
