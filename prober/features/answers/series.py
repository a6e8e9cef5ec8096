"""Series, alerts and panel about changes of checked answers."""

from typing import get_args

from prober.exposition.alerting import Alert, Link, of_present, probe_increase, query
from prober.exposition.dashboards.board import annotation
from prober.exposition.dashboards.panels import Panel, Query, series
from prober.exposition.dashboards.queries import PROBES, TARGET, WINDOW, increase
from prober.exposition.dashboards.style import GREY, dashed, named
from prober.exposition.families import gauge
from prober.features.answers.change import Cause
from prober.probing import series as probe_series

_CHECK = ("target", "workload", "check")
ANSWERS_CHANGED = gauge(
    "llmslo_answers_changed",
    "1 while checked answers are wrong more often than in their baseline, by cause: engine_change if it began about when the engine "
    "changed.",
    *_CHECK,
    "cause",
)
ANSWERS_SINCE = gauge(
    "llmslo_answers_changed_since_timestamp_seconds", "Estimated start of the active change of the answers.", *_CHECK
)
ANSWERS_ENGINE_CHANGE = gauge(
    "llmslo_answers_engine_change_timestamp_seconds",
    "When the engine changed, of an active change of the answers that began about then.",
    *_CHECK,
)
ANSWERS_WRONG = gauge(
    "llmslo_answers_wrong_ratio",
    "Share of wrong answers, by period: in the baseline (absent while it is learned), and since the start of the active change.",
    *_CHECK,
    "period",
)
ANSWERS_CAUSES: tuple[Cause, ...] = get_args(Cause)
ANNOTATION = annotation(
    "Changed answers",
    "red",
    f"max by (target, workload, check, cause) ({ANSWERS_CHANGED}{{{TARGET}}}) == 1",
    "{{target}}, {{workload}}: answers checked by {{check}} are wrong more often than in their baseline ({{cause}})",
)


def right_answers() -> Panel:
    """Panel of the share of right answers by check, and of its baseline."""
    check = "target, workload, check"
    wrong, checked = (
        increase(counter, check, window=WINDOW)
        for counter in (probe_series.QUALITY_FAILURES, probe_series.QUALITY_CHECKS)
    )

    def learnt(period: str) -> str:
        return f'1 - max by ({check}) ({ANSWERS_WRONG}{{{PROBES},period="{period}"}})'

    return series(
        "Right answers by check",
        "Share of right among the checked answers of the selected window; dashed: in the baseline of this check, none while it is "
        "learned; thick: since the start of an active change, whose annotation names the cause. Bad: below the baseline for hours. A "
        "single dip may be chance: an alarm needs evidence. No data: no workload has golden prompts, tools or a format.",
        "percentunit",
        Query(f"1 - {wrong} / ({checked} > 0)", "{{target}} {{workload}} {{check}}"),
        Query(learnt("baseline"), "{{target}} {{workload}} {{check}}, baseline"),
        Query(learnt("since"), "{{target}} {{workload}} {{check}}, since the change"),
        high=1,
        width=24,
        overrides=[
            dashed(".*, baseline", GREY, in_legend=True),
            named(".*, since the change", ("custom.lineWidth", 3)),
        ],
        empty="nothing is checked",
    )


def alerts() -> tuple[Alert, ...]:
    """Alerts on wrong answers to checked prompts: on many, and on more than the baseline by the sequential test."""
    return _degraded(), _changed()


def _degraded() -> Alert:
    checks, wrong = (probe_increase(f"llmslo_quality_{kind}_total", "1h") for kind in ("checks", "failures"))
    return Alert(
        "LLMQualityDegraded",
        "warning",
        of_present(
            f"{wrong} / ({checks} > 0) > 0.05\nand\n{wrong} >= 2.5",  # three, as increase() extrapolates
            "llmslo_quality_checks_total",
        ),
        "5m",
        "{{ $labels.target }} gives wrong answers",
        "{{ $value | humanizePercentage }} of the checked answers of workload {{ $labels.workload }} were wrong in "
        "the last hour. The alert fires above 5%, from three wrong answers on.",
        link=Link("target", ("target", "workload")),
    )


def _changed() -> Alert:
    chosen = "target=%[1]q,workload=%[2]q,check=%[3]q"
    labels = "target", "workload", "check"
    # One query for both: the share since the change is the value without `is`.
    before, since_then = (
        f'max(llmslo_answers_wrong_ratio{{{chosen},period="{period}"}})' for period in ("baseline", "since")
    )
    shares = query(f'label_replace({before}, "is", "before", "", "") or {since_then}', *labels)
    since = query(f"max(llmslo_answers_changed_since_timestamp_seconds{{{chosen}}})", *labels)
    return Alert(
        "LLMAnswersChanged",
        "warning",
        "max by (target, workload, check) (llmslo_answers_changed) == 1\n",
        "",
        "{{ $labels.target }}: answers are wrong more often than before",
        "Answers of workload {{ $labels.workload }} checked by {{ $labels.check }} are wrong more often than in their baseline"
        f"{{{{ range {since} }}}} since {{{{ .Value | humanizeTimestamp }}}}{{{{ end }}}}:{{{{ range {shares} }}}} "
        "{{ .Value | humanizePercentage }}{{ if .Labels.is }} before,{{ else }} since{{ end }}{{ end }}.",
        link=Link("drift", ("target", "workload"), "1d"),
    )
