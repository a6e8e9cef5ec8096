"""Several configurations side by side: changed settings, and the capacity and cost of each."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from prober.features.experiments.compare import MORE_BAD, incomparable
from prober.features.experiments.report import plots
from prober.features.experiments.report.document import Cell, Table
from prober.features.experiments.report.stage_tables import Row, cell, quantile_cell
from prober.results.capacity import combined
from prober.results.conditions import Line, lines
from prober.results.cost import HOUR_S, gpus_of, priced_stage, stage_cost, tokens_per_s_per_user
from prober.results.result import Result, Stage
from prober.statistics.quantiles import Quantile


def changes(results: plots.NamedResults) -> Iterator[str]:
    """A sentence per result after the first: the settings that differ from the first result's, where both are known."""
    firsts = {line.place: line for line in reversed(lines(results))}  # the first curve of each result
    if len(firsts) < len(results):
        return
    first, *further = (_settings(firsts[place]) for place in sorted(firsts))
    for (name, _), settings in zip(results[1:], further, strict=True):
        both = [key for key in (first | settings) if first.get(key) != settings.get(key) and key != "target"]
        changed = [key for key in both if first.get(key) is not None and settings.get(key) is not None]
        unknown = [key for key in both if key not in changed]
        texts = [f"{key} from {first[key]} to {settings[key]}" for key in changed]
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
    """Capacity, and throughput, latency, cost and quality at the rate from `priced_stage`, by set-up; None for one result.

    The last column has comparable set-ups that dominate this one: worse in no common figure, better in at least one. Set-ups
    that no other dominates are the frontier.
    """
    if len(results) < 2:
        return None
    set_ups = [_SetUp(name, result, priced_stage(result), _figures(result)) for name, result in results]
    rows: list[Row] = []
    for one in set_ups:
        rivals = [other for other in set_ups if other is not one and _are_comparable(other, one)]
        firsts = {**set_ups[0].figures, RATE: None} if set_ups[0] in rivals else {}
        cells = (_cell(value, firsts.get(column)) for column, value in one.figures.items())
        better = [other.name for other in rivals if _dominates(other, one)]
        last = Cell(", ".join(better), "bad") if better else Cell("–") if rivals else Cell("not compared", "unknown")
        rows.append([one.name, *cells, last])
    return Table(["", *set_ups[0].figures, "dominated by"], rows)


TRADE_OFFS_NOTE = (
    "Percentages are against the first result. They are differences of two measurements, and no test: for that, use prober compare. "
    "Latencies, throughput and cost are those at the highest rate up to the lower bound of the capacity. Dominated: the other set-up "
    "is worse in none of the figures that both have, at a rate that is no lower, and better in one or more; the others are the "
    "frontier. Set-ups are compared only if requests, arrivals and share of failures are the same, both numbers of GPUs are known "
    "(--gpus), and the rates are the same or both capacities known."
)
MAX_RATE_DIFFERENCE = 0.05  # between rates that count as equal, as a ratio: they include others' load, which varies
# Columns
CAPACITY, CAPACITY_PER_GPU, RATE = "#capacity at all SLOs /s", "#capacity /s a GPU", "#figures at /s"
DOLLARS, WRONG = "#$ a million output tokens", "#wrong of checked answers, %"
P99S = {"#TTFT p99": "ttft", "#TPOT p99": "tpot"}
Figures = dict[str, float | Quantile | None]  # by column; None: unknown


@dataclass(frozen=True, slots=True)
class _SetUp:
    """A result with its figures. stage: the stage of the figures; None without one"""

    name: str
    result: Result
    stage: Stage | None
    figures: Figures


def _are_comparable(a: _SetUp, b: _SetUp) -> bool:
    """True if the set-ups can explain a difference in the figures, by the rules of TRADE_OFFS_NOTE."""
    if a.stage is None or b.stage is None or None in (*_known(a.result, a.stage), *_known(b.result, b.stage)):
        return False
    failed_of_a, failed_of_b = ((stage.unanswered or 0) / (stage.sent or 1) for stage in (a.stage, b.stage))
    is_rate_a_figure = not a.result.load.is_open_loop or None not in (a.figures[CAPACITY], b.figures[CAPACITY])
    return (
        _load(a.result, a.stage) == _load(b.result, b.stage)
        and not incomparable(a.result, b.result)
        and abs(failed_of_a - failed_of_b) <= MORE_BAD
        and (is_rate_a_figure or (_reaches_rate(a.stage, b.stage) and _reaches_rate(b.stage, a.stage)))
    )


