"""Outcomes of a probe: the closed list, and the classifier that decides between them.

`ok` requires all of: HTTP 2xx, an event stream that ended properly (a finish reason, then `[DONE]` where the engine sends it), at
least one chunk with content, and the requested length where the engine can be forced to it.
"""

from dataclasses import dataclass
from enum import StrEnum

from prober.measure.printable import one_line


class Outcome(StrEnum):
    """Every way a probe can end."""

    OK = "ok"
    WRONG_ANSWER = "wrong_answer"  # ended properly, but the answer was checked and is wrong: bad for `quality` only
    # Failures of the target: bad events of every SLO.
    DNS = "dns"
    CONNECT_REFUSED = "connect_refused"
    CONNECT_TIMEOUT = "connect_timeout"
    TLS = "tls"
    HTTP_404 = "http_404"
    HTTP_408 = "http_408"
    HTTP_429 = "http_429"
    HTTP_5XX = "http_5xx"
    TIMEOUT_FIRST_TOKEN = "timeout_first_token"
    TIMEOUT_STALL = "timeout_stall"
    TIMEOUT_TOTAL = "timeout_total"
    TRUNCATED = "truncated"
    RESET = "reset"
    ERROR_IN_STREAM = "error_in_stream"
    MALFORMED = "malformed"
    EMPTY = "empty"
    SHORT = "short"
    SHED = "shed"
    # Not caused by the target: excluded from SLIs, counted separately.
    INVALID = "invalid"
    CANCELLED = "cancelled"
    OVER_BUDGET = "over_budget"
    REJECTED = "rejected"


