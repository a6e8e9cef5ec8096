"""Alerting rules as values, their YAML form for Prometheus, and templates that several alerts use."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from prober.exposition.dashboards.board import PLACE, UIDS

Rule = dict[str, Any]
Severity = Literal["critical", "warning"]
_GROUPING = re.compile(r"\b((?:by|on) )\(([^()]*)\)")
_UNGROUPED = re.compile(r"\b(sum|min|max|avg|count|group)\(")
_LOOKUP = re.compile(r'printf "((?:[^"\\]|\\.)*)"((?: [$.][\w.]+)+)')


@dataclass(frozen=True, slots=True)
class RuleOptions:
    """Options of `prober rules`.

    selector: label matchers for the prober's series
    labels: (name, value) of labels added to every alert
    runbook_url, dashboard_url, prober_url: base URLs without a trailing slash
    slow_s: seconds between evaluations of rules that can wait: under the five minutes for which Prometheus looks back for a value
    group_labels: labels that distinguish probers of different places, such as cluster; nothing is summed or joined across them
    target_labels: labels that the configuration gives targets; their alerts have them too
    """

    selector: str = 'job="llm-slo-prober"'
    labels: tuple[tuple[str, str], ...] = ()
    runbook_url: str = "http://llm-slo-prober:9742/runbooks"
    dashboard_url: str = "http://grafana:3000"
    prober_url: str = "http://llm-slo-prober:9742"
    slow_s: int = 240
    group_labels: tuple[str, ...] = ()
    target_labels: tuple[str, ...] = ()

    @property
    def slow(self) -> str:
        """`slow_s` as a PromQL duration."""
        return f"{self.slow_s // 60}m" if self.slow_s % 60 == 0 else f"{self.slow_s}s"


@dataclass(frozen=True, slots=True)
class Link:
    """Link of an alert to the dashboard that shows its subject.

    board: key of `prober.exposition.dashboards.board.UIDS`
    variables: labels of the alert that set the dashboard's variables of the same name
    span: time range of the dashboard before now, a PromQL duration
    """

    board: str = "overview"
    variables: tuple[str, ...] = ()
    span: str = "3h"

    def path(self, group_labels: Sequence[str] = ()) -> str:
        """URL path of the dashboard, with a query template that sets its variables, and those of the place, from the alert's labels."""
        names = (*self.variables, *(name for name in PLACE if name in group_labels))
        chosen = "".join(f"var-{name}={{{{ $labels.{name} | urlquery }}}}&" for name in names)
        return f"/d/{UIDS[self.board]}?{chosen}from=now-{self.span}&to=now"


@dataclass(frozen=True, slots=True)
class Alert:
    """An alerting rule.

    wait_for: `for` of the rule, a PromQL duration; empty for none
    labels: (name, value) of labels in addition to `severity`
    link: the dashboard; None: that of the alert's target, or that of drift for an alert without a target
    """

    name: str
    severity: Severity
    expr: str
    wait_for: str
    summary: str
    description: str
    labels: tuple[tuple[str, str], ...] = ()
    link: Link | None = None

    def as_rule(self, options: RuleOptions) -> Rule:
        """The rule as in a rule file, with links to its runbook, to a dashboard and to the prober's own page."""
        has_target = "$labels.target" in self.summary
        link = self.link or (Link("target", ("target",)) if has_target else Link("drift"))
        page = "?target={{ $labels.target | urlquery }}" if has_target else ""
        return {
            "alert": self.name,
            "expr": self.expr,
            **({"for": self.wait_for} if self.wait_for else {}),
            "labels": {"severity": self.severity, **dict(self.labels), **dict(options.labels)},
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                "runbook_url": f"{options.runbook_url}/{quote(self.name)}",
                "dashboard_url": f"{options.dashboard_url}{link.path(options.group_labels)}",
                "prober_url": f"{options.prober_url}/{page}",
            },
        }


