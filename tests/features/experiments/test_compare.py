"""Rounds of two sides: who is better, by how much, and what does not compare."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from random import Random
from typing import Any

import pytest

from prober.features.experiments.compare import (
    AXES,
    Round,
    compare,
    compare_answers,
    differences,
    incomparable,
    per_gpu_and_dollar,
    plan,
    reservations,
    risks,
    stored_rounds,
)
from prober.features.experiments.report import comparison_report
from prober.measure.objective import Slo
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.results.comparison import Compared, ComparedAnswers, Comparison, Risk, risk_sentences
from prober.results.cost import Gpus
from prober.results.result import Load, MeasuredTarget, RequestRow, Result
from prober.results.stage import stage_of_requests
from tests.known import known


def side(
    rng: Random, factor: float = 1.0, *, failing: float = 0.0, lengths: int | None = 1, count: int = 20
) -> list[RequestRow]:
    """Requests whose lengths come from a seed of their own, so that both sides have the same."""
    drawn = Random(lengths)
    rows = []
    for number in range(count):
        tokens = drawn.randint(10, 40)
        if rng.random() < failing:
            rows.append(RequestRow(number * 0.5, outcome="http_429"))
            continue
        ttft = factor * 0.01 * tokens * rng.lognormvariate(0, 0.1)
        gaps = tuple(factor * 0.01 * rng.lognormvariate(0, 0.1) for _ in range(tokens - 1))
        tpot = sum(gaps) / (tokens - 1)
        rows.append(
            RequestRow(
                number * 0.5, ttft_s=ttft, itls_s=gaps, tpot_s=tpot, e2e_s=ttft + sum(gaps), output_tokens=tokens
            )
        )
    return rows


def rounds(make: Callable[[Random, int], tuple[list[RequestRow], list[RequestRow]]], count: int = 12) -> list[Round]:
    rng = Random(9)
    return [Round(2.0, *make(rng, number)) for number in range(count)]


def by_axis(found: list[Compared]) -> dict[str, Compared]:
    return {each.axis: each for each in found}


def test_a_plan_gives_both_the_same_and_takes_turns() -> None:
    """A seed and due times for both sides of a round, new ones in the next; the side that goes first alternates."""
    planned = plan([1.0, 4.0], 4, 20, Random(1))
    assert [(row.rate_per_s, row.number, "".join(row.sides)) for row in planned] == [
        (rate, number, order) for number, order in enumerate(("ab", "ba", "ab", "ba")) for rate in (1.0, 4.0)
    ]
    assert len({row.seed for row in planned}) == len({row.offsets_ns for row in planned}) == 8
    assert {len(row.offsets_ns) for row in planned} == {20}
    assert plan([1.0, 4.0], 4, 20, Random(1)) == planned


def test_slower_by_30_percent_is_found_on_every_axis_it_is_on() -> None:
    """With its size inside the interval and near the estimate; throughput in an open loop hardly moves, failures do not."""
    found = by_axis(compare(rounds(lambda rng, n: (side(rng, lengths=n), side(rng, 1.3, lengths=n)))))
    for axis in ("ttft_p50", "tpot_p50", "itl_p99", "e2e_p50"):
        each = found[axis]
        assert each.better == "a", axis
        assert known(each.lower) < 0.3 < known(each.upper)
        assert abs(each.effect - 0.3) < 0.05
        assert each.p <= each.p_adjusted <= 0.05
    assert found["failures"].better is None
    assert found["failures"].p == 1
    assert known(found["ttft_p50"].a).count == 240


def test_request_by_request_lengths_are_no_noise() -> None:
    """With lengths that differ fourfold, pairing shows 10% more surely than comparing medians does."""
    paired = by_axis(compare(rounds(lambda rng, n: (side(rng, lengths=n), side(rng, 1.1, lengths=n)))))
    apart = [
        Round(2.0, side(Random(n), lengths=n), side(Random(-n), 1.1, lengths=n + 1_000), alike=False)
        for n in range(1, 13)
    ]
    assert paired["ttft_p50"].better == "a"
    unpaired = by_axis(compare(apart))["ttft_p50"]
    widths = [(each.upper or 9.0) - (each.lower or 0.0) for each in (paired["ttft_p50"], unpaired)]
    assert widths[0] < widths[1] / 2


def test_no_difference_is_not_claimed() -> None:
    """In 60 comparisons of equals, though the level wanders from turn to turn: at most 5% claim any, by Holm."""
    claims = 0
    for seed in range(60):
        rng = Random(seed)
        equal = [
            Round(
                2.0, side(rng, rng.lognormvariate(0, 0.1), lengths=n), side(rng, rng.lognormvariate(0, 0.1), lengths=n)
            )
            for n in range(12)
        ]
        claims += any(each.better for each in compare(equal))
    assert claims <= 6  # 3 are allowed on average


def test_failures_are_an_axis_and_a_reservation() -> None:
    """A side that rejects half is worse for it, in points, and its latencies come with a warning."""
    made = rounds(lambda rng, n: (side(rng, lengths=n), side(rng, failing=0.5, lengths=n)))
    found = compare(made)
    failures = by_axis(found)["failures"]
    assert failures.better == "a"
    assert not failures.ratio
    assert abs(failures.effect - 0.5) < 0.15
    said = reservations(MeasuredTarget(model="m"), MeasuredTarget(model="m"), made, found)
    assert any("B fails more often" in each for each in said)


def test_a_difference_of_shares_is_within_100_points() -> None:
    """Also where so few rounds count that Student's interval goes far beyond; a share that hardly varies keeps its own."""

    def failing(number: int, *, late: bool) -> list[RequestRow]:
        is_bad = (number >= 6) == late
        return [RequestRow(float(n), outcome="http_5xx" if is_bad else "ok", ttft_s=0.1) for n in range(20)]

    made = [Round(4.0, failing(n, late=False), failing(n, late=True)) for n in range(12)]
    failures = by_axis(compare(made))["failures"]
    assert (failures.lower, failures.upper) == (-1.0, 1.0)
    assert abs(failures.effect) <= 1.0
    steady = [Round(4.0, failing(n, late=False), failing(n, late=False)) for n in range(12)]
    assert by_axis(compare(steady))["failures"].upper == 0.0


