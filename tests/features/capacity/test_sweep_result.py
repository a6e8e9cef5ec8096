"""A run sweep as a stored result."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from prober.cli.sweep_cost import mean_requests
from prober.config.load import load
from prober.config.sweep import LimitsSpec, SweepSpec
from prober.config.target import TargetSpec
from prober.features.capacity.actions import Finished, OtherLoad
from prober.features.capacity.sweep_record import Stage
from prober.features.capacity.sweep_result import _interference, result_of
from prober.features.capacity.sweep_runner import SweepRun
from prober.measure.chunk import Usage
from prober.measure.gpu_reading import GpuReading, without_parts
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.net.clock import Clock
from prober.probing.session import Session
from prober.results.capacity import Capacity
from prober.results.result import Delivered, Result
from prober.results.result_file import from_json, to_json

TEXT = """
slos: {quick: {signal: ttft, threshold: 200ms, objective: 90%}}
targets: [{name: t, url: 'https://h/v1', sweep: {}, gpus: {price_per_hour: 2}}]
"""


def probe(at_s: float, outcome: Outcome = Outcome.OK) -> ProbeResult:
    at = round(at_s * 1e9)
    stamps = tuple(at + 50_000_000 + 10_000_000 * i for i in range(4))
    answered = outcome is Outcome.OK
    timeline = Timeline(
        at,
        sent_ns=at,
        first_ns=stamps[0] if answered else None,
        content_ns=stamps if answered else (),
        end_ns=stamps[-1] if answered else None,
        usage=Usage(100, 4, None) if answered else None,
    )
    return ProbeResult("t", "chat", f"id-{at_s}", 0.0, outcome, "", timeline, model="m", engine="vllm")


def of(
    last: list[ProbeResult],
    ended: Finished | None = None,
    gpus: tuple[tuple[float, list[GpuReading]], ...] = (),
) -> Result:
    spec: TargetSpec = load(TEXT, source="c", engines=(), environment={}, read=lambda path: path).targets[0]
    assert spec.sweep is not None
    stages = (
        Stage(0, "warm_up", 1.0, 10.0, 12.0, sent=2, answered=2),
        Stage(1, "ramp", 1.0, 12.0, 16.0, other_per_s=0.5),
        Stage(2, "ramp", 2.0, 16.0, 18.0, other_per_s=0.6, events={"quick": (20, 10)}),
    )
    found = Capacity("quick", "found", 1.0, 2.0, 3.0, 300.0)
    finished = Finished("knee_passed", "two of six", (found,), stages, others=OtherLoad(0.5, 0.6, "engine"))
    probes = [
        (0, probe(10.0)),
        (0, probe(11.0)),
        *((1, probe(12.0 + i / 10)) for i in range(40)),
        *((2, p) for p in last),
    ]
    run = SweepRun(ended or finished, 10 * 10**9, tuple(probes))
    clock = SimpleNamespace(unix_s=lambda: 1e9 + 8, now_ns=lambda: 0)
    session = Session(spec, cast(Clock, clock), None)
    session.started_unix_s, session.gpus = 1e9, [(round(at_s * 1e9), devices) for at_s, devices in gpus]
    return result_of(run, session, spec.sweep, "id", {"why": "request"})


def test_a_result_has_its_stages_rows_and_contract_and_can_be_stored() -> None:
    """The warm-up is told and not a stage; what the target carries and why it ended stand in it."""
    result = of([probe(16.0 + i / 10) for i in range(20)])
    assert [(stage.name, stage.sent, stage.answered, stage.demand_per_s) for stage in result.stages] == [
        ("ramp 1/s", 40, 40, 0.5),
        ("ramp 2/s", 20, 20, 0.6),
    ]
    assert result.warm_up is not None
    assert result.warm_up.requests == 2
    assert result.stop == "knee_passed"
    assert result.capacities[0].estimate == 2.0
    assert result.target.url == "https://h/v1"
    assert result.prices.gpu_per_hour == 2
    assert result.interference == ("other load of 0.5 to 0.6 requests/s, by the engine's page",)
    assert len(result.requests) == 60
    kept = result.without_requests()
    assert kept.requests == []
    assert from_json(to_json(kept), "x") == kept
    assert [stage.latencies for stage in kept.stages] == [stage.latencies for stage in result.stages]
    assert kept.capacities == result.capacities


def test_the_end_of_the_ramp_is_kept_beside_an_estimate_that_failed() -> None:
    """At the last stage of the ramp."""
    stages = (
        Stage(0, "ramp", 1.0, 12.0, 14.0),
        Stage(1, "ramp", 2.0, 14.0, 16.0),
    )
    finished = Finished("no_estimate", "killed", (), stages, sending_ended="knee_passed")
    result = of([], finished)
    assert [stage.ended for stage in result.stages] == ["", "knee_passed"]
    assert (result.stop, result.stop_detail) == ("no_estimate", "killed")


def test_scheduled_probes_are_no_load_of_others() -> None:
    """They were sent by the prober itself. 0.5/s of them over 100 s are 50, give or take 21; 90 are more."""
    probes_per_s, span_s = 0.5, 100.0
    assert _interference(OtherLoad(0.6, 0.9, "engine"), probes_per_s, span_s) == ()
    told = _interference(OtherLoad(0.9, 1.1, "engine"), probes_per_s, span_s)
    assert told == ("other load of 0.4 to 0.6 requests/s, by the engine's page",)
    assert _interference(OtherLoad(0.0, 3.0, "engine"), 0.0, span_s) == ()
    assert _interference(None, 0.0, span_s) is None


def test_of_requests_that_were_cut_it_has_what_is_known() -> None:
    """TTFT where the answer had begun; E2E below the cut ones, and a lower bound above; TPOT of none."""
    cut = [begun(17.0 + i / 10, 18.0) for i in range(10)]
    result = of([*(probe(16.0 + i / 10) for i in range(10)), *cut])
    stage = result.stages[1]
    assert set(result.stages[0].latencies) == {"ttft", "tpot", "itl", "e2e"}
    assert [quantile.count for quantile in stage.latencies["ttft"]] == [20] * 6  # p99.9 of 20 is not stated
    assert stage.quantile("ttft", 1.0).estimate == 0.05  # type: ignore[union-attr]
    assert "tpot" not in stage.latencies
    assert [quantile.q for quantile in stage.latencies["e2e"]] == [0.5]
    assert [(quantile.q, quantile.estimate) for quantile in stage.at_least["e2e"]][:2] == [(0.75, 0.5), (0.9, 0.8)]
    assert set(stage.at_least) == {"e2e"}
    assert stage.slos == {"quick": (20, 10)}, "a request that waited too long for an answer is judged"
    assert stage.ended == "knee_passed, 10 cut in flight"
    assert stage.outcomes == {"ok": 10, "cancelled": 10}
    assert from_json(to_json(result), "x") == result
    assert '"p75_e2el_ms_at_least":500.0' in to_json(result)


def begun(at_s: float, cut_s: float) -> ProbeResult:
    """A request that had its first chunk when it was cut."""
    cut = probe(at_s, Outcome.CANCELLED)
    first_ns = cut.timeline.intended_ns + 50_000_000
    cut_ns = max(round(cut_s * 1e9), first_ns)
    return replace(cut, timeline=replace(cut.timeline, first_ns=first_ns, content_ns=(first_ns,), cut_ns=cut_ns))


def test_a_stage_has_the_tokens_that_were_delivered_while_it_was_sending() -> None:
    """Those of the warm-up and of the stage before too, by their stamps; a stage's own answers have their own figures."""
    long = replace(probe(15.95), timeline=replace(probe(15.95).timeline, content_ns=(15_990_000_000, *STAMPS[1:])))
    result = of([long, *(probe(16.0 + i / 10) for i in range(19)), probe(17.98)])
    first, second = result.stages
    assert first.output_tokens == 160
    assert first.delivered == Delivered(4.0, 40, 40 * 100 + 100, 160 + 1)
    assert second.delivered == Delivered(2.0, 19 + 1, 19 * 100, 3 + 19 * 4), "what came after 18 s is of no stage"
    assert second.at_rate.output_tokens_per_s is None, "2 s are too short to tell what the target delivers at the rate"
    assert from_json(to_json(result), "x").stages == result.stages


