"""The open loop: each probe starts at its due time without waiting for others, and connects a lead before it."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from random import Random

from prober.config.target import Gamma, ProbeSpec, TargetSpec
from prober.net.clock import Clock
from prober.workload.arrivals import constant, gamma, poisson, replay
from prober.workload.workloads import TraceWorkload

MISSED_S = 3.0  # after its due time; a later request is not sent: after a stop of the prober there would be a flood
BUNCHED_S = 0.1  # requests later than this leave together with others, and may fill the slots of a healthy target


def due_times(probe: ProbeSpec, rng: Random, start_ns: int) -> Iterator[int]:
    """Yields the due times of `probe`: absolute, in nanoseconds of the monotonic clock."""
    if isinstance(probe.arrivals, Gamma):
        return gamma(probe.rate, probe.arrivals.gamma.shape, rng, start_ns)
    if probe.arrivals == "constant":
        return constant(probe.rate, start_ns)
    if probe.arrivals == "trace" and isinstance(probe.workload, TraceWorkload):
        return replay(probe.workload.trace.offsets_ns, start_ns, probe.workload.speed)
    return poisson(probe.rate, rng, start_ns)


def why_missed(due_ns: int, now_ns: int) -> str:
    """Why a request due at `due_ns` is now too late to send; "" if it may be sent."""
    late_s = (now_ns - due_ns) / 1e9
    return f"the prober woke {late_s:.1f} s after the due time and did not send" if late_s > MISSED_S else ""


async def pace(schedule: Iterable[int], clock: Clock, spec: TargetSpec, launch: Callable[[int], None]) -> None:
    """Call `launch(due)` a `connect_lead` before each due time, or once the prober wakes. Ends with the schedule."""
    lead_ns = round(spec.connect_lead * 1e9)
    for due_ns in schedule:
        await clock.sleep_until(due_ns - lead_ns)
        launch(due_ns)
        if due_ns < clock.now_ns():
            await asyncio.sleep(0)  # a long backlog must not block the loop


MIN_IDLE_NS = 10_000_000  # a connection closed sooner was not idle: the server does this to every client
REMEMBERED_NS = 3600 * 10**9
SET_UPS = 20  # recent connections whose longest set-up counts
SET_UP_MARGIN = 2


class ConnectLead:
    """How long before the due time a target's connections are opened, learned from idle ones that the server closed.

    Two such connections within an hour shorten the lead for an hour, to half the shortest idle time plus twice the longest set-up.
    Then the full lead is tried again. So if a server stops closing connections, the lead stays short for up to an hour; if it
    starts to, it costs two connections.
    """

    def __init__(self) -> None:
        self._set_ups_ns: deque[int] = deque(maxlen=SET_UPS)
        # (time, idle time) of the last connections closed by the server
        self._closed: deque[tuple[int, int]] = deque(maxlen=2)

    def connected(self, set_up_ns: int) -> None:
        """Record that a connection was set up in `set_up_ns`."""
        self._set_ups_ns.append(set_up_ns)

    def closed(self, idle_ns: int, now_ns: int) -> bool:
        """Record that the server closed a connection after `idle_ns` of idling. Returns True if the lead is now shorter."""
        before_ns = self.learnt_ns(now_ns)
        self._closed.append((now_ns, idle_ns))
        return before_ns is None and self.learnt_ns(now_ns) is not None

    def learnt_ns(self, now_ns: int) -> int | None:
        """The shortened lead; None if the full lead applies."""
        if len(self._closed) < 2 or now_ns - self._closed[0][0] > REMEMBERED_NS:
            return None
        return min(idle_ns for _, idle_ns in self._closed) // 2 + self.set_up_ns

    @property
    def set_up_ns(self) -> int:
        """Expected time to set up a connection, with a margin; 0 before the first."""
        return SET_UP_MARGIN * max(self._set_ups_ns, default=0)
