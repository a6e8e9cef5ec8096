"""Series, alerts and recording rules of the probes."""

from collections.abc import Iterator

from prober.exposition.alerting import (
    Alert,
    Link,
    Rule,
    Severity,
    no_data,
    of_present,
    probe_increase,
    top_failure_template,
)
from prober.exposition.dashboards.queries import (
    LEVEL,
    RECORDED_QUANTILES,
    RECORDED_SIGNALS,
    quantile,
    recorded_quantile,
    recorded_samples,
    samples,
)
from prober.exposition.dashboards.queries import RECORDED_WINDOW as WINDOW
from prober.exposition.families import counter, gauge, histogram

_PROBE = ("target", "workload")
PROBES = counter("llmslo_probes_total", "Due times of the schedule, sent or shed, without the neutral ones.", *_PROBE)
FAILURES = counter("llmslo_probe_failures_total", "Probes that failed by the target's doing.", *_PROBE, "reason")
FAILURE_INFO = gauge(
    "llmslo_failure_info",
    "1 while probes failed in the last five minutes: their most frequent reason, and what the last of them says, up to 200 characters.",
    *("target", "reason", "text"),
)
NEUTRAL = counter(
    "llmslo_probes_neutral_total", "Due times kept out of every SLI: not the target's doing.", *_PROBE, "reason"
)
CACHED = counter(
    "llmslo_probes_cached_total", "Cold probes the engine had cached, kept out of the latency histograms.", *_PROBE
)
UNTIMED = counter(
    "llmslo_probes_untimed_total",
    "Answers without a TTFT: their first content was read together with later chunks, and came at some time before.",
    *_PROBE,
)
TRUSTED = gauge(
    "llmslo_trusted",
    "1 if at least half of the target's probes of the last ten minutes were sent and timed, else 0: its latencies are not judged.",
    "target",
)
USAGE_MISSING = counter(
    "llmslo_usage_missing_total", "Successful probes without usable token counts by the server.", *_PROBE
)
COLD_START = gauge("llmslo_cold_start_ttft_seconds", "TTFT of the latest first success on a cold engine.", *_PROBE)
STATE = gauge("llmslo_target_state", "1 for the state the target is in.", "target", "state")
NO_DATA = gauge(
    "llmslo_no_data",
    "1 while every probe ends so, without data: rejected, or over_budget and not sent.",
    *_PROBE,
    "reason",
)
BUFFERED = gauge(
    "llmslo_target_buffered",
    "1 if most of the last answers arrived all at once or several tokens at a time, 0 if few did.",
    "target",
)
STARTING_UNTIL = gauge(
    "llmslo_target_starting_until_timestamp_seconds",
    "When refused connections begin to count as failures; only while the target refuses them and has never answered.",
    "target",
)
QUALITY_CHECKS = counter(
    "llmslo_quality_checks_total",
    "Answers that were checked: to golden prompts, tool calls, structured output.",
    *_PROBE,
    "check",
)
QUALITY_FAILURES = counter("llmslo_quality_failures_total", "Checked answers that were wrong.", *_PROBE, "check")
TTFT = histogram("llmslo_ttft_seconds", "Time to the first content of any kind.", *_PROBE)
TTFT_ANSWER = histogram(
    "llmslo_ttft_answer_seconds",
    "Time to the first content that is not reasoning, of models that reason.",
    *_PROBE,
)
TPOT = histogram("llmslo_tpot_seconds", "Time per output token after the first, one a probe.", *_PROBE)
ITL = histogram("llmslo_itl_seconds", "Inter-token latency, one a flush of content after the first.", *_PROBE)
CHUNK_GAP = histogram("llmslo_chunk_gap_seconds", "Raw gap between content chunks.", *_PROBE)
MERGED_CHUNKS = counter(
    "llmslo_chunks_merged_total",
    "Content chunks read together with a later one: they arrived between its stamp and the one before.",
    *_PROBE,
)
TTFT_CALL = histogram(
    "llmslo_ttft_call_seconds",
    "Time to the first piece of the first tool call, of workloads with tools.",
    *_PROBE,
)
CALL_ARGUMENTS = histogram(
    "llmslo_call_arguments_seconds",
    "Time to the complete arguments of the first tool call, if they are a JSON object.",
    *_PROBE,
)
E2E = histogram("llmslo_e2e_seconds", "Time to the end of the answer.", *_PROBE)
CONNECT = histogram("llmslo_connect_seconds", "Set-up of a probe's fresh connection by phase.", "target", "phase")
NETWORK = histogram(
    "llmslo_network_seconds",
    "Time from the departure of a request until the host of the target, or of its proxy, has acknowledged it, by the kernel.",
    "target",
)
SEND_LAG = histogram("llmslo_send_lag_seconds", "The prober's own lateness in sending. In no latency.", *_PROBE)
TOKENS = counter("llmslo_probe_tokens_total", "Tokens that probing used, as the server counts them.", *_PROBE, "kind")
COST = counter("llmslo_probe_cost_dollars_total", "What probing cost at the configured price.", "target")
RATE_LIMIT = gauge("llmslo_rate_limit_remaining", "Rate limit left, as the server's headers tell it.", "target", "kind")
RETRIED = counter(
    "llmslo_probes_retried_total",
    "Probes that a gateway tried again (retry) or sent to another model (fallback), as its response headers tell it.",
    *("target", "kind"),
)
CERT_EXPIRY = gauge(
    "llmslo_tls_cert_expiry_timestamp_seconds",
    "End of the validity of the server certificate that was last verified.",
    "target",
)
TASK_FAILURES = counter(
    "llmslo_task_failures_total",
    "Tasks of the prober that failed and were started again: a fault of the prober, which its log describes.",
    "task",
)
PHASES = ("dns", "tcp", "proxy", "tls")
TOKEN_KINDS = ("prompt", "completion", "cached")


