"""Series of the health."""

from prober.exposition.families import gauge

HEALTHY = gauge(
    "llmslo_target_healthy",
    "1 while /health/TARGET says that the target is healthy, 0 while unhealthy; absent while that is unknown.",
    "target",
)
