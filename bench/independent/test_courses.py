"""Tests of the courses and of their figures. They lie here because the tests of the product import no benchmark."""

from functools import cache

import numpy as np
import pytest

from bench.diagnosis_over_time import Play, burning_s
from bench.independent.causes_catalogue import CAUSES, FAILURES, Truth, signal_values
from bench.independent.courses import HEALTHY_S, RECOVERY_S, TROUBLE_S, VIEWS, Course, course, healthy_hour
from bench.independent.engine import NoCompiler, library
from prober.measure.outcome import ANSWERED, Outcome

try:
    library()
except NoCompiler as problem:
    pytest.skip(str(problem), allow_module_level=True)


@cache
def tuning_course(*names: str) -> Course:
    """A course of the tuning half, at the lowest rate."""
    return course("tuning", names, 0, 0.2)


@pytest.mark.parametrize("name", ["throttled", "slow_path", "crash"])
def test_shape(name: str) -> None:
    """A healthy time, a trouble and a recovery, one after the other."""
    of = tuning_course(name)
    durations_s = (HEALTHY_S, TROUBLE_S, RECOVERY_S)
    assert [len(window.probes) for window in of.windows] == [pytest.approx(s * 0.2, abs=3) for s in durations_s]
    assert [len(window.readings) for window in of.windows] == [s / 5 for s in durations_s]
    times_s = [at_s for window in of.windows for at_s, _ in window.readings]
    assert np.diff(times_s) == pytest.approx(5)


def test_views() -> None:
    """A prober without GPU readings has the page, and one without both has the same probes."""
    of = tuning_course("throttled")
    views = [of.seen(view)[1] for view in VIEWS]
    assert [(bool(window.readings), bool(window.devices)) for window in views] == [
        (True, True),
        (True, False),
        (False, False),
    ]
    assert views[0].probes == views[2].probes


def test_visible() -> None:
    """A queue is told from other waits by the page only, a slow step by any prober."""
    assert [of.truth(view).is_visible for of in (tuning_course("more_users"),) for view in VIEWS] == [True, True, False]
    assert all(tuning_course("throttled").truth(view).is_visible for view in VIEWS)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CAUSES, *FAILURES])
def test_breach(name: str) -> None:
    """Each trouble of a service breaches an SLO."""
    assert burning_s(tuning_course(name))


@pytest.mark.parametrize("name", ["throttled", "slow_gateway"])
def test_breach_is_clear(name: str) -> None:
    """The healthy service meets the threshold, and the trouble misses it far more often than allowed. It ends with the trouble."""
    of = tuning_course(name)
    signal = CAUSES[name].signals[0]
    threshold_s = next(objective.threshold_s for objective in of.objectives if objective.signal == signal)
    assert threshold_s is not None
    usual, trouble, recovered = (np.mean(np.array(signal_values(w.probes, signal)) > threshold_s) for w in of.windows)
    assert usual < 0.05
    assert trouble > 0.15
    assert recovered < 0.05


def test_lost_prefixes_drift() -> None:
    """Without their prefix warm probes take longer, which is reported as a drift, and no SLO that holds for cold ones is missed."""
    of = tuning_course("cache_off")
    assert of.drift_s is not None
    assert of.ends_s[0] < of.drift_s[0] < of.ends_s[1] < of.drift_s[1]
    assert burning_s(of)[0] >= of.drift_s[0]
    assert tuning_course("throttled").drift_s is None


@pytest.mark.parametrize(
    ("name", "outcome"), [("rate_limit", Outcome.HTTP_429), ("resets", Outcome.RESET), ("loading", Outcome.HTTP_5XX)]
)
def test_failures(name: str, outcome: Outcome) -> None:
    """Requests fail during the trouble, in one way, and are answered before and after it."""
    ends = [{probe.outcome for probe in window.probes} for window in tuning_course(name).windows]
    assert outcome in ends[1]
    assert ends[0] | ends[2] | ends[1] - {outcome} <= ANSWERED


def test_healthy_hour() -> None:
    """No SLO is breached in an hour with a few failures."""
    of = healthy_hour("tuning", 0, 1.0)
    failures = sum(probe.outcome not in ANSWERED for probe in of.windows[0].probes)
    assert 0 < failures < 0.01 * len(of.windows[0].probes)
    assert not burning_s(of)


def played(*names: tuple[str, ...] | None) -> Play:
    """A play in which a trouble of 10 evaluations begins at 60 s, breaches from 75 s on and ends at 210 s."""
    samples = tuple((15.0 * number, given) for number, given in enumerate(names))
    truth = Truth(frozenset({"queueing"}), frozenset({"slow_decode"}))
    burning = tuple(15.0 * number for number in range(5, 14))
    return Play("more_users", 1.0, "page", truth, samples, 60.0, 210.0, burning)


def test_time_to_the_name() -> None:
    """The first right name counts, from the breach on; names that are true or wrong do not."""
    wrong, true, right = ("stalls",), ("slow_decode",), ("queueing",)
    row = played(*[None] * 5, wrong, true, *[right] * 6, ("unknown",), *[None] * 30)
    assert row.named_after_s == 30
    assert not row.is_late
    assert row.after == ["right"] * 6 + ["unknown"]
    assert row.wrong.count("wrong") == 1
    assert not row.lingers


def test_no_name() -> None:
    """Trouble without a right name is late, and all of it after the limit counts."""
    row = played(*[None] * 5, *[("unknown",)] * 9, *[None] * 30)
    assert row.is_late
    assert row.after == ["unknown"]


def test_names_of_a_healthy_time() -> None:
    """Before the trouble every name is wrong, and so is one that stands long after it."""
    row = played(("queueing",), *[None] * 4, *[("queueing",)] * 40)
    assert row.wrong.count("wrong") == 1
    assert row.lingers
