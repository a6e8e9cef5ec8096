"""Throughput of spans of a sweep: every token once, in the span that has its stamp."""

from collections import defaultdict
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from random import Random

import pytest

from bench.driven import CLOCK_S, Driver
from bench.worlds import Lengths, World
from prober.features.capacity.actions import Estimate
from prober.features.capacity.sweep_plan import Plan
from prober.measure.chat import Usage
from prober.measure.objective import Slo
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.results.delivery import deliveries
from prober.results.result import Throughput
from prober.simulation.parameters import Parameters
from prober.workload.shapes import Lognormal

S = 1_000_000_000
E2E = Slo("e2e", "e2e", 12.0, Decimal("0.99"), 3_600.0)


def streamed(
    at_s: float,
    gap_s: float = 0.1,
    chunks: int = 100,
    outcome: Outcome = Outcome.OK,
    usage: Usage | None = None,
    told: tuple[int, ...] | None = None,
) -> ProbeResult:
    """Its first chunk comes a gap after `at_s`."""
    begin = round(at_s * S)
    stamps = tuple(begin + round((n + 1) * gap_s * S) for n in range(chunks))
    timeline = Timeline(
        begin,
        first_ns=stamps[0] if stamps else None,
        end_ns=None if outcome is Outcome.CANCELLED else stamps[-1] if stamps else begin,
        content_ns=stamps,
        content_tokens=told,
        usage=usage,
    )
    return ProbeResult("t", "w", f"{at_s}", 0.0, outcome, "", timeline, requested_prompt_tokens=50)


def between(probes: list[ProbeResult], begin_s: float, end_s: float) -> Throughput:
    return deliveries(probes, (E2E,)).between(round(begin_s * S), round(end_s * S))


def test_a_stage_that_is_shorter_than_its_answers_has_the_tokens_of_its_time() -> None:
    """Answers of 100 tokens in 10 s, one a second: once they overlap, 100 tokens/s, which no stage's own requests come to."""
    probes = [streamed(at, usage=Usage(60, 100)) for at in range(40)]
    found = between(probes, 20.0, 24.0)
    assert found.output_tokens_per_s == pytest.approx(100.0)
    assert found.prompt_tokens_per_s == pytest.approx(60.0)
    assert found.requests_per_s == found.good_per_s == pytest.approx(1.0)
    assert between(probes, 0.0, 4.0).output_tokens_per_s == pytest.approx((40 + 30 + 20 + 10 - 4 + 3) / 4, abs=1.0)


def test_a_span_has_its_begin_and_not_its_end() -> None:
    """A stamp at the border is of the later span."""
    probe = streamed(0.0, gap_s=1.0, chunks=4, usage=Usage(9, 4))
    assert [between([probe], n, n + 1.0).output_tokens_per_s for n in range(6)] == [0, 1, 1, 1, 1, 0]


def test_tokens_of_a_chunk_are_as_told_else_spread() -> None:
    """Per chunk, by usage at the end; without either by the other answers' chunks."""
    told = streamed(0.0, 1.0, 4, usage=Usage(8, 10), told=(1, 2, 3, 4))
    spread = streamed(0.0, 1.0, 4, usage=Usage(8, 10))
    unknown = streamed(0.0, 1.0, 4, Outcome.CANCELLED)
    assert between([told], 2.0, 4.0).output_tokens_per_s == (2 + 3) / 2
    assert between([spread], 2.0, 4.0).output_tokens_per_s == 2.5
    assert between([unknown], 2.0, 4.0).output_tokens_per_s is None
    assert between([spread, unknown], 2.0, 4.0).output_tokens_per_s == 5.0
    assert between([spread, unknown], 4.5, 9.0).output_tokens_per_s == 0.0


def test_an_answer_that_is_not_streamed_counts_at_its_end() -> None:
    """Prompt and output."""
    plain = streamed(0.0, chunks=0, usage=Usage(30, 40))
    plain = replace(plain, timeline=replace(plain.timeline, end_ns=3 * S + 1))
    assert between([plain], 0.0, 3.0) == Throughput(0.0, 0.0, 0.0, 0.0)
    assert between([plain], 3.0, 4.0) == Throughput(1.0, 1.0, 30.0, 40.0)


def test_what_failed_counts_what_it_delivered() -> None:
    """Its tokens, its prompt, and no answer; what never began counts nothing."""
    reset = streamed(0.0, 0.5, 4, Outcome.RESET, told=(1, 1, 1, 1))
    refused = streamed(0.0, chunks=0, outcome=Outcome.HTTP_5XX)
    other = streamed(0.0, 0.5, 4, usage=Usage(60, 4))
    assert between([reset, refused], 0.0, 4.0) == Throughput(0.0, 0.0, None, 1.0)
    assert between([refused], 0.0, 4.0) == Throughput(0.0, 0.0, 0.0, 0.0)
    assert between([reset, other], 0.0, 4.0) == Throughput(0.25, 0.25, 30.0, 2.0), (
        "50 asked for are 60, as of the other"
    )


def test_goodput_is_of_answers_that_missed_no_slo() -> None:
    """By the end of the answer; without SLOs it is not known."""
    probes = [streamed(0.0, usage=Usage(1, 100)), streamed(0.0, 0.15, usage=Usage(1, 100))]
    assert between(probes, 0.0, 20.0).requests_per_s == 0.1
    assert between(probes, 0.0, 20.0).good_per_s == 0.05
    assert deliveries(probes).between(0, 20 * S).good_per_s is None


