"""All series of the prober, in the order in which /metrics and the documentation list them."""

from prober.daemon import series as own_series
from prober.exposition.families import AnySeries, Family, Registry
from prober.features.budget import series as budget_series
from prober.features.capacity import series as capacity_series
from prober.features.diagnosis import series as diagnosis_series
from prober.features.discovery import series as discovery_series
from prober.features.drift import series as drift_series
from prober.features.engines import series as engines_series
from prober.features.gpu import series as gpu_series
from prober.features.grafana import series as grafana_series
from prober.features.replicas import series as replicas_series
from prober.features.slo import series as slo_series
from prober.probing import series as probe_series

ALL: tuple[AnySeries, ...] = (
    *probe_series.ALL,
    *slo_series.ALL,
    *budget_series.ALL,
    *engines_series.ALL,
    *gpu_series.ALL,
    *diagnosis_series.ALL,
    *capacity_series.ALL,
    *drift_series.ALL,
    *discovery_series.ALL,
    *replicas_series.ALL,
    *own_series.ALL,
    *grafana_series.ALL,
)


def registry() -> Registry:
    """An empty registry with every family declared."""
    return Registry({declared.name: Family(declared) for declared in ALL})
