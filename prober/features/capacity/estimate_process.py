"""Estimate of a sweep in a process of its own, because it takes seconds of CPU that timestamps need.

The process imports this module and `estimate`, nothing of the daemon: it peaks at 61 MB, numpy included.
"""

import asyncio
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

from prober.features.capacity.engine_fit import Fit, Prior
from prober.features.capacity.sweep_record import Record
from prober.net.parent_death import end_with_parent
from prober.results.capacity import Capacity

NICENESS = 10


async def estimate_in_process(
    record: Record, seed: int, prior: Prior | None
) -> tuple[tuple[Capacity, ...], Fit | None]:
    """Capacity of each SLO of the record, and the engine model if it agrees with the record."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, initializer=prepare, initargs=(os.getpid(),)) as pool:
        return await asyncio.get_running_loop().run_in_executor(pool, _estimate, record, seed, prior)


def prepare(parent: int) -> None:
    """Give way to the prober, and end with it if it is killed. parent: its process id."""
    os.environ.setdefault(
        "OPENBLAS_NUM_THREADS", "1"
    )  # the matrices are too small for threads, each of which takes memory
    os.nice(NICENESS)
    end_with_parent(parent)


def _estimate(record: Record, seed: int, prior: Prior | None) -> tuple[tuple[Capacity, ...], Fit | None]:
    from prober.features.capacity.estimate import estimate_capacity  # loads numpy

    estimate = estimate_capacity(record, seed, prior)
    return estimate.capacities, estimate.fit
