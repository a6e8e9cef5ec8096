"""Diagnoses each target while an SLO is breached or a latency has drifted, by comparing the present window with usual ones."""

import asyncio
import json
import logging
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from statistics import median

from prober.config.serving import DecodeBoundSpec
from prober.exposition.families import Registry
from prober.features.diagnosis import series
from prober.features.diagnosis.clues import Name, Symptoms, WindowFeatures
from prober.features.diagnosis.diagnosis import Diagnosis, diagnose, loading
from prober.features.diagnosis.mechanisms import MECHANISMS
from prober.features.diagnosis.window import WARM, hardware_of, typical, window_features
from prober.measure.engine_signals import EngineSignals, PageReading, without_buckets
from prober.measure.gpu_reading import GpuReading
from prober.measure.objective import Slo, count_events
from prober.measure.outcome import ANSWERED, Outcome
from prober.measure.result import ProbeResult
from prober.measure.target_state import TargetEvent, TargetState, WorkloadState
from prober.probing.history import EventLog
from prober.probing.observer import ObservedTarget, TargetObserver
from prober.storage.saved_rows import SavedRows

EVALUATE_EVERY_S = 15.0
CONFIRMING = 8  # evaluations, two minutes: a name is confirmed by more than half of them, and ends when fewer have it
HELD_S, MOSTLY = 900.0, 0.6  # a diagnosis is an event once it was shown for this share of this time
# In which an SLO is breached; in which it still is, since trouble can come and go; and of the trouble that is diagnosed.
WINDOW_S, LASTING_S, LONG_WINDOW_S = 120.0, 220.0, 300.0
MIN_PROBES, MANY_PROBES = 30, 120  # of rare probes these windows reach further back, up to this many
MAX_PROBES = 600  # per workload, and MAX_READINGS of page and GPUs: an evaluation then takes milliseconds
MAX_READINGS = 150
SHOWN_S = 600.0  # of the engine's state on the page
MAX_PROBE_AGE_S = 6 * 3600.0
FIRST_WINDOWS, FIRST_WINDOW_S = 5, 60.0  # the first usual windows are short, to exist within minutes
USUAL_WINDOW_S = 600.0
FEW_PROBES = 20
MAX_USUAL_WINDOWS = 36  # six hours
BREACH_BURN_RATE = 3
MIN_BAD_EVENTS = 3
# Outcomes that depend on speed: answers, and requests that the target was too slow to answer.
SPEED_OUTCOMES = ANSWERED | {
    *(Outcome.TIMEOUT_FIRST_TOKEN, Outcome.TIMEOUT_STALL, Outcome.TIMEOUT_TOTAL, Outcome.HTTP_408),
}
log = logging.getLogger(__name__)


