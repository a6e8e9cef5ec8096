"""Alerts that do not depend on an SLO: prober, targets, engine, GPU, capacity and drift. `NAMES` lists every alert, SLO alerts too."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Alert:
    """One alerting rule.

    wait_for: Prometheus's `for`, a PromQL duration; empty for none.
    labels: in addition to `severity`.
    keep_firing_for: Prometheus's `keep_firing_for`, a PromQL duration; empty for none.
    """

    name: str
    severity: Literal["critical", "warning", "info"]
    expr: str
    wait_for: str
    summary: str
    description: str
    labels: tuple[tuple[str, str], ...] = ()
    keep_firing_for: str = ""


NAMES = (
    "LLMCapacityExhaustionForecast",
    "LLMDiscoveryDown",
    "LLMDiscoveryTargetsRefused",
    "LLMEngineChanged",
    "LLMErrorBudgetBurn",
    "LLMGPUThrottling",
    "LLMHeadroomLow",
    "LLMITLP99Drift",
    "LLMKVCachePressure",
    "LLMPercentileSLOBreach",
    "LLMProbeBudgetExhausted",
    "LLMProbeRejected",
    "LLMProberConfigReloadFailed",
    "LLMProberDown",
    "LLMProberUntrusted",
    "LLMQualityDegraded",
    "LLMRequestsQueueing",
    "LLMSLONoData",
    "LLMSweepStale",
    "LLMTTFTP99Drift",
    "LLMTTFTP99DriftStateless",
    "LLMTargetFailing",
)


def prober_alerts(selector: str) -> tuple[Alert, ...]:
    """Alerts about the prober, its targets and discovery."""
    probes = "target, workload"

    def increase(series: str, window: str, more: str = "") -> str:
        return f"sum by ({probes}) (increase({series}{{{selector}{more}}}[{window}]))"

    checks, wrong = (increase(f"llmslo_quality_{kind}_total", "1h") for kind in ("checks", "failures"))
    return (
        Alert(
            "LLMTargetFailing",
            "critical",
            f'max by (target) (llmslo_target_state{{{selector},state="failing"}}) == 1\n',
            "2m",
            "{{ $labels.target }} fails every probe",
            "At least three probes in a row failed, and none has succeeded for 2 minutes. The target may never have answered. "
            "llmslo_probe_failures_total has the reasons.",
        ),
        Alert(
            "LLMProbeRejected",
            "warning",
            increase("llmslo_probes_neutral_total", "15m", ',reason="rejected"') + " >= 3\n",
            "5m",
            "{{ $labels.target }} rejects the probes",
            "{{ $value | humanize }} probes of workload {{ $labels.workload }} were rejected in 15 minutes: the server does "
            "not accept the token, the model name or the request. Rejected probes count in no SLO, so they measure nothing.",
        ),
        Alert(
            "LLMQualityDegraded",
            "warning",
            f"{wrong} / ({checks} > 0) > 0.05\nand\n{wrong} >= 2.5\n",  # more than two; increase() extrapolates
            "5m",
            "{{ $labels.target }} gives wrong answers to golden prompts",
            "{{ $value | humanizePercentage }} of the answers to golden prompts of workload {{ $labels.workload }} were wrong in "
            "the last hour. The alert fires above 5%, from three wrong answers on.",
        ),
        Alert(
            "LLMProbeBudgetExhausted",
            "warning",
            increase("llmslo_probes_neutral_total", "15m", ',reason="over_budget"') + " > 0\n",
            "5m",
            "The probing budget of {{ $labels.target }} is used up",
            "{{ $value | humanize }} probes of workload {{ $labels.workload }} were not sent in 15 minutes, because the budget of "
            "tokens or dollars for 24 hours is used up. A probe that is not sent gives no data.",
        ),
        Alert(
            "LLMProberDown",
            "critical",
            f"up{{{selector}}} == 0\nor\nabsent(llmslo_build_info{{{selector}}})\nor\n"
            # A deleted pod has no `up` series; the other shards still export how many shards there should be.
            f"max(llmslo_shards{{{selector}}}) > count(count by (shard) (llmslo_shard_info{{{selector}}})) unless on () "
            f"(up{{{selector}}} == 0)\n",
            "5m",
            "{{ with $labels.instance }}The prober {{ . }} is down{{ else }}A prober is missing{{ end }}",
            "For 5 minutes Prometheus could not scrape this prober, or found no prober, or found fewer probers than shards. Targets "
            "that no other prober probes are not measured: their SLOs have no data.",
        ),
        Alert(
            "LLMProberUntrusted",
            "warning",
            f"llmslo_trusted{{{selector}}} == 0\n",
            "10m",
            "The measurements of prober {{ $labels.instance }} are not reliable",
            "Over 5 minutes more than 1% of its probes were invalid, its event loop was late, or it missed due times. The usual cause "
            "is a lack of CPU time. Its latencies may include its own delays; SLOs that only it measures are shown as no data.",
        ),
        Alert(
            "LLMProberConfigReloadFailed",
            "warning",
            f"llmslo_config_last_reload_successful{{{selector}}} == 0\n",
            "5m",
            "The prober {{ $labels.instance }} could not load its configuration",
            "It keeps its last good configuration; with --keep-running and no good configuration since its start it probes nothing. "
            "Its log and status page list every error with its place: of the configuration, and with --keep-running also of "
            "storage and web configuration.",
        ),
        Alert(
            "LLMDiscoveryDown",
            "warning",
            f"count by (discovery) (llmslo_discovery_up{{{selector}}} == 0)\n",
            "10m",
            "The source of discovery {{ $labels.discovery }} does not answer",
            "{{ $value }} probers cannot read its source, or not all of it. Known targets are still probed; new engines may be "
            "missed. The log of each prober has the error.",
        ),
        Alert(
            "LLMDiscoveryTargetsRefused",
            "warning",
            f'max by (discovery, reason) (llmslo_discovery_refused_targets{{{selector},reason!="duplicate"}}) > 0\n',
            "15m",
            "The discovery {{ $labels.discovery }} finds targets that are not probed",
            "{{ $value }} targets were found and are not probed, reason {{ $labels.reason }} (limit: more than the entry's `limit`; "
            "unfit: invalid address or name, or a host that is not allowed). The log of the prober names them.",
        ),
    )


def engine_alerts(selector: str) -> tuple[Alert, ...]:
    """Alerts about the engine's own metrics and the GPUs."""
    usage, waiting, preempted = (
        f"llmslo_engine_{name}{{{selector}}}"
        for name in ("kv_cache_usage_ratio", "requests_waiting", "preemptions_total")
    )
    reasons = "thermal|thermal_hardware|hardware|power_brake"  # a busy GPU at its power cap is normal
    return (
        Alert(
            "LLMKVCachePressure",
            "warning",
            f"max by (target) (avg_over_time({usage}[10m])) > 0.9\nand\nmax by (target) (increase({preempted}[10m])) > 0\n",
            "5m",
            "The KV cache of {{ $labels.target }} is nearly full and requests are preempted",
            "{{ $value | humanizePercentage }} of the KV cache was in use over 10 minutes, and requests were preempted. A "
            "preempted request stalls and repeats its prefill.",
        ),
        Alert(
            "LLMRequestsQueueing",
            "warning",
            f"max by (target) (min_over_time({waiting}[10m])) > 0\n",
            "5m",
            "Requests of {{ $labels.target }} are queueing",
            "At least {{ $value | humanize }} requests were waiting in every sample of the last 10 minutes. Time in the queue adds to "
            "TTFT.",
        ),
        Alert(
            "LLMEngineChanged",
            "info",
            f'max by (target, what) (increase(llmslo_engine_changes_total{{{selector},what!="restart"}}[15m])) > 0\n',
            "",
            "The engine of {{ $labels.target }} has changed ({{ $labels.what }})",
            "Its {{ $labels.what }} changed in the last 15 minutes; llmslo_engine_info describes the engine now. This may explain a "
            "drift that starts at the same time.",
        ),
        Alert(
            "LLMGPUThrottling",
            "warning",
            f'max by (target, gpu, reason) (avg_over_time(llmslo_gpu_throttle_active{{{selector},reason=~"{reasons}"}}[10m])) > 0.5\n',
            "5m",
            "GPU {{ $labels.gpu }} of {{ $labels.target }} is throttled ({{ $labels.reason }})",
            "Its clock was limited for {{ $value | humanizePercentage }} of the last 10 minutes. Requests may be slower at the same "
            "load.",
        ),
    )


