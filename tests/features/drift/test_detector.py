"""The drift detector, sample by sample."""

import itertools
import math
from array import array
from collections.abc import Callable
from copy import deepcopy
from random import Random

import pytest

from prober.config.configuration import DriftSpec
from prober.features.drift.blocks import (
    BLOCK_COUNT,
    BLOCK_SAMPLES,
    DAY_S,
    MONDAY_S,
    SPREAD_EVERY_S,
    Blocks,
)
from prober.features.drift.detector import CAUTION_S, adopt, follow_clock, seed, step
from prober.features.drift.fitting import learn_baseline
from prober.features.drift.serialization import dump, restore
from prober.features.drift.state import (
    LOAD_SAMPLES,
    RING_SAMPLES,
    Drift,
    DriftVerdict,
    Observation,
    Settings,
    new_state,
    shifts,
)

SETTINGS = Settings(rate_per_s=0.2)
RATE = 0.2


def noise(rng: Random, phi: float = 0.0) -> Callable[[], float]:
    """Latencies around e^-1 s, log-normal of spread 0.4, neighbours correlated."""
    last = rng.gauss(0, 0.4)

    def draw() -> float:
        nonlocal last
        last = phi * last + math.sqrt(1 - phi * phi) * rng.gauss(0, 0.4)
        return math.exp(last - 1)

    return draw


def run(
    state: Drift,
    count: int,
    draw: Callable[[], float],
    load: Callable[[float], float | None] = lambda _t: None,
) -> list[DriftVerdict]:
    """The verdicts on `count` samples, five seconds apart, after the last."""
    start = state.last_s if state.last_s > 0 else 0.0
    times = [start + 5.0 * i for i in range(1, count + 1)]
    return [step(state, Observation(t, draw(), load(t)))[1] for t in times]


def slower(factor: float, draw: Callable[[], float]) -> Callable[[], float]:
    return lambda: factor * draw()


def events(verdicts: list[DriftVerdict]) -> list[tuple[int, str]]:
    return [(i, verdict.event) for i, verdict in enumerate(verdicts) if verdict.event]


_SETTLED: dict[tuple[float, bool], Drift] = {}


def settled(phi: float = 0.0, *, loaded: bool = False) -> Drift:
    """A state with a baseline over three days, learnt from blocks directly; the load swings by ±50% a day around 20."""
    if (phi, loaded) not in _SETTLED:
        rng = Random(f"{phi} {loaded}")
        draw = noise(rng, phi)
        blocks = Blocks(SPREAD_EVERY_S)
        for b in range(BLOCK_COUNT):
            for j in range(524 if b < BLOCK_COUNT - 1 else BLOCK_SAMPLES):
                t = 5.0 * (524 * b + j)
                level = day(t)
                log = math.log(draw()) + (0.02 * (level - 20) if loaded else 0.0)
                blocks.add(t, log, level if loaded else None, linked=True)
        assert blocks.full
        state = new_state(SETTINGS)
        adopt(state, learn_baseline(blocks), settled=True)
        state.last_s = 3 * 86_400.0
        state.stretch = state.spread = None
        _SETTLED[phi, loaded] = state
    return deepcopy(_SETTLED[phi, loaded])


def day(t: float) -> float:
    return 20 + 10 * math.sin(2 * math.pi * t / 86_400)


def test_probes_that_end_in_another_order_than_they_began_are_neighbours() -> None:
    """A long answer ends after those that were sent later; a baseline is learnt all the same, and a slowdown found."""
    state, rng = new_state(SETTINGS), Random(3)
    draw = noise(Random(2))
    times = [5.0 * i + rng.uniform(0, 20) for i in range(6_000)]
    assert times != sorted(times)
    for t in times:
        step(state, Observation(t, draw()))
    assert state.baseline is not None
    verdicts = [step(state, Observation(30_000.0 + 5.0 * i + rng.uniform(0, 20), 4 * draw()))[1] for i in range(200)]
    assert verdicts[-1].active


def test_the_threshold_is_twice_what_the_bound_requires() -> None:
    """At one false alarm in 30 days; the other half is left for the errors of a learnt baseline."""
    assert Settings(0.2).threshold == pytest.approx(2 * 0.2 * 30 * 86_400)
    assert new_state(SETTINGS).gap_s == pytest.approx(100.0), "20 mean intervals: what comes later is no neighbour"


