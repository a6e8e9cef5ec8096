"""Events of an SLO among all requests of an engine, read from the histogram or the counters on its metrics page.

A histogram counts observations up to each bound, and nothing between two bounds. So the nearest bound replaces the threshold:
the count is exact for that bound, and nothing is interpolated.

Success is judged by counters. A failure may stand in two of them, the engine's own and that of its HTTP server, and nothing tells which
ones do: between two readings the larger of both counts, so that no failure counts twice.
"""

import math
from dataclasses import replace

from prober.config.units import duration_text
from prober.measure.engine_signals import EngineHistogram, EngineSignals
from prober.measure.objective import JudgedStream, Slo

_FAILURES = ("requests_failed_total", "http_errors_total")
MAX_DISTANCE = 1.6  # between threshold and bound; bounds of engines are up to 2.5 apart
# The lengths of users' answers are unknown. These are mean and maximum of the built-in workload `chat`; only ITL needs them.
STREAM = JudgedStream(target="", workload="", rate_per_s=0.0, mean_tokens=274.0, max_tokens=2_000)


def _counters(signals: EngineSignals) -> set[str]:
    names = ("requests_judged_total", "requests_failed_total", "requests_rejected_total", "http_errors_total")
    return {name for name in names if getattr(signals, name) is not None}


def carried(before: EngineSignals, now: EngineSignals) -> EngineSignals:
    """The reading with the earlier values of counters of success that it lacks: a page may lose a series for a moment."""
    return replace(now, **{name: getattr(before, name) for name in _counters(before) - _counters(now)})


def counts_failures(signals: EngineSignals) -> bool:
    """True if the page tells which requests failed, of how many."""
    return "requests_judged_total" in (known := _counters(signals)) and not known.isdisjoint(_FAILURES)


def gained(slo: Slo, before: EngineSignals, now: EngineSignals) -> tuple[float, float] | None:
    """(events, bad events) between two readings of one epoch; None if the page does not tell."""
    if slo.threshold_s is None:
        if not (counts_failures(before) and counts_failures(now)):
            return None
        # One that both have: after a restart a counter that appears late goes on from its total of before.
        gains = {name: getattr(now, name) - getattr(before, name) for name in _counters(now) & _counters(before)}
        own = gains.get("requests_failed_total", 0.0) + gains.get("requests_rejected_total", 0.0)
        bad = max(own, gains.get("http_errors_total", 0.0))
        return max(bad, gains["requests_judged_total"] + bad - own), bad
    last, histogram = histogram_of(slo, before), histogram_of(slo, now)
    index = nearest_bound(slo, histogram) if histogram else None
    if histogram is None or last is None or index is None or last.bounds != histogram.bounds:
        return None
    events, good = (histogram.counts[at] - last.counts[at] for at in (-1, index))
    return events, max(0.0, events - good)


def judged_text(slo: Slo, signals: EngineSignals) -> str:
    """Sentence about how all requests are judged; "" if exactly as the SLO says."""
    if slo.threshold_s is None:
        why = "all requests are not judged: the engine's page does not tell which of its requests failed"
        return "" if counts_failures(signals) else why
    return "" if bound_of(slo, signals) == slo.threshold_s else bound_text(slo, histogram_of(slo, signals))


def bound_of(slo: Slo, signals: EngineSignals) -> float | None:
    """The bound of the engine's histogram that stands for the threshold; None if there is none."""
    histogram = histogram_of(slo, signals) if slo.threshold_s is not None else None
    index = nearest_bound(slo, histogram) if histogram else None
    return histogram.bounds[index] if histogram and index is not None else None


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
