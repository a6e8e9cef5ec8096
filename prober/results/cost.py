"""Cost of tokens, and speed per GPU and per user, of a stage.

    dollars per million tokens = GPUs × dollars per GPU and hour ÷ 3600 ÷ tokens per second × 1,000,000

The cost is given per prompt token, per output token and for both together. Each includes the full price of the GPUs,
which cannot be divided between prompt and output. Only the prober's own tokens count: with other load on the GPUs the true cost is
lower. Without a throughput there is no cost.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from prober.measure.timeline import format_duration
from prober.results.context import disagreement_text
from prober.results.result import Prices, Result, Stage
from prober.statistics.sequential_test import Evidence

HOUR_S = 3600.0
MILLION = 1e6
MIN_ANSWERS = 30  # for the normal approximation of the sum of tokens
Z = 1.645  # one-sided 95%


@dataclass(frozen=True, slots=True)
class Cost:
    """Dollars per million tokens; None if the throughput is unknown."""

    prompt: float | None
    output: float | None
    total: float | None


@dataclass(frozen=True, slots=True)
class Gpus:
    """Number of a target's GPUs, and dollars per GPU and hour; None: unknown."""

    count: int | None
    price_per_hour: float | None

    @property
    def dollars_per_hour(self) -> float | None:
        """Dollars per hour for all GPUs; None if unknown."""
        return self.count * self.price_per_hour if self.count and self.price_per_hour else None


def gpus_of(result: Result) -> Gpus:
    """The GPUs of a result; `count` is None if stages differ."""
    counts = {stage.gpus for stage in result.stages}
    return Gpus(counts.pop() if len(counts) == 1 else None, result.prices.gpu_per_hour)


def stage_cost(stage: Stage, prices: Prices) -> Cost | None:
    """Cost of a stage's tokens; None if the price or the number of GPUs is unknown."""
    if prices.gpu_per_hour is None or not stage.gpus:
        return None
    dollars_per_s = prices.gpu_per_hour * stage.gpus / HOUR_S
    prompt, output = stage.at_rate.prompt_tokens_per_s, stage.at_rate.output_tokens_per_s
    both = prompt + output if prompt is not None and output is not None else None
    return Cost(*(dollars_per_s / per_s * MILLION if per_s else None for per_s in (prompt, output, both)))


def output_cost_bounds(stage: Stage, prices: Prices) -> tuple[float, float] | None:
    """(lower, upper) 95% bounds of the dollars per million output tokens at the stage's rate; None if unknown.

    With random arrivals, the variance of the total of tokens is the sum of the squares of each request's tokens.
    """
    cost = stage_cost(stage, prices)
    tokens = [row.output_tokens for row in stage.requests if row.output_tokens is not None]
    if cost is None or cost.output is None or len(tokens) < MIN_ANSWERS or not sum(tokens):
        return None
    spread = Z * sum(count * count for count in tokens) ** 0.5 / sum(tokens)
    return cost.output / (1 + spread), cost.output / max(1e-9, 1 - spread)


def tokens_per_s_per_user(stage: Stage) -> float | None:
    """Output tokens per second of one stream: 1 ÷ the median TPOT."""
    tpot = stage.quantile("tpot", 0.5)
    return 1 / tpot.estimate if tpot is not None and tpot.estimate > 0 else None


def priced_stage(result: Result) -> Stage | None:
    """The stage whose cost is stated: the highest rate up to the lower bound of the capacity for all SLOs; a gate's only stage.

    The stage with the highest throughput is not used, because it has the most arrivals by chance.
    """
    lowers = [capacity.lower for capacity in result.capacities if capacity.lower]
    if len(lowers) < len(result.slos) and result.kind != "gate":
        return None
    limit = min(lowers, default=math.inf) * (1 + 1e-9)  # capacities include the load of others
    stages = [
        stage
        for stage in result.stages
        if stage.at_rate.output_tokens_per_s
        and (stage.users or (math.inf if stage.rate_per_s is None else stage.rate_per_s + (stage.demand_per_s or 0.0)))
        <= limit
    ]
    return max(
        stages,
        key=lambda stage: (stage.users or stage.rate_per_s or 0.0, stage.at_rate.output_tokens_per_s or 0.0),
        default=None,
    )


def sentences(result: Result) -> Iterator[str]:
    """Yield sentences on cost, speed per GPU and per user, and the memory bandwidth bound, for the stage from `priced_stage`.

    If stages have their own loads, the sentences are for each stage.
    """
    has_loads = any(stage.load is not None for stage in result.stages)
    priced = None if has_loads else priced_stage(result)
    for stage in result.stages if has_loads else filter(None, (priced,)):
        yield from stage_sentences(result, stage)
    if not has_loads and priced is None and result.prices.gpu_per_hour is not None:
        yield "No cost is stated: the result shows no rate with a known throughput up to the lower bound of the capacity at all SLOs."


