"""Guards of a load beside other requests."""

from dataclasses import replace

from prober.measure.engine_signals import EngineInfo, EngineSignals
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.probing.stop_conditions import LoadGuard

VLLM, S = EngineInfo("vllm"), 10**9


def ended(outcome: Outcome) -> ProbeResult:
    return ProbeResult("t", "w", "id", 0.0, outcome, "", Timeline(0))


Readings = list[tuple[int, EngineSignals]]


def guard(*pages: EngineSignals) -> LoadGuard:
    """A guard that has looked at these pages, each 0.5 s after the one before it; the first of all is of before the load.

    TTFT threshold 0.5 s, 20 requests a second; three thresholds are a queue of 30.
    """
    readings: Readings = [(0, EngineSignals(VLLM, requests_waiting=0.0, preemptions_total=5.0))]
    load = LoadGuard(0.5, 20.0, readings, 0)
    readings += [(number * S // 2, page) for number, page in enumerate(pages, 1)]
    load.look(len(pages) * S // 2, 0.0)
    return load


def test_requests_that_wait_are_no_harm_up_to_three_thresholds() -> None:
    """That is what an overload is for; beyond it the load ends, and the first harm is the reason."""
    waiting = [EngineSignals(VLLM, requests_waiting=count, preemptions_total=5.0) for count in (29.0, 31.0)]
    load = guard(waiting[0])
    load.look(S, 1.5)
    assert load.harm == ""
    assert guard(*waiting).harm == "the engine's page shows too much waiting"
    for wait_s in (1.51, 9.0):
        load.look(S, wait_s)
    assert load.harm == "a TTFT of 1.51 s or more, over 3 times the threshold"
    late = replace(ended(Outcome.OK), timeline=Timeline(0, first_ns=2 * S, end_ns=2 * S))
    load = guard()
    load.result(late, is_of_load=True)
    assert load.harm == ""
    load.result(late)
    assert load.harm.startswith("a TTFT of 2 s")


def test_failures_end_it_and_a_single_one_does_not() -> None:
    """More than a tenth, two at least; successes beside them do not hide those."""
    load = guard()
    for outcome in (*[Outcome.OK] * 10, Outcome.HTTP_429):
        load.result(ended(outcome))
    assert load.harm == ""
    load.result(ended(Outcome.HTTP_429))
    assert load.harm == "2 of 12 requests failed, the last with http_429; with shed_allowed it goes on"


def test_shed_requests_are_no_harm_with_consent_and_other_failures_are() -> None:
    """429, and 503 with Retry-After; a 503 without it counts, and so does a late answer."""
    load = LoadGuard(0.5, 20.0, [], 0, shed_allowed=True)
    for _ in range(5):
        load.result(ended(Outcome.HTTP_429))
        load.result(replace(ended(Outcome.HTTP_5XX), detail="HTTP 503: busy", retry_after_s=1.0))
    assert load.harm == ""
    for _ in range(2):
        load.result(replace(ended(Outcome.HTTP_5XX), detail="HTTP 503: broken"))
    assert load.harm == "2 of 12 requests failed, the last with http_5xx"


def test_a_full_cache_preemptions_and_a_lost_page_end_it() -> None:
    """Preemptions of before the load are not its own."""
    full = guard(EngineSignals(VLLM, kv_cache_usage_ratio_max=0.99, preemptions_total=5.0))
    assert full.harm == "the engine's page shows too much kv usage"
    preempted = guard(EngineSignals(VLLM, preemptions_total=10.0))
    assert preempted.harm == "the engine's page shows too much preemptions"
    load = guard()
    load.look(29 * S // 10, 0.0)
    assert load.harm == ""
    load.look(31 * S // 10, 0.0)
    assert load.harm == "no reading of the engine's page for 3.1 s"


def test_a_restarted_engine_and_a_prober_that_cannot_send_end_it() -> None:
    """Of the last requests it leaves out more than a fifth: the load is another one then."""
    assert "restarted" in guard(EngineSignals(VLLM, requests_waiting=0.0, preemptions_total=0.0)).harm
    load = guard()
    outcomes = [*[Outcome.OK] * 16, *[Outcome.INVALID] * 4]
    for outcome in outcomes:
        load.result(ended(outcome))
    assert load.harm == "", "a fifth"
    load.result(ended(Outcome.INVALID))
    remedy = "send fewer requests a second, give the prober more CPU, or add --workers"
    assert load.harm == f"the prober did not send 5 of the last 20 requests; {remedy}"
