"""Sweeps of all targets: one at a time, and only on the replica that holds the lease."""

import asyncio
import uuid
from contextlib import suppress

from prober.features.capacity.actions import Refused, StartRequest, Trigger
from prober.features.capacity.headroom import Headroom, TargetDemand
from prober.features.capacity.sweep_job import SweepJob
from prober.features.capacity.sweep_pauses import SweepPauses
from prober.features.capacity.sweep_runner import LEASE_LOST
from prober.features.capacity.sweep_schedule import MAX_LATENESS_S
from prober.features.capacity.sweep_store import SweepArchive
from prober.features.capacity.target_sweeps import SweepParts, TargetSweeps
from prober.probing.feature import Monitor, Shared
from prober.probing.observer import ObservedTarget
from prober.probing.supervisor import Supervisor
from prober.results.result import Result

READ_WITHIN_S = 5.0  # time for which a page waits for results from the store


class Sweeps(Monitor):
    """Sweeps of all targets. Only one runs at a time, because two would load the same machine.

    shared: its store has results and start times. Of several replicas only the one that holds the lease sweeps. It claims a due sweep
    there before the start, so that the next holder does not repeat it; a sweep that came due without a holder is started by the next
    one.
    headroom: observes the demand of the targets
    """

    def __init__(self, shared: Shared, headroom: Headroom) -> None:
        store, clock = shared.store, shared.clock
        archive = SweepArchive(store, clock.unix_s) if store is not None else None
        self.parts = SweepParts(shared, headroom, SweepPauses(store, clock), archive)
        self._targets: dict[str, TargetSweeps] = {}
        self._running: TargetSweeps | None = None
        self._is_closing = False
        self._waiting: dict[TargetSweeps, StartRequest] = {}  # waiting for another sweep's end, or for the lease
        self._tasks: set[asyncio.Task[None]] = set()
        if archive is not None:
            self._tasks.add(Supervisor(shared.registry).start("sweep_results", archive.run))
        shared.leadership.listen(self._lease_lost, self._lease_won)

    def observe(self, observed: ObservedTarget) -> TargetSweeps:
        """Create the sweeps of one target. `Headroom` must observe the target first."""
        demand = observed.find(TargetDemand)
        if demand is None:
            raise LookupError("the demand of the target is not observed")
        target = self._targets[observed.name] = TargetSweeps(self.parts, observed, demand, self._start, self._forget)
        return target

    def _forget(self, target: TargetSweeps) -> None:
        """Remove a target."""
        self._waiting.pop(target, None)
        del self._targets[target.name]

    # --- the start of sweeps

    def start(self, name: str, trigger: Trigger = "request", due_unix_s: float = 0.0) -> str:
        """Start a sweep of the named target and return its id. Raises Refused.

        due_unix_s: when its schedule was due
        """
        target = self._targets.get(name)
        if target is None or target.spec is None:
            configured = sorted(known.name for known in self._targets.values() if known.spec is not None)
            text = f"target {name!r} has no `sweep:` in the configuration; those that have: {', '.join(configured) or 'none'}"
            raise Refused("not_configured", text)
        return self._start(target, StartRequest(trigger, due_unix_s))

    def _start(self, target: TargetSweeps, request: StartRequest) -> str:
        """Start a sweep and return its id. Raises Refused, counting it. A scheduled one waits for the lease or another sweep."""
        try:
            target.check(request, running=self.under_way or "")
        except Refused as refusal:
            waits_for_end = refusal.reason == "running" and request.trigger != "request"
            waits_for_lease = request.due_unix_s and self.parts.shared.leadership.held() is None
            if (waits_for_end and target is not self._running) or waits_for_lease:
                self._waiting[target] = request
            target.refused(request, refusal)
            raise
        identity = uuid.uuid4().hex[:12]
        self._running = target
        task = asyncio.create_task(self._run(SweepJob(target, identity, request)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return identity

    def stop(self, name: str) -> bool:
        """End a target's sweep, keeping its measurements. Returns True if one was running."""
        target = self._targets.get(name)
        return target is not None and target.stop("stopped on request")

    @property
    def under_way(self) -> str | None:
        """Name of the target that is being swept; None without a sweep."""
        return self._running.name if self._running is not None else None

    async def close(self) -> None:
        """Cancel schedules and the running sweep, and save the pauses."""
        self._is_closing = True
        for target in self._targets.values():
            target.cancel_timers()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.parts.pauses.close()

    async def _run(self, job: SweepJob) -> None:
        try:
            await job.run()
        finally:
            self._running = None
            self._begin_next()

    def _begin_next(self) -> None:
        """Start the first waiting sweep that may start."""
        for target in list(self._waiting):
            if self._running is None and not self._is_closing:
                with suppress(Refused):
                    self._start(target, self._waiting.pop(target))

    def _lease_lost(self) -> None:
        """End the running sweep before another replica may start one."""
        if self._running is not None and self._running.runner is not None:
            self._running.runner.stop(LEASE_LOST, "lease_lost")

    def _lease_won(self) -> None:
        """Start sweeps that came due while no replica held the lease, unless too long ago."""
        for target, request in list(self._waiting.items()):
            if request.due_unix_s and self.parts.shared.clock.unix_s() - request.due_unix_s > MAX_LATENESS_S:
                del self._waiting[target]
        self._begin_next()

    # --- results

    def results(self, name: str | None = None) -> list[Result]:
        """Results of a target, or of all, in memory, latest first; `read` loads the others."""
        results = [result for target in self._chosen(name) for result in target.latest()]
        return sorted(results, key=lambda result: result.started_unix_s, reverse=True) if name is None else results

    async def read(self, name: str | None = None) -> None:
        """Read the results of a target, or of all, from the store, for at most READ_WITHIN_S."""
        with suppress(TimeoutError):
            async with asyncio.timeout(READ_WITHIN_S):
                for target in self._chosen(name):
                    await target.results.read()

    async def result(self, identity: str) -> Result | None:
        """The result with this id; None without one."""
        if self.parts.archive is not None:
            await self.parts.archive.listed.wait()
        for target in self._chosen(None):
            if target.results.has(identity):
                await target.results.read(lambda result: result.id == identity)
        return next((result for result in self.results() if result.id == identity), None)

    def _chosen(self, name: str | None) -> list[TargetSweeps]:
        """The swept targets with this name; None: all."""
        return [target for target in self._targets.values() if name in (None, target.name) and target.spec is not None]
