"""What production's own latencies say about the knee: windows of the engine's page, at its own mix, that cost no request.

Near the knee the share of slow requests is p = p₀·(c + (1 − c)·u^s): p₀ is the allowed share, u the load ÷ the knee, s the slope of the
fitted engine, and c a share that is slow at any load (as in `knee`). The knee by sweeps is the prior, the numbers of slow requests of
the busiest windows of a week the likelihood. At half of the knee they say next to nothing, near it more than a sweep.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log, sqrt
from typing import NamedTuple

from prober.features.capacity.demand import WINDOW_S
from prober.features.capacity.forecast import Load
from prober.measure.engine_signals import EngineHistogram, EngineSignals
from prober.measure.objective import Slo

MAX_WINDOWS, MAX_AGE_S = 48, 7 * 86_400.0
MIN_EVENTS = 20  # in a window
PER_CLUSTER = 3.0  # neighbouring requests are slow together
# Share of windows in which something else was wrong, and the likelihood of any number of slow requests then.
DISTURBED, UNLIKELY = 0.1, 0.05
SLOPES = (2.0, 2.8, 4.0, 5.6, 8.0, 11.0, 16.0, 23.0, 32.0)  # where no engine was fitted
SLOPE_FACTORS = ((0.5, 0.25), (0.7, 0.7), (1.0, 1.0), (1.4, 0.7), (2.0, 0.25))  # on a fitted slope, with their weights
CONSTANT_SHARES = ((0.0, 1.0), (0.2, 0.5), (0.5, 0.3))  # of p₀, with their weights
EQUAL = 1 + 1e-9  # rounding
STEPS, REACH = 12, 4.0  # of the grid to either side of the prior, and its end in standard errors
MIN_SHARE, MAX_SHARE, MAX_EXPONENT = 1e-6, 0.95, 30.0


class Window(NamedTuple):
    """Production in WINDOW_S. counts: by SLO"""

    unix_s: float
    load: Load
    counts: Mapping[str, "Slow"]


class Slow(NamedTuple):
    """Observations, and at least and at most so many of them slow: a histogram does not tell if the threshold is none of its bounds."""

    requests: float
    least: float
    most: float

    def plus(self, other: "Slow") -> "Slow":
        """Both together."""
        return Slow(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass(slots=True)
class Windows:
    """The busiest windows of a week of one engine."""

    kept: list[Window] = field(default_factory=list)
    _covered_s: float = 0.0
    _counts: dict[str, Slow] = field(default_factory=dict)

    def add(self, slos: Sequence[Slo], before: EngineSignals, now: EngineSignals, span_s: float) -> bool:
        """Count what came in `span_s` between two readings. Returns True if a window is full, to be kept by `keep`."""
        self._covered_s += span_s
        for slo in slos:
            then, latest = (getattr(signals, f"{slo.signal}_seconds", None) for signals in (before, now))
            if slo.threshold_s and then is not None and latest is not None and then.bounds == latest.bounds:
                counted = self._counts.get(slo.name, Slow(0.0, 0.0, 0.0))
                self._counts[slo.name] = counted.plus(slow(then, latest, slo.threshold_s))
        return self._covered_s >= WINDOW_S

    def keep(self, unix_s: float, load: Load | None) -> None:
        """Keep the full window, unless its load is unknown, and begin another."""
        if load is not None:
            recent = [of for of in self.kept if of.unix_s > unix_s - MAX_AGE_S]
            busiest = sorted([*recent, Window(unix_s, load, self._counts)], key=lambda of: of.load.tokens_per_s)
            self.kept = busiest[-MAX_WINDOWS:]
        self._covered_s, self._counts = 0.0, {}


def slow(before: EngineHistogram, now: EngineHistogram, threshold_s: float) -> Slow:
    """What a histogram counted between two readings."""
    below = [after - then for then, after in zip(before.counts, now.counts, strict=True)]
    up_to = [counts for bound_s, counts in zip(now.bounds, below, strict=False) if bound_s <= threshold_s * EQUAL]
    within = [counts for bound_s, counts in zip(now.bounds, below, strict=False) if bound_s >= threshold_s / EQUAL]
    return Slow(below[-1], below[-1] - within[0] if within else 0.0, below[-1] - (up_to[-1] if up_to else 0.0))


def shift(rows: Sequence[tuple[float, Slow]], allowed: float, slope: float | None, error: float) -> tuple[float, float]:
    """(by how much the log of the knee is above its prior, standard error).

    rows: (log of the load ÷ the knee by sweeps, what was slow) by window
    slope: dlog share ÷ dlog load at the knee; None: unknown
    error: standard error of the log of the prior
    """
    known = [row for row in rows if row[1].requests >= MIN_EVENTS]
    if not known or error <= 0:
        return 0.0, error
    slopes = [(slope * factor, weight) for factor, weight in SLOPE_FACTORS] if slope else [(of, 1.0) for of in SLOPES]
    shapes = [(of, share, a * b) for of, a in slopes for share, b in CONSTANT_SHARES]
    shifts = [error * REACH * step / STEPS for step in range(-STEPS, STEPS + 1)]
    weights = []
    for moved in shifts:
        total = 0.0
        for exponent, constant, weight in shapes:
            log_product = 0.0
            for log_use, seen in known:
                grown = exp(min(MAX_EXPONENT, exponent * (log_use - moved)))
                likelihood = _likelihood(seen, allowed * (constant + (1 - constant) * grown))
                log_product += log((1 - DISTURBED) * likelihood + DISTURBED * UNLIKELY)
            total += weight * exp(log_product)
        weights.append(total * exp(-((moved / error) ** 2) / 2))
    mean = sum(weight * of for weight, of in zip(weights, shifts, strict=True)) / sum(weights)
    variance = sum(weight * (of - mean) ** 2 for weight, of in zip(weights, shifts, strict=True)) / sum(weights)
    return mean, sqrt(variance)


def _likelihood(seen: Slow, share: float) -> float:
    """Binomial likelihood of what was seen at a share of slow requests, relative to that at the likeliest share."""
    share = min(MAX_SHARE, max(MIN_SHARE, share))
    bad = min(seen.most, max(seen.least, share * seen.requests))
    best = min(MAX_SHARE, max(MIN_SHARE, bad / seen.requests))
    logs = bad * log(share / best) + (seen.requests - bad) * log((1 - share) / (1 - best))
    return exp(logs / PER_CLUSTER)
