"""When a sweep is due, in the time zone of its schedule, and why one may not start."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from prober.cli.sweep_cost import due_times_of, most_within
from prober.config.sweep import SweepSpec
from prober.features.capacity import target_sweeps
from prober.features.capacity.actions import StartRequest
from prober.features.capacity.sweep_schedule import (
    MAX_LATENESS_S,
    DueTime,
    Situation,
    SweepSchedule,
    longest_gap_s,
    refusal,
)
from prober.measure.target_state import TargetState
from prober.workload.schedule import parse_weekly_span, trigger
from tests.features.capacity.stage import SLOTS, staged
from tests.virtual import START_S, running

HOUR_S, DAY_S = 3600.0, 86_400.0
BEGIN_S = datetime(2026, 3, 2, tzinfo=UTC).timestamp()
DUE_S = BEGIN_S + 3.25 * HOUR_S
DAILY = "15 3 * * *"


def test_a_schedule_is_in_its_own_time_zone() -> None:
    """A quarter past three in Berlin, summer and winter."""
    at = trigger(DAILY, "Europe/Berlin")
    for day, hour in (("2026-07-01", 1), ("2026-12-01", 2)):
        after = datetime.fromisoformat(f"{day}T00:00+00:00")
        due = at.get_next_fire_time(None, after).astimezone(ZoneInfo("UTC"))
        assert (due.hour, due.minute) == (hour, 15)


def test_the_longest_gap_between_due_times() -> None:
    """Over a weekend, and where a blackout swallows some."""
    day = 86_400
    assert longest_gap_s("0 3 * * *", "UTC", (), BEGIN_S) == day
    assert longest_gap_s("0 3 * * mon-fri", "UTC", (), BEGIN_S) == 3 * day
    assert longest_gap_s("0 * * * *", "UTC", (parse_weekly_span("08:00-20:00"),), BEGIN_S) == 13 * 3600
    assert longest_gap_s("0 3 * * *", "UTC", (parse_weekly_span("00:00-24:00"),), BEGIN_S) is None


@pytest.mark.parametrize(
    ("schedule", "blackout", "min_gap_s", "a_day"),
    [
        (DAILY, "", 0, 1),
        (DAILY, "", 6 * 3600, 1),
        ("0 0,3,4 * * *", "", 0, 3),
        ("0 * * * *", "", 6 * 3600, 4),
        ("*/5 * * * *", "", 240, 288),
        ("* * * * *", "", 0, 1440),
        ("0 * * * *", "08:00-20:00", 0, 12),
        ("0 3 * * sat,sun", "", 0, 1),
        ("0 3 1 1 *", "", 0, 1),
        ("0 3 * * *", "00:00-24:00", 0, 0),
    ],
)
def test_how_often_a_sweep_may_be_due_in_a_day(schedule: str, blackout: str, min_gap_s: float, a_day: int) -> None:
    """Of the busiest day in five weeks, without what a blackout or the gap after another one swallows."""
    spans = (parse_weekly_span(blackout),) if blackout else ()
    assert most_within(due_times_of(schedule, "Europe/Berlin", spans, min_gap_s), 86_400) == a_day


def test_once_a_day_is_twice_in_somewhat_more_than_a_day() -> None:
    """At the same time on the next day."""
    assert most_within(due_times_of(DAILY, "UTC", (), 0), 25 * 3600) == 2


def test_a_due_time_is_returned_once() -> None:
    """After it has passed, and again on the next day; a clock that is set back does not repeat it."""
    schedule = SweepSchedule(DAILY, "UTC", BEGIN_S)
    assert schedule.next_s == DUE_S
    assert schedule.due(DUE_S - 0.001) is None
    assert schedule.due(DUE_S) == DueTime(DUE_S, 0.0)
    for unix_s in (DUE_S, DUE_S + HOUR_S, DUE_S - HOUR_S, DUE_S + 1.0):
        assert schedule.due(unix_s) is None
    assert schedule.due(DUE_S + DAY_S + 1.0) == DueTime(DUE_S + DAY_S, 1.0)


@pytest.mark.parametrize("delay_s", [0.0, 90.0])
@pytest.mark.parametrize(("late_s", "is_missed"), [(MAX_LATENESS_S - 60, False), (MAX_LATENESS_S + 60, True)])
def test_a_due_time_that_the_clock_is_set_over_is_late_or_missed(
    delay_s: float, late_s: float, is_missed: bool
) -> None:
    """By its start, which is after the delay."""
    schedule = SweepSchedule(DAILY, "UTC", BEGIN_S, delay_s)
    due = schedule.due(DUE_S + delay_s + late_s)
    assert due == DueTime(DUE_S, late_s)
    assert due.is_missed is is_missed


@pytest.mark.parametrize("delay_s", [0.0, 90.0])
def test_of_several_due_times_that_have_passed_the_latest_is_returned(delay_s: float) -> None:
    """After a suspension; also where the delay is longer than the period."""
    schedule = SweepSchedule("* * * * *", "UTC", BEGIN_S, delay_s)
    assert schedule.next_s == BEGIN_S + delay_s
    assert schedule.due(BEGIN_S + 5 * DAY_S + delay_s + 30) == DueTime(BEGIN_S + 5 * DAY_S, 30.0)


SPEC = SweepSpec(min_gap=3600.0, blackout=(parse_weekly_span("Mon 05:00-06:00"),))
ASKED, DUE, CHANGE = StartRequest("request"), StartRequest("schedule", BEGIN_S), StartRequest("change")
FREE = Situation(SPEC, BEGIN_S)


@pytest.mark.parametrize(
    ("changes", "request_of", "reason"),
    [
        ({}, ASKED, None),
        ({}, DUE, None),
        ({"is_leader": False, "lease": "l"}, ASKED, "no_lease"),
        ({"claim_unix_s": BEGIN_S}, DUE, "no_lease"),
        ({"claim_unix_s": BEGIN_S}, ASKED, None),
        ({"claim_unix_s": BEGIN_S - DAY_S}, DUE, None),
        ({"claim_unix_s": BEGIN_S + DAY_S, "claim_seen_s": 60.0}, DUE, "min_gap"),
        ({"claim_unix_s": BEGIN_S + DAY_S, "claim_seen_s": HOUR_S}, DUE, None),
        ({"claim_unix_s": BEGIN_S - 60.0}, CHANGE, None),
        ({"start_age_s": 60.0}, CHANGE, None),
        ({"unix_s": BEGIN_S + 5.5 * HOUR_S}, CHANGE, "blackout"),
        ({"running": "other"}, ASKED, "running"),
        ({"spec": None}, ASKED, "not_configured"),
        ({"start_age_s": HOUR_S - 2.0}, DUE, "min_gap"),
        ({"start_age_s": HOUR_S - 0.5}, DUE, None),
        ({"start_age_s": 1.0}, ASKED, None),
        ({"quiet_s": 1.0}, ASKED, "retry_after"),
        ({"unix_s": BEGIN_S + 5.5 * HOUR_S}, ASKED, "blackout"),
        ({"is_paused": True}, ASKED, "not_ready"),
        ({"state": TargetState.FAILING}, DUE, "not_ready"),
        ({"shortage": "too little"}, DUE, "over_budget"),
    ],
)
def test_each_condition_refuses_with_its_reason(
    changes: dict[str, Any], request_of: StartRequest, reason: str | None
) -> None:
    """A person, and an engine that changed, may start a sweep within `min_gap`, and beside a claim of another replica."""
    refused = refusal(request_of, replace(FREE, **changes))
    assert (refused.reason if refused is not None else None) == reason


def test_the_last_start_is_the_later_of_its_own_and_of_a_claim() -> None:
    """Without either there was none for ages."""
    assert FREE.last_start_age_s > 1e9
    assert replace(FREE, start_age_s=50.0, claim_unix_s=BEGIN_S - 20.0).last_start_age_s == 20.0


@pytest.mark.virtual_time
async def test_a_target_is_swept_when_it_is_due_by_the_wall_clock_of_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within half a minute of a change of the wall clock; a start that fails ends no schedule."""
    async with running(SLOTS) as url, staged(url, "schedule: '15 3 * * *', spread: 0s") as stage:
        started: list[StartRequest] = []
        ahead_s = 0.0

        def unix_s() -> float:
            return BEGIN_S + asyncio.get_running_loop().time() - START_S + ahead_s

        def start(_: object, request: StartRequest) -> str:
            started.append(request)
            raise ZeroDivisionError

        monkeypatch.setattr(stage.clock, "unix_s", unix_s)
        monkeypatch.setattr(stage.sweeps, "_start", start)
        stage.reconfigure(stage.target.spec)
        begin_s = unix_s()
        await asyncio.sleep(DAY_S)
        assert len(started) == 1
        due_s = started[0].due_unix_s
        assert begin_s < due_s < begin_s + DAY_S
        assert (due_s - DUE_S) % DAY_S == 0.0
        ahead_s = due_s - begin_s + 60.0
        await asyncio.sleep(target_sweeps.WAKEUP_INTERVAL_S)
        assert [request.due_unix_s for request in started] == [due_s, due_s + DAY_S]
        ahead_s += DAY_S + MAX_LATENESS_S
        await asyncio.sleep(target_sweeps.WAKEUP_INTERVAL_S)
        assert len(started) == 2
        assert stage.refused() == {"missed": 1}
