"""Events of an SLO over its window, against a list of all of them."""

import random
from dataclasses import replace

import pytest

from prober.config.load import load
from prober.daemon.registry import registry
from prober.features.slo.monitor import SloMonitor, TargetSlos
from prober.features.slo.window import SPANS, WindowCount
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.storage.saved_rows import SavedRows
from tests.observed import UNIX_S, StoppedClock, observed

DAY_S = 86_400.0
T0 = 1_700_000_000.0


@pytest.mark.parametrize("window_s", [3_600.0, 30 * DAY_S])
@pytest.mark.parametrize("seed", range(5))
def test_the_total_is_that_of_the_time_it_states(window_s: float, seed: int) -> None:
    """Whatever the pauses: exactly the events since `since_unix_s`, which is 59 to 60 sixtieths of the window ago or the begin."""
    draw = random.Random(seed)
    count, unix_s, events = WindowCount(window_s, T0), T0, list[tuple[float, int, int]]()
    for _ in range(2_000):
        unix_s += draw.expovariate(1 / (window_s / draw.choice((20, 400, 10_000))))
        event = (unix_s, (number := draw.randint(1, 40)), draw.randint(0, number))
        count.add(*event)
        events.append(event)
        since = count.since_unix_s(unix_s)
        assert since == T0 or window_s * (1 - 1 / SPANS) <= unix_s - since <= window_s
        inside = [(number, bad) for at, number, bad in events if at >= since]
        assert count.total(unix_s) == (sum(n for n, _ in inside), sum(bad for _, bad in inside))
    count = WindowCount.restored(window_s, count.saved(), unix_s)
    assert count.total(unix_s) == (sum(n for n, _ in inside), sum(bad for _, bad in inside))
    assert count.total(unix_s + 2 * window_s) == (0, 0)


def test_a_clock_that_is_set_back_loses_no_event() -> None:
    count = WindowCount(3_600.0, T0)
    count.add(T0 + 1_000, 5, 1)
    count.add(T0 - 100_000, 5, 1)
    assert count.total(T0 + 1_000) == (10, 2)


SAVED = WindowCount(3_600.0, T0).saved()


@pytest.mark.parametrize(
    "row",
    [None, [], 5, {}, SAVED | {"events": [1]}, SAVED | {"bad": [1] * SPANS}, SAVED | {"newest": "x"}, SAVED | {"span": 1.0},
     SAVED | {"events": [2**70] * SPANS}, SAVED | {"begun": None}, SAVED | {"events": [-1] * SPANS},
     SAVED | {"newest": 10**12}],
)  # fmt: skip
def test_what_is_no_count_is_refused(row: object) -> None:
    with pytest.raises(ValueError, match="counts"):
        WindowCount.restored(3_600.0, row, T0)


CONFIG = """
slos: {success: {signal: success, objective: 99%}}
targets: [{name: t, url: http://h}]
"""
FAILED = ProbeResult("t", "probe", "id", UNIX_S, Outcome.RESET, "", Timeline(0), requested_output_tokens=3)


def monitored(clock: StoppedClock, saved: dict[str, bytes], text: str = CONFIG) -> tuple[SloMonitor, TargetSlos]:
    spec = load(text, source="c", engines=(), environment={}, read=lambda path: path).targets[0]
    monitor = SloMonitor(registry(), clock.unix_s, SavedRows(saved))
    found = observed(spec, monitor).find(TargetSlos)
    assert found is not None
    return monitor, found


def told(slos: TargetSlos) -> list[tuple[int, int, float]]:
    return [(status.events, status.bad, status.since_unix_s) for status in slos.statuses(trusted=True)]


def test_a_restart_of_the_prober_keeps_the_window() -> None:
    """The counts go on, with when they began; another objective, threshold or window begins anew."""
    clock = StoppedClock()
    monitor, slos = monitored(clock, {})
    for _ in range(3):
        slos.probe_ended(FAILED)
    saved = dict(monitor.states())
    clock.ns = 7_200 * 10**9
    monitor, slos = monitored(clock, saved)
    slos.probe_ended(FAILED)
    assert told(slos) == [(4, 4, UNIX_S)]
    _, other = monitored(clock, saved, CONFIG.replace("99%", "99.5%"))
    assert told(other) == [(0, 0, UNIX_S + 7_200)]


def test_an_unreadable_row_loses_its_own_counts_only() -> None:
    clock = StoppedClock()
    monitor, slos = monitored(clock, {})
    slos.probe_ended(replace(FAILED, target="t"))
    saved = {name: data.replace(b'"newest"', b'"newish"') for name, data in monitor.states()}
    _, slos = monitored(clock, saved)
    assert told(slos) == [(0, 0, UNIX_S)]


def test_silence_is_seen_over_a_restart() -> None:
    """Counts of yesterday do not say that an SLO is met now."""
    clock = StoppedClock()
    monitor, slos = monitored(clock, {})
    for _ in range(2_000):
        slos.probe_ended(replace(FAILED, outcome=Outcome.OK))
    assert [status.state for status in slos.statuses(trusted=True)] == ["met"]
    clock.ns = 7_200 * 10**9
    _, slos = monitored(clock, dict(monitor.states()))
    assert [(status.state, status.why) for status in slos.statuses(trusted=True)] == [
        ("no_data", "no event for 7200 s")
    ]
