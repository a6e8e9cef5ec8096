"""Endpoint picker of the llm-d inference gateway, with its older metric names. Metrics page only, on a separate port."""

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


# Names at ebab687. Older names have the same values as the newer, so only one of them is read. Queue, requests and KV cache are means
# over the pool: totals are these times the ready endpoints, and the fullest one is unknown.
def _pool(mean: str, ready: str) -> Computed:
    return Computed("product", (Source(mean, Aggregation.MEAN), Source(ready)))


_NAMES = ("llm_d_epp_request", "inference_objective_request")
# Codes of the router's own errors (pkg/common/error), but BadRequest and the like. An answer of a model server with another status than
# 200 is a ModelServerError, also where the request was wrong.
_FAILED = ("Internal", "ServiceUnavailable", "ModelServerError", "Unknown")
_REJECTED = ("ResourceExhausted", "InferencePoolResourceExhausted")  # the second until 2026


def _either(suffix: str) -> tuple[Source, ...]:
    return tuple(optional(f"{name}_{suffix}") for name in _NAMES)


def _errors(codes: tuple[str, ...]) -> tuple[Source, ...]:
    return tuple(counted(f"{name}_error_total", "error_code", codes, f"{name}_total") for name in _NAMES)


def _violations(latency: str) -> tuple[Source, ...]:
    return tuple(counted(f"{name}_slo_violation_total", "type", (latency,)) for name in _NAMES)


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
            requests_judged_total=_either("total"),  # also those that were wrong themselves
            requests_failed_total=_errors(_FAILED),
            requests_rejected_total=_errors(_REJECTED),
            ttft_slo_violations_total=_violations("ttft"),
            tpot_slo_violations_total=_violations("tpot"),
            pool_saturation_ratio=optional("llm_d_epp_flow_control_pool_saturation"),
            ttft_seconds=optional("llm_d_epp_request_ttft_seconds"),
            itl_seconds=optional("llm_d_epp_request_streaming_itl_seconds"),
            tpot_seconds=optional("llm_d_epp_request_streaming_tpot_seconds"),
            queue_seconds=optional("llm_d_epp_flow_control_request_queue_duration_seconds"),
            e2e_seconds=("llm_d_epp_request_duration_seconds", "inference_objective_request_duration_seconds"),
            predicted_ttft_seconds=_either("predicted_ttft_seconds"),
            predicted_tpot_seconds=_either("predicted_tpot_seconds"),
            # Of the plugin that predicts, under deprecated names: the newer ones count requests without a prediction too.
            outcome_ttft_seconds=optional("inference_objective_request_ttft_seconds"),
            outcome_tpot_seconds=optional("inference_objective_request_tpot_seconds"),
            start_time_seconds=optional("process_start_time_seconds"),
        ),
        port=9090,
        lazy=True,
        needs="a bearer token that may read /metrics, under --metrics-endpoint-auth",
    ),
)
