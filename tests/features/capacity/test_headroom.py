"""What is left of a capacity, by the newest demand."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from prober.daemon.registry import registry
from prober.exposition.families import Value
from prober.features.capacity.headroom import Headroom, TargetDemand
from prober.measure.engine_signals import EngineHistogram, EngineInfo, EngineSignals, PageReading
from prober.mock.server import running
from prober.net.prometheus import QueryFailed
from prober.probing.observer import ObservedTarget
from prober.probing.target import Target
from prober.results.capacity import Capacity, Mix
from prober.storage.saved_rows import SavedRows
from tests.features.capacity.stage import SLOTS, staged, target_spec, until

# An engine that is limited by all tokens alike.
FOUND = Capacity(*("ttft", "found", 8.0, 10.0, 12.5), mix=Mix(400, 100, 0.8, 0.2, error=0.0))
DAY_S = 86_400


class HandClock:
    """A clock that the test sets."""

    now_s = 0.0
    start_unix_s = 1e9

    def now_ns(self) -> int:
        return round(self.now_s * 1e9)

    def unix_s(self) -> float:
        return self.start_unix_s + self.now_s


class Shown:
    """A target `t`. saved: peaks of an earlier process; more: of its `sweep:`"""

    def __init__(self, saved: dict[str, bytes] | None = None, more: str = "", page: str = "auto") -> None:
        self.families, self.clock = registry(), HandClock()
        self.headroom = Headroom(self.families, SavedRows(saved or {}))
        self.spec = target_spec("http://127.0.0.1:1", more, page=page)
        self.observe()
        self.epoch = 0

    def observe(self) -> None:
        """As the fleet begins a target."""
        target = cast(Target, SimpleNamespace(spec=self.spec, clock=self.clock))
        self.observed = ObservedTarget(target, (self.headroom.observe,))
        demand = self.observed.find(TargetDemand)
        assert demand is not None
        self.demand = demand

    def reconfigure(self, **changes: Any) -> None:
        """As a reload does."""
        self.spec = self.spec.model_copy(update=changes)
        self.observed.removed()
        self.families.remove("t")
        self.observe()

    def read(self, at_s: float, requests: float | None, tokens: float | None) -> None:
        """The engine's page is read."""
        self.clock.now_s = at_s
        signals = EngineSignals(
            EngineInfo("vllm"),
            requests_finished_total=requests,
            prompt_tokens_total=None if tokens is None else 0.8 * tokens,
            generation_tokens_total=None if tokens is None else 0.2 * tokens,
        )
        self.demand.page_read(PageReading(round(at_s * 1e9), self.epoch, signals))

    def answer(self, at_s: float, requests_per_s: float | None) -> None:
        """Prometheus answers `demand_query`."""
        self.clock.now_s = at_s
        self.demand.query_answered(requests_per_s)

    def unknown(self) -> list[str]:
        """The exported reasons why there is no estimate of the headroom."""
        return [reason for _, reason in self.families["llmslo_headroom_unknown"].children]

    def value(self, name: str, *labels: str) -> float | None:
        child = self.families[name].children.get(("t", *labels))
        return child.value if isinstance(child, Value) else None


def test_headroom_follows_the_demand() -> None:
    """With the capacity's interval, and what can be added of the sweep's shape; over the last five minutes only."""
    shown = Shown()
    shown.demand.show_capacity([FOUND])
    assert shown.value("llmslo_headroom_ratio", "estimate") is None, "the demand is unknown"
    assert shown.unknown() == ["demand_unknown"]
    shown.read(0.0, 0, 0)
    shown.read(100.0, 400, 200_000)
    assert shown.value("llmslo_demand_requests_per_second") == 4
    assert shown.value("llmslo_demand_tokens_per_second") == pytest.approx(2_000)
    for bound, per_s in (("lower", 8), ("estimate", 10), ("upper", 12.5)):
        assert shown.value("llmslo_headroom_ratio", bound) == pytest.approx(1 - 4 / per_s)
        assert shown.value("llmslo_addable_requests_per_second", bound) == pytest.approx(per_s - 4)
    assert shown.unknown() == []
    for at_s in range(200, 700, 100):
        shown.read(float(at_s), 400, 200_000)
    assert shown.value("llmslo_headroom_ratio", "estimate") == 1, "nothing is there"
    assert shown.value("llmslo_addable_requests_per_second", "upper") == pytest.approx(12.5)


