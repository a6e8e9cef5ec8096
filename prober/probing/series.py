"""Series of the probes."""

from prober.exposition.families import counter, gauge, histogram

_PROBE = ("target", "workload")
PROBES = counter("llmslo_probes_total", "Due times of the schedule, sent or shed, without the neutral ones.", *_PROBE)
FAILURES = counter("llmslo_probe_failures_total", "Probes that failed by the target's doing.", *_PROBE, "reason")
NEUTRAL = counter(
    "llmslo_probes_neutral_total", "Due times kept out of every SLI: not the target's doing.", *_PROBE, "reason"
)
CACHED = counter(
    "llmslo_probes_cached_total", "Cold probes the engine had cached, kept out of the latency histograms.", *_PROBE
)
LATE = counter("llmslo_probes_late_total", "Answers without a latency, as the prober itself was late.", *_PROBE)
USAGE_MISSING = counter("llmslo_usage_missing_total", "Successful probes without token counts by the server.", *_PROBE)
COLD_START = gauge("llmslo_cold_start_ttft_seconds", "TTFT of the latest first success on a cold engine.", *_PROBE)
STATE = gauge("llmslo_target_state", "1 for the state the target is in.", "target", "state")
NO_DATA = gauge(
    "llmslo_no_data",
    "1 while every probe ends so, without data: rejected, or over_budget and not sent.",
    *_PROBE,
    "reason",
)
BUFFERED = gauge(
    "llmslo_target_buffered",
    "1 if most of the last answers arrived all at once or several tokens at a time, 0 if few did.",
    "target",
)
STARTING_UNTIL = gauge(
    "llmslo_target_starting_until_timestamp_seconds",
    "When refused connections begin to count as failures; only while the target refuses them and has never answered.",
    "target",
)
QUALITY_CHECKS = counter(
    "llmslo_quality_checks_total",
    "Answers that were checked: to golden prompts, tool calls, structured output.",
    *_PROBE,
    "check",
)
QUALITY_FAILURES = counter("llmslo_quality_failures_total", "Checked answers that were wrong.", *_PROBE, "check")
TTFT = histogram("llmslo_ttft_seconds", "First content of any kind minus intended time.", *_PROBE)
TTFT_ANSWER = histogram(
    "llmslo_ttft_answer_seconds",
    "First content that is not reasoning minus intended time, of models that reason.",
    *_PROBE,
)
TPOT = histogram("llmslo_tpot_seconds", "Time per output token after the first, one a probe.", *_PROBE)
ITL = histogram("llmslo_itl_seconds", "Inter-token latency, one a flush of content after the first.", *_PROBE)
CHUNK_GAP = histogram("llmslo_chunk_gap_seconds", "Raw gap between content chunks.", *_PROBE)
MERGED_CHUNKS = counter(
    "llmslo_chunks_merged_total",
    "Content chunks read together with a later one: they arrived between its stamp and the one before.",
    *_PROBE,
)
TTFT_CALL = histogram(
    "llmslo_ttft_call_seconds",
    "First piece of the first tool call minus intended time, of workloads with tools.",
    *_PROBE,
)
CALL_ARGUMENTS = histogram(
    "llmslo_call_arguments_seconds",
    "Complete arguments of the first tool call minus intended time, if they are a JSON object.",
    *_PROBE,
)
E2E = histogram("llmslo_e2e_seconds", "End of the answer minus intended time.", *_PROBE)
CONNECT = histogram("llmslo_connect_seconds", "Set-up of a probe's fresh connection by phase.", "target", "phase")
SEND_LAG = histogram("llmslo_send_lag_seconds", "The prober's own lateness in sending.", *_PROBE)
TOKENS = counter("llmslo_probe_tokens_total", "Tokens that probing used, as the server counts them.", *_PROBE, "kind")
COST = counter("llmslo_probe_cost_dollars_total", "What probing cost at the configured price.", "target")
RATE_LIMIT = gauge("llmslo_rate_limit_remaining", "Rate limit left, as the server's headers tell it.", "target", "kind")
CERT_EXPIRY = gauge("llmslo_tls_cert_expiry_timestamp_seconds", "End of the server certificate's validity.", "target")
TASK_FAILURES = counter(
    "llmslo_task_failures_total",
    "Tasks of the prober that failed and were started again: a fault of the prober, which its log describes.",
    "task",
)
TASKS = (
    *(
        "schedule",
        "first_answer",
        "engine_page",
        "budgets",
        "discovery",
        "targets",
        "leases",
        "configuration",
        "gpus",
        "grafana",
    ),
    *("diagnosis", "states", "baselines", "pages", "sweep_results"),
)
PHASES = ("dns", "tcp", "proxy", "tls")
TOKEN_KINDS = ("prompt", "completion", "cached")
