"""Diagnoses targets while an SLO is breached or a latency has drifted, by comparing the present window with usual ones."""

import asyncio
import json
import logging
import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from decimal import Decimal
from typing import Any

from prober.config.serving import DecodeBoundSpec
from prober.exposition.families import Registry
from prober.features.diagnosis import series
from prober.features.diagnosis.clues import Name, Symptoms, WindowFeatures
from prober.features.diagnosis.diagnosis import NOTHING_VISIBLE, Diagnosis, diagnose, diagnosis_of, moment, restored
from prober.features.diagnosis.mechanisms import MECHANISM_OF, MECHANISMS
from prober.features.diagnosis.trouble import Course, burn, due_s
from prober.features.diagnosis.window import WARM, hardware_of, typical, window_features
from prober.measure.engine_signals import EngineSignals, PageReading, without_buckets
from prober.measure.gpu_reading import GpuReading
from prober.measure.objective import Slo
from prober.measure.outcome import ANSWERED
from prober.measure.result import ProbeResult
from prober.measure.target_state import NO_DATA_STATES, TargetEvent, TargetState, WorkloadState
from prober.probing.feature import SavedTargets
from prober.probing.history import EventLog
from prober.probing.observer import ObservedTarget, TargetObserver
from prober.statistics.quantiles import MIN_SAMPLES_BY_QUANTILE
from prober.storage.saved_rows import SavedRows

EVALUATE_EVERY_S = 15.0
# A name is confirmed by more than half of a trouble's latest evaluations, at least three, and ends when fewer than half have it.
CONFIRMING, MIN_CONFIRMING = 8, 3
# Seconds of a window before trouble, and of one in it; with rare probes they extend further back, up to this many.
SHORT, LONG = (120.0, 30), (300.0, 120)
MAX_PROBES = 600  # per workload, like MAX_READINGS of page and GPUs: an evaluation then takes milliseconds
MAX_READINGS = 150
PAST_S = 900.0  # for which a diagnosis is shown after its trouble
AGAIN_S = 300.0  # after a trouble: the same one within this time continues it
MAX_PROBE_AGE_S = 6 * 3600.0
SETTLING_S = 30.0  # of a new prober or engine, and after trouble: no usual window from frequent probes
FIRST_WINDOWS, FIRST_WINDOW_S = 5, 60.0  # shorter, so that they exist within minutes
USUAL_WINDOW_S = 600.0  # and time for which the page shows the engine's state
FEW_PROBES = MIN_SAMPLES_BY_QUANTILE[0.5]
MIN_PROBES = 5  # in a trouble that consists not only of failures
MAX_USUAL_WINDOWS = 36  # six hours
GROWING = ("ttft", "tpot")  # latencies watched for steady growth
FAILURES: frozenset[Name] = frozenset({"refusing", "loading", "failing"})
SUCCESS = Slo("success", "success", None, Decimal("0.99"), 0.0)  # judges a target whose state is failing
log = logging.getLogger(__name__)


class DiagnosisMonitor(SavedTargets["TargetDiagnosis"]):
    """Evaluates every target periodically. saved: usual features that `states` returned in an earlier process"""

    task = "diagnosis"

    def __init__(self, registry: Registry, events: EventLog, saved: SavedRows | None = None) -> None:
        self.registry, self.events = registry, events
        super().__init__(saved or SavedRows())

    def observe(self, observed: ObservedTarget) -> "TargetDiagnosis":
        """Create the observer that collects evidence about one target, and diagnose it from now on."""
        return self.add(TargetDiagnosis(self, observed))

    async def run(self) -> None:
        """Evaluate all targets every EVALUATE_EVERY_S until cancelled."""
        while True:
            await asyncio.sleep(EVALUATE_EVERY_S)
            for target in list(self.targets.values()):
                if self.targets.get(target.name) is target:  # it may have been removed meanwhile
                    try:
                        target.evaluate()
                    except Exception:
                        log.exception("target=%s: the diagnosis failed; please report this", target.name)
                await asyncio.sleep(0)


