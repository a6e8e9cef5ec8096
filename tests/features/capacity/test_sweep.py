"""The sweep's machine: fed by hand for each guard, and driven in virtual time against the simulated engine for its verdicts."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from prober.config.sweep import GuardSpec, LimitsSpec, SweepSpec
from prober.config.target import BudgetSpec, PriceSpec
from prober.features.capacity.actions import Estimate, Finished, OtherLoad, Reason, Run
from prober.features.capacity.estimate import estimate_capacity
from prober.features.capacity.sweep import GENTLE_ANSWERS, Sweep
from prober.measure.chunk import Usage
from prober.measure.engine_signals import EngineHistogram, EngineInfo, EngineSignals
from prober.measure.objective import Signal, Slo
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.target_state import UNTIL_STEADY, WarmUpLength
from prober.measure.timeline import Timeline
from prober.results.capacity import Capacity, Verdict
from prober.results.stop_reason import ending
from prober.simulation.faults import Crash, Slow
from prober.simulation.parameters import Parameters
from prober.workload.shapes import Lognormal
from tests.features.capacity.simulated_sweep import (
    CLOCK_S,
    LEAD_S,
    Driver,
    SimulatedTarget,
    Workload,
    breaches,
    longest_run_s,
    sweep_spec,
)

TTFT = Slo("ttft", "ttft", 0.5, Decimal("0.99"), 3_600.0)
PAGE = EngineSignals(
    EngineInfo("vllm", "1"),
    ranks=1,
    requests_running=0.0,
    requests_waiting=0.0,
    kv_cache_usage_ratio_max=0.1,
    preemptions_total=0.0,
    prompt_tokens_total=0.0,
    generation_tokens_total=0.0,
    requests_finished_total=0.0,
    start_time_seconds=100.0,
)


NO_WARM_UP = WarmUpLength(0)
BUDGET = BudgetSpec(price_per_million=PriceSpec(prompt=1_000, completion=1_000))


def plan(mode: str = "adaptive", **changes: object) -> SweepSpec:
    return sweep_spec(TTFT, mode=mode, **changes)


def result(
    name: str, at_s: float, ttft_s: float = 0.1, outcome: Outcome = Outcome.OK, e2e_s: float = 0.4
) -> ProbeResult:
    begin = round(at_s * 1e9)
    stamps = tuple(begin + round((ttft_s + i * (e2e_s - ttft_s) / 4) * 1e9) for i in range(5))
    ok = outcome is Outcome.OK
    timeline = Timeline(begin, sent_ns=begin, first_ns=stamps[0] if ok else None, content_ns=stamps if ok else ())
    timeline = replace(timeline, end_ns=stamps[-1] if ok else None, usage=Usage(100, 5) if ok else None)
    return ProbeResult(
        "t", "w", name, 0.0, outcome, "told", timeline, requested_prompt_tokens=100, requested_output_tokens=5
    )


class Hand:
    """Feeds a machine by hand. Time is that of the sweep."""

    def __init__(self, spec: SweepSpec, warm_up: WarmUpLength = NO_WARM_UP, **more: Any) -> None:
        self.sweep = Sweep(spec, 0.0, warm_up, budget=BUDGET, **more)
        self.count = 0

    def send(self, at_s: float) -> str:
        self.count += 1
        self.sweep.sent(f"r{self.count}", at_s, 100, 5)
        return f"r{self.count}"

    def answered(self, at_s: float, ttft_s: float = 0.1, outcome: Outcome = Outcome.OK) -> None:
        name = self.send(at_s)
        if outcome is Outcome.OK:
            self.sweep.first_token(name, at_s + ttft_s)
        self.sweep.result(result(name, at_s, ttft_s, outcome), at_s + 0.4)

    @property
    def reason(self) -> Reason | None:
        order = self.sweep.action
        return None if isinstance(order, Run) else order.reason


def test_the_ramp_rises_by_its_factor_every_stage() -> None:
    """1/s, 1.15/s, 1.3225/s, 4 s each, as long as nothing speaks against it."""
    hand = Hand(plan())
    rates = []
    for tick in range(40):
        at_s = tick * 0.25
        if tick % 4 == 0:
            hand.answered(at_s)
        hand.sweep.tick(at_s)
        order = hand.sweep.action
        assert isinstance(order, Run)
        rates.append(order.rate_per_s)
    assert sorted(set(rates)) == pytest.approx([1.0, 1.15, 1.3225])
    assert [each.sent for each in hand.sweep.stages][:2] == [5, 4]


def test_a_clear_stage_ends_early() -> None:
    """Half a stage is enough where nearly all is answered, far below the threshold; not where latencies come near it."""
    for ttft_s, early in ((0.05, True), (0.3, False)):
        hand = Hand(plan())
        for n in range(10):
            hand.answered(n * 0.15, ttft_s)
        hand.sweep.tick(2.0)
        order = hand.sweep.action
        assert isinstance(order, Run)
        assert (order.stage == 1) is early


def test_the_highest_rate_ends_the_ramp_without_having_reached_the_knee() -> None:
    """`not_reached` is told from a knee that was passed."""
    hand = Hand(plan("gentle", max_rate=1.0))
    for tick in range(20):
        hand.sweep.tick(tick * 0.25)
    order = hand.sweep.action
    assert isinstance(order, Estimate)
    assert (order.reason, order.record.reached, order.record.cut) == ("highest_rate", False, True)


def test_the_highest_rate_is_held_until_its_events_show_the_objective() -> None:
    """346 good events at 99%, as many as `ready` takes; more with a bad one; with as many as allowed an end is made. The first four,
    sent before an answer could end, do not count.
    """
    for bad, ends_after in ((0, 350), (1, 683), (99, 1_042)):
        hand = Hand(plan(min_rate=10.0, max_rate=10.0))
        hand.sweep.page(0.0, PAGE)
        count = 0
        while hand.reason is None:
            count += 1
            hand.sweep.page(count * 0.1, PAGE)
            hand.answered(count * 0.1, 0.6 if count % 97 == 0 and count // 97 <= bad else 0.3)
            hand.sweep.tick(count * 0.1 + 0.05)
        assert hand.reason == "highest_rate"
        assert count == pytest.approx(ends_after, abs=2)
        assert len(hand.sweep.stages) == 1


def test_pending_requests_are_breaches_as_soon_as_they_are_too_old() -> None:
    """Four of the last eight breach: no answer has come, and none is waited for."""
    hand = Hand(plan())
    hand.sweep.page(0.0, PAGE)
    for n in range(5):
        hand.send(0.1 + 0.001 * n)
    hand.sweep.tick(0.5)
    assert hand.reason is None
    hand.sweep.page(0.6, PAGE)
    hand.sweep.tick(0.65)
    assert hand.reason in ("breaching", "knee_passed")
    assert isinstance(hand.sweep.action, Estimate)
    assert hand.sweep.action.record.requests[0].known_s == 0.65


def test_a_few_breaches_among_many_are_what_the_objective_allows() -> None:
    """Two of 42 at 1% do not end a ramp, three do; a gentle one ends at two."""
    for mode, breaches_at, ends in (("adaptive", 2, False), ("adaptive", 3, True), ("gentle", 2, True)):
        hand = Hand(plan(mode, step=100.0, min_rate=20.0, max_rate=30.0))
        hand.sweep.page(0.0, PAGE)
        for n in range(42):
            hand.answered(n * 0.05, 0.6 if n in (10, 39, 41)[:breaches_at] else 0.3)
        assert (hand.reason == "knee_passed") is ends


@pytest.mark.parametrize(("tokens", "is_evidence"), [(10.0, True), (9e9, False)], ids=["same process", "restarted"])
def test_the_page_of_minutes_before_is_evidence_and_ends_nothing(tokens: float, is_evidence: bool) -> None:
    """A queue of then is over, and totals above those of the sweep are another process's."""
    before = replace(PAGE, requests_waiting=500.0, kv_cache_usage_ratio_max=1.0, generation_tokens_total=tokens)
    hand = Hand(plan("gentle"), before=[(-100.0, before), (-95.0, before)])
    hand.sweep.page(0.1, replace(PAGE, generation_tokens_total=20.0))
    assert hand.reason is None
    hand.sweep.stop("enough", 0.2)
    assert isinstance(hand.sweep.action, Estimate)
    times_s = [at_s for at_s, _ in hand.sweep.action.record.readings]
    assert times_s == ([-100.0, -95.0, 0.1] if is_evidence else [0.1])


