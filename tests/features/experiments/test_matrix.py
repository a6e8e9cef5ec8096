"""The requests of a row, and the verdict on their results."""

import math
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from random import Random

import pytest

from prober.config.rows import Row
from prober.config.workloads import PrefixSpec
from prober.features.experiments.audit import audit
from prober.features.experiments.matrix import (
    CLOSED_LOOP,
    RowVerdict,
    as_sent,
    decision,
    due_times,
    fails_error,
    judge,
    limits_of,
    load_of,
    needs,
    other_models,
    overall,
    shape_of,
    stage_name,
    warming,
    wrong_answers,
)
from prober.measure.objective import Slo
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Connection, Timeline
from prober.results.result import MeasuredTarget, RequestRow, Result, Stage
from prober.statistics.sequential_test import ERROR
from prober.workload.shapes import Fixed, Uniform
from prober.workload.workloads import Adapters, Mix, Prefix, RequestGenerator, Workload
from tests.known import known
from tests.results.samples import answered, result

S = 10**9
TTFT = Slo("ttft", "ttft", 0.5, Decimal("0.95"), 1e6)
ROW = Row(name="a", prompt_tokens=Fixed(100), output_tokens=Fixed(10), accept=(TTFT,), rate=2.0, requests=100)
CLOSED = ROW.model_copy(update={"name": "b", "rate": None, "concurrency": 4})

MOST_WRONG = 100 * ERROR + 3 * (100 * ERROR * (1 - ERROR)) ** 0.5


def judged(row: Row, results: list[ProbeResult], *, loading: int = 0, interrupted: bool = False) -> RowVerdict:
    return judge(row, results, error=fails_error([row]), burst_s=0.0, loading=loading, interrupted=interrupted)


def test_a_row_is_accepted_by_as_many_as_that_takes() -> None:
    """68 good ones for 95%, and not by one fewer."""
    assert judged(ROW, [result()] * 68).state == "accepted"
    few = judged(ROW, [result()] * 67)
    assert (few.state, few.findings[0].evidence) == ("not_enough_data", "undecided")
    assert "ttft<0.5s:95%: 0 of 67 bad" in few.why


def test_a_row_is_rejected_where_an_objective_fails() -> None:
    """By slow answers and by failures; the one that is kept is not named."""
    both = ROW.model_copy(update={"accept": (Slo("success", "success", None, Decimal("0.5"), 1e6), TTFT)})
    verdict = judged(both, [result(1.0 if n % 2 else 0.1) for n in range(60)])
    assert verdict.state == "rejected"
    assert verdict.why == "ttft<0.5s:95%: 30 of 60 bad (50%, allowed 5%)"
    failed = judged(ROW, [result(outcome=Outcome.HTTP_5XX, detail="HTTP 500: out of memory")] * 10)
    assert failed.state == "rejected"
    assert failed.why.endswith("; 10 of 10 requests failed, most often http_5xx: HTTP 500: out of memory")


def test_one_bad_request_is_never_a_verdict() -> None:
    """Nor are two good ones."""
    assert judged(ROW, [result(9.0)]).state == "not_enough_data"
    assert judged(ROW, [result()] * 2).state == "not_enough_data"
    assert judged(ROW, []).why == "ttft<0.5s:95%: nothing to judge"


def test_what_does_not_count_is_told() -> None:
    """Late requests and a loading engine are no data, and the verdict says so."""
    late = judged(ROW, [result(outcome=Outcome.INVALID, detail="not sent")] * 80)
    assert late.state == "not_enough_data"
    assert "80 of 80 requests not counted, most often invalid: not sent" in late.why
    assert "7 requests not sent: the engine said" in judged(ROW, [], loading=7).why


def test_an_interrupted_row_has_no_verdict() -> None:
    """Not even where what was seen would do: what was cut would have been the slow ones."""
    verdict = judged(ROW, [result()] * 90, interrupted=True)
    assert (verdict.state, verdict.why) == ("not_enough_data", "interrupted after 90 requests")
    assert verdict.findings[0].events == 90


def test_a_rejection_is_wrong_no_more_often_for_many_rows() -> None:
    """Of 20 rows that just keep their objective, in 100 runs: any is rejected in at most a twentieth, by three sigmas."""
    rows = [ROW.model_copy(update={"name": str(n)}) for n in range(20)]
    rng, error, wrong = Random(5), fails_error(rows), 0
    good, bad = result(), result(9.0)
    for _ in range(100):
        drawn = [[bad if rng.random() < 0.05 else good for _ in range(60)] for _ in rows]
        verdicts = [judge(row, results, error=error, burst_s=0.0) for row, results in zip(rows, drawn, strict=True)]
        wrong += overall(verdicts) == "rejected"
    assert wrong <= MOST_WRONG


