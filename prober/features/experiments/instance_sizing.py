"""How many instances a peak takes, and what they cost, from the capacity a sweep has found.

    instances = ceil(peak ÷ (capacity of one at all SLOs × (1 − headroom)))

where headroom is the share of the capacity that stays free. The lower bound of the capacity is used: the estimate is too high
half of the time.
"""

import math
from dataclasses import dataclass

from prober.results.capacity import Capacity
from prober.results.result import Result

HOUR_S = 3600.0
MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Demand:
    """What is to be served. peak_per_s: requests of the sweep's shape; headroom: 0 to 1; instances: fewest and most."""

    peak_per_s: float
    headroom: float = 0.2
    fewest: int = 1
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Size:
    """What it takes. per_instance: requests per second at all SLOs; slo: the one that gives way first; free: at the peak, of 1.

    dollars_*: None without a price. Prompt, output and all tokens each bear the whole price: they are three ways to say it,
    not parts of it. None too where the sweep did not count tokens.
    """

    instances: int
    gpus: int
    per_instance: float
    slo: str
    free: float
    reached: bool
    dollars_per_hour: float | None = None
    dollars_per_million_prompt: float | None = None
    dollars_per_million_output: float | None = None
    dollars_per_million: float | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """Why there is no answer, and what to do."""

    reason: str


def size(result: Result, demand: Demand, gpus_per_instance: int, gpu_price: float | None = None) -> Size | Refused:
    """What `demand` takes of instances like the target that was swept, each with `gpus_per_instance`; gpu_price: dollars an hour.

    Raises ValueError for a demand that cannot be.
    """
    _check(demand)
    found = _per_instance(result)
    if isinstance(found, Refused):
        return found
    slo, per_instance, reached = found
    needed = max(demand.fewest, math.ceil(demand.peak_per_s / (per_instance * (1 - demand.headroom)) - 1e-9))
    if demand.most is not None and needed > demand.most:
        return Refused(
            f"{needed} instances are needed, {demand.most} are allowed: they keep {slo} up to "
            f"{demand.most * per_instance * (1 - demand.headroom):.3g}/s with the headroom, not {demand.peak_per_s:g}/s"
        )
    gpus = needed * gpus_per_instance
    answer = Size(needed, gpus, per_instance, slo, 1 - demand.peak_per_s / (needed * per_instance), reached)
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
    """(SLO, requests/s, the knee was reached) of the SLO that gives way first."""
    if not result.capacities:
        return Refused(
            f"a {result.kind} of {result.tool} holds no capacity: run `prober sweep`, which finds it for each SLO"
        )
    judged = {each.slo for each in result.capacities}
    for slo in result.slos:
        if slo.name not in judged:
            return Refused(f"the sweep says nothing of the SLO {slo.name!r}: sweep again with it")
    bounds: list[tuple[float, str, bool]] = []
    for each in result.capacities:
        if each.verdict == "below_lowest":
            return Refused(f"no rate meets the SLO {each.slo!r}: it failed at the lowest, {each.upper or 0:g}/s")
        if each.lower is None or each.lower <= 0:
            return Refused(_lacking(result, each))
        bounds.append((each.lower, each.slo, each.verdict == "found"))
    lower, slo_name, reached = min(bounds)
    return slo_name, lower, reached


def _lacking(result: Result, capacity: Capacity) -> str:
    """What is known, and what to do."""
    seen, needed = f"{capacity.samples:,} requests", ""
    if (found := capacity.evidence) is not None:
        seen = f"{found.events:,} events at {found.rate_per_s:.3g}/s and above, {found.bad:,} of them bad"
        needed = f"; about {found.needed:,} needed" if found.needed is not None else ", too many for its objective"
    told = f"the sweep has not enough data for the SLO {capacity.slo!r} ({seen}{needed}): "
    if result.stop == "prober_late":
        return told + "the prober itself was late, so sweep again from a machine that has a core free for it"
    if found is not None and found.needed is None:
        return told + "sweep from a lower --min-rate, or with a laxer objective"
    return told + "sweep longer (raise --max-requests, --max-time, --max-rate or --sustain), or with a laxer objective"


def _priced(result: Result, answer: Size, peak_per_s: float, gpu_price: float) -> Size | Refused:
    means = [
        (each.answered, each.prompt_tokens_per_request, each.output_tokens_per_request)
        for each in result.stages
        if each.answered
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

    return Size(
        answer.instances,
        answer.gpus,
        answer.per_instance,
        answer.slo,
        answer.free,
        answer.reached,
        dollars_per_hour=dollars,
        dollars_per_million_prompt=per_million(prompt_per_s),
        dollars_per_million_output=per_million(output_per_s),
        dollars_per_million=per_million(prompt_per_s + output_per_s),
    )
