"""An engine's efficiency by the hour: what is found, what is not, and what a restart of the prober keeps."""

import math
from random import Random

import pytest

from prober.config.configuration import DriftSpec
from prober.config.load import load
from prober.daemon.registry import registry
from prober.features.drift import efficiency_series as series
from prober.features.drift.efficiency import HOUR_S, MEASURES, Efficiency, Row, dump, restore, totals_of
from prober.features.drift.efficiency_monitor import EfficiencyMonitor
from prober.measure.engine_signals import EngineChange, EngineHistogram, EngineInfo, EngineSignals, PageReading
from prober.measure.gpu_reading import GpuReading
from prober.probing.history import EventLog
from prober.storage.saved_rows import SavedRows
from tests.observed import StoppedClock, observed, reconfigured

DAYS = 9
SPEC = load(
    "targets: [{name: t, url: 'http://h'}]", source="c", engines=(), environment={}, read=lambda path: path
).targets[0]
MONDAY_S = 1_796_601_600.0  # 2026-12-07 00:00 UTC
Found = list[tuple[str, str]]


class Service:
    """Users whose rate follows the day, and an engine. hits, accepted: shares; preempted: per request; step_s: of a token"""

    def __init__(self) -> None:
        self.rng, self.hour, self.has_drafts = Random(7), 0, True
        self.hits, self.accepted, self.preempted, self.step_s, self.prompt, self.volume = (
            0.6,
            0.7,
            0.0,
            0.02,
            800.0,
            1.0,
        )

    def grown(self) -> dict[str, float]:
        """Growth of the totals in the next hour."""
        rng, busy = self.rng, 0.6 + 0.4 * math.sin(math.tau * self.hour % 24 / 24)
        self.hour += 1
        requests = round(self.volume * 600 * busy * rng.uniform(0.9, 1.1))
        prompt, generated = requests * self.prompt * rng.uniform(0.97, 1.03), requests * 200 * rng.uniform(0.97, 1.03)
        return {
            "requests": requests,
            "prompt": prompt,
            "generated": generated,
            "queries": prompt,
            "hits": prompt * self.hits * rng.uniform(0.95, 1.05),
            **({"drafted": generated} if self.has_drafts else {}),
            "accepted": generated * self.accepted * rng.uniform(0.97, 1.03),
            "preemptions": round(requests * self.preempted),
            "step_s": generated * (self.step_s + 0.005 * busy) * rng.uniform(0.97, 1.03),
            "steps": generated,
        }


def play(state: Efficiency, service: Service, hours: int) -> Found:
    """(event, measure) of these hours."""
    found = []
    for _ in range(hours):
        at_s = MONDAY_S + service.hour * HOUR_S + 1
        found += state.add(at_s, service.grown(), HOUR_S) or []
    return [(event, measure.name) for event, measure, _ in found]


@pytest.fixture(scope="module")
def learnt() -> bytes:
    """A state after some days without trouble, of which nothing was told."""
    state, service = Efficiency(DriftSpec()), Service()
    assert play(state, service, 24 * DAYS) == []
    assert all(state.held[name].drift.baseline for name in ("prefix_hit_ratio", "acceptance_ratio", "step_seconds"))
    return dump(state)


def scene(learnt: bytes) -> tuple[Efficiency, Service]:
    service = Service()
    for _ in range(24 * DAYS):
        service.grown()
    return restore(DriftSpec(), learnt), service


