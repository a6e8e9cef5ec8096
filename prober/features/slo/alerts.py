"""The alerts that need no SLO: of the prober itself, of targets that fail, of drift, of capacity. `NAMES` is the whole catalogue."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Alert:
    """wait: how long it must hold, empty for not at all; keep: how long it goes on when it holds no more; labels: more than
    the severity."""

    name: str
    severity: Literal["critical", "warning", "info"]
    expr: str
    wait: str
    summary: str
    description: str
    labels: tuple[tuple[str, str], ...] = ()
    keep: str = ""


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


def of_the_prober(selector: str) -> tuple[Alert, ...]:
    """What is wrong with targets and probing, whatever the SLOs."""
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
            "At least three probes in a row have failed, and none has succeeded for 2 minutes; it may never have answered. "
            "llmslo_probe_failures_total says by which reason.",
        ),
        Alert(
            "LLMProbeRejected",
            "warning",
            increase("llmslo_probes_neutral_total", "15m", ',reason="rejected"') + " >= 3\n",
            "5m",
            "{{ $labels.target }} rejects the probes",
            "{{ $value | humanize }} probes of workload {{ $labels.workload }} were rejected in 15 minutes: a token, a model's "
            "name or a request that the server does not accept. They count in no SLO, so nothing is measured.",
        ),
        Alert(
            "LLMQualityDegraded",
            "warning",
            f"{wrong} / ({checks} > 0) > 0.05\nand\n{wrong} >= 2.5\n",  # more than two, however they are extrapolated
            "5m",
            "{{ $labels.target }} answers golden prompts wrongly",
            "{{ $value | humanizePercentage }} of the golden prompts of workload {{ $labels.workload }} were answered wrongly in "
            "the last hour (5% and more than two are tolerated).",
        ),
        Alert(
            "LLMProbeBudgetExhausted",
            "warning",
            increase("llmslo_probes_neutral_total", "15m", ',reason="over_budget"') + " > 0\n",
            "5m",
            "The probing budget of {{ $labels.target }} is used up",
            "{{ $value | humanize }} probes of workload {{ $labels.workload }} were not sent in 15 minutes, because the tokens or "
            "dollars of the last 24 hours are used up. Until some are free again there is no data.",
        ),
        Alert(
            "LLMProberDown",
            "critical",
            f"up{{{selector}}} == 0\nor\nabsent(llmslo_build_info{{{selector}}})\nor\n"
            # A pod that is gone has no `up` either: of the shards that others know of, not all are there.
            f"max(llmslo_shards{{{selector}}}) > count(count by (shard) (llmslo_shard_info{{{selector}}})) unless on () "
            f"(up{{{selector}}} == 0)\n",
            "5m",
            "{{ with $labels.instance }}The prober {{ . }} is down{{ else }}A prober is missing{{ end }}",
            "Prometheus has not read the prober for 5 minutes, or knows of none, or of fewer than there are shards. Its targets are "
            "not measured: no SLO of theirs is met, and none is missed.",
        ),
        Alert(
            "LLMProberUntrusted",
            "warning",
            f"llmslo_trusted{{{selector}}} == 0\n",
            "10m",
            "The prober {{ $labels.instance }} does not trust itself",
            "Over 5 minutes more than 1% of its probes were invalid, its event loop was late, or it missed due times: it lacks "
            "processor time. Its latencies are not the target's; SLOs it judges have no data.",
        ),
        Alert(
            "LLMProberConfigReloadFailed",
            "warning",
            f"llmslo_config_last_reload_successful{{{selector}}} == 0\n",
            "5m",
            "The prober {{ $labels.instance }} could not take its configuration over",
            "It goes on with the one before; one that has never had any (--keep-running) probes nothing. Its log and its page have "
            "every mistake with its place: of the configuration, and with --keep-running of its storage and web configuration too.",
        ),
        Alert(
            "LLMDiscoveryDown",
            "warning",
            f"count by (discovery) (llmslo_discovery_up{{{selector}}} == 0)\n",
            "10m",
            "The discovery {{ $labels.discovery }} is not heard",
            "{{ $value }} probers have not heard its source, or not all of it. The targets known from before are probed on; new "
            "engines are not. The probers' logs say why.",
        ),
        Alert(
            "LLMDiscoveryTargetsRefused",
            "warning",
            f'max by (discovery, reason) (llmslo_discovery_refused_targets{{{selector},reason!="duplicate"}}) > 0\n',
            "15m",
            "The discovery {{ $labels.discovery }} finds targets that are not probed",
            "{{ $value }} were found and are not probed: {{ $labels.reason }} (limit: over the entry's `limit`; unfit: no target by "
            "its address, name or `hosts`). The probers' logs name them.",
        ),
    )


def of_the_engine(selector: str) -> tuple[Alert, ...]:
    """What the engine's own page and the GPUs say."""
    usage, waiting, preempted = (
        f"llmslo_engine_{name}{{{selector}}}"
        for name in ("kv_cache_usage_ratio", "requests_waiting", "preemptions_total")
    )
    reasons = "thermal|thermal_hardware|hardware|power_brake"  # a GPU at its power cap is one that works
    return (
        Alert(
            "LLMKVCachePressure",
            "warning",
            f"max by (target) (avg_over_time({usage}[10m])) > 0.9\nand\nmax by (target) (increase({preempted}[10m])) > 0\n",
            "5m",
            "The KV cache of {{ $labels.target }} is full and requests are put back",
            "{{ $value | humanizePercentage }} of the KV cache was in use over 10 minutes, and requests were preempted: their "
            "prefill is done again and their stream stalls.",
        ),
        Alert(
            "LLMRequestsQueueing",
            "warning",
            f"max by (target) (min_over_time({waiting}[10m])) > 0\n",
            "5m",
            "Requests of {{ $labels.target }} wait all the time",
            "At each reading of 10 minutes at least {{ $value | humanize }} requests waited for a place in the batch: TTFT is the "
            "queue's.",
        ),
        Alert(
            "LLMEngineChanged",
            "info",
            f'max by (target, what) (increase(llmslo_engine_changes_total{{{selector},what!="restart"}}[15m])) > 0\n',
            "",
            "The engine of {{ $labels.target }} is another one ({{ $labels.what }})",
            "Its {{ $labels.what }} changed in the last 15 minutes; llmslo_engine_info has what it is now. A drift that begins here "
            "has its likely cause.",
        ),
        Alert(
            "LLMGPUThrottling",
            "warning",
            f'max by (target, gpu, reason) (avg_over_time(llmslo_gpu_throttle_active{{{selector},reason=~"{reasons}"}}[10m])) > 0.5\n',
            "5m",
            "GPU {{ $labels.gpu }} of {{ $labels.target }} is throttled ({{ $labels.reason }})",
            "Its clock was held down for {{ $value | humanizePercentage }} of 10 minutes: every request is slower at the same load.",
        ),
    )


