"""Series and panel of the health."""

from prober.exposition.dashboards.panels import Panel, Query, states
from prober.exposition.dashboards.queries import TARGET
from prober.exposition.dashboards.style import GREEN, RED, index_mapping
from prober.exposition.families import gauge

HEALTHY = gauge(
    "llmslo_target_healthy",
    "1 while /health/TARGET says that the target is healthy, 0 while unhealthy; absent while that is unknown.",
    "target",
)


def over_time() -> Panel:
    """Panel of the health over time, by the prober with the worst verdict."""
    return states(
        "Health",
        "What /health/TARGET says to load balancers. Bad: unhealthy, so it should get no traffic; or it changes often.",
        index_mapping(("unhealthy", RED), ("healthy", GREEN)),
        Query(f"min by (target) ({HEALTHY}{{{TARGET}}})", "{{target}}"),
        height=4,
        empty="unknown",
    )
