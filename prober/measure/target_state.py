"""States of a target and of its workloads, its warm-up, and its events.

An engine's first latencies are not typical: they include graph capture, compilation and allocation. `WarmUp` recognises them among
the probes of a target. `WarmUpLength` says how much a command sends before it measures.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from prober.measure.outcome import ANSWERED, BAD, Outcome


class TargetState(StrEnum):
    """State of a target, by increasing severity; value of the label `state` of `llmslo_target_state`."""

    READY = "ready"
    PENDING = "pending"  # nothing is known yet
    STARTING = "starting"  # its engine loads, or it refuses connections and has never answered
    DRAINING = "draining"  # its engine shuts down
    ASLEEP = "asleep"  # its engine has released its GPU memory on request, by its page
    OVER_BUDGET = "over_budget"  # no data: its budget is used up, so no probe is sent
    REJECTED = "rejected"  # no data: it refuses every probe
    FAILING = "failing"  # all probes within some seconds failed


SILENT_STATES = frozenset(
    {TargetState.STARTING, TargetState.DRAINING, TargetState.ASLEEP}
)  # nothing is sent but health checks
NO_DATA_STATES = frozenset({TargetState.OVER_BUDGET, TargetState.REJECTED})
UNANSWERED_STATES = NO_DATA_STATES | {TargetState.FAILING}  # measurements describe the past
IN_A_ROW = 3  # probes needed for a state, at least
MIN_NS = 2 * 10**9  # from the first to the last of them
REMEMBERED = 30  # earlier probes; each that ended alike adds one to the probes needed
STATE_OF_OUTCOME = {
    **dict.fromkeys(ANSWERED, TargetState.READY),
    **dict.fromkeys(BAD - {Outcome.SHED}, TargetState.FAILING),
    Outcome.OVER_BUDGET: TargetState.OVER_BUDGET,
    Outcome.REJECTED: TargetState.REJECTED,
}  # other outcomes are no evidence about the target


@dataclass(slots=True)
class WorkloadState:
    """State of one workload's probes, or of all workloads together. A single probe does not change it.

    A failure state begins after IN_A_ROW equal ends in a row, spread over MIN_NS. Each equal end among the REMEMBERED ends before them
    adds one to that number: if half of the probes fail, three failures in a row prove nothing. The state returns to `ready` when
    answered probes outnumber the others by IN_A_ROW, spread over MIN_NS. In `pending`, one answer is enough, and so is a first probe
    that ends in one of NO_DATA_STATES.

    reason: why the state is not `ready`; "" if it is
    latest: state that the latest probe indicates
    """

    workload: str
    state: TargetState = TargetState.PENDING
    reason: str = ""
    latest: TargetState | None = None
    _in_a_row: int = 0
    _since_ns: int = 0  # start of the row
    _before: deque[TargetState] = field(default_factory=lambda: deque(maxlen=REMEMBERED))  # ends before the row
    _surplus: int = 0  # answered − other probes
    _surplus_since_ns: int = 0

    @property
    def text(self) -> str:
        """Sentence on why there is no data."""
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
        """Return to `pending`, because the state may be outdated. The next failure state again needs a full row of probes."""
        self.state, self.reason, self._in_a_row = TargetState.PENDING, "", 0


EventKind = Literal["state", "engine", "drift", "answers", "diagnosis", "slo", "sweep"]


@dataclass(frozen=True, slots=True)
class TargetEvent:
    """An event, shown in the history of `target` and as an annotation in its graphs. target: "" if it concerns several targets

    times: number of occurrences since `since_unix_s`, which is None for a single one
    trace_id: trace of a probe that shows it; "" for none
    """

    unix_s: float
    target: str
    kind: EventKind
    text: str
    times: int = 1
    since_unix_s: float | None = None
    trace_id: str = ""


HOUR_NS = 3600 * 10**9
DEFAULT_IDLE_NS = 600 * 10**9
MAX_WARM_UPS_PER_HOUR = 10


@dataclass(frozen=True, slots=True)
class WarmUpLength:
    """Length of a warm-up in requests or seconds; with both, it ends when the first is reached.

    until_steady: it also ends once the latencies are proved steady (`results.steadiness`)
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

    Warm-up are the first `count` successes after the start, after `restarted` and after `idle_ns` without a success, at most
    MAX_WARM_UPS_PER_HOUR, so that an engine in a crash loop leaves warm-up. Failures are never warm-up.
    """

    count: int
    idle_ns: int = DEFAULT_IDLE_NS
    _remaining: int = 0
    _last_ns: int | None = None
    _warm_ups: deque[int] = field(default_factory=deque)

    def restarted(self) -> None:
        """Start a new warm-up, because the engine was restarted."""
        self._last_ns = None

    @property
    def done(self) -> int:
        """Number of warm-up successes since the warm-up began."""
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
