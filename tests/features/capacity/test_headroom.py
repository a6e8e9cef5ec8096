"""What is left of a capacity, by the newest demand."""

from prober.daemon.registry import registry
from prober.exposition.families import Value
from prober.features.capacity.headroom import Headroom
from prober.measure.engine_signals import EngineInfo, EngineSignals, PageReading
from prober.results.capacity import Capacity

FOUND = Capacity("ttft", "found", lower=8.0, estimate=10.0, upper=12.0, tokens_per_s=5_000.0)


class Shown:
    def __init__(self, kept: dict[str, bytes] | None = None) -> None:
        self.families = registry()
        self.headroom = Headroom(self.families, kept or {})
        self.epoch = 0

    def read(self, at_s: float, requests: float, tokens: float | None) -> None:
        said = EngineSignals(
            EngineInfo("vllm"),
            requests_finished_total=requests,
            prompt_tokens_total=tokens,
            generation_tokens_total=None if tokens is None else 0.0,
        )
        self.headroom.reading("t", PageReading(round(at_s * 1e9), self.epoch, said), 1e9 + at_s)

    def value(self, name: str, *labels: str) -> float | None:
        child = self.families[name].children.get(("t", *labels))
        return child.value if isinstance(child, Value) else None


def test_headroom_follows_the_demand() -> None:
    """In requests and tokens, with the capacity's interval; over the last five minutes only."""
    shown = Shown()
    shown.headroom.found("t", [FOUND], 1e9)
    assert shown.value("llmslo_headroom_ratio", "requests", "estimate") is None, "nothing is known of the demand"
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
    shown.headroom.found("t", [FOUND], 1e9)
    shown.read(0.0, 0, 0)
    shown.read(100.0, 200, 200_000)
    assert shown.value("llmslo_capacity_shape_ratio") == 0.5
    assert shown.value("llmslo_headroom_ratio", "requests", "estimate") == 0.6
    assert shown.value("llmslo_headroom_ratio", "tokens", "estimate") == 0.6
    assert shown.value("llmslo_capacity_requests_per_second", "ttft", "estimate") == 10, "the sweep's own answer stays"


def test_the_slo_that_binds_counts_and_another_answer_takes_its_place() -> None:
    """What the last sweep did not say has no series left of the one before."""
    shown = Shown()
    shown.read(0.0, 0, None)
    shown.read(100.0, 400, None)
    tpot = Capacity("tpot", "found", lower=15.0, estimate=20.0, upper=25.0)
    shown.headroom.found("t", [FOUND, tpot], 1e9)
    assert shown.value("llmslo_headroom_ratio", "requests", "estimate") == 0.6
    shown.headroom.found("t", [tpot], 1e9)
    assert shown.value("llmslo_headroom_ratio", "requests", "estimate") == 0.8
    assert shown.value("llmslo_capacity_requests_per_second", "ttft", "estimate") is None
    assert shown.value("llmslo_headroom_ratio", "tokens", "estimate") is None, "its tokens are not known"


def test_what_was_not_reached_gives_no_headroom() -> None:
    """A rate that held is not a capacity: how much more there is nobody knows."""
    shown = Shown()
    shown.read(0.0, 0, None)
    shown.read(100.0, 400, None)
    shown.headroom.found("t", [Capacity("ttft", "not_reached", lower=50.0)], 1e9)
    assert shown.value("llmslo_capacity_requests_per_second", "ttft", "lower") == 50
    assert shown.value("llmslo_headroom_ratio", "requests", "lower") is None


def test_what_a_sweep_adds_is_nobodys_demand() -> None:
    """While it runs the last demand stands; after it a new window begins."""
    shown = Shown()
    shown.headroom.found("t", [FOUND], 1e9)
    shown.read(0.0, 0, 0)
    shown.read(100.0, 400, 200_000)
    shown.headroom.sweeping("t", begins=True)
    shown.read(110.0, 900, 500_000)
    assert shown.value("llmslo_demand_requests_per_second") == 4
    shown.headroom.sweeping("t", begins=False)
    shown.read(150.0, 2_000, 900_000)
    assert shown.value("llmslo_demand_requests_per_second") == 4
    shown.read(210.0, 2_120, 960_000)
    assert shown.value("llmslo_demand_requests_per_second") == 2