def test_it_learns_then_judges_roughly_then_settles() -> None:
    """5,000 samples make a provisional baseline, 5,000 spread over three days the final one; nothing alarms on the way."""
    state = new_state(SETTINGS)
    verdicts = run(state, 53_000, noise(Random(1)))
    assert [event for _, event in events(verdicts)] == ["learnt", "learnt"]
    provisional, final = (i for i, _ in events(verdicts))
    assert provisional == 4_999
    assert final > 3 * 17_280
    assert {verdict.phase for verdict in verdicts[:provisional]} == {"learning"}
    assert {verdict.phase for verdict in verdicts[provisional:final]} == {"provisional"}
    assert verdicts[-1].phase == "settled"
    assert state.baseline is not None
    assert state.baseline.factor == "hour"


def test_what_differs_from_the_first_hours_is_unusual_and_learnt() -> None:
    """Twice as slow from the ninth hour on is no alarm, stops learning for three hours at most, and is the baseline of three days."""
    state, draw = new_state(SETTINGS), noise(Random(21))
    run(state, 6_000, draw, lambda _t: 20.0)
    verdicts = run(state, 50_000, slower(2, draw), lambda _t: 20.0)
    assert [event for _, event in events(verdicts)] == ["unusual", "learnt"]
    (found, _), (settled_at, _) = events(verdicts)
    assert {verdict.cause for verdict in verdicts[found:settled_at]} == {"unusual"}
    assert not any(verdict.active for verdict in verdicts[settled_at:])
    assert verdicts[found].why.endswith("three days are not learnt yet, so it may be usual")
    assert settled_at < 3 * 17_280 - 6_000 + 3_000, "learning ends as early as without it"


@pytest.mark.parametrize("phi", [0.0, 0.6])
def test_no_alarm_on_nothing(phi: float) -> None:
    """Two days of the same distribution, correlated or not, give no event, and no evidence near the threshold."""
    verdicts = run(settled(phi), 35_000, noise(Random(2), phi))
    assert events(verdicts) == []
    assert max(verdict.evidence for verdict in verdicts) < 0.9


def test_slower_by_a_third_is_found_in_minutes() -> None:
    """+30% is found within 20 minutes, with since when, and the shift of every quantile with enough samples."""
    state = settled()
    run(state, 2_000, noise(Random(3)))
    changed = state.last_s
    draw = noise(Random(4))
    verdicts = run(state, 1_500, lambda: 1.3 * draw())
    (at, event), *more = events(verdicts)
    assert (event, more) == ("alarm", [])
    assert at < 240
    assert all(verdict.active and verdict.evidence == 1 for verdict in verdicts[at:])
    assert verdicts[at].cause == "unknown"
    since = verdicts[at].since_unix_s
    assert since is not None
    assert abs(since - changed) < 300
    shifts_ = shifts(state)
    assert [shift.q for shift in shifts_] == [0.5, 0.75, 0.9, 0.95, 0.99]
    assert all(shift.lower < 1.3 < shift.upper for shift in shifts_)
    assert {shift.count for shift in shifts_} == {RING_SAMPLES}


def test_a_shift_is_only_shown_of_quantiles_with_enough_samples() -> None:
    """Two minutes after the alarm there are samples for the median, none for the 99th percentile; without an alarm, nothing.

    Samples that raised the alarm are none of the size: they were chosen for being slow.
    """
    state = settled()
    draw = noise(Random(5))
    assert shifts(state) == []
    while not step(state, Observation(state.last_s + 5, 1.5 * draw()))[1].active:
        pass
    assert shifts(state) == []
    run(state, 25, lambda: 1.5 * draw())
    assert [(shift.q, shift.count) for shift in shifts(state)] == [(0.5, 25)]


@pytest.mark.parametrize("phi", [0.0, 0.6])
def test_the_interval_of_the_size_holds_the_truth(phi: float) -> None:
    """+20% an hour long, sixty times: the median's interval misses it in six at most, also where neighbours are alike."""
    misses = 0
    for number in range(60):
        state, draw = settled(phi), noise(Random(f"{phi} {number}"), phi)
        run(state, 300 + 10 * number, slower(1.2, draw))
        if state.alarm is not None:
            misses += any(shift.q == 0.5 and not shift.lower <= 1.2 <= shift.upper for shift in shifts(state))
    assert misses <= 6


