"""Compliance with an SLO over its window: met or missed by the share of bad events, or no_data with too few events.

Page, API, `watch` and the exported series judge the events of one prober. Without data an SLO is never met.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from prober.measure.objective import JudgedStream, Slo, mean_events_per_probe

Compliance = Literal["met", "missed", "no_data"]
MIN_PERCENTILE_EVENTS = 1_000
SILENCE_PROBES = 10  # a Poisson schedule has no such gap, with probability 1 - e^-10
MIN_SILENCE_S = 600
UNTRUSTED = "the prober sent or timed fewer than half of the probes of the last 10 minutes, for lack of CPU time"


def percentile_events(slo: Slo) -> int:
    """Number of events needed to judge a percentile: the larger of 1,000 and 10 ÷ budget (above p99: 100 ÷ budget).

    That is 1,000 for p99 and 100,000 for p99.9, as for every exported quantile.
    """
    return max(
        MIN_PERCENTILE_EVENTS, math.ceil((10 if slo.objective <= Decimal("0.99") else 100) / slo.error_budget_ratio)
    )


def silence_s(uses: Sequence[JudgedStream]) -> int:
    """Seconds without an event, in whole minutes, after which an SLO has no data."""
    slowest = min(use.rate_per_s for use in uses)
    return max(MIN_SILENCE_S, 60 * math.ceil(SILENCE_PROBES / slowest / 60))


@dataclass(frozen=True, slots=True)
class Burn:
    """Whether the budget of an SLO burns now, with the latest events.

    span_s: the last seconds in which events are counted: at most since the present burn began, or since the last one ended
    since_unix_s: start of the present burn; None if the budget does not burn
    until_unix_s: last bad event of the latest burn; None if unknown
    """

    events: int = 0
    bad: int = 0
    span_s: float = 0.0
    since_unix_s: float | None = None
    until_unix_s: float | None = None


@dataclass(frozen=True, slots=True)
class SloStatus:
    """Status of one SLO.

    since_unix_s: start of the counted events: a window ago, or later if the prober has known the SLO for less
    why: reason for no_data, else empty
    of_answered: only answered requests are events, because another SLO counts failures
    """

    slo: Slo
    workload: str
    events: int
    bad: int
    since_unix_s: float
    state: Compliance
    why: str
    burn: Burn = Burn()
    of_answered: bool = False


def compliance(
    slo: Slo,
    use: JudgedStream,
    events: int,
    bad: int,
    *,
    trusted: bool,
    quiet_s: float | None,
    why_no_event: str = "",
) -> tuple[Compliance, str]:
    """Judge `bad` of `events` in the window of the SLO. Returns (compliance, the reason for no_data).

    quiet_s: seconds since the last event, None if unknown
    why_no_event: why the last probe was no event; "" if it was one, or if the reason is unknown

    An SLO can be missed with fewer events than met needs: once its bad events exceed the budget for that number of
    events. While most probes could not be sent or timed (`trusted` is False) no latency SLO is met; a missed one stays missed.
    """
    # All gaps of a probe count as one event, as they are dependent.
    needed = math.ceil(percentile_events(slo) * mean_events_per_probe(slo, use.mean_tokens))
    why, reason = "", f"; {why_no_event}" if why_no_event else ""
    if events == 0:
        why = f"no event yet{reason}"
    elif quiet_s is not None and quiet_s > silence_s([use]):
        why = f"no event for {quiet_s:.0f} s{reason}"
    elif events < needed and bad <= slo.error_budget_ratio * needed:
        why = f"{events:,} of the {needed:,} events needed{reason}"
    elif not trusted and slo.threshold_s is not None and bad <= slo.error_budget_ratio * events:
        why = UNTRUSTED
    return "no_data" if why else "missed" if bad > slo.error_budget_ratio * events else "met", why
