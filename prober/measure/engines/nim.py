"""NVIDIA NIM for LLMs. A page only. 1.x has names without a prefix; 2.x is vLLM, read by its table."""

from dataclasses import replace

from prober.measure.engine_signals import Buckets, Fact, Over, Shape, Table, Value, latest
from prober.measure.engines import vllm

# Names of 1.x from its documentation. Its "ITL" is one observation a request, so a TPOT, and it has no ITL.
_PATHS = ("/v1/metrics", "/metrics")
_FACTS = (
    Fact("version", "/v1/version", ("release",)),
    Fact("context_tokens", "/v1/models", ("data", 0, "max_model_len")),
)
_V1 = Table(
    engine="nim",
    shape=Shape(names=("num_request_max", "num_requests_running")),
    signals={
        "requests_running": (Value("num_requests_running"),),
        "requests_waiting": (Value("num_requests_waiting"),),
        "kv_cache_usage_ratio_max": (Value("gpu_cache_usage_perc", Over.MAX),),
        "kv_cache_usage_ratio_mean": (Value("gpu_cache_usage_perc", Over.MEAN),),
        "prompt_tokens_total": (Value("prompt_tokens_total"),),
        "generation_tokens_total": (Value("generation_tokens_total"),),
        "requests_finished_total": (Value("request_finish_total"), Value("request_success_total")),
        "ttft_seconds": (Buckets("time_to_first_token_seconds"),),
        "tpot_seconds": (Buckets("time_per_output_token_seconds"),),
        "e2e_seconds": (Buckets("e2e_request_latency_seconds"),),
        "start_time_seconds": (Value("process_start_time_seconds", Over.FIRST, expected=False),),
    },
    paths=_PATHS,
    lazy=True,
    facts=_FACTS,
)
# A page of 2.x cannot be told from vLLM's; this table is for a target that is said to be NIM. Its numbers are not vLLM's.
_V2 = replace(latest(vllm.V1), engine="nim", paths=_PATHS, facts=_FACTS)
TABLES = (_V1, _V2)
