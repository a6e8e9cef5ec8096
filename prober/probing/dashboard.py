"""Panels of the probes: latencies, failures, tokens and cost."""

from prober.exposition.dashboards.board import TARGET_STATES
from prober.exposition.dashboards.panels import Column, Panel, Query, heatmap, now, series, stat, states, table
from prober.exposition.dashboards.queries import (
    MIN_P99_SAMPLES,
    PROBES,
    RECENTLY,
    STATES,
    STEP,
    TARGET,
    WINDOW,
    Name,
    buckets,
    gauge,
    increase,
    limit,
    quantile,
    samples,
    target_state,
    worst,
)
from prober.exposition.dashboards.style import (
    BLUE,
    GREEN,
    GREY,
    NEUTRAL,
    ORANGE,
    RED,
    dashed,
    dotted,
    fixed_color,
    index_mapping,
    named,
    on_the_right,
    override,
    words_mapping,
)
from prober.measure.outcome import BAD
from prober.probing import series as probe_series
from prober.statistics.quantiles import percentile_name

SIGNALS = {
    "ttft": ("TTFT", "Time to the first token"),
    "itl": ("ITL", "Time between tokens"),
    "tpot": ("TPOT", "Time per output token after the first, one a probe"),
    "e2e": ("E2E", "Time to the end of the answer"),
}
# Reasons of failures for people, as in the texts of alerts.
FAILURE_WORDS = words_mapping(
    {reason.value: reason.value.replace("http_", "HTTP ").replace("_", " ") for reason in sorted(BAD)}, RED
)
NO_VANTAGE = "no prober has a vantage"
SPENT = "A day at the rate of the chosen window"


def state() -> Panel:
    """Panel with the state of the target."""
    return stat(
        "State",
        "What the target is now, by its probes and its engine's health page. Bad: failing.",
        "none",
        now(target_state()),
        mappings=TARGET_STATES,
        fill="background",
    )


def outcomes() -> list[Panel]:
    """Panels: share of failures, latest cold start, expiry of the certificate."""
    failed, probes = (
        increase(declared, "target", window=WINDOW) for declared in (probe_series.FAILURES, probe_series.PROBES)
    )
    return [
        stat(
            "Probes that failed",
            "Share of the probes that failed by the target's doing over the chosen window. Bad: above what its SLO allows.",
            "percentunit",
            now(f"{failed} / ({probes} > 0)"),
            steps=((None, GREEN), (0.001, ORANGE), (0.01, RED)),
            decimals=2,
        ),
        stat(
            "Latest cold start",
            "TTFT of the first success on a cold engine, kept out of the histograms. Bad: longer than users would wait "
            "after a rollout.",
            "s",
            now(gauge(probe_series.COLD_START, select=PROBES)),
            steps=NEUTRAL,
        ),
        stat(
            "Certificate ends",
            "When the server's certificate ends. Bad: within two weeks; no data: no TLS.",
            "dateTimeFromNow",
            now(f"1000 * min({probe_series.CERT_EXPIRY}{{{TARGET}}})"),
            steps=NEUTRAL,
        ),
    ]


def heatmaps() -> list[Panel]:
    """Heatmaps of TTFT and ITL of all probes."""
    return [
        heatmap(
            f"{SIGNALS[signal][0]} of $workload",
            f"{SIGNALS[signal][1]}: how many fell into each bucket, when. Bad: a cloud that moves up, or a second one above.",
            Query(buckets(f"llmslo_{signal}_seconds"), "{{le}}", form="heatmap"),
            repeat="workload",
            width=24,
        )
        for signal in ("ttft", "itl")
    ]


