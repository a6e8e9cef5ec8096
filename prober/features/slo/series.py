"""Series of the SLOs."""

from prober.exposition.families import counter, gauge

_SLO = ("target", "workload", "slo")
_TRAFFIC = ("target", "slo")
SLO_EVENTS = counter("llmslo_slo_events_total", "Events that the SLO judges.", *_SLO)
SLO_BAD_EVENTS = counter(
    "llmslo_slo_bad_events_total",
    "Bad events of the SLO, counted against its exact threshold, not from buckets.",
    *_SLO,
)
SLO_UNDECIDED = counter(
    "llmslo_slo_undecided_total",
    "Answers that are no event of the SLO: their latency is only known to lie between two times, one on each side of the threshold.",
    *_SLO,
)
EVENTS_PER_PROBE = gauge(
    "llmslo_slo_events_per_probe", "Most events that one probe can give; absent where it is one.", *_SLO
)
SLO_STATE = gauge(
    "llmslo_slo_state", "1; the state is the compliance of the SLO's window: met, missed or no_data.", *_SLO, "state"
)
SLO_WINDOW_EVENTS = gauge("llmslo_slo_window_events", "Events that this prober has counted in the SLO's window.", *_SLO)
SLO_BUDGET_LEFT = gauge(
    "llmslo_slo_error_budget_remaining_ratio",
    "Share of the error budget that the events of the SLO's window have left; below 0 if more were bad than it allows.",
    *_SLO,
)
SLO_SILENT = gauge(
    "llmslo_slo_silent",
    "1 if the SLO had no event for the time in which ten probes are due, at least ten minutes, else 0.",
    *_SLO,
)
SLO_OBJECTIVE = gauge("llmslo_slo_objective_ratio", "Declared share of events that must be good.", *_SLO, "signal")
SLO_THRESHOLD = gauge("llmslo_slo_threshold_seconds", "Declared latency up to which an event is good.", *_SLO, "signal")
TRAFFIC_EVENTS = counter(
    "llmslo_slo_traffic_events_total",
    "Observations in the engine's own histogram (success: its counted requests) while it was read: also of the probes.",
    *_TRAFFIC,
)
TRAFFIC_BAD_EVENTS = counter(
    "llmslo_slo_traffic_bad_events_total",
    "Those above llmslo_slo_traffic_threshold_seconds; for success those failed or rejected.",
    *_TRAFFIC,
)
TRAFFIC_OBJECTIVE = gauge(
    "llmslo_slo_traffic_objective_ratio",
    "Declared share of all requests' events that must be good.",
    *_TRAFFIC,
    "signal",
)
TRAFFIC_EVENTS_PER_REQUEST = gauge(
    "llmslo_slo_traffic_events_per_probe",
    "Most events that one request gives, as far as is assumed; absent where it is one.",
    *_TRAFFIC,
)
TRAFFIC_BUDGET_LEFT = gauge(
    "llmslo_slo_traffic_error_budget_remaining_ratio",
    "Share of the error budget that all requests of the SLO's window have left, since the prober's start.",
    *_TRAFFIC,
)
TRAFFIC_THRESHOLD = gauge(
    "llmslo_slo_traffic_threshold_seconds",
    "Bound of the engine's histogram that stands for the threshold; absent while the page has no near one.",
    *_TRAFFIC,
    "signal",
)