@pytest.mark.parametrize(
    ("measure", "change"),
    [
        ("prefix_hit_ratio", {"hits": 0.0}),
        ("acceptance_ratio", {"accepted": 0.0}),
        ("preemptions_per_request", {"preempted": 0.5}),
        ("step_seconds", {"step_s": 0.05}),
    ],
)
def test_a_fall_is_found_in_hours_and_ends_within_a_day(learnt: bytes, measure: str, change: dict[str, float]) -> None:
    """The measure alone, although users' requests stay as they are; and once."""
    (state, service), healthy = scene(learnt), Service()
    for name, value in change.items():
        setattr(service, name, value)
    assert play(state, service, 6) == [("dropped", measure)]
    fall = state.held[measure].fall
    assert fall is not None
    assert abs(fall.since_unix_s - MONDAY_S - 24 * DAYS * HOUR_S) <= HOUR_S
    assert play(state, service, 12) == []
    for name in change:
        setattr(service, name, getattr(healthy, name))
    assert play(state, service, 24) == [("recovered", measure)]
    assert play(state, service, 24) == []


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": 4_000.0, "hits": 0.1},  # another tenant, with other prompts
        {"volume": 0.001, "hits": 0.0},  # hours with too few requests
        {"hits": 0.55},  # less than a material change of the work
        {"hits": 0.8},  # an improvement
    ],
)
def test_neighbours_are_silent(learnt: bytes, change: dict[str, float]) -> None:
    state, service = scene(learnt)
    for name, value in change.items():
        setattr(service, name, value)
    assert play(state, service, 48) == []


def test_one_cold_hour_after_a_restart_is_no_fall(learnt: bytes) -> None:
    state, service = scene(learnt)
    service.hits = 0.05
    assert play(state, service, 1) == []
    service.hits = 0.6
    assert play(state, service, 24) == []


def test_a_fall_that_stays_becomes_the_baseline(learnt: bytes) -> None:
    """After a week; a fall of what is left is found in turn."""
    state, service = scene(learnt)
    service.hits = 0.3
    assert play(state, service, 24 * 8) == [("dropped", "prefix_hit_ratio"), ("accepted", "prefix_hit_ratio")]
    service.hits = 0.0
    assert play(state, service, 12) == [("dropped", "prefix_hit_ratio")]


def test_a_restart_of_the_prober_changes_no_verdict(learnt: bytes) -> None:
    """Between any two hours, evidence and an alarm included."""
    (state, service), (restarted, same) = scene(learnt), scene(learnt)
    service.step_s = same.step_s = 0.05
    for _ in range(30):
        assert play(state, service, 1) == play(restarted, same, 1)
        restarted = restore(DriftSpec(), dump(restarted))
        assert dump(restarted) == dump(state)
        if service.hour == 24 * DAYS + 8:
            service.step_s = same.step_s = 0.02


def test_measures_and_values() -> None:
    """A cost is higher the worse the measure is, and tells its value; what the page lacks has none, and 0 of a cost is no cost."""
    for measure in MEASURES:
        worse, better = (0.1, 0.9) if measure.best > 0 else (0.9, 0.1)
        assert measure.log_cost(worse) > measure.log_cost(better)
        assert measure.value(measure.log_cost(worse)) == pytest.approx(worse)
    row = Row(0.0)
    row.add(
        {
            "requests": 100.0,
            "prompt": 1.0,
            "queries": 100.0,
            "hits": 50.0,
            "steps": 10.0,
            "step_s": 0.0,
            "drafted": 0.0,
        },
        60.0,
    )
    assert row.close()
    assert row.costs.keys() == {"prefix_hit_ratio"}