def latency() -> list[Panel]:
    """Panels with quantiles of each latency, and the number of samples behind them."""
    return [
        _quantile_table(),
        *(_quantile_lines(signal) for signal in SIGNALS),
        series(
            "Samples per quantile",
            "Successful probes of each workload in the selected window. Bad: below the dashed 1,000 that a p99 needs, or falling.",
            "short",
            Query(samples(probe_series.TTFT), "{{workload}}"),
            Query(f"{MIN_P99_SAMPLES} * group({probe_series.STATE}{{{TARGET}}})", "needed for p99"),
            width=12,
            overrides=[dashed("needed.*", GREY, in_legend=True)],
        ),
        series(
            "TTFT of the answer, after reasoning",
            "Time to the first content that is not reasoning. Bad: above its limit. No data: the model does not reason.",
            "s",
            *_quantiles(probe_series.TTFT_ANSWER, "{{workload}}", 0.5, 0.99),
            width=12,
        ),
        series(
            "Tool calls",
            "Time to the first piece of the first tool call, and to its complete arguments. Bad: above the time that users wait for an "
            "agent's step. No data: no workload has tools, or no answer calls one.",
            "s",
            *_quantiles(probe_series.TTFT_CALL, "{{workload}} call", 0.5, 0.99),
            *_quantiles(probe_series.CALL_ARGUMENTS, "{{workload}} arguments", 0.5, 0.99),
            width=24,
        ),
    ]


def _quantiles(histogram: Name, legend: str, *shares: float) -> list[Query]:
    return [Query(quantile(q, histogram), f"{legend} {percentile_name(q)}") for q in shares]


def _quantile_table() -> Panel:
    columns = [Column("Workload", label="workload", width=120)]
    columns += [
        Column(
            f"{SIGNALS[signal][0]} {percentile_name(q)}", quantile(q, f"llmslo_{signal}_seconds"), unit="s", width=90
        )
        for signal in ("ttft", "tpot", "e2e")
        for q in (0.5, 0.9, 0.95, 0.99)
    ]
    enough = ((None, ORANGE), (MIN_P99_SAMPLES, "transparent"))
    columns.append(Column("Samples", samples(probe_series.TTFT), unit="none", decimals=0, width=90, steps=enough))
    return table(
        "Quantiles now",
        "Quantiles of each workload over the selected window, with the number of successful probes. "
        "Bad: orange, fewer than 1,000: too few for a p99.",
        columns,
        hide=("target",),
        height=5,
        sort="Workload",
    )


def _quantile_lines(signal: str) -> Panel:
    name, description = SIGNALS[signal]
    histogram = f"llmslo_{signal}_seconds"
    p99, enough = quantile(0.99, histogram), f"{samples(histogram)} >= {MIN_P99_SAMPLES}"
    return series(
        name,
        f"{description}: p50, p90, p95 and p99 over the selected window. Grey dots: a p99 of fewer than 1,000 samples. "
        "Dots: single probes, where Prometheus stores exemplars. Bad: above the dashed limit of the SLO, or p99 rising away from p50.",
        "s",
        *_quantiles(histogram, "{{workload}}", 0.5, 0.9, 0.95),
        Query(p99, "{{workload}} p99", exemplars=True),
        Query(f"{p99} unless {enough}", "{{workload}} p99, few samples"),
        Query(limit(signal), "limit of {{slo}}, {{workload}}"),
        width=12,
        custom={"lineWidth": 2},
        overrides=[dashed("limit of .*"), dotted("E")],
    )