def capacity_alerts(selector: str) -> tuple[Alert, ...]:
    """Alerts about headroom, forecast and sweeps."""
    return _headroom(selector), _exhaustion(selector), _stale(selector)


def _headroom(selector: str) -> Alert:
    """Excludes sweeps and the 5 minutes after, the window of the demand rate: the load is then the sweep's own."""

    def ratio_template(word: str, more: str) -> str:
        query = _about_the_target(f"min by (target) (llmslo_headroom_ratio{{%s{more}}})", selector)
        return f"{{{{ range {query} }}}}{word} {{{{ .Value | humanizePercentage }}}}{{{{ end }}}}"

    return Alert(
        "LLMHeadroomLow",
        "warning",
        f'min by (target) (llmslo_headroom_ratio{{{selector},bound="estimate"}}) < 0.2\n'
        "unless on (target)\n"
        f"max by (target) (max_over_time(llmslo_sweep_rate_per_second{{{selector}}}[6m])) > 0\n",
        "15m",
        "{{ $labels.target }} has little capacity left",
        "{{ $value | humanizePercentage }} of the capacity that the last successful sweep found is free (below 0%: the load is "
        "higher than that capacity)"
        + ratio_template(", by the lower bound of the capacity", ',unit=\\"requests\\",bound=\\"lower\\"')
        + ratio_template(", in tokens", ',unit=\\"tokens\\",bound=\\"estimate\\"')
        + ".",
        keep_firing_for="30m",  # a sweep interrupts the expression; the alert stays
    )


