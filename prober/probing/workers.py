"""Workers: processes that send the requests of a schedule, for more load than one process can measure.

The prober generates all requests and due times as without workers, and keeps budgets, stop conditions and results, but reads no
stream. Each request goes, well before it is due, to the worker with the fewest. The worker connects, sends, timestamps and reads as
the prober would, and reports the result. All processes of a host share CLOCK_MONOTONIC, so times need no conversion, and the workers
together have exactly the schedule of one process.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

from prober.config.target import TargetSpec
from prober.config.units import counted
from prober.measure.outcome import ANSWERED, Outcome, Verdict
from prober.measure.request import AssistantMessage, Request
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.probing.channel import Beat, Cut, Ended, NewTarget, Offset, Send
from prober.probing.probe import LocalRun, ProbeRun, always
from prober.probing.target import Identity, Target
from prober.probing.worker_host import CLOSE_S, WorkerProcess, WorkersUnavailable, automatic_count

BEAT_S = 0.25
MAX_SILENT_BEATS = 8  # without a message of a worker: then it is killed
CUT_S = 0.5  # for a worker to report what a cut request delivered
MODULE = "prober.probing.worker"
log = logging.getLogger(__name__)


class Workers:
    """Workers of this process. `launch` begins a probe in one of them, or in this process without workers.

    count: number of workers at the start; 0: this process sends
    losses: sentences about workers that ended; on_loss: called with each, before the worker's requests end
    """

    def __init__(self) -> None:
        self.losses: list[str] = []
        self.on_loss: Callable[[str], None] = lambda _: None
        self.count = 0
        self.runs: defaultdict[WorkerProcess, dict[str, WorkerRun]] = defaultdict(dict)  # running, by id
        self._processes: list[WorkerProcess] = []
        self._started: tuple[WorkerProcess, ...] = ()  # all, including ended ones
        self._next = 0
        self._targets: dict[int, tuple[int, TargetSpec, Identity | None]] = {}  # by id of the specification
        self._known = 0  # number of targets that workers know
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, count: int, module: str = MODULE, kind: type[WorkerProcess] = WorkerProcess) -> None:
        """Start the workers and wait until all run. module: main module of a worker. Raises WorkersUnavailable."""
        self.count = count
        self._processes = [kind(number, self._receive) for number in range(1, count + 1)]
        starts = (process.start(module) for process in self._processes)
        for problem in await asyncio.gather(*starts, return_exceptions=True):
            if problem is not None:
                raise problem
        self._started = tuple(self._processes)
        self._tasks = [asyncio.create_task(self._watch(process)) for process in self._processes]

    def clocks(self) -> list[str]:
        """Sentences about the clocks of workers on other machines."""
        return [text for process in self._started if (text := process.clock_text())]

    async def close(self) -> None:
        """End all workers. No process is left on return."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(process.end(CLOSE_S) for process in self._processes))
        self._processes = []

    def launch(self, target: Target, request: Request, is_allowed: Callable[[], bool] = always) -> ProbeRun:
        """Begin a probe in a worker. This process sends sample prompts, and requests that wait for a session."""
        if (
            not self.count
            or target.probed_identity is None
            or request.sample_words is not None
            or request.busy is not None
        ):
            return LocalRun(target, request, is_allowed)
        return WorkerRun(self, target, request, is_allowed)

    def deal(self, run: "WorkerRun", target: Target) -> tuple[WorkerProcess, int] | None:
        """(worker with the fewest requests, in rotation among equals; number of the target); None without workers.

        At most `max_in_flight` workers take part, so that each may have a request in flight.
        """
        processes = self._processes[: target.spec.max_in_flight]
        if not processes:
            return None
        self._next += 1
        turn = self._next % len(processes)
        process = min((*processes[turn:], *processes[:turn]), key=lambda process: len(self.runs[process]))
        self.runs[process][run.request.request_id] = run
        return process, self._number(target)

    def _number(self, target: Target) -> int:
        """Number of a target, announced to all workers. Each worker gets its share of `max_in_flight`."""
        known, identity = self._targets.get(id(target.spec)), target.probed_identity
        if known is None or known[2] != identity:
            known = self._targets[id(target.spec)] = self._known, target.spec, identity
            self._known += 1
            for process in self._processes:
                cap = target.spec.max_in_flight
                share = cap // self.count + (process.number <= cap % self.count)
                # Without what only the prober needs: workloads may contain traces of many megabytes.
                update = {"max_in_flight": max(1, share), "warmup": 0, "probes": (), "sweep": None, "budget": None}
                spec = target.spec.model_copy(update=update)
                process.channel.send(NewTarget(known[0], spec, identity))
        return known[0]

    def _receive(self, process: WorkerProcess, message: Any) -> None:
        process.silent_beats = 0
        match message:
            case Ended(result=result, answer=answer):
                if (run := self.runs[process].pop(result.request_id, None)) is not None:
                    run.end(result, answer)
            case Beat(progress=progress):
                process.started.set()
                for request_id, late_ns, first_ns in progress:
                    if (run := self.runs[process].get(request_id)) is not None:
                        run.late_ns, run.first_ns = late_ns, first_ns

    async def _watch(self, process: WorkerProcess) -> None:
        """Exchange beats until the worker ends; kill a silent one. Beats are counted, not timed: pauses of the prober kill none."""
        why = ""
        while not process.lost.is_set():
            process.channel.send(Beat())
            process.silent_beats += 1
            if process.silent_beats > MAX_SILENT_BEATS:
                why = f"no sign of it for {MAX_SILENT_BEATS * BEAT_S:g} s, "
                break
            waiting = asyncio.create_task(process.lost.wait())
            await asyncio.wait([waiting], timeout=BEAT_S)
            waiting.cancel()
        self._processes.remove(process)
        why += await process.end(0.0 if why else CLOSE_S)
        count = len(self.runs[process])
        lost = f"{counted(count, 'request')} lost, which do not count" if count else "no request is lost"
        sentence = f"worker {process.number} of {self.count} ended ({why}): {lost}"
        log.warning("%s", sentence)
        self.losses.append(sentence)
        self.on_loss(sentence)
        for run in list(self.runs[process].values()):
            run.lose(sentence)


