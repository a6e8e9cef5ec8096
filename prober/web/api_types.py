"""What the API answers: the types of its JSON, from which its OpenAPI document is written, and values put into them.

Times of day are Unix seconds, durations seconds, stamps nanoseconds of the prober's monotonic clock. null: not known.
"""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from typing_extensions import TypedDict  # as pydantic needs it before Python 3.12

from prober.measure.event import TargetEvent
from prober.measure.result import ProbeResult
from prober.results.capacity import words
from prober.results.result import Result
from prober.web.page.view import Capacities, Drifting, TargetView


class SloAnswer(TypedDict):
    """How an SLO stands over the events since the prober's start. state: met, missed or no_data."""

    slo: str
    workload: str
    state: str
    events: int
    bad_events: int
    objective: float
    why: str


class QuantileAnswer(TypedDict):
    """A quantile in seconds with its 95% interval; enough: a judgement may rest on it."""

    workload: str
    signal: str
    q: float
    estimate: float
    lower: float | None
    upper: float | None
    count: int
    enough: bool


class ShiftAnswer(TypedDict):
    """A quantile since a change ÷ the same before it, with its 95% interval."""

    q: float
    ratio: float
    lower: float
    upper: float
    count: int


class DriftAnswer(TypedDict):
    """A watched latency. evidence: on a log scale, 1 alarms."""

    workload: str
    signal: str
    phase: str
    evidence: float
    active: bool
    cause: str | None
    since: float | None
    shifts: list[ShiftAnswer]


class BudgetAnswer(TypedDict):
    """A budget of any 24 hours, in tokens, or in dollars where budget is cost."""

    budget: str
    limit: float
    spent: float


class SweepingAnswer(TypedDict):
    """A sweep under way. rate: requests per second that it adds; stage and rate are null while it sends nothing."""

    phase: str
    stage: int | None
    rate: float | None
    requests: int
    in_flight: int
    elapsed_s: float


class HeadroomAnswer(TypedDict):
    """Free share of the capacity, in requests or tokens."""

    unit: str
    lower: float | None
    estimate: float | None
    upper: float | None


class StartingAnswer(TypedDict):
    """It refuses connections and has never answered. since: the prober began to ask it; until: then that counts as failure."""

    since: float
    until: float
    detail: str


class TargetAnswer(TypedDict):
    """A target. paused: since when nothing is sent to it; capacity: what the last sweep that found something said, in words.

    starting: null unless it is `starting` because it refuses connections
    """

    name: str
    url: str
    model: str
    engine: str
    state: str
    starting: StartingAnswer | None
    paused: float | None
    outcomes: dict[str, int]
    slos: list[SloAnswer]
    quantiles: list[QuantileAnswer]
    diagnosis: dict[str, Any] | None
    capacity: str | None
    headroom: list[HeadroomAnswer]
    drift: list[DriftAnswer]
    budgets: list[BudgetAnswer]
    sweep: SweepingAnswer | None


class AskedAnswer(TypedDict):
    """Tokens that were asked for."""

    prompt_tokens: int
    output_tokens: int


class UsageAnswer(TypedDict):
    """Tokens as the server counts them."""

    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    reasoning_tokens: int | None


class ConnectAnswer(TypedDict):
    """Phases of setting up the connection, in seconds."""

    dns: float | None
    tcp: float | None
    proxy: float | None
    tls: float | None


class StampsAnswer(TypedDict):
    """Nanoseconds of the prober's monotonic clock."""

    intended: int
    connect_start: int | None
    connect_ready: int | None
    sent: int | None
    headers: int | None
    first_content: int | None
    content: list[int]
    end: int | None


class ProbeAnswer(TypedDict):
    """A probe. on_request: a person asked for it, so it counts in no SLI."""

    target: str
    workload: str
    request_id: str
    time: float
    outcome: str
    detail: str
    warm_up: bool
    cached: bool
    on_request: bool
    model: str
    engine: str
    asked: AskedAnswer
    usage: UsageAnswer | None
    finish_reason: str | None
    content_chunks: int
    ttft_s: float | None
    ttft_answer_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    send_lag_s: float | None
    itl_s: list[float]
    chunk_gaps_s: list[float]
    connect_s: ConnectAnswer
    stamps_ns: StampsAnswer
    text: str


class EventAnswer(TypedDict):
    """Something that happened. kind: state, engine, drift, diagnosis or sweep."""

    unix_s: float
    target: str
    kind: str
    text: str


class CapacityAnswer(TypedDict):
    """The rate in requests per second up to which an SLO holds, with its interval."""

    slo: str
    verdict: str
    lower: float | None
    estimate: float | None
    upper: float | None
    tokens_per_s: float | None
    confidence: float
    samples: int
    fit: str


class SweepAnswer(TypedDict):
    """A sweep's result without its requests and stages."""

    id: str
    kind: str
    target: str | None
    started: float
    ended: float
    stop: str | None
    stop_detail: str
    requests: int
    capacities: list[CapacityAnswer]


class BegunAnswer(TypedDict):
    """What a sweep that was begun goes by."""

    id: str


class PausedAnswer(TypedDict):
    """A target, and since when nothing is sent to it; null: it is probed."""

    name: str
    paused: float | None


