"""States of a target."""

from prober.exposition.dashboards.queries import STATES
from prober.measure.target_state import TargetState


def test_dashboards_know_every_state() -> None:
    """They list the states themselves, in the order of their severity."""
    assert tuple(TargetState) == STATES
