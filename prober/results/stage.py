"""Computes a stage from its probes and from readings of the engine's metrics page and the GPUs."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from statistics import fmean, pstdev

from prober.measure.engine_signals import EngineSignals
from prober.measure.gpu_reading import GpuReading
from prober.measure.objective import Slo, count_events
from prober.measure.outcome import ANSWERED, Outcome
from prober.measure.result import ProbeResult
from prober.results.delivery import Deliveries, is_good
from prober.results.facets import FACETS
from prober.results.refused_requests import refused_requests
from prober.results.result import LATENCIES, RequestRow, Stage
from prober.results.shedding import shedding_of
from prober.results.stage_parts import prompt_tokens_of
from prober.statistics.quantiles import REPORTED_QUANTILES, Quantile, clustered_quantiles, quantile_bounds, quantiles

FAR_TAIL, MIN_FAR_TAIL_SAMPLES = 0.999, 1_000  # with fewer samples that quantile is just the maximum and not stated
# Of a stage's requests cut in flight; beyond it TPOT is unknown, as only quick requests were answered.
MAX_CUT_RATIO = 0.05


def request_of(probe: ProbeResult, origin_ns: int) -> RequestRow:
    """The row of one probe. origin_ns: start of the experiment, on the clock of the timelines"""
    timeline, usage = probe.timeline, probe.timeline.usage
    return RequestRow(
        start_s=(timeline.origin_ns - origin_ns) / 1e9,
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
        cut_s=None if timeline.cut_ns is None else (timeline.cut_ns - timeline.origin_ns) / 1e9,
    )


def stage_of(
    name: str,
    rate_per_s: float | None,
    probes: Sequence[ProbeResult],
    *,
    origin_ns: int,
    begin_ns: int,
    sending_s: float,
    slos: Sequence[Slo] = (),
    readings: Sequence[EngineSignals] = (),
    devices: Sequence[Sequence[GpuReading]] = (),
    demand_per_s: float | None = None,
    gpus: int | None = None,
    ended: str = "",
    delivered: Deliveries | None = None,
) -> Stage:
    """Compute a stage from its probes.

    origin_ns, begin_ns: start of the experiment and of the stage, on the clock of the timelines
    delivered: deliveries of all the experiment's requests; None: only those of `probes`
    readings, devices: readings of the engine's metrics page and of all GPUs, in order of time
    """
    requests = [request_of(probe, origin_ns) for probe in probes]
    begin_s, end_ns = (begin_ns - origin_ns) / 1e9, begin_ns + round(sending_s * 1e9)
    delivered = Deliveries(probes, slos, ((rate_per_s, begin_ns, end_ns),)) if delivered is None else delivered
    return replace(
        stage_of_requests(name, rate_per_s, requests, begin_s=begin_s, sending_s=sending_s),
        slos={slo.name: _count(slo, probes) for slo in slos},
        good=sum(is_good(probe, slos) is True and probe.outcome in ANSWERED for probe in probes) if slos else None,
        use=use_of(readings, devices),
        demand_per_s=demand_per_s,
        gpus=gpus,
        ended=ended,
        throughput=delivered.throughput(rate_per_s, begin_ns, end_ns),
        delivered=delivered.between(begin_ns, end_ns),
        prompt_lengths=prompt_tokens_of(probes),
        quality=quality_of(probes),
        refused=refused_requests(probes),
        shedding=shedding_of(probes, sending_s, partial(is_good, slos=slos)),
        **{facet.name: facet.compute(probes) for facet in FACETS if facet.compute is not None},
    )


def stage_of_requests(
    name: str,
    rate_per_s: float | None,
    requests: Sequence[RequestRow],
    *,
    begin_s: float | None,
    sending_s: float | None,
    duration_s: float | None = None,
) -> Stage:
    """Compute a stage from rows. duration_s: as reported by the other tool; None: until the end of the last answer"""
    answered = [row for row in requests if row.is_answered]
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
        latencies=_stated({latency: quantiles_of(latency, requests) for latency in LATENCIES}),
        at_least=_stated(
            {
                latency: quantile_bounds(values, REPORTED_QUANTILES, censored(latency, requests))
                for latency, values in samples(requests).items()
                if latency != "itl"
            }
        ),
        prompt_tokens=total(row.prompt_tokens for row in answered),
        output_tokens=total(row.output_tokens for row in answered),
        requests=tuple(requests),
    )


def samples(requests: Iterable[RequestRow]) -> dict[str, list[float]]:
    """{latency: values in seconds} of properly answered requests, without warm-ups and without cached cold prompts.

    TTFT and ITL also include requests that were cut in flight. TPOT is empty if more than `MAX_CUT_RATIO` of the requests were cut.
    """
    rows = list(_timed(requests))
    cut = sum(row.cut_s is not None for row in rows)
    return {
        "ttft": _known(row.ttft_s for row in rows),
        "tpot": _known(row.tpot_s for row in rows) if cut <= MAX_CUT_RATIO * len(rows) else [],
        "itl": [itl_s for row in rows for itl_s in row.itls_s],
        "e2e": _known(row.e2e_s for row in rows),
    }


def censored(latency: str, requests: Iterable[RequestRow]) -> list[float]:
    """Lower bounds in seconds of a latency ("ttft" or "e2e") from requests that were cut before it was known."""
    if latency not in ("ttft", "e2e"):
        return []
    cut = ((row.cut_s, getattr(row, f"{latency}_s")) for row in _timed(requests))
    return [cut_s for cut_s, value_s in cut if cut_s is not None and value_s is None]


def moments(stage: Stage, latency: str) -> tuple[float | None, float | None]:
    """(mean, standard deviation) in seconds, from the requests of the stage, or else as its tool reports them.

    None if unknown: no samples, or a request was cut before its value was known.
    """
    values = samples(stage.requests)[latency]
    if values and not censored(latency, stage.requests):
        return fmean(values), pstdev(values)
    reported = {} if stage.requests else stage.reported.get(latency, {})
    return reported.get("mean"), reported.get("std")


def is_stated(q: float, count: int) -> bool:
    """True if a quantile of `count` samples is stated: always, except a p99.9 that is just the maximum."""
    return q != FAR_TAIL or count >= MIN_FAR_TAIL_SAMPLES


def _stated(by_latency: Mapping[str, Sequence[Quantile]]) -> dict[str, tuple[Quantile, ...]]:
    """The stated quantiles of each latency that has any."""
    stated = {
        latency: tuple(value for value in values if is_stated(value.q, value.count))
        for latency, values in by_latency.items()
    }
    return {latency: values for latency, values in stated.items() if values}


def quantiles_of(
    latency: str, requests: Iterable[RequestRow], qs: Sequence[float] = REPORTED_QUANTILES
) -> list[Quantile]:
    """Quantiles of one latency that the samples determine, with confidence intervals; empty without samples.

    Gaps within an answer are correlated, so ITL intervals are computed from clusters, one per request.
    """
    rows = list(requests)
    if latency == "itl":
        return clustered_quantiles([row.itls_s for row in _timed(rows)], qs)
    return quantiles(samples(rows)[latency], qs, censored(latency, rows))


Pages = Sequence[EngineSignals]
Devices = Sequence[GpuReading]
# Figures of engine and GPUs during a stage: label, and value from readings of the engine's page and each GPU, in order of time.
# Ratios are 0 to 1; power is the sum of all GPUs.
USES: Mapping[str, tuple[str, Callable[[Pages, Sequence[Devices]], float | None]]] = {
    "running_mean": ("running", lambda pages, _: _mean(page.requests_running for page in pages)),
    "waiting_mean": ("waiting", lambda pages, _: _mean(page.requests_waiting for page in pages)),
    "waiting_peak": ("waiting, peak", lambda pages, _: _peak(page.requests_waiting for page in pages)),
    "queue_mean_s": (
        "time in the queue, mean",
        lambda pages, _: _ratio(
            _growth(page.queue_seconds.sum for page in pages if page.queue_seconds is not None),
            _growth(page.queue_seconds.counts[-1] for page in pages if page.queue_seconds is not None),
        ),
    ),
    "prefix_hit_ratio": (
        "prefix cache hits",
        lambda pages, _: _ratio(
            _growth(page.prefix_cache_hits_tokens_total for page in pages),
            _growth(page.prefix_cache_queries_tokens_total for page in pages),
        ),
    ),
    "kv_usage_peak_ratio": ("KV cache, peak", lambda pages, _: _peak(page.kv_cache_usage_ratio_max for page in pages)),
    "preemptions": ("preemptions", lambda pages, _: _growth(page.preemptions_total for page in pages)),
    "gpu_utilization_mean_ratio": ("GPU", lambda _, gpus: _mean(gpu.utilization_ratio for gpu in chain(*gpus))),
    "gpu_utilization_peak_ratio": ("GPU, peak", lambda _, gpus: _peak(gpu.utilization_ratio for gpu in chain(*gpus))),
    "gpu_memory_peak_ratio": (
        "GPU memory, peak",
        lambda _, gpus: _peak(_ratio(gpu.memory_used_bytes, gpu.memory_total_bytes) for gpu in chain(*gpus)),
    ),
    "memory_bandwidth_peak_ratio": (
        "memory bandwidth, peak",
        lambda _, gpus: _peak(gpu.memory_bandwidth_ratio for gpu in chain(*gpus)),
    ),
    "power_mean_watts": ("power, W", lambda _, gpus: _mean(total(gpu.power_watts for gpu in each) for each in gpus)),
    "power_peak_watts": (
        "power, peak, W",
        lambda _, gpus: _peak(total(gpu.power_watts for gpu in each) for each in gpus),
    ),
}


def use_of(pages: Pages, gpus: Sequence[Devices]) -> dict[str, float | None]:
    """The figures of `USES` by name. pages, gpus: readings of the engine's metrics page and of all GPUs, in order of time"""
    return {name: of(pages, gpus) for name, (_, of) in USES.items()}