def test_late_and_refused_requests_are_in_no_share() -> None:
    """Requests that the prober itself spoilt are counted apart from those that the server refused."""
    good, late, failed, refused = (
        RequestRow(0.0, outcome=outcome, ttft_s=0.1) for outcome in ("ok", "invalid", "http_5xx", "rejected")
    )
    made = [Round(1.0, [good, good, late], [good, failed, refused])] * 12
    found = by_axis(compare(made))["failures"]
    assert found.effect == pytest.approx(1 / 2)
    assert found.better == "a"
    said = reservations(MeasuredTarget(), MeasuredTarget(), made, [])
    assert said == ["12 of 36 requests to A were not sent by the prober, or cut, and do not count"]


def test_what_was_not_measured_is_no_axis() -> None:
    """Without usage there is no TPOT and no throughput; nothing at all gives nothing."""
    bare = [RequestRow(float(n), ttft_s=0.1, e2e_s=0.2) for n in range(5)]
    axes = set(by_axis(compare([Round(1.0, bare, bare)] * 10)))
    assert axes == {"ttft_p50", "ttft_p99", "e2e_p50", "failures"}
    assert compare([]) == []


def test_other_models_and_other_work_are_said() -> None:
    """Another model, another count of the same prompt, answers of another length."""
    one = [RequestRow(0.0, ttft_s=0.1, prompt_tokens=100, output_tokens=20)] * 3
    other = [RequestRow(0.0, ttft_s=0.1, prompt_tokens=130, output_tokens=10)] * 3
    said = reservations(MeasuredTarget(model="m"), MeasuredTarget(model="n"), [Round(1.0, one, other)], [])
    assert len(said) == 3
    assert "A serves model 'm', B 'n'" in said[0]
    assert "prompt_tokens" in said[1]
    assert "output_tokens" in said[2]
    assert reservations(MeasuredTarget(model="m"), MeasuredTarget(model="m"), [Round(1.0, one, one)], []) == []


def test_differences_of_context_are_listed() -> None:
    """Engine, version, flags; what only one side says has an empty other side; what is the same is not there."""
    a = MeasuredTarget(
        url="http://a", model="m", engine="vllm", engine_version="0.31", flags={"block_size": "16", "x": "1"}
    )
    b = MeasuredTarget(url="http://b", model="m", engine="vllm", engine_version="0.32", flags={"block_size": "32"})
    assert differences(a, b) == [("version", "0.31", "0.32"), ("block_size", "16", "32"), ("x", "1", "")]


