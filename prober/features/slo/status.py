"""Is an SLO met, missed, or is there no data? No data is a state of its own, and never reads as met."""

from dataclasses import dataclass
from typing import Literal

from prober.features.slo.firing import judging_events, silence_s
from prober.measure.objective import JudgedStream, Slo

State = Literal["met", "missed", "no_data"]


@dataclass(frozen=True, slots=True)
class SloStatus:
    """State of one SLO over the events counted so far; why: what is missing, where there is no data."""

    slo: Slo
    workload: str
    events: int
    bad: int
    state: State
    why: str


def slo_status(
    slo: Slo, use: JudgedStream, events: int, bad: int, *, trusted: bool, quiet_s: float | None
) -> SloStatus:
    """Judge `bad` of `events` since they began. quiet_s: seconds since the last one, None if none is known.

    Missed can be known before there are events enough for met: once more are bad than all of them may have.
    """
    needed = judging_events(slo, [use])
    why = ""
    if not trusted:
        why = "the prober does not trust itself"
    elif events == 0:
        why = "no event yet"
    elif quiet_s is not None and quiet_s > silence_s([use]):
        why = f"no event for {quiet_s:.0f} s"
    elif events < needed and bad <= slo.error_budget_ratio * needed:
        why = f"{events:,} of {needed:,} events that it takes to judge"
    state: State = "no_data" if why else "missed" if bad > slo.error_budget_ratio * events else "met"
    return SloStatus(slo, use.workload, events, bad, state, why)
