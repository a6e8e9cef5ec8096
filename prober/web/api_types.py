"""The API's answers about probes, events, sweeps and actions; those about targets are in `targets`.

The OpenAPI document is generated from these types, and `Answer.model_validate` reads the prober's values.

Times of day are Unix seconds, durations seconds, timestamps nanoseconds of the prober's monotonic clock. null: unknown.
"""

import json
from typing import Annotated, Any

from pydantic import AliasPath, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticSerializationError


class Answer(BaseModel):
    """Base of all answers: each field has the value of the prober's attribute with the same name, or at a path.

    `model_validate` reads an answer's own JSON as well.
    """

    model_config = ConfigDict(
        from_attributes=True,
        frozen=True,
        defer_build=True,  # only created where pages or API are used
        json_schema_serialization_defaults_required=True,
        validate_by_alias=True,
        validate_by_name=True,
    )


def _at(*path: str) -> Any:
    """A field whose value is the attribute at a path."""
    return Field(validation_alias=AliasPath(*path))


def _known(*path: str) -> Any:
    """A field whose value is the attribute at a path; None if an object on the path is None."""
    return Field(validation_alias=AliasPath(*path), default_factory=lambda: None)


Milliseconds = Annotated[float, BeforeValidator(lambda unix_s: round(unix_s, 3))]  # a time of day in seconds


def dumped(answer: Answer) -> bytes:
    """The answer as one line of JSON."""
    try:
        return answer.model_dump_json().encode()
    except PydanticSerializationError:  # the server's text contains half of a surrogate pair
        return json.dumps(answer.model_dump()).encode()


class CapacityAnswer(Answer):
    """The estimated highest rate at which an SLO holds (knee), in requests per second, with its interval.

    curve: [requests per second, seconds] of the SLO's quantile, by the engine model; empty without a model
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
    shedding: the rates between which the target began to shed, as text; empty if it shed none
    """

    id: str
    kind: str
    target: str | None = _at("target", "url")
    started: float = _at("started_unix_s")
    ended: float = _at("ended_unix_s")
    stop: str | None
    stop_detail: str
    refused: Annotated[str, BeforeValidator(str)]
    shedding: Annotated[str, BeforeValidator(lambda it: str(it or ""))]
    requests: Annotated[
        int, BeforeValidator(lambda it: it if isinstance(it, int) else sum(stage.sent for stage in it))
    ] = _at("stages")
    capacities: list[CapacityAnswer]


class AskedAnswer(Answer):
    """Tokens that a request asked for: length of the prompt, and limit of the answer."""

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
    acknowledged: int | None = _at("acknowledged_ns")
    headers: int | None = _at("headers_ns")
    first_content: int | None = _at("first_ns")
    content: list[int] = _at("content_ns")
    end: int | None = _at("end_ns")


class EndedProbe(Answer):
    """A probe without its text, chunks and timestamps. trace_id: sent in `traceparent`; empty if none was sent"""

    target: str
    workload: str
    request_id: str
    trace_id: str
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
    service_tier: the service tier that the answer names, `other` for an unknown one; empty if it names none
    retries: retries and fallbacks of a gateway by kind, from the headers of the response
    why_no_tpot: why an answer with content has no TPOT, else empty; content that arrived at once has no ITL either
    why_no_ttft, why_no_ttft_answer: why an answer with content has no TTFT, or no TTFT of its answer, else empty
    network_s: from the departure of the request until the target's host, or its proxy, acknowledged it
    parts_s: where its time went, in seconds by part, as far as the server and the gateways tell; empty if they do not
    server_request_id: the server's own id of the request; empty if it sent none
    round_trip_s, retransmitted: round trip of the connection at its end, and number of retransmitted segments
    """

    model: str
    answered_model: str = _at("timeline", "answered_model")
    service_tier: str = _at("timeline", "service_tier")
    engine: str
    asked: Annotated[
        AskedAnswer, BeforeValidator(lambda it: dict(zip(("prompt_tokens", "output_tokens"), it, strict=True)))
    ] = _at("requested_tokens")
    usage: UsageAnswer | None = _at("timeline", "usage")
    finish_reason: str | None = _at("timeline", "finish_reason")
    content_chunks: Annotated[int, BeforeValidator(len)] = _at("timeline", "content_ns")
    ttft_answer_s: float | None = _at("timeline", "ttft_answer_s")
    retries: dict[str, int]
    server_request_id: str
    calls: int = _at("timeline", "calls")
    ttft_call_s: float | None = _at("timeline", "ttft_call_s")
    arguments_s: float | None = _at("timeline", "arguments_s")
    why_no_tpot: str = _at("timeline", "why_no_tpot")
    why_no_ttft: str = _at("timeline", "why_no_ttft")
    why_no_ttft_answer: str = _at("timeline", "why_no_ttft_answer")
    network_s: float | None = _at("timeline", "network_s")
    parts_s: Annotated[dict[str, float], BeforeValidator(lambda it: {} if it is None else it.known())] = _at(
        "timeline", "parts"
    )
    round_trip_s: float | None = _at("timeline", "round_trip_s")
    retransmitted: int | None = _at("timeline", "retransmitted")
    send_lag_s: float | None = _at("timeline", "send_lag_s")
    itl_s: list[float] = _at("timeline", "itls_s")
    chunk_gaps_s: list[float] = _at("timeline", "chunk_gaps_s")
    connect_s: ConnectAnswer = _at("timeline")
    stamps_ns: StampsAnswer = _at("timeline")
    text: str


class EventAnswer(Answer):
    """An event. target: empty if it concerns several. kind: state, engine, drift, answers, diagnosis, slo or sweep.

    times: how often it has repeated since `since_unix_s`, each time within ten minutes
    trace_id: trace of a probe that shows it; empty for none
    """

    unix_s: float
    target: str
    kind: str
    text: str
    times: int = 1
    since_unix_s: float | None = None
    trace_id: str = ""


class BegunAnswer(Answer):
    """The id of a started sweep."""

    id: str


class PausedAnswer(Answer):
    """A target, and when it was paused; null: it is not paused."""

    name: str
    paused: float | None
