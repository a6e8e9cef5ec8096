"""Conversations by the record of a server that checks what it gets: each turn follows the whole answer before it, and has it."""

import asyncio
import re
import socket
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import islice
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from prober.config.load import load
from prober.config.rows import Row
from prober.config.target import TargetSpec
from prober.features.capacity import sweep_runner
from prober.features.capacity.estimate_process import EstimateFailed
from prober.features.capacity.sweep_runner import SweepRunner
from prober.features.engines.page_reader import PageReader
from prober.features.experiments.matrix_run import RowRun
from prober.measure.engines import DIALECTS
from prober.measure.outcome import ANSWERED, Outcome
from prober.measure.result import ProbeResult
from prober.measure.target_state import WarmUpLength
from prober.probing.probe import Launch, LocalRun
from prober.probing.sender import Sender
from prober.probing.session import Session
from prober.probing.target import Target
from prober.probing.worker import Worker
from prober.probing.worker_host import WorkerProcess
from prober.probing.workers import Workers
from prober.results.stage import stage_of
from prober.workload.arrivals import poisson
from prober.workload.sessions import SessionWorkload
from prober.workload.shapes import Fixed
from prober.workload.workloads import RequestGenerator
from tests.daemon.test_fleet import watched
from tests.scripted import Asked, Script, scripted
from tests.virtual import make_clock
from tests.wire.case import Step
from tests.wire.events import DONE, chat, end
from tests.wire.heads import UNTIL_CLOSE, body

pytestmark = pytest.mark.virtual_time
COUNT, TURNS, TOKENS, SECONDS = 4, 4, 6, 24.0
ROTATION = SessionWorkload("talk", Fixed(5), Fixed(TOKENS), turns=TURNS, count=COUNT)
NONCE = re.compile(r"\[(\d{20})\] ")
REFUSED = {"500": "500 Internal Server Error", "400": "400 Bad Request"}


class Engine:
    """A server that keeps each conversation by the nonce of its first message, and writes down what is wrong with a request.

    answer_s: length of an answer; failing: how turn 2 fails (a status, `cut` amid the stream, or half a `call`), "" if it does not
    arrivals: when each turn of a conversation arrived; ends: when its answers had ended
    """

    def __init__(self, answer_s: float, failing: str = "") -> None:
        self.answer_s, self.failing = answer_s, failing
        self.wrong: list[str] = []
        self.arrivals: dict[str, list[float]] = defaultdict(list)
        self.ends: dict[str, list[float]] = defaultdict(list)
        self._said: dict[str, list[dict[str, str]]] = defaultdict(list)
        self._over: set[str] = set()

    def reply(self, asked: Asked) -> Script:
        return self._answer(asked) if asked.method == "POST" else body("200 OK", {})

    def _answer(self, asked: Asked) -> Iterator[Step]:
        messages = asked.json["messages"]
        nonce = NONCE.match(messages[0]["content"])
        if nonce is None:
            self.wrong.append(f"no nonce: {messages[0]['content'][:40]}")
            return
        key, turn = nonce[1], len(messages) // 2 + 1
        arrivals, ends, said = self.arrivals[key], self.ends[key], self._said[key]
        if messages[:-1] != said or messages[-1]["role"] != "user":
            self.wrong.append(f"turn {turn} of {key} has {messages[:-1]}, and the conversation is {said}")
        if turn != len(arrivals) + 1 or len(ends) != len(arrivals) or key in self._over:
            self.wrong.append(f"turn {turn} of {key} comes after {len(arrivals)} turns and {len(ends)} answers")
        arrivals.append(asked.at_s)
        if turn == 2 and self.failing:
            self._over.add(key)
            if self.failing in REFUSED:
                yield from body(REFUSED[self.failing], {"error": {"message": "no"}})
                return
        yield UNTIL_CLOSE
        words = [f"{key[-6:]}/{turn}.{number}é " for number in range(TOKENS)]
        for number, word in enumerate(words):
            yield self.answer_s / TOKENS
            if turn == 2 and self.failing == "cut" and number == 3:
                return
            call = {"index": 0, "id": "c", "function": {"name": "look", "arguments": '{"path":'}}
            is_call = turn == 2 and self.failing == "call" and number == 3
            yield chat({"content": word} | ({"tool_calls": [call]} if is_call else {}))
        yield end() + DONE
        ends.append(asyncio.get_running_loop().time())
        said += [*messages[len(said) :], {"role": "assistant", "content": "".join(words)}]

    def turns(self) -> Counter[int]:
        """How many requests came for each turn."""
        return Counter(turn for arrivals in self.arrivals.values() for turn in range(1, len(arrivals) + 1))

    def thought_s(self) -> list[float]:
        """Times between the end of an answer and the next turn."""
        return [
            later - end
            for key, arrivals in self.arrivals.items()
            for end, later in zip(self.ends[key], arrivals[1:], strict=False)
        ]


