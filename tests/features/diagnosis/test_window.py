"""Features of a window of probes, readings and GPUs: what was not measured is None, never 0."""

from dataclasses import fields, replace
from typing import Any

import pytest

from prober.features.diagnosis.clues import WindowFeatures
from prober.features.diagnosis.window import Hardware, Reading, prompt_line, typical, window_features
from prober.measure.bandwidth_bound import DecodeModel
from prober.measure.chunk import Usage
from prober.measure.engine_signals import EngineHistogram, EngineInfo, EngineSignals, without_buckets
from prober.measure.gpu_reading import GpuReading, ThrottleReason
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.server_timing import TimeParts
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
        Connection(-1000 * MS, -997 * MS, lead_ns=1000 * MS),
        round(lag_ms * MS),
        first_ns=first,
        end_ns=stamps[-1],
        content_ns=stamps,
        usage=Usage(prompt, tokens),
    )
    return ProbeResult("t", workload, "id", 0.0, Outcome.OK, "", timeline)


def test_an_empty_window_has_no_features() -> None:
    """Without probes, readings and devices every feature is absent."""
    empty = window_features([])
    assert all(getattr(empty, field.name) in (None, 0, {}) for field in fields(WindowFeatures))
    assert empty == WindowFeatures()


def test_signals_that_a_page_lacks_are_absent() -> None:
    """Readings without signals give no features; one reading has no increment."""
    assert window_features([], [(0.0, PAGE), (5.0, PAGE)]) == WindowFeatures()
    once = window_features([], [(0.0, replace(PAGE, preemptions_total=3.0, requests_waiting=0.0))])
    assert (once.preemptions_per_s, once.waiting) == (None, 0.0)


def test_prompts_of_users_are_known_where_most_requests_are_theirs() -> None:
    """The probes' own lengths vary from window to window; those of all workloads count."""

    def due(second: int) -> ProbeResult:
        return replace(probe(), timeline=replace(probe().timeline, intended_ns=second * 1000 * MS))

    def readings(requests: int) -> list[Reading]:
        end = replace(PAGE, requests_finished_total=float(requests), prompt_tokens_total=300.0 * requests)
        return [(0.0, replace(PAGE, requests_finished_total=0.0, prompt_tokens_total=0.0)), (20.0, end)]

    own = [due(second) for second in range(20)]
    assert window_features(own, readings(41)).prompt_tokens_per_request == 300
    assert window_features(own, readings(25)).prompt_tokens_per_request is None
    assert window_features(own[:5], readings(25), own=own).prompt_tokens_per_request is None
    assert window_features(own[:5], readings(25)).prompt_tokens_per_request == 300


def telling(parts: TimeParts, count: int = 20) -> list[ProbeResult]:
    one = probe()
    return [replace(one, timeline=replace(one.timeline, parts=parts))] * count


def test_parts_of_the_time_are_means_of_the_probes_that_tell_them() -> None:
    """Of most of them, and enough: of a few they stand for nobody else."""
    features = window_features(telling(TimeParts(0.001, 0.004, None, 0.030, 0.010, 0.120)))
    told = (features.gateway_part_s, features.queue_part_s, features.prefill_part_s, features.step_part_s)
    assert told == pytest.approx((0.004, 0.030, 0.010, 0.012))
    mixed = window_features([*telling(TimeParts(queue_s=0.030)), *(probe() for _ in range(21))])
    assert (mixed.queue_part_s, mixed.prefill_part_s, mixed.step_part_s) == (None, None, None)
    assert window_features(telling(TimeParts(queue_s=0.030), 19)).queue_part_s is None
    one = telling(TimeParts(decode_s=0.120), 1)[0]
    single = replace(one, timeline=replace(one.timeline, usage=Usage(100, 1)))
    assert window_features([single] * 20).step_part_s is None, "a single token has no step"


def test_latencies_are_of_answered_probes() -> None:
    """Failed, invalid, warm-up and cached probes are excluded."""
    good = [probe(ttft_ms=50) for _ in range(30)]
    odd = [
        replace(probe(ttft_ms=9_000), outcome=Outcome.INVALID),
        replace(probe(ttft_ms=9_000), outcome=Outcome.TIMEOUT_TOTAL),
        replace(probe(ttft_ms=9_000), warm_up=True),
        replace(probe(ttft_ms=9_000), cached=True),
    ]
    features = window_features(good + odd)
    assert features.ttft_mean_s == features.long_ttft_s == pytest.approx(0.05)
    assert (features.probes, features.failures) == (34, {"timeout_total": 1})


