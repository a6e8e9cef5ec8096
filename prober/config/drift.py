"""Drift detection: the size of a drift that matters, and the rate of false alarms."""

from typing import Annotated

from pydantic import Field

from prober.config.fields import Block, Duration, Percent, Rate, require

DAY_S = 86_400.0


class DriftSpec(Block):
    """Drift detection. false_alarms: per second and signal; material: share of the baseline latency."""

    false_alarms: Annotated[
        Rate, require(lambda per_s: per_s <= 1 / 3600, "is more than one an hour for each signal; use 1/h or less")
    ] = Field(1 / (30 * DAY_S), description="most false alarms per signal of a workload, at most 1/h")
    material: Annotated[
        Percent,
        require(
            lambda share: share >= 0.05,
            "{:.2%} cannot be told from the wander of a healthy engine; use 5% to 100%",
        ),
    ] = Field(0.2, description="smallest change of a latency that matters")
    accept_after: Duration = Field(7 * DAY_S, description="age at which a drift becomes the new baseline")
