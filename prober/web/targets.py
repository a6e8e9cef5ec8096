"""The model of a target for the pages, the API and `prober watch`, with its states and figures as text.

`Views` fills it; the OpenAPI document is generated from it. Fields excluded from the JSON appear only on the pages.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AliasPath, Field, GetPydanticSchema, PlainSerializer
from pydantic_core import core_schema

from prober.config.target import Estimate
from prober.config.units import counted, duration_text
from prober.features.capacity.series import UNKNOWN
from prober.features.capacity.target_sweeps import SweptCapacity
from prober.features.diagnosis.diagnosis import Diagnosis
from prober.features.health.health import Health
from prober.features.slo.compliance import UNTRUSTED, Compliance
from prober.measure.engine_signals import EngineSignals
from prober.measure.objective import MIN_BAD_EVENTS, promql
from prober.measure.result import ProbeResult
from prober.measure.target_state import UNANSWERED_STATES, TargetState
from prober.measure.timeline import format_duration
from prober.results.result import Result
from prober.web.api_types import Answer, EndedProbe, EventAnswer, SweepAnswer

Kind = Literal["bad", "few", "past", "unknown", "good"]  # worst first; few: a warning, past: missed, but over
SIGNS: dict[Kind, str] = {"bad": "✗", "few": "▲", "past": "◇", "unknown": "?", "good": "✓"}
SIGNALS = {"ttft": "TTFT", "ttft_answer": "TTFT of the answer", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E"}
SLO_KINDS: dict[Compliance, Kind] = {"met": "good", "missed": "past", "no_data": "unknown"}
RUNBOOKS = {"rejected": "LLMProbeRejected", "over_budget": "LLMProbeBudgetExhausted"}
WORST_STATES: dict[str, tuple[str, str]] = {
    TargetState.FAILING: ("failing", "LLMTargetFailing"),
    TargetState.REJECTED: ("rejects every probe, so nothing is measured", RUNBOOKS["rejected"]),
}
DRIFT_RUNBOOKS = {"ttft": "LLMTTFTP99Drift", "itl": "LLMITLP99Drift"}
LOW_RATIO = 0.2  # of a budget or capacity: less left is a warning
NO_DRIFT_DATA = "no streamed answer has been measured yet"
DAY_S = 86_400
_AS_IT_IS = GetPydanticSchema(lambda _source, _handler: core_schema.any_schema())
DiagnosisAnswer = Annotated[
    Diagnosis | None,
    _AS_IT_IS,
    PlainSerializer(lambda it: asdict(it) if is_dataclass(it) else it, return_type=dict[str, Any] | None),
]


def time_of_day(unix_s: float) -> str:
    """Time of day as text: hours, minutes and seconds, UTC."""
    return f"{datetime.fromtimestamp(unix_s, UTC):%H:%M:%S}"


def clock_time(unix_s: float, now_unix_s: float) -> str:
    """Time of day as text within twelve hours of now, else date and time; UTC."""
    if abs(now_unix_s - unix_s) < DAY_S / 2:
        return time_of_day(unix_s)
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M}"


def share(ratio: float) -> str:
    """A ratio as a percentage; 0% and 100% only if the ratio is exactly that."""
    if 0 < ratio < 0.01:
        return "under 1%"
    return "over 99%" if 0.99 < ratio < 1 else f"{ratio:.0%}"


def amount(value: float) -> str:
    """A number as text with three significant digits."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def signal_name(signal: str) -> str:
    """Name of a signal for people: `TTFT` for `ttft`."""
    return SIGNALS.get(signal, signal)


