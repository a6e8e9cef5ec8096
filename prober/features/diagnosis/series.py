"""Series of the diagnosis."""

from typing import get_args

from prober.exposition.families import gauge
from prober.features.diagnosis.clues import Name

REGIME = gauge(
    "llmslo_regime_active",
    "1 for what happens by the diagnosis, or for both of two, while an SLO is breached or a latency has drifted; "
    "0.5 for a name that is probable and not confirmed yet, beside 1 for unknown.",
    "target",
    "regime",
)
BOUND_RATIO = gauge(
    "llmslo_decode_bandwidth_bound_ratio",
    "Speed of a decode step as a share of the speed that memory bandwidth allows.",
    "target",
)
PROBABLE = 0.5
REGIMES: tuple[Name, ...] = get_args(Name)
