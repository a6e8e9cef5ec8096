"""Reasons why a sweep is not started."""

from dataclasses import dataclass
from typing import Literal

Trigger = Literal["schedule", "request", "change"]
RefusalReason = Literal[
    "not_configured",  # the target has no `sweep:` in the configuration, or is gone
    "running",  # another sweep is under way
    "min_gap",  # the last sweep started too recently
    "retry_after",  # the target asked to be left alone
    "blackout",  # the time is in `sweep.blackout`
    "not_ready",  # the target is paused, or does not answer well
    "alert_firing",  # an alert fires for the target
    "locked",  # another process of this machine loads the target
    "no_lease",  # another replica has the lease, or started the sweep that was due
    "missed",  # the prober did not run when the sweep was due
    "over_budget",  # the daily budgets leave too little
    "not_recorded",  # the start cannot be written to the store
]


class Refused(Exception):
    """A sweep is not started; the message explains `reason`."""

    def __init__(self, reason: RefusalReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A request to start a sweep. due_unix_s: when the schedule was due; 0 without a schedule."""

    trigger: Trigger
    due_unix_s: float = 0.0
