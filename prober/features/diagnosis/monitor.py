"""Diagnoses each target while an SLO is breached or a latency has drifted, by comparing the present window with usual ones."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from prober.config.serving import DecodeBoundSpec
from prober.exposition.families import Registry
from prober.features.diagnosis import series
from prober.features.diagnosis.clues import Evidence, Name, WindowFeatures
from prober.features.diagnosis.diagnosis import Diagnosis, diagnose, undecided
from prober.features.diagnosis.window import WARM, Hardware, window_features
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
SETTLE_S = 60.0  # time for which a diagnosis must stay the same before it is named
HELD_S = 900.0  # a change of the diagnosis is an event once it was shown for most of this time
WINDOW_S = 600.0  # length of the present window, and of a usual one
MIN_PROBES = 30  # per window and workload; of rare probes a window reaches further back
MAX_PROBES = 150  # per window and workload, and readings: evaluation then takes less than 2 ms
MAX_PROBE_AGE_S = 6 * 3600.0
MAX_USUAL_WINDOWS = 144  # a day
BREACH_BURN_RATE = 3
MIN_BAD_EVENTS = 3
# Outcomes that depend on speed: answers, and requests that the target was too slow or too busy to answer.
SPEED_OUTCOMES = ANSWERED | {
    *(Outcome.TIMEOUT_FIRST_TOKEN, Outcome.TIMEOUT_STALL, Outcome.TIMEOUT_TOTAL),
    *(Outcome.HTTP_408, Outcome.HTTP_429, Outcome.SHED),
}
log = logging.getLogger(__name__)


class DiagnosisMonitor:
    """Evaluates every target periodically."""

    def __init__(self, registry: Registry, events: EventLog) -> None:
        self._registry, self._events = registry, events
        self._targets: set[TargetDiagnosis] = set()

    def observe(self, observed: ObservedTarget) -> "TargetDiagnosis":
        """Diagnose one target."""
        observer = TargetDiagnosis(self._registry, self._events, observed, self._targets.discard)
        self._targets.add(observer)
        return observer

    async def run(self) -> None:
        """Evaluate all targets every EVALUATE_EVERY_S until cancelled."""
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
    """Evidence and diagnosis of one target. A workload includes its series of warm prompts.

    readings, devices: of the engine's page and of the GPUs, with seconds of the monotonic clock.
    diagnosis: None while nothing is breached and nothing drifts; `unknown` until a cause has fitted for SETTLE_S.
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
        self.readings: deque[tuple[float, EngineSignals]] = deque(maxlen=MAX_PROBES)
        self.devices: deque[tuple[float, Sequence[GpuReading]]] = deque(maxlen=MAX_PROBES)
        self.diagnosis: Diagnosis | None = None
        self._verdict: Diagnosis | None = None  # of the latest evaluation
        self._same_since_s = self._window_began_s
        # (seconds, causes) of the evaluations in trouble, of the last HELD_S.
        self._shown: deque[tuple[float, tuple[Name, ...]]] = deque()
        self._logged: tuple[Name, ...] = ()
        self.configured()

    def configured(self) -> None:
        spec = self._observed.target.spec
        slos: dict[str, tuple[Slo, ...]] = {}
        for probe in spec.probes:
            for workload, _, _, judged in probe.judged():
                base = workload.removesuffix(WARM)
                slos[base] = (*slos.get(base, ()), *(slo for slo in judged if slo.threshold_s is not None))
        self._slos, self.decode = slos, spec.decode_bound
        self._show()

    def probe_ended(self, result: ProbeResult) -> None:
        base = result.workload.removesuffix(WARM)
        self._probes.setdefault(base, deque(maxlen=MAX_PROBES)).append(result)

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
        """Diagnose the target if it is in trouble; otherwise keep the window as a usual one."""
        now_s = self._now_s()
        drifted = {workload.removesuffix(WARM) for workload, _ in self._drifted}
        windows = {workload: _latest(probes, now_s) for workload, probes in self._probes.items()}
        troubled, diagnosis = False, None
        for workload, probes in windows.items():
            slos = self._slos.get(workload, ())
            timed = [probe for probe in probes if probe.outcome in SPEED_OUTCOMES]
            breached = _breached(slos, timed)
            troubled |= bool(breached or _breached(slos, probes)) or workload in drifted
            if timed and (breached or workload in drifted) and (diagnosis is None or diagnosis.regime == "unknown"):
                present = _features(self, probes)
                self._registry.show(series.BOUND_RATIO, present.over_bound, self.name)
                diagnosis = self._diagnose(workload, present, breached)
        self._take(diagnosis, now_s)
        if troubled:
            self._window_began_s = now_s
        else:
            self._learn(windows, now_s)

    def _diagnose(self, workload: str, present: WindowFeatures, breached: dict[str, float]) -> Diagnosis:
        engine = self.readings[-1][1].info.engine if self.readings else None
        diagnosed = _regimes(self.diagnosis)
        usual = _typical(self._usual.get(workload, ()))
        return diagnose(Evidence(present, usual, breached, engine), diagnosed=diagnosed)

    def _take(self, verdict: Diagnosis | None, now_s: float) -> None:
        """Show a diagnosis that has held for SETTLE_S, `unknown` until then."""
        if _regimes(verdict) != _regimes(self._verdict):
            self._same_since_s = now_s
        self._verdict, settled = verdict, now_s - self._same_since_s >= SETTLE_S
        self.diagnosis = (
            verdict if verdict is None or settled or verdict.regime == "unknown" else undecided(verdict, SETTLE_S)
        )
        self._show()
        while self._shown and now_s - self._shown[0][0] >= HELD_S:
            self._shown.popleft()
        if self.diagnosis is not None:
            self._shown.append((now_s, self.diagnosis.regimes))
        if not self._shown:
            self._logged = ()
        elif verdict is not None and settled and verdict.regimes != self._logged and self._is_held(verdict.regimes):
            self._logged = verdict.regimes
            log.info("target=%s diagnosis: %s", self.name, " and ".join(verdict.regimes))
            unix_s = self._observed.target.clock.unix_s()
            self._events.append(TargetEvent(unix_s, self.name, "diagnosis", verdict.text()))

    def _is_held(self, regimes: tuple[Name, ...]) -> bool:
        """Whether these causes were shown most of the time in which the target was in trouble."""
        return sum(shown == regimes for _, shown in self._shown) > len(self._shown) / 2

    def _show(self) -> None:
        for regime in series.REGIMES:
            self._registry[series.REGIME.name].value(self.name, regime).value = float(
                regime in _regimes(self.diagnosis)
            )

    def _learn(self, windows: dict[str, list[ProbeResult]], now_s: float) -> None:
        """Keep a window without trouble as a usual one."""
        if now_s - self._window_began_s < WINDOW_S:
            return
        self._window_began_s = now_s
        for workload, probes in windows.items():
            if len(probes) >= MIN_PROBES:
                features = _features(self, probes)
                self._registry.show(series.BOUND_RATIO, features.over_bound, self.name)
                self._usual.setdefault(workload, deque(maxlen=MAX_USUAL_WINDOWS)).append(features)

    def _now_s(self) -> float:
        return self._observed.target.clock.now_ns() / 1e9


