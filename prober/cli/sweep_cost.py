"""Upper bounds of tokens and dollars for a target's sweeps, per sweep and per day; used by `prober check`."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import inf
from typing import Self

from prober.config.sweep import WARM_UP, SweepSpec
from prober.config.target import DAY_S, BudgetSpec, TargetSpec, estimate_per_day, needs_of
from prober.config.units import counted
from prober.features.capacity.demand import MIN_COVERED_S, QUERY_INTERVAL_S, STRAGGLERS_S
from prober.features.capacity.demand import WINDOW_S as DEMAND_WINDOW_S
from prober.features.capacity.sweep_schedule import due_times
from prober.workload.budget import WINDOW_HOURS
from prober.workload.schedule import WeeklySpan

MAX_DUE_TIMES = 12_000  # over a week of one per minute
WINDOW_S = (WINDOW_HOURS + 1) * 3600  # an amount may count this long, because budgets are kept in whole hours
UNITS = {"tokens": "{:,.0f} tokens", "cost": "${:,.2f}"}


@dataclass(frozen=True, slots=True)
class SweepCost:
    """Upper bounds of what one prober's sweeps of a target use.

    place: path of the target in the configuration
    bound: the limit of one sweep, as text
    is_explicit: True if `sweep.limits` sets the bound
    most_in_day: maximum number of scheduled sweeps in any 24 hours
    requests: requests of one sweep
    prompt_tokens, completion_tokens: tokens of one request
    """

    place: str
    spec: TargetSpec
    bound: str
    is_explicit: bool
    most_in_day: int
    requests: float
    prompt_tokens: float
    completion_tokens: float

    @classmethod
    def of(cls, place: str, spec: TargetSpec) -> Self | None:
        """Compute the cost of a target's sweeps; None if it has none."""
        sweep = spec.sweep
        if sweep is None:
            return None
        prompt, completion = sweep.workload.mean_tokens()
        limits, dollars = sweep.limits, _amount(spec.budget, "cost", prompt, completion)
        bounds: list[tuple[float, str]] = []
        if limits.requests is not None:
            bounds.append((limits.requests, "sweep.limits.requests"))
        if limits.tokens is not None:
            bounds.append((limits.tokens / (prompt + completion), "sweep.limits.tokens"))
        if limits.cost is not None and dollars:
            bounds.append((limits.cost / dollars, "sweep.limits.cost"))
        explicit = bool(bounds)
        if not explicit:
            mean = mean_requests(sweep)
            limit = f"its rates and the {sweep.limits.time:g} s of sweep.limits.time"
            limit = f"the {mean:,.0f} requests of a sweep without max_rate" if mean == sweep.most_requests else limit
            bounds.append((mean, f"no limit but {limit}"))
            bounds += [
                (max(0.0, left) / amount, "no limit of its own: what the budget leaves beside its probes")
                for kind, left in _left(spec).items()
                if (amount := _amount(spec.budget, kind, prompt, completion))
            ]
        requests, bound = min(bounds, key=lambda limit: limit[0])
        most_in_day = 0
        if sweep.schedule is not None:
            times = due_times_of(sweep.schedule, sweep.timezone, sweep.blackout, sweep.min_gap)
            most_in_day = most_within(times, DAY_S)
        return cls(place, spec, bound, explicit, most_in_day, requests, prompt, completion)

    def amount(self, kind: str) -> float:
        """Tokens ("tokens") or dollars ("cost") of one sweep."""
        return self.requests * _amount(self.spec.budget, kind, self.prompt_tokens, self.completion_tokens)

    def amount_per_day(self, kind: str) -> float:
        """Tokens or dollars of a day's scheduled sweeps: all of them, or what probes leave of the budget, if less."""
        amount = self.most_in_day * self.amount(kind)
        return amount if self.is_explicit else min(amount, max(0.0, _left(self.spec).get(kind, inf)))

    @property
    def has_price(self) -> bool:
        """True if the budget has prices."""
        return self.spec.budget is not None and self.spec.budget.price_per_million is not None

    def __str__(self) -> str:
        """A table row: tokens and dollars of one sweep; sweeps, tokens and dollars per day; the limit."""
        dollars = [
            f"{cost:.2f}" if self.has_price else "–" for cost in (self.amount("cost"), self.amount_per_day("cost"))
        ]
        often = str(self.most_in_day) if self.spec.sweep and self.spec.sweep.schedule else "on demand"
        tokens = self.amount("tokens"), self.amount_per_day("tokens")
        return f"{tokens[0]:14,.0f} {dollars[0]:>8} {often:>9} {tokens[1]:14,.0f} {dollars[1]:>8}  {self.bound}"

    def mistakes(self) -> Iterator[tuple[str, str]]:
        """(path, message) for daily budgets that probes and sweeps exceed."""
        for kind, left in _left(self.spec).items():
            limit, use = _budget(self.spec.budget, kind), estimate_per_day(self.spec)
            probes = use.tokens if kind == "tokens" else use.dollars or 0.0
            in_unit, per_sweep = UNITS[kind].format, self.amount(kind)
            warm_up = (WARM_UP.requests or 0) * _amount(
                self.spec.budget, kind, self.prompt_tokens, self.completion_tokens
            )
            most = max(1, self.most_in_day)
            if left < warm_up:
                yield (
                    f"{self.place}.budget.{kind}_per_day",
                    f"{in_unit(limit)} leave {in_unit(max(0.0, left))} beside what the probes "
                    f"need, and the warm-up of a sweep takes {in_unit(warm_up)}: none would begin; raise it to "
                    f"{in_unit(limit - left + warm_up)} and what sweeps shall take, lower the probes' rate, or remove `sweep`",
                )
            elif self.is_explicit and probes + most * per_sweep > limit:
                yield (
                    f"{self.place}.sweep.limits",
                    f"the probes take {in_unit(probes)} a day and {counted(most, 'sweep')} of up to "
                    f"{in_unit(per_sweep)} each, together more than budget.{kind}_per_day of {in_unit(limit)}; lower the limits to "
                    f"{in_unit(max(0.0, limit - probes) / most)} a sweep, sweep less often (schedule, min_gap), or raise the budget",
                )

    def warnings(self) -> Iterator[tuple[str, str]]:
        """(path, message) if sweeps may be so close together that user demand is unknown between them."""
        sweep, spec = self.spec.sweep, self.spec
        if sweep is None or sweep.schedule is None:
            return
        if sweep.demand_query is not None:
            needed_s = DEMAND_WINDOW_S + QUERY_INTERVAL_S
        elif spec.metrics is not None:
            needed_s = STRAGGLERS_S + MIN_COVERED_S + 2 * spec.metrics.interval
        else:
            return
        times = due_times_of(sweep.schedule, sweep.timezone, sweep.blackout, sweep.min_gap)
        gap_s = min((after_s - before_s for before_s, after_s in pairwise(times)), default=inf)
        if gap_s - sweep.limits.time < needed_s:
            yield (
                f"{self.place}.sweep.schedule",
                f"a sweep may start {gap_s:.0f} s after another, which may last {sweep.limits.time:.0f} s, and the demand of users "
                f"takes {needed_s:.0f} s without one to be measured: headroom is then unknown, and LLMHeadroomLow cannot fire; sweep "
                "less often (schedule, min_gap), or lower sweep.limits.time",
            )