def test_a_tail_alone_is_found() -> None:
    """4% of the requests four times as slow, the rest as before."""
    state, rng = settled(), Random(6)
    draw = noise(rng)
    verdicts = run(state, 1_500, lambda: draw() * (4 if rng.random() < 0.04 else 1))
    assert [event for _, event in events(verdicts)] == ["alarm"]


def test_an_improvement_makes_a_new_baseline_and_no_alarm() -> None:
    """30% faster at the same load: one event, never active, learning from the start again."""
    state, draw = settled(loaded=True), noise(Random(7))
    verdicts = run(state, 12_000, lambda: 0.7 * draw() * math.exp(0.02 * (day(state.last_s + 5) - 20)), day)
    assert [event for _, event in events(verdicts)] == ["improved", "learnt"]
    assert not any(verdict.active for verdict in verdicts)
    assert verdicts[-1].phase == "provisional"


@pytest.mark.parametrize(("has_load", "cause"), [(True, "regression"), (False, "unusual")])
def test_a_regression_after_an_improvement_is_no_news_of_the_hour(has_load: bool, cause: str) -> None:
    """The load explained days, so a slowdown at loads that are learnt again is an alarm at once; not if the load is not known now."""
    state, draw = settled(loaded=True), noise(Random(7))

    def load(t: float) -> float | None:
        return day(t) if has_load or state.settled else None

    def at_load(factor: float) -> Callable[[], float]:
        return lambda: factor * draw() * math.exp(0.02 * (day(state.last_s + 5) - 20))

    verdicts = run(state, 36_000, at_load(0.7), load)
    assert [event for _, event in events(verdicts)] == ["improved", "learnt"]
    verdicts = run(state, 300, at_load(4), load)
    assert {(verdict.phase, verdict.cause) for verdict in verdicts if verdict.active} == {("provisional", cause)}


def test_an_engine_with_less_to_do_than_ever_is_no_improvement() -> None:
    """At a quarter of the lowest load of the baseline it is 30% faster, for two days: no event; then the same at its loads is one."""
    state, draw = settled(loaded=True), noise(Random(7))
    verdicts = run(state, 34_560, lambda: 0.7 * draw() * math.exp(0.02 * (10 - 20)), lambda _t: 2.5)
    assert events(verdicts) == []
    assert {verdict.phase for verdict in verdicts} == {"settled"}
    verdicts = run(state, 2_000, lambda: 0.7 * draw() * math.exp(0.02 * (day(state.last_s + 5) - 20)), day)
    assert [event for _, event in events(verdicts)] == ["improved"]


def test_without_its_load_an_improvement_lasts_a_day_and_a_half() -> None:
    """A quiet day is no improvement: the baseline stays. A day and a half of it is one."""
    state, draw = settled(), noise(Random(7))
    run(state, 17_280, lambda: 0.7 * draw())
    assert state.improvement is not None
    assert events(run(state, 17_280, draw)) == []
    assert state.improvement is None
    verdicts = run(state, 60_000, lambda: 0.7 * draw())
    assert [event for _, event in events(verdicts)] == ["improved", "learnt"]
    assert not any(verdict.active for verdict in verdicts)
    assert [event for _, event in events(run(state, 100, lambda: 20 * draw()))] == ["unusual"]


def test_an_hour_that_is_not_known_ends_no_alarm() -> None:
    """Three hours that the baseline has not seen: neither the end of a slowdown nor a part of its size."""
    state, draw = settled(), noise(Random(39))
    run(state, 300, lambda: 2 * draw())
    assert state.alarm is not None
    assert state.baseline is not None
    errors = state.baseline.level_errors[:]
    state.baseline.level_errors[:] = array("f", [math.nan]) * len(errors)
    assert events(run(state, 2_160, lambda: 0.2 * draw())) == []
    state.baseline.level_errors[:] = errors
    assert run(state, 300, lambda: 2 * draw())[-1].active
    assert all(1.9 < shift.ratio < 2.3 for shift in shifts(state))


def test_an_alarm_ends_when_the_change_does() -> None:
    """Back at the old level it recovers within 20 minutes and stays quiet."""
    state = settled()
    draw = noise(Random(8))
    run(state, 500, lambda: 1.5 * draw())
    assert state.alarm is not None
    verdicts = run(state, 5_000, draw)
    (at, event), *more = events(verdicts)
    assert (event, more) == ("recovered", [])
    assert 80 < at < 240, "neither by chance nor late"
    assert not verdicts[-1].active


