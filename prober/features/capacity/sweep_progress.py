"""How far a sweep is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sweeping:
    """A sweep under way. stage: counted from 0, rate_per_s: what it adds now; both None while it is not sending."""

    phase: str
    stage: int | None
    rate_per_s: float | None
    requests: int
    in_flight: int
    elapsed_s: float