def _exhaustion(selector: str) -> Alert:
    def date_template(bound: str) -> str:
        query = f'min by (target) (llmslo_capacity_exhaustion_timestamp_seconds{{%s,bound=\\"{bound}\\"}})'
        return f"{{{{ range {_about_the_target(query, selector)} }}}}, {bound} {{{{ .Value | humanizeTimestamp }}}}{{{{ end }}}}"

    return Alert(
        "LLMCapacityExhaustionForecast",
        "warning",
        f'min by (target) (llmslo_capacity_exhaustion_timestamp_seconds{{{selector},bound="estimate"}})\n'
        "< time() + 14 * 86400\n",
        "1h",
        "{{ $labels.target }} is forecast to reach its capacity within 14 days",
        "The daily peaks of demand grow towards the capacity that the last successful sweep found. They are expected to reach it on "
        f"{{{{ $value | humanizeTimestamp }}}}{date_template('earliest')}{date_template('latest')}. "
        "Method: a straight line through at most 35 days.",
        keep_firing_for="26h",  # the forecast is computed once a day; one missing day does not end the alert
    )


def _stale(selector: str) -> Alert:
    """Seconds since the last capacity, compared with three periods of the schedule.

    The time comes from the prober, else from Prometheus's history of it (a prober without storage forgets it at a restart), else
    from the hours since the schedule appeared, so a new schedule gets three periods. That history covers 30 days: a schedule
    rarer than every ten days is not judged before its first capacity.
    """
    success, period = (
        f"max by (target) (llmslo_sweep_{name}_seconds{{{selector}}})" for name in ("last_success_timestamp", "period")
    )
    verdicts, refusals = (
        _about_the_target(f"sum by ({label}) (llmslo_{series}_total{{%s}}) > 0", selector)
        for label, series in (("verdict", "sweeps"), ("reason", "sweeps_refused"))
    )
    return Alert(
        "LLMSweepStale",
        "warning",
        f"(\n  time() - {success}\n"
        f"  or\n  time() - max_over_time(({success})[30d:1h])\n"
        f"  or\n  3600 * (count_over_time(({period})[30d:1h]) - 1)\n)\n"
        f"> on (target)\n3 * {period}\n",
        "15m",
        "The sweeps of {{ $labels.target }} find no capacity",
        "No capacity has been found for {{ $value | humanizeDuration }}, over three times the period of the schedule. Headroom is "
        "computed from an old capacity, or unknown. Since the prober's start, sweeps ended:"
        f"{{{{ range {verdicts} }}}} {{{{ .Labels.verdict }}}} {{{{ .Value | humanize }}}}{{{{ else }}}} none{{{{ end }}}}; refused:"
        f"{{{{ range {refusals} }}}} {{{{ .Labels.reason }}}} {{{{ .Value | humanize }}}}{{{{ else }}}} none{{{{ end }}}}.",
    )