def test_the_page_is_read_closely_while_something_waits() -> None:
    """And as before once nothing does."""
    hand = Hand(plan())
    for at_s, waiting, often in ((0.0, 0.0, False), (0.1, 1.0, True), (0.2, 0.0, False)):
        hand.sweep.page(at_s, replace(PAGE, requests_waiting=waiting))
        assert (hand.sweep.page_every_s < 0.2) is often


def test_an_estimate_ends_the_sweep() -> None:
    """With a page and without one, whatever it shows."""
    for page in (PAGE, None):
        hand = Hand(plan())
        if page is not None:
            hand.sweep.page(0.0, page)
        hand.answered(0.1, 0.6)
        hand.answered(0.2, 0.6)
        assert isinstance(hand.sweep.action, Estimate)
        below = Capacity("ttft", "below", upper=1.0)
        hand.sweep.estimated((below,))
        assert isinstance(hand.sweep.action, Finished)
        assert (hand.sweep.action.reason, hand.sweep.action.capacities) == ("knee_passed", (below,))


def test_failures_are_breaches_and_harm() -> None:
    """An overload that drops requests is not fast: a tenth of a stage, two at least, ends the sending."""
    hand = Hand(plan())
    for n in range(4):
        hand.answered(n * 0.1)
    hand.answered(0.5, outcome=Outcome.HTTP_5XX)
    assert hand.reason is None
    hand.answered(0.6, outcome=Outcome.HTTP_429)
    assert hand.reason in ("failed", "knee_passed")
    order = hand.sweep.action
    assert isinstance(order, Run | Estimate)
    assert hand.sweep.stages[0].failed == 2


