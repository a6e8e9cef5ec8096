"""All features, and all series, in the order in which /metrics and the documentation list them."""

import re

from prober.daemon import series as own_series
from prober.exposition.families import AnySeries, Registry, Series
from prober.features.answers import series as answers
from prober.features.budget import series as budget
from prober.features.capacity import series as capacity
from prober.features.diagnosis import series as diagnosis
from prober.features.discovery import series as discovery
from prober.features.drift import series as drift
from prober.features.engines import series as engines
from prober.features.gpu import series as gpu
from prober.features.grafana import series as grafana
from prober.features.health import series as health
from prober.features.replicas import series as replicas
from prober.features.slo import series as slo
from prober.probing import series as probes
from prober.probing.feature import Feature

# In the order in which their observers are called: a new feature is one line here.
_MODULES = (
    *(probes, slo, health, budget, engines, gpu, diagnosis, capacity, drift, answers),
    *(discovery, replicas, own_series, grafana),
)
FEATURES: tuple[Feature, ...] = tuple(
    value for module in _MODULES for value in vars(module).values() if isinstance(value, Feature)
)
ALL: tuple[AnySeries, ...] = tuple(
    value for module in _MODULES for value in vars(module).values() if isinstance(value, Series)
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