def test_the_lengths_of_prompts_add_nothing_to_the_error_of_the_saving() -> None:
    """TTFTs from 100 to 400 ms by length, of which each warm prompt saves 100 ms: the saving is certain to a few ms."""
    cold = [probe(ttft_ms=n / 10, prompt=n) for n in range(1_000, 4_000, 20)]
    warm = [probe(ttft_ms=n / 10 - 100, prompt=n, workload="w_warm") for n in range(1_200, 3_600, 20)]
    features = window_features(cold + warm)
    assert features.ttft_cold_s is not None
    assert features.ttft_warm_s is not None
    assert features.ttft_cold_s - features.ttft_warm_s == pytest.approx(0.1, abs=0.005)
    assert features.saving_error_s is not None
    assert features.saving_error_s < 0.003


def test_too_few_probes_give_no_features() -> None:
    """Below twenty probes there is no mean, median, connect time or time on the network."""
    sent = probe()
    sent = replace(sent, timeline=replace(sent.timeline, acknowledged_ns=7 * MS))
    features = window_features([sent] * 19)
    assert (features.ttft_mean_s, features.connect_s, features.network_s, features.long_ttft_s) == (None,) * 4
    enough = window_features([sent] * 20)
    assert enough.connect_s == pytest.approx(0.003)
    assert enough.network_s == pytest.approx(0.007)
    assert window_features([probe()] * 20).network_s is None, "no kernel has told when it was acknowledged"


def test_a_latency_counts_from_the_departure() -> None:
    """How late the prober sent is in no feature; that the connection was not ready is in the TTFT."""
    late = [probe(ttft_ms=450, lag_ms=400) for _ in range(20)]
    assert window_features(late).ttft_mean_s == pytest.approx(0.05)
    slow = Connection(-1000 * MS, 400 * MS, lead_ns=1000 * MS)
    waited = [replace(one, timeline=replace(one.timeline, connection=slow)) for one in late]
    assert window_features(waited).ttft_mean_s == pytest.approx(0.45)


def test_the_decode_step_excludes_concurrent_prefills() -> None:
    """Long gaps in half of the tokens do not change it; chunks of several tokens and gaps of zero give none."""
    assert window_features([probe(step_ms=10), probe(step_ms=90)] * 10).step_s == pytest.approx(0.010)
    merged = [replace(p, timeline=replace(p.timeline, usage=Usage(100, 40))) for p in [probe()] * 20]
    assert window_features(merged).step_s is None
    assert window_features([probe(step_ms=0)] * 20).step_s is None
    assert window_features([probe()] * 5).step_s is None


def test_cold_and_warm_prompts_are_compared_at_similar_lengths() -> None:
    """Each warm prompt is paired with a cold one of similar length; without such pairs both are absent."""
    cold = [probe(ttft_ms=n / 10, prompt=n) for n in range(100, 4_000, 20)]
    warm = [probe(ttft_ms=20, prompt=n, workload="w_warm") for n in range(1_000, 2_000, 25)]
    features = window_features(cold + warm)
    assert features.ttft_cold_s == pytest.approx(0.149, abs=0.003)
    assert features.ttft_warm_s == pytest.approx(0.020)
    assert features.long_ttft_s == pytest.approx(0.335, abs=0.003), "the long third of the cold ones alone"
    far = [probe(ttft_ms=20, prompt=9_000, workload="w_warm")] * 40
    assert window_features(cold + far).ttft_warm_s is None
    other = [probe(ttft_ms=20, prompt=1_000, workload="v_warm")] * 40
    assert window_features(cold + other).ttft_warm_s is None


def test_similar_lengths_differ_by_a_tenth() -> None:
    """Cold prompts of 1,000 tokens are compared with warm ones of 1,080, and not with those of 1,120."""
    cold = [probe(prompt=1_000)] * 30
    near, far = ([probe(ttft_ms=20, prompt=length, workload="w_warm")] * 30 for length in (1_080, 1_120))
    assert window_features(cold + near).ttft_warm_s == pytest.approx(0.020)
    assert window_features(cold + far).ttft_warm_s is None


def test_most_flushes_are_single_tokens_where_itls_are_decode_steps() -> None:
    """Four flushes of five tokens, as a busy machine merges some; not two of three."""
    for tokens, is_step in ((13, True), (17, False)):
        answers = [replace(p, timeline=replace(p.timeline, usage=Usage(100, tokens))) for p in [probe()] * 20]
        assert (window_features(answers).step_s is not None) is is_step


