"""Outcomes of a probe: the closed list, and the classifier that chooses one.

An outcome is one line of `Outcome`: name, traits, and meaning for users. Code that treats outcomes differently uses only
their traits, so that a new one is treated correctly everywhere.
"""

import re
from dataclasses import dataclass
from enum import Flag, StrEnum, auto
from typing import Literal

from prober.measure.printable import one_line


class Trait(Flag):
    """What an outcome implies. Each outcome has exactly one of the first three traits."""

    ANSWERED = auto()  # a complete answer, with latencies
    BAD = auto()  # fault of the target: a bad event of every SLO
    NEUTRAL = auto()  # perhaps not the target's fault: no event of any SLO, counted separately
    SLOW = auto()  # the target was too slow to answer
    SERVER_ENDS = auto()  # typical of requests to a server that ends
    NO_LISTENER = auto()  # no process listens at the address
    STANDSTILL = auto()  # a standstill of the prober can cause it: servers disconnect clients that are silent


class Outcome(StrEnum):
    """Every way in which a probe can end, with traits and the meaning that the documentation shows."""

    traits: Trait
    meaning: str

    def __new__(cls, value: str, traits: Trait, meaning: str) -> "Outcome":
        """Create the member with its traits and meaning."""
        outcome = str.__new__(cls, value)
        outcome._value_, outcome.traits, outcome.meaning = value, traits, meaning
        return outcome

    OK = "ok", Trait.ANSWERED, "a complete answer"
    WRONG_ANSWER = "wrong_answer", Trait.ANSWERED, "a complete answer that was checked and is wrong"
    DNS = "dns", Trait.BAD | Trait.NO_LISTENER | Trait.STANDSTILL, "the host's name cannot be resolved"
    CONNECT_REFUSED = "connect_refused", Trait.BAD | Trait.NO_LISTENER | Trait.SERVER_ENDS, "nothing listens there"
    CONNECT_TIMEOUT = "connect_timeout", Trait.BAD | Trait.SERVER_ENDS | Trait.STANDSTILL, "no connection in time"
    TLS = "tls", Trait.BAD | Trait.STANDSTILL, "the handshake failed, or the certificate is refused"
    HTTP_404 = "http_404", Trait.BAD, "status 404"
    HTTP_408 = "http_408", Trait.BAD | Trait.SLOW | Trait.STANDSTILL, "status 408"
    HTTP_429 = "http_429", Trait.BAD, "status 429"
    HTTP_5XX = "http_5xx", Trait.BAD | Trait.SERVER_ENDS, "status 500 to 599"
    TIMEOUT_FIRST_TOKEN = "timeout_first_token", Trait.BAD | Trait.SLOW | Trait.STANDSTILL, "no token in time"
    TIMEOUT_STALL = "timeout_stall", Trait.BAD | Trait.SLOW | Trait.STANDSTILL, "no further token in time"
    TIMEOUT_TOTAL = "timeout_total", Trait.BAD | Trait.SLOW | Trait.STANDSTILL, "no end in time"
    TRUNCATED = "truncated", Trait.BAD | Trait.SERVER_ENDS | Trait.STANDSTILL, "closed cleanly before its proper end"
    RESET = "reset", Trait.BAD | Trait.SERVER_ENDS | Trait.STANDSTILL, "the connection broke"
    ERROR_IN_STREAM = "error_in_stream", Trait.BAD | Trait.SERVER_ENDS, "a 2xx answer that reports a failure"
    MALFORMED = "malformed", Trait.BAD, "no event stream, or not what the API says"
    EMPTY = "empty", Trait.BAD, "no content"
    SHORT = "short", Trait.BAD, "fewer tokens than were forced"
    SHED = "shed", Trait.BAD, "not sent: too many probes, or all sessions, waited for an answer"
    INVALID = "invalid", Trait.NEUTRAL, "sent too late, or perhaps spoilt, by the prober itself"
    CANCELLED = "cancelled", Trait.NEUTRAL, "ended by the prober"
    OVER_BUDGET = "over_budget", Trait.NEUTRAL, "not sent: the budget is used up"
    REJECTED = (
        "rejected",
        Trait.NEUTRAL,
        "refused by the server: 3xx, 400, 401, 402, 403, 413, 422, other 4xx; 429 for want of money",
    )


def having(trait: Trait) -> frozenset[Outcome]:
    """The outcomes with a trait."""
    return frozenset(outcome for outcome in Outcome if trait in outcome.traits)