VANTAGE = "{{ with $labels.vantage }}vantage {{ . }}{{ else }}the prober without a vantage{{ end }}"
OF_WORKLOAD = Link("target", ("target", "workload"))
# Before the end of a certificate: time to order one by hand, and the last working day before a weekend.
CERT_WARNING_S, CERT_CRITICAL_S = 14 * 86_400, 3 * 86_400


def alerts(selector: str) -> tuple[Alert, ...]:
    """Alerts on failing targets, rejected probes, wrong answers and certificates."""
    checks, wrong = (probe_increase(f"llmslo_quality_{kind}_total", "1h", selector) for kind in ("checks", "failures"))
    rejected = probe_increase("llmslo_probes_neutral_total", "15m", f'{selector},reason="rejected"')
    return (
        Alert(
            "LLMTargetFailing",
            "critical",
            f"{fails(selector)}\n",
            "2m",
            "{{ $labels.target }} fails every probe",
            "At least three probes in a row failed, and none has succeeded for 2 minutes, as every prober of the target says; if it is "
            "probed from several vantages, more than half of them. The target may never have answered."
            f"{top_failure_template(selector)}",
        ),
        Alert(
            "LLMTargetFailingFromVantage",
            "warning",
            f"{_by_vantage(selector)} == 1\nunless on (target)\n({fails(selector)})\n",
            "5m",  # an outage is not noticed at the same time everywhere, and is a page
            f"{{{{ $labels.target }}}} fails every probe from {VANTAGE}",
            "At least three probes in a row failed, and none has succeeded for 5 minutes. From at least half of the vantages the "
            f"target answers: look at the way from this one first.{top_failure_template(selector, 'vantage')}",
        ),
        Alert(
            "LLMProbersDisagree",
            "warning",
            f"{_by_prober(selector)} == 1\nunless on (target, vantage)\n({_by_vantage(selector)} == 1)\n",
            "5m",
            "{{ $labels.target }} fails every probe of prober {{ $labels.instance }}, and answers another",
            "For 5 minutes the probers of this target have disagreed. The likely reason is between this prober and the target: its "
            f"network, name resolution, certificates or token.{top_failure_template(selector, 'instance')}",
        ),
        Alert(
            "LLMProbeRejected",
            "warning",
            of_present(
                f"({rejected} >= 3\nor\n{no_data('rejected', selector)})", f"llmslo_probes_neutral_total{{{selector}}}"
            ),
            "5m",
            "{{ $labels.target }} rejects the probes",
            "Every probe of workload {{ $labels.workload }} is rejected, or three in 15 minutes were: the server does not accept the "
            "token, the model name or the request. Rejected probes count in no SLO, so they measure nothing.",
            link=OF_WORKLOAD,
        ),
        Alert(
            "LLMQualityDegraded",
            "warning",
            of_present(
                f"{wrong} / ({checks} > 0) > 0.05\nand\n{wrong} >= 2.5",  # more than two; increase() extrapolates
                f"llmslo_quality_checks_total{{{selector}}}",
            ),
            "5m",
            "{{ $labels.target }} gives wrong answers",
            "{{ $value | humanizePercentage }} of the checked answers of workload {{ $labels.workload }} were wrong in "
            "the last hour. The alert fires above 5%, from three wrong answers on.",
            link=OF_WORKLOAD,
        ),
        _certificate("critical", f"< {CERT_CRITICAL_S}", selector),
        _certificate("warning", f"< {CERT_WARNING_S} >= {CERT_CRITICAL_S}", selector),
    )


