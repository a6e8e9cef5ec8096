"""The sender of all experiments: what it draws, in which order it tells, and how it ends. No request needs a server here."""

import asyncio
import pickle
from collections.abc import AsyncGenerator
from contextlib import aclosing
from random import Random

import pytest

from prober.measure.outcome import Outcome, Verdict
from prober.measure.result import ProbeResult
from prober.measure.target_state import TargetState
from prober.measure.timeline import Timeline
from prober.mock.delays import constant
from prober.mock.service import Behaviour, Settings
from prober.probing.channel import LENGTH_BYTES, Beat, Send
from prober.probing.probe import LocalRun, ProbeRun, always, new_request
from prober.probing.sender import Sender, Sending
from prober.probing.worker import Worker
from prober.probing.worker_host import WorkerProcess
from prober.probing.workers import WorkerRun, Workers
from prober.workload.shapes import Uniform
from prober.workload.workloads import RequestGenerator, Workload
from tests.probing.test_probe import known
from tests.virtual import running

pytestmark = pytest.mark.virtual_time
S = 10**9
VARIED = Workload("varied", Uniform(10, 900), Uniform(1, 90))
DUE_S = [2, 3, 4, 9, 10, 11]


class Answered(ProbeRun):
    """A request whose answer ends 3.5 s after its due time; one of more than 80 output tokens 20 s after it."""

    answer, first_ns, late_ns = None, None, 0

    async def _exchanged(self) -> ProbeResult:
        seconds = 20 if self.request.output_tokens > 80 else 3.5
        await self._target.clock.sleep_until(self.request.due_ns + round(seconds * S))
        return self._completed(Verdict(Outcome.OK, ""))

    def delivered(self) -> Timeline:
        return Timeline(self.request.due_ns)

    def _charged_tokens(self) -> tuple[int, int]:
        return 0, 0


class Faulty(Answered):
    """A request whose sending fails inside the prober."""

    async def _exchanged(self) -> ProbeResult:
        raise RuntimeError("a fault")


async def consumed(results: AsyncGenerator[ProbeResult | None, None]) -> None:
    async for _ in results:
        pass


async def sent(trouble: str = "") -> list[tuple[float, tuple[int, int], Outcome | None]]:
    """Due time in seconds after the begin, tokens and outcome of each request, None while loading. trouble: in the first 7 s"""
    clock, target = known("http://127.0.0.1:1")
    begin_ns, ended = clock.now_ns(), list[tuple[float, tuple[int, int], Outcome | None]]()

    def on_end(sending: Sending, result: ProbeResult | None) -> None:
        request = sending.request
        ended.append(((request.due_ns - begin_ns) / S, request.tokens, None if result is None else result.outcome))

    drawer, due_times = RequestGenerator(VARIED, Random(4)), (begin_ns + at * S for at in DUE_S)
    async with Sender(target, Answered, on_end=on_end, cut_text="cut") as sender:
        if trouble == "woke late":
            await asyncio.sleep(7.5)
        pacing = asyncio.create_task(consumed(sender.results(drawer, due_times)))
        if trouble == "loading":
            target.end(is_ending=True)
            await asyncio.sleep(7)
            target.is_ending, target.state = False, TargetState.READY
        elif trouble == "cut":
            await asyncio.sleep(7)
            await sender.cut()
        await pacing
    clock.close()
    assert sender.under_way == {}
    return sorted(ended)


@pytest.mark.parametrize(
    ("trouble", "outcomes"),
    [
        ("woke late", [Outcome.INVALID] * 3),
        ("loading", [None] * 3),
        ("cut", [Outcome.OK, Outcome.OK, Outcome.CANCELLED]),
    ],
)
async def test_a_seed_gives_the_same_request_for_a_due_time(trouble: str, outcomes: list[Outcome | None]) -> None:
    """Whether the prober missed earlier due times, the engine was loading, or earlier requests were cut."""
    undisturbed, disturbed = await sent(), await sent(trouble)
    assert [outcome for _, _, outcome in undisturbed] == [Outcome.OK] * len(DUE_S)
    assert [(due_s, tokens) for due_s, tokens, _ in disturbed] == [(due_s, tokens) for due_s, tokens, _ in undisturbed]
    assert len({tokens for _, tokens, _ in disturbed}) == len(DUE_S)
    assert [outcome for _, _, outcome in disturbed] == [*outcomes, *[Outcome.OK] * 3]