def network() -> list[Panel]:
    """Panels: connection phases, TTFT by client and engine, and whether answers arrive held back."""
    return [
        series(
            "Network, p90",
            "Time to set up the new connection of each probe, by phase: in TTFT only if it takes longer than connect_lead; "
            "and the time until the target's host, or its proxy, has acknowledged the request, which does. Bad: one that grows; it "
            "points to the network or a proxy.",
            "s",
            Query(quantile(0.9, probe_series.CONNECT, "phase", TARGET), "{{phase}}"),
            Query(quantile(0.9, probe_series.NETWORK, "target", TARGET), "request acknowledged"),
            width=12,
        ),
        _client_and_engine(),
        series(
            "Where the time of probes goes",
            "Mean time of the probes of all workloads in each part that the server or a gateway tells: queue, prefill, decode and "
            "others. Bad: one that grows; it is the one to look at. No data: no server tells.",
            "s",
            Query(_mean(probe_series.PART, TARGET, "target, part"), "{{part}}"),
            width=12,
            empty="no server tells",
        ),
        states(
            "Streams",
            "Whether tokens arrive one by one. Bad: buffered. Answers arrive all at once, which leaves TPOT and ITL without data, or "
            "several tokens at a time: something between the engine and the prober, such as a gateway, holds them back. No data: also "
            "while every probe fails.",
            index_mapping(("one by one", GREEN), ("buffered", ORANGE)),
            Query(
                f"{gauge(probe_series.BUFFERED)} unless on (target) "
                f'(min by (target) ({probe_series.STATE}{{{TARGET},state="failing"}}) == 1)',
                "{{target}}",
            ),
            height=4,
            empty="too few answers to tell, or none now",
        ),
        series(
            "Retries of a gateway",
            "Probes that a gateway tried again, or sent to another model, as its response headers tell; their latency has all tries in "
            "it. Bad: above 0, the engines behind it fail or are full more often than the probes show. No data: no header tells.",
            "short",
            Query(increase(probe_series.RETRIED, "target, action", select=TARGET), "{{action}}"),
            bars=True,
            width=12,
            empty="no response header tells",
        ),
    ]


def _mean(histogram: Name, select: str, level: str = "target") -> str:
    """PromQL: the mean by the labels of `level`. Means are exact; quantiles of two histograms differ by their buckets."""
    total, count = (f"sum by ({level}) (rate({histogram}_{part}{{{select}}}[{STEP}]))" for part in ("sum", "count"))
    native = f"sum by ({level}) (rate({histogram}{{{select}}}[{STEP}]))"
    return f"(({total} / ({count} > 0)) or (histogram_sum({native}) / (histogram_count({native}) > 0)))"


def _client_and_engine() -> Panel:
    """Panel that compares the probes' mean TTFT with the engine's."""
    return series(
        "TTFT by client and by engine",
        "Mean TTFT of the probes beside the engine's own mean TTFT of all its requests. Bad: the client's grows and the engine's does "
        "not: look at the network, proxies or the engine's API server.",
        "s",
        Query(_mean(probe_series.TTFT, PROBES), "client"),
        Query(_mean("llmslo_engine_ttft_seconds", TARGET), "engine"),
        width=12,
        overrides=[fixed_color("client", BLUE), fixed_color("engine", ORANGE)],
    )


def vantages() -> list[Panel]:
    """Panels of a target probed from several places: latency from each, the common part, and what each place adds."""
    place, level = ',vantage!=""', "target, workload, vantage"
    p50 = quantile(0.5, probe_series.TTFT, level, PROBES + place)
    p90 = quantile(0.9, probe_series.TTFT, level, PROBES + place)
    shared = f"min by (target, workload) ({p50})"
    several = f"count by (target, workload) ({p50}) > 1"
    tcp = quantile(0.5, probe_series.CONNECT, "vantage", f'{TARGET},phase="tcp"{place}')
    return [
        series(
            "TTFT by vantage",
            "TTFT of the same target from each vantage over the selected window. Bad: one vantage rises away from the others, which "
            "points to its network; all rise together, which points to the engine.",
            "s",
            Query(p50, "{{workload}} from {{vantage}} p50"),
            Query(p90, "{{workload}} from {{vantage}} p90"),
            width=12,
            overrides=[named(".*p90", ("custom.lineStyle", {"fill": "dash", "dash": [4, 4]}))],
            empty=NO_VANTAGE,
        ),
        series(
            "TTFT shared and added, p50",
            "Shared: p50 of the fastest vantage, which is the engine and the shortest way to it. Added: what each vantage takes beyond "
            "that. Bad: shared rises, look at the engine; added rises for one vantage, look at its network, gateway or proxy. "
            "No data: fewer than two vantages.",
            "s",
            Query(f"{shared} and ({several})", "{{workload}} shared by all"),
            Query(
                f"({p50} - on (target, workload) group_left () {shared}) and on (target, workload) ({several})",
                "{{workload}} added from {{vantage}}",
            ),
            width=12,
            overrides=[named(".* shared by all", ("custom.lineWidth", 3))],
            empty="fewer than two vantages",
        ),
        series(
            "TCP connect by vantage, p50",
            "Time to set up a TCP connection from each vantage: about one round trip, without the engine. Bad: rises for one vantage.",
            "s",
            Query(tcp, "{{vantage}}"),
            width=12,
            empty=NO_VANTAGE,
        ),
        states(
            "State by vantage",
            "What the target is from each vantage. Bad: failing from one vantage, which is a warning; failing from more than half, "
            "which pages once.",
            TARGET_STATES,
            Query(worst(probe_series.STATE, STATES, "state", "vantage", TARGET + place), "{{vantage}}"),
            width=12,
            empty=NO_VANTAGE,
        ),
    ]


