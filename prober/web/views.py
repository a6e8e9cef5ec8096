"""Views of the fleet for the page and the API. Costly steps yield to the event loop, so that no timestamp waits for a reader."""

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice

from prober import __version__
from prober.config.target import estimate_per_day
from prober.features.capacity.headroom import FreeCapacity, TargetDemand
from prober.features.capacity.monitor import Sweeps
from prober.features.capacity.target_sweeps import TargetSweeps
from prober.features.diagnosis.monitor import TargetDiagnosis
from prober.features.drift.monitor import TargetDrift
from prober.features.engines.monitor import TargetEngine
from prober.features.experiments.report.document import Figure
from prober.features.experiments.report.plots import curves
from prober.features.slo.monitor import TargetSlos
from prober.features.slo.status import SloStatus, slo_status
from prober.measure.buffering import Buffering
from prober.measure.result import ProbeResult
from prober.probing.buffering import TargetBuffering
from prober.probing.fleet import Fleet
from prober.probing.history import TargetHistory
from prober.probing.target_runner import TargetRunner
from prober.results.result import LATENCIES
from prober.statistics.quantiles import Quantile, quantiles
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
RECEIVE_ERRORS = 1_200  # readings of the last ten minutes: enough for a p99
CURVES = 3  # sweeps that are drawn over each other
UNITS = ("requests", "tokens")


