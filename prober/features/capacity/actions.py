"""Actions of the sweep state machine, and reasons why sweeps are not started and why they end."""

from dataclasses import dataclass
from typing import Literal

from prober.features.capacity.sweep_record import Phase, Record, Stage
from prober.probing.stop_conditions import VOID, EngineCondition
from prober.results.capacity import Capacity, Verdict
from prober.results.refused_requests import RefusedRequests

Trigger = Literal["schedule", "request", "change"]
RefusalReason = Literal[
    "not_configured",  # the target has no `sweep:` in the configuration, or was removed
    "running",  # another sweep is running
    "min_gap",  # the last sweep started too recently
    "retry_after",  # the target asked for a pause
    "blackout",  # the time is in `sweep.blackout`
    "not_ready",  # the target is paused, or does not answer well
    "alert_firing",  # an alert fires for the target
    "locked",  # another process of this machine sends to the target
    "no_lease",  # another replica has the lease, or started the due sweep
    "missed",  # the prober did not run when the sweep was due
    "over_budget",  # too little of the daily budgets is left
    "not_recorded",  # the start cannot be written to the store
]


class Refused(Exception):
    """A sweep cannot start; the message explains `reason`."""

    def __init__(self, reason: RefusalReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A request to start a sweep. due_unix_s: when the schedule was due; 0 without one"""

    trigger: Trigger
    due_unix_s: float = 0.0


LimitReason = Literal["request_budget", "token_budget", "cost_budget", "session_count"]
Reason = (
    Literal[
        "knee_passed",  # at least two in a stage, and more than the objective allows
        "breaching",  # four of the last eight breached
        "near_threshold",  # gentle: two of the last twelve latencies reach 70% of a threshold
        "highest_rate",  # the plan ends
        "smoke_failed",  # the first requests failed, so nothing is measurable
        "failed",  # too many requests of a stage
        "refused",  # too many requests
        "rate_limited",  # a limit in front of the engine refused a request
        "slow",  # a TTFT far above its threshold
        "saturated",  # completions fall behind arrivals, or the plan's in-flight limit
        "not_sent",  # the prober could not send the load
        "page_lost",  # the stop conditions lost their data
        "retry_after",  # the target requested a pause
        "time_budget",
        "guard",  # an external condition; `detail` names it
        "lease_lost",  # another prober may sweep
        "no_estimate",  # the process of the estimate failed
    ]
    | LimitReason
    | EngineCondition
)
# Ends by the plan or from outside, which say nothing about the target.
UNREACHED: frozenset[Reason] = frozenset(
    {
        *("highest_rate", "not_sent", "page_lost", "retry_after"),
        *("guard", "production_ttft", "lease_lost"),
        *("request_budget", "token_budget", "time_budget", "cost_budget", "session_count"),
    }
)


@dataclass(frozen=True, slots=True)
class OtherLoad:
    """Background load on the target during a sweep in requests per second, and its source.

    least_per_s: proved lower bound, 0 without evidence; most_per_s: upper bound
    """

    least_per_s: float
    most_per_s: float
    source: Literal["engine", "prometheus"]


@dataclass(frozen=True, slots=True)
class Run:
    """Send at `rate_per_s` from now on, in an open loop with Poisson arrivals. Another `stage` number begins a new stage."""

    stage: int
    phase: Phase
    rate_per_s: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """Stop sending, cancel requests in flight, and pass `estimate(record)` to `estimated`. detail: explains `reason`."""

    reason: Reason
    detail: str
    record: Record


@dataclass(frozen=True, slots=True)
class Finished:
    """End of the sweep: stop sending and cancel requests in flight.

    reason: why the sending ended; detail: explains it
    capacities: one per SLO; empty if the target changed during the sweep, without an estimate, with too many refused requests, or at a
    rate limit
    sending_ended: why the sending ended, if `reason` is `no_estimate`
    others: background load; None: unknown, and rates are those of the sweep alone
    refused: refused requests; of the warm-up only if nothing else has ended
    """

    reason: Reason
    detail: str
    capacities: tuple[Capacity, ...]
    stages: tuple[Stage, ...]
    sending_ended: Reason | None = None
    others: OtherLoad | None = None
    refused: RefusedRequests = RefusedRequests()

    @property
    def verdict(self) -> Verdict | Literal["void", "not_judged", "no_estimate"]:
        """`void`, `not_judged` or `no_estimate`, else the worst verdict of the SLOs: `below`, then `not_enough_data`."""
        if self.reason in VOID:
            return "void"
        if self.refused.is_too_many or self.reason == "rate_limited":
            return "not_judged"
        if self.reason == "no_estimate":
            return "no_estimate"
        verdicts = {capacity.verdict for capacity in self.capacities} or {"not_enough_data"}
        order: tuple[Verdict, ...] = ("below", "not_enough_data", "between", "found")
        return next((verdict for verdict in order if verdict in verdicts), "not_reached")


Action = Run | Estimate | Finished
