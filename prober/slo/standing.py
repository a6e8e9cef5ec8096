"""Is an SLO met, missed, or is there no data? No data is a state of its own, and never reads as met."""

from dataclasses import dataclass
from typing import Literal

from prober.slo.firing import percentile_events
from prober.slo.objective import Slo

State = Literal["met", "missed", "no_data"]


@dataclass(frozen=True, slots=True)
class Standing:
    """State of one SLO over the events counted so far; why: what is missing, where there is no data."""

    slo: Slo
    workload: str
    events: int
    bad: int
    state: State
    why: str


def standing(slo: Slo, workload: str, events: int, bad: int, *, trusted: bool, silent_s: float | None) -> Standing:
    """Judge `bad` of `events`. silent_s: seconds without an event, None if there is no reason to call that silence."""
    needed = percentile_events(slo)
    why = ""
    if not trusted:
        why = "the prober does not trust itself"
    elif events == 0:
        why = "no event yet"
    elif silent_s is not None:
        why = f"no event for {silent_s:.0f} s"
    elif events < needed and bad <= slo.budget * needed:
        why = f"{events:,} of {needed:,} events that it takes to judge"
    state: State = "no_data" if why else "missed" if bad > slo.budget * events else "met"
    return Standing(slo, workload, events, bad, state, why)
