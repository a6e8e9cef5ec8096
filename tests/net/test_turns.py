"""Work on received bytes in turns."""

import asyncio
from itertools import pairwise

import pytest

from prober.net import turns as module
from prober.net.turns import turns


async def test_all_steps_of_an_event_loop_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long job and a short one end by turns, and other callbacks of the loop run between them."""
    monkeypatch.setattr(module, "TURN_NS", 0)
    left = {"long": 50, "short": 2}
    events: list[str] = []

    def step(name: str) -> bool:
        left[name] -= 1
        events.append(name)
        return left[name] > 0

    turns().add(lambda: step("long"))
    turns().add(lambda: step("short"))
    for _ in range(100):
        events.append("loop")
        await asyncio.sleep(0)
    assert left == {"long": 0, "short": 0}
    steps = [event for event in events if event != "loop"]
    assert steps[:4] == ["long", "short", "long", "short"]
    assert all(a == "loop" or b == "loop" for a, b in pairwise(events[:51]))


async def test_a_turn_does_several_short_steps() -> None:
    """Within the time of a turn, so that short steps do not cost a turn of the loop each."""
    count = 0

    def step() -> bool:
        nonlocal count
        count += 1
        return count < 5

    turns().add(step)
    await asyncio.sleep(0)
    assert count == 5
