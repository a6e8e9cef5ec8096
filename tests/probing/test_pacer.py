"""The open loop."""

from types import SimpleNamespace
from typing import cast

from prober.config.target import TargetSpec
from prober.net.clock import Clock
from prober.probing.pacer import pace

S = 10**9


class Virtual:
    """A clock that jumps to where it is waited for."""

    def __init__(self) -> None:
        self.now = 0

    def now_ns(self) -> int:
        return self.now

    async def sleep_until(self, due_ns: int) -> None:
        self.now = max(self.now, due_ns)

    def run_due(self) -> None: ...


async def run(clock: Virtual, due: list[int]) -> tuple[list[tuple[int, int]], list[int]]:
    launched: list[tuple[int, int]] = []
    missed: list[int] = []
    spec = cast(TargetSpec, SimpleNamespace(connect_lead=1.0, max_send_lag=0.01))
    launch = lambda at: launched.append((clock.now, at))  # noqa: E731
    await pace(due, cast(Clock, clock), spec, launch, lambda at, _: missed.append(at))
    return launched, missed


async def test_every_due_time_starts_its_probe_one_lead_before() -> None:
    """Launching waits for nothing but the time."""
    launched, missed = await run(Virtual(), [5 * S, 6 * S, 6 * S, 20 * S])
    assert launched == [(4 * S, 5 * S), (5 * S, 6 * S), (5 * S, 6 * S), (19 * S, 20 * S)]
    assert missed == []


async def test_after_a_long_stop_old_due_times_are_missed_and_not_sent_in_a_flood() -> None:
    """Each due time that is past by more than ten times max_send_lag is told as missed; the schedule is not moved."""
    clock = Virtual()
    clock.now = 10 * S
    launched, missed = await run(clock, [5 * S, 8 * S, 10 * S - S // 9, 10 * S - S // 10, 30 * S])
    assert missed == [5 * S, 8 * S, 10 * S - S // 9]
    assert launched == [(10 * S, 10 * S - S // 10), (29 * S, 30 * S)]
