"""Panels of the engine's own metrics."""

from typing import Any

from prober.exposition.dashboards.board import annotation
from prober.exposition.dashboards.panels import Panel, Query, now, series, stat
from prober.exposition.dashboards.queries import STEP, TARGET, gauge, quantile, rate
from prober.exposition.dashboards.style import GREEN, NEUTRAL, ORANGE, RED, fixed_color, index_mapping, on_the_right
from prober.exposition.dashboards.vocabulary import GOOD_AT_ONE

SIZE: dict[str, Any] = {"width": 12, "height": 7}
ANNOTATION = annotation(
    "Engine changed",
    "purple",
    'sum by (target, what) (increase(llmslo_engine_changes_total{target=~"$target"}[$__rate_interval])) > 0',
    "{{target}}: {{what}}",
)


def identity() -> list[Panel]:
    """Whether the metrics page can be read, and what the engine reports of itself."""
    return [
        stat(
            "Engine metrics page",
            "Whether the engine's metrics page can be read. Bad: no; the engine panels below then have no current data.",
            "none",
            now(gauge("llmslo_engine_up")),
            mappings=index_mapping(("unreadable", RED), ("readable", GREEN)),
            steps=GOOD_AT_ONE,
            fill="background",
        ),
        stat(
            "Engine",
            "Engine, version and model as reported by the engine. Bad: not the version or model that you rolled out.",
            "none",
            now(gauge("llmslo_engine_info", "engine, version, model"), "{{engine}} {{version}}, {{model}}"),
            steps=NEUTRAL,
            width=5,
            decimals=0,
            text_mode="name",
        ),
        stat(
            "Last change of the engine",
            "When the engine last restarted, or changed its version, model or flags, since the prober's start. "
            "Bad: just before a latency rose.",
            "dateTimeFromNow",
            now(f"topk(1, 1000 * {gauge('llmslo_engine_last_change_timestamp_seconds', 'what')})", "{{what}}"),
            steps=NEUTRAL,
            width=3,
            text_mode="value_and_name",
            empty="none",
        ),
    ]


def context_length() -> Panel:
    """Maximum tokens of prompt and answer."""
    return stat(
        "Context length",
        "Maximum tokens of prompt and answer together. Bad: less than users send.",
        "short",
        now(gauge("llmslo_engine_context_tokens")),
        steps=NEUTRAL,
    )


def panels() -> list[Panel]:
    """Requests, queue, KV cache, prefix cache, tokens, and latencies as the engine measures them."""
    hits = rate("llmslo_engine_prefix_cache_hits_total")
    queries = rate("llmslo_engine_prefix_cache_queries_total")
    return [
        series(
            "Requests running and waiting",
            "Requests in the batch and in the queue. Bad: waiting always above 0; queueing then adds to TTFT.",
            "short",
            Query(gauge("llmslo_engine_requests_running"), "running"),
            Query(gauge("llmslo_engine_requests_waiting"), "waiting"),
            overrides=[fixed_color("waiting", ORANGE)],
            **SIZE,
        ),
        series(
            "Time in the engine's queue",
            "Queue time as measured by the engine. Bad: a growing share of TTFT. "
            "No data: this engine does not report it.",
            "s",
            Query(quantile(0.5, "llmslo_engine_queue_seconds", "target", TARGET, STEP), "p50"),
            Query(quantile(0.95, "llmslo_engine_queue_seconds", "target", TARGET, STEP), "p95"),
            Query(quantile(0.99, "llmslo_engine_queue_seconds", "target", TARGET, STEP), "p99"),
            **SIZE,
        ),
        series(
            "KV cache in use, and preemptions",
            "Share of the KV cache in use, of the fullest rank, and preemptions per second. "
            "Bad: above 90% with preemptions; preempted requests stall and repeat their prefill.",
            "percentunit",
            Query(gauge("llmslo_engine_kv_cache_usage_ratio"), "KV cache in use"),
            Query(rate("llmslo_engine_preemptions_total"), "preemptions"),
            high=1,
            steps=((None, GREEN), (0.9, RED)),
            custom={"thresholdsStyle": {"mode": "dashed"}},
            overrides=[
                on_the_right("preemptions", "ops"),
                fixed_color("preemptions", RED),
            ],
            **SIZE,
        ),
        series(
            "Prefix cache hits",
            "Share of looked-up prompt tokens that were in the prefix cache. Bad: a drop; more prompt tokens need a prefill.",
            "percentunit",
            Query(f"{hits} / ({queries} > 0)", "hits"),
            high=1,
            **SIZE,
        ),
        series(
            "Tokens and requests",
            "Prompt and output tokens per second, and requests finished per second. "
            "Bad: output falls while requests wait: the engine got slower.",
            "short",
            Query(rate("llmslo_engine_prompt_tokens_total"), "prompt tokens"),
            Query(rate("llmslo_engine_generation_tokens_total"), "output tokens"),
            Query(rate("llmslo_engine_requests_total"), "requests"),
            overrides=[on_the_right("requests", "reqps")],
            **SIZE,
        ),
        series(
            "TTFT and ITL by the engine",
            "p99 of all requests as measured by the engine. If it rises with that of the probes, the cause is in the engine; "
            "if not, look at the network or a proxy. Bad: rising.",
            "s",
            Query(quantile(0.99, "llmslo_engine_ttft_seconds", "target", TARGET, STEP), "TTFT p99"),
            Query(quantile(0.99, "llmslo_engine_itl_seconds", "target", TARGET, STEP), "ITL p99"),
            overrides=[on_the_right("ITL.*", "s")],
            **SIZE,
        ),
    ]
