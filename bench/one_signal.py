"""What one signal costs: time of a step, and bytes of its state."""

import math
import time
from gc import get_referents
from random import Random
from sys import getsizeof
from typing import Any

from prober.features.drift.baseline import BLOCK_COUNT, BLOCK_SAMPLES, scores
from prober.features.drift.detector import PROVISIONAL_THINNING, Observation, Settings, new_state, step


def size(value: Any) -> int:
    """Bytes of everything that is reachable and not shared by all signals (code, and the tables of normal scores)."""
    shared = (type, type(size), type(math), type(size.__code__))
    seen = {id(scores(BLOCK_SAMPLES * BLOCK_COUNT)), id(scores(BLOCK_SAMPLES * BLOCK_COUNT // PROVISIONAL_THINNING))}
    todo, total = [value], 0
    while todo:
        each = todo.pop()
        if id(each) in seen or isinstance(each, shared):
            continue
        seen.add(id(each))
        total += getsizeof(each)
        todo += get_referents(each)
    return total


def cost(*, loaded: bool) -> dict[str, float]:
    """Of a signal from nothing to a day after its baseline: mean µs of a settled step, µs of steps while a fit runs, kB."""
    rng, state = Random(1), new_state(Settings(0.2))
    fitting, largest = [], 0
    seen = [_observation(rng, i, loaded) for i in range(73_000)]
    for i, each in enumerate(seen[:53_000]):
        begin, busy = time.perf_counter(), state.fit is not None
        step(state, each)
        if busy:
            fitting.append(1e6 * (time.perf_counter() - begin))
            if i % 40 == 0:
                largest = max(largest, size(state))
    means = []
    for part in range(53_000, 73_000, 2_000):
        begin = time.perf_counter()
        for each in seen[part : part + 2_000]:
            step(state, each)
        means.append(1e6 * (time.perf_counter() - begin) / 2_000)
    assert state.settled
    return {
        "step_us": min(means),  # the least disturbed 2,000: the machine is shared
        "step_us_median": sorted(means)[len(means) // 2],
        "fit_slice_us_p99": sorted(fitting)[int(0.99 * len(fitting))],
        "fit_slice_us_max": max(fitting),
        "state_kb": largest / 1e3,
    }


def _observation(rng: Random, i: int, loaded: bool) -> Observation:
    load = 20 + 10 * math.sin(2 * math.pi * i / 17_280)
    return Observation(5.0 * i, math.exp(rng.gauss(0.02 * load, 0.4)), load + rng.gauss(0, 4) if loaded else None)
