"""Health of a target: whether it generates, by scheduled probes and the state that its engine reports. Times are of one monotonic
clock.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from prober.config.target import HealthSpec
from prober.measure.objective import BURN_PROBES, burns, count_events
from prober.measure.outcome import BAD, NEUTRAL, Outcome
from prober.measure.result import ProbeResult
from prober.measure.target_state import NO_DATA_STATES, SILENT_STATES, TargetState

BURN_RATE = 14.4  # fastest pair of the SRE workbook (`prober.measure.objective`)


class Health(StrEnum):
    """Health of a target; the first word of the answer to `/health/TARGET`."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class HealthVerdict:
    """The health of a target, and its reason.

    evidence_ns: when the last counted probe ended, or the engine last reported that it loads or ends; None before
    """

    state: Health
    reason: str
    evidence_ns: int | None = None


BUSY = (Outcome.HTTP_429, Outcome.SHED)  # to take such a target out would make the others busier
NO_VERDICT = HealthVerdict(Health.UNKNOWN, "no probe has counted yet")


@dataclass(slots=True)
class HealthState:
    """Health of a target; call its methods in the order of time.

    A target becomes unhealthy with `failures` failed probes among the last `of`, with a burning SLO, or while its engine loads or
    ends. It becomes healthy with `successes` answered probes in a row. Earlier failures are then forgotten, also of a probe due
    before that times out later.

    max_age_s: maximum age of the evidence for a verdict
    verdict: the verdict, whatever the age of its evidence
    uncounted: how the last probe ended if it is not counted; else ""
    """

    spec: HealthSpec
    max_age_s: float
    verdict: HealthVerdict = NO_VERDICT
    uncounted: str = ""
    _failed: deque[bool] = field(init=False)  # of the last counted probes
    _recent: deque[ProbeResult] = field(default_factory=lambda: deque(maxlen=BURN_PROBES))  # to judge SLOs
    _successes: int = 0  # in a row
    _forgotten_ns: int = -1  # failed probes due before this time are not counted
    _cause: str = ""  # why it is unhealthy; "" while it is not
    _silent: TargetState | None = None

    def __post_init__(self) -> None:
        self._failed = deque(maxlen=self.spec.of)

    def probe_ended(self, result: ProbeResult, now_ns: int) -> None:
        """Take the result of a scheduled probe, sent or not."""
        spec, has_failed = self.spec, result.outcome in BAD
        if result.outcome in (*NEUTRAL, *BUSY):
            self.uncounted = result.reason
            return
        self.uncounted = ""
        if has_failed and result.timeline.intended_ns < self._forgotten_ns:
            return
        is_bad = has_failed or any(count_events(slo, result)[1] for slo in spec.slos)
        if self._cause and not (is_bad or self._successes):
            self._forgotten_ns = result.timeline.intended_ns
        self._successes = 0 if is_bad else self._successes + 1
        self._failed.append(has_failed)
        if spec.slos:
            self._recent.append(result.stored)
        burning = next((slo.name for slo in spec.slos if burns(self._recent, slo, BURN_RATE)), None)
        if self._cause and self._successes >= spec.successes:
            self._forget()
            self._failed.append(False)
        elif has_failed and sum(self._failed) >= spec.failures:
            self._cause = f"{self._counts}, the last one with {result.reason}"
        elif burning and not self._cause:
            self._cause = f"SLO {burning}: burn rate above {BURN_RATE:g} in the last {len(self._recent)} probes"
        self._judge(now_ns)

    def state_seen(self, state: TargetState, reason: str, now_ns: int) -> None:
        """Take the present state of the target and its reason."""
        if state in SILENT_STATES:
            self._forget()
            self._cause, self._silent, self._forgotten_ns = f"{state}: {reason}", state, now_ns
        elif self._silent is not None:
            self._cause, self._silent = f"it was {self._silent}", None
        else:
            return
        self._judge(now_ns)

    def at(self, now_ns: int, state: TargetState, reason: str, *, is_paused: bool) -> HealthVerdict:
        """The verdict at this time. state, reason: state of the target"""
        verdict, uncounted = self.verdict, self.uncounted
        if is_paused:
            return HealthVerdict(Health.UNKNOWN, "paused: no probe is sent until the target is resumed")
        if state in NO_DATA_STATES:
            return HealthVerdict(Health.UNKNOWN, f"{state}: {reason}")
        silence = verdict.reason
        if verdict.evidence_ns is not None:
            age_s = (now_ns - verdict.evidence_ns) / 1e9
            if age_s <= self.max_age_s:
                return verdict
            silence = f"no probe has counted for {age_s:.0f} s"
        return HealthVerdict(Health.UNKNOWN, f"{silence}; the last one was {uncounted}" if uncounted else silence)

    @property
    def _counts(self) -> str:
        return f"failed probes: {sum(self._failed)} of the last {len(self._failed)}"

    def _forget(self) -> None:
        self._cause, self._successes = "", 0
        self._failed.clear()
        self._recent.clear()

    def _judge(self, now_ns: int) -> None:
        if self._silent is not None:
            verdict = HealthVerdict(Health.UNHEALTHY, self._cause, now_ns)
        elif self._cause:
            progress = f"successes in a row since then: {self._successes} of {self.spec.successes}"
            verdict = HealthVerdict(Health.UNHEALTHY, f"{self._cause}; {progress}", now_ns)
        elif all(self._failed):
            verdict = HealthVerdict(Health.UNKNOWN, f"{self._counts}, too few to tell", now_ns)
        else:
            verdict = HealthVerdict(Health.HEALTHY, self._counts, now_ns)
        self.verdict = verdict
