"""Alerting rules as values, their YAML form for Prometheus, and templates that several alerts use."""

from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

Rule = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RuleOptions:
    """Options of `prober rules`.

    selector: label matchers of the prober's series.
    labels: added to every alert.
    runbook_url, dashboard_url: bases without a trailing slash.
    """

    selector: str = 'job="llm-slo-prober"'
    labels: tuple[tuple[str, str], ...] = ()
    runbook_url: str = "http://llm-slo-prober:9742/runbooks"
    dashboard_url: str = "http://grafana:3000"
    stateless_drift: bool = False


@dataclass(frozen=True, slots=True)
class Alert:
    """An alerting rule.

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

    def as_rule(self, options: RuleOptions) -> Rule:
        """The rule as in a rule file, with links to its runbook and, if it has a target, to the target on the dashboard."""
        path = "/d/llm-slo"
        if "$labels.target" in self.summary:
            path += "?var-target={{ $labels.target | urlquery }}"
        return {
            "alert": self.name,
            "expr": self.expr,
            **({"for": self.wait_for} if self.wait_for else {}),
            **({"keep_firing_for": self.keep_firing_for} if self.keep_firing_for else {}),
            "labels": {"severity": self.severity, **dict(self.labels), **dict(options.labels)},
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                "runbook_url": f"{options.runbook_url}/{quote(self.name)}",
                "dashboard_url": f"{options.dashboard_url}{path}",
            },
        }


def escaped(selector: str) -> str:
    """`selector` inside a quoted string of a template."""
    return selector.replace('"', '\\"')


def likely_cause_template(selector: str) -> str:
    """Template of a sentence with the diagnosed cause; it expands to nothing if the diagnosis names none."""
    matchers = escaped(selector)
    regimes = f'printf "max by (regime) (llmslo_regime_active{{{matchers},target=%q,regime!=\\"unknown\\"}}) == 1" $labels.target'
    return f"{{{{ range {regimes} | query }}}} Likely cause: {{{{ .Labels.regime }}}}.{{{{ end }}}}"


def probe_increase(counter: str, window: str, selector: str) -> str:
    """Increase of a counter per target and workload, over all replicas of the prober."""
    return f"sum by (target, workload) (increase({counter}{{{selector}}}[{window}]))"