def test_an_acceptance_is_wrong_as_seldom() -> None:
    """Of a row that just misses its objective: accepted in at most a twentieth of 100 runs, by three sigmas."""
    rng, good, bad = Random(6), result(), result(9.0)
    runs = [[bad if rng.random() < 0.051 else good for _ in range(300)] for _ in range(100)]
    assert sum(judged(ROW, results).state == "accepted" for results in runs) <= MOST_WRONG


def test_the_whole_is_the_worst_that_is_known() -> None:
    """A rejected row rejects, an undecided one leaves it open; an undecided whole is no decision."""
    accepted, rejected, open_ = (
        RowVerdict("r", state, "seen", ()) for state in ("accepted", "rejected", "not_enough_data")
    )
    assert overall([accepted, accepted]) == "accepted"
    assert overall([accepted, open_]) == "not_enough_data"
    assert overall([accepted, open_, rejected]) == "rejected"
    assert decision([accepted, open_]) is None
    said = known(decision([accepted, rejected]))
    assert (said.accepted, said.why) == (False, "r: accepted (seen). r: rejected (seen)")


def for_time(row: Row, duration_s: float) -> Row:
    return row.model_copy(update={"requests": None, "duration": duration_s})


@pytest.mark.parametrize(
    ("row", "burst_s", "needed", "is_too_little"),
    [
        (ROW, 0.0, "takes 68 requests to be accepted", False),
        (ROW.model_copy(update={"requests": 60}), 0.0, "planned: 60 requests in 30 s, too little to be accepted", True),
        (for_time(ROW, 30.0), 0.0, "planned: 30 s, too little", True),
        (for_time(ROW, 40.0), 0.0, "planned: 40 s", False),
        (ROW, 15.0, "takes 510 s (68 blocks of 7.5 s) to be accepted", True),
        (for_time(ROW, 500.0), 15.0, "planned: 500 s, too little", True),
        (for_time(ROW, 520.0), 15.0, "planned: 520 s", False),
        (ROW.model_copy(update={"requests": 1_030}), 15.0, "planned: 1,030 requests in 515 s", False),
        (ROW, 3.0, "takes 107 s (68 blocks of 1.5 s) to be accepted", True),  # one block in 20 has no request
        (
            ROW,
            15.0,
            "4,095 s if half of the allowed 5% is, and 2,123 s at most to be rejected if twice as much is",
            True,
        ),
        (CLOSED, 15.0, "takes 510 s (68 blocks of 7.5 s) to be accepted", False),  # how long 100 take is not known
        (CLOSED.model_copy(update={"requests": 60}), 15.0, "planned: 60 requests, too little", True),
        (for_time(CLOSED, 500.0), 15.0, "planned: 500 s, too little", True),
        (for_time(CLOSED, 510.0), 15.0, "planned: 510 s", False),
        (for_time(CLOSED, 1.0), 0.0, "takes 68 requests to be accepted", False),  # nor how many it will be
    ],
)
def test_what_a_row_needs_is_told_before_anything_is_sent(
    row: Row, burst_s: float, needed: str, is_too_little: bool
) -> None:
    """By number, or by rate and duration; a closed loop cannot tell how many it will be, or how long."""
    ((text, told),) = needs(row, fails_error([row]), burst_s)
    assert needed in text
    assert (told, "too little" in text) == (is_too_little, is_too_little)


def test_a_row_counts_blocks_of_time_as_the_gate_does() -> None:
    """Any number of requests within 7.5 s is one observation, so that bursts are few; what ended in the last block counts too."""
    for results, state in (
        ([answered(n / 2) for n in range(400)], "not_enough_data"),
        ([answered(n / 2) for n in range(1_030)], "accepted"),
        ([answered(n * 7.6) for n in range(70)], "accepted"),
        ([answered(n / 2, 9.0) for n in range(4)], "not_enough_data"),
        ([answered(n / 2, 9.0) for n in range(60)], "rejected"),
    ):
        assert judge(ROW, results, error=ERROR, burst_s=15.0).state == state


def test_a_row_is_rejected_at_its_end_by_what_the_sequential_test_leaves_open() -> None:
    """Of 400 requests 15% are bad, each by itself, where 10% is allowed: most such rows are rejected, and few of those at 10%."""
    row = ROW.model_copy(update={"accept": (replace(ROW.accept[0], objective=Decimal("0.9")),), "requests": 400})
    rejected = Counter[float]()
    for share in (0.10, 0.15):
        for seed in range(20):
            rng = Random(f"{share} {seed}")
            results = [answered(n / 2, 9.0 if rng.random() < share else 0.1) for n in range(400)]
            rejected[share] += judge(row, results, error=ERROR, burst_s=0.0).state == "rejected"
            assert judge(row, results, error=ERROR, burst_s=0.0, interrupted=True).state == "not_enough_data"
    assert rejected[0.10] <= 2
    assert rejected[0.15] >= 14


