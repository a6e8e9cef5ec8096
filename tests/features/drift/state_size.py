"""Memory of one signal's detector."""

import math
from gc import get_referents
from sys import getsizeof
from types import FunctionType, ModuleType
from typing import Any

from prober.config.configuration import DriftSpec
from prober.features.drift.baseline import scores
from prober.features.drift.blocks import BLOCK_COUNT, BLOCK_SAMPLES
from prober.features.drift.detector import PROVISIONAL_THINNING
from prober.features.drift.fitting import FIFTH_SAMPLES


def state_bytes(state: Any) -> int:
    """Bytes of all objects reachable from `state` that signals do not share.

    They share code, texts, the block of the configuration, and the tables of normal scores.
    """
    shared = (str, type, ModuleType, FunctionType, type(math.exp), type(state_bytes.__code__), DriftSpec)
    samples = BLOCK_SAMPLES * BLOCK_COUNT
    seen = {id(scores(count)) for count in (samples, samples // PROVISIONAL_THINNING, FIFTH_SAMPLES)}
    pending, total = [state], 0
    while pending:
        value = pending.pop()
        if id(value) in seen or isinstance(value, shared):
            continue
        seen.add(id(value))
        total += getsizeof(value)
        pending += get_referents(value)
    return total