def of_the_capacity(selector: str) -> tuple[Alert, ...]:
    """What is left of a target's capacity, for how long, and whether it is known at all."""
    return _headroom(selector), _exhaustion(selector), _stale(selector)


def _headroom(selector: str) -> Alert:
    """Not judged during a sweep and the five minutes over which demand is counted: there the load is the sweep's own."""

    def told(word: str, more: str) -> str:
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
        "{{ $value | humanizePercentage }} of the capacity that its last sweep found is free (under 20% for 15 minutes; below 0% "
        "there is more load than it)"
        + told(", by the lower bound of the capacity", ',unit=\\"requests\\",bound=\\"lower\\"')
        + told(", in tokens", ',unit=\\"tokens\\",bound=\\"estimate\\"')
        + ".",
        keep="30m",  # so that a sweep does not end it
    )


def _exhaustion(selector: str) -> Alert:
    def told(bound: str) -> str:
        query = f'min by (target) (llmslo_capacity_exhaustion_timestamp_seconds{{%s,bound=\\"{bound}\\"}})'
        return f"{{{{ range {_about_the_target(query, selector)} }}}}, {bound} {{{{ .Value | humanizeTimestamp }}}}{{{{ end }}}}"

    return Alert(
        "LLMCapacityExhaustionForecast",
        "warning",
        f'min by (target) (llmslo_capacity_exhaustion_timestamp_seconds{{{selector},bound="estimate"}})\n'
        "< time() + 14 * 86400\n",
        "1h",
        "{{ $labels.target }} is forecast to reach its capacity within 14 days",
        "The daily peaks of demand grow towards the capacity that its last sweep found. They are there on "
        f"{{{{ $value | humanizeTimestamp }}}}{told('earliest')}{told('latest')}: a straight line through at most 35 days.",
        keep="26h",  # it is made anew once a day: one day without it is not yet an end
    )


