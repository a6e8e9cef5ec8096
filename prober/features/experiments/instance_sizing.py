"""Number and cost of instances for a peak load, from the capacity that a sweep measured.

    instances = ceil(peak ÷ (capacity of one at all SLOs × (1 − headroom)))

where headroom is the free share of the capacity, in requests of the sweep's shape and without other load. Its lower bound is used: the
estimate is too high half of the time.
"""

import math
from dataclasses import dataclass, replace

from prober.results.capacity import Capacity
from prober.results.cost import HOUR_S, MILLION
from prober.results.result import Result
from prober.results.stop_reason import ending


@dataclass(frozen=True, slots=True)
class Demand:
    """Load to serve.

    peak_per_s: requests of the sweep's shape
    headroom: free share of the capacity, 0 to 1
    fewest, most: limits of the number of instances
    """

    peak_per_s: float
    headroom: float = 0.2
    fewest: int = 1
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Size:
    """Instances for a demand.

    per_instance: lowest lower bound of the capacities, requests of the sweep's shape per second
    is_alone: they are what an instance carries without other load; else beside what others sent during the sweep, which is not known
    slo: the SLO with the lowest capacity
    free: share of the capacity that is free at the peak
    holds_without_one: the others carry the peak if one instance is lost
    reached: the sweep found the knee of that SLO
    dollars_*: None without a price, or if the sweep did not count tokens. Each price per token includes the full cost: of prompt
        tokens, of output tokens, or of both.
    """

    instances: int
    gpus: int
    per_instance: float
    slo: str
    free: float
    reached: bool
    holds_without_one: bool
    is_alone: bool = True
    dollars_per_hour: float | None = None
    dollars_per_million_prompt: float | None = None
    dollars_per_million_output: float | None = None
    dollars_per_million: float | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """Reason why there is no answer, and the remedy."""

    reason: str


def size(result: Result, demand: Demand, gpus_per_instance: int, gpu_price: float | None = None) -> Size | Refused:
    """Instances like the target of the sweep for `demand`, each with `gpus_per_instance`.

    gpu_price: dollars per hour. Raises ValueError for an invalid demand or price.
    """
    _check(demand)
    if gpu_price is not None and not 0 <= gpu_price < math.inf:
        raise ValueError(f"a GPU for {gpu_price:g} dollars per hour: a price is a finite number, 0 or more")
    capacity = _per_instance(result)
    if isinstance(capacity, Refused):
        return capacity
    slo, per_instance, reached = capacity
    needed = max(demand.fewest, math.ceil(demand.peak_per_s / (per_instance * (1 - demand.headroom)) - 1e-9))
    if demand.most is not None and needed > demand.most:
        return Refused(
            f"{needed} instances are needed, {demand.most} are allowed: by the lower bound of {slo} they carry "
            f"{demand.most * per_instance * (1 - demand.headroom):.3g}/s with the headroom, not {demand.peak_per_s:g}/s"
        )
    gpus = needed * gpus_per_instance
    free = 1 - demand.peak_per_s / (needed * per_instance)
    holds_without_one = demand.peak_per_s <= (needed - 1) * per_instance
    is_alone = all(capacity.own is not None for capacity in result.capacities)
    answer = Size(needed, gpus, per_instance, slo, free, reached, holds_without_one, is_alone)
    return answer if gpu_price is None else _priced(result, answer, demand.peak_per_s, gpu_price)


def _check(demand: Demand) -> None:
    if not demand.peak_per_s > 0:
        raise ValueError(f"a peak of {demand.peak_per_s:g}/s: it must be above 0")
    if not 0 <= demand.headroom < 1:
        raise ValueError(
            f"a headroom of {demand.headroom:.0%}: it is the free share of the capacity, at least 0%, below 100%"
        )
    if demand.fewest < 1:
        raise ValueError(f"at least {demand.fewest} instances: at least 1 is needed")
    if demand.most is not None and demand.most < demand.fewest:
        raise ValueError(f"at most {demand.most} instances are fewer than at least {demand.fewest}")