def shed(n: int, at_s: float, after_s: float) -> ProbeResult:
    """A 429 that came `after_s` seconds after its request."""
    answer = result(f"r{n}", at_s, outcome=Outcome.HTTP_429)
    return replace(answer, timeline=replace(answer.timeline, end_ns=round((at_s + after_s) * 1e9)))


@pytest.mark.parametrize(
    ("page", "ttfts_s", "after_s", "is_limit"),
    [
        ({}, [0.1], 0.01, True),
        ({"requests_waiting": 3.0}, [0.1], 0.01, False),
        ({"kv_cache_usage_ratio_max": 0.99}, [0.1], 0.01, False),
        ({}, [0.1], 0.3, False),  # it waited for longer than an answer
        ({"requests_waiting": None}, [0.1], 0.01, True),
        (None, [0.1], 0.01, True),
        (None, [0.1, 0.2], 0.01, False),  # the engine became slower before
    ],
    ids=["idle", "queue", "full cache", "late", "page without a queue", "no page", "slower, no page"],
)
def test_a_refusal_without_a_queue_is_no_capacity(
    page: dict[str, float | None] | None, ttfts_s: list[float], after_s: float, *, is_limit: bool
) -> None:
    """A 429 that comes at once from an engine with room is a limit in front of it: nothing is judged. Else it is a bad event."""
    hand, count = Hand(plan(min_rate=10.0)), 8 * len(ttfts_s)
    for n in range(count):
        hand.answered(n * 0.1, ttfts_s[n // 8])
    at_s = count * 0.1
    if page is not None:
        hand.sweep.page(at_s, replace(PAGE, **page))  # type: ignore[arg-type]
    hand.send(at_s)
    hand.sweep.result(shed(hand.count, at_s, after_s), at_s + after_s)
    order = hand.sweep.action
    assert (isinstance(order, Finished) and order.reason == "rate_limited") is is_limit
    if isinstance(order, Finished):
        assert (order.verdict, order.capacities) == ("not_judged", ())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"requests_waiting": 40.0}, "waiting"),
        ({"kv_cache_usage_ratio_max": 0.99}, "kv_usage"),
        ({"preemptions_total": 9.0}, "preemptions"),
    ],
)
def test_the_engines_page_ends_the_sending(change: dict[str, float], reason: Reason) -> None:
    """Queue, cache and preemptions, at the reading that shows them, where others use the engine."""
    hand = Hand(plan())
    hand.sweep.page(0.0, PAGE)
    hand.sweep.page(0.5, replace(PAGE, requests_finished_total=4.0))
    assert hand.reason is None
    hand.sweep.page(1.0, replace(PAGE, **{"requests_finished_total": 4.0, **change}))  # type: ignore[arg-type]
    assert hand.reason == reason


@pytest.mark.parametrize(
    ("mode", "change", "reason"),
    [
        ("adaptive", {"requests_waiting": 40.0}, None),
        ("adaptive", {"requests_running": 40.0, "kv_cache_usage_ratio_max": 0.99}, None),
        ("adaptive", {"requests_running": 40.0, "preemptions_total": 9.0}, None),
        ("gentle", {"requests_waiting": 40.0}, "waiting"),
    ],
)
def test_the_sweeps_own_queue_does_not_end_it(mode: str, change: dict[str, float], reason: Reason | None) -> None:
    """All 40 requests on the page are its own: it harms nobody. A gentle sweep ends at any queue."""
    hand = Hand(plan(mode))
    hand.sweep.page(0.0, PAGE)
    for n in range(40):
        hand.send(0.5 + n / 100)
    hand.sweep.page(1.0, replace(PAGE, **change))  # type: ignore[arg-type]
    assert hand.reason == reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"start_time_seconds": 200.0}, "restarted"),
        ({"prompt_tokens_total": 1.0}, "restarted"),
        ({"ranks": 2}, "replicas_changed"),
        ({"kv_cache_capacity_tokens": 128_000.0}, "replicas_changed"),
        ({"kv_cache_capacity_tokens": 32_000.0}, "replicas_changed"),
        ({"info": EngineInfo("vllm", "2")}, "engine_changed"),
    ],
)
def test_another_engine_voids_the_sweep(change: dict[str, object], reason: Reason) -> None:
    """Restart, replicas, KV cache, version, counters that fall: what was measured is gone, before or while it is estimated."""
    for estimating in (False, True):
        hand = Hand(plan())
        before = replace(PAGE, prompt_tokens_total=5.0, kv_cache_capacity_tokens=64_000.0)
        hand.sweep.page(0.0, before)
        if estimating:
            hand.sweep.stop("an alert", 0.2)
        after = replace(before, **change)  # type: ignore[arg-type]
        hand.sweep.page(0.5, after)
        assert not isinstance(hand.sweep.action, Finished), "one reading may be a blip"
        hand.sweep.page(0.6, after)
        order = hand.sweep.action
        assert isinstance(order, Finished)
        assert (order.verdict, order.reason, order.capacities) == ("void", reason, ())