def test_the_page_of_production_alone_is_kept_for_the_next_sweep() -> None:
    """Of the last five minutes, of one process, and of no time with a sweep."""
    shown = Shown()
    for at_s in range(0, 610, 30):
        shown.read(float(at_s), 4.0 * at_s, 2_000.0 * at_s)
    assert [of.at_ns / 1e9 for of in shown.demand.readings] == list(range(300, 610, 30))
    shown.epoch += 1
    shown.read(630.0, 4.0, 2_000.0)
    assert len(shown.demand.readings) == 1
    shown.demand.sweep_began()
    shown.read(660.0, 40.0, 20_000.0)
    assert not shown.demand.readings


@pytest.mark.parametrize("size", [0.25, 1.7, 4.0, 9.0])
def test_a_request_takes_of_the_capacity_what_its_size_takes(size: float) -> None:
    """What the sweep found stays; what can be added is of the present size."""
    shown = Shown()
    shown.demand.show_capacity([FOUND])
    shown.read(0.0, 0, 0)
    shown.read(100.0, 400, 200_000 * size)
    assert shown.value("llmslo_headroom_ratio", "estimate") == pytest.approx(1 - 0.4 * size)
    assert shown.value("llmslo_addable_requests_per_second", "estimate") == pytest.approx(max(0.0, 10 / size - 4))
    assert shown.value("llmslo_capacity_requests_per_second", "ttft", "estimate") == 10


def test_prompt_tokens_that_the_engine_has_cached_take_nothing() -> None:
    """The capacity is of computed tokens."""
    shown = Shown()
    shown.demand.show_capacity([FOUND])
    for at_s in (0.0, 100.0):
        signals = EngineSignals(
            EngineInfo("vllm"),
            requests_finished_total=4 * at_s,
            prompt_tokens_total=4_000 * at_s,
            prefix_cache_hits_tokens_total=2_400 * at_s,
            generation_tokens_total=400 * at_s,
        )
        shown.clock.now_s = at_s
        shown.demand.page_read(PageReading(round(at_s * 1e9), 0, signals))
    assert shown.value("llmslo_demand_tokens_per_second") == pytest.approx(2_000)
    assert shown.value("llmslo_headroom_ratio", "estimate") == pytest.approx(0.6)


def test_an_overloaded_engine_has_the_demand_that_arrives() -> None:
    """It finishes no more than it can; the queue grows by the rest."""
    shown = Shown()
    shown.demand.show_capacity([FOUND])
    for at_s in (0.0, 100.0):
        signals = EngineSignals(
            EngineInfo("vllm"),
            requests_finished_total=10 * at_s,
            requests_running=24.0,
            requests_waiting=5 * at_s,
            prompt_tokens_total=4_000 * at_s,
            generation_tokens_total=1_000 * at_s,
        )
        shown.clock.now_s = at_s
        shown.demand.page_read(PageReading(round(at_s * 1e9), 0, signals))
    assert shown.value("llmslo_demand_requests_per_second") == 15
    assert shown.value("llmslo_headroom_ratio", "estimate") == pytest.approx(-0.5)
    assert shown.value("llmslo_addable_requests_per_second", "estimate") == 0


