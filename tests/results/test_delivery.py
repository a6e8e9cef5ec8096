"""Throughput of spans of a sweep: every token once, in the span that has its stamp."""

import math
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from random import Random
from typing import Any, Literal

import numpy as np
import pytest

from prober.config.sweep import FACTORS, GuardSpec, SweepSpec
from prober.features.capacity.actions import Estimate
from prober.measure.chunk import Usage
from prober.measure.objective import Slo
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.probing import stop_conditions
from prober.results.delivery import Deliveries, RatedSpan, is_good
from prober.results.result import Delivered, Throughput
from prober.simulation.parameters import Parameters
from prober.workload.shapes import Lognormal
from tests.features.capacity.simulated_sweep import CLOCK_S, Driver, SimulatedTarget, Workload, changed, sweep_spec

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
    """The first chunk comes a gap after `at_s`."""
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
    return ProbeResult(
        "t", "w", f"{at_s}", 0.0, outcome, "", timeline, requested_prompt_tokens=50, requested_output_tokens=100
    )


def between(probes: list[ProbeResult], begin_s: float, end_s: float) -> Delivered:
    return Deliveries(probes, (E2E,)).between(round(begin_s * S), round(end_s * S))


def at_rate(probes: list[ProbeResult], rate_per_s: float, begin_s: float, end_s: float) -> Throughput:
    spans = [(None, 0, round(begin_s * S)), (rate_per_s, round(begin_s * S), round(end_s * S))]
    return Deliveries(probes, (E2E,), spans).throughput(rate_per_s, round(begin_s * S), round(end_s * S))


def test_a_span_that_is_shorter_than_the_answers_has_the_tokens_of_its_time() -> None:
    """Answers of 100 tokens in 10 s, one a second: once they overlap, 100 tokens/s, which no stage's own requests come to."""
    probes = [streamed(at, usage=Usage(60, 100)) for at in range(40)]
    delivered = between(probes, 20.0, 24.0)
    assert delivered == Delivered(4.0, 4, 240, 400)
    assert (delivered.prompt_tokens_per_s, delivered.output_tokens_per_s) == (60.0, 100.0)
    assert between(probes, 0.0, 4.0).output_tokens == 39 + 29 + 19 + 9, (
        "the load is still filling: fewer were delivered"
    )


def test_a_span_has_its_begin_and_not_its_end() -> None:
    """A stamp at the border is of the later span."""
    probe = streamed(0.0, gap_s=1.0, chunks=4, usage=Usage(9, 4))
    assert [between([probe], n, n + 1.0).output_tokens for n in range(6)] == [0, 1, 1, 1, 1, 0]


def test_tokens_of_a_chunk_are_as_reported_else_spread_in_whole_tokens() -> None:
    """Per chunk, by usage at the end; without either by the other answers' chunks."""
    reported = streamed(0.0, 1.0, 4, usage=Usage(8, 10), told=(1, 2, 3, 4))
    spread = streamed(0.0, 1.0, 4, usage=Usage(8, 10))
    unknown = streamed(0.0, 1.0, 4, Outcome.CANCELLED)
    assert between([reported], 2.0, 4.0).output_tokens == 2 + 3
    assert [between([spread], n, n + 1.0).output_tokens for n in range(1, 5)] == [2, 3, 2, 3], (
        "ten tokens in four chunks"
    )
    assert between([unknown], 2.0, 4.0).output_tokens is None
    assert between([spread, unknown], 2.0, 4.0).output_tokens == 5 + 6, "2.5 a chunk: 2 before, 8 after three chunks"
    assert between([spread, unknown], 4.5, 9.0).output_tokens == 0


def test_an_answer_that_is_not_streamed_counts_at_its_end() -> None:
    """Prompt and output."""
    plain = streamed(0.0, chunks=0, usage=Usage(30, 40))
    plain = replace(plain, timeline=replace(plain.timeline, end_ns=3 * S + 1))
    assert between([plain], 0.0, 3.0) == Delivered(3.0, 0, 0, 0)
    assert between([plain], 3.0, 4.0) == Delivered(1.0, 1, 30, 40)


def test_what_failed_counts_what_it_delivered() -> None:
    """Tokens and prompt count, and no answer; a request that never began counts nothing."""
    reset = streamed(0.0, 0.5, 4, Outcome.RESET, told=(1, 1, 1, 1))
    refused = streamed(0.0, chunks=0, outcome=Outcome.HTTP_5XX)
    other = streamed(0.0, 0.5, 4, usage=Usage(60, 4))
    assert between([reset, refused], 0.0, 4.0) == Delivered(4.0, 0, None, 4)
    assert between([refused], 0.0, 4.0) == Delivered(4.0, 0, 0, 0)
    assert between([reset, other], 0.0, 4.0) == Delivered(4.0, 1, 120, 8), "50 requested are 60, as of the other"


