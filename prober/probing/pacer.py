"""The open loop: each due time starts its probe, and waits for none."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from random import Random

from prober.config.target import Gamma, ProbeSpec
from prober.net.clock import Clock
from prober.workload.arrivals import constant, gamma, poisson, replay
from prober.workload.workloads import Workload

# A due time that is this far past when its turn comes is not sent: after a suspended hour there would be a flood.
MISSED_NS = 1_000_000_000


def due_times(probe: ProbeSpec, rng: Random, start_ns: int) -> Iterator[int]:
    """The schedule of `probe`: absolute, in nanoseconds of the monotonic clock."""
    if isinstance(probe.arrivals, Gamma):
        return gamma(probe.rate, probe.arrivals.gamma.shape, rng, start_ns)
    if probe.arrivals == "constant":
        return constant(probe.rate, start_ns)
    if probe.arrivals == "trace" and isinstance(probe.workload, Workload) and probe.workload.trace:
        return replay(probe.workload.trace.offsets_ns, start_ns, probe.workload.speed)
    return poisson(probe.rate, rng, start_ns)


async def pace(
    schedule: Iterable[int], clock: Clock, lead_ns: int, launch: Callable[[int], None], missed: Callable[[int], None]
) -> None:
    """Call `launch(due)` `lead_ns` before each due time, or `missed(due)` if it is long past. Ends with the schedule."""
    for due_ns in schedule:
        await clock.sleep_until(due_ns - lead_ns)
        if clock.now_ns() - due_ns > MISSED_NS:
            missed(due_ns)
            await asyncio.sleep(0)  # a long backlog must not hold the loop
        else:
            launch(due_ns)
