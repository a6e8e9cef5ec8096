"""Events of an SLO over its window, against a list of all of them."""

import json
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
from prober.storage.elapsed import Moment
from prober.storage.saved_rows import SavedRows
from tests.observed import UNIX_S, StoppedClock, observed

DAY_S = 86_400.0
T0_NS = 10**15


@pytest.mark.parametrize("window_s", [3_600.0, 30 * DAY_S])
@pytest.mark.parametrize("seed", range(5))
def test_the_total_is_that_of_the_time_it_states(window_s: float, seed: int) -> None:
    """Whatever the pauses: exactly the events since `since_ns`, which is 59 to 60 sixtieths of the window ago or the begin."""
    draw, window_ns = random.Random(seed), window_s * 1e9
    count, now_ns, events = WindowCount(window_s, T0_NS), T0_NS, list[tuple[int, int, int]]()
    for _ in range(2_000):
        now_ns += round(draw.expovariate(1 / (window_ns / draw.choice((20, 400, 10_000)))))
        event = (now_ns, (number := draw.randint(1, 40)), draw.randint(0, number))
        count.add(*event)
        events.append(event)
        since = count.since_ns(now_ns)
        assert since == T0_NS or window_ns * (1 - 1 / SPANS) <= now_ns - since <= window_ns
        inside = [(number, bad) for at, number, bad in events if at >= since]
        assert count.total(now_ns) == (sum(n for n, _ in inside), sum(bad for _, bad in inside))
    rebooted_ns = 5 * 10**9  # the monotonic clock of another boot
    count = WindowCount.restored(window_s, rebooted_ns, json.loads(json.dumps(count.saved(now_ns))))
    assert count.total(rebooted_ns) == (sum(n for n, _ in inside), sum(bad for _, bad in inside))
    assert rebooted_ns - count.since_ns(rebooted_ns) == now_ns - since
    assert count.total(rebooted_ns + 2 * round(window_ns)) == (0, 0)


SAVED = WindowCount(3_600.0, T0_NS).saved(T0_NS)


@pytest.mark.parametrize(
    "row",
    [None, [], 5, {}, SAVED | {"events": [1]}, SAVED | {"bad": [1] * SPANS}, SAVED | {"age_ns": "x"}, SAVED | {"age_ns": -1},
     SAVED | {"events": [2**70] * SPANS}, SAVED | {"age_ns": None}, SAVED | {"events": [-1] * SPANS},
     SAVED | {"quiet_ns": 10**12}, SAVED | {"quiet_ns": -1}, SAVED | {"quiet_ns": []}],
)  # fmt: skip
def test_what_is_no_count_is_refused(row: object) -> None:
    with pytest.raises(ValueError, match="counts"):
        WindowCount.restored(3_600.0, T0_NS, row)


CONFIG = """
slos: {success: {signal: success, objective: 99%}}
targets: [{name: t, url: http://h}]
"""
FAILED = ProbeResult("t", "probe", "id", UNIX_S, Outcome.RESET, "", Timeline(0), requested_output_tokens=3)


def monitored(
    clock: StoppedClock, saved: dict[str, bytes], text: str = CONFIG, boot: str = "boot"
) -> tuple[SloMonitor, TargetSlos]:
    spec = load(text, source="c", engines=(), environment={}, read=lambda path: path).targets[0]
    monitor = SloMonitor(registry(), lambda: Moment(boot, clock.now_ns(), clock.unix_s()), SavedRows(saved))
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
    saved = {name: data.replace(b'"age_ns"', b'"age"') for name, data in monitor.states()}
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


class SteppedClock(StoppedClock):
    """Its wall clock is set apart from its monotonic clock. step_s: by how much"""

    step_s = 0.0

    def unix_s(self) -> float:
        return super().unix_s() + self.step_s


STEPS_S = (-40 * DAY_S, -3_600.0, 3_600.0, 40 * DAY_S)


@pytest.mark.parametrize("step_s", STEPS_S)
def test_a_step_of_the_wall_clock_changes_no_count_and_no_window(step_s: float) -> None:
    """In the middle of a run, and between a save and a start within one boot: the wall clock only labels the window."""
    clock = SteppedClock()
    monitor, slos = monitored(clock, {})
    slos.probe_ended(FAILED)
    clock.ns, clock.step_s = 60 * 10**9, step_s
    slos.probe_ended(FAILED)
    now_s = clock.unix_s()
    assert told(slos) == [(2, 2, now_s - 60)]
    assert [status.state for status in slos.statuses(trusted=True)] == ["no_data"], "two events are too few"
    saved = dict(monitor.states())
    clock.ns, clock.step_s = 120 * 10**9, 0.0
    _, slos = monitored(clock, saved)
    assert told(slos) == [(2, 2, clock.unix_s() - 120)]
    clock.ns += round(31 * DAY_S * 1e9)
    assert [count[:2] for count in told(slos)] == [(0, 0)], "the window passes as it does without a step"


def test_across_boots_the_wall_clock_tells_the_age_and_a_save_of_the_future_is_of_now() -> None:
    """Nothing else is known then. A clock that is set back therefore loses nothing, and is put right later without a loss."""
    clock = SteppedClock()
    monitor, slos = monitored(clock, {})
    slos.probe_ended(FAILED)
    saved = dict(monitor.states())
    for step_s, counted in ((-40 * DAY_S, 1), (-3_600.0, 1), (3_600.0, 1), (40 * DAY_S, 0)):
        later = SteppedClock()
        later.ns, later.step_s = 60 * 10**9, step_s
        _, slos = monitored(later, saved, boot="another")
        assert [count[0] for count in told(slos)] == [counted]
        later.step_s = 0.0
        assert [count[0] for count in told(slos)] == [counted]
