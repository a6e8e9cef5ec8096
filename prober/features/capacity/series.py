"""Series of sweeps, capacity, demand and headroom."""

from typing import get_args

from prober.exposition.families import counter, gauge
from prober.features.capacity.actions import RefusalReason
from prober.results.capacity import Verdict

CAPACITY = gauge(
    "llmslo_capacity_requests_per_second",
    "Estimated knee of the SLO in requests per second, those of others during the sweep and those that it added, with its 90% interval "
    "(bound: lower, estimate, upper), from the last sweep that found a capacity; beside it, of an SLO without a knee only lower, the "
    "highest rate shown to hold.",
    *("target", "slo", "bound"),
)
DEMAND = gauge(
    "llmslo_demand_requests_per_second",
    "Requests per second that arrive at the engine, over the last one to five minutes; absent while unknown.",
    "target",
)
DEMAND_TOKENS = gauge(
    "llmslo_demand_tokens_per_second",
    "Demand in prompt and output tokens per second, without cached prompt tokens; absent while unknown.",
    "target",
)
HEADROOM = gauge(
    "llmslo_headroom_ratio",
    "Free share of the capacity at all SLOs for the traffic that is there, which can grow by 1 / (1 - ratio); negative if it exceeds "
    "the capacity; with its 90% interval. Absent while the size of its requests is unknown; only the upper bound if the sweep could "
    "not judge an SLO.",
    *("target", "bound"),
)
ADDABLE = gauge(
    "llmslo_addable_requests_per_second",
    "Requests per second like those of the sweep that can be added to the traffic that is there; absent like the headroom.",
    *("target", "bound"),
)
SWEEPS = counter("llmslo_sweeps_total", "Sweeps that ended, by verdict.", "target", "verdict")
SWEEP_STOPS = counter(
    "llmslo_sweep_stops_total", "Sweeps that ended, by the reason why sending stopped.", "target", "reason"
)
SWEEPS_REFUSED = counter("llmslo_sweeps_refused_total", "Sweeps that were not started, by reason.", "target", "reason")
SWEEP_RATE = gauge("llmslo_sweep_rate_per_second", "Request rate of the running sweep; 0 without one.", "target")
SWEEP_REQUESTS = counter("llmslo_sweep_requests_total", "Requests of sweeps, warm-up included.", "target")
SWEEP_TOKENS = counter(
    "llmslo_sweep_tokens_total",
    "Prompt and output tokens of all requests of sweeps, as counted by the server; as requested where an answer was cut.",
    "target",
)
SWEEP_SUCCESS = gauge(
    "llmslo_sweep_last_success_timestamp_seconds", "Time of the last sweep that found a capacity.", "target"
)
SWEEP_END = gauge(
    "llmslo_sweep_last_end_timestamp_seconds",
    "Time at which the last sweep ended, by the reason why sending stopped (no_result: it failed without a result). It is later than "
    "that of the last success if the sweep found no capacity.",
    "target",
    "reason",
)
SWEEP_STAGE_RATE = gauge(
    "llmslo_sweep_stage_rate_per_second",
    "Total request rate in each stage of the last sweep that found a capacity; until one has, of the last sweep.",
    "target",
    "stage",
)
SWEEP_STAGE_TOKENS = gauge(
    "llmslo_sweep_stage_tokens_per_second",
    "Output tokens per second of the target at the rate of each stage, of the same sweep; absent where the stage does not show it.",
    "target",
    "stage",
)
SWEEP_STAGE_LATENCY = gauge(
    "llmslo_sweep_stage_latency_seconds",
    "Latency in each stage of the same sweep: the median, and other quantiles with enough samples.",
    *("target", "stage", "signal", "percentile"),
)
FIT_RATE = gauge(
    "llmslo_capacity_fit_rate_per_second",
    "Total request rate of each point of the curve that the engine model of the same sweep gives for an SLO; absent without a model.",
    *("target", "slo", "point"),
)
FIT_LATENCY = gauge(
    "llmslo_capacity_fit_latency_seconds",
    "Latency at each point of that curve: the quantile that the SLO is about.",
    *("target", "slo", "point", "signal", "percentile"),
)
CAPACITY_EXHAUSTION = gauge(
    "llmslo_capacity_exhaustion_timestamp_seconds",
    "First UTC day on which the daily peak of demand is forecast to reach the capacity; absent without a forecast.",
    *("target", "bound"),
)
SWEEP_PERIOD = gauge(
    "llmslo_sweep_period_seconds",
    "Longest time between two scheduled sweeps that are allowed to start; absent without a schedule.",
    "target",
)
SWEEP_VERDICTS: tuple[str, ...] = (*get_args(Verdict), "not_judged", "no_estimate", "void", "failed")
SWEEP_REFUSALS: tuple[str, ...] = get_args(RefusalReason)
