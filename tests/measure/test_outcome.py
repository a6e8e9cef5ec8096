"""Classification of a probe's end into an outcome."""

from typing import Any

import pytest

from prober.measure.outcome import ExpectedAnswer, ObservedEnd, Outcome, Trait, Verdict, access_remedy, classify, having
from tests.wire.table import read_cases

GOOD = ObservedEnd(status=200, finish_reason="stop", done=True, content_chunks=5, completion_tokens=5)
RESET = Verdict(Outcome.RESET, "broke")


def end(**changes: Any) -> ObservedEnd:
    return ObservedEnd(**{**{name: getattr(GOOD, name) for name in GOOD.__slots__}, **changes})


# Words of the references of providers and of engines' enumerations.
DOCUMENTED_ENDS = (
    *("stop", "tool_calls", "function_call", "end_turn", "stop_sequence", "tool_use", "completed"),  # OpenAI, Anthropic
    *("STOP", "FINISH_REASON_STOP", "FinishReason.STOP", "REASON_STOP"),  # Gemini, its enumeration, Python's, xAI's
    *("COMPLETE", "STOP_SEQUENCE", "TOOL_CALL"),  # Cohere
    *(
        "eos",
        "eos_token",
        "stop_token",
        "end",
        "done",
        "normal",
        "repetition",
    ),  # Together AI, TGI, watsonx, Baidu, vLLM
    *("tool-calls", "endoftext"),  # Vercel's gateway, AI21
)
LIMITS = ("length", "max_tokens", "MAX_TOKENS", "max_output_tokens", "model_length", "token_limit", "REASON_MAX_LEN")
FAILURES = (
    *("error", "ERROR", "abort", "USER_CANCEL", "ERROR_TOXIC", "ERROR_LIMIT", "TIMEOUT", "time_limit", "network_error"),
    *("content_filter", "content-filter", "content_filtered", "guardrail_intervened", "sensitive", "blacklist"),
    *("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "LANGUAGE", "MALFORMED_FUNCTION_CALL"),
    *("malformed_model_output", "refusal", "pause_turn", "incomplete", "unload", "oom"),
)
CASES = [
    (GOOD, ExpectedAnswer(), Outcome.OK),
    (end(status=404), ExpectedAnswer(), Outcome.HTTP_404),
    (end(status=408), ExpectedAnswer(), Outcome.HTTP_408),
    (end(status=429), ExpectedAnswer(), Outcome.HTTP_429),
    (end(status=500), ExpectedAnswer(), Outcome.HTTP_5XX),
    (end(status=503), ExpectedAnswer(), Outcome.HTTP_5XX),
    *((end(status=status), ExpectedAnswer(), Outcome.REJECTED) for status in (301, 400, 401, 403, 413, 422)),
    (end(error="died"), ExpectedAnswer(), Outcome.ERROR_IN_STREAM),
    (end(finish_reason="abort"), ExpectedAnswer(), Outcome.ERROR_IN_STREAM),
    (end(malformed="{"), ExpectedAnswer(), Outcome.MALFORMED),
    (end(finish_reason=None, done=False), ExpectedAnswer(), Outcome.TRUNCATED),
    (end(finish_reason=None), ExpectedAnswer(), Outcome.TRUNCATED),
    (end(done=False), ExpectedAnswer(), Outcome.TRUNCATED),
    (end(done=False), ExpectedAnswer(end_mark=""), Outcome.OK),
    (end(content_chunks=0), ExpectedAnswer(), Outcome.EMPTY),
    (GOOD, ExpectedAnswer(tokens=6, forced=True), Outcome.SHORT),
    (GOOD, ExpectedAnswer(tokens=5, forced=True), Outcome.OK),
    (end(completion_tokens=None), ExpectedAnswer(tokens=6, forced=True), Outcome.SHORT),
    (end(completion_tokens=None), ExpectedAnswer(tokens=5, forced=True), Outcome.OK),
    (end(completion_tokens=None), ExpectedAnswer(tokens=6), Outcome.OK),
    (end(completion_tokens=None, finish_reason="length"), ExpectedAnswer(tokens=6, forced=True), Outcome.OK),
    (end(finish_reason="cancelled"), ExpectedAnswer(), Outcome.ERROR_IN_STREAM),
    (end(finish_reason="who_knows"), ExpectedAnswer(), Outcome.OK),
    (end(finish_reason="who_knows", done=False), ExpectedAnswer(), Outcome.TRUNCATED),
    (end(finish_reason="who_knows"), ExpectedAnswer(tokens=6, forced=True), Outcome.SHORT),
    *((end(finish_reason=reason), ExpectedAnswer(), Outcome.OK) for reason in (*DOCUMENTED_ENDS, *LIMITS)),
    *(
        (end(finish_reason=reason, completion_tokens=None), ExpectedAnswer(tokens=6, forced=True), Outcome.OK)
        for reason in LIMITS
    ),
    *((end(finish_reason=reason), ExpectedAnswer(), Outcome.ERROR_IN_STREAM) for reason in FAILURES),
    (end(transport_verdict=RESET, finish_reason="abort", done=False), ExpectedAnswer(), Outcome.ERROR_IN_STREAM),
    (end(transport_verdict=RESET, finish_reason=None, done=False), ExpectedAnswer(), Outcome.RESET),
    (
        end(transport_verdict=Verdict(Outcome.TIMEOUT_STALL), finish_reason=None, done=False),
        ExpectedAnswer(),
        Outcome.TIMEOUT_STALL,
    ),
    # A status or an error from the server explains why the connection broke afterwards.
    (
        end(transport_verdict=RESET, error="died", finish_reason=None, done=False),
        ExpectedAnswer(),
        Outcome.ERROR_IN_STREAM,
    ),
    (end(transport_verdict=RESET, status=503), ExpectedAnswer(), Outcome.HTTP_5XX),
    (end(transport_verdict=RESET), ExpectedAnswer(), Outcome.OK),
    (end(transport_verdict=Verdict(Outcome.CANCELLED)), ExpectedAnswer(), Outcome.CANCELLED),
    (ObservedEnd(transport_verdict=RESET), ExpectedAnswer(), Outcome.RESET),
]


@pytest.mark.parametrize(("observed", "expected", "outcome"), CASES)
def test_every_end_has_its_outcome(observed: ObservedEnd, expected: ExpectedAnswer, outcome: Outcome) -> None:
    """Each kind of end has the documented outcome, and every outcome but `ok` has a detail."""
    verdict = classify(observed, expected)
    assert verdict.outcome is outcome
    assert verdict.detail or outcome is Outcome.OK or observed.transport_verdict is not None


@pytest.mark.parametrize(
    ("detail", "setting", "remedy"),
    [
        ("HTTP 401: no", "", "the target has no `auth`: set bearer_token_file, or header and key_file"),
        ("HTTP 401: no", "headers.Api-Key", "give a valid key with access in headers.Api-Key"),
        ("HTTP 403", "auth.key_file", "give a valid key with access in auth.key_file, or let a firewall pass the prober"),
        ("GET h/v1/models: HTTP 401: no", "auth.key_file", "give a valid key with access in auth.key_file"),
        ("HTTP 402: pay", "auth.bearer_token_file", "the account of the key in auth.bearer_token_file needs money or a higher limit"),
        ("HTTP 400: a prompt of 403 tokens is too long", "auth.key_file", ""),
        ("HTTP 422: quota is no field", "auth.key_file", ""),
    ],
)  # fmt: skip
def test_a_refusal_for_access_or_money_names_the_setting(detail: str, setting: str, remedy: str) -> None:
    """And never the key. A refusal of the request itself has other remedies."""
    assert access_remedy(detail, setting) == remedy


def test_an_unknown_finish_reason_is_remarked() -> None:
    """An answer that is complete but for an unknown reason is ok, and its detail says so; a known reason has no remark."""
    assert "'room' is unknown" in classify(end(finish_reason="room"), ExpectedAnswer()).detail
    assert not classify(end(finish_reason="normal"), ExpectedAnswer()).detail


# The outcomes that carry each trait, as docs/methods.md and the judges need them: a new outcome is asked for its place in each.
TRAITS = {
    Trait.ANSWERED: "ok wrong_answer",
    Trait.NEUTRAL: "invalid cancelled over_budget rejected",
    Trait.SLOW: "timeout_first_token timeout_stall timeout_total http_408",
    Trait.SERVER_ENDS: "connect_refused connect_timeout reset truncated error_in_stream http_5xx",
    Trait.NO_LISTENER: "connect_refused dns",
    Trait.STANDSTILL: "dns connect_timeout tls http_408 truncated reset timeout_first_token timeout_stall timeout_total",
}
NOT_FROM_A_STREAM = {"dns", "connect_refused", "connect_timeout", "shed", "invalid", "cancelled", "over_budget"}


@pytest.mark.parametrize("trait", TRAITS, ids=lambda trait: trait.name)
def test_each_trait_belongs_to_the_outcomes_that_have_it(trait: Trait) -> None:
    """A judge that treats outcomes differently finds exactly these."""
    assert having(trait) == set(TRAITS[trait].split())


def test_every_outcome_has_exactly_one_class() -> None:
    """Every outcome is exactly one of answered, bad and neutral."""
    classes = Trait.ANSWERED, Trait.BAD, Trait.NEUTRAL
    assert {outcome: sum(each in outcome.traits for each in classes) for outcome in Outcome} == dict.fromkeys(
        Outcome, 1
    )


def test_every_outcome_has_a_stream_that_ends_so() -> None:
    """A new outcome needs a case in tests/wire/, or its name among those that no stream can cause."""
    seen = {verdict for case in read_cases() for verdict in case.verdicts}
    assert set(Outcome) - seen == NOT_FROM_A_STREAM
