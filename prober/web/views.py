"""Views of the fleet for the page, the API and `prober watch`. Targets are read one by one; other tasks run in between."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import islice, takewhile

from prober import __version__
from prober.config.target import estimate_per_day
from prober.features.capacity.monitor import Sweeps
from prober.features.capacity.sweep_result import has_figure
from prober.features.experiments.report.document import Figure
from prober.features.experiments.report.plots import curves
from prober.measure.objective import DAY_S, promql
from prober.measure.result import ProbeResult
from prober.measure.target_state import NO_DATA_STATES, TargetEvent
from prober.probing.fleet import Fleet
from prober.probing.history import LATEST_S, RECENT_S, TargetHistory, latest_first
from prober.probing.target_runner import RunnerContext, TargetRunner
from prober.results.result import LATENCIES, result_url
from prober.statistics.quantiles import quantiles
from prober.web.api_types import EndedProbe, EventAnswer
from prober.web.page.view import ALL, AT_ONCE, RECENT, PageView, ProbeFilter
from prober.web.targets import (
    ConcernAnswer,
    Problem,
    QuantileAnswer,
    Snapshot,
    StartingAnswer,
    TargetAnswer,
    headline,
    time_of_day,
)

CERTIFICATE_S = 14 * DAY_S  # an expiry within this is a warning; most certificates are renewed 30 days before
PROBES, EVENTS = 20, 20  # of all targets together
RECEIVE_DELAYS = 4_096  # enough for a p99
CURVES = 3  # sweeps drawn over each other
RANKING_S = 1.0
MAX_FILTER_WORDS = 10


@dataclass(frozen=True, slots=True)
class Ranking:
    """All targets at one time, worst first, with their most important facts and the texts that the filter searches.

    latest: the last probes of all targets
    """

    at_s: float
    targets: Sequence[tuple[TargetAnswer, ConcernAnswer, str]]
    latest: Sequence[ProbeResult]


class Views:
    """Reads the state of the features for the page, the API and `prober watch`.

    grafana_url: base of the dashboards' addresses, for links on the page; "" without a Grafana
    problems: settings that are not in effect, by part of the configuration
    receive_delays: for the latest reads, seconds from the kernel's timestamp to the read
    """

    def __init__(self, fleet: Fleet, sweeps: Sweeps) -> None:
        self._fleet, self._sweeps = fleet, sweeps
        self.grafana_url = ""
        self.problems: Mapping[str, Problem] = {}
        self.receive_delays = deque[float](maxlen=RECEIVE_DELAYS)
        self._ranking: Ranking | None = None
        self._charts: dict[str, tuple[list[str], list[Figure]]] = {}

    async def targets(self) -> list[TargetAnswer]:
        """All targets."""
        views = []
        for runner in list(self._fleet.runners.values()):
            views.append(self._with_latencies(self._view(runner)))
            await asyncio.sleep(0)
        return views

    def forget(self) -> None:
        """Discard the ranking, so that the next page shows the result of an action."""
        self._ranking = None

    async def page(
        self, filter_text: str, number: int, chosen: str, probe_filter: ProbeFilter = ALL, *, admin: bool
    ) -> PageView | None:
        """The page of the targets that match a filter, or of the chosen or only target; None if it does not exist.

        number: page number, from 1; probe_filter: filter for the latest probes
        """
        fleet = self._fleet
        ranking = await self._ranked()
        targets = ranking.targets
        target = next((view for view, _, _ in targets if chosen == view.name), None)
        if chosen and target is None:
            return None
        if len(targets) == 1:
            target = targets[0][0]
        if target is not None:
            await self._sweeps.read(target.name)
            target = target.model_copy(update={"sweeps": self._sweeps.results(target.name)})
            count, shown, number, pages = 1, [target], 1, 1
        else:
            words = filter_text.lower().split()[:MAX_FILTER_WORDS]
            matching = [view for view, _, text in targets if all(word in text for word in words)]
            count, pages = len(matching), max(1, -(-len(matching) // AT_ONCE))
            number = min(max(1, number), pages)
            shown = matching[(number - 1) * AT_ONCE : number * AT_ONCE]
        if probe_filter == ALL:
            probes = ranking.latest if target is None else target.probes
        else:
            runners = list(fleet.runners.values()) if target is None else [fleet.find(target.name)]
            histories = [history for runner in runners if runner and (history := runner.find(TargetHistory))]
            probes = list(last_probes(histories, probe_filter, PROBES if target is None else RECENT))
        return PageView(
            at_unix_s=fleet.context.clock.unix_s(),
            targets=[self._with_latencies(view) for view in shown],
            concerns=[concern for _, concern, _ in targets],
            matching=count,
            events=fleet.context.events.folded(target.name if target else None)[:EVENTS],
            probes=probes,
            probe_filter=probe_filter,
            receive_delay=next(iter(quantiles(self.receive_delays, (0.99,))), None),
            reads=(fleet.context.clock.stamps.kernel, fleet.context.clock.stamps.process),
            admin=admin,
            version=__version__,
            filter_text=filter_text,
            chosen=chosen,
            is_target_page=target is not None,
            page=number,
            pages=pages,
            shard=str(fleet.shard) if fleet.shard.count > 1 else "",
            configured=fleet.configured,
            problems=list(self.problems.values()),
            grafana_url=self.grafana_url,
        )

    async def _ranked(self) -> Ranking:
        """All targets, worst first. They are read again only after RANKING_S, so that a page is cheap."""
        now_s = asyncio.get_running_loop().time()
        ranking = self._ranking
        if ranking is None or now_s - ranking.at_s > RANKING_S:
            ranking = self._ranking = await self._rank(now_s)
        return ranking

    async def _rank(self, now_s: float) -> Ranking:
        targets = []
        for runner in list(self._fleet.runners.values()):
            view = self._view(runner)
            concern = view.concern
            searched = (
                *(view.name, view.model, view.other_model, view.engine, view.state, concern.text, concern.detail),
                "paused" if view.paused is not None else "",
                "buffered" if view.buffered else "",
                *(f"{label}:{value}" for label, value in view.labels.items()),
            )
            targets.append((view, concern, " ".join(searched).lower()))
            await asyncio.sleep(0)
        targets.sort(key=lambda ranked: (*ranked[1].order, ranked[0].name))
        latest = islice(latest_first(view.probes for view, _, _ in targets), PROBES)
        return Ranking(now_s, targets, list(latest))

    def charts(self, view: PageView) -> list[Figure]:
        """Charts of latency over load from the last sweeps of the target on the page; each result's charts are cached."""
        if not view.is_target_page or not view.targets:
            return []
        target = view.targets[0]
        # Sweeps with a figure, latest first; without any, the last one with measurements.
        measured = [result for result in target.sweeps if result.stages and result.target.url == result_url(target.url)]
        results = [result for result in measured if has_figure(result)][:CURVES] or measured[:1]
        ids = [result.id for result in results]
        drawn = self._charts.get(target.name)
        if drawn is None or drawn[0] != ids:
            names = [time.strftime("%Y-%m-%d %H:%M", time.gmtime(result.ended_unix_s)) for result in results]
            named = list(zip(names, results, strict=True))
            figures = [
                replace(figure, note=f"Of the sweep that ended at {names[0]} UTC. {figure.note}")
                for latency in LATENCIES
                for figure in curves(named, [latency], first=True)
            ]
            drawn = self._charts[target.name] = ids, figures
        return drawn[1]

    def _with_latencies(self, view: TargetAnswer) -> TargetAnswer:
        """Add the quantiles, which cost most to compute, and the engine's state."""
        runner = self._fleet.find(view.name)
        history = runner.find(TargetHistory) if runner is not None else None
        now_s = self._fleet.context.clock.unix_s()
        windows = {"quantiles": now_s - RECENT_S, "latest": now_s - LATEST_S, "earlier": 0.0}
        answers: dict[str, list[QuantileAnswer]] = {name: [] for name in windows}
        for (workload, signal), samples in list(history.samples.items()) if history is not None else ():
            span = samples.span_unix_s()
            for name, since_s in windows.items():
                if name == "earlier" or not view.is_unanswered:
                    answers[name] += [
                        QuantileAnswer(
                            workload=workload,
                            signal=signal,
                            enough=quantile.has_enough_samples,
                            since=span[0] if span else 0.0,
                            **asdict(quantile),
                        )
                        for quantile in samples.quantiles(since_s)
                    ]
        no_latency = ""
        if not answers["quantiles"]:
            warm_up = runner.spec.warmup if runner is not None else 0
            done = min(runner.target.warm_up.done, warm_up) if runner is not None else 0
            no_latency = why_no_latency(view, has_earlier=bool(answers["earlier"]), done=done, warm_up=warm_up)
        return view.model_copy(update={**answers, "no_latency": no_latency})

    def _view(self, runner: TargetRunner) -> TargetAnswer:
        """A target without its latencies."""
        target, spec, identity = runner.target, runner.spec, runner.target.identity
        times = runner.starting_since_and_until_unix_s()
        starting = StartingAnswer(since=times[0], until=times[1], detail=_starting_text(*times)) if times else None
        history, summary = runner.find(TargetHistory), runner.summary()
        probes = list(islice(history.recent(), RECENT)) if history else []
        return TargetAnswer.model_validate(
            {
                "name": runner.name,
                "url": spec.url,
                "labels": {label: value for label, value in sorted(spec.labels.items()) if value},
                "model": identity.name if identity else spec.model or "",
                "engine": identity.dialect.name if identity else spec.engine or "",
                "state": target.state,
                "reason": starting.detail if starting else target.reason,
                "no_data": [workload for workload in target.workloads.values() if workload.state in NO_DATA_STATES],
                "starting": starting,
                "paused": target.paused_unix_s,
                "warnings": [
                    *early_warnings(probes, summary.get("page_problem", ""), self._fleet.context.clock.unix_s()),
                    *summary.get("efficiency", ()),
                ],
                "estimate": estimate_per_day(spec),
                "trace_url": spec.tracing.url,
                "probes": probes,
                "workloads": list(dict.fromkeys(probe.workload.name for probe in spec.probes)),
                **summary,
            }
        )


