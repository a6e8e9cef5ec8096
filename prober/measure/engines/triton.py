"""Triton with TensorRT-LLM. Metrics page only, on a separate port."""

from dataclasses import replace

from prober.measure.engine_signals import Aggregation, Computed, EngineTable, PageShape, Source, counted, signals, total

# Names from the backend's README at 0b9d7d5. Its `fraction` contradicts used ÷ max, which is read instead. An ensemble and its parts
# each count a request: only the part that generates is read. Latencies are means in microseconds instead of histograms, except the
# first response in milliseconds with --metrics-config histogram_latencies=true.
_ENGINE = {"model": ("tensorrt_llm",)}
_BLOCKS = "nv_trt_llm_kv_cache_block_metrics"
_REQUESTS = "nv_trt_llm_request_metrics"
_USED, _MAX = (Source(_BLOCKS, where={"kv_cache_block_type": (kind,)}) for kind in ("used", "max"))
_TOKENS = Source(_BLOCKS, Aggregation.FIRST, where={"kv_cache_block_type": ("tokens_per",)})


def _failures(*reasons: str) -> Source:
    """Failures by reason, which older releases do not tell; CANCELED is the client's."""
    source = counted("nv_inference_request_failure", "reason", reasons)
    return replace(source, where={**source.where, **_ENGINE})


TABLES = (
    EngineTable(
        engine="triton",
        shape=PageShape(prefixes=("nv_trt_llm_",)),
        signals=signals(
            requests_running=Source(_REQUESTS, where={"request_type": ("scheduled",)}),
            requests_waiting=Source(_REQUESTS, where={"request_type": ("waiting",)}),
            kv_cache_usage_ratio=Computed("ratio", (_USED, _MAX)),
            kv_cache_capacity_tokens=Computed("product", (_MAX, _TOKENS)),
            requests_finished_total=Source("nv_inference_request_success", where=_ENGINE, expected=False),
            requests_judged_total=total(
                _failures("REJECTED", "BACKEND", "OTHER"), Source("nv_inference_request_success", where=_ENGINE)
            ),
            requests_failed_total=_failures("BACKEND", "OTHER"),
            requests_rejected_total=_failures("REJECTED"),
            ttft_seconds=Source("nv_inference_first_response_histogram_ms", where=_ENGINE, scale=0.001, expected=False),
        ),
        port=8002,
        model_labels=(),
    ),
)