def test_nothing_is_made_of_what_a_page_lacks() -> None:
    """None gives no total, and a histogram without a sum no time."""
    signals = EngineSignals(EngineInfo("vllm"), requests_finished_total=3.0, itl_seconds=EngineHistogram((), (5.0,)))
    assert totals_of(signals) == {"requests": 3.0, "steps": 5.0}


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"rows": [[1]], "row": null, "held": {}, "changes": []}'])
def test_a_damaged_state_is_refused(data: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        restore(DriftSpec(), data)


@pytest.mark.parametrize("value", ["NaN", '"5"', "null"])
def test_a_state_with_a_damaged_row_is_refused(learnt: bytes, value: str) -> None:
    """It would fail in each later hour."""
    begin, _, row = learnt.decode().partition('"prefix_hit_ratio": ')
    data = f'{begin}"prefix_hit_ratio": {value},{row.partition(",")[2]}'
    with pytest.raises((ValueError, TypeError)):
        restore(DriftSpec(), data.encode())


class Stage:
    """A target `t` whose page and GPU are read once an hour."""

    def __init__(self, saved: dict[str, bytes], service: Service) -> None:
        self.registry, self.events, self.clock, self.service = registry(), EventLog(), StoppedClock(), service
        self.clock.ns = round(service.hour * HOUR_S * 1e9)
        self.monitor = EfficiencyMonitor(self.registry, self.events, DriftSpec(), SavedRows(saved))
        self.target = observed(SPEC, self.monitor.observe, clock=self.clock)
        self.totals = dict.fromkeys(service.grown(), 0.0)
        self.joules, self.joules_per_token = 0.0, 0.5

    def hours(self, count: int) -> None:
        for _ in range(count):
            self.clock.ns += round(HOUR_S * 1e9)
            grown = self.service.grown()
            for name, more in grown.items():
                self.totals[name] += more
            self.joules += self.joules_per_token * grown["generated"]
            signals = EngineSignals(
                EngineInfo("vllm"),
                requests_finished_total=self.totals["requests"],
                prompt_tokens_total=self.totals["prompt"],
                generation_tokens_total=self.totals["generated"],
                prefix_cache_queries_tokens_total=self.totals["queries"],
                prefix_cache_hits_tokens_total=self.totals["hits"],
            )
            self.target.page_read(PageReading(self.clock.ns, 0, signals))
            self.target.gpus_read([GpuReading(0, "a", "gpu", energy_joules=self.joules)], "1.0")

    def shown(self, measure: str) -> dict[str, float]:
        values = {
            cause: self.registry.value(series.EFFICIENCY_DROPPED, "t", measure, cause).value
            for cause in series.EFFICIENCY_CAUSES
        }
        return values | {
            period: self.registry.value(series.EFFICIENCY, "t", measure, period).value
            for period in series.EFFICIENCY_PERIODS
        }


def test_a_target_tells_what_fell_beside_the_engines_change() -> None:
    """In series, an event and a warning; after a restart of the prober too; and in the past tense once it is over."""
    stage = Stage({}, Service())
    stage.hours(24 * DAYS)
    assert stage.target.summary() == {"efficiency": []}
    assert stage.events.latest() == []
    stage.target.engine_changed(EngineChange("version", "0.32.0", "0.33.0"))
    stage.service.hits = 0.0
    stage.hours(6)
    stage = Stage(dict(stage.monitor.states()), stage.service)
    stage.hours(2)
    (warning,) = stage.target.summary()["efficiency"]
    assert warning.startswith("prompt tokens found in the prefix cache: 0% since 2001-09-18 0"), warning
    assert "% is usual for such requests; the engine changed at 2001-09-18 0" in warning
    assert warning.endswith("(version was 0.32.0, is 0.33.0)")
    shown = stage.shown("prefix_hit_ratio")
    assert (shown["engine_change"], shown["unknown"], shown["present"]) == (1, 0, 0)
    assert shown["usual"] == pytest.approx(0.6, abs=0.05)
    since_s = stage.registry.value(series.EFFICIENCY_SINCE, "t", "prefix_hit_ratio").value
    assert abs(since_s - stage.clock.unix_s() + 8 * HOUR_S) <= HOUR_S
    energy = stage.shown("joules_per_token")
    assert (energy["engine_change"], energy["unknown"]) == (0, 0)
    assert energy["present"] == pytest.approx(0.5, abs=1e-5)
    assert stage.registry.family(series.EFFICIENCY_DROPPED).of("t") == [
        ("t", measure, cause)
        for measure in ("prefix_hit_ratio", "joules_per_token")
        for cause in series.EFFICIENCY_CAUSES
    ]
    stage.service.hits = 0.6
    stage.hours(24)
    assert stage.target.summary() == {"efficiency": []}
    (event,) = stage.events.latest()
    assert event.text.startswith("prompt tokens found in the prefix cache: was 0% from 2001-09-18 0")
    assert event.text.endswith("; usual again")


@pytest.mark.parametrize("trouble", ["no requests", "no page"])
def test_a_fall_of_which_nothing_new_is_known_is_told_no_longer(trouble: str) -> None:
    """For two days it is; then neither alarm nor value is left, until an hour is judged again."""
    stage = Stage({}, Service())
    stage.hours(24 * DAYS)
    stage.service.hits = 0.0
    stage.hours(6)
    (warning,) = stage.target.summary()["efficiency"]

    def days(count: int) -> None:
        for _ in range(24 * count if trouble == "no page" else 0):
            stage.clock.ns += round(HOUR_S * 1e9)
            stage.target.page_read(None)
        if trouble == "no requests":
            stage.hours(24 * count)

    stage.service.volume = 0.0
    days(1)
    assert stage.target.summary()["efficiency"] == [warning]
    days(2)
    assert stage.target.summary() == {"efficiency": []}
    assert [stage.registry.family(each).of("t") for each in (series.EFFICIENCY_DROPPED, series.EFFICIENCY_SINCE)] == [
        [],
        [],
    ]
    stage.service.volume = 1.0
    stage.hours(3)
    assert stage.target.summary()["efficiency"] == [warning]


def test_a_fleets_hours_do_not_end_at_once() -> None:
    """Its baselines would be learned in one pass of the event loop: 0.2 s of each target."""
    clock = StoppedClock()
    monitor = EfficiencyMonitor(registry(), EventLog(), DriftSpec(), SavedRows({}))
    fleet = [observed(SPEC, monitor.observe, clock=clock, name=f"pod-{number}") for number in range(60)]
    requests = 0.0
    ended: list[int] = []
    for _ in range(180):
        clock.ns += 60 * 10**9
        requests += 100
        before = [len(monitor.targets[target.name].state.rows) for target in fleet]
        for target in fleet:
            signals = EngineSignals(EngineInfo("vllm"), requests_finished_total=requests)
            target.page_read(PageReading(clock.ns, 0, signals))
        ended.append(sum(len(monitor.targets[target.name].state.rows) for target in fleet) - sum(before))
    assert sum(ended) >= 2 * len(fleet)
    assert max(ended) <= 5


def test_no_fall_is_told_of_a_target_whose_page_is_not_read() -> None:
    """The configuration is reloaded without the page."""
    stage = Stage({}, Service())
    stage.hours(24 * DAYS)
    stage.service.hits = 0.0
    stage.hours(6)
    changed = reconfigured(stage.target, SPEC.model_copy(update={"metrics": None}), stage.registry)
    assert changed.summary() == {"efficiency": []}
    assert stage.registry.family(series.EFFICIENCY_DROPPED).of("t") == []


def test_a_measure_that_the_page_no_longer_has_is_not_shown_for_ever(learnt: bytes) -> None:
    """Speculation is turned off during a fall of its acceptance: after a day neither alarm nor value is left."""
    state, service = scene(learnt)
    service.accepted = 0.0
    assert play(state, service, 6) == [("dropped", "acceptance_ratio")]
    service.has_drafts = False
    assert play(state, service, 30) == [("accepted", "acceptance_ratio")]
    assert state.held["acceptance_ratio"].latest is None
    service.has_drafts, service.accepted = True, 0.3
    assert play(state, service, 24) == []


def test_a_clock_that_is_set_back_stops_no_learning(learnt: bytes) -> None:
    state, service = scene(learnt)
    service.hour -= 24 * 365
    assert play(state, service, 48) == []
    held = state.held["step_seconds"]
    assert held.known_s <= MONDAY_S + service.hour * HOUR_S


def test_energy_is_paired_with_tokens_of_the_same_time() -> None:
    """A device without energy, or another one, breaks the pair; so does a page that is not read."""
    stage = Stage({}, Service())
    stage.hours(6)
    row = stage.monitor.targets["t"].state.rows[-1]
    assert row.costs["joules_per_token"] == pytest.approx(math.log(0.5), abs=1e-5)
    stage.target.gpus_read([GpuReading(0, "a", "gpu", energy_joules=1.0), GpuReading(1, "b", "gpu")], "1.0")
    stage.target.gpus_read([GpuReading(0, "b", "gpu", energy_joules=1e9)], "1.0")
    stage.target.page_read(None)
    stage.hours(6)
    row = stage.monitor.targets["t"].state.rows[-1]
    assert row.costs["joules_per_token"] == pytest.approx(math.log(0.5), abs=1e-5)
