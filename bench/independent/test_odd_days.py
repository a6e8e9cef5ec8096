"""Laws of the scenes of odd days, and of the orders in which a server takes requests."""

import numpy as np
import pytest

from bench.independent.disciplines import Discipline, Floats, Jobs, first_tokens_s
from bench.independent.odd_days import (
    DAY_S,
    FROM_TRACES,
    HELD_OUT,
    INTERVAL_S,
    KINDS,
    TUNING,
    Scene,
    calendar,
    fluctuation,
    poisson_times_s,
    scene,
    two_humps,
)

SEED = 3
GENERATED = sorted(set(KINDS) - FROM_TRACES)
HEAVY = sorted(set(TUNING["heavy queues"] | HELD_OUT["heavy queues"]) - FROM_TRACES)
CHANGING = sorted(set(GENERATED) - set(TUNING["recurring"] | HELD_OUT["recurring"]))
MEAN_S, RATE = 0.5, 1.2  # of the queues in theory: utilization 0.6


def jobs(discipline: Discipline, work: Floats, arrivals_s: Floats, slots: int = 1, hold: float = 1.0) -> Jobs:
    """Jobs without a network, half of them in the class that goes first."""
    size = work.size
    goes_first = np.random.default_rng(6).random(size) < 0.5
    everyone = np.ones(size, dtype=np.bool_)
    return Jobs(discipline, slots, hold, arrivals_s, work, np.zeros(size), goes_first, everyone, everyone)


def exponential(discipline: Discipline, slots: int = 1, hold: float = 1.0) -> tuple[Jobs, Floats]:
    """Jobs of an exponential work with a utilization of 0.6, and how long each waits for its work to begin or, shared, to end."""
    rng = np.random.default_rng(1)
    size = 200_000
    arrivals_s = np.cumsum(rng.exponential(1 / RATE / slots * hold, size))
    of = jobs(discipline, rng.exponential(MEAN_S, size), arrivals_s, slots, hold)
    took_s = first_tokens_s(of) - arrivals_s
    return of, took_s if discipline == "shared" else took_s - of.work_s


def test_one_server_in_order_waits_as_pollaczek_and_khinchine_say() -> None:
    """ρ ÷ (1 − ρ) works of an exponential work."""
    _, waits_s = exponential("in order")
    assert waits_s.mean() == pytest.approx(MEAN_S * 0.6 / 0.4, rel=0.05)


def test_slots_wait_as_erlang_says() -> None:
    """Three slots at a utilization of 0.6: a request waits with a probability of 0.355, then a mean of 1 ÷ (c·μ·(1 − ρ))."""
    _, waits_s = exponential("slots", slots=3)
    assert (waits_s > 1e-9).mean() == pytest.approx(0.355, rel=0.05)
    assert waits_s.mean() == pytest.approx(0.355 * MEAN_S / 3 / 0.4, rel=0.06)


def test_a_slot_is_held_for_the_answer_too() -> None:
    """The same utilization by longer stays: waits grow with the stay."""
    _, waits_s = exponential("slots", slots=3, hold=5.0)
    assert waits_s.mean() == pytest.approx(5 * 0.355 * MEAN_S / 3 / 0.4, rel=0.06)


def test_classes_wait_as_cobham_says() -> None:
    """Half in each class: W₀ ÷ (1 − ρ₁) and W₀ ÷ ((1 − ρ₁)·(1 − ρ)), W₀ = ρ·E[S]."""
    of, waits_s = exponential("priority")
    remaining_s = 0.6 * MEAN_S
    assert waits_s[of.goes_first].mean() == pytest.approx(remaining_s / 0.7, rel=0.05)
    assert waits_s[~of.goes_first].mean() == pytest.approx(remaining_s / 0.7 / 0.4, rel=0.05)


def test_the_shortest_first_waits_less_in_the_mean_and_no_work_is_lost() -> None:
    """Less mean wait than in order, more for the longest; the server ends all at the same time."""
    of, waits_s = exponential("shortest")
    _, in_order_s = exponential("in order")
    longest = of.work_s > np.quantile(of.work_s, 0.99)
    assert waits_s.mean() < 0.85 * in_order_s.mean()
    assert waits_s[longest].mean() > 1.3 * in_order_s[longest].mean()
    ended_s = [float(first_tokens_s(other).max()) for other in (of, exponential("in order")[0])]
    assert ended_s[0] == pytest.approx(ended_s[1])