def _stale(selector: str) -> Alert:
    """Seconds without a capacity, by what the prober knows, else by what Prometheus remembers of it, else since it is scheduled.

    A prober that keeps no state forgets at a restart what it found; that is not "never". A new schedule has its three periods:
    the hours in which it was there are counted, over at most 30 days, so one rarer than every ten days is not judged before its
    first capacity.
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
        "None has been found for {{ $value | humanizeDuration }}, over three times what the schedule lets expect: the headroom is "
        "that of an old capacity, or not known. Since the prober's start, ended:"
        f"{{{{ range {verdicts} }}}} {{{{ .Labels.verdict }}}} {{{{ .Value | humanize }}}}{{{{ else }}}} none{{{{ end }}}}; refused:"
        f"{{{{ range {refusals} }}}} {{{{ .Labels.reason }}}} {{{{ .Value | humanize }}}}{{{{ else }}}} none{{{{ end }}}}.",
    )


def _about_the_target(query: str, selector: str) -> str:
    """For a description: the query, with the matchers of the alert's target in place of its %s, sent with the alert."""
    matchers = selector.replace('"', '\\"')
    return f'printf "{query.replace("%s", f"{matchers},target=%q")}" $labels.target | query'


def likely_cause(selector: str) -> str:
    """A sentence for a description: what the prober's diagnosis names, if it names anything, when the alert is sent."""
    matchers = selector.replace('"', '\\"')
    regimes = f'printf "max by (regime) (llmslo_regime_active{{{matchers},target=%q,regime!=\\"unknown\\"}}) == 1" $labels.target'
    return f"{{{{ range {regimes} | query }}}} Likely cause: {{{{ .Labels.regime }}}}.{{{{ end }}}}"


def of_drift(selector: str) -> tuple[Alert, ...]:
    """A latency that is slower than its own baseline, found by the prober's sequential test."""
    return tuple(_drift(signal, name, selector) for signal, name in (("ttft", "TTFT"), ("itl", "ITL")))


def _drift(signal: str, name: str, selector: str) -> Alert:
    def asked(series: str, more: str) -> str:
        matchers = selector.replace('"', '\\"')
        return (
            f'printf "max by (quantile) ({series}{{{matchers},target=%q,workload=%q,signal=\\"{signal}\\"{more}}})" '
            "$labels.target $labels.workload"
        )

    since = asked("llmslo_drift_since_timestamp_seconds", "")
    estimate, lower, upper = (
        asked("llmslo_drift_shift_ratio", f',bound=\\"{b}\\"') for b in ("estimate", "lower", "upper")
    )
    bounds = "".join(
        f"{{{{ $q := .Labels.quantile }}}}{{{{ range {query} | query }}}}{{{{ if eq .Labels.quantile $q }}}}{word} "
        "×{{ printf `%.2f` .Value }}{{ end }}{{ end }}"
        for query, word in ((lower, " (95% interval"), (upper, " to"))
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
        " Cause regression: slower at the same load; load: the engine is busier; unknown: its load is not known."
        + likely_cause(selector),
    )


def stateless_drift(selector: str) -> Alert:
    """The second choice, for those who keep no state: two hours of p99 against three days of it."""

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