def with_group_labels(rule: Rule, options: RuleOptions) -> Rule:
    """Returns the rule with `group_labels` in each grouping and join of its expression and of the queries in its texts."""
    apart, of_target = options.group_labels, options.target_labels
    if not (apart or of_target):
        return rule

    def grouped(match: re.Match[str]) -> str:
        own = [name.strip() for name in match[2].split(",") if name.strip()]
        more = (*apart, *(of_target if "target" in own else ()))
        return f"{match[1]}({', '.join((*own, *(name for name in more if name not in own)))})"

    def looked_up(match: re.Match[str]) -> str:
        text, values = match[1], match[2].split()
        for name in apart:
            if "target=%[1]q" in text:
                values.append(f"$labels.{name}")
                text = text.replace("target=%[1]q", f"target=%[1]q,{name}=%[{len(values)}]q")
            elif "target=%q" in text:
                values.insert(values.index("$labels.target") + 1, f"$labels.{name}")
                text = text.replace("target=%q", f"target=%q,{name}=%q")
        return " ".join((f'printf "{text}"', *values))

    expr = _GROUPING.sub(grouped, _UNGROUPED.sub(r"\1 by () (", rule["expr"]) if apart else rule["expr"])
    notes = {key: _LOOKUP.sub(looked_up, text) for key, text in rule.get("annotations", {}).items()}
    return rule | {"expr": expr} | ({"annotations": notes} if notes else {})


def escaped(selector: str) -> str:
    """`selector`, escaped for a quoted string in a template."""
    return selector.replace('"', '\\"')


def firing(alert: str, more: str = "") -> str:
    """Selector of firing alerts. alert: name, or several names joined by `|`; more: further label matchers"""
    return f'ALERTS{{alertname{"=~" if "|" in alert else "="}"{alert}",alertstate="firing"{more}}}'


def what_happens_template(selector: str) -> str:
    """Template of a sentence that names the current diagnosis as confirmed or probable; no text without a diagnosis."""
    query = f'printf "llmslo_cause_info{{{escaped(selector)},target=%q,cause!=\\"unknown\\"}}" $labels.target'
    name = '{{ .Labels.cause | reReplaceAll "_" " " }}'
    confirmed, probable = f" What happens: {name}.", f" Probably {name}, confirming."
    words = f'{{{{ if eq .Labels.state "confirmed" }}}}{confirmed}{{{{ else }}}}{probable}{{{{ end }}}}'
    return f"{{{{ range {query} | query }}}}{words}{{{{ end }}}}"


def top_failure_template(selector: str, *labels: str) -> str:
    """Template of a sentence with the most frequent failure of the alert's target in the last 15 minutes; no text without one.

    labels: labels of the alert that select the probes, in addition to `target`
    """
    chosen = "".join(f",{label}=%q" for label in ("target", *labels))
    failures = f"increase(llmslo_probe_failures_total{{{escaped(selector)}{chosen}}}[15m])"
    values = " ".join(f"$labels.{label}" for label in ("target", *labels))
    query = f'printf "topk(1, sum by (reason) ({failures}) > 0.5)" {values}'
    words = '{{ .Labels.reason | reReplaceAll "^http_" "HTTP " | reReplaceAll "_" " " }}'
    sentence = f"Most frequent failure in 15 minutes: {words} ({{{{ printf `%.0f` .Value }}}})."
    return f"{{{{ range {query} | query }}}} {sentence}{{{{ end }}}}"


def probe_increase(counter: str, window: str, selector: str) -> str:
    """PromQL: increase of a counter per target and workload, summed over all replicas of the prober."""
    return f"sum by (target, workload) (increase({counter}{{{selector}}}[{window}]))"


def no_data(reason: str, selector: str) -> str:
    """PromQL: workloads that have no data for this reason, whatever their probe rate."""
    return f'max by (target, workload) (llmslo_no_data{{{selector},reason="{reason}"}}) == 1'


def of_present(expr: str, series: str) -> str:
    """PromQL: `expr` of targets that have `series` now. Without it a window includes targets that were removed or renamed."""
    return f"{expr}\nand on (target)\ngroup by (target) ({series})\n"
