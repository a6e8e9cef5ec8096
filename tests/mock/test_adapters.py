"""The mock's adapters, held to a simulation of its own that steps through time."""

import asyncio
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest

from prober.mock.adapters import AdapterPool, AdapterSettings, Lease
from prober.mock.delays import Constant
from prober.mock.server import running
from prober.mock.service import Behaviour, Settings
from prober.simulation.parameters import Parameters

MS = 1_000_000
LOAD_MS, SERVICE_MS = 40, 15


def in_steps(arrivals: list[tuple[int, str]], slots: int) -> list[int]:
    """Times in ms from which each request has its adapter, found by stepping through each millisecond.

    Arrivals are (ms, adapter), by time; a request holds its adapter for `SERVICE_MS` from then on.
    """
    ready: list[int | None] = [None] * len(arrivals)
    resident: dict[str, tuple[int, int, int]] = {}  # loaded at, last use (ms, number of the use)
    loads_end, uses = 0, 0
    for now in range(100_000):
        for number, (at, name) in enumerate(arrivals):
            if at > now or ready[number] is not None:
                continue
            held = {arrivals[i][1] for i, begin in enumerate(ready) if begin is not None and now < begin + SERVICE_MS}
            if name not in resident:
                idle = sorted((last, other) for other, (_, *last) in resident.items() if other not in held)
                if len(resident) >= slots:
                    if not idle:
                        continue
                    del resident[idle[0][1]]
                loads_end = max(now, loads_end) + LOAD_MS
                resident[name] = (loads_end, now, 0)
            uses += 1
            resident[name] = (resident[name][0], now, uses)
            ready[number] = max(now, resident[name][0])
        if all(begin is not None for begin in ready):
            return [begin for begin in ready if begin is not None]
    raise AssertionError("some requests never had their adapter")


def in_pool(arrivals: list[tuple[int, str]], slots: int) -> list[int]:
    """The same by the pool, driven by the events of arrivals and of ends."""
    pool = AdapterPool(AdapterSettings(("a", "b", "c", "d"), slots, Constant(LOAD_MS / 1000)), Random(1))
    ready: dict[int, int] = {}
    leases: dict[int, Lease] = {}
    open_, todo = set(range(len(arrivals))), list(range(len(arrivals)))
    while open_:
        ends = [(ready[number] + SERVICE_MS * MS, number) for number in open_ if number in ready]
        end_ns, ended = min(ends, default=(10**18, -1))
        if todo and arrivals[todo[0]][0] * MS < end_ns:
            number = todo.pop(0)
            at, name = arrivals[number]
            leases[number] = pool.acquire(name, at * MS, partial(ready.__setitem__, number))
        else:
            open_.remove(ended)
            pool.release(leases[ended], end_ns)
    return [ready[number] // MS for number in range(len(arrivals))]


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_the_pool_is_that_of_a_simulation_in_steps(slots: int) -> None:
    """Loads one after the other, the least recently used idle adapter leaves, one in use never does."""
    for seed in range(20):
        rng = Random(seed)
        times = sorted(rng.sample(range(2_000), 40))
        arrivals = [(at, rng.choice("abcd")) for at in times]
        assert in_pool(arrivals, slots) == in_steps(arrivals, slots), (seed, arrivals)


def test_a_request_that_leaves_while_it_waits_takes_no_slot() -> None:
    """The next one in line gets the adapter's slot."""
    ready: list[int] = []
    pool = AdapterPool(AdapterSettings(("a", "b"), 1, Constant(0.04)), Random(1))
    first = pool.acquire("a", 0, ready.append)
    second = pool.acquire("b", 1, ready.append)
    third = pool.acquire("b", 2, ready.append)
    pool.release(second, 3)
    pool.release(first, 100 * MS)
    assert ready == [40 * MS, 140 * MS]
    assert (second.is_held, third.load_ns) == (False, 40 * MS)


async def test_the_server_loads_an_adapter_on_its_first_use(tmp_path: Path) -> None:
    """It lists adapters as vLLM does, answers in their names, refuses others, and the truth has each load."""
    quick = Behaviour(ttft=Constant(0.01), itl=Constant(0.001))
    truth = tmp_path / "truth.jsonl"
    settings = Settings(behaviour=quick, truth=truth, adapters=AdapterSettings(("a", "b"), 1, Constant(0.2)))

    async def ask(model: str) -> Any:
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
        async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
            return await answer.json()

    async with running(settings) as url, aiohttp.ClientSession() as session:
        async with session.get(f"{url}/v1/models") as answer:
            listed = [(model["id"], model["parent"]) for model in (await answer.json())["data"]]
        names = [(await ask(model))["model"] for model in ("a", "a", "b", "a", "mock")]
        refused = await ask("c")
        await asyncio.gather(ask("b"), ask("b"))
    assert listed == [("mock", None), ("a", "mock"), ("b", "mock")]
    assert names == ["a", "a", "b", "a", "mock"]
    assert refused["error"]["message"] == "The model `c` does not exist. Valid aliases: mock, a, b."
    records = sorted(map(json.loads, truth.read_text().splitlines()), key=lambda record: record["received_ns"])
    loads = [(record["adapter"], record["load_ns"] // MS) for record in records]
    assert loads[:6] == [("a", 200), ("a", 0), ("b", 200), ("a", 200), ("", 0), ("", 0)]
    assert sorted(loads[6:]) == [("b", 0), ("b", 200)]
    for record in records[:5]:
        waited_ms = (record["started_ns"] - record["received_ns"] - record["load_ns"]) / MS
        assert -1 < waited_ms < 20


def test_the_simulated_engine_has_no_adapters() -> None:
    """It says so instead of answering in their names."""
    with pytest.raises(ValueError, match="adapters are of the drawn engine"):
        replace(Settings(adapters=AdapterSettings(("a",))), simulation=Parameters())