def test_a_page_that_blips_once_voids_nothing() -> None:
    """Half of the replicas is missing in one reading, or the cache is rounded: the sweep goes on without that reading."""
    hand = Hand(plan())
    both = replace(PAGE, ranks=2, prompt_tokens_total=50.0, kv_cache_capacity_tokens=64_000.0)
    hand.sweep.page(0.0, both)
    hand.sweep.page(0.5, replace(both, ranks=1, prompt_tokens_total=20.0, kv_cache_capacity_tokens=32_000.0))
    for at_s, capacity in ((1.0, 64_000.0), (1.5, 64_100.0), (2.0, 64_000.0)):
        hand.sweep.page(at_s, replace(both, prompt_tokens_total=60.0, kv_cache_capacity_tokens=capacity))
    assert isinstance(hand.sweep.action, Run)
    hand.sweep.stop("a person", 2.5)
    assert isinstance(hand.sweep.action, Estimate)
    assert [at_s for at_s, _ in hand.sweep.action.record.readings] == [0.0, 1.0, 1.5, 2.0]


def test_engines_that_answer_in_turn_void_the_sweep() -> None:
    """Behind a balancer each reading is of another one."""
    hand = Hand(plan())
    for number in range(4):
        hand.sweep.page(0.5 * number, replace(PAGE, start_time_seconds=100.0 + 50 * (number % 2)))
    assert isinstance(hand.sweep.action, Finished)
    assert hand.sweep.action.verdict == "void"


def test_a_void_sweep_says_in_plain_words_why() -> None:
    """With the values before and after."""
    hand = Hand(plan())
    for at_s, ranks in ((0.0, 2), (0.5, 3), (1.0, 3)):
        hand.sweep.page(at_s, replace(PAGE, ranks=ranks))
    assert isinstance(hand.sweep.action, Finished)
    text = ending(hand.sweep.action.reason, hand.sweep.action.detail)
    assert text == "voided, the target changed its size: 2 ranks before, 3 ranks now"


def test_productions_own_ttft_ends_the_sending() -> None:
    """By the engine's histogram, the sweep's own requests taken off it."""
    hand = Hand(plan(guard=GuardSpec(production_ttft=0.5)))

    def page(fast: float, slow: float) -> EngineSignals:
        return replace(
            PAGE, ttft_seconds=EngineHistogram((0.25, 0.5, 1.0), (fast, fast, fast + slow, fast + slow), None)
        )

    hand.sweep.page(0.0, page(10, 0))
    hand.sweep.page(0.5, page(20, 1))
    assert hand.reason is None
    hand.sweep.page(1.0, page(22, 5))
    assert hand.reason == "production_ttft"


def test_a_page_that_is_lost_ends_the_sending() -> None:
    """Blind guards guard nothing; a target that never had a page is another matter."""
    hand = Hand(plan(step=100.0))
    hand.sweep.tick(3.5)
    assert hand.reason is None
    hand.sweep.page(3.6, PAGE)
    hand.sweep.tick(6.5)
    assert hand.reason is None
    hand.sweep.tick(6.7)
    assert hand.reason == "page_lost"


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (LimitsSpec(requests=3), "request_budget"),
        (LimitsSpec(tokens=300), "token_budget"),
        (LimitsSpec(cost=0.3), "cost_budget"),
        (LimitsSpec(time=0.5), "time_budget"),
    ],
)
def test_budgets_end_the_sending(limits: LimitsSpec, reason: Reason) -> None:
    """Requests, tokens, cost, time; none of them says that the knee was reached."""
    hand = Hand(plan(limits=limits))
    for n in range(3):
        hand.send(n * 0.1)
    hand.sweep.tick(0.5)
    assert isinstance(hand.sweep.action, Estimate)
    assert (hand.reason, hand.sweep.action.record.reached) == (reason, False)


def test_the_in_flight_cap_is_saturation() -> None:
    """A stage that reaches the cap, or has a request shed at it, has found its limit."""
    hand = Hand(plan(max_in_flight=3))
    for n in range(3):
        hand.send(n * 0.1)
    assert hand.reason == "saturated"
    hand = Hand(plan())
    hand.sweep.result(result("never sent", 0.0, outcome=Outcome.SHED), 0.1)
    assert hand.reason == "saturated"


@pytest.mark.parametrize(("served_share", "longest_s"), [(0.5, 45.0), (0.33, 60.0)])
def test_completions_behind_arrivals_are_saturation(served_share: float, longest_s: float) -> None:
    """In a long stage whose TTFTs are fine, a queue that only grows ends it."""
    hand = Hand(plan("grid", rates=(5.0,), step=100.0))
    due: list[tuple[float, float, str]] = []  # end, due time, name
    at_s = 0.0
    while not hand.reason and at_s < 100.0:
        name = hand.send(at_s)
        hand.sweep.first_token(name, at_s + 0.1)
        due.append((at_s / served_share + 0.4, at_s, name))
        while due[0][0] <= at_s:
            end_s, sent_s, name = due.pop(0)
            hand.sweep.result(result(name, sent_s, e2e_s=end_s - sent_s), end_s)
        hand.sweep.tick(at_s)
        at_s += 0.2
    assert hand.reason == "saturated"
    assert at_s < longest_s