class Views:
    """Reads the state of the features."""

    def __init__(self, fleet: Fleet, sweeps: Sweeps) -> None:
        self._fleet, self._sweeps = fleet, sweeps
        self.problems: Mapping[str, Problem] = {}  # what of the configuration is not in effect, by part
        self.receive_errors: deque[float] = deque(
            maxlen=RECEIVE_ERRORS
        )  # of the prober itself, in seconds, latest last
        self._charts: dict[str, tuple[list[str], list[Figure]]] = {}

    async def targets(self) -> list[TargetView]:
        """All targets."""
        return [await self._measured(self._view(runner)) for runner in list(self._fleet.runners.values())]

    async def page(self, filter_text: str, number: int, chosen: str, *, admin: bool) -> PageView | None:
        """The page for a filter, or for one target; of a single target always that. None: there is no such target."""
        fleet = self._fleet
        views = []
        for runner in list(fleet.runners.values()):
            views.append(self._view(runner))
            await asyncio.sleep(0)
        ranked = sorted(((concern(view), view) for view in views), key=lambda row: (row[0].rank, row[1].name))
        concerns: list[tuple[str, str, Concern]] = [(view.key, view.name, fact) for fact, view in ranked]
        one = next((view for _, view in ranked if chosen in (view.key, view.name)), None) if chosen else None
        if chosen and one is None:
            return None
        if len(ranked) == 1:
            one = ranked[0][1]
        if one is not None:
            await self._sweeps.read(one.name)
            one = replace(one, sweeps=self._sweeps.results(one.name))
        matching = [one] if one is not None else [view for fact, view in ranked if _matches(filter_text, view, fact)]
        pages = max(1, -(-len(matching) // AT_ONCE))
        number = min(max(1, number), pages)
        measured = [await self._measured(view) for view in matching[(number - 1) * AT_ONCE : number * AT_ONCE]]
        name = one.name if one is not None else None
        return PageView(
            at_unix_s=self._fleet.context.clock.unix_s(),
            targets=measured,
            concerns=concerns,
            total=len(ranked),
            matching=len(matching),
            events=fleet.context.events.latest(name)[:EVENTS],
            probes=() if one is not None else await self._latest(views),
            trusted=fleet.context.trust.trusted(fleet.context.clock.now_ns()),
            receive_error=next(iter(quantiles(self.receive_errors, (0.99,))), None),
            admin=admin,
            version=__version__,
            filter_text=filter_text,
            chosen=chosen,
            is_target_page=one is not None,
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
        if not view.is_target_page or not view.targets:
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
        latest = sorted(
            (probe for view in views for probe in view.probes[:PROBES]),
            key=lambda probe: probe.timeline.intended_ns,
            reverse=True,
        )
        await asyncio.sleep(0)
        return latest[:PROBES]

    async def _measured(self, view: TargetView) -> TargetView:
        """The view with its quantiles, which cost the most."""
        quantiles: dict[tuple[str, str], Sequence[Quantile]] = {}
        runner = self._fleet.find(view.key)
        history = runner.find(TargetHistory) if runner is not None else None
        for key, samples in list(history.samples.items()) if history is not None else ():
            if rows := samples.quantiles():
                quantiles[key] = rows
            await asyncio.sleep(0)
        return replace(view, quantiles=quantiles)

    def _view(self, runner: TargetRunner) -> TargetView:
        target, spec, identity = runner.target, runner.spec, runner.target.identity
        name = runner.name or UNNAMED
        now_ns = self._fleet.context.clock.now_ns()
        start = runner.starting_since_and_until_unix_s()
        history, drift, diagnosis = runner.find(TargetHistory), runner.find(TargetDrift), runner.find(TargetDiagnosis)
        sweeps, observed_engine = runner.find(TargetSweeps), runner.find(TargetEngine)
        buffering = runner.find(TargetBuffering)
        return TargetView(
            key=runner.name or spec.key,
            name=name,
            url=spec.url,
            model=identity.name if identity else spec.model or "",
            engine=identity.dialect.name if identity else spec.engine or "",
            other_model=observed_engine.other_model if observed_engine else "",
            state=target.state,
            paused_unix_s=target.paused_unix_s,
            outcomes=dict(history.outcomes.most_common()) if history else {},
            standings=self._slo_statuses(runner),
            diagnosis=diagnosis.diagnosis if diagnosis else None,
            capacity=_capacities(runner),
            probes=list(islice(history.recent(), RECENT)) if history else [],
            drifts=[
                Drifting(workload, signal, verdict, shifts)
                for (workload, signal), verdict, shifts in (drift.verdicts() if drift else ())
            ],
            budgets=[Spending(kind, budget.limit, budget.spent(now_ns)) for kind, budget in target.budgets.items()],
            estimate=estimate_per_day(spec),
            sweeping=sweeps.progress() if sweeps else None,
            sweeps=sweeps.latest() if sweeps else [],
            sweepable=spec.sweep is not None,
            starting=Starting(*start) if start else None,
            buffering=buffering.buffering if buffering else Buffering(),
        )

    def _slo_statuses(self, runner: TargetRunner) -> list[SloStatus]:
        context = self._fleet.context
        trusted, unix_s = context.trust.trusted(context.clock.now_ns()), context.clock.unix_s()
        slos = runner.find(TargetSlos)
        if slos is not None:
            return list(slos.statuses(trusted=trusted))
        return [
            slo_status(slo, use, 0, 0, since_unix_s=unix_s, trusted=trusted, quiet_s=None)
            for slo, use in runner.spec.uses()
        ]


def _capacities(runner: TargetRunner) -> Capacities | None:
    """The answer of the last sweep that found a capacity, and the headroom."""
    sweeps, demand = runner.find(TargetSweeps), runner.find(TargetDemand)
    result = sweeps.last_capacity() if sweeps is not None else None
    if result is None or demand is None:
        return None
    free = {unit: demand.headroom.get(unit, FreeCapacity()) for unit in UNITS}
    return Capacities(
        result.capacities,
        result.ended_unix_s,
        [Room(unit, of.lower, of.estimate, of.upper) for unit, of in free.items()],
        demand.demand.requests_per_s,
        demand.exhaustion_unix_s,
        demand.shape,
    )


def _matches(filter_text: str, view: TargetView, fact: Concern) -> bool:
    """Every word of the filter is in the text of the card."""
    words_ = (
        view.name,
        view.model,
        view.other_model,
        view.engine,
        view.state,
        fact.text,
        "paused" if view.paused_unix_s is not None else "",
        "buffered" if view.buffering.is_buffered else "",
    )
    inside = " ".join(words_).lower()
    return all(word in inside for word in filter_text.lower().split())
