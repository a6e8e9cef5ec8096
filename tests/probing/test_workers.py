"""Several processes that send one schedule: real processes, real sockets, real signals."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from prober.config.load import load
from prober.config.target import TargetSpec
from prober.measure.engines import DIALECTS
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.net.clock import Clock
from prober.probing.channel import Offset
from prober.probing.pacer import pace
from prober.probing.probe import Launch, LocalRun, always, new_request
from prober.probing.target import Identity, Target
from prober.probing.worker_host import WorkerProcess, WorkersUnavailable
from prober.probing.workers import Workers, open_workers
from prober.results.stage import stage_of
from prober.workload.arrivals import poisson
from prober.workload.budget import Budget
from prober.workload.prompt_length import PromptCalibration
from prober.workload.shapes import Uniform
from prober.workload.workloads import RequestGenerator, Workload
from tests.probing.canned_worker import CannedRun
from tests.processes import HANG_S, until
from tests.scripted import Asked, scripted
from tests.wire.case import Step
from tests.wire.events import DONE, end, text, usage
from tests.wire.heads import UNTIL_CLOSE

WORKLOAD = Workload("w", Uniform(5, 60), Uniform(3, 9))
LEAD_NS = 150_000_000
STOP_S, PACE_PER_S = 1.0, 50
AHEAD_NS = 700_000_000
AFTER_STARTS_NS = 600_000_000_000  # workers that start slowly; canned workers do not wait for a due time


class Engine:
    """An engine that records its requests. chunks_per_s: of an answer

    requests: bodies without the nonce of the prompt; open: requests whose connection is open; cut_s: when the peer closed early
    """

    def __init__(self, chunks_per_s: float = 500.0) -> None:
        self.pause_s = 1 / chunks_per_s
        self.requests: list[tuple[str, int]] = []
        self.open = self.peak = 0
        self.chunks = 0
        self.cut_s: list[float] = []
        self.refusal = b""  # instead of an answer

    def reply(self, asked: Asked) -> Iterator[Step]:
        self.open += 1
        self.peak = max(self.peak, self.open)
        tokens, prompt = asked.json["max_tokens"], asked.json["messages"][0]["content"].partition("] ")[2]
        self.requests.append((prompt, tokens))
        try:
            yield self.refusal or UNTIL_CLOSE
            for _ in range(0 if self.refusal else tokens):
                yield self.pause_s
                yield text("a ")
                self.chunks += 1
            yield b"" if self.refusal else end() + usage(tokens, len(prompt.split())) + DONE
        except GeneratorExit:
            self.cut_s.append(time.monotonic())
            raise
        finally:
            self.open -= 1


def spec(url: str, **changes: Any) -> TargetSpec:
    text = f"targets: [{{name: t, url: '{url}', connect_lead: 100ms}}]"
    loaded = load(text, source="c", engines=DIALECTS, environment={}, read=lambda path: path).targets[0]
    return loaded.model_copy(update={"warmup": 0, "max_in_flight": 1_000} | changes)


@asynccontextmanager
async def targeted(url: str, **changes: Any) -> AsyncIterator[Target]:
    clock = Clock()
    target = Target(spec(url, **changes), clock)
    target.identity = Identity("m", DIALECTS["vllm"], "/v1")
    try:
        yield target
    finally:
        clock.close()


async def sent(
    launch: Launch, target: Target, due_ns: Sequence[int], workload: Workload = WORKLOAD
) -> list[ProbeResult]:
    """Results of a schedule in the order of due times."""
    drawer = RequestGenerator(workload, Random(7))
    runs = [launch(target, new_request(target, drawer, due), always) for due in due_ns]
    results = await asyncio.gather(*(run.send() for run in runs))
    return sorted(results, key=lambda result: result.timeline.intended_ns)


def schedule(target: Target, count: int, per_s: float = 100.0) -> list[int]:
    """Poisson due times of one seed."""
    times = poisson(per_s, Random(3), target.clock.now_ns() + LEAD_NS)
    return [next(times) for _ in range(count)]


def processes(workers: Workers) -> list[int]:
    return [process.host.process.pid for process in workers._processes if process.host is not None]


def is_there(pid: int) -> bool:
    """Whether the process exists, also as a zombie."""
    return Path(f"/proc/{pid}").exists()


def start_prober(program: str, url: str, stdout: int | None = None) -> "subprocess.Popen[bytes]":
    """A process that sends with two workers. program: a function of this file"""
    command = [sys.executable, __file__, program, url]
    return subprocess.Popen(command, start_new_session=True, stdout=stdout, stderr=subprocess.DEVNULL)


def children_of(pid: int) -> list[int]:
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in lists for child in path.read_text().split()]


async def test_the_union_of_the_workers_is_the_schedule_of_one_process() -> None:
    """The same due times, and each request of the same seed exactly once; each worker has its share and nothing is sent early."""
    requests = []
    for count in (1, 3):
        engine = Engine()
        connections: list[None] = []
        serving = scripted(engine.reply, connected=lambda: connections.append(None))  # noqa: B023
        async with serving as url, targeted(url) as target, open_workers(count) as workers:
            due_ns = schedule(target, 60)
            results = await sent(workers.launch, target, due_ns)
        requests.append(Counter(engine.requests))
        assert [result.timeline.intended_ns for result in results] == due_ns
        assert Counter((result.outcome, result.detail) for result in results) == {(Outcome.OK, ""): 60}
        assert min((result.timeline.sent_ns or 0) - result.timeline.intended_ns for result in results) >= 0
        shares = Counter(result.worker for result in results)
        assert set(shares) == ({0} if count == 1 else {1, 2, 3})
        assert min(shares.values()) >= 60 / count - 10
        assert len(connections) == 60 + (count if count > 1 else 0), "one connection of each worker warms it up"
    assert requests[0] == requests[1]
    assert requests[0].total() == 60


async def test_results_of_workers_are_merged_exactly() -> None:
    """On a replay the stage of one process and those of two and three are equal: counts, stamps and quantiles."""
    stages = []
    async with targeted("http://127.0.0.1:1") as target:
        due_ns = [time_ns + AFTER_STARTS_NS for time_ns in schedule(target, 300)]
        for count in (1, 2, 3):
            async with open_workers(count, "tests.probing.canned_worker") as workers:
                results = await sent(CannedRun if count == 1 else workers.launch, target, due_ns)
            assert len({result.worker for result in results}) == count
            origin_ns = due_ns[0]
            stages.append(stage_of("s", 100.0, results, origin_ns=origin_ns, begin_ns=origin_ns, sending_s=3.0))
    assert stages[0] == stages[1] == stages[2]
    stage = stages[0]
    assert (stage.sent, len(stage.outcomes), len(stage.requests)) == (300, 3, 300)
    assert {"ttft", "itl", "tpot", "e2e"} <= stage.latencies.keys()


async def test_a_daily_budget_holds_for_the_sum_of_the_workers() -> None:
    """Nothing is sent beyond it, and what was set aside becomes what the server counted; a refusal costs nothing."""
    engine = Engine()
    limit = 5_000.0
    async with scripted(engine.reply) as url, targeted(url) as target, open_workers(2) as workers:
        target.budgets = {"tokens": Budget(limit)}
        results = await sent(
            workers.launch, target, schedule(target, 200, 400.0), Workload("w", Uniform(90, 110), Uniform(3, 9))
        )
        spent = target.budgets["tokens"].spent(target.clock.now_ns())
        answered = len(engine.requests)
        engine.refusal = b"HTTP/1.1 529 Overloaded\r\nContent-Length: 0\r\n\r\n"
        target.budgets = {"tokens": Budget(limit)}
        refused = await sent(
            workers.launch, target, schedule(target, 10, 400.0), Workload("w", Uniform(90, 110), Uniform(3, 9))
        )
        assert target.budgets["tokens"].spent(target.clock.now_ns()) == 0
    assert {result.outcome for result in refused} == {Outcome.HTTP_5XX}
    outcomes = Counter(result.outcome for result in results)
    usage = [result.timeline.usage for result in results if result.timeline.usage is not None]
    used = sum((use.prompt_tokens or 0) + (use.completion_tokens or 0) for use in usage)
    assert set(outcomes) == {Outcome.OK, Outcome.OVER_BUDGET}, outcomes
    assert answered == outcomes[Outcome.OK]
    assert limit - 119 < used == spent <= limit


class OtherClock(WorkerProcess):
    """A worker that is told that its clock is ahead of the prober's, so it sends as much later."""

    def clock_offset(self) -> Offset:
        return Offset(AHEAD_NS, 0)


