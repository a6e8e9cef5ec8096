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
from prober.features.engines.series import SIGNALS

SIZE: dict[str, Any] = {"width": 12, "height": 7}
THIRD: dict[str, Any] = {"width": 8, "height": 7}
MIN_PREDICTED = 100  # requests: the mean of latencies that spread by about their mean is then known to about a tenth
_TRIAL = ("predicted", "outcome")
_FAILURES = (
    "requests_failed",
    "requests_rejected",
    "http_errors",
    "grammar_timeouts",
    "ttft_slo_violations",
    "tpot_slo_violations",
)
READABLE = index_mapping(("unreadable", RED), ("readable", GREEN))
ANNOTATION = annotation(
    "Engine changed",
    "purple",
    f'sum by (target, change) (increase({engines_series.ENGINE_CHANGES}{{target=~"$target"}}[$__rate_interval])) > 0',
    "{{target}}: {{change}}",
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
            now(f"topk(1, 1000 * {gauge(engines_series.ENGINE_LAST_CHANGE, 'change')})", "{{change}}"),
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
        now(gauge(SIGNALS["context_tokens"])),
        steps=NEUTRAL,
    )


def panels() -> list[Panel]:
    """Panels of requests, queue, KV cache, prefix cache, tokens, and latencies as the engine measures them."""
    hits = rate(SIGNALS["prefix_cache_hits_tokens_total"])
    queries = rate(SIGNALS["prefix_cache_queries_tokens_total"])
    return [
        series(
            "Requests running and waiting",
            "Requests in the batch and in the queue. Bad: waiting always above 0; queueing then adds to TTFT.",
            "short",
            Query(gauge(SIGNALS["requests_running"]), "running"),
            Query(gauge(SIGNALS["requests_waiting"]), "waiting"),
            overrides=[fixed_color("waiting", ORANGE)],
            **SIZE,
        ),
        series(
            "Time in the engine's queue",
            "Queue time as measured by the engine. Bad: a growing share of TTFT. "
            "No data: this engine does not report it.",
            "s",
            Query(quantile(0.5, SIGNALS["queue_seconds"], "target", TARGET, STEP), "p50"),
            Query(quantile(0.95, SIGNALS["queue_seconds"], "target", TARGET, STEP), "p95"),
            Query(quantile(0.99, SIGNALS["queue_seconds"], "target", TARGET, STEP), "p99"),
            **SIZE,
        ),
        series(
            "KV cache in use, and preemptions",
            "Share of the KV cache in use, of the fullest rank, and preemptions per second. "
            "Bad: above 90% with preemptions; preempted requests stall and repeat their prefill.",
            "percentunit",
            Query(gauge(SIGNALS["kv_cache_usage_ratio_max"]), "KV cache in use"),
            Query(rate(SIGNALS["preemptions_total"]), "preemptions"),
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
            Query(rate(SIGNALS["prompt_tokens_total"]), "prompt tokens"),
            Query(rate(SIGNALS["generation_tokens_total"]), "output tokens"),
            Query(rate(SIGNALS["requests_finished_total"]), "requests"),
            overrides=[on_the_right("requests", "reqps")],
            **SIZE,
        ),
        series(
            "TTFT and ITL by the engine",
            "p99 of all requests as measured by the engine. If it rises with that of the probes, the cause is in the engine; "
            "if not, look at the network or a proxy. Bad: rising.",
            "s",
            Query(quantile(0.99, SIGNALS["ttft_seconds"], "target", TARGET, STEP), "TTFT p99"),
            Query(quantile(0.99, SIGNALS["itl_seconds"], "target", TARGET, STEP), "ITL p99"),
            overrides=[on_the_right("ITL.*", "s")],
            **SIZE,
        ),
    ]


def of_some_engines() -> Collapsed:
    """Collapsed row with what only some engines and routers tell."""
    judged = f"({rate(SIGNALS['requests_judged_total'])} > 0)"

    def mean(field: str) -> str:
        return f"{rate(f'{SIGNALS[field]}_sum')} / ({rate(f'{SIGNALS[field]}_count')} > 0)"

    def optimism(latency: str) -> str:
        """Predicted ÷ measured mean - 1, where both are of the same requests, and of enough of them."""
        counts = [
            f"max by (target) (increase({SIGNALS[f'{kind}_{latency}_seconds']}_count{{{TARGET}}}[{STEP}]))"
            for kind in _TRIAL
        ]
        same = f"{counts[0]} >= {MIN_PREDICTED} and abs({counts[0]} / {counts[1]} - 1) < 0.05"
        return f"({mean(f'predicted_{latency}_seconds')}) / ({mean(f'outcome_{latency}_seconds')}) - 1 and ({same})"

    figures: tuple[tuple[str, str, Unit, dict[str, str]], ...] = (
        (
            "Failed and rejected requests",
            "Share of the requests that the engine failed, turned away for its load or answered with 5xx, whose grammar was late, "
            "or that missed the latency that they asked the router for. Bad: any that last.",
            "percentunit",
            {kind.replace("_", " "): f"{rate(SIGNALS[f'{kind}_total'])} / {judged}" for kind in _FAILURES},
        ),
        (
            "Prefill and decode",
            "p95 of the time in each phase, as measured by the engine. Bad: one that rises alone names the phase that got slower.",
            "s",
            {
                phase: quantile(0.95, SIGNALS[f"{phase}_seconds"], "target", TARGET, STEP)
                for phase in ("prefill", "decode", "tpot")
            },
        ),
        (
            "Deferred requests, and sleep",
            "Requests that wait for an adapter or a transfer, not for capacity; 1 while the engine sleeps. Bad: deferred ones that "
            "stay: more capacity does not help them.",
            "short",
            {"deferred": gauge(SIGNALS["requests_deferred"]), "sleeps": gauge(SIGNALS["sleeping"])},
        ),
        (
            "KV cache offload",
            "Seconds of loading per second, bytes per second, and failed loads. Bad: loading that takes a growing part of the time.",
            "short",
            {
                kind.replace("_", " "): rate(SIGNALS[f"kv_offload_{kind}_total"])
                for kind in ("load_seconds", "load_bytes", "failures")
            },
        ),
        (
            "Predicted against measured latency",
            "Mean latency that the router predicted, against what it measured of the same requests: -40% is 40% too optimistic. Its "
            "saturation beside it. Bad: far from 0 near saturation, where it routes and refuses by it. Only with 100 requests.",
            "percentunit",
            {"TTFT": optimism("ttft"), "TPOT": optimism("tpot"), "saturation": gauge(SIGNALS["pool_saturation_ratio"])},
        ),
    )
    panels = [
        series(title, text, unit, *(Query(expr, legend) for legend, expr in lines.items()), **SIZE)
        for title, text, unit, lines in figures
    ]
    told = " or ".join(f"{SIGNALS[f'{kind}_total']}{{{TARGET}}}" for kind in _FAILURES)
    return Collapsed(panels, "some_engines", {"failures are counted": told})


