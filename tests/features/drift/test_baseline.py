"""Baselines from blocks of samples."""

import math
from bisect import bisect_right
from collections.abc import Callable
from random import Random

import pytest

from prober.features.drift.baseline import QUANTILES, Baseline, scores
from prober.features.drift.blocks import (
    BLOCK_COUNT,
    BLOCK_SAMPLES,
    DAY_SLOTS,
    MONDAY_S,
    SPREAD_EVERY_S,
    SPREAD_S,
    Blocks,
    blocks_of_samples,
)
from prober.features.drift.evidence import FLOOR_WEIGHT, MAX_SHIFT_SDS, MIN_SHIFT_SDS, TAILS, gain, mixture
from prober.features.drift.fitting import learn_baseline

THRESHOLD = 1_036_800.0


def collected(
    log: Callable[[float], float],
    load: Callable[[float], float | None] = lambda _t: None,
    every_s: float = SPREAD_EVERY_S,
    step_s: float = 25.0,
) -> Blocks:
    """Full blocks of a signal with a sample every `step_s`."""
    blocks, t = Blocks(every_s), 0.0
    while not blocks.full:
        t += step_s
        blocks.add(t, log(t), load(t), linked=True)
    return blocks


def correlated(rng: Random, phi: float, spread: float = 0.4) -> Callable[[float], float]:
    last = rng.gauss(0, spread)

    def draw(_t: float) -> float:
        nonlocal last
        last = phi * last + math.sqrt(1 - phi * phi) * rng.gauss(0, spread)
        return last

    return draw


@pytest.fixture(scope="module")
def plain() -> Baseline:
    return learn_baseline(collected(correlated(Random(1), 0.0), every_s=0.0))


def test_blocks_are_spread_over_three_days() -> None:
    """100 blocks of 50 neighbours; the last begins three whole days after the first."""
    blocks = collected(lambda _t: 0.0)
    spans = [blocks.span(i) for i in range(BLOCK_COUNT)]
    assert spans[-1].begun_s - spans[0].begun_s >= SPREAD_S
    assert {span.lasted_s for span in spans} == {25.0 * (BLOCK_SAMPLES - 1)}
    assert len(blocks.logs) == BLOCK_SAMPLES * BLOCK_COUNT


def test_a_gap_ends_an_incomplete_block_unused() -> None:
    """Neighbours in a block are neighbours in time."""
    blocks = Blocks(0.0)
    for i in range(70):
        blocks.add(5.0 * i, 1.0, None, linked=True)
    blocks.add(10_000.0, 2.0, None, linked=False)
    assert len(blocks.logs) == BLOCK_SAMPLES + 1
    assert list(blocks.begun) == [0.0, 10_000.0]
    assert blocks.span(1).samples == 1


def test_samples_between_blocks_count_in_the_means_of_their_interval() -> None:
    """Ten samples between two blocks for each in one."""
    blocks = Blocks(5.0 * 500)
    for i in range(501):
        blocks.add(5.0 * i, float(i), None, linked=True)
    span = blocks.span(0)
    assert span.samples == 500
    assert span.mean_log == pytest.approx(249.5, rel=1e-4)
    assert list(blocks.slot_counts[3 * DAY_SLOTS :][:2]) == [360, 141]


def test_blocks_without_their_load_are_left_out_where_others_have_it() -> None:
    """A page that is not readable for an hour leaves a gap; one that stays unreadable for a day lets the blocks start again."""
    blocks = Blocks(0.0)
    for i in range(175):
        blocks.add(5.0 * i, 1.0, None if 80 <= i < 120 else 3.0, linked=True)
    assert [blocks.span(block).first_load for block in range(2)] == [3.0, 3.0]
    assert list(blocks.begun) == [0.0, 600.0, 850.0]
    blocks.add(86_400.0 + 1_000.0, 1.0, None, linked=True)
    assert len(blocks.logs) == 1
    assert math.isnan(blocks.span(0).first_load)


def test_blocks_start_again_with_a_load_that_becomes_known_early() -> None:
    """The first probes may be sent before the first page was read."""
    blocks = Blocks(0.0)
    for i in range(60):
        blocks.add(5.0 * i, 1.0, None if i < 3 else 3.0, linked=True)
    assert blocks.begun[0] == 15.0


