"""Status of an SLO over its window: met, missed or no_data. Missing data is never reported as met.

The recording rules judge by the same definition (`prober.features.slo.rules`), over the events of all probers of the target.
"""

from dataclasses import dataclass
from typing import Literal

from prober.features.slo.firing import judging_events, silence_s
from prober.measure.objective import JudgedStream, Slo

State = Literal["met", "missed", "no_data"]


@dataclass(frozen=True, slots=True)
class SloStatus:
    """Status of one SLO.

    since_unix_s: from when on events are counted: as long as its window, or less if the prober has not known it for so long
    why: the reason for no_data, else empty
    """

    slo: Slo
    workload: str
    events: int
    bad: int
    since_unix_s: float
    state: State
    why: str


def slo_status(
    slo: Slo,
    use: JudgedStream,
    events: int,
    bad: int,
    *,
    since_unix_s: float,
    trusted: bool,
    quiet_s: float | None,
    why_no_event: str = "",
) -> SloStatus:
    """Judge `bad` of `events` in the window of the SLO.

    quiet_s: seconds since the last event, None if unknown
    why_no_event: why the last answer was no event, "" if it was one or the reason is unknown

    An SLO can be missed before there are enough events for met: as soon as the bad ones exceed the budget of all needed events.
    """
    needed = judging_events(slo, [use])
    why, reason = "", f"; {why_no_event}" if why_no_event else ""
    if not trusted:
        why = "the prober's measurements are not reliable"
    elif events == 0:
        why = f"no event yet{reason}"
    elif quiet_s is not None and quiet_s > silence_s([use]):
        why = f"no event for {quiet_s:.0f} s{reason}"
    elif events < needed and bad <= slo.error_budget_ratio * needed:
        why = f"{events:,} of the {needed:,} events needed"
    state: State = "no_data" if why else "missed" if bad > slo.error_budget_ratio * events else "met"
    return SloStatus(slo, use.workload, events, bad, since_unix_s, state, why)