FAR_MORE = 2  # times the requested length, and an answer is far longer than that
STATUSES = {404: Outcome.HTTP_404, 408: Outcome.HTTP_408, 429: Outcome.HTTP_429}
NO_CONTENT = (204, 205)  # statuses of answers without a body
NEUTRAL = frozenset({Outcome.INVALID, Outcome.CANCELLED, Outcome.OVER_BUDGET, Outcome.REJECTED})
ANSWERED = frozenset({Outcome.OK, Outcome.WRONG_ANSWER})
BAD = frozenset(Outcome) - NEUTRAL - ANSWERED
# Reasons with which an answer ends, by API and engine: those of a complete one, and those that tell of a failure. One in neither table
# is a failure too, because it is unknown whether such an answer is complete. Sources: the API references of OpenAI (chat, Responses:
# `status` and `incomplete_details.reason`) and Anthropic (Messages); vLLM's and TGI's `FinishReason`; the references of DeepSeek, Azure
# and OpenRouter.
PROPER_REASONS = frozenset(
    {
        *("stop", "length", "tool_calls", "function_call"),
        *("completed", "max_output_tokens"),  # Responses
        *("end_turn", "max_tokens", "stop_sequence", "tool_use"),  # Messages
    }
)
UNKNOWN_ENGINES = frozenset({"", "openai", "litellm"})
PROPER_REASONS_OF_ENGINES = {"vllm": frozenset({"repetition"}), "tgi": frozenset({"eos_token"})}
# Reasons of a limit of tokens. An answer that was forced to a length and ended for another reason is shorter than that.
LENGTH_REASONS = frozenset({"length", "max_tokens", "max_output_tokens"})
FAILURE_REASONS = {
    "abort": "the engine aborted the request",
    "aborted": "the engine aborted the request",
    "cancelled": "the request was cancelled",
    "canceled": "the request was cancelled",
    "content_filter": "a content filter cut the answer",
    "error": "the engine failed",
    "failed": "the engine failed",
    "insufficient_system_resource": "the engine ran out of resources",
    "model_context_window_exceeded": "the context of the model was full",
    "network_error": "a connection inside the server failed",
    "pause_turn": "the server paused the turn, and the answer goes on in another request",
    "refusal": "a classifier stopped the answer",
    "server_error": "the engine failed",
    "timeout": "a time limit of the server passed",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """An outcome and, unless it is `ok`, the evidence as one printable line, which may quote the server."""

    outcome: Outcome
    detail: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", one_line(self.detail))


@dataclass(frozen=True, slots=True)
class ObservedEnd:
    """Observations of a request that was sent.

    transport_verdict: verdict of the transport alone (refused, reset, timed out, cancelled), or None for a clean end
    status: HTTP status, or None if no status line arrived
    error: message of an error object inside a 2xx answer
    malformed: why the body cannot be parsed
    done: `[DONE]` was received
    content_chunks: number of chunks with content
    stray_text: first text that the server sent outside any event
    hides_reasoning: the model generated reasoning that the server did not send
    """

    transport_verdict: Verdict | None = None
    status: int | None = None
    status_detail: str = ""
    error: str | None = None
    malformed: str | None = None
    finish_reason: str | None = None
    done: bool = False
    content_chunks: int = 0
    completion_tokens: int | None = None
    stray_text: str = ""
    hides_reasoning: bool = False


@dataclass(frozen=True, slots=True)
class ExpectedAnswer:
    """Requirements of a complete answer.

    end_mark: text or event that ends the stream, such as `[DONE]`; "" if the API has none, or if no stream was requested
    engine: name of the engine, which decides the valid finish reasons
    tokens: requested length, None if unknown
    forced: the engine was told to generate exactly that many tokens
    """

    end_mark: str = "[DONE]"
    engine: str = ""
    tokens: int | None = None
    forced: bool = False


def classify_status(status: int, detail: str) -> Verdict | None:
    """Returns the verdict that an HTTP status alone implies, None for 2xx."""
    if 200 <= status < 300:
        return None
    text = f"HTTP {status}" + (f": {detail}" if detail else "")
    return Verdict(STATUSES.get(status, Outcome.HTTP_5XX if status >= 500 else Outcome.REJECTED), text)


def classify(end: ObservedEnd, expected: ExpectedAnswer) -> Verdict:
    """Returns the verdict on a request that was sent. It does not cover decisions before the sending (budget, shedding) and checks
    after it (the content of the answer, in `checked`, and the prober's own lateness).

    Checks run in order of evidence: a status or an error object from the server explains a broken connection that follows it, and
    how the connection was closed does not matter once the stream has ended properly.
    """
    if end.transport_verdict and end.transport_verdict.outcome is Outcome.CANCELLED:
        return end.transport_verdict
    if verdict := _server_failure(end, expected.engine):
        return verdict
    if end.status in NO_CONTENT:
        return Verdict(Outcome.EMPTY, f"HTTP {end.status}: no content")
    has_ended = end.finish_reason is not None and end.done
    if end.transport_verdict and not (
        has_ended and end.transport_verdict.outcome in (Outcome.RESET, Outcome.TRUNCATED)
    ):
        return _with_stray_text(end.transport_verdict, end)
    if end.finish_reason is None:
        missing = "a finish reason" if end.done or expected.end_mark in ("", "[DONE]") else expected.end_mark
        detail = f"the stream ended without {missing} after {end.content_chunks} content chunks"
        return _with_stray_text(Verdict(Outcome.TRUNCATED, detail), end)
    if not has_ended and expected.end_mark:
        return Verdict(Outcome.TRUNCATED, f"finish reason {end.finish_reason!r}, but no {expected.end_mark}")
    return _content_verdict(end, expected)


def _server_failure(end: ObservedEnd, engine: str) -> Verdict | None:
    """The verdict if the server reports an error or sends malformed data; None if not."""
    if end.status is not None and (verdict := classify_status(end.status, end.status_detail)):
        return verdict
    if end.error is not None:
        return Verdict(Outcome.ERROR_IN_STREAM, f"error inside a {end.status} answer: {end.error}")
    if end.malformed is not None:
        return Verdict(Outcome.MALFORMED, end.malformed)
    reason = end.finish_reason
    proper = PROPER_REASONS | PROPER_REASONS_OF_ENGINES.get(engine, frozenset())
    if engine in UNKNOWN_ENGINES:
        proper = proper.union(*PROPER_REASONS_OF_ENGINES.values())
    if reason is None or reason in proper:
        return None
    meaning = FAILURE_REASONS.get(reason, "unknown: the prober cannot tell whether the answer is complete")
    return Verdict(Outcome.ERROR_IN_STREAM, f"finish reason {reason!r}: {meaning}")


def _content_verdict(end: ObservedEnd, expected: ExpectedAnswer) -> Verdict:
    """The verdict on an answer that ended properly."""
    has_only_reasoned = end.hides_reasoning and not end.content_chunks
    if not end.content_chunks and not (has_only_reasoned and end.finish_reason in LENGTH_REASONS):
        reasoned = ", only hidden reasoning" if has_only_reasoned else ""
        return Verdict(Outcome.EMPTY, f"the answer ended properly but had no content{reasoned}")
    if expected.forced and (short := _shortfall(end, expected.tokens)):
        return Verdict(Outcome.SHORT, short)
    received = max(end.completion_tokens or 0, end.content_chunks)
    if expected.tokens is not None and received > FAR_MORE * expected.tokens:
        return Verdict(Outcome.OK, f"at least {received} tokens although {expected.tokens} were requested")
    if has_only_reasoned:
        return Verdict(
            Outcome.OK, "hidden reasoning used up the limit of tokens before an answer; request more output tokens"
        )
    return Verdict(Outcome.OK)


def checked(verdict: Verdict, end: ObservedEnd, problem: str) -> Verdict:
    """Returns the verdict on an answer that ended properly and was checked. problem: fault that the check found, "" if none"""
    if not problem:
        return verdict
    is_cut = end.finish_reason in LENGTH_REASONS
    why = (verdict.detail or "the answer reached its limit of tokens") if is_cut else ""
    return Verdict(Outcome.WRONG_ANSWER, f"{problem} ({why})" if why else problem)


def _shortfall(end: ObservedEnd, tokens: int | None) -> str | None:
    """Returns a text if an answer is shorter than the forced length, else None.

    Without usage, chunks are counted. `tokens` chunks are enough, as a chunk has at least one token; fewer prove nothing if a limit
    ended the answer.
    """
    if tokens is None:
        return None
    if end.completion_tokens is not None:
        return (
            f"{end.completion_tokens} tokens although {tokens} were forced" if end.completion_tokens < tokens else None
        )
    if end.finish_reason in LENGTH_REASONS or end.content_chunks >= tokens:
        return None
    return f"finish reason {end.finish_reason!r} after {end.content_chunks} chunks although {tokens} tokens were forced"


def _with_stray_text(verdict: Verdict, end: ObservedEnd) -> Verdict:
    """Returns the verdict with the text that the server wrote outside the event stream."""
    return Verdict(verdict.outcome, f"{verdict.detail}; it said {end.stray_text!r}") if end.stray_text else verdict
