"""Due times of an open loop: absolute, in nanoseconds, and independent of when earlier requests end.

Times are accumulated as floats of nanoseconds since `start_ns` and rounded individually, so rounding errors do not add up.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from itertools import count
from random import Random


def derive_seed(*parts: str) -> int:
    """Derive a seed (64 bits of SHA-256 over the length-prefixed parts), distinct for each instance, target and workload."""
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])


def poisson(rate_per_s: float, rng: Random, start_ns: int) -> Iterator[int]:
    """Yields due times of a Poisson process: independent exponential gaps with mean 1/rate."""
    mean_ns, at = 1e9 / rate_per_s, 0.0
    while True:
        at -= mean_ns * math.log(1.0 - rng.random())
        yield start_ns + round(at)


def constant(rate_per_s: float, start_ns: int) -> Iterator[int]:
    """Yields due times with equal gaps of 1/rate."""
    return (start_ns + round(number * 1e9 / rate_per_s) for number in count(1))


def gamma(rate_per_s: float, shape: float, rng: Random, start_ns: int) -> Iterator[int]:
    """Yields due times with gamma-distributed gaps of mean 1/rate and squared coefficient of variation 1/shape.

    A `shape` below 1 is burstier than Poisson.
    """
    scale_ns, at = 1e9 / rate_per_s / shape, 0.0
    while True:
        at += rng.gammavariate(shape, scale_ns)
        yield start_ns + round(at)


def replay(offsets_ns: Sequence[int], start_ns: int, speed: float = 1.0) -> Iterator[int]:
    """Yield recorded times, repeated endlessly with one mean gap between repetitions; all gaps are divided by `speed`."""
    first, last = offsets_ns[0], offsets_ns[-1]
    lap_ns = (last - first) + max(1, (last - first) // max(1, len(offsets_ns) - 1))
    lap = 0
    while True:
        for offset in offsets_ns:
            yield start_ns + round((lap * lap_ns + offset) / speed)
        lap += 1
