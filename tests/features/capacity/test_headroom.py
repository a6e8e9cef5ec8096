"""What is left of a capacity, by the newest demand."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from prober.daemon.registry import registry
from prober.exposition.families import Value
from prober.features.capacity.headroom import Headroom, TargetDemand
from prober.measure.engine_signals import EngineInfo, EngineSignals, PageReading
from prober.mock.server import running
from prober.net.prometheus import QueryFailed
from prober.probing.observer import ObservedTarget
from prober.probing.target import Target
from prober.results.capacity import Capacity
from prober.storage.saved_rows import SavedRows
from tests.features.capacity.stage import SLOTS, staged, target_spec, until

FOUND = Capacity("ttft", "found", lower=8.0, estimate=10.0, upper=12.0, tokens_per_s=5_000.0)
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

    def __init__(self, saved: dict[str, bytes] | None = None, more: str = "") -> None:
        self.families, self.clock = registry(), HandClock()
        self.headroom = Headroom(self.families, SavedRows(saved or {}))
        self.spec = target_spec("http://127.0.0.1:1", more)
        self.observe()
        self.epoch = 0

    def observe(self) -> None:
        """As the fleet begins a target."""
        target = cast(Target, SimpleNamespace(spec=self.spec, clock=self.clock))
        self.observed = ObservedTarget("t", target, (self.headroom,))
        demand = self.observed.find(TargetDemand)
        assert demand is not None
        self.demand = demand

    def reconfigure(self, **changes: Any) -> None:
        """As a reload does."""
        self.spec = self.spec.model_copy(update=changes)
        self.observed.retarget(cast(Target, SimpleNamespace(spec=self.spec, clock=self.clock)))

    def read(self, at_s: float, requests: float | None, tokens: float | None) -> None:
        """The engine's page is read."""
        self.clock.now_s = at_s
        signals = EngineSignals(
            EngineInfo("vllm"),
            requests_finished_total=requests,
            prompt_tokens_total=tokens,
            generation_tokens_total=None if tokens is None else 0.0,
        )
        self.demand.page_read(PageReading(round(at_s * 1e9), self.epoch, signals))

    def answer(self, at_s: float, requests_per_s: float | None) -> None:
        """Prometheus answers `demand_query`."""
        self.clock.now_s = at_s
        self.demand.query_answered(requests_per_s)

    def value(self, name: str, *labels: str) -> float | None:
        child = self.families[name].children.get(("t", *labels))
        return child.value if isinstance(child, Value) else None


def test_headroom_follows_the_demand() -> None:
    """In requests and tokens, with the capacity's interval; over the last five minutes only."""
    shown = Shown()
    shown.demand.show_capacity([FOUND])
    assert shown.value("llmslo_headroom_ratio", "requests", "estimate") is None, "the demand is unknown"
    shown.read(0.0, 0, 0)
    shown.read(100.0, 400, 200_000)
    assert shown.value("llmslo_demand_requests_per_second") == 4
    assert shown.value("llmslo_demand_tokens_per_second") == 2_000
    assert shown.value("llmslo_capacity_shape_ratio") == 1, "500 tokens a request in both"
    for bound, free in (("lower", 0.5), ("estimate", 0.6), ("upper", 1 - 4 / 12)):
        assert shown.value("llmslo_headroom_ratio", "requests", bound) == free
    assert shown.value("llmslo_headroom_ratio", "tokens", "estimate") == 0.6
    for at_s in range(200, 700, 100):
        shown.read(float(at_s), 400, 200_000)
    assert shown.value("llmslo_headroom_ratio", "requests", "estimate") == 1


def test_requests_are_corrected_for_their_size() -> None:
    """Production's requests of twice the tokens: half as many of them can be carried; tokens say the same by themselves."""
    shown = Shown()
    shown.demand.show_capacity([FOUND])
    shown.read(0.0, 0, 0)
    shown.read(100.0, 200, 200_000)
    assert shown.value("llmslo_capacity_shape_ratio") == 0.5
    assert shown.value("llmslo_headroom_ratio", "requests", "estimate") == 0.6
    assert shown.value("llmslo_headroom_ratio", "tokens", "estimate") == 0.6
    assert shown.value("llmslo_capacity_requests_per_second", "ttft", "estimate") == 10, "the sweep's own answer stays"


