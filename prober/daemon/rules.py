"""All recording rules and alerts, in the order of the rule files."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from decimal import Decimal

from prober.daemon import series as own
from prober.exposition.alerting import Rule, RuleOptions, with_group_labels
from prober.features.answers import series as answers
from prober.features.budget import series as budget
from prober.features.capacity import series as capacity
from prober.features.discovery import series as discovery
from prober.features.drift import series as drift
from prober.features.engines import series as engines
from prober.features.gpu import series as gpu
from prober.features.slo import rules as slo_rules
from prober.measure.objective import JudgedStream, Slo
from prober.probing import series as probes


def groups(
    uses: Mapping[Slo, Sequence[JudgedStream]], options: RuleOptions, of_all_requests: Collection[Slo] = ()
) -> list[Rule]:
    """All rule groups, in the format of Prometheus rule files: those of each SLO, one of latencies, and one of everything else."""
    selector = options.selector
    alerts = [
        *probes.alerts(selector),
        *budget.alerts(selector),
        *own.alerts(selector),
        *discovery.alerts(selector),
        *drift.alerts(selector),
        *answers.alerts(selector),
        *engines.alerts(selector),
        *gpu.alerts(selector),
        *capacity.alerts(selector),
        slo_rules.stale_alert(selector),
    ]
    rules = [*(alert.as_rule(options) for alert in alerts), *gpu.records(selector)]
    latency = {"name": "llm-slo-latency", "interval": options.slow, "rules": list(probes.records(selector))}
    found = [*slo_rules.groups(uses, options, of_all_requests), latency, {"name": "llm-slo-prober", "rules": rules}]
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
    """Rules of one SLO, its traffic and everything else: every recorded name with its labels, and every alert."""
    slo = Slo("ttft", "ttft", 0.5, Decimal("0.99"), 30 * 86_400.0)
    for group in groups({slo: [JudgedStream("t", "w", 0.2, 32.0, 48)]}, RuleOptions(), [slo]):
        yield from group["rules"]
