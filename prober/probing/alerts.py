"""Alerts on the targets and their answers, and the quantiles of latencies that are recorded for dashboards."""

from collections.abc import Iterator

from prober.exposition.alerting import Alert, Link, Rule, no_data, of_present, probe_increase, top_failure_template
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

VANTAGE = "{{ with $labels.vantage }}vantage {{ . }}{{ else }}the prober without a vantage{{ end }}"
OF_WORKLOAD = Link("target", ("target", "workload"))


def alerts(selector: str) -> tuple[Alert, ...]:
    """Alerts on failing targets, rejected probes and wrong answers."""
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
    )


def fails(selector: str) -> str:
    """Expression for targets that fail from more than half of the vantages with recent data; probers without a vantage count as one."""
    return f"avg by (target) ({_by_vantage(selector)}) > 0.5"


def _by_vantage(selector: str) -> str:
    """Expression: 1 where the target fails for all probers of a vantage that have recent data, else 0."""
    return f"min by (target, vantage) ({_by_prober(selector)})"


def _by_prober(selector: str) -> str:
    """Expression: 1 if the target fails, else 0, for each prober with recent data.

    A prober for which the target is ready counts only if it has probed it lately, as a paused target keeps its old state.
    """
    by = "by (target, vantage, instance)"
    failing, ready = (
        f'max {by} (llmslo_target_state{{{selector},state="{state}"}}) == 1' for state in ("failing", "ready")
    )
    probed = f"sum {by} (increase(llmslo_probes_total{{{selector}}}[10m])) > 0"
    return f"({failing}\nor\n0 * (({ready}) and {probed}))"


def records(selector: str) -> Iterator[Rule]:
    """Quantiles and samples of each workload of a target, of targets that are still probed.

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
