"""Features of a window of probes, readings of the engine's page, and GPU readings.

    before = window_features(baseline_probes, baseline_readings)
    now = window_features(probes, readings, devices, hardware=Hardware(model, 3.35e12))

Features whose input is missing are absent. 2,000 probes take milliseconds.
"""

import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from statistics import fmean, median, stdev
from typing import NamedTuple

from prober.config.serving import DecodeBoundSpec
from prober.features.diagnosis.clues import GROWN, MOST, WindowFeatures
from prober.features.diagnosis.trouble import due_s
from prober.measure.bandwidth_bound import (
    DecodeModel,
    UnknownFigure,
    decode_bound_tokens_per_s,
    memory_bandwidth,
)
from prober.measure.engine_signals import EngineHistogram, EngineSignals
from prober.measure.gpu_reading import GpuReading
from prober.measure.outcome import ANSWERED, BAD
from prober.measure.result import ProbeResult
from prober.measure.server_timing import NO_PARTS, TimeParts
from prober.statistics.quantiles import MIN_SAMPLES_BY_QUANTILE

Reading = tuple[float, EngineSignals]

MAX_LENGTH_DIFFERENCE = 0.1  # between prompts of similar length, relative to the length
SINGLE = 0.75  # flushes per token; a busy machine or lossy path merges some, speculation yields more tokens per step
MAX_GAPS = 4_000  # ITLs used, from evenly spaced probes: sorting takes most of the time
PAUSE_STEPS, PAUSE_S = 8, 0.05  # a gap longer than both is a pause of the stream
BURST_SHARE = 0.3  # of a pause's tokens: that many arrive after it if it was on the path
WARM = "_warm"  # suffix of a workload's series of warm prompts, see `Workload.series`


@dataclass(frozen=True, slots=True)
class Hardware:
    """Hardware on which the engine decodes, see `bandwidth_bound`. gpus: number of GPUs that share the weights"""

    model: DecodeModel
    memory_bandwidth_bytes_per_s: float
    gpus: int = 1