def test_the_load_of_all_rows_names_what_differs_between_them() -> None:
    """Sampling, data set and lengths are those of the rows, not of the first; and whether any of them varies."""
    assert isinstance(ROW.workload, Workload)
    warm = ROW.model_copy(update={"name": "w", "named": replace(ROW.workload, sampling={"temperature": 1})})
    assert load_of([ROW, ROW], 9).sampling == shape_of(ROW, 9).sampling
    assert load_of([ROW, warm], 9).sampling == {
        **{f"a: {key}": value for key, value in (shape_of(ROW, 9).sampling or {}).items()},
        "w: temperature": 1,
    }
    assert load_of([ROW], 9).dataset == shape_of(ROW, 9).dataset
    varied = ROW.model_copy(update={"name": "c", "prompt_tokens": Uniform(1, 9)})
    load = load_of([ROW, varied], 9)
    assert (load_of([ROW], 9).varied, load.varied, load.workload) == (False, True, "a, c")
    assert load.prompt_tokens == "a: fixed 100; c: uniform 1 to 9"


def test_due_times_end_with_the_number_or_the_time() -> None:
    """Poisson arrivals from the start on."""
    start = 1000 * S
    times = list(due_times(ROW, Random(1), start))
    assert len(times) == 100
    assert times == sorted(times)
    assert start < times[0]
    times = list(due_times(ROW.model_copy(update={"requests": None, "duration": 500.0}), Random(1), start))
    assert 900 < len(times) < 1100
    assert times[-1] < start + 500 * S


def test_a_closed_loop_is_timed_from_when_the_request_left() -> None:
    """It has no intended time: to connect is not in its TTFT; what was not sent stays as it is.

    So is a turn whose think time is shorter than the set-up of its connection, for the lead that each request has for it.
    """
    timeline = Timeline(0, Connection(0, 3 * S), sent_ns=3 * S, first_ns=4 * S, end_ns=5 * S)
    sent = as_sent(replace(result(), timeline=timeline), math.inf).timeline
    assert (sent.ttft_s, sent.e2e_s, sent.send_lag_s) == (1.0, 2.0, 0.0)
    bounded = as_sent(replace(result(), timeline=timeline), 1 * S).timeline
    assert (bounded.ttft_s, bounded.e2e_s) == (3.0, 4.0)
    on_time = replace(result(), timeline=timeline)
    assert as_sent(on_time, timeline.intended_ns) is on_time
    refused = result(outcome=Outcome.CONNECT_REFUSED)
    assert as_sent(refused, math.inf) is refused


def test_a_closed_loop_is_called_one_wherever_it_is_seen() -> None:
    """In its stage's name, its verdict's, and the stored arrivals, which the audit marks as hiding the queue."""
    assert stage_name(CLOSED) == judged(CLOSED, []).name == "b (closed loop of 4)"
    assert stage_name(ROW) == "a"
    assert load_of([ROW], 2000).arrivals == "poisson"
    load = load_of([CLOSED], 2000)
    assert (load.arrivals, load.max_in_flight) == ("closed", 4)
    mixed = load_of([ROW, CLOSED], 2000)
    assert (mixed.arrivals, mixed.max_in_flight) == ("poisson, and closed in b", 2000)
    for each in (load, mixed):
        stored = Result("i", "run", 0.0, 0.0, "tool", MeasuredTarget(), each, ())
        check = next(check for check in audit(stored) if check.name == "open loop")
        assert check.done is False
        assert "hides its queue" in check.why
    assert "coordinated omission" in CLOSED_LOOP


def test_a_shared_prefix_is_warm_before_it_counts() -> None:
    """Each request of the warm-up carries it; a row that has none, or is cold on purpose, is warmed up with what it sends."""
    plain = Workload("a", Fixed(100), Fixed(8))
    some = replace(plain, prefix=Prefix(50, 0.3))
    assert warming(some) == replace(plain, prefix=Prefix(50, 1.0))
    cold = replace(plain, prefix=Prefix(50, 0.0))
    assert warming(cold) == cold
    warm = replace(plain, prefix=Prefix(50, 1.0))
    assert warming(Mix("m", ((some, 2.0), (cold, 1.0)))) == Mix("m", ((warm, 2.0), (cold, 1.0)))
    assert warming(ROW.workload) == ROW.workload