class InProcess(WorkerProcess):
    """A worker in this process, so that virtual time is also its own."""

    async def _open(self, module: str) -> None:
        ours, theirs = socket.socketpair()
        loop, worker = asyncio.get_running_loop(), Worker(self.number, make_clock())
        await loop.create_connection(lambda: worker.channel, sock=theirs)
        await loop.create_connection(lambda: self.channel, sock=ours)
        self.beating = asyncio.create_task(self._beat(worker))

    async def _beat(self, worker: Worker) -> None:
        while not worker.closed.is_set():
            worker.beat()
            await asyncio.sleep(0.1)
        worker._clock.close()

    async def end(self, timeout_s: float) -> str:
        await super().end(timeout_s)
        await self.beating
        return "ended"


@asynccontextmanager
async def launching(workers: int) -> AsyncIterator[Launch]:
    """Begins requests in so many workers; here if there is one."""
    if workers == 1:
        yield LocalRun
        return
    processes = Workers()
    await processes.start(workers, kind=InProcess)
    try:
        yield processes.launch
    finally:
        await processes.close()


def loaded(url: str, rate: str = "1/s") -> TargetSpec:
    """A target whose probes and sweep continue the sessions of ROTATION."""
    text = f"""
defaults: {{warmup: 0, max_in_flight: 200}}
workloads: {{talk: {{prompt_tokens: 5, output_tokens: {TOKENS}, sessions: {{turns: {TURNS}, count: {COUNT}}}}}}}
targets: [{{name: t, url: '{url}', model: m, engine: vllm, probes: [{{workload: talk, rate: {rate}}}],
            sweep: {{workload: talk, mode: grid, rates: [3/s], step: 15s, limits: {{requests: 60}}}}}}]
slos: {{good: {{signal: ttft, threshold: 5s, objective: 50%}}}}
"""
    return load(text, source="c", engines=DIALECTS, environment={}, read=lambda path: path).targets[0]


async def row(url: str, workload: SessionWorkload, launch: Launch, **load: Any) -> list[ProbeResult]:
    """A row of `prober matrix`."""
    clock = make_clock()
    session = Session(loaded(url), clock, None, launch=launch, seed=4)
    session.target.prompt_calibration = None
    spec = Row.model_validate(
        {
            "name": "a",
            "workload": workload,
            "accept": ["success:50%"],
        }
        | load
    )
    try:
        await session.target.identify()
        run = RowRun(session, spec, WarmUpLength(2, None))
        await run.warm_up()
        await run.send()
        return run.results
    finally:
        clock.close()


async def matrix(url: str, workload: SessionWorkload, launch: Launch) -> list[ProbeResult]:
    return await row(url, workload, launch, rate=3.0, duration=SECONDS)


async def closed(url: str, workload: SessionWorkload, launch: Launch) -> list[ProbeResult]:
    return await row(url, workload, launch, concurrency=COUNT, requests=60)


async def daemon(url: str, workload: SessionWorkload, _: Launch) -> list[ProbeResult]:
    async with watched() as seen:
        await seen.reconcile([loaded(url, "3/s")], 1.0)
        await asyncio.sleep(SECONDS)
        await seen.fleet.stop(10.0)
        return seen.recent("t")


async def gate(url: str, workload: SessionWorkload, launch: Launch) -> list[ProbeResult]:
    """As `gate` and `compare` send."""
    clock = make_clock()
    try:
        session = Session(loaded(url), clock, None, launch=launch)
        drawer = RequestGenerator(workload, Random(5))
        times = poisson(3.0, Random(5), clock.now_ns() + 10**9)
        async with Sender(session.target, launch) as sender:
            results = sender.results(drawer, islice(times, 70))
            return [result async for result in results if result is not None]
    finally:
        clock.close()


async def sweep(url: str, workload: SessionWorkload, launch: Launch) -> list[ProbeResult]:
    clock, spec = make_clock(), loaded(url)
    assert spec.sweep is not None
    try:
        session = Session(spec, clock, None, launch=launch, target=Target(spec, clock), seed=2)
        runner = SweepRunner(session, spec.sweep, PageReader, lambda _: None)
        # Fitting a capacity takes longer than all the rest.
        with patch.object(sweep_runner, "estimate_in_process", side_effect=EstimateFailed("not wanted")):
            return [probe for _, probe in (await runner.run()).probes]
    finally:
        clock.close()


WAYS: list[Callable[[str, SessionWorkload, Launch], Awaitable[list[ProbeResult]]]] = [
    matrix,
    closed,
    daemon,
    gate,
    sweep,
]