def quality_of(probes: Iterable[ProbeResult]) -> tuple[int, int] | None:
    """Numbers of (checked answers, wrong answers); None without checks."""
    checked = [probe.outcome for probe in probes if probe.check is not None]
    answered = [outcome for outcome in checked if outcome in ANSWERED]
    return (len(answered), answered.count(Outcome.WRONG_ANSWER)) if checked else None


def total(values: Iterable[float | None]) -> float | None:
    """The sum; None unless all values are known, because a partial sum would look like a small total."""
    listed = list(values)
    known = _known(listed)
    return sum(known) if known and len(known) == len(listed) else None


def _timed(requests: Iterable[RequestRow]) -> Iterator[RequestRow]:
    """Yield the requests with counted latencies, including those that were cut."""
    return (row for row in requests if row.is_timed or (row.cut_s is not None and not row.warm_up and not row.cached))


def _count(slo: Slo, probes: Iterable[ProbeResult]) -> tuple[int, int]:
    """Numbers of (events, bad events) of an SLO."""
    counts = [count_events(slo, probe) for probe in probes]
    return sum(events for events, _ in counts), sum(bad for _, bad in counts)


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return fmean(known) if known else None


def _peak(values: Iterable[float | None]) -> float | None:
    return max(_known(values), default=None)


def _ratio(part: float | None, of: float | None) -> float | None:
    return part / of if part is not None and of else None


def _growth(values: Iterable[float | None]) -> float | None:
    """Increase of a counter over its values. A decrease is a restart and counts as 0."""
    known = _known(values)
    return sum(max(0.0, after - before) for before, after in pairwise(known)) if len(known) > 1 else None
