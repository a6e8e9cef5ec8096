"""From the fleet to what the page and the API show. Between costly steps others run: no stamp waits for a reader."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice

from prober import __version__
from prober.config.specs import estimate_per_day
from prober.daemon.fleet import Fleet, Line
from prober.exposition.families import Family, Value
from prober.features.capacity import series as capacity_series
from prober.features.experiments.report.document import Figure
from prober.features.experiments.report.plots import curves
from prober.features.slo.status import Standing, standing
from prober.measure.result import ProbeResult
from prober.measure.slo_events import events
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
    """Looks at the fleet and at its series."""

    def __init__(self, fleet: Fleet, families: dict[str, Family]) -> None:
        self._fleet, self._families = fleet, families
        self.problems: Mapping[str, Problem] = {}  # what of the configuration is not in effect, by part
        self._charts: dict[str, tuple[list[str], list[Figure]]] = {}

    async def targets(self) -> list[TargetView]:
        """All targets."""
        return [await self._measured(self._view(line)) for line in list(self._fleet.lines.values())]

    async def page(self, asked: str, number: int, chosen: str, *, admin: bool) -> PageView | None:
        """The page for a filter, or for one target; of a single target always that. None: there is no such target."""
        fleet = self._fleet
        views = []
        for line in list(fleet.lines.values()):
            views.append(self._view(line))
            await asyncio.sleep(0)
        ranked = sorted(((concern(view), view) for view in views), key=lambda each: (each[0].rank, each[1].name))
        concerns: list[tuple[str, str, Concern]] = [(view.key, view.name, found) for found, view in ranked]
        one = next((view for _, view in ranked if chosen in (view.key, view.name)), None) if chosen else None
        if chosen and one is None:
            return None
        if len(ranked) == 1:
            one = ranked[0][1]
        if one is not None:
            await fleet.sweeps.read(one.name)
            one = replace(one, sweeps=fleet.sweeps.results(one.name))
        matching = [one] if one is not None else [view for found, view in ranked if _matches(asked, view, found)]
        pages = max(1, -(-len(matching) // AT_ONCE))
        number = min(max(1, number), pages)
        shown = [await self._measured(view) for view in matching[(number - 1) * AT_ONCE : number * AT_ONCE]]
        name = one.name if one is not None else None
        return PageView(
            at_unix_s=time.time(),
            targets=shown,
            concerns=concerns,
            total=len(ranked),
            matching=len(matching),
            events=fleet.history.events(name)[:EVENTS],
            probes=() if one is not None else await self._latest(views),
            trusted=fleet.trust.trusted(fleet.clock.now_ns()),
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
        return [(line.name or key, line.name or UNNAMED) for key, line in self._fleet.lines.items()]

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
        """With its quantiles, which cost the most."""
        found: dict[tuple[str, str], Sequence[Quantile]] = {}
        for key, samples in self._fleet.history.samples(view.name).items():
            if quantiles := samples.quantiles():
                found[key] = quantiles
            await asyncio.sleep(0)
        return replace(view, quantiles=found)

    def _view(self, line: Line) -> TargetView:
        fleet, spec, identity = self._fleet, line.target.spec, line.target.known
        name = line.name or UNNAMED
        now = fleet.clock.now_ns()
        start = line.starting_since_and_until_unix_s()
        return TargetView(
            key=line.name or spec.key,
            name=name,
            url=spec.url,
            model=identity.model if identity else spec.model or "",
            engine=identity.dialect.name if identity else spec.engine or "",
            state=line.target.state,
            paused_unix_s=line.target.paused_unix_s,
            outcomes=fleet.history.outcomes(name),
            standings=self._standings(name, line),
            diagnosis=fleet.explanation.verdict(name),
            capacity=self._capacity(name),
            probes=list(islice(fleet.history.recent(name), RECENT)),
            drifts=[
                Drifting(workload, signal, verdict, shifts)
                for (_, workload, signal), verdict, shifts in fleet.watch.verdicts(name)
            ],
            budgets=[Spending(kind, each.limit, each.spent(now)) for kind, each in line.target.budgets.items()],
            estimate=estimate_per_day(spec),
            sweeping=fleet.sweeps.progress(name),
            sweeps=fleet.sweeps.results(name),
            sweepable=spec.sweep is not None,
            starting=Starting(*start) if start else None,
        )

    def _standings(self, name: str, line: Line) -> list[Standing]:
        fleet = self._fleet
        now = fleet.clock.now_ns()
        trusted = fleet.trust.trusted(now)
        counted = {(workload, slo): counts for workload, slo, *counts in fleet.recorder.slos(name)}
        found: list[Standing] = []
        for slo, use in line.target.spec.uses():
            seen, bad = counted.get((use.workload, slo), (0, 0))
            last = next(
                (
                    p.timeline.intended_ns
                    for p in fleet.history.recent(name)
                    if p.workload == use.workload and not p.on_request and events(slo, p)[0]
                ),
                None,
            )
            quiet_s = None if last is None else (now - last) / 1e9
            found.append(standing(slo, use, seen, bad, trusted=trusted, quiet_s=quiet_s))
        return found

    def _capacity(self, name: str) -> Capacities | None:
        """What the last sweep that found something said."""
        for result in self._fleet.sweeps.results(name):
            if any(each.estimate is not None for each in result.capacities):
                return Capacities(
                    result.capacities,
                    result.ended_unix_s,
                    [self._room(name, unit) for unit in UNITS],
                    self._fleet.headroom.demand(name).requests_per_s,
                    self._value(capacity_series.CAPACITY_EXHAUSTION.name, name, "estimate"),
                    self._value(capacity_series.CAPACITY_SHAPE.name, name),
                )
        return None

    def _room(self, name: str, unit: str) -> Room:
        """The series of the bound `lower` is of the lower capacity, so the least headroom."""
        low, middle, high = (
            self._value(capacity_series.HEADROOM.name, name, unit, bound) for bound in ("lower", "estimate", "upper")
        )
        return Room(unit, low, middle, high)

    def _value(self, family: str, *labels: str) -> float | None:
        child = self._families[family].children.get(labels)
        return child.value if isinstance(child, Value) else None


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
