"""Answers of the API, and the lines of `prober watch --json`.

The OpenAPI document is generated from these types, and `Answer.model_validate` reads the prober's values.

Times of day are Unix seconds, durations seconds, timestamps nanoseconds of the prober's monotonic clock. null: not known.
"""

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AliasPath, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticSerializationError

from prober.features.slo.compliance import Compliance
from prober.results.capacity import words
from prober.web.page.view import Capacities, Kind


class Answer(BaseModel):
    """Base of all answers: a field is the attribute of the prober's value with the same name, or at a path.

    `model_validate` reads an answer's own JSON as well.
    """

    model_config = ConfigDict(
        from_attributes=True,
        frozen=True,
        json_schema_serialization_defaults_required=True,
        validate_by_alias=True,
        validate_by_name=True,
    )


def _at(*path: str) -> Any:
    """The attribute at a path."""
    return Field(validation_alias=AliasPath(*path))


def _known(*path: str) -> Any:
    """The attribute at a path; None if an object on the way is None."""
    return Field(validation_alias=AliasPath(*path), default_factory=lambda: None)


Milliseconds = Annotated[float, BeforeValidator(lambda unix_s: round(unix_s, 3))]  # a time of day, in seconds


def dumped(answer: Answer, without: Set[str] = frozenset()) -> bytes:
    """The answer as JSON on one line. without: fields that are left out"""
    try:
        return answer.model_dump_json(exclude=set(without)).encode()
    except PydanticSerializationError:  # a server's text with half a surrogate pair
        return json.dumps(answer.model_dump(exclude=set(without))).encode()


class SloAnswer(Answer):
    """The compliance of a window with an SLO.

    since: from when on this prober has counted; threshold and window: seconds
    """

    slo: str = _at("slo", "name")
    workload: str
    signal: str = _at("slo", "signal")
    threshold: float | None = _at("slo", "threshold_s")
    state: Compliance
    events: int
    bad_events: int = _at("bad")
    objective: float = _at("slo", "objective")
    window: float = _at("slo", "window_s")
    since: float = _at("since_unix_s")
    why: str


class QuantileAnswer(Answer):
    """A quantile in seconds with its 95% interval. enough: it has enough samples for a decision."""

    workload: str
    signal: str
    q: float
    estimate: float
    lower: float | None
    upper: float | None
    count: int
    enough: bool


class ShiftAnswer(Answer):
    """A quantile since a change ÷ the same before it, with its 95% interval; of `itl` a quantile of the p99 of each answer."""

    q: float
    ratio: float
    lower: float
    upper: float
    count: int


class DriftAnswer(Answer):
    """Drift of a latency. evidence: on a log scale; 1 raises the alarm. why: what the load says of it, or why there is no verdict."""

    workload: str
    signal: str
    phase: str = _at("verdict", "phase")
    evidence: float = _at("verdict", "evidence")
    active: bool = _at("verdict", "active")
    cause: str | None = _at("verdict", "cause")
    load: str = _at("verdict", "load")
    why: str = _at("verdict", "why")
    since: float | None = _at("verdict", "since_unix_s")
    shifts: list[ShiftAnswer]


class BudgetAnswer(Answer):
    """A budget over any 24 hours, in tokens, or in dollars if budget is cost."""

    budget: str = _at("kind")
    limit: float
    spent: float


class SweepingAnswer(Answer):
    """A running sweep. rate: requests per second that it adds; stage and rate are null while it sends nothing."""

    phase: str
    stage: int | None
    rate: float | None = _at("rate_per_s")
    requests: int
    in_flight: int
    elapsed_s: float


class HeadroomAnswer(Answer):
    """Free share of the capacity, and requests/s of the sweep's shape that can be added."""

    lower: float | None
    estimate: float | None
    upper: float | None
    addable_lower: float | None
    addable: float | None
    addable_upper: float | None


class NoDataAnswer(Answer):
    """A workload of which every probe ends without data. state: rejected or over_budget; reason: how the last one ended."""

    workload: str
    state: str
    reason: str
    detail: str = _at("text")


class StartingAnswer(Answer):
    """A target that refuses connections and has never answered. since: first probe; until: from then on this is a failure."""

    since: float = _at("since_unix_s")
    until: float = _at("until_unix_s")
    detail: str = _at("text")


