"""The site makes one answer at a time, for all who ask within a second, and a scrape does not wait for pages."""

import asyncio
from collections import Counter

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from prober.web.answers import FRESH_S, Answers, Lane

pytestmark = pytest.mark.virtual_time


class Kitchen:
    """Makes answers, each in a second. actions: number of calls after an action"""

    def __init__(self) -> None:
        self.at_once: Counter[str] = Counter()
        self.most_at_once: Counter[str] = Counter()
        self.actions = 0
        self._answers = Answers("/prober", self.acted)

    def acted(self) -> None:
        self.actions += 1

    async def handler(self, request: web.Request) -> web.StreamResponse:
        self.at_once[request.path] += 1
        self.most_at_once |= self.at_once
        await asyncio.sleep(1.0)
        self.at_once[request.path] -= 1
        return web.Response(status=int(request.query.get("status", 200)))

    async def ask(self, path: str, method: str = "GET") -> web.StreamResponse:
        return await self._answers.middleware(make_mocked_request(method, path), self.handler)


async def test_pages_are_made_one_at_a_time() -> None:
    """However many pages clients ask for, memory holds the text of one; a scrape and a probe wait for none of them."""
    kitchen, begin_s = Kitchen(), asyncio.get_running_loop().time()
    pages = [asyncio.create_task(kitchen.ask(f"/prober/?page={number}")) for number in range(5)]
    await asyncio.gather(*(kitchen.ask(f"/prober{path}") for path in ("/metrics", "/probe", "/probe")))
    assert asyncio.get_running_loop().time() - begin_s == pytest.approx(1.0)
    await asyncio.gather(*pages)
    assert kitchen.most_at_once == {"/prober/": 1, "/prober/metrics": 1, "/prober/probe": 2}


async def test_all_who_wait_share_one_answer() -> None:
    """A hundred clients cost what one does, and hold one body; a second later it is made again."""
    kitchen, lane = Kitchen(), Lane()

    async def make() -> web.StreamResponse:
        return await kitchen.handler(make_mocked_request("GET", "/a"))

    answers = await asyncio.gather(*(lane.get("a", make) for _ in range(100)))
    assert {id(answer) for answer in answers} == {id(answers[0])}
    assert await lane.get("a", make) is answers[0]
    await asyncio.sleep(FRESH_S + 0.01)
    assert await lane.get("a", make) is not answers[0]


async def test_nothing_from_before_is_given_again_after_an_action() -> None:
    """Neither what is kept nor what is being made: it may have been read before the action."""
    kitchen, lane = Kitchen(), Lane()

    async def make() -> web.StreamResponse:
        return await kitchen.handler(make_mocked_request("GET", "/a"))

    early = asyncio.create_task(lane.get("a", make))
    await asyncio.sleep(0.5)
    lane.forget()
    assert await lane.get("a", make) is not await early


@pytest.mark.parametrize(
    ("method", "status", "actions"),
    [("POST", 200, 1), ("PUT", 500, 1), ("POST", 403, 0), ("OPTIONS", 200, 0), ("GET", 200, 0)],
)
async def test_the_next_page_shows_the_effect_of_an_action(method: str, status: int, actions: int) -> None:
    """What is refused, and what only asks, is no action; a reload that fails is one."""
    kitchen = Kitchen()
    assert (await kitchen.ask(f"/prober/-/reload?status={status}", method)).status == status
    assert kitchen.actions == actions
