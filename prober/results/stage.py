"""Builds a stage and its rows from its probes, and from readings of the engine's metrics page and the GPUs."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from prober.measure.engine_signals import EngineSignals
from prober.measure.gpu_reading import GpuReading
from prober.measure.objective import Slo
from prober.measure.outcome import ANSWERED
from prober.measure.result import ProbeResult
from prober.measure.slo_events import count_events
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
    repeat: int = 1,
    ended: str = "",
) -> tuple[Stage, tuple[Request, ...]]:
    """A stage and its rows.

    index: the stage's place in the result; origin_ns, begin_ns: start of the experiment and of the stage; readings, devices: of
    the engine's page and of all GPUs, in the order of time
    """
    requests = tuple(request_of(each, index, origin_ns) for each in probes)
    counted = {slo.name: _counted(slo, probes) for slo in slos}
    good = sum(is_good(each, slos) for each in probes) if slos else None
    found = stage_of_requests(
        name,
        rate_per_s,
        requests,
        begin_s=(begin_ns - origin_ns) / 1e9,
        sending_s=sending_s,
        slos=counted,
        good=good,
        use=use_of(readings, devices),
        demand_per_s=demand_per_s,
        gpus=gpus,
        repeat=repeat,
        ended=ended,
    )
    return found, requests


def stage_of_requests(
    name: str,
    rate_per_s: float | None,
    requests: Sequence[Request],
    *,
    begin_s: float | None,
    sending_s: float | None,
    duration_s: float | None = None,
    slos: Mapping[str, tuple[int, int]] | None = None,
    good: int | None = None,
    use: Use | None = None,
    demand_per_s: float | None = None,
    gpus: int | None = None,
    repeat: int = 1,
    ended: str = "",
) -> Stage:
    """The stage of these rows. duration_s: if a tool reports it, else up to the end of the last answer."""
    answered = [each for each in requests if each.outcome in _ANSWERED]
    if duration_s is None and begin_s is not None:
        ends = [each.start_s + each.e2e_s for each in requests if each.e2e_s is not None and each.start_s is not None]
        duration_s = max([sending_s or 0.0, *(end - begin_s for end in ends)])
    return Stage(
        name=name,
        rate_per_s=rate_per_s,
        begin_s=begin_s,
        sending_s=sending_s,
        duration_s=duration_s,
        sent=len(requests),
        answered=len(answered),
        outcomes=dict(Counter(each.outcome for each in requests).most_common()),
        latencies=latencies(requests),
        prompt_tokens=_total(each.prompt_tokens for each in answered),
        output_tokens=_total(each.output_tokens for each in answered),
        demand_per_s=demand_per_s,
        gpus=gpus,
        use=use or Use(),
        slos=dict(slos or {}),
        good=good,
        repeat=repeat,
        ended=ended,
    )


def samples(requests: Iterable[Request]) -> dict[str, list[float]]:
    """Seconds by latency, of properly answered requests without warm-ups and cold prompts that were cached."""
    found: dict[str, list[float]] = {"ttft": [], "tpot": [], "itl": [], "e2e": []}
    for each in _timed(requests):
        for latency, value in (("ttft", each.ttft_s), ("tpot", each.tpot_s), ("e2e", each.e2e_s)):
            if value is not None:
                found[latency].append(value)
        found["itl"] += each.itls_s
    return found


def quantiles_of(latency: str, requests: Iterable[Request], qs: Sequence[float] = QS) -> list[Quantile]:
    """Quantiles of one latency, empty without samples. The gaps of one answer are alike: intervals of ITL are by request."""
    if latency == "itl":
        return clustered_quantiles([each.itls_s for each in _timed(requests)], qs)
    return quantiles(samples(requests)[latency], qs)


def latencies(requests: Iterable[Request]) -> dict[str, tuple[Quantile, ...]]:
    """Quantiles by latency, of latencies with samples."""
    rows = list(requests)
    return {latency: tuple(found) for latency in LATENCIES if (found := quantiles_of(latency, rows))}


def use_of(readings: Sequence[EngineSignals], devices: Sequence[Sequence[GpuReading]]) -> Use:
    """Summary of readings of the metrics page and the GPUs, both in order of time."""
    power = [_total(each.power_watts for each in reading) for reading in devices]
    gpus = [each for reading in devices for each in reading]
    return Use(
        running_mean=_mean(each.requests_running for each in readings),
        waiting_mean=_mean(each.requests_waiting for each in readings),
        waiting_peak=_peak(each.requests_waiting for each in readings),
        kv_usage_peak_ratio=_peak(each.kv_cache_usage_ratio_max for each in readings),
        preemptions=_growth(each.preemptions_total for each in readings),
        gpu_utilization_mean_ratio=_mean(each.utilization_ratio for each in gpus),
        gpu_utilization_peak_ratio=_peak(each.utilization_ratio for each in gpus),
        gpu_memory_peak_ratio=_peak(
            each.memory_used_bytes / each.memory_total_bytes
            for each in gpus
            if each.memory_used_bytes is not None and each.memory_total_bytes
        ),
        memory_bandwidth_peak_ratio=_peak(each.memory_bandwidth_ratio for each in gpus),
        power_mean_watts=_mean(power),
        power_peak_watts=_peak(power),
    )


def _timed(requests: Iterable[Request]) -> Iterator[Request]:
    """The requests whose latencies count."""
    return (each for each in requests if each.outcome in _ANSWERED and not each.warm_up and not each.cached)


def _counted(slo: Slo, probes: Iterable[ProbeResult]) -> tuple[int, int]:
    pairs = [count_events(slo, each) for each in probes]
    return sum(seen for seen, _ in pairs), sum(bad for _, bad in pairs)


def is_good(probe: ProbeResult, slos: Iterable[Slo]) -> bool:
    """Answered, and a bad event of no SLO; of ITL events as many may be bad as its objective allows."""
    if probe.outcome not in ANSWERED:
        return False
    pairs = [(slo, *count_events(slo, probe)) for slo in slos]
    return all(bad <= (seen * slo.error_budget_ratio if slo.signal == "itl" else 0) for slo, seen, bad in pairs)


def _known(values: Iterable[float | None]) -> list[float]:
    return [each for each in values if each is not None]


def _mean(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return fmean(known) if known else None


def _peak(values: Iterable[float | None]) -> float | None:
    return max(_known(values), default=None)


def _total(values: Iterable[float | None]) -> float | None:
    """The sum; None unless all values are known, as a partial sum looks like a small one."""
    found = list(values)
    known = _known(found)
    return sum(known) if known and len(known) == len(found) else None


def _growth(values: Iterable[float | None]) -> float | None:
    """Increase of a counter; a decrease is a restart."""
    known = _known(values)
    return sum(max(0.0, after - before) for before, after in pairwise(known)) if len(known) > 1 else None