def _quantiles(quantiles: Any) -> Any:
    """The values of quantiles by (workload, signal); those of an answer as they are."""
    if not isinstance(quantiles, Mapping):
        return quantiles
    return [
        {"workload": workload, "signal": signal, **asdict(quantile), "enough": quantile.has_enough_samples}
        for (workload, signal), listed in quantiles.items()
        for quantile in listed
    ]


def _capacity(capacity: Capacities | str | None) -> str | None:
    """The capacities, and when they were measured, in words."""
    if not isinstance(capacity, Capacities):
        return capacity
    return f"{words(capacity.capacities)}, as of {datetime.fromtimestamp(capacity.at_unix_s, UTC):%Y-%m-%d %H:%M} UTC"


class CapacityAnswer(Answer):
    """The estimated knee of an SLO in requests per second, with its interval.

    curve: [requests per second, seconds] of the quantile that the SLO is about, by the engine model; empty without one
    """

    slo: str
    verdict: str
    lower: float | None
    estimate: float | None
    upper: float | None
    confidence: float
    samples: int
    fit: str
    curve: list[tuple[float, float]]


class SweepAnswer(Answer):
    """A sweep's result without its requests and stages.

    refused: requests that the server refused, with its reason; empty if none
    """

    id: str
    kind: str
    target: str | None = _at("target", "url")
    started: float = _at("started_unix_s")
    ended: float = _at("ended_unix_s")
    stop: str | None
    stop_detail: str
    refused: Annotated[str, BeforeValidator(str)]
    requests: Annotated[
        int, BeforeValidator(lambda it: it if isinstance(it, int) else sum(stage.sent for stage in it))
    ] = _at("stages")
    capacities: list[CapacityAnswer]


class TargetAnswer(Answer):
    """A target. other_model: the model that its answers name, several joined by `|`; empty if it is `model`.

    paused: when it was paused; capacity: result of the last sweep with a capacity, in words
    last_sweep: the last one that ended, which may have found no capacity
    buffered: most of its last answers arrived all at once or several tokens at a time; null until enough were seen
    quantiles: of the last ten minutes, latest: of the last minute, both empty while no probe is answered
    earlier: of all samples that are kept, the last 4,096
    no_latency: why `quantiles` is empty, else empty
    reason: of the state; empty if it is `ready`
    no_data: workloads without data; all of them while the state is `rejected` or `over_budget`
    starting: null unless the state is `starting` because it refuses connections
    labels: those that all its series have, by name, from the configuration or its discovery
    """

    name: str
    url: str
    labels: dict[str, str] = Field(default_factory=dict)
    model: str
    other_model: str
    engine: str
    state: str
    reason: str
    no_data: list[NoDataAnswer]
    starting: StartingAnswer | None
    buffered: bool | None = _at("buffering", "is_buffered")
    paused: float | None = _at("paused_unix_s")
    outcomes: dict[str, int]
    slos: list[SloAnswer] = _at("standings")
    quantiles: Annotated[list[QuantileAnswer], BeforeValidator(_quantiles)]
    latest: Annotated[list[QuantileAnswer], BeforeValidator(_quantiles)] = Field(default_factory=list)
    earlier: Annotated[list[QuantileAnswer], BeforeValidator(_quantiles)] = Field(default_factory=list)
    no_latency: str = ""
    diagnosis: Annotated[dict[str, Any] | None, BeforeValidator(lambda it: asdict(it) if is_dataclass(it) else it)]
    capacity: Annotated[str | None, BeforeValidator(_capacity)]
    headroom: HeadroomAnswer | None = Field(validation_alias=AliasPath("capacity", "room"), default=None)
    headroom_unknown: str = Field(validation_alias=AliasPath("capacity", "why_unknown"), default="")
    drift: list[DriftAnswer] = _at("drifts")
    budgets: list[BudgetAnswer]
    sweep: SweepingAnswer | None = _at("sweeping")
    last_sweep: Annotated[
        SweepAnswer | None, BeforeValidator(lambda it: next(iter(it), None) if isinstance(it, Sequence) else it)
    ] = _at("sweeps")


class AskedAnswer(Answer):
    """Requested tokens."""

    prompt_tokens: int
    output_tokens: int


class UsageAnswer(Answer):
    """Tokens as the server counts them."""

    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    reasoning_tokens: int | None


class ConnectAnswer(Answer):
    """Phases of setting up the connection, in seconds."""

    dns: float | None = _known("connection", "dns_s")
    tcp: float | None = _known("connection", "tcp_s")
    proxy: float | None = _known("connection", "proxy_s")
    tls: float | None = _known("connection", "tls_s")


