"""How a probe ended: a closed list, and the one place that decides.

`ok` is earned: HTTP 2xx, an event stream that ended properly (a finish reason, then `[DONE]` where the engine sends it), at
least one chunk of content, and the length asked for where the engine can be forced to it.
"""

from dataclasses import dataclass
from enum import StrEnum

from prober.measure.quality import Expectation, mistake


class Outcome(StrEnum):
    """Every way a probe can end."""

    OK = "ok"
    WRONG_ANSWER = "wrong_answer"  # ended as properly, but a golden prompt was answered wrongly: bad for `quality` only
    # The target's doing: bad events of every SLO.
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
    # Not the target's doing: kept out of SLIs, counted apart.
    INVALID = "invalid"
    CANCELLED = "cancelled"
    OVER_BUDGET = "over_budget"
    REJECTED = "rejected"


NEUTRAL = frozenset({Outcome.INVALID, Outcome.CANCELLED, Outcome.OVER_BUDGET, Outcome.REJECTED})
ANSWERED = frozenset({Outcome.OK, Outcome.WRONG_ANSWER})
BAD = frozenset(Outcome) - NEUTRAL - ANSWERED


@dataclass(frozen=True, slots=True)
class Verdict:
    """An outcome and, unless it is `ok`, one sentence that says what was seen."""

    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Ending:
    """What was seen of a request that reached its server.

    broken: a verdict the transport reached by itself (refused, reset, timed out, cancelled), or None for a clean end
    status: HTTP status, or None if no status line came
    error: message of an error object sent inside a 2xx answer; malformed: why the body cannot be read
    done: `[DONE]` was seen; content: chunks that carried content; answer: the text, where it is to be judged
    """

    broken: Verdict | None = None
    status: int | None = None
    status_detail: str = ""
    error: str | None = None
    malformed: str | None = None
    finish_reason: str | None = None
    done: bool = False
    content: int = 0
    completion_tokens: int | None = None
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Promise:
    """What a proper answer to this request must have kept."""

    streamed: bool = True
    sends_done: bool = True
    forced_tokens: int | None = None
    expectation: Expectation | None = None


def classify_status(status: int, detail: str) -> Verdict | None:
    """The verdict of an HTTP status alone, None for 2xx."""
    said = f"HTTP {status}" + (f": {detail}" if detail else "")
    if 200 <= status < 300:
        return None
    if status == 404:
        return Verdict(Outcome.HTTP_404, said)
    if status == 408:
        return Verdict(Outcome.HTTP_408, said)
    if status == 429:
        return Verdict(Outcome.HTTP_429, said)
    if status >= 500:
        return Verdict(Outcome.HTTP_5XX, said)
    if 300 <= status < 400:
        return Verdict(Outcome.REJECTED, f"{said}: redirects are not followed; set the target's url to where it leads")
    return Verdict(Outcome.REJECTED, said)


def unreadable(problem: Exception) -> Verdict:
    """The verdict on an answer over which the prober itself failed: only what the server sent can have caused it."""
    said = (
        f"the prober failed to read this answer ({type(problem).__name__}); please report it with the trace in the log"
    )
    return Verdict(Outcome.MALFORMED, said)


def classify(ending: Ending, promise: Promise) -> Verdict:
    """The verdict on a request that was sent in time; lateness, budget and shedding are decided before it is sent.

    The order is that of evidence: what the server said (a status, an error object) explains a broken connection after it,
    and a stream that had properly ended is not spoilt by how its connection was closed.
    """
    if ending.broken and ending.broken.outcome is Outcome.CANCELLED:
        return ending.broken
    if ending.status is not None and (verdict := classify_status(ending.status, ending.status_detail)):
        return verdict
    if ending.error is not None:
        return Verdict(Outcome.ERROR_IN_STREAM, f"error inside a {ending.status} answer: {ending.error}")
    if ending.malformed is not None:
        return Verdict(Outcome.MALFORMED, ending.malformed)
    ended = ending.finish_reason is not None and (ending.done or not promise.sends_done or not promise.streamed)
    if ending.broken and not (ended and ending.broken.outcome in (Outcome.RESET, Outcome.TRUNCATED)):
        return ending.broken
    if ending.finish_reason is None:
        return Verdict(
            Outcome.TRUNCATED, f"the stream ended without a finish reason after {ending.content} content chunks"
        )
    if not ended:
        return Verdict(Outcome.TRUNCATED, f"finish reason {ending.finish_reason!r}, but no [DONE]")
    if ending.finish_reason in ("error", "abort"):
        return Verdict(Outcome.ERROR_IN_STREAM, f"the engine gave finish reason {ending.finish_reason!r}")
    if not ending.content:
        return Verdict(Outcome.EMPTY, "the answer ended properly but had no content")
    asked, got = promise.forced_tokens, ending.completion_tokens
    if asked is not None and got is not None and got < asked:
        return Verdict(Outcome.SHORT, f"{got} tokens where {asked} were forced")
    if promise.expectation and (wrong := mistake(promise.expectation, ending.answer)):
        return Verdict(Outcome.WRONG_ANSWER, wrong)
    return Verdict(Outcome.OK)
