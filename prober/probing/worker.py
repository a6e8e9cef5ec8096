"""A process that sends requests for the prober: `python -m prober.probing.worker NUMBER SOCKET PARENT`. See `workers`."""

import asyncio
import logging
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from typing import Any

from prober.measure.outcome import Outcome
from prober.measure.result import unsent
from prober.net.clock import Clock
from prober.net.connection import Broken, connect
from prober.net.exchange import Exchange
from prober.net.libc import end_with_parent
from prober.probing.channel import Beat, Channel, Cut, Ended, NewTarget, Send
from prober.probing.probe import LocalRun
from prober.probing.target import Target

BEAT_S = 0.1
MAX_SILENT_BEATS = 10  # without a message of the prober: then requests are cut, because no guard protects the target
log = logging.getLogger(__name__)


class Worker:
    """Sends the requests that arrive on its channel, and reports the result of each."""

    def __init__(self, number: int, clock: Clock) -> None:
        self._number, self._clock = number, clock
        self.closed = asyncio.Event()
        self.channel = Channel(self._receive, self.closed.set)
        self._targets: dict[int, Target] = {}
        self._runs: dict[str, tuple[LocalRun, int]] = {}  # with the clock's offset, by request id
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._reported: set[tuple[str, int, int | None]] = set()  # in the last beat
        self._warm_ups: set[asyncio.Task[None]] = set()
        self._silent_beats = 0

    def beat(self) -> None:
        """Report that it runs, with news of requests in flight. Cancels all requests if the prober is silent."""
        self._silent_beats += 1
        if self._silent_beats > MAX_SILENT_BEATS:
            for task in self._tasks.values():
                task.cancel()
        now = {
            (request_id, run.late_ns, None if run.first_ns is None else run.first_ns - clock_ns)
            for request_id, (run, clock_ns) in self._runs.items()
        }
        self.channel.send(Beat(tuple(now - self._reported)))
        self._reported = now

    def _receive(self, message: Any) -> None:
        self._silent_beats = 0
        match message:
            case Send(request=request):
                task = self._tasks[request.request_id] = asyncio.create_task(self._send(message))
                task.add_done_callback(lambda _: self._tasks.pop(request.request_id, None))
            case Cut(request_id=request_id):
                if (task_ := self._tasks.get(request_id)) is not None:
                    task_.cancel()
            case NewTarget(number=number, spec=spec, identity=identity):
                target = self._targets[number] = Target(spec, self._clock)
                target.identity, target.worker = identity, self._number
                warm_up = asyncio.create_task(self._warm_up(target))
                self._warm_ups.add(warm_up)
                warm_up.add_done_callback(self._warm_ups.discard)

    async def _warm_up(self, target: Target) -> None:
        """Connect once without sending, so that this process's start does not slow down the first request."""
        exchange = Exchange(None, self._clock)
        try:
            with suppress(Broken):  # the requests will report it
                await connect(target.endpoint, exchange, target.spec.timeouts.connect)
        finally:
            exchange.abort()

    async def _send(self, message: Send) -> None:
        request, clock_ns, answer = message.request, message.clock_ns, None
        try:
            run = LocalRun(self._targets[message.target], replace(request, due_ns=request.due_ns + clock_ns))
            self._runs[request.request_id] = run, clock_ns
            try:
                result = await run.send()
                answer = run.answer if request.keeps_answer else None
            except asyncio.CancelledError:
                result = run.cut(Outcome.INVALID, "cut, as the prober was held up")
        except Exception as problem:
            log.exception("worker %d failed to send a request; please report this", self._number)
            detail = f"fault of the prober: {type(problem).__name__}"
            result = unsent(request.due_ns + clock_ns, Outcome.INVALID, detail, request.workload)
            result = replace(result, request_id=request.request_id)
        finally:
            self._runs.pop(request.request_id, None)
        if clock_ns:  # moved here: the prober alone would have to move the stamps of all workers
            result = replace(result, timeline=result.timeline.shifted(-clock_ns))
        self.channel.send(Ended(result, answer))


async def serve(number: int, channel_socket: socket.socket) -> None:
    """Send requests until the prober closes the channel; requests in flight end then."""
    clock = Clock()
    worker = Worker(number, clock)
    await asyncio.get_running_loop().create_connection(lambda: worker.channel, sock=channel_socket)
    while not worker.closed.is_set():
        worker.beat()
        with suppress(TimeoutError):
            await asyncio.wait_for(worker.closed.wait(), BEAT_S)


def main(arguments: list[str]) -> None:
    """Run a worker. arguments: its number, its socket, and the id of the parent process, with which it ends"""
    number, descriptor, parent = map(int, arguments)
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the prober decides
    asyncio.run(serve(number, socket.socket(fileno=descriptor)))


if __name__ == "__main__":
    main(sys.argv[1:])
