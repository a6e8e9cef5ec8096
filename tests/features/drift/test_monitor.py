"""Drift of all signals of all targets: what is fed, what is kept, what is shown."""

import json
import math
from dataclasses import replace
from random import Random

import pytest

from prober.config.configuration import Configuration, DriftSpec
from prober.config.load import load
from prober.config.target import TargetSpec
from prober.daemon.registry import registry
from prober.exposition.families import Registry, Value
from prober.features.drift import monitor
from prober.features.drift.monitor import DriftMonitor
from prober.features.drift.serialization import restore
from prober.features.drift.state import Settings
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.probing.history import EventLog
from prober.storage.saved_rows import SavedRows
from tests.observed import observed, reconfigured

SPEC = DriftSpec()
SETTINGS = Settings(2.0)
TEXT = "defaults: {rate: 2/s}\ntargets: [{name: t, url: 'http://h'%s}]"


def target(more: str = "") -> TargetSpec:
    return load(TEXT % more, source="c", engines=(), environment={}, read=lambda path: path).targets[0]


def result(
    at: float, ttft_s: float, outcome: Outcome = Outcome.OK, *, warm_up: bool = False, set_by_s: float = 0.0
) -> ProbeResult:
    """A probe at that time of the monotonic clock; the wall clock was set by `set_by_s`."""
    first = round((at + ttft_s) * 1e9)
    stamps = tuple(first + 1_000_000 * i for i in range(5))
    timeline = Timeline(round(at * 1e9), first_ns=first, content_ns=stamps, end_ns=stamps[-1])
    return ProbeResult("t", "probe", "id", at + set_by_s, outcome, "", timeline, warm_up=warm_up)


class Stage:
    def __init__(
        self, saved: dict[str, bytes] | None = None, spec: TargetSpec | None = None, *, keeps: bool = False
    ) -> None:
        self.families: Registry = registry()
        self.events = EventLog()
        self.monitor = DriftMonitor(self.families, self.events, SPEC, SavedRows(saved or {}), has_store=keeps)
        self.target = observed(spec or target(), self.monitor.observe)

    def value(self, name: str, *labels: str) -> float | None:
        child = self.families[name].children.get(("t", "probe", *labels))
        return child.value if isinstance(child, Value) else None

    def feed(self, count: int, factor: float = 1.0, start: int = 0, set_by_s: float = 0.0) -> None:
        rng = Random(start)
        for i in range(start, start + count):
            ttft_s = factor * 0.1 * math.exp(rng.gauss(0.0, 0.2))
            self.target.probe_ended(result(i / 2, ttft_s, set_by_s=set_by_s))


def test_a_slower_target_is_told_with_its_shift_and_since_when() -> None:
    """Learning, provisional, active: evidence 1, the cause unusual, the shift with its interval; gone when it has recovered."""
    stage = Stage()
    assert stage.value("llmslo_drift_active", "ttft", "unusual") == 0
    assert stage.value("llmslo_drift_baseline_state", "ttft", "learning") == 1, "before the first probe"
    stage.feed(6_100)
    assert stage.value("llmslo_drift_baseline_state", "ttft", "provisional") == 1
    assert stage.value("llmslo_drift_events_total", "ttft", "learnt") == 1
    stage.feed(600, 2.0, start=6_100)
    assert stage.value("llmslo_drift_active", "ttft", "unusual") == 1
    assert stage.value("llmslo_drift_evidence_ratio", "ttft") == 1
    since = stage.value("llmslo_drift_since_timestamp_seconds", "ttft")
    assert since is not None
    assert abs(since - 3_050) < 30
    bounds = [stage.value("llmslo_drift_shift_ratio", "ttft", "p50", bound) for bound in ("lower", "estimate", "upper")]
    lower, estimate, upper = (bound or 0.0 for bound in bounds)
    assert lower < estimate < upper
    assert abs(estimate - 2.0) < 0.15
    assert stage.value("llmslo_drift_shift_ratio", "ttft", "p99", "estimate") is None, "600 samples are no p99"
    assert stage.value("llmslo_drift_active", "itl", "unusual") == 0, "its gaps are as they were"
    restarted = Stage(dict(stage.monitor.states()))
    assert restarted.value("llmslo_drift_active", "ttft", "unusual") == 1, "before the first probe"
    assert restarted.value("llmslo_drift_since_timestamp_seconds", "ttft") == since
    stage.feed(2_000, start=6_700)
    assert stage.value("llmslo_drift_active", "ttft", "unusual") == 0
    assert stage.value("llmslo_drift_since_timestamp_seconds", "ttft") is None
    assert not stage.families["llmslo_drift_shift_ratio"].children


@pytest.mark.parametrize("set_by_s", [-3_456_000.0, -3_600.0, 3_600.0, 3_456_000.0])
def test_the_times_of_a_state_are_moved_with_the_wall_clock(set_by_s: float) -> None:
    """In the middle of a run, and between the last save and a start: hours follow the wall clock, and durations do not."""
    stage = Stage()
    stage.feed(200, set_by_s=4e6)
    for again in (stage, Stage(dict(stage.monitor.states()))):
        again.feed(1, start=200, set_by_s=4e6 + set_by_s)
        (state, _) = (restore(SETTINGS, data) for _, data in again.monitor.states())
        assert state.last_s == pytest.approx(4e6 + set_by_s + 100)
        assert state.stretch is not None
        assert state.stretch.begun[0] == pytest.approx(4e6 + set_by_s)


