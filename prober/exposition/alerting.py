"""Alerting rules as values, their YAML form for Prometheus, and templates that several alerts use."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from prober.exposition.dashboards.board import PLACE, UIDS

Rule = dict[str, Any]
Severity = Literal["critical", "warning", "none"]  # none: only inhibits others
_GROUPING = re.compile(r"\b((?:by|on) )\(([^()]*)\)")
_UNGROUPED = re.compile(r"\b(sum|min|max|avg|count|group)\(")
_LOOKUP = re.compile(r'printf "((?:[^"\\]|\\.)*)"((?: [$.][\w.]+)+)')
# A series of the prober or of its scrapes, with the opening brace of its matchers, if any. Recorded names contain a colon.
_EXPORTED = re.compile(r"(?<![\w:$\"])(llmslo_[a-z0-9_]+|up|process_start_time_seconds)(?![\w:(])(\{)?")
# The outcome of the probes, and the server's own text about the last failure: at most one sentence each.
HAPPENING = "llmslo_cause_since_timestamp_seconds{target=%[1]q} or llmslo_failure_info{target=%[1]q}"
_WORDS = (
    " {{ or .Labels.state .Labels.reason }}: {{ .Labels.text }}"
    "{{ if .Labels.cause }} (since {{ .Value | humanizeTimestamp }}){{ end }}."
)
# Probed targets. A target counts for 5 minutes after its prober's last scrape, so that a restart resolves no alert; a target removed
# from a prober that is still scraped counts no longer.
PRESENT = "llmslo_target_state or (last_over_time(llmslo_target_state[5m]) unless on (job, instance) up == 1)"


@dataclass(frozen=True, slots=True)
class RuleOptions:
    """Options of `prober rules`.

    selector: label matchers that narrow the prober's series; empty for none, as no other program has series of these names
    labels: (name, value) of labels added to every alert
    runbook_url, dashboard_url, prober_url: base URLs without a trailing slash; the second may be empty for no links. `{instance}` is
        the address at which Prometheus scrapes the prober that has the alert's target; without a target, any prober that is up
    slow_s: evaluation interval in seconds of rules that need not be fast: less than the five minutes for which Prometheus looks back
    group_labels: labels that distinguish probers of different places, such as cluster; nothing is summed or joined across them
    target_labels: labels that the configuration gives targets; their alerts have them too
    has_several_probers: several probers send to a target: replicas, or probers at different places (label `vantage`)
    """

    selector: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    runbook_url: str = "http://{instance}/runbooks"
    dashboard_url: str = ""
    prober_url: str = "http://{instance}"
    slow_s: int = 240
    group_labels: tuple[str, ...] = ()
    target_labels: tuple[str, ...] = ()
    has_several_probers: bool = False

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
        """URL path of the dashboard, with a query template that sets its variables from labels, including `group_labels`."""
        names = (*self.variables, *(name for name in PLACE if name in group_labels))
        chosen = "".join(f"var-{name}={{{{ $labels.{name} | urlquery }}}}&" for name in names)
        return f"/d/{UIDS[self.board]}?{chosen}from=now-{self.span}"


@dataclass(frozen=True, slots=True)
class Alert:
    """An alerting rule.

    wait_for: `for` of the rule, a PromQL duration; empty for none
    labels: (name, value) of labels in addition to `severity`
    link: the dashboard; None: the dashboard of the alert's target, if the alert has one
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
        """The rule as written to a rule file, with links to its runbook, a dashboard and the prober's own page."""
        has_target = "$labels.target" in self.summary
        link = self.link or (Link("target", ("target",)) if has_target else None)
        notes = {"summary": self.summary, "description": self.description}
        probers = query("llmslo_target_state{target=%[1]q}", "target") if has_target else 'query "llmslo_build_info"'
        notes["runbook_url"] = _at_first(probers, f"{options.runbook_url}/{quote(self.name)}")
        if link and options.dashboard_url:
            notes["dashboard_url"] = f"{options.dashboard_url}{link.path(options.group_labels)}"
        if has_target and link and link.board in ("target", "slo"):  # the dashboard shows the other labels better
            page = f"{options.prober_url}/?target={{{{ $labels.target | urlquery }}}}"
            notes["prober_url"] = _at_first(probers, page)
        return {
            "alert": self.name,
            "expr": self.expr,
            **({"for": self.wait_for} if self.wait_for else {}),
            "labels": {"severity": self.severity, **dict(self.labels), **dict(options.labels)},
            "annotations": {"summary": self.summary} if self.severity == "none" else notes,
        }