async def test_stamps_of_a_machine_with_another_clock_come_back_on_the_clock_of_the_prober() -> None:
    """All of them moved by the worker, those of requests that are cut as well; durations stay."""
    engine = Engine(chunks_per_s=100)
    async with scripted(engine.reply) as url, targeted(url) as target:
        workers = Workers()
        await workers.start(2, kind=OtherClock)
        try:
            due_ns = schedule(target, 6)
            for result, due in zip(await sent(workers.launch, target, due_ns), due_ns, strict=True):
                timeline = result.timeline
                assert timeline.intended_ns == due
                stamps = (timeline.sent_ns, timeline.first_ns, *timeline.content_ns, timeline.end_ns)
                assert all(0 <= (at_ns or 0) - timeline.intended_ns < 10**10 for at_ns in stamps)
            drawer = RequestGenerator(Workload("w", Uniform(5, 60), Uniform(400, 500)), Random(7))
            run = workers.launch(target, new_request(target, drawer, target.clock.now_ns() + LEAD_NS))
            task = asyncio.create_task(run.send())
            await asyncio.to_thread(until, lambda: engine.open, "a request")
            await asyncio.sleep(0.1)
            task.cancel()
            await asyncio.wait([task])
            cut = run.delivered()
            assert cut.content_ns
            assert cut.intended_ns < cut.content_ns[-1] < target.clock.now_ns() - AHEAD_NS
        finally:
            await workers.close()


