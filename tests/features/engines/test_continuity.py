"""Continuous totals from successive readings."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prober.features.engines.continuity import STEADY_READINGS, Continuity, ContinuousReading
from prober.measure.engine_signals import COUNTER_SIGNALS, EngineChange, EngineHistogram, EngineInfo, EngineSignals

INFO = EngineInfo("vllm", "1.0", "tiny", {"dtype": "auto"})


def signals(
    tokens: float | None, *, start: float | None = None, finished: float | None = None, **more: Any
) -> EngineSignals:
    """A reading with two counters and a histogram that goes with them."""
    if tokens is not None:
        more.setdefault("ttft_seconds", EngineHistogram((0.1, 1.0), (tokens, tokens, 2 * tokens), tokens / 4))
        finished = tokens / 10 if finished is None else finished
    return EngineSignals(
        more.pop("info", INFO),
        generation_tokens_total=tokens,
        requests_finished_total=finished,
        start_time_seconds=start,
        **more,
    )


def take_all(continuity: Continuity, *readings: EngineSignals) -> list[ContinuousReading]:
    return [continuity.take(reading) for reading in readings]


def tokens(story: list[ContinuousReading]) -> list[float | None]:
    return [None if step.signals is None else step.signals.generation_tokens_total for step in story]


def test_counters_are_unchanged_without_a_restart() -> None:
    """Without restarts readings are unchanged; gauges are never changed."""
    story = take_all(Continuity(), *(signals(float(n), requests_running=3.0 - n) for n in range(3)))
    assert tokens(story) == [0.0, 1.0, 2.0]
    assert [step.signals and step.signals.requests_running for step in story] == [3.0, 2.0, 1.0]
    assert not any(step.restarted or step.changes or step.refused for step in story)


@pytest.mark.parametrize("starts", [(None, None), (100.0, 200.0)])
def test_counters_continue_after_a_restart(starts: tuple[float | None, float | None]) -> None:
    """The reading at which they fall adds nothing; the next one reports the restart and adds the counts since then."""
    before, after = starts
    story = take_all(
        Continuity(),
        signals(100.0, start=before),
        signals(7.0, start=after),
        signals(9.0, start=after),
        signals(20.0, start=after),
    )
    assert tokens(story) == [100.0, 100.0, 109.0, 120.0]
    assert [step.restarted for step in story] == [False, False, True, False]
    last = story[-1].signals
    assert last is not None
    assert last.ttft_seconds == EngineHistogram((0.1, 1.0), (120.0, 120.0, 240.0), 30.0)
    assert last.requests_finished_total == 12.0


@pytest.mark.parametrize(
    ("readings", "totals", "restarted"),
    [
        # The new process has counted more than the old one: recognised by its start time, or by its uptime.
        ((signals(5.0, start=1.0), signals(50.0, start=9.0), signals(60.0, start=9.0)), [5.0, 5.0, 65.0], [2]),
        (
            tuple(signals(count, uptime_seconds=up) for count, up in ((5.0, 500.0), (6.0, 2.0), (6.0, 7.0))),
            [5.0, 5.0, 11.0],
            [2],
        ),
        # Counters at 0, or absent until the first request.
        (tuple(map(signals, (100.0, 0.0, 0.0, 3.0))), [100.0, 100.0, 100.0, 103.0], [2]),
        (tuple(map(signals, (100.0, None, None, 3.0, 4.0))), [100.0, None, None, 100.0, 104.0], [4]),
        # A rank leaves: the sum is lower, and no process has restarted.
        ((signals(100.0, ranks=2), signals(60.0, ranks=1), signals(65.0, ranks=1)), [100.0, 100.0, 105.0], []),
    ],
)
def test_a_total_is_held_and_goes_on(
    readings: tuple[EngineSignals, ...], totals: list[float | None], restarted: list[int]
) -> None:
    """Whatever shows that counters are of another process or of fewer ranks: nothing is counted twice."""
    story = take_all(Continuity(), *readings)
    assert tokens(story) == totals
    assert [index for index, step in enumerate(story) if step.restarted] == restarted


def test_a_single_falling_counter_is_not_a_restart() -> None:
    """Its total is held; the others continue."""
    story = take_all(
        Continuity(),
        signals(100.0, preemptions_total=5.0, prompt_tokens_total=50.0),
        signals(101.0, preemptions_total=4.0, prompt_tokens_total=51.0),
        signals(102.0, preemptions_total=6.0, prompt_tokens_total=52.0),
    )
    assert not any(step.restarted for step in story)
    assert [step.signals and step.signals.preemptions_total for step in story] == [5.0, 5.0, 7.0]
    assert tokens(story) == [100.0, 101.0, 102.0]


def test_a_histogram_with_new_bounds_starts_again() -> None:
    """Old counts cannot be added to different buckets."""
    continuity = Continuity()
    take_all(continuity, signals(100.0), signals(1.0))
    new = EngineHistogram((0.5,), (1.0, 2.0), 1.0)
    step = continuity.take(signals(2.0, ttft_seconds=new))
    assert step.signals is not None
    assert step.signals.ttft_seconds == new
    assert step.signals.generation_tokens_total == 102.0


def test_two_pods_behind_one_address_by_start_time() -> None:
    """The page is refused when a start time goes back; nothing is counted twice."""
    first = [signals(1000.0 + n, start=100.0) for n in range(6)]
    second = [signals(500.0 + n, start=200.0) for n in range(6)]
    story = take_all(Continuity(), *(reading for pair in zip(first, second, strict=True) for reading in pair))
    assert tokens(story)[:2] == [1000.0, 1000.0]
    assert tokens(story)[2:] == [None] * 10
    assert story[2].refused is not None
    assert "several engines answer in turn" in story[2].refused
    assert not any(step.restarted for step in story)


def test_two_pods_behind_one_address_by_their_counters() -> None:
    """Without start times repeated falls are the sign; until then no total includes the other engine's counts."""
    first = [signals(1000.0 + n) for n in range(10)]
    second = [signals(500.0 + n) for n in range(10)]
    story = take_all(Continuity(), *(reading for pair in zip(first, second, strict=True) for reading in pair))
    shown = [value for value in tokens(story) if value is not None]
    assert max(shown) <= 1009.0
    assert story[-1].refused is not None
    assert "fell" in story[-1].refused
    assert tokens(story)[6:] == [None] * 14


