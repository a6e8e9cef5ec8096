"""Workers on a real Ray cluster of two nodes, of which one is killed. The nodes are processes of this machine."""

import asyncio
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest

from tests.scripted import scripted

pytest.importorskip("ray", reason="make test-ray has an environment with Ray")

from prober.measure.outcome import Outcome
from prober.probing.probe import new_request
from prober.probing.worker_host import WorkersUnavailable
from prober.probing.workers import open_workers
from prober.results.stage import stage_of
from prober.workload.shapes import Uniform
from prober.workload.workloads import RequestGenerator, Workload
from tests.probing.test_workers import WORKLOAD, Engine, schedule, sent, targeted
from tests.processes import until
from tests.ray.conftest import node_arguments

pytestmark = [pytest.mark.timeout(280), pytest.mark.filterwarnings("default")]


async def test_two_nodes_send_the_schedule_of_one_process_and_one_is_lost(cluster: Any) -> None:
    """The same requests and due times, each once; then a node is killed, its requests are counted, and the other goes on."""
    other = cluster.add_node(**node_arguments())
    requests, stages = [], []
    for address in ("", cluster.address):
        engine = Engine()
        async with (
            scripted(engine.reply) as url,
            targeted(url) as target,
            open_workers(2 if address else 1, ray=address) as workers,
        ):
            due_ns = schedule(target, 60)
            results = await sent(workers.launch, target, due_ns)
            assert [result.timeline.intended_ns for result in results] == due_ns
            assert {result.outcome for result in results} == {Outcome.OK}, results[0].detail
            assert min((result.timeline.sent_ns or 0) - result.timeline.intended_ns for result in results) > -5_000_000
            requests.append(Counter(engine.requests))
            stage = stage_of("s", None, results, origin_ns=due_ns[0], begin_ns=due_ns[0], sending_s=1.0)
            stages.append((stage.sent, stage.answered))
            if not address:
                continue
            assert set(Counter(result.worker for result in results)) == {1, 2}
            assert len(workers.clocks()) == 2
            told: list[str] = []
            workers.on_loss = told.append
            long = replace(WORKLOAD, output_tokens=Uniform(900, 1_000))
            begin_ns = target.clock.now_ns() + 200_000_000
            running = asyncio.create_task(sent(workers.launch, target, [begin_ns] * 20, long))
            await asyncio.sleep(1.0)
            await asyncio.to_thread(cluster.remove_node, other, allow_graceful=False)
            results = await running
            outcomes = Counter(result.outcome for result in results)
            assert outcomes == {Outcome.OK: 10, Outcome.INVALID: 10}
            (sentence,) = told
            assert sentence.endswith("10 requests lost, which do not count")
            assert {result.detail for result in results if result.outcome is Outcome.INVALID} == {sentence}
            later = await sent(workers.launch, target, schedule(target, 20))
            assert {result.outcome for result in later} == {Outcome.OK}
            assert len({result.worker for result in later}) == 1
    assert requests[0] == requests[1]
    assert stages[0] == stages[1] == (60, 60)


def is_asked(engine: Engine, times: int) -> bool:
    """Whether so many requests have reached the engine."""
    return len(engine.requests) == times


async def test_a_stop_cuts_the_requests_of_all_nodes_at_once(cluster: Any) -> None:
    """Within 0.1 s at the engine, as on one machine, and what each request had delivered is known."""
    cluster.add_node(**node_arguments())
    engine, quickest_s = Engine(chunks_per_s=50), 9.0
    async with (
        scripted(engine.reply) as url,
        targeted(url) as target,
        open_workers(2, ray=cluster.address) as workers,
    ):
        for attempt in range(1, 6):  # a busy machine may delay some
            engine.cut_s.clear()
            drawer = RequestGenerator(Workload("w", Uniform(5, 60), Uniform(400, 500)), Random(7))
            due_ns = target.clock.now_ns() + 500_000_000
            flights = [workers.launch(target, new_request(target, drawer, due_ns)) for _ in range(20)]
            tasks = [asyncio.create_task(flight.send()) for flight in flights]
            await asyncio.to_thread(until, partial(is_asked, engine, 20 * attempt), "all requests")
            await asyncio.sleep(0.5)
            stopped_s = time.monotonic()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await asyncio.to_thread(until, lambda: len(engine.cut_s) == 20, "the end of all requests")
            quickest_s = min(quickest_s, max(engine.cut_s) - stopped_s)
            assert all(flight.delivered().content_ns for flight in flights)
            if quickest_s < 0.1:
                break
    assert quickest_s < 0.1


async def test_more_workers_than_processors_is_an_error(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to do, and does not wait for ever."""
    monkeypatch.setattr("prober.probing.ray_workers.START_S", 10.0)
    with pytest.raises(
        WorkersUnavailable, match=r"worker [12] found no free processor .* lower --workers, or add nodes"
    ):
        async with open_workers(2, ray=cluster.address):
            raise AssertionError
