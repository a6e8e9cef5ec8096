"""All recording rules and alerts, in the order of the rule files."""

from collections.abc import Iterator
from dataclasses import replace

from prober.config.configuration import Configuration
from prober.daemon import series as own
from prober.daemon.registry import FEATURES
from prober.exposition.alerting import Alert, Rule, RuleOptions, with_options
from prober.features.gpu import exporters
from prober.features.slo import rules as slo_rules
from prober.probing import series as probes


def groups(configuration: Configuration | None, options: RuleOptions) -> list[Rule]:
    """Rule groups for a configuration, in the format of Prometheus rule files; without a configuration all groups.

    SLOs need no separate rules. The groups depend on the features that targets use: checked answers, budgets, sweeps,
    discovery, SLOs of all requests.
    """
    kinds = configuration.kinds if configuration else ()

    def alerts() -> Iterator[Alert]:
        several = probes.alerts_of_several_probers() if options.has_several_probers else ()
        replaced = {alert.name for alert in several}
        yield from (*several, *(alert for alert in probes.alerts() if alert.name not in replaced))
        if configuration is None or len(kinds) > 1 or configuration.discovery:
            yield from probes.alerts_of_several_targets()
        if configuration is None or any(kind.url.startswith("https:") for kind in kinds):
            yield from probes.alerts_of_tls()
        yield from own.alerts(has_several=options.has_several_probers)
        for feature in FEATURES:
            if configuration is None or feature.is_used(configuration):
                yield from feature.alerts()

    has_traffic = configuration is None or bool(configuration.traffic_slos())
    latency: Rule = {"name": "llm-slo-latency", "interval": options.slow, "rules": [probes.record()]}
    prober: Rule = {"name": "llm-slo-prober", "rules": [alert.as_rule(options) for alert in alerts()]}
    found = [*slo_rules.groups(options, has_traffic=has_traffic), latency, prober]
    written = [group | {"rules": [with_options(rule, options) for rule in group["rules"]]} for group in found]
    # An exporter shares the labels of a cluster with the prober, but is scraped by a job of its own.
    shared = tuple(name for name in options.group_labels if name not in ("namespace", "job"))
    of_exporters = with_options(exporters.record(), replace(options, group_labels=shared, target_labels=()))
    return [*written, {"name": "llm-slo-gpu", "interval": "1m", "rules": [of_exporters]}]


def as_operator(rule_groups: list[Rule], name: str = "llm-slo-prober") -> Rule:
    """The groups as a PrometheusRule for the Prometheus operator."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": name}},
        "spec": {"groups": rule_groups},
    }


def example_rules() -> Iterator[Rule]:
    """Every recorded name with its labels, and every alert."""
    for group in groups(None, RuleOptions(has_several_probers=True)):
        yield from group["rules"]
