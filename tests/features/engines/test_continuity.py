"""Successive readings as one story."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prober.features.engines.continuity import STEADY, Continuity, ContinuousReading
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


def told(continuity: Continuity, *readings: EngineSignals) -> list[ContinuousReading]:
    return [continuity.take(reading) for reading in readings]


def tokens(story: list[ContinuousReading]) -> list[float | None]:
    return [None if step.signals is None else step.signals.generation_tokens_total for step in story]


def test_counters_pass_through_while_nothing_happens() -> None:
    """The first reading stands as it is, and later ones too; gauges are never touched."""
    story = told(Continuity(), *(signals(float(n), requests_running=3.0 - n) for n in range(3)))
    assert tokens(story) == [0.0, 1.0, 2.0]
    assert [step.signals and step.signals.requests_running for step in story] == [3.0, 2.0, 1.0]
    assert not any(step.restarted or step.changes or step.refused for step in story)


@pytest.mark.parametrize("starts", [(None, None), (100.0, 200.0)])
def test_counters_go_on_over_a_restart(starts: tuple[float | None, float | None]) -> None:
    """The reading at which they fall adds nothing, the next one says restart and adds what was counted since it."""
    before, after = starts
    story = told(
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


def test_a_restart_is_seen_by_start_time_though_counters_have_grown_past_it() -> None:
    """A young engine's few tokens are soon passed by its successor's."""
    story = told(Continuity(), signals(5.0, start=1.0), signals(50.0, start=9.0), signals(60.0, start=9.0))
    assert tokens(story) == [5.0, 5.0, 65.0]
    assert story[-1].restarted


def test_a_restart_is_seen_by_uptime() -> None:
    """Where a page tells only that."""
    story = told(
        Continuity(),
        signals(5.0, uptime_seconds=500.0),
        signals(6.0, uptime_seconds=2.0),
        signals(6.0, uptime_seconds=7.0),
    )
    assert [step.restarted for step in story] == [False, False, True]
    assert tokens(story) == [5.0, 5.0, 11.0]


def test_a_restarted_engine_that_idles() -> None:
    """Counters at 0, or not there until the first request, are no reason to forget what was counted."""
    story = told(Continuity(), signals(100.0), signals(0.0), signals(0.0), signals(3.0))
    assert tokens(story) == [100.0, 100.0, 100.0, 103.0]
    story = told(Continuity(), signals(100.0), signals(None), signals(None), signals(3.0), signals(4.0))
    assert tokens(story) == [100.0, None, None, 100.0, 104.0]
    assert [step.restarted for step in story] == [False] * 4 + [True]


def test_one_counter_that_falls_is_no_restart() -> None:
    """Of several counters one fell: it is held level, and the others go on."""
    story = told(
        Continuity(),
        signals(100.0, preemptions_total=5.0, prompt_tokens_total=50.0),
        signals(101.0, preemptions_total=4.0, prompt_tokens_total=51.0),
        signals(102.0, preemptions_total=6.0, prompt_tokens_total=52.0),
    )
    assert not any(step.restarted for step in story)
    assert [step.signals and step.signals.preemptions_total for step in story] == [5.0, 5.0, 7.0]
    assert tokens(story) == [100.0, 101.0, 102.0]


def test_a_rank_that_leaves_takes_nothing_back() -> None:
    """Fewer ranks count less together: the totals are held level, nothing is counted twice, and it is no restart."""
    story = told(Continuity(), signals(100.0, ranks=2), signals(60.0, ranks=1), signals(65.0, ranks=1))
    assert tokens(story) == [100.0, 100.0, 105.0]
    assert not any(step.restarted for step in story)


def test_a_histogram_with_new_bounds_starts_anew() -> None:
    """Old counts cannot be added to other buckets."""
    continuity = Continuity()
    told(continuity, signals(100.0), signals(1.0))
    new = EngineHistogram((0.5,), (1.0, 2.0), 1.0)
    step = continuity.take(signals(2.0, ttft_seconds=new))
    assert step.signals is not None
    assert step.signals.ttft_seconds == new
    assert step.signals.generation_tokens_total == 102.0


def test_two_pods_behind_one_address_by_start_time() -> None:
    """As soon as a start time comes back the page is refused; what was shown is never counted twice."""
    first = [signals(1000.0 + n, start=100.0) for n in range(6)]
    second = [signals(500.0 + n, start=200.0) for n in range(6)]
    story = told(Continuity(), *(reading for pair in zip(first, second, strict=True) for reading in pair))
    assert tokens(story)[:2] == [1000.0, 1000.0]
    assert tokens(story)[2:] == [None] * 10
    assert story[2].refused is not None
    assert "a different engine's each time" in story[2].refused
    assert not any(step.restarted for step in story)


def test_two_pods_behind_one_address_by_their_counters() -> None:
    """Without start times, falling again and again tells it, and until then no total has grown by the other's."""
    first = [signals(1000.0 + n) for n in range(10)]
    second = [signals(500.0 + n) for n in range(10)]
    story = told(Continuity(), *(reading for pair in zip(first, second, strict=True) for reading in pair))
    shown = [value for value in tokens(story) if value is not None]
    assert max(shown) <= 1009.0
    assert story[-1].refused is not None
    assert "fell" in story[-1].refused
    assert tokens(story)[6:] == [None] * 14


