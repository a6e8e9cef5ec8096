"""Evidence that ranks have shifted: a mixture of Shiryaev–Roberts e-detectors.

Each component is a bet: a likelihood ratio e of one alternative against the baseline, with mean at most 1 if nothing has
changed. R ← (R + 1)·e then grows by at most 1 per sample on average, and so does any weighted mean of such R: the time until it
first reaches A is at least A samples on average (Shin, Ramdas, Rinaldo, "E-detectors: a nonparametric framework for sequential
change detection", 2023). The alternatives are a shift of the distribution by d standard deviations, with d from the material
change, a heavier tail, and fewer fast samples: in a queue the fastest fifth shows a slowdown that the noise of waiting hides. The
possible error of a finite baseline is subtracted before the bet (`epsilon`), so that "mean at most 1" also holds for the true
distribution, not only the learned one.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass
from math import exp
from statistics import NormalDist

from prober.features.drift.baseline import FLOOR_SHARE, Baseline, scores

# Shifts as multiples of the material change, with weights. A shift counts from half of the smallest one.
# Multiples, weights and guards were chosen by simulation (`bench/drift.py`) for delay at a measured false alarm rate.
# As a slowdown must last three minutes, a bet on a larger shift would find none earlier.
Multiples = tuple[tuple[float, float], ...]
SHIFT_MULTIPLES: Multiples = ((0.5, 0.15), (1.0, 0.25), (2.0, 0.15))
MIN_SHIFT_SDS, MAX_SHIFT_SDS = 0.2, 2.5  # a learned level is no more precise; ranks are bounded
TAILS = ((0.99, 0.04, 0.08), (0.998, 0.03, 0.17))  # (quantile, share above it with a heavier tail, weight)
FLOOR_WEIGHT = 0.2
MAX_FLOOR_GAIN = 10.0  # of a sample that is fast: usual share of them ÷ share after a slowdown
SHARE_DOUBT_ERRORS = 1.5  # standard errors of the share of samples beyond a learned quantile
EPSILON_SDS = 0.05  # error of a learned distribution, without its level; noise and lag of the load look like drift
MAX_WANDER_SDS = 3.0  # largest allowed wander of the level, in its standard deviations


@dataclass(frozen=True, slots=True)
class Mixture:
    """The bets against a baseline.

    unit: 1 / ln(1 + threshold)
    shifts: (weight, d, c) with e = exp(d·z + c)
    tails: (weight, cut, ln e above the cut, ln e below it)
    floors: per fifth, (cut, ln e below the cut, ln e above it), with the stake; empty without a bet on fewer fast samples
    faster: (d, c) of the bet on an improvement, which uses the negative score: the largest shift, as it costs the baseline
    """

    threshold: float
    unit: float
    shifts: tuple[tuple[float, float, float], ...]
    tails: tuple[tuple[float, float, float, float], ...]
    floors: tuple[tuple[float, float, float], ...]
    faster: tuple[float, float]

    @property
    def components(self) -> int:
        """Number of bets: shifts first, then tails, then the floor."""
        return len(self.shifts) + len(self.tails) + 1

    def grow(self, weighed: list[float], z: float, stake: float, floor: float) -> float:
        """Add a score to the evidence in place. weighed: weight × R of each component. Returns their sum.

        stake: exponent of each bet, at most 1, which leaves its mean at most 1 (Jensen)
        floor: ln e of the bet on fewer fast samples; 0 without one
        """
        k, total = 0, 0.0
        for weight, d, c in self.shifts:
            weighed[k] = grown = (weighed[k] + weight) * exp(stake * (d * z + c))
            total += grown
            k += 1
        for weight, cut, above, below in self.tails:
            weighed[k] = grown = (weighed[k] + weight) * exp(stake * (above if z > cut else below))
            total += grown
            k += 1
        if floor:
            weighed[k] = (weighed[k] + FLOOR_WEIGHT) * exp(floor)
        return total + weighed[k]

    def log(self, component: int, z: float) -> float:
        """ln e of one component for a score; of the floor, that of the largest shift."""
        tail = component - len(self.shifts)
        if 0 <= tail < len(self.tails):
            _, cut, above, below = self.tails[tail]
            return above if z > cut else below
        _, d, c = self.shifts[min(component, len(self.shifts) - 1)]
        return d * z + c


def gain(baseline: Baseline, log_shift: float) -> float:
    """Mean change of the normal score, in standard deviations, if every log rises by `log_shift`."""
    by = log_shift * (1 - baseline.correlation)
    gains = []
    for reference in baseline.references:
        table = scores(len(reference))
        picks = range(len(reference) // 200, len(reference), max(1, len(reference) // 100))
        gains.append(sum(table[bisect_right(reference, reference[i] + by)] - table[i] for i in picks) / len(picks))
    return sum(gains) / len(gains)


def mixture(baseline: Baseline, material: float, threshold: float, multiples: Multiples = SHIFT_MULTIPLES) -> Mixture:
    """Bets that detect a slowdown by `material` (0.2: 20%) against a baseline.

    threshold: evidence that raises an alarm; multiples: of the shift by `material`, with their weights

    A level that wanders by w standard deviations multiplies the alarm rate of a bet on d by
    exp(2·(w·ln A/d)² − 2·ε·ln A/d), which is 1 for ε = w²·ln A/d.
    """
    log_shift = math.log1p(material)
    score_shift = gain(baseline, log_shift)
    wander = baseline.wander * score_shift / log_shift
    smallest = min(max(score_shift, MIN_SHIFT_SDS), MAX_SHIFT_SDS)
    samples = min(map(len, baseline.references))
    shifts: list[tuple[float, float, float]] = []
    for multiple, weight in multiples:
        d = min(multiple * smallest, MAX_SHIFT_SDS)
        epsilon = EPSILON_SDS + min(wander * wander * math.log(threshold) / d, MAX_WANDER_SDS * wander)
        shifts.append((weight, d, -d * epsilon - d * d / 2))
    tails = []
    for q, grown, weight in TAILS:
        share = 1 - q + SHARE_DOUBT_ERRORS * math.sqrt(q * (1 - q) / samples)
        tails.append((weight, NormalDist().inv_cdf(q) + wander, *_logs(grown, share)))
    floors = tuple(_floor(baseline, fifth, log_shift) for fifth in range(len(baseline.floors)))
    return Mixture(threshold, 1 / math.log1p(threshold), tuple(shifts), tuple(tails), floors, shifts[-1][1:])


def _floor(baseline: Baseline, fifth: int, log_shift: float) -> tuple[float, float, float]:
    """The bet on fewer fast samples: below the limit of the fastest, raised by half a shift, by which the level may wander."""
    residuals, inflation = baseline.floors[fifth], baseline.floor_inflations[fifth]
    cut = residuals[int(FLOOR_SHARE * len(residuals))] + log_shift / 2
    samples = sum(map(len, baseline.references)) / len(baseline.references)
    usual = min(bisect_right(residuals, cut), len(residuals) - 1) / len(residuals)
    usual -= SHARE_DOUBT_ERRORS * math.sqrt(usual * (1 - usual) * inflation / samples)
    shifted = max(bisect_right(residuals, cut - log_shift) / len(residuals), usual / MAX_FLOOR_GAIN)
    below, above = _logs(shifted, usual)
    return cut, below / inflation, above / inflation


def _logs(share: float, usual: float) -> tuple[float, float]:
    """ln e of a sample among a share that was `usual`, and of one that is not."""
    return math.log(share / usual), math.log((1 - share) / (1 - usual))
