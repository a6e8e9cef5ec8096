"""Events of an SLO over its window, against a list of all of them."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from prober.config.load import load
from prober.config.target import TargetSpec
from prober.daemon.registry import registry
from prober.features.slo import series
from prober.features.slo.compliance import Burn
from prober.features.slo.monitor import SPANS, SloMonitor, TargetSlos, WindowCount
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.probing.history import EventLog
from prober.storage.saved_rows import Moment, SavedRows
from tests.observed import UNIX_S, StoppedClock, observed, reconfigured

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
     SAVED | {"quiet_ns": 10**12}, SAVED | {"quiet_ns": -1}, SAVED | {"quiet_ns": []},
     SAVED | {"burned_ns": -1}, SAVED | {"burned_ns": "x"}],
)  # fmt: skip
def test_what_is_no_count_is_refused(row: object) -> None:
    with pytest.raises(ValueError, match="counts"):
        WindowCount.restored(3_600.0, T0_NS, row)


CONFIG = """
slos: {success: {signal: success, objective: 99%}}
targets: [{name: t, url: http://h}]
"""
FAILED = ProbeResult("t", "probe", "id", UNIX_S, Outcome.RESET, "", Timeline(0), requested_output_tokens=3)
ANSWERED = replace(
    FAILED, outcome=Outcome.OK, timeline=Timeline(0, sent_ns=0, first_ns=10**8, content_ns=(10**8,), end_ns=2 * 10**8)
)


def monitored(
    clock: StoppedClock, saved: dict[str, bytes], text: str = CONFIG, boot: str = "boot"
) -> tuple[SloMonitor, TargetSlos]:
    spec = load(text, source="c", engines=(), environment={}, read=lambda path: path).targets[0]
    monitor = SloMonitor(registry(), lambda: Moment(boot, clock.now_ns(), clock.unix_s()), SavedRows(saved))
    found = observed(spec, monitor.observe).find(TargetSlos)
    assert found is not None
    return monitor, found


def told(slos: TargetSlos) -> list[tuple[int, int, float]]:
    return [(status.events, status.bad, status.since_unix_s) for status in slos.statuses()]


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
    assert [status.state for status in slos.statuses()] == ["met"]
    clock.ns = 7_200 * 10**9
    _, slos = monitored(clock, dict(monitor.states()))
    assert [(status.state, status.why) for status in slos.statuses()] == [("no_data", "no event for 7200 s")]


def burn_of(slos: TargetSlos) -> Burn:
    """Of the first SLO."""
    return next(slos.statuses()).burn


def burns_over(rate_per_s: float, shares: Sequence[tuple[float, float]], *, seed: int = 1) -> list[tuple[float, Burn]]:
    """(seconds, burn) after each probe, and ten minutes later. shares: (seconds, share of failed probes) one after another"""
    clock, draw = StoppedClock(), random.Random(seed)
    _, slos = monitored(clock, {}, CONFIG.replace("http://h}", f"http://h, rate: {rate_per_s}/s}}"))
    seen, end_s = list[tuple[float, Burn]](), 0.0
    for length_s, share in shares:
        end_s += length_s
        while clock.ns < end_s * 1e9:
            slos.probe_ended(FAILED if draw.random() < share else replace(FAILED, outcome=Outcome.OK))
            seen.append((clock.ns / 1e9, burn_of(slos)))
            clock.ns += round(1e9 / rate_per_s)
    return seen


@pytest.mark.parametrize(
    ("rate_per_s", "share", "begins_s", "ends_s"),
    [(2, 1.0, 10, 60), (2, 0.5, 15, 60), (2, 0.2, 45, 60), (2, 0.07, 130, 60), (10, 0.1, 40, 60), (0.2, 1.0, 25, 60),
     (0.2, 0.5, 40, 60), (0.2, 0.2, 130, 120), (1 / 60, 1.0, 190, 370)],
)  # fmt: skip
@pytest.mark.parametrize("seed", range(2))
def test_a_burn_begins_and_ends_with_its_trouble(
    rate_per_s: float, share: float, begins_s: float, ends_s: float, seed: int
) -> None:
    """Within seconds where many requests are bad; a minute after the last of them, or six probes, where probes are rare."""
    calm_s, trouble_s = 600.0, 20 / rate_per_s + 600.0
    seen = burns_over(rate_per_s, [(calm_s, 0.002), (trouble_s, share), (900.0, 0.0)], seed=seed)
    during = [(at_s, burn) for at_s, burn in seen if calm_s <= at_s < calm_s + trouble_s]
    assert not any(burn.since_unix_s for at_s, burn in seen if at_s < calm_s or at_s > calm_s + trouble_s + ends_s)
    lit = [(at_s, burn) for at_s, burn in during if burn.since_unix_s]
    assert lit[0][0] <= calm_s + begins_s + 2 / rate_per_s
    assert len(lit) >= 0.85 * len([at_s for at_s, _ in during if at_s > lit[0][0]])
    last = seen[-1][1]
    assert last.until_unix_s is not None
    assert calm_s + trouble_s - 12 / rate_per_s / share <= last.until_unix_s - UNIX_S <= calm_s + trouble_s


@pytest.mark.parametrize("rate_per_s", [0.2, 2, 20])
def test_what_the_budget_allows_is_no_burn(rate_per_s: float) -> None:
    """Half of it: of rare probes three may fail in five minutes by chance, once a day. Nor is a restart of ten seconds one to a prober
    that sends a probe every five.
    """
    lit = [burn.since_unix_s is not None for _, burn in burns_over(rate_per_s, [(1e4 / rate_per_s, 0.005)])]
    assert sum(lit) <= (0.005 if rate_per_s < 1 else 0) * len(lit)
    if rate_per_s < 1:
        assert not any(burn.since_unix_s for _, burn in burns_over(rate_per_s, [(600, 0.0), (10, 1.0), (600, 0.0)]))


def test_the_last_minutes_are_those_of_the_burn() -> None:
    """Its own events, not those of the calm before it; of a long one the last five minutes; after it none of them. Of rare probes
    more than these.
    """
    seen = dict(burns_over(2, [(3_600, 0.0), (900, 1.0), (600, 0.0)]))
    after = [burn for at_s, burn in seen.items() if at_s > 4_500 and not burn.since_unix_s]
    assert {burn.bad for burn in after} == {0}
    assert (after[0].events, after[-1].span_s) == (81, 300.0)
    young, old = seen[3_630.0], seen[4_400.0]
    assert (young.since_unix_s, young.span_s, young.events, young.bad) == (UNIX_S + 3_600, 35.0, 61, 61)
    assert (old.events, old.bad, old.span_s) == (old.bad, old.bad, 300.0)
    assert burns_over(1 / 120, [(7_200, 0.0)])[-1][1].span_s == 3_600


def test_a_bad_event_after_a_burn_does_not_begin_it_again() -> None:
    """One, or two of them, two minutes later; a burst does."""
    for strays in (1, 2, 8):
        clock = StoppedClock()
        _, slos = monitored(clock, {}, CONFIG.replace("http://h}", "http://h, rate: 2/s}"))
        for at in range(1_000):
            clock.ns = at * 500_000_000
            slos.probe_ended(
                FAILED if 400 <= at < 500 or 740 <= at < 740 + strays else replace(FAILED, outcome=Outcome.OK)
            )
            if at in (499, 660, 760):
                assert bool(burn_of(slos).since_unix_s) is (at == 499 or (at == 760 and strays == 8))


def test_the_end_of_a_burn_survives_a_restart() -> None:
    """As the counts do. Before any burn it is not known."""
    clock = StoppedClock()
    monitor, slos = monitored(clock, {})
    assert burn_of(slos).until_unix_s is None
    for _ in range(9):
        slos.probe_ended(FAILED)
    assert burn_of(slos).since_unix_s == UNIX_S
    clock.ns = 7_200 * 10**9
    _, slos = monitored(clock, dict(monitor.states()))
    assert (burn_of(slos).since_unix_s, burn_of(slos).until_unix_s) == (None, UNIX_S)


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
    assert [status.state for status in slos.statuses()] == ["no_data"], "two events are too few"
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


LATENCIES = """
slos:
  ttft: {signal: ttft, threshold: 500ms, objective: 99%}
  e2e: {signal: e2e, threshold: 2s, objective: 99%}
  success: {signal: success, objective: 99%}
targets: [{name: t, url: http://h}]
"""
WITHOUT_SUCCESS = LATENCIES.replace("  success: {signal: success, objective: 99%}\n", "")


@pytest.mark.parametrize(
    ("earliest_ms", "first_ms", "ttft"),
    [
        (300, 400, (1, 0, 0)),
        (400, 499, (1, 0, 0)),
        (400, 600, (0, 0, 1)),
        (100, 5_000, (0, 0, 1)),
        (501, 900, (1, 1, 0)),
        (600, 600, (1, 1, 0)),
    ],
)
def test_a_latency_that_may_lie_on_both_sides_of_its_threshold_is_undecided(
    earliest_ms: int, first_ms: int, ttft: tuple[int, int, int]
) -> None:
    """It is neither good nor bad, and counted. One whose bounds are on one side is an event, however far they are apart."""
    monitor, slos = monitored(StoppedClock(), {}, LATENCIES)
    first_ns = first_ms * 10**6
    timeline = Timeline(
        0,
        sent_ns=0,
        first_ns=first_ns,
        content_ns=(first_ns,),
        end_ns=first_ns,
        earliest_ns={first_ns: earliest_ms * 10**6},
    )
    answer = replace(FAILED, outcome=Outcome.OK, timeline=timeline)

    def counted(slo: str) -> tuple[float, ...]:
        declared = (series.SLO_EVENTS, series.SLO_BAD_EVENTS, series.SLO_UNDECIDED)
        return tuple(monitor.registry.value(each, "t", "probe", slo).value for each in declared)

    slos.probe_ended(answer)
    assert counted("ttft") == ttft
    (status,) = (status for status in slos.statuses() if status.slo.name == "ttft")
    assert ("read together with later chunks" in status.why) is (ttft[0] == 0)
    assert monitor.registry.value(series.SLO_EVENTS, "t", "probe", "success").value == 1
    for spoilt in (
        replace(answer, warm_up=True),
        replace(answer, cached=True),
        replace(answer, outcome=Outcome.INVALID),
    ):
        slos.probe_ended(spoilt)
    assert counted("ttft") == ttft


def test_undecided_answers_are_counted_where_a_latency_can_be_an_interval() -> None:
    """From 0 on, for TTFT and E2E; an SLO of successes has none."""
    monitor, _ = monitored(StoppedClock(), {}, LATENCIES)
    assert set(monitor.registry.family(series.SLO_UNDECIDED).children) == {
        ("t", "probe", "ttft"),
        ("t", "probe", "e2e"),
    }


SLOS = """
slos:
  ttft: {signal: ttft, threshold: THRESHOLD, objective: 99%}
  success: {signal: success, objective: OBJECTIVE}
  e2e: {signal: SIGNAL, threshold: 2s, objective: 95%, window: 30d}
targets: [TARGETS]
"""


def test_a_reload_says_which_counts_begin_anew(caplog: pytest.LogCaptureFixture) -> None:
    """With target, SLO and what changed, in the log and as an event, one for many targets; the counts of other SLOs go on."""
    caplog.set_level("INFO")

    def specs(threshold: str, objective: str, signal: str, names: Sequence[str]) -> tuple[TargetSpec, ...]:
        targets = ", ".join(f"{{name: {name}, url: http://{name}}}" for name in names)
        text = SLOS.replace("THRESHOLD", threshold).replace("OBJECTIVE", objective).replace("SIGNAL", signal)
        return load(
            text.replace("TARGETS", targets), source="c", engines=(), environment={}, read=lambda path: path
        ).targets

    def change(names: Sequence[str], *changes: tuple[str, str, str]) -> list[tuple[str, str]]:
        """The events that `changes` bring, each also a line of the log."""
        events = EventLog()
        monitor = SloMonitor(registry(), events=events)
        targets = [
            observed(spec, monitor.observe, name=spec.name or "") for spec in specs("500ms", "99%", "e2e", names)
        ]
        for target in targets:
            target.probe_ended(ANSWERED)
        for values in changes:
            targets = [reconfigured(target, spec) for target, spec in zip(targets, specs(*values, names), strict=True)]
            monitor.report_changes()
        for target in targets:
            slos = target.find(TargetSlos)
            assert slos is not None
            counted = {status.slo.name: status.events for status in slos.statuses()}
            assert counted["ttft"] == 1 - any(values[0] != "500ms" for values in changes)
            assert counted["success"] == 1 - any(values[1] != "99%" for values in changes)
        told = [(event.target, event.text) for event in events.latest()[::-1]]
        lines = [record.getMessage() for record in caplog.records]
        assert lines == [f"target={target} {text}" if target else text for target, text in told]
        caplog.clear()
        assert {event.kind for event in events.latest()} <= {"slo"}
        return told

    anew = "SLO {}: its events are counted anew, as its configuration changed: {}"
    assert change("ab", ("500ms", "99%", "e2e")) == []
    threshold = anew.format("ttft", "threshold 400ms, was 500ms")
    assert change("ab", ("400ms", "99%", "e2e"), ("400ms", "99%", "e2e")) == [("a", threshold), ("b", threshold)]
    assert change("a", ("500ms", "99.95%", "itl")) == [
        ("a", anew.format("success", "objective 99.95%, was 99%")),
        ("a", anew.format("e2e", "signal itl, was e2e")),
    ]
    assert change([f"t{index:02}" for index in range(12)], ("400ms", "99%", "e2e")) == [
        ("", f"{threshold} (12 targets: t00, t01, t02 and 9 more)")
    ]


def shown(monitor: SloMonitor, declared: Any, slo: str) -> dict[tuple[str, ...], float]:
    """The values of a gauge of one SLO, by the labels after it."""
    family = monitor.registry.family(declared)
    return {labels[3:]: family.value(*labels).value for labels in family.of("t") if labels[2] == slo}


def test_a_failure_is_an_event_of_one_slo() -> None:
    """Beside an SLO on success those of latencies judge answered requests only; without it a failure is a bad event of each."""
    for config, counts in ((LATENCIES, {"success": 1, "ttft": 0, "e2e": 0}), (WITHOUT_SUCCESS, {"ttft": 1, "e2e": 1})):
        monitor, slos = monitored(StoppedClock(), {}, config)
        slos.probe_ended(FAILED)
        bad = {slo: monitor.registry.value(series.SLO_BAD_EVENTS, "t", "probe", slo).value for slo in counts}
        assert bad == counts


def test_the_standing_of_the_window_is_exported() -> None:
    """State, events, rest of the budget (half a percent bad of 1% leaves half), and silence."""
    clock = StoppedClock()
    monitor, slos = monitored(clock, {}, LATENCIES)
    assert shown(monitor, series.SLO_STATE, "success") == {("no_data",): 1.0}
    assert shown(monitor, series.SLO_BUDGET_LEFT, "success") == {}
    for number in range(1_200):
        slos.probe_ended(FAILED if number % 200 == 0 else ANSWERED)
    slos.show_standing()
    assert shown(monitor, series.SLO_STATE, "success") == {("met",): 1.0}
    assert shown(monitor, series.SLO_WINDOW_EVENTS, "success") == {(): 1_200.0}
    assert shown(monitor, series.SLO_BUDGET_LEFT, "success") == {(): pytest.approx(0.5)}
    for quiet_s, silent in ((590.0, 0.0), (20.0, 1.0)):
        clock.ns += round(quiet_s * 1e9)
        slos.show_standing()
        assert shown(monitor, series.SLO_SILENT, "success") == {(): silent}
    assert shown(monitor, series.SLO_STATE, "success") == {("no_data",): 1.0}
    slos.probe_ended(ANSWERED)
    slos.show_standing()
    assert shown(monitor, series.SLO_SILENT, "success") == {(): 0.0}