def stage_sentences(result: Result, stage: Stage) -> Iterator[str]:
    """Yield sentences on the cost, speed per GPU and per user, and memory bandwidth bound of one stage."""
    rate = "" if stage.rate_per_s is None or "/s" in stage.name else f" ({stage.rate_per_s:.3g}/s)"
    place = f"At {stage.name}{rate}"
    if cost := stage_cost(stage, result.prices):
        parts = [("output", cost.output), ("prompt", cost.prompt), ("prompt and output", cost.total)]
        bounds = output_cost_bounds(stage, result.prices)
        intervals = {"output": f" (${bounds[0]:,.4g} to ${bounds[1]:,.4g})"} if bounds is not None else {}
        priced = ", or ".join(
            f"${dollars:,.4g}{intervals.get(kind, '')} per million {kind} tokens"
            for kind, dollars in parts
            if dollars is not None
        )
        gpus = f"{stage.gpus} GPU{'' if stage.gpus == 1 else 's'} at ${result.prices.gpu_per_hour:g} an hour"
        if priced:
            yield f"{place}: {priced}; each bears the whole price of {gpus}, so they do not add up."
        else:
            yield f"{place}: no cost is stated, as it is not shown how many tokens per second the target delivers."
    elif result.prices.gpu_per_hour is not None:
        why = "not known; name it with --gpus, or gpus.count in the configuration"
        for disagreement in result.disagreements:
            if disagreement.name == "gpu_count":
                why = f"in dispute, {disagreement_text(disagreement)}"
        yield f"No cost is stated: the number of GPUs is {why}."
    speeds = []
    if (per_gpu := stage.output_tokens_per_s_per_gpu) is not None:
        speeds.append(f"{per_gpu:,.4g} output tokens/s per GPU")
    if (per_user := tokens_per_s_per_user(stage)) is not None:
        speeds.append(f"{per_user:,.3g} tokens/s per user (1 ÷ the median TPOT of {format_duration(1 / per_user)})")
    if speeds:
        yield f"{place}: {', '.join(speeds)}."
    if (limit := result.decode_limit) is None or per_user is None:
        return
    gpus = limit.gpu if limit.gpus == 1 else f"{limit.gpus} × {limit.gpu}"
    bound = limit.tokens_per_s
    relation = (
        f"the measured {per_user:,.3g} tokens/s are {per_user / bound:.0%} of it"
        if per_user <= bound
        else f"the measured {per_user:,.3g} tokens/s are above it, so decoding is speculative or an input of the bound is wrong"
    )
    yield (
        f"The memory bandwidth of {gpus} allows one stream at most {bound:,.3g} tokens/s, a TPOT of {format_duration(1 / bound)} or "
        f"more, as every token reads {limit.bytes_per_token / 1e9:,.3g} GB of weights; {relation}."
    )


@dataclass(frozen=True, slots=True)
class CostFinding:
    """Evidence on whether a cost target is met, with the reason as a phrase."""

    evidence: Evidence
    why: str

    def joined(self, why: str) -> str:
        """The reason of a whole verdict. why: reason of its other questions, which hold; kept only if the cost holds too"""
        return f"{why}; {self.why}" if self.evidence == "holds" else f"{self.evidence}: {self.why}"


def judge_cost(stage: Stage | None, prices: Prices, max_dollars: float) -> CostFinding:
    """Judge, with an error of `ERROR`, whether a million output tokens cost at most `max_dollars` at the stage's rate.

    stage: None if none was measured
    """
    aim = f"cost of a million output tokens, at most ${max_dollars:g}"
    cost = stage_cost(stage, prices) if stage is not None else None
    if stage is None or cost is None or cost.output is None:
        needs = "throughput" if cost is not None or stage is None else "price or number of GPUs"
        return CostFinding("undecided", f"{aim}: its {needs} is not known")
    bounds = output_cost_bounds(stage, prices)
    if bounds is None:
        return CostFinding("undecided", f"{aim}: ${cost.output:,.4g} from fewer than {MIN_ANSWERS} counted answers")
    low, high = bounds
    text = f"{aim}: ${cost.output:,.4g} (${low:,.4g} to ${high:,.4g})"
    return CostFinding("holds" if high <= max_dollars else "fails" if low > max_dollars else "undecided", text)