def test_answers_that_never_end_are_saturation() -> None:
    """Two of three requests stay in flight."""
    hand = Hand(plan("grid", rates=(5.0,), step=200.0))
    for n in range(1_000):
        name = hand.send(n * 0.2)
        hand.sweep.first_token(name, n * 0.2 + 0.1)
        if n % 3 == 0:
            hand.sweep.result(result(name, n * 0.2), n * 0.2 + 0.2)
        hand.sweep.tick(n * 0.2 + 0.2)
        if hand.reason:
            break
    assert hand.reason == "saturated"


@pytest.mark.parametrize(("unsent", "ends"), [(0, False), (4, False), (5, True)])
def test_a_prober_that_does_not_send_a_fifth_of_the_requests_ends_it(unsent: int, *, ends: bool) -> None:
    """Of the last twenty. The text names the remedy."""
    hand = Hand(plan())
    for n in range(20):
        hand.answered(n * 0.1, outcome=Outcome.OK if n < 20 - unsent else Outcome.INVALID)
    assert (hand.reason == "not_sent") is ends
    if ends:
        assert isinstance(hand.sweep.action, Estimate)
        assert ending("not_sent", hand.sweep.action.detail) == (
            "the prober did not send 4 of the last 19 requests; "
            "send fewer requests a second, give the prober more CPU, or add --workers"
        )


def test_requests_that_were_not_sent_are_no_load() -> None:
    """A replay has only those that reached the engine; one that left and was then spoilt by the prober itself did."""
    hand = Hand(plan())
    for n in range(10):
        hand.answered(n * 0.1)
    name = hand.send(1.0)
    hand.sweep.result(replace(result(name, 1.0, outcome=Outcome.INVALID), timeline=Timeline(10**9)), 4.5)
    hand.answered(4.6, outcome=Outcome.INVALID)
    hand.sweep.stop("a person", 5.0)
    assert isinstance(hand.sweep.action, Estimate)
    assert [request.at_s for request in hand.sweep.action.record.requests] == pytest.approx(
        [*(n * 0.1 for n in range(10)), 4.6]
    )


def test_an_answer_that_is_only_read_late_is_no_breach() -> None:
    """Overdue by the sweep's own time, until its end shows that the first token came in time; the neighbour came late."""
    for ttft_s, ends in ((0.45, False), (0.6, True)):
        hand = Hand(plan("gentle"))
        for n in range(2):
            name = hand.send(n * 1.0)
            hand.sweep.tick(n * 1.0 + 0.7)
            hand.sweep.result(result(name, n * 1.0, ttft_s, e2e_s=0.65), n * 1.0 + 0.8)
        assert (hand.reason is not None) is ends


def test_a_request_counts_from_its_departure() -> None:
    """Sent 0.4 s late, and answered 0.3 s later: no breach of 0.5 s, and the load arrives when it left."""
    hand = Hand(plan("gentle"))
    for n in range(4):
        name = hand.send(n * 1.0)
        late = result(name, n * 1.0 + 0.4, 0.3)
        hand.sweep.result(replace(late, timeline=replace(late.timeline, intended_ns=n * 10**9)), n * 1.0 + 0.9)
    assert hand.reason is None
    hand.sweep.stop("a person", 5.0)
    assert isinstance(hand.sweep.action, Estimate)
    requests = hand.sweep.action.record.requests
    assert [request.at_s for request in requests] == pytest.approx([0.4, 1.4, 2.4, 3.4])
    assert [request.ttft_s for request in requests] == pytest.approx([0.3] * 4)


def test_people_and_the_target_itself_can_end_it() -> None:
    """A named guard, Retry-After: each with its own reason."""
    hand = Hand(plan())
    hand.sweep.stop("burn rate", 1.0)
    assert isinstance(hand.sweep.action, Estimate)
    assert (hand.reason, hand.sweep.action.detail) == ("guard", "burn rate")
    hand = Hand(plan())
    hand.sweep.stop("30 s", 1.0, "retry_after")
    assert hand.reason == "retry_after"


@pytest.mark.parametrize(
    ("mode", "shed_allowed", "outcome", "ends"),
    [
        ("grid", False, Outcome.HTTP_429, True),
        ("grid", True, Outcome.HTTP_429, False),
        ("grid", True, Outcome.HTTP_5XX, True),
        ("gentle", True, Outcome.HTTP_429, True),  # it looks for the rate at which requests are bad
    ],
)
def test_shed_requests_do_not_end_a_grid_with_consent(
    mode: str, outcome: Outcome, *, shed_allowed: bool, ends: bool
) -> None:
    """Half of the requests are shed; other failures end it as without consent."""
    hand = Hand(plan(mode), shed_allowed=shed_allowed)
    for n in range(80):
        hand.answered(n * 0.1, outcome=outcome if n % 2 else Outcome.OK)
    assert (hand.reason is not None) is ends


def test_a_worker_that_never_sends_ends_it_however_many_do() -> None:
    """A process of twelve sends none of its requests, which are few of all."""
    hand, reasons = Hand(plan()), []
    for n in range(36):
        name = hand.send(n * 0.01)
        outcome = Outcome.INVALID if n % 12 == 4 else Outcome.OK
        answer = replace(result(name, n * 0.01, outcome=outcome), worker=1 + n % 12)
        hand.sweep.result(answer, n * 0.01 + 0.05)
        reasons.append(hand.reason)
    assert reasons[27] is None
    assert reasons[28] == "not_sent"
    assert isinstance(hand.sweep.action, Estimate)
    assert hand.sweep.action.detail.startswith("3 of the last 3 requests of worker 5; ")


