"""The open loop: each due time starts its probe, and waits for none."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from random import Random

from prober.config.target import Gamma, ProbeSpec, TargetSpec
from prober.net.clock import Clock
from prober.workload.arrivals import constant, gamma, poisson, replay
from prober.workload.workloads import TraceWorkload

MISSED = 10  # times max_send_lag: a request that is later than this is not sent, as after a stop there would be a flood


def due_times(probe: ProbeSpec, rng: Random, start_ns: int) -> Iterator[int]:
    """The schedule of `probe`: absolute, in nanoseconds of the monotonic clock."""
    if isinstance(probe.arrivals, Gamma):
        return gamma(probe.rate, probe.arrivals.gamma.shape, rng, start_ns)
    if probe.arrivals == "constant":
        return constant(probe.rate, start_ns)
    if probe.arrivals == "trace" and isinstance(probe.workload, TraceWorkload):
        return replay(probe.workload.trace.offsets_ns, start_ns, probe.workload.speed)
    return poisson(probe.rate, rng, start_ns)


def why_missed(due_ns: int, now_ns: int, max_send_lag_s: float) -> str:
    """Why the request that was due at `due_ns` is not sent any more; "" while it may be."""
    late_s = (now_ns - due_ns) / 1e9
    is_missed = late_s > MISSED * max_send_lag_s
    return f"the prober woke {late_s:.1f} s after the due time and did not send" if is_missed else ""


async def pace(
    schedule: Iterable[int],
    clock: Clock,
    spec: TargetSpec,
    launch: Callable[[int], None],
    missed: Callable[[int, str], None],
) -> None:
    """Call `launch(due)` a `connect_lead` before each due time, or `missed(due, why)` if it is past. Ends with the schedule."""
    lead_ns = round(spec.connect_lead * 1e9)
    for due_ns in schedule:
        await clock.sleep_until(due_ns - lead_ns)
        if why := why_missed(due_ns, clock.now_ns(), spec.max_send_lag):
            missed(due_ns, why)
            await asyncio.sleep(0)  # a long backlog must not hold the loop
        else:
            launch(due_ns)
