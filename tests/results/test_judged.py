"""What is made of a result: the checklist, the size of a deployment."""

import re
from dataclasses import replace

import pytest

from prober.features.experiments.audit import audit
from prober.features.experiments.instance_sizing import Demand, Refused, Size, size
from prober.results.capacity import Capacity, UndecidedEvents
from prober.results.facts import Context
from prober.results.result import Load, MeasuredTarget, Result, Stage, WarmUp
from prober.statistics.quantiles import Quantile
from tests.known import known
from tests.results.samples import TTFT, sweep


def stage(events: int, bad: int) -> Stage:
    return Stage("s", 1.0, 0.0, 1.0, 1.0, events, events - bad, slos={"ttft": (events, bad)})


def ended(ok: int, **outcomes: int) -> Stage:
    """A stage whose requests ended so."""
    sent = ok + sum(outcomes.values())
    return replace(stage(sent, sent - ok), outcomes={"ok": ok, **outcomes})


def done(result: Result) -> dict[str, bool | None]:
    return {each.name: each.done for each in audit(result)}


def test_the_checklist_of_a_sweep() -> None:
    """In its order; 120 requests are too few for a tail, and of its stages of 120, 30 and 7.5 s one is long enough."""
    assert done(sweep()) == {
        "warm-up": True,
        "steady after warm-up": None,
        "open loop": True,
        "tails": False,
        "realistic lengths": True,
        "several rates": True,
        "duration": False,
        "hardware": True,
        "precision": True,
        "batch": True,
        "both phases": True,
        "quality": False,
        "rejects": True,
        "single tenant": True,
    }


def test_the_checklist_of_a_result_that_knows_nothing() -> None:
    """Nothing is claimed: what is not told is unknown or not done."""
    found = done(Result("x", "run", 0.0, 0.0, "t", MeasuredTarget(), Load(), ()))
    assert found["open loop"] is None
    assert found["realistic lengths"] is None
    assert True not in found.values()


def thousand(latency: str) -> dict[str, tuple[Quantile, ...]]:
    return {latency: (Quantile(0.5, 0.1, None, None, 1000), Quantile(0.99, 0.2, None, None, 1000))}