def test_a_very_late_first_token_ends_the_sending_at_once() -> None:
    """Three times the threshold, whether or not it came at last."""
    hand = Hand(plan())
    hand.answered(0.0, 1.6)
    assert hand.reason == "slow"


@pytest.mark.parametrize(("waiting", "first_per_s"), [(0.0, 1.0), (1.0, 0.125)])
def test_a_ramp_begins_lower_where_the_warm_up_waits(waiting: float, first_per_s: float) -> None:
    """With a quarter of a request in flight, if the longest took 2 s; a page without a queue leaves the first rate."""
    hand = Hand(plan(), WarmUpLength(2, 20.0))
    first = hand.send(0.0)
    for tick in range(8):
        hand.sweep.page(tick * 0.25, replace(PAGE, requests_waiting=waiting))
        hand.sweep.tick(tick * 0.25)
    hand.sweep.result(result(first, 0.0, 0.1, e2e_s=2.0), 2.0)
    hand.answered(2.0)
    hand.sweep.tick(2.5)
    order = hand.sweep.action
    assert isinstance(order, Run)
    assert order.phase == "ramp"
    assert order.rate_per_s == pytest.approx(first_per_s, rel=0.25)


def test_warm_up_judges_no_latency_but_finds_a_dead_target() -> None:
    """Cold engines are slow; engines that answer nothing are not measured."""
    hand = Hand(plan(), WarmUpLength(2, 20.0))
    hand.answered(0.1, 3.0)
    hand.answered(0.2, 0.1)
    hand.sweep.tick(0.5)
    order = hand.sweep.action
    assert isinstance(order, Run)
    assert (order.stage, order.phase) == (1, "ramp")
    hand = Hand(plan(), WarmUpLength(2, 20.0))
    for n in range(3):
        hand.answered(n * 0.1, outcome=Outcome.CONNECT_REFUSED)
    order = hand.sweep.action
    assert isinstance(order, Finished)
    assert (order.reason, order.capacities[0].verdict) == ("smoke_failed", "not_enough_data")


@pytest.mark.parametrize(
    ("warm_up", "sent"), [(WarmUpLength(20), 20), (WarmUpLength(None, 7.0), 7), (UNTIL_STEADY, 24)], ids=str
)
def test_the_warm_up_is_sent_as_it_was_planned(warm_up: WarmUpLength, sent: int) -> None:
    """As many answers as planned, however warm the engine is by its own count; for as long as planned; or until they are equal."""
    hand = Hand(plan(), warm_up)
    for second in range(sent):
        assert hand.sweep.stages[-1].phase == "warm_up"
        hand.sweep.page(float(second), replace(PAGE, requests_finished_total=1_000.0))
        hand.answered(float(second), 0.1)
        hand.sweep.tick(second + 1.0)
    assert [stage.phase for stage in hand.sweep.stages] == ["warm_up", "ramp"]
    assert hand.sweep.stages[0].sent == sent


def test_a_rejected_warm_up_measures_nothing() -> None:
    """A wrong token or a refused request: nothing else is sent, and the reason has the answer of the server."""
    hand = Hand(plan(), WarmUpLength(20, 20.0))
    hand.answered(0.1, outcome=Outcome.REJECTED)
    order = hand.sweep.action
    assert isinstance(order, Finished)
    assert (order.reason, order.verdict, order.capacities) == ("refused", "not_judged", ())
    assert order.detail.startswith("rejected: ")


@pytest.mark.parametrize(("answer_s", "rate_per_s"), [(20.0, 2.0), (60.0, 2.0), (25.0, 9.0)])
def test_a_target_with_long_answers_is_not_saturated(answer_s: float, rate_per_s: float) -> None:
    """Until the first answers end, none completes; that is no queue."""
    hand = Hand(plan("grid", rates=(rate_per_s, 2 * rate_per_s), step=150.0))
    due: list[tuple[float, str]] = []
    for n in range(round(149 * rate_per_s)):
        at_s = n / rate_per_s
        due.append((at_s, hand.send(at_s)))
        hand.sweep.first_token(due[-1][1], at_s + 0.1)
        while due[0][0] <= at_s - answer_s:
            sent_s, name = due.pop(0)
            hand.sweep.result(result(name, sent_s, e2e_s=answer_s), sent_s + answer_s)
        hand.sweep.tick(at_s)
    assert hand.reason is None


def test_a_demand_that_somebody_counts_is_the_load_that_was_there() -> None:
    """Where the page does not count: added to the rate of every stage. Such a page makes no model, as it leaves that load out."""
    hand = Hand(plan(), demand_per_s=4.0)
    uncounted = replace(PAGE, requests_finished_total=None)
    hand.sweep.page(0.0, uncounted)
    hand.answered(0.1)
    hand.sweep.page(0.5, uncounted)
    hand.sweep.stop("end", 1.0)
    order = hand.sweep.action
    assert isinstance(order, Estimate)
    assert order.record.readings == ()
    assert order.record.stages[0].total_per_s == 5.0
    hand.sweep.estimated(())
    assert isinstance(hand.sweep.action, Finished)
    assert hand.sweep.action.others == OtherLoad(4.0, 4.0, "prometheus")