def _certificate(severity: Severity, seconds_left: str, selector: str) -> Alert:
    """Alert on the end of a server certificate. seconds_left: PromQL comparisons"""
    end = f"llmslo_tls_cert_expiry_timestamp_seconds{{{selector}}}"
    left = (
        f"min by (target) (min_over_time({end}[15m])) - time() {seconds_left}"  # replicas may have several certificates
    )
    return Alert(
        "LLMCertificateExpiring",
        severity,
        of_present(left, end),
        "",
        "The TLS certificate of {{ $labels.target }} "
        "{{ if gt $value 0.0 }}ends in {{ $value | humanizeDuration }}{{ else }}has ended{{ end }}",
        "A server of this target showed the certificate in the last 15 minutes, or did so last before it failed. Clients that "
        "verify certificates get no answer after its end.",
    )


def fails(selector: str) -> str:
    """PromQL: targets that fail from more than half of the vantages with recent data. Probers without a vantage are one vantage."""
    return f"avg by (target) ({_by_vantage(selector)}) > 0.5"


def _by_vantage(selector: str) -> str:
    """PromQL: 1 if the target fails for all probers of a vantage that have recent data, else 0."""
    return f"min by (target, vantage) ({_by_prober(selector)})"


def _by_prober(selector: str) -> str:
    """PromQL: 1 if the target fails, else 0, for each prober with recent data.

    A prober for which the target is ready counts only if it has probed it recently, as a paused target keeps its old state.
    """
    by = "by (target, vantage, instance)"
    failing, ready = (
        f'max {by} (llmslo_target_state{{{selector},state="{state}"}}) == 1' for state in ("failing", "ready")
    )
    probed = f"sum {by} (increase(llmslo_probes_total{{{selector}}}[10m])) > 0"
    return f"({failing}\nor\n0 * (({ready}) and {probed}))"


def records(selector: str) -> Iterator[Rule]:
    """Yields recording rules for quantiles and sample counts of each workload, for targets that are still probed.

    Without these rules, dashboards of many targets would read all buckets over hours at each refresh.
    """
    probed = f"and on ({LEVEL})\ngroup by ({LEVEL}) (llmslo_probes_total{{{selector}}})\n"
    for signal in RECORDED_SIGNALS:
        histogram = f"llmslo_{signal}_seconds"
        for q in RECORDED_QUANTILES:
            expr = quantile(q, histogram, select=selector, window=WINDOW)
            yield {"record": recorded_quantile(q, signal), "expr": f"{expr}\n{probed}"}
        count = samples(histogram, select=selector, window=WINDOW)
        yield {"record": recorded_samples(signal), "expr": f"({count} > 0)\n{probed}"}
