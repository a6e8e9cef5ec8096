"""NVIDIA NIM for LLMs. Metrics page only. 1.x has names without a prefix; 2.x is vLLM and uses the table of vLLM."""

from dataclasses import replace

from prober.measure.engine_signals import EngineTable, JsonFact, PageShape, latest_release, optional, signals
from prober.measure.engines import vllm

# Names of 1.x from its documentation. Its "ITL" has one observation per request, so it is a TPOT, and there is no ITL.
_PATHS = ("/v1/metrics", "/metrics")
_FACTS = (
    JsonFact("version", "/v1/version", ("release",)),
    JsonFact("context_tokens", "/v1/models", ("data", 0, "max_model_len")),
)
_V1 = EngineTable(
    engine="nim",
    shape=PageShape(names=("num_request_max", "num_requests_running")),
    signals=signals(
        requests_running="num_requests_running",
        requests_waiting="num_requests_waiting",
        kv_cache_usage_ratio="gpu_cache_usage_perc",
        prompt_tokens_total="prompt_tokens_total",
        generation_tokens_total="generation_tokens_total",
        requests_finished_total=("request_finish_total", "request_success_total"),
        ttft_seconds="time_to_first_token_seconds",
        tpot_seconds="time_per_output_token_seconds",
        e2e_seconds="e2e_request_latency_seconds",
        start_time_seconds=optional("process_start_time_seconds"),
    ),
    paths=_PATHS,
    lazy=True,
    facts=_FACTS,
)
# Pages of 2.x look like vLLM's; this table is for targets configured as NIM, which has its own version numbers.
_V2 = replace(latest_release(vllm.V1), engine="nim", paths=_PATHS, facts=_FACTS)
TABLES = (_V1, _V2)
