"""What is remembered of probes, and how much of it."""

import pytest

from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.probing import history
from prober.probing.history import FAILURES_KEPT, FEWEST, SAMPLES, SPARE, History, Samples


def ended(target: str, number: int, outcome: Outcome = Outcome.OK) -> ProbeResult:
    return ProbeResult(target, "probe", f"id-{number}", float(number), outcome, "", Timeline(number))


def test_the_latest_stay() -> None:
    """So many successes, and four times as many failures; latest first."""
    found = History(3)
    for number in range(20):
        found.add(ended("one", number))
        found.add(ended("one", number, Outcome.HTTP_5XX))
    kept = found.probes("one")
    assert [each.request_id for each in kept if each.outcome is Outcome.OK] == ["id-19", "id-18", "id-17"]
    assert sum(each.outcome is Outcome.HTTP_5XX for each in kept) == 3 * FAILURES_KEPT


def test_an_outage_of_many_targets_has_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more targets each is remembered by fewer results, and never by less than a few."""
    monkeypatch.setattr(history, "RESULTS", 200)
    found = History(100)
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
    assert alone == shared == 200 // (1 + FAILURES_KEPT) * FAILURES_KEPT
    assert len(found.probes("more-99")) == FEWEST


def test_samples_are_the_latest() -> None:
    """Quantiles are of the last SAMPLES values, however many came."""
    samples = Samples()
    for value in range(3 * (SAMPLES + SPARE)):
        samples.add(float(value))
    first, last = 3 * (SAMPLES + SPARE) - SAMPLES, 3 * (SAMPLES + SPARE)
    median = next(each for each in samples.quantiles() if each.q == 0.5)
    assert median.count == SAMPLES
    assert first + SAMPLES / 2 - 2 <= median.estimate <= last - SAMPLES / 2 + 2
