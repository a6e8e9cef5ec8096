"""The effect of a load on a stage (TTFT beside it, and the time to recover), and of what differs between two rows."""

from collections.abc import Sequence
from decimal import Decimal
from random import Random

from prober.measure.objective import Slo
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.results.disturbance import Disturbance, Recovery, contrast_of, disturbance_of
from tests.known import known
from tests.results.samples import answered

TTFT = Slo("ttft", "ttft", 0.5, Decimal("0.95"), 2_592_000.0)
S = 1_000_000_000
FAST_S, SLOW_S = 0.1, 2.0


def effect(probes: Sequence[ProbeResult], begin_s: float = 60, end_s: float = 90) -> Disturbance:
    return disturbance_of(
        TTFT,
        probes,
        name="overload",
        ended="",
        stage_begin_ns=0,
        begin_ns=round(begin_s * S),
        end_ns=round(end_s * S),
    )


def steady(recovers_s: float, until_s: int = 200) -> list[ProbeResult]:
    """A request a second, slow from 60 s on up to `recovers_s`."""
    return [answered(due_s, SLOW_S if 60 <= due_s < recovers_s else FAST_S) for due_s in range(until_s)]


def test_recovery_lies_between_the_last_slow_and_the_next_request() -> None:
    """Slow until 12 s after the load: the last slow request was due 11 s after it, the first fast one 12 s."""
    recovery = effect(steady(102)).recovery
    assert (recovery.evidence, recovery.lower_s, recovery.upper_s) == ("holds", 11.0, 12.0)
    assert (recovery.events, recovery.bad) == (98, 0)
    assert "Recovery: 11 s to 12 s after its end (0 of 98 bad since)" in effect(steady(102)).text()


def test_a_recovery_that_the_time_watched_does_not_show_has_a_lower_bound_only() -> None:
    """Slow to the end, or too few requests since: 68 good ones are the fewest that show 95%."""
    never = effect(steady(1_000)).recovery
    assert (never.evidence, never.lower_s, never.upper_s) == ("undecided", 109.0, None)
    few = effect(steady(102, until_s=169)).recovery
    assert (few.evidence, few.lower_s, few.upper_s) == ("undecided", 11.0, None)
    assert effect(steady(102, until_s=170)).recovery.evidence == "holds"


def test_a_load_that_slows_nothing_after_its_end_is_recovered_at_once() -> None:
    """A slow request later on, as the objective allows, moves nothing; without requests nothing is claimed."""
    probes = [*steady(90, until_s=300), answered(150.5, SLOW_S)]
    recovery = effect(probes).recovery
    assert (recovery.evidence, recovery.lower_s, recovery.upper_s, recovery.bad) == ("holds", 0.0, 0.0, 1)
    assert effect(steady(90, until_s=90)).recovery == Recovery("undecided", 0, 0)
    assert effect(steady(90, until_s=100)).recovery == Recovery("undecided", 10, 0)


def test_a_failed_request_is_not_recovered() -> None:
    """An engine that refuses after the load has not recovered, although all TTFTs are short."""
    probes = [*steady(60, until_s=90), *(answered(due_s, outcome=Outcome.HTTP_5XX) for due_s in range(90, 200))]
    assert effect(probes).recovery.evidence == "undecided"


def test_an_objective_that_failed_before_the_load_is_not_recovered() -> None:
    probes = [answered(due_s, SLOW_S if due_s % 4 == 0 else FAST_S) for due_s in range(200)]
    result = effect(probes)
    assert (result.recovery.evidence, result.recovery.events, result.recovery.bad) == ("fails", 60, 15)
    assert "ttft failed before it already (15 of 60 bad)" in result.text()


def test_engines_at_twice_their_budget_after_the_load_are_seldom_recovered() -> None:
    """The choice of the change by the same requests does not raise the error above 5%; healthy ones are found with power."""
    rng = Random(4)

    def recovered(share: float) -> float:
        runs = 0
        for _ in range(400):
            after = [answered(due_s, SLOW_S if rng.random() < share else FAST_S) for due_s in range(90, 390)]
            runs += effect([*steady(90, until_s=90), *after]).recovery.evidence == "holds"
        return runs / 400

    assert recovered(0.10) <= 0.05
    assert recovered(0.01) >= 0.9


