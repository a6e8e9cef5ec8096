"""Series of drift."""

from prober.exposition.families import Series, counter, gauge

_PROBE = ("target", "workload")
_SIGNAL = (*_PROBE, "signal")
DRIFT_EVIDENCE = gauge(
    "llmslo_drift_evidence_ratio", "Evidence on a log scale that it is slower than its baseline; 1 alarms.", *_SIGNAL
)
DRIFT_ACTIVE = gauge("llmslo_drift_active", "1 while it is slower than its baseline, by cause.", *_SIGNAL, "cause")
DRIFT_SINCE = gauge(
    "llmslo_drift_since_timestamp_seconds", "When the change began, while it is active; an estimate.", *_SIGNAL
)
DRIFT_SHIFT = gauge(
    "llmslo_drift_shift_ratio",
    "Quantile since the change over the baseline's, at the same load, with its 95% interval (bound: lower, estimate, upper); "
    "only with enough samples.",
    *_SIGNAL,
    "quantile",
    "bound",
)
DRIFT_PHASE = gauge("llmslo_drift_phase", "1 for what the baseline is.", *_SIGNAL, "phase")
DRIFT_EVENTS = counter("llmslo_drift_events_total", "What happened to the baseline.", *_SIGNAL, "event")
DRIFT_CAUSES = ("regression", "load", "unknown")
DRIFT_PHASES = ("learning", "provisional", "settled")
DRIFT_EVENT_KINDS = ("learnt", "alarm", "recovered", "improved", "accepted")

ALL: tuple[Series, ...] = tuple(value for value in globals().copy().values() if isinstance(value, Series))
