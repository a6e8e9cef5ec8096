"""An engine's page becomes series that never lie about their age."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from prober.config.load import load
from prober.config.serving import MetricsSpec
from prober.features.engines.page_reader import PageReader
from prober.measure.engine_signals import EngineChange, EngineSignals, PageReading
from prober.measure.engines import DIALECTS
from prober.net.clock import Clock
from prober.probing.target import Identity, Target
from tests.features.engines.test_context_reader import SGLANG
from tests.serving import serving, until
from tests.virtual import VirtualClock

pytestmark = pytest.mark.virtual_time
PAGE = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:num_preemptions_total{engine="0",model_name="m"} %d
vllm:prompt_tokens_total{engine="0",model_name="m"} %d
vllm:generation_tokens_total{engine="0",model_name="m"} %d
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} %d
"""


OLDER = """\
vllm:num_requests_running{model_name="m"} 1.0
vllm:num_requests_waiting{model_name="m"} 0.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.75
"""


class Engine:
    """A server with a vLLM page whose counters, status and version the test sets."""

    def __init__(self) -> None:
        self.count, self.status, self.version = 10, 200, "0.32.0"
        self.asked: list[str] = []
        self.text = PAGE

    async def page(self, request: web.Request) -> web.Response:
        self.asked.append(request.headers.get("Authorization", ""))
        return web.Response(status=self.status, text=self.text % ((self.count,) * self.text.count("%d")))

    async def version_page(self, _: web.Request) -> web.Response:
        return web.json_response({"version": self.version})

    def application(self) -> web.Application:
        app = web.Application()
        app.add_routes([web.get("/metrics", self.page), web.get("/version", self.version_page)])
        return app


class Heard:
    def __init__(self) -> None:
        self.now: EngineSignals | None = None
        self.changes: list[str] = []

    def page_read(self, reading: PageReading | None) -> None:
        self.now = reading.signals if reading else None

    def engine_changed(self, change: EngineChange) -> None:
        self.changes.append(change.kind)


@asynccontextmanager
async def reading(
    url: str, heard: Heard, interval_s: float = 0.02, **spec: object
) -> AsyncIterator[tuple[PageReader, Clock, asyncio.Task[None]]]:
    text = f"targets: [{{name: t, url: '{url}'}}]"
    loaded = load(text, source="c", engines=DIALECTS, environment={}, read=lambda path: path).targets[0]
    clock = VirtualClock()
    target = Target(loaded.model_copy(update=spec), clock)
    target.identity = Identity("m", DIALECTS["vllm"], "/v1") if loaded.engine is None and not spec else None
    page = PageReader(target, MetricsSpec.model_construct(url=None, interval=interval_s), clock, heard, lambda: "t")
    task = asyncio.create_task(page.run())
    try:
        yield page, clock, task
    finally:
        task.cancel()
        await asyncio.wait([task])
        clock.close()


async def test_facts_whose_server_does_not_answer_are_asked_for_again() -> None:
    """After half a minute, and what was known stays meanwhile; when all have answered it is long until the next time."""
    engine, heard, silent = Engine(), Heard(), True
    versions = models = 0

    async def endpoint(request: web.Request) -> web.StreamResponse:
        nonlocal versions, models
        if request.path == "/version":
            versions += 1
            return await engine.version_page(request)
        if request.path == "/v1/models":
            models += 1
            if silent:
                await asyncio.sleep(3600)
            return web.json_response({"data": [{"id": "m", "max_model_len": 2048}]})
        return await engine.page(request) if request.path == "/metrics" else web.Response(status=404)

    async with serving(endpoint) as url, reading(url, heard, 5.0):
        await until(lambda: models > 1, 60)
        assert heard.now is not None
        assert (heard.now.info.version, heard.now.context_tokens) == ("0.32.0", None)
        silent = False
        await until(lambda: heard.now is not None and heard.now.context_tokens is not None, 60)
        asked = versions
        await asyncio.sleep(100)
        assert (heard.now.context_tokens, versions) == (2048, asked)


async def test_an_unreadable_page_has_no_current_values() -> None:
    """After STALE_READINGS without a response there are no signals and no load; they return with the page."""
    engine, heard = Engine(), Heard()
    async with serving(engine.application()) as url, reading(url, heard) as (_page, _clock, _):
        await until(lambda: heard.now is not None)
        engine.status = 500
        await until(lambda: heard.now is None)
        engine.status = 200
        await until(lambda: heard.now is not None)


async def test_an_upgrade_that_renames_all_series_is_recognised() -> None:
    """The next reading uses the table of the new generation."""
    engine, heard = Engine(), Heard()
    async with serving(engine.application()) as url, reading(url, heard):
        await until(lambda: heard.now is not None)
        engine.text = OLDER
        await until(lambda: heard.now is not None and heard.now.kv_cache_usage_ratio_max == 0.75)


