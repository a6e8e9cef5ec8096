"""Result of one finished probe."""

from array import array
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar, Literal, get_args

from prober.measure.outcome import ANSWERED, Outcome
from prober.measure.printable import shown_name
from prober.measure.request import trace_ids
from prober.measure.timeline import Timeline

RetryKind = Literal["retry", "fallback"]
RETRY_KINDS: tuple[RetryKind, ...] = get_args(RetryKind)
MAX_STORED_FAILURE_BYTES = 2 << 10  # of memory: a sidecar of 256 MiB stores thousands of failures
COLLECTOR_BYTES, EMPTY_TEXT_BYTES, EMPTY_ARRAY_BYTES, STAMP_BYTES, WIDE_BYTES = 16, 76, 80, 8, 4  # 64-bit CPython
UNSURE_STAMPS = ("first_ns", "first_answer_ns", "call_ns", "arguments_ns")
EMPTY: dict[Any, Any] = {}  # shared by results


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Identity, outcome and timeline of one probe.

    request_id: also sent as `X-Request-Id`, to find the probe in the engine's logs
    unix_s: wall clock at the intended time, for display only
    has_asked_length: the prompt was composed to have `requested_prompt_tokens` tokens
    warm_up: a success whose latency includes the engine's warm-up, or that calibrates prompt lengths
    cached: a cold prompt that was in the engine's prefix cache
    check: how the answer is checked (text, regex, json_schema, tool_call); None: not checked
    on_request: a user started the probe: it is shown, but not counted
    worker: number of the process that sent it, from 1; 0: this process
    rate_limit: remaining allowance by kind, from the headers of the response
    retries: further attempts of a gateway, from the response's headers, by kind (retry: with the same or an unknown model; fallback:
    with another model); empty without such headers
    retry_after_s: pause that a failed answer requests, in seconds from its end
    cert_expiry_unix_s: expiry of the server's certificate, Unix time
    adapter: name of the LoRA adapter, or other model, requested instead of the target's `model`; "" for none
    is_traced: it was sent with a `traceparent` of the prober
    server_request_id: the server's own id of the request, to find it in the server's logs; "" if it sent none, or returned `request_id`
    """

    target: str
    workload: str
    request_id: str
    unix_s: float
    outcome: Outcome
    detail: str
    timeline: Timeline
    model: str = ""
    engine: str = ""
    requested_prompt_tokens: int = 0
    requested_output_tokens: int = 0
    warm_up: bool = False
    cached: bool = False
    text: str = ""
    check: str | None = None
    rate_limit: dict[str, float] = field(default_factory=dict)
    retries: dict[RetryKind, int] = field(default_factory=dict)
    retry_after_s: float | None = None
    cert_expiry_unix_s: float | None = None
    on_request: bool = False
    has_asked_length: bool = False
    adapter: str = ""
    worker: int = 0
    is_traced: bool = False
    server_request_id: str = ""
    _latest: ClassVar["tuple[ProbeResult, ProbeResult] | None"] = None  # the last stored result, and its copy

    @property
    def stored(self) -> "ProbeResult":
        """The result as stored in histories: a failure is cut to MAX_STORED_FAILURE_BYTES, whatever the server sent.

        First the parts of its time go, if they leave no room for the detail; then the detail is cut, then the first chunk stamps, then
        the start of the answer. The last result is cached, so that all histories share it.
        """
        if self.outcome in ANSWERED:
            return self
        if ProbeResult._latest is None or ProbeResult._latest[0] is not self:
            ProbeResult._latest = self, _cut(self)
        return ProbeResult._latest[1]

    @property
    def trace_id(self) -> str:
        """The trace id that was sent; "" if none was."""
        return trace_ids(self.request_id)[0] if self.is_traced else ""

    @property
    def exemplar(self) -> tuple[tuple[str, str], ...]:
        """(name, value) of the labels by which an exemplar names the probe: at most 76 characters."""
        trace = (("trace_id", self.trace_id),) if self.is_traced else ()
        return (*trace, ("request_id", self.request_id))

    @property
    def reason(self) -> str:
        """The outcome with its detail, such as `http_429: too many requests`."""
        return f"{self.outcome.value}: {self.detail}" if self.detail else self.outcome.value

    @property
    def requested_tokens(self) -> tuple[int, int]:
        """(prompt tokens, output tokens), as requested."""
        return self.requested_prompt_tokens, self.requested_output_tokens

    def named_instead(self, adapters: Collection[str]) -> str:
        """The wrong model that the answer names instead of `adapter`: the target's, or one of `adapters`; "" for any other name, which
        may be an alias or a path.
        """
        named = self.timeline.answered_model
        is_other = named != shown_name(self.adapter) and (named == self.model or named in adapters)
        return named if self.adapter and self.outcome in ANSWERED and is_other else ""


def unsent(due_ns: int, outcome: Outcome, detail: str, workload: str = "") -> ProbeResult:
    """The result of a request that was not sent."""
    return ProbeResult("", workload, "", 0.0, outcome, detail, Timeline(due_ns))


def _cut(failure: ProbeResult) -> ProbeResult:
    timeline, chunks = failure.timeline, len(failure.timeline.content_ns)
    # Bounds take too much memory.
    unsure: dict[str, Any] = {name: None for name in UNSURE_STAMPS if getattr(timeline, name) in timeline.earliest_ns}
    timeline = replace(timeline, earliest_ns=EMPTY, **unsure)
    timeline = replace(timeline, content_ns=timeline.content_ns or (), charged_tokens=(0, 0))
    timeline = replace(timeline, read_delay_s=0.0, max_read_delay_s=0.0)  # were used when the probe ended
    failure = replace(failure, timeline=timeline, rate_limit=EMPTY, retries=failure.retries or EMPTY)
    failure = replace(failure, retry_after_s=None, cert_expiry_unix_s=None)  # not shown later
    ids_bytes = failure.request_id.__sizeof__() + failure.server_request_id.__sizeof__()
    left = MAX_STORED_FAILURE_BYTES - _bare_bytes(failure) - ids_bytes
    if failure.detail.__sizeof__() > left and timeline.parts is not None:
        left += _bare_bytes(timeline.parts)
        timeline = replace(timeline, parts=None)
    reason, model = _fitting(timeline.finish_reason or "", left // 4), _fitting(timeline.answered_model, left // 4)
    left -= sum(name.__sizeof__() for name in (reason, model) if name)
    if timeline.content_tokens is not None and failure.detail.__sizeof__() + 2 * STAMP_BYTES * chunks > left:
        timeline = replace(timeline, content_tokens=None)
        left += EMPTY_ARRAY_BYTES
    stamp_bytes = STAMP_BYTES if timeline.content_tokens is None else 2 * STAMP_BYTES
    room, note = max(left - stamp_bytes * chunks, left // 2), ""  # for the detail
    detail = _fitting(failure.detail, room)
    if detail.__sizeof__() + stamp_bytes * chunks > left:
        note = f"; only the first of {chunks:,} chunks are stored"
        detail = _fitting(failure.detail, room - len(note)) + note
        chunks = max(0, left - detail.__sizeof__()) // stamp_bytes
        usage = timeline.usage and timeline.usage._replace(completion_tokens=None)  # it counts all chunks: no TPOT
        tokens = timeline.content_tokens and timeline.content_tokens[:chunks]
        timeline = replace(timeline, content_ns=timeline.content_ns[:chunks], content_tokens=tokens, usage=usage)
    text = _fitting(failure.text, left - detail.__sizeof__() - stamp_bytes * chunks)
    timeline = replace(timeline, finish_reason=reason or None, answered_model=model)
    return replace(failure, detail=detail, timeline=timeline, text=text)


def _bare_bytes(value: Any) -> int:
    """Memory of a result, or of a part of it, without texts and chunk stamps."""
    if not value or isinstance(value, str | bool):  # all empty values and truths are shared
        return 0
    if isinstance(value, array):
        return EMPTY_ARRAY_BYTES
    parts: Iterable[Any] = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ()
    if is_dataclass(value):
        parts = [getattr(value, part.name) for part in fields(value)]
    header_bytes = COLLECTOR_BYTES if parts else 0
    return header_bytes + int(value.__sizeof__()) + sum(map(_bare_bytes, parts))


def _fitting(text: str, max_bytes: int) -> str:
    """The text, or as much of its start as fits into `max_bytes` of memory with a final "…"."""
    if not text or text.__sizeof__() <= max_bytes:
        return text
    chars = (max_bytes - EMPTY_TEXT_BYTES) // (
        4 if max(text) > "\uffff" else 2
    ) - 1  # bytes per character in a string with "…"
    return f"{text[:chars]}…" if chars > 0 else ""