def test_the_cost_of_a_prompt_token() -> None:
    """A few probes that had to wait do not change the slope, many make its error large; similar lengths give none."""
    samples = [(n, 0.020 + 0.0001 * n) for n in range(100, 400, 5)]
    line = prompt_line(samples)
    assert line is not None
    assert line[:1] + line[2:4] == pytest.approx((0.0001, 347.5, 0.05475))
    waited = prompt_line([(n, ttft + (5.0 if i % 10 == 0 else 0.0)) for i, (n, ttft) in enumerate(samples)])
    assert waited is not None
    assert waited.slope == pytest.approx(0.0001, rel=0.2)
    queued = prompt_line([(n, ttft + (0.2 if i % 2 == 0 else 0.0)) for i, (n, ttft) in enumerate(samples)])
    assert queued is not None
    assert queued.error > 5 * line.error
    assert prompt_line([(100 + i % 20, 0.05) for i in range(60)]) is None
    assert prompt_line(samples[:14]) is None


def test_counters_become_rates_across_restarts() -> None:
    """A fall at a restart is not subtracted, and the value before the window does not count."""
    counts = [1_000.0, 1_050.0, 10.0, 60.0]
    readings: list[Reading] = [
        (100.0 + 5 * i, replace(PAGE, prompt_tokens_total=n, prefix_cache_hits_tokens_total=n / 2, preemptions_total=n))
        for i, n in enumerate(counts)
    ]
    features = window_features([], readings)
    assert features.preemptions_per_s == pytest.approx(100 / 15)
    assert features.computed_prompt_tokens_per_s == pytest.approx(50 / 15)
    assert features.prefix_hit_ratio is None, "tokens looked up are not known"


def test_one_bucket_is_enough() -> None:
    """Readings without buckets give the same features."""
    grows = EngineHistogram((0.1, 1.0), (2.0, 5.0, 9.0), 4.0), EngineHistogram((0.1, 1.0), (3.0, 9.0, 19.0), 9.0)
    readings = [
        (5.0 * at, replace(PAGE, requests_running=2.0, ttft_seconds=h, itl_seconds=h, queue_seconds=h))
        for at, h in enumerate(grows)
    ]
    features = window_features([], [(at, without_buckets(signals)) for at, signals in readings])
    assert features == window_features([], readings)
    assert features.engine_ttft_s == features.engine_queue_s == 0.5


def test_without_lookups_there_is_no_hit_ratio() -> None:
    """Absent, not 0."""
    page = replace(PAGE, prefix_cache_hits_tokens_total=5.0, prefix_cache_queries_tokens_total=9.0)
    assert window_features([], [(0.0, page), (5.0, page)]).prefix_hit_ratio is None
    more = replace(page, prefix_cache_hits_tokens_total=6.0, prefix_cache_queries_tokens_total=13.0)
    assert window_features([], [(0.0, page), (5.0, more)]).prefix_hit_ratio == 0.25


def test_means_of_the_engines_histograms_cover_the_window() -> None:
    """(sum after − before) ÷ (count after − before); none without observations or without a sum."""

    def page(count: float, total: float | None) -> EngineSignals:
        histogram = EngineHistogram((0.1,), (count / 2, count), total)
        return replace(PAGE, ttft_seconds=histogram, tpot_seconds=histogram)

    features = window_features([], [(0.0, page(10, 100.0)), (5.0, page(14, 102.0))])
    assert (features.engine_ttft_s, features.engine_queue_s) == (0.5, None)
    assert window_features([], [(0.0, page(10, 100.0)), (5.0, page(10, 100.0))]).engine_ttft_s is None
    assert window_features([], [(0.0, page(10, None)), (5.0, page(14, None))]).engine_ttft_s is None


def test_gauges_are_means_and_kv_usage_is_its_90th_percentile() -> None:
    """Nine readings of ten at 0.5 and one at 1 are 0.5; two at 1 are 1."""
    readings = [(5.0 * i, replace(PAGE, requests_waiting=float(i), kv_cache_usage_ratio_max=0.5)) for i in range(10)]
    readings[9] = (45.0, replace(readings[9][1], kv_cache_usage_ratio_max=1.0))
    assert (window_features([], readings).waiting, window_features([], readings).kv_usage_ratio) == (4.5, 0.5)
    readings[8] = (40.0, replace(readings[8][1], kv_cache_usage_ratio_max=1.0))
    assert window_features([], readings).kv_usage_ratio == 1.0


