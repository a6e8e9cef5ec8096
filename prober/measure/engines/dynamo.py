"""NVIDIA Dynamo (1.6). Pages only: a frontend's, and a worker's, which has its engine's own names beside Dynamo's."""

from prober.measure.engine_signals import Buckets, Over, Product, Shape, Table, Value

# Running requests are those from handler entry to the end of the answer, so with the queued ones; queued ones, where the router
# does not tell them, are those before their first token, so with those being prefilled. The model is in lower case on some.
FRONTEND = Table(
    engine="dynamo",
    shape=Shape(prefixes=("dynamo_frontend_",)),
    signals={
        "requests_running": (
            Value("dynamo_frontend_active_requests"),
            Value("dynamo_frontend_inflight_requests"),
        ),
        "requests_waiting": (
            Value("dynamo_frontend_router_queue_pending_requests", expected=False),
            Value("dynamo_frontend_queued_requests"),
        ),
        "kv_cache_capacity_tokens": (
            Product(
                (
                    Value("dynamo_frontend_model_total_kv_blocks", Over.FIRST),
                    Value("dynamo_frontend_model_kv_cache_block_size", Over.FIRST),
                ),
                expected=False,
            ),
        ),
        "generation_tokens_total": (Value("dynamo_frontend_output_tokens_total"),),
        "prompt_tokens_total": (Value("dynamo_frontend_input_sequence_tokens_sum"),),
        "requests_finished_total": (Value("dynamo_frontend_requests_total"),),
        "ttft_seconds": (Buckets("dynamo_frontend_time_to_first_token_seconds"),),
        "itl_seconds": (Buckets("dynamo_frontend_inter_token_latency_seconds"),),
        "e2e_seconds": (Buckets("dynamo_frontend_request_duration_seconds"),),
    },
    models=("model",),
    lazy=True,
    note="DYN_METRICS_PREFIX changes the names; then the page is not recognised",
)
# Names of the usage are put together from constants of 1.6 and not seen; those of 0.8 are.
WORKER = Table(
    engine="dynamo",
    shape=Shape(prefixes=("dynamo_component_",)),
    signals={
        "requests_running": (Value("dynamo_component_inflight_requests"),),
        "kv_cache_usage_ratio_max": (
            Value("dynamo_component_gpu_cache_usage_percent", Over.MAX, expected=False),
            Value("dynamo_component_kvstats_gpu_cache_usage_percent", Over.MAX, expected=False),
        ),
        "kv_cache_usage_ratio_mean": (
            Value("dynamo_component_gpu_cache_usage_percent", Over.MEAN, expected=False),
            Value("dynamo_component_kvstats_gpu_cache_usage_percent", Over.MEAN, expected=False),
        ),
        "requests_finished_total": (Value("dynamo_component_requests_total"),),
        "e2e_seconds": (Buckets("dynamo_component_request_duration_seconds"),),
        "uptime_seconds": (Value("dynamo_component_uptime_seconds", Over.FIRST, expected=False),),
    },
    models=("model", "model_name"),
    lazy=True,
    needs="set DYN_SYSTEM_PORT",
)
TABLES = (FRONTEND, WORKER)
