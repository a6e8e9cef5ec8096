"""Courses of efficiency are as their verdicts say."""

from functools import cache
from itertools import pairwise

import pytest

from bench.independent.efficiency_courses import COUNTERS, DAY_S, HOUR_S, LEARNT_DAYS, Course, Signal, course, courses

PARTS: dict[Signal, tuple[str, str]] = {
    "prefix_hit_share": ("prefix_hits", "prefix_queries"),
    "acceptance": ("accepted_tokens", "draft_tokens"),
    "preemptions_per_request": ("preemptions", "finished_requests"),
    "offload_load_s": ("offload_load_seconds", "offload_loads"),
    "energy_per_token": ("energy_joules", "generated_tokens"),
    "step_s": ("step_seconds", "steps"),
}


@cache
def both_halves() -> tuple[Course, ...]:
    """One course of each kind."""
    return tuple(one for held_out in (False, True) for one in courses(held_out, per_kind=1))


def increase(of: Course, counter: str, begin_s: float, end_s: float) -> float:
    """Growth of a counter within a span, without the rows after a fall."""
    values = [
        value for row in of.rows if begin_s < row.unix_s <= end_s and (value := getattr(row, counter)) is not None
    ]
    return float(sum(max(0.0, after - before) for before, after in pairwise(values)))


def efficiency(of: Course, signal: Signal, begin_s: float, end_s: float) -> float:
    """A signal over a span."""
    above, below = PARTS[signal]
    return float(increase(of, above, begin_s, end_s) / increase(of, below, begin_s, end_s))


@pytest.mark.parametrize(
    ("kind", "signal", "low", "high"),
    [
        ("prefix_cache_off_after_upgrade", "prefix_hit_share", 0.0, 0.0),
        ("prefix_cache_off_on_small_service", "prefix_hit_share", 0.0, 0.0),
        ("half_of_ranks_without_cache", "prefix_hit_share", 0.35, 0.75),
        ("hits_halve_at_gateway", "prefix_hit_share", 0.4, 0.6),
        ("hits_halve_in_steps", "prefix_hit_share", 0.4, 0.7),
        ("steps_30_ms_longer_until_restart", "step_s", 1.8, 2.8),
        ("steps_grow_until_restart", "step_s", 1.5, 2.4),
        ("acceptance_zero_then_stall", "acceptance", 0.0, 0.0),
        ("acceptance_quarter_after_model", "acceptance", 0.2, 0.3),
        ("offload_ten_times_slower", "offload_load_s", 7, 14),
        ("offload_to_disk", "offload_load_s", 7, 15),
        ("preemptions_after_flag", "preemptions_per_request", 25, 120),
        ("preemptions_at_peaks", "preemptions_per_request", 25, 120),
        ("energy_after_driver", "energy_per_token", 1.1, 1.4),
        ("energy_after_power_setting", "energy_per_token", 1.1, 1.45),
    ],
)
@pytest.mark.parametrize("index", range(3))
def test_a_trouble_has_its_size(kind: str, signal: Signal, low: float, high: float, index: int) -> None:
    """The signal in five days at most, to that of the same days of the week in the two weeks before."""
    of = course(kind, index)
    assert of.verdict.demand == "must_alarm"
    assert of.verdict.signals == (signal,)
    assert of.verdict.begin_unix_s is not None
    begin_s = of.verdict.begin_unix_s
    length_s = min(5 * DAY_S, (of.verdict.end_unix_s or of.rows[-1].unix_s) - begin_s)
    begins_s = begin_s - 14 * DAY_S, begin_s - 7 * DAY_S, begin_s
    *usual, now = (efficiency(of, signal, at_s, at_s + length_s) for at_s in begins_s)
    assert low <= 2 * now / sum(usual) <= high


@pytest.mark.parametrize("of", both_halves(), ids=lambda of: of.name)
def test_rows_are_those_of_a_page(of: Course) -> None:
    """Every hour or more often over three weeks or more; counters fall only where the engine restarts; parts are parts."""
    assert of.step_s <= HOUR_S
    assert 21 <= (of.rows[-1].unix_s - of.rows[0].unix_s + of.step_s) / DAY_S <= 45
    restarts_s = [change.unix_s for change in of.changes if change.kind == "restart"]
    readable = [row for row in of.rows if row.finished_requests is not None]
    for before, after in pairwise(readable):
        if any((getattr(after, name) or 0) < (getattr(before, name) or 0) for name in COUNTERS):
            assert any(before.unix_s <= restart_s < after.unix_s for restart_s in restarts_s)
        assert (after.prefix_hits or 0) <= (after.prefix_queries or 0)
        assert (after.accepted_tokens or 0) <= (after.draft_tokens or 0)


@pytest.mark.parametrize("of", both_halves(), ids=lambda of: of.name)
def test_a_verdict_can_be_met(of: Course) -> None:
    """A trouble begins after two whole weeks, and is still there at the latest time of its alarm."""
    verdict = of.verdict
    if verdict.demand == "must_not":
        assert verdict.begin_unix_s is None
        return
    assert verdict.begin_unix_s is not None
    assert verdict.begin_unix_s >= of.rows[0].unix_s - of.step_s + LEARNT_DAYS * DAY_S
    if verdict.demand == "must_alarm":
        assert verdict.latest_delay_h is not None
        end_s = verdict.end_unix_s or of.rows[-1].unix_s
        assert verdict.begin_unix_s + verdict.latest_delay_h * HOUR_S <= end_s


def test_changes_are_known_where_a_prober_sees_them() -> None:
    """A flag, a version and a driver are; a gateway and a power setting are not. No kind is in both halves."""
    kinds = {of.name.split("/")[0]: {change.kind for change in of.changes} for of in both_halves()}
    assert len(kinds) == len(both_halves())
    assert "version" in kinds["prefix_cache_off_after_upgrade"]
    assert "gpu_memory_utilization" in kinds["preemptions_after_flag"]
    assert "driver" in kinds["energy_after_driver"]
    for kind in ("hits_halve_at_gateway", "hits_halve_in_steps", "energy_after_power_setting"):
        assert not kinds[kind]


def test_nights_of_offices_are_quiet() -> None:
    """Also busy services have hours with at most five requests. A week's share of hits is steady."""
    hours = 0
    for index in range(6):
        of = course("healthy", index)
        begin_s = of.rows[0].unix_s
        for at_s in (begin_s + HOUR_S * at for at in range(1, 168)):
            hours += increase(of, "finished_requests", at_s - of.step_s, at_s + HOUR_S) <= 5
        begins_s = (begin_s + 7 * DAY_S * at for at in range(3))
        weeks = [efficiency(of, "prefix_hit_share", at_s, at_s + 7 * DAY_S) for at_s in begins_s]
        assert max(weeks) < 1.33 * min(weeks)
    assert hours > 20