def test_a_warm_up_loads_the_last_adapter_only() -> None:
    """So the first uses of the others are in the row, and that of the last one comes after all others were used."""
    warmed = warming(Workload("a", Fixed(100), Fixed(8), adapters=Adapters(("x", "y", "z"), 4)))
    drawer = RequestGenerator(warmed, Random(1))
    assert [drawer.draw(0).adapter for _ in range(10)] == ["z"] * 10


def test_each_workload_of_a_mix_is_judged_by_its_own_requests() -> None:
    """Of 100 requests of each, those of `b` are slow: the pooled share would be 50%, and is nowhere."""
    mix = Mix("m", tuple((Workload(name, Fixed(100), Fixed(8)), 1.0) for name in "ab"))
    row = ROW.model_copy(update={"named": mix, "prompt_tokens": None, "output_tokens": None})
    assert fails_error([row]) == fails_error([ROW]) / 2
    slow = [replace(result(1.0), workload="b") for _ in range(100)]
    verdict = judge(row, [*(replace(result(0.1), workload="a") for _ in range(100)), *slow], error=0.05, burst_s=0.0)
    assert verdict.state == "rejected"
    assert verdict.why.startswith("ttft<0.5s:95% of b: 100 of 100 bad")
    assert [finding.evidence for finding in verdict.findings] == ["holds", "fails"]


def test_what_a_stage_was_sent_is_its_rows_own() -> None:
    """A closed loop is called one, and a shared prefix is part of the shape: figures of neither are those of the bare lengths."""
    plain, closed = shape_of(ROW, 2000), shape_of(CLOSED, 2000)
    assert (plain.workload, plain.arrivals, plain.max_in_flight) == (ROW.name, "poisson", 2000)
    assert (closed.workload, closed.arrivals, closed.max_in_flight) == (
        stage_name(CLOSED),
        "closed",
        CLOSED.concurrency,
    )
    warm = shape_of(ROW.model_copy(update={"prefix": PrefixSpec(tokens=16, reuse=0.5)}), 2000)
    assert warm.prompt_tokens == f"{plain.prompt_tokens}, 16 of them shared by 50% of the requests"
    assert warm.output_tokens == plain.output_tokens


def test_formats_that_are_not_checked_are_limits_of_a_row() -> None:
    """Each once, also of the parts of a mix; a format that is checked is none."""

    def workload(**sampling: object) -> Workload:
        return Workload("w", Fixed(1), Fixed(1), sampling=sampling)

    parts = (workload(guided_json={}), workload(ebnf="root ::= x"), workload(ebnf="root ::= y"))
    row = Row(name="a", workload=Mix("m", tuple((part, 1.0) for part in parts)), rate=1.0, requests=1, accept=(TTFT,))
    assert list(limits_of(row)) == ["ebnf: answers are not checked against it"]
    assert not list(limits_of(ROW))


def test_answers_of_another_model_than_the_adapter_are_counted_where_the_name_is_known() -> None:
    """The target's model and the other adapters; any other name may be an alias or a path, which says nothing."""

    def answered(adapter: str, named: str, outcome: Outcome = Outcome.OK) -> ProbeResult:
        timeline = Timeline(0, answered_model=named)
        return ProbeResult("t", "a", "id", 0.0, outcome, "", timeline, model="base", adapter=adapter)

    right = [answered("sql", "sql"), answered("law", "law"), answered("", "base"), answered("", "law")]
    unknown = [answered("sql", "/models/sql"), answered("sql", ""), answered("sql", "base", Outcome.TRUNCATED)]
    assert not list(other_models([*right, *unknown]))
    wrong = [answered("sql", "base"), answered("sql", "base", Outcome.WRONG_ANSWER), answered("law", "sql")]
    assert list(other_models([*right, *unknown, *wrong])) == [
        "2 answers to requests for 'sql' name the model 'base'",
        "1 answer to requests for 'law' names the model 'sql'",
    ]


def test_wrong_answers_have_their_most_frequent_reason() -> None:
    """With its number; a wrong request of another outcome is not among them, and without wrong ones there is no reason."""
    errors = ["is not JSON", "calls no tool", "is not JSON"]
    others = (RequestRow(0.0, "reset", "reset"),) * 5
    wrong = tuple(RequestRow(0.0, "wrong_answer", error) for error in errors)
    stage = Stage("s", 1.0, 0.0, 1.0, 1.0, 14, 9, quality=(9, 3), requests=(*wrong, *others))
    assert list(wrong_answers(stage)) == ["3 of 9 checked answers wrong, most often (2): is not JSON"]
    right = replace(stage, quality=(9, 0), requests=others)
    assert list(wrong_answers(right)) == ["0 of 9 checked answers wrong"]
    assert list(wrong_answers(replace(right, quality=None))) == []