def test_a_shared_server_takes_a_time_in_proportion_to_the_work() -> None:
    """E[S] ÷ (1 − ρ) in the mean, and work ÷ (1 − ρ) for each work."""
    of, took_s = exponential("shared")
    assert took_s.mean() == pytest.approx(MEAN_S / 0.4, rel=0.06)
    long = of.work_s > 2 * MEAN_S
    assert took_s[long].mean() == pytest.approx(of.work_s[long].mean() / 0.4, rel=0.08)


def test_arrivals_are_a_poisson_process_with_the_rate_of_each_minute() -> None:
    """Counts of a minute have the mean and the variance of the rate."""
    rate = np.tile([0.5, 3.0], 2_000)
    times_s = poisson_times_s(np.random.default_rng(2), rate)
    counts = np.histogram(times_s, 60.0 * np.arange(rate.size + 1))[0]
    for first, expected in ((0, 30.0), (1, 180.0)):
        assert counts[first::2].mean() == pytest.approx(expected, rel=0.02)
        assert counts[first::2].var() == pytest.approx(expected, rel=0.1)


def test_a_fluctuation_has_a_mean_of_one_and_the_given_spread() -> None:
    """exp of a Gaussian process, corrected for its mean."""
    factors = fluctuation(np.random.default_rng(4), 300_000, 0.15)
    assert factors.mean() == pytest.approx(1.0, abs=0.01)
    assert np.log(factors).std() == pytest.approx(0.15, rel=0.05)


def test_halves_share_no_kind_and_have_the_same_groups() -> None:
    """As many kinds of each group in both halves."""
    assert {group: len(kinds) for group, kinds in TUNING.items()} == {
        group: len(kinds) for group, kinds in HELD_OUT.items()
    }
    assert len(KINDS) == sum(len(kinds) for half in (TUNING, HELD_OUT) for kinds in half.values())


@pytest.fixture(scope="module")
def scenes() -> dict[str, Scene]:
    """The first scene of each kind that needs no trace."""
    return {kind: scene(kind, 0, SEED) for kind in GENERATED}


@pytest.mark.parametrize("kind", GENERATED)
def test_a_scene_is_a_series_of_probes(scenes: dict[str, Scene], kind: str) -> None:
    """Times ascend by 3 to 7 s but for a gap; TTFT is finite; load is a rate of whole requests in a minute."""
    of = scenes[kind]
    assert of.unix_s.shape == of.ttft_s.shape == of.load.shape
    steps = np.diff(of.unix_s)
    assert steps.min() > INTERVAL_S - 2.01
    assert (steps > INTERVAL_S + 2.01).sum() == (kind == "swap_after_gap")
    assert np.isfinite(of.ttft_s).all()
    assert np.allclose(of.load * 60, np.round(of.load * 60))
    assert all(0 < moment_s < (of.days - 0.3) * DAY_S for moment_s in of.moments_s)


@pytest.mark.parametrize("kind", ["holiday", "batches"])
def test_a_scene_depends_on_kind_index_and_seed_only(scenes: dict[str, Scene], kind: str) -> None:
    """The same again, and another with another index."""
    again, other = scene(kind, 0, SEED), scene(kind, 1, SEED)
    assert (again.ttft_s == scenes[kind].ttft_s).all()
    assert not np.array_equal(other.ttft_s[:1000], again.ttft_s[:1000])


@pytest.mark.parametrize("kind", HEAVY)
def test_waits_are_most_of_a_bad_percentile_of_a_heavy_queue(scenes: dict[str, Scene], kind: str) -> None:
    """p99 is four times the median and more."""
    middle, bad = np.quantile(scenes[kind].ttft_s, [0.5, 0.99])
    assert bad > 4 * middle


