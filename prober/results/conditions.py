"""The conditions under which a stage was measured. Only figures with equal conditions are pooled, or joined by a curve in a chart.

    for line in lines(results): draw(line.stages)

Percentiles over different lengths, models, engines or SLOs are meaningless: their p99 belongs to the slowest.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

from prober.measure.objective import Slo
from prober.results.facts import Context
from prober.results.result import Load, Result, Stage

Conditions = Mapping[str, str | None]
# The prober's host serves no requests, and amounts at the start always differ.
_NOT_COMPARED = ("prober_host", "host_ram_available", "network_round_trip")
_SERVING = tuple(field.name for field in fields(Context) if field.name not in _NOT_COMPARED)
MUST_BE_KNOWN = ("model", "prompt tokens", "output tokens")  # otherwise two results are not pooled


@dataclass(frozen=True, slots=True)
class Line:
    """Stages of one result under the same conditions, which form one curve of a chart.

    name: unique among the curves; place: index of the result in the list of results
    """

    name: str
    place: int
    result: Result
    stages: tuple[Stage, ...]
    conditions: Conditions

    @property
    def unknown(self) -> list[str]:
        """Names of unknown conditions that must be known to pool the curve with another result."""
        return [name for name in MUST_BE_KNOWN if self.conditions[name] is None]


def conditions(result: Result, stage: Stage) -> Conditions:
    """Conditions of a stage that must be equal, {name: text}; None: unknown. Rate and concurrency are the x-axis and not included."""
    load = stage.load or result.load
    return {
        "tool": result.tool,
        **{name: fact(result, load) for name, fact in FACTS.items()},
        **{name.replace("_", " "): getattr(result.context, name) for name in _SERVING},
        "SLOs": "; ".join(sorted(slo.text for slo in contracted(result, stage))),
    }


def _settings(values: Mapping[str, object] | None) -> str | None:
    return ", ".join(f"{key}={values[key]}" for key in sorted(values)) if values else None


# Facts about target and load that reports show and curves must share, as text; None: unknown.
FACTS: Mapping[str, Callable[[Result, Load], str | None]] = {
    "target": lambda result, load: result.target.url,
    "model": lambda result, load: result.target.model,
    "engine": lambda result, load: " ".join(filter(None, (result.target.engine, result.target.engine_version))) or None,
    "engine's flags": lambda result, load: _settings(result.target.flags),
    "API": lambda result, load: result.target.api,
    "workload": lambda result, load: load.workload,
    "prompt tokens": lambda result, load: load.prompt_tokens,
    "output tokens": lambda result, load: load.output_tokens,
    "data set": lambda result, load: load.dataset,
    "sampling": lambda result, load: _settings(load.sampling),
    "arrivals": lambda result, load: load.arrivals,
}


def contracted(result: Result, stage: Stage) -> list[Slo]:
    """The SLOs by which a stage is judged: the result's, or if it has its own load those with events in it."""
    return [slo for slo in result.slos if stage.load is None or slo.name in stage.slos]


def lines(results: Sequence[tuple[str, Result]]) -> list[Line]:
    """Group all stages into as few curves as possible. results: (name, result)"""
    drawn: list[Line] = []
    for place, (name, result) in enumerate(results):
        groups: dict[tuple[str | None, ...], list[Stage]] = {}
        for stage in result.stages:
            groups.setdefault(tuple(conditions(result, stage).values()), []).append(stage)
        for stages in groups.values():
            workload = (stages[0].load or result.load).workload or stages[0].name
            unique = name if len(groups) == 1 else workload if len(results) == 1 else f"{name}, {workload}"
            drawn.append(Line(unique, place, result, tuple(stages), conditions(result, stages[0])))
    return drawn


def differing(drawn: Sequence[Line]) -> list[str]:
    """Names of the conditions that differ between the curves."""
    names = drawn[0].conditions if drawn else ()
    return [name for name in names if len({line.conditions[name] for line in drawn}) > 1]