def test_a_change_that_stays_becomes_the_baseline() -> None:
    """After `accept_after` the alarm ends as accepted, and the new level is learnt."""
    state = settled()
    state.settings = Settings(RATE, DriftSpec(accept_after=3_600.0))
    draw = noise(Random(9))
    verdicts = run(state, 8_000, lambda: 1.5 * draw())
    assert [event for _, event in events(verdicts)] == ["alarm", "accepted", "learnt"]
    assert not verdicts[-1].active


def test_what_was_unusual_and_is_accepted_keeps_the_days_of_before() -> None:
    """The baseline of three days is learnt when it would have been."""
    state, draw = new_state(Settings(RATE, DriftSpec(accept_after=4 * 3_600.0))), noise(Random(21))
    run(state, 6_000, draw, lambda _t: 20.0)
    verdicts = run(state, 50_000, slower(2, draw), lambda _t: 20.0)
    assert [event for _, event in events(verdicts)] == ["unusual", "accepted", "learnt", "learnt"]
    assert events(verdicts)[-1][0] < 3 * 17_280 - 6_000 + 3_000


def test_a_slowdown_at_the_same_load_is_a_regression() -> None:
    """A baseline that knows the load follows the day without alarm, and calls +30% at equal load a regression."""
    state, draw = settled(loaded=True), noise(Random(10))
    assert events(run(state, 17_280, lambda: draw() * math.exp(0.02 * (day(state.last_s + 5) - 20)), day)) == []
    verdicts = run(state, 600, lambda: 1.3 * draw() * math.exp(0.02 * (day(state.last_s + 5) - 20)), day)
    assert verdicts[-1].active
    assert verdicts[-1].cause == "regression"


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_a_load_that_was_not_learnt_gets_no_verdict(factor: float) -> None:
    """Half as much again as ever, and slower, be it by the load alone: no alarm, no evidence; and the verdict says why."""
    state, draw = settled(loaded=True), noise(Random(11))
    before = run(state, 200, draw, lambda _t: 20.0)[-1]
    assert (before.load, before.why) == ("within", "")
    run(state, LOAD_SAMPLES, lambda: draw() * math.exp(0.02 * 25), lambda _t: 45.0)
    verdicts = run(state, 600, lambda: factor * draw() * math.exp(0.02 * 25), lambda _t: 45.0)
    assert {verdict.load for verdict in verdicts} == {"outside"}
    assert {verdict.why for verdict in verdicts} == {"the load is outside what was learnt"}
    assert events(verdicts) == []
    assert len({verdict.evidence for verdict in verdicts}) == 1
    assert {verdict.load for verdict in run(state, 300, draw, lambda _t: 20.0)[-50:]} == {"within"}
    assert state.spread is None, "an hour of it is not worth another baseline"


def test_a_load_that_stays_outside_is_learnt_beside() -> None:
    """After an hour of it a week is collected beside the baseline in use, and with that week the load is known."""
    state, draw = settled(loaded=True), noise(Random(11))
    run(state, 1_500, lambda: draw() * math.exp(0.02 * 25), lambda _t: 45.0)
    assert state.spread is not None
    verdicts = []
    for _ in range(16_500):
        t = state.last_s + 50.0
        load = 25 + 20 * math.sin(2 * math.pi * t / 86_400)
        verdicts.append(step(state, Observation(t, draw() * math.exp(0.02 * (load - 20)), load))[1])
    assert [event for _, event in events(verdicts)] == ["learnt"]
    assert not any(verdict.active for verdict in verdicts)
    assert sum(verdict.load == "outside" for verdict in verdicts[:1_728]) > 500
    assert sum(verdict.load == "outside" for verdict in verdicts[-1_728:]) < 50


def test_a_regression_keeps_its_alarm_and_loses_its_size_while_the_load_is_outside() -> None:
    """Twice as slow at its loads; then busier than ever, where neither size nor cause is stated; then both again."""
    state, draw = settled(loaded=True), noise(Random(35))
    inside = run(state, 300, lambda: 2 * draw(), lambda _t: 20.0)[-1]
    assert (inside.cause, inside.why) == ("regression", "slower at the same load")
    assert len(shifts(state)) > 1
    outside = run(state, 700, lambda: 40 * draw(), lambda _t: 60.0)
    assert events(outside) == []
    assert (outside[-1].active, outside[-1].cause, outside[-1].load) == (True, "unknown", "outside")
    assert shifts(state) == []
    back = run(state, 500, lambda: 2 * draw(), lambda _t: 20.0)[-1]
    assert back.cause == "regression"
    assert all(shift.lower < 2 < shift.upper for shift in shifts(state)), "samples at the other load are none of it"