def stored(rows: list[RequestRow], rate: float = 2.0) -> Result:
    stage = stage_of_requests(f"{rate:g}/s", rate, rows, begin_s=0.0, sending_s=60.0)
    return Result("r", "gate", 0.0, 60.0, "t", MeasuredTarget(), Load(), (stage,))


def test_stored_results_are_compared_in_blocks() -> None:
    """At the rates that both have; too few requests, or no rate in common, is refused with what there is."""
    rng = Random(5)
    a, b = side(rng, count=240, lengths=1), side(rng, 1.3, count=240, lengths=2)
    made = stored_rounds(stored(a), stored(b), 12)
    assert [len(each.a) for each in made] == [20] * 12
    assert by_axis(compare(made))["tpot_p50"].better == "a"
    with pytest.raises(ValueError, match="A has 240 at 2/s, B 50 at 2/s"):
        stored_rounds(stored(a), stored(b[:50]), 12)
    with pytest.raises(ValueError, match="no rate at which both"):
        stored_rounds(stored(a), stored(b, 4.0), 12)


def test_rows_of_other_shapes_are_compared_each_by_itself() -> None:
    """At one rate too: pooled, the row that is slower on side B would be hidden by the one that is faster."""
    rng = Random(6)
    sides = []
    for factors in ((1.0, 1.0), (0.7, 1.4)):
        rows = [side(rng, factor, count=240, lengths=1) for factor in factors]
        stages = [
            replace(stage_of_requests(name, 2.0, each, begin_s=0.0, sending_s=60.0), load=Load(name))
            for name, each in zip(("short", "long"), rows, strict=True)
        ]
        sides.append(Result("r", "run", 0.0, 60.0, "t", MeasuredTarget(), Load(), tuple(stages)))
    one, other = sides
    found = compare(stored_rounds(one, other, 12))
    assert len(found) == 2 * len({each.axis for each in found})
    better = {each.workload: each.better for each in found if each.axis == "tpot_p50"}
    assert better == {"short": "b", "long": "a"}
    with pytest.raises(ValueError, match="A has 240 of long at 2/s and 240 of short at 2/s"):
        stored_rounds(one, other, 30)


def asked(load: Load, lengths: list[int] | None = None) -> Result:
    """A result of this load, with requests of these lengths."""
    rows = [RequestRow(0.0, ttft_s=0.1, prompt_tokens=length) for length in lengths or []]
    return replace(stored(rows), load=load)


def test_another_shape_does_not_compare() -> None:
    """Workload and lengths as they were asked for, if those of the requests are not known."""
    assert incomparable(asked(Load(workload="chat")), asked(Load(workload="chat"))) == []
    (said,) = incomparable(asked(Load(workload="chat")), asked(Load(workload="probe")))
    assert "workload chat, B for probe" in said
    (said,) = incomparable(asked(Load(prompt_tokens="fixed 100")), asked(Load(prompt_tokens="fixed 200"), [200]))
    assert "asked for prompt_tokens fixed 100, B for fixed 200" in said


def test_lengths_are_compared_as_distributions() -> None:
    """Another seed, another end of the range or one token more is no other shape; a wider one of the same mean is."""
    rng = Random(4)
    one, other, wide = ([rng.randint(*ends) for _ in range(300)] for ends in ((200, 300), (201, 299), (100, 400)))
    a = asked(Load(prompt_tokens="200–300, as seen"), one)
    assert incomparable(a, asked(Load(prompt_tokens="201–299, as seen"), other)) == []
    (said,) = incomparable(a, asked(Load(prompt_tokens="100–400, as seen"), wide))
    assert said.startswith("requests of A have prompt_tokens of 200 to 300 (mean 2")
    fixed = asked(Load(prompt_tokens="256–256, as seen"), [256] * 300)
    assert incomparable(fixed, asked(Load(prompt_tokens="257–257, as seen"), [257] * 300)) == []
    assert len(incomparable(fixed, asked(Load(prompt_tokens="512–512, as seen"), [512] * 300))) == 1