class StampsAnswer(Answer):
    """Timestamps in nanoseconds of the prober's monotonic clock."""

    intended: int = _at("intended_ns")
    connect_start: int | None = _known("connection", "start_ns")
    connect_ready: int | None = _known("connection", "ready_ns")
    sent: int | None = _at("sent_ns")
    headers: int | None = _at("headers_ns")
    first_content: int | None = _at("first_ns")
    content: list[int] = _at("content_ns")
    end: int | None = _at("end_ns")


class EndedProbe(Answer):
    """A probe without its text, chunks and timestamps."""

    target: str
    workload: str
    request_id: str
    time: Milliseconds = _at("unix_s")
    outcome: str
    detail: str
    warm_up: bool
    cached: bool
    on_request: bool
    ttft_s: float | None = _at("timeline", "ttft_s")
    tpot_s: float | None = _at("timeline", "tpot_s")
    e2e_s: float | None = _at("timeline", "e2e_s")


class ProbeAnswer(EndedProbe):
    """A probe. on_request: it was sent on request, and counts in no SLI.

    answered_model: the model that the answer names; empty if it names none
    why_no_tpot: why there is content and no TPOT, else empty; content that arrived at once has no ITL either
    why_no_ttft_answer: why there is content and no TTFT of the answer, else empty
    """

    model: str
    answered_model: str = _at("timeline", "answered_model")
    engine: str
    asked: Annotated[
        AskedAnswer, BeforeValidator(lambda it: dict(zip(("prompt_tokens", "output_tokens"), it, strict=True)))
    ] = _at("requested_tokens")
    usage: UsageAnswer | None = _at("timeline", "usage")
    finish_reason: str | None = _at("timeline", "finish_reason")
    content_chunks: Annotated[int, BeforeValidator(len)] = _at("timeline", "content_ns")
    ttft_answer_s: float | None = _at("timeline", "ttft_answer_s")
    calls: int = _at("timeline", "calls")
    ttft_call_s: float | None = _at("timeline", "ttft_call_s")
    arguments_s: float | None = _at("timeline", "arguments_s")
    why_no_tpot: str = _at("timeline", "why_no_tpot")
    why_no_ttft_answer: str = _at("timeline", "why_no_ttft_answer")
    send_lag_s: float | None = _at("timeline", "send_lag_s")
    itl_s: list[float] = _at("timeline", "itls_s")
    chunk_gaps_s: list[float] = _at("timeline", "chunk_gaps_s")
    connect_s: ConnectAnswer = _at("timeline")
    stamps_ns: StampsAnswer = _at("timeline")
    text: str


class EventAnswer(Answer):
    """An event. target: empty if it is of several. kind: state, engine, drift, diagnosis, slo or sweep.

    times: how often the same has happened since `since_unix_s`, each within ten minutes of the one before
    """

    unix_s: float
    target: str
    kind: str
    text: str
    times: int = 1
    since_unix_s: float | None = None


class BegunAnswer(Answer):
    """The id of a started sweep."""

    id: str


class PausedAnswer(Answer):
    """A target, and when it was paused; null: it is probed."""

    name: str
    paused: float | None


class ConcernAnswer(Answer):
    """The most important fact about a target, as the page words it. rank: 0 is worst; kind: good, bad, few (a warning) or unknown."""

    target: str
    rank: int
    kind: Kind
    text: str
    detail: str


class ProblemAnswer(Answer):
    """A part of the configuration that is not in effect. mistakes: what is wrong where, and what to do."""

    headline: str
    mistakes: list[str]


class Snapshot(Answer):
    """All targets at one moment.

    time: Unix seconds; prober: its version; trusted: whether it trusts its own timing; headline: the first sentence of the page
    targets: as of `/api/v1/targets`; concerns: one for each of them, in the same order
    probes: that ended since the snapshot before, in the order of their due times, of each target at most the last 40
    events: since the snapshot before, oldest first
    """

    format: Literal["prober-watch"] = "prober-watch"
    version: Literal[1] = 1
    time: float
    prober: str
    trusted: bool
    headline: str
    problems: list[ProblemAnswer]
    targets: list[TargetAnswer]
    concerns: list[ConcernAnswer]
    probes: list[EndedProbe]
    events: list[EventAnswer]