class WorkerRun(ProbeRun):
    """A probe that a worker sends. This process charges its budgets."""

    answer: AssistantMessage | None = None
    first_ns: int | None = None
    late_ns: int = 0

    def __init__(self, workers: Workers, target: Target, request: Request, is_allowed: Callable[[], bool]) -> None:
        super().__init__(target, request, is_allowed)
        self._workers = workers
        self._process: WorkerProcess | None = None
        self._offset = Offset(0, 0)  # of the worker's clock
        self._ended: asyncio.Future[ProbeResult] = asyncio.get_running_loop().create_future()
        self._timeline = Timeline(request.due_ns)
        self._may_be_sent = False

    def delivered(self) -> Timeline:
        return self._timeline

    def _charged_tokens(self) -> tuple[int, int] | None:
        return None if self._may_be_sent else self._timeline.charged_tokens

    async def _exchanged(self) -> ProbeResult:
        try:
            if self._is_allowed():
                dealt = self._workers.deal(self, self._target)
                if dealt is None:
                    self.lose("no worker is left")
                else:
                    self._process, number = dealt
                    self._offset = self._process.clock_offset()
                    request = replace(self.request, session=None)
                    self._process.channel.send(Send(number, request, self._offset.offset_ns))
            return self._adopted(await self._ended)
        except asyncio.CancelledError:
            await self._cut()
            raise

    def end(self, result: ProbeResult, answer: AssistantMessage | None) -> None:
        """Complete the probe with the result and answer from the worker."""
        self.answer, self._timeline, self.first_ns = answer, result.timeline, result.timeline.first_ns
        if not self._ended.done():
            self._ended.set_result(result)

    def lose(self, why: str) -> None:
        """Complete the probe of a worker that has ended. The request may have been sent."""
        self._may_be_sent = self._process is not None and self.request.due_ns <= self._target.clock.now_ns()
        if not self._ended.done():
            self._ended.set_result(self._completed(Verdict(Outcome.INVALID, why)))

    async def _cut(self) -> None:
        """Tell the worker to cancel the request, and wait for its deliveries."""
        process, request_id = self._process, self.request.request_id
        if process is None or request_id not in self._workers.runs[process]:
            return
        self._ended = asyncio.get_running_loop().create_future()
        process.channel.send(Cut(request_id))
        await asyncio.wait([self._ended], timeout=CUT_S)
        if self._workers.runs[process].pop(request_id, None) is not None:
            self._may_be_sent = self.request.due_ns <= self._target.clock.now_ns()

    def _adopted(self, result: ProbeResult) -> ProbeResult:
        """Complete the worker's result with values that only the prober has."""
        target, process = self._target, self._process
        if process is not None and process.node:
            result = replace(result, unix_s=self._unix_s)
        if result.outcome is Outcome.REJECTED:
            target.learn_refusal(result.detail)
        elif result.outcome is Outcome.SHED:
            cap = target.spec.max_in_flight
            detail = f"worker {result.worker} had its share of {cap} probes in flight already (max_in_flight)"
            result = replace(result, detail=detail)
        elif result.outcome is Outcome.INVALID and self._timeline.sent_ns is not None:
            result = replace(result, detail=f"worker {result.worker}: {result.detail}")
        elif result.outcome in ANSWERED and target.warm_up.record_success(target.clock.now_ns()):
            result = replace(result, warm_up=True)
        return result


@asynccontextmanager
async def open_workers(count: int | None, module: str = MODULE, ray: str = "") -> AsyncIterator[Workers]:
    """Context with `count` workers. None: one per spare core; 1 on this machine: send in-process. Raises WorkersUnavailable.

    ray: address of the Ray cluster on whose nodes they run; "": this machine
    """
    workers, kind = Workers(), WorkerProcess
    async with AsyncExitStack() as stack:
        if ray:
            try:
                from prober.probing.ray_workers import RayWorker, joined  # an extra, slow to import
            except ModuleNotFoundError as problem:
                if problem.name != "ray":
                    raise
                raise WorkersUnavailable("--ray needs Ray; install it: pip install 'llm-slo-prober[ray]'") from None
            count, kind = await stack.enter_async_context(joined(ray, count)), RayWorker
        stack.push_async_callback(workers.close)
        count = automatic_count() if count is None else count
        if ray or count > 1:
            await workers.start(count, module, kind)
        yield workers
