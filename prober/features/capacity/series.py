"""Series of sweeps, capacity, demand and headroom, and alerts on them."""

from typing import get_args

from prober.exposition.alerting import PRESENT, Alert, Link, query
from prober.exposition.families import counter, gauge
from prober.features.capacity.actions import RefusalReason
from prober.results.capacity import Verdict

CAPACITY = gauge(
    "llmslo_capacity_requests_per_second",
    "Estimated knee of the SLO in requests per second, those of others during the sweep and those that it added, with its 90% interval "
    "(bound: lower, estimate, upper), from the last sweep that gave a figure, widened to bounds that later ones showed; without "
    "one only lower, the highest rate shown to hold, or upper, a rate at which it fails.",
    *("target", "slo", "bound"),
)
DEMAND = gauge(
    "llmslo_demand_requests_per_second",
    "Users' requests per second that arrive at the engine, over five minutes, up to an hour where few arrive; absent while unknown.",
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
    "the capacity; with its 90% interval. Absent while llmslo_headroom_unknown says why; only the upper bound if the sweep could not "
    "judge an SLO.",
    *("target", "bound"),
)
USERS_HEADROOM = gauge(
    "llmslo_users_headroom_ratio",
    "The same as the users' own requests saw it: by the latencies on the engine's page and the SLOs of `metrics.slos` that the sweep "
    "judged too. Absent without such SLOs. The smaller of both counts.",
    *("target", "bound"),
)
UNKNOWN = {  # sentence by reason why the headroom has no estimate, in the order of their test
    "starting": "the results of earlier sweeps are still being read",
    "no_capacity": "no sweep has found a capacity",
    "engine_changed": "no sweep has found a capacity since the engine changed",
    "others_unseen": "the engine's page showed no requests and tokens of others during the sweep",
    "query_without_tokens": "sweep.demand_query counts requests, and not their tokens",
    "sweep_runs": "a sweep runs, and the demand before it is not known",
    "demand_unknown": "the demand is not known at the moment",
    "no_tokens": "the engine's page does not count tokens, so that the size of its requests is not known",
    "none_ended": "no request has ended in the last minutes, so that the size of the requests is not known",
    "only_bound": "only an upper bound of the capacity is known",
}
HEADROOM_UNKNOWN = gauge(
    "llmslo_headroom_unknown",
    "1 by the one reason why the headroom of a target with `sweep` has no estimate; absent while it has one. "
    + "; ".join(f"{reason}: {sentence}" for reason, sentence in UNKNOWN.items())
    + ".",
    *("target", "reason"),
)
ADDABLE = gauge(
    "llmslo_addable_requests_per_second",
    "Requests per second like those that are there, of the same size, that can be added to them; absent like the headroom.",
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
    "llmslo_sweep_last_success_timestamp_seconds",
    "Time of the last sweep that gave a figure: an estimate of the knee with an interval. A bound alone is none.",
    "target",
)
SWEEP_END = gauge(
    "llmslo_sweep_last_end_timestamp_seconds",
    "Time at which the last sweep ended, by the reason why sending stopped (no_result: it failed without a result). It is later than "
    "that of the last success if the sweep gave no figure.",
    "target",
    "reason",
)
SWEEP_STAGE_RATE = gauge(
    "llmslo_sweep_stage_rate_per_second",
    "Total request rate in each stage of the last sweep that gave a figure, the stages counted from 00; until one has, of the last "
    "sweep. The next sweep replaces all.",
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


def _of_present_engine(window: str) -> str:
    """PromQL after a look back: not over a change of the engine, whose earlier figures are of another one."""
    return f'unless on (target) last_over_time({HEADROOM_UNKNOWN}{{reason="engine_changed"}}[{window}])'


def alerts() -> tuple[Alert, ...]:
    """Alerts about headroom, forecast and sweeps."""
    return _headroom(), _exhaustion(), _stale()


def _headroom() -> Alert:
    """Alert if the free share is low by its estimate, and clearly so by its interval.

    The estimate's median error is 8 points, so at 15% seldom more than 30% is free; an interval that reaches 30% tells too little.
    The smaller of both headrooms counts, and of several probers the largest value, because during a sweep the others count it as
    demand. While a sweep or a restart removes the figure for minutes, the alert continues; it ends with the engine that had the figure.
    """

    def free(bound: str) -> str:
        figure = f'{{__name__=~"{HEADROOM}|{USERS_HEADROOM}",bound="{bound}"}}'
        return (
            f"max by (target) (min without () ({figure} or last_over_time({figure}[30m]) {_of_present_engine('30m')}))"
        )

    lower, upper = (
        query(f'min({{__name__=~"{HEADROOM}|{USERS_HEADROOM}",target=%[1]q,bound="{bound}"}})', "target")
        for bound in ("lower", "upper")
    )
    return Alert(
        "LLMHeadroomLow",
        "warning",
        f"({free('estimate')}\nor {free('upper')}) < 0.15\nand on (target)\n{free('upper')} < 0.3\nand on (target)\n({PRESENT})\n",
        "15m",
        "{{ $labels.target }} has little capacity left",
        "{{ $value | humanizePercentage }} of the capacity that sweeps found is free for traffic like that of now"
        f"{{{{ range {lower} }}}}, at least {{{{ .Value | humanizePercentage }}}}{{{{ end }}}}"
        f"{{{{ range {upper} }}}}, at most {{{{ .Value | humanizePercentage }}}}{{{{ end }}}} (below 0%: the load is higher than the "
        "capacity).",
        link=Link("capacity", ("target",)),
    )


def _exhaustion() -> Alert:
    name = "llmslo_capacity_exhaustion_timestamp_seconds"
    near = f'min by (target) ({name}{{bound="estimate"}})\n< time() + 14 * 86400'
    earliest, latest = (
        query(f'min by (target) ({name}{{target=%[1]q,bound="{bound}"}})', "target") for bound in ("earliest", "latest")
    )
    return Alert(
        "LLMCapacityExhaustionForecast",
        "warning",
        # The forecast is daily; one missing day does not end the alert.
        f"{near}\nor\nlast_over_time((\n{near}\n)[26h:1h])\n{_of_present_engine('26h')}\nand on (target)\n({PRESENT})\n",
        "1h",
        "{{ $labels.target }} is forecast to reach its capacity within 14 days",
        "The daily peaks of demand grow towards the capacity that the last successful sweep found, and reach it on "
        f"{{{{ $value | humanizeTimestamp }}}}{{{{ range {earliest} }}}}, earliest {{{{ .Value | humanizeTimestamp }}}}{{{{ end }}}}"
        f"{{{{ range {latest} }}}}, latest {{{{ .Value | humanizeTimestamp }}}}{{{{ end }}}}, by a line through at most 35 days.",
        link=Link("capacity", ("target",), "35d"),
    )


def _stale() -> Alert:
    """Alert if the last figure is older than three periods of the schedule.

    The figure's time comes from the prober, or else its history in Prometheus (a restart without storage loses it), or else
    the hours since the schedule appeared, so that a new schedule gets three periods. The history covers 30 days: a schedule
    rarer than every ten days is not judged before its first capacity.
    """
    success, period = (
        f"max by (target) (llmslo_sweep_{name}_seconds)" for name in ("last_success_timestamp", "period")
    )
    verdicts, refusals = (
        query(f"sum by ({label}) (llmslo_{series}_total{{target=%[1]q}}) > 0", "target")
        for label, series in (("verdict", "sweeps"), ("reason", "sweeps_refused"))
    )
    return Alert(
        "LLMSweepStale",
        "warning",
        f"(\n  time() - {success}\n"
        f"  or\n  time() - max_over_time(({success})[30d:1h])\n"
        f"  or\n  3600 * (count_over_time(({period})[30d:1h]) - 1)\n)\n"
        f"> on (target)\n3 * {period}\n",
        "15m",
        "The sweeps of {{ $labels.target }} give no figure of its capacity",
        "No sweep has given an estimate with an interval for {{ $value | humanizeDuration }}, over three times the period of the "
        "schedule. Headroom is computed from an old figure, or unknown. Since the prober's start, sweeps ended:"
        f"{{{{ range {verdicts} }}}} {{{{ .Labels.verdict }}}} {{{{ .Value | humanize }}}}{{{{ else }}}} none{{{{ end }}}}; refused:"
        f"{{{{ range {refusals} }}}} {{{{ .Labels.reason }}}} {{{{ .Value | humanize }}}}{{{{ else }}}} none{{{{ end }}}}.",
        link=Link("capacity", ("target",), "7d"),
    )