def test_an_empty_span_has_no_rate() -> None:
    """No time, no rate."""
    delivered = between([streamed(0.0, usage=Usage(1, 100))], 3.0, 3.0)
    assert delivered == Delivered(0.0, 0, 0, 0)
    assert delivered.output_tokens_per_s is None


# -- throughput at a rate


def test_a_long_stage_that_keeps_up_has_the_throughput_of_its_rate() -> None:
    """1/s of 100 tokens for 40 s: 100 tokens/s, although the first 10 s delivered less."""
    probes = [streamed(at, usage=Usage(60, 100)) for at in range(40)]
    assert between(probes, 0.0, 40.0).output_tokens == 30 * 100 + 99 + 89 + 79 + 69 + 59 + 49 + 39 + 29 + 19 + 9
    assert at_rate(probes, 1.0, 0.0, 40.0) == Throughput(1.0, 1.0, 60.0, 100.0)


def test_a_short_stage_alone_has_no_throughput_of_its_rate() -> None:
    """4 s of answers that take 10 s show neither a target that keeps up nor one that does not."""
    probes = [streamed(at, usage=Usage(60, 100)) for at in range(4)]
    assert at_rate(probes, 1.0, 0.0, 4.0) == Throughput()


def test_a_short_stage_has_it_if_the_sweep_has_delivered_that_much_later() -> None:
    """A target can do what it did for 10 s at a higher rate at a lower one; not more."""
    probes = [streamed(at / 2, usage=Usage(60, 100)) for at in range(60)]
    spans = [(rate, 4 * n * S, 4 * (n + 1) * S) for n, rate in enumerate((1.5, 3.0, *[2.0] * 6))]
    delivered = Deliveries(probes, (E2E,), spans)
    assert delivered.throughput(1.5, 0, 4 * S) == Throughput(1.5, 1.5, 90.0, 150.0)
    assert delivered.throughput(3.0, 4 * S, 8 * S) == Throughput()


def test_a_long_stage_that_falls_behind_has_what_it_delivered() -> None:
    """20/s arrive and one of 10 tokens ends every 0.1 s: once nine of ten have ended, 100 tokens/s and 10 answers/s."""
    probes = []
    for n in range(1_200):
        begin, end = round(n / 20 * S), round((n + 1) / 10 * S)
        stamps = tuple(end - round((9 - k) * 0.01 * S) for k in range(10)) if end < 60 * S else ()
        timeline = Timeline(
            begin, first_ns=stamps[0] if stamps else None, content_ns=stamps,
            end_ns=end if stamps else None, cut_ns=None if stamps else 60 * S, usage=Usage(5, 10) if stamps else None,
        )  # fmt: skip
        outcome = Outcome.OK if stamps else Outcome.CANCELLED
        probes.append(
            ProbeResult(
                "t", "w", f"{n}", 0.0, outcome, "", timeline, requested_prompt_tokens=5, requested_output_tokens=10
            )
        )
    throughput = at_rate(probes, 20.0, 0.0, 60.0)
    assert throughput.requests_per_s == pytest.approx(10.0, rel=0.01)
    assert throughput.output_tokens_per_s == pytest.approx(100.0, rel=0.01)
    assert throughput.good_per_s is None, (
        "half were cut, and most of those had not waited for longer than the threshold"
    )


def test_goodput_is_of_the_requests_that_the_stage_offered() -> None:
    """A quarter misses the SLO: 0.75 of the rate, whenever its answers end; without SLOs it is not known."""
    probes = [streamed(at, 0.15 if at % 4 == 0 else 0.1, usage=Usage(1, 100)) for at in range(60)]
    assert at_rate(probes, 1.0, 0.0, 60.0).good_per_s == 0.75
    assert Deliveries(probes, (), [(1.0, 0, 60 * S)]).throughput(1.0, 0, 60 * S).good_per_s is None


def test_a_share_of_good_requests_does_not_rise_with_the_rate() -> None:
    """4 of 8, 19 of 20, 10 of 20, none of 10: the first two are pooled; and any two rates whose order is of chance."""
    shares, begin_s, probes, spans = ((1.0, 4, 8), (2.0, 19, 20), (3.0, 10, 20), (4.0, 0, 10)), 0.0, [], []
    for rate, good, number in shares:
        seconds = number / rate
        probes += [streamed(begin_s + n / rate, 0.1 if n < good else 0.15, usage=Usage(1, 100)) for n in range(number)]
        spans.append((rate, round(begin_s * S), round((begin_s + seconds) * S)))
        begin_s += seconds
    delivered = Deliveries(probes, (E2E,), spans)
    assert delivered._good_shares == {1.0: 23 / 28, 2.0: 23 / 28, 3.0: 0.5, 4.0: 0.0}


