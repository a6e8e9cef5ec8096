"""Panels of the engine's own metrics."""

from typing import Any

from prober.exposition.dashboards.board import GOOD_AT_ONE, Collapsed, annotation
from prober.exposition.dashboards.panels import Column, Panel, Query, now, series, stat, table
from prober.exposition.dashboards.queries import STEP, TARGET, gauge, quantile, rate
from prober.exposition.dashboards.style import (
    GREEN,
    GREY,
    NEUTRAL,
    ORANGE,
    RED,
    Unit,
    fixed_color,
    index_mapping,
    on_the_right,
)
from prober.exposition.families import AnySeries
from prober.features.engines import series as engines_series

SIZE: dict[str, Any] = {"width": 12, "height": 7}
THIRD: dict[str, Any] = {"width": 8, "height": 7}
READABLE = index_mapping(("unreadable", RED), ("readable", GREEN))
ANNOTATION = annotation(
    "Engine changed",
    "purple",
    f'sum by (target, what) (increase({engines_series.ENGINE_CHANGES}{{target=~"$target"}}[$__rate_interval])) > 0',
    "{{target}}: {{what}}",
)


def identity() -> list[Panel]:
    """Panels of the state of the metrics page, and of the identity that the engine reports."""
    return [
        stat(
            "Engine metrics page",
            "Whether the engine's metrics page can be read. Bad: no; the engine panels below then have no current data.",
            "none",
            now(gauge(engines_series.ENGINE_UP)),
            mappings=READABLE,
            steps=GOOD_AT_ONE,
            fill="background",
        ),
        stat(
            "Engine",
            "Engine, version and model as reported by the engine. Bad: not the version or model that you rolled out.",
            "none",
            now(gauge(engines_series.ENGINE_INFO, "engine, version, model"), "{{engine}} {{version}}, {{model}}"),
            steps=NEUTRAL,
            width=5,
            decimals=0,
            text_mode="name",
        ),
        stat(
            "Last engine change",
            "When the engine last restarted, or changed its version, model or flags, since the prober's start. "
            "Bad: just before a latency rose.",
            "dateTimeFromNow",
            now(f"topk(1, 1000 * {gauge(engines_series.ENGINE_LAST_CHANGE, 'what')})", "{{what}}"),
            steps=NEUTRAL,
            width=3,
            text_mode="value_and_name",
            empty="none",
        ),
    ]


def context_length() -> Panel:
    """Panel of the maximum number of tokens in prompt and answer together."""
    return stat(
        "Context length",
        "Maximum tokens of prompt and answer together. Bad: less than users send.",
        "short",
        now(gauge(engines_series.ENGINE_CONTEXT)),
        steps=NEUTRAL,
    )


def panels() -> list[Panel]:
    """Panels of requests, queue, KV cache, prefix cache, tokens, and latencies as the engine measures them."""
    hits = rate(engines_series.ENGINE_PREFIX_HITS)
    queries = rate(engines_series.ENGINE_PREFIX_QUERIES)
    return [
        series(
            "Requests running and waiting",
            "Requests in the batch and in the queue. Bad: waiting always above 0; queueing then adds to TTFT.",
            "short",
            Query(gauge(engines_series.ENGINE_RUNNING), "running"),
            Query(gauge(engines_series.ENGINE_WAITING), "waiting"),
            overrides=[fixed_color("waiting", ORANGE)],
            **SIZE,
        ),
        series(
            "Time in the engine's queue",
            "Queue time as measured by the engine. Bad: a growing share of TTFT. "
            "No data: this engine does not report it.",
            "s",
            Query(quantile(0.5, engines_series.ENGINE_QUEUE, "target", TARGET, STEP), "p50"),
            Query(quantile(0.95, engines_series.ENGINE_QUEUE, "target", TARGET, STEP), "p95"),
            Query(quantile(0.99, engines_series.ENGINE_QUEUE, "target", TARGET, STEP), "p99"),
            **SIZE,
        ),
        series(
            "KV cache in use, and preemptions",
            "Share of the KV cache in use, of the fullest rank, and preemptions per second. "
            "Bad: above 90% with preemptions; preempted requests stall and repeat their prefill.",
            "percentunit",
            Query(gauge(engines_series.ENGINE_KV_USAGE), "KV cache in use"),
            Query(rate(engines_series.ENGINE_PREEMPTIONS), "preemptions"),
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
            Query(rate(engines_series.ENGINE_PROMPT_TOKENS), "prompt tokens"),
            Query(rate(engines_series.ENGINE_GENERATION_TOKENS), "output tokens"),
            Query(rate(engines_series.ENGINE_REQUESTS), "requests"),
            overrides=[on_the_right("requests", "reqps")],
            **SIZE,
        ),
        series(
            "TTFT and ITL by the engine",
            "p99 of all requests as measured by the engine. If it rises with that of the probes, the cause is in the engine; "
            "if not, look at the network or a proxy. Bad: rising.",
            "s",
            Query(quantile(0.99, engines_series.ENGINE_TTFT, "target", TARGET, STEP), "TTFT p99"),
            Query(quantile(0.99, engines_series.ENGINE_ITL, "target", TARGET, STEP), "ITL p99"),
            overrides=[on_the_right("ITL.*", "s")],
            **SIZE,
        ),
    ]


