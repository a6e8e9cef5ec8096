"""Target dashboard: latency, failures and cost of one target."""

from collections.abc import Sequence

from prober.features.grafana.dashboards.board import Board
from prober.features.grafana.dashboards.overview import SLO_WORDS, STATE_WORDS
from prober.features.grafana.dashboards.panels import (
    BLUE,
    GREEN,
    GREY,
    NEUTRAL,
    ORANGE,
    RED,
    Column,
    Panel,
    Query,
    dashed,
    dotted,
    heatmap,
    named,
    now,
    row,
    series,
    stat,
    table,
)
from prober.features.grafana.dashboards.queries import (
    BUDGET_LEFT,
    ENOUGH_P99,
    PROBES,
    TARGET,
    WINDOW,
    buckets,
    gauge,
    increase,
    limit,
    quantile,
    samples,
    slo_state,
    target_state,
)

SIGNALS = {
    "ttft": ("TTFT", "Time to the first token"),
    "itl": ("ITL", "Time between tokens"),
    "tpot": ("TPOT", "Time per output token after the first, one a probe"),
    "e2e": ("E2E", "Time to the end of the answer"),
}
SPENT = "A day at the rate of the chosen window"


def board() -> Board:
    """The dashboard."""
    rows = {
        "": _now(),
        "Latency: every probe": _heatmaps(),
        "Latency: quantiles": [_quantiles(), *(_lines(signal) for signal in SIGNALS), _counts(), _answer()],
        "On the way": [_connect(), _both_sides()],
        "Failures": _failures(),
        "Tokens and cost": _cost(),
    }
    text = "One target: latencies with the samples behind them, the way there, failures by reason, tokens and cost."
    return Board("target", text, rows, one_target=True)


def _now() -> list[Panel]:
    failed, probes = (
        increase(f"llmslo_{name}_total", "target", window=WINDOW) for name in ("probe_failures", "probes")
    )
    return [
        stat(
            "State",
            "What the target is now, by its probes and its engine's health page. Bad: failing.",
            "none",
            now(target_state()),
            mappings=STATE_WORDS,
            fill="background",
        ),
        stat(
            "SLOs",
            "The worst of its SLOs over their own windows. Bad: missed; no data means that nobody can say.",
            "none",
            now(slo_state("target")),
            mappings=SLO_WORDS,
            fill="background",
        ),
        stat(
            "Budget left",
            "The least error budget that is left. Bad: below 0, the SLO is missed.",
            "percentunit",
            now(f"min({BUDGET_LEFT}{{{PROBES}}})"),
            steps=((None, RED), (0, ORANGE), (0.25, GREEN)),
            decimals=0,
        ),
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
            now(gauge("llmslo_cold_start_ttft_seconds", select=PROBES)),
            steps=NEUTRAL,
        ),
        stat(
            "Certificate ends",
            "When the server's certificate ends. Bad: within two weeks; no data: no TLS.",
            "dateTimeFromNow",
            now(f"1000 * min(llmslo_tls_cert_expiry_timestamp_seconds{{{TARGET}}})"),
            steps=NEUTRAL,
        ),
    ]


def _heatmaps() -> list[Panel]:
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


def _quantiles() -> Panel:
    shares = (0.5, 0.9, 0.99)
    asked = [row(quantile(q, f"llmslo_{signal}_seconds")) for signal in ("ttft", "tpot", "e2e") for q in shares]
    counted = [row(samples(f"llmslo_{signal}_seconds")) for signal in ("ttft",)]
    names = [f"{SIGNALS[signal][0]} p{q * 100:g}" for signal in ("ttft", "tpot", "e2e") for q in shares]
    columns = [Column(source="workload", name="Workload", width=140)]
    columns += [
        Column(source=f"Value #{chr(ord('A') + place)}", name=name, unit="s", width=98)
        for place, name in enumerate(names)
    ]
    last = chr(ord("A") + len(names))
    columns.append(
        Column(
            source=f"Value #{last}",
            name="Samples",
            unit="none",
            decimals=0,
            width=98,
            steps=((None, ORANGE), (ENOUGH_P99, "transparent")),
        )
    )
    return table(
        "Quantiles now",
        "Quantiles of each workload over the selected window, with the number of successful probes. "
        "Bad: orange, fewer than 1,000: too few for a p99.",
        columns,
        *asked,
        *counted,
        hide=("target",),
        height=5,
        sort="Workload",
    )


def _lines(signal: str) -> Panel:
    name, what = SIGNALS[signal]
    histogram = f"llmslo_{signal}_seconds"
    p99, enough = quantile(0.99, histogram), f"{samples(histogram)} >= {ENOUGH_P99}"
    return series(
        name,
        f"{what}: p50, p90 and p99 over the selected window. Grey dots: a p99 of fewer than 1,000 samples. "
        "Bad: above the dashed limit of the SLO, or p99 rising away from p50.",
        "s",
        Query(quantile(0.5, histogram), "{{workload}} p50"),
        Query(quantile(0.9, histogram), "{{workload}} p90"),
        Query(p99, "{{workload}} p99"),
        Query(f"{p99} unless {enough}", "{{workload}} p99, few samples"),
        Query(limit(signal), "limit of {{slo}}, {{workload}}"),
        width=12,
        custom={"lineWidth": 2},
        overrides=[dashed("limit of .*"), dotted("D")],
    )