def of_target(view: TargetView) -> TargetAnswer:
    """A target."""
    return {
        "name": view.name,
        "url": view.url,
        "model": view.model,
        "engine": view.engine,
        "state": view.state,
        "starting": {
            "since": view.starting.since_unix_s,
            "until": view.starting.until_unix_s,
            "detail": view.starting.text,
        }
        if view.starting
        else None,
        "paused": view.paused_unix_s,
        "outcomes": dict(view.outcomes),
        "slos": [
            {
                "slo": each.slo.name,
                "workload": each.workload,
                "state": each.state,
                "events": each.events,
                "bad_events": each.bad,
                "objective": float(each.slo.objective),
                "why": each.why,
            }
            for each in view.standings
        ],
        "quantiles": [
            {
                "workload": workload,
                "signal": signal,
                "q": each.q,
                "estimate": each.estimate,
                "lower": each.lower,
                "upper": each.upper,
                "count": each.count,
                "enough": each.has_enough_samples,
            }
            for (workload, signal), found in view.quantiles.items()
            for each in found
        ],
        "diagnosis": asdict(view.diagnosis) if view.diagnosis else None,
        "capacity": _capacity(view.capacity),
        "headroom": [
            {"unit": each.unit, "lower": each.lower, "estimate": each.estimate, "upper": each.upper}
            for each in (view.capacity.rooms if view.capacity else ())
        ],
        "drift": [_drift(each) for each in view.drifts],
        "budgets": [{"budget": each.kind, "limit": each.limit, "spent": each.spent} for each in view.budgets],
        "sweep": _sweeping(view),
    }


def _capacity(found: Capacities | None) -> str | None:
    """What was found, and when, in words."""
    if found is None:
        return None
    return f"{words(found.found)}, as of {datetime.fromtimestamp(found.at_unix_s, UTC):%Y-%m-%d %H:%M} UTC"


def _drift(each: Drifting) -> DriftAnswer:
    verdict = each.verdict
    return {
        "workload": each.workload,
        "signal": each.signal,
        "phase": verdict.phase,
        "evidence": verdict.evidence,
        "active": verdict.active,
        "cause": verdict.cause,
        "since": verdict.since_unix_s,
        "shifts": [
            {"q": s.q, "ratio": s.ratio, "lower": s.lower, "upper": s.upper, "count": s.count} for s in each.shifts
        ],
    }


def _sweeping(view: TargetView) -> SweepingAnswer | None:
    now = view.sweeping
    if now is None:
        return None
    return {
        "phase": now.phase,
        "stage": now.stage,
        "rate": now.rate_per_s,
        "requests": now.requests,
        "in_flight": now.in_flight,
        "elapsed_s": now.elapsed_s,
    }


def of_probe(result: ProbeResult) -> ProbeAnswer:
    """A probe."""
    t = result.timeline
    connection, usage = t.connection, t.usage
    return {
        "target": result.target,
        "workload": result.workload,
        "request_id": result.request_id,
        "time": round(result.unix_s, 3),
        "outcome": result.outcome.value,
        "detail": result.detail,
        "warm_up": result.warm_up,
        "cached": result.cached,
        "on_request": result.on_request,
        "model": result.model,
        "engine": result.engine,
        "asked": {"prompt_tokens": result.requested_prompt_tokens, "output_tokens": result.requested_output_tokens},
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
            "reasoning_tokens": usage.reasoning_tokens,
        }
        if usage
        else None,
        "finish_reason": t.finish_reason,
        "content_chunks": len(t.content_ns),
        "ttft_s": t.ttft_s,
        "ttft_answer_s": t.ttft_answer_s,
        "tpot_s": t.tpot_s,
        "e2e_s": t.e2e_s,
        "send_lag_s": t.send_lag_s,
        "itl_s": t.itls_s,
        "chunk_gaps_s": t.chunk_gaps_s,
        "connect_s": {
            "dns": connection.dns_s if connection else None,
            "tcp": connection.tcp_s if connection else None,
            "proxy": connection.proxy_s if connection else None,
            "tls": connection.tls_s if connection else None,
        },
        "stamps_ns": {
            "intended": t.intended_ns,
            "connect_start": connection.start_ns if connection else None,
            "connect_ready": connection.ready_ns if connection else None,
            "sent": t.sent_ns,
            "headers": t.headers_ns,
            "first_content": t.first_ns,
            "content": list(t.content_ns),
            "end": t.end_ns,
        },
        "text": result.text,
    }


def of_event(event: TargetEvent) -> EventAnswer:
    """An event."""
    return {"unix_s": event.unix_s, "target": event.target, "kind": event.kind, "text": event.text}


def of_sweep(result: Result) -> SweepAnswer:
    """A result in brief."""
    return {
        "id": result.id,
        "kind": result.kind,
        "target": result.target.url,
        "started": result.started_unix_s,
        "ended": result.ended_unix_s,
        "stop": result.stop,
        "stop_detail": result.stop_detail,
        "requests": sum(stage.sent for stage in result.stages),
        "capacities": _capacities(result),
    }


def _capacities(result: Result) -> list[CapacityAnswer]:
    return [
        {
            "slo": each.slo,
            "verdict": each.verdict,
            "lower": each.lower,
            "estimate": each.estimate,
            "upper": each.upper,
            "tokens_per_s": each.tokens_per_s,
            "confidence": each.confidence,
            "samples": each.samples,
            "fit": each.fit,
        }
        for each in result.capacities
    ]