def lasting(rng: Random, count: int, factor: float = 1.0) -> list[RequestRow]:
    """Requests whose log of TTFT has a correlation of 0.95 from one to the next."""
    level, rows = rng.gauss(0, 1), []
    for number in range(count):
        level = 0.95 * level + math.sqrt(1 - 0.95**2) * rng.gauss(0, 1)
        rows.append(RequestRow(float(number), ttft_s=0.1 * factor * math.exp(0.3 * level)))
    return rows


def test_requests_that_are_alike_are_not_evidence_one_by_one() -> None:
    """Of 60 equal pairs of stored results of 240 autocorrelated requests 5% are claimed to differ, and 95% of intervals hold."""
    rng, claims, held = Random(11), 0, 0
    for _ in range(60):
        found = compare(stored_rounds(stored(lasting(rng, 240)), stored(lasting(rng, 240)), 12))
        claims += any(axis.better is not None for axis in found)
        ttft = by_axis(found)["ttft_p50"]
        held += ttft.lower is not None and ttft.upper is not None and ttft.lower <= 0 <= ttft.upper
    assert claims <= 6  # 3 are allowed on average; a test of 12 blocks claims 15
    assert held >= 53  # 57 on average


def test_rounds_that_are_not_independent_count_as_fewer_and_are_said() -> None:
    """Autocorrelated rounds of both sides; independent ones all count, and are not mentioned."""
    rng = Random(12)
    alike = stored_rounds(stored(lasting(rng, 240)), stored(lasting(rng, 240, 1.3)), 12)
    found = compare(alike)
    assert by_axis(found)["ttft_p50"].rounds <= 6
    (said,) = reservations(MeasuredTarget(), MeasuredTarget(), alike, found)
    assert said.startswith(
        "successive requests are so alike that rounds are not independent, and count as fewer (ttft_p50 at 2/s: "
    )
    independent = rounds(lambda rng, n: (side(rng, lengths=n), side(rng, 1.3, lengths=n)))
    found = compare(independent)
    assert {axis.rounds for axis in found} == {12}
    assert reservations(MeasuredTarget(), MeasuredTarget(), independent, found) == []


def test_axes_are_what_the_docs_name() -> None:
    """Their number sets how many rounds it takes."""
    assert [each.name for each in AXES] == [
        "ttft_p50",
        "ttft_p99",
        "tpot_p50",
        "itl_p99",
        "e2e_p50",
        "output_tokens_per_s",
        "failures",
    ]


def test_throughput_per_gpu_and_per_dollar() -> None:
    """The effect and its interval times the ratio of GPUs, or of dollars per hour; nothing of what is not known."""
    axis = Compared("output_tokens_per_s", 4.0, True, 12, 0.5, 0.2, 0.8, 0.01, 0.02, "b")
    said = list(per_gpu_and_dollar([axis], Gpus(1, 3.0), Gpus(2, 2.0)))
    assert [text.split(",")[0] for text in said] == ["output tokens/s per GPU", "output tokens/s per dollar"]
    assert "at 4/s: B against A -25.0% (95% interval -40.0% to -10.0%)" in said[0]
    assert "at 4/s: B against A +12.5% (95% interval -10.0% to +35.0%)" in said[1]  # 3 dollars an hour against 4
    assert [text.split(",")[0] for text in per_gpu_and_dollar([axis], Gpus(1, None), Gpus(2, 2.0))] == [
        "output tokens/s per GPU"
    ]
    assert list(per_gpu_and_dollar([axis], Gpus(None, 3.0), Gpus(2, 2.0))) == []
    latency = replace(axis, axis="ttft_p50")
    assert list(per_gpu_and_dollar([latency], Gpus(1, 3.0), Gpus(2, 2.0))) == []
    few = replace(axis, lower=None, upper=None)
    assert "(95% interval ? to ?)" in next(per_gpu_and_dollar([few], Gpus(1, 3.0), Gpus(2, 2.0)))


def by_move(measured: list[Round], **options: Any) -> dict[tuple[str, str], Risk]:
    return {(risk.move, risk.axis): risk for risk in risks(measured, 0.1, **options)}