@pytest.mark.parametrize("phi", [0.0, 0.3, 0.6])
def test_the_correlation_of_neighbours_is_found(phi: float) -> None:
    """Lag 1, inside blocks, to ±0.05; none where it could be noise."""
    baseline = learn_baseline(collected(correlated(Random(2), phi)))
    assert baseline.correlation == pytest.approx(phi, abs=0.05)
    assert baseline.sd == pytest.approx(0.4, abs=0.02)


def test_the_load_explains_where_every_block_knows_it() -> None:
    """A convex effect of the load is found to 2% within the loads seen."""
    rng = Random(3)

    def load(t: float) -> float:
        return 20 + 10 * math.sin(t / 86_400 * math.tau)

    baseline = learn_baseline(collected(lambda t: rng.gauss(-math.log(1 - load(t) / 45), 0.4), load))
    assert baseline.factor == "load"
    for running in (12.0, 20.0, 28.0):
        expected, error = baseline.expected(0.0, running)
        assert expected == pytest.approx(-math.log(1 - running / 45), abs=0.02 + 2 * error)
    assert baseline.busiest == pytest.approx(30, abs=0.1)


def test_nothing_is_extrapolated_beyond_the_loads_seen() -> None:
    """The doubt is larger at the highest load than at the mean; at twice the highest load all is as at the highest."""
    rng = Random(4)
    baseline = learn_baseline(
        collected(lambda _t: rng.gauss(0, 0.4), lambda t: 20 + 10 * math.sin(t / 86_400 * math.tau))
    )
    assert baseline.expected(0.0, baseline.busiest)[1] > 1.3 * baseline.expected(0.0, 20.0)[1]
    assert baseline.expected(0.0, 60.0) == baseline.expected(0.0, baseline.busiest)


def test_the_hour_explains_where_the_load_is_not_known() -> None:
    """A day of ±20% leaves nothing of itself in the residuals."""
    rng = Random(5)
    baseline = learn_baseline(collected(lambda t: rng.gauss(0.2 * math.sin(t / 86_400 * math.tau), 0.4)))
    assert baseline.factor == "hour"
    assert baseline.sd == pytest.approx(0.4, abs=0.02)
    assert baseline.expected(21_600.0, 0.0)[0] == pytest.approx(0.2, abs=0.04)
    assert baseline.wander < 0.02


def test_an_hour_that_was_not_seen_is_not_known() -> None:
    """Seven hours of one day show nothing of the others, flat as they may be; a level is never made up."""
    baseline = learn_baseline(collected(correlated(Random(6), 0.0), every_s=0.0, step_s=5.0), thin=8)
    assert baseline.expected(3 * 3_600.0, 0.0)[0] == pytest.approx(0.0, abs=0.1)
    assert math.isnan(baseline.expected(48 * 3_600.0, 0.0)[0])


def test_a_day_without_season_is_known_at_every_hour() -> None:
    """Three flat days tell the level of all hours of the week, with the error of all samples."""
    baseline = learn_baseline(collected(correlated(Random(6), 0.0), step_s=5.0))
    assert not any(map(math.isnan, baseline.levels))
    assert max(baseline.level_errors) < 0.004


def office(t: float) -> float:
    """A day of office hours, ×1.5 from 09:00 to 17:00 with ramps of an hour."""
    hour = t / 3_600 % 24
    return 0.4 * max(0.0, min(1.0, hour - 8, 18 - hour))


def learnt_from(begin_s: float, level: Callable[[float], float]) -> Baseline:
    """A baseline of three days from a time of the week on, load not seen, a sample each 5 s."""
    rng, blocks, t = Random(21), Blocks(SPREAD_EVERY_S), begin_s
    while not blocks.full:
        t += 5.0
        blocks.add(t, rng.gauss(level(t), 0.2), None, linked=True)
    return learn_baseline(blocks)


