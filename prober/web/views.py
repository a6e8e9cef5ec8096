"""Views of the fleet for the page and the API. Costly steps yield to the event loop, so that no request waits for a reader."""

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from prober import __version__
from prober.config.target import estimate_per_day
from prober.features.capacity.headroom import TargetDemand
from prober.features.capacity.monitor import Sweeps
from prober.features.capacity.sweep_result import has_capacity, result_url
from prober.features.capacity.target_sweeps import TargetSweeps
from prober.features.diagnosis.monitor import TargetDiagnosis
from prober.features.drift.monitor import TargetDrift
from prober.features.engines.monitor import TargetEngine
from prober.features.experiments.report.document import Figure
from prober.features.experiments.report.plots import curves
from prober.features.slo.compliance import SloStatus, slo_status
from prober.features.slo.monitor import TargetSlos
from prober.measure.buffering import Buffering
from prober.measure.result import ProbeResult
from prober.measure.target_state import NO_DATA_STATES
from prober.probing.buffering import TargetBuffering
from prober.probing.fleet import Fleet
from prober.probing.history import LATEST_S, RECENT_S, TargetHistory, latest_first
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
    engine_trends,
)
from prober.web.recent_probes import ALL, ProbeFilter, last_probes

UNNAMED = "(not found out yet)"
PROBES, EVENTS = 20, 20  # shown of all targets together
RECEIVE_DELAYS = 4_096  # of the last reads: enough for a p99
CURVES = 3  # sweeps that are drawn over each other
RANKING_S = 1.0
MAX_FILTER_WORDS, MATCHED_AT_ONCE = 10, 50


@dataclass(frozen=True, slots=True)
class Ranked:
    """A target, its most important fact, and the text that a filter searches."""

    view: TargetView
    fact: Concern
    text: str


@dataclass(frozen=True, slots=True)
class Ranking:
    """All targets at one time, worst first. latest: the last probes of all"""

    at_s: float
    targets: Sequence[Ranked]
    concerns: list[tuple[str, str, Concern]]
    latest: Sequence[ProbeResult]


