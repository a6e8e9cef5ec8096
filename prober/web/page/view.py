"""Values that the page shows, without anything on how they look."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Literal, NamedTuple

from prober.config.target import Estimate
from prober.config.units import counted
from prober.features.capacity.sweep_progress import SweepProgress
from prober.features.diagnosis.diagnosis import Diagnosis
from prober.features.drift.state import DriftVerdict, Shift
from prober.features.slo.compliance import SloStatus
from prober.measure.buffering import Buffering
from prober.measure.burn_rate_windows import promql
from prober.measure.engine_signals import EngineSignals
from prober.measure.event import TargetEvent
from prober.measure.objective import format_percent
from prober.measure.result import ProbeResult
from prober.measure.target_state import UNANSWERED_STATES, TargetState, WorkloadState
from prober.results.capacity import Capacity
from prober.results.result import Result
from prober.statistics.quantiles import Quantile
from prober.web.recent_probes import ALL, ProbeFilter

Kind = Literal["good", "bad", "few", "unknown"]
SIGNALS = {"ttft": "TTFT", "ttft_answer": "TTFT of the answer", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E"}
RUNBOOKS = {TargetState.REJECTED: "LLMProbeRejected", TargetState.OVER_BUDGET: "LLMProbeBudgetExhausted"}
DRIFT_RUNBOOKS = {"ttft": "LLMTTFTP99Drift", "itl": "LLMITLP99Drift"}
RECENT = 40  # probes of a target that are drawn
AT_ONCE = 100  # targets on one page


@dataclass(frozen=True, slots=True)
class Drifting:
    """Drift of one signal. shifts: only while the signal is away from its baseline."""

    workload: str
    signal: str
    verdict: DriftVerdict
    shifts: Sequence[Shift] = ()


@dataclass(frozen=True, slots=True)
class Spending:
    """A budget over 24 hours: limit and use, in tokens, or in dollars if `kind` is cost."""

    kind: str
    limit: float
    spent: float

    @property
    def left_ratio(self) -> float:
        """The unused share: 1 if nothing is used, 0 if everything is."""
        return max(0.0, 1 - self.spent / self.limit)


@dataclass(frozen=True, slots=True)
class Room:
    """Free share of the capacity, below 0 if demand is higher, and requests/s of the sweep's shape that can be added.

    None: not known.
    """

    lower: float | None
    estimate: float | None
    upper: float | None
    addable_lower: float | None
    addable: float | None
    addable_upper: float | None


@dataclass(frozen=True, slots=True)
class Capacities:
    """The capacities that the last successful sweep found, and the headroom. None: not known.

    at_unix_s: when the sweep ended
    room: headroom; None: not known, and why
    demand_per_s: requests that arrive at the engine now
    shape: mean prompt tokens, computed ones, and output tokens of a request now
    exhausted_unix_s: when demand is forecast to reach the capacity
    """

    capacities: Sequence[Capacity]
    at_unix_s: float
    room: Room | None = None
    why_unknown: str = ""
    demand_per_s: float | None = None
    exhausted_unix_s: float | None = None
    shape: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Starting:
    """A target that has refused connections since the prober started to probe it; times in Unix seconds.

    until_unix_s: from then on refused connections count as failures
    """

    since_unix_s: float
    until_unix_s: float

    @property
    def text(self) -> str:
        """Since when, and until when this is no failure, in words."""
        since, until = (time_of_day(at_s) for at_s in (self.since_unix_s, self.until_unix_s))
        after = promql(self.until_unix_s - self.since_unix_s)
        return (
            f"refuses connections since {since}; counted as failures after {after}, from {until} UTC (starting_timeout)"
        )


def time_of_day(unix_s: float) -> str:
    """Hours, minutes and seconds, UTC."""
    return f"{datetime.fromtimestamp(unix_s, UTC):%H:%M:%S}"


class EngineTrend(NamedTuple):
    """A signal of the engine's page. values: of readings, oldest first, None where it is not known; unit: `ratio` for shares"""

    name: str
    values: Sequence[float | None]
    unit: str = ""


def engine_trends(readings: Sequence[tuple[float, EngineSignals]]) -> list[EngineTrend]:
    """State of the engine over these readings, at (seconds of one clock, signals); signals that the page lacks are left out."""

    def rates(read: Callable[[EngineSignals], float | None], per_s: float) -> list[float | None]:
        return [
            None
            if (old := read(before)) is None or (new := read(after)) is None
            else max(0.0, new - old) / (at_s - since_s) * per_s
            for (since_s, before), (at_s, after) in pairwise(readings)
            if at_s > since_s
        ]

    trends = (
        EngineTrend("requests running", [signals.requests_running for _, signals in readings]),
        EngineTrend("requests waiting", [signals.requests_waiting for _, signals in readings]),
        EngineTrend("KV cache in use", [signals.kv_cache_usage_ratio_max for _, signals in readings], "ratio"),
        EngineTrend("preemptions", rates(lambda signals: signals.preemptions_total, 60.0), "/min"),
        EngineTrend("answer tokens", rates(lambda signals: signals.generation_tokens_total, 1.0), "/s"),
    )
    return [trend for trend in trends if any(value is not None for value in trend.values)]