class DiagnosisMonitor:
    """Evaluates every target periodically. saved: usual features that `states` returned in an earlier process"""

    def __init__(self, registry: Registry, events: EventLog, saved: SavedRows | None = None) -> None:
        self.registry, self.events = registry, events
        self._saved = saved or SavedRows()
        self._targets: set[TargetDiagnosis] = set()

    def observe(self, observed: ObservedTarget) -> "TargetDiagnosis":
        """Create the observer that collects evidence on one target, and diagnose it from now on."""
        observer = TargetDiagnosis(self, observed)
        self._targets.add(observer)
        return observer

    def forget(self, target: "TargetDiagnosis") -> None:
        """Remove a target."""
        self._targets.discard(target)

    def saved_usual(self, key: str) -> WindowFeatures | None:
        """The usual features that an earlier process saved."""
        consequence = f"{key}: what is usual is learned again"
        return self._saved.get(key, lambda data: WindowFeatures(**json.loads(data)), consequence)

    def states(self) -> Iterator[tuple[str, bytes]]:
        """(name, usual features) of each workload, to be saved."""
        for target in list(self._targets):
            for workload, windows in list(target.usual.items()):
                if windows:
                    yield target.keys[workload], json.dumps(asdict(typical(windows))).encode()

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

    keys: key of the usual features in the store, by workload; it changes if the workload's requests do.
    readings, devices: of the engine's page and of the GPUs, with seconds of the monotonic clock.
    diagnosis: None while no SLO is breached and no latency drifts; names are `probable` until they are confirmed.
    """

    def __init__(self, monitor: DiagnosisMonitor, observed: ObservedTarget) -> None:
        self._monitor, self._observed = monitor, observed
        self.name = observed.name
        self._slos: dict[str, tuple[Slo, ...]] = {}
        self._probes: dict[str, deque[ProbeResult]] = {}
        self.usual: dict[str, deque[WindowFeatures]] = {}
        self.keys: dict[str, str] = {}
        self._drifted: set[tuple[str, str]] = set()  # workload, signal
        self._calm_since_s = self._now_s()
        self._learnt_s: dict[str, float] = {}  # end of the latest usual window of a workload
        self._trouble_since_s: float | None = None
        self._state, self._was_ready = TargetState.PENDING, False
        self.decode: DecodeBoundSpec | None = None
        self.readings: deque[tuple[float, EngineSignals]] = deque(maxlen=MAX_READINGS)
        self.devices: deque[tuple[float, Sequence[GpuReading]]] = deque(maxlen=MAX_READINGS)
        self.diagnosis: Diagnosis | None = None
        self._verdicts: deque[Diagnosis | None] = deque(maxlen=CONFIRMING)  # of the latest evaluations
        # (seconds, names) of the evaluations in trouble, of the last HELD_S.
        self._shown: deque[tuple[float, tuple[Name, ...]]] = deque()
        self._logged: tuple[Name, ...] = ()
        self.configured()

    def configured(self) -> None:
        spec = self._observed.target.spec
        slos: dict[str, tuple[Slo, ...]] = {}
        keys: dict[str, str] = {}
        for probe in spec.probes:
            for series_name, workload, _, judged in probe.judged():
                base = series_name.removesuffix(WARM)
                slos[base] = (*slos.get(base, ()), *judged)
                requests = workload.prompt_tokens, workload.output_tokens, workload.prefix
                keys[base] = json.dumps((self.name, base, repr(requests)))
        for base in [base for base, key in self.keys.items() if keys.get(base) != key]:
            del self.usual[base]
            self._probes.pop(base, None)
        for base in keys.keys() - self.usual.keys():
            saved = self._monitor.saved_usual(keys[base])
            self.usual[base] = deque([] if saved is None else [saved], maxlen=MAX_USUAL_WINDOWS)
        self._slos, self.keys, self.decode = slos, keys, spec.decode_bound
        self._show()

    def probe_ended(self, result: ProbeResult) -> None:
        base = result.workload.removesuffix(WARM)
        if base in self.keys:
            self._probes.setdefault(base, deque(maxlen=MAX_PROBES)).append(result.stored)

    def state_seen(
        self, state: TargetState, starting_until_unix_s: float | None, workloads: Iterable[WorkloadState]
    ) -> None:
        self._state, self._was_ready = state, self._was_ready or state is TargetState.READY

    def page_read(self, reading: PageReading | None) -> None:
        if reading is not None:
            self.readings.append((reading.at_ns / 1e9, without_buckets(reading.signals)))

    def gpus_read(self, devices: Sequence[GpuReading], driver: str) -> None:
        if devices:
            self.devices.append((self._now_s(), devices))

    def drifted(self, workload: str, signal: str, *, active: bool) -> None:
        (self._drifted.add if active else self._drifted.discard)((workload, signal))

    def removed(self) -> None:
        self._monitor.forget(self)

    def recent_readings(self) -> list[tuple[float, EngineSignals]]:
        """The readings of the engine's metrics page in the last SHOWN_S, at most MAX_READINGS."""
        since_s = self._now_s() - SHOWN_S
        return [(at_s, signals) for at_s, signals in self.readings if at_s >= since_s]

    def evaluate(self) -> None:
        """Diagnose the target if an SLO is breached or a latency drifts; otherwise learn its usual features."""
        now_s = self._now_s()
        is_loading = self._state is TargetState.STARTING and self._was_ready
        is_draining = self._state is TargetState.DRAINING  # nothing is sent, and what failed before is over
        verdict = loading() if is_loading else None
        drifted = {workload.removesuffix(WARM) for workload, _ in self._drifted}
        for workload, probes in () if is_draining else self._probes.items():
            window_s = WINDOW_S if self._trouble_since_s is None else LASTING_S
            breached, bad_s = _breached(self._slos[workload], _latest(probes, now_s, window_s, MIN_PROBES))
            if not breached and workload not in drifted:
                continue
            if self._trouble_since_s is None:
                self._trouble_since_s = median(bad_s) if bad_s else now_s - LONG_WINDOW_S
            if verdict is None or verdict.regimes == ("unknown",):
                recent = _latest(probes, now_s, LONG_WINDOW_S, MANY_PROBES)
                present = self._features([p for p in recent if p.timeline.intended_ns / 1e9 >= self._trouble_since_s])
                self._monitor.registry.show(series.BOUND_RATIO, present.over_bound, self.name)
                engine = self.readings[-1][1].info.engine if self.readings else None
                usual = typical(self.usual[workload])
                verdict = diagnose(Symptoms(present, usual, breached, engine))
        self._take(verdict, now_s)
        if verdict is not None or is_draining:
            self._calm_since_s = now_s
        if not any(self._verdicts):
            self._trouble_since_s = None
            self._learn(now_s)

    def _take(self, verdict: Diagnosis | None, now_s: float) -> None:
        """Add a verdict, and show those names that most of the latest evaluations agree on."""
        self._verdicts.append(verdict)
        verdicts = [past for past in reversed(self._verdicts) if past is not None]
        counts: Counter[Name] = Counter(name for past in verdicts for name in past.regimes if name != "unknown")
        shown = self.diagnosis.regimes if self.diagnosis is not None else ()
        names: set[Name] = {name for name, count in counts.items() if 2 * count > CONFIRMING}
        names = names or {name for name in shown if 2 * counts[name] >= CONFIRMING}
        if names:
            latest = next((past for past in verdicts if set(past.regimes) == names), None)
            latest = latest or next(past for past in verdicts if names & set(past.regimes))
            confirmed = [mechanism for mechanism in MECHANISMS if mechanism.name in names]
            means = " – and ".join(mechanism.means for mechanism in confirmed)
            self.diagnosis = replace(latest, regimes=tuple(mechanism.name for mechanism in confirmed), means=means)
        elif verdict is not None and counts:
            latest = next(past for past in verdicts if past.regimes != ("unknown",))
            self.diagnosis = replace(latest, regimes=("unknown",), probable=latest.regimes)
        else:
            self.diagnosis = verdict
        self._show()
        self._log(now_s)

    def _log(self, now_s: float) -> None:
        """Log a diagnosis that was shown for most of the time in which the target was in trouble."""
        while self._shown and now_s - self._shown[0][0] >= HELD_S:
            self._shown.popleft()
        if self.diagnosis is not None:
            self._shown.append((now_s, self.diagnosis.regimes))
        if not self._shown:
            self._logged = ()
        if self.diagnosis is None or self.diagnosis.probable or self.diagnosis.regimes == self._logged:
            return
        regimes = self.diagnosis.regimes
        count, known = sum(shown == regimes for _, shown in self._shown), len(self._shown)
        if known >= CONFIRMING and count > MOSTLY * known:
            self._logged = regimes
            log.info("target=%s diagnosis: %s", self.name, " and ".join(regimes))
            unix_s = self._observed.target.clock.unix_s()
            self._monitor.events.append(TargetEvent(unix_s, self.name, "diagnosis", self.diagnosis.text()))

    def _show(self) -> None:
        shown: dict[str, float] = dict.fromkeys(self.diagnosis.regimes if self.diagnosis else (), 1.0)
        shown |= dict.fromkeys(self.diagnosis.probable if self.diagnosis else (), series.PROBABLE)
        for regime in series.REGIMES:
            self._monitor.registry[series.REGIME.name].value(self.name, regime).value = shown.get(regime, 0.0)

    def _learn(self, now_s: float) -> None:
        """Store the features of the time since the last usual window as a further usual window, once that time has enough probes."""
        for workload, probes in self._probes.items():
            since_s = max(self._calm_since_s, self._learnt_s.get(workload, 0.0))
            recent = [probe for probe in probes if probe.timeline.intended_ns / 1e9 >= since_s]
            usual = self.usual[workload]
            is_early = not usual or (len(usual) < FIRST_WINDOWS and len(recent) >= MANY_PROBES / 2)
            if len(recent) >= FEW_PROBES and now_s - since_s >= (FIRST_WINDOW_S if is_early else USUAL_WINDOW_S):
                features = self._features(recent)
                self._monitor.registry.show(series.BOUND_RATIO, features.over_bound, self.name)
                usual.append(features)
                self._learnt_s[workload] = now_s

    def _features(self, probes: Sequence[ProbeResult]) -> WindowFeatures:
        """Features of the span of time since the first of these probes was due."""
        since_s = min((probe.timeline.intended_ns for probe in probes), default=0) / 1e9
        readings = [(at_s, signals) for at_s, signals in self.readings if at_s >= since_s]
        devices = [gpus for at_s, gpus in self.devices if at_s >= since_s]
        ranks = max((signals.ranks or 1 for _, signals in readings), default=1)
        hardware = hardware_of(self.decode, devices[-1] if devices else (), ranks)
        return window_features(probes, readings, devices, hardware)

    def _now_s(self) -> float:
        return self._observed.target.clock.now_ns() / 1e9


