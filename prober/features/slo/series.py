"""Series of the SLOs."""

from prober.exposition.families import counter, gauge

_PROBE = ("target", "workload")
SLO_EVENTS = counter("llmslo_slo_events_total", "Events that the SLO judges.", *_PROBE, "slo")
SLO_BAD_EVENTS = counter(
    "llmslo_slo_bad_events_total",
    "Bad events of the SLO, counted against its exact threshold, not from buckets.",
    *_PROBE,
    "slo",
)
SLO_OBJECTIVE = gauge(
    "llmslo_slo_objective_ratio", "Declared share of events that must be good.", *_PROBE, "slo", "signal"
)
SLO_THRESHOLD = gauge(
    "llmslo_slo_threshold_seconds", "Declared latency up to which an event is good.", *_PROBE, "slo", "signal"
)
