"""Whether a stage met its SLOs, as far as its events show."""

import math
from dataclasses import dataclass
from typing import Literal

from prober.measure.objective import Slo
from prober.results.result import Result, Stage

State = Literal["met", "missed", "undecided", "no_data"]
Z = 1.645  # one-sided 95%


@dataclass(frozen=True, slots=True)
class StageSlo:
    """An SLO in a stage. events, bad: numbers of events and of bad events."""

    slo: Slo
    state: State
    events: int
    bad: int

    @property
    def good_ratio(self) -> float | None:
        """Share of good events."""
        return 1 - self.bad / self.events if self.events else None


def stage_slo(slo: Slo, stage: Stage) -> StageSlo:
    """The state of the SLO: met or missed if the share of bad events is on one side of the budget with 95% confidence.

    By Wilson's score interval (J. Am. Stat. Assoc. 22, 1927), which is valid near 0 too: an objective of 99% needs 268 events
    without a bad one.
    """
    events, bad = stage.slos.get(slo.name, (0, 0))
    if not events:
        return StageSlo(slo, "no_data", 0, 0)
    share, budget, z2 = bad / events, float(slo.error_budget_ratio), Z * Z
    centre = (share + z2 / (2 * events)) / (1 + z2 / events)
    spread = Z / (1 + z2 / events) * math.sqrt(share * (1 - share) / events + z2 / (4 * events * events))
    state: State = "met" if centre + spread <= budget else "missed" if centre - spread > budget else "undecided"
    return StageSlo(slo, state, events, bad)


def stage_slos(result: Result) -> list[tuple[Stage, list[StageSlo]]]:
    """All stages, each with the states of all SLOs."""
    return [(stage, [stage_slo(slo, stage) for slo in result.slos]) for stage in result.stages]