def _latest(probes: Sequence[ProbeResult], now_s: float, window_s: float, least: int) -> list[ProbeResult]:
    """Probes of the last `window_s`; if they are too few, the latest `least` that are no older than MAX_PROBE_AGE_S."""
    ages = [(now_s - probe.timeline.intended_ns / 1e9, probe) for probe in probes]
    recent = [probe for age_s, probe in ages if age_s <= window_s]
    return recent if len(recent) >= least else [probe for age_s, probe in ages[-least:] if age_s <= MAX_PROBE_AGE_S]


def _breached(slos: Sequence[Slo], probes: Sequence[ProbeResult]) -> tuple[dict[str, float], list[float]]:
    """({signal: strictest threshold in s} of the SLOs whose budget these probes burn, times of the bad events).

    Failures that do not depend on speed are a breach of `success`, whatever the signal of the SLO whose budget they burn. Wrong answers
    are left out.
    """
    thresholds: dict[str, float] = {}
    bad_s: list[float] = []
    timed = [probe for probe in probes if probe.outcome in SPEED_OUTCOMES]
    for slo in slos:
        if slo.signal == "quality":
            continue
        is_speed = slo.threshold_s is not None
        for judged in (timed, probes) if is_speed else (probes,):
            counts = [count_events(slo, probe) for probe in judged]
            events, bad = (sum(count[place] for count in counts) for place in (0, 1))
            if bad < MIN_BAD_EVENTS or bad <= BREACH_BURN_RATE * float(slo.error_budget_ratio) * events:
                continue
            signal = slo.signal if judged is timed else "success"
            if judged is timed and slo.threshold_s is not None:
                thresholds[signal] = min(slo.threshold_s, thresholds.get(signal, slo.threshold_s))
            else:
                thresholds[signal] = 0.0
            bad_s += [probe.timeline.intended_ns / 1e9 for probe, count in zip(judged, counts, strict=True) if count[1]]
            break
    return thresholds, bad_s
