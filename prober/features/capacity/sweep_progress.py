"""Progress of a sweep."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """Progress of the sweep under way.

    stage: from 0; rate_per_s: what it adds now; both None while it does not send. requests: sent so far
    """

    phase: str
    stage: int | None
    rate_per_s: float | None
    requests: int
    in_flight: int
    elapsed_s: float
