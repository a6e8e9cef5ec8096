"""A window of probes, readings and devices becomes what was seen: absent is None, never 0."""

import time
from dataclasses import fields, replace

import pytest

from prober.features.diagnosis.clues import WindowFeatures
from prober.features.diagnosis.window import Hardware, Reading, per_prompt_token, seen
from prober.measure.bandwidth_bound import DecodeModel
from prober.measure.chat import Usage
from prober.measure.engine_signals import EngineHistogram, EngineInfo, EngineSignals, without_buckets
from prober.measure.gpu_reading import GpuReading, ThrottleReason
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Connection, Timeline

MS = 10**6
PAGE = EngineSignals(EngineInfo("vllm"))


def probe(
    ttft_ms: float = 50,
    step_ms: float = 10,
    tokens: int = 11,
    prompt: int = 100,
    workload: str = "w",
    lag_ms: float = 0,
) -> ProbeResult:
    first = round(ttft_ms * MS)
    stamps = tuple(first + round(i * step_ms * MS) for i in range(tokens))
    timeline = Timeline(
        0,
        Connection(-1000 * MS, -997 * MS),
        round(lag_ms * MS),
        first_ns=first,
        end_ns=stamps[-1],
        content_ns=stamps,
        usage=Usage(prompt, tokens),
    )
    return ProbeResult("t", workload, "id", 0.0, Outcome.OK, "", timeline)


def estimate(found: WindowFeatures, name: str, q: float) -> float:
    return next(float(each.estimate) for each in getattr(found, name) if each.q == q)


def test_nothing_in_nothing_seen() -> None:
    """Without probes, readings and devices every figure is absent."""
    empty = seen([])
    assert all(getattr(empty, each.name) in (None, ()) for each in fields(WindowFeatures))
    assert empty == WindowFeatures()


def test_what_a_page_does_not_say_is_absent() -> None:
    """Readings of an engine that tells nothing leave every figure absent; one reading has no increment."""
    assert seen([], [(0.0, PAGE), (5.0, PAGE)]) == WindowFeatures()
    once = seen([], [(0.0, replace(PAGE, preemptions_total=3.0, requests_waiting=0.0))])
    assert (once.preemptions_per_s, once.waiting) == (None, 0.0)


def test_latencies_are_those_of_proper_probes() -> None:
    """Failed, invalid, warm-up and cached probes leave the latencies alone; invalid ones are late."""
    good = [probe(ttft_ms=50) for _ in range(30)]
    odd = [
        replace(probe(ttft_ms=9_000), outcome=Outcome.INVALID),
        replace(probe(ttft_ms=9_000), outcome=Outcome.TIMEOUT_TOTAL),
        replace(probe(ttft_ms=9_000), warm_up=True),
        replace(probe(ttft_ms=9_000), cached=True),
    ]
    found = seen(good + odd)
    assert found.ttft_s[-1].count == 30
    assert estimate(found, "ttft_s", 0.99) == 0.05
    assert found.ttft_mean_s == pytest.approx(0.05)
    assert found.late_ratio == pytest.approx(1 / 34)


def test_few_probes_give_no_figure() -> None:
    """Below twenty probes there is no mean, no share of late ones, no connect time; quantiles say that they are not enough."""
    found = seen([probe() for _ in range(19)])
    assert (found.ttft_mean_s, found.late_ratio, found.connect_s) == (None, None, None)
    assert not any(each.has_enough_samples for each in found.ttft_s)
    assert seen([probe() for _ in range(20)]).connect_s == pytest.approx(0.003)


def test_a_step_is_one_without_a_prefill_beside_it() -> None:
    """Long gaps in half of the tokens do not move it; chunks of several tokens, and gaps of nothing, give none."""
    assert seen([probe(step_ms=10), probe(step_ms=90)] * 10).step_s == pytest.approx(0.010)
    merged = [replace(p, timeline=replace(p.timeline, usage=Usage(100, 40))) for p in [probe()] * 20]
    assert seen(merged).step_s is None
    assert seen([probe(step_ms=0)] * 20).step_s is None
    assert seen([probe()] * 5).step_s is None


def test_cold_and_warm_are_compared_at_like_lengths() -> None:
    """Each warm prompt stands beside a cold one of its length; where lengths differ, nothing is said."""
    cold = [probe(ttft_ms=n / 10, prompt=n) for n in range(100, 4_000, 20)]
    warm = [probe(ttft_ms=20, prompt=n, workload="w_warm") for n in range(1_000, 2_000, 25)]
    found = seen(cold + warm)
    assert found.ttft_cold_s == pytest.approx(0.149, abs=0.003)
    assert found.ttft_warm_s == pytest.approx(0.020)
    assert len(cold) == found.ttft_s[0].count, "percentiles of cold and warm prompts are never pooled"
    far = [probe(ttft_ms=20, prompt=9_000, workload="w_warm")] * 40
    assert seen(cold + far).ttft_warm_s is None
    other = [probe(ttft_ms=20, prompt=1_000, workload="v_warm")] * 40
    assert seen(cold + other).ttft_warm_s is None


def test_the_cost_of_a_prompt_token() -> None:
    """The slope stands a few that had to wait; lengths that are alike give none."""
    samples = [(n, 0.020 + 0.0001 * n) for n in range(100, 400, 5)]
    assert per_prompt_token(samples) == pytest.approx(0.0001)
    waited = [(n, ttft + (5.0 if i % 10 == 0 else 0.0)) for i, (n, ttft) in enumerate(samples)]
    assert per_prompt_token(waited) == pytest.approx(0.0001, rel=0.2)
    assert per_prompt_token([(100 + i % 20, 0.05) for i in range(60)]) is None
    assert per_prompt_token(samples[:14]) is None


