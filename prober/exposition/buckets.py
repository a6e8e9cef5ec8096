"""Bucket bounds of classic histograms: fine around SLO thresholds, each threshold a bound, and a limited number.

Native histograms: sparse exponential buckets of Prometheus's standard schemas.

At schema s a power of two is divided into 2^s buckets; bucket i contains (2^((i − 1)/2^s), 2^(i/2^s)]
(https://prometheus.io/docs/specs/native_histograms/).

Schema 4 (buckets 4.4% wide) is the coarsest at which a quantile is within 5% of the exact one at any position in its bucket: at
schema 3 buckets are 9.1% wide, and an engine with a steady step has all its ITLs at one end of a bucket. Only buckets with
observations are stored: latencies of a probe fill 30 to 80, a factor of a thousand without gaps 160. Above that number, which is
also the default limit of Prometheus's own library, neighbours are merged and the schema is lowered by one.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache

SCHEMA = 4
MAX_BUCKETS = 160
MAX_EXPONENT = 1024  # exponent of the largest float; a bound with this exponent may be infinite
ZERO_S = 2.0**-20  # a bound at every schema: 0.95 µs, below the precision of any timestamp
_WITHIN = [
    2.0 ** (i / (1 << SCHEMA) - 1) for i in range((1 << SCHEMA) + 1)
]  # bounds for the fractions that frexp returns


class Exponential:
    """Counts of observations in seconds. `zero` counts those up to ZERO_S, including negative ones."""

    __slots__ = ("counts", "schema", "zero")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.schema = SCHEMA
        self.zero = 0

    def observe(self, ordered: Sequence[float]) -> None:
        """Count finite values, given in ascending order. The cost is a step for each bucket, not for each value."""
        counts, lower = self.counts, SCHEMA - self.schema
        start, end = bisect_right(ordered, ZERO_S), len(ordered)
        self.zero += start
        while start < end:
            fraction, exponent = math.frexp(ordered[start])
            within = bisect_left(_WITHIN, fraction)
            upper = math.ldexp(_WITHIN[within], exponent) if exponent < MAX_EXPONENT else math.inf
            after = bisect_right(ordered, upper, start)
            # 2^lower buckets of schema 4 are merged into one; −(−x >> n) rounds up, because bounds are upper bounds.
            index = -(-(within + ((exponent - 1) << SCHEMA)) >> lower)
            counts[index] = counts.get(index, 0) + after - start
            start = after
        while len(self.counts) > MAX_BUCKETS:
            self._halve()

    def _halve(self) -> None:
        counts: dict[int, int] = {}
        for index, count in self.counts.items():
            wider = -(-index >> 1)
            counts[wider] = counts.get(wider, 0) + count
        self.counts, self.schema = counts, self.schema - 1

    def spans(self) -> Iterator[tuple[int, list[int]]]:
        """Yields (empty buckets since the last span, or index of the first bucket; counts). Up to two empty buckets are in a span."""
        run: list[int] = []
        start = after = 0
        for index in sorted(self.counts):
            missing = index - after
            if run and missing > 2:
                yield start, run
                run = []
            if run:
                run += [0] * missing
            else:
                start = missing
            run.append(self.counts[index])
            after = index + 1
        if run:
            yield start, run


MAX_BOUNDS = 60
FINE = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 1.0)  # for the prober's own errors
COARSE = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0)
MEDIUM = (0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.5, 0.8, 1.2, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 30.0)  # 5 per decade
_RANGES = {"request": (0.005, 100.0), "token": (0.001, 10.0)}


def bounds(kind: str, thresholds: Iterable[float] = (), limit: int = MAX_BOUNDS) -> tuple[float, ...]:
    """Bucket bounds for `kind` ("request": 5 ms to 100 s, "token": 1 ms to 10 s): ten per decade, 26% wide.

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

    buckets: (upper bound, number of observations up to it), ending with +Inf. Rates over scrapes can yield a count below its
    predecessor; it is raised to that.

    Within a bucket, values are spread evenly on the log scale. Values above the last finite bound are set to it; the first bucket
    starts at half of its bound.
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
    """Sort key: distance of a bound to the nearest threshold; of two equal distances, the larger bound counts as farther."""
    return (min((abs(math.log(bound / t)) for t in thresholds), default=abs(math.log(bound))), bound)


def _rounded(value: float) -> float:
    """The value with three significant digits, so that labels are short and the same everywhere."""
    return float(f"{value:.3g}")