async def test_results_come_in_the_order_of_due_times_and_a_cut_leaves_none_in_flight() -> None:
    """A request that takes longer than later ones delays none of them."""
    clock, target = known("http://127.0.0.1:1")
    begin_ns = clock.now_ns()
    due_ns = [begin_ns + number * S for number in range(1, 60)]
    async with Sender(target, Answered) as sender:
        async with aclosing(sender.results(RequestGenerator(VARIED, Random(4)), iter(due_ns))) as results:
            came = [await anext(results) for _ in range(40)]
        assert len(sender.under_way) > 1
        await sender.cut()
    assert [result and result.timeline.intended_ns for result in came] == due_ns[:40]
    assert any(result and result.requested_output_tokens > 80 for result in came)
    assert (clock.now_ns() - begin_ns) / S < 40 + 20.1
    assert sender.under_way == {}
    clock.close()


async def test_a_fault_of_the_prober_ends_the_experiment() -> None:
    """And is not taken for a request that is never answered."""
    clock, target = known("http://127.0.0.1:1")
    with pytest.raises(ExceptionGroup) as problem:
        async with Sender(target, Faulty) as sender:
            await consumed(sender.results(RequestGenerator(VARIED, Random(4)), iter([clock.now_ns() + S])))
    assert problem.group_contains(RuntimeError, match="a fault")
    assert sender.under_way == {}
    clock.close()


@pytest.mark.parametrize("late_s", [0.0, 0.4])
async def test_a_request_under_way_says_how_late_the_prober_sent_it(late_s: float) -> None:
    """So that a guard counts its wait from then; what has arrived of it is read when a guard asks for it."""
    loop = asyncio.get_running_loop()
    async with running(Settings(behaviour=Behaviour(ttft=constant(1.0)))) as url:
        clock, target = known(url, model="mock")
        async with Sender(target, LocalRun) as sender:
            due_ns = clock.now_ns() + 2 * S
            sender.begin(new_request(target, RequestGenerator(VARIED, Random(4)), due_ns))
            await asyncio.sleep(1.9)
            loop.stand_still(0.1 + late_s)  # type: ignore[attr-defined]
            await asyncio.sleep(0.5)
            (sending,) = sender.under_way.values()
            assert sending.run is not None
            assert sending.run.late_ns == pytest.approx(late_s * S, abs=S / 100)
            sender.read_arrived()
            assert sending.run.first_ns is None
            await asyncio.sleep(0.6)
            sender.read_arrived()
            assert sending.run.first_ns is not None
            assert sending.run.first_ns - due_ns - sending.run.late_ns == pytest.approx(S, abs=S / 50)


async def test_a_worker_reports_how_late_it_sent() -> None:
    """Once, and once more with the first content: the prober takes no request for overdue because its worker woke late."""
    loop, messages = asyncio.get_running_loop(), list[object]()
    async with running(Settings(behaviour=Behaviour(ttft=constant(1.0)))) as url:
        clock, target = known(url, model="mock")
        worker, workers = Worker(1, clock), Workers()
        worker._targets[0] = target
        worker.channel.write = lambda data: messages.append(pickle.loads(data[LENGTH_BYTES:]))
        request = new_request(target, RequestGenerator(VARIED, Random(4)), clock.now_ns() + S)
        process = WorkerProcess(1, workers._receive)
        run = workers.runs[process][request.request_id] = WorkerRun(workers, target, request, always)
        worker._receive(Send(0, request))
        await asyncio.sleep(0.9)
        loop.stand_still(0.5)  # type: ignore[attr-defined]
        reports = []
        for pause_s in (0.2, 0.2, 0.61, 0.0):
            await asyncio.sleep(pause_s)
            worker.beat()
            workers._receive(process, messages[-1])
            reports.append((run.late_ns, run.first_ns))
        clock.close()
    assert [len(message.progress) for message in messages if isinstance(message, Beat)] == [1, 0, 1, 0]
    assert [late_ns for late_ns, _ in reports] == pytest.approx([0.4 * S] * 4, abs=S / 100)
    assert [first_ns is not None for _, first_ns in reports] == [False, False, True, True]
