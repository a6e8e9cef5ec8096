"""Truths of production against formulas of queueing theory, and the engine over HTTP against the same engine without it."""

import asyncio
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path

import aiohttp
import numpy as np
import pytest

from bench.independent.engine import Engine, NoCompiler, library
from bench.independent.engine_server import EngineServer
from bench.independent.production import (
    CASES,
    FINE,
    KINDS,
    SIZES,
    Arrivals,
    Case,
    NoLimit,
    Objective,
    Simulation,
    draw_case,
    limit,
    load,
    truth_of,
    with_objectives,
)
from bench.independent.structure import SEPARATE, Structure
from bench.independent.workloads import Mode, Tokens, Workload
from prober.exposition.parse import Parser
from prober.features.engines.page_reading import read_signals as read
from prober.features.engines.page_reading import recognise
from prober.measure.engines import TABLES
from tests.conftest import absent
from tests.serving import serving
from tests.virtual import VirtualLoop

FIXED = Workload((Mode(1.0, 100.0, 0.0, 1.0, 0.0),), 1_000, 100)
ONE_SERVER = Structure(noise=0.0, max_batch=1, scheduler=SEPARATE, base_s=0.05, sequence_s=0.0, prompt_s=0.0001)
SERVICE_S = 0.06


@pytest.fixture(autouse=True)
def _compiled() -> None:
    try:
        library()
    except NoCompiler as missing:
        absent(str(missing))


def case_of(structure: Structure, workload: Workload, threshold_s: float, allowed: float, use: float = 0.5) -> Case:
    """Production of the sweep's own shape."""
    return Case(
        *(0, 0, "", "same", structure, workload, workload, Arrivals(), ("ttft",), allowed, use, 0.0),
        objectives=(Objective("ttft", threshold_s, allowed),),
    )


def waits_longer_m_d_1(rate_per_s: float, wait_s: float) -> float:
    """Share of the requests of M/D/1 that wait for longer (Erlang 1909)."""
    terms = [
        (rate_per_s * (k * SERVICE_S - wait_s)) ** k
        / math.factorial(k)
        * math.exp(-rate_per_s * (k * SERVICE_S - wait_s))
        for k in range(int(wait_s / SERVICE_S) + 1)
    ]
    return 1 - (1 - rate_per_s * SERVICE_S) * sum(terms)


def test_limits_of_a_single_server_are_those_of_m_d_1() -> None:
    """By requests at random moments, and by production's own."""
    wait_s, allowed = 0.3, 0.02
    low, high = 0.1, 1 / SERVICE_S
    while high / low > 1.0001:
        middle = (low + high) / 2
        low, high = (middle, high) if waits_longer_m_d_1(middle, wait_s) < allowed else (low, middle)
    truth = truth_of(case_of(ONE_SERVER, FIXED, wait_s + SERVICE_S + 1e-9, allowed, use=0.6))
    assert truth.limit_per_s == pytest.approx(low, rel=0.02)
    assert truth.users_limit_per_s == truth.limit_per_s


def test_users_who_come_in_bursts_reach_their_limit_first() -> None:
    """A burst is met by more of those who come in it than of those who come at random moments."""
    case = replace(case_of(ONE_SERVER, FIXED, 0.4, 0.02), arrivals=Arrivals(0.5, 4.0))
    truth = truth_of(case)
    assert truth.users_limit_per_s < 0.97 * truth.limit_per_s
    assert truth.limit_per_s < truth_of(replace(case, arrivals=Arrivals())).limit_per_s


@dataclass(frozen=True, slots=True)
class ExponentialAnswers(Workload):
    """Answers of exponential length with a mean of 100 tokens."""

    def lengths(self, rng: np.random.Generator, count: int, traces: Path | None) -> tuple[Tokens, Tokens]:
        """Prompt and output tokens."""
        return np.full(count, 10), np.ceil(rng.exponential(100.0, count)).astype(np.int64)


def test_slots_wait_as_erlang_says() -> None:
    """Share of the requests of M/M/c that wait longer than t: C(c, λ/μ)·exp(−(cμ − λ)·t)."""
    slots, service_s, rate_per_s, wait_s = 4, 1.005, 3.2, 1.5
    structure = Structure(noise=0.0, max_batch=slots, base_s=0.01, sequence_s=0.0, prompt_s=0.0)
    offered = rate_per_s * service_s
    full = offered**slots / math.factorial(slots) / (1 - offered / slots)
    all_taken = full / (sum(offered**k / math.factorial(k) for k in range(slots)) + full)
    share = all_taken * math.exp(-(slots / service_s - rate_per_s) * wait_s)
    case = case_of(structure, ExponentialAnswers((), 1_000, 4_000), wait_s + 0.015, share)
    strains = [Simulation(case).strain(rate_per_s, 40_000, seed) for seed in range(4)]
    assert np.mean(strains) == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("number", [0, 6, 11])
def test_more_load_is_more_strain(number: int) -> None:
    """With the same chance at each rate the strain rises with it, up to the noise of a few events, for all who are counted."""
    case, truth = load([number])[0]
    for of_users, limit_per_s in ((False, truth.limit_per_s), (True, truth.users_limit_per_s)):
        strains = [Simulation(case).strain(share * limit_per_s, 10_000, 1, of_users) for share in (0.3, 0.7, 1.0, 1.4)]
        assert all(after > before - 0.05 for before, after in pairwise(strains))
        assert strains[0] < 0.7 < 1.3 < strains[-1]