def test_users_who_miss_the_slo_have_no_room_whatever_the_sweep_found() -> None:
    """Three in ten of their requests take longer than the limit, where one in ten may: `metrics.slos` shows it beside the gauge."""
    shown = Shown(page="auto, slos: [quick]")
    shown.demand.show_capacity([replace(FOUND, slo="quick", slope=8.0)])
    for at_s in range(0, 631, 30):
        shown.clock.now_s = at_s
        ttft = EngineHistogram((0.1, 0.2, 0.5), (2.0 * at_s, 2.8 * at_s, 4.0 * at_s, 4.0 * at_s), 0.6 * at_s)
        signals = EngineSignals(
            EngineInfo("vllm"),
            requests_finished_total=4.0 * at_s,
            prompt_tokens_total=1_600.0 * at_s,
            generation_tokens_total=400.0 * at_s,
            ttft_seconds=ttft,
        )
        shown.demand.page_read(PageReading(round(at_s * 1e9), 0, signals))
    assert shown.value("llmslo_headroom_ratio", "estimate") == pytest.approx(0.6)
    users = shown.value("llmslo_users_headroom_ratio", "estimate")
    assert users is not None
    assert users < 0
    assert shown.demand.least[0] == shown.demand.users_headroom, "the page shows the smaller"
    assert shown.demand.least[1].estimate == 0


def test_an_engine_that_finishes_less_than_arrives_has_no_room_whatever_it_had_when_it_was_swept() -> None:
    """Half of the requests end, the others wait: it is used twice. Requests that only run longer are no queue."""
    for waits, free in ((True, -1.0), (False, 0.6)):
        shown = Shown()
        shown.demand.show_capacity([FOUND])
        for at_s in range(0, 331, 30):
            shown.clock.now_s = at_s
            signals = EngineSignals(
                EngineInfo("vllm"),
                requests_running=8.0 if waits else 2.0 * at_s,
                requests_waiting=2.0 * at_s if waits else 0.0,
                requests_finished_total=2.0 * at_s,
                prompt_tokens_total=800.0 * at_s,
                generation_tokens_total=200.0 * at_s,
            )
            shown.demand.page_read(PageReading(round(at_s * 1e9), 0, signals))
        assert shown.value("llmslo_headroom_ratio", "estimate") == pytest.approx(free, abs=0.02)


def test_the_binding_slo_counts_and_the_next_sweep_replaces_all_capacities() -> None:
    """No series of the sweep before is left."""
    shown = Shown()
    shown.read(0.0, 0, 0)
    shown.read(100.0, 400, 200_000)
    tpot = replace(FOUND, slo="tpot", lower=16.0, estimate=20.0, upper=25.0)
    shown.demand.show_capacity([FOUND, tpot])
    assert shown.value("llmslo_headroom_ratio", "estimate") == pytest.approx(0.6)
    shown.demand.show_capacity([tpot])
    assert shown.value("llmslo_headroom_ratio", "estimate") == pytest.approx(0.8)
    assert shown.value("llmslo_capacity_requests_per_second", "ttft", "estimate") is None


def test_sweeps_of_the_same_engine_narrow_the_headroom() -> None:
    """And the mean is between them."""
    shown = Shown()
    shown.read(0.0, 0, 0)
    shown.read(100.0, 400, 200_000)
    other = replace(FOUND, lower=12.8, estimate=16.0, upper=20.0)
    widths, estimates = [], []
    for earlier in ([], [FOUND, FOUND, FOUND], [other]):
        shown.demand.show_capacity([FOUND], earlier)
        lower, estimate, upper = (
            shown.value("llmslo_headroom_ratio", bound) for bound in ("lower", "estimate", "upper")
        )
        assert lower is not None
        assert estimate is not None
        assert upper is not None
        widths.append(upper - lower)
        estimates.append(estimate)
    alone, agreeing, _ = widths
    assert agreeing < 0.98 * alone
    assert estimates[0] == pytest.approx(estimates[1])
    assert estimates[0] < estimates[2] < 1 - 4 / 16


