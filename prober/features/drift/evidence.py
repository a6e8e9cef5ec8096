"""Evidence that ranks have shifted: a mixture of Shiryaev–Roberts e-detectors.

Each component is a bet: a likelihood ratio e of one alternative against the baseline, with mean at most 1 if nothing has
changed. R ← (R + 1)·e then grows by at most 1 per sample on average, and so does any weighted mean of such R: the time until it
first reaches A is at least A samples on average (Shin, Ramdas, Rinaldo, "E-detectors: a nonparametric framework for sequential
change detection", 2023). The alternatives are a shift of the distribution by d standard deviations, with d from the material
change, and a heavier tail. The possible error of a finite baseline is subtracted before the bet (`epsilon`), so that "mean at most
1" also holds for the true distribution, not only the learned one.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass
from math import exp
from statistics import NormalDist

from prober.features.drift.baseline import Baseline, scores

# Shifts as multiples of the material change, with weights. A shift counts from half of the smallest one.
# Multiples, weights and guards were chosen by simulation (`bench/drift.py`) for delay at a measured false alarm rate.
SHIFT_MULTIPLES = ((0.5, 0.15), (1.0, 0.30), (2.0, 0.20), (4.0, 0.10))
IMPROVEMENT_INDEX = 2  # index of the shift for the bet on an improvement: an improvement costs the baseline
MIN_SHIFT_SDS, MAX_SHIFT_SDS = 0.2, 2.5  # a learned level is no more precise; ranks are bounded
TAILS = ((0.99, 0.04, 0.08), (0.998, 0.03, 0.17))  # (quantile, share above it with a heavier tail, weight)
TAIL_DOUBT_ERRORS = 1.5  # standard errors of the share above a learned quantile
EPSILON_SDS = 0.02  # error of a learned distribution, without its level
LOAD_EPSILON_SDS = 0.035  # the same with load as factor: its remaining noise and its lag look like drift
MAX_WANDER_SDS = 3.0  # largest allowed wander of the level, in its standard deviations


@dataclass(frozen=True, slots=True)
class Mixture:
    """The bets against a baseline.

    unit: 1 / ln(1 + threshold)
    shifts: (weight, d, c) with e = exp(d·z + c)
    tails: (weight, cut, e above the cut, e below it)
    faster: (d, c) of the bet on an improvement, which uses the negative score
    """

    threshold: float
    unit: float
    shifts: tuple[tuple[float, float, float], ...]
    tails: tuple[tuple[float, float, float, float], ...]
    faster: tuple[float, float]

    @property
    def components(self) -> int:
        """Number of bets: shifts first, then tails."""
        return len(self.shifts) + len(self.tails)

    def grow(self, weighed: list[float], z: float, stake: float) -> float:
        """Add a score to the evidence in place. weighed: weight × R of each component. Returns their sum.

        stake: exponent of each bet, at most 1, which leaves its mean at most 1 (Jensen)
        """
        k, total = 0, 0.0
        for weight, d, c in self.shifts:
            weighed[k] = grown = (weighed[k] + weight) * exp(stake * (d * z + c))
            total += grown
            k += 1
        for weight, cut, above, below in self.tails:
            ratio = above if z > cut else below
            weighed[k] = grown = (weighed[k] + weight) * (ratio if stake == 1 else ratio**stake)
            total += grown
            k += 1
        return total

    def return_log(self, z: float) -> float:
        """ln(likelihood ratio) of the baseline against the smallest shift that matters, without the bets' guards.

        Its mean is 0 if the true shift is half of that shift.
        """
        d = self.shifts[0][1]
        return d * d / 2 - d * z

    def log(self, component: int, z: float) -> float:
        """ln e of one component for a score."""
        if component < len(self.shifts):
            _, d, c = self.shifts[component]
            return d * z + c
        _, cut, above, below = self.tails[component - len(self.shifts)]
        return math.log(above if z > cut else below)


def gain(baseline: Baseline, log_shift: float) -> float:
    """Mean change of the normal score, in standard deviations, if every log rises by `log_shift`."""
    by = log_shift * (1 - baseline.correlation)
    gains = []
    for reference in baseline.references:
        table = scores(len(reference))
        picks = range(len(reference) // 200, len(reference), max(1, len(reference) // 100))
        gains.append(sum(table[bisect_right(reference, reference[i] + by)] - table[i] for i in picks) / len(picks))
    return sum(gains) / len(gains)


def mixture(baseline: Baseline, material: float, threshold: float) -> Mixture:
    """Bets that detect a slowdown by `material` (0.2: 20%) against a baseline. threshold: evidence that raises an alarm

    A level that wanders by w standard deviations multiplies the alarm rate of a bet on d by
    exp(2·(w·ln A/d)² − 2·ε·ln A/d), which is 1 for ε = w²·ln A/d.
    """
    log_shift = math.log1p(material)
    score_shift = gain(baseline, log_shift)
    wander = baseline.wander * score_shift / log_shift
    smallest = min(max(score_shift, MIN_SHIFT_SDS), MAX_SHIFT_SDS)
    samples = min(map(len, baseline.references))
    baseline_error = LOAD_EPSILON_SDS if baseline.factor == "load" else EPSILON_SDS
    if baseline.cuts:
        baseline_error += EPSILON_SDS  # a reference has a fifth of the samples
    shifts: list[tuple[float, float, float]] = []
    for multiple, weight in SHIFT_MULTIPLES:
        d = min(multiple * smallest, MAX_SHIFT_SDS)
        epsilon = baseline_error + min(wander * wander * math.log(threshold) / d, MAX_WANDER_SDS * wander)
        shifts.append((weight, d, -d * epsilon - d * d / 2))
    tails = []
    for q, grown, weight in TAILS:
        share = 1 - q + TAIL_DOUBT_ERRORS * math.sqrt(q * (1 - q) / samples)
        tails.append((weight, NormalDist().inv_cdf(q) + wander, grown / share, (1 - grown) / (1 - share)))
    return Mixture(threshold, 1 / math.log1p(threshold), tuple(shifts), tuple(tails), shifts[IMPROVEMENT_INDEX][1:])
