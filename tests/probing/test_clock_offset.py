"""Clocks of two machines: the bound of the offset's error, and the stamps of one on the other."""

from array import array
from dataclasses import fields
from random import Random
from typing import get_args

import pytest

from prober.measure.timeline import BoundedSignal, Connection, Timeline
from prober.probing.channel import ClockOffset


@pytest.mark.parametrize("drift", [-1e-3, 0.0, 5e-4])
def test_the_true_offset_lies_within_the_error_however_unequal_the_ways_are(drift: float) -> None:
    """For clocks that drift apart, delays of 0 to 20 ms each way, and pauses of up to 2 s between the exchanges."""
    rng, clock, now_ns = Random(1), ClockOffset(), 10**12
    for _ in range(500):
        asked_ns = now_ns
        read_ns = asked_ns + rng.randrange(20_000_000)
        now_ns = read_ns + rng.randrange(20_000_000)
        clock.exchanged(asked_ns, -5_000_000_000 + read_ns + round(read_ns * drift), now_ns)
        now_ns += rng.randrange(2_000_000_000)
        offset = clock.at(now_ns)
        true_ns = -5_000_000_000 + now_ns * drift
        assert abs(offset.offset_ns - true_ns) <= offset.error_ns + 2
        assert offset.error_ns <= 22_000_000, "not worse than the latest exchange and its age"


def test_a_quick_exchange_beats_later_slow_ones_until_it_is_old() -> None:
    """1 ms of drift is assumed in a second."""
    clock = ClockOffset()
    clock.exchanged(0, 100, 100_000)
    clock.exchanged(1_000_000_000, 1_000_000_100, 1_040_000_000)
    assert clock.at(2_000_000_000).error_ns == 50_000 + 2_000_000 - 50
    assert clock.at(60_000_000_000).error_ns < 60_000_000 + 50_000, "the later one"


def test_a_timeline_on_another_clock_has_all_stamps_moved_and_the_same_durations() -> None:
    """Every field that is a stamp, so that a new one cannot be forgotten."""
    timeline = Timeline(
        *(1_000, Connection(900, 950, lead_ns=20, tcp_s=1e-8), 1_010, 1_100, 1_200, 1_210, 1_500),
        sent_earliest_ns=1_009,
        handed_ns=1_008,
        acknowledged_ns=1_020,
        content_ns=array("q", [1_200, 1_300, 1_500]),
        cut_ns=1_501,
        calls=1,
        call_ns=1_210,
        arguments_ns=1_400,
        earliest_ns={1_200: 1_100},
    )
    moved = timeline.shifted(-5_000)
    stamps = [
        name
        for field in fields(Timeline)
        if (name := field.name).endswith("_ns") and isinstance(getattr(timeline, name), int)
    ]
    assert len(stamps) == 12
    assert {getattr(moved, name) - getattr(timeline, name) for name in stamps} == {-5_000}
    assert list(moved.content_ns) == [-3_800, -3_700, -3_500]
    assert moved.connection == Connection(-4_100, -4_050, lead_ns=20, tcp_s=1e-8)
    assert moved.earliest_ns == {-3_800: -3_900}
    for signal in get_args(BoundedSignal):
        assert moved.bounds_s(signal) == timeline.bounds_s(signal)
    for duration in ("ttft_s", "e2e_s", "send_lag_s", "network_s", "ttft_call_s", "arguments_s", "itls_s"):
        assert getattr(moved, duration) == getattr(timeline, duration)
    assert Timeline(7).shifted(3) == Timeline(10, content_ns=array("q"))
