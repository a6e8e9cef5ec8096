"""Scenes of the headroom gauge: their truths, and the trouble that their server makes."""

import asyncio
import math
from collections.abc import Iterator

import aiohttp
import numpy as np
import pytest

from bench.headroom_independent import harm, is_friendly, is_limit
from bench.independent.engine import Engine, NoCompiler, library
from bench.independent.engine_server import EngineServer
from bench.independent.headroom_scenes import KINDS, QUANTILES, SCENES, TABLES, TraceLengths, scenes
from bench.independent.production import FINE, Simulation
from bench.independent.structure import Structure
from prober.exposition.parse import Parser
from prober.features.engines.page_reading import read_signals as read
from prober.features.engines.page_reading import recognise
from prober.measure.engine_signals import EngineSignals
from prober.measure.engines import TABLES as PAGES
from tests.conftest import absent
from tests.serving import serving
from tests.virtual import VirtualLoop

PROMPT = "word " * 320


@pytest.fixture(autouse=True)
def _compiled() -> None:
    try:
        library()
    except NoCompiler as missing:
        absent(str(missing))


def none() -> Iterator[tuple[float, int, int]]:
    yield math.inf, 1, 1


def steady(per_s: float) -> Iterator[tuple[float, int, int]]:
    yield from ((number / per_s, 200, 30) for number in range(100_000))