def finish_reasons() -> Collapsed:
    """Collapsed row with the reasons why requests ended, counted by the engine."""

    def finished(declared: AnySeries, by: str, more: str = "") -> str:
        return f"max by ({by}) (increase({declared}{{{TARGET}{more}}}[{STEP}]))"

    every = finished(SIGNALS["requests_finished_total"], "target")
    counter = engines_series.ENGINE_FINISHED
    of_reasons = f"sum by (target) ({finished(counter, 'target, finished_reason')})"
    panel = series(
        "Requests finished, by reason",
        "Requests that finished, by the reason that the engine counts. Bad: error; abort that grows, clients give up; length where "
        "answers should end by themselves, they are cut off. No reason: of a kind that this engine does not count apart.",
        "short",
        Query(finished(counter, "finished_reason", ',finished_reason!="error"') + " > 0", "{{finished_reason}}"),
        Query(finished(counter, "finished_reason", ',finished_reason="error"') + " > 0", "error"),
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
    drafts = rate(SIGNALS["speculation_drafts_total"])
    counted = (SIGNALS["speculation_draft_tokens_total"], SIGNALS["speculation_accepted_tokens_total"])
    drafted, accepted = map(rate, counted)
    length = f"{gauge(SIGNALS['speculation_length_tokens'])} > 0"  # 0 without speculation
    known = [f"{declared}{{{TARGET}}}" for declared in (*counted, SIGNALS["speculation_length_tokens"])]
    return Collapsed(
        [
            series(
                "Drafted tokens accepted",
                "Share of the drafted tokens that the model accepted. SGLang reports that of its latest batches only. Bad: a fall; "
                "users ask what the draft model does not know, and drafts cost more than they save. No data: nothing is drafted, "
                "or the engine, as TGI, counts accepted tokens only.",
                "percentunit",
                Query(
                    f"{accepted} / ({drafted} > 0) or {gauge(SIGNALS['speculation_acceptance_ratio'])} and {length}",
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
                Query(rate(SIGNALS["generation_tokens_total"]), "all output tokens"),
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
    times = SIGNALS["kv_transfer_seconds"]
    panel = series(
        "KV transfer, and failed ones",
        "Time of a KV cache from the engine that prefills to the one that decodes, and failed transfers per second. Bad: it rises "
        "together with the TTFT: look at the links between the two machines; any that fail: the prompt is computed again, or the "
        "request fails. No failed ones: none failed, or the engine does not count them.",
        "s",
        Query(quantile(0.5, times, "target", TARGET, STEP), "p50"),
        Query(quantile(0.95, times, "target", TARGET, STEP), "p95"),
        Query(quantile(0.99, times, "target", TARGET, STEP), "p99"),
        Query(f"{rate(SIGNALS['kv_transfer_failures_total'])} > 0", "failed"),
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
            gauge(SIGNALS["requests_running"], "instance"),
        ),
        (
            "Requests waiting",
            "Requests in the queue. Bad: one engine has a queue while others have none.",
            "short",
            gauge(SIGNALS["requests_waiting"], "instance"),
        ),
        (
            "KV cache in use",
            "Share of the KV cache in use. Bad: one engine near 1 while others have room.",
            "percentunit",
            gauge(SIGNALS["kv_cache_usage_ratio_max"], "instance"),
        ),
        (
            "Preemptions",
            "Preemptions per second. Bad: any that last; the KV cache of this engine is too small for its load.",
            "ops",
            rate(SIGNALS["preemptions_total"], "instance"),
        ),
        (
            "Output tokens",
            "Output tokens per second. Bad: one engine makes fewer with as many requests: it is slower than the others.",
            "short",
            rate(SIGNALS["generation_tokens_total"], "instance"),
        ),
        (
            "TTFT p95",
            "p95 of all requests as measured by the engine. Bad: one engine above the others.",
            "s",
            quantile(0.95, SIGNALS["ttft_seconds"], "instance", TARGET, STEP),
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