def test_an_slo_without_enough_data_leaves_only_an_upper_bound_of_the_headroom() -> None:
    """It may be missed at a lower rate; the headroom is at most that of the other one."""
    shown = Shown()
    shown.demand.show_capacity((FOUND, Capacity("tpot", "not_enough_data")))
    for second in range(0, 121, 60):
        shown.read(second, 3.0 * second, 1_500.0 * second)
    assert shown.value("llmslo_headroom_ratio", "upper") == pytest.approx(1 - 3 / 12.5)
    assert shown.value("llmslo_addable_requests_per_second", "upper") == pytest.approx(9.5)
    for bound in ("lower", "estimate"):
        assert shown.value("llmslo_headroom_ratio", bound) is None
        assert shown.value("llmslo_addable_requests_per_second", bound) is None
    assert shown.value("llmslo_capacity_requests_per_second", "ttft", "estimate") == 10.0
    assert shown.value("llmslo_capacity_requests_per_second", "tpot", "estimate") is None
    assert shown.unknown() == ["only_bound"]


def test_what_cannot_be_known_has_no_headroom_and_says_why() -> None:
    """A page without tokens; a sweep that did not see what others sent; a rate that held, which is no capacity."""
    unseen = replace(FOUND, mix=None)
    held = replace(FOUND, verdict="not_reached", lower=50.0, estimate=None, upper=None)
    for capacity, tokens, why in (
        (FOUND, None, "no_tokens"),
        (unseen, 200_000, "others_unseen"),
        (held, 200_000, "no_capacity"),
    ):
        shown = Shown()
        shown.read(0.0, 0, None if tokens is None else 0)
        shown.read(100.0, 400, tokens)
        shown.demand.show_capacity([capacity])
        assert shown.value("llmslo_capacity_requests_per_second", "ttft", "lower") == capacity.lower
        assert not shown.families["llmslo_headroom_ratio"].children
        assert not shown.families["llmslo_addable_requests_per_second"].children
        assert shown.unknown() == [why]


def test_one_reason_says_why_there_is_no_headroom_at_each_moment() -> None:
    """From the start until a figure is known, and again once it is gone; a target without `sweep` has no reason."""
    shown = Shown()
    assert shown.unknown() == ["starting"], "the store is not read yet"
    shown.demand.show_capacity(())
    assert shown.unknown() == ["no_capacity"]
    shown.demand.sweep_began()
    shown.demand.show_capacity([FOUND])
    assert shown.unknown() == ["sweep_runs"]
    shown.demand.sweep_ended()
    for at_s in range(0, 100, 30):
        shown.read(float(at_s), 4.0 * at_s, 2_000.0 * at_s)
    assert shown.unknown() == []
    shown.demand.page_read(None)
    assert shown.unknown() == ["demand_unknown"]
    shown.demand.show_capacity((), why_none="engine_changed")
    assert shown.unknown() == ["engine_changed"]
    shown.reconfigure(sweep=None)
    assert shown.unknown() == []


def test_requests_of_which_none_has_ended_have_no_known_size() -> None:
    """The page counts tokens, so that it is not at fault."""
    shown = Shown()
    shown.demand.show_capacity([FOUND])
    for at_s in (0.0, 100.0):
        shown.clock.now_s = at_s
        signals = EngineSignals(
            EngineInfo("vllm"),
            requests_finished_total=0.0,
            requests_running=at_s / 10,
            prompt_tokens_total=4 * at_s,
            generation_tokens_total=at_s,
        )
        shown.demand.page_read(PageReading(round(at_s * 1e9), 0, signals))
    assert shown.unknown() == ["none_ended"]


def test_the_requests_of_a_sweep_are_not_demand() -> None:
    """While it runs the last demand is shown; after it the window goes on without the time of the sweep."""
    shown = Shown()
    shown.demand.show_capacity([FOUND])
    shown.read(0.0, 0, 0)
    shown.read(100.0, 400, 200_000)
    shown.demand.sweep_began()
    shown.read(110.0, 900, 500_000)
    assert shown.value("llmslo_demand_requests_per_second") == 4
    shown.demand.sweep_ended()
    shown.read(150.0, 2_000, 900_000)
    assert shown.value("llmslo_demand_requests_per_second") == 4
    shown.read(160.0, 2_020, 910_000)
    shown.read(220.0, 2_140, 970_000)
    assert shown.value("llmslo_demand_requests_per_second") == (400 + 120) / (100 + 60)