def test_the_binding_slo_counts_and_the_next_sweep_replaces_all_capacities() -> None:
    """No series of the sweep before is left."""
    shown = Shown()
    shown.read(0.0, 0, None)
    shown.read(100.0, 400, None)
    tpot = Capacity("tpot", "found", lower=15.0, estimate=20.0, upper=25.0)
    shown.demand.show_capacity([FOUND, tpot])
    assert shown.value("llmslo_headroom_ratio", "requests", "estimate") == 0.6
    shown.demand.show_capacity([tpot])
    assert shown.value("llmslo_headroom_ratio", "requests", "estimate") == 0.8
    assert shown.value("llmslo_capacity_requests_per_second", "ttft", "estimate") is None
    assert shown.value("llmslo_headroom_ratio", "tokens", "estimate") is None, "its tokens are not known"


def test_an_slo_without_enough_data_leaves_only_an_upper_bound_of_the_headroom() -> None:
    """It may be missed at a lower rate; the headroom is at most that of the other one."""
    shown = Shown()
    shown.demand.show_capacity((FOUND, Capacity("tpot", "not_enough_data")))
    for second in range(0, 121, 60):
        shown.read(second, 3.0 * second, 1_500.0 * second)
    assert shown.value("llmslo_headroom_ratio", "requests", "upper") == pytest.approx(1 - 3 / 12)
    assert shown.value("llmslo_headroom_ratio", "tokens", "upper") == pytest.approx(1 - 3 / 12)
    for bound in ("lower", "estimate"):
        assert shown.value("llmslo_headroom_ratio", "requests", bound) is None
        assert shown.value("llmslo_capacity_tokens_per_second", bound) is None
    assert shown.value("llmslo_capacity_requests_per_second", "ttft", "estimate") == 10.0
    assert shown.value("llmslo_capacity_requests_per_second", "tpot", "estimate") is None


def test_a_capacity_that_was_not_reached_gives_no_headroom() -> None:
    """A rate at which the SLO held is no capacity: how much more there is is not known."""
    shown = Shown()
    shown.read(0.0, 0, None)
    shown.read(100.0, 400, None)
    shown.demand.show_capacity([Capacity("ttft", "not_reached", lower=50.0)])
    assert shown.value("llmslo_capacity_requests_per_second", "ttft", "lower") == 50
    assert shown.value("llmslo_headroom_ratio", "requests", "lower") is None


def test_the_requests_of_a_sweep_are_not_demand() -> None:
    """While it runs the last demand is shown; after it a new window begins."""
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
    assert shown.value("llmslo_demand_requests_per_second") == 2


