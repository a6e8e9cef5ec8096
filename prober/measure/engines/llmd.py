"""The llm-d inference gateway's endpoint picker, and its older names. A page only, on a port of its own."""

from prober.measure.engine_signals import (
    Aggregation,
    EngineTable,
    HistogramSource,
    PageShape,
    ProductSource,
    SampleSource,
)


# Names at ebab687. The older ones stand beside the newer with the same values, so only one of them is read. Queue, requests and
# KV cache are means over the pool: the totals are those times the endpoints that are ready, and there is no fullest one.
def _pool(mean: str, ready: str) -> ProductSource:
    return ProductSource((SampleSource(mean, Aggregation.MEAN), SampleSource(ready)))


_READY, _PODS = "llm_d_epp_ready_endpoints", "inference_pool_ready_pods"
TABLES = (
    EngineTable(
        engine="llm-d",
        shape=PageShape(prefixes=("llm_d_epp_", "inference_pool_", "inference_objective_", "inference_extension_")),
        signals={
            "requests_running": (
                _pool("llm_d_epp_average_running_requests", _READY),
                _pool("inference_pool_average_running_requests", _PODS),
            ),
            "requests_waiting": (
                SampleSource("llm_d_epp_per_endpoint_queue_size"),
                SampleSource("inference_pool_per_pod_queue_size"),
                _pool("llm_d_epp_average_queue_size", _READY),
                _pool("inference_pool_average_queue_size", _PODS),
            ),
            "kv_cache_usage_ratio_mean": (
                SampleSource("llm_d_epp_average_kv_cache_utilization", Aggregation.MEAN),
                SampleSource("inference_pool_average_kv_cache_utilization", Aggregation.MEAN),
            ),
            "requests_finished_total": (
                SampleSource("llm_d_epp_request_total"),
                SampleSource("inference_objective_request_total"),
            ),
            "ttft_seconds": (HistogramSource("llm_d_epp_request_ttft_seconds", expected=False),),
            "itl_seconds": (HistogramSource("llm_d_epp_request_streaming_itl_seconds", expected=False),),
            "tpot_seconds": (HistogramSource("llm_d_epp_request_streaming_tpot_seconds", expected=False),),
            "queue_seconds": (
                HistogramSource("llm_d_epp_flow_control_request_queue_duration_seconds", expected=False),
            ),
            "e2e_seconds": (
                HistogramSource("llm_d_epp_request_duration_seconds"),
                HistogramSource("inference_objective_request_duration_seconds"),
            ),
            "start_time_seconds": (SampleSource("process_start_time_seconds", Aggregation.FIRST, expected=False),),
        },
        port=9090,
        lazy=True,
        needs="a bearer token that may read /metrics, under --metrics-endpoint-auth",
    ),
)