def apart(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """Each of another shape."""
    return tuple(replace(each, load=Load(f"row {number}")) for number, each in enumerate(stages))


def slow(stage: Stage, answer_s: float) -> Stage:
    """The median answer takes so long."""
    return replace(stage, latencies=dict(stage.latencies) | {"e2e": (Quantile(0.5, answer_s, None, None, 120),)})


def steady(low: float, high: float, *, is_steady: bool) -> Result:
    """The last test of the warm-up showed this change of TTFT."""
    return replace(sweep(), warm_up=WarmUp(50, 9.0, is_steady, {"TTFT": (low, high)}))


WARM_UP = (replace(sweep().requests[0], warm_up=True),)


@pytest.mark.parametrize(
    ("name", "result", "expected"),
    [
        ("warm-up", replace(sweep(), warm_up=None), None),
        ("warm-up", replace(sweep(), warm_up=WarmUp(0)), False),
        ("warm-up", replace(sweep(), warm_up=WarmUp(3, 2.0)), False),
        ("warm-up", replace(sweep(), warm_up=WarmUp(2, 21.0)), True),
        ("warm-up", replace(sweep(), warm_up=None, stages=(replace(sweep().stages[0], requests=WARM_UP),)), True),
        ("warm-up", replace(sweep(), warm_up=WarmUp(5, 2.0, is_steady=True)), True),
        ("steady after warm-up", replace(sweep(), warm_up=None), None),
        ("steady after warm-up", steady(-0.1, 0.1, is_steady=True), True),
        ("steady after warm-up", steady(-0.3, 0.1, is_steady=False), None),
        ("steady after warm-up", steady(-0.3, -0.1, is_steady=False), False),
        ("open loop", replace(sweep(), load=Load(arrivals="closed")), False),
        ("tails", replace(sweep(), stages=(replace(stage(1, 0), latencies=thousand("ttft")),)), True),
        ("realistic lengths", replace(sweep(), load=Load(varied=False)), False),
        ("several rates", replace(sweep(), stages=sweep().stages[:2]), False),
        ("several rates", replace(sweep(), stages=apart(sweep().stages)), False),
        ("duration", replace(sweep(), stages=sweep().stages[:1]), True),
        ("duration", replace(sweep(), stages=sweep().stages[:2]), False),
        ("duration", replace(sweep(), stages=(replace(sweep().stages[0], sending_s=30.0),)), False),  # then it waited
        ("duration", replace(sweep(), stages=(slow(sweep().stages[0], 13.0),)), False),  # ten answers take 130 s
        ("duration", replace(sweep(), stages=(slow(sweep().stages[0], 11.0),)), True),
        ("duration", replace(sweep(), stages=(*sweep().stages[:1], replace(sweep().stages[1], latencies={}))), True),
        ("duration", replace(sweep(), stages=(replace(stage(1, 0), duration_s=None),)), None),
        ("hardware", replace(sweep(), context=Context(gpu="L4")), False),
        ("precision", replace(sweep(), context=Context(quantization="awq, group size 128")), True),
        ("precision", replace(sweep(), context=Context()), False),
        ("batch", replace(sweep(), stages=(*sweep().stages, stage(1, 0))), False),
        ("both phases", replace(sweep(), stages=(replace(stage(1, 0), latencies=thousand("ttft")),)), False),
        ("both phases", replace(sweep(), stages=(replace(stage(1, 0), latencies=thousand("tpot")),)), False),
        ("both phases", replace(sweep(), stages=(stage(1, 0),)), False),
        ("quality", replace(sweep(), stages=(replace(sweep().stages[0], quality=(3, 3)), sweep().stages[1])), True),
        ("quality", replace(sweep(), stages=(replace(sweep().stages[0], quality=(0, 0)),)), False),
        ("quality", replace(sweep(), tool="other 1.0"), None),
        ("rejects", replace(sweep(), stages=(ended(95, http_429=5),)), True),
        ("rejects", replace(sweep(), stages=(ended(94, http_429=4, rejected=2),)), False),
        ("rejects", replace(sweep(), stages=(ended(100), ended(0, rejected=100))), False),
        ("rejects", replace(sweep(), stages=(stage(1, 0),)), None),
        ("rejects", replace(sweep(), tool="other 1.0"), None),
        ("single tenant", replace(sweep(), interference=("other load of 2 requests/s",)), False),
        ("single tenant", replace(sweep(), interference=None), None),
    ],
)
def test_each_check_follows_from_the_data(name: str, result: Result, expected: bool | None) -> None:
    """Done, not done, or not told."""
    assert done(result)[name] is expected


def sized(demand: Demand, result: Result | None = None, gpus: int = 2, price: float | None = 2.0) -> Size:
    found = size(result or sweep(), demand, gpus, price)
    assert isinstance(found, Size), found
    return found


def test_instances_gpus_and_cost() -> None:
    """ceil(100 ÷ (10 × 0.8)) = 13, by the lower bound of the SLO that gives way first."""
    found = sized(Demand(100.0))
    assert (found.instances, found.gpus, found.slo, found.estimate, found.is_alone) == (13, 26, "ttft", 12.0, True)
    assert found.per_instance == pytest.approx(10)
    assert found.free == pytest.approx(1 - 100 / 130)
    assert found.dollars_per_hour == 52.0
    # 8 output tokens a request, so 800/s: 52 $/h ÷ 2.88 M tokens/h
    assert found.dollars_per_million_output == pytest.approx(52 / 2.88)
    prompt = known(found.dollars_per_million_prompt)
    assert known(found.dollars_per_million) < prompt < 52 / 2.88


def test_what_others_sent_during_the_sweep_is_not_what_an_instance_carries() -> None:
    """30/s in all, most of them small ones of others: of the sweep's an instance carries 4. If nobody saw them, that is said."""
    seen = Capacity("ttft", "found", 27.0, 30.0, 33.0, alone_per_s=4.0 / 0.9)
    for capacity, instances in ((seen, 25), (replace(seen, alone_per_s=None), 4)):
        found = sized(Demand(80.0), replace(sweep(), slos=(), capacities=(capacity,)))
        assert (found.instances, found.is_alone) == (instances, capacity.alone_per_s is not None)


def test_an_exact_fit_takes_no_more() -> None:
    """80/s are ten times what 8/s with headroom are; rounding does not add an eleventh."""
    assert sized(Demand(80.0)).instances == 10
    assert sized(Demand(80.1)).instances == 11
    assert sized(Demand(30.0, headroom=0.0)).instances == 3
    assert sized(Demand(0.1)).instances == 1


def test_a_knee_that_was_not_reached_is_a_lower_bound() -> None:
    """The highest rate is known to hold."""
    found = sized(Demand(100.0), replace(sweep(), slos=(), capacities=sweep().capacities[1:]))
    assert (found.per_instance, found.estimate) == (16.5, None)


def of(*capacities: Capacity) -> Result:
    return replace(sweep(), slos=(TTFT,), capacities=capacities)


def without_data(bad: int, needed: int | None) -> Result:
    return of(Capacity("ttft", "not_enough_data", samples=30, evidence=UndecidedEvents(1.0, 30, bad, needed)))


BARE = replace(sweep(), stages=tuple(replace(each, output_tokens=None) for each in sweep().stages))


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (of(), "holds no capacity: run `prober sweep`"),
        (
            replace(of(), stop="no_estimate", stop_detail="killed by signal 9"),
            "holds no capacity .no estimate could be made: killed by signal 9.: run",
        ),
        (of(Capacity("ttft", "below", upper=1.0)), "'ttft' fails at 1/s, and no lower rate is shown to"),
        (
            of(Capacity("ttft", "not_enough_data")),
            "not enough data for the SLO 'ttft': sweep longer, or from a lower rate",
        ),
        (without_data(0, 346), "'ttft': 30 events at 1/s, about 346 needed: sweep longer"),
        (without_data(9, None), "'ttft': 30 events at 1/s, 9 of them bad, too many for the objective: sweep longer"),
        (of(Capacity("ttft", "found", lower=0.0, estimate=1.0, upper=2.0)), "not enough data"),
        (
            of(Capacity("tpot", "found", 5.0, 6.0, 7.0)),
            "says nothing of the SLO 'ttft': sweep again with",
        ),
        (BARE, "no usage"),
    ],
)
def test_without_an_answer_it_says_why(result: Result, said: str) -> None:
    """No capacity, or no tokens for a price; without a price no tokens are needed."""
    found = size(result, Demand(10.0), 1, 2.0)
    assert isinstance(found, Refused)
    assert re.search(said, found.reason)
    assert sized(Demand(10.0), BARE, price=None).dollars_per_million is None


@pytest.mark.parametrize(
    ("demand", "said"),
    [
        (Demand(1.0, headroom=1.0), "a headroom of 100%"),
        (Demand(1.0, headroom=-0.1), "a headroom of -10%"),
    ],
)
def test_a_demand_that_cannot_be_is_an_error(demand: Demand, said: str) -> None:
    """Named."""
    with pytest.raises(ValueError, match=said):
        size(sweep(), demand, 1)