def test_a_plan_has_the_chosen_rates_and_step() -> None:
    """Each rate once, for so long; they are the lowest and the highest rate too."""
    text = TEXT.replace("sweep: {}", "sweep: {mode: grid, rates: [1/s, 2/s, 300/min], step: 30s}")
    spec: TargetSpec = load(text, source="c", engines=(), environment={}, read=lambda path: path).targets[0]
    assert spec.sweep is not None
    assert [spec.sweep.after(rate) for rate in (1.0, 2.0, 5.0)] == [2.0, 5.0, None]
    assert (spec.sweep.lowest_rate, spec.sweep.stage_s) == (1.0, 30.0)
    assert mean_requests(spec.sweep) == 20 * 1.0 + 30 * (1.0 + 2.0 + 5.0), "with the warm-up"


@pytest.mark.parametrize(("max_rate", "rates"), [(1.2, [1.0, 1.15, 1.2]), (1.15, [1.0, 1.15]), (1.0, [1.0])])
def test_a_ramp_reaches_its_highest_rate(max_rate: float, rates: list[float]) -> None:
    """The last stage is at `max_rate`, wherever its factor leads, and there is no stage twice."""
    spec = SweepSpec(mode="adaptive", min_rate=1.0, max_rate=max_rate)
    after = [spec.after(rate) for rate in rates]
    assert after == [*(pytest.approx(rate) for rate in rates[1:]), None]