def test_workdays_tell_of_all_workdays_and_of_no_weekend() -> None:
    """Learnt from Monday to Thursday: weekends differ between time zones, and are not known.

    Beside a ramp the possible error is the difference to the slower neighbour, as a day may begin an hour earlier or later.
    """
    baseline = learnt_from(MONDAY_S + 12 * 3_600, office)
    for day in range(7):
        noon = baseline.expected(MONDAY_S + 86_400 * (14 + day) + 13 * 3_600, 0.0)[0]
        assert (noon == pytest.approx(0.4, abs=0.03)) == (day < 4), day
        assert math.isnan(noon) == (day >= 4), day
    at = {hour: baseline.expected(MONDAY_S + 86_400 + hour * 3_600, 0.0)[1] for hour in (3, 8, 13)}
    assert at[3] < 0.01
    assert at[13] < 0.01
    assert at[8] > 0.15


@pytest.fixture(scope="module")
def quiet_weekend() -> Baseline:
    """Learnt from a quiet weekend and its Monday."""
    return learnt_from(MONDAY_S + 5 * 86_400, lambda t: office(t) if t >= MONDAY_S + 7 * 86_400 else 0.0)


def test_an_hour_of_workdays_takes_two_of_them(quiet_weekend: Baseline) -> None:
    """One Monday is not taken for all workdays, for it may be a holiday."""
    assert quiet_weekend.expected(MONDAY_S + 8 * 86_400 + 13 * 3_600, 0.0)[1] == math.inf
    assert quiet_weekend.expected(MONDAY_S + 6 * 86_400 + 13 * 3_600, 0.0)[0] == pytest.approx(0.0, abs=0.05)


def test_a_visit_teaches_an_hour_of_a_weekend_and_two_teach_one_of_workdays(quiet_weekend: Baseline) -> None:
    """Of two visits the slower counts, for the other may have been on a holiday."""
    thursday, friday = 3 * DAY_SLOTS + 32, 4 * DAY_SLOTS + 32
    assert quiet_weekend.level_errors[thursday] == math.inf, "seen on a Monday only"
    twice = quiet_weekend.with_visit(thursday, 0.1, 300)
    assert twice.levels[thursday] == twice.levels[thursday - DAY_SLOTS] == pytest.approx(0.4, abs=0.03)
    assert 0 < twice.level_errors[thursday] < 0.02
    assert math.isnan(quiet_weekend.levels[friday])
    weekend = quiet_weekend.with_visit(friday, 0.2, 300)
    assert weekend.levels[friday] == pytest.approx(0.2)
    assert 0 < weekend.level_errors[friday] < 0.02


def test_a_weekend_like_its_monday_tells_of_all_days() -> None:
    """Three days alike, and among them a weekend: there is no weekly season to wait for."""
    baseline = learnt_from(MONDAY_S + 5 * 86_400, office)
    for day in range(7):
        assert baseline.expected(MONDAY_S + 86_400 * (14 + day) + 13 * 3_600, 0.0)[0] == pytest.approx(0.4, abs=0.03)


def by_load(shape: Callable[[Random, float], float], seed: int) -> Baseline:
    """A baseline of logs that `shape` draws at a load that swings from 0 to 1 in a day."""
    rng = Random(seed)

    def load(t: float) -> float:
        return 0.5 + 0.5 * math.sin(t / 86_400 * math.tau)

    return learn_baseline(collected(lambda t: shape(rng, load(t)), load, step_s=5.0))


def test_each_fifth_of_the_load_has_its_shape() -> None:
    """Cache hits that become rare with load: five references, against which no bet gains at any load."""

    def shape(rng: Random, load: float) -> float:
        return rng.gauss(0.0 if rng.random() > 0.1 + 0.6 * load else 1.2, 0.15)

    baseline = by_load(shape, 23)
    assert len(baseline.references) == 5
    assert sum(map(len, baseline.references)) == BLOCK_SAMPLES * BLOCK_COUNT
    bets, rng = mixture(baseline, 0.2, THRESHOLD), Random(24)
    for load in (0.02, 0.2, 0.5, 0.8, 0.98):
        fifth = baseline.fifth(0.0, load)
        reference, table = baseline.references[fifth], scores(len(baseline.references[fifth]))
        expected, error = baseline.expected(0.0, load)
        z = [table[bisect_right(reference, shape(rng, load) - expected - error)] for _ in range(20_000)]
        for component in (1, 2):
            assert sum(math.exp(bets.log(component, score)) for score in z) / len(z) < 1.05, (load, component)


