"""Clocks of two machines: the bound of the offset's error, and what it means for a request."""

from array import array
from dataclasses import fields
from random import Random

import pytest

from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Connection, Timeline
from prober.probing.channel import ClockOffset, checked_clock


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
        *(1_000, Connection(900, 950, tcp_s=1e-8), 1_010, 1_100, 1_200, 1_210, 1_500),
        content_ns=array("q", [1_200, 1_300, 1_500]),
        cut_ns=1_501,
        calls=1,
        call_ns=1_210,
        arguments_ns=1_400,
    )
    moved = timeline.shifted(-5_000)
    stamps = [name for field in fields(Timeline) if (name := field.name).endswith("_ns") and name != "content_ns"]
    assert len(stamps) == 9
    assert {getattr(moved, name) - getattr(timeline, name) for name in stamps} == {-5_000}
    assert list(moved.content_ns) == [-3_800, -3_700, -3_500]
    assert moved.connection == Connection(-4_100, -4_050, tcp_s=1e-8)
    for duration in ("ttft_s", "e2e_s", "send_lag_s", "ttft_call_s", "arguments_s", "itls_s"):
        assert getattr(moved, duration) == getattr(timeline, duration)
    assert Timeline(7).shifted(3) == Timeline(10, content_ns=array("q"))


@pytest.mark.parametrize(
    ("lag_ms", "error_ms", "is_valid"),
    [(1.0, 0.5, True), (9.0, 0.9, True), (9.0, 1.1, False), (0.0, 11.0, False)],
)
def test_the_error_of_the_clock_is_part_of_the_send_lag(lag_ms: float, error_ms: float, is_valid: bool) -> None:
    """With max_send_lag 10 ms; it is the prober's, so the answer has no latency. A request that was not sent is no matter of time."""
    sent = Timeline(0, sent_ns=round(lag_ms * 1e6))
    results = [ProbeResult("t", "w", "id", 0.0, Outcome.OK, "", timeline) for timeline in (sent, Timeline(0))]
    outcomes = [checked_clock(result, error_ms / 1e3, 0.01, "n") for result in results]
    assert outcomes[0].outcome is Outcome.OK
    assert outcomes[0].timeline.is_late is not is_valid
    assert ("clock of node n" in outcomes[0].detail) is not is_valid
    assert outcomes[1] == results[1]