def test_failed_requests_are_neither_answered_nor_good() -> None:
    """Half refused at once: half of the rate, and half of the tokens."""
    probes = [
        streamed(at, usage=Usage(60, 100)) if at % 2 else streamed(at, chunks=0, outcome=Outcome.HTTP_5XX)
        for at in range(60)
    ]
    assert at_rate(probes, 1.0, 0.0, 60.0) == Throughput(0.5, 0.5, 30.0, 50.0)


@pytest.mark.parametrize(
    ("cut_s", "first_s", "good"),
    [(11.0, 1.0, None), (13.0, 1.0, False), (13.0, None, False), (11.0, None, None)],
)
def test_a_cut_request_is_bad_if_it_has_waited_for_too_long(
    cut_s: float, first_s: float | None, good: bool | None
) -> None:
    """An E2E objective of 12 s: before that nothing is decided."""
    first_ns = None if first_s is None else round(first_s * S)
    timeline = Timeline(0, first_ns=first_ns, content_ns=(first_ns,) if first_ns else (), cut_ns=round(cut_s * S))
    assert is_good(ProbeResult("t", "w", "", 0.0, Outcome.CANCELLED, "", timeline), (E2E,)) is good
    ttft = replace(E2E, name="ttft", signal="ttft")
    assert is_good(ProbeResult("t", "w", "", 0.0, Outcome.CANCELLED, "", timeline), (ttft,)) is (
        True if first_s else good
    )


# -- a sweep of the simulated engine

LENGTHS = Workload(Lognormal(200, 0.1, 200, 200), Lognormal(100, 0.1, 100, 100))
WORLD = SimulatedTarget(
    7, "sharp", Parameters(step_s=0.03, max_sequences=64, kv_blocks=8_000), LENGTHS, LENGTHS, 2.0, 0.0
)


def swept(spec: SweepSpec, rng: Random | None = None) -> tuple[list[ProbeResult], list[tuple[float, float, float]]]:
    """All requests of a sweep, those cut at its end with what they had; (begin, end, rate) of each stage."""
    driver = Driver(WORLD, spec, "counters", 1)
    driver.rng = rng or driver.rng
    results: list[ProbeResult] = []
    take = driver.sweep.result

    def kept(result: ProbeResult, at_s: float) -> None:
        results.append(result)
        take(result, at_s)

    driver.sweep.result = kept
    driven = driver.run()
    cut_ns = round((CLOCK_S + driven.ended_s) * 1e9)
    for each in driver.open:
        stamps = tuple(round((CLOCK_S + at_s + each.network_s) * 1e9) for at_s in each.truth.token_times_s())
        at = round((CLOCK_S + each.truth.request.arrival_s) * 1e9)
        timeline = Timeline(at, first_ns=stamps[0] if stamps else None, content_ns=stamps, cut_ns=cut_ns)
        cut = ProbeResult("", "", each.id, 0.0, Outcome.CANCELLED, "cut", timeline, requested_prompt_tokens=200)
        results.append(cut)
    order = driven.orders[-1][1]
    assert isinstance(order, Estimate)
    return results, [(each.began_s, each.ended_s, each.rate_per_s) for each in order.record.stages]


SPEC = sweep_spec(Slo("ttft", "ttft", 2.0, Decimal("0.99"), 3_600.0), min_rate=2.0, max_rate=16.0, mode="gentle")


