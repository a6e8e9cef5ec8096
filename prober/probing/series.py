"""Series, alerts and the recording rule about probes."""

from prober.exposition.alerting import (
    Alert,
    Link,
    Rule,
    Severity,
    happening,
    no_data,
    of_present,
    probe_increase,
    query,
)
from prober.exposition.dashboards.queries import LEVEL, RECORDED_P99, RECORDED_SIGNALS, RECORDED_WINDOW, quantile
from prober.exposition.families import counter, gauge, histogram

_PROBE = ("target", "workload")
PROBES = counter("llmslo_probes_total", "Due times of the schedule, sent or shed, without the neutral ones.", *_PROBE)
FAILURES = counter("llmslo_probe_failures_total", "Probes that failed by the target's doing.", *_PROBE, "reason")
FAILURE_INFO = gauge(
    "llmslo_failure_info",
    "1 while probes failed in the last five minutes: their most frequent reason, and what the last of them says, up to 200 characters.",
    *("target", "reason", "text"),
)
REFUSAL_INFO = gauge(
    "llmslo_refusal_info",
    "1 while probes were rejected in the last 25 minutes: why most were (access, payment or request), and what the last of them says, "
    "with the setting to change.",
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
PART = histogram(
    "llmslo_probe_part_seconds",
    "Parts of the time of probes, where the server or a gateway tells of it: see the method. All workloads of the target together.",
    *("target", "part"),
)
SEND_LAG = histogram("llmslo_send_lag_seconds", "The prober's own lateness in sending. In no latency.", "target")
TOKENS = counter(
    "llmslo_probe_tokens_total", "Tokens that probing used, as the server counts them.", *_PROBE, "token_type"
)
COST = counter("llmslo_probe_cost_dollars_total", "What probing cost at the configured price.", "target")
RATE_LIMIT = gauge(
    "llmslo_rate_limit_remaining", "Rate limit left, as the server's headers tell it.", "target", "limit"
)
RETRIED = counter(
    "llmslo_probes_retried_total",
    "Probes that a gateway tried again (retry) or sent to another model (fallback), as its response headers tell it.",
    *("target", "action"),
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


# Template: whether a prober of the target has any answer (if none has, a sample without labels), and why probes were refused.
_NO_ANSWER = 'min(llmslo_target_state{target=%[1]q,state="rejected"}) == 1'
_REFUSED = (
    f"{{{{ range {query(f'{_NO_ANSWER} or {REFUSAL_INFO}{{target=%[1]q}}', 'target')} }}}}"
    "{{ with .Labels.reason }} {{ . }}: {{ else }} Nothing is measured.{{ end }}{{ .Labels.text }}{{ end }}"
)
OF_WORKLOAD = Link("target", ("target", "workload"))
# Before a certificate expires: time to order one manually, and the last working day before a weekend.
CERT_WARNING_S, CERT_CRITICAL_S = 14 * 86_400, 3 * 86_400
# By prober and reason: all its targets (more than one) fail every probe with that reason.
ALL_FAIL = (
    "count by (instance, reason) (llmslo_failure_info) > 1\n"
    '== on (instance) group_left () count by (instance) (llmslo_target_state{state="failing"})\n'
    'and on (instance) min by (instance) (llmslo_target_state{state="failing"}) == 1\n'
)
_OF_NAMESPACES = 'llmslo_target_state{state="ready",namespace!=""'
_NAMESPACES = f"group by (cluster, namespace) ({_OF_NAMESPACES},target=%[1]q,vantage=%[2]q}})"


def alerts() -> tuple[Alert, ...]:
    """Alerts on failing targets, rejected probes, and a name that probers of several namespaces give a target."""
    rejected = probe_increase("llmslo_probes_neutral_total", "15m", 'reason="rejected"')
    return (
        _failing('max by (target) (llmslo_target_state{state="failing"}) == 1\n'),
        Alert(
            "LLMProbeRejected",
            "warning",
            of_present(f"({rejected} >= 3\nor\n{no_data('rejected')})", "llmslo_probes_neutral_total"),
            "10m",
            "{{ $labels.target }} rejects the probes",
            f"Every probe of {{{{ $labels.workload }}}}, or three in 15 minutes.{_REFUSED}",
            link=OF_WORKLOAD,
        ),
        Alert(
            "LLMTargetNameShared",
            "warning",
            f"count by (target, vantage) (group by (target, vantage, cluster, namespace) ({_OF_NAMESPACES}}})) > 1\n",
            "10m",
            "Probers in {{ $value }} namespaces have a target called {{ $labels.target }}",
            "Rules take them for replicas and add up their events: of different engines a healthy one hides an ill one. Namespaces:"
            f"{{{{ range {query(_NAMESPACES, 'target', 'vantage')} }}}} {{{{ .Labels.namespace }}}}{{{{ end }}}}.",
        ),
    )


def alerts_of_several_targets() -> tuple[Alert, ...]:
    """Alerts if all targets of a prober fail alike."""
    return (
        Alert(
            "LLMAllTargetsFailing",
            "critical",
            ALL_FAIL,
            "2m",
            "All {{ $value }} targets of the prober {{ $labels.instance }} fail every probe: {{ $labels.reason }}",
            "Look at what they share: network, name resolution, proxy, token.",
        ),
        Alert(
            "LLMTargetFailsWithAll",
            "none",
            f"max by (target) (llmslo_failure_info and on (instance, reason) (\n{ALL_FAIL}))\n",
            "2m",
            "{{ $labels.target }} fails like all targets of its prober",
            "",  # sent to nobody: inhibits alerts about the target in favour of LLMAllTargetsFailing
        ),
    )


def alerts_of_tls() -> tuple[Alert, ...]:
    """Alerts on the expiry of a server certificate."""
    return (
        _certificate("critical", f"< {CERT_CRITICAL_S}"),
        _certificate("warning", f"< {CERT_WARNING_S} >= {CERT_CRITICAL_S}"),
    )


def _certificate(severity: Severity, seconds_left: str) -> Alert:
    """seconds_left: PromQL comparisons"""
    end = "llmslo_tls_cert_expiry_timestamp_seconds"
    left = f"min by (target) (min_over_time({end}[15m])) - time() {seconds_left}"  # replicas may differ in certificates
    return Alert(
        "LLMCertificateExpiring",
        severity,
        of_present(left, end),
        "",
        "The TLS certificate of {{ $labels.target }} "
        "{{ if gt $value 0.0 }}ends in {{ $value | humanizeDuration }}{{ else }}has ended{{ end }}",
        "Clients that verify certificates get no answer after its end.",
    )


def alerts_of_several_probers() -> tuple[Alert, ...]:
    """Alerts if several probers send to one target: on the view of most places, of one place, and of one prober."""
    fails = f"avg by (target) ({_by_vantage()}) > 0.5"
    return (
        _failing(f"{fails}\n"),
        Alert(
            "LLMTargetFailingFromVantage",
            "warning",
            f"{_by_vantage()} == 1\nunless on (target)\n({fails})\n",
            "5m",  # an outage is a page, but not noticed everywhere at once
            "{{ $labels.target }} fails every probe from "
            "{{ with $labels.vantage }}vantage {{ . }}{{ else }}the prober without a vantage{{ end }}",
            "At least half of the vantages have an answer, so it is no page: look at the way from this one first.",
        ),
        Alert(
            "LLMProbersDisagree",
            "warning",
            f"{_by_prober()} == 1\nunless on (target, vantage)\n({_by_vantage()} == 1)\n",
            "5m",
            "{{ $labels.target }} fails every probe of prober {{ $labels.instance }}, and answers another",
            "Look at what is between this prober and the target: its network, name resolution, certificates or token.",
        ),
    )


def _failing(expr: str) -> Alert:
    return Alert(
        "LLMTargetFailing",
        "critical",
        expr,
        "2m",
        "{{ $labels.target }} fails every probe",
        f"At least three probes in a row failed, none succeeded in 2 minutes.{happening()}",
    )


def _by_vantage() -> str:
    """PromQL: 1 if the target fails for all probers of a vantage with recent data, else 0. Probers without a vantage share one."""
    return f"min by (target, vantage) ({_by_prober()})"


def _by_prober() -> str:
    """PromQL: 1 if the target fails, else 0, for each prober with recent data.

    A prober for which the target is ready counts only if it probed it recently, because a paused target keeps its old state.
    """
    by = "by (target, vantage, instance)"
    failing, ready = (f'max {by} (llmslo_target_state{{state="{state}"}}) == 1' for state in ("failing", "ready"))
    probed = f"sum {by} (increase(llmslo_probes_total[10m])) > 0"
    return f"({failing}\nor\n0 * (({ready}) and {probed}))"


def record() -> Rule:
    """Recording rule for the p99 of TTFT and ITL by workload, for targets that are still probed.

    Without it dashboards of many targets would read all buckets of hours at each refresh.
    """
    quantiles = "\nor\n".join(
        f'label_replace({quantile(0.99, f"llmslo_{signal}_seconds", select="", window=RECORDED_WINDOW)}, "signal", "{signal}", "", "")'
        for signal in RECORDED_SIGNALS
    ).replace("{}", "")
    probed = f"group by ({LEVEL}) (llmslo_probes_total)"
    return {"record": RECORDED_P99, "expr": f"({quantiles})\nand on ({LEVEL})\n{probed}\n"}
