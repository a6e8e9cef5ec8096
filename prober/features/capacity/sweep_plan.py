"""Plan of a sweep: mode, rates, limits and budget."""

from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Literal

from prober.config.sweep import SweepSpec
from prober.config.target import TargetSpec
from prober.measure.objective import Slo
from prober.workload.workloads import sample_lengths

WARM_UP = 3  # requests of a scheduled sweep's warm-up
DRAWN_LENGTHS = 3_000  # of the workload: the knee rests on the longest requests
Mode = Literal["adaptive", "gentle", "grid"]
LimitReason = Literal["request_budget", "token_budget", "cost_budget", "session_count"]


@dataclass(frozen=True, slots=True)
class Guards:
    """Thresholds that stop a sweep at once. None: disabled.

    failed_ratio: of the requests of a stage, two at least
    ttft_factor: a TTFT above so many times its threshold
    waiting: requests in the engine's queue; None: as many as make a wait of `waiting_share` × the TTFT threshold (Little's law;
        gentle: a quarter of that)
    kv_cache_ratio: 0 to 1
    preemptions: within two seconds, more than before the sweep
    production_ttft_s, production_share: more than this share of others' requests had a TTFT above it, by the engine's own
        histogram over five seconds; None: no such guard
    max_in_flight: requests of the sweep at the same time
    late_ratio: of the last 20 results, those that the prober itself made invalid
    page_lost_s: without a reading for so long where there were readings, as the other guards then see nothing
    """

    failed_ratio: float = 0.1
    ttft_factor: float = 3.0
    waiting: float | None = None
    waiting_share: float = 1.4
    kv_cache_ratio: float = 0.98
    preemptions: float = 4.0
    production_ttft_s: float | None = None
    production_share: float = 0.1
    max_in_flight: int = 2_000
    late_ratio: float = 0.1
    page_lost_s: float = 3.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a sweep; None: no limit. cost, *_token_cost: dollars"""

    requests: int | None = None
    tokens: int | None = None
    time_s: float | None = None
    cost: float | None = None
    prompt_token_cost: float = 0.0
    output_token_cost: float = 0.0

    def used(self, requests: int, prompt_tokens: int, output_tokens: int) -> tuple[float, LimitReason]:
        """The highest share of a limit that so many requests and tokens use, 0 without limits, and the reason it ends a sweep for."""
        cost = prompt_tokens * self.prompt_token_cost + output_tokens * self.output_token_cost
        tokens = prompt_tokens + output_tokens
        shares: dict[LimitReason, float] = {
            "request_budget": requests / self.requests if self.requests else 0.0,
            "token_budget": tokens / self.tokens if self.tokens else 0.0,
            "cost_budget": cost / self.cost if self.cost else 0.0,
        }
        limit = max(shares, key=lambda reason: shares[reason])
        return shares[limit], limit


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of a sweep. Rates are requests per second of the sweep, in addition to the background load.

    mode: adaptive ramps until the knee is passed; gentle ends the ramp at `gentle_share` of a threshold, or at the first queue;
        grid walks fixed steps for curves
    min_rate, max_rate: of the ramp, and of the grid where `grid` names no rates; max_rate also of a climb
    factor: ratio of consecutive rates; None: 1.15 (grid: 1.1)
    stage_s: length of a stage; None: 4 s (grid: 60 s)
    warm_up: requests answered before the ramp, at `min_rate` and for at most `warm_up_s`; their latencies do not count; 0: no
        warm-up; None: as many as `warm_up_s` has
    lengths: (prompt, output) tokens of some thousand draws of the workload: the knee rests on the longest, which a short sweep
        seldom sends; empty: those that were sent
    Raises ValueError for a plan that is impossible.
    """

    slos: tuple[Slo, ...]
    mode: Mode = "adaptive"
    min_rate: float = 1.0
    max_rate: float = 1_000.0
    factor: float | None = None
    grid: tuple[float, ...] = ()
    stage_s: float | None = None
    warm_up: int | None = WARM_UP
    warm_up_s: float = 20.0
    gentle_share: float = 0.7
    lengths: tuple[tuple[int, int], ...] = ()
    guards: Guards = field(default_factory=Guards)
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not self.slos:
            raise ValueError("a sweep finds the rate up to which an SLO holds; there is no SLO")
        if not 0 < self.min_rate <= self.max_rate:
            raise ValueError(f"rates from {self.min_rate} to {self.max_rate}/s: there is no such ramp")
        if self.step <= 1 or (self.stage_s is not None and self.stage_s <= 0):
            raise ValueError("each stage is a higher rate than the last (factor above 1), and takes time")
        if list(self.grid) != sorted(set(self.grid)) or (self.grid and self.grid[0] <= 0):
            raise ValueError("the rates of a grid rise, from above 0")

    @property
    def stage_length_s(self) -> float:
        """Planned duration of a stage."""
        return self.stage_s or (60.0 if self.mode == "grid" else 4.0)

    @property
    def step(self) -> float:
        """Ratio of consecutive rates."""
        return self.factor or (1.1 if self.mode == "grid" else 1.15)

    def rate(self, number: int) -> float | None:
        """Rate of a stage of the ramp or the grid, requests per second; None above the highest. number: from 0"""
        if self.mode == "grid" and self.grid:
            return self.grid[number] if number < len(self.grid) else None
        rate = self.min_rate * self.step**number
        is_above = rate > self.max_rate * (1 + 1e-9)
        if is_above and number and rate / self.step < self.max_rate * (1 - 1e-9):
            return self.max_rate
        return None if is_above else rate

    @property
    def max_requests(self) -> float:
        """Mean number of requests if nothing but its rates and limits ends the sweep.

        adaptive: after the ramp, at `max_rate` for all the time that is left.
        """
        limit_s = self.limits.time_s if self.limits.time_s is not None else inf
        warm_up_s = self.warm_up_s if self.warm_up_s < inf else (self.warm_up or 0) / self.min_rate
        elapsed_s = min(limit_s, 0.0 if self.warm_up == 0 else warm_up_s)
        requests, number = elapsed_s * self.min_rate, 0
        while elapsed_s < limit_s and (rate := self.rate(number)) is not None:
            stage_s = min(self.stage_length_s, limit_s - elapsed_s)
            requests, elapsed_s, number = requests + stage_s * rate, elapsed_s + stage_s, number + 1
        if self.mode == "adaptive" and elapsed_s < limit_s:
            requests += (limit_s - elapsed_s) * self.max_rate
        return min(requests, self.limits.requests if self.limits.requests is not None else inf)


def plan_of(spec: SweepSpec, target: TargetSpec, draws: int = DRAWN_LENGTHS) -> Plan:
    """The plan of a configured sweep. draws: number of `lengths`"""
    price = target.budget.price_per_million if target.budget is not None else None
    prompt, completion = (price.prompt, price.completion) if price is not None else (0.0, 0.0)
    return Plan(
        slos=spec.slos,
        mode=spec.mode,
        min_rate=spec.rates[0] if spec.rates else spec.min_rate,
        max_rate=spec.rates[-1] if spec.rates else spec.max_rate,
        grid=spec.rates,
        stage_s=spec.step,
        guards=Guards(
            waiting=spec.guard.waiting,
            kv_cache_ratio=spec.guard.kv_cache,
            production_ttft_s=spec.guard.production_ttft,
            max_in_flight=spec.max_in_flight,
        ),
        limits=Limits(
            spec.limits.requests,
            spec.limits.tokens,
            spec.limits.time,
            spec.limits.cost,
            prompt / 1e6,
            completion / 1e6,
        ),
        lengths=sample_lengths(spec.workload, Random(0), draws),
    )