def test_a_ramp_and_a_grid_of_one_engine_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 5% at every rate both visited, with the default stages of 4 s and other requests; and with what is asked for."""
    found: list[dict[int, Throughput]] = []
    monkeypatch.setitem(FACTORS, "gentle", 2**0.25)
    grid = changed(SPEC, mode="grid", rates=(2.0, 4.0, 8.0), step=60.0)
    for seed, spec in enumerate((SPEC, grid)):
        results, stages = swept(spec, Random(seed))
        spans = [(rate, round(begin * 1e9), round(end * 1e9)) for begin, end, rate in stages]
        delivered = Deliveries(results, SPEC.slos, spans, (200.0, 100.0))
        found.append(
            {round(span[0]): delivered.throughput(*span) for span in spans if round(span[0], 6) in (2.0, 4.0, 8.0)}
        )
    of_ramp, of_grid = found
    assert list(of_ramp) == list(of_grid) == [2, 4, 8]
    for rate in (2, 4, 8):
        for name in ("requests_per_s", "good_per_s", "prompt_tokens_per_s", "output_tokens_per_s"):
            assert getattr(of_ramp[rate], name) == pytest.approx(getattr(of_grid[rate], name), rel=0.05)
        assert of_grid[rate].output_tokens_per_s == pytest.approx(rate * 100, rel=0.05)


@pytest.mark.parametrize("mode", ["gentle", "grid"])
def test_every_figure_of_a_stage_is_recomputed_from_the_stamps(
    mode: Literal["gentle", "grid"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With arrays of all stamps, dues and ends instead of requests; of a ramp to 16/s and of a grid that ends in overload."""
    threshold_s = 0.25 if mode == "gentle" else 100.0
    slo = replace(SPEC.slos[0], threshold_s=threshold_s)
    grid = (4.0, 8.0, 20.0) if mode == "grid" else ()
    monkeypatch.setattr(stop_conditions, "_MAX_PREEMPTIONS", 1e6)
    guard = GuardSpec(waiting=1e6).model_copy(update={"kv_cache": 2.0})
    spec = changed(SPEC, slos=(slo,), mode=mode, max_rate=40.0, rates=grid, guard=guard)
    results, stages = swept(spec, Random(3))
    spans: list[RatedSpan] = [(rate, round(begin * 1e9), round(end * 1e9)) for begin, end, rate in stages]
    spans[0] = (None, *spans[0][1:])
    reported = Deliveries(results, spec.slos, spans, (200.0, 100.0))

    due = np.array([each.timeline.intended_ns for each in results]) / 1e9
    first = np.array([each.timeline.first_ns or np.inf for each in results]) / 1e9
    end = np.array([each.timeline.end_ns or np.inf for each in results]) / 1e9
    until = stages[-1][1]
    tokens = np.sort(np.concatenate([np.array(each.timeline.content_ns, dtype=float) for each in results])) / 1e9
    long_s = np.sort(np.minimum(end, until) - due)[math.ceil(0.9 * len(due)) - 1]

    def per_s(times: "np.ndarray[Any, Any]", begin_s: float, end_s: float) -> float:
        return float(np.sum((times >= begin_s) & (times < end_s))) / (end_s - begin_s)

    shown = []
    for _, stop, _ in stages:
        begins = [begin for begin, _, _ in stages if stop - begin >= max(long_s, 10.0)]
        if begins:
            shown.append((200 * per_s(first, begins[-1], stop), per_s(tokens, begins[-1], stop)))
    claimed = overloaded = 0
    for begin, stop, rate in stages[1:]:
        delivered = reported.between(round(begin * 1e9), round(stop * 1e9))
        assert delivered.output_tokens == round(per_s(tokens, begin, stop) * (stop - begin))
        assert delivered.prompt_tokens == 200 * round(per_s(first, begin, stop) * (stop - begin))
        assert delivered.answers == round(per_s(end, begin, stop) * (stop - begin))

        own = (due >= begin) & (due < stop)
        fill_s = np.sort((np.minimum(end, until) - due)[own])[math.ceil(0.9 * own.sum()) - 1]
        found = reported.throughput(rate, round(begin * 1e9), round(stop * 1e9))
        full_s = begin + fill_s
        is_settled = stop - full_s >= max(fill_s, 10.0)
        times = (full_s, (full_s + stop) / 2, stop)
        flying = [int(np.sum((due < at) & (np.minimum(end, until) >= at))) for at in times]
        sigmas, *halves = (
            (flying[b] - flying[a]) / math.sqrt(max(1, flying[a] + flying[b])) for a, b in ((0, 2), (0, 1), (1, 2))
        )
        has_shown = any(prompt >= rate * 200 and output >= rate * 100 for prompt, output in shown)
        unknown = own & np.isinf(first) & (until - due <= threshold_s)
        if (is_settled and sigmas <= 1.5) or has_shown:
            claimed += 1
            assert found.requests_per_s == rate
            assert found.output_tokens_per_s == pytest.approx(rate * 100)
            assert found.prompt_tokens_per_s == pytest.approx(rate * 200)
            if found.good_per_s is not None:
                assert unknown.sum() <= 0.05 * own.sum()
                assert found.good_per_s <= rate
        elif is_settled and min(halves) >= 2.5:
            overloaded += 1
            assert found.output_tokens_per_s == pytest.approx(per_s(tokens, full_s, stop), rel=1e-3)
            assert found.requests_per_s == pytest.approx(per_s(end, full_s, stop), rel=1e-3)
        else:
            assert found == Throughput()
    assert claimed >= 2
    assert overloaded == (mode == "grid")


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
    delivered = Deliveries(probes)
    assert sum(delivered.between(*span).output_tokens or 0 for span in pairwise(borders)) == tokens