def test_growing_demand_is_seen_to_reach_the_capacity() -> None:
    """After weeks of it, over a restart; without growth nothing is foreseen."""
    day = 86_400
    for growth, foreseen in ((100.0, True), (0.0, False)):
        shown = Shown()
        total, at = 0.0, 0.0
        for hour in range(24 * 21):
            per_s = 1_000 + growth * (hour // 24) + 20 * (hour // 24 % 2)
            for _ in range(12):
                at += 300.0
                total += 300.0 * per_s
                shown.headroom.reading("t", PageReading(round(at * 1e9), 0, tokens(total)), 20_000 * day + at)
        ((name, rows),) = shown.headroom.states()
        again = Shown({name: rows})
        again.headroom.found("t", [FOUND], 20_000 * day + at)
        reached = again.value("llmslo_capacity_exhaustion_timestamp_seconds", "estimate")
        assert (reached is not None) is foreseen
        if reached is not None:
            assert 15 * day < reached - (20_000 * day + at) < 25 * day, "from 3,000 to 5,000 at 100 a day"


def test_a_demand_that_is_told_takes_the_place_of_the_engines_counters() -> None:
    """Counters are not looked at; not known is no series, and never 0; a short silence is no news."""
    shown = Shown()
    shown.headroom.found("t", [FOUND], 1e9)
    shown.headroom.queried("t", on=True)
    shown.headroom.told("t", 0.0, None, 1e9)
    assert shown.value("llmslo_demand_requests_per_second") is None
    assert shown.value("llmslo_headroom_ratio", "requests", "estimate") is None
    shown.headroom.told("t", 30.0, 4.0, 1e9 + 30)
    shown.read(40.0, 0, 0)
    shown.read(140.0, 900, 900_000)
    shown.headroom.told("t", 150.0, None, 1e9 + 150)
    assert shown.value("llmslo_demand_requests_per_second") == 4
    assert shown.value("llmslo_demand_tokens_per_second") is None
    assert shown.value("llmslo_headroom_ratio", "requests", "estimate") == 0.6
    shown.headroom.told("t", 331.0, None, 1e9 + 331)
    assert shown.value("llmslo_demand_requests_per_second") is None
    assert shown.value("llmslo_headroom_ratio", "requests", "estimate") is None
    shown.headroom.queried("t", on=False)
    shown.read(400.0, 0, 0)
    shown.read(500.0, 200, 100_000)
    assert shown.value("llmslo_demand_requests_per_second") == 2


def test_what_is_told_during_a_sweep_and_soon_after_may_be_the_sweeps_own() -> None:
    """The demand of before it stands, for as long as a range of five minutes looks back."""
    shown = Shown()
    shown.headroom.queried("t", on=True)
    shown.headroom.told("t", 0.0, 4.0, 1e9)
    shown.headroom.sweeping("t", begins=True)
    shown.headroom.told("t", 30.0, 50.0, 1e9)
    shown.headroom.sweeping("t", begins=False)
    shown.headroom.told("t", 60.0, 50.0, 1e9)
    shown.headroom.told("t", 359.0, 9.0, 1e9)
    assert shown.value("llmslo_demand_requests_per_second") == 4
    shown.headroom.told("t", 360.0, 5.0, 1e9)
    assert shown.value("llmslo_demand_requests_per_second") == 5


def test_a_minute_of_readings_is_the_least_that_a_rate_is_stated_for() -> None:
    """One request more or less is then little; below it nothing is known."""
    shown = Shown()
    shown.headroom.found("t", [FOUND], 1e9)
    for at_s in range(0, 60, 5):
        shown.read(float(at_s), 4 * at_s, 2_000 * at_s)
        assert shown.value("llmslo_demand_requests_per_second") is None
        assert shown.value("llmslo_headroom_ratio", "requests", "estimate") is None
    shown.read(60.0, 240, 120_000)
    assert shown.value("llmslo_demand_requests_per_second") == 4


def test_a_counter_that_falls_unrecognised_is_no_demand_of_0() -> None:
    """The readings before it are another process's: nothing is known for a minute, and never is the difference taken for 0."""
    shown = Shown()
    shown.headroom.found("t", [FOUND], 1e9)
    for at_s in range(0, 105, 5):
        shown.read(float(at_s), 10_000 + 4 * at_s, None)
    assert shown.value("llmslo_demand_requests_per_second") == 4
    for at_s in range(0, 60, 5):
        shown.read(105.0 + at_s, 4 * at_s, None)
        assert shown.value("llmslo_demand_requests_per_second") is None
        assert shown.value("llmslo_headroom_ratio", "requests", "estimate") is None
    shown.read(165.0, 240, None)
    assert shown.value("llmslo_demand_requests_per_second") == 4


def test_what_lies_over_a_restart_is_left_out() -> None:
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
    shown.headroom.found("t", [FOUND], 1e9)
    for at_s in range(0, 120, 10):
        shown.read(float(at_s), 4 * at_s, None if at_s < 40 else 8_000 * at_s)
        if 40 <= at_s < 100:
            assert shown.value("llmslo_headroom_ratio", "requests", "estimate") is None
            assert shown.value("llmslo_capacity_shape_ratio") is None
    assert shown.value("llmslo_headroom_ratio", "requests", "estimate") == 1 - 4 / 2.5
    assert shown.value("llmslo_capacity_shape_ratio") == 0.25


def test_the_demand_of_before_a_sweep_stands_until_there_is_another_and_not_for_ever() -> None:
    """Not where it was unknown before; not beyond the page; not for more than five minutes; nor again at the next sweep."""
    shown = Shown()
    shown.headroom.sweeping("t", begins=True)
    shown.headroom.sweeping("t", begins=False)
    shown.read(0.0, 0, None)
    assert shown.value("llmslo_demand_requests_per_second") is None

    for lost in (True, False):
        shown = Shown()
        for at_s in range(0, 105, 5):
            shown.read(float(at_s), 4 * at_s, None)
        shown.headroom.sweeping("t", begins=True)
        shown.headroom.page_lost("t")
        shown.headroom.sweeping("t", begins=False)
        shown.read(150.0, 900, None)
        assert shown.value("llmslo_demand_requests_per_second") == 4
        if lost:
            shown.headroom.page_lost("t")
        else:
            for at_s in range(155, 450, 5):
                shown.epoch += 1
                shown.read(float(at_s), 900, None)
                assert shown.value("llmslo_demand_requests_per_second") == 4
            shown.read(450.0, 900, None)
        assert shown.value("llmslo_demand_requests_per_second") is None
        shown.headroom.sweeping("t", begins=True)
        shown.headroom.sweeping("t", begins=False)
        assert shown.headroom.demand("t").requests_per_s is None


def test_the_demand_of_before_a_sweep_is_over_once_there_is_another() -> None:
    """It does not come back when that one is lost."""
    shown = Shown()
    for at_s in range(0, 105, 5):
        shown.read(float(at_s), 4 * at_s, None)
    shown.headroom.sweeping("t", begins=True)
    shown.headroom.sweeping("t", begins=False)
    for at_s in range(110, 175, 5):
        shown.read(float(at_s), 9_000 + 2 * at_s, None)
    assert shown.value("llmslo_demand_requests_per_second") == 2
    shown.read(175.0, 0, None)
    assert shown.value("llmslo_demand_requests_per_second") is None


def test_a_sweep_that_ends_after_its_target_is_gone_brings_nothing_back() -> None:
    """No load of a target that is none, and none of its peaks."""
    shown = Shown()
    shown.headroom.sweeping("t", begins=True)
    shown.headroom.remove("t")
    shown.headroom.sweeping("t", begins=False)
    assert shown.headroom.demand("t").requests_per_s is None
    shown.read(0.0, 0, None)
    shown.read(100.0, 400, None)
    assert shown.value("llmslo_demand_requests_per_second") == 4


def test_another_page_takes_nothing_from_a_demand_that_is_told() -> None:
    """Nor does a page that cannot be read: somebody else counts it."""
    shown = Shown()
    shown.headroom.queried("t", on=True)
    shown.headroom.told("t", 0.0, 4.0, 1e9)
    shown.headroom.page_lost("t")
    shown.headroom.forget_demand("t")
    shown.headroom.reading("t", PageReading(10**10, 0, tokens(5.0)), 1e9)
    assert shown.value("llmslo_demand_requests_per_second") == 4
    shown.headroom.queried("t", on=False)
    assert shown.value("llmslo_demand_requests_per_second") is None, "and at once when nobody tells it any more"


def tokens(total: float) -> EngineSignals:
    return EngineSignals(EngineInfo("vllm"), prompt_tokens_total=total, generation_tokens_total=0.0)
