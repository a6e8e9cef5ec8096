"""Events of an SLO among all requests of an engine, read from the histogram on its metrics page.

A histogram counts observations up to each bound, and nothing between two bounds. So the nearest bound replaces the threshold:
the count is exact for that bound, and nothing is interpolated.
"""

import math

from prober.config.units import duration_text
from prober.measure.engine_signals import EngineHistogram, EngineSignals
from prober.measure.objective import JudgedStream, Slo

MAX_DISTANCE = 1.6  # between threshold and bound; bounds of engines are up to 2.5 apart
# The lengths of users' answers are unknown. These are mean and maximum of the built-in workload `chat`; only ITL needs them.
STREAM = JudgedStream(target="", workload="", rate_per_s=0.0, mean_tokens=274.0, max_tokens=2_000)


def histogram_of(slo: Slo, signals: EngineSignals) -> EngineHistogram | None:
    """The engine's own histogram of the SLO's signal; None if the metrics page has none."""
    histogram: EngineHistogram | None = getattr(signals, f"{slo.signal}_seconds")
    return histogram


def nearest_bound(slo: Slo, histogram: EngineHistogram) -> int | None:
    """Index of the bound nearest to the threshold by ratio (of two, the greater); None if all are too far away."""
    assert slo.threshold_s is not None
    ratios = [abs(math.log(bound / slo.threshold_s)) if bound > 0 else math.inf for bound in histogram.bounds]
    index = min(range(len(ratios)), key=lambda index: (round(ratios[index], 9), -index), default=None)
    return None if index is None or ratios[index] > math.log(MAX_DISTANCE) else index


def bound_text(slo: Slo, histogram: EngineHistogram | None) -> str:
    """Sentence about the histogram bound by which all requests are judged."""
    threshold_s = slo.threshold_s
    assert threshold_s is not None
    if histogram is None:
        return f"all requests are not judged: the engine's page has no histogram of {slo.signal}"
    index, bounds = nearest_bound(slo, histogram), histogram.bounds
    if index is not None and math.isclose(bounds[index], threshold_s):
        return f"all requests are judged at {duration_text(threshold_s)}, a bound of the engine's histogram"
    nearest = [
        *[bound for bound in bounds if bound <= threshold_s][-1:],
        *[bound for bound in bounds if bound > threshold_s][:1],
    ]
    beside = ", ".join(map(duration_text, nearest)) or "none"
    between = f"{duration_text(threshold_s)} is no bound of the engine's histogram, next to it: {beside}"
    if index is None:
        return f"all requests are not judged: {between}; too far away"
    distance = f"{bounds[index] / threshold_s - 1:+.0%}, {'stricter' if bounds[index] < threshold_s else 'laxer'}"
    return f"all requests are judged at {duration_text(bounds[index])} ({distance}): {between}"