def test_a_burst_at_the_time_of_day_of_another_is_said_to_recur() -> None:
    """Bursts of a minute, a day after each other and six hours later: the event log names the days, and no drift is active."""
    stage = Stage()
    stage.feed(6_000)
    for hour in (1, 25, 31):
        stage.feed(120, 6.0, start=hour * 7_200)
        stage.feed(3_000, start=hour * 7_200 + 120)
    bursts = [event.text for event in reversed(stage.events.latest()) if "ttft of probe: burst" in event.text]
    again = "ttft of probe: burst, as on 1 earlier day at about this time"
    assert bursts == ["ttft of probe: burst", again, "ttft of probe: burst"]
    assert stage.value("llmslo_drift_events_total", "ttft", "unusual") == 0


@pytest.mark.parametrize(("factor", "is_active"), [(1.0, 0.0), (2.0, 1.0)])
def test_a_latency_that_is_an_interval_is_a_sample(factor: float, is_active: float) -> None:
    """By its middle: which first tokens are read late depends on the prober, and must not choose among the samples."""
    stage, rng = Stage(), Random(1)
    stage.feed(6_000)
    for i in range(6_000, 6_600):
        middle_s = factor * 0.1 * math.exp(rng.gauss(0.0, 0.2))
        answer = result(i / 2, 1.5 * middle_s)
        stamp_ns = answer.timeline.first_ns
        assert stamp_ns is not None
        merged = replace(answer.timeline, earliest_ns={stamp_ns: stamp_ns - round(middle_s * 1e9)})
        assert merged.ttft_s is None
        stage.target.probe_ended(replace(answer, timeline=merged))
    assert stage.value("llmslo_drift_active", "ttft", "unusual") == is_active


def test_what_is_no_latency_of_a_warm_engine_is_no_sample() -> None:
    """Failures, warm-up: neither teaches nor alarms."""
    stage = Stage()
    for i in range(6_000):
        stage.target.probe_ended(result(float(i), 0.1, Outcome.RESET))
        stage.target.probe_ended(result(float(i), 0.1, warm_up=True))
    assert stage.monitor.without_baseline("ttft") == [("t", "probe", "ttft")]


def test_states_are_taken_up_where_they_were() -> None:
    """By another process; one that cannot be read is learnt anew and stops nothing."""
    stage = Stage()
    stage.feed(6_000)
    kept = dict(stage.monitor.states())
    again = Stage(kept)
    assert again.monitor.without_baseline("ttft") == []
    again.feed(600, 2.0, start=6_000)
    assert again.value("llmslo_drift_active", "ttft", "unusual") == 1
    broken = Stage({json.dumps(("t", "probe", "ttft")): b"nonsense"})
    assert broken.monitor.without_baseline("ttft") == [("t", "probe", "ttft")]


def test_a_reload_keeps_baselines_and_removes_what_is_gone() -> None:
    """Another rate or another material change is the same signal; a target that does not stream has none."""
    stage = Stage()
    stage.feed(6_000)
    stage.target = reconfigured(stage.target, target(", rate: 2/s"))
    stage.monitor.configured(Configuration(drift=DriftSpec(false_alarms=1 / 86400, material=0.5, accept_after=86400)))
    assert stage.monitor.without_baseline("ttft") == []
    stage.target = reconfigured(stage.target, target(", stream: false"))
    assert list(stage.monitor.states()) == []
    stage.target = reconfigured(stage.target, target())
    assert stage.monitor.without_baseline("ttft") == []
    stage.target.removed()
    assert list(stage.monitor.states()) == []
    assert list(stage.monitor.changed_states()) == []


def test_what_a_disk_that_hangs_holds_up_is_told_all_the_same() -> None:
    """After half a minute."""
    stage = Stage(keeps=True)
    stage.feed(6_100)
    assert stage.value("llmslo_drift_events_total", "ttft", "learnt") == 1


def test_what_a_kill_could_lose_is_told_when_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Page, series and events say so after it is written, and then all that has come meanwhile; a later turn waits for its own."""
    monkeypatch.setattr(monitor, "SAVE_TIMEOUT_S", math.inf)
    stage = Stage(keeps=True)
    stage.feed(6_100)
    assert stage.value("llmslo_drift_baseline_state", "ttft", "learning") == 1
    assert stage.value("llmslo_drift_events_total", "ttft", "learnt") == 0
    saved = dict(stage.monitor.changed_states())
    assert '["t", "probe", "ttft"]' in saved
    stage.feed(600, 2.0, start=6_100)  # an alarm, which is not in what was asked for
    stage.monitor.states_saved()
    assert stage.value("llmslo_drift_events_total", "ttft", "learnt") == 0
    assert len(dict(stage.monitor.changed_states())) == 1
    stage.monitor.states_saved()
    assert stage.value("llmslo_drift_events_total", "ttft", "learnt") == 1
    assert stage.value("llmslo_drift_active", "ttft", "unusual") == 1
    stage.feed(10, 2.0, start=6_700)
    assert stage.value("llmslo_drift_evidence_ratio", "ttft") == 1