class SloAnswer(Answer):
    """The compliance of a window with an SLO, and whether its budget burns now.

    since: start of counting on this prober; threshold and window: seconds
    of_answered: only answered requests are events, because another SLO counts failures
    recent_events, recent_bad: events in the last `recent` seconds
    burning_since: null if the budget does not burn; burned_until: last bad event of the latest burn, null if unknown
    """

    slo: str = Field(validation_alias=AliasPath("slo", "name"))
    workload: str
    signal: str = Field(validation_alias=AliasPath("slo", "signal"))
    threshold: float | None = Field(validation_alias=AliasPath("slo", "threshold_s"))
    state: Compliance
    events: int
    bad_events: int = Field(validation_alias=AliasPath("bad"))
    objective: float = Field(validation_alias=AliasPath("slo", "objective"))
    window: float = Field(validation_alias=AliasPath("slo", "window_s"))
    since: float = Field(validation_alias=AliasPath("since_unix_s"))
    why: str
    of_answered: bool
    recent_events: int = Field(validation_alias=AliasPath("burn", "events"))
    recent_bad: int = Field(validation_alias=AliasPath("burn", "bad"))
    recent: float = Field(validation_alias=AliasPath("burn", "span_s"))
    burning_since: float | None = Field(validation_alias=AliasPath("burn", "since_unix_s"))
    burned_until: float | None = Field(validation_alias=AliasPath("burn", "until_unix_s"))

    @property
    def kind(self) -> Kind:
        """Colour of the SLO: bad while its budget burns; a warning if it was missed and still spends budget."""
        if self.burning_since is not None:
            return "bad"
        return "few" if self.state == "missed" and self.is_spending else SLO_KINDS[self.state]

    @property
    def is_spending(self) -> bool:
        """True if the share of bad events among the last ones exceeds the budget."""
        return self.recent_bad >= MIN_BAD_EVENTS and self.burn_rate > 1

    @property
    def burn_rate(self) -> float:
        """Share of bad events among the last ones ÷ the share that the budget allows."""
        return self.recent_bad / max(1, self.recent_events) / max(1e-9, 1 - self.objective)

    @property
    def word(self) -> str:
        """The state as the page shows it."""
        return self.state.replace("_", " ") + (", burning" if self.burning_since is not None else "")

    @property
    def objective_words(self) -> str:
        """The objective as text, such as `99% of TTFT ≤ 500 ms`."""
        threshold = f" ≤ {format_duration(self.threshold)}" if self.threshold is not None else ""
        answered = " of answered requests" if self.of_answered else ""
        return f"{self.objective * 100:.6g}% of {signal_name(self.signal)}{threshold}{answered}"

    @property
    def recent_words(self) -> str:
        """The last events as text, such as `61 of 90 bad in the last 5m`."""
        return f"{self.recent_bad:,} of {self.recent_events:,} bad in the last {promql(self.recent)}"

    def words(self, now_unix_s: float) -> str:
        """The SLO as text: objective, state with its reason, and counted events."""
        events = f"{self.bad_events:,} bad of {self.events:,} since {clock_time(self.since, now_unix_s)}"
        events += f"; {self.recent_words}" if self.recent_bad else ""
        state = f"{self.word}, {self.why} ({events})" if self.why else f"{self.word}, {events}"
        return f"{self.slo}, {self.objective_words}: {state}"

    @property
    def window_words(self) -> str:
        """The window as text, such as `30 days`."""
        return duration_text(self.window) if self.window % DAY_S else counted(int(self.window // DAY_S), "day")


class QuantileAnswer(Answer):
    """A quantile in seconds with its 95% interval. enough: it has enough samples to decide."""

    workload: str
    signal: str
    q: float
    estimate: float
    lower: float | None
    upper: float | None
    count: int
    enough: bool
    since: float = Field(0.0, exclude=True)  # Unix seconds of the first sample


class ShiftAnswer(Answer):
    """Quantile after a change ÷ the quantile before it, with its 95% interval; for `itl`, of the p99 of each answer."""

    q: float
    ratio: float
    lower: float
    upper: float
    count: int

    @property
    def words(self) -> str:
        """The shift as text, such as `p50 ×1.31 [1.24, 1.39]`."""
        return f"p{self.q * 100:g} ×{self.ratio:.3g} [{self.lower:.3g}, {self.upper:.3g}]"


class DriftAnswer(Answer):
    """Drift of a latency. evidence: log scale, 1 raises the alarm. why: what the load explains, or why there is no verdict."""

    workload: str
    signal: str
    phase: str = Field(validation_alias=AliasPath("verdict", "phase"))
    evidence: float = Field(validation_alias=AliasPath("verdict", "evidence"))
    active: bool = Field(validation_alias=AliasPath("verdict", "active"))
    cause: str | None = Field(validation_alias=AliasPath("verdict", "cause"))
    load: str = Field(validation_alias=AliasPath("verdict", "load"))
    why: str = Field(validation_alias=AliasPath("verdict", "why"))
    since: float | None = Field(validation_alias=AliasPath("verdict", "since_unix_s"))
    shifts: list[ShiftAnswer]

    def words(self, now_unix_s: float) -> tuple[Kind, str]:
        """(kind, text): slower than the baseline, no drift found, or no verdict with its reason."""
        if self.active:
            since = "" if self.since is None else f" since {clock_time(self.since, now_unix_s)}"
            return ("unknown", f"unusual{since}") if self.cause == "unusual" else ("few", f"slower{since}")
        if self.phase == "learning":
            return "unknown", "learning the baseline, which takes days"
        if self.why:
            return "unknown", f"no verdict: {self.why}"
        return "good", f"no {'large ' if self.phase == 'provisional' else ''}drift found ({self.phase})"

    @property
    def sizes(self) -> list[str]:
        """The size of an active drift as texts, one for each quantile."""
        if not self.active or self.shifts:
            return [shift.words for shift in self.shifts if self.active]
        return ["not stated" if self.load in ("outside", "missing") else "too few samples yet for its size"]


class BudgetAnswer(Answer):
    """A budget over any 24 hours, in tokens, or in dollars if `budget` is cost."""

    budget: str
    limit: float
    spent: float

    @property
    def kind(self) -> Kind:
        """Good, a warning if little is left, bad if it is used up."""
        left = 1 - self.spent / self.limit
        return "good" if left > LOW_RATIO else "few" if left > 0 else "bad"

    @property
    def words(self) -> str:
        """The used amount and the limit as text."""
        is_cost = self.budget == "cost"
        spent, limit = (f"${value:.2f}" if is_cost else amount(value) for value in (self.spent, self.limit))
        return f"{spent} of {limit}{'' if is_cost else f' {self.budget}'} in the last 24 hours"


class SweepingAnswer(Answer):
    """A running sweep. rate: its requests per second; stage and rate are null while it sends nothing."""

    phase: str
    stage: int | None
    rate: float | None = Field(validation_alias=AliasPath("rate_per_s"))
    requests: int
    in_flight: int
    elapsed_s: float


class HeadroomAnswer(Answer):
    """Free share of the capacity, and further requests/s, shaped like the sweep's, that fit."""

    lower: float | None
    estimate: float | None
    upper: float | None
    addable_lower: float | None
    addable: float | None
    addable_upper: float | None


class NoDataAnswer(Answer):
    """A workload whose probes all end without data. state: rejected or over_budget; reason: how the last one ended."""

    workload: str
    state: str
    reason: str
    detail: str = Field(validation_alias=AliasPath("text"))


class HealthAnswer(Answer):
    """Verdict of `/health/TARGET` (healthy, unhealthy or unknown) and its reason."""

    state: str
    reason: str


class StartingAnswer(Answer):
    """A target that refuses connections and has never answered. since: first probe; until: when it starts to count as a failure."""

    since: float
    until: float
    detail: str


class EngineTrend(NamedTuple):
    """An engine signal over time. values: oldest first, None if unknown; unit: `ratio` for shares"""

    name: str
    values: Sequence[float | None]
    unit: str = ""


def engine_trends(readings: Sequence[tuple[float, EngineSignals]]) -> list[EngineTrend]:
    """Trends of the engine signals on the page. readings: (seconds, signals). Signals that the page lacks are left out."""

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


@dataclass(slots=True)
class LatencyRow:
    """Quantiles of a workload's latency: of the last ten minutes, of the last minute, and of all stored samples."""

    workload: str
    signal: str
    recent: dict[float, QuantileAnswer] = field(default_factory=dict)
    latest: dict[float, QuantileAnswer] = field(default_factory=dict)
    earlier: dict[float, QuantileAnswer] = field(default_factory=dict)


class ConcernAnswer(Answer):
    """The most important fact about a target now, as text.

    rank: 0 is worst; weight: severity within the rank
    kind: bad, few (a warning), past (an SLO was missed, but its budget burns no longer), unknown or good
    since: when it began; null if unknown
    """

    target: str
    rank: int
    kind: Kind
    text: str
    detail: str = ""
    since: float | None = None
    weight: float = 0.0
    runbook: str = Field("", exclude=True)  # alert whose runbook helps; empty for none

    @property
    def order(self) -> tuple[int, float]:
        """Sort key among the targets, worst first."""
        return self.rank, -self.weight

    def words(self, now_unix_s: float) -> str:
        """The text with the time of its begin."""
        comma = "" if self.kind == "past" else ","
        return self.text if self.since is None else f"{self.text}{comma} since {clock_time(self.since, now_unix_s)}"


class TargetAnswer(Answer):
    """A target. other_model: the model named by its answers, several joined by `|`; empty if it is `model`.

    service_tier: named by its answers, several joined by `|`; empty if they name none
    answered: due time of the last answered probe; null if none was answered yet
    paused: when it was paused; capacity: result of the last sweep with a capacity, as text
    last_sweep: the last ended sweep, with or without a capacity
    past_cause: diagnosis of a trouble that ended in the last minutes; null for none
    warnings: sentences about risks, such as a certificate that expires soon
    buffered: most of its last answers arrived all at once or several tokens at a time; null until enough answers are known
    quantiles, latest: of the last ten minutes and the last minute, both empty while no probe is answered
    earlier: of all stored samples, at most 4,096
    no_latency: why `quantiles` is empty, else empty
    reason: for the state; empty if it is `ready`
    health: as in `/health/TARGET`
    no_data: workloads without data; all of them while the state is `rejected` or `over_budget`
    starting: null unless the state is `starting` because it refuses connections
    labels: labels of all its series, by name, from the configuration or discovery
    """

    name: str
    url: str
    labels: dict[str, str] = Field(default_factory=dict)
    model: str
    other_model: str = ""
    service_tier: str = ""
    engine: str
    state: str
    reason: str
    health: HealthAnswer = HealthAnswer(state="unknown", reason="no probe has counted yet")
    no_data: list[NoDataAnswer] = Field(default_factory=list)
    starting: StartingAnswer | None
    buffered: bool | None = None
    answered: float | None = None
    paused: float | None
    outcomes: dict[str, int] = Field(default_factory=dict)
    slos: list[SloAnswer] = Field(default_factory=list)
    quantiles: list[QuantileAnswer] = Field(default_factory=list)
    latest: list[QuantileAnswer] = Field(default_factory=list)
    earlier: list[QuantileAnswer] = Field(default_factory=list)
    no_latency: str = ""
    diagnosis: DiagnosisAnswer = None
    past_cause: DiagnosisAnswer = None
    warnings: list[str] = Field(default_factory=list)
    capacity: str | None = None
    headroom: HeadroomAnswer | None = None
    headroom_unknown: str = UNKNOWN["no_capacity"]
    drift: list[DriftAnswer] = Field(default_factory=list)
    budgets: list[BudgetAnswer] = Field(default_factory=list)
    sweep: SweepingAnswer | None = None
    last_sweep: SweepAnswer | None = None

    trusted: bool = Field(True, description="whether its latencies are judged: half of its probes were sent and timed")
    timed: tuple[int, int] = Field((0, 0), exclude=True)  # probes in ten minutes, and those sent and timed
    buffering: str = Field("", exclude=True)  # evidence for held-back answers, and what follows
    caching: str = Field("", exclude=True)  # workloads without latencies because all their prompts are cached
    workloads: list[str] = Field(default_factory=list, exclude=True)  # those that probe it
    probes: Annotated[Sequence[ProbeResult], _AS_IT_IS] = Field((), exclude=True)  # the last ones, latest first
    sweeps: Annotated[Sequence[Result], _AS_IT_IS] = Field((), exclude=True)  # the last results, latest first
    trace_url: str | None = Field(None, exclude=True)
    sweepable: bool = Field(False, exclude=True)  # the configuration allows sweeps
    swept: Annotated[SweptCapacity | None, _AS_IT_IS] = Field(None, exclude=True)
    estimate: Annotated[Estimate | None, _AS_IT_IS] = Field(None, exclude=True)
    # (seconds, signals) of the engine's page in the last ten minutes
    readings: Annotated[Sequence[tuple[float, EngineSignals]], _AS_IT_IS] = Field((), exclude=True)

    @property
    def cause_since(self) -> float | None:
        """When the diagnosed trouble began."""
        return self.diagnosis.since_unix_s if self.diagnosis is not None else None

    @property
    def trouble(self) -> str:
        """The trouble, in the words of the diagnosis."""
        return self.diagnosis.bad if self.diagnosis is not None else ""

    @property
    def is_unanswered(self) -> bool:
        """True if no probe is answered now, so that all measurements describe the past."""
        return self.state in UNANSWERED_STATES

    def drift_words(self, drift: DriftAnswer, now_unix_s: float) -> tuple[Kind, str]:
        """(kind, text) of a verdict of `drift`: none while no probe is answered."""
        if not self.is_unanswered:
            return drift.words(now_unix_s)
        since = "" if self.answered is None else f" since {clock_time(self.answered, now_unix_s)}"
        return "unknown", f"no verdict: no probe is answered{since}"

    @property
    def latencies(self) -> list[LatencyRow]:
        """The latencies, sorted by workload, then TTFT before TPOT before ITL before E2E."""
        rows: dict[tuple[str, str], LatencyRow] = {}
        for name in ("earlier", "quantiles", "latest"):
            for quantile in getattr(self, name):
                row = rows.setdefault(
                    (quantile.workload, quantile.signal), LatencyRow(quantile.workload, quantile.signal)
                )
                getattr(row, "recent" if name == "quantiles" else name)[quantile.q] = quantile
        places = {signal: place for place, signal in enumerate(SIGNALS)}
        return sorted(rows.values(), key=lambda row: (row.workload, places.get(row.signal, len(places))))

    @property
    def busiest_latencies(self) -> list[LatencyRow]:
        """Latencies of the workload with the most samples in the last ten minutes."""
        rows = [row for row in self.latencies if row.recent]
        busiest = max(rows, key=lambda row: row.recent[0.5].count, default=None)
        return [row for row in rows if busiest is not None and row.workload == busiest.workload]

    @property
    def other_workloads(self) -> int:
        """Number of other workloads with latencies in the last ten minutes."""
        return max(0, len({quantile.workload for quantile in self.quantiles}) - 1)

    @property
    def headroom_words(self) -> tuple[Kind, str]:
        """(kind, text): the free share of the capacity, or why it is unknown."""
        room = self.headroom
        bound = None if room is None else room.estimate if room.estimate is not None else room.upper
        if room is None or bound is None:
            return "unknown", f"unknown, {self.headroom_unknown}"
        if bound < 0:
            text = "none, demand is above the capacity"
        else:
            text = f"{'at most ' if room.estimate is None else ''}{share(bound)} free"
        if room.estimate is not None and room.lower is not None and room.upper is not None:
            text += f" [{room.lower:.0%}, {room.upper:.0%}]"
        low = room.lower if room.lower is not None else bound
        return (
            "bad" if bound <= 0 else "unknown" if room.estimate is None else "few" if low <= LOW_RATIO else "good",
            text,
        )

    @property
    def concern(self) -> ConcernAnswer:
        """The most important fact about the target."""
        if self.paused is not None:
            text = "No probes and no sweeps start until it is resumed"
            return self._concern(6, "unknown", "paused", text, since=self.paused)
        if (trouble := self._failure() or self._slowness()) is not None:
            return trouble
        if self.state != TargetState.READY:
            return self._concern(4, "unknown", self.state, self.reason)
        past = self.past_cause
        ended = f"{past.title} until {time_of_day(past.until_unix_s)}" if past and past.until_unix_s else ""
        if missed := [slo for slo in self.slos if slo.state == "missed"]:
            untils = [slo.burned_until for slo in missed]
            until = None if None in untils else max(filter(None, untils))
            text = f"SLO missed over {missed[0].window_words}: {_slo_names(missed)}, not burning"
            return self._concern(5, "past", text, ended, "LLMErrorBudgetBurn", until, until or 0.0)
        if without_data := [slo for slo in self.slos if slo.state == "no_data"]:
            text = f"no verdict on SLO: {_slo_names(without_data)}"
            return self._concern(7, "unknown", text, without_data[0].why, "LLMSLONoData")
        if not self.trusted:
            return self._concern(7, "unknown", "no verdict: the prober lacks CPU time", UNTRUSTED, "LLMProberUntrusted")
        return self._concern(9, "good", "no problem found", ended)

    @property
    def cause(self) -> str:
        """The diagnosis as text, with its first figure if it names a cause; "" without one."""
        diagnosis = self.diagnosis
        return "" if diagnosis is None else diagnosis.title if diagnosis.regimes == ("unknown",) else diagnosis.headline

    def _failure(self) -> ConcernAnswer | None:
        """The failure to show: no answers, a burning budget, or no data; None if there is none."""
        burning = [slo for slo in self.slos if slo.burning_since is not None]
        since = min((slo.burning_since for slo in burning if slo.burning_since is not None), default=None)
        if self.state in WORST_STATES:
            text, runbook = WORST_STATES[self.state]
            since = self.answered if self.state == TargetState.REJECTED else since
            return self._concern(0, "bad", text, self.reason, runbook, since)
        if burning:
            worst = max(burning, key=lambda slo: slo.burn_rate)
            cause = f"{self.cause}; " if self.cause else ""
            share_bad, allowed = share(worst.recent_bad / max(1, worst.recent_events)), (1 - worst.objective) * 100
            text = self.trouble or f"SLO {worst.slo}: {share_bad} bad, {allowed:.4g}% allowed"
            detail = cause + worst.recent_words
            return self._concern(1, "bad", text, detail, "LLMErrorBudgetBurn", since, worst.burn_rate)
        if self.health.state == Health.UNHEALTHY and self.state == TargetState.READY:
            weight = 1e9  # it gets no traffic: worse than every burn
            return self._concern(1, "bad", "unhealthy", self.health.reason, weight=weight)
        if self.state == TargetState.OVER_BUDGET:
            return self._concern(2, "few", "no data: over budget", self.reason, RUNBOOKS[self.state])
        if self.no_data:
            first = self.no_data[0]
            names = ", ".join(workload.workload for workload in self.no_data if workload.state == first.state)
            runbook = RUNBOOKS.get(first.state, "")
            return self._concern(2, "few", f"no data of {names}: {first.state}", first.reason, runbook)
        return None

    def _slowness(self) -> ConcernAnswer | None:
        """The warning to show; None if there is none. An unknown cause is no warning."""
        if drifted := [drift for drift in self.drift if drift.active and drift.cause != "unusual"]:
            sizes = (" ".join((signal_name(it.signal), *(shift.words for shift in it.shifts[:1]))) for it in drifted)
            text, runbook = ", ".join(dict.fromkeys(sizes)), DRIFT_RUNBOOKS.get(drifted[0].signal, "")
            weight = max((shift.ratio for drift in drifted for shift in drift.shifts), default=0.0)
            text = f"slower than its baseline: {text}"
            return self._concern(2, "few", text, self.cause, runbook, drifted[0].since, weight)
        if self.diagnosis is not None and self.trouble:
            since = None if " since " in self.trouble else self.cause_since
            return self._concern(3, "few", self.trouble, self.cause, since=since)
        if self.diagnosis is not None and (self.diagnosis.regimes != ("unknown",) or self.diagnosis.probable):
            return self._concern(3, "few", self.cause, self.diagnosis.means, since=self.cause_since)
        if spending := [slo for slo in self.slos if slo.state == "missed" and slo.is_spending]:
            worst = max(spending, key=lambda slo: slo.burn_rate)
            text = f"SLO missed over {worst.window_words}: {_slo_names(spending)}, and bad events go on"
            return self._concern(3, "few", text, worst.recent_words, "LLMErrorBudgetBurn", weight=worst.burn_rate)
        return self._concern(3, "few", self.warnings[0]) if self.warnings else None

    def _concern(
        self,
        rank: int,
        kind: Kind,
        text: str,
        detail: str = "",
        runbook: str = "",
        since: float | None = None,
        weight: float = 0.0,
    ) -> ConcernAnswer:
        known = {"target": self.name, "runbook": runbook, "since": since, "weight": weight}
        return ConcernAnswer(rank=rank, kind=kind, text=text, detail=detail, **known)


def _slo_names(slos: Sequence[SloAnswer]) -> str:
    return ", ".join(dict.fromkeys(slo.slo for slo in slos))


def attention(concerns: Sequence[ConcernAnswer]) -> list[ConcernAnswer]:
    """Select the concerns to list: targets in trouble or with a missed SLO; without any, targets without a verdict."""
    not_good = [concern for concern in concerns if concern.kind != "good"]
    return [concern for concern in not_good if concern.kind != "unknown"] or not_good


def headline(concerns: Sequence[ConcernAnswer], *, shard: str = "", configured: int = 0) -> tuple[Kind, str]:
    """(kind, text) of the most important fact about all targets now.

    shard: shard of this prober, such as 1/3; configured: number of targets of all shards
    """
    total, kinds = len(concerns), [concern.kind for concern in concerns]
    live, past, unknown = kinds.count("bad") + kinds.count("few"), kinds.count("past"), kinds.count("unknown")
    if total == 0 and configured and shard:
        if configured == 1:
            return "unknown", f"The one configured target does not belong to shard {shard}"
        return "unknown", f"None of the {configured:,} configured targets belongs to shard {shard}"
    if total == 0:
        return "unknown", "No target is configured"
    kind = min(kinds, key=list(SIGNS).index)
    if live:
        earlier = f"; {past} more missed an SLO earlier" if past else ""
        return kind, f"{live} of {total} targets {'needs' if live == 1 else 'need'} attention{earlier}"
    if past:
        return kind, f"No problem now; {past} of {total} targets missed an SLO earlier"
    if unknown:
        return kind, f"No problem found; {unknown} of {total} targets have no verdict"
    return "good", f"No problem found on any of {total} targets"


class Problem(Answer):
    """A part of the configuration that is not in effect. mistakes: where and what, with the remedy."""

    headline: str
    mistakes: list[str]


class Snapshot(Answer):
    """All targets at one moment.

    time: Unix seconds; prober: its version; headline: the first sentence of the page
    targets: as in `/api/v1/targets`; concerns: one per target, in the same order
    probes: ended since the previous snapshot, in the order of their due times; at most the last 40 of each target
    events: since the previous snapshot, oldest first
    """

    format: Literal["prober-watch"] = "prober-watch"
    version: Literal[1] = 1
    time: float
    prober: str
    headline: str
    problems: list[Problem]
    targets: list[TargetAnswer]
    concerns: list[ConcernAnswer]
    probes: list[EndedProbe]
    events: list[EventAnswer]