def failures() -> list[Panel]:
    """Panels of failures by reason, over time and now, in red, unlike anything else on the first screen."""
    recent = increase(probe_series.FAILURES, "reason, workload", window=RECENTLY)
    return [
        series(
            "Failures by reason",
            "Failed probes by reason, and all probes. Bad: any reason that persists.",
            "short",
            Query(f"{increase(probe_series.FAILURES, 'reason')} > 0", "{{reason}}"),
            Query(increase(probe_series.PROBES, "target"), "all probes"),
            bars=True,
            width=16,
            height=7,
            overrides=[
                override("byFrameRefID", "A", [("color", {"mode": "shades", "fixedColor": RED})]),
                named(
                    "all probes",
                    ("custom.drawStyle", "line"),
                    ("custom.fillOpacity", 0),
                    ("custom.stacking", {"mode": "none", "group": "B"}),
                    ("color", {"mode": "fixed", "fixedColor": GREY}),
                ),
            ],
        ),
        table(
            "Failures of the last 15 minutes",
            "Failed probes of the last 15 minutes by reason, the most frequent first. Bad: any that is still rising.",
            [
                Column("Reason", label="reason", mappings=FAILURE_WORDS),
                Column("Workload", label="workload", width=130),
                Column("Probes", f"{recent} > 0.5", unit="none", decimals=0, width=80),
            ],
            sort="-Probes",
            width=8,
            height=7,
            empty="none failed",
        ),
    ]


def not_counted() -> list[Panel]:
    """Panels of excluded probes and of wrong answers."""
    return [
        series(
            "Excluded from SLIs, by reason",
            "Due times that do not count for any SLI: delayed by the prober, over budget, cancelled, rejected. "
            "Bad: rejected (check token, model and request) and over_budget; such probes measure nothing. Without data: all end so.",
            "short",
            Query(increase(probe_series.NEUTRAL, "reason"), "{{reason}}"),
            Query(
                f"sum by (reason) (max by (target, workload, reason) ({probe_series.NO_DATA}{{{PROBES}}}))",
                "workloads without data: {{reason}}",
            ),
            bars=True,
            width=12,
        ),
        series(
            "Wrong answers",
            "Share of wrong answers in the selected window, of those that are checked: golden prompts, tool calls, structured "
            "output. Bad: above 5%. No data: no answer is checked.",
            "percentunit",
            Query(
                f"{increase(probe_series.QUALITY_FAILURES, 'workload', window=WINDOW)} / "
                f"({increase(probe_series.QUALITY_CHECKS, 'workload', window=WINDOW)} > 0)",
                "{{workload}}",
            ),
            high=1,
            width=12,
        ),
    ]


