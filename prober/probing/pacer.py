"""The open loop: each due time starts its probe, and waits for none; and how long before it a probe connects."""

import asyncio
from collections import deque
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


async def pace(schedule: Iterable[int], clock: Clock, spec: TargetSpec, launch: Callable[[int], None]) -> None:
    """Call `launch(due)` a `connect_lead` before each due time, or as soon as the prober wakes. Ends with the schedule."""
    lead_ns = round(spec.connect_lead * 1e9)
    for due_ns in schedule:
        await clock.sleep_until(due_ns - lead_ns)
        clock.run_due()  # the sends of others, where this one is late and has not slept
        launch(due_ns)
        if due_ns < clock.now_ns():
            await asyncio.sleep(0)  # a long backlog must not hold the loop


MIN_IDLE_NS = 10_000_000  # a connection that was closed sooner was not idle: it is the same for every client
REMEMBERED_NS = 3600 * 10**9
SET_UPS = 20  # the longest of the last ones counts
SET_UP_MARGIN = 2


class ConnectLead:
    """Lead of the connections of one target, learnt from those that its server closed while they were idle.

    Two such connections within an hour shorten the lead for that hour: half the shortest idle time, and twice the longest set-up. After
    the hour the whole lead is tried again, so that a changed server costs an hour, and another server two connections.
    """

    def __init__(self) -> None:
        self._set_ups_ns: deque[int] = deque(maxlen=SET_UPS)
        # (time, idle time) of the last connections that were closed
        self._closed: deque[tuple[int, int]] = deque(maxlen=2)

    def connected(self, set_up_ns: int) -> None:
        """A connection was set up."""
        self._set_ups_ns.append(set_up_ns)

    def closed(self, idle_ns: int, now_ns: int) -> bool:
        """The server closed a connection after this idle time. Returns True if the lead is shorter from now on."""
        before_ns = self.learnt_ns(now_ns)
        self._closed.append((now_ns, idle_ns))
        return before_ns is None and self.learnt_ns(now_ns) is not None

    def learnt_ns(self, now_ns: int) -> int | None:
        """The shorter lead; None while none is learnt."""
        if len(self._closed) < 2 or now_ns - self._closed[0][0] > REMEMBERED_NS:
            return None
        return min(idle_ns for _, idle_ns in self._closed) // 2 + self.set_up_ns

    @property
    def set_up_ns(self) -> int:
        """Time in which a connection is set up, with a margin; 0 before the first one."""
        return SET_UP_MARGIN * max(self._set_ups_ns, default=0)