def mean_requests(sweep: SweepSpec) -> float:
    """Mean number of requests if only its plan limits the sweep. An adaptive one stays at the highest rate after its ramp."""
    limit_s, rate = sweep.limits.time, sweep.lowest_rate
    elapsed_s = min(limit_s, WARM_UP.seconds or 0.0)
    requests = elapsed_s * rate
    while elapsed_s < limit_s and requests < sweep.most_requests:
        stage_s = min(sweep.stage_s, limit_s - elapsed_s)
        requests, elapsed_s = requests + stage_s * rate, elapsed_s + stage_s
        if (after := sweep.after(rate)) is None:
            break
        rate = after
    held_s = limit_s - elapsed_s if sweep.mode == "adaptive" else 0.0
    return min(requests + held_s * rate, sweep.most_requests)


@cache
def due_times_of(schedule: str, timezone: str, blackout: tuple[WeeklySpan, ...], min_gap_s: float) -> tuple[float, ...]:
    """Due times of sweeps in Unix seconds over five weeks, at least `min_gap_s` apart; cached, as many targets share a schedule."""
    return due_times(schedule, timezone, blackout, time.time(), min_gap_s, MAX_DUE_TIMES)


def most_within(times: Sequence[float], within_s: float) -> int:
    """Maximum number of times in any span of `within_s`."""
    most = first = 0
    for last, due_s in enumerate(times):
        while due_s - times[first] >= within_s:
            first += 1
        most = max(most, last - first + 1)
    return most


def _left(spec: TargetSpec) -> dict[str, float]:
    """What scheduled probes leave of each budget, in the hours for which it counts, computed as in the daemon."""
    return {kind: _budget(spec.budget, kind) - need.max_over(WINDOW_S) for kind, need in needs_of(spec).items()}


def _budget(budget: BudgetSpec | None, kind: str) -> float:
    limit: float | None = getattr(budget, f"{kind}_per_day", None)
    return inf if limit is None else limit


def _amount(budget: BudgetSpec | None, kind: str, prompt: float, completion: float) -> float:
    if kind == "tokens":
        return prompt + completion
    return budget.dollars(prompt, completion) if budget is not None else 0.0