@pytest.mark.parametrize("cap", [1, 3, 6])
async def test_the_cap_of_requests_in_flight_holds_for_the_sum_of_the_workers(cap: int) -> None:
    """No more are in flight at the engine, and the others are shed."""
    engine = Engine(chunks_per_s=10)
    async with scripted(engine.reply) as url, targeted(url, max_in_flight=cap) as target, open_workers(2) as workers:
        results = await sent(workers.launch, target, [target.clock.now_ns() + LEAD_NS] * 12)
    assert engine.peak == cap
    assert Counter(result.outcome for result in results) == {Outcome.OK: cap, Outcome.SHED: 12 - cap}


@asynccontextmanager
async def pauses() -> AsyncIterator[list[float]]:
    """Seconds for which the event loop of this process, which is that of the engine, stood still each time."""
    pauses_s = [0.0]

    async def measure() -> None:
        while True:
            begin_s = time.monotonic()
            await asyncio.sleep(0.005)
            pauses_s.append(time.monotonic() - begin_s - 0.005)

    measuring = asyncio.create_task(measure())
    yield pauses_s
    measuring.cancel()


def waited_s(pids: Sequence[int]) -> float:
    """Seconds for which processes had to wait for a processor."""
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) for pid in pids) / 1e9


async def test_a_stop_cuts_the_requests_of_all_workers_at_once() -> None:
    """Within 0.1 s and a few pauses of this machine, those not yet due are never sent, and what the others had delivered is known."""
    engine = Engine(chunks_per_s=50)
    async with scripted(engine.reply) as url, targeted(url) as target, open_workers(3) as workers:
        drawer = RequestGenerator(Workload("w", Uniform(5, 60), Uniform(400, 500)), Random(7))
        now_ns = target.clock.now_ns()
        due_ns = [now_ns + LEAD_NS] * 30 + [now_ns + 60 * 10**9] * 6
        runs = [workers.launch(target, new_request(target, drawer, due)) for due in due_ns]
        tasks = [asyncio.create_task(run.send()) for run in runs]
        await asyncio.to_thread(until, lambda: engine.open == 30, "30 requests in flight")
        await asyncio.to_thread(until, lambda: engine.chunks >= 30 * 100, "their first chunks, most of them read")
        async with pauses() as pauses_s:
            waited_before_s = waited_s(processes(workers))
            stopped_s, before = time.monotonic(), len(engine.requests)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await asyncio.to_thread(until, lambda: engine.open == 0, "the cut")
            machine_s = 5 * max(pauses_s) + waited_s(processes(workers)) - waited_before_s
        assert (before, len(engine.requests), len(engine.cut_s)) == (30, 30, 30)
        assert max(engine.cut_s) - stopped_s < 0.1 + machine_s
        assert all(len(run.delivered().content_ns) >= 10 for run in runs[:30])
        assert all(run.delivered().sent_ns is None for run in runs[30:])


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hung"])
async def test_the_end_of_a_worker_is_told_and_its_requests_do_not_count(
    signal_number: int, caplog: pytest.LogCaptureFixture
) -> None:
    """They are `invalid` and no failures of the engine; the other workers go on, and nothing is left of the process."""
    engine = Engine(chunks_per_s=4)
    told: list[str] = []
    async with scripted(engine.reply) as url, targeted(url) as target, open_workers(3) as workers:
        workers.on_loss = told.append
        pids = processes(workers)
        sending = asyncio.create_task(sent(workers.launch, target, [target.clock.now_ns() + LEAD_NS] * 30))
        await asyncio.to_thread(until, lambda: engine.open == 30, "30 requests in flight")
        os.kill(pids[1], signal_number)
        results = await sending
        assert not is_there(pids[1])
        lost = [result for result in results if result.outcome is not Outcome.OK]
        assert [result.outcome for result in lost] == [Outcome.INVALID] * 10
        why = "SIGKILL" if signal_number == signal.SIGKILL else "no sign of it for 2 s, SIGKILL"
        sentence = f"worker 2 of 3 ended ({why}): 10 requests lost, which do not count"
        assert told == workers.losses == [sentence] == list({result.detail for result in lost})
        assert sentence in caplog.text
        later = await sent(workers.launch, target, schedule(target, 20))
        assert {result.worker for result in later} == {1, 3}
        assert {result.outcome for result in later} == {Outcome.OK}
    assert not any(map(is_there, pids))