def test_an_engine_that_counts_goes_before_a_demand_that_is_told() -> None:
    """Its page knows what came meanwhile. Where nobody tells, nobody is named."""
    counted = OtherLoad(1.0, 1.0, "engine")
    for demand, page, other, others in ((4.0, PAGE, 1.0, counted), (None, None, None, None)):
        hand = Hand(plan(), demand_per_s=demand)
        for n in range(3):
            if page is not None:
                hand.sweep.page(float(n), replace(page, requests_finished_total=float(n)))
            hand.sweep.tick(float(n))
        hand.sweep.stop("end", 2.0)
        hand.sweep.estimated(())
        order = hand.sweep.action
        assert isinstance(order, Finished)
        assert (order.stages[0].other_per_s, order.others) == (other, others)


@pytest.mark.parametrize(
    ("reason", "verdicts", "verdict"),
    [
        ("restarted", (), "void"),
        ("knee_passed", ("found", "below"), "below"),
        ("knee_passed", ("not_reached", "found"), "found"),
        ("knee_passed", ("not_enough_data", "not_reached"), "not_enough_data"),
        ("knee_passed", ("found", "not_enough_data"), "not_enough_data"),
        ("knee_passed", ("not_enough_data", "below"), "below"),
        ("knee_passed", ("not_reached", "not_reached"), "not_reached"),
        ("knee_passed", ("not_enough_data",), "not_enough_data"),
        ("knee_passed", (), "not_enough_data"),
    ],
)
def test_the_verdict_is_of_all_slos(reason: Reason, verdicts: tuple[Verdict, ...], verdict: str) -> None:
    """Void before all; one that fails at the lowest rate; then one whose events show nothing, whatever the others hold."""
    found = tuple(Capacity("x", each, estimate=1.0 if each == "found" else None) for each in verdicts)
    assert Finished(reason, "", found, ()).verdict == verdict


def test_a_grid_walks_its_steps() -> None:
    """Fixed steps of their full length, for curves; an early end only for what is sure."""
    hand = Hand(plan("grid", rates=(1.0, 3.0), step=10.0))
    for n in range(100):
        if n % 4 == 0:
            hand.answered(n * 0.25)
        hand.sweep.tick(n * 0.25)
    assert [(each.phase, each.rate_per_s, each.ended_s) for each in hand.sweep.stages] == [
        ("grid", 1.0, 10.0),
        ("grid", 3.0, 20.0),
    ]
    assert hand.reason == "highest_rate"


@pytest.mark.parametrize(
    ("signal", "ttft_s", "stops"), [("tpot", 0.1, True), ("e2e", 0.1, True), ("success", 0.1, False)]
)
def test_other_slos_are_judged_by_their_own_events(signal: Signal, ttft_s: float, stops: bool) -> None:
    """TPOT and E2E breach by their thresholds; a slow answer is no failure."""
    slo = Slo("x", signal, None if signal == "success" else 0.05, Decimal("0.99"), 3_600.0)
    hand = Hand(sweep_spec(slo))
    hand.sweep.page(0.0, PAGE)
    hand.answered(0.1, ttft_s)
    hand.answered(0.2, ttft_s)
    assert (hand.reason is not None) is stops


def test_an_estimate_that_fails_ends_the_sweep_without_a_capacity() -> None:
    """Its stages are kept."""
    hand = Hand(plan())
    hand.sweep.page(0.0, PAGE)
    hand.answered(0.1, 0.6)
    hand.answered(0.2, 0.6)
    order = hand.sweep.action
    assert isinstance(order, Estimate)
    hand.sweep.not_estimated("killed by signal 9")
    end = hand.sweep.action
    assert isinstance(end, Finished)
    assert (end.reason, end.verdict, end.capacities) == ("no_estimate", "no_estimate", ())
    assert end.sending_ended == order.reason
    assert "before it, the sending ended: " in end.detail
    assert end.stages[-1].phase == "ramp"
    hand.sweep.not_estimated("again")
    assert hand.sweep.action is end


def test_nothing_moves_a_finished_sweep() -> None:
    """Late results, ticks and readings are without effect."""
    hand = Hand(plan())
    name = hand.send(0.0)
    hand.sweep.stop("a person", 0.1)
    hand.sweep.estimated(())
    order = hand.sweep.action
    hand.sweep.result(result(name, 0.0), 0.4)
    hand.sweep.tick(9.0)
    hand.sweep.page(9.0, PAGE)
    hand.sweep.stop("again", 9.0)
    assert hand.sweep.action is order


def test_others_are_what_the_engine_counted_less_what_the_sweep_sent() -> None:
    """By two readings; a request that is still on its way counts at the next."""
    hand = Hand(plan())
    for n, finished in enumerate((10.0, 13.0, 15.0)):
        hand.sweep.page(float(n), replace(PAGE, requests_finished_total=finished))
        hand.answered(n + 0.5)
    hand.sweep.stop("end", 3.0)
    assert isinstance(hand.sweep.action, Estimate)
    record = hand.sweep.action.record
    assert [count for *_, count in record.other_counts] == [2.0, 1.0]
    assert record.other_per_s == 1.5