@pytest.mark.parametrize("kind", CHANGING)
def test_an_engine_that_is_slower_is_so_by_its_factor_when_nothing_waits(scenes: dict[str, Scene], kind: str) -> None:
    """The fastest probes, whose network stays as it is, by 1.15 to 1.35; the median by that and its waits."""
    of = scenes[kind]
    for moment_s in of.moments_s[:2]:
        after = of.slower(moment_s)
        window = (of.unix_s >= after.unix_s[0]) & (of.unix_s <= after.unix_s[-1])
        usual = np.quantile(of.ttft_s[window], [0.05, 0.5])
        slow = np.quantile(after.ttft_s, [0.05, 0.5])
        assert 1.15 < slow[0] / usual[0] < 1.4
        assert slow[1] / usual[1] > 1.15
        assert after.ttft_s.size == pytest.approx(window.sum(), abs=1)


@pytest.mark.parametrize("kind", HEAVY)
def test_load_does_not_follow_how_slow_a_service_is(scenes: dict[str, Scene], kind: str) -> None:
    """Arrivals come from outside."""
    of = scenes[kind]
    after = of.slower(of.moments_s[0])
    begin = int(np.searchsorted(of.unix_s, after.unix_s[0]))
    usual = of.load[begin : begin + after.load.size]
    assert np.abs(usual[12:] - after.load[12:]).max() < 1e-9


def test_a_faster_model_takes_35_percent_less(scenes: dict[str, Scene]) -> None:
    """The fastest probes of the last four days to those of the first seven, waits and network included."""
    for kind in ("swap", "swap_around_the_clock", "swap_rolling", "swap_after_gap"):
        of = scenes[kind]
        day = (of.unix_s - of.unix_s[0]) / DAY_S
        ratio = np.quantile(of.ttft_s[day > 12], 0.05) / np.quantile(of.ttft_s[day < 7], 0.05)
        assert 0.57 < ratio < 0.75, kind


def test_rest_days_have_less_load(scenes: dict[str, Scene]) -> None:
    """Of the days of a week, as many are quiet as the kind says."""
    for kind, number in (("friday_saturday", 2), ("one_working_day", 1), ("sunday_monday", 2), ("only_sunday", 1)):
        of = scenes[kind]
        day = ((of.unix_s - of.unix_s[0]) // DAY_S).astype(int)
        week = np.array([of.load[day == which].mean() for which in range(21)]).reshape(3, 7).mean(axis=0)
        assert number <= (week < 0.75 * week.max()).sum() <= number + 1, kind  # scenes do not begin at midnight


def test_an_odd_first_week_is_over_before_the_change(scenes: dict[str, Scene]) -> None:
    """The second week of a holiday's service has one quiet working day less."""
    for kind, number in (("holiday", 1), ("bridge_days", 2)):
        of = scenes[kind]
        hour = ((of.unix_s - of.unix_s[0]) // 3600).astype(int)
        loads = np.bincount(hour, of.load)[: 14 * 24].reshape(2, -1)
        quieter = (loads[0] < 0.6 * loads[1]).sum()
        assert 4 * number <= quieter <= 16 * number, kind


def test_bursts_are_three_minutes_twice_a_day(scenes: dict[str, Scene]) -> None:
    """Times at which the fastest of 12 probes take far longer than those around them."""
    of = scenes["bursts"]
    minutes = of.ttft_s[: of.ttft_s.size // 12 * 12].reshape(-1, 12).min(axis=1)
    around = np.median(np.lib.stride_tricks.sliding_window_view(minutes, 31), axis=1)
    slow = minutes[15:-15] > 1.35 * around
    assert slow.sum() == pytest.approx(30 * 6, rel=0.25)


def test_a_calendar_is_local_and_activity_is_at_most_one() -> None:
    """Hours of a day follow each other, days begin at local midnight, and humps are by day."""
    rng = np.random.default_rng(5)
    when = calendar(rng, 3.0)
    assert np.diff(when.hour).max() == pytest.approx(1 / 60)
    assert set(np.diff(when.day)) == {0, 1}
    assert (when.hour[1:][np.diff(when.day) == 1] < 1 / 60 + 1e-9).all()
    activity = two_humps(rng, when)
    assert activity.max() <= 1
    assert activity[(when.hour > 9) & (when.hour < 17)].mean() > 2 * activity[when.hour < 5].mean()


def test_a_kind_of_a_trace_says_what_it_needs() -> None:
    """An error that names the trace."""
    with pytest.raises(ValueError, match="azure"):
        scene("azure_slots", 0, SEED)
