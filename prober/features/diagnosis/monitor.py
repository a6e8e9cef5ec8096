"""Why a target is slow: while an SLO is breached or a latency has drifted, what is seen now against what is usual."""

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from prober.config.specs import DecodeSpec, TargetSpec
from prober.features.diagnosis.clues import Evidence, Seen
from prober.features.diagnosis.diagnosis import Diagnosis, diagnose
from prober.features.diagnosis.window import WARM, Hardware, seen
from prober.features.drift.monitor import Watch
from prober.measure.bandwidth_bound import Refused, memory_bandwidth
from prober.measure.engine_signals import Signals, without_buckets
from prober.measure.event import Event
from prober.measure.gpu_reading import Device
from prober.measure.objective import Slo
from prober.measure.outcome import ANSWERED, Outcome
from prober.measure.result import ProbeResult
from prober.measure.slo_events import events
from prober.metrics import Recorder
from prober.probing.history import History

WINDOW_S = 600.0  # what "now" is, and how long a window of usual times is
# Probes of a workload that are looked at, and readings: as many as cost less than 2 ms. Rarer probes from further back.
FEWEST, MOST = 30, 150
LONGEST_S = 6 * 3600.0
USUAL = 144  # windows that are remembered: a day
BURN = 3  # times the budget that a window's events are bad, and at least
FEWEST_BAD = 3
# Ends that tell of speed: answers, and what was too slow or too busy to give one. What is refused or broken is not slow.
TELLING = ANSWERED | {
    *(Outcome.TIMEOUT_FIRST_TOKEN, Outcome.TIMEOUT_STALL, Outcome.TIMEOUT_TOTAL),
    *(Outcome.HTTP_408, Outcome.HTTP_429, Outcome.SHED),
}
log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Case:
    """One target. Times are seconds of the monotonic clock; workloads go together with their warm half."""

    slos: dict[str, tuple[Slo, ...]]
    decode: DecodeSpec | None
    probes: dict[str, deque[ProbeResult]] = field(default_factory=dict)
    readings: deque[tuple[float, Signals]] = field(default_factory=lambda: deque(maxlen=MOST))
    devices: deque[tuple[float, Sequence[Device]]] = field(default_factory=lambda: deque(maxlen=MOST))
    usual: dict[str, deque[Seen]] = field(default_factory=dict)
    since_s: float = 0.0  # the window of usual times under way began
    verdict: Diagnosis | None = None


class Explanation:
    """Remembers what a diagnosis needs, and makes one for each target in trouble."""

    def __init__(self, recorder: Recorder, history: History, watch: Watch) -> None:
        self._recorder, self._history, self._watch = recorder, history, watch
        self._cases: dict[str, _Case] = {}

    def declare(self, name: str, spec: TargetSpec, now_s: float) -> None:
        """Explain a target from now on; what is known of it stays while its configuration changes."""
        slos: dict[str, tuple[Slo, ...]] = {}
        for probe in spec.probes:
            for workload, _, _, judged in probe.judged():
                base = workload.removesuffix(WARM)
                slos[base] = (*slos.get(base, ()), *(slo for slo in judged if slo.threshold_s is not None))
        case = self._cases.setdefault(name, _Case({}, None, since_s=now_s))
        case.slos, case.decode = slos, spec.decode_bound
        self._recorder.regime(name, None)

    def remove(self, name: str) -> None:
        """Forget a target."""
        self._cases.pop(name, None)

    def probe(self, result: ProbeResult) -> None:
        """A probe has ended."""
        if (case := self._cases.get(result.target)) is not None:
            base = result.workload.removesuffix(WARM)
            case.probes.setdefault(base, deque(maxlen=MOST)).append(result)

    def reading(self, name: str, at_s: float, signals: Signals) -> None:
        """The engine's page was read."""
        if (case := self._cases.get(name)) is not None:
            case.readings.append((at_s, without_buckets(signals)))

    def devices(self, name: str, at_s: float, devices: Sequence[Device]) -> None:
        """The target's GPUs were read."""
        if (case := self._cases.get(name)) is not None and devices:
            case.devices.append((at_s, devices))

    def verdict(self, name: str) -> Diagnosis | None:
        """What is thought of a target now; None while there is nothing to explain."""
        case = self._cases.get(name)
        return case.verdict if case else None

    def look(self, name: str, now_s: float, unix_s: float) -> None:
        """Diagnose a target that is in trouble, or learn from one that is not."""
        case = self._cases.get(name)
        if case is None:
            return
        drifting = {key[1].removesuffix(WARM) for key in self._watch.active(name)}
        windows = {workload: _latest(probes, now_s) for workload, probes in case.probes.items()}
        troubled, found = False, None
        for workload, probes in windows.items():
            slos = case.slos.get(workload, ())
            telling = [each for each in probes if each.outcome in TELLING]
            breached = _breached(slos, telling)
            troubled |= bool(breached or _breached(slos, probes)) or workload in drifting
            if telling and (breached or workload in drifting) and (found is None or found.regime == "unknown"):
                now = _seen(case, probes)
                self._recorder.bound(name, now.over_bound)
                found = self._judged(case, workload, now, breached)
        self._tell(name, case, found, unix_s)
        if troubled:
            case.since_s = now_s
        else:
            self._learn(name, case, windows, now_s)

    def _judged(self, case: _Case, workload: str, now: Seen, breached: dict[str, float]) -> Diagnosis:
        engine = case.readings[-1][1].info.engine if case.readings else None
        return diagnose(Evidence(now, _typical(case.usual.get(workload, ())), breached, engine))

    def _tell(self, name: str, case: _Case, found: Diagnosis | None, unix_s: float) -> None:
        self._recorder.regime(name, found.regime if found else None)
        if found is not None and (case.verdict is None or found.regime != case.verdict.regime):
            log.info("target=%s diagnosis: %s", name, found.regime)
            self._history.happened(Event(unix_s, name, "diagnosis", found.text()))
        case.verdict = found

    def _learn(self, name: str, case: _Case, windows: dict[str, list[ProbeResult]], now_s: float) -> None:
        """A window without trouble is usual."""
        if now_s - case.since_s < WINDOW_S:
            return
        case.since_s = now_s
        for workload, probes in windows.items():
            if len(probes) >= FEWEST:
                found = _seen(case, probes)
                self._recorder.bound(name, found.over_bound)
                case.usual.setdefault(workload, deque(maxlen=USUAL)).append(found)