class TargetDiagnosis(TargetObserver):
    """Evidence about one target, and its diagnosis. A workload includes its series of warm prompts.

    keys: workload → key of its usual features in the store, which changes if the workload's requests do.
    readings, devices: readings of the engine's page and the GPUs, with seconds of the monotonic clock.
    diagnosis: None while no SLO is breached and no latency drifts or grows; names are `probable` until confirmed.
    """

    def __init__(self, monitor: DiagnosisMonitor, observed: ObservedTarget) -> None:
        self._monitor, self._observed = monitor, observed
        self.name = observed.name
        self._slos: dict[str, tuple[Slo, ...]] = {}
        self._probes: dict[str, deque[ProbeResult]] = {}
        self.usual: dict[str, deque[tuple[float, WindowFeatures]]] = {}  # with the time of learning
        self.keys: dict[str, str] = {}
        self._drifted: set[tuple[str, str]] = set()  # workload, signal
        self._courses: dict[tuple[str, str], Course] = {}  # by workload and signal
        self._calm_since_s = self._now_s()
        self._learnt_s: dict[str, float] = {}  # end of a workload's latest usual window
        self._state, self._was_ready = TargetState.PENDING, False
        self._state_since_s = 0.0
        self.decode: DecodeBoundSpec | None = observed.spec.decode_bound
        self.readings: deque[tuple[float, EngineSignals]] = deque(maxlen=MAX_READINGS)
        self.devices: deque[tuple[float, Sequence[GpuReading]]] = deque(maxlen=MAX_READINGS)
        self.diagnosis: Diagnosis | None = None
        self._past: Diagnosis | None = None
        # About the present trouble, or the last one: begin, last bad event, latest evaluations.
        self._since_s = self._until_s = -math.inf
        self._begin_s, self._is_judged = -math.inf, False  # of a trouble that may continue the last one
        self._verdicts: deque[Diagnosis] = deque(maxlen=CONFIRMING)
        self._logged: set[tuple[Name, ...]] = set()
        for probe in observed.spec.probes:
            for series_name, workload, _, judged in probe.judged():
                base = series_name.removesuffix(WARM)
                self._slos[base] = (*self._slos.get(base, ()), *judged)
                requests = workload.prompt_tokens, workload.output_tokens, workload.prefix
                self.keys[base] = json.dumps((self.name, base, repr(requests)))
        for base, key in self.keys.items():
            forgotten = f"{key}: what is usual is learned again"
            saved = monitor.saved.pop(key, lambda data: WindowFeatures(**json.loads(data)), forgotten)
            self.usual[base] = deque([] if saved is None else [(-math.inf, saved)], maxlen=MAX_USUAL_WINDOWS)
        forgotten = f"target={self.name}: the cause of its last trouble is forgotten"
        cause = monitor.saved.pop(_cause_key(self.name), lambda data: restored(json.loads(data)), forgotten)
        if cause is not None:  # of an earlier process: it is past, but the same trouble soon afterwards continues it
            assert cause.since_unix_s is not None
            assert cause.until_unix_s is not None
            started_unix_s = self._unix_s(0.0)
            self._since_s, self._until_s = cause.since_unix_s - started_unix_s, cause.until_unix_s - started_unix_s
            self._past, self._is_judged = cause, True
            self._verdicts.extend([cause] * MIN_CONFIRMING)
            self._logged.add(cause.regimes)
        self._show()

    def states(self) -> Iterator[tuple[str, bytes]]:
        """(name, usual features) of each workload, and (name, diagnosis) of the last trouble, to save."""
        cause = self.diagnosis or self.past
        if cause is not None and cause.regimes != ("unknown",):
            ended = replace(cause, until_unix_s=self._unix_s(self._until_s))
            yield _cause_key(self.name), json.dumps(asdict(ended)).encode()
        for workload, windows in list(self.usual.items()):
            if windows:
                features = typical(features for _, features in windows)
                yield self.keys[workload], json.dumps(asdict(features)).encode()

    def probe_ended(self, result: ProbeResult) -> None:
        base = result.workload.removesuffix(WARM)
        if base in self.keys:
            self._probes.setdefault(base, deque(maxlen=MAX_PROBES)).append(result.stored)
            for signal in GROWING if result.outcome in ANSWERED and not (result.warm_up or result.cached) else ():
                if value_s := getattr(result.timeline, f"{signal}_s"):
                    self._courses.setdefault((base, signal), Course()).add(due_s(result), value_s)

    def state_seen(
        self, state: TargetState, starting_until_unix_s: float | None, workloads: Iterable[WorkloadState]
    ) -> None:
        if state is not self._state:
            if state is TargetState.READY and not self._was_ready:
                self._calm_since_s = self._now_s()
            self._state, self._was_ready = state, self._was_ready or state is TargetState.READY
            self._state_since_s = self._now_s()
            self.evaluate()

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

    def summary(self) -> dict[str, Any]:
        since_s = self._now_s() - USUAL_WINDOW_S
        return {
            "diagnosis": self.diagnosis,
            "past_cause": self.past if self.past is not None and self.past.title != "cause unknown" else None,
            "readings": [(at_s, signals) for at_s, signals in self.readings if at_s >= since_s],
        }

    @property
    def past(self) -> Diagnosis | None:
        """The diagnosis of the last trouble, with its end, until PAST_S afterwards; None during another trouble."""
        if self.diagnosis is not None or self._now_s() - self._until_s > PAST_S:
            return None
        return self._past

    def evaluate(self) -> None:
        """Diagnose the target if an SLO is breached or a latency drifts or grows; otherwise learn its usual features."""
        now_s = self._now_s()
        silent: Name | None = None
        if self._state is TargetState.DRAINING:
            silent = "draining"
        elif self._state is TargetState.ASLEEP:
            silent = "sleeping"
        elif self._state is TargetState.STARTING and self._was_ready:
            silent = "loading"
        if silent is not None:
            self._verdicts.clear()
            self._since_s = self._state_since_s
            self._show_verdict(diagnosis_of(silent), self._since_s, now_s, is_certain=True)
        elif (trouble := self._trouble(now_s)) is not None:
            verdict, since_s, until_s = trouble
            is_failing = self._state is TargetState.FAILING and not FAILURES.isdisjoint(verdict.regimes)
            self._show_verdict(verdict, since_s, until_s, is_certain=is_failing)
        elif self.diagnosis is not None:
            self._end(now_s)
        else:
            self._learn(now_s)

    def _trouble(self, now_s: float) -> tuple[Diagnosis, float, float] | None:
        """(verdict on the present trouble, begin, last bad event); None without trouble."""
        if self._state in NO_DATA_STATES or self._observed.target.paused_unix_s is not None:
            return None
        in_trouble = self.diagnosis is not None
        is_failing = self._state is TargetState.FAILING
        is_expected = is_failing or (not in_trouble and now_s - self._until_s < AGAIN_S)
        begin_s = self._since_s if self._is_judged else self._begin_s
        after_s = begin_s - 1e-9 if in_trouble else self._until_s
        verdict, begins_s, ends_s, slow_s = None, list[float](), list[float](), list[float]()
        for workload, probes in self._probes.items():
            latest = _latest(probes, now_s, *(LONG if in_trouble else SHORT))
            recent = [probe for probe in latest if due_s(probe) > after_s]
            slos = (*self._slos[workload], *([SUCCESS] if is_failing else ()))
            burns = [burning for slo in slos if (burning := burn(slo, recent, is_expected=is_expected))]
            burns.sort(key=lambda burning: burning.threshold_s)  # the strictest SLO of a signal counts
            courses = [(signal.upper(), self._courses.get((workload, signal), Course())) for signal in GROWING]
            growths = [(signal, growth) for signal, course in courses if (growth := course.growth())]
            drifted = [signal.upper() for base, signal in self._drifted if base.removesuffix(WARM) == workload]
            if not burns and not growths and not drifted:
                continue
            of_burns = [(burning.signal, burning.since_s) for burning in burns]
            known_s = [*of_burns, *((signal, growth.since_s) for signal, growth in growths)]
            begins_s.append(min((since_s for _, since_s in known_s), default=now_s - LONG[0]))
            slow_s += [since_s for signal, since_s in known_s if signal != "success"]
            ends_s.append(now_s if growths or drifted else max(burning.until_s for burning in burns))
            if verdict is not None and verdict.regimes != ("unknown",):
                continue
            since_s = min(begins_s[-1], begin_s) if in_trouble else begins_s[-1]
            latest = _latest(probes, now_s, *(LONG if burns else SHORT))
            present = self._features([probe for probe in latest if due_s(probe) >= since_s])
            self._monitor.registry.show(series.BOUND_RATIO, present.over_bound, self.name)
            if present.probes < MIN_PROBES:
                present = WindowFeatures(probes=present.probes, failures=present.failures)
            windows = [features for at_s, features in self.usual[workload] if at_s <= since_s]
            usual = typical(windows or [features for _, features in self.usual[workload]][:1])
            engine = self.readings[-1][1].info.engine if self.readings else None
            breached = {burning.signal: burning.threshold_s for burning in reversed(burns)}
            verdict = diagnose(Symptoms(present, usual, breached, engine))
            bad = {burning.signal.upper(): burning.text for burning in reversed(burns)}
            bad |= {
                signal: f"{signal} growing since {moment(self._unix_s(growth.since_s))}, {growth.text}"
                for signal, growth in growths
            }
            bad = {signal: f"{signal} slower than its baseline" for signal in drifted} | bad
            verdict = replace(verdict, bad="; ".join(bad.values()))
        if verdict is None:
            return None
        is_slow = slow_s and FAILURES.isdisjoint(verdict.regimes)
        return verdict, min(slow_s if is_slow else begins_s), max(ends_s)

    def _show_verdict(self, verdict: Diagnosis, since_s: float, until_s: float, *, is_certain: bool = False) -> None:
        """Show the names shared by most of the latest verdicts on the trouble; a certain verdict's names immediately.

        If a cause returns soon after its end it is the same trouble, until the first verdict that names another.
        """
        shown = self.diagnosis.regimes if self.diagnosis is not None else ()
        known = set(verdict.regimes) - {"unknown"}
        if self.diagnosis is None:
            self._begin_s, self._is_judged = since_s, False
        is_other = known.isdisjoint(name for past in self._verdicts for name in past.regimes)
        if since_s - self._until_s >= AGAIN_S or (known and is_other and not self._is_judged):
            self._since_s = self._begin_s
            self._verdicts.clear()
            self._logged.clear()
        self._is_judged = self._is_judged or bool(known)
        self._since_s, self._until_s = min(self._since_s, since_s), until_s
        self._verdicts.append(verdict)
        verdicts = [*reversed(self._verdicts)]
        counts: Counter[Name] = Counter(name for past in verdicts for name in past.regimes if name != "unknown")
        judged = sum(past.regimes != ("unknown",) for past in verdicts)
        names = {name for name, count in counts.items() if count >= MIN_CONFIRMING and 2 * count > judged}
        names = names or {name for name in shown if 2 * counts[name] >= len(verdicts)}
        if is_certain:
            names = set(verdict.regimes)
        if names:
            latest = max(verdicts, key=lambda past: len(names & set(past.regimes)))
            confirmed = [mechanism for mechanism in MECHANISMS if mechanism.name in names]
            means = " – and ".join(mechanism.means for mechanism in confirmed)
            latest = replace(latest, regimes=tuple(mechanism.name for mechanism in confirmed), means=means)
        elif counts:
            latest = next(past for past in verdicts if past.regimes != ("unknown",))
            latest = replace(latest, regimes=("unknown",), probable=latest.regimes)
        else:
            latest = verdict
        if shown and FAILURES.issuperset(shown) and FAILURES.isdisjoint(latest.regimes):
            self._since_s = since_s  # it answers again, but slowly: that began later than the failures
        self.diagnosis = replace(latest, bad=verdict.bad, since_unix_s=self._unix_s(self._since_s))
        self._show()
        if not is_certain:  # otherwise the event about the state says it
            self._log()

    def _end(self, now_s: float) -> None:
        """Remove the cause, because the trouble is over."""
        assert self.diagnosis is not None
        self._past = replace(self.diagnosis, until_unix_s=self._unix_s(self._until_s))
        self.diagnosis = None
        self._calm_since_s = now_s
        self._show()

    def _log(self) -> None:
        """Log each confirmed diagnosis of a trouble once."""
        assert self.diagnosis is not None
        names = self.diagnosis.regimes
        if names == ("unknown",) or names in self._logged:
            return
        self._logged.add(names)
        event = TargetEvent(self._observed.target.clock.unix_s(), self.name, "diagnosis", self.diagnosis.text())
        self._monitor.events.record(log, event, f"diagnosis: {' and '.join(names)}")

    def _show(self) -> None:
        """Export the names that are now shown."""
        shown: dict[tuple[str, str, str, str], float] = {}
        if self.diagnosis is not None and self.diagnosis.since_unix_s is not None:
            state = "probable" if self.diagnosis.probable else "confirmed"
            for name in self.diagnosis.probable or self.diagnosis.regimes:
                means = MECHANISM_OF[name].means if name != "unknown" else NOTHING_VISIBLE
                shown[self.name, name, state, means] = self.diagnosis.since_unix_s
        self._monitor.registry.keep(series.CAUSE, shown, self.name)
        for labels, since_unix_s in shown.items():
            self._monitor.registry.show(series.CAUSE, round(since_unix_s), *labels)  # alerts would show the fraction

    def _learn(self, now_s: float) -> None:
        """Add the time since the last usual window as another one, once it has enough probes."""
        for workload, probes in self._probes.items():
            since_s = max(self._calm_since_s, self._learnt_s.get(workload, 0.0))
            usual = self.usual[workload]
            recent = [probe for probe in probes if due_s(probe) >= since_s]
            least = FEW_PROBES / 2 if len(recent) < FEW_PROBES and not usual else FEW_PROBES  # rare probes cannot wait
            if len(recent) >= FEW_PROBES:
                recent = [probe for probe in recent if due_s(probe) >= self._calm_since_s + SETTLING_S]
            has_means = any(features.ttft_mean_s is not None for _, features in usual)
            is_early = not has_means or (len(usual) < FIRST_WINDOWS and len(recent) >= LONG[1] / 2)
            if len(recent) >= least and now_s - since_s >= (FIRST_WINDOW_S if is_early else USUAL_WINDOW_S):
                features = self._features(recent)
                self._monitor.registry.show(series.BOUND_RATIO, features.over_bound, self.name)
                usual.append((now_s, features))
                self._learnt_s[workload] = now_s

    def _features(self, probes: Sequence[ProbeResult]) -> WindowFeatures:
        """Features of the time since the first of these probes was due."""
        since_s = min(map(due_s, probes), default=0.0)
        readings = [(at_s, signals) for at_s, signals in self.readings if at_s >= since_s]
        devices = [gpus for at_s, gpus in self.devices if at_s >= since_s]
        ranks = max((signals.ranks or 1 for _, signals in readings), default=1)
        hardware = hardware_of(self.decode, devices[-1] if devices else (), ranks)
        own = [probe for each in self._probes.values() for probe in each]
        return window_features(probes, readings, devices, hardware, own)

    def _now_s(self) -> float:
        return self._observed.target.clock.now_ns() / 1e9

    def _unix_s(self, at_s: float) -> float:
        """Wall time of a monotonic time, by the present difference of both clocks."""
        return self._observed.target.clock.unix_s() + at_s - self._now_s()


def _cause_key(target: str) -> str:
    return json.dumps((target, "cause"))


def _latest(probes: Sequence[ProbeResult], now_s: float, window_s: float, least: int) -> list[ProbeResult]:
    """Probes of the last `window_s`; if too few, the latest `least` that are at most MAX_PROBE_AGE_S old."""
    ages = [(now_s - due_s(probe), probe) for probe in probes]
    recent = [probe for age_s, probe in ages if age_s <= window_s]
    return recent if len(recent) >= least else [probe for age_s, probe in ages[-least:] if age_s <= MAX_PROBE_AGE_S]