async def test_without_workers_left_requests_are_invalid() -> None:
    """Nothing waits for ever."""
    async with scripted(Engine().reply) as url, targeted(url) as target, open_workers(2) as workers:
        for pid in processes(workers):
            os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(until, lambda: len(workers.losses) == 2, "the loss of both")
        results = await sent(workers.launch, target, schedule(target, 3))
    assert {(result.outcome, result.detail) for result in results} == {(Outcome.INVALID, "no worker is left")}


async def test_a_worker_that_does_not_start_is_an_error_and_leaves_no_process() -> None:
    """The message says how it ended."""
    with pytest.raises(WorkersUnavailable, match=r"worker [12] does not start \(exit status 1\)"):
        async with open_workers(2, "prober.no_such_module"):
            raise AssertionError


async def test_without_ray_its_workers_are_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray is an extra."""
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "prober.probing.ray_workers", raising=False)
    with pytest.raises(WorkersUnavailable, match=r"pip install 'llm-slo-prober\[ray\]'"):
        async with open_workers(2, ray="auto"):
            raise AssertionError


async def test_one_worker_is_the_prober_itself_and_so_are_sample_prompts() -> None:
    """They calibrate the target, which is here."""
    async with targeted("http://127.0.0.1:1") as target:
        request = new_request(target, RequestGenerator(WORKLOAD, Random(1)), 0)
        async with open_workers(1) as none:
            assert isinstance(none.launch(target, request), LocalRun)
        async with open_workers(2) as workers:
            assert not isinstance(workers.launch(target, request), LocalRun)
            target.prompt_calibration = PromptCalibration()
            assert isinstance(
                workers.launch(target, new_request(target, RequestGenerator(WORKLOAD, Random(1)), 0)), LocalRun
            )


async def test_a_worker_cuts_its_requests_if_the_prober_is_stopped() -> None:
    """Nobody guards the engine then; the requests end within 1.5 s, though the process of the prober is still there."""
    engine = Engine(chunks_per_s=5)
    async with scripted(engine.reply) as url:
        parent = start_prober("_send_long", url)
        try:
            await asyncio.to_thread(until, lambda: engine.open == 20, "20 requests in flight")
            os.kill(parent.pid, signal.SIGSTOP)
            await asyncio.to_thread(until, lambda: engine.open == 0, "the cut")
            assert len(engine.cut_s) == 20, "uncut they end after 80 s"
        finally:
            parent.kill()
            parent.wait(HANG_S)


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("is_hung", [False, True], ids=["", "with a hung worker"])
async def test_workers_end_with_the_prober(signal_number: int, is_hung: bool) -> None:
    """However it ends, and also a worker that hangs; the engine is rid of the requests."""
    engine = Engine(chunks_per_s=5)
    async with scripted(engine.reply) as url:
        parent = start_prober("_send_long", url)
        try:
            await asyncio.to_thread(until, lambda: engine.open == 20, "20 requests in flight")
            children = children_of(parent.pid)
            assert len(children) == 2
            if is_hung:
                os.kill(children[0], signal.SIGSTOP)
            os.kill(parent.pid, signal_number)
            await asyncio.to_thread(parent.wait, HANG_S)
            await asyncio.to_thread(until, lambda: not any(map(is_there, children)), "the end of the workers")
            await asyncio.to_thread(until, lambda: engine.open == 0, "the end of the requests")
            assert len(engine.cut_s) == 20
        finally:
            parent.kill()
            parent.wait(HANG_S)


@pytest.mark.parametrize("stopped", ["prober", "workers"])
async def test_a_stop_with_two_workers_is_blamed_on_no_target(stopped: str) -> None:
    """Requests that a stop of a second delays are sent late, with the target's own latency, or are `invalid`."""
    engine = Engine()
    async with scripted(engine.reply) as url, pauses() as pauses_s:
        parent = start_prober("_send_paced", url, subprocess.PIPE)
        try:
            await asyncio.to_thread(until, lambda: len(engine.requests) >= 30, "requests before the stop")
            pids = [parent.pid] if stopped == "prober" else children_of(parent.pid)
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(STOP_S)
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            output, _ = await asyncio.to_thread(parent.communicate, timeout=HANG_S)
        finally:
            parent.kill()
            parent.wait(HANG_S)
    results = json.loads(output)
    assert {outcome for outcome, _ in results} <= {"ok", "invalid"}
    measured_s = [ttft_s for _, ttft_s in results if ttft_s is not None]
    assert len(measured_s) >= 30
    assert max(measured_s) < STOP_S / 2 + max(pauses_s)
    assert any(ttft_s is not None for _, ttft_s in results[-PACE_PER_S:]), "those of the last second"


