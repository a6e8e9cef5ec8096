"""Builds a stage and its rows from its probes, and from readings of the engine's metrics page and the GPUs."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean

from prober.measure.engine_signals import EngineSignals
from prober.measure.gpu_reading import GpuReading
from prober.measure.objective import Slo
from prober.measure.outcome import ANSWERED, Outcome
from prober.measure.result import ProbeResult
from prober.measure.slo_events import count_events
from prober.results.prompt_tokens import prompt_tokens_of
from prober.results.reasoning import reasoning_of
from prober.results.result import LATENCIES, Request, Stage, Use
from prober.statistics.clustered_quantiles import clustered_quantiles
from prober.statistics.quantiles import MIN_SAMPLES_BY_QUANTILE, Quantile, quantiles

QS = (*MIN_SAMPLES_BY_QUANTILE, 1.0)
_ANSWERED = frozenset(outcome.value for outcome in ANSWERED)


def request_of(probe: ProbeResult, stage: int, origin_ns: int) -> Request:
    """The row of one probe. origin_ns: start of the experiment on the clock of the timeline."""
    timeline, usage = probe.timeline, probe.timeline.usage
    return Request(
        stage=stage,
        start_s=(timeline.intended_ns - origin_ns) / 1e9,
        outcome=probe.outcome.value,
        error=probe.detail,
        ttft_s=timeline.ttft_s,
        itls_s=tuple(timeline.itls_s),
        tpot_s=timeline.tpot_s,
        e2e_s=timeline.e2e_s,
        send_lag_s=timeline.send_lag_s,
        prompt_tokens=usage.prompt_tokens if usage else None,
        output_tokens=usage.completion_tokens if usage else None,
        warm_up=probe.warm_up,
        cached=probe.cached,
    )


def stage_of(
    name: str,
    rate_per_s: float | None,
    probes: Sequence[ProbeResult],
    *,
    index: int,
    origin_ns: int,
    begin_ns: int,
    sending_s: float,
    slos: Sequence[Slo] = (),
    readings: Sequence[EngineSignals] = (),
    devices: Sequence[Sequence[GpuReading]] = (),
    demand_per_s: float | None = None,
    gpus: int | None = None,
    ended: str = "",
) -> tuple[Stage, tuple[Request, ...]]:
    """A stage and its rows.

    index: place of the stage in the result
    origin_ns, begin_ns: start of the experiment and of the stage
    readings, devices: readings of the engine's page and of all GPUs, in the order of time
    """
    requests = tuple(request_of(probe, index, origin_ns) for probe in probes)
    begin_s = (begin_ns - origin_ns) / 1e9
    stage = replace(
        stage_of_requests(name, rate_per_s, requests, begin_s=begin_s, sending_s=sending_s),
        slos={slo.name: _count(slo, probes) for slo in slos},
        good=sum(is_good(probe, slos) for probe in probes) if slos else None,
        use=use_of(readings, devices),
        demand_per_s=demand_per_s,
        gpus=gpus,
        ended=ended,
        prompt_lengths=prompt_tokens_of(probes),
        quality=quality_of(probes),
        reasoning=reasoning_of(probes),
    )
    return stage, requests


def stage_of_requests(
    name: str,
    rate_per_s: float | None,
    requests: Sequence[Request],
    *,
    begin_s: float | None,
    sending_s: float | None,
    duration_s: float | None = None,
) -> Stage:
    """The stage of these rows. duration_s: as the tool reports it; None: up to the end of the last answer."""
    answered = [row for row in requests if row.outcome in _ANSWERED]
    if duration_s is None and begin_s is not None:
        ends_s = [row.start_s + row.e2e_s for row in requests if row.e2e_s is not None and row.start_s is not None]
        duration_s = max([sending_s or 0.0, *(end_s - begin_s for end_s in ends_s)])
    return Stage(
        name=name,
        rate_per_s=rate_per_s,
        begin_s=begin_s,
        sending_s=sending_s,
        duration_s=duration_s,
        sent=len(requests),
        answered=len(answered),
        outcomes=dict(Counter(row.outcome for row in requests).most_common()),
        latencies=latencies(requests),
        prompt_tokens=total(row.prompt_tokens for row in answered),
        output_tokens=total(row.output_tokens for row in answered),
    )


def samples(requests: Iterable[Request]) -> dict[str, list[float]]:
    """Seconds by latency, of properly answered requests without warm-ups and cold prompts that were cached."""
    rows = list(_timed(requests))
    return {
        "ttft": _known(row.ttft_s for row in rows),
        "tpot": _known(row.tpot_s for row in rows),
        "itl": [itl_s for row in rows for itl_s in row.itls_s],
        "e2e": _known(row.e2e_s for row in rows),
    }


def quantiles_of(latency: str, requests: Iterable[Request], qs: Sequence[float] = QS) -> list[Quantile]:
    """Quantiles of one latency, empty without samples. Gaps of one answer are correlated: intervals of ITL are by request."""
    if latency == "itl":
        return clustered_quantiles([row.itls_s for row in _timed(requests)], qs)
    return quantiles(samples(requests)[latency], qs)


def latencies(requests: Iterable[Request]) -> dict[str, tuple[Quantile, ...]]:
    """Quantiles by latency, of latencies with samples."""
    rows = list(requests)
    return {latency: tuple(values) for latency in LATENCIES if (values := quantiles_of(latency, rows))}


def use_of(readings: Sequence[EngineSignals], devices: Sequence[Sequence[GpuReading]]) -> Use:
    """Summary of readings of the metrics page and of the GPUs, both in the order of time."""
    power = [total(gpu.power_watts for gpu in reading) for reading in devices]
    gpus = [gpu for reading in devices for gpu in reading]
    return Use(
        running_mean=_mean(page.requests_running for page in readings),
        waiting_mean=_mean(page.requests_waiting for page in readings),
        waiting_peak=_peak(page.requests_waiting for page in readings),
        kv_usage_peak_ratio=_peak(page.kv_cache_usage_ratio_max for page in readings),
        preemptions=_growth(page.preemptions_total for page in readings),
        gpu_utilization_mean_ratio=_mean(gpu.utilization_ratio for gpu in gpus),
        gpu_utilization_peak_ratio=_peak(gpu.utilization_ratio for gpu in gpus),
        gpu_memory_peak_ratio=_peak(
            gpu.memory_used_bytes / gpu.memory_total_bytes
            for gpu in gpus
            if gpu.memory_used_bytes is not None and gpu.memory_total_bytes
        ),
        memory_bandwidth_peak_ratio=_peak(gpu.memory_bandwidth_ratio for gpu in gpus),
        power_mean_watts=_mean(power),
        power_peak_watts=_peak(power),
    )


def is_good(probe: ProbeResult, slos: Iterable[Slo]) -> bool:
    """Whether it is answered and a bad event of no SLO; of ITL events, the share of the error budget may be bad."""
    if probe.outcome not in ANSWERED:
        return False
    counts = [(slo, *count_events(slo, probe)) for slo in slos]
    return all(bad <= (events * slo.error_budget_ratio if slo.signal == "itl" else 0) for slo, events, bad in counts)


def quality_of(probes: Iterable[ProbeResult]) -> tuple[int, int] | None:
    """(golden prompts answered, answered wrongly); None if none was sent."""
    golden = [probe.outcome for probe in probes if probe.golden is not None]
    answered = [outcome for outcome in golden if outcome in ANSWERED]
    return (len(answered), answered.count(Outcome.WRONG_ANSWER)) if golden else None


def total(values: Iterable[float | None]) -> float | None:
    """The sum; None unless all values are known, because a partial sum looks like a small one."""
    listed = list(values)
    known = _known(listed)
    return sum(known) if known and len(known) == len(listed) else None


def _timed(requests: Iterable[Request]) -> Iterator[Request]:
    """The requests whose latencies count."""
    return (row for row in requests if row.outcome in _ANSWERED and not row.warm_up and not row.cached)


def _count(slo: Slo, probes: Iterable[ProbeResult]) -> tuple[int, int]:
    """(events, bad events)."""
    counts = [count_events(slo, probe) for probe in probes]
    return sum(events for events, _ in counts), sum(bad for _, bad in counts)


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return fmean(known) if known else None


def _peak(values: Iterable[float | None]) -> float | None:
    return max(_known(values), default=None)


def _growth(values: Iterable[float | None]) -> float | None:
    """Increase of a counter; a decrease is a restart."""
    known = _known(values)
    return sum(max(0.0, after - before) for before, after in pairwise(known)) if len(known) > 1 else None
