"""All series of the prober, in the order in which /metrics and the documentation list them."""

import re

from prober.daemon import series as own_series
from prober.exposition.families import AnySeries, Registry, Series
from prober.features.answers import series as answers_series
from prober.features.budget import series as budget_series
from prober.features.capacity import series as capacity_series
from prober.features.diagnosis import series as diagnosis_series
from prober.features.discovery import series as discovery_series
from prober.features.drift import series as drift_series
from prober.features.engines import series as engines_series
from prober.features.gpu import series as gpu_series
from prober.features.grafana import series as grafana_series
from prober.features.health import series as health_series
from prober.features.replicas import series as replicas_series
from prober.features.slo import series as slo_series
from prober.probing import series as probe_series

MODULES = (
    probe_series,
    slo_series,
    health_series,
    budget_series,
    engines_series,
    gpu_series,
    diagnosis_series,
    capacity_series,
    drift_series,
    answers_series,
    discovery_series,
    replicas_series,
    own_series,
    grafana_series,
)
ALL: tuple[AnySeries, ...] = tuple(
    value for module in MODULES for value in vars(module).values() if isinstance(value, Series)
)
VANTAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def registry(vantage: str = "") -> Registry:
    """An empty registry with every family declared.

    vantage: name of the place from which the prober probes, a label of every series about a target; empty for no label.
    """
    return Registry(ALL, (("vantage", vantage),) if vantage else ())


def vantage_name(text: str) -> str:
    """The text, if it is a valid name of a vantage or empty. Raises ValueError."""
    if text and not VANTAGE.fullmatch(text):
        raise ValueError(
            f"{text!r} is not the name of a place: write up to 63 letters, digits, -, _ and ., such as eu-west-1"
        )
    return text
