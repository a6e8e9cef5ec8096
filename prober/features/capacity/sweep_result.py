"""Converts a sweep that ran into the result to store and report."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, sqrt

from prober.config.sweep import SweepSpec
from prober.features.capacity.actions import OtherLoad
from prober.features.capacity.sweep_runner import SweepRun
from prober.measure.gpu_reading import GpuReading, without_parts
from prober.measure.outcome import Outcome
from prober.probing.session import Session
from prober.results.capacity import Capacity, binding
from prober.results.delivery import Deliveries
from prober.results.facts import Context
from prober.results.result import Load, Prices, Result, Stage
from prober.results.shedding import shedding_onset
from prober.results.stage import stage_of


def result_of(
    run: SweepRun,
    session: Session,
    sweep: SweepSpec,
    identity: str,
    additions: Mapping[str, object],
    probes_per_s: float = 0.0,
) -> Result:
    """Result of a finished sweep, with this id.

    additions: further entries of `Result.configuration`
    probes_per_s: rate of the scheduled probes sent to the target meanwhile
    """
    finished = run.finished
    devices = session.devices or (session.gpus[-1][1] if session.gpus else ())
    stages: list[Stage] = []
    warm = [stage for stage in finished.stages if stage.phase == "warm_up"]
    spans = [
        (None if stage.phase == "warm_up" else stage.rate_per_s, round(stage.began_s * 1e9), round(stage.ended_s * 1e9))
        for stage in finished.stages
    ]
    delivered = Deliveries([probe for _, probe in run.probes], sweep.slos, spans, sweep.workload.mean_tokens())
    for stage in [stage for stage in finished.stages if stage.phase != "warm_up"]:
        probes = [probe for number, probe in run.probes if number == stage.number]
        within = range(round(stage.began_s * 1e9), round(stage.ended_s * 1e9) + 1)
        built = stage_of(
            f"{stage.phase} {stage.rate_per_s:.3g}/s",
            stage.rate_per_s,
            probes,
            origin_ns=run.began_ns,
            begin_ns=within.start,
            sending_s=stage.ended_s - stage.began_s,
            slos=sweep.slos,
            readings=[signals for at_ns, signals in session.readings if at_ns in within],
            devices=[read for at_ns, read in session.gpus if at_ns in within],
            demand_per_s=stage.other_per_s,
            gpus=len(without_parts(devices)) or None,
            ended=(finished.sending_ended or finished.reason) if stage is finished.stages[-1] else "",
            delivered=delivered,
        )
        # Cut requests that had waited too long are bad, which their probes do not show.
        built = replace(built, slos=dict(stage.events) or built.slos)
        if cut := sum(probe.outcome is Outcome.CANCELLED for probe in probes):
            built = replace(built, ended=f"{built.ended or 'over'}, {cut} cut in flight")
        stages.append(built)
    return session.result(
        "grid" if sweep.mode == "grid" else "sweep",
        Load.of(sweep.workload, arrivals="poisson", max_in_flight=sweep.max_in_flight),
        stages,
        identity,
        configuration=json.dumps(_configuration(sweep) | dict(additions), sort_keys=True),
        slos=sweep.slos,
        warm_up=run.steadiness.warm_up(
            sum(stage.sent for stage in warm), sum(stage.ended_s - stage.began_s for stage in warm)
        )
        if warm
        else None,
        capacities=finished.capacities,
        stop=finished.reason,
        stop_detail=finished.detail,
        refused=finished.refused,
        shedding=shedding_onset(
            (stage.total_per_s, [probe for number, probe in run.probes if number == stage.number])
            for stage in [stage for stage in finished.stages if stage.phase != "warm_up"] or warm
        ),
        prices=Prices(session.spec.gpus.price_per_hour),
        context=_context(devices),
        interference=_interference(finished.others, probes_per_s, session.clock.unix_s() - session.started_unix_s),
        retry_after_s=run.quiet_s,
    )


def has_capacity(result: Result) -> bool:
    """True if a sweep shows a figure, or only a rate at which an SLO holds or fails."""
    return any(capacity.lower is not None or capacity.upper is not None for capacity in result.capacities)


def has_figure(result: Result) -> bool:
    """True if a sweep estimates the knee of the SLO that fails first, with an interval."""
    knee = binding(result.capacities)
    return knee is not None and knee.estimate is not None


def bounded(result: Result, later: Sequence[Result]) -> Result:
    """The result with estimates clipped to the bounds of later sweeps, latest first, and intervals widened to hold them.

    A bound replaces no figure, because it shows only on which side of a rate the knee is.
    """
    capacities = list(result.capacities)
    for bounds in reversed([{capacity.slo: capacity for capacity in of.capacities} for of in later]):
        for place, capacity in enumerate(capacities):
            bound = bounds.get(capacity.slo)
            match capacity:
                case Capacity(lower=float() as lower, estimate=float() as estimate, upper=float() as upper) if bound:
                    own = capacity.mix
                    cost = bound.mix.cost(own.prompt_tokens, own.output_tokens)[0] if bound.mix and own else 1.0
                    at = min(max(estimate, (bound.lower or 0.0) / cost), (bound.upper or inf) / cost)
                    capacities[place] = replace(capacity, lower=min(lower, at), estimate=at, upper=max(upper, at))
    return replace(result, capacities=tuple(capacities))


def _configuration(sweep: SweepSpec) -> dict[str, object]:
    """Configuration of the sweep, for the result."""
    limits = sweep.limits
    return sweep.model_dump(include={"mode", "min_rate", "max_rate", "rates", "max_in_flight", "demand_query"}) | {
        "workload": sweep.workload.name,
        "slos": [slo.name for slo in sweep.slos],
        "limits": {
            "requests": limits.requests,
            "tokens": limits.tokens,
            "time_s": limits.time,
            "cost": limits.cost,
        },
    }


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
    """Sentences about load other than the sweep and scheduled probes, with its source; None if that load is unknown."""
    if others is None:
        return None
    probes_per_s = probes_per_s if others.source == "engine" else 0.0  # a query counts only users
    probes = probes_per_s * span_s
    if others.least_per_s * span_s <= probes + 3 * sqrt(probes):
        return ()
    source = {"engine": "the engine's page", "prometheus": "Prometheus, before the sweep"}[others.source]
    least, most = (f"{per_s - probes_per_s:.3g}" for per_s in (others.least_per_s, others.most_per_s))
    return (f"other load of {least if least == most else f'{least} to {most}'} requests/s, by {source}",)