def test_a_growing_demand_is_forecast_to_reach_the_capacity() -> None:
    """After weeks, and over a restart; without growth there is no forecast."""
    for growth, has_forecast in ((100.0, True), (0.0, False)):
        shown = Shown()
        shown.clock.start_unix_s = 20_000.0 * DAY_S
        total, at_s = 0.0, 0.0
        for hour in range(24 * 21):
            per_s = 1_000 + growth * (hour // 24) + 20 * (hour // 24 % 2)
            for _ in range(12):
                at_s += 300.0
                total += 300.0 * per_s
                shown.read(at_s, None, total)
        ((name, rows),) = shown.headroom.states()
        again = Shown({name: rows})
        again.clock.start_unix_s = 20_000.0 * DAY_S + at_s
        again.demand.show_capacity([FOUND])
        reached = again.value("llmslo_capacity_exhaustion_timestamp_seconds", "estimate")
        assert (reached is not None) is has_forecast
        if reached is not None:
            assert 15 * DAY_S < reached - again.clock.start_unix_s < 25 * DAY_S, "from 3,000 to 5,000 at 100 a day"


async def test_the_answer_of_a_query_takes_the_place_of_the_engines_counters() -> None:
    """Counters are not read; an unknown demand has no series, and is never 0; a short silence changes nothing."""
    shown = Shown(more="demand_query: users")
    shown.demand.show_capacity([FOUND])
    shown.answer(0.0, None)
    assert shown.value("llmslo_demand_requests_per_second") is None
    assert shown.value("llmslo_headroom_ratio", "requests", "estimate") is None
    shown.answer(30.0, 4.0)
    shown.read(40.0, 0, 0)
    shown.read(140.0, 900, 900_000)
    shown.answer(150.0, None)
    assert shown.value("llmslo_demand_requests_per_second") == 4
    assert shown.value("llmslo_demand_tokens_per_second") is None
    assert shown.value("llmslo_headroom_ratio", "requests", "estimate") == 0.6
    shown.answer(331.0, None)
    assert shown.value("llmslo_demand_requests_per_second") is None
    assert shown.value("llmslo_headroom_ratio", "requests", "estimate") is None
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
        assert shown.value("llmslo_headroom_ratio", "requests", "estimate") is None
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
        assert shown.value("llmslo_headroom_ratio", "requests", "estimate") is None
    shown.read(165.0, 240, None)
    assert shown.value("llmslo_demand_requests_per_second") == 4


def test_the_time_over_a_restart_is_left_out() -> None:
    """A short restart of a page long known changes nothing; one of a page just known, or a long one, leaves too little."""
    for before_s, down_s, known in ((200, 5.0, True), (50, 5.0, False), (200, 60.0, False)):
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
    """They would be taken for requests of the sweep's size; the shape is not known either."""
    shown = Shown()
    shown.demand.show_capacity([FOUND])
    for at_s in range(0, 120, 10):
        shown.read(float(at_s), 4 * at_s, None if at_s < 40 else 8_000 * at_s)
        if 40 <= at_s < 100:
            assert shown.value("llmslo_headroom_ratio", "requests", "estimate") is None
            assert shown.value("llmslo_capacity_shape_ratio") is None
    assert shown.value("llmslo_headroom_ratio", "requests", "estimate") == 1 - 4 / 2.5
    assert shown.value("llmslo_capacity_shape_ratio") == 0.25


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
    assert shown.value("llmslo_demand_requests_per_second") == 2
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
    gone.show_capacity([FOUND])
    assert not [name for name, family in shown.families.items() if family.of("t")]
    shown.observe()
    assert shown.demand.demand.requests_per_s is None
    shown.read(0.0, 0, None)
    shown.read(100.0, 400, None)
    assert shown.value("llmslo_demand_requests_per_second") == 4


def test_the_capacity_of_another_url_gives_no_headroom() -> None:
    """After a change of the target's URL the capacity is unknown until a sweep finds it; the demand goes on."""
    shown = Shown()
    shown.demand.show_capacity([FOUND])
    shown.read(0.0, 0, 0)
    shown.read(100.0, 400, 200_000)
    shown.reconfigure(max_in_flight=7)
    assert shown.value("llmslo_headroom_ratio", "requests", "estimate") == 0.6
    shown.reconfigure(url="http://127.0.0.1:2")
    for name in ("llmslo_headroom_ratio", "llmslo_capacity_requests_per_second", "llmslo_capacity_tokens_per_second"):
        assert not shown.families[name].children
    assert shown.value("llmslo_demand_requests_per_second") == 4
    shown.demand.show_capacity([FOUND])
    assert shown.value("llmslo_headroom_ratio", "requests", "estimate") == 0.6


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://127.0.0.1:2"])
def test_a_target_that_takes_over_a_name_goes_on_with_demand_and_capacity(url: str) -> None:
    """At the same URL; the target that still ends changes nothing any more, and takes nothing along when it goes."""
    shown = Shown()
    shown.demand.show_capacity([FOUND])
    shown.read(0.0, 0, 0)
    shown.read(100.0, 400, 200_000)
    before, demand = shown.observed, shown.demand
    is_same = url == shown.spec.url
    shown.spec = shown.spec.model_copy(update={"url": url})
    shown.observe()
    demand.page_read(PageReading(10**11, 0, EngineSignals(EngineInfo("vllm"), requests_finished_total=9e9)))
    before.removed()
    assert shown.value("llmslo_headroom_ratio", "requests", "estimate") == (0.6 if is_same else None)
    assert shown.value("llmslo_demand_requests_per_second") == (4 if is_same else None)


async def test_another_page_does_not_change_the_answer_of_a_query() -> None:
    """Nor does a page that cannot be read: Prometheus counts the demand."""
    shown = Shown(more="demand_query: users")
    shown.answer(0.0, 4.0)
    shown.demand.page_read(None)
    shown.demand.page_changed()
    shown.read(10.0, None, 5.0)
    assert shown.value("llmslo_demand_requests_per_second") == 4
    shown.reconfigure(sweep=None)
    assert shown.value("llmslo_demand_requests_per_second") is None, "and nothing is known at once without the query"


async def test_the_answer_of_another_query_is_not_the_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed `demand_query` without an answer leaves the demand unknown; an unchanged one leaves it as it is."""

    async def instant(_: str, query: str) -> float:
        if query == "old":
            return 4.0
        raise QueryFailed("nobody is there")

    monkeypatch.setattr("prober.features.capacity.demand_query.instant", instant)
    async with running(SLOTS) as url, staged(url, "demand_query: old", prometheus="http://127.0.0.1:1") as stage:
        await until(lambda: stage.value("llmslo_demand_requests_per_second") == 4)
        stage.observed.retarget(stage.target)
        assert stage.demand.demand.requests_per_s == 4
        assert stage.target.spec.sweep is not None
        sweep = stage.target.spec.sweep.model_copy(update={"demand_query": "new"})
        stage.target.spec = stage.target.spec.model_copy(update={"sweep": sweep})
        stage.observed.retarget(stage.target)
        assert stage.demand.demand.requests_per_s is None
        assert "llmslo_demand_requests_per_second" not in dict(stage.left())