def test_ttft_beside_the_load_is_a_ratio_with_an_interval_that_holds_the_truth() -> None:
    """Three times as slow: the interval of the median holds 3 in most runs; too few requests, or all in one block, give none."""
    rng, held = Random(9), 0
    for _ in range(60):
        probes = [answered(i / 4, rng.lognormvariate(0, 0.4) * (0.1 if i < 480 else 0.3)) for i in range(960)]
        ratios = {ratio.q: ratio for ratio in effect(probes, 120, 240).ratios}
        assert set(ratios) == {0.5, 0.9, 0.95}
        held += ratios[0.5].lower <= 3 <= ratios[0.5].upper
    assert held >= 54
    few = effect([answered(i, 0.1) for i in range(150)], 140, 150)
    assert few.ratios == ()
    assert "too few requests (10 and 140)" in few.text()


def test_failed_requests_count_as_slower_than_all_others() -> None:
    """A tenant whose requests fail beside the load has no ratio from the lucky rest; with a few failures the median stays known."""

    def run(share: float) -> Disturbance:
        rng = Random(2)
        outcomes = [Outcome.HTTP_5XX if i >= 480 and rng.random() < share else Outcome.OK for i in range(960)]
        return effect(
            [answered(i / 4, 0.1 + rng.random() / 100, outcome=outcome) for i, outcome in enumerate(outcomes)], 120, 240
        )

    assert run(0.6).ratios == ()
    assert 0.5 in {ratio.q for ratio in run(0.1).ratios}
    assert 0.95 not in {ratio.q for ratio in run(0.1).ratios}


def poisson(rate: float, until_s: float, seed: int) -> list[float]:
    rng, due_s, times = Random(seed), 0.0, []
    while (due_s := due_s + rng.expovariate(rate)) < until_s:
        times.append(due_s)
    return times


def test_equal_throughput_below_saturation_and_slower_first_tokens() -> None:
    """A storm that the engine bears: TTFT three times as long, as many answers a second within the interval."""
    rng = Random(3)
    one = [answered(due_s, 0.1 * rng.uniform(0.9, 1.1), 1.0) for due_s in poisson(4, 120, 1)]
    storm = [answered(due_s, 0.3 * rng.uniform(0.9, 1.1), 1.2) for due_s in poisson(4, 120, 2)]
    contrast = contrast_of(storm, one, name="one")
    assert [ratio.q for ratio in contrast.ttft] == [0.5, 0.9, 0.95]
    assert all(ratio.lower < 3 < ratio.upper and ratio.upper / ratio.lower < 1.2 for ratio in contrast.ttft)
    assert known(contrast.throughput).lower < 1 < known(contrast.throughput).upper
    assert known(contrast.throughput).upper - known(contrast.throughput).lower < 0.5


def test_a_saturated_row_delivers_less() -> None:
    """It answers one every 0.5 s whatever is sent: half of 4/s."""
    one = [answered(due_s, 0.1, 1.0) for due_s in poisson(4, 120, 1)]
    times, free_s = poisson(4, 120, 2), 0.0
    storm = []
    for due_s in times:
        free_s = max(free_s, due_s) + 0.5
        storm.append(answered(due_s, free_s - due_s, free_s - due_s))
    contrast = contrast_of(storm, one, name="one")
    assert 0.42 < known(contrast.throughput).estimate < 0.58
    assert known(contrast.throughput).lower < 0.5 < known(contrast.throughput).upper
    assert contrast.text().startswith("Relative to one, sent before it: TTFT p50 ")
    assert "answers per second" in contrast.text()


def test_the_interval_of_the_throughput_holds() -> None:
    """Of 200 pairs of rows whose true ratio is 1, about 95% of the intervals contain it."""
    hits = 0
    for seed in range(200):
        a, b = ([answered(t, 0.1, 1.0) for t in poisson(4, 100, 2 * seed + side)] for side in (0, 1))
        ratio = known(contrast_of(a, b, name="b").throughput)
        hits += ratio.lower <= 1 <= ratio.upper
    assert 184 <= hits <= 199


def test_nothing_is_stated_without_evidence() -> None:
    """A short row has neither ratio."""
    few = [answered(due_s, 0.1, 1.0) for due_s in poisson(4, 4, 1)]
    contrast = contrast_of(few, few, name="one")
    assert contrast.ttft == ()
    assert contrast.throughput is None
    assert contrast.text() == (
        f"Relative to one, sent before it: no ratio of TTFT ({len(few)} and {len(few)} requests), none of answers per second (0 and 0 "
        "blocks of 5 s, 10 of both are needed)"
    )