def test_scores_that_go_together_for_minutes_are_inflated() -> None:
    """A fifth of the variance with a time constant of five minutes: as one sample of several, which neighbours do not show."""
    slow, noise = correlated(Random(26), math.exp(-5 / 300), 0.2), correlated(Random(27), 0.0, 0.4)
    baseline = learn_baseline(
        collected(lambda t: slow(t) + noise(t), lambda t: math.sin(t / 86_400 * math.tau), step_s=5.0)
    )
    assert min(baseline.inflations) > 3


def test_a_load_that_never_moves_explains_nothing() -> None:
    """A constant column is no regression."""
    assert learn_baseline(collected(correlated(Random(7), 0.0), lambda _t: 5.0, every_s=0.0)).factor == "none"


def test_an_unexplained_wander_is_measured() -> None:
    """Of 5% with a time constant of an hour: as wander by load (3 to 6%, for its mean over an interval moves less; none as below 1%).

    Without the load, as correlation over half an hour: 360 samples of spread 40% hide one of 2.1% in their mean.
    """
    wander, noise = correlated(Random(8), math.exp(-5 / 3600), 0.05), correlated(Random(9), 0.0)
    baseline = learn_baseline(collected(lambda t: wander(t) + noise(t), lambda t: t % 7, step_s=5.0))
    assert 0.03 < baseline.wander < 0.06
    baseline = learn_baseline(collected(lambda t: wander(t) + noise(t), step_s=5.0))
    assert max(baseline.wander / 0.03, min(baseline.inflations) / 3) > 1
    baseline = learn_baseline(collected(correlated(Random(10), 0.0), step_s=5.0))
    assert baseline.wander < 0.01
    assert max(baseline.inflations) < 1.5


def test_a_signal_that_never_varies_still_makes_a_baseline() -> None:
    """No division by nothing."""
    baseline = learn_baseline(collected(lambda _t: -3.0, every_s=0.0))
    assert baseline.expected(0.0, 0.0)[0] == pytest.approx(-3)
    assert mixture(baseline, 0.2, THRESHOLD).components == 6


def test_residuals_keep_their_quantiles(plain: Baseline) -> None:
    """Later shifts are compared with them."""
    known = {0.5: 0.0, 0.9: 0.4 * 1.2816, 0.99: 0.4 * 2.3263}
    for q, level in zip(QUANTILES, plain.quantiles[0], strict=True):
        if q in known:
            assert level == pytest.approx(known[q], abs=0.06)


def test_a_material_change_sets_the_bets(plain: Baseline) -> None:
    """+20% at a spread of 0.4 is 0.46 standard deviations; the bets lie at a half, one, two and four of them."""
    assert gain(plain, math.log(1.2)) == pytest.approx(math.log(1.2) / 0.4, abs=0.04)
    first, second, *_ = (d for _, d, _ in mixture(plain, 0.2, THRESHOLD).shifts)
    assert second == pytest.approx(math.log(1.2) / 0.4, abs=0.04)
    assert second == pytest.approx(2 * first)
    assert mixture(plain, 0.001, THRESHOLD).shifts[1][1] == MIN_SHIFT_SDS
    assert mixture(plain, 100.0, THRESHOLD).shifts[-1][1] == MAX_SHIFT_SDS


def test_bets_are_fair(plain: Baseline) -> None:
    """Over the baseline's own ranks no bet gains on average, and their weights sum to one."""
    bets = mixture(plain, 0.2, THRESHOLD)
    table = scores(len(plain.references[0]))
    for component in range(bets.components):
        assert sum(math.exp(bets.log(component, z)) for z in table) / len(table) <= 1.0
    assert sum(weight for weight, *_ in (*bets.shifts, *bets.tails)) + FLOOR_WEIGHT == pytest.approx(1)
    assert len(bets.tails) == len(TAILS)


def test_recalled_samples_lose_their_order_and_keep_their_hours() -> None:
    """Sorted values of an hour, as a histogram gives them, do not look correlated; days are seen as days."""
    rng = Random(12)
    samples = [
        (3_600.0 * hour, value, None) for hour in range(100) for value in sorted(rng.gauss(0, 0.4) for _ in range(120))
    ]
    blocks = blocks_of_samples(samples)
    assert blocks.full
    assert learn_baseline(blocks).correlation < 0.1
    assert learn_baseline(blocks, correlation=0.6).correlation == 0.6
    assert learn_baseline(blocks).factor == "hour"
