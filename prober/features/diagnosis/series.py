"""Series of the diagnosis."""

from typing import get_args

from prober.exposition.families import AnySeries, Series, gauge
from prober.features.diagnosis.clues import Name

REGIME = gauge(
    "llmslo_regime_active",
    "1 for the diagnosed cause, or for both of two, while an SLO is breached or a latency has drifted; "
    "unknown until a cause has fitted for a minute.",
    "target",
    "regime",
)
BOUND_RATIO = gauge(
    "llmslo_decode_bandwidth_bound_ratio",
    "Speed of a decode step as a share of the speed that memory bandwidth allows.",
    "target",
)
REGIMES: tuple[str, ...] = get_args(Name)

ALL: tuple[AnySeries, ...] = tuple(value for value in globals().copy().values() if isinstance(value, Series))
