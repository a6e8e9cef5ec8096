"""Number and cost of instances for a peak load, from the capacity measured by a sweep.

    instances = ceil(peak ÷ (capacity of one at all SLOs × (1 − headroom)))

where headroom is the free share of the capacity, in requests shaped like the sweep's and without other load. The lower bound of the
capacity is used, because the estimate is too high half of the time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from prober.results.capacity import Capacity, lacking
from prober.results.cost import HOUR_S, MILLION, priced_stage
from prober.results.result import Result
from prober.results.stage import total
from prober.results.stop_reason import ending


@dataclass(frozen=True, slots=True)
class Demand:
    """A load for which instances are counted.

    peak_per_s: requests per second, shaped like the sweep's; None if the peak is in users
    headroom: share of the capacity that must stay free, 0 to 1
    users: concurrent users at the peak; None if it is in requests
    """

    peak_per_s: float | None
    headroom: float = 0.2
    users: int | None = None

    @property
    def peak(self) -> float:
        """The peak in its unit."""
        return (self.peak_per_s if self.users is None else self.users) or 0.0

    @property
    def peak_text(self) -> str:
        """The peak as text."""
        return f"{self.peak_per_s:g}/s" if self.users is None else f"{self.users:,} users"

    def text(self, load: float) -> str:
        """Format a load in the peak's unit."""
        return f"{load:.3g}/s" if self.users is None else f"{load:,.4g} users"


@dataclass(frozen=True, slots=True)
class Size:
    """Instances for a demand.

    per_instance: load that an instance carries, in requests of the sweep's shape per second: the lowest lower bound over the SLOs
    estimate: the lowest estimated knee over the SLOs; None if `per_instance` is a rate that holds, without an estimate
    is_alone: the capacity is without other load; False if the sweep had unknown other load
    slo: the SLO with the lowest capacity
    free: share of the capacity that is free at the peak
    holds_without_one: after losing one instance, the others carry the peak
    dollars_*: None without a price, or if the sweep counted no tokens. Each price per token divides the full cost by the prompt tokens,
    the output tokens, or both.
    """

    instances: int
    gpus: int
    per_instance: float
    slo: str
    free: float
    holds_without_one: bool
    is_alone: bool = True
    estimate: float | None = None
    dollars_per_hour: float | None = None
    dollars_per_million_prompt: float | None = None
    dollars_per_million_output: float | None = None
    dollars_per_million: float | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """No size was computed. reason: why, with the remedy"""

    reason: str


def size(result: Result, demand: Demand, gpus_per_instance: int, gpu_price: float | None = None) -> Size | Refused:
    """Number and cost of instances like the sweep's target for `demand`, each with `gpus_per_instance`.

    gpu_price: dollars per hour of a GPU. Raises ValueError for an invalid headroom or price.
    """
    if not 0 <= demand.headroom < 1:
        raise ValueError(
            f"a headroom of {demand.headroom:.0%}: it is the free share of the capacity, at least 0%, below 100%"
        )
    if gpu_price is not None and not 0 <= gpu_price < math.inf:
        raise ValueError(f"a GPU for {gpu_price:g} dollars per hour: a price is a finite number, 0 or more")
    alone = [capacity.alone for capacity in result.capacities]
    if reason := _why_unsizable(result, alone, demand):
        return Refused(reason)
    least = min(alone, key=lambda capacity: (capacity.lower or 0.0, capacity.slo))
    per_instance = least.lower or 0.0
    needed = max(1, math.ceil(demand.peak / (per_instance * (1 - demand.headroom)) - 1e-9))
    is_known = all(capacity.alone_per_s is not None for capacity in result.capacities)
    answer = Size(
        instances=needed,
        gpus=needed * gpus_per_instance,
        per_instance=per_instance,
        slo=least.slo,
        free=1 - demand.peak / (needed * per_instance),
        estimate=min(of.estimate or of.lower or 0.0 for of in alone) if least.estimate is not None else None,
        holds_without_one=demand.peak <= (needed - 1) * per_instance,
        is_alone=is_known if demand.users is None else result.interference == (),
    )
    return answer if gpu_price is None else _priced(result, answer, demand, gpu_price)


def _why_unsizable(result: Result, alone: Sequence[Capacity], demand: Demand) -> str:
    """Why the sweep has no capacity of an instance for all SLOs, with the remedy; "" if it has one.

    alone: capacities without other load, where known
    """
    if result.refused.is_too_many:
        return f"the sweep is not judged ({result.refused}): sweep with requests that the target accepts"
    if not result.capacities:
        why = f" ({ending(result.stop, result.stop_detail)})" if result.stop_detail else ""
        return (
            f"a {result.kind} of {result.tool} holds no capacity{why}: run `prober sweep`, which finds it for each SLO"
        )
    if result.stop == "not_sent":
        return "the prober did not send the load, so the sweep shows the limit of its machine: sweep again from one with more CPU"
    if (is_over_users := result.capacities[0].users) is (demand.users is None):
        if is_over_users:
            return "it is a sweep over users: name the peak with --users, or sweep over rates (`prober sweep URL --output FILE`)"
        return (
            "it is a sweep over rates, which does not show how many users fit: run "
            "`prober sweep URL --over users --think 10s --output FILE`, or name the peak with --peak"
        )
    judged = {capacity.slo for capacity in result.capacities}
    for slo in result.slos:
        if slo.name not in judged:
            return f"the sweep says nothing of the SLO {slo.name!r}: sweep again with it"
    for capacity in alone:
        if capacity.verdict == "below":
            lower = "number" if capacity.users else "rate"
            return f"the SLO {capacity.slo!r} fails at {capacity.text(capacity.upper)}, and no lower {lower} is shown to hold"
        if capacity.lower is None or capacity.lower <= 0:
            remedy = "sweep longer, or from a lower rate, or with a laxer objective"
            return f"the sweep has not enough data for the SLO {capacity.slo!r}{lacking(capacity)}: {remedy}"
        if capacity.upper is not None and capacity.lower > capacity.upper:
            return (
                f"the capacity of the SLO {capacity.slo!r} is damaged: its lower bound {capacity.text(capacity.lower)} is above the "
                f"upper, {capacity.text(capacity.upper)}: sweep again"
            )
    return ""


def _priced(result: Result, answer: Size, demand: Demand, gpu_price: float) -> Size | Refused:
    stages = [stage for stage in result.stages if stage.answered]
    prompt, output = total(stage.prompt_tokens for stage in stages), total(stage.output_tokens for stage in stages)
    if prompt is None or output is None:
        return Refused(
            "a price needs tokens, and the sweep's answers had no usage: let the server report it, or leave it out"
        )
    dollars, answers = answer.gpus * gpu_price, sum(stage.answered for stage in stages)
    peak_per_s, stage = demand.peak_per_s or 0.0, priced_stage(result)
    if demand.users is not None and stage is not None and stage.users and stage.at_rate.requests_per_s is not None:
        peak_per_s = demand.users * stage.at_rate.requests_per_s / stage.users

    def per_million(tokens: float) -> float | None:
        tokens_per_s = peak_per_s * tokens / answers
        return dollars / HOUR_S / tokens_per_s * MILLION if tokens_per_s else None

    return replace(
        answer,
        dollars_per_hour=dollars,
        dollars_per_million_prompt=per_million(prompt),
        dollars_per_million_output=per_million(output),
        dollars_per_million=per_million(prompt + output),
    )