def _starting_text(since_unix_s: float, until_unix_s: float) -> str:
    """Text on since when a target refuses connections, and when this becomes a failure."""
    since, until = time_of_day(since_unix_s), time_of_day(until_unix_s)
    after = promql(until_unix_s - since_unix_s)
    return f"refuses connections since {since}; counted as failures after {after}, from {until} UTC (starting_timeout)"


def early_warnings(probes: Iterable[ProbeResult], page_problem: str, now_unix_s: float) -> Iterator[str]:
    """Sentences about risks. probes: the last ones, latest first; page_problem: why the engine's page is not read"""
    ends = next((probe.cert_expiry_unix_s for probe in probes if probe.cert_expiry_unix_s is not None), math.inf)
    if (left_s := ends - now_unix_s) < CERTIFICATE_S:
        when = f"{datetime.fromtimestamp(ends, UTC):%Y-%m-%d %H:%M} UTC"
        expires = f"expires in {left_s / DAY_S:.1f} days" if left_s > 0 else "expired"
        yield f"its certificate {expires}: {when}"
    if page_problem:
        yield f"the engine's metrics page cannot be read: {page_problem}"


def why_no_latency(view: TargetAnswer, *, has_earlier: bool, done: int, warm_up: int) -> str:
    """Explain why there is no current latency. done: warm-up probes so far; warm_up: how many are needed"""
    if view.is_unanswered:
        return "No latency: no probe is answered now."
    if has_earlier:
        return "No latency was measured in the last 10 minutes."
    if not warm_up:
        return "No latency samples yet."
    if done == warm_up:
        return "Warmed up: latencies count from now on."
    again = ", again after a pause or a restart" if view.outcomes.get("ok", 0) > done else ""
    return f"Warming up{again}: {done} of {warm_up} probes, whose latencies do not count."


