"""Workers on the nodes of a Ray cluster, for more load than one machine can send.

Each is a process of `worker`, started by an actor (`worker_host`) that relays the bytes of its channel. The prober makes all
decisions, as for workers on this machine. Only the clock differs: a node's CLOCK_MONOTONIC has another origin, so the worker converts
due times to the node's clock, and timestamps back, with one offset per request. Latencies are differences on one clock and keep
their precision; only the due time has the offset's error, which the limit of the send lag includes.
"""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import ray
from ray.exceptions import RayError

from prober import __version__
from prober.probing.channel import ClockOffset, Offset
from prober.probing.worker_host import START_S, WorkerHost, WorkerProcess, WorkersUnavailable, automatic_count

LOCAL, AUTO = "local", "auto"
REACH_S = 3.0  # to connect to a cluster's address
ANSWER_S = 1.0  # for an actor to end, beyond its worker's time
FIRST_EXCHANGES = 20
INSTALL = f"check that llm-slo-prober[ray] {__version__} is installed on every node, for the same Python"


class RayWorker(WorkerProcess):
    """A worker on a node of the cluster."""

    def __init__(self, number: int, received: Callable[[WorkerProcess, Any], None]) -> None:
        super().__init__(number, received)
        self._actor: Any = None
        self._clock = ClockOffset()
        self._max_error_ns = 0  # of any request's offset
        self._outgoing, self._has_outgoing = bytearray(), asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def clock_offset(self) -> Offset:
        offset = self._clock.at(time.monotonic_ns())
        self._max_error_ns = max(self._max_error_ns, offset.error_ns)
        return offset

    def clock_text(self) -> str:
        offset = self._clock.at(time.monotonic_ns())
        error_ns = max(self._max_error_ns, offset.error_ns if not self._max_error_ns else 0)
        return (
            f"worker {self.number} ran on node {self.node}: its clock is {offset.offset_ns / 1e6:+.3f} ms from the prober's, "
            f"its due times were off by {error_ns / 1e6:.3f} ms at most"
        )

    async def end(self, timeout_s: float) -> str:
        self.channel.close()
        for task in self._tasks:
            task.cancel()
        if self._actor is None:
            return "not started"
        try:
            async with asyncio.timeout(timeout_s + ANSWER_S):
                how = await self._actor.end.remote(timeout_s)
        except TimeoutError:
            how = f"node {self.node or 'unknown'} does not answer"
        except RayError:
            how = f"node {self.node or 'unknown'} is lost, or Ray's process there"
        with suppress(RayError):
            ray.kill(self._actor)
        return str(how)

    async def _open(self, module: str) -> None:
        options = {"num_cpus": 1, "scheduling_strategy": "SPREAD", "max_restarts": 0}
        self._actor = ray.remote(WorkerHost).options(**options).remote(self.number, module)
        try:
            async with asyncio.timeout(START_S):
                version, self.node = await self._actor.relay.remote()
                for _ in range(FIRST_EXCHANGES):
                    await self._exchange(b"")
        except TimeoutError:
            raise WorkersUnavailable(
                f"worker {self.number} found no free processor in the Ray cluster within {START_S:g} s; each worker takes one: "
                "lower --workers, or add nodes"
            ) from None
        except RayError as problem:
            reason = str(problem).strip().splitlines()[-1]
            raise WorkersUnavailable(f"worker {self.number} does not start on Ray ({reason}); {INSTALL}") from None
        if version != __version__:
            raise WorkersUnavailable(f"node {self.node} has version {version} of the prober; {INSTALL}")
        self.channel.write = self._write
        self._tasks = [asyncio.create_task(self._deliver()), asyncio.create_task(self._collect())]

    def _write(self, data: bytes) -> None:
        self._outgoing += data
        self._has_outgoing.set()

    async def _exchange(self, data: bytes) -> None:
        """Deliver bytes to the worker, and compare the clocks."""
        asked_ns = time.monotonic_ns()
        other_ns = await self._actor.deliver.remote(data)
        self._clock.exchanged(asked_ns, other_ns, time.monotonic_ns())

    async def _deliver(self) -> None:
        """Deliver written bytes one call at a time, because calls of an actor may overtake each other."""
        try:
            while True:
                await self._has_outgoing.wait()
                self._has_outgoing.clear()
                data = bytes(self._outgoing)
                self._outgoing.clear()
                await self._exchange(data)
        except RayError:
            self.channel.connection_lost(None)

    async def _collect(self) -> None:
        """Receive the worker's bytes until it ends."""
        try:
            while data := await self._actor.collect.remote():
                self.channel.data_received(data)
        except RayError:
            pass
        finally:
            self.channel.connection_lost(None)


@asynccontextmanager
async def joined(address: str, count: int | None) -> AsyncIterator[int]:
    """Join a cluster for the duration of the context, and yield the number of workers. Raises WorkersUnavailable.

    address: `local` starts a cluster on this machine, `auto` is the one to which this machine belongs, else HOST:PORT of its head
    count: number of workers; None: number of the cluster's processors − 1
    """
    try:
        await _reach(address)
        await asyncio.to_thread(_join, address, count)
        yield count if count is not None else max(1, int(ray.cluster_resources().get("CPU", 1)) - 1)
    finally:
        await asyncio.to_thread(ray.shutdown)


async def _reach(address: str) -> None:
    """Connect once to the head, because Ray would try for minutes. Raises WorkersUnavailable."""
    if address == LOCAL or (address == AUTO and "RAY_ADDRESS" not in os.environ):
        return
    address = os.environ["RAY_ADDRESS"] if address == AUTO else address
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(REACH_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.close()
    except (OSError, ValueError, TimeoutError) as problem:
        reason = f"no answer within {REACH_S:g} s" if isinstance(problem, TimeoutError) else str(problem)
        raise WorkersUnavailable(_unreachable(address, reason)) from None


def _join(address: str, count: int | None) -> None:
    """Join the cluster, or start it for `local`. Raises WorkersUnavailable."""
    options: dict[str, Any] = {}
    if address == LOCAL:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to others
        options = {"include_dashboard": False, "num_cpus": count or automatic_count() + 1}
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as problem:  # Ray raises many kinds, even Exception
        reason = str(problem).strip().splitlines()[0]
        raise WorkersUnavailable(_unreachable(address, reason)) from None


def _unreachable(address: str, reason: str) -> str:
    return (
        f"the Ray cluster {address} cannot be joined ({reason}); check the address with `ray status`, and run the prober on a node of "
        "the cluster, as a RayJob does. --ray local starts one here"
    )