def finish_reasons() -> Collapsed:
    """Collapsed row with the reasons why requests ended, counted by the engine."""

    def finished(declared: AnySeries, by: str, more: str = "") -> str:
        return f"max by ({by}) (increase({declared}{{{TARGET}{more}}}[{STEP}]))"

    every = finished(engines_series.ENGINE_REQUESTS, "target")
    counter = engines_series.ENGINE_FINISHED
    of_reasons = f"sum by (target) ({finished(counter, 'target, reason')})"
    panel = series(
        "Requests finished, by reason",
        "Requests that finished, by the reason that the engine counts. Bad: error; abort that grows, clients give up; length where "
        "answers should end by themselves, they are cut off. No reason: of a kind that this engine does not count apart.",
        "short",
        Query(finished(counter, "reason", ',reason!="error"') + " > 0", "{{reason}}"),
        Query(finished(counter, "reason", ',reason="error"') + " > 0", "error"),
        Query(f"{every} - {of_reasons} > 0.01 * {every}", "no reason"),
        bars=True,
        width=24,
        height=7,
        overrides=[fixed_color("error", RED), fixed_color("no reason", GREY)],
        empty="none finished, or the engine counts no reasons",
    )
    return Collapsed([panel], "finish_reasons", {"counted by the engine": f"{counter}{{{TARGET}}}"})


def speculation() -> Collapsed:
    """Collapsed row about speculative decoding: computed from counters, or reported by the engine."""
    drafts = rate(engines_series.ENGINE_DRAFTS)
    counted = (engines_series.ENGINE_DRAFT_TOKENS, engines_series.ENGINE_ACCEPTED_TOKENS)
    drafted, accepted = map(rate, counted)
    length = f"{gauge(engines_series.ENGINE_SPECULATION_LENGTH)} > 0"  # 0 without speculation
    known = [f"{declared}{{{TARGET}}}" for declared in (*counted, engines_series.ENGINE_SPECULATION_LENGTH)]
    return Collapsed(
        [
            series(
                "Drafted tokens accepted",
                "Share of the drafted tokens that the model accepted. SGLang reports that of its latest batches only. Bad: a fall; "
                "users ask what the draft model does not know, and drafts cost more than they save. No data: nothing is drafted, "
                "or the engine, as TGI, counts accepted tokens only.",
                "percentunit",
                Query(
                    f"{accepted} / ({drafted} > 0) or {gauge(engines_series.ENGINE_ACCEPTANCE)} and {length}",
                    "accepted",
                ),
                high=1,
                **THIRD,
            ),
            series(
                "Tokens per draft",
                "Tokens that each draft yields, with the one that the model adds itself. Bad: near 1, where speculation saves nothing. "
                "No data: nothing is drafted, or the engine does not count its drafts.",
                "none",
                Query(f"1 + {accepted} / ({drafts} > 0) or {length}", "tokens"),
                **THIRD,
            ),
            series(
                "Tokens drafted and accepted",
                "Drafted and accepted tokens per second, beside all output tokens. Bad: drafted tokens that grow while accepted ones "
                "do not: the GPU works for nothing.",
                "short",
                Query(drafted, "drafted"),
                Query(accepted, "accepted"),
                Query(rate(engines_series.ENGINE_GENERATION_TOKENS), "all output tokens"),
                overrides=[fixed_color("all output tokens", GREY)],
                **THIRD,
            ),
        ],
        "speculation",
        {
            "tokens are drafted": " or ".join(f"{name} > 0" for name in known),
            "nothing is drafted": " or ".join(known),
        },
    )


