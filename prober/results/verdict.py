"""Whether a stage met its SLOs, as far as its events show."""

import math
from dataclasses import dataclass
from typing import Literal

from prober.measure.objective import Slo
from prober.results.result import Result, Stage

State = Literal["met", "missed", "undecided", "no_data"]
Z = 1.645  # one-sided 95%


@dataclass(frozen=True, slots=True)
class Kept:
    """The state of an SLO in a stage."""

    slo: Slo
    state: State
    events: int
    bad: int

    @property
    def good_ratio(self) -> float | None:
        """Share of good events."""
        return 1 - self.bad / self.events if self.events else None


def kept(slo: Slo, stage: Stage) -> Kept:
    """The SLO's state: met or missed if the share of bad events is on one side of the budget with 95% confidence.

    By Wilson's score interval (J. Am. Stat. Assoc. 22, 1927), which holds near 0 too: an objective of 99% takes 268 events
    without a bad one.
    """
    events, bad = stage.slos.get(slo.name, (0, 0))
    if not events:
        return Kept(slo, "no_data", 0, 0)
    share, budget, z2 = bad / events, float(slo.error_budget_ratio), Z * Z
    centre = (share + z2 / (2 * events)) / (1 + z2 / events)
    spread = Z / (1 + z2 / events) * math.sqrt(share * (1 - share) / events + z2 / (4 * events * events))
    state: State = "met" if centre + spread <= budget else "missed" if centre - spread > budget else "undecided"
    return Kept(slo, state, events, bad)


def contract(result: Result) -> list[tuple[Stage, list[Kept]]]:
    """Each stage with the state of each SLO."""
    return [(stage, [kept(slo, stage) for slo in result.slos]) for stage in result.stages]