def test_a_sweep_without_a_highest_rate_has_a_limit_of_requests() -> None:
    """What never gives way is sent 10,000 requests, or as many as `limits` say; a grid ends at 50/s."""
    assert mean_requests(SweepSpec()) == 10_000
    assert mean_requests(SweepSpec(limits=LimitsSpec(requests=500))) == 500
    assert SweepSpec(mode="grid").highest_rate == 50.0
    assert mean_requests(SweepSpec(max_rate=1.0)) == 20.0 + 4.0


def test_a_partitioned_gpu_counts_once() -> None:
    """With its partitions in the list it is one GPU; partitions that are in the list by themselves are one each."""
    parts = [GpuReading(0, f"m{i}", "H100 MIG 1g.10gb", partition=i, parent="u0") for i in range(2)]
    gpus = [GpuReading(0, "u0", "H100"), *parts, GpuReading(1, "u1", "H100")]
    assert [device.uuid for device in without_parts(gpus)] == ["u0", "u1"]
    assert without_parts(parts) == parts


def test_gpu_readings_belong_to_the_stage_in_which_they_were_taken() -> None:
    """Mean and peak of those of its time; unknown where there was none, whatever was read later."""

    def read(utilization_ratio: float) -> list[GpuReading]:
        return [
            GpuReading(i, f"u{i}", "H100", utilization_ratio=utilization_ratio, power_watts=300.0) for i in range(2)
        ]

    result = of([probe(16.1)], gpus=((11.0, read(1.0)), (13.0, read(0.2)), (15.0, read(0.6)), (18.5, read(0.9))))
    first, second = result.stages
    assert first.use["gpu_utilization_mean_ratio"] == 0.4
    assert (first.use["gpu_utilization_peak_ratio"], first.use["power_mean_watts"]) == (0.6, 600.0)
    assert set(second.use.values()) == {None}
    assert [stage.gpus for stage in result.stages] == [2, 2]
    assert (result.context.gpu, result.context.gpu_count) == ("H100", "2")


STAMPS = tuple(16_010_000_000 + 10_000_000 * i for i in range(4))
