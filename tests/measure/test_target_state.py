"""States of a target."""

from prober.features.grafana.dashboards.queries import STATES
from prober.measure.target_state import TargetState


def test_dashboards_know_every_state() -> None:
    """They order the states by concern, so they list them themselves."""
    assert sorted(STATES) == sorted(TargetState)
