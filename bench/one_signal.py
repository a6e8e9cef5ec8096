"""Cost of the drift detector for one signal: time per step, and bytes of its state, as pickle writes it."""

import math
import pickle
import time
from random import Random

from prober.features.drift.detector import step
from prober.features.drift.state import Observation, Settings, new_state

LEARNING, SETTLED, CHUNK = 53_000, 20_000, 2_000  # samples


def cost(*, loaded: bool) -> dict[str, float]:
    """Cost from the first sample to a day after the baseline.

    step_us: mean of the least disturbed 2,000 settled steps, as the machine is shared; step_us_median: of the median 2,000
    fit_ms: of the longest step, which learns a baseline
    state_kb: largest size while a baseline is learnt
    """
    rng, state = Random(1), new_state(Settings(0.2))
    longest_s, largest_bytes = 0.0, 0
    observations = [_observation(rng, number, loaded) for number in range(LEARNING + SETTLED)]
    for number, observation in enumerate(observations[:LEARNING]):
        begin = time.perf_counter()
        step(state, observation)
        longest_s = max(longest_s, time.perf_counter() - begin)
        if number % 1_000 == 0:
            largest_bytes = max(largest_bytes, len(pickle.dumps(state)))
    means_us = []
    for start in range(LEARNING, LEARNING + SETTLED, CHUNK):
        begin = time.perf_counter()
        for observation in observations[start : start + CHUNK]:
            step(state, observation)
        means_us.append(1e6 * (time.perf_counter() - begin) / CHUNK)
    assert state.settled
    return {
        "step_us": min(means_us),
        "step_us_median": sorted(means_us)[len(means_us) // 2],
        "fit_ms": 1e3 * longest_s,
        "state_kb": largest_bytes / 1e3,
    }


def _observation(rng: Random, number: int, loaded: bool) -> Observation:
    load = 20 + 10 * math.sin(2 * math.pi * number / 17_280)
    return Observation(5.0 * number, math.exp(rng.gauss(0.02 * load, 0.4)), load + rng.gauss(0, 4) if loaded else None)