FAR_MORE = 2  # an answer of this many times the requested length is far longer
STATUSES = {404: Outcome.HTTP_404, 408: Outcome.HTTP_408, 429: Outcome.HTTP_429}
NO_CONTENT = (204, 205)  # statuses without a body
ANSWERED, BAD, NEUTRAL = having(Trait.ANSWERED), having(Trait.BAD), having(Trait.NEUTRAL)
# Finish reasons, in the form of `reason_word`. Sources: the API references of OpenAI (chat; Responses: `status` and
# `incomplete_details.reason`), Anthropic, Google (Gemini), Cohere, Mistral, DeepSeek, Azure, OpenRouter, IBM (watsonx), AWS (Bedrock),
# Baidu, Zhipu and xAI; `FinishReason` of vLLM, SGLang and TGI; the table of finish reasons of LiteLLM.
# For a token limit: an answer that was forced to a length and ended for another reason is too short.
LENGTH_REASONS = frozenset(
    {
        *("length", "max_tokens", "max_output_tokens", "max_length", "max_len", "token_limit"),
        *("model_length", "max_context", "model_context_window_exceeded"),  # the model's context was full
    }
)
CALL_REASONS = frozenset({"tool_calls", "tool_call", "tool_use", "function_call"})
PROPER_REASONS = LENGTH_REASONS.union(
    CALL_REASONS,
    ("stop", "stop_sequence", "stop_token", "end_turn", "end", "eos", "eos_token", "endoftext"),
    ("complete", "completed", "done", "normal", "repetition"),
)
# Parts of other reasons that name a failure, and their meaning.
FAILURES = {
    re.compile(part): meaning
    for part, meaning in {
        "abort|cancel|interrupt|terminated|killed|disconnect": "the request was aborted",
        "time_?d?_?out|time_limit|deadline": "a time limit of the server passed",
        "pause_turn": "the server paused the turn, and the answer goes on in another request",
        "incomplete|in_progress|queued": "the answer is incomplete",
        "insufficient|exhaust|overload|unavailable|out_of_memory|(^|_)oom(_|$)|rate_limit|quota": "the engine ran out of resources",
        "filter|block(ed|list)|blacklist|safety|sensitive|toxic|armor|^language$": "a filter stopped the answer",
        "refus|guard|prohibit|moderat|policy|recitation|spii": "a classifier stopped the answer",
        "error|fail|exception|crash|unload|malformed|invalid|_tool_calls?$": "the engine failed",
    }.items()
}
_REASON_PREFIX = re.compile(r"(finish_?)?reason[._]")  # prefix of enumerations, as in `FINISH_REASON_STOP`


def reason_word(reason: str | None) -> str:
    """A finish reason as a word in lower case with `_`, without the name of its enumeration; "" for None."""
    word = re.sub(r"[\s-]+", "_", (reason or "").strip().lower())
    prefix = _REASON_PREFIX.match(word)
    return word[prefix.end() :] if prefix else word


@dataclass(frozen=True, slots=True)
class Verdict:
    """An outcome, and unless it is `ok` the evidence as one printable line, which may quote the server."""

    outcome: Outcome
    detail: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", one_line(self.detail))


@dataclass(frozen=True, slots=True)
class ObservedEnd:
    """What was observed about a request that was sent.

    transport_verdict: verdict of the transport alone (refused, reset, timed out, cancelled); None for a clean end
    status: HTTP status, or None if no status line arrived
    error: message of an error object inside a 2xx answer
    malformed: why the body cannot be parsed
    done: `[DONE]` was received
    content_chunks: number of chunks with content
    stray_text: first text that the server sent outside any event
    hides_reasoning: the model generated reasoning that was not sent
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
    """What a complete answer must have.

    end_mark: text or event that ends the stream, such as `[DONE]`; "" if the API has none, or without a stream
    tokens: requested length, None if unknown
    forced: the engine must generate exactly that many tokens
    """

    end_mark: str = "[DONE]"
    tokens: int | None = None
    forced: bool = False


# Refusals for want of money, which waiting does not end. Sources: OpenAI's error codes (429, `insufficient_quota`), LiteLLM
# (429 or 400, `budget_exceeded`), Anthropic's errors (402, `billing_error`; 400, "Your credit balance is too low").
_SPENT_429 = re.compile(r"\b(insufficient_quota|budget_exceeded)\b")
_UNPAID = re.compile(rf"\bHTTP 402\b|{_SPENT_429.pattern}|\bbilling_error\b|credit balance is too low")
_NO_ACCESS = re.compile(r"\bHTTP (401|403)\b")
RefusalKind = Literal["access", "payment", "request"]


def classify_status(status: int, detail: str) -> Verdict | None:
    """The verdict that an HTTP status implies, of 429 with the server's words; None for 2xx."""
    if 200 <= status < 300:
        return None
    text = f"HTTP {status}" + (f": {detail}" if detail else "")
    if status == 429 and _SPENT_429.search(detail):
        return Verdict(Outcome.REJECTED, text)
    return Verdict(STATUSES.get(status, Outcome.HTTP_5XX if status >= 500 else Outcome.REJECTED), text)


