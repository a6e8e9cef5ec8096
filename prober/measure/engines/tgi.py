"""Text Generation Inference. Every error, overload too, arrives inside a 200; its OpenAI route cannot force a length."""

from prober.measure.chat import Dialect
from prober.measure.engine_signals import Buckets, Fact, Over, Ratio, Shape, Table, Value

DIALECT = Dialect(name="tgi")

# Names from 3.3.7, in maintenance. Counters have no _total. The usage is of tokens set aside for the batch, at their worst.
_USAGE = Ratio(Value("tgi_batch_current_max_tokens"), Value("tgi_batch_max_total_tokens"), since="3.0.0")
TABLES = (
    Table(
        engine="tgi",
        shape=Shape(prefixes=("tgi_",)),
        signals={
            "requests_running": (Value("tgi_batch_current_size"),),
            "requests_waiting": (Value("tgi_queue_size"),),
            "kv_cache_usage_ratio_max": (_USAGE,),
            "kv_cache_usage_ratio_mean": (_USAGE,),
            "kv_cache_capacity_tokens": (Value("tgi_batch_max_total_tokens", Over.FIRST, since="3.0.0"),),
            "prompt_tokens_total": (Value("tgi_request_input_length_sum"),),
            "generation_tokens_total": (Value("tgi_request_generated_tokens_sum"),),
            "requests_finished_total": (Value("tgi_request_success"),),
            "tpot_seconds": (Buckets("tgi_request_mean_time_per_token_duration"),),
            "queue_seconds": (Buckets("tgi_request_queue_duration"),),
            "e2e_seconds": (Buckets("tgi_request_duration"),),
        },
        models=(),
        lazy=True,
        facts=(
            Fact("version", "/info", ("version",)),
            Fact("model", "/info", ("model_id",)),
            Fact("context_tokens", "/info", ("max_total_tokens",)),
            Fact("requests_max", "/info", ("max_concurrent_requests",)),
        ),
    ),
)
