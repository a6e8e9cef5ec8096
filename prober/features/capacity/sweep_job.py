"""One sweep of a target in the daemon: last checks, lock and lease, the guarded run, and its result."""

import asyncio
import logging

from prober.config.sweep import SweepSpec
from prober.features.capacity.actions import Action, Refused, Run, StartRequest
from prober.features.capacity.sweep_result import has_capacity, result_of
from prober.features.capacity.sweep_runner import SweepRun, SweepRunner
from prober.features.capacity.target_sweeps import TargetSweeps
from prober.measure.objective import burns
from prober.measure.target_state import TargetEvent, TargetState
from prober.probing.replicas import claimed_as
from prober.probing.session import Session, UnidentifiedTarget
from prober.probing.worker_host import WorkersUnavailable
from prober.probing.workers import Workers, open_workers
from prober.results.result import Result
from prober.results.stop_reason import ending
from prober.storage.watched_file import Lock, LockHeld
from prober.workload.arrivals import derive_seed

GUARD_INTERVAL_S = 1.0
ALERTS_INTERVAL_S = 15.0
CUT = "sweep: cut, as the prober ends; nothing of it is kept"
log = logging.getLogger(__name__)


class SweepJob:
    """A sweep of a target that may start, with its id."""

    def __init__(self, target: TargetSweeps, identity: str, request: StartRequest) -> None:
        assert target.series is not None, "it has no `sweep:`"
        self._target, self._parts = target, target.parts
        self._series = target.series  # closed once the target is removed
        self._id, self._request = identity, request

    async def run(self) -> None:
        """Run the sweep to its end. Raises nothing: errors are logged and counted."""
        target, trigger = self._target, self._request.trigger
        try:
            await self._start()
        except Refused as refusal:
            target.refused(self._request, refusal)
        except LockHeld as holder:
            target.refused(self._request, Refused("locked", f"it is loaded by {holder} on this machine"))
        except (UnidentifiedTarget, WorkersUnavailable) as problem:
            self._series.failed(self._parts.shared.clock.unix_s())
            log.warning("target=%s sweep (%s) failed: %s", target.name, trigger, problem)
        except Exception:
            # A fault of the prober must not appear as a result; the last capacity stays, with its old time.
            self._series.failed(self._parts.shared.clock.unix_s())
            log.exception("target=%s: a sweep failed inside the prober; please report this", target.name)

    async def _start(self) -> None:
        """Take lock and lease, check again, and sweep. Raises Refused, LockHeld, UnidentifiedTarget, WorkersUnavailable."""
        target, parts, request = self._target, self._parts, self._request
        key, leadership = target.target.spec.key, parts.shared.leadership
        await target.check_alerts()
        with Lock(target.target.spec.url, f"prober run, a sweep of {target.name}"):
            target.check(request)  # another replica may hold the lease by now
            fence = await leadership.claim(claimed_as(key), request.due_unix_s or parts.shared.clock.unix_s())
            if fence is None:
                raise Refused("no_lease", f"lease {leadership.where} was lost before it began")
            await parts.pauses.started(key, request)
            async with open_workers(target.spec.workers if target.spec is not None else 1) as workers:
                # Its own start and claim now refuse a schedule, but no request. The target may have been paused or removed.
                target.check(StartRequest("request"))
                assert target.spec is not None
                await self._sweep(target.with_workload(target.spec), fence, workers)

    async def _sweep(self, sweep: SweepSpec, fence: int, workers: Workers) -> None:
        """Sweep and store the result. sweep: configuration at the start; fence: token of the lease. Raises UnidentifiedTarget."""
        target, parts, series = self._target, self._parts, self._series
        spec, trigger, where = target.target.spec, self._request.trigger, parts.shared.leadership.where
        session = Session(
            *(spec, parts.shared.clock, None, parts.shared.read_facts),
            launch=workers.launch,
            target=target.target,
            devices=target.devices,
            seed=derive_seed(self._id, spec.key, "sweep"),
        )

        def on_action(action: Action) -> None:
            series.rate(action.rate_per_s if isinstance(action, Run) else 0.0)

        runner = target.runner = SweepRunner(
            *(session, sweep, parts.shared.open_page, on_action),
            before=target.demand.readings,
            demand=target.demand.queried,
            is_allowed=lambda: parts.shared.leadership.held() == fence,
            needs=target.probe_needs(),
            on_retry_after=lambda pause_s: target.retry_after(pause_s, spec.url),
        )
        workers.on_loss = runner.stop
        text = "target=%s sweep %s (%s) begins: %s up to %g/s"
        log.info(text, target.name, self._id, trigger, sweep.mode, sweep.highest_rate)
        target.demand.sweep_began()
        guards = asyncio.create_task(self._guard(runner, sweep))
        try:
            async with session:
                run = await runner.run()
        except asyncio.CancelledError:  # the prober ends, without a result
            parts.shared.events.record(log, TargetEvent(parts.shared.clock.unix_s(), target.name, "sweep", CUT))
            raise
        finally:
            guards.cancel()
            target.runner = None
            target.demand.sweep_ended()
            series.rate(0.0)
            target.observed.budget_spent()
        additions: dict[str, object] = {"why": trigger, "workers": workers.count or 1}
        additions |= {"lease": where, "lease_transitions": fence} if where else {}
        probes_per_s = sum(probe.rate for probe in spec.probes)
        result = await asyncio.to_thread(result_of, run, session, sweep, self._id, additions, probes_per_s)
        await target.results.keep(result)
        self._show(run, result)

    def _show(self, run: SweepRun, result: Result) -> None:
        """Show the result. Without a figure, the last one stays, with its load curve."""
        finished = run.finished
        self._series.ended(run, result)
        if has_capacity(result):
            self._target.show_capacity()
        self._series.stages(self._target.last_curve())
        text = f"sweep: {finished.verdict}, {result.capacity_words()}; why it ended: {ending(result.stop, result.stop_detail)}"
        event = TargetEvent(result.ended_unix_s, self._target.name, "sweep", text)
        self._parts.shared.events.record(log, event, f"{text} ({finished.reason})")

    async def _guard(self, runner: SweepRunner, sweep: SweepSpec) -> None:
        """End the sweep for reasons outside the state machine: scheduled probes, the target's state, the prober, alerts."""
        target, parts = self._target, self._parts
        began_ns = alerts_ns = parts.shared.clock.now_ns()
        while True:
            await asyncio.sleep(GUARD_INTERVAL_S)
            target.observed.budget_spent()
            now_ns = parts.shared.clock.now_ns()
            probes = [probe for probe in target.recent if probe.timeline.intended_ns >= began_ns]
            if target.target.state is TargetState.FAILING:
                runner.stop("the target fails")
            elif any(burns(probes, slo, sweep.guard.burn) for slo in sweep.slos):
                runner.stop("the continuous probes burn their budget")
            if now_ns - alerts_ns >= ALERTS_INTERVAL_S * 1e9:
                alerts_ns = now_ns
                try:
                    await target.check_alerts()
                except Refused as refusal:
                    runner.stop(str(refusal))
