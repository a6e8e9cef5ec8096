"""What is remembered of probes, and how much of it."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.target_state import TargetEvent
from prober.measure.timeline import Timeline
from prober.probing import history
from prober.probing.history import (
    FAILURE_FACTOR,
    MARK_S,
    MIN_SUCCESSES,
    SAMPLES,
    SPARE,
    EventLog,
    ProbeHistory,
    Samples,
    TargetHistory,
    latest_first,
)
from prober.probing.observer import ObservedTarget


def ended(target: str, number: int, outcome: Outcome = Outcome.OK) -> ProbeResult:
    return ProbeResult(target, "probe", f"id-{number}", float(number), outcome, "", Timeline(number))


class Remembered:
    """The histories of several targets that share a bound."""

    def __init__(self, limit: int) -> None:
        self._history = ProbeHistory(limit)
        self._targets: dict[str, TargetHistory] = {}

    def add(self, result: ProbeResult) -> None:
        if result.target not in self._targets:
            self._targets[result.target] = self._history.observe(
                cast(ObservedTarget, SimpleNamespace(name=result.target))
            )
        self._targets[result.target].probe_ended(result)

    def probes(self, target: str | None = None) -> list[ProbeResult]:
        return list(
            latest_first([list(found.recent()) for name, found in self._targets.items() if target in (None, name)])
        )


def test_the_latest_stay() -> None:
    """So many successes, and four times as many failures; latest first."""
    found = Remembered(3)
    for number in range(20):
        found.add(ended("one", number))
        found.add(ended("one", number, Outcome.HTTP_5XX))
    kept = found.probes("one")
    assert [each.request_id for each in kept if each.outcome is Outcome.OK] == ["id-19", "id-18", "id-17"]
    assert sum(each.outcome is Outcome.HTTP_5XX for each in kept) == 3 * FAILURE_FACTOR


def test_an_outage_of_many_targets_has_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more targets each is remembered by fewer results, and never by less than a few."""
    monkeypatch.setattr(history, "MAX_RESULTS", 200)
    found = Remembered(100)
    for number in range(300):
        found.add(ended("one", number, Outcome.CONNECT_REFUSED))
    alone = len(found.probes())
    for number in range(100):
        for target in ("one", "two", "three", "four"):
            found.add(ended(target, number, Outcome.CONNECT_REFUSED))
    shared = len(found.probes())
    for more in range(100):
        for number in range(50):
            found.add(ended(f"more-{more}", number))
    assert alone == shared == 200 // (1 + FAILURE_FACTOR) * FAILURE_FACTOR
    assert len(found.probes("more-99")) == MIN_SUCCESSES


def test_long_answers_of_one_target_push_out_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """All results together are bounded in bytes; the target that keeps most loses its oldest, its neighbour nothing."""
    monkeypatch.setattr(history, "MAX_BYTES", 1_000_000)
    found = Remembered(100)
    for number in range(50):
        found.add(ended("neighbour", number))
        found.add(replace(ended("flood", number), timeline=Timeline(number, content_ns=range(10_000))))
    assert len(found.probes("neighbour")) == 50
    flood = found.probes("flood")
    assert 5 <= len(flood) <= 12
    assert flood[0].request_id == "id-49"
    for number in range(100):
        found.add(ended("flood", 100 + number))
    assert len(found.probes("flood")) == 100, "short ones have room again"


def test_samples_are_the_latest() -> None:
    """Quantiles are of the last SAMPLES values, however many came."""
    samples = Samples()
    for value in range(3 * (SAMPLES + SPARE)):
        samples.add(10.0 * value, float(value))
    first, last = 3 * (SAMPLES + SPARE) - SAMPLES, 3 * (SAMPLES + SPARE)
    median = next(each for each in samples.quantiles() if each.q == 0.5)
    assert median.count == SAMPLES
    assert first + SAMPLES / 2 - 2 <= median.estimate <= last - SAMPLES / 2 + 2
    since, until = samples.span_unix_s() or (0.0, 0.0)
    assert 0.0 <= 10.0 * first - since < MARK_S
    assert until == 10.0 * (last - 1)
    assert Samples().span_unix_s() is None


def test_the_latest_samples_are_told_from_older_ones() -> None:
    """A step shows at once in the last minute, and alone after ten; without late values there is no quantile."""
    samples = Samples()
    for second in range(1_000, 2_000):
        samples.add(float(second), 1.0 if second < 1_400 else 5.0)

    def median(since_unix_s: float) -> tuple[float, int] | None:
        return next(((q.estimate, q.count) for q in samples.quantiles(since_unix_s) if q.q == 0.5), None)

    assert median(0.0) == (5.0, 1_000)
    assert median(1_940.0) == (5.0, 60)
    assert median(1_400.0) == (5.0, 600)
    assert median(2_050.0) is None


def test_equal_events_near_each_other_are_one() -> None:
    """With their number and since when; other texts between them hide nothing, and one after a long pause stands by itself."""
    events = EventLog()
    for unix_s, target, text in (
        *((at, "a", "429") for at in (0.0, 1_000.0, 1_100.0, 1_500.0)),
        (1_550.0, "b", "429"),
        (1_560.0, "a", "ready"),
        (1_600.0, "a", "429"),
    ):
        events.append(TargetEvent(unix_s, target, "state", text))
    shown = [(event.unix_s, event.text, event.times, event.since_unix_s) for event in events.folded("a")]
    assert shown == [(1_600.0, "429", 4, 1_000.0), (1_560.0, "ready", 1, None), (0.0, "429", 1, None)]
    assert len(events.folded()) == 4