def test_an_empty_span_has_no_figures() -> None:
    """No time, no rate."""
    assert between([streamed(0.0, usage=Usage(1, 100))], 3.0, 3.0) == Throughput()


# -- a sweep of the simulated engine

LENGTHS = Lengths(Lognormal(200, 0.1, 200, 200), Lognormal(100, 0.1, 100, 100))
WORLD = World(7, "sharp", Parameters(step_s=0.03, max_sequences=64, kv_blocks=8_000), LENGTHS, LENGTHS, 2.0, 0.0)


def swept(plan: Plan, rng: Random | None = None) -> tuple[list[ProbeResult], list[tuple[float, float, float]]]:
    """All requests of a sweep, those cut at its end with what they had; (begin, end, rate) of each stage."""
    driver = Driver(WORLD, plan, "counters", 1)
    driver.rng = rng or driver.rng
    results: list[ProbeResult] = []
    take = driver.sweep.result

    def kept(result: ProbeResult, at_s: float) -> None:
        results.append(result)
        take(result, at_s)

    driver.sweep.result = kept
    driven = driver.run()
    for each in driver.open:
        stamps = tuple(round((CLOCK_S + at_s + each.shown_s) * 1e9) for at_s in each.truth.token_times_s())
        at = round((CLOCK_S + each.truth.request.arrival_s) * 1e9)
        timeline = Timeline(at, first_ns=stamps[0] if stamps else None, content_ns=stamps)
        cut = ProbeResult("", "", each.id, 0.0, Outcome.CANCELLED, "cut", timeline, requested_prompt_tokens=200)
        results.append(cut)
    order = driven.orders[-1][1]
    assert isinstance(order, Estimate)
    return results, [(each.began_s, each.ended_s, each.rate_per_s) for each in order.record.stages]


PLAN = Plan(
    (Slo("ttft", "ttft", 2.0, Decimal("0.99"), 3_600.0),),
    warm_up=3,
    min_rate_per_s=2.0,
    max_rate_per_s=16.0,
    mode="gentle",
)


def test_over_all_spans_every_token_is_reported_once() -> None:
    """Stages with the warm-up and what comes after the last: as many as were stamped, counted here stamp by stamp."""
    results, stages = swept(PLAN)
    assert any(each.outcome is Outcome.CANCELLED and each.timeline.content_ns for each in results)
    assert all(before[1] == after[0] for before, after in pairwise(stages)), "stages leave no gap"
    borders = [round(begin * 1e9) for begin, _, _ in stages] + [round(stages[-1][1] * 1e9), round(1e6 * 1e9)]
    stamped: dict[int, float] = defaultdict(float)
    for each in results:
        for stamp in each.timeline.content_ns:
            place = max(n for n, border in enumerate(borders) if border <= stamp)
            stamped[place] += 1.0  # this engine sends every token by itself
    delivered = deliveries(results)
    total = 0.0
    for place, (begin, end) in enumerate(pairwise(borders)):
        per_s = delivered.between(begin, end).output_tokens_per_s
        assert per_s is not None
        assert per_s * (end - begin) / 1e9 == pytest.approx(stamped[place])
        total += per_s * (end - begin) / 1e9
    assert total == pytest.approx(sum(len(each.timeline.content_ns) for each in results))
    assert total > 5_000


def test_a_ramp_and_a_grid_of_one_engine_agree_on_tokens_per_second() -> None:
    """Within 5% at every rate both visited, and with what was asked of it: arrivals one by one, so that chance has no part.

    Of a stage's first 4 s the answers of the rate before are left out here: while they are written, less is delivered than is
    asked for, which is so and is reported so.
    """
    found = []
    for change in ({"stage_s": 24.0, "factor": 2**0.5}, {"mode": "grid", "grid": (2.0, 4.0, 8.0), "stage_s": 60.0}):
        results, stages = swept(replace(PLAN, **change), Even())
        delivered = deliveries(results)
        found.append(
            {
                round(rate): delivered.between(round((begin + 4) * 1e9), round(end * 1e9)).output_tokens_per_s or 0.0
                for begin, end, rate in stages[1:]
                if round(rate, 6) in (2.0, 4.0, 8.0)
            }
        )
    ramp, grid = found
    assert list(ramp) == list(grid) == [2, 4, 8]
    for rate in (2, 4, 8):
        assert ramp[rate] == pytest.approx(grid[rate], rel=0.05)
        assert grid[rate] == pytest.approx(rate * 100, rel=0.05)


class Even(Random):
    """Gaps as long as they are on average."""

    def expovariate(self, lambd: float = 1.0) -> float:
        return 1 / lambd


def test_random_answers_are_conserved_whatever_the_borders() -> None:
    """Overlapping answers, chunks of several tokens, gaps of chance: sums by an independent count."""
    rng = Random(4)
    probes, tokens = [], 0
    for _ in range(200):
        told = tuple(rng.randint(1, 6) for _ in range(rng.randint(1, 40)))
        kind = rng.randrange(3)
        probes.append(
            streamed(
                rng.uniform(0, 60),
                rng.uniform(0.01, 0.5),
                len(told),
                Outcome.CANCELLED if kind == 2 else Outcome.OK,
                None if kind == 2 else Usage(10, sum(told)),
                told if kind != 1 else None,
            )
        )
        tokens += sum(told)
    borders = sorted({0, 200 * S, *(rng.randrange(200 * S) for _ in range(30))})
    delivered = deliveries(probes)
    seen = 0.0
    for begin, end in pairwise(borders):
        seen += (delivered.between(begin, end).output_tokens_per_s or 0) * (end - begin) / S
    assert seen == pytest.approx(tokens)