def test_an_alarm_at_a_load_that_was_not_learnt_becomes_the_baseline_in_time() -> None:
    """Also while nothing is judged, `accept_after` ends it."""
    state, draw = settled(loaded=True), noise(Random(36))
    state.settings = Settings(RATE, DriftSpec(accept_after=7_200.0))
    assert run(state, 300, lambda: 2 * draw(), lambda _t: 20.0)[-1].active
    verdicts = run(state, 1_700, lambda: 2 * draw(), lambda _t: 60.0)
    assert [event for _, event in events(verdicts)] == ["accepted"]


def test_an_alarm_outlasts_a_partial_recovery() -> None:
    """Twice as slow, then still slower by a material change for seven hours: active; at the old level it ends."""
    state, draw = settled(), noise(Random(37))
    run(state, 200, lambda: 2 * draw())
    assert state.alarm is not None
    verdicts = run(state, 5_000, lambda: 1.2 * draw())
    assert events(verdicts) == []
    assert verdicts[-1].active
    assert [event for _, event in events(run(state, 1_500, draw))] == ["recovered"]


def test_a_provisional_baseline_does_not_judge_beyond_its_loads() -> None:
    """Seven quiet hours tell nothing of a load four times as high: the evidence is held until three days are learnt."""
    state, draw = new_state(SETTINGS), noise(Random(34))
    run(state, 6_000, draw, lambda t: 5 + math.sin(t / 3_600))
    before = run(state, 1, draw, lambda _t: 5.0)[-1]
    assert before.phase == "provisional"
    verdicts = run(state, 2_000, lambda: 3 * draw(), lambda _t: 20.0)
    assert not any(verdict.active for verdict in verdicts)
    assert {verdict.evidence for verdict in verdicts[LOAD_SAMPLES:]} == {verdicts[-1].evidence}


def test_without_its_load_it_abstains_then_learns_without() -> None:
    """A baseline that needs the load holds its evidence while the load is unknown, and gives way when it stays unknown."""
    state, draw = settled(loaded=True), noise(Random(12))
    run(state, 100, draw, day)
    before = run(state, LOAD_SAMPLES, draw)[-1].evidence
    assert {verdict.evidence for verdict in run(state, 500, lambda: 3 * draw())} == {before}
    state.last_s += SETTINGS.spec.accept_after
    assert run(state, 10, draw)[-1].phase == "learning"


def test_a_load_that_becomes_known_is_learnt_beside() -> None:
    """A baseline by the hour goes on judging while one by the load is collected."""
    state, draw = settled(), noise(Random(13))
    assert state.spread is None
    assert run(state, 100, draw, day)[-1].phase == "settled"
    assert state.spread is not None


def office_day(t: float) -> float:
    """×1.5 from 09:00 to 17:00 UTC with ramps of an hour, from Monday to Friday."""
    if (t - MONDAY_S) // 86_400 % 7 >= 5:
        return 1.0
    hour = t / 3_600 % 24
    return math.exp(0.4 * max(0.0, min(1.0, hour - 8, 18 - hour)))


@pytest.mark.parametrize(
    "weekday", [pytest.param(0, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow), 5]
)
def test_a_quiet_weekend_is_no_news_whatever_the_baseline_has_seen(weekday: int) -> None:
    """Load not seen, learning begins on a Monday, Thursday or Saturday: no alarm and no improvement in two weeks.

    Hours that the baseline has not seen are judged by a wide margin, which is called provisional, and learned.
    """
    rng, state = Random(19 + weekday), new_state(SETTINGS)
    state.last_s = MONDAY_S + weekday * 86_400.0
    verdicts = run(state, 14 * 17_280, lambda: math.exp(rng.gauss(-1, 0.3)) * office_day(state.last_s + 5))
    (_, first), (settled_at, second), (_, third) = events(verdicts)
    assert (first, second, third) == ("learnt", "learnt", "learnt")
    assert {verdict.phase for verdict in verdicts[settled_at:]} == {"provisional", "settled"}
    assert state.baseline is not None
    assert all(map(math.isfinite, state.baseline.level_errors))
    assert verdicts[-1].phase == "settled"
    verdicts = run(state, 720, lambda: 1.5 * math.exp(rng.gauss(-1, 0.3)) * office_day(state.last_s + 5))
    assert verdicts[-1].active


