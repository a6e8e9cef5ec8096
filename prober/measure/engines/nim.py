"""NVIDIA NIM for LLMs. A page only. 1.x has names without a prefix; 2.x is vLLM, read by its table."""

from dataclasses import replace

from prober.measure.engine_signals import (
    Aggregation,
    EngineTable,
    HistogramSource,
    JsonFact,
    PageShape,
    SampleSource,
    latest_release,
)
from prober.measure.engines import vllm

# Names of 1.x from its documentation. Its "ITL" is one observation a request, so a TPOT, and it has no ITL.
_PATHS = ("/v1/metrics", "/metrics")
_FACTS = (
    JsonFact("version", "/v1/version", ("release",)),
    JsonFact("context_tokens", "/v1/models", ("data", 0, "max_model_len")),
)
_V1 = EngineTable(
    engine="nim",
    shape=PageShape(names=("num_request_max", "num_requests_running")),
    signals={
        "requests_running": (SampleSource("num_requests_running"),),
        "requests_waiting": (SampleSource("num_requests_waiting"),),
        "kv_cache_usage_ratio_max": (SampleSource("gpu_cache_usage_perc", Aggregation.MAX),),
        "kv_cache_usage_ratio_mean": (SampleSource("gpu_cache_usage_perc", Aggregation.MEAN),),
        "prompt_tokens_total": (SampleSource("prompt_tokens_total"),),
        "generation_tokens_total": (SampleSource("generation_tokens_total"),),
        "requests_finished_total": (SampleSource("request_finish_total"), SampleSource("request_success_total")),
        "ttft_seconds": (HistogramSource("time_to_first_token_seconds"),),
        "tpot_seconds": (HistogramSource("time_per_output_token_seconds"),),
        "e2e_seconds": (HistogramSource("e2e_request_latency_seconds"),),
        "start_time_seconds": (SampleSource("process_start_time_seconds", Aggregation.FIRST, expected=False),),
    },
    paths=_PATHS,
    lazy=True,
    facts=_FACTS,
)
# A page of 2.x cannot be told from vLLM's; this table is for a target that is said to be NIM. Its numbers are not vLLM's.
_V2 = replace(latest_release(vllm.V1), engine="nim", paths=_PATHS, facts=_FACTS)
TABLES = (_V1, _V2)
