"""Estimates a sweep's capacity in a separate process, because that takes seconds of CPU in which nothing could be sent or read.

The process imports this module and `estimate`, and nothing of the daemon: it peaks at 83 MB with numpy, and at 96 MB for
10,000 requests.
"""

import asyncio
import logging
import os
import pickle
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL

from prober.features.capacity.sweep_record import Record
from prober.net.libc import end_with_parent
from prober.results.capacity import Capacity
from prober.simulation.serving import NotCompiled

NICENESS = 10
OOM_SCORE = 1000  # when memory is short the kernel ends this process first, and the prober keeps its measurements
log = logging.getLogger(__name__)


class EstimateFailed(Exception):
    """The estimate's process ended without a result; the message says how, and what helps."""


async def estimate_in_process(record: Record, seed: int) -> tuple[Capacity, ...]:
    """Estimate the capacity for each SLO of the record. Raises EstimateFailed.

    Cancelling kills the process.
    """
    command = (sys.executable, "-P", "-m", __name__, str(os.getpid()))
    pipe = subprocess.PIPE
    try:
        # A separate session: Ctrl-C in a terminal only reaches the prober, which keeps its measurements.
        process = subprocess.Popen(  # noqa: ASYNC220 - it takes milliseconds
            command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
    except OSError as problem:
        raise EstimateFailed(
            f"the process of the estimate could not be started ({problem}): raise the limits of memory and processes"
        ) from None
    try:
        estimate, errors = await asyncio.to_thread(lambda: process.communicate(pickle.dumps((record, seed))))
    finally:
        process.kill()
    code = process.returncode
    if code == -SIGKILL:
        raise EstimateFailed(
            "the process of the estimate was killed by signal 9; out of memory? An estimate takes 100 MB beside the prober: "
            "raise the limit of memory"
        )
    text = errors.decode(errors="replace").strip()
    if code == os.EX_UNAVAILABLE:
        raise EstimateFailed(text)
    if code != 0:
        log.error("the process of an estimate failed: %s", text)
        how = f"was killed by signal {-code}" if code < 0 else f"failed with exit code {code}"
        last = text.rpartition("\n")[2] or "it wrote no error"
        raise EstimateFailed(f"the process of the estimate {how} ({last}): please report this with the log")
    capacities: tuple[Capacity, ...] = pickle.loads(estimate)
    return capacities


def main(parent: int) -> None:
    """Read pickled arguments of `estimate_capacity` from standard input, write the pickled result. parent: exit when it exits"""
    end_with_parent(parent)
    os.nice(NICENESS)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE), encoding="ascii")
    # The matrices are too small for threads, which cost memory.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from prober.features.capacity.estimate import estimate_capacity  # loads numpy

    try:
        pickle.dump(estimate_capacity(*pickle.load(sys.stdin.buffer)).capacities, sys.stdout.buffer)
    except NotCompiled as problem:
        sys.stderr.write(str(problem))
        sys.exit(os.EX_UNAVAILABLE)


if __name__ == "__main__":
    main(int(sys.argv[1]))