def _latest(probes: Sequence[ProbeResult], now_s: float) -> list[ProbeResult]:
    """Those of the last window; of workloads with fewer the last few, however old, within a limit."""
    ages = [(now_s - each.timeline.intended_ns / 1e9, each) for each in probes]
    recent = [each for age_s, each in ages if age_s <= WINDOW_S]
    return recent if len(recent) >= FEWEST else [each for age_s, each in ages[-FEWEST:] if age_s <= LONGEST_S]


def _breached(slos: Sequence[Slo], probes: Sequence[ProbeResult]) -> dict[str, float]:
    """Signal to threshold in s, of the SLOs whose budget these probes burn; the strictest where there are several."""
    found: dict[str, float] = {}
    for slo in slos:
        counts = [events(slo, each) for each in probes]
        seen_, bad = (sum(count[place] for count in counts) for place in (0, 1))
        if bad >= FEWEST_BAD and bad > BURN * float(slo.budget) * seen_ and slo.threshold_s is not None:
            found[slo.signal] = min(slo.threshold_s, found.get(slo.signal, slo.threshold_s))
    return found


def _seen(case: _Case, probes: Sequence[ProbeResult]) -> Seen:
    """Of the time of these probes."""
    since_s = min((each.timeline.intended_ns for each in probes), default=0) / 1e9
    readings = [each for each in case.readings if each[0] >= since_s]
    devices = [found for at_s, found in case.devices if at_s >= since_s]
    return seen(probes, readings, devices, _hardware(case.decode, devices[-1] if devices else ()))


def _hardware(decode: DecodeSpec | None, devices: Sequence[Device]) -> Hardware | None:
    """None where it is not configured, or not known what it runs on."""
    if decode is None:
        return None
    bandwidth = decode.bandwidth_bytes_per_s
    if bandwidth is None:
        names = {device.name for device in devices}
        found = memory_bandwidth(names.pop()) if len(names) == 1 else None
        if found is None or isinstance(found, Refused):
            return None
        bandwidth = found
    return Hardware(decode.model, bandwidth, decode.gpus or max(1, len(devices)))


def _typical(windows: Sequence[Seen]) -> Seen:
    """The window whose median TTFT is the median of all; nothing seen without any."""
    rated = sorted((each.ttft_s[0].estimate, place) for place, each in enumerate(windows) if each.ttft_s)
    return windows[rated[len(rated) // 2][1]] if rated else Seen()
