"""Drift detection: what counts as a drift, and how often it may be found where there is none."""

from pydantic import Field, field_validator

from prober.config.fields import Block, Duration, Percent, Rate, mistake

DAY_S = 86_400.0


class DriftSpec(Block):
    """Drift detection. false_alarms: per second and signal; material: share of the baseline latency."""

    false_alarms: Rate = Field(1 / (30 * DAY_S), description="most false alarms per signal of a workload")
    material: Percent = Field(0.2, description="smallest change of a latency that matters")
    accept_after: Duration = Field(7 * DAY_S, description="age at which a drift becomes the new baseline")

    @field_validator("material")
    @classmethod
    def _check_material(cls, material: float) -> float:
        if not 0.05 <= material <= 1:
            raise mistake(f"{material * 100:g}% cannot be told from the wander of a healthy engine; use 5% to 100%")
        return material