async def _send_paced(url: str) -> None:
    """Send 50 requests a second for 5 s, as a sweep does; print outcome and TTFT of each."""
    async with targeted(url) as target, open_workers(2) as workers:
        drawer, flights = RequestGenerator(WORKLOAD, Random(7)), list[asyncio.Task[ProbeResult]]()
        first_ns = target.clock.now_ns() + LEAD_NS
        due_ns = [first_ns + round(number * 1e9 / PACE_PER_S) for number in range(5 * PACE_PER_S)]

        def launch(due: int) -> None:
            request = new_request(target, drawer, due)
            flights.append(asyncio.create_task(workers.launch(target, request).send()))

        await pace(due_ns, target.clock, target.spec, launch)
        results = await asyncio.gather(*flights)
    print(json.dumps([(str(result.outcome), result.timeline.ttft_s) for result in results]))


async def _send_long(url: str) -> None:
    """Send 20 long requests at once."""
    async with targeted(url) as target, open_workers(2) as workers:
        due_ns = [target.clock.now_ns() + LEAD_NS] * 20
        await sent(workers.launch, target, due_ns, replace(WORKLOAD, output_tokens=Uniform(400, 500)))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell started the tests in the background
    asyncio.run(globals()[sys.argv[1]](sys.argv[2]))