def test_a_limit_is_where_the_strain_is_1() -> None:
    """Of a strain that is known at each rate; none where it is above 1 at all of them, or below."""
    rate, error, slope = limit(lambda rate, count, seed: (rate / 7.3) ** 5, 1.0, 0.01)
    assert rate == pytest.approx(7.3, rel=0.001)
    assert error == pytest.approx(0.0, abs=1e-6)
    assert slope == pytest.approx(5.0, rel=0.01)
    for same in (0.5, 2.0):

        def strain(rate: float, count: int, seed: int, same: float = same) -> float:
            return same

        with pytest.raises(NoLimit, match="every rate"):
            limit(strain, 1.0, 0.01)


@pytest.mark.parametrize("variation", [0.0, 0.7])
def test_arrivals_have_their_rate_and_their_bursts(variation: float) -> None:
    """The variance of a count ÷ its mean over long windows is 1 + variation² × rate × burst."""
    arrivals = Arrivals(variation, 2.0)
    times_s = arrivals.times_s(np.random.default_rng(1), 5.0, 200_000.0)
    counts = np.bincount((times_s / 100).astype(int))
    assert counts.mean() == pytest.approx(500, rel=0.01)
    assert counts.var() / counts.mean() == pytest.approx(1 + variation**2 * 5 * 2, rel=0.1)
    assert (np.diff(times_s) >= 0).all()


def test_the_chance_is_the_same_at_every_rate() -> None:
    """Bursts come at the same times, and more traffic is the same traffic, nearer together."""
    arrivals = Arrivals(0.7, 3.0)
    few, many = (arrivals.times_s(np.random.default_rng(1), rate, 3_000.0) for rate in (4.0, 8.0))
    of_few, of_many = (np.histogram(times, np.arange(0, 3_001, 3))[0] for times in (few, many))
    assert np.corrcoef(of_few, of_many)[0, 1] > 0.8
    poisson = [Arrivals().times_s(np.random.default_rng(1), rate, 1_000.0) for rate in (4.0, 8.0)]
    assert poisson[0][:3_000] / 2 == pytest.approx(poisson[1][:3_000])


def test_each_half_has_every_kind_with_every_size() -> None:
    """What is held out differs from what was developed on by chance only."""
    for half in (0, 1):
        drawn = [draw_case(number) for number in range(half, CASES, 2)]
        assert {(case.kind, case.size) for case in drawn} == set(product(KINDS, SIZES))


def test_recorded_truths_are_those_of_their_cases() -> None:
    """All are there; one is computed anew."""
    cases = load(range(CASES))
    assert len(cases) == CASES
    case, truth = cases[4]
    assert with_objectives(case).objectives == case.objectives
    strain = Simulation(case).strain(truth.limit_per_s, FINE, 99)
    assert strain == pytest.approx(1.0, abs=0.5)


def none() -> Iterator[tuple[float, int, int]]:
    yield math.inf, 1, 1


def test_over_http_tokens_come_when_the_engine_gives_them() -> None:
    """Requests over HTTP beside others: each token at its time, usage as asked, and the page with the counters of the engine."""
    structure = Structure(workers=2, max_batch=4)
    others = [(0.05 * number, 200, 30) for number in range(100)]
    prompt, output = 50, 12

    async def played() -> tuple[list[list[float]], str, EngineServer]:
        loop = asyncio.get_running_loop()
        begin_s = loop.time()

        async def request(session: aiohttp.ClientSession, at_s: float) -> list[float]:
            await asyncio.sleep(at_s)
            body = {"messages": [{"content": "word " * prompt}], "max_tokens": output}
            times_s: list[float] = []
            async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                async for line in response.content:
                    if b'"content"' in line:
                        times_s.append(loop.time() - begin_s)
                    elif b'"usage"' in line:
                        assert json.loads(line[6:])["usage"]["completion_tokens"] == output
            return times_s

        async with serving(server_app(), 8000, "192.0.2.1") as url, aiohttp.ClientSession() as session:
            times_s = await asyncio.gather(*(request(session, at_s) for at_s in (0.5, 1.0, 1.0)))
            await asyncio.sleep(20)
            async with session.get(f"{url}/metrics") as response:
                page = await response.text()
        return times_s, page, servers[0]

    servers: list[EngineServer] = []

    def server_app() -> aiohttp.web.Application:
        servers.append(EngineServer(Engine(structure, 1), iter([*others, *none()]), 0.0))
        return servers[0].app()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        times_s, page, server = runner.run(played())
    alone = Engine(structure, 1)
    merged = sorted(
        [*((*other, False) for other in others), *((at_s, prompt, output, True) for at_s in (0.5, 1.0, 1.0))]
    )
    numbers = [alone.submit(at_s, length, answer, (), is_own) for at_s, length, answer, is_own in merged]
    alone.drain()
    own = [alone.token_times_s(number) for number, (*_, is_own) in zip(numbers, merged, strict=True) if is_own]
    for seen, real in zip(sorted(times_s), sorted(own, key=lambda times: float(times[0])), strict=True):
        assert len(seen) == output
        assert seen == pytest.approx(real, abs=0.03)  # requests of one moment may change places
    parsed = Parser(None).parse(page.encode())
    table = recognise(parsed, TABLES)
    assert table is not None
    reading = read(parsed, table).signals
    expected = server.engine.page()
    for name in (
        "requests_running",
        "prompt_tokens_total",
        "generation_tokens_total",
        "requests_finished_total",
        "ranks",
    ):
        assert getattr(reading, name) == getattr(expected, name), name
