"""A sweep that ran, as the result that is stored and reported."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import sqrt
from types import MappingProxyType
from urllib.parse import urlsplit

from prober import __version__
from prober.config.sweep import SweepSpec
from prober.config.target import TargetSpec
from prober.features.capacity.actions import OtherLoad
from prober.features.capacity.sweep_record import UNJUDGED
from prober.features.capacity.sweep_runner import SweepRun
from prober.measure.engine_signals import EngineSignals
from prober.measure.gpu_reading import GpuReading, without_parts
from prober.measure.outcome import Outcome
from prober.results.delivery import deliveries
from prober.results.facts import Context
from prober.results.result import Load, Prices, Result, Stage, Target, WarmUp
from prober.results.stage import stage_of


def result_of(
    run: SweepRun,
    spec: TargetSpec,
    sweep: SweepSpec,
    *,
    identity: str,
    started_unix_s: float,
    ended_unix_s: float,
    additions: Mapping[str, object] = MappingProxyType({}),
    devices: Sequence[GpuReading] = (),
    probes_per_s: float = 0.0,
) -> Result:
    """Result of a finished sweep.

    additions: further entries of `Result.configuration`; devices: GPUs of the target, those of the last
        reading during the sweep if empty
    probes_per_s: rate of the scheduled probes that the target got meanwhile
    """
    finished = run.finished
    devices = devices or (run.gpus[-1][1] if run.gpus else ())
    stages: list[Stage] = []
    warm = [stage for stage in finished.stages if stage.phase == "warm_up"]
    spans = [
        (None if stage.phase in UNJUDGED else stage.rate_per_s, round(stage.began_s * 1e9), round(stage.ended_s * 1e9))
        for stage in finished.stages
    ]
    delivered = deliveries([probe for _, probe in run.probes], sweep.slos, spans, sweep.workload.mean_tokens())
    for stage in [stage for stage in finished.stages if stage.phase != "warm_up"]:
        probes = [probe for number, probe in run.probes if number == stage.number]
        seen = [signals for at_s, signals in run.readings if stage.began_s <= at_s <= stage.ended_s]
        built = stage_of(
            f"{stage.phase} {stage.rate_per_s:.3g}/s",
            stage.rate_per_s,
            probes,
            origin_ns=run.began_ns,
            begin_ns=round(stage.began_s * 1e9),
            sending_s=stage.ended_s - stage.began_s,
            slos=sweep.slos,
            readings=seen,
            devices=[read for at_s, read in run.gpus if stage.began_s <= at_s <= stage.ended_s],
            demand_per_s=stage.other_per_s,
            gpus=len(without_parts(devices)) or None,
            ended=(finished.sending_ended or finished.reason) if stage is finished.stages[-1] else "",
            delivered=delivered,
        )
        # Those that had waited too long when they were cut are bad, which their probes do not say.
        built = replace(built, slos=dict(stage.events) or built.slos)
        if cut := sum(probe.outcome is Outcome.CANCELLED for probe in probes):
            built = replace(built, ended=f"{built.ended or 'over'}, {cut} cut in flight")
        stages.append(built)
    last = run.readings[-1][1] if run.readings else None
    return Result(
        id=identity,
        kind="grid" if sweep.mode == "grid" else "sweep",
        started_unix_s=started_unix_s,
        ended_unix_s=ended_unix_s,
        tool=f"llm-slo-prober {__version__}",
        target=_target(spec, run, last),
        load=Load.of(sweep.workload, arrivals="poisson", max_in_flight=sweep.max_in_flight),
        stages=tuple(stages),
        configuration=json.dumps(_configuration(sweep) | dict(additions), sort_keys=True),
        slos=sweep.slos,
        warm_up=WarmUp(sum(stage.sent for stage in warm), sum(stage.ended_s - stage.began_s for stage in warm))
        if warm
        else None,
        capacities=finished.capacities,
        stop=finished.reason,
        stop_detail=finished.detail,
        refused=finished.refused,
        prices=_prices(spec),
        context=_context(devices),
        interference=_interference(finished.others, probes_per_s, ended_unix_s - started_unix_s),
        retry_after_s=run.quiet_s,
    )


def has_capacity(result: Result) -> bool:
    """True if a sweep shows a rate at which an SLO fails; one that shows none leaves an earlier answer in use."""
    return any(capacity.upper is not None for capacity in result.capacities)


def result_url(url: str) -> str:
    """The URL of a target as results have it: without credentials and query."""
    parts = urlsplit(url)
    host = f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname
    return f"{parts.scheme}://{host}{parts.path}"


def _target(spec: TargetSpec, run: SweepRun, last: EngineSignals | None) -> Target:
    models = [probe.model for _, probe in run.probes if probe.model]
    engines = [probe.engine for _, probe in run.probes if probe.engine]
    return Target(
        url=result_url(spec.url),
        model=models[-1] if models else spec.model,
        engine=last.info.engine if last else (engines[-1] if engines else spec.engine),
        engine_version=last.info.version if last else None,
        api=spec.api,
        flags=dict(last.info.flags) if last else {},
    )


def _configuration(sweep: SweepSpec) -> dict[str, object]:
    """Configuration of the sweep, for the result."""
    limits = sweep.limits
    return {
        "mode": sweep.mode,
        "workload": sweep.workload.name,
        "slos": [slo.name for slo in sweep.slos],
        "min_rate": sweep.min_rate,
        "max_rate": sweep.max_rate,
        "rates": sweep.rates,
        "max_in_flight": sweep.max_in_flight,
        "limits": {
            "requests": limits.requests,
            "tokens": limits.tokens,
            "time_s": limits.time,
            "cost": limits.cost,
        },
        "demand_query": sweep.demand_query,
    }


def _prices(spec: TargetSpec) -> Prices:
    price = spec.budget.price_per_million if spec.budget is not None else None
    return Prices(
        gpu_per_hour=spec.gpus.price_per_hour,
        prompt_per_million=price.prompt if price is not None else None,
        completion_per_million=price.completion if price is not None else None,
    )


def _context(devices: Sequence[GpuReading]) -> Context:
    if not devices:
        return Context()
    devices = without_parts(devices)
    memory = {device.memory_total_bytes for device in devices if device.memory_total_bytes}
    return Context(
        gpu=", ".join(sorted({device.name for device in devices})),
        gpu_count=str(len(devices)),
        gpu_memory=", ".join(f"{size_bytes / 2**30:.0f} GiB" for size_bytes in sorted(memory)) or None,
    )


def _interference(others: OtherLoad | None, probes_per_s: float, span_s: float) -> tuple[str, ...] | None:
    """Load of others than the sweep and the target's scheduled probes, and its source; None if it is unknown."""
    if others is None:
        return None
    probes_per_s = probes_per_s if others.source == "engine" else 0.0  # a query counts users
    probes = probes_per_s * span_s
    if others.least_per_s * span_s <= probes + 3 * sqrt(probes):
        return ()
    source = {"engine": "the engine's page", "prometheus": "Prometheus, before the sweep"}[others.source]
    least, most = (f"{per_s - probes_per_s:.3g}" for per_s in (others.least_per_s, others.most_per_s))
    return (f"other load of {least if least == most else f'{least} to {most}'} requests/s, by {source}",)