def hardware_of(decode: DecodeBoundSpec | None, devices: Sequence[GpuReading] = (), ranks: int = 1) -> Hardware | None:
    """Hardware of one rank; None if `decode` is not configured, or if the memory bandwidth is unknown."""
    if decode is None:
        return None
    bandwidth = decode.memory_bandwidth_bytes_per_s
    if bandwidth is None:
        names = {device.name for device in devices}
        try:
            bandwidth = memory_bandwidth(names.pop() if len(names) == 1 else "")
        except UnknownFigure:
            return None
    return Hardware(decode.model, bandwidth, decode.gpus or max(1, len(devices) // ranks))


def window_features(
    probes: Sequence[ProbeResult],
    readings: Sequence[Reading] = (),
    devices: Sequence[Sequence[GpuReading]] = (),
    hardware: Hardware | None = None,
    own: Sequence[ProbeResult] = (),
) -> WindowFeatures:
    """Compute the features of one window.

    probes: of one workload, including its series of warm prompts; percentiles of different shapes are never pooled. Latencies use
    answered probes without warm-ups and cached cold prompts.
    readings: (seconds of one clock, signals of the page) in the order of time.
    devices: readings of all GPUs, one sequence per time.
    own: probes of all workloads, by which the requests of others are counted; without them `probes`
    """
    good = [probe for probe in probes if probe.outcome in ANSWERED and not probe.warm_up and not probe.cached]
    ttfts = [(probe, ttft) for probe in good if (ttft := probe.timeline.ttft_s) is not None]
    cold = [(probe, ttft) for probe, ttft in ttfts if not probe.workload.endswith(WARM)] or ttfts
    by_length = [(length, ttft) for probe, ttft in cold if (length := _prompt_tokens(probe))]
    line = prompt_line(by_length)
    mean_s, error_s = _mean_and_error([ttft for _, ttft in ttfts])
    gaps, are_single_tokens = _gaps(good)
    step_s = _step_s(gaps) if are_single_tokens else None
    still_ratio, held_ratio, longest_still_s = _pauses(good, _step_s(gaps))
    failed = failures_of(probe for probe in probes if probe.outcome in BAD)
    cold_s, warm_s, saving_error_s = _cold_and_warm(ttfts)
    headers_s, headers_ratio = _headers(good)
    parts = [probe.timeline.parts or NO_PARTS for probe, _ in ttfts]
    running = _mean(s.requests_running for _, s in readings)
    kv_cache_tokens = _mean(
        s.kv_cache_usage_ratio_mean * s.kv_cache_capacity_tokens / (s.ranks or 1)
        for _, s in readings
        if s.kv_cache_usage_ratio_mean is not None and s.kv_cache_capacity_tokens is not None
    )
    over_bound = None  # if the batch's context is unknown
    if hardware is not None and step_s and kv_cache_tokens is not None and running is not None:
        # Each rank reads the weights, and its own requests' context.
        ranks = max(s.ranks or 1 for _, s in readings)
        per_s = decode_bound_tokens_per_s(
            hardware.model,
            hardware.memory_bandwidth_bytes_per_s,
            gpus=hardware.gpus,
            context_tokens=kv_cache_tokens,
            sequences=max(1.0, running / ranks),
        )
        over_bound = 1 / step_s / per_s
    prompts, requests = _rate(readings, lambda s: s.prompt_tokens_total), _rate(readings, _requests_total)
    prompt_tokens = _observed_mean(readings, lambda s: s.prompt_tokens)
    if prompt_tokens is None and prompts is not None and requests:
        prompt_tokens = prompts / requests
    if requests and _own_rate(own or probes, readings) > MOST * requests:
        prompt_tokens = None  # a mean of the probes, whose lengths vary, and not of users
    queries = _rate(readings, lambda s: s.prefix_cache_queries_tokens_total)
    hits = _rate(readings, lambda s: s.prefix_cache_hits_tokens_total)
    return WindowFeatures(
        probes=len(probes),
        failures={f"{outcome}: {detail}" if detail else outcome: count for outcome, detail, count in failed},
        ttft_mean_s=mean_s,
        ttft_mean_error_s=error_s,
        step_s=step_s,
        slow_step_s=_slow_step_s(good) if are_single_tokens else None,
        still_ratio=still_ratio,
        held_ratio=held_ratio,
        longest_still_s=longest_still_s,
        ttft_per_prompt_token_s=line.slope if line else None,
        ttft_per_prompt_token_error_s=line.error if line else None,
        long_prompt_tokens=line.tokens if line else None,
        long_ttft_s=line.ttft_s if line else _median(ttft for _, ttft in cold),
        ttft_cold_s=cold_s,
        ttft_warm_s=warm_s,
        saving_error_s=saving_error_s,
        connect_s=_median(map(_connect_s, good)),
        network_s=_median(probe.timeline.network_s for probe in good),
        headers_s=headers_s,
        headers_ratio=headers_ratio,
        gateway_part_s=_part_mean(parts, lambda told: told.gateway_s),
        queue_part_s=_part_mean(parts, lambda told: told.queue_s),
        prefill_part_s=_part_mean(parts, lambda told: told.prefill_s),
        step_part_s=_median(map(_step_part_s, good)),
        running=running,
        waiting=_mean(s.requests_queued for _, s in readings),
        kv_usage_ratio=_high(s.kv_cache_usage_ratio_max for _, s in readings),
        requests_per_s=requests,
        prompt_tokens_per_request=prompt_tokens,
        preemptions_per_s=_rate(readings, lambda s: s.preemptions_total),
        generated_tokens_per_s=_rate(readings, lambda s: s.generation_tokens_total),
        computed_prompt_tokens_per_s=prompts if prompts is None or hits is None else max(0.0, prompts - hits),
        prefix_hit_tokens_per_s=hits,
        prefix_hit_ratio=hits / queries if hits is not None and queries else None,
        engine_ttft_s=_observed_mean(readings, lambda s: s.ttft_seconds),
        engine_queue_s=_observed_mean(readings, lambda s: s.queue_seconds),
        kv_transfer_s=_observed_mean(readings, lambda s: s.kv_transfer_seconds),
        kv_transfer_failures_per_s=_rate(readings, lambda s: s.kv_transfer_failures_total),
        gpu_clock_hertz=_mean(d.sm_clock_hertz for reading in devices for d in reading),
        gpu_throttled_ratio=_mean(
            float(bool(d.throttled)) for reading in devices for d in reading if d.throttled is not None
        ),
        gpu_memory_ratio=_mean(
            d.memory_used_bytes / d.memory_total_bytes
            for reading in devices
            for d in reading
            if d.memory_used_bytes is not None and d.memory_total_bytes
        ),
        gpu_processes=_mean(
            sum(len(d.processes) for d in reading if d.processes is not None)
            if any(d.processes for d in reading)
            else None  # a container may show none
            for reading in devices
        ),
        kv_cache_tokens=kv_cache_tokens,
        kv_capacity_tokens=_mean(
            s.kv_cache_capacity_tokens / (s.ranks or 1) for _, s in readings if s.kv_cache_capacity_tokens is not None
        ),
        over_bound=over_bound,
    )


class Failure(NamedTuple):
    """Number of probes that failed in one way. detail: error of the transport, or status and server's text"""

    outcome: str
    detail: str
    probes: int

    def text(self) -> str:
        """Line of text, such as `70 × http_404: HTTP 404: no model 'x'`."""
        return f"{self.probes} × {self.outcome}{f': {self.detail}' if self.detail else ''}"


def failures_of(probes: Iterable[ProbeResult]) -> list[Failure]:
    """Kinds of failure of these probes, most frequent first. Details that differ only in numbers are one kind."""
    kinds: dict[tuple[str, str], Counter[str]] = {}
    for probe in probes:
        alike = re.sub(r"(?<!HTTP )\b\d+", "", probe.detail)
        kinds.setdefault((str(probe.outcome.value), alike), Counter())[probe.detail] += 1
    failures = [
        Failure(outcome, f"{'such as ' if len(details) > 1 else ''}{details.most_common(1)[0][0]}", details.total())
        for (outcome, _), details in kinds.items()
    ]
    return sorted(failures, key=lambda failure: -failure.probes)


def _pauses(probes: Sequence[ProbeResult], step_s: float | None) -> tuple[float | None, float | None, float | None]:
    """(still_ratio, held_ratio, longest_still_s). Pauses are gaps of PAUSE_STEPS decode steps and PAUSE_S.

    If the path pauses, the engine continues, so the tokens of that time arrive together afterwards. If the engine stands still, it
    sends one token after the pause.
    """
    if step_s is None:
        return None, None, None
    least_ns = 1e9 * max(PAUSE_STEPS * step_s, PAUSE_S)
    still_ns, held_ns, streamed_ns = list[int](), 0, 0
    for probe in probes:
        stamps, starts = probe.timeline.content_ns, probe.timeline.flush_starts
        if probe.timeline.is_read_late or len(stamps) < 2:
            continue
        streamed_ns += stamps[-1] - stamps[0]
        for place, size in enumerate(probe.timeline.flush_sizes[1:], 1):
            gap_ns = stamps[starts[place]] - stamps[starts[place] - 1]
            if gap_ns < least_ns:
                continue
            is_rest = starts[place] + size == len(stamps) > 1 < size
            if is_rest or size >= BURST_SHARE * gap_ns / 1e9 / step_s:
                held_ns += gap_ns
            else:
                still_ns.append(gap_ns)
    longest_s = max(still_ns, default=0) / 1e9
    return (sum(still_ns) / streamed_ns, held_ns / streamed_ns, longest_s) if streamed_ns else (None, None, longest_s)


class PromptLine(NamedTuple):
    """TTFT as a function of prompt length.

    slope: seconds per token; error: its standard error; tokens, ttft_s: medians of long prompts
    """

    slope: float
    error: float
    tokens: float
    ttft_s: float


def prompt_line(samples: Sequence[tuple[float, float]]) -> PromptLine | None:
    """Line through (prompt tokens, TTFT in s); None if the lengths are too similar.

    The slope connects the medians of the shortest and longest third (Tukey's resistant line, Exploratory Data Analysis,
    1977, chapter 5), which a few waiting requests do not change.
    """
    ordered = sorted(samples)
    third = len(ordered) // 3
    if third < 5:
        return None
    low, high = ordered[:third], ordered[-third:]
    short, long = (median(length for length, _ in part) for part in (low, high))
    if long < GROWN * short:
        return None
    low_s, high_s = ([ttft for _, ttft in part] for part in (low, high))
    error_s = math.hypot(_median_error(low_s, third), _median_error(high_s, third))
    return PromptLine(
        (median(high_s) - median(low_s)) / (long - short),
        error_s / (long - short),
        long,
        median(high_s),
    )


def _prompt_tokens(probe: ProbeResult) -> int:
    """Prompt tokens counted by the server, or else as requested; 0 if unknown."""
    usage = probe.timeline.usage
    return (usage.prompt_tokens if usage else None) or probe.requested_prompt_tokens


def _gaps(probes: Sequence[ProbeResult]) -> tuple[list[float], bool]:
    """(ITLs of evenly spaced probes, True if most flushes are single tokens, so that ITLs are decode steps)."""
    total = sum(max(0, len(probe.timeline.content_ns) - 1) for probe in probes)
    stride = -(-total // MAX_GAPS) or 1
    gaps: list[float] = []
    flushes = tokens = 0
    for probe in probes[::stride]:
        gaps += probe.timeline.itls_s
        flushes += len(probe.timeline.flush_sizes)
        tokens += max(probe.timeline.streamed_tokens or 0, len(probe.timeline.content_ns))
    return gaps, SINGLE * tokens <= flushes


def _step_s(gaps: Sequence[float]) -> float | None:
    """Decode step: lower quartile of the gaps, without prefills, preemptions and steps slowed by other requests."""
    return (sorted(gaps)[len(gaps) // 4] or None) if len(gaps) >= MIN_SAMPLES_BY_QUANTILE[0.9] else None


def _slow_step_s(probes: Iterable[ProbeResult]) -> float | None:
    """Decode step of the slowest fifth of the answers, which reveals one slow replica among several."""
    steps = sorted(sorted(itls)[len(itls) // 4] for probe in probes if (itls := probe.timeline.itls_s))
    return steps[-1 - len(steps) // 5] if len(steps) >= MIN_SAMPLES_BY_QUANTILE[0.5] else None


def _cold_and_warm(ttfts: Iterable[tuple[ProbeResult, float]]) -> tuple[float, float, float] | tuple[None, None, None]:
    """Median TTFT of cold and of warm prompts of the same lengths, and the standard error of their difference.

    A warm prompt is compared with its workload's cold ones of similar length. The error is that of the median saving, for
    normal samples, computed from the quartiles, which a few slow requests do not change. It includes the variation by length, because
    a later window has other lengths.
    """
    series: dict[str, list[tuple[int, float]]] = {}
    for probe, ttft in ttfts:
        if length := _prompt_tokens(probe):
            series.setdefault(probe.workload, []).append((length, ttft))
    warms_s: list[float] = []
    savings_s: list[float] = []
    compared: set[tuple[str, int]] = set()
    for name, warm in series.items():
        cold = series.get(name.removesuffix(WARM), ()) if name.endswith(WARM) else ()
        for length, ttft in warm:
            near = {
                (name, place): cold_s
                for place, (cold_length, cold_s) in enumerate(cold)
                if abs(cold_length - length) <= MAX_LENGTH_DIFFERENCE * length
            }
            if near:
                warms_s.append(ttft)
                savings_s.append(median(near.values()) - ttft)
                compared |= near.keys()
    samples = min(len(warms_s), len(compared))
    if samples < MIN_SAMPLES_BY_QUANTILE[0.5]:
        return None, None, None
    warm_s = median(warms_s)
    return warm_s + median(savings_s), warm_s, _median_error(savings_s, samples)


def _median_error(samples: Sequence[float], independent: int) -> float:
    """Standard error of the median of normal samples. independent: how many of them are independent"""
    low, _, high = statistics.quantiles(samples, n=4)
    return 1.2533 * (high - low) / 1.349 / math.sqrt(independent)


def _median(samples: Iterable[float | None]) -> float | None:
    """Median of the known samples; None with too few."""
    known = [sample for sample in samples if sample is not None]
    return median(known) if len(known) >= MIN_SAMPLES_BY_QUANTILE[0.5] else None


def _connect_s(probe: ProbeResult) -> float | None:
    """Time to set up the connection."""
    connection = probe.timeline.connection
    return (
        (connection.ready_ns - connection.start_ns) / 1e9
        if connection is not None and connection.ready_ns is not None
        else None
    )


def _headers(probes: Iterable[ProbeResult]) -> tuple[float, float] | tuple[None, None]:
    """(mean time from sending to the headers, median of that time ÷ time to the first token)."""
    spans = [
        (line.headers_ns - line.sent_ns, line.first_ns - line.sent_ns)
        for probe in probes
        if not (line := probe.timeline).is_read_late
        and line.headers_ns
        and line.first_ns
        and line.sent_ns is not None
        and line.sent_ns < line.first_ns
    ]
    if len(spans) < MIN_SAMPLES_BY_QUANTILE[0.5]:
        return None, None
    return fmean(headers for headers, _ in spans) / 1e9, median(headers / first for headers, first in spans)


def _part_mean(parts: Sequence[TimeParts], of: Callable[[TimeParts], float | None]) -> float | None:
    """Mean of a part that most of the probes tell; None with too few."""
    told_s = [part_s for told in parts if (part_s := of(told)) is not None]
    return fmean(told_s) if len(told_s) >= max(MIN_SAMPLES_BY_QUANTILE[0.5], MOST * len(parts)) else None


def _step_part_s(probe: ProbeResult) -> float | None:
    """Time per token after the first, as the engine tells it."""
    parts, usage = probe.timeline.parts, probe.timeline.usage
    if parts is None or parts.decode_s is None or usage is None or (usage.completion_tokens or 0) < 2:
        return None
    return parts.decode_s / ((usage.completion_tokens or 0) - 1)


def typical(windows: Iterable[WindowFeatures]) -> WindowFeatures:
    """Usual features: the median of each feature over the windows in which it was measured."""
    rows = list(windows)
    names = [part.name for part in fields(WindowFeatures) if part.name not in ("probes", "failures")]
    columns = {name: [value for row in rows if (value := getattr(row, name)) is not None] for name in names}
    return WindowFeatures(**{name: median(values) for name, values in columns.items() if values})


def _mean(values: Iterable[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return fmean(measured) if measured else None


def _mean_and_error(samples: Sequence[float]) -> tuple[float | None, float | None]:
    """(mean, its standard error) of independent samples; None with too few."""
    if len(samples) < MIN_SAMPLES_BY_QUANTILE[0.5]:
        return None, None
    return fmean(samples), stdev(samples) / math.sqrt(len(samples))


def _high(values: Iterable[float | None]) -> float | None:
    """90th percentile of the known values."""
    measured = sorted(value for value in values if value is not None)
    return measured[-1 - len(measured) // 10] if measured else None


def _increment(values: Sequence[float]) -> float:
    """Increase of a counter. A decrease is a restart: what was counted between it and the next reading is left out."""
    return sum(max(0.0, after - before) for before, after in pairwise(values))


def _rate(readings: Sequence[Reading], of: Callable[[EngineSignals], float | None]) -> float | None:
    samples = [(when, value) for when, signals in readings if (value := of(signals)) is not None]
    if len(samples) < 2 or samples[-1][0] <= samples[0][0]:
        return None
    return _increment([value for _, value in samples]) / (samples[-1][0] - samples[0][0])


def _observed_mean(readings: Sequence[Reading], of: Callable[[EngineSignals], EngineHistogram | None]) -> float | None:
    """Mean of the observations added to an engine's histogram during the readings."""
    totals = [
        (histogram.counts[-1], histogram.sum)
        for _, signals in readings
        if (histogram := of(signals)) is not None and histogram.counts
    ]
    sums = [total for _, total in totals if total is not None]
    if len(sums) != len(totals):
        return None
    count = _increment([number for number, _ in totals])
    return _increment(sums) / count if count else None


def _own_rate(probes: Iterable[ProbeResult], readings: Sequence[Reading]) -> float:
    """Probes per second that were due between the first and the last of at least two readings."""
    (first_s, _), (last_s, _) = readings[0], readings[-1]
    return sum(first_s <= due_s(probe) < last_s for probe in probes) / (last_s - first_s)


def _requests_total(signals: EngineSignals) -> float | None:
    """Total number of requests, from the first histogram or counter on the page that counts them."""
    for histogram in (signals.queue_seconds, signals.ttft_seconds):
        if histogram is not None and histogram.counts:
            return histogram.counts[-1]
    return signals.requests_finished_total