def test_a_page_of_one_engine_is_accepted_again() -> None:
    """After STEADY_READINGS readings the totals continue from their last values."""
    continuity = Continuity()
    story = take_all(
        continuity, signals(1000.0, start=100.0), signals(500.0, start=200.0), signals(1001.0, start=100.0)
    )
    assert story[-1].refused is not None
    story = take_all(continuity, *(signals(1001.0 + n, start=100.0) for n in range(1, STEADY_READINGS + 3)))
    assert [step.refused is None for step in story] == [False] * (STEADY_READINGS - 1) + [True] * 3
    assert tokens(story)[-3:] == [1000.0, 1001.0, 1002.0]


def test_rare_restarts_are_accepted() -> None:
    """An engine that restarts each quarter of an hour is not refused."""
    continuity, story = Continuity(), []
    for _ in range(5):
        story += take_all(continuity, *(signals(float(n)) for n in range(1, 180)))
    assert sum(step.restarted for step in story) == 4
    assert not any(step.refused for step in story)
    assert tokens(story)[-1] == 5 * 179.0


def test_changes_have_old_and_new_value() -> None:
    """Version, model and flags, each once, when the restart is confirmed; a fact that becomes known is not a change."""
    new = EngineInfo("vllm", "1.1", "tiny", {"dtype": "fp8", "block": "16"})
    unknown = replace(INFO, version=None)
    story = take_all(
        Continuity(),
        signals(1.0, start=1.0, info=unknown),
        signals(2.0, start=1.0),
        signals(1.0, start=9.0, info=new),
        signals(2.0, start=9.0, info=new),
        signals(3.0, start=9.0, info=new),
    )
    changes = (EngineChange("version", "1.0", "1.1"), EngineChange("dtype", "auto", "fp8"))
    assert [step.changes for step in story] == [(), (), (), changes, ()]


