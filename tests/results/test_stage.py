"""A stage as built from probes, pages and GPUs."""

from dataclasses import replace

import pytest

from prober.measure.chunk import Usage
from prober.measure.engine_signals import EngineHistogram, EngineInfo, EngineSignals
from prober.measure.gpu_reading import GpuReading
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.results.result import Delivered
from prober.results.stage import quality_of, stage_of, use_of
from tests.known import known
from tests.results.samples import TPOT, TTFT

MS = 1_000_000
BEGIN = 5_000 * MS
USAGE = Usage(50, 5)


def probe(at_ms: int, ttft_ms: int = 100, outcome: Outcome = Outcome.OK, usage: Usage | None = USAGE) -> ProbeResult:
    """Five tokens, 10 ms apart."""
    due = BEGIN + at_ms * MS
    stamps = tuple(due + (ttft_ms + 10 * i) * MS for i in range(5))
    timeline = Timeline(due, sent_ns=due + MS, first_ns=stamps[0], content_ns=stamps, end_ns=stamps[-1], usage=usage)
    return ProbeResult("t", "w", f"id{at_ms}", 0.0, outcome, "" if outcome is Outcome.OK else "why", timeline)


def test_golden_prompts_of_a_stage_are_counted_beside_its_latencies() -> None:
    """Of those that were answered, the wrong ones; failures are not answers, and without golden prompts nothing is said."""
    golden = [
        replace(probe(0), check="text"),
        replace(probe(10, outcome=Outcome.WRONG_ANSWER), check="text"),
        replace(probe(20, outcome=Outcome.RESET), check="text"),
    ]
    assert quality_of([*golden, probe(30)]) == (2, 1)
    assert quality_of([probe(0)]) is None


def test_a_stage_of_probes() -> None:
    """Rows in seconds since the experiment's start; quantiles of what counts; throughput up to the last answer's end."""
    probes = [
        probe(0),
        probe(1000, 200),
        probe(2000, 700),
        probe(3000, outcome=Outcome.RESET),
        replace(probe(3500, 9000), warm_up=True),
    ]
    stage = stage_of(
        "1/s",
        1.0,
        probes,
        origin_ns=0,
        begin_ns=BEGIN,
        sending_s=4.0,
        slos=(TTFT, TPOT),
        demand_per_s=2.0,
        gpus=2,
        ended="decided",
    )
    rows = stage.requests
    assert [each.start_s for each in rows] == pytest.approx([5.001, 6.001, 7.001, 8.001, 8.501]), (
        "departures, a millisecond late"
    )
    assert rows[0].ttft_s == pytest.approx(0.099)
    assert rows[0].itls_s == (0.01,) * 4
    assert rows[0].tpot_s == pytest.approx(0.01)
    assert rows[0].e2e_s == pytest.approx(0.139)
    assert rows[0].send_lag_s == 0.001
    assert (rows[0].prompt_tokens, rows[0].output_tokens) == (50, 5)
    assert (stage.begin_s, stage.sending_s, stage.sent, stage.answered) == (5.0, 4.0, 5, 4)
    assert stage.outcomes == {"ok": 4, "reset": 1}
    ttft = known(stage.quantile("ttft", 0.5))
    assert (ttft.estimate, ttft.count) == (0.199, 3)  # the warm-up and the failure have none
    assert stage.tail_ratio("ttft") == pytest.approx(0.699 / 0.199)
    assert stage.duration_s == pytest.approx(12.54)  # the slow warm-up ended last
    assert stage.slos == {"ttft": (4, 2), "tpot": (3, 0)}  # what died is no event of TPOT
    assert stage.good == 2 + 1  # two in time, and the warm-up, which is nobody's
    assert stage.output_tokens == 20
    assert stage.delivered == Delivered(4.0, 3, 200, 20), (
        "the answer after 12 s is not of these 4 s, the reset one's tokens are"
    )
    assert stage.at_rate.output_tokens_per_s is None, "4 s show no throughput of a rate"
    assert stage.prompt_tokens_per_request == 50


def test_tokens_that_one_answer_did_not_tell_are_unknown() -> None:
    """A sum that leaves some out looks like a small one."""
    stage = stage_of("1/s", 1.0, [probe(0), probe(1, usage=None)], origin_ns=0, begin_ns=BEGIN, sending_s=1.0)
    assert stage.output_tokens is None
    assert stage.at_rate.output_tokens_per_s is None
    assert stage.output_tokens_per_s_per_gpu is None


def test_a_stage_without_requests_has_no_figures() -> None:
    """No data is not zero."""
    stage = stage_of("1/s", 1.0, [], origin_ns=0, begin_ns=0, sending_s=0.0)
    assert stage.requests == ()
    assert stage.latencies == {}
    assert stage.at_rate.requests_per_s is None
    assert stage.tail_ratio("ttft") is None
    assert stage.good is None


def test_what_engine_and_gpus_said() -> None:
    """Means and peaks of what was told; power of all GPUs together; a counter's fall is a new start.

    Mean wait of the requests that left the queue meanwhile, and tokens found of those looked up: unknown without growth.
    """
    page = EngineSignals(
        EngineInfo("vllm"),
        requests_running=2,
        requests_waiting=0,
        kv_cache_usage_ratio_max=0.2,
        preemptions_total=7,
        queue_seconds=EngineHistogram((1.0,), (5.0, 10.0), 30.0),
        prefix_cache_hits_tokens_total=100.0,
        prefix_cache_queries_tokens_total=1_000.0,
    )
    busy = replace(page, requests_running=4, requests_waiting=6, kv_cache_usage_ratio_max=0.9, preemptions_total=9)
    last = EngineSignals(
        EngineInfo("vllm"),
        preemptions_total=1,
        queue_seconds=EngineHistogram((1.0,), (20.0, 30.0), 40.0),
        prefix_cache_hits_tokens_total=400.0,
        prefix_cache_queries_tokens_total=1_600.0,
    )
    gpu = GpuReading(
        0, "u", "GPU", utilization_ratio=0.5, power_watts=300.0, memory_used_bytes=8, memory_total_bytes=10
    )
    hot = replace(gpu, utilization_ratio=1.0, power_watts=350.0)
    use = use_of([page, busy, last], [[gpu, gpu], [hot, hot]])
    assert use == {
        "running_mean": 3,
        "waiting_mean": 3,
        "waiting_peak": 6,
        "queue_mean_s": pytest.approx(10 / 20),
        "prefix_hit_ratio": pytest.approx(300 / 600),
        "kv_usage_peak_ratio": 0.9,
        "preemptions": 2,
        "gpu_utilization_mean_ratio": 0.75,
        "gpu_utilization_peak_ratio": 1.0,
        "gpu_memory_peak_ratio": 0.8,
        "memory_bandwidth_peak_ratio": None,
        "power_mean_watts": 650.0,
        "power_peak_watts": 700.0,
    }
    assert use_of([], []) == dict.fromkeys(use)
    assert [use_of([page, page], ())[name] for name in ("queue_mean_s", "prefix_hit_ratio")] == [None, None]