# -- against the simulated engine

WORLD = SimulatedTarget(
    1,
    "sharp",
    Parameters(step_s=0.01, max_sequences=24, kv_blocks=4_000),
    Workload(Lognormal(300, 0.4, 16, 1_200), Lognormal(60, 0.4, 4, 240)),
    Workload(Lognormal(400, 0.4, 16, 1_200), Lognormal(60, 0.4, 4, 240)),
    0.5,
    3.0,
)


def driven(mode: str = "adaptive", faults: tuple[Slow | Crash, ...] = (), **changes: object) -> Driver:
    driver = Driver(WORLD, plan(mode, **changes), "counters", 1, faults)
    return driver


def test_a_sweep_finds_the_limit_and_hurts_nobody() -> None:
    """It ends not far beyond the knee of 12.3/s for a reason of the target's own, and others hardly notice."""
    found = driven().run()
    order = found.orders[-1][1]
    assert isinstance(order, Estimate)
    assert order.record.reached
    total = order.record.stages[-1].total_per_s
    assert 12 < total < 40
    assert sum(breaches(each, WORLD.threshold_s) for each in found.others) <= 0.02 * len(found.others)
    assert longest_run_s(found.others, WORLD.threshold_s) < 5.0


@pytest.mark.parametrize("late_s", [(0.0, 0.0), (0.05, 0.5)], ids=["on time", "late"])
def test_how_late_the_prober_sends_changes_no_capacity(late_s: tuple[float, float]) -> None:
    """Its requests count as they left. In ten minutes 0.4% of them breach at 12/s, and 11% at 14/s."""
    order = Driver(WORLD, plan(), "counters", 1, late_s=late_s).run().orders[-1][1]
    assert isinstance(order, Estimate)
    (capacity,) = estimate_capacity(order.record, effort=0.3).capacities
    assert capacity.estimate == pytest.approx(12.3, rel=0.2)
    assert capacity.lower is not None
    assert capacity.upper is not None
    assert capacity.lower < 12.3 < capacity.upper


@pytest.mark.parametrize(("ttft_s", "waiting", "reason"), [(0.45, 0.0, "near_threshold"), (0.2, 20.0, "waiting")])
def test_a_gentle_sweep_goes_on_until_it_has_enough_answers(ttft_s: float, waiting: float, reason: Reason) -> None:
    """Near a threshold it stays at its rate, and a queue of others, who send 60/s, does not end it; then either does, and says why."""
    hand = Hand(plan("gentle"))
    hand.sweep.page(-2.0, replace(PAGE, requests_finished_total=0.0))
    hand.sweep.page(-1.0, replace(PAGE, requests_finished_total=60.0))
    for n in range(GENTLE_ANSWERS):
        hand.sweep.page(n - 0.1, replace(PAGE, requests_waiting=waiting, requests_finished_total=60.0 * (n + 2)))
        hand.sweep.tick(float(n))
        assert isinstance(hand.sweep.action, Run), n
        hand.answered(float(n), ttft_s)
    assert waiting or {each.rate_per_s for each in hand.sweep.stages} == {1.0}
    hand.sweep.page(GENTLE_ANSWERS + 0.1, replace(PAGE, requests_waiting=waiting, requests_finished_total=1_700.0))
    hand.sweep.tick(GENTLE_ANSWERS + 0.2)
    assert hand.reason == reason
    near = "2 of the last 12 latencies reach 70% of a threshold, the limit of a gentle sweep"
    assert waiting or ending(reason, hand.sweep.action.detail) == near  # type: ignore[union-attr]


def test_a_gentle_sweep_ends_before_breaches() -> None:
    """At a share of the threshold, or at the first queue; it breaches less and sends less than the adaptive one."""
    gentle, adaptive = driven("gentle").run(), driven().run()
    order = gentle.orders[-1][1]
    assert isinstance(order, Estimate)
    assert order.reason in ("near_threshold", "waiting", "kv_usage")
    assert len(gentle.own) <= len(adaptive.own)
    assert sum(breaches(each, WORLD.threshold_s) for each in gentle.own if each.end is None or each.ttft_s) <= 1


@pytest.mark.parametrize("fault", [Slow(8.0, LEAD_S + 25.0), Crash(LEAD_S + 25.0, LEAD_S + 30.0)])
def test_a_fault_in_mid_sweep_ends_it_soon(fault: Slow | Crash) -> None:
    """Within a threshold, the second that a stop may take, and what it takes a fault to show."""
    found = driven(faults=(fault,)).run()
    assert not isinstance(found.orders[-1][1], Run)
    assert 25.0 <= found.ended_s - LEAD_S <= 25.0 + WORLD.threshold_s + 3.0


def test_the_same_seed_makes_the_same_sweep() -> None:
    """The machine has no clock and no chance of its own."""
    first, second = driven().run(), driven().run()
    assert [at for at, _ in first.orders] == [at for at, _ in second.orders]
    assert first.began_s + CLOCK_S == second.began_s + CLOCK_S
