"""Verdict on a target for the cost of output tokens, at the rate of one stage."""

from collections.abc import Sequence
from dataclasses import dataclass

from prober.results.cost import MIN_ANSWERS, output_cost_bounds, stage_cost
from prober.results.result import Prices, Request, Stage
from prober.statistics.sequential_test import Evidence


@dataclass(frozen=True, slots=True)
class CostFinding:
    """Evidence on a cost target, with a phrase that says why."""

    evidence: Evidence
    why: str


def judge_cost(stage: Stage | None, rows: Sequence[Request], prices: Prices, max_dollars: float) -> CostFinding:
    """Whether a million output tokens cost at most `max_dollars` at the rate of the stage, each claim with an error of `ERROR`.

    stage: None if none was measured; rows: its requests
    """
    aim = f"cost of a million output tokens, at most ${max_dollars:g}"
    cost = stage_cost(stage, prices) if stage is not None else None
    if stage is None or cost is None or cost.output is None:
        needs = "throughput" if cost is not None or stage is None else "price or number of GPUs"
        return CostFinding("undecided", f"{aim}: its {needs} is not known")
    bounds = output_cost_bounds(stage, rows, prices)
    if bounds is None:
        return CostFinding("undecided", f"{aim}: ${cost.output:,.4g} from fewer than {MIN_ANSWERS} counted answers")
    low, high = bounds
    text = f"{aim}: ${cost.output:,.4g} (${low:,.4g} to ${high:,.4g})"
    return CostFinding("holds" if high <= max_dollars else "fails" if low > max_dollars else "undecided", text)
