"""The simulated engine behind the mock's server: one batch, told on the page."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from prober.mock.faults import parse_fault
from prober.mock.service import Behaviour, Settings
from prober.simulation.parameters import Parameters
from tests.virtual import running

pytestmark = pytest.mark.virtual_time

ENGINE = Parameters(step_s=0.002, prefill_token_s=20e-6, prefix_block_tokens=16)
SIMULATED = Settings(simulation=ENGINE, seed=1)


async def ask(url: str, words: int = 200, tokens: int = 20, nonce: str = "a", **more: Any) -> dict[str, Any]:
    """The events of one answer, all in one object: usage, content, error."""
    body = {
        "model": "mock",
        "messages": [{"role": "user", "content": f"{nonce} " + "word " * (words - 1)}],
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    events: dict[str, Any] = {"contents": 0}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/chat/completions", json=body | more) as answer,
    ):
        events["status"] = answer.status
        for line in (await answer.read()).split(b"\n\n"):
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                events["contents"] += any(choice["delta"].get("content") for choice in event["choices"])
                events |= {name: event[name] for name in ("usage", "metrics") if event.get(name)}
    return events


async def page(url: str) -> dict[str, float]:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
        families = text_string_to_metric_families(await answer.text())
        samples = [sample for family in families for sample in family.samples]
    return {sample.name.removeprefix("vllm:"): sample.value for sample in samples if "le" not in sample.labels}


async def set_faults(url: str, *faults: str) -> int:
    async with aiohttp.ClientSession() as session, session.post(f"{url}/mock/fault", json={"faults": faults}) as answer:
        return answer.status


async def page_with(url: str, so: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    """The first page that is `so`; the test's own time limit is the only one."""
    while True:
        text = await page(url)
        if so(text):
            return text
        await asyncio.sleep(0.01)


def gaps(record: dict[str, Any]) -> list[int]:
    return [after - before for before, after in pairwise(record["writes"])]


