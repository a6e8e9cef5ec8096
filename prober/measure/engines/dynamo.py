"""NVIDIA Dynamo (1.6). Metrics pages only: the frontend's, and a worker's, which also has its engine's names."""

from prober.measure.engine_signals import (
    Aggregation,
    Computed,
    EngineTable,
    PageShape,
    Source,
    counted,
    optional,
    signals,
)

# Running requests count from handler entry to the end of the answer, so they include queued ones. Unless the router reports queued
# ones, they are those before their first token, so they include prefills. Some series have the model in lower case.
_REQUESTS = "dynamo_frontend_requests_total"
_FAILED = ("unavailable", "response_timeout", "internal", "not_implemented")  # not validation, not_found, cancelled
FRONTEND = EngineTable(
    engine="dynamo",
    shape=PageShape(prefixes=("dynamo_frontend_",)),
    signals=signals(
        requests_running=("dynamo_frontend_active_requests", "dynamo_frontend_inflight_requests"),
        requests_waiting=(
            optional("dynamo_frontend_router_queue_pending_requests"),
            "dynamo_frontend_queued_requests",
        ),
        kv_cache_capacity_tokens=Computed(
            "product",
            (
                Source("dynamo_frontend_model_total_kv_blocks", Aggregation.FIRST),
                Source("dynamo_frontend_model_kv_cache_block_size", Aggregation.FIRST),
            ),
            expected=False,
        ),
        generation_tokens_total="dynamo_frontend_output_tokens_total",
        prompt_tokens_total="dynamo_frontend_input_sequence_tokens_sum",
        requests_finished_total=_REQUESTS,
        # Before 1.0 errors had no type, and success is unknown.
        requests_judged_total=counted(_REQUESTS, "error_type", ("", "overload", *_FAILED)),
        requests_failed_total=counted(_REQUESTS, "error_type", _FAILED),
        requests_rejected_total=counted(_REQUESTS, "error_type", ("overload",)),
        ttft_seconds="dynamo_frontend_time_to_first_token_seconds",
        itl_seconds="dynamo_frontend_inter_token_latency_seconds",
        e2e_seconds="dynamo_frontend_request_duration_seconds",
    ),
    model_labels=("model",),
    lazy=True,
    note="DYN_METRICS_PREFIX changes the names; then the page is not recognised",
)
# Names of the usage series follow from constants of 1.6 but were not seen; those of 0.8 were.
WORKER = EngineTable(
    engine="dynamo",
    shape=PageShape(prefixes=("dynamo_component_",)),
    signals=signals(
        requests_running="dynamo_component_inflight_requests",
        kv_cache_usage_ratio=(
            optional("dynamo_component_gpu_cache_usage_percent"),
            optional("dynamo_component_kvstats_gpu_cache_usage_percent"),
        ),
        requests_finished_total="dynamo_component_requests_total",
        e2e_seconds="dynamo_component_request_duration_seconds",
        uptime_seconds=optional("dynamo_component_uptime_seconds"),
    ),
    model_labels=("model", "model_name"),
    lazy=True,
    needs="set DYN_SYSTEM_PORT",
)
TABLES = (FRONTEND, WORKER)
