"""Series of sweeps, capacity, demand and headroom."""

from prober.exposition.families import Series, counter, gauge

CAPACITY = gauge(
    "llmslo_capacity_requests_per_second",
    "Rate up to which an SLO holds, as the last sweep that found it says: lower, estimate, upper.",
    *("target", "slo", "bound"),
)
CAPACITY_TOKENS = gauge(
    "llmslo_capacity_tokens_per_second",
    "The same in prompt and output tokens, of the SLO that binds.",
    "target",
    "bound",
)
CAPACITY_SHAPE = gauge(
    "llmslo_capacity_shape_ratio",
    "Tokens of a request at the capacity over those of one of production now: by so much requests are corrected.",
    "target",
)
DEMAND = gauge(
    "llmslo_demand_requests_per_second",
    "Requests that the engine finishes, over the last one to five minutes; absent while that is not known.",
    "target",
)
DEMAND_TOKENS = gauge("llmslo_demand_tokens_per_second", "The same in prompt and output tokens.", "target")
HEADROOM = gauge("llmslo_headroom_ratio", "Share of the capacity that is free.", "target", "unit", "bound")
SWEEPS = counter("llmslo_sweeps_total", "Sweeps that ended, by what they found.", "target", "verdict")
SWEEP_STOPS = counter("llmslo_sweep_stops_total", "Sweeps that ended, by why the sending ended.", "target", "reason")
SWEEPS_REFUSED = counter("llmslo_sweeps_refused_total", "Sweeps that were not begun, by why.", "target", "reason")
SWEEP_RATE = gauge("llmslo_sweep_rate_per_second", "Rate that a sweep adds now; 0 without one.", "target")
SWEEP_REQUESTS = counter("llmslo_sweep_requests_total", "Requests that sweeps sent.", "target")
SWEEP_TOKENS = counter(
    "llmslo_sweep_tokens_total", "Prompt and output tokens of sweeps, as the server counts.", "target"
)
SWEEP_SUCCESS = gauge("llmslo_sweep_last_success_timestamp_seconds", "When a sweep last found a capacity.", "target")
SWEEP_STAGE_RATE = gauge(
    "llmslo_sweep_stage_rate_per_second", "Total rate in a stage of the last sweep.", "target", "stage"
)
SWEEP_STAGE_TOKENS = gauge(
    "llmslo_sweep_stage_tokens_per_second",
    "Output tokens per second that the sweep was sent while a stage lasted, by the stamps of their chunks.",
    "target",
    "stage",
)
SWEEP_STAGE_LATENCY = gauge(
    "llmslo_sweep_stage_latency_seconds",
    "Latency in a stage of the last sweep, of quantiles with enough samples and the median.",
    *("target", "stage", "signal", "quantile"),
)
CAPACITY_EXHAUSTION = gauge(
    "llmslo_capacity_exhaustion_timestamp_seconds",
    "Day, by UTC, from which daily peaks of demand reach the capacity, as they grow; absent where that is not foreseen.",
    *("target", "bound"),
)
SWEEP_PERIOD = gauge(
    "llmslo_sweep_period_seconds",
    "Longest time between two sweeps that the schedule lets begin; absent without one.",
    "target",
)
SWEEP_VERDICTS = ("found", "not_reached", "below_lowest", "not_enough_data", "void", "failed")
SWEEP_REFUSALS = (
    *("not_configured", "running", "min_gap", "retry_after"),
    *("blackout", "not_ready", "alert_firing", "locked", "no_lease", "missed"),
    *("over_budget", "not_recorded"),
)

ALL: tuple[Series, ...] = tuple(value for value in globals().copy().values() if isinstance(value, Series))