class Client:
    """A client of a server in virtual time."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url, self._session = url, session

    async def ask(self, prompt: str, output: int = 5, salt: str = "") -> int:
        """Status of the answer. Raises aiohttp.ClientError: it is cut"""
        body = {"messages": [{"content": prompt}], "max_tokens": output, "cache_salt": salt}
        async with self._session.post(f"{self._url}/v1/chat/completions", json=body) as response:
            await response.read()
            return response.status

    async def page(self) -> EngineSignals | None:
        """The page as the prober reads it; None: there is none."""
        async with self._session.get(f"{self._url}/metrics") as response:
            if response.status != 200:
                return None
            parsed = Parser(None).parse(await response.read())
        table = recognise(parsed, PAGES)
        assert table is not None
        return read(parsed, table).signals


def test_every_kind_is_in_both_halves_with_a_truth_of_each_phase() -> None:
    """And the truth is where the strain of a run that was not used for it is near 1."""
    drawn = scenes(range(SCENES))
    assert (
        [scene.name.split()[1] for scene in drawn[::2]]
        == list(KINDS)
        == [scene.name.split()[1] for scene in drawn[1::2]]
    )
    for scene in drawn:
        assert scene.phases[0].after == 0
        assert all(phase.truth.limit_per_s > 0 and math.isfinite(phase.per_s) for phase in scene.phases)
    for number in (20, 32):
        for phase in drawn[number].phases[-1:]:
            assert Simulation(phase.case).strain(phase.truth.limit_per_s, FINE, 99) == pytest.approx(1.0, abs=0.5)


def test_users_miss_what_probes_keep() -> None:
    """In the scenes of users there is no room for them."""
    missing = [scene for scene in scenes(range(SCENES)) if scene.group == "users"]
    assert missing
    for scene in missing:
        assert scene.has_users_slos
        assert scene.phases[0].free_of_users < 0


def test_lengths_have_the_quantiles_of_their_trace() -> None:
    """Median and 90th percentile."""
    lengths = TraceLengths((), 1 << 20, 1 << 20, table="azure").lengths(np.random.default_rng(1), 20_000, None)
    for tokens, table in zip(lengths, TABLES["azure"], strict=True):
        for share in (0.5, 0.9):
            assert np.quantile(tokens, share) == pytest.approx(table[QUANTILES.index(share)], rel=0.05)


def test_a_restart_cuts_answers_is_down_for_a_while_and_counts_from_zero() -> None:
    """With the size of the new engine, and the requests of others as before."""

    async def played() -> None:
        server = EngineServer(Engine(Structure(), 1), steady(2.0), 0.0)
        async with serving(server.app(), 8000, "192.0.2.1") as url, aiohttp.ClientSession() as session:
            client = Client(url, session)
            await asyncio.sleep(30)
            before = await client.page()
            cut = asyncio.create_task(client.ask(PROMPT, 2_000))
            await asyncio.sleep(5)
            server.restart(Engine(Structure(kv_tokens=200_000), 2), 60.0)
            with pytest.raises(aiohttp.ClientError):
                await cut
            assert await client.page() is None
            assert await client.ask(PROMPT) == 503
            await asyncio.sleep(80)
            after = await client.page()
            assert await client.ask(PROMPT) == 200
        assert before is not None
        assert after is not None
        assert after.start_time_seconds != before.start_time_seconds
        assert after.kv_cache_capacity_tokens == before.kv_cache_capacity_tokens / 2  # type: ignore[operator]
        assert 30 < after.requests_finished_total < 45 < before.requests_finished_total  # type: ignore[operator]

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(played())


def test_a_front_refuses_above_its_rate_and_no_queue_shows() -> None:
    """Requests within the rate are served."""

    async def played() -> list[int]:
        server = EngineServer(Engine(Structure(), 1), none(), 0.0)
        server.most_per_s = 2.0
        async with serving(server.app(), 8000, "192.0.2.1") as url, aiohttp.ClientSession() as session:
            client = Client(url, session)
            statuses = []
            for gap_s in [0.5] * 20 + [0.1] * 20:
                statuses.append(await asyncio.wait_for(client.ask(PROMPT, 1), 5))
                await asyncio.sleep(gap_s)
            assert server.engine.page().requests_waiting == 0
            return statuses

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        statuses = runner.run(played())
    assert set(statuses[:20]) == {200}
    assert statuses[20:].count(429) >= 10
    assert statuses[20:].count(200) >= 4


def test_a_worker_that_leaves_takes_its_counters_and_its_memory() -> None:
    """The counters of the others go on from where they were."""

    async def played() -> list[EngineSignals | None]:
        server = EngineServer(Engine(Structure(workers=4), 1), steady(8.0), 0.0)
        pages = []
        async with serving(server.app(), 8000, "192.0.2.1") as url, aiohttp.ClientSession() as session:
            for _ in range(3):
                await asyncio.sleep(50)
                pages.append(await Client(url, session).page())
                if len(pages) == 1:
                    server.engine.drain_worker(3)
        return pages

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        before, after, later = runner.run(played())
    assert before is not None
    assert after is not None
    assert later is not None
    assert [page.ranks for page in (before, after, later)] == [4, 3, 3]
    finished = [page.requests_finished_total or 0.0 for page in (before, after, later)]
    assert finished[1] == pytest.approx(0.75 * (finished[0] + 400), abs=3)
    assert finished[2] == pytest.approx(finished[1] + 400, abs=3)


def test_equal_prompts_hit_the_prefix_cache_unless_salted() -> None:
    """As in vLLM, blocks are equal where all text until their end is equal, and the salt too."""

    async def played() -> list[float]:
        server = EngineServer(Engine(Structure(prefix_block=64), 1), none(), 0.0)
        hits = []
        async with serving(server.app(), 8000, "192.0.2.1") as url, aiohttp.ClientSession() as session:
            client = Client(url, session)
            for prompt, salt in ((PROMPT, ""), (PROMPT, ""), ("other " + PROMPT, ""), (PROMPT, "a")):
                await client.ask(prompt, salt=salt)
                page = await client.page()
                assert page is not None
                hits.append(page.prefix_cache_hits_tokens_total or 0.0)
        return hits

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(played()) == [0, 319, 319, 319]  # the last token of a prompt is always computed


def minute(truth: float, estimate: float | None, since_change_s: float = 600.0, **other: object) -> dict[str, object]:
    return {
        "truth": truth,
        "users_truth": truth,
        "gauge": (estimate, estimate, estimate),
        "users": (None, None, None),
        "since_change_s": since_change_s,
        **other,
    }


def test_friendly_is_more_room_than_there_is() -> None:
    """10 points above the truth of an engine that has become smaller; else 10 where there is none, by the smaller of two gauges."""
    assert is_friendly("engine smaller", minute(0.2, 0.31))
    assert not is_friendly("engine smaller", minute(0.2, 0.29))
    assert not is_friendly("engine smaller", minute(0.2, None))
    assert not is_friendly("engine smaller", minute(0.2, 0.5, since_change_s=1_600.0))
    assert not is_friendly("traffic", minute(0.2, 0.5))
    assert is_friendly("traffic", minute(-0.1, 0.2))
    assert not is_friendly("traffic", minute(-0.1, 0.2, since_change_s=60.0))
    assert is_friendly("users", minute(0.2, 0.2, users_truth=-0.5))
    assert not is_friendly("users", minute(0.2, 0.2, users_truth=-0.5, users=(-0.6, -0.5, -0.4)))
    assert is_limit(minute(0.5, 0.35))
    assert not is_limit(minute(0.5, 0.45))


def test_harm_is_measured_by_a_grid_to_the_knee() -> None:
    """A grid of 1, 1.1, … to 2 per second for 60 s each has 60 × 15.94 requests; without two steps there is none."""
    assert harm({"knee_per_s": 2.0, "requests": 100}) == pytest.approx(100 / (60 * sum(1.1**step for step in range(8))))
    assert harm({"knee_per_s": 0.5, "requests": 100}) is None
