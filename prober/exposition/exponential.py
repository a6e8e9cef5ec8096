"""Native histograms: sparse exponential buckets of Prometheus's standard schemas.

At schema s a power of two is divided into 2^s buckets; bucket i contains (2^((i − 1)/2^s), 2^(i/2^s)]
(https://prometheus.io/docs/specs/native_histograms/).

Schema 4 (buckets 4.4% wide) is the coarsest at which a quantile is within 5% of the exact one at any position in its bucket: at
schema 3 buckets are 9.1% wide, and an engine with a steady step has all its ITLs at one end of a bucket. Only buckets with
observations are stored: latencies of a probe fill 30 to 80, a factor of a thousand without gaps 160. Above that number, which is
also the default limit of Prometheus's own library, neighbours are merged and the schema is lowered by one.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

SCHEMA = 4
MAX_BUCKETS = 160
MAX_EXPONENT = 1024  # of a float; a bound of this exponent may be infinite
ZERO_S = 2.0**-20  # a bound at every schema: 0.95 µs, below the precision of any timestamp
_WITHIN = [
    2.0 ** (i / (1 << SCHEMA) - 1) for i in range((1 << SCHEMA) + 1)
]  # bounds of the fractions that frexp returns


class Exponential:
    """Counts of observations in seconds. `zero` counts those up to ZERO_S, including negative ones."""

    __slots__ = ("counts", "schema", "zero")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.schema = SCHEMA
        self.zero = 0

    def observe(self, ordered: Sequence[float]) -> None:
        """Count finite values, which ascend: a step for each bucket and not for each value."""
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
        """Yields (empty buckets since the last span, or the index of the first bucket; counts). A span has gaps of up to two."""
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
