"""Parts of a probe's time: what servers and gateways say of one request, made to fit into what was measured.

No part overlaps another, and together they are never longer than the measured latency. A part that cannot be true is dropped; time that
no part claims stays unexplained. All sources give milliseconds; Envoy's and OpenAI's are whole ones.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

MAX_MS = 86_400_000.0  # a day: no probe lasts longer
ROUNDING_S = 0.001  # Envoy and OpenAI give whole milliseconds, so parts may exceed what was measured by so much
_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,20})?")


class TimeParts(NamedTuple):
    """Parts of a probe's time in seconds, in the order in which a request passes them. None: unknown.

    network_s: from the departure of the request until the host of the target, or of its proxy, has acknowledged it
    gateway_s: in gateways themselves, before the headers of the answer
    until_headers_s: in the server behind them until the headers of the answer, where nothing tells the queue from the prefill
    queue_s: waiting in the engine; prefill_s: from its end to the first token; decode_s: from the first token to the last
    """

    network_s: float | None = None
    gateway_s: float | None = None
    until_headers_s: float | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None

    def known(self) -> dict[str, float]:
        """The known parts by name."""
        return {name: seconds for name, seconds in zip(PARTS, self, strict=True) if seconds is not None}


PARTS = tuple(name.removesuffix("_s") for name in TimeParts._fields)
PART_WORDS = {"until_headers": "server until its headers"}  # where a part's name is not clear by itself
NO_PARTS = TimeParts()


class Spans(NamedTuple):
    """Measured times in seconds, into which the parts must fit. None: unknown.

    network_s: see `TimeParts`; headers_s: from the departure of the request to the headers of the answer
    first_s: latency of the first content, at most; end_s: latency of the end, or of the last that was received
    """

    network_s: float | None
    headers_s: float | None
    first_s: float | None
    end_s: float | None


# Object in the last event, or in an unstreamed answer → part → its key in there.
_IN_ANSWERS: Mapping[str, Mapping[str, str]] = {
    # vLLM with `--enable-per-request-metrics`: its time to the first token begins when the request leaves the queue
    # (`build_per_request_timing_metrics` of vllm/entrypoints/generate/base/serving.py).
    "metrics": {
        "queue_s": "queue_time_ms",
        "prefill_s": "time_to_first_token_ms",
        "decode_s": "generation_time_ms",
    },
    # llama.cpp (`server_slot_stats` of tools/server/server-common.h), which does not tell how long a request waited for its slot.
    "timings": {"prefill_s": "prompt_ms", "decode_s": "predicted_ms"},
}
# LiteLLM: its own time until it answers, all but the call of the server behind it (`response_timing_metrics` of
# litellm_core_utils/llm_response_utils/response_metadata.py).
OVERHEAD = "x-litellm-overhead-duration-ms"
# Envoy: from the end of the request until the headers come from the server behind it (docs/configuration/http/http_filters/
# router_filter.rst). Envoy's filters before its router, such as an endpoint picker's queue, are not in it.
UPSTREAM = "x-envoy-upstream-service-time"
# Time in a server until it sends headers, before a stream's first token or at it.
_UNTIL_HEADERS = (UPSTREAM, "x-litellm-timing-llm-api-ms", "openai-processing-ms")


def reported_parts(document: Mapping[str, Any]) -> TimeParts | None:
    """Read the parts that an event or an answer tells; None if it tells none."""
    for name, keys in _IN_ANSWERS.items():
        if isinstance(table := document.get(name), dict):
            values_ms = (table.get(keys[part]) if part in keys else None for part in TimeParts._fields)
            return TimeParts(*map(_seconds, values_ms))
    return None


def time_parts(headers: Mapping[str, str], reported: TimeParts, spans: Spans) -> TimeParts | None:
    """The parts of a probe's time that can be true; None if its server says nothing of it.

    If queue or prefill are known, the time until the headers is not a part, as it may contain them. Parts that do not fit together are
    all dropped, since it is unknown which of them is wrong. The network is dropped where it does not fit beside them: a host may
    acknowledge late, with the first bytes of its answer.
    """
    gateway_s, upstream_s = _header_s(headers, OVERHEAD), _header_s(headers, UPSTREAM)
    if upstream_s is not None and spans.network_s is not None:
        before_s = _left_s(spans.headers_s, (spans.network_s, upstream_s))
        gateway_s = gateway_s if before_s is None or before_s < 0 else (gateway_s or 0.0) + before_s
    until_headers_s = None
    if reported.queue_s is None and reported.prefill_s is None:  # the innermost server's: the others' contain it
        times_s = (_header_s(headers, name) for name in _UNTIL_HEADERS)
        until_headers_s = min((time_s for time_s in times_s if time_s is not None), default=None)
    first = _fitting(spans.headers_s, gateway_s, until_headers_s)
    first = _fitting(spans.first_s, *first, reported.queue_s, reported.prefill_s)
    (decode_s,) = _fitting(_left_s(spans.end_s, first), reported.decode_s)
    parts = TimeParts._make((None, *first, decode_s))
    if parts == NO_PARTS:
        return None
    network_s = spans.network_s
    for limit_s, beside in ((spans.headers_s, first[:2]), (spans.first_s, first), (spans.end_s, parts)):
        (network_s,) = _fitting(_left_s(limit_s, beside), network_s)
    return parts._replace(network_s=network_s)


def _fitting(limit_s: float | None, *parts_s: float | None) -> tuple[float | None, ...]:
    """The parts without those that are longer than the limit, or none if they are longer together, or if the limit is unknown."""
    most_s = -1.0 if limit_s is None else limit_s + ROUNDING_S
    fitting = tuple(part_s if part_s is not None and part_s <= most_s else None for part_s in parts_s)
    return fitting if _sum_s(fitting) <= most_s else (None,) * len(parts_s)


def _left_s(limit_s: float | None, parts_s: Iterable[float | None]) -> float | None:
    return None if limit_s is None else limit_s - _sum_s(parts_s)


def _sum_s(parts_s: Iterable[float | None]) -> float:
    return sum(part_s for part_s in parts_s if part_s is not None)


def _header_s(headers: Mapping[str, str], name: str) -> float | None:
    text = headers.get(name, "")
    return _seconds(float(text)) if _DECIMAL.fullmatch(text) else None


def _seconds(value_ms: Any) -> float | None:
    """Milliseconds as seconds; None if they are no possible duration."""
    is_number = type(value_ms) in (int, float) and 0 <= value_ms <= MAX_MS
    return value_ms / 1e3 if is_number else None
