"""All features and series, in the order of /metrics and of the documentation."""

import re
from collections.abc import Callable

from prober.daemon import series as own_series
from prober.exposition.families import AnySeries, Registry
from prober.features.answers import declaration as answers
from prober.features.budget import declaration as budget
from prober.features.capacity import declaration as capacity
from prober.features.diagnosis import declaration as diagnosis
from prober.features.discovery import declaration as discovery
from prober.features.drift import declaration as drift
from prober.features.engines import declaration as engines
from prober.features.gpu import declaration as gpu
from prober.features.grafana import declaration as grafana
from prober.features.health import declaration as health
from prober.features.replicas import declaration as replicas
from prober.features.slo import declaration as slo
from prober.probing import declaration as probing
from prober.probing.feature import Feature, declared

# Order in which their observers are called. A new feature is one name here.
FEATURES: tuple[Feature, ...] = (
    *(each.FEATURE for each in (probing, slo, health, budget, engines, gpu, diagnosis, capacity, drift)),
    drift.EFFICIENCY,
    *(each.FEATURE for each in (answers, discovery, replicas, grafana)),
)
ALL: tuple[AnySeries, ...] = (*(each for feature in FEATURES for each in feature.series), *declared(own_series))
VANTAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def registry(vantage: str = "", unix_s: Callable[[], float] | None = None) -> Registry:
    """Create an empty registry with every family declared.

    vantage: place from which the prober probes, as a label of every series about a target; empty for no label
    unix_s: clock of the start timestamps; None: there are none
    """
    return Registry(ALL, (("vantage", vantage),) if vantage else (), unix_s)


def vantage_name(text: str) -> str:
    """Validate the name of a vantage, which may be empty. Raises ValueError."""
    if text and not VANTAGE.fullmatch(text):
        raise ValueError(
            f"{text!r} is not the name of a place: write up to 63 letters, digits, -, _ and ., such as eu-west-1"
        )
    return text