def test_counters_are_increments_and_a_restart_is_no_fall() -> None:
    """Rates are of the window; what a counter lost at a restart is not subtracted, and what it had before does not count."""
    counts = [1_000.0, 1_050.0, 10.0, 60.0]
    readings: list[Reading] = [
        (100.0 + 5 * i, replace(PAGE, prompt_tokens_total=n, prefix_cache_hits_tokens_total=n / 2, preemptions_total=n))
        for i, n in enumerate(counts)
    ]
    found = seen([], readings)
    assert found.preemptions_per_s == pytest.approx(100 / 15)
    assert found.computed_prompt_tokens_per_s == pytest.approx(50 / 15)
    assert found.prefix_hit_ratio is None, "tokens looked up are not known"


def test_one_bucket_is_enough() -> None:
    """What is kept of readings without their buckets shows the same."""
    grows = EngineHistogram((0.1, 1.0), (2.0, 5.0, 9.0), 4.0), EngineHistogram((0.1, 1.0), (3.0, 9.0, 19.0), 9.0)
    readings = [
        (5.0 * at, replace(PAGE, requests_running=2.0, ttft_seconds=each, itl_seconds=each, queue_seconds=each))
        for at, each in enumerate(grows)
    ]
    found = seen([], [(at, without_buckets(signals)) for at, signals in readings])
    assert found == seen([], readings)
    assert found.engine_ttft_s == found.engine_itl_s == found.engine_queue_s == 0.5


def test_an_engine_that_looks_nothing_up_has_no_hit_ratio() -> None:
    """No look-ups in the window is absent, not a ratio of 0."""
    page = replace(PAGE, prefix_cache_hits_tokens_total=5.0, prefix_cache_queries_tokens_total=9.0)
    assert seen([], [(0.0, page), (5.0, page)]).prefix_hit_ratio is None
    more = replace(page, prefix_cache_hits_tokens_total=6.0, prefix_cache_queries_tokens_total=13.0)
    assert seen([], [(0.0, page), (5.0, more)]).prefix_hit_ratio == 0.25


def test_means_of_the_engines_histograms_are_of_the_window() -> None:
    """(sum after − before) ÷ (count after − before); none without observations or without a sum; TPOT where ITL is not told."""

    def told(count: float, total: float | None) -> EngineSignals:
        each = EngineHistogram((0.1,), (count / 2, count), total)
        return replace(PAGE, ttft_seconds=each, tpot_seconds=each)

    found = seen([], [(0.0, told(10, 100.0)), (5.0, told(14, 102.0))])
    assert (found.engine_ttft_s, found.engine_itl_s, found.engine_queue_s) == (0.5, 0.5, None)
    assert seen([], [(0.0, told(10, 100.0)), (5.0, told(10, 100.0))]).engine_ttft_s is None
    assert seen([], [(0.0, told(10, None)), (5.0, told(14, None))]).engine_ttft_s is None


def test_gauges_are_means_and_the_cache_its_90th_percentile() -> None:
    """Nine readings of ten at 0.5 and one at 1 are 0.5; two at 1 are 1."""
    readings = [(5.0 * i, replace(PAGE, requests_waiting=float(i), kv_cache_usage_ratio_max=0.5)) for i in range(10)]
    readings[9] = (45.0, replace(readings[9][1], kv_cache_usage_ratio_max=1.0))
    assert (seen([], readings).waiting, seen([], readings).kv_usage_ratio) == (4.5, 0.5)
    readings[8] = (40.0, replace(readings[8][1], kv_cache_usage_ratio_max=1.0))
    assert seen([], readings).kv_usage_ratio == 1.0


def test_gpus_are_means_and_idle_reasons_are_none() -> None:
    """A reading without reasons is free, one whose reasons are not told does not count."""

    def card(throttled: frozenset[ThrottleReason] | None) -> list[GpuReading]:
        return [GpuReading(0, "u", "n", sm_clock_hertz=1e9, throttled=throttled)]

    found = seen([], (), [card(frozenset()), card(frozenset({ThrottleReason.THERMAL})), card(None)])
    assert (found.gpu_throttled_ratio, found.gpu_clock_hertz, found.gpu_utilization_ratio) == (0.5, 1e9, None)
    assert seen([], (), [card(None)]).gpu_throttled_ratio is None


def test_the_bound_needs_the_context_of_the_batch() -> None:
    """16 GB at 2 TB/s and 16,000 tokens of 125 kB: 9 ms a step, so 10 ms is 0.9 of it; without the context none is told."""
    hardware = Hardware(DecodeModel(8e9, 2, 125_000), 2e12)
    page = replace(
        PAGE,
        requests_running=4.0,
        kv_cache_usage_ratio_mean=0.1,
        kv_cache_usage_ratio_max=0.1,
        kv_cache_capacity_tokens=160_000.0,
    )
    probes = [probe(step_ms=10)] * 20
    assert seen(probes, [(0.0, page)], (), hardware).over_bound == pytest.approx(0.9)
    assert seen(probes, [(0.0, replace(page, kv_cache_capacity_tokens=None))], (), hardware).over_bound is None
    assert seen(probes, [(0.0, page)]).over_bound is None
    assert seen([], [(0.0, page)], (), hardware).over_bound is None


def test_two_thousand_probes_cost_little() -> None:
    """The daemon does this beside its stamps: well below a second for 2,000 probes of 48 tokens and an hour of readings."""
    probes = [probe(ttft_ms=50 + i % 7, tokens=48, prompt=100 + i % 300) for i in range(2_000)]
    readings = [(5.0 * i, replace(PAGE, prompt_tokens_total=float(i))) for i in range(720)]
    begin = time.process_time()
    seen(probes, readings)
    assert time.process_time() - begin < 0.5
