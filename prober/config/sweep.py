"""Configuration of sweeps: workload, schedule and limits."""

from collections.abc import Mapping

from prober.config import models
from prober.config.problems import Problems, no_such
from prober.config.specs import SweepSpec, TargetSpec
from prober.measure.objective import SIGNALS_WITHOUT_STREAM, Slo
from prober.workload.blackout import WeeklySpan, parse_weekly_span
from prober.workload.workloads import Mix, Workload

ASKED = ("ttft", "ttft_answer", "tpot", "itl", "e2e")


def resolve_sweep(
    block: models.Sweep | None,
    target: TargetSpec,
    workloads: Mapping[str, Workload | Mix],
    slos: Mapping[str, Slo],
    path: str,
    problems: Problems,
) -> SweepSpec | None:
    """Sweep of a target; None if not configured or invalid, with the errors added."""
    if block is None:
        return None
    workload = workloads.get(block.workload)
    if workload is None:
        problems.add(f"{path}.workload", no_such("workload", block.workload, workloads))
        return None
    asked = _slos(block, target, slos, path, problems)
    if block.min_rate > block.max_rate:
        problems.add(f"{path}.max_rate", f"{block.max_rate:g}/s is below min_rate ({block.min_rate:g}/s); raise it")
    limits, budget = block.limits, target.budget
    if limits.cost is not None and (budget is None or budget.prompt_price is None):
        problems.add(
            f"{path}.limits.cost", "needs prices: budget: {price_per_million: {prompt: 0.60, completion: 0.60}}"
        )
    return SweepSpec(
        schedule=block.schedule,
        timezone=block.timezone,
        mode=block.mode,
        workload=workload,
        slos=asked,
        min_rate=block.min_rate,
        max_rate=block.max_rate,
        max_in_flight=block.max_in_flight,
        min_gap_s=block.min_gap,
        blackout=_blackout(block.blackout, f"{path}.blackout", problems),
        after_change=block.after_change,
        guard_waiting=block.guard.waiting,
        guard_kv_usage=float(block.guard.kv_cache),
        guard_production_ttft_s=block.guard.production_ttft,
        guard_burn=block.guard.burn,
        requests=limits.requests,
        tokens=limits.tokens,
        time_s=limits.time,
        cost=limits.cost,
        demand_query=block.demand_query,
    )


def check_nobody_asks(targets: Mapping[str, TargetSpec], problems: Problems) -> None:
    """Add an error for each target that needs a Prometheus query if no Prometheus is configured."""
    for place, target in targets.items():
        if target.sweep is not None and target.sweep.demand_query is not None:
            said = "nobody can be asked; add prometheus: {url: http://prometheus:9090}"
            problems.add(f"{place}.sweep.demand_query", said)


def _slos(
    block: models.Sweep, target: TargetSpec, slos: Mapping[str, Slo], path: str, problems: Problems
) -> tuple[Slo, ...]:
    """The named SLOs, or all latency SLOs that apply to this target's answers."""
    judged = {
        name: slo
        for name, slo in slos.items()
        if slo.signal in ASKED and (target.stream or slo.signal in SIGNALS_WITHOUT_STREAM)
    }
    for index, name in enumerate(block.slos or ()):
        if name not in slos:
            problems.add(f"{path}.slos[{index}]", no_such("SLO", name, slos))
        elif name not in judged:
            problems.add(f"{path}.slos[{index}]", f"{name!r} judges {slos[name].signal}: a sweep asks about latencies")
    chosen = tuple(slo for name, slo in judged.items() if block.slos is None or name in block.slos)
    if not chosen:
        problems.add(path, "there is no SLO to ask about; add one to `slos`, such as {signal: ttft, threshold: 500ms, "
                     "objective: 99%}")  # fmt: skip
    return chosen


def _blackout(texts: list[str], path: str, problems: Problems) -> tuple[WeeklySpan, ...]:
    found: list[WeeklySpan] = []
    for index, text in enumerate(texts):
        try:
            found.append(parse_weekly_span(text))
        except ValueError as problem:
            problems.add(f"{path}[{index}]", str(problem))
    return tuple(found)
