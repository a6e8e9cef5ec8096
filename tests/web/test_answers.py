"""Answers that many clients ask for: made one at a time and shared."""

import asyncio
from itertools import pairwise

import pytest
from aiohttp import web

from prober.web.answers import FRESH_S, MAX_SHARE, Lane

pytestmark = pytest.mark.virtual_time


class Kitchen:
    """Makes answers, each in a second, and remembers when each was begun."""

    def __init__(self) -> None:
        self.begun: list[tuple[float, str]] = []
        self.at_once = self.most_at_once = 0

    async def make(self, name: str) -> web.Response:
        self.begun.append((asyncio.get_running_loop().time(), name))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(1.0)
        self.at_once -= 1
        return web.Response(text=name)

    async def fails(self) -> web.Response:
        self.begun.append((asyncio.get_running_loop().time(), "failing"))
        raise OSError("no answer")


async def test_all_who_wait_share_one_answer() -> None:
    """A hundred clients cost what one does, and hold one body; a second later it is made again."""
    kitchen, lane = Kitchen(), Lane()
    answers = await asyncio.gather(*(lane.get("a", lambda: kitchen.make("a")) for _ in range(100)))
    assert len(kitchen.begun) == 1
    assert {id(answer.body) for answer in answers} == {id(answers[0].body)}
    assert await lane.get("a", lambda: kitchen.make("a")) is answers[0]
    await asyncio.sleep(FRESH_S + 0.01)
    assert await lane.get("a", lambda: kitchen.make("a")) is not answers[0]
    assert len(kitchen.begun) == 2


async def test_different_answers_are_made_one_at_a_time_with_rests() -> None:
    """The rests leave the loop to the probing for the largest part of the time."""
    kitchen, lane = Kitchen(), Lane()
    await asyncio.gather(*(lane.get(name, lambda name=name: kitchen.make(name)) for name in "abc"))  # type: ignore[misc]
    begins = [at for at, _ in kitchen.begun]
    assert kitchen.most_at_once == 1
    assert [round(b - a, 3) for a, b in pairwise(begins)] == [1.0 / MAX_SHARE] * 2


async def test_nothing_from_before_is_given_again_after_an_action() -> None:
    """Neither what is kept nor what is being made: it may have been read before the action."""
    kitchen, lane = Kitchen(), Lane()
    early = asyncio.create_task(lane.get("a", lambda: kitchen.make("before")))
    await asyncio.sleep(0.5)
    lane.forget()
    assert (await lane.get("a", lambda: kitchen.make("after"))).body == b"after"
    assert (await early).body == b"before"
    assert (await lane.get("a", lambda: kitchen.make("later"))).body == b"after"


async def test_a_failure_is_not_kept_and_holds_nobody_up() -> None:
    """Those who waited learn of it; the next one is made."""
    kitchen, lane = Kitchen(), Lane()
    for _ in range(2):
        with pytest.raises(OSError, match="no answer"):
            await lane.get("a", kitchen.fails)
    assert len(kitchen.begun) == 2
    assert (await lane.get("a", lambda: kitchen.make("a"))).body == b"a"


async def test_a_client_that_goes_away_takes_the_answer_from_nobody() -> None:
    kitchen, lane = Kitchen(), Lane()
    first = asyncio.create_task(lane.get("a", lambda: kitchen.make("a")))
    second = asyncio.create_task(lane.get("a", lambda: kitchen.make("a")))
    await asyncio.sleep(0.5)
    first.cancel()
    assert (await second).body == b"a"
