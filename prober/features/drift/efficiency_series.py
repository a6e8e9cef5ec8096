"""Series and alert of an engine's efficiency."""

from prober.exposition.alerting import Alert, Link, query
from prober.exposition.families import gauge

_MEASURE = ("target", "measure")
EFFICIENCY = gauge(
    "llmslo_efficiency",
    "Efficiency of the engine in the last hour judged (period: present), and what is usual for such requests at such an hour (usual); "
    "the name of the measure has its unit.",
    *_MEASURE,
    "period",
)
EFFICIENCY_DROPPED = gauge(
    "llmslo_efficiency_dropped",
    "1 while the engine works less efficiently than in earlier hours with requests like these, by cause: engine_change if this began "
    "within two hours of a change of the engine. Absent without a baseline, and two days after the last hour judged.",
    *_MEASURE,
    "cause",
)
EFFICIENCY_SINCE = gauge("llmslo_efficiency_since_timestamp_seconds", "Estimated start of the present fall.", *_MEASURE)
EFFICIENCY_CAUSES = ("engine_change", "unknown")
EFFICIENCY_PERIODS = ("usual", "present")


def alerts() -> tuple[Alert, ...]:
    """The alert on a fall of the efficiency, which need not breach an SLO."""
    chosen = "target=%[1]q,measure=%[2]q"
    facts = query(
        f"max by (period) (llmslo_efficiency{{{chosen}}}) or max(llmslo_efficiency_since_timestamp_seconds{{{chosen}}})",
        *_MEASURE,
    )
    return (
        Alert(
            "LLMEfficiencyDropped",
            "warning",
            "max by (target, measure, cause) (llmslo_efficiency_dropped) == 1\n",
            "",
            "{{ $labels.target }} works less efficiently than before",
            f"{{{{ $labels.measure }}}}{{{{ range {facts} | sortByLabel `period` }}}}"
            "{{ if .Labels.period }}, {{ .Labels.period }} {{ .Value | printf `%.3g` }}"
            '{{ else }} since {{ .Value | humanizeTimestamp }}{{ if eq $labels.cause "engine_change" }}, about when the engine changed'
            "{{ end }}{{ end }}{{ end }}.",
            link=Link("drift", ("target",), "7d"),
        ),
    )
