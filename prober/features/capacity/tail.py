"""Calibration of a fitted service by the tail of the observed TTFTs.

The knee depends on the few slowest requests, the fit on the many typical ones. So the replayed TTFTs are multiplied by the factor
that puts as many of them as of the observed ones between levels below and above the threshold. Counts need no request to be
replayed in step, which is impossible as the times of the background's arrivals are unknown.
"""

from collections.abc import Sequence

import numpy as np

from prober.features.capacity.engine_fit import Tail
from prober.features.capacity.observations import Array

LEVELS = np.array((0.2, 0.3, 0.45, 0.65, 1.0))  # of the threshold, between which TTFTs are counted
LOG_FACTORS = np.arange(-1.2, 1.21, 0.04)
PRIOR_SPREAD = 0.3  # of the log factor
PER_CLUSTER = 3.0  # neighbouring requests are late together
PARTS = 3  # of the record by time, in each of which the counts are compared
MIN_EXPECTED = 0.02  # of a cell: nothing is impossible


def calibrate(observed: Array, is_bound: Array, replayed: Sequence[Array]) -> Tail:
    """Tail from TTFT ÷ threshold of n requests by due time.

    observed: shape (n,); is_bound: of requests without a first token, for which it is a lower bound
    replayed: of one or more replays, each of shape (n,); infinite where the replay ends before
    """
    draws = np.stack(replayed)
    known = np.where(is_bound, np.maximum(observed, np.median(draws, axis=0)), observed)
    counts = _counts(known[None])
    log_likelihoods = []
    for log_factor in LOG_FACTORS:
        expected = np.maximum(MIN_EXPECTED, _counts(draws * np.exp(log_factor)))
        terms = counts * np.log(expected) - expected
        log_likelihoods.append(float(terms.sum()) / PER_CLUSTER - 0.5 * (log_factor / PRIOR_SPREAD) ** 2)
    weights = np.exp(np.array(log_likelihoods) - max(log_likelihoods))
    weights /= weights.sum()
    mean = float(weights @ LOG_FACTORS)
    error = float(np.sqrt(weights @ (LOG_FACTORS - mean) ** 2))
    return Tail(mean, error, _mismatch(known, draws * np.exp(mean)))


def _counts(ratios: Array) -> Array:
    """Mean number of TTFTs between levels over the draws, shape (levels,). ratios: shape (draws, n)"""
    above: Array = (ratios[:, :, None] > LEVELS).sum(axis=1).mean(axis=0)
    between: Array = above - np.append(above[1:], 0.0)
    return between


def _mismatch(known: Array, draws: Array) -> float:
    largest = 0.0
    for part in np.array_split(np.arange(len(known)), PARTS):
        seen = (known[part, None] > LEVELS).sum(axis=0)
        expected = (draws[:, part, None] > LEVELS).sum(axis=1).mean(axis=0)
        spread = np.sqrt(PER_CLUSTER * np.maximum(1.0, expected))
        largest = max(largest, float(np.max(np.abs(seen - expected) / spread)))
    return largest
