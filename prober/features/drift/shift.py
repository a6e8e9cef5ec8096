"""Size of an active drift: ratios of quantiles to those of the baseline at equal load, with intervals that include its uncertainty.

Only samples since the alarm count. Earlier ones raised it because they were slow: with them the size would be too large.
"""

import math
from collections.abc import Sequence

from prober.features.drift.baseline import QUANTILES, Baseline
from prober.features.drift.blocks import BLOCK_COUNT, BLOCK_SAMPLES
from prober.features.drift.state import UNJUDGED, Drift, Shift
from prober.statistics.quantiles import MIN_SAMPLES_BY_QUANTILE

NORMAL_95 = 1.96


def shifts(state: Drift) -> list[Shift]:
    """Shifts of the quantiles since the alarm, if there are enough samples; empty without an alarm, or where nothing is judged.

    At most the latest RING_SAMPLES count. Intervals are order statistics, widened for the correlation of the samples, for the finite
    baseline, and for the error and the wander of its level.
    """
    alarm, baseline = state.alarm, state.baseline
    if alarm is None or baseline is None or state.load_state in UNJUDGED:
        return []
    places = list(state.ring.latest(alarm.after))
    residuals = [state.ring.residuals[at] for at in places]
    fifths = [state.ring.fifths[at] for at in places] if baseline.cuts else [0] * len(places)
    # Of the expected log: of the model at the present load or hour, and of the level that wanders.
    of_model = baseline.expected(state.last_s, state.load or 0.0)[1] / (1 - baseline.correlation)
    error = math.hypot(of_model, baseline.wander) if of_model < math.inf else baseline.wander
    sizes = []
    for index, q in enumerate(QUANTILES):
        if len(places) >= MIN_SAMPLES_BY_QUANTILE[q]:
            levels = [of_fifth[index] for of_fifth in baseline.quantiles]
            moved = [residual - levels[fifth] for residual, fifth in zip(residuals, fifths, strict=True)]
            size = _shift(moved, q, baseline, error)
            if size is not None:
                sizes.append(size)
    return sizes


def _shift(moved: Sequence[float], q: float, baseline: Baseline, error: float) -> Shift | None:
    """Shift of one quantile. moved: logs of samples, newest first, less that quantile of the baseline; None: too few samples."""
    ordered, n = sorted(moved), len(moved)
    estimate = ordered[math.ceil(q * n) - 1]
    usual = (1 + baseline.correlation) / (1 - baseline.correlation) * max(baseline.inflations)
    dependence = max(usual, _dependence([value <= estimate for value in moved], q))
    learnt = BLOCK_COUNT * BLOCK_SAMPLES / len(baseline.quantiles)
    spread = NORMAL_95 * math.sqrt(q * (1 - q) * n * (dependence + usual * n / learnt))
    low, high = math.floor(n * q - spread), math.ceil(n * q + spread) + 1
    if low < 1 or high > n:
        return None
    below = math.hypot(estimate - ordered[low - 1], NORMAL_95 * error)
    above = math.hypot(ordered[high - 1] - estimate, NORMAL_95 * error)
    return Shift(q, math.exp(estimate), math.exp(estimate - below), math.exp(estimate + above), n)


def _dependence(is_below: Sequence[bool], q: float) -> float:
    """Variance of the share of samples below a quantile ÷ that of independent samples, from the means of batches."""
    size = max(2, math.isqrt(len(is_below)))
    batches = [sum(is_below[i : i + size]) for i in range(0, len(is_below) - size + 1, size)]
    return sum((count - size * q) ** 2 for count in batches) / (len(batches) * size * q * (1 - q))