def _regimes(diagnosis: Diagnosis | None) -> tuple[Name, ...]:
    return diagnosis.regimes if diagnosis is not None else ()


def _latest(probes: Sequence[ProbeResult], now_s: float) -> list[ProbeResult]:
    """Probes of the last window; if there are too few, the latest MIN_PROBES up to MAX_PROBE_AGE_S."""
    ages = [(now_s - probe.timeline.intended_ns / 1e9, probe) for probe in probes]
    recent = [probe for age_s, probe in ages if age_s <= WINDOW_S]
    return (
        recent
        if len(recent) >= MIN_PROBES
        else [probe for age_s, probe in ages[-MIN_PROBES:] if age_s <= MAX_PROBE_AGE_S]
    )


def _breached(slos: Sequence[Slo], probes: Sequence[ProbeResult]) -> dict[str, float]:
    """Threshold in s by signal of the SLOs whose budget these probes burn; the strictest of a signal."""
    thresholds: dict[str, float] = {}
    for slo in slos:
        counts = [count_events(slo, probe) for probe in probes]
        events, bad = (sum(count[place] for count in counts) for place in (0, 1))
        burns = bad > BREACH_BURN_RATE * float(slo.error_budget_ratio) * events
        if bad >= MIN_BAD_EVENTS and burns and slo.threshold_s is not None:
            thresholds[slo.signal] = min(slo.threshold_s, thresholds.get(slo.signal, slo.threshold_s))
    return thresholds


def _features(target: "TargetDiagnosis", probes: Sequence[ProbeResult]) -> WindowFeatures:
    """Features of the time of these probes."""
    since_s = min((probe.timeline.intended_ns for probe in probes), default=0) / 1e9
    readings = [(at_s, signals) for at_s, signals in target.readings if at_s >= since_s]
    devices = [gpus for at_s, gpus in target.devices if at_s >= since_s]
    ranks = max((signals.ranks or 1 for _, signals in readings), default=1)
    return window_features(probes, readings, devices, _hardware(target.decode, devices[-1] if devices else (), ranks))


def _hardware(decode: DecodeBoundSpec | None, devices: Sequence[GpuReading], ranks: int) -> Hardware | None:
    """Hardware of one rank, from the configuration and the GPUs; None if either does not tell it."""
    if decode is None:
        return None
    bandwidth = decode.memory_bandwidth_bytes_per_s
    if bandwidth is None:
        names = {device.name for device in devices}
        looked_up = memory_bandwidth(names.pop()) if len(names) == 1 else None
        if looked_up is None or isinstance(looked_up, UnknownFigure):
            return None
        bandwidth = looked_up
    return Hardware(decode.model, bandwidth, decode.gpus or max(1, len(devices) // ranks))


def _typical(windows: Sequence[WindowFeatures]) -> WindowFeatures:
    """Window whose median TTFT is the median of all windows; without windows no features."""
    ranked = sorted((window.ttft_s[0].estimate, place) for place, window in enumerate(windows) if window.ttft_s)
    return windows[ranked[len(ranked) // 2][1]] if ranked else WindowFeatures()
