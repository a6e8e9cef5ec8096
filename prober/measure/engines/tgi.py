"""Text Generation Inference. Every error, overload included, arrives inside a 200; its OpenAI route cannot force a length."""

from prober.measure.chat import Dialect
from prober.measure.engine_signals import (
    Aggregation,
    Computed,
    EngineTable,
    JsonFact,
    PageShape,
    Source,
    counted,
    optional,
    signals,
    total,
)

DIALECT = Dialect(name="tgi")

# Names from 3.3.7 (in maintenance). Counters have no _total. The usage counts tokens reserved for the batch in the worst case.
_USAGE = Computed(
    "ratio",
    (Source("tgi_batch_current_max_tokens"), Source("tgi_batch_max_total_tokens")),
    since="3.0.0",
)


def _failures(kinds: tuple[str, ...]) -> Source:
    return counted("tgi_request_failure", "err", kinds, "tgi_request_count")


_FAILED, _REJECTED = (
    ("generation", "incomplete"),
    ("overloaded",),
)  # not validation, template, dropped: those are the clients'
TABLES = (
    EngineTable(
        engine="tgi",
        shape=PageShape(prefixes=("tgi_",)),
        signals=signals(
            requests_running="tgi_batch_current_size",
            requests_waiting="tgi_queue_size",
            kv_cache_usage_ratio=_USAGE,
            kv_cache_capacity_tokens=Source("tgi_batch_max_total_tokens", Aggregation.FIRST, since="3.0.0"),
            prompt_tokens_total="tgi_request_input_length_sum",
            generation_tokens_total="tgi_request_generated_tokens_sum",
            requests_finished_total="tgi_request_success",
            requests_judged_total=total(_failures((*_FAILED, *_REJECTED)), Source("tgi_request_success")),
            requests_failed_total=_failures(_FAILED),
            requests_rejected_total=_failures(_REJECTED),
            # Observed at each step of a request: the tokens after the first. The page lacks the number of drafted tokens.
            speculation_accepted_tokens_total=optional("tgi_request_skipped_tokens_sum"),
            tpot_seconds="tgi_request_mean_time_per_token_duration",
            queue_seconds="tgi_request_queue_duration",
            e2e_seconds="tgi_request_duration",
            prompt_tokens=optional("tgi_request_input_length"),
            output_tokens=optional("tgi_request_generated_tokens"),
        ),
        model_labels=(),
        lazy=True,
        facts=(
            JsonFact("version", "/info", ("version",)),
            JsonFact("model", "/info", ("model_id",)),
            JsonFact("context_tokens", "/info", ("max_total_tokens",)),
            JsonFact("requests_max", "/info", ("max_concurrent_requests",)),
        ),
    ),
)
CONTEXT = (
    JsonFact("engine_version", "/info", ("version",)),
    JsonFact("engine_commit", "/info", ("sha",)),
    JsonFact("weights", "/info", ("model_id",)),
    JsonFact("model_revision", "/info", ("model_sha",)),
    JsonFact("precision", "/info", ("model_dtype",)),  # before 2.2
)
