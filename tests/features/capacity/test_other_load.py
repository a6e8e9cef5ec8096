"""Load of others during a sweep, by the engine's page: claimed only where the sweep's own requests cannot explain it."""

from bisect import bisect_right
from random import Random

import pytest

from prober.features.capacity.sweep_record import Record, RequestRecord, other_load
from prober.measure.engine_signals import EngineInfo, EngineSignals

SWEEP_S = 60.0


def arrivals(rate_per_s: float, from_s: float, until_s: float, rng: Random) -> list[float]:
    times_s, at_s = [], from_s
    while rate_per_s and (at_s := at_s + rng.expovariate(rate_per_s)) < until_s:
        times_s.append(at_s)
    return times_s


def swept(rng: Random, others_per_s: float, *, gauge_lag_s: float, page_age_s: float) -> tuple[Record, int]:
    """The record of a ramp on an engine, and how many requests of others arrived while its page was read.

    gauge_lag_s: by which running requests are older than finished ones; page_age_s: how long a page is kept before it is made anew
    """
    own_s = [at_s for step in range(12) for at_s in arrivals(1.15**step, step * 5.0, step * 5.0 + 5.0, rng)]
    others_s = arrivals(others_per_s, -30.0, SWEEP_S, rng)
    ways_s = [rng.uniform(0.0, 0.3) for _ in own_s]  # from the due time into the engine
    lasts_s = [rng.uniform(0.2, 6.0) for _ in own_s]
    came_s = sorted([*others_s, *(at_s + way_s for at_s, way_s in zip(own_s, ways_s, strict=True))])
    left_s = sorted([*(at_s + 2.0 for at_s in others_s), *(map(sum, zip(own_s, ways_s, lasts_s, strict=True)))])
    readings, at_s, made_s = [], -3.0, -3.0
    while at_s < SWEEP_S:
        if at_s - made_s >= page_age_s:
            made_s = at_s - rng.uniform(0.0, 0.2)
        gauge_s = made_s - gauge_lag_s
        running = bisect_right(came_s, gauge_s) - bisect_right(left_s, gauge_s)
        finished = float(bisect_right(left_s, made_s))
        signals = EngineSignals(
            EngineInfo("e"), requests_running=float(running), requests_waiting=0.0, requests_finished_total=finished
        )
        readings.append((at_s, signals))
        at_s += 0.5
    requests = []
    for due_s, way_s, last_s in zip(own_s, ways_s, lasts_s, strict=True):
        first_s, end_s = due_s + way_s + min(0.1, last_s), due_s + way_s + last_s
        known = RequestRecord(due_s, 100, 10, 0, known_s=min(end_s, SWEEP_S))
        known.first_s, known.end_s = (t_s if t_s < SWEEP_S else None for t_s in (first_s, end_s))
        requests.append(known)
    span_s = (readings[0][0], readings[-1][0])
    return Record((), tuple(requests), (), tuple(readings)), sum(span_s[0] < at_s <= span_s[1] for at_s in others_s)


@pytest.mark.parametrize(("gauge_lag_s", "page_age_s"), [(0.0, 0.0), (0.1, 0.0), (1.5, 0.0), (0.0, 5.0), (0.5, 15.0)])
def test_nobody_is_claimed_to_use_an_idle_engine(gauge_lag_s: float, page_age_s: float) -> None:
    """However late its gauges are, and however old its page; requests may travel or end during any reading."""
    for seed in range(40):
        record, _ = swept(Random(seed), 0.0, gauge_lag_s=gauge_lag_s, page_age_s=page_age_s)
        load = other_load(record.requests, record.readings)
        assert load is not None
        assert load[0] == 0.0, seed
        assert load[1] < 0.8, "no more than what is in flight at the end"


@pytest.mark.parametrize("others_per_s", [1.0, 4.0])
def test_the_load_of_others_is_within_its_bounds(others_per_s: float) -> None:
    """Its least is well above 0."""
    for seed in range(40):
        record, others = swept(Random(seed), others_per_s, gauge_lag_s=0.1, page_age_s=0.0)
        load = other_load(record.requests, record.readings)
        assert load is not None
        span_s = record.readings[-1][0] - record.readings[0][0]
        assert 0.6 * others <= load[0] * span_s
        assert load[0] * span_s <= others + 2, "the others' own gauges are late as well"
        assert others <= load[1] * span_s + 2


def test_a_page_that_counts_nothing_shows_nothing() -> None:
    """Without finished requests there are no arrivals."""
    signals = EngineSignals(EngineInfo("e"), requests_running=1.0)
    assert other_load((), ((0.0, signals), (1.0, signals))) is None