def test_gpu_features_are_means() -> None:
    """A reading without throttle reasons counts as not throttled; one with unknown reasons does not count."""

    def card(throttled: frozenset[ThrottleReason] | None) -> list[GpuReading]:
        return [GpuReading(0, "u", "n", sm_clock_hertz=1e9, throttled=throttled)]

    features = window_features([], (), [card(frozenset()), card(frozenset({ThrottleReason.THERMAL})), card(None)])
    assert (features.gpu_throttled_ratio, features.gpu_clock_hertz, features.gpu_memory_ratio) == (0.5, 1e9, None)
    assert window_features([], (), [card(None)]).gpu_throttled_ratio is None


def test_processes_of_all_gpus_are_counted() -> None:
    """Where the driver shows some: in a container it may show none, which is not known."""
    pages = [[GpuReading(0, "u", "n", processes={7: 1, 9: None}), GpuReading(1, "v", "n", processes={})]]
    assert window_features([], (), pages).gpu_processes == 2
    for unknown in (GpuReading(0, "u", "n", processes={}), GpuReading(0, "u", "n")):
        assert window_features([], (), [[unknown]]).gpu_processes is None


def test_each_rank_reads_its_own_context() -> None:
    """Two ranks with four requests and half of the context each decode as fast as one rank with as much."""
    hardware = Hardware(DecodeModel(8e9, 2, 125_000), 2e12)
    one = replace(
        PAGE, ranks=1, requests_running=4.0, kv_cache_usage_ratio_mean=0.1, kv_cache_capacity_tokens=160_000.0
    )
    two = replace(one, ranks=2, requests_running=8.0, kv_cache_capacity_tokens=320_000.0)
    probes = [probe(step_ms=10)] * 20
    features = [window_features(probes, [(0.0, page)], (), hardware) for page in (one, two)]
    assert features[0].over_bound == features[1].over_bound == pytest.approx(0.9)


def test_requests_are_counted_by_the_first_counter_of_the_page() -> None:
    """Histogram of queue time, of TTFT, or finished requests; prompt tokens per request from their histogram, or from the totals."""

    def page(count: float, **signals: Any) -> EngineSignals:
        return replace(PAGE, requests_finished_total=count, prompt_tokens_total=100 * count, **signals)

    counters = window_features([], [(0.0, page(10)), (5.0, page(20))])
    assert (counters.requests_per_s, counters.prompt_tokens_per_request) == (2.0, 100.0)
    queue = [EngineHistogram((), (count,), 1.0) for count in (10, 25)]
    lengths = [EngineHistogram((), (count,), total) for count, total in ((10, 0.0), (15, 4_000.0))]
    histograms = window_features(
        [],
        [
            (5.0 * at, page(10 + 10 * at, queue_seconds=queue[at], ttft_seconds=lengths[at], prompt_tokens=lengths[at]))
            for at in (0, 1)
        ],
    )
    assert (histograms.requests_per_s, histograms.prompt_tokens_per_request) == (3.0, 800.0)


def test_the_mean_has_a_standard_error() -> None:
    """Of 25 probes with a standard deviation of 10 ms: 2 ms."""
    features = window_features([probe(ttft_ms=40 + 20 * (i % 2)) for i in range(25)])
    assert features.ttft_mean_error_s == pytest.approx(0.002, rel=0.05)


def test_the_bound_needs_the_context_of_the_batch() -> None:
    """16 GB at 2 TB/s and 16,000 tokens of 125 kB: 9 ms a step, so 10 ms is 0.9 of it; absent without the context."""
    hardware = Hardware(DecodeModel(8e9, 2, 125_000), 2e12)
    page = replace(
        PAGE,
        requests_running=4.0,
        kv_cache_usage_ratio_mean=0.1,
        kv_cache_usage_ratio_max=0.1,
        kv_cache_capacity_tokens=160_000.0,
    )
    probes = [probe(step_ms=10)] * 20
    assert window_features(probes, [(0.0, page)], (), hardware).over_bound == pytest.approx(0.9)
    assert (
        window_features(probes, [(0.0, replace(page, kv_cache_capacity_tokens=None))], (), hardware).over_bound is None
    )
    assert window_features(probes, [(0.0, page)]).over_bound is None
    assert window_features([], [(0.0, page)], (), hardware).over_bound is None