def _known(result: Result, stage: Stage) -> tuple[object, ...]:
    """Facts without which a set-up is not compared."""
    load = result.load
    return load.arrivals, load.prompt_tokens, load.output_tokens, gpus_of(result).count, stage.unanswered


def _load(result: Result, stage: Stage) -> tuple[object, ...]:
    """Load of a stage without lengths and rate. In a closed loop the number of concurrent requests replaces the rate."""
    load = stage.load or result.load
    at_once = None if load.is_open_loop else load.max_in_flight or stage.sent
    return load.arrivals, load.dataset, load.sampling, stage.users, at_once


def _reaches_rate(stage: Stage, other: Stage) -> bool:
    """True if the rate of a stage is at least that of the other."""
    return (plots.rate_of(stage) or 0.0) * (1 + MAX_RATE_DIFFERENCE) >= (plots.rate_of(other) or 0.0)


def _figures(result: Result) -> Figures:
    """Figures of the configuration that a result measured."""
    capacity, stage, gpus = combined(result.capacities), priced_stage(result), gpus_of(result)
    knee_per_s = capacity.estimate if capacity is not None and not capacity.users else None
    dollars_per_s = gpus.dollars_per_hour / HOUR_S if gpus.dollars_per_hour else None
    cost = stage_cost(stage, result.prices) if stage is not None else None
    checked = [stage.quality for stage in result.stages if stage.quality is not None]
    judged = sum(count for count, _ in checked)
    return {
        CAPACITY: knee_per_s,
        CAPACITY_PER_GPU: knee_per_s / gpus.count if knee_per_s is not None and gpus.count else None,
        "#requests a dollar at capacity": knee_per_s / dollars_per_s
        if knee_per_s is not None and dollars_per_s
        else None,
        RATE: plots.rate_of(stage) if stage is not None else None,
        "#output tokens/s a GPU": stage.output_tokens_per_s_per_gpu if stage is not None else None,
        "#tokens/s a user": tokens_per_s_per_user(stage) if stage is not None else None,
        DOLLARS: cost.output if cost is not None else None,
        WRONG: 100 * sum(wrong for _, wrong in checked) / judged if judged else None,
        **{name: stage.quantile(latency, 0.99) if stage is not None else None for name, latency in P99S.items()},
    }


def _cell(value: float | Quantile | None, first: float | Quantile | None) -> Cell | str:
    """Cell with a figure, and its difference from the first result's (`first`; None: no comparison)."""
    if isinstance(value, Quantile):
        return replace(quantile_cell(value), aside="")
    text = cell(value)
    if value is None or isinstance(text, Cell) or isinstance(first, Quantile) or not first or value == first:
        return text
    return Cell(text, "", f"{(value / first - 1) * 100:+.3g}%")


def _dominates(one: _SetUp, other: _SetUp) -> bool:
    """True if a comparable set-up is worse in no common figure, at no lower rate, and better in at least one."""
    gains = zip(_gains(one.figures), _gains(other.figures), strict=True)
    pairs = [(a, b) for a, b in gains if a is not None and b is not None]
    is_better = len(pairs) > 1 and all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)
    return is_better and one.stage is not None and other.stage is not None and _reaches_rate(one.stage, other.stage)


def _gains(figures: Figures) -> list[float | None]:
    """The compared figures, negated where less is better."""
    gains: list[float | None] = []
    for column, value in figures.items():
        amount = value.estimate if isinstance(value, Quantile) else value
        is_loss = column in (DOLLARS, WRONG, *P99S)
        gains.append(None if amount is None or column in (RATE, CAPACITY) else -amount if is_loss else amount)
    return gains


def _settings(line: Line) -> dict[str, str | None]:
    """Conditions of a curve. Each engine flag and sampling parameter is a separate entry; a single stage also has its rate."""
    result, stage = line.result, line.stages[0]
    load = stage.load or result.load
    conditions = {name: value for name, value in line.conditions.items() if name not in ("engine's flags", "sampling")}
    sampling = {name: str(value) for name, value in (load.sampling or {}).items()}
    no_limit = None if load.arrivals is None else "no limit"
    cap = no_limit if load.max_in_flight is None else str(load.max_in_flight)
    intended = stage.name if load.is_open_loop else no_limit
    rate = (
        {"rate": intended if stage.rate_per_s is None else f"{stage.rate_per_s:g}/s"} if len(line.stages) == 1 else {}
    )
    return {**conditions, **result.target.flags, **sampling, **rate, "requests in flight at most": cap}