def last_probes(histories: Iterable[TargetHistory], probe_filter: ProbeFilter, most: int) -> Iterator[ProbeResult]:
    """At most `most` stored probes of these targets, latest first."""
    snapshots = [list(islice(filter(probe_filter.takes, history.recent()), most)) for history in histories]
    return islice(latest_first(snapshots), most)


class Snapshots:
    """Takes snapshots of all targets, each with what happened since the previous one, for `prober watch` and its `--json`.

    The values are those of the API: `targets` is the data of `/api/v1/targets`, and a probe has the short fields of `/api/v1/probes`.
    A new field does not change the version; a removed field, or one with a changed meaning, does.
    """

    def __init__(self, views: Views, context: RunnerContext) -> None:
        self._views, self._context = views, context
        self._probes: set[tuple[str, str, int]] = set()  # in the previous snapshot, or early enough for it
        self._last_event: TargetEvent | None = None

    async def take(self) -> Snapshot:
        """The next snapshot."""
        targets = await self._views.targets()
        probes = {
            (probe.target, probe.request_id, probe.timeline.intended_ns): probe
            for target in targets
            for probe in target.probes
        }
        ended = [probe for key, probe in probes.items() if key not in self._probes]
        self._probes = set(probes)
        events = self._context.events.latest()
        new_events = list(takewhile(lambda event: event is not self._last_event, events))
        self._last_event = events[0] if events else None
        concerns = [target.concern for target in targets]
        return Snapshot(
            time=round(self._context.clock.unix_s(), 3),
            prober=__version__,
            headline=headline(concerns)[1],
            problems=list(self._views.problems.values()),
            targets=targets,
            concerns=concerns,
            probes=[
                EndedProbe.model_validate(probe)
                for probe in sorted(ended, key=lambda probe: probe.timeline.intended_ns)
            ],
            events=[EventAnswer.model_validate(event) for event in reversed(new_events)],
        )