def test_tokens_that_arrive_together_are_no_decode_step() -> None:
    """Eight at a time: the gap of a flush is not a step, with or without usage."""
    stamps = tuple((100 + 80 * (i // 8)) * MS for i in range(48))
    for usage in (Usage(100, 48), None):
        timeline = Timeline(0, first_ns=stamps[0], end_ns=stamps[-1], content_ns=stamps, usage=usage)
        together = [ProbeResult("t", "w", "id", 0.0, Outcome.OK, "", timeline)] * 60
        features = window_features(together)
        assert features.step_s is None
    streamed = window_features([probe(tokens=48)] * 60)
    assert streamed.step_s == pytest.approx(0.010)


def paused(pause_ms: float, burst: int, at: int = 20, due_ms: float = 0.0) -> ProbeResult:
    """A stream of 48 tokens, 10 ms apart, which pauses before one of them; `burst` tokens arrive together after the pause."""
    first = round((due_ms + 50) * MS)
    stamps = [first + 10 * i * MS for i in range(at)]
    stamps += [stamps[-1] + round(pause_ms * MS)] * burst
    stamps += [stamps[-1] + 10 * i * MS for i in range(1, 48 - len(stamps) + 1)]
    timeline = Timeline(round(due_ms * MS), first_ns=first, end_ns=stamps[-1], content_ns=tuple(stamps))
    return ProbeResult("t", "w", "id", 0.0, Outcome.OK, "", timeline)


def test_a_pause_of_the_engine_is_told_from_one_of_the_path() -> None:
    """The engine goes on while the path pauses, so what it made arrives together afterwards. Short gaps are no pauses."""
    still = window_features([paused(500, 1)] * 20)
    assert still.still_ratio == pytest.approx(0.5 / 0.96)
    assert still.held_ratio == 0.0
    assert still.longest_still_s == pytest.approx(0.5)
    held = window_features([paused(200, 20)] * 20)
    assert held.still_ratio == 0.0
    assert held.held_ratio is not None
    assert held.held_ratio > 0.4
    short = window_features([paused(70, 1)] * 20)
    assert (short.still_ratio, short.longest_still_s) == (0.0, 0.0)


@pytest.mark.parametrize(("step_ms", "gap_ms", "is_pause"), [(10, 70, 0), (10, 100, 1), (2, 40, 0), (2, 60, 1)])
def test_a_pause_is_longer_than_eight_steps_and_50_ms(step_ms: float, gap_ms: float, is_pause: int) -> None:
    """Of 31 tokens, with one longer gap after the tenth."""
    line = probe(step_ms=step_ms, tokens=31).timeline
    later_ns = round((gap_ms - step_ms) * MS)
    stamps = (*line.content_ns[:10], *(stamp + later_ns for stamp in line.content_ns[10:]))
    answers = [replace(probe(), timeline=replace(line, content_ns=stamps, end_ns=stamps[-1]))] * 20
    assert window_features(answers).longest_still_s == pytest.approx(is_pause * gap_ms / 1e3)


def test_the_slowest_answers_show_one_slow_replica() -> None:
    """A quarter of the answers has steps of 20 ms: the plain step is not theirs."""
    features = window_features([probe(step_ms=20 if i % 4 == 0 else 10) for i in range(40)])
    assert features.step_s == pytest.approx(0.010)
    assert features.slow_step_s == pytest.approx(0.020)


def test_headers_are_compared_with_the_first_token() -> None:
    """Medians of the time to the headers, and of its share of the time to the first token; in virtual time that may be 0."""
    sent = [replace(probe().timeline, headers_ns=10 * MS) for _ in range(20)]
    features = window_features([replace(probe(), timeline=line) for line in sent])
    assert features.headers_s == pytest.approx(0.010)
    assert features.headers_ratio == pytest.approx(0.2)
    for odd in (replace(sent[0], read_delay_s=0.002), replace(sent[0], sent_ns=sent[0].first_ns)):
        unusable = window_features([replace(probe(), timeline=odd)] * 20)
        assert (unusable.headers_s, unusable.headers_ratio) == (None, None)


def test_usual_features_are_the_medians_of_windows() -> None:
    """Of each feature, of the windows in which it was measured."""
    windows = [
        WindowFeatures(probes=9, step_s=step_s, waiting=waiting) for step_s, waiting in ((1, 0), (2, None), (9, 4))
    ]
    assert typical(windows) == WindowFeatures(step_s=2, waiting=2)
    assert typical([]) == WindowFeatures()