def refusal_kind(detail: str) -> RefusalKind:
    """What a refusal is about, by the detail of its verdict: the key's access, the account's money, or the request itself."""
    return "payment" if _UNPAID.search(detail) else "access" if _NO_ACCESS.search(detail) else "request"


def access_remedy(detail: str, setting: str) -> str:
    """What to change after a refusal for access or payment; "" for others. setting: configuration key of the sent key; "" for none"""
    kind = refusal_kind(detail)
    if kind == "payment":
        return f"the account of {f'the key in {setting}' if setting else 'this target'} needs money or a higher limit"
    if kind == "access" and not setting:
        return "the target has no `auth`: set bearer_token_file, or header and key_file"
    valid = f"give a valid key with access in {setting}"
    return "" if kind == "request" else valid if "HTTP 401" in detail else f"{valid}, or let a firewall pass the prober"


def classify(end: ObservedEnd, expected: ExpectedAnswer) -> Verdict:
    """Judge a request that was sent. Decisions before sending (budget, shedding) and later checks (of the content in `checked`, and of
    the prober's own lateness) are made elsewhere.

    Stronger evidence is checked first: a status or an error object from the server explains a broken connection after it, and
    how the connection was closed does not matter once the stream has ended properly.
    """
    if end.transport_verdict and end.transport_verdict.outcome is Outcome.CANCELLED:
        return end.transport_verdict
    if verdict := _server_failure(end):
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


def _server_failure(end: ObservedEnd) -> Verdict | None:
    """The verdict if the server reports an error or sends malformed data, else None."""
    if end.status is not None and (verdict := classify_status(end.status, end.status_detail)):
        return verdict
    if end.error is not None:
        return Verdict(Outcome.ERROR_IN_STREAM, f"error inside a {end.status} answer: {end.error}")
    if end.malformed is not None:
        return Verdict(Outcome.MALFORMED, end.malformed)
    word = reason_word(end.finish_reason)
    meaning = next((meaning for part, meaning in FAILURES.items() if part.search(word)), None)
    if meaning is None or word in PROPER_REASONS:
        return None
    return Verdict(Outcome.ERROR_IN_STREAM, f"finish reason {end.finish_reason!r}: {meaning}")


def _content_verdict(end: ObservedEnd, expected: ExpectedAnswer) -> Verdict:
    """The verdict on a properly ended answer."""
    has_only_reasoned, word = end.hides_reasoning and not end.content_chunks, reason_word(end.finish_reason)
    if not end.content_chunks and not (has_only_reasoned and word in LENGTH_REASONS):
        reasoned = ", only hidden reasoning" if has_only_reasoned else ""
        return Verdict(Outcome.EMPTY, f"the answer ended properly but had no content{reasoned}")
    if expected.forced and (short := _shortfall(end, expected.tokens)):
        return Verdict(Outcome.SHORT, short)
    remarks = []
    received = max(end.completion_tokens or 0, end.content_chunks)
    if expected.tokens is not None and received > FAR_MORE * expected.tokens:
        remarks.append(f"at least {received} tokens although {expected.tokens} were requested")
    elif has_only_reasoned:
        remarks.append("hidden reasoning used up the limit of tokens before an answer; request more output tokens")
    if word not in PROPER_REASONS:
        remarks.append(f"finish reason {end.finish_reason!r} is unknown: the answer is taken as complete")
    return Verdict(Outcome.OK, "; ".join(remarks))


def checked(verdict: Verdict, end: ObservedEnd, problem: str) -> Verdict:
    """The verdict on a properly ended answer after its check. problem: fault that the check found; "" for none"""
    if not problem:
        return verdict
    is_cut = reason_word(end.finish_reason) in LENGTH_REASONS
    why = (verdict.detail or "the answer reached its limit of tokens") if is_cut else ""
    return Verdict(Outcome.WRONG_ANSWER, f"{problem} ({why})" if why else problem)


def _shortfall(end: ObservedEnd, tokens: int | None) -> str | None:
    """Describe how an answer is shorter than the forced length; None if it is not.

    Without usage, chunks are counted. `tokens` chunks are enough, as each has at least one token; fewer prove nothing if a limit
    ended the answer.
    """
    if tokens is None:
        return None
    if end.completion_tokens is not None:
        return (
            f"{end.completion_tokens} tokens although {tokens} were forced" if end.completion_tokens < tokens else None
        )
    if reason_word(end.finish_reason) in LENGTH_REASONS or end.content_chunks >= tokens:
        return None
    return f"finish reason {end.finish_reason!r} after {end.content_chunks} chunks although {tokens} tokens were forced"


def _with_stray_text(verdict: Verdict, end: ObservedEnd) -> Verdict:
    """Add the text that the server wrote outside the event stream to the verdict."""
    return Verdict(verdict.outcome, f"{verdict.detail}; it said {end.stray_text!r}") if end.stray_text else verdict
