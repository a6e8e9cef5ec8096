"""Several configurations beside each other: the settings that changed, and what each configuration carries and costs."""

from collections.abc import Iterator

from prober.features.experiments.report import plots
from prober.features.experiments.report.document import UNKNOWN, Cell, Table
from prober.features.experiments.report.stage_tables import Row, number
from prober.measure.timeline_text import format_duration
from prober.results.capacity import Capacity, combined
from prober.results.conditions import Line, lines
from prober.results.cost import priced_stage, stage_cost, tokens_per_s_per_user
from prober.results.result import Result, Stage
from prober.statistics.quantiles import Quantile

MAX_SETTINGS = 3  # that one sentence spells out


def changes(results: plots.NamedResults) -> Iterator[str]:
    """A sentence for each further result: the settings in which it differs from the first one, as far as both are known."""
    if not (of_results := [_settings(line) for line in _first_lines(results)]):
        return
    first, *further = of_results
    for (name, _), settings in zip(results[1:], further, strict=True):
        both = [key for key in (first | settings) if first.get(key) != settings.get(key) and key != "target"]
        changed = [key for key in both if first.get(key) is not None and settings.get(key) is not None]
        unknown = [key for key in both if key not in changed]
        texts = [f"{key} from {first[key]} to {settings[key]}" for key in changed[:MAX_SETTINGS]]
        texts += [f"{len(changed) - MAX_SETTINGS} more"] if len(changed) > MAX_SETTINGS else []
        sentence = f"{name} changed {' and '.join(texts)}" if texts else f"{name} has no known change of settings"
        sentence += f", against {results[0][0]}"
        if len(changed) > 1:
            sentence += "; no difference between their figures can be attributed to one of the changes alone"
        if unknown:
            sentence += f"; known of one of the two only: {', '.join(unknown)}"
        if first.get("target") != settings.get("target"):
            sentence += "; they were measured at different addresses"
        yield f"{sentence}."


def trade_offs(results: plots.NamedResults) -> Table | None:
    """Capacity, and throughput, latency and cost where the SLOs still hold, by configuration; None for one result.

    Percentages are against the first result. They are differences of two measurements, and no test.
    """
    if len(results) < 2:
        return None
    rows: list[Row] = []
    base: list[float | None] = []
    for name, result in results:
        capacity, stage = combined(result.capacities), priced_stage(result)
        figures = _figures(result, capacity, stage)
        base = base or figures
        shown = [_against(value, first) for value, first in zip(figures, base, strict=True)]
        place = plots.rate_of(stage) if stage is not None else None
        rows.append([name, shown[0], number(place), *shown[1:4], *map(_quantile, _p99s(stage))])
    head = ["", "#capacity at all SLOs /s", "#figures at /s", "#output tokens/s a GPU", "#tokens/s a user"]
    return Table([*head, "#$ a million output tokens", "#TTFT p99", "#TPOT p99"], rows)


def _figures(result: Result, capacity: Capacity | None, stage: Stage | None) -> list[float | None]:
    estimate = capacity.estimate if capacity is not None else None
    if stage is None:
        return [estimate, None, None, None]
    cost = stage_cost(stage, result.prices)
    per_user = tokens_per_s_per_user(stage)
    return [estimate, stage.output_tokens_per_s_per_gpu, per_user, cost.output if cost is not None else None]


def _p99s(stage: Stage | None) -> list[Quantile | None]:
    return [stage.quantile(latency, 0.99) if stage is not None else None for latency in ("ttft", "tpot")]


def _quantile(quantile: Quantile | None) -> Cell | str:
    if quantile is None:
        return UNKNOWN
    text = format_duration(quantile.estimate)
    return text if quantile.has_enough_samples else Cell(f"{text} *", "few")


def _against(value: float | None, first: float | None) -> Cell | str:
    """The value, with its difference from that of the first result."""
    text = number(value)
    if value is None or not first or value == first or isinstance(text, Cell):
        return text
    return Cell(text, "", f"{(value / first - 1) * 100:+.3g}%")


def _first_lines(results: plots.NamedResults) -> list[Line]:
    """The first line of each result."""
    by_place = {line.place: line for line in reversed(lines(results))}
    return [by_place[place] for place in sorted(by_place)] if len(by_place) == len(results) else []


def _settings(line: Line) -> dict[str, str | None]:
    """Conditions of a line, flags and sampling one by one."""
    result, load = line.result, line.stages[0].load or line.result.load
    conditions = {name: value for name, value in line.conditions.items() if name not in ("engine's flags", "sampling")}
    sampling = {name: str(value) for name, value in (load.sampling or {}).items()}
    return {**conditions, **result.target.flags, **sampling}
