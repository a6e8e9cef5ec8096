"""From the fleet to what the page and the API show. Between costly steps others run: no stamp waits for a reader."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice

from prober import __version__
from prober.config.target import estimate_per_day
from prober.features.capacity.headroom import Headroom
from prober.features.capacity.monitor import Sweeps
from prober.features.diagnosis.monitor import TargetDiagnosis
from prober.features.drift.monitor import TargetDrift
from prober.features.experiments.report.document import Figure
from prober.features.experiments.report.plots import curves
from prober.features.slo.monitor import TargetSlos
from prober.features.slo.status import SloStatus, slo_status
from prober.measure.result import ProbeResult
from prober.probing.fleet import Fleet
from prober.probing.history import TargetHistory
from prober.probing.target_runner import TargetRunner
from prober.results.result import LATENCIES
from prober.statistics.quantiles import Quantile
from prober.web.page.view import (
    AT_ONCE,
    RECENT,
    Capacities,
    Concern,
    Drifting,
    PageView,
    Problem,
    Room,
    Spending,
    Starting,
    TargetView,
    concern,
)

UNNAMED = "(not found out yet)"
PROBES, EVENTS = 20, 20  # shown of all targets together
CURVES = 3  # sweeps that are drawn over each other
UNITS = ("requests", "tokens")


class Views:
    """Reads the state of the features."""

    def __init__(self, fleet: Fleet, sweeps: Sweeps, headroom: Headroom) -> None:
        self._fleet, self._sweeps, self._headroom = fleet, sweeps, headroom
        self.problems: Mapping[str, Problem] = {}  # what of the configuration is not in effect, by part
        self._charts: dict[str, tuple[list[str], list[Figure]]] = {}

    async def targets(self) -> list[TargetView]:
        """All targets."""
        return [await self._measured(self._view(runner)) for runner in list(self._fleet.runners.values())]

    async def page(self, asked: str, number: int, chosen: str, *, admin: bool) -> PageView | None:
        """The page for a filter, or for one target; of a single target always that. None: there is no such target."""
        fleet = self._fleet
        views = []
        for runner in list(fleet.runners.values()):
            views.append(self._view(runner))
            await asyncio.sleep(0)
        ranked = sorted(((concern(view), view) for view in views), key=lambda each: (each[0].rank, each[1].name))
        concerns: list[tuple[str, str, Concern]] = [(view.key, view.name, found) for found, view in ranked]
        one = next((view for _, view in ranked if chosen in (view.key, view.name)), None) if chosen else None
        if chosen and one is None:
            return None
        if len(ranked) == 1:
            one = ranked[0][1]
        if one is not None:
            await self._sweeps.read(one.name)
            one = replace(one, sweeps=self._sweeps.results(one.name))
        matching = [one] if one is not None else [view for found, view in ranked if _matches(asked, view, found)]
        pages = max(1, -(-len(matching) // AT_ONCE))
        number = min(max(1, number), pages)
        shown = [await self._measured(view) for view in matching[(number - 1) * AT_ONCE : number * AT_ONCE]]
        name = one.name if one is not None else None
        return PageView(
            at_unix_s=self._fleet.context.clock.unix_s(),
            targets=shown,
            concerns=concerns,
            total=len(ranked),
            matching=len(matching),
            events=fleet.context.events.latest(name)[:EVENTS],
            probes=() if one is not None else await self._latest(views),
            trusted=fleet.context.trust.trusted(fleet.context.clock.now_ns()),
            admin=admin,
            version=__version__,
            asked=asked,
            chosen=chosen,
            whole=one is not None,
            page=number,
            pages=pages,
            shard=str(fleet.shard) if fleet.shard.count > 1 else "",
            configured=fleet.configured,
            problems=list(self.problems.values()),
        )

    def known(self) -> list[tuple[str, str]]:
        """(key, name) of every target."""
        return [(runner.name or key, runner.name or UNNAMED) for key, runner in self._fleet.runners.items()]

    async def charts(self, view: PageView) -> list[Figure]:
        """Latency over load of the last sweeps of the one target shown; drawn once a result."""
        if not view.whole or not view.targets:
            return []
        one = view.targets[0]
        results = one.sweeps[:CURVES]
        ids = [result.id for result in results]
        drawn = self._charts.get(one.key)
        if drawn is None or drawn[0] != ids:
            names = [time.strftime("%Y-%m-%d %H:%M", time.gmtime(result.ended_unix_s)) for result in results]
            named, figures = list(zip(names, results, strict=True)), list[Figure]()
            for latency in LATENCIES:
                figures += curves(named, [latency], first=True)
                await asyncio.sleep(0)
            drawn = self._charts[one.key] = ids, figures
        return drawn[1]

    async def _latest(self, views: Sequence[TargetView]) -> list[ProbeResult]:
        found = sorted(
            (probe for view in views for probe in view.probes[:PROBES]),
            key=lambda probe: probe.timeline.intended_ns,
            reverse=True,
        )
        await asyncio.sleep(0)
        return found[:PROBES]

    async def _measured(self, view: TargetView) -> TargetView:
        """The view with its quantiles, which cost the most."""
        found: dict[tuple[str, str], Sequence[Quantile]] = {}
        runner = self._fleet.find(view.key)
        history = runner.find(TargetHistory) if runner is not None else None
        for key, samples in list(history.samples.items()) if history is not None else ():
            if quantiles := samples.quantiles():
                found[key] = quantiles
            await asyncio.sleep(0)
        return replace(view, quantiles=found)

    def _view(self, runner: TargetRunner) -> TargetView:
        target, spec, identity = runner.target, runner.spec, runner.target.known
        name = runner.name or UNNAMED
        now_ns = self._fleet.context.clock.now_ns()
        start = runner.starting_since_and_until_unix_s()
        history, drift, diagnosis = runner.find(TargetHistory), runner.find(TargetDrift), runner.find(TargetDiagnosis)
        return TargetView(
            key=runner.name or spec.key,
            name=name,
            url=spec.url,
            model=identity.model if identity else spec.model or "",
            engine=identity.dialect.name if identity else spec.engine or "",
            state=target.state,
            paused_unix_s=target.paused_unix_s,
            outcomes=dict(history.outcomes.most_common()) if history else {},
            standings=self._slo_statuses(runner),
            diagnosis=diagnosis.diagnosis if diagnosis else None,
            capacity=self._capacity(name),
            probes=list(islice(history.recent(), RECENT)) if history else [],
            drifts=[
                Drifting(workload, signal, verdict, shifts)
                for (workload, signal), verdict, shifts in (drift.verdicts() if drift else ())
            ],
            budgets=[Spending(kind, budget.limit, budget.spent(now_ns)) for kind, budget in target.budgets.items()],
            estimate=estimate_per_day(spec),
            sweeping=self._sweeps.progress(name),
            sweeps=self._sweeps.results(name),
            sweepable=spec.sweep is not None,
            starting=Starting(*start) if start else None,
        )

    def _slo_statuses(self, runner: TargetRunner) -> list[SloStatus]:
        context = self._fleet.context
        now_ns = context.clock.now_ns()
        trusted = context.trust.trusted(now_ns)
        slos = runner.find(TargetSlos)
        if slos is not None:
            return list(slos.statuses(trusted=trusted, now_ns=now_ns))
        return [slo_status(slo, use, 0, 0, trusted=trusted, quiet_s=None) for slo, use in runner.spec.uses()]

    def _capacity(self, name: str) -> Capacities | None:
        """The answer of the last sweep that found a capacity."""
        for result in self._sweeps.results(name):
            if any(capacity.estimate is not None for capacity in result.capacities):
                return Capacities(
                    result.capacities,
                    result.ended_unix_s,
                    [self._room(name, unit) for unit in UNITS],
                    self._headroom.demand(name).requests_per_s,
                    self._headroom.exhaustion_unix_s(name),
                    self._headroom.shape(name),
                )
        return None

    def _room(self, name: str, unit: str) -> Room:
        """The bound `lower` is of the lower capacity, so the least headroom."""
        free = self._headroom.free(name, unit)
        return Room(unit, free.lower, free.estimate, free.upper)


def _matches(asked: str, view: TargetView, found: Concern) -> bool:
    """Every word of the filter is somewhere in what the card says."""
    words_ = (
        view.name,
        view.model,
        view.engine,
        view.state,
        found.text,
        "paused" if view.paused_unix_s is not None else "",
    )
    inside = " ".join(words_).lower()
    return all(word in inside for word in asked.lower().split())