@dataclass(frozen=True, slots=True)
class TargetView:
    """A target.

    key: its address on the page and in the API, known before its name is
    other_model: the model that answers name, several joined by `|`; empty if it is `model`
    quantiles: of the last ten minutes, by (workload, signal), in seconds; none while no probe is answered
    latest: the same of the last minute; earlier: of all samples that are kept, which are those of `sampled`
    sampled: Unix seconds of the first and the last sample
    warm_up: how many warm-up probes were answered, and how many there are
    paused_unix_s: when it was paused; None if it is not
    probes: the last RECENT, latest first
    sweeps: the last results, latest first
    sweepable: the configuration has a sweep for it
    reason: of the state; "" if it is ready
    no_data: workloads without data while others may have some
    starting: only while it refuses connections after the start
    buffering: whether its answers arrive held back
    engine_trends: readings of the engine's page of the last ten minutes
    labels: those that the configuration or its discovery gives it, by name
    workloads: names of those that probe it
    """

    key: str
    name: str
    url: str
    model: str
    engine: str
    state: TargetState
    reason: str = ""
    no_data: Sequence[WorkloadState] = ()
    other_model: str = ""
    outcomes: Mapping[str, int] = field(default_factory=dict)
    standings: Sequence[SloStatus] = ()
    quantiles: Mapping[tuple[str, str], Sequence[Quantile]] = field(default_factory=dict)
    latest: Mapping[tuple[str, str], Sequence[Quantile]] = field(default_factory=dict)
    earlier: Mapping[tuple[str, str], Sequence[Quantile]] = field(default_factory=dict)
    sampled: Mapping[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    warm_up: tuple[int, int] = (0, 0)
    diagnosis: Diagnosis | None = None
    capacity: Capacities | None = None
    paused_unix_s: float | None = None
    probes: Sequence[ProbeResult] = ()
    drifts: Sequence[Drifting] = ()
    budgets: Sequence[Spending] = ()
    estimate: Estimate | None = None
    sweeping: SweepProgress | None = None
    sweeps: Sequence[Result] = ()
    sweepable: bool = False
    starting: Starting | None = None
    buffering: Buffering = Buffering()
    engine_trends: Sequence[EngineTrend] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    workloads: Sequence[str] = ()

    @property
    def is_unanswered(self) -> bool:
        """No probe is answered now: what was measured describes the past."""
        return self.state in UNANSWERED_STATES

    @property
    def no_latency(self) -> str:
        """Why there is no current latency, in words; "" if there is one."""
        if self.quantiles:
            return ""
        if self.is_unanswered:
            return "No latency: no probe is answered now."
        if self.earlier:
            return "No latency was measured in the last 10 minutes."
        done, count = self.warm_up
        judging = ", judging from now" if done == count else ""
        return f"{done} of {count} warm-up probes done{judging}." if count else "No latency samples yet."


@dataclass(frozen=True, slots=True)
class Concern:
    """The most important fact about a target. rank: 0 is worst; runbook: alert whose runbook says what to do; empty if none does"""

    rank: int
    kind: Kind
    text: str
    detail: str = ""
    runbook: str = ""


WELL = Concern(9, "good", "well")


@dataclass(frozen=True, slots=True)
class Problem:
    """A part of the configuration that is not in effect. mistakes: what is wrong where, and what to do."""

    headline: str
    mistakes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PageView:
    """A page at one moment: all targets, or one of them in detail.

    targets: those on this page, worst first
    concerns: (key, name, concern) of all targets, worst first
    total: number of targets; matching: of those that pass the filter
    probes: the last ones that the filter takes
    filter_text: text of the filter; chosen: target asked for; probe_filter: which probes
    is_target_page: the first of `targets` is shown in detail
    page: number of this page, from 1, of `pages`
    trusted: the prober trusts its own timing
    receive_delay: p99 of how much later than the kernel's stamp bytes were read, in seconds; None before the first read
    reads: number of reads since the start that the kernel has stamped, and that only this process has
    admin: actions are enabled
    shard: of this prober, as 1/3; empty without shards
    configured: number of targets of all shards
    grafana_url: base of the dashboards' addresses; empty without a Grafana
    """

    at_unix_s: float
    targets: Sequence[TargetView]
    concerns: Sequence[tuple[str, str, Concern]]
    total: int
    matching: int
    events: Sequence[TargetEvent]
    probes: Sequence[ProbeResult]
    trusted: bool = True
    receive_delay: Quantile | None = None
    reads: tuple[int, int] = (0, 0)
    admin: bool = False
    version: str = ""
    filter_text: str = ""
    chosen: str = ""
    probe_filter: ProbeFilter = ALL
    is_target_page: bool = False
    page: int = 1
    pages: int = 1
    shard: str = ""
    configured: int = 0
    problems: Sequence[Problem] = ()
    grafana_url: str = ""


def concern(view: TargetView) -> Concern:
    """The most important fact about a target."""
    missed = [standing for standing in view.standings if standing.state == "missed"]
    without_data = [standing for standing in view.standings if standing.state == "no_data"]
    drifted = [drift for drift in view.drifts if drift.verdict.active]
    cause = view.diagnosis.headline if view.diagnosis else ""
    if view.paused_unix_s is not None:
        return Concern(5, "unknown", "paused", "no probes and no sweeps start until it is resumed")
    if view.state is TargetState.FAILING:
        return Concern(0, "bad", "failing", view.reason, "LLMTargetFailing")
    if view.state is TargetState.REJECTED:
        return Concern(0, "bad", "rejects the probes", view.reason, RUNBOOKS[view.state])
    if missed:
        worst = max(missed, key=lambda standing: standing.bad / max(1, standing.events))
        share = f"{worst.bad / max(1, worst.events):.2%} bad, {format_percent(worst.slo.error_budget_ratio)} allowed"
        detail = "; ".join(filter(None, (share, cause)))
        return Concern(1, "bad", f"SLO missed: {_slo_names(missed)}", detail, "LLMErrorBudgetBurn")
    if view.state is TargetState.OVER_BUDGET:
        return Concern(2, "few", "no data: over budget", view.reason, RUNBOOKS[view.state])
    if view.no_data:
        first = view.no_data[0]
        names = ", ".join(workload.workload for workload in view.no_data if workload.state is first.state)
        return Concern(2, "few", f"no data of {names}: {first.state}", first.reason, RUNBOOKS[first.state])
    if drifted:
        signals = ", ".join(dict.fromkeys(SIGNALS.get(drift.signal, drift.signal) for drift in drifted))
        return Concern(
            2, "few", f"slower than its baseline: {signals}", cause, DRIFT_RUNBOOKS.get(drifted[0].signal, "")
        )
    if view.diagnosis is not None:
        return Concern(3, "few", cause, view.diagnosis.means)
    if view.state is not TargetState.READY:
        return Concern(4, "unknown", view.state, view.reason)
    if without_data:
        words = f"no verdict on SLO: {_slo_names(without_data)}"
        return Concern(6, "unknown", words, without_data[0].why, "LLMSLONoData")
    return WELL


def _slo_names(standings: Sequence[SloStatus]) -> str:
    return ", ".join(dict.fromkeys(standing.slo.name for standing in standings))


def listed_concerns(view: PageView) -> list[tuple[str, str, Concern]]:
    """(key, name, concern) of the targets that need attention; if none does, of those without a verdict."""
    not_good = [named for named in view.concerns if named[2].kind != "good"]
    return [named for named in not_good if named[2].kind in ("bad", "few")] or not_good


def headline(view: PageView) -> Concern:
    """The most important fact about all targets."""
    if view.total == 0 and view.configured and view.shard:
        if view.configured == 1:
            return Concern(4, "unknown", f"The one configured target does not belong to shard {view.shard}")
        return Concern(
            4, "unknown", f"None of the {view.configured:,} configured targets belongs to shard {view.shard}"
        )
    if view.total == 0:
        return Concern(4, "unknown", "No target is configured")
    listed = listed_concerns(view)
    if not view.trusted:
        words, facts = "Prober late: latencies of all targets are not judged", [fact for _, _, fact in listed]
        if failing := sum(fact.rank == 0 for fact in facts):
            words += f"; {counted(failing, 'target')} {'fail' if failing > 1 else 'fails'}"
        if slow := sum(fact.rank > 0 and fact.kind in ("bad", "few") for fact in facts):
            words += f"; {counted(slow, 'target')} {'were' if slow > 1 else 'was'} in trouble before"
        return Concern(0, "bad", words, "", "LLMProberUntrusted")
    if not listed:
        return Concern(9, "good", f"No problem found on any of {view.total} targets")
    worst = min((fact for _, _, fact in listed), key=lambda fact: ("bad", "few", "unknown").index(fact.kind))
    if worst.kind == "unknown":
        words = f"No problem found; {len(listed)} of {view.total} targets have no verdict"
        return replace(worst, text=words, detail="")
    need = "needs" if len(listed) == 1 else "need"
    return replace(worst, text=f"{len(listed)} of {view.total} targets {need} attention", detail="")
