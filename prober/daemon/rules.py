"""All recording rules and alerts, in the order of the rule files."""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal

from prober.daemon import alerts as own_alerts
from prober.exposition.alerting import Rule, RuleOptions, with_group_labels
from prober.features.budget import alerts as budget_alerts
from prober.features.capacity import alerts as capacity_alerts
from prober.features.discovery import alerts as discovery_alerts
from prober.features.drift import alerts as drift_alerts
from prober.features.engines import alerts as engine_alerts
from prober.features.gpu import alerts as gpu_alerts
from prober.features.slo import rules as slo_rules
from prober.measure.objective import JudgedStream, Slo
from prober.probing import alerts as probe_alerts


def groups(uses: Mapping[Slo, Sequence[JudgedStream]], options: RuleOptions) -> list[Rule]:
    """All rule groups, in the format of Prometheus rule files: those of each SLO, latencies, and one of everything else."""
    selector = options.selector
    alerts = [
        *probe_alerts.alerts(selector),
        *budget_alerts.alerts(selector),
        *own_alerts.alerts(selector),
        *discovery_alerts.alerts(selector),
        *drift_alerts.alerts(selector),
        *engine_alerts.alerts(selector),
        *gpu_alerts.alerts(selector),
        *capacity_alerts.alerts(selector),
        slo_rules.stale_alert(selector),
    ]
    rules = [*(alert.as_rule(options) for alert in alerts), *gpu_alerts.records(selector)]
    latency = {"name": "llm-slo-latency", "interval": options.slow, "rules": list(probe_alerts.records(selector))}
    found = [*slo_rules.groups(uses, options), latency, {"name": "llm-slo-prober", "rules": rules}]
    return [group | {"rules": [with_group_labels(rule, options) for rule in group["rules"]]} for group in found]


def as_operator(rule_groups: list[Rule], name: str = "llm-slo-prober") -> Rule:
    """The groups as a PrometheusRule of the Prometheus operator."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": name}},
        "spec": {"groups": rule_groups},
    }


def example_rules() -> Iterator[Rule]:
    """Rules of one SLO and everything else: every recorded name with its labels, and every alert."""
    slo = Slo("ttft", "ttft", 0.5, Decimal("0.99"), 30 * 86_400.0)
    for group in groups({slo: [JudgedStream("t", "w", 0.2, 32.0, 48)]}, RuleOptions()):
        yield from group["rules"]
