"""Evidence that ranks have shifted: a mixture of Shiryaev–Roberts e-detectors.

Each component is a bet: a likelihood ratio e of one alternative against the baseline, with mean at most 1 while nothing has
changed. R ← (R + 1)·e then grows by at most 1 a sample on average, and so does any weighted mean of such R: the time until it
first reaches A is at least A samples on average (Shin, Ramdas, Rinaldo, "E-detectors: a nonparametric framework for sequential
change detection", 2023). The alternatives: the whole distribution shifted by d standard deviations, d from the change that is
material; and only the tail grown. What a finite baseline does not know is taken off before the bet (`epsilon`), so that "mean
at most 1" holds for the true distribution too and not only for the learnt one.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass
from math import exp
from statistics import NormalDist

from prober.features.drift.baseline import Baseline, scores

# Shifts as multiples of the material change's, with their weights; half of the smallest is where a shift begins to count.
# Multiples, weights and guards were chosen by simulation (`bench/drift.py`) for delay at a measured rate of false alarms.
MULTIPLES = ((0.5, 0.15), (1.0, 0.30), (2.0, 0.20), (4.0, 0.10))
MATERIAL = 1  # place of the material change's own
FASTER = 2  # and of the bet on an improvement, which counts from a material one up: it costs the baseline
SMALLEST, LARGEST = 0.2, 2.5  # of a material change in standard deviations: a learnt level is coarser; ranks end
TAILS = ((0.99, 0.04, 0.08), (0.998, 0.03, 0.17))  # (quantile, share above it once the tail has grown, weight)
TAIL_DOUBT = 1.5  # standard errors of the share above a learnt quantile
EPSILON = 0.02  # standard deviations: what a learnt distribution is off by beside its level
LOAD_EPSILON = 0.035  # the same where load explains: what smoothing leaves of its noise, and its lag, look like drift
FARTHEST = 3.0  # standard deviations of its own that a wander is taken to go at most


@dataclass(frozen=True, slots=True)
class Mixture:
    """The bets against one baseline."""

    threshold: float
    unit: float  # 1 / ln(1 + threshold)
    shifts: tuple[tuple[float, float, float], ...]  # weight, d, c: e = exp(d·z + c)
    tails: tuple[tuple[float, float, float, float], ...]  # weight, cut, e above it, e below
    faster: tuple[float, float]  # d, c of the one bet on an improvement, by the score's negative

    @property
    def components(self) -> int:
        """Shifts first, then tails."""
        return len(self.shifts) + len(self.tails)

    def grow(self, weighed: list[float], z: float) -> float:
        """One score into the evidence, in place: for every component weight × R. Returns its sum, the mixture's."""
        k, total = 0, 0.0
        for weight, d, c in self.shifts:
            weighed[k] = grown = (weighed[k] + weight) * exp(d * z + c)
            total += grown
            k += 1
        for weight, cut, above, below in self.tails:
            weighed[k] = grown = (weighed[k] + weight) * (above if z > cut else below)
            total += grown
            k += 1
        return total

    def log(self, component: int, z: float) -> float:
        """ln e of one component for a score."""
        if component < len(self.shifts):
            _, d, c = self.shifts[component]
            return d * z + c
        _, cut, above, below = self.tails[component - len(self.shifts)]
        return math.log(above if z > cut else below)


def gain(baseline: Baseline, log_shift: float) -> float:
    """Mean change of the normal score, in its standard deviations, when the log of every sample rises by `log_shift`."""
    reference = baseline.reference
    table = scores(len(reference))
    by = log_shift * (1 - baseline.correlation)
    picks = range(len(reference) // 200, len(reference), max(1, len(reference) // 100))
    return sum(table[bisect_right(reference, reference[i] + by)] - table[i] for i in picks) / len(picks)


def mixture(baseline: Baseline, material: float, threshold: float) -> Mixture:
    """The bets that find a slowdown by the share `material` (0.2: 20%) against this baseline, alarming at `threshold`.

    A level that wanders by w standard deviations multiplies the rate at which a bet on d alarms by
    exp(2·(w·ln A/d)² − 2·ε·ln A/d): it stays what it was for ε = w²·ln A/d.
    """
    log_shift = math.log1p(material)
    reached = gain(baseline, log_shift)
    wander = baseline.wander * reached / log_shift
    smallest = min(max(reached, SMALLEST), LARGEST)
    known = LOAD_EPSILON if baseline.factor == "load" else EPSILON
    shifts: list[tuple[float, float, float]] = []
    for multiple, weight in MULTIPLES:
        d = min(multiple * smallest, LARGEST)
        epsilon = known + min(wander * wander * math.log(threshold) / d, FARTHEST * wander)
        shifts.append((weight, d, -d * epsilon - d * d / 2))
    tails = []
    for q, grown, weight in TAILS:
        share = 1 - q + TAIL_DOUBT * math.sqrt(q * (1 - q) / len(baseline.reference))
        tails.append((weight, NormalDist().inv_cdf(q) + wander, grown / share, (1 - grown) / (1 - share)))
    return Mixture(threshold, 1 / math.log1p(threshold), tuple(shifts), tuple(tails), shifts[FASTER][1:])