def test_the_risk_of_a_slower_side_is_that_of_adopting_it() -> None:
    """B is 30% slower. Going back from it loses nothing; 240 requests without a failure do not exclude one point more of them."""
    slower = by_move(rounds(lambda rng, number: (side(rng, lengths=number), side(rng, 1.3, lengths=number))))
    adopt, back = slower["adopt", "ttft_p50"], slower["go_back", "ttft_p50"]
    assert (adopt.evidence, back.evidence) == ("fails", "holds")
    assert 0.2 < known(adopt.least) < 0.3 < known(adopt.most) < 0.4
    assert back.least == pytest.approx(1 / (1 + known(adopt.most)) - 1)
    failures = slower["adopt", "failures"]
    assert (failures.evidence, failures.margin) == ("undecided", 0.01)
    assert failures.most == pytest.approx(1 - (0.05 / 28) ** (1 / 240), abs=1e-4)
    few = by_move(rounds(lambda rng, number: (side(rng), side(rng, 1.3)), 5))["adopt", "ttft_p50"]
    assert (few.least, few.most, few.evidence) == (None, None, "undecided")


def test_a_loss_of_throughput_is_a_share_of_it_and_dollars_are_an_axis() -> None:
    """B delivers the same tokens on twice the GPUs: no loss of throughput, and twice the dollars per token."""
    same = rounds(lambda rng, number: (side(rng, lengths=number), side(rng, lengths=number)))
    found = by_move(same, a=Gpus(1, 3.0), b=Gpus(2, 3.0))
    cost = found["adopt", "dollars_per_output_token"]
    assert cost.evidence == "fails"
    assert 0.9 < known(cost.least) < 1.0
    assert found["go_back", "dollars_per_output_token"].evidence == "holds"
    assert found["adopt", "output_tokens_per_s"].evidence == "holds"
    half = rounds(lambda rng, number: (side(rng, lengths=number), side(rng, 60.0, lengths=number)))
    loss = by_move(half)["adopt", "output_tokens_per_s"]
    assert loss.evidence == "fails"
    assert 0.1 < known(loss.most) < 1.0


def test_goodput_is_compared_by_objectives() -> None:
    """The share of requests that miss one; a failed request misses it, and no TPOT."""
    slo = Slo("fast", "ttft", 0.3, Decimal("0.9"), 3600.0)
    tpot = Slo("even", "tpot", 9.0, Decimal("0.9"), 3600.0)
    measured = rounds(lambda rng, number: (side(rng, lengths=number), side(rng, 2.0, failing=0.3, lengths=number)))
    found = by_axis(compare(measured, slos=(slo, tpot)))
    missed = sum(
        request.outcome != "ok" or (request.ttft_s or 0.0) > 0.3 for row in measured for request in row.b
    ) / sum(len(row.b) for row in measured)
    before = sum((request.ttft_s or 0.0) > 0.3 for row in measured for request in row.a) / 240
    assert found["missed fast"].effect == pytest.approx(missed - before, abs=0.05)
    assert found["missed fast"].better == "a"
    assert found["missed even"].effect == 0.0
    assert by_move(measured, slos=(slo,))["adopt", "missed fast"].evidence == "fails"


def test_a_worsening_of_the_margin_is_seldom_decided() -> None:
    """B is slower by exactly the margin: within it for any latency in at most 5% of 120 comparisons, and beyond it in no more."""
    states: Counter[str] = Counter()
    for seed in range(120):
        rng = Random(seed)
        measured = [Round(2.0, side(rng, lengths=n), side(rng, 1.1, lengths=n)) for n in range(12)]
        of_latencies = {
            risk.evidence for risk in risks(measured, 0.1) if risk.move == "adopt" and risk.axis[-4:] == "_p50"
        }
        states.update(of_latencies)
    assert states["holds"] <= 10
    assert states["fails"] <= 10
    assert states["undecided"] >= 110