def test_a_growing_demand_is_forecast_to_reach_the_capacity() -> None:
    """After weeks, and over a restart; without growth there is no forecast."""
    for growth, has_forecast in ((100.0, True), (0.0, False)):
        shown = Shown()
        shown.clock.start_unix_s = 20_000.0 * DAY_S
        requests, at_s = 0.0, 0.0
        for hour in range(24 * 21):
            per_s = 1_000 + growth * (hour // 24) + 20 * (hour // 24 % 2)
            for _ in range(12):
                at_s += 300.0
                requests += 300.0 * per_s / 500
                shown.read(at_s, requests, 500 * requests)
        ((name, rows),) = shown.headroom.states()
        again = Shown({name: rows})
        again.clock.start_unix_s = 20_000.0 * DAY_S + at_s
        again.demand.show_capacity([FOUND])
        reached = again.value("llmslo_capacity_exhaustion_timestamp_seconds", "estimate")
        assert (reached is not None) is has_forecast
        if reached is not None:
            assert 15 * DAY_S < reached - again.clock.start_unix_s < 25 * DAY_S, "from 3,000 to 5,000 at 100 a day"


async def test_the_answer_of_a_query_takes_the_place_of_the_engines_counters() -> None:
    """Counters are not read; an unknown demand has no series, and is never 0; a short silence changes nothing. The size of the
    requests is then not known, and so no headroom."""
    shown = Shown(more="demand_query: users")
    shown.demand.show_capacity([FOUND])
    shown.answer(0.0, None)
    assert shown.value("llmslo_demand_requests_per_second") is None
    assert shown.value("llmslo_headroom_ratio", "estimate") is None
    shown.answer(30.0, 4.0)
    shown.read(40.0, 0, 0)
    shown.read(140.0, 900, 900_000)
    shown.answer(150.0, None)
    assert shown.value("llmslo_demand_requests_per_second") == 4
    assert shown.value("llmslo_demand_tokens_per_second") is None
    assert shown.value("llmslo_headroom_ratio", "estimate") is None
    assert shown.unknown() == ["query_without_tokens"]
    shown.answer(331.0, None)
    assert shown.value("llmslo_demand_requests_per_second") is None
    assert shown.value("llmslo_headroom_ratio", "estimate") is None
    shown.reconfigure(sweep=None)
    shown.read(400.0, 0, 0)
    shown.read(500.0, 200, 100_000)
    assert shown.value("llmslo_demand_requests_per_second") == 2


async def test_answers_during_a_sweep_and_soon_after_may_count_the_sweep() -> None:
    """The demand of before it stands, for as long as a range of five minutes looks back."""
    shown = Shown(more="demand_query: users")
    shown.answer(0.0, 4.0)
    shown.demand.sweep_began()
    shown.answer(30.0, 50.0)
    shown.demand.sweep_ended()
    shown.answer(60.0, 50.0)
    shown.answer(359.0, 9.0)
    assert shown.value("llmslo_demand_requests_per_second") == 4
    shown.answer(360.0, 5.0)
    assert shown.value("llmslo_demand_requests_per_second") == 5
    shown.observed.removed()


def test_a_minute_of_readings_is_the_least_that_a_rate_is_stated_for() -> None:
    """One request more or less is then little; below it nothing is known."""
    shown = Shown()
    shown.demand.show_capacity([FOUND])
    for at_s in range(0, 60, 5):
        shown.read(float(at_s), 4 * at_s, 2_000 * at_s)
        assert shown.value("llmslo_demand_requests_per_second") is None
        assert shown.value("llmslo_headroom_ratio", "estimate") is None
    shown.read(60.0, 240, 120_000)
    assert shown.value("llmslo_demand_requests_per_second") == 4


def test_a_counter_that_falls_unrecognised_is_no_demand_of_0() -> None:
    """The readings before it are another process's: nothing is known for a minute, and never is the difference taken for 0."""
    shown = Shown()
    shown.demand.show_capacity([FOUND])
    for at_s in range(0, 105, 5):
        shown.read(float(at_s), 10_000 + 4 * at_s, None)
    assert shown.value("llmslo_demand_requests_per_second") == 4
    for at_s in range(0, 60, 5):
        shown.read(105.0 + at_s, 4 * at_s, None)
        assert shown.value("llmslo_demand_requests_per_second") is None
        assert shown.value("llmslo_headroom_ratio", "estimate") is None
    shown.read(165.0, 240, None)
    assert shown.value("llmslo_demand_requests_per_second") == 4


def test_the_time_over_a_restart_is_left_out() -> None:
    """A restart of a page long known changes nothing, unless nothing was read for five minutes; one of a page just known leaves too
    little."""
    for before_s, down_s, known in ((200, 5.0, True), (50, 5.0, False), (200, 60.0, True), (200, 310.0, False)):
        shown = Shown()
        for at_s in range(0, before_s, 5):
            shown.read(float(at_s), 4 * at_s, None)
        begun_s = before_s + down_s
        shown.epoch += 1
        shown.read(begun_s, 4 * before_s, None)
        shown.epoch += 1
        shown.read(begun_s + 5, 4 * before_s + 12, None)
        shown.read(begun_s + 10, 4 * before_s + 32, None)
        assert shown.value("llmslo_demand_requests_per_second") == (4 if known else None)


def test_requests_are_not_stated_without_the_tokens_that_the_page_counts() -> None:
    """Nor is their shape."""
    shown = Shown()
    shown.demand.show_capacity([FOUND])
    for at_s in range(0, 120, 10):
        shown.read(float(at_s), 4 * at_s, None if at_s < 40 else 4_000 * at_s)
        if 40 <= at_s < 100:
            assert shown.value("llmslo_headroom_ratio", "estimate") is None
    assert shown.value("llmslo_headroom_ratio", "estimate") == pytest.approx(1 - 0.8, abs=0.03)


def test_the_demand_before_a_sweep_is_shown_until_there_is_a_newer_one_and_not_for_ever() -> None:
    """Not where it was unknown before; not beyond the page; not for more than five minutes; nor again at the next sweep."""
    shown = Shown()
    shown.demand.sweep_began()
    shown.demand.sweep_ended()
    shown.read(0.0, 0, None)
    assert shown.value("llmslo_demand_requests_per_second") is None

    for lost in (True, False):
        shown = Shown()
        for at_s in range(0, 105, 5):
            shown.read(float(at_s), 4 * at_s, None)
        shown.demand.sweep_began()
        shown.demand.page_read(None)
        shown.demand.sweep_ended()
        shown.read(150.0, 900, None)
        assert shown.value("llmslo_demand_requests_per_second") == 4
        if lost:
            shown.demand.page_read(None)
        else:
            for at_s in range(155, 450, 5):
                shown.epoch += 1
                shown.read(float(at_s), 900, None)
                assert shown.value("llmslo_demand_requests_per_second") == 4
            shown.read(450.0, 900, None)
        assert shown.value("llmslo_demand_requests_per_second") is None
        shown.demand.sweep_began()
        shown.demand.sweep_ended()
        assert shown.demand.demand.requests_per_s is None


def test_the_demand_before_a_sweep_does_not_return_after_a_newer_one() -> None:
    """Not even when the newer one is lost."""
    shown = Shown()
    for at_s in range(0, 105, 5):
        shown.read(float(at_s), 4 * at_s, None)
    shown.demand.sweep_began()
    shown.demand.sweep_ended()
    for at_s in range(110, 185, 5):
        shown.read(float(at_s), 9_000 + 2 * at_s, None)
    assert shown.value("llmslo_demand_requests_per_second") == pytest.approx((400 + 120) / (100 + 60))
    shown.read(185.0, 0, None)
    assert shown.value("llmslo_demand_requests_per_second") is None


def test_requests_of_a_sweep_that_the_engine_counts_late_are_no_demand() -> None:
    """Of 400 that were cut when it ended, the engine notices some seconds later."""
    shown = Shown()
    for at_s in range(0, 105, 5):
        shown.read(float(at_s), 4 * at_s, None)
    shown.demand.sweep_began()
    shown.demand.sweep_ended()
    for at_s in range(205, 600, 5):
        late = 0 if at_s < 208 else 400
        shown.read(float(at_s), 9_000 + 4 * at_s + late, None)
        assert shown.value("llmslo_demand_requests_per_second") == 4


def test_sweeps_without_a_pause_leave_no_demand_of_long_ago() -> None:
    """What was measured before a sweep stands for that sweep only."""
    shown = Shown()
    for at_s in range(0, 105, 5):
        shown.read(float(at_s), 4 * at_s, None)
    for begun_s in (105.0, 400.0, 700.0):
        shown.demand.sweep_began()
        shown.demand.sweep_ended()
        shown.read(begun_s + 250, 9_000, None)
        assert shown.value("llmslo_demand_requests_per_second") == (4 if begun_s == 105.0 else None)


def test_a_sweep_that_ends_after_its_target_is_gone_brings_no_series_back() -> None:
    """A new target of that name starts without a demand."""
    shown = Shown()
    shown.demand.sweep_began()
    gone = shown.demand
    shown.observed.removed()
    shown.families.remove("t")
    gone.sweep_ended()
    assert not [name for name, family in shown.families.items() if family.of("t")]
    shown.observe()
    assert shown.demand.demand.requests_per_s is None
    shown.read(0.0, 0, None)
    shown.read(100.0, 400, None)
    assert shown.value("llmslo_demand_requests_per_second") == 4


def test_the_capacity_of_another_url_gives_no_headroom() -> None:
    """After a change of the target the capacity is unknown until the results of earlier sweeps at its URL were read."""
    shown = Shown()
    shown.demand.show_capacity([FOUND])
    shown.read(0.0, 0, 0)
    shown.read(100.0, 400, 200_000)
    shown.reconfigure(url="http://127.0.0.1:2")
    for name in ("llmslo_headroom_ratio", "llmslo_capacity_requests_per_second", "llmslo_addable_requests_per_second"):
        assert not shown.families[name].children


async def test_another_page_does_not_change_the_answer_of_a_query() -> None:
    """Nor does a page that cannot be read: Prometheus counts the demand."""
    shown = Shown(more="demand_query: users")
    shown.answer(0.0, 4.0)
    shown.demand.page_read(None)
    shown.read(10.0, None, 5.0)
    assert shown.value("llmslo_demand_requests_per_second") == 4
    shown.reconfigure(sweep=None)
    assert shown.value("llmslo_demand_requests_per_second") is None, "and nothing is known at once without the query"


async def test_the_answer_of_another_query_is_not_the_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed `demand_query` without an answer leaves the demand unknown."""

    async def instant(_: str, query: str) -> float:
        if query == "old":
            return 4.0
        raise QueryFailed("nobody is there")

    monkeypatch.setattr("prober.features.capacity.headroom.instant", instant)
    async with running(SLOTS) as url, staged(url, "demand_query: old", prometheus="http://127.0.0.1:1") as stage:
        await until(lambda: stage.value("llmslo_demand_requests_per_second") == 4)
        assert stage.target.spec.sweep is not None
        sweep = stage.target.spec.sweep.model_copy(update={"demand_query": "new"})
        stage.reconfigure(stage.target.spec.model_copy(update={"sweep": sweep}))
        assert stage.demand.demand.requests_per_s is None
        assert "llmslo_demand_requests_per_second" not in dict(stage.left())
