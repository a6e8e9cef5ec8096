"""The open loop."""

from types import SimpleNamespace
from typing import cast

from prober.config.target import TargetSpec
from prober.net.clock import Clock
from prober.probing.pacer import pace, why_missed

S = 10**9


class Virtual:
    """A clock that jumps to where it is waited for."""

    def __init__(self) -> None:
        self.now = 0

    def now_ns(self) -> int:
        return self.now

    async def sleep_until(self, due_ns: int) -> None:
        self.now = max(self.now, due_ns)


async def run(clock: Virtual, due: list[int]) -> list[tuple[int, int]]:
    launched: list[tuple[int, int]] = []
    spec = cast(TargetSpec, SimpleNamespace(connect_lead=1.0))
    launch = lambda at: launched.append((clock.now, at))  # noqa: E731
    await pace(due, cast(Clock, clock), spec, launch)
    return launched


async def test_every_due_time_starts_its_probe_one_lead_before() -> None:
    """Launching waits for nothing but the time."""
    launched = await run(Virtual(), [5 * S, 6 * S, 6 * S, 20 * S])
    assert launched == [(4 * S, 5 * S), (5 * S, 6 * S), (5 * S, 6 * S), (19 * S, 20 * S)]


async def test_a_stop_moves_no_due_time() -> None:
    """Those that are past are launched at once, and not sent if they are past by more than three seconds: they would be a flood."""
    clock = Virtual()
    clock.now = 10 * S
    due_ns = [5 * S, 7 * S - 1, 7 * S, 10 * S - 1, 30 * S]
    assert await run(clock, due_ns) == [*((10 * S, at_ns) for at_ns in due_ns[:4]), (29 * S, 30 * S)]
    assert [bool(why_missed(at_ns, 10 * S)) for at_ns in due_ns] == [True, True, False, False, False]