@pytest.mark.parametrize(
    ("way", "workers"),
    [*((way, 1) for way in WAYS), (matrix, 2), (sweep, 2)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
@pytest.mark.parametrize("answer_s", [0.05, 0.8, 3.0])
async def test_a_turn_follows_the_whole_answer_before_it(way: Any, workers: int, answer_s: float) -> None:
    """And contains it. A due time for which no session is ready is not sent, and says so: shed, which no rate can hide."""
    engine = Engine(answer_s)
    async with scripted(engine.reply) as url, launching(workers) as launch:
        results = await way(url, ROTATION, launch)
    assert engine.wrong == []
    turns = engine.turns()
    ends_early = way is sweep and answer_s > 0.05  # with the first due time for which no session is ready
    assert set(turns) == {1, 2, 3, 4} or ends_early
    outcomes = Counter(result.outcome for result in results)
    assert set(outcomes) - {Outcome.CANCELLED} <= {Outcome.OK, Outcome.SHED}
    shed = [result for result in results if result.outcome is Outcome.SHED]
    assert {result.detail for result in shed} <= {"all 4 sessions of talk waited for an answer (sessions.count)"}
    assert all(result.timeline.sent_ns is None and result.workload.startswith("talk_turn") for result in shed)
    # Four sessions at three a second are busy for 15%, 60% and 225% of their time.
    assert len(shed) / len(results) < {0.05: 0.01, 0.8: 0.5, 3.0: 0.9}[answer_s]
    assert bool(shed) is (answer_s == 3.0 and way is not closed and not ends_early) or answer_s == 0.8  # then by chance
    for result in results:
        if result.outcome in ANSWERED and way is not closed:
            assert (result.timeline.sent_ns or 0) - result.timeline.intended_ns < 20_000_000, "no request is delayed"


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("failing", ["500", "400", "cut"])
async def test_a_failed_turn_ends_its_session(way: Any, failing: str) -> None:
    """Another one begins: turns 3 and 4 are only sent of sessions that have them without turn 2. The stage shows why turn 2 failed."""
    engine = Engine(0.05, failing)
    async with scripted(engine.reply) as url, launching(1) as launch:
        results = await way(url, ROTATION, launch)
    assert engine.wrong == []
    turns = engine.turns()
    assert set(turns) == {1, 2}
    outcome = {"500": Outcome.HTTP_5XX, "400": Outcome.REJECTED, "cut": Outcome.TRUNCATED}[failing]
    second = [result for result in results if result.workload == "talk_turn2" and result.timeline.sent_ns]
    assert {result.outcome for result in second} == {outcome}
    stage = stage_of("s", 3.0, results, origin_ns=0, begin_ns=0, sending_s=SECONDS)
    first, failed = stage.series
    assert (first.name, first.unanswered) == ("talk_turn1", 0)
    assert (failed.name, failed.requests, failed.unanswered) == ("talk_turn2", 0, len(second))
    assert failed.reason.startswith(outcome.value)
    assert f"talk_turn2 no TTFT of 0, {len(second)} not answered, most often {outcome.value}" in failed.text()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("think_s", [0.0, 0.2, 1.0, 5.0])
async def test_a_think_time_is_honoured_exactly(think_s: float, workers: int) -> None:
    """Also one that is shorter than the lead of a connection: the server gets the turn that long after its answer ended."""
    engine = Engine(0.8)
    async with scripted(engine.reply) as url, launching(workers) as launch:
        results = await matrix(url, replace(ROTATION, count=0, think_time=Fixed(round(think_s * 1e3))), launch)
    assert engine.wrong == []
    assert engine.turns()[4] >= 3
    assert engine.thought_s() == pytest.approx([think_s] * len(engine.thought_s()), abs=0.002)
    assert {result.outcome for result in results} == {Outcome.OK}


@pytest.mark.parametrize("failing", ["500", "400", "cut"])
async def test_a_failed_turn_ends_its_session_with_a_think_time(failing: str) -> None:
    """Nothing follows it; new sessions begin at their due times."""
    engine = Engine(0.05, failing)
    async with scripted(engine.reply) as url, launching(1) as launch:
        await matrix(url, replace(ROTATION, count=0, think_time=Fixed(300)), launch)
    assert engine.wrong == []
    turns = engine.turns()
    assert turns[1] > 10
    assert set(turns) == {1, 2}


async def test_a_call_that_cannot_be_sent_again_ends_its_session() -> None:
    """Engines refuse a call whose arguments are no JSON object. The result says that the session ends."""
    engine = Engine(0.05, "call")
    async with scripted(engine.reply) as url:
        results = await matrix(url, ROTATION, LocalRun)
    assert engine.wrong == []
    assert set(engine.turns()) == {1, 2}
    second = {(result.outcome, result.detail) for result in results if result.workload == "talk_turn2"}
    assert (
        Outcome.OK,
        "its session ends: the answer is far longer than asked for, or its tool calls are too many or no JSON objects",
    ) in second
    assert {outcome for outcome, _ in second} == {Outcome.OK}


@pytest.mark.parametrize("workers", [1, 2])
async def test_filler_in_place_of_answers_goes_on_after_a_call(workers: int) -> None:
    """The next turn needs nothing of the answer."""
    engine = Engine(0.05, "call")
    async with scripted(engine.reply) as url, launching(workers) as launch:
        results = await matrix(url, replace(ROTATION, answers="filler"), launch)
    assert set(engine.turns()) >= {1, 2, 3, 4}
    assert {(result.outcome, result.detail) for result in results} == {(Outcome.OK, "")}