async def test_other_paths_are_tried_and_json_endpoints_complete_the_page() -> None:
    """LiteLLM's page moved; SGLang has its capacity in a JSON endpoint."""
    asked: list[str] = []

    async def page(request: web.Request) -> web.Response:
        asked.append(request.path)
        if request.path == "/metrics/":
            return web.Response(status=404)
        if request.path == "/server_info":
            return web.json_response({"version": "0.5.5", "max_total_num_tokens": 4096, "context_length": 2048})
        return web.Response(text='sglang:num_running_reqs{model_name="m"} 1.0\nlitellm_in_flight_requests 3.0\n')

    proxy, sglang = Heard(), Heard()
    async with serving(page) as url, reading(url, proxy, engine="litellm"), reading(url, sglang, engine="sglang"):
        await until(lambda: proxy.now is not None and sglang.now is not None)
    assert proxy.now is not None
    assert sglang.now is not None
    assert proxy.now.requests_running == 2
    assert (sglang.now.kv_cache_capacity_tokens, sglang.now.context_tokens) == (4096, 2048)
    assert "/metrics/" in asked


async def test_slots_and_parallelism_outside_the_page_are_read_again_after_a_restart() -> None:
    """SGLang tells them as JSON; a restart with the same ones is no more than that."""
    text = (Path(__file__).parents[2] / "pages/sglang_0.5.23.prom").read_text()
    heard, info, pages = Heard(), dict(SGLANG), [text]

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/server_info":
            return web.json_response(info)
        return web.Response(text=pages[0]) if request.path == "/metrics" else web.Response(status=404)

    def restart() -> None:
        pages[0] = re.sub(r"^(\w+:\w+_(?:total|bucket|sum|count)\{.*\}) \S+$", r"\1 0.0", text, flags=re.MULTILINE)

    async with serving(answer) as url, reading(url, heard, engine="sglang"):
        await until(lambda: heard.now is not None)
        assert heard.now is not None
        assert heard.now.requests_max == 256
        ranks = {"tensor_parallel": "2", "pipeline_parallel": "1", "data_parallel": "1"}
        assert heard.now.info.flags == ranks | {
            "attention_backend": "fa3",
            "dtype": "auto",
            "quantization": "none",
            "schedule_policy": "fcfs",
        }
        restart()
        await until(lambda: heard.changes)
        await asyncio.sleep(1)
        assert heard.changes == ["restart"]
        pages[0] = text
        await asyncio.sleep(1)
        info |= {"max_running_requests": 128, "tp_size": 4}
        restart()
        await asyncio.sleep(1)
        assert heard.changes == ["restart", "restart", "tensor_parallel", "size"]


async def test_the_page_of_an_engine_without_choice_of_ranks_is_not_taken_for_that_of_a_rank() -> None:
    """vLLM's rank is read alone; SGLang's page, which cannot tell, is refused with what to do."""
    engine, vllm, sglang = Engine(), Heard(), Heard()
    engine.text = PAGE + PAGE.replace('engine="0"', 'engine="1"').replace("} 3.0", "} 5.0")
    other = Engine()
    other.text = (Path(__file__).parents[2] / "pages/sglang_0.5.23.prom").read_text()
    async with (
        serving(engine.application()) as url,
        serving(other.application()) as elsewhere,
        reading(url, vllm, engine="vllm", labels={"rank": "1"}),
        reading(elsewhere, sglang, engine="sglang", labels={"rank": "1"}) as (page, _clock, _task),
    ):
        await until(lambda: vllm.now is not None and page.problem)
    assert vllm.now is not None
    assert vllm.now.requests_running == 5.0
    assert sglang.now is None
    assert page.problem == "`ranks` is configured, but sglang lets no client choose a rank; remove it"


async def test_an_engine_without_a_page_is_not_read(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged once, and nothing is requested."""
    heard = Heard()
    async with reading("http://127.0.0.1:1", heard, engine="ollama") as (_, _clock, task):
        async with asyncio.timeout(5):
            await asyncio.wait([task])
    assert heard.now is None
    assert caplog.text.count("has no page of its own") == 1


@pytest.mark.parametrize(("was_read", "level"), [(False, logging.INFO), (True, logging.WARNING)])
async def test_a_server_without_a_page_is_no_warning(
    was_read: bool, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says how to end the search. A page that was there before is a warning."""
    caplog.set_level(logging.INFO)
    engine, heard = Engine(), Heard()
    async with serving(engine.application()) as url:
        async with reading(url, heard) as (page, _, _):
            engine.status = 200 if was_read else 404
            if was_read:
                await until(lambda: heard.now is not None)
            engine.status = 404
            await asyncio.sleep(5)
        lines = [record for record in caplog.records if "HTTP 404" in record.getMessage()]
        assert [record.levelno for record in lines] == [level]
        assert ("`metrics: {url: none}` ends the search" in lines[0].getMessage()) is not was_read
        assert "/metrics: HTTP 404" in page.problem


async def test_a_page_of_an_unknown_engine_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Once, with its address."""
    engine, heard = Engine(), Heard()
    engine.text = "other_thing 1\n"
    async with serving(engine.application()) as url, reading(url, heard):
        await until(lambda: "the page is of no known engine" in caplog.text)
        await asyncio.sleep(0.1)
    assert heard.now is None
    assert caplog.text.count("the page is of no known engine") == 1
