"""States of a target and of its workloads, its warm-up, and its events other than probes.

The first latencies of an engine include graph capture, compilation and allocation, and are not typical. `WarmUp` recognises them among
the probes of a target. `WarmUpLength` is how much a command sends before it measures.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from prober.measure.outcome import ANSWERED, BAD, Outcome


class TargetState(StrEnum):
    """State of a target, by increasing severity; values of the label `state` of `llmslo_target_state`."""

    READY = "ready"
    PENDING = "pending"  # nothing is known of it yet
    STARTING = "starting"  # its engine loads, or it refuses connections and has never answered
    DRAINING = "draining"  # its engine shuts down
    OVER_BUDGET = "over_budget"  # no data: its budget is used up, so that no probe is sent
    REJECTED = "rejected"  # no data: it refuses every probe
    FAILING = "failing"  # every probe of some seconds failed


SILENT_STATES = frozenset({TargetState.STARTING, TargetState.DRAINING})  # nothing is sent but health checks
NO_DATA_STATES = frozenset({TargetState.OVER_BUDGET, TargetState.REJECTED})
UNANSWERED_STATES = NO_DATA_STATES | {TargetState.FAILING}  # what was measured describes the past
IN_A_ROW = 3  # probes that make a state, at least
MIN_NS = 2 * 10**9  # between the first and the last of them
REMEMBERED = 30  # earlier probes; each with the same end raises the number that a state needs
STATE_OF_OUTCOME = {
    **dict.fromkeys(ANSWERED, TargetState.READY),
    **dict.fromkeys(BAD - {Outcome.SHED}, TargetState.FAILING),
    Outcome.OVER_BUDGET: TargetState.OVER_BUDGET,
    Outcome.REJECTED: TargetState.REJECTED,
}  # outcomes that are missing here are no evidence about the target


@dataclass(slots=True)
class WorkloadState:
    """State of the probes of one workload, or of all workloads together. A single probe does not change it.

    A failure state begins after IN_A_ROW equal ends in a row, spread over MIN_NS. Each equal end among the REMEMBERED ends before them
    adds one to that number: if half of the probes fail, three failures in a row are no evidence. The state returns to `ready` when the
    probes answered exceed the others by IN_A_ROW, spread over MIN_NS. In `pending`, a single answer is enough, and so is a first probe
    that ends in one of NO_DATA_STATES.

    reason: why the state is not `ready`, "" if it is
    latest: state that the latest probe indicates
    """

    workload: str
    state: TargetState = TargetState.PENDING
    reason: str = ""
    latest: TargetState | None = None
    _in_a_row: int = 0
    _since_ns: int = 0  # of those in a row
    _before: deque[TargetState] = field(default_factory=lambda: deque(maxlen=REMEMBERED))  # that are remembered
    _surplus: int = 0  # of answers
    _surplus_since_ns: int = 0

    @property
    def text(self) -> str:
        """Sentence that says that there is no data, and why."""
        return f"no data of workload {self.workload}: {self.state}: {self.reason}"

    def ended(self, end: TargetState, reason: str, now_ns: int) -> None:
        """Record the end of a probe. end: the state that its outcome indicates"""
        is_answer, is_first = end is TargetState.READY, self.latest is None
        if end is not self.latest:
            if self.latest is not None and self.state in (TargetState.READY, TargetState.PENDING):
                self._before.extend([self.latest] * min(self._in_a_row, REMEMBERED))
            self.latest, self._in_a_row, self._since_ns = end, 0, now_ns
        self._in_a_row += 1
        if not self._surplus:
            self._surplus_since_ns = now_ns
        self._surplus = max(0, self._surplus + (1 if is_answer else -1))
        if is_answer:
            is_over = self._surplus >= IN_A_ROW and now_ns - self._surplus_since_ns >= MIN_NS
            begins = is_over or self.state is TargetState.PENDING
        else:
            needed = IN_A_ROW + self._before.count(end)
            begins = self._in_a_row >= needed and now_ns - self._since_ns >= MIN_NS
            begins = begins or (is_first and end in NO_DATA_STATES)
            self._surplus = 0 if begins else self._surplus
        if begins:
            self.state = end
        if end is self.state:
            self.reason = reason

    def doubt(self) -> None:
        """Return to `pending`, because the state may no longer hold. The next failure state needs a full row of probes again."""
        self.state, self.reason, self._in_a_row = TargetState.PENDING, "", 0


EventKind = Literal["state", "engine", "drift", "answers", "diagnosis", "slo", "sweep"]


@dataclass(frozen=True, slots=True)
class TargetEvent:
    """An event that is shown in the history of `target` and as an annotation in its graphs. target: "" for an event of several targets

    times: number of occurrences since `since_unix_s`, which is None for a single one
    """

    unix_s: float
    target: str
    kind: EventKind
    text: str
    times: int = 1
    since_unix_s: float | None = None


HOUR_NS = 3600 * 10**9
DEFAULT_IDLE_NS = 600 * 10**9
MAX_WARM_UPS_PER_HOUR = 10


@dataclass(frozen=True, slots=True)
class WarmUpLength:
    """Length of a warm-up, as a number of requests or in seconds. With both, the one that is reached first ends it.

    until_steady: it also ends once the latencies are shown to be steady (`results.steadiness`)
    """

    requests: int | None = None
    seconds: float | None = None
    until_steady: bool = False

    def is_over(self, requests: int, elapsed_s: float) -> bool:
        """True if the warm-up is complete after `requests` and `elapsed_s`."""
        is_long = self.seconds is not None and elapsed_s >= self.seconds
        return is_long or (requests >= self.requests if self.requests is not None else self.seconds is None)

    def __str__(self) -> str:
        if self.until_steady:
            return "steady"
        return f"{self.requests}" if self.requests is not None else f"{self.seconds or 0.0:g}s"


UNTIL_STEADY = WarmUpLength(620, 300.0, until_steady=True)  # requests: the last of `steadiness.LOOKS`


@dataclass(slots=True)
class WarmUp:
    """Counts the warm-up probes of one target.

    The first `count` successes after the start, after `restarted` or after `idle_ns` without a success are warm-up, but at most
    MAX_WARM_UPS_PER_HOUR, so that an engine in a crash loop does not stay in warm-up forever. Failures are never warm-up.
    """

    count: int
    idle_ns: int = DEFAULT_IDLE_NS
    _remaining: int = 0
    _last_ns: int | None = None
    _warm_ups: deque[int] = field(default_factory=deque)

    def restarted(self) -> None:
        """Start a new warm-up: the engine behind the target was restarted."""
        self._last_ns = None

    @property
    def done(self) -> int:
        """Number of successes that count as warm-up since the warm-up began."""
        return self.count - self._remaining if self._last_ns is not None else 0

    def record_success(self, now_ns: int) -> bool:
        """Record a success at `now_ns`. Returns True if it is warm-up."""
        if self._last_ns is None or now_ns - self._last_ns > self.idle_ns:
            self._remaining = self.count
        self._last_ns = now_ns
        while self._warm_ups and now_ns - self._warm_ups[0] >= HOUR_NS:
            self._warm_ups.popleft()
        if self._remaining <= 0 or len(self._warm_ups) >= MAX_WARM_UPS_PER_HOUR:
            return False
        self._remaining -= 1
        self._warm_ups.append(now_ns)
        return True