def test_a_page_that_has_become_one_engine_s_is_believed_again() -> None:
    """After enough readings of one line the totals go on from where they stood."""
    continuity = Continuity()
    story = told(continuity, signals(1000.0, start=100.0), signals(500.0, start=200.0), signals(1001.0, start=100.0))
    assert story[-1].refused is not None
    story = told(continuity, *(signals(1001.0 + n, start=100.0) for n in range(1, STEADY + 3)))
    assert [step.refused is None for step in story] == [False] * (STEADY - 1) + [True] * 3
    assert tokens(story)[-3:] == [1000.0, 1001.0, 1002.0]


def test_a_few_restarts_far_apart_are_restarts() -> None:
    """An engine that restarts each quarter of an hour is not refused."""
    continuity, story = Continuity(), []
    for _ in range(5):
        story += told(continuity, *(signals(float(n)) for n in range(1, 180)))
    assert sum(step.restarted for step in story) == 4
    assert not any(step.refused for step in story)
    assert tokens(story)[-1] == 5 * 179.0


def test_changes_are_told_with_old_and_new() -> None:
    """Version, model and flags, once each, when the restart that brought them is sure; finding one out is no change."""
    new = EngineInfo("vllm", "1.1", "tiny", {"dtype": "fp8", "block": "16"})
    unknown = replace(INFO, version=None)
    story = told(
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
    """Through silence too: what is not told in between is remembered."""
    silent, other = replace(INFO, model=None), replace(INFO, model="big")
    story = told(Continuity(), *(signals(float(n), info=info) for n, info in enumerate((INFO, silent, other, other))))
    assert [step.changes for step in story] == [(), (), (EngineChange("model", "tiny", "big"),), ()]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 2), st.sampled_from([None, 1.0, 2.0, 3.0])), max_size=60))
def test_no_total_ever_falls(readings: list[tuple[int, int, float | None]]) -> None:
    """Whatever a page says in whatever order."""
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
    """The epoch at each reading."""
    continuity, found = Continuity(), []
    for reading in readings:
        continuity.take(reading)
        found.append(continuity.epoch)
    return found


def test_totals_are_of_one_epoch_while_they_say_what_the_engine_did() -> None:
    """Idle or busy, with counters that come later: nothing begins anew."""
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
def test_totals_that_do_not_say_it_begin_an_epoch(readings: tuple[EngineSignals, ...]) -> None:
    """The difference over a restart, a rank or another engine is nobody's rate."""
    found = epochs(*readings)
    assert found[0] < found[1]


def test_the_reading_that_makes_a_restart_sure_adds_more_than_its_own() -> None:
    """All that was counted since the restart is in it, so it begins another epoch than the doubtful one before."""
    assert epochs(signals(100.0), signals(7.0), signals(9.0), signals(20.0)) == [0, 1, 2, 2]


def test_after_missing_readings_only_a_start_time_says_that_nothing_happened() -> None:
    """A counter may have grown past the old one in another process; an uptime too."""
    for more, goes_on in (({"start": 1.0}, True), ({}, False), ({"uptime_seconds": 500.0}, False)):
        continuity = Continuity()
        continuity.take(signals(100.0, **more))
        continuity.gap()
        continuity.take(signals(110.0, **more))
        assert (continuity.epoch == 0) is goes_on
        before = continuity.epoch
        continuity.take(signals(120.0, **more))
        assert continuity.epoch == before
