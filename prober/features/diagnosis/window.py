"""A window of probes, of readings of the engine's page and of GPU readings, as what was `WindowFeatures`.

    before = seen(baseline_probes, baseline_readings)
    now = seen(probes, readings, devices, hardware=Hardware(model, 3.35e12))

Works on what is at hand: without probes, readings or devices their figures are absent. Costs milliseconds for 2,000 probes.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from prober.features.diagnosis.clues import Figures, WindowFeatures
from prober.measure.bandwidth_bound import DecodeModel, decode_bound_tokens_per_s, measured_to_bound_ratio
from prober.measure.engine_signals import EngineHistogram, EngineSignals
from prober.measure.gpu_reading import GpuReading
from prober.measure.outcome import ANSWERED, Outcome
from prober.measure.result import ProbeResult
from prober.statistics.quantiles import MIN_SAMPLES_BY_QUANTILE, quantiles

Reading = tuple[float, EngineSignals]

QS = (0.5, 0.9, 0.99)
APART = 1.5  # the long third of prompts against the short one: closer, and no slope can be told from noise
ALIKE = 0.1  # prompts whose lengths differ by no more of their own are of like length
MOST_GAPS = 4_000  # ITLs that are looked at, from evenly spaced probes: sorting them is most of what a window costs
WARM = "_warm"  # the end of the name of a workload's series of warm prompts, as `Workload.series` has it


@dataclass(frozen=True, slots=True)
class Hardware:
    """What the engine decodes with: see `roofline`. gpus: those that share the weights."""

    model: DecodeModel
    memory_bandwidth_bytes_per_s: float
    gpus: int = 1


def seen(
    probes: Sequence[ProbeResult],
    readings: Sequence[Reading] = (),
    devices: Sequence[Sequence[GpuReading]] = (),
    hardware: Hardware | None = None,
) -> WindowFeatures:
    """What a window shows.

    probes: of one workload, its series of warm prompts among them: percentiles of different shapes are never pooled
    readings: (seconds of one clock, the page as read) in the order of time; devices: a reading of all GPUs each. Of the probes
    those answered properly count for latencies, warm-ups and cold prompts that were cached left out; invalid ones count for
    `late_ratio`.
    """
    good = [each for each in probes if each.outcome in ANSWERED and not each.warm_up and not each.cached]
    ttfts = [(each, ttft) for each in good if (ttft := each.timeline.ttft_s) is not None]
    plain = [(each, ttft) for each, ttft in ttfts if not each.workload.endswith(WARM)] or ttfts
    lengths = [(length, ttft) for each, ttft in plain if (length := _prompt_tokens(each))]
    gaps, whole = _gaps(good)
    step_s = _step_s(gaps) if whole else None
    cold_s, warm_s = _cold_and_warm(ttfts)
    context = _context_tokens(readings)
    running = _mean(s.requests_running for _, s in readings)
    found = _page(readings)
    return WindowFeatures(
        ttft_s=_figures([ttft for _, ttft in plain]),
        itl_s=_figures(gaps),
        tpot_s=_figures([tpot for each in good if (tpot := each.timeline.tpot_s) is not None]),
        send_lag_s=_figures([lag for each in probes if (lag := each.timeline.send_lag_s) is not None]),
        ttft_mean_s=fmean(ttft for _, ttft in plain) if len(plain) >= MIN_SAMPLES_BY_QUANTILE[0.5] else None,
        step_s=step_s,
        ttft_per_prompt_token_s=per_prompt_token(lengths),
        prompt_tokens=median(length for length, _ in lengths) if lengths else None,
        ttft_cold_s=cold_s,
        ttft_warm_s=warm_s,
        connect_s=_connect_s(good),
        late_ratio=_late_ratio(probes),
        running=running,
        waiting=_mean(s.requests_waiting for _, s in readings),
        kv_usage_ratio=_high(s.kv_cache_usage_ratio_max for _, s in readings),
        preemptions_per_s=found.preemptions_per_s,
        generated_tokens_per_s=found.generated_tokens_per_s,
        computed_prompt_tokens_per_s=found.computed_prompt_tokens_per_s,
        prefix_hit_tokens_per_s=found.prefix_hit_tokens_per_s,
        prefix_hit_ratio=found.prefix_hit_ratio,
        engine_ttft_s=_observed_mean(readings, lambda s: s.ttft_seconds),
        engine_itl_s=_observed_mean(readings, lambda s: s.itl_seconds or s.tpot_seconds),
        engine_queue_s=_observed_mean(readings, lambda s: s.queue_seconds),
        gpu_utilization_ratio=_mean(d.utilization_ratio for reading in devices for d in reading),
        gpu_clock_hertz=_mean(d.sm_clock_hertz for reading in devices for d in reading),
        gpu_throttled_ratio=_mean(
            float(bool(d.throttled)) for reading in devices for d in reading if d.throttled is not None
        ),
        over_bound=_over_bound(hardware, step_s, context, running),
    )


def per_prompt_token(samples: Sequence[tuple[float, float]]) -> float | None:
    """Seconds of TTFT a prompt token costs, of (prompt tokens, TTFT in s); None where the lengths are too much alike.

    The slope between the medians of the shortest and the longest third (Tukey's resistant line, Exploratory Data Analysis,
    1977, chapter 5): a few requests that had to wait do not turn it.
    """
    ordered = sorted(samples)
    third = len(ordered) // 3
    if third < 5:
        return None
    low, high = ordered[:third], ordered[-third:]
    near, far = (median(length for length, _ in part) for part in (low, high))
    if far < APART * near:
        return None
    return (median(ttft for _, ttft in high) - median(ttft for _, ttft in low)) / (far - near)


@dataclass(frozen=True, slots=True)
class _Page:
    """What the counters of the page did in the window."""

    preemptions_per_s: float | None
    generated_tokens_per_s: float | None
    computed_prompt_tokens_per_s: float | None
    prefix_hit_tokens_per_s: float | None
    prefix_hit_ratio: float | None


def _page(readings: Sequence[Reading]) -> _Page:
    prompts = _rate(readings, lambda s: s.prompt_tokens_total)
    queries = _rate(readings, lambda s: s.prefix_cache_queries_tokens_total)
    hits = _rate(readings, lambda s: s.prefix_cache_hits_tokens_total)
    return _Page(
        _rate(readings, lambda s: s.preemptions_total),
        _rate(readings, lambda s: s.generation_tokens_total),
        prompts if prompts is None or hits is None else max(0.0, prompts - hits),
        hits,
        hits / queries if hits is not None and queries else None,
    )


def _figures(samples: Sequence[float]) -> Figures:
    return tuple(quantiles(samples, QS))


def _prompt_tokens(probe: ProbeResult) -> int:
    """As the server counts them, else as asked for; 0 if neither is known."""
    usage = probe.timeline.usage
    return (usage.prompt_tokens if usage else None) or probe.requested_prompt_tokens


def _gaps(probes: Sequence[ProbeResult]) -> tuple[list[float], bool]:
    """ITLs of evenly spaced probes, and whether each is of one token: chunks of several make steps that are none."""
    total = sum(max(0, len(each.timeline.content_ns) - 1) for each in probes)
    stride = -(-total // MOST_GAPS) or 1
    gaps: list[float] = []
    chunks = tokens = 0
    for each in probes[::stride]:
        gaps += each.timeline.itls_s
        usage = each.timeline.usage
        if usage and usage.completion_tokens:
            chunks += len(each.timeline.content_ns)
            tokens += usage.completion_tokens
    return gaps, 0.95 * tokens <= chunks


def _step_s(gaps: Sequence[float]) -> float | None:
    """The lower quartile: prefills, preemptions and slow steps of others stand above it."""
    return (sorted(gaps)[len(gaps) // 4] or None) if len(gaps) >= MIN_SAMPLES_BY_QUANTILE[0.9] else None


def _cold_and_warm(ttfts: Iterable[tuple[ProbeResult, float]]) -> tuple[float | None, float | None]:
    """Median TTFT of cold and of warm prompts: each warm one beside the cold one of its workload nearest in length."""
    series: dict[str, list[tuple[int, float]]] = {}
    for probe, ttft in ttfts:
        if length := _prompt_tokens(probe):
            series.setdefault(probe.workload, []).append((length, ttft))
    pairs: list[tuple[float, float]] = []
    for name, warm in series.items():
        cold = sorted(series.get(name.removesuffix(WARM), ())) if name.endswith(WARM) else []
        for length, ttft in warm if cold else ():
            place = bisect_left(cold, (length, 0.0))
            near = min(cold[max(0, place - 1) : place + 1], key=lambda each: abs(each[0] - length))
            if abs(near[0] - length) <= ALIKE * length:
                pairs.append((near[1], ttft))
    if len(pairs) < MIN_SAMPLES_BY_QUANTILE[0.5]:
        return None, None
    return median(cold_s for cold_s, _ in pairs), median(warm_s for _, warm_s in pairs)


def _connect_s(probes: Iterable[ProbeResult]) -> float | None:
    """Median set-up of a connection, from its start to ready."""
    spans = [
        (connection.ready_ns - connection.start_ns) / 1e9
        for each in probes
        if (connection := each.timeline.connection) is not None and connection.ready_ns is not None
    ]
    return median(spans) if len(spans) >= MIN_SAMPLES_BY_QUANTILE[0.5] else None


def _late_ratio(probes: Sequence[ProbeResult]) -> float | None:
    late = sum(each.outcome is Outcome.INVALID for each in probes)
    return late / len(probes) if len(probes) >= MIN_SAMPLES_BY_QUANTILE[0.5] else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return fmean(known) if known else None


def _high(values: Iterable[float | None]) -> float | None:
    """The 90th percentile of readings."""
    known = sorted(each for each in values if each is not None)
    return known[-1 - len(known) // 10] if known else None


def _increment(values: Sequence[float]) -> float:
    """What a counter grew by; a fall is a new start, and what was counted since is left out."""
    return sum(max(0.0, after - before) for before, after in pairwise(values))


def _rate(readings: Sequence[Reading], of: Callable[[EngineSignals], float | None]) -> float | None:
    known = [(when, value) for when, signals in readings if (value := of(signals)) is not None]
    if len(known) < 2 or known[-1][0] <= known[0][0]:
        return None
    return _increment([value for _, value in known]) / (known[-1][0] - known[0][0])


def _observed_mean(readings: Sequence[Reading], of: Callable[[EngineSignals], EngineHistogram | None]) -> float | None:
    """Mean of the observations that an engine's histogram gained."""
    known = [
        (each.counts[-1], each.sum) for _, signals in readings if (each := of(signals)) is not None and each.counts
    ]
    sums = [total for _, total in known if total is not None]
    if len(sums) != len(known):
        return None
    count = _increment([each for each, _ in known])
    return _increment(sums) / count if count else None


def _context_tokens(readings: Sequence[Reading]) -> float | None:
    """Mean tokens in the KV cache that running requests hold."""
    return _mean(
        s.kv_cache_usage_ratio_mean * s.kv_cache_capacity_tokens
        for _, s in readings
        if s.kv_cache_usage_ratio_mean is not None and s.kv_cache_capacity_tokens is not None
    )


def _over_bound(
    hardware: Hardware | None, step_s: float | None, context: float | None, running: float | None
) -> float | None:
    """None without the context of the batch: a bound that leaves it out makes a full batch look slow."""
    if hardware is None or not step_s or context is None or running is None:
        return None
    per_s = decode_bound_tokens_per_s(
        hardware.model,
        hardware.memory_bandwidth_bytes_per_s,
        gpus=hardware.gpus,
        context_tokens=context,
        sequences=max(1.0, running),
    )
    return measured_to_bound_ratio(step_s, per_s)