def test_risks_are_put_into_sentences() -> None:
    """By move and state, with their bounds; what a rollback needs is stated by a person, or not."""
    found = (
        Risk("adopt", "ttft_p50", 4.0, "", True, 0.1, 0.2, 0.31),
        Risk("adopt", "failures", 4.0, "", False, 0.01, -0.02, 0.023),
        Risk("go_back", "ttft_p50", 4.0, "", True, 0.1, -0.24, -0.17),
        Risk("go_back", "failures", 4.0, "", False, 0.01, None, None),
    )
    empty = Comparison("id", 0.0, 0.0, "t", MeasuredTarget(), MeasuredTarget(), None, 0.05, (), (), ())
    assert list(risk_sentences(empty)) == []
    assert list(risk_sentences(replace(empty, risks=found))) == [
        "Risk of adopting B, at most 10% or 1 point worse: fails for ttft_p50 at 4/s (20% to 31%); "
        "undecided for failures at 4/s (-2 points to 2.3 points).",
        "Risk of a rollback to A, at most 10% or 1 point worse: undecided for failures at 4/s "
        "(too few rounds for a bound); holds for ttft_p50 at 4/s (-24% to -17%).",
        "The intervals of these risks together err with at most 5%.",
        "Going back to A needs: not stated (--rollback).",
    ]
    text = comparison_report.markdown([replace(empty, risks=found)])
    assert "| ttft_p50 at 4/s | **fails** \\[20% to 31%\\] | holds \\[-24% to -17%\\] |" in text
    assert "The margin is 10% or 1 point." in text
    assert "Going back to A needs: a restart." in list(
        risk_sentences(replace(empty, risks=found, rollback="a restart"))
    )


def answered(outcome: Outcome, check: str | None = "text") -> ProbeResult:
    return ProbeResult("t", "golden", "id", 0.0, outcome, "", Timeline(0), check=check)


RIGHT, WRONG, LOST = Outcome.OK, Outcome.WRONG_ANSWER, Outcome.RESET


def test_answers_are_compared_by_the_requests_that_both_sides_answered() -> None:
    """Pairs with a failure, without a check, with two checks or unsent do not count; the other check has no difference."""
    outcomes = (
        [(RIGHT, RIGHT)] * 20 + [(RIGHT, WRONG)] * 9 + [(WRONG, RIGHT)] + [(WRONG, WRONG)] * 3 + [(LOST, WRONG)] * 50
    )
    pairs: list[tuple[ProbeResult | None, ProbeResult | None]] = [(answered(a), answered(b)) for a, b in outcomes]
    pairs += [(answered(RIGHT, "regex"), answered(end, "regex")) for end in [RIGHT] * 5 + [WRONG]]
    pairs += [(answered(RIGHT), answered(WRONG, "json_schema")), (answered(RIGHT, None), answered(WRONG, None))]
    pairs.append((None, answered(WRONG)))
    a, b = ([pair[side] for pair in pairs] for side in (0, 1))
    text, regex = compare_answers(a, b, 0.05)
    assert text == ComparedAnswers("golden", "text", 33, 1, 9, 3, text.p_adjusted, "a")
    assert text.p_adjusted == pytest.approx(2 * 22 / 1024)  # of 10 coins at least 9 alike, for the larger of two checks
    assert regex == ComparedAnswers("golden", "regex", 6, 0, 1, 0, 1.0, None)
    assert compare_answers(b, a, 0.05)[0].better == "b"
    assert compare_answers(a, b, 0.04)[0].better is None
    assert text.text() == (
        "answers of golden checked by text: of 33 pairs only A's is wrong in 1, only B's in 9, both in 3: A is better "
        "(exact McNemar, p 0.043)"
    )


def test_the_report_begins_with_the_verdict() -> None:
    """The axes in which a side is better, then those without a shown difference; sentences on shares and limits end as such."""
    axes = (
        Compared("ttft_p50", 4.0, True, 12, -0.24, -0.3, -0.2, 0.001, 0.003, "b"),
        Compared("failures", 4.0, False, 12, 0.0, 0.0, 0.0, 1.0, 1.0, None, workload="chat"),
    )
    compared = Comparison(
        "id", 0.0, 0.0, "t", MeasuredTarget(), MeasuredTarget(), None, 0.05, axes, (), ("a limit",), shares=("a share",)
    )
    compared = replace(compared, answers=(ComparedAnswers("golden", "text", 40, 1, 2, 3, 1.0, None),))
    text = comparison_report.markdown([compared])
    assert text.index("## Verdict") < text.index("## Figures") < text.index("## Per GPU and per dollar")
    assert "B is better in ttft_p50 at 4/s (-24.0% from A to B)." in text
    assert "No difference is shown in chat failures at 4/s." in text
    assert (
        "Where there is no difference at all, one is claimed with a chance of at most 5% for the axes, and as much for the answers."
        in text
    )
    assert "only B's in 2, both in 3: no difference is shown (exact McNemar, p 1)." in text[: text.index("## Figures")]
    assert "A share." in text
    assert "A limit." in text
    assert "do not compare" in comparison_report.markdown([replace(compared, compared=(), remarks=("another load",))])