def cost() -> list[Panel]:
    """Panels of tokens and dollars that the probes cost."""
    return [
        series(
            "Tokens of probing",
            "Tokens used by probes, as counted by the server. Bad: more than planned.",
            "short",
            Query(increase(probe_series.TOKENS, "token_type"), "{{token_type}}"),
            bars=True,
        ),
        stat(
            "Tokens a day",
            f"{SPENT}, prompts and answers. Bad: near the configured budget.",
            "short",
            now(
                f"86400 * sum(rate({probe_series.TOKENS}{{" + PROBES + f',token_type!="cached"}}[{WINDOW}]))',
            ),
            steps=NEUTRAL,
            height=8,
        ),
        stat(
            "Dollars a day",
            f"{SPENT}, at the configured price. Bad: near the configured budget. No data: no price is configured.",
            "currencyUSD",
            now(f"86400 * sum(rate({probe_series.COST}{{{TARGET}}}[{WINDOW}]))"),
            steps=NEUTRAL,
            height=8,
        ),
    ]


def latency_of_slowest() -> Panel:
    """Panel with TTFT and ITL of the slowest workload."""
    return series(
        "TTFT and ITL of the probes",
        "p50 and p90 of the probes of the slowest workload. Bad: above the dashed limits; "
        "the panels below show what changed at the same time.",
        "s",
        Query(f"max({quantile(0.5, probe_series.TTFT, window=STEP)})", "TTFT p50"),
        Query(f"max({quantile(0.9, probe_series.TTFT, window=STEP)})", "TTFT p90"),
        Query(f"max({quantile(0.9, probe_series.ITL, window=STEP)})", "ITL p90"),
        Query(f"min({limit('ttft')})", "limit of TTFT"),
        Query(f"min({limit('itl')})", "limit of ITL, right"),
        width=24,
        overrides=[
            on_the_right("ITL.*", "s"),
            dashed("limit of TTFT", in_legend=True),
            on_the_right(".*, right", "s"),
            dashed(".*, right", in_legend=True),
        ],
    )


def schedule() -> list[Panel]:
    """Panels with the rate of probes, and with probes that do not count."""
    shed = increase(probe_series.FAILURES, "target, reason", ',reason="shed"')
    return [
        series(
            "Probes per second",
            "Due times of the schedule, without neutral probes. Bad: below the configured rate.",
            "cps",
            Query(
                f"sum by (target, workload) (rate({probe_series.PROBES}{{{PROBES}}}[{STEP}]))",
                "{{target}} {{workload}}",
            ),
            width=8,
        ),
        series(
            "Excluded and shed probes",
            "Probes excluded from the SLIs by reason, probes shed at max_in_flight (counted as failures), and those without a latency: "
            "cold ones that the engine answered from its cache, and those whose first content was read together with later chunks "
            "(untimed: only roughly known). Bad: invalid or untimed above 10%: the prober lacks CPU time; shed: the target answers too "
            "slowly; rejected.",
            "short",
            Query(f"{increase(probe_series.NEUTRAL, 'target, reason')} > 0", "{{target}} {{reason}}"),
            Query(f"{shed} > 0", "{{target}} {{reason}}"),
            Query(f"{increase(probe_series.CACHED, 'target')} > 0", "{{target}} cached"),
            Query(f"{increase(probe_series.UNTIMED, 'target')} > 0", "{{target}} untimed"),
            Query(f"{increase(probe_series.USAGE_MISSING, 'target')} > 0", "{{target}} no token counts"),
            bars=True,
            width=8,
            empty="none in this range",
        ),
    ]


def rate_limits() -> Panel:
    """Panel with the remaining rate limits."""
    return series(
        "Rate limits left",
        "Remainder of the server's rate limits, from its headers. Bad: near 0. "
        "No data: the server sends no such headers.",
        "short",
        Query(f"min by (target, limit) ({probe_series.RATE_LIMIT}{{{TARGET}}})", "{{target}} {{limit}}"),
        width=12,
    )
