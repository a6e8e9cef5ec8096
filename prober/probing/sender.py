"""Sends the requests of an experiment (sweep, matrix, comparison or gate) from this process or workers."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, replace

from prober.measure.outcome import Outcome
from prober.measure.request import Drawer, Request
from prober.measure.result import ProbeResult
from prober.measure.target_state import SILENT_STATES
from prober.probing.pacer import pace
from prober.probing.probe import Launch, ProbeRun, always, in_turn, new_request
from prober.probing.target import Target


@dataclass(slots=True, eq=False)
class Sending:
    """A request, from its generation to its end.

    request: as generated; the run may have another one, if sessions were busy
    run: the probe; None before it connects
    is_due: its due time has come
    """

    request: Request
    run: ProbeRun | None = None
    is_due: bool = False


class Sender(asyncio.TaskGroup):
    """Sends requests to a target in an open loop. Its context ends when all requests have ended; an exception cuts them.

    A request is generated when it should connect, thus in order of due times. It is generated even if it is not sent
    because the prober woke too late or the engine is loading, so a seed gives the same request for each due time.

    on_due: called at the due time, with the result if it exists already: shed, over budget, or without a connection
    on_end: called with the result, not before the due time; None if the engine is loading or draining. A request cut after its due time
    has a result, with what it delivered
    cut_text: detail in the results of cut requests
    is_allowed: called when a request should be sent; it is sent only if this returns True
    looks_up: True: look up health and identity of the target as for scheduled probes, and update its state by the results
    under_way: requests that have not ended, by task
    """

    def __init__(
        self,
        target: Target,
        launch: Launch,
        *,
        on_due: Callable[[Sending, ProbeResult | None], None] = lambda sending, result: None,
        on_end: Callable[[Sending, ProbeResult | None], None] = lambda sending, result: None,
        cut_text: str = "",
        is_allowed: Callable[[], bool] = always,
        looks_up: bool = True,
    ) -> None:
        super().__init__()
        self._target, self._clock, self._launch, self._is_allowed = target, target.clock, launch, is_allowed
        self._on_due, self._on_end, self._cut_text, self._looks_up = on_due, on_end, cut_text, looks_up
        self.under_way: dict[asyncio.Task[ProbeResult | None], Sending] = {}

    def begin(self, request: Request) -> asyncio.Task[ProbeResult | None]:
        """Send a request, which connects a `connect_lead` before its due time. Returns the task, whose value is the result."""
        sending = Sending(request)
        task = self.create_task(self._send(sending))
        self.under_way[task] = sending
        task.add_done_callback(lambda done: self.under_way.pop(done, None))
        return task

    async def results(self, drawer: Drawer, due_times: Iterable[int]) -> AsyncGenerator[ProbeResult | None, None]:
        """Send requests at the due times and yield their results in that order, without cut ones.

        Closing it ends the schedule, but not the running requests.
        """
        begun: asyncio.Queue[asyncio.Task[ProbeResult | None] | None] = asyncio.Queue()

        def launch(due_ns: int) -> None:
            begun.put_nowait(self.begin(new_request(self._target, drawer, due_ns)))

        pacing = self.create_task(pace(due_times, self._clock, self._target.spec, launch))
        pacing.add_done_callback(lambda done: begun.put_nowait(None))
        try:
            while (task := await begun.get()) is not None:
                await asyncio.wait([task])
                if not task.cancelled():
                    yield task.result()
        finally:
            pacing.cancel()

    def read_arrived(self) -> None:
        """Read what has arrived, so that no answer seems late that only waits to be read."""
        for run in tuple(self._target.in_flight):
            run.read_arrived()

    def cancel(self) -> None:
        """Cancel the running requests, except the one whose callback calls this."""
        for task in self.under_way:
            # A second cancellation would interrupt the report of the first.
            if task is not asyncio.current_task() and not task.cancelling():
                task.cancel()

    async def cut(self) -> None:
        """Cut the running requests, and wait until they have ended."""
        self.cancel()
        if self.under_way:
            await asyncio.wait(list(self.under_way))

    async def _send(self, sending: Sending) -> ProbeResult | None:
        target, request = self._target, sending.request
        await self._clock.sleep_until(request.due_ns - round(target.spec.connect_lead * 1e9))
        if self._looks_up:
            request = replace(request, due_ns=await target.prepare(request.due_ns))
            if target.state in SILENT_STATES:
                if request.session is not None:
                    request.session.end_turn(None, None)
                self._on_end(sending, None)
                return None
        sending.run = run = self._launch(target, await in_turn(target, request), self._is_allowed)
        running = asyncio.create_task(run.send())
        try:
            await self._clock.sleep_until(request.due_ns)
            sending.is_due = True
            self._on_due(sending, running.result() if running.done() else None)
            result = await running
        except asyncio.CancelledError:
            cut_ns = self._clock.now_ns()
            running.cancel()
            await asyncio.wait([running])
            if sending.is_due:
                self._on_end(sending, run.cut(Outcome.CANCELLED, self._cut_text, cut_ns))
            raise
        if self._looks_up:
            target.probed(result)
        self._on_end(sending, result)
        return result
