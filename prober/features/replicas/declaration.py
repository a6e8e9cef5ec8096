"""What the daemon, the rule files and the store must know of this feature."""

from prober.features.replicas import series
from prober.probing.feature import Feature, declared

FEATURE = Feature(declared(series))
