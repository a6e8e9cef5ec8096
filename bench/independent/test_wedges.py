"""Each scene of a wedge, and each that only looks like one, is as its verdict says."""

import asyncio
import re
from contextlib import suppress

import aiohttp
import pytest

from bench.independent import wedges
from bench.independent.wedges import SCENES, VERDICTS, WedgeServer

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("quick")]
WEDGES = [name for name, verdict in VERDICTS.items() if verdict.pages]
WHOLE = [name for name in WEDGES if SCENES[name].kind == "wedge"]
RANKS = [name for name in WEDGES if SCENES[name].kind == "dead_rank"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorter times."""
    monkeypatch.setattr(wedges, "KEEP_ALIVE_S", 0.1)
    monkeypatch.setattr(wedges, "LONG_PREFILL_S", 0.6)
    monkeypatch.setattr(wedges, "TOKEN_S", 0.005)


async def ask(server: WedgeServer, within_s: float = 0.8, rank: str | None = None, words: int = 5) -> tuple[int, str]:
    """Status (0: no response headers) and text of an answer, as far as it came."""
    body = {"model": wedges.MODEL, "stream": True, "max_tokens": 3, "messages": [{"content": "a " * words}]}
    headers = {} if rank is None else {"X-data-parallel-rank": rank}
    status, text = 0, ""
    with suppress(TimeoutError):
        async with (
            asyncio.timeout(within_s),
            aiohttp.ClientSession() as session,
            session.post(f"{server.url}/v1/chat/completions", json=body, headers=headers) as response,
        ):
            status = response.status
            async for line in response.content:
                text += line.decode()
    return status, text


async def get(server: WedgeServer, path: str) -> str:
    """Text of a page that says 200."""
    async with aiohttp.ClientSession() as session, session.get(server.url + path) as response:
        assert response.status == 200
        return await response.text()


async def total(server: WedgeServer, name: str, rank: int | None = None) -> float:
    """Sum of a metric, or that of a rank."""
    engine = r"\d" if rank is None else str(rank)
    return sum(
        map(float, re.findall(rf'^vllm:{name}{{engine="{engine}".*}} (.+)$', await get(server, "/metrics"), re.M))
    )


@pytest.mark.parametrize("name", SCENES)
async def test_every_scene_answers_before_it_begins_and_after_it_has_ended(name: str) -> None:
    """Tokens, usage and [DONE]; the truth of each request is in the log."""
    async with WedgeServer(name) as server:
        for is_after in (False, True):
            if is_after:
                server.begin()
                await server.end()
            status, text = await ask(server, 20.0)
            assert status == 200
            assert text.count('" of"') == 3
            assert '"completion_tokens": 3' in text
            assert text.rstrip().endswith("data: [DONE]")
            last = server.requests[-1]
            assert (last.tokens, last.end, last.is_wedged) == (3, "whole", False)
            assert last.first_token_s is not None


@pytest.mark.parametrize("name", WHOLE)
async def test_a_wedge_accepts_requests_and_its_pages_say_200(name: str) -> None:
    """No token comes; before it what the scene says; counters stand still; the queue grows if it is counted."""
    scene = SCENES[name]
    async with WedgeServer(name) as server:
        await asyncio.sleep(1.1)
        server.begin()
        generated = await total(server, "generation_tokens_total")
        for _ in range(2):
            status, text = await ask(server)
            assert status == (0 if scene.early == "nothing" else 200)
            assert ('"role"' in text) == (scene.early == "role")
            assert (": keep-alive" in text) == scene.has_keep_alive
            assert '" of"' not in text
        await get(server, "/health")
        assert await total(server, "generation_tokens_total") == generated > 0
        waiting = await total(server, "num_requests_(?:waiting|running)")
        assert waiting >= 2 if scene.is_counted else waiting <= 1
        assert [(one.is_wedged, one.end) for one in server.requests] == [(True, "left")] * 2
        await server.end()
        assert await total(server, "generation_tokens_total") < generated
        assert (await ask(server, 5.0))[1].count('" of"') == 3


@pytest.mark.parametrize("name", RANKS)
async def test_one_rank_of_four_is_dead(name: str) -> None:
    """In turn every fourth request hangs; by the header all of that rank do, and none of another."""
    async with WedgeServer(name) as server:
        await asyncio.sleep(1.1)
        server.begin()
        answers = await asyncio.gather(*(ask(server, 2.0) for _ in range(4)))
        assert sum('" of"' in text for _, text in answers) == 3
        assert [one.rank for one in server.requests if one.is_wedged] == [2]
        before = await total(server, "generation_tokens_total", 2), await total(server, "generation_tokens_total", 0)
        for rank in ("0", "1", "2", "3"):
            assert ('" of"' in (await ask(server, 0.5 if rank == "2" else 5.0, rank))[1]) == (rank != "2")
        assert await total(server, "generation_tokens_total", 2) == before[0]
        assert await total(server, "generation_tokens_total", 0) > before[1]
        assert (await ask(server, rank="4"))[0] == 400


async def test_answers_of_neighbours_come() -> None:
    """After a long prefill, a block, a queue; later on a slow rank."""
    async with WedgeServer("long_prompts") as server:
        server.begin()
        slow, short = await asyncio.gather(ask(server, 5.0, words=3000), ask(server, 5.0))
        assert slow[1].count('" of"') == short[1].count('" of"') == 3
        assert max((one.first_token_s or 0) - one.at_s for one in server.requests) > 0.6
    async with WedgeServer("prefill_block") as server:
        server.begin()
        assert '" of"' not in (await ask(server, 0.3))[1]
        assert (await ask(server, 5.0))[1].count('" of"') == 3
        assert server.wedged_s[0][1] - server.wedged_s[0][0] == pytest.approx(0.6)
    async with WedgeServer("overloaded") as server:
        await asyncio.sleep(1.0)
        assert await total(server, "num_requests_waiting") == 12
        assert (await ask(server, 20.0))[1].count('" of"') == 3
        assert 0.5 < (server.requests[0].first_token_s or 0) - server.requests[0].at_s < 5
    async with WedgeServer("slow_rank") as server:
        server.begin()
        await ask(server, 5.0, "1")
        await ask(server, 5.0, "2")
        fast, slow_one = ((one.first_token_s or 0) - one.at_s for one in server.requests)
        assert slow_one > max(fast, 0.19)


async def test_a_sleeping_engine_says_so_and_answers_when_it_is_awake() -> None:
    """Requests wait; the page and /is_sleeping tell."""
    async with WedgeServer("asleep") as server:
        server.begin()
        waiting = asyncio.create_task(ask(server, 5.0))
        assert '" of"' not in (await ask(server))[1]
        assert 'sleep_state="weights_offloaded"} 1.0' in await get(server, "/metrics")
        assert "true" in await get(server, "/is_sleeping")
        await server.end()
        assert (await waiting)[1].count('" of"') == 3
        assert "false" in await get(server, "/is_sleeping")


async def test_a_restarting_engine_refuses_connections() -> None:
    """Until the end; then counters begin anew with another start time."""
    async with WedgeServer("restarting") as server:
        started = re.findall(r"^process_start_time_seconds .*", server.page(), re.M)
        cut = asyncio.create_task(ask(server, 5.0))
        while not server.requests:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        server.begin()
        with pytest.raises(aiohttp.ClientError):
            await cut
        assert server.requests[0].end == "cut"
        with pytest.raises(aiohttp.ClientConnectorError):
            await ask(server)
        await server.end()
        assert await total(server, "request_success_total") == 0
        assert re.findall(r"^process_start_time_seconds .*", server.page(), re.M) != started
