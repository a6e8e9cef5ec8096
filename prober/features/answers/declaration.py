"""Registers the detection of wrong answers with the daemon, the rule files and the store."""

from collections.abc import Iterator

from prober.config.configuration import Configuration
from prober.features.answers import series
from prober.probing.feature import Feature, Monitor, Shared, declared


def _monitors(shared: Shared) -> Iterator[Monitor]:
    from prober.features.answers.monitor import AnswersMonitor

    yield AnswersMonitor(shared.registry, shared.events, shared.configuration.drift, shared.saved["answers"])


def _is_used(configuration: Configuration) -> bool:
    probes = (probe for kind in configuration.kinds for probe in kind.probes)
    return any(workload.checks for probe in probes for _, workload, *_ in probe.judged())


FEATURE = Feature(declared(series), _monitors, series.alerts, _is_used, saved="answers")
