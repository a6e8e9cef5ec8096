"""What the page shows, as values; nothing here knows how it looks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from prober.config.specs import Estimate
from prober.features.capacity.sweep_progress import Sweeping
from prober.features.diagnosis.diagnosis import Diagnosis
from prober.features.drift.detector import Shift, Verdict
from prober.features.slo.status import SloStatus
from prober.measure.burn_rate_windows import promql
from prober.measure.event import Event
from prober.measure.objective import percent
from prober.measure.outcome import BAD
from prober.measure.result import ProbeResult
from prober.results.capacity import Capacity
from prober.results.result import Result
from prober.statistics.quantiles import Quantile

Kind = Literal["good", "bad", "few", "unknown"]
SIGNALS = {"ttft": "TTFT", "ttft_answer": "TTFT of the answer", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E"}
RECENT = 40  # probes of a target that are drawn
AT_ONCE = 100  # targets on one page


@dataclass(frozen=True, slots=True)
class Drifting:
    """What is known of one watched signal; shifts only while it is away from its baseline."""

    workload: str
    signal: str
    verdict: Verdict
    shifts: Sequence[Shift] = ()


@dataclass(frozen=True, slots=True)
class Spending:
    """A budget of any 24 hours; both in tokens, or in dollars where `kind` is cost."""

    kind: str
    limit: float
    spent: float

    @property
    def left_ratio(self) -> float:
        """1 untouched, 0 used up."""
        return max(0.0, 1 - self.spent / self.limit)


@dataclass(frozen=True, slots=True)
class Room:
    """Free share of the capacity, in requests or tokens; below 0 where demand is above it. None: not known."""

    unit: str
    lower: float | None
    estimate: float | None
    upper: float | None


@dataclass(frozen=True, slots=True)
class Capacities:
    """What the last sweep that found something said, when it ended (Unix seconds), and what is left of it.

    demand_per_s: requests that the engine finishes now; shape_ratio: tokens of a request of the sweep ÷ those of one of now's
    exhausted_unix_s: when demand is foreseen to reach it. None: not known.
    """

    found: Sequence[Capacity]
    at_unix_s: float
    rooms: Sequence[Room] = ()
    demand_per_s: float | None = None
    exhausted_unix_s: float | None = None
    shape_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Starting:
    """A target that refuses connections and has not answered since the prober began to ask it; times in Unix seconds.

    until_unix_s: from then on refused connections count as failures
    """

    since_unix_s: float
    until_unix_s: float

    @property
    def text(self) -> str:
        """Since when, and until when that is no failure, in words."""
        since, until = (time_of_day(at_s) for at_s in (self.since_unix_s, self.until_unix_s))
        after = promql(self.until_unix_s - self.since_unix_s)
        return (
            f"refuses connections since {since}; counted as failures after {after}, from {until} UTC (starting_timeout)"
        )


def time_of_day(unix_s: float) -> str:
    """Hours, minutes and seconds, UTC."""
    return f"{datetime.fromtimestamp(unix_s, UTC):%H:%M:%S}"


@dataclass(frozen=True, slots=True)
class TargetView:
    """A target. quantiles: by (workload, signal), in seconds; probes: the last RECENT, latest first.

    key: what it is addressed by, also before it has a name; paused_unix_s: since when nothing is sent to it, None if it is
    probed; sweeps: the last results, latest first; sweepable: the configuration lets it be swept; starting: only while it
    refuses connections
    """

    key: str
    name: str
    url: str
    model: str
    engine: str
    state: str
    outcomes: Mapping[str, int] = field(default_factory=dict)
    standings: Sequence[SloStatus] = ()
    quantiles: Mapping[tuple[str, str], Sequence[Quantile]] = field(default_factory=dict)
    diagnosis: Diagnosis | None = None
    capacity: Capacities | None = None
    paused_unix_s: float | None = None
    probes: Sequence[ProbeResult] = ()
    drifts: Sequence[Drifting] = ()
    budgets: Sequence[Spending] = ()
    estimate: Estimate | None = None
    sweeping: Sweeping | None = None
    sweeps: Sequence[Result] = ()
    sweepable: bool = False
    starting: Starting | None = None


@dataclass(frozen=True, slots=True)
class Concern:
    """What a person should know of a target first. rank: 0 is worst."""

    rank: int
    kind: Kind
    text: str
    detail: str = ""


WELL = Concern(9, "good", "well")


@dataclass(frozen=True, slots=True)
class Problem:
    """A part of the configuration that is not in effect. mistakes: what is wrong where, and what to do, one a line."""

    headline: str
    mistakes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PageView:
    """The whole page at one moment. targets: those shown, worst first; total: that there are, matching: that pass the filter.

    asked: the filter's text; whole: the first target is shown with everything; page of pages: from 1
    concerns: (key, name, concern) of all targets, worst first, also of those that are not shown; admin: actions are allowed
    shard: which one the prober is, as 1/3, empty where there is one; configured: targets of all shards
    """

    at_unix_s: float
    targets: Sequence[TargetView]
    concerns: Sequence[tuple[str, str, Concern]]
    total: int
    matching: int
    events: Sequence[Event]
    probes: Sequence[ProbeResult]
    trusted: bool = True
    admin: bool = False
    version: str = ""
    asked: str = ""
    chosen: str = ""
    whole: bool = False
    page: int = 1
    pages: int = 1
    shard: str = ""
    configured: int = 0
    problems: Sequence[Problem] = ()


def _cause(regime: str) -> str:
    return "cause unknown" if regime == "unknown" else f"likely cause: {regime.replace('_', ' ')}"


def concern(view: TargetView) -> Concern:
    """The worst thing that is known of it."""
    last = next((probe for probe in view.probes if probe.outcome in BAD), None)
    why = f"{last.outcome.value}: {last.detail}" if last is not None else ""
    missed = [each for each in view.standings if each.state == "missed"]
    moved = [each for each in view.drifts if each.verdict.active]
    silent = [each for each in view.standings if each.state == "no_data"]
    regime = _cause(view.diagnosis.regime) if view.diagnosis else ""
    if view.paused_unix_s is not None:
        return Concern(5, "unknown", "paused", "nothing is sent to it until it is resumed")
    if view.state == "failing":
        return Concern(0, "bad", "failing", why)
    if missed:
        names = ", ".join(dict.fromkeys(each.slo.name for each in missed))
        bad = max(missed, key=lambda each: each.bad / max(1, each.events))
        share = f"{bad.bad / max(1, bad.events):.2%} bad, {percent(bad.slo.budget)} allowed"
        return Concern(1, "bad", f"SLO missed: {names}", "; ".join(filter(None, (share, regime))))
    if moved:
        names = ", ".join(dict.fromkeys(SIGNALS.get(each.signal, each.signal) for each in moved))
        return Concern(2, "few", f"slower than its baseline: {names}", regime)
    if view.diagnosis is not None:
        return Concern(3, "few", f"slow, {regime}", view.diagnosis.means)
    if view.state != "ready":
        return Concern(4, "unknown", view.state, view.starting.text if view.starting else why)
    if silent:
        names = ", ".join(dict.fromkeys(each.slo.name for each in silent))
        return Concern(6, "unknown", f"no data yet to judge: {names}", silent[0].why)
    return WELL
