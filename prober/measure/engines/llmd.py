"""Endpoint picker of the llm-d inference gateway, with its older metric names. Metrics page only, on a separate port."""

from prober.measure.engine_signals import Aggregation, Computed, EngineTable, PageShape, Source, optional, signals


# Names at ebab687. Older names have the same values as the newer, so only one of them is read. Queue, requests and KV cache are means
# over the pool: totals are these times the ready endpoints, and the fullest one is unknown.
def _pool(mean: str, ready: str) -> Computed:
    return Computed("product", (Source(mean, Aggregation.MEAN), Source(ready)))


_READY, _PODS = "llm_d_epp_ready_endpoints", "inference_pool_ready_pods"
TABLES = (
    EngineTable(
        engine="llm-d",
        shape=PageShape(prefixes=("llm_d_epp_", "inference_pool_", "inference_objective_", "inference_extension_")),
        signals=signals(
            requests_running=(
                _pool("llm_d_epp_average_running_requests", _READY),
                _pool("inference_pool_average_running_requests", _PODS),
            ),
            requests_waiting=(
                Source("llm_d_epp_per_endpoint_queue_size"),
                Source("inference_pool_per_pod_queue_size"),
                _pool("llm_d_epp_average_queue_size", _READY),
                _pool("inference_pool_average_queue_size", _PODS),
            ),
            kv_cache_usage_ratio_mean=(
                Source("llm_d_epp_average_kv_cache_utilization"),
                Source("inference_pool_average_kv_cache_utilization"),
            ),
            requests_finished_total=("llm_d_epp_request_total", "inference_objective_request_total"),
            ttft_seconds=optional("llm_d_epp_request_ttft_seconds"),
            itl_seconds=optional("llm_d_epp_request_streaming_itl_seconds"),
            tpot_seconds=optional("llm_d_epp_request_streaming_tpot_seconds"),
            queue_seconds=optional("llm_d_epp_flow_control_request_queue_duration_seconds"),
            e2e_seconds=("llm_d_epp_request_duration_seconds", "inference_objective_request_duration_seconds"),
            start_time_seconds=optional("process_start_time_seconds"),
        ),
        port=9090,
        lazy=True,
        needs="a bearer token that may read /metrics, under --metrics-endpoint-auth",
    ),
)