def _at_first(probers: str, url: str) -> str:
    """Returns the URL with a template of the first prober's address as `{instance}`, which is empty without a prober."""
    address = '{{ . | first | label "instance" }}'
    return (
        url if "{instance}" not in url else f"{{{{ with {probers} }}}}{url.replace('{instance}', address)}{{{{ end }}}}"
    )


def with_options(rule: Rule, options: RuleOptions) -> Rule:
    """Returns the rule with `group_labels` in each grouping and join, and `selector` at each series that probers export."""
    apart, of_target = options.group_labels, options.target_labels

    def grouped(match: re.Match[str]) -> str:
        own = [name.strip() for name in match[2].split(",") if name.strip()]
        more = (*apart, *(of_target if "target" in own else ()))
        return f"{match[1]}({', '.join((*own, *(name for name in more if name not in own)))})"

    def looked_up(match: re.Match[str]) -> str:
        text, values = match[1], match[2].split()
        for name in apart:
            values.append(f"$labels.{name}")
            text = text.replace("target=%[1]q", f"target=%[1]q,{name}=%[{len(values)}]q")
        text = _narrowed(text, options.selector.replace('"', '\\"'))
        return " ".join((f'printf "{text}"', *values))

    expr = rule["expr"]
    if apart or of_target:
        expr = _GROUPING.sub(grouped, _UNGROUPED.sub(r"\1 by () (", expr) if apart else expr)
    notes = {key: _LOOKUP.sub(looked_up, text) for key, text in rule.get("annotations", {}).items()}
    return rule | {"expr": _narrowed(expr, options.selector)} | ({"annotations": notes} if notes else {})


def _narrowed(expr: str, selector: str) -> str:
    """Returns the PromQL expression with the matchers of `selector` at each series that probers export."""
    if not selector:
        return expr
    return _EXPORTED.sub(lambda found: f"{found[1]}{{{selector}" + ("," if found[2] else "}"), expr)


def query(expr: str, *labels: str) -> str:
    """Template pipeline that runs PromQL. `expr` contains %[1]q, %[2]q and so on for the values of these labels of the alert."""
    text = expr.replace('"', '\\"')
    return f'printf "{text}" {" ".join(f"$labels.{label}" for label in labels)} | query'


def happening(expr: str = HAPPENING, *labels: str, otherwise: str = "", nothing: str = "") -> str:
    """Template of the sentences of HAPPENING. Other values that the alert needs come from the same query, as each query costs much.

    expr: as for `query`, with HAPPENING as a part; otherwise: template for every other value, which has no label `target`
    nothing: text where the query finds no value
    """
    words = f"{{{{ if .Labels.target }}}}{_WORDS}{{{{ else }}}}{otherwise}{{{{ end }}}}" if otherwise else _WORDS
    words += f"{{{{ else }}}}{nothing}" if nothing else ""
    return f"{{{{ range {query(expr, *(labels or ('target',)))} }}}}{words}{{{{ end }}}}"


def probe_increase(counter: str, window: str, matchers: str = "") -> str:
    """PromQL: increase of a counter per target and workload, summed over all replicas of the prober."""
    return f"sum by (target, workload) (increase({counter}{f'{{{matchers}}}' if matchers else ''}[{window}]))"


def no_data(reason: str) -> str:
    """PromQL: workloads that lack data for this reason, whatever their probe rate."""
    return f'max by (target, workload) (llmslo_no_data{{reason="{reason}"}}) == 1'


def of_present(expr: str, series: str) -> str:
    """PromQL: `expr` for targets that have `series` now. Without this, a window includes removed and renamed targets."""
    return f"{expr}\nand on (target)\ngroup by (target) ({series})\n"