def _about_the_target(query: str, selector: str) -> str:
    """Template that runs `query` with the matchers of the alert's target in place of its %s."""
    matchers = selector.replace('"', '\\"')
    return f'printf "{query.replace("%s", f"{matchers},target=%q")}" $labels.target | query'


def likely_cause_template(selector: str) -> str:
    """Template of a sentence with the diagnosed cause; it expands to nothing if the diagnosis names none."""
    matchers = selector.replace('"', '\\"')
    regimes = f'printf "max by (regime) (llmslo_regime_active{{{matchers},target=%q,regime!=\\"unknown\\"}}) == 1" $labels.target'
    return f"{{{{ range {regimes} | query }}}} Likely cause: {{{{ .Labels.regime }}}}.{{{{ end }}}}"


def drift_alerts(selector: str) -> tuple[Alert, ...]:
    """Alerts on the result of the prober's sequential test against its own baseline."""
    return tuple(_drift(signal, name, selector) for signal, name in (("ttft", "TTFT"), ("itl", "ITL")))


def _drift(signal: str, name: str, selector: str) -> Alert:
    def query(series: str, more: str) -> str:
        matchers = selector.replace('"', '\\"')
        return (
            f'printf "max by (quantile) ({series}{{{matchers},target=%q,workload=%q,signal=\\"{signal}\\"{more}}})" '
            "$labels.target $labels.workload"
        )

    since = query("llmslo_drift_since_timestamp_seconds", "")
    estimate, lower, upper = (
        query("llmslo_drift_shift_ratio", f',bound=\\"{b}\\"') for b in ("estimate", "lower", "upper")
    )
    bounds = "".join(
        f"{{{{ $q := .Labels.quantile }}}}{{{{ range {bound} | query }}}}{{{{ if eq .Labels.quantile $q }}}}{word} "
        "×{{ printf `%.2f` .Value }}{{ end }}{{ end }}"
        for bound, word in ((lower, " (95% interval"), (upper, " to"))
    )
    return Alert(
        f"LLM{name}P99Drift",
        "warning",
        f'max by (target, workload, signal, cause) (llmslo_drift_active{{{selector},signal="{signal}"}}) == 1\n',
        "",
        f"{{{{ $labels.target }}}}: {name} has drifted from its baseline (cause: {{{{ $labels.cause }}}})",
        f"{name} of workload {{{{ $labels.workload }}}} is slower than its own baseline"
        f"{{{{ range {since} | query }}}} since {{{{ .Value | humanizeTimestamp }}}}{{{{ end }}}}."
        f"{{{{ range {estimate} | query }}}} Quantile {{{{ .Labels.quantile }}}}: ×{{{{ printf `%.2f` .Value }}}}{bounds})."
        "{{ end }}"
        " Cause regression: slower at the same load; load: the engine is busier than in the baseline; unknown: its load is not known."
        + likely_cause_template(selector),
    )


def stateless_drift_alert(selector: str) -> Alert:
    """PromQL-only alternative for a prober without storage: p99 of 2 hours against p99 of the 3 days before."""

    def p99(window: str) -> str:
        rate = f"rate(llmslo_ttft_seconds_bucket{{{selector}}}{window})"
        return f"histogram_quantile(0.99, sum by (target, workload, le) ({rate}))"

    return Alert(
        "LLMTTFTP99DriftStateless",
        "warning",
        f"{p99('[2h]')}\n> 1.3 *\n{p99('[3d] offset 2h')}\nand\n"
        f"sum by (target, workload) (increase(llmslo_ttft_seconds_count{{{selector}}}[2h])) >= 1000\n",
        "10m",
        "{{ $labels.target }}: p99 TTFT is over 1.3 times that of the last three days",
        "p99 TTFT of workload {{ $labels.workload }} over the last 2 hours is {{ $value | humanizeDuration }}.",
    )