class Views:
    """Reads the state of the features."""

    def __init__(self, fleet: Fleet, sweeps: Sweeps) -> None:
        self._fleet, self._sweeps = fleet, sweeps
        self.grafana_url = ""  # base of the dashboards' addresses, for the page's links; "": none
        self.problems: Mapping[str, Problem] = {}  # what of the configuration is not in effect, by part
        self.receive_delays = deque[float](
            maxlen=RECEIVE_DELAYS
        )  # reading − stamp of the kernel, in seconds, latest last
        self._ranking: Ranking | None = None
        self._ranking_turn = asyncio.Lock()
        self._charts: dict[str, tuple[list[str], list[Figure]]] = {}

    async def targets(self) -> list[TargetView]:
        """All targets."""
        views = []
        for runner in list(self._fleet.runners.values()):
            views.append(await self._measured(self._view(runner)))
            await asyncio.sleep(0)
        return views

    def forget(self) -> None:
        """Show nothing again that was read before now."""
        self._ranking = None

    async def page(
        self, filter_text: str, number: int, chosen: str, probe_filter: ProbeFilter = ALL, *, admin: bool
    ) -> PageView | None:
        """The page for a filter, or for one target; of a single target always that. None: there is no such target.

        probe_filter: which of the last probes are listed
        """
        fleet = self._fleet
        ranking = await self._ranked()
        targets = ranking.targets
        one = (
            next((shown for shown in targets if chosen in (shown.view.key, shown.view.name)), None) if chosen else None
        )
        if chosen and one is None:
            return None
        if len(targets) == 1:
            one = targets[0]
        if one is not None:
            name = one.view.name
            await self._sweeps.read(name)
            view = replace(one.view, sweeps=self._sweeps.results(name))
            matching, shown, number, pages = 1, [view], 1, 1
        else:
            name = None
            found = await _matching(filter_text, targets)
            matching, pages = len(found), max(1, -(-len(found) // AT_ONCE))
            number = min(max(1, number), pages)
            shown = [each.view for each in found[(number - 1) * AT_ONCE : number * AT_ONCE]]
        return PageView(
            at_unix_s=fleet.context.clock.unix_s(),
            targets=[await self._measured(view) for view in shown],
            concerns=ranking.concerns,
            total=len(targets),
            matching=matching,
            events=fleet.context.events.folded(name)[:EVENTS],
            probes=await self._listed(ranking, one, probe_filter),
            probe_filter=probe_filter,
            trusted=fleet.context.trust.trusted(fleet.context.clock.now_ns()),
            receive_delay=next(iter(quantiles(self.receive_delays, (0.99,))), None),
            reads=(fleet.context.clock.stamps.kernel, fleet.context.clock.stamps.process),
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
            grafana_url=self.grafana_url,
        )

    async def _listed(
        self, ranking: "Ranking", one: "Ranked | None", probe_filter: ProbeFilter
    ) -> Sequence[ProbeResult]:
        """The last probes of one target or of all."""
        if probe_filter.takes_all:
            return ranking.latest if one is None else one.view.probes
        runners = [self._fleet.find(one.view.key)] if one is not None else list(self._fleet.runners.values())
        histories = [history for runner in runners if runner and (history := runner.find(TargetHistory))]
        return list(await last_probes(histories, probe_filter, PROBES if one is None else RECENT))

    async def _ranked(self) -> "Ranking":
        """All targets, worst first, read again after RANKING_S only: so that a view costs what it shows, however many there are."""
        async with self._ranking_turn:
            now_s = asyncio.get_running_loop().time()
            if self._ranking is None or now_s - self._ranking.at_s > RANKING_S:
                self._ranking = await self._rank(now_s)
            return self._ranking

    async def _rank(self, now_s: float) -> "Ranking":
        found = []
        for runner in list(self._fleet.runners.values()):
            view = self._view(runner)
            fact = concern(view)
            words_ = (
                view.name,
                view.model,
                view.other_model,
                view.engine,
                view.state,
                fact.text,
                "paused" if view.paused_unix_s is not None else "",
                "buffered" if view.buffering.is_buffered else "",
                *(f"{label}:{value}" for label, value in view.labels.items()),
            )
            found.append(Ranked(view, fact, " ".join(words_).lower()))
            await asyncio.sleep(0)
        found.sort(key=lambda shown: (shown.fact.rank, shown.view.name))
        await asyncio.sleep(0)
        latest = islice(latest_first(shown.view.probes for shown in found), PROBES)
        concerns = [(shown.view.key, shown.view.name, shown.fact) for shown in found]
        return Ranking(now_s, found, concerns, list(latest))

    def known(self) -> list[tuple[str, str]]:
        """(key, name) of every target."""
        return [(runner.name or key, runner.name or UNNAMED) for key, runner in self._fleet.runners.items()]

    async def charts(self, view: PageView) -> list[Figure]:
        """Latency over load of the last sweeps of the one target shown; drawn once a result."""
        if not view.is_target_page or not view.targets:
            return []
        one = view.targets[0]
        # Those that found a capacity, latest first; without one, the last that measured anything.
        measured = [result for result in one.sweeps if result.stages and result.target.url == result_url(one.url)]
        results = [result for result in measured if has_capacity(result)][:CURVES] or measured[:1]
        ids = [result.id for result in results]
        drawn = self._charts.get(one.key)
        if drawn is None or drawn[0] != ids:
            names = [time.strftime("%Y-%m-%d %H:%M", time.gmtime(result.ended_unix_s)) for result in results]
            named, figures = list(zip(names, results, strict=True)), list[Figure]()
            for latency in LATENCIES:
                figures += curves(named, [latency], first=True)
                await asyncio.sleep(0)
            figures = [
                replace(figure, note=f"Of the sweep that ended at {names[0]} UTC. {figure.note}") for figure in figures
            ]
            drawn = self._charts[one.key] = ids, figures
        return drawn[1]

    async def _measured(self, view: TargetView) -> TargetView:
        """The view with its quantiles, which cost the most, and the state of its engine."""
        recent, latest, earlier = (dict[tuple[str, str], Sequence[Quantile]]() for _ in range(3))
        sampled: dict[tuple[str, str], tuple[float, float]] = {}
        now_s = self._fleet.context.clock.unix_s()
        runner = self._fleet.find(view.key)
        history = runner.find(TargetHistory) if runner is not None else None
        for key, samples in list(history.samples.items()) if history is not None else ():
            for rows, since_s in ((recent, now_s - RECENT_S), (latest, now_s - LATEST_S), (earlier, 0.0)):
                if (since_s == 0 or not view.is_unanswered) and (found := samples.quantiles(since_s)):
                    rows[key] = found
                await asyncio.sleep(0)
            if span := samples.span_unix_s():
                sampled[key] = span
        diagnosis = runner.find(TargetDiagnosis) if runner is not None else None
        trends = engine_trends(diagnosis.recent_readings()) if diagnosis is not None else []
        return replace(view, quantiles=recent, latest=latest, earlier=earlier, sampled=sampled, engine_trends=trends)

    def _view(self, runner: TargetRunner) -> TargetView:
        target, spec, identity = runner.target, runner.spec, runner.target.identity
        name = runner.name or UNNAMED
        now_ns = self._fleet.context.clock.now_ns()
        times = runner.starting_since_and_until_unix_s()
        start = Starting(*times) if times else None
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
            no_data=[known for known in target.workloads.values() if known.state in NO_DATA_STATES],
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
            reason=start.text if start else target.reason,
            starting=start,
            buffering=buffering.buffering if buffering else Buffering(),
            labels={label: value for label, value in sorted(spec.labels.items()) if value},
            workloads=list(dict.fromkeys(probe.workload.name for probe in spec.probes)),
            warm_up=(min(target.warm_up.done, spec.warmup), spec.warmup),
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
    free, added = demand.headroom, demand.addable
    room = Room(free.lower, free.estimate, free.upper, added.lower, added.estimate, added.upper)
    return Capacities(
        result.capacities,
        result.ended_unix_s,
        room if room.upper is not None else None,
        demand.why_unknown,
        demand.demand.requests_per_s,
        demand.exhaustion_unix_s,
        demand.demand.shape,
    )


async def _matching(filter_text: str, targets: Sequence[Ranked]) -> Sequence[Ranked]:
    """The targets with every word of the filter in the text of their card."""
    words_ = filter_text.lower().split()[:MAX_FILTER_WORDS]
    if not words_:
        return targets
    found = []
    for start in range(0, len(targets), MATCHED_AT_ONCE):
        found += [
            each for each in targets[start : start + MATCHED_AT_ONCE] if all(word in each.text for word in words_)
        ]
        await asyncio.sleep(0)
    return found
