"""`/probe`, as Prometheus scrapes it: one probe within the scrape's timeout, and in every case how it ended."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from prometheus_client.parser import text_string_to_metric_families

from prober.mock.delays import constant
from prober.mock.service import Behaviour, Settings
from prober.web.site import Site
from tests.daemon.test_fleet import QUICK, SLOW, Watched, specs, watched
from tests.serving import until
from tests.virtual import running

pytestmark = pytest.mark.virtual_time
TIMEOUT = "X-Prometheus-Scrape-Timeout-Seconds"
LONG = Settings(behaviour=Behaviour(ttft=constant(0.002), itl=constant(0.05)))
STALLED = Settings(behaviour=Behaviour(ttft=constant(0.002), itl=constant(20.0)))


class Prober:
    """A site over a fleet, asked without a network between."""

    def __init__(self, seen: Watched) -> None:
        self.seen = seen
        self._site = Site(seen.fleet, seen.sweeps, seen.families, cast(Any, None), "", "")

    async def ask(self, query: str, **headers: str) -> tuple[int, str]:
        """Status and text of the answer."""
        try:
            answer = await self._site.probe(make_mocked_request("GET", f"/probe?{query}", headers))
        except web.HTTPException as refusal:
            return refusal.status, refusal.text or ""
        return answer.status, cast(bytes, answer.body).decode()

    async def scrape(self, query: str, timeout_s: float) -> dict[str, float]:
        """The series of an answer that has come in time, `probe_outcome` by the value of its label."""
        began_s = asyncio.get_running_loop().time()
        status, text = await self.ask(query, **{TIMEOUT: f"{timeout_s:g}"})
        assert status == 200, text
        assert asyncio.get_running_loop().time() - began_s < timeout_s
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return {sample.labels.get("outcome", sample.name): sample.value for sample in samples}


@asynccontextmanager
async def probing(target: str, mock: Settings = QUICK) -> AsyncIterator[Prober]:
    async with running(mock) as url, watched() as seen:
        await seen.reconcile(specs(f"name: a, rate: 1/h, {target.format(url=url)}"), 1.0)
        yield Prober(seen)


@pytest.mark.parametrize(
    ("mock", "timeout_s", "outcome", "least_s"),
    [
        (SLOW, 0.4, "timeout_first_token", 0.1),
        (SLOW, 0.05, "timeout_first_token", 0.02),
        (LONG, 1.5, "timeout_total", 0.9),
        (STALLED, 60.0, "timeout_stall", 10.0),  # the target's own timeout is shorter
        (QUICK, 5.0, "ok", 0.002),
        (QUICK, 1e9, "ok", 0.002),
    ],
)
async def test_a_scrape_learns_in_time_how_the_probe_ended(
    mock: Settings, timeout_s: float, outcome: str, least_s: float
) -> None:
    """The scrape's timeout, less time for the answer to arrive, bounds each timeout of the target: the outcome names the phase."""
    fixed = "probes: [{{workload: phase_256_128, rate: 1/h}}]"
    async with probing(f"url: '{{url}}', model: mock, {fixed}", mock) as prober:
        series = await prober.scrape("target=a", timeout_s)
    assert series["probe_success"] == (outcome == "ok")
    assert series[outcome] == 1
    assert least_s <= series["probe_duration_seconds"] < timeout_s
    assert ("probe_ttft_seconds" in series) == (outcome != "timeout_first_token")
    assert ("probe_completion_tokens" in series) == (outcome == "ok")


class Silent(asyncio.Protocol):
    """A server that accepts and says nothing."""

    transports: list[asyncio.BaseTransport] = []  # noqa: RUF012 - of all connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transports.append(transport)


@pytest.mark.parametrize(
    ("url", "outcome"),
    [
        ("https://127.0.0.1:4433/v1', model: 'm", "connect_timeout"),
        ("http://127.0.0.1:4433/v1', model: 'm", "timeout_first_token"),
        ("http://127.0.0.1:4433/v1", "timeout_total"),
        ("http://127.0.0.1:1/v1', model: 'm", "connect_refused"),
        ("http://127.0.0.1:1/v1", "starting"),
    ],
)
async def test_a_server_that_does_not_answer_is_an_outcome(url: str, outcome: str) -> None:
    """TLS, the answer, and the list of models where no model is configured; and why nothing was sent while an engine starts."""
    await asyncio.get_running_loop().create_server(Silent, "127.0.0.1", 4433)
    starting = "starting_timeout: 1h" if outcome == "starting" else "starting_timeout: 0s"
    async with probing(f"url: '{url}', {starting}") as prober:
        series = await prober.scrape("target=a", 3.0)
    while Silent.transports:
        Silent.transports.pop().close()
    assert series.pop("probe_duration_seconds") < 2.6
    assert series == {"probe_success": 0, outcome: 1}


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e999", "soon", "10s", "1_0", "0x10", "5,5", "٣"])
async def test_a_timeout_that_is_none_is_refused(value: str) -> None:
    """400 names the header, its value and the remedy, and nothing is sent; without the header the target's timeouts hold."""
    async with probing("url: '{url}'") as prober:
        await until(lambda: prober.seen.probes("a") >= 1)
        assert await prober.ask("target=a", **{TIMEOUT: value}) == (
            400,
            f"{TIMEOUT}: {value!r} is no timeout; send a number of seconds above 0, or leave the header out\n",
        )
        assert [(await prober.ask("target=a"))[0] for _ in range(5)] == [200] * 5  # the whole burst is left


async def test_a_module_is_a_workload_of_the_target() -> None:
    """`module` chooses it, the first is the default; one that there is not is refused with those that there are."""
    workloads = "probes: [{{workload: chat, rate: 1/h}}, {{workload: phase_256_128, rate: 1/h}}]"
    async with probing(f"url: '{{url}}', {workloads}") as prober:
        assert await prober.ask("target=a&module=http_2xx") == (
            400,
            'no module "http_2xx"; known: chat, phase_256_128; a module is a workload of the target\n',
        )
        assert (await prober.scrape("target=a&module=phase_256_128", 10.0))["probe_completion_tokens"] == 128
        for query in ("target=a", "target=a&module=", "target=a&module=chat"):
            assert (await prober.scrape(query, 10.0))["probe_success"] == 1