def truth(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_an_answer_takes_its_steps(tmp_path: Path) -> None:
    """Prefill, then a step a token: nothing is written before its time, and the truth file says when it was."""
    path = tmp_path / "truth.jsonl"
    async with running(replace(SIMULATED, truth=path)) as url:
        answer = await ask(url, words=1000, tokens=30)
    (record,) = truth(path)
    assert (answer["contents"], answer["usage"]["completion_tokens"], record["ended"]) == (30, 30, "complete")
    writes = record["writes"]
    assert writes[0] - record["received_ns"] >= (0.002 + 1000 * 20e-6) * 1e9
    assert writes[-1] - record["received_ns"] >= (0.002 + 1000 * 20e-6 + 29 * 0.002) * 1e9
    assert median(gaps(record)) < 6e6


async def test_the_batch_is_shared(tmp_path: Path) -> None:
    """A long prompt of another is a gap in the stream of the first; the page shows both, and what they used."""
    path = tmp_path / "truth.jsonl"
    async with running(replace(SIMULATED, truth=path)) as url:
        first = asyncio.create_task(ask(url, tokens=200, nonce="a"))
        await page_with(url, lambda seen: seen["generation_tokens_total"] > 10)
        second = asyncio.create_task(ask(url, words=2000, tokens=200, nonce="b"))
        middle = await page_with(url, lambda seen: seen["num_requests_running"] == 2)
        await asyncio.gather(first, second)
        end = await page(url)
    assert middle["kv_cache_usage_perc"] > 0
    assert (end["num_requests_running"], end["kv_cache_usage_perc"], end["request_success_total"]) == (0, 0, 0)
    assert (end["prompt_tokens_total"], end["generation_tokens_total"]) == (2200, 400)
    assert end["e2e_request_latency_seconds_count"] == end["time_to_first_token_seconds_count"] == 2
    record = min(truth(path), key=lambda record: record["received_ns"])
    assert max(gaps(record)) > 2000 * 20e-6 * 1e9 / 2


async def test_who_does_not_fit_waits() -> None:
    """With one at a time the second is queued, and the page and the server's own measurements say so."""
    async with running(replace(SIMULATED, simulation=replace(ENGINE, max_sequences=1))) as url:
        both = asyncio.gather(ask(url, tokens=60, nonce="a"), ask(url, tokens=60, nonce="b"))
        seen = await page_with(url, lambda seen: seen["num_requests_waiting"] > 0)
        queued = sorted(answer["metrics"]["queue_time_ms"] for answer in await both)
    assert (seen["num_requests_running"], seen["num_requests_waiting"]) == (1, 1)
    assert queued[1] - queued[0] > 20


async def test_a_prompt_that_was_there_is_cached() -> None:
    """All whole blocks but the last token's, in the usage and on the page; a salt keeps apart."""
    async with running(SIMULATED) as url:
        answers = [await ask(url, words=160), await ask(url, words=160), await ask(url, words=160, cache_salt="x")]
        seen = await page(url)
    assert [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers] == [0, 144, 0]
    assert (seen["prefix_cache_hits_total"], seen["prefix_cache_queries_total"]) == (144, 480)


async def test_a_client_that_leaves_frees_its_place() -> None:
    """The sequence leaves the batch unfinished."""
    async with running(SIMULATED) as url:
        task = asyncio.create_task(ask(url, tokens=5000))
        await page_with(url, lambda seen: seen["num_requests_running"] == 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        seen = await page_with(url, lambda seen: seen["num_requests_running"] == 0)
    assert seen["generation_tokens_total"] < 5000
    assert seen["e2e_request_latency_seconds_count"] == 0


async def test_faults_are_the_whole_engines(tmp_path: Path) -> None:
    """Scheduled latency slows the steps of who is running; lost blocks preempt; a header cannot ask for either."""
    path = tmp_path / "truth.jsonl"
    async with running(replace(SIMULATED, truth=path, simulation=replace(ENGINE, kv_blocks=200))) as url:
        task = asyncio.create_task(ask(url, tokens=150))
        await page_with(url, lambda seen: seen["generation_tokens_total"] > 30)
        assert await set_faults(url, "latency:4") == 200
        await task
        assert await set_faults(url) == 200
        both = asyncio.gather(
            ask(url, tokens=300, nonce="b"), ask(url, tokens=300, nonce="c")
        )  # of 14 blocks each and more
        await page_with(url, lambda seen: seen["generation_tokens_total"] > 160)
        assert await set_faults(url, "kv_lost:175@0s-100ms") == 200
        await both
        seen = await page(url)
        async with aiohttp.ClientSession() as session:
            headers = {"X-Mock-Fault": "latency:2"}
            async with session.post(f"{url}/v1/chat/completions", json={}, headers=headers) as answer:
                assert answer.status == 400
    steps = gaps(truth(path)[0])
    assert median(steps[-20:]) == pytest.approx(4 * median(steps[:20]), rel=0.01)
    assert seen["num_preemptions_total"] == 1


async def test_the_other_load_is_there() -> None:
    """Background requests of the trace's lengths run, and count in the page's counters and histograms."""
    busy = replace(SIMULATED, behaviour=Behaviour(background_per_s=100.0))
    async with running(busy) as url:
        early = await page_with(url, lambda seen: seen["num_requests_running"] + seen["num_requests_waiting"] > 5)
        answer = await ask(url, tokens=5)
        late = await page(url)
    assert late["generation_tokens_total"] > early["generation_tokens_total"] + 5
    assert answer["contents"] == 5


async def test_the_other_load_ends_too() -> None:
    """Background requests that are over are in the histograms."""
    quick = Parameters(step_s=1e-5, sequence_s=0.0, prefill_token_s=0.0, kv_token_s=0.0, prefix_block_tokens=16)
    async with running(Settings(simulation=quick, seed=1, behaviour=Behaviour(background_per_s=50.0))) as url:
        seen = await page_with(url, lambda seen: seen["e2e_request_latency_seconds_count"] >= 5)
    assert seen["inter_token_latency_seconds_count"] > 100


async def test_too_long_for_the_cache_is_refused() -> None:
    """With a 400 that says so, and nothing is left in the engine."""
    async with running(replace(SIMULATED, simulation=replace(ENGINE, kv_blocks=20))) as url:
        assert (await ask(url, words=300, tokens=100))["status"] == 400
        assert (await page(url))["num_requests_running"] == 0


def test_a_fault_of_the_other_engine_is_refused() -> None:
    """The drawn engine has no KV cache to lose."""
    with pytest.raises(ValueError, match="start the mock with --engine simulated"):
        Settings(faults=(parse_fault("kv_lost:100"),))


async def test_an_answer_in_one_piece() -> None:
    """It has as many tokens as a streamed one."""
    async with running(replace(SIMULATED, behaviour=Behaviour(reasoning=3))) as url:
        assert (await ask(url, tokens=20))["usage"]["completion_tokens"] == 20
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 7}
        async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/chat/completions", json=body) as answer:
            assert (await answer.json())["usage"]["completion_tokens"] == 7


async def test_every_fault_of_a_request_still_happens() -> None:
    """Endless, empty, short and cut answers come from the simulated engine as from the drawn one."""
    async with running(SIMULATED) as url:
        for fault, contents in (("short:3", 3), ("empty", 0), ("truncated:4", 4), ("malformed:2", 6)):
            async with aiohttp.ClientSession(headers={"X-Mock-Fault": fault}) as session:
                body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 6, "stream": True}
                async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
                    data = await answer.read()
            assert data.count(b'"content":" ') == contents + (fault == "malformed:2"), fault
        async with (
            aiohttp.ClientSession(headers={"X-Mock-Fault": "endless"}) as session,
            session.post(f"{url}/v1/chat/completions", json=body) as answer,
        ):
            assert len(await answer.content.readexactly(20_000)) == 20_000
        await page_with(url, lambda seen: seen["num_requests_running"] == 0)
