"""States, thresholds and columns that several dashboards show alike."""

from typing import Any

from prober.exposition.dashboards.board import to_target
from prober.exposition.dashboards.panels import Column
from prober.exposition.dashboards.queries import STATES
from prober.exposition.dashboards.style import GREEN, GREY, ORANGE, RED, YELLOW, Steps, index_mapping

# In the order of queries.target_state and queries.slo_state.
TARGET_STATES = index_mapping(*zip(STATES, (GREEN, GREY, YELLOW, YELLOW, ORANGE, ORANGE, RED), strict=True))
SLO_STATES = index_mapping(("met", GREEN), ("no data", GREY), ("no rules", ORANGE), ("missed", RED))
YES_NO = index_mapping(("no", RED), ("yes", GREEN))
SEVERITIES = {"critical": RED, "warning": ORANGE, "info": GREY}
GOOD_AT_ONE: Steps = ((None, RED), (1, GREEN))
BUDGET_STEPS: Steps = ((None, RED), (0, ORANGE), (0.25, GREEN))
HEADROOM_STEPS: Steps = ((None, RED), (0.1, ORANGE), (0.3, GREEN))


def target_column(**more: Any) -> Column:
    """Column of the target's name, with a link to its dashboard."""
    return Column(source="target", name="Target", link=to_target("target"), link_title="The target in detail", **more)
