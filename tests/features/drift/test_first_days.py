"""What is unusual before a baseline of days is learnt."""

import math
from collections.abc import Callable
from random import Random

import pytest

from prober.features.drift.detector import present_verdict, step
from prober.features.drift.serialization import dump, restore
from prober.features.drift.state import Drift, DriftVerdict, Observation, Settings, new_state

START_S = 1_700_000_000.0


def run(
    state: Drift, seconds: float, median_ms: Callable[[float], float], sd: float = 0.2, phi: float = 0.0
) -> list[DriftVerdict]:
    """Verdicts on Poisson samples of so many seconds. median_ms: by the seconds since the first sample"""
    rng, verdicts, noise = Random(7 + state.passed), list[DriftVerdict](), 0.0
    at_s = max(state.last_s, START_S)
    end_s = at_s + seconds
    while (at_s := at_s + rng.expovariate(state.settings.rate_per_s)) < end_s:
        noise = phi * noise + math.sqrt(1 - phi * phi) * rng.gauss(0, sd)
        sample = Observation(at_s, median_ms(at_s - START_S) * 1e-3 * math.exp(noise))
        verdicts.append(step(state, sample)[1])
    return verdicts


def events(verdicts: list[DriftVerdict]) -> list[str]:
    return [verdict.event for verdict in verdicts if verdict.event not in (None, "learnt")]


@pytest.mark.parametrize("rate", [0.1, 0.2, 1.0, 20.0])
@pytest.mark.parametrize("before_s", [720.0, 3_600.0])
def test_a_latency_that_rises_by_half_is_unusual_within_minutes(rate: float, before_s: float) -> None:
    """With its start and both medians, at any rate; it ends soon after the latency is back, and neither is said twice."""
    state = new_state(Settings(rate))
    factor = max(1.0, 0.2 / rate)
    assert events(run(state, before_s * factor, lambda _: 30.0)) == []
    changed_s = state.last_s
    verdicts = run(state, 400 * factor, lambda _: 81.0)
    assert events(verdicts) == ["unusual"]
    verdict = verdicts[-1]
    assert (verdict.active, verdict.cause, verdict.is_drift) == (True, "unusual", False)
    assert verdict.since_unix_s is not None
    assert abs(verdict.since_unix_s - changed_s) < 80 * factor
    assert verdict.medians_s == pytest.approx((0.030, 0.081), rel=0.15)
    assert " ms in the median, " in verdict.why
    after = run(state, 400 * factor, lambda _: 30.0)
    assert events(after) == ["recovered"]
    assert not after[-1].active


@pytest.mark.parametrize("sd", [0.1, 0.3])
@pytest.mark.parametrize("phi", [0.0, 0.6])
def test_two_days_of_the_same_have_nothing_unusual(sd: float, phi: float) -> None:
    """Wide and correlated samples widen what is usual."""
    assert "unusual" not in events(run(new_state(Settings(0.2)), 2 * 86_400, lambda _: 30.0, sd, phi))


@pytest.mark.parametrize(
    ("median_ms", "text"),
    [
        (lambda at_s: 39.0 if at_s > 3_600 else 30.0, "+30%"),
        (lambda at_s: 90.0 if 3_600 < at_s < 3_660 else 30.0, "a burst of a minute"),
        (lambda at_s: 20.0 if at_s > 3_600 else 30.0, "faster"),
        (lambda at_s: 30.0 * (1 + at_s / 36_000), "twice as slow within ten hours"),
        (lambda at_s: 300.0 if at_s < 150 else 30.0, "a slow start"),
    ],
)
def test_a_small_a_short_and_a_slow_change_are_not_unusual(median_ms: Callable[[float], float], text: str) -> None:
    """Nor is a faster latency."""
    assert "unusual" not in events(run(new_state(Settings(0.2)), 6 * 3_600, median_ms)), text


def test_a_slow_first_minute_does_not_hide_what_comes_after_an_hour() -> None:
    """The start of an engine is left behind."""
    state = new_state(Settings(0.2))
    run(state, 5_400, lambda at_s: 300.0 if at_s < 150 else 30.0)
    assert events(run(state, 400, lambda _: 81.0)) == ["unusual"]


def test_it_is_found_while_the_first_days_are_learnt_and_ends_by_itself() -> None:
    """Also after the first 5,000 samples, at hours that no baseline has seen; after three hours it is usual."""
    state = new_state(Settings(0.2))
    run(state, 12 * 3_600, lambda _: 30.0)
    assert present_verdict(state).phase == "provisional"
    assert events(run(state, 600, lambda _: 55.0)) == ["unusual"]
    assert events(run(state, 3.2 * 3_600, lambda _: 55.0))[:1] == ["accepted"]
    assert not present_verdict(state).active


def test_it_survives_a_restart() -> None:
    """As the baseline does."""
    state = new_state(Settings(0.2))
    run(state, 3_600, lambda _: 30.0)
    before = run(state, 600, lambda _: 81.0)[-1]
    restored = restore(state.settings, dump(state))
    assert present_verdict(restored) == before._replace(event=None)
    assert events(run(restored, 400, lambda _: 30.0)) == ["recovered"]
