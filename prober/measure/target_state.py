"""States of a target and of its workloads."""

from dataclasses import dataclass
from enum import StrEnum

from prober.measure.outcome import ANSWERED, BAD, Outcome


class TargetState(StrEnum):
    """Whether a target answers, by increasing severity; the values of the label `state` of `llmslo_target_state`."""

    READY = "ready"
    PENDING = "pending"  # nothing is known of it yet
    STARTING = "starting"  # its engine loads, or it refuses connections and has never answered
    DRAINING = "draining"  # its engine shuts down
    OVER_BUDGET = "over_budget"  # no data: its budget is used up, so that no probe is sent
    REJECTED = "rejected"  # no data: it refuses every probe
    FAILING = "failing"  # several probes in a row failed


SILENT_STATES = frozenset({TargetState.STARTING, TargetState.DRAINING})  # nothing is sent but health checks
NO_DATA_STATES = frozenset({TargetState.OVER_BUDGET, TargetState.REJECTED})
UNANSWERED_STATES = NO_DATA_STATES | {TargetState.FAILING}  # what was measured describes the past
IN_A_ROW = 3  # probes with the same end that make a state; one among others makes none
STATE_OF_OUTCOME = {
    **dict.fromkeys(ANSWERED, TargetState.READY),
    **dict.fromkeys(BAD - {Outcome.SHED}, TargetState.FAILING),
    Outcome.OVER_BUDGET: TargetState.OVER_BUDGET,
    Outcome.REJECTED: TargetState.REJECTED,
}  # an outcome that is missing says nothing of the target


@dataclass(slots=True)
class WorkloadState:
    """State of the probes of a workload: that of its latest answer, or of IN_A_ROW probes in a row since.

    A first probe that gives no data is a state at once, as every probe so far ended so. reason: of the state, "" if it is `ready`
    """

    workload: str
    state: TargetState = TargetState.PENDING
    reason: str = ""
    _latest: TargetState | None = None
    _in_a_row: int = 0

    @property
    def text(self) -> str:
        """That there is no data, and why, in words."""
        return f"no data of workload {self.workload}: {self.state}: {self.reason}"

    def ended(self, state: TargetState, reason: str) -> None:
        """A probe ended. state: of its outcome"""
        is_first, self._in_a_row = self._latest is None, self._in_a_row + 1 if state is self._latest else 1
        self._latest = state
        if state is TargetState.READY or self._in_a_row >= IN_A_ROW or (is_first and state in NO_DATA_STATES):
            self.state = state
        if state is self.state:
            self.reason = reason

    def doubt(self) -> None:
        """The state may be over: it takes IN_A_ROW probes again."""
        self.state, self.reason, self._in_a_row = TargetState.PENDING, "", 0
