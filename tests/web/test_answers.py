"""The site makes one answer at a time, and a scrape does not wait for pages."""

import asyncio
from collections import Counter

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from prober.web.answers import Answers

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
    """However many clients ask, memory holds the text of one page; a scrape and a probe wait for none of them."""
    kitchen, begin_s = Kitchen(), asyncio.get_running_loop().time()
    pages = [asyncio.create_task(kitchen.ask("/prober/")) for _ in range(5)]
    await asyncio.gather(*(kitchen.ask(f"/prober{path}") for path in ("/metrics", "/probe", "/probe")))
    assert asyncio.get_running_loop().time() - begin_s == pytest.approx(1.0)
    await asyncio.gather(*pages)
    assert kitchen.most_at_once == {"/prober/": 1, "/prober/metrics": 1, "/prober/probe": 2}


@pytest.mark.parametrize(
    ("method", "status", "actions"),
    [("POST", 200, 1), ("PUT", 500, 1), ("POST", 403, 0), ("OPTIONS", 200, 0), ("GET", 200, 0)],
)
async def test_the_next_page_shows_the_effect_of_an_action(method: str, status: int, actions: int) -> None:
    """What is refused, and what only asks, is no action; a reload that fails is one."""
    kitchen = Kitchen()
    assert (await kitchen.ask(f"/prober/-/reload?status={status}", method)).status == status
    assert kitchen.actions == actions


async def test_a_long_address_is_refused() -> None:
    """With 414, and nothing is made."""
    kitchen = Kitchen()
    assert (await kitchen.ask("/prober/?q=" + 5_000 * "a")).status == 414
    assert not kitchen.most_at_once
