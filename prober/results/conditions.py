"""The conditions under which a stage was measured. Figures are pooled, or joined by a line, only under equal conditions.

    for line in lines(results): draw(line.stages)

Percentiles over different shapes, models, engines or SLOs mean nothing: their p99 is that of the slowest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from prober.measure.objective import Slo, format_percent
from prober.results.result import Context, Result, Stage

Conditions = Mapping[str, str | None]
MUST_BE_KNOWN = ("model", "prompt tokens", "output tokens")  # without them, two results may be of anything


@dataclass(frozen=True, slots=True)
class Line:
    """Stages of one result under one set of conditions. place: of the result among all; name: tells it from other lines."""

    name: str
    place: int
    result: Result
    stages: tuple[Stage, ...]
    conditions: Conditions

    @property
    def unknown(self) -> list[str]:
        """Conditions that must be known before it is pooled with another result, and are not."""
        return [each for each in MUST_BE_KNOWN if self.conditions[each] is None]


def conditions(result: Result, stage: Stage) -> Conditions:
    """All conditions that must be equal, as text; None: not known. Rate and concurrency are the x-axis, so not among them."""
    target, load = result.target, stage.load or result.load
    return {
        "tool": result.tool,
        "target": target.url,
        "model": target.model,
        "engine": " ".join(filter(None, (target.engine, target.engine_version))) or None,
        "engine's flags": _settings(target.flags),
        "API": target.api,
        "workload": load.workload,
        "prompt tokens": load.prompt_tokens,
        "output tokens": load.output_tokens,
        "data set": load.dataset,
        "sampling": None if load.sampling is None else _settings(load.sampling),
        "arrivals": load.arrivals,
        **{each.name.replace("_", " "): getattr(result.context, each.name) for each in fields(Context)},
        "SLOs": "; ".join(sorted(_promise(slo) for slo in contracted(result, stage))),
    }


def contracted(result: Result, stage: Stage) -> list[Slo]:
    """The SLOs of a stage: those of the result, or if stages differ those that it counted."""
    return [slo for slo in result.slos if stage.load is None or slo.name in stage.slos]


def lines(results: Sequence[tuple[str, Result]]) -> list[Line]:
    """All stages, in as few lines as possible."""
    found: list[Line] = []
    for place, (name, result) in enumerate(results):
        groups: dict[tuple[str | None, ...], list[Stage]] = {}
        for stage in result.stages:
            groups.setdefault(tuple(conditions(result, stage).values()), []).append(stage)
        for stages in groups.values():
            own = (stages[0].load or result.load).workload or stages[0].name
            told = name if len(groups) == 1 else own if len(results) == 1 else f"{name}, {own}"
            found.append(Line(told, place, result, tuple(stages), conditions(result, stages[0])))
    return found


def differing(found: Sequence[Line]) -> list[str]:
    """The conditions that differ between the lines."""
    return [
        what for what in (found[0].conditions if found else ()) if len({each.conditions[what] for each in found}) > 1
    ]


def _settings(values: Mapping[str, object]) -> str:
    return ", ".join(f"{key}={values[key]}" for key in sorted(values))


def _promise(slo: Slo) -> str:
    within = "" if slo.threshold_s is None else f"<{slo.threshold_s:g}s"
    return f"{slo.signal}{within}:{format_percent(slo.objective)}"