def kv_transfer() -> Collapsed:
    """Collapsed row about KV cache transfers from the engine that prefills to the one that decodes."""
    times = engines_series.ENGINE_KV_TRANSFER
    panel = series(
        "KV transfer, and failed ones",
        "Time of a KV cache from the engine that prefills to the one that decodes, and failed transfers per second. Bad: it rises "
        "together with the TTFT: look at the links between the two machines; any that fail: the prompt is computed again, or the "
        "request fails. No failed ones: none failed, or the engine does not count them.",
        "s",
        Query(quantile(0.5, times, "target", TARGET, STEP), "p50"),
        Query(quantile(0.95, times, "target", TARGET, STEP), "p95"),
        Query(quantile(0.99, times, "target", TARGET, STEP), "p99"),
        Query(f"{rate(engines_series.ENGINE_KV_TRANSFER_FAILURES)} > 0", "failed"),
        overrides=[on_the_right("failed", "ops"), fixed_color("failed", RED)],
        width=24,
        height=7,
        empty="no transfers, or the engine does not measure them",
    )
    return Collapsed([panel], "kv_transfer", {"measured by the engine": f"{times}_count{{{TARGET}}}"})


def by_prober() -> Collapsed:
    """Collapsed row with each prober's metrics: sidecars share a target, but each reads its own engine's page."""
    up = engines_series.ENGINE_UP
    identity = gauge(engines_series.ENGINE_INFO, "instance, engine, version, model")
    columns = [
        Column("Prober", label="instance"),
        Column("Engine", identity, label="engine", width=110),
        Column("Version", label="version", width=150),
        Column("Model", label="model"),
        Column("Page", gauge(up, "instance"), mappings=READABLE, width=110),
    ]
    engines = table(
        "Engines",
        "The engine whose page each prober reads. Bad: another version or model than the others have, after a rollout; an unreadable "
        "page. Sidecars read their own engine each; replicas of a prober, and probers of several places, the same one.",
        columns,
        height=7,
        sort="Prober",
    )
    figures: tuple[tuple[str, str, Unit, str], ...] = (
        (
            "Requests running",
            "Requests in the batch. Bad: one engine far from the others; the load balancer prefers or avoids it.",
            "short",
            gauge(engines_series.ENGINE_RUNNING, "instance"),
        ),
        (
            "Requests waiting",
            "Requests in the queue. Bad: one engine has a queue while others have none.",
            "short",
            gauge(engines_series.ENGINE_WAITING, "instance"),
        ),
        (
            "KV cache in use",
            "Share of the KV cache in use. Bad: one engine near 1 while others have room.",
            "percentunit",
            gauge(engines_series.ENGINE_KV_USAGE, "instance"),
        ),
        (
            "Preemptions",
            "Preemptions per second. Bad: any that last; the KV cache of this engine is too small for its load.",
            "ops",
            rate(engines_series.ENGINE_PREEMPTIONS, "instance"),
        ),
        (
            "Output tokens",
            "Output tokens per second. Bad: one engine makes fewer with as many requests: it is slower than the others.",
            "short",
            rate(engines_series.ENGINE_GENERATION_TOKENS, "instance"),
        ),
        (
            "TTFT p95",
            "p95 of all requests as measured by the engine. Bad: one engine above the others.",
            "s",
            quantile(0.95, engines_series.ENGINE_TTFT, "instance", TARGET, STEP),
        ),
    )
    lines = [
        series(f"{title}, by prober", text, unit, Query(expr, "{{instance}}"), **SIZE)
        for title, text, unit, expr in figures
    ]
    return Collapsed(
        [engines, *lines],
        "pages",
        {
            "read by several probers": f"count(group by (instance) ({up}{{{TARGET}}})) > 1",
            "read by one prober": f"{up}{{{TARGET}}}",
        },
    )
