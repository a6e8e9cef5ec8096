"""States of a target."""

from enum import StrEnum


class TargetState(StrEnum):
    """Whether a target answers; the values of the label `state` of `llmslo_target_state`."""

    PENDING = "pending"  # nothing is known of it yet
    STARTING = "starting"  # its engine loads, or it refuses connections and has never answered
    READY = "ready"
    DRAINING = "draining"  # its engine shuts down
    FAILING = "failing"  # several probes in a row failed


SILENT_STATES = frozenset({TargetState.STARTING, TargetState.DRAINING})  # nothing is sent but health checks