def _counts() -> Panel:
    return series(
        "Samples per quantile",
        "Successful probes of each workload in the selected window. Bad: below the dashed 1,000 that a p99 needs, or falling.",
        "short",
        Query(samples("llmslo_ttft_seconds"), "{{workload}}"),
        Query(f"{ENOUGH_P99} * group(llmslo_target_state{{{TARGET}}})", "needed for p99"),
        width=12,
        overrides=[dashed("needed.*", GREY, in_legend=True)],
    )


def _answer() -> Panel:
    histogram = "llmslo_ttft_answer_seconds"
    return series(
        "TTFT of the answer, after reasoning",
        "Time to the first content that is not reasoning. Bad: above its limit. No data: the model does not reason.",
        "s",
        Query(quantile(0.5, histogram), "{{workload}} p50"),
        Query(quantile(0.99, histogram), "{{workload}} p99"),
        width=12,
    )


def _connect() -> Panel:
    return series(
        "Connect phases, p90",
        "Time to set up the new connection of each probe, by phase; it counts in TTFT only if it takes longer than connect_lead. "
        "Bad: a phase that grows; it points to the network or a proxy.",
        "s",
        Query(quantile(0.9, "llmslo_connect_seconds", "phase", TARGET), "{{phase}}"),
        width=12,
    )


def _both_sides() -> Panel:
    def side(histogram: str, select: str, who: str) -> Sequence[Query]:
        return [Query(quantile(q, histogram, "target", select), f"{who} p{q * 100:g}") for q in (0.5, 0.99)]

    return series(
        "TTFT by client and by engine",
        "TTFT of the probes beside the engine's own TTFT of all its requests. Bad: the client's grows and the engine's does not: "
        "look at the network, proxies or the engine's API server.",
        "s",
        *side("llmslo_ttft_seconds", PROBES, "client"),
        *side("llmslo_engine_ttft_seconds", TARGET, "engine"),
        width=12,
        overrides=[
            named("client.*", ("color", {"mode": "fixed", "fixedColor": BLUE})),
            named("engine.*", ("color", {"mode": "fixed", "fixedColor": ORANGE})),
            named(".*p50", ("custom.lineStyle", {"fill": "dash", "dash": [4, 4]})),
        ],
    )


def _failures() -> list[Panel]:
    return [
        series(
            "Failures by reason",
            "Failed probes by reason, and all probes. Bad: any reason that persists.",
            "short",
            Query(f"{increase('llmslo_probe_failures_total', 'reason')} > 0", "{{reason}}"),
            Query(increase("llmslo_probes_total", "target"), "all probes"),
            bars=True,
            width=12,
            overrides=[
                named(
                    "all probes",
                    ("custom.drawStyle", "line"),
                    ("custom.fillOpacity", 0),
                    ("custom.stacking", {"mode": "none", "group": "B"}),
                    ("color", {"mode": "fixed", "fixedColor": GREY}),
                )
            ],
        ),
        series(
            "Excluded from SLIs, by reason",
            "Due times that do not count for any SLI: delayed by the prober, over budget, cancelled, rejected. "
            "Bad: rejected (check token, model and request) and over_budget; such probes measure nothing.",
            "short",
            Query(increase("llmslo_probes_neutral_total", "reason"), "{{reason}}"),
            bars=True,
            width=6,
        ),
        series(
            "Wrong answers to golden prompts",
            "Share of wrong answers to golden prompts in the selected window. Bad: above 5%. "
            "No data: no golden prompts.",
            "percentunit",
            Query(
                f"{increase('llmslo_quality_failures_total', 'workload', window=WINDOW)} / "
                f"({increase('llmslo_quality_checks_total', 'workload', window=WINDOW)} > 0)",
                "{{workload}}",
            ),
            high=1,
            width=6,
        ),
    ]


def _cost() -> list[Panel]:
    return [
        series(
            "Tokens of probing",
            "Tokens used by probes, as counted by the server. Bad: more than planned.",
            "short",
            Query(increase("llmslo_probe_tokens_total", "kind"), "{{kind}}"),
            bars=True,
        ),
        stat(
            "Tokens a day",
            f"{SPENT}, prompts and answers. Bad: near the configured budget.",
            "short",
            now(
                "86400 * sum(rate(llmslo_probe_tokens_total{" + PROBES + f',kind!="cached"}}[{WINDOW}]))',
            ),
            steps=NEUTRAL,
            height=8,
        ),
        stat(
            "Dollars a day",
            f"{SPENT}, at the configured price. Bad: near the configured budget. No data: no price is configured.",
            "currencyUSD",
            now(f"86400 * sum(rate(llmslo_probe_cost_dollars_total{{{TARGET}}}[{WINDOW}]))"),
            steps=NEUTRAL,
            height=8,
        ),
        series(
            "Budgets and rate limits left",
            "Remaining share of the 24-hour budgets. Bad: near 0; at 0 probes are not sent.",
            "percentunit",
            Query(f"min by (budget) (llmslo_budget_remaining_ratio{{{TARGET}}})", "{{budget}}"),
            high=1,
        ),
    ]
