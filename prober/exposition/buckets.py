"""Bucket bounds of classic histograms: fine around SLO thresholds, each threshold a bound, and a limited number."""

import math
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache

MAX_BOUNDS = 60
FINE = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 1.0)  # of the prober's own errors
COARSE = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0)
MEDIUM = (0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.5, 0.8, 1.2, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 30.0)  # five a decade
_RANGES = {"request": (0.005, 100.0), "token": (0.001, 10.0)}


def bounds(kind: str, thresholds: Iterable[float] = (), limit: int = MAX_BOUNDS) -> tuple[float, ...]:
    """Returns ten bounds per decade (26% wide) over the range of `kind` ("request": 5 ms to 100 s, "token": 1 ms to 10 s).

    Within a factor of two of a threshold buckets are 12% wide, and each threshold is a bound. Above `limit` bounds, those
    farthest from any threshold are removed, every other one first; thresholds are kept. Raises ValueError for more than
    `limit` thresholds.
    """
    return _bounds(kind, frozenset(thresholds), limit)


@lru_cache(maxsize=256)
def _bounds(kind: str, thresholds: frozenset[float], limit: int) -> tuple[float, ...]:
    low, high = _RANGES[kind]
    first, last = round(10 * math.log10(low)), round(10 * math.log10(high))
    if len(thresholds) > limit:
        raise ValueError(
            f"{len(thresholds)} different thresholds, but a histogram has at most {limit} bounds; use fewer"
        )
    all_bounds = {_rounded(10 ** (step / 10)) for step in range(first, last + 1)}
    for threshold in sorted(thresholds):
        near = {_rounded(threshold * 10 ** (step / 20)) for step in range(-6, 7)}
        all_bounds = {bound for bound in all_bounds if not threshold / 2.05 < bound < threshold * 2.05} | near
    all_bounds |= thresholds
    while len(all_bounds) > limit:
        loose = sorted(all_bounds - thresholds, key=lambda bound: _distance(bound, thresholds))
        all_bounds -= set(loose[-1 : -2 * (len(all_bounds) - limit) - 1 : -2])
    return tuple(sorted(all_bounds))


def representatives(buckets: Sequence[tuple[float, float]], count: int) -> list[float]:
    """Returns `count` values at evenly spaced quantiles of a histogram, shuffled so that they have no trend.

    buckets: (upper bound, observations up to it), ending with +Inf. Decreasing counts, which rates over scrapes can have, are
    treated as constant.

    Within a bucket, values are spread evenly on the log scale. Above the last finite bound they equal it; the first bucket starts
    at half of its bound.
    """
    total = buckets[-1][1]
    values: list[float] = []
    index, below, reached = 0, 0.0, buckets[0][1]
    for rank in ((i + 0.5) / count * total for i in range(count)):
        while reached < rank and index < len(buckets) - 1:
            index += 1
            below, reached = reached, max(reached, buckets[index][1])
        upper = buckets[index][0]
        lower = buckets[index - 1][0] if index else upper / 2
        if math.isinf(upper):
            values.append(lower)
            continue
        share = (rank - below) / (reached - below) if reached > below else 0.5
        values.append(lower * (upper / lower) ** min(1.0, share))
    stride = next(step for step in range(round(count * 0.618), count + 2) if math.gcd(step, count) == 1)
    return [values[i * stride % count] for i in range(count)]


def _distance(bound: float, thresholds: AbstractSet[float]) -> tuple[float, float]:
    """Distance to the nearest threshold. Of equal distances the larger bound counts as farther."""
    return (min((abs(math.log(bound / t)) for t in thresholds), default=abs(math.log(bound))), bound)


def _rounded(value: float) -> float:
    """Three significant digits, so that labels are short and the same everywhere."""
    return float(f"{value:.3g}")