def test_an_hour_that_was_not_seen_is_judged_by_the_slowest_that_was() -> None:
    """On its first weekend a service twice as slow as ever alarms; one as slow as on a workday's noon does not."""
    rng, state = Random(30), new_state(SETTINGS)
    state.last_s = MONDAY_S
    run(state, 5 * 17_280, lambda: math.exp(rng.gauss(-1, 0.3)) * office_day(state.last_s + 5))
    verdicts = run(state, 1_500, lambda: math.exp(rng.gauss(-1 + 0.4, 0.3)))
    assert not any(verdict.active for verdict in verdicts)
    assert verdicts[-1].phase == "provisional"
    assert run(state, 200, lambda: 2 * math.exp(rng.gauss(-1 + 0.4, 0.3)))[-1].active


@pytest.mark.parametrize("phi", [0.0, 0.3])
def test_a_burst_of_three_minutes_is_no_drift(phi: float) -> None:
    """Twice in half a day ×4 gives evidence enough, and ends: two bursts and no alarm, even if single samples are slow after it.

    Nothing of it is left for the next; five minutes are an alarm after three.
    """
    state, draw = settled(phi), noise(Random(35), phi)
    for _ in range(2):
        assert events(run(state, 35, lambda: 4 * draw())) == []
        assert state.is_burst
        verdicts = run(state, 3, draw) + run(state, 1, lambda: 20 * draw()) + run(state, 4_320, draw)
        assert [event for _, event in events(verdicts)] == ["burst"]
        assert state.judged < 4_359, "its evidence is discarded"
    assert state.caution == 1
    verdicts = run(state, 60, lambda: 4 * draw())
    assert [event for _, event in events(verdicts)] == ["alarm"]
    assert 36 <= events(verdicts)[0][0] <= 42