def _per_instance(result: Result) -> tuple[str, float, bool] | Refused:
    """(SLO, requests per second, knee was found) of the SLO with the lowest capacity."""
    if result.refused.is_too_many:
        return Refused(f"the sweep is not judged ({result.refused}): sweep with requests that the target accepts")
    if not result.capacities:
        why = f" ({ending(result.stop, result.stop_detail)})" if result.stop_detail else ""
        return Refused(
            f"a {result.kind} of {result.tool} holds no capacity{why}: run `prober sweep`, which finds it for each SLO"
        )
    if result.stop == "prober_late":
        return Refused(
            "the prober itself was late, so the sweep shows the limit of its machine: sweep again from one with a core free for it"
        )
    judged = {capacity.slo for capacity in result.capacities}
    for slo in result.slos:
        if slo.name not in judged:
            return Refused(f"the sweep says nothing of the SLO {slo.name!r}: sweep again with it")
    bounds: list[tuple[float, str, bool]] = []
    for found in result.capacities:
        capacity = found if found.own is None else found.of_shape(found.own)
        if capacity.verdict == "below":
            return Refused(
                f"the SLO {capacity.slo!r} fails at {capacity.upper or 0:.3g}/s, and no lower rate is shown to hold"
            )
        if capacity.lower is None or capacity.lower <= 0:
            return Refused(_missing_data(result, capacity))
        if capacity.upper is not None and capacity.lower > capacity.upper:
            return Refused(
                f"the capacity of the SLO {capacity.slo!r} is damaged: its lower bound {capacity.lower:g}/s is above the upper, "
                f"{capacity.upper:g}/s: sweep again"
            )
        bounds.append((capacity.lower, capacity.slo, capacity.estimate is not None))
    lower, slo_name, reached = min(bounds)
    return slo_name, lower, reached


def _missing_data(result: Result, capacity: Capacity) -> str:
    """Reason for a capacity without a lower bound, and the remedy."""
    data, needed, evidence = f"{capacity.samples:,} requests", "", capacity.evidence
    if evidence is not None:
        data = f"{evidence.events:,} events at {evidence.rate_per_s:.3g}/s, {evidence.bad:,} of them bad"
        needed = (
            f"; about {evidence.needed:,} needed" if evidence.needed is not None else ", too many for its objective"
        )
    reason = f"the sweep has not enough data for the SLO {capacity.slo!r} ({data}{needed}): "
    if evidence is not None and evidence.needed is None:
        return reason + "sweep from a lower --min-rate, or with a laxer objective"
    return reason + "sweep longer (raise --max-requests, --max-time or --max-rate), or with a laxer objective"


def _priced(result: Result, answer: Size, peak_per_s: float, gpu_price: float) -> Size | Refused:
    means = [
        (stage.answered, stage.prompt_tokens_per_request, stage.output_tokens_per_request)
        for stage in result.stages
        if stage.answered
    ]
    known = [(count, prompt, output) for count, prompt, output in means if prompt is not None and output is not None]
    if not known or len(known) < len(means):
        return Refused(
            "a price needs tokens, and the sweep's answers had no usage: let the server report it, or leave it out"
        )
    answers = sum(count for count, _, _ in known)
    prompt_per_s = peak_per_s * sum(count * prompt for count, prompt, _ in known) / answers
    output_per_s = peak_per_s * sum(count * output for count, _, output in known) / answers
    dollars = answer.gpus * gpu_price

    def per_million(tokens_per_s: float) -> float | None:
        return dollars / HOUR_S / tokens_per_s * MILLION if tokens_per_s else None

    return replace(
        answer,
        dollars_per_hour=dollars,
        dollars_per_million_prompt=per_million(prompt_per_s),
        dollars_per_million_output=per_million(output_per_s),
        dollars_per_million=per_million(prompt_per_s + output_per_s),
    )
