"""A sweep of a target: last checks, lock and lease, the run with its guards, and its result."""

import asyncio
import logging
from random import Random

from prober.config.sweep import SweepSpec
from prober.config.target import TargetSpec
from prober.features.capacity.actions import Action, Refused, Run, StartRequest
from prober.features.capacity.engine_fit import Prior
from prober.features.capacity.start_checks import check_alerts, check_state
from prober.features.capacity.stop_conditions import burns
from prober.features.capacity.sweep_result import has_capacity, result_of
from prober.features.capacity.sweep_runner import SweepRun, SweepRunner, Unmeasurable
from prober.features.capacity.sweep_series import SweepSeries
from prober.features.capacity.target_sweeps import SweepContext, TargetSweeps
from prober.measure.event import TargetEvent
from prober.measure.target_state import TargetState
from prober.probing.leadership import claimed_as
from prober.probing.result_context import completed
from prober.probing.workers import Workers, WorkersUnavailable, open_workers
from prober.results.result import Result
from prober.results.stop_reason import ending
from prober.storage.lock import Lock, LockHeld
from prober.workload.arrivals import derive_seed

GUARD_INTERVAL_S = 1.0
ALERTS_INTERVAL_S = 15.0
log = logging.getLogger(__name__)


class SweepJob:
    """A sweep that may start. series: of the target; closed once the target is gone."""

    def __init__(
        self, target: TargetSweeps, series: SweepSeries, context: SweepContext, identity: str, request: StartRequest
    ) -> None:
        self._target, self._series, self._context = target, series, context
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
        except (Unmeasurable, WorkersUnavailable) as problem:
            self._series.failed(self._context.clock.unix_s())
            log.warning("target=%s sweep (%s) failed: %s", target.name, trigger, problem)
        except Exception:
            # A fault of the prober must not pass as an answer, and leaves the last capacity with its old time.
            self._series.failed(self._context.clock.unix_s())
            log.exception("target=%s: a sweep failed inside the prober; please report this", target.name)

    async def _start(self) -> None:
        """Take lock and lease, check again, and sweep. Raises Refused, LockHeld, Unmeasurable, WorkersUnavailable."""
        target, context, request = self._target, self._context, self._request
        key = target.target.spec.key
        target.check_pause(request)
        await check_alerts(context.headroom.prometheus_url, target.name)
        with Lock(target.target.spec.url, f"prober run, a sweep of {target.name}"):
            target.check_lease(request)  # another replica may have taken the lease meanwhile
            due_unix_s = request.due_unix_s or context.clock.unix_s()
            fence = await context.leadership.claim(claimed_as(key), due_unix_s)
            if fence is None:
                raise Refused("no_lease", f"lease {context.leadership.where} was lost before it began")
            await context.starts.record(key, request)
            async with open_workers(target.spec.workers if target.spec is not None else 1) as workers:
                if self._series.is_closed or target.spec is None:
                    raise Refused("not_configured", "the target was removed")
                check_state(target.target)  # it may have been paused meanwhile, or its pod may be ending
                await self._sweep(target.target.spec, target.spec, fence, workers)

    async def _sweep(self, target: TargetSpec, spec: SweepSpec, fence: int, workers: Workers) -> None:
        """Sweep, and keep the result. target, spec: as configured at the start; fence: of the lease. Raises Unmeasurable."""
        sweeps, context = self._target, self._context
        started_unix_s = context.clock.unix_s()
        runner = self._runner(target, spec, fence, started_unix_s, workers)
        workers.on_loss = runner.stop
        name, trigger = sweeps.name, self._request.trigger
        log.info(
            "target=%s sweep %s (%s) begins: %s up to %g/s",
            name,
            self._id,
            trigger,
            spec.mode,
            spec.rates[-1] if spec.rates else spec.max_rate,
        )
        sweeps.runner = runner
        runner.read_before(sweeps.demand.readings)
        sweeps.demand.sweep_began()
        guards = asyncio.create_task(self._guard(runner, spec))
        try:
            facts = await context.read_facts(sweeps.target, [device.uuid for device in sweeps.devices])
            run = await runner.run()
        finally:
            guards.cancel()
            sweeps.runner = None
            sweeps.demand.sweep_ended()
            self._series.rate(0.0)
            if not self._series.is_closed:
                sweeps.observed.budget_spent()
        where = context.leadership.where
        result = await asyncio.to_thread(
            result_of,
            run,
            target,
            spec,
            identity=self._id,
            started_unix_s=started_unix_s,
            ended_unix_s=context.clock.unix_s(),
            additions={"why": trigger, "workers": workers.count or 1}
            | ({"lease": where, "lease_transitions": fence} if where else {}),
            devices=sweeps.devices,
            probes_per_s=sum(probe.rate for probe in target.probes),
        )
        result = completed(result, target, facts, seed=self._seed(target))
        if target.url == sweeps.target.spec.url and run.model is not None:
            sweeps.model = started_unix_s, run.model
        await sweeps.results.keep(result)
        if not self._series.is_closed:
            self._show(run, result, target.url)

    def _runner(
        self, target: TargetSpec, spec: SweepSpec, fence: int, started_unix_s: float, workers: Workers
    ) -> SweepRunner:
        sweeps, context = self._target, self._context
        prior = None
        if sweeps.model is not None:
            fitted_unix_s, fit = sweeps.model
            prior = Prior(fit.service, fit.structure, fit.front_s, age_s=started_unix_s - fitted_unix_s)

        def on_action(action: Action) -> None:
            self._series.rate(action.rate_per_s if isinstance(action, Run) else 0.0)

        return SweepRunner(
            sweeps.target,
            spec,
            Random(self._seed(target)),
            context.open_page,
            on_action,
            prior,
            sweeps.demand.queried,
            lambda: context.leadership.held() == fence,
            sweeps.probe_needs(),
            lambda pause_s: sweeps.retry_after(pause_s, target.url),
            workers.launch,
        )

    def _seed(self, target: TargetSpec) -> int:
        return derive_seed(self._id, target.key, "sweep")

    def _show(self, run: SweepRun, result: Result, url: str) -> None:
        """Show the result. Without a capacity, or at a former URL of the target, the last capacity and its load curve stay."""
        name, finished = self._target.name, run.finished
        self._series.ended(run, result)
        if has_capacity(result) and url == self._target.target.spec.url:
            self._target.show_capacity()
        self._series.stages(self._target.last_curve())
        text = f"sweep: {finished.verdict}, {result.capacity_words()}; why it ended: {ending(result.stop, result.stop_detail)}"
        log.info("target=%s %s (%s)", name, text, finished.reason)
        self._context.events.append(TargetEvent(result.ended_unix_s, name, "sweep", text))

    async def _guard(self, runner: SweepRunner, spec: SweepSpec) -> None:
        """End the sweep for reasons outside the state machine: scheduled probes, the target's state, the prober, alerts."""
        sweeps, context = self._target, self._context
        began_ns = context.clock.now_ns()
        alerts_s = context.now_s()
        while True:
            await asyncio.sleep(GUARD_INTERVAL_S)
            sweeps.observed.budget_spent()
            probes = [probe for probe in sweeps.recent if probe.timeline.intended_ns >= began_ns]
            if sweeps.target.state is TargetState.FAILING:
                runner.stop("the target fails")
            elif burns(probes, spec.slos, spec.guard.burn):
                runner.stop("the continuous probes burn their budget")
            elif not context.trust.trusted(context.clock.now_ns()):
                runner.stop("the prober does not trust itself")
            if context.now_s() - alerts_s >= ALERTS_INTERVAL_S:
                alerts_s = context.now_s()
                try:
                    await check_alerts(context.headroom.prometheus_url, sweeps.name)
                except Refused as refusal:
                    runner.stop(str(refusal))