@pytest.mark.parametrize(
    ("rate_per_s", "shared_sd", "minutes"), [(0.2, 0.2, (12, 18)), (0.2, 0, (3, 6)), (20.0, 0, (3, 3.1))]
)
def test_a_slowdown_lasts_longer_where_samples_depend_on_each_other(
    rate_per_s: float, shared_sd: float, minutes: tuple[float, float]
) -> None:
    """×4 must last three minutes, and four times as long where 25 neighbours share half of their noise.

    The prober pauses for two seconds after each 400 probes, which ends nothing, also where that is as long as 40 probes.
    """
    rng, state = Random(38), new_state(Settings(rate_per_s))
    times = (number / rate_per_s + 2 * (number // 400) for number in itertools.count())
    shared = 0.0

    def verdict(factor: float) -> DriftVerdict:
        nonlocal shared
        shared = rng.gauss(0, shared_sd) if state.passed % 25 == 0 else shared
        return step(state, Observation(next(times), factor * math.exp(shared + rng.gauss(0, 0.2))))[1]

    while state.baseline is None:
        verdict(1)
    state.covers_days = True
    since_s = state.last_s
    while not verdict(4).active:
        pass
    assert minutes[0] <= (state.last_s - since_s) / 60 <= minutes[1]


def test_a_pause_is_no_part_of_the_three_minutes() -> None:
    """A minute ×4, an hour without samples, one sample ×1.3: no alarm. Three more minutes of ×4 are one."""
    state, draw = settled(), noise(Random(35))
    assert events(run(state, 20, lambda: 4 * draw())) == []
    assert not step(state, Observation(state.last_s + 3_600, 1.3 * math.exp(-1)))[1].active
    assert state.suspected_s is not None, "the evidence is held"
    (at, event), *more = events(run(state, 60, lambda: 4 * draw()))
    assert (event, more) == ("alarm", [])
    assert 34 <= at <= 37


def test_busy_hours_that_only_visits_showed_are_known_with_the_week() -> None:
    """Learning lasts from a Friday noon to a Monday's: the busy hours that follow are slower than all samples."""
    rng, state = Random(37), new_state(SETTINGS)
    state.last_s = MONDAY_S + 4.5 * 86_400.0

    def latency() -> float:
        t = state.last_s + 5
        return math.exp(rng.gauss(-1, 0.3)) * office_day(t) ** (1 if t < MONDAY_S + 7.5 * 86_400 else 1.5)

    verdicts = run(state, 7 * 17_280, latency)
    assert not any(verdict.active and verdict.cause != "unusual" for verdict in verdicts)
    assert state.baseline is not None
    noon = MONDAY_S + 15.5 * 86_400
    assert not state.baseline.expected(noon, 0.0)[1] < math.inf
    assert state.slowest_visit == pytest.approx(-0.4, abs=0.08)
    run(state, 4 * 17_280, latency)
    assert state.baseline.expected(noon, 0.0)[0] == pytest.approx(-0.4, abs=0.03)


def test_slowdowns_that_end_by_themselves_take_more_evidence_each_time() -> None:
    """Short alarms show a level that wanders: the stakes are halved after each, and doubled again after a week."""
    state, draw = settled(), noise(Random(31))
    for number in range(3):
        assert state.caution == 2.0**number
        while state.alarm is None:
            run(state, 1, lambda: 1.5 * draw())
        while state.alarm is not None:
            run(state, 1, draw)
    state.last_s += CAUTION_S + 1
    run(state, 2, draw)
    assert state.caution == 4


def test_after_a_gap_the_load_is_read_anew() -> None:
    """The load of before is not mixed with that of after; the first readings are averaged."""
    state, draw = settled(loaded=True), noise(Random(32))
    run(state, 100, draw, lambda _t: 10.0)
    step(state, Observation(state.last_s + 8 * 3_600, draw(), 26.0))
    run(state, 1, draw, lambda _t: 34.0)
    assert state.load == pytest.approx(30.0)


def test_a_gap_breaks_the_link_to_the_sample_before_and_nothing_else() -> None:
    """After a night without samples the next one is judged by itself; the evidence so far stays."""
    state, draw = settled(0.6), noise(Random(14), 0.6)
    evidence = run(state, 500, draw)[-1].evidence
    assert state.before is not None
    twin = deepcopy(state)
    state.last_s -= 8 * 3_600
    assert step(state, Observation(twin.last_s + 5, 0.3))[1].evidence == pytest.approx(evidence, abs=0.1)
    residual = state.before
    step(twin, Observation(twin.last_s + 5, 0.3))
    assert twin.before == residual
    assert twin.slower != state.slower


@pytest.mark.parametrize("samples", [100, 4_999, 6_000])
def test_what_was_dumped_continues_as_if_never_stopped(samples: int) -> None:
    """While learning, before the sample that completes a baseline, and provisional: same verdicts, same bytes."""
    draw = noise(Random(15))
    state = new_state(SETTINGS)
    run(state, samples, draw, day)
    twin = restore(SETTINGS, dump(state))
    assert dump(twin) == dump(state)
    for _ in range(700):
        seen = Observation(state.last_s + 5, draw(), 20.0)
        assert step(state, seen)[1] == step(twin, seen)[1]
    assert dump(twin) == dump(state)


def hits_by_load(rng: Random, load: float) -> float:
    """A latency of a cache whose hits become rare with load."""
    return math.exp(rng.gauss(-1.0 if rng.random() > load / 40 else 0.2, 0.15))


def test_a_hit_rate_that_falls_with_load_is_no_regression() -> None:
    """Five references, no alarm in two days, +50% found; all of it survives a restart."""
    rng, blocks, t = Random(33), Blocks(SPREAD_EVERY_S), 0.0
    while not blocks.full:
        t += 5.0
        blocks.add(t, math.log(hits_by_load(rng, day(t))), day(t), linked=True)
    state = new_state(SETTINGS)
    adopt(state, learn_baseline(blocks), settled=True)
    state.last_s, state.stretch, state.spread = t, None, None
    assert state.baseline is not None
    assert len(state.baseline.references) == 5
    assert events(run(state, 2 * 17_280, lambda: hits_by_load(rng, day(state.last_s + 5)), day)) == []
    assert run(state, 720, lambda: 1.5 * hits_by_load(rng, day(state.last_s + 5)), day)[-1].cause == "regression"
    twin = restore(SETTINGS, dump(state))
    assert dump(twin) == dump(state)
    assert shifts(twin) == shifts(state) != []


def test_an_alarm_survives_a_restart() -> None:
    """Active, since when, and the shifts are what they were."""
    state, draw = settled(), noise(Random(16))
    run(state, 700, lambda: 1.5 * draw())
    twin = restore(SETTINGS, dump(state))
    assert twin.alarm == state.alarm
    assert shifts(twin) == shifts(state) != []
    assert len(dump(state)) < 90_000


@pytest.mark.parametrize("boot", ["boot", "another"])
@pytest.mark.parametrize("set_by_s", [-40 * DAY_S, -3_600.0, 3_600.0, 40 * DAY_S])
def test_a_wall_clock_that_is_set_neither_ends_an_alarm_nor_prolongs_it(set_by_s: float, boot: str) -> None:
    """An alarm is accepted as normal after a week of the monotonic clock; after another boot a time in the future is now."""
    state, draw = settled(), noise(Random(41))
    for begin_s in (state.last_s, state.last_s + 98 * DAY_S):  # no step leads before 1970
        follow_clock(state, "boot", begin_s, 0.0)
    run(state, 300, slower(2.0, draw))
    assert state.alarm is not None
    lasted_s, suspected_s = state.last_s - state.alarm.raised_s, state.last_s - state.alarm.since_s
    now_s = state.last_s + set_by_s
    monotonic_s = state.last_s - begin_s if boot == "boot" else 5.0
    follow_clock(state, boot, now_s, monotonic_s)
    if boot == "boot" or set_by_s < 0:
        assert state.last_s - state.alarm.raised_s == pytest.approx(lasted_s)
        assert state.last_s - state.alarm.since_s == pytest.approx(suspected_s)
        assert state.last_s == pytest.approx(now_s)
        assert run(state, 10, slower(2.0, draw))[-1].active
    else:
        assert state.last_s == pytest.approx(now_s - set_by_s), (
            "a step forward over a boot cannot be told from time that passed"
        )


def broken(change: Callable[[bytes], bytes]) -> bytes:
    return change(dump(settled()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: b"", "not a drift state"),
        (lambda _: b"\xff\x00 nonsense", "not a drift state"),
        (
            lambda data: data.replace(b"drift-6", b"drift-5", 1),
            "not a drift state of format llmslo-drift-6: .*'llmslo-drift-5'",
        ),
        (lambda data: data[:-100], "damaged"),
        (lambda data: data.replace(b'"settled":true', b'"settled":null'), "damaged"),
    ],
)
def test_a_damaged_dump_is_refused(change: Callable[[bytes], bytes], message: str) -> None:
    """A damaged state is not used, and the message names the damage."""
    with pytest.raises(ValueError, match=message):
        restore(SETTINGS, broken(change))


def test_a_dump_of_other_parts_is_refused() -> None:
    """A checksum that is right over fields this version does not know."""
    state = settled()
    state.slower = [0.0]
    with pytest.raises(ValueError, match="1 bets"):
        restore(SETTINGS, dump(state))


def test_a_signal_takes_at_most_64_kb() -> None:
    """Learning, learning beside a provisional baseline, and settled; a dump has base64, a third longer."""
    state, draw = new_state(SETTINGS), noise(Random(17))
    sizes = []
    for i in range(53_000):
        step(state, Observation(5.0 * i, draw(), 20 + i % 7))
        sizes += [len(dump(state)) * 3 // 4] if i % 1_000 == 0 else []
    assert state.settled
    assert max(sizes) <= 64_000


def test_a_seed_serves_at_once_and_gives_way_to_own_samples() -> None:
    """Values of hourly histograms: a doubling is found within an hour of the first own sample; +10% is let be."""
    rng = Random(18)
    draw = noise(rng)
    values = [Observation(3_600.0 * (i // 100), math.exp(round(math.log(draw()) / 0.2) * 0.2)) for i in range(7_200)]
    state = seed(new_state(SETTINGS), values)
    state.last_s = 72 * 3_600.0
    assert events(run(state, 3_000, lambda: 1.1 * draw())) == []
    assert state.spread is not None
    verdicts = run(state, 720, lambda: 2 * draw())
    assert [event for _, event in events(verdicts)] == ["alarm"]
    assert verdicts[-1].phase == "provisional"
    hours = seed(new_state(SETTINGS), values[-4_700:] + values[-4_700:])
    assert [event for _, event in events(run(hours, 3_000, lambda: 2 * draw()))] == ["unusual"], "less than two days"


def test_a_seed_too_small_is_refused() -> None:
    """Fewer samples than a baseline needs are no baseline."""
    with pytest.raises(ValueError, match="needs 5000 samples, not 1"):
        seed(new_state(SETTINGS), [Observation(0.0, 1.0)])


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_latency_is_refused(value: float) -> None:
    """The state is as it was before."""
    state = new_state(SETTINGS)
    with pytest.raises(ValueError, match="a latency must be"):
        step(state, Observation(1.0, value))
    assert state.last_s == -math.inf