def test_a_model_swapped_without_a_restart_is_a_change() -> None:
    """Also if readings in between lack the model."""
    silent, other = replace(INFO, model=None), replace(INFO, model="big")
    story = take_all(
        Continuity(), *(signals(float(n), info=info) for n, info in enumerate((INFO, silent, other, other)))
    )
    assert [step.changes for step in story] == [(), (), (EngineChange("model", "tiny", "big"),), ()]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 2), st.sampled_from([None, 1.0, 2.0, 3.0])), max_size=60))
def test_no_total_ever_falls(readings: list[tuple[int, int, float | None]]) -> None:
    """For any sequence of readings."""
    continuity = Continuity()
    highest: dict[str, float] = {}
    for count, ranks, start in readings:
        step = continuity.take(signals(float(count), start=start, ranks=ranks, preemptions_total=float(60 - count)))
        if step.signals is None:
            assert step.refused
            continue
        for name in COUNTER_SIGNALS:
            value = getattr(step.signals, name)
            if value is not None:
                assert value >= highest.get(name, 0.0) - 1e-9
                highest[name] = value


def epochs(*readings: EngineSignals) -> list[int]:
    """Epoch after each reading."""
    continuity, numbers = Continuity(), []
    for reading in readings:
        continuity.take(reading)
        numbers.append(continuity.epoch)
    return numbers


def test_the_epoch_is_constant_without_restarts() -> None:
    """Idle or busy, also with counters that appear later."""
    assert (
        epochs(signals(None), signals(1.0), signals(1.0), signals(50.0), signals(60.0, preemptions_total=3.0))
        == [0] * 5
    )


@pytest.mark.parametrize(
    "readings",
    [
        (signals(100.0), signals(7.0), signals(9.0)),  # a restart: at the fall, and where its offset is taken
        (signals(5.0, start=1.0), signals(50.0, start=9.0), signals(60.0, start=9.0)),  # grown past the old counters
        (signals(100.0, start=1.0), signals(90.0, start=1.0), signals(110.0, start=1.0)),  # held level
        (signals(100.0, ranks=2), signals(60.0, ranks=1), signals(65.0, ranks=1)),  # a rank left
        (signals(60.0, ranks=1), signals(9_060.0, ranks=2), signals(9_070.0, ranks=2)),  # one joined with all it had
        (signals(60.0), signals(900.0, info=replace(INFO, engine="sglang")), signals(901.0)),
        (signals(1000.0, start=100.0), signals(500.0, start=200.0), signals(1001.0, start=100.0)),  # two pods
    ],
)
def test_a_discontinuity_begins_an_epoch(readings: tuple[EngineSignals, ...]) -> None:
    """After a restart, a change of ranks or another engine, differences are not rates."""
    numbers = epochs(*readings)
    assert numbers[0] < numbers[1]


def test_the_reading_that_confirms_a_restart_begins_an_epoch() -> None:
    """It contains all counts since the restart."""
    assert epochs(signals(100.0), signals(7.0), signals(9.0), signals(20.0)) == [0, 1, 2, 2]


def test_after_missing_readings_only_the_start_time_proves_continuity() -> None:
    """Counters and uptime of a new process may exceed the old ones."""
    for more, goes_on in (({"start": 1.0}, True), ({}, False), ({"uptime_seconds": 500.0}, False)):
        continuity = Continuity()
        continuity.take(signals(100.0, **more))
        continuity.gap()
        continuity.take(signals(110.0, **more))
        assert (continuity.epoch == 0) is goes_on
        before = continuity.epoch
        continuity.take(signals(120.0, **more))
        assert continuity.epoch == before
