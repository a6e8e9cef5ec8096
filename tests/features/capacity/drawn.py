"""Drives a sweep's machine in virtual time against answers that are drawn by chance: no engine, no queue, no memory.

Everything that happens stands in one heap of (time, order, action). `simulated_sweep` moves a simulated engine step by step; this
module shares nothing with it.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from random import Random

from prober.config.sweep import SweepSpec
from prober.config.target import BudgetSpec, PriceSpec
from prober.features.capacity.actions import Estimate, Finished, Run
from prober.features.capacity.estimate import estimate_capacity
from prober.features.capacity.sweep import Sweep
from prober.measure.chunk import Usage
from prober.measure.engine_signals import EngineInfo, EngineSignals
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.target_state import WarmUpLength
from prober.measure.timeline import Timeline

TOKENS = 20
GAP_S = 0.01
BUDGET = BudgetSpec(price_per_million=PriceSpec(prompt=1_000, completion=1_000))


@dataclass(frozen=True, slots=True)
class Answer:
    """ttft_s: seconds from due to first token; gap_s: between tokens."""

    ttft_s: float
    gap_s: float = GAP_S
    outcome: Outcome = Outcome.OK


Engine = Callable[[Random, float], Answer]  # (chance, requests per second) → answer


def share_bad(share: float, good_s: float = 0.2, bad_s: float = 0.8) -> Engine:
    """Breaches with the same chance at every rate. Good latencies spread by half."""

    def answer(rng: Random, rate_per_s: float) -> Answer:
        return Answer(bad_s if rng.random() < share else good_s * rng.uniform(0.5, 1.5))

    return answer


def cliff(at_per_s: float, below: float = 0.0, above: float = 0.6) -> Engine:
    """Breaches with the chance `below` up to a rate, and `above` beyond it."""
    return lambda rng, rate: share_bad(below if rate <= at_per_s else above)(rng, rate)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens to the sweep once, after so many requests."""

    do: Callable[[Sweep, float], None]
    after_requests: int


def run(
    spec: SweepSpec,
    engine: Engine,
    seed: int,
    *,
    page: bool = False,
    event: Event | None = None,
    longest_s: float = 7_200.0,
) -> Finished:
    """A sweep from its begin to its end, with its estimates."""
    driven = Driven(spec, engine, seed, event)
    driven.push(0.0, driven.tick)
    if page:
        driven.push(0.0, driven.look)
    return driven.run(longest_s)


class Driven:
    """A sweep, its requests, and the heap of what is to come. Arrivals of an order that is over are void (`epoch`)."""

    def __init__(self, spec: SweepSpec, engine: Engine, seed: int, event: Event | None) -> None:
        self.rng = Random(f"{seed} drawn")
        self.sweep = Sweep(spec, 0.0, WarmUpLength(0), budget=BUDGET)
        self.engine, self.event = engine, event
        self.heap: list[tuple[float, int, Callable[[float], None]]] = []
        self.numbers = count()
        self.pending: set[str] = set()
        self.sent = self.finished = self.epoch = 0

    def push(self, at_s: float, action: Callable[[float], None]) -> None:
        heapq.heappush(self.heap, (at_s, next(self.numbers), action))

    def run(self, longest_s: float) -> Finished:
        now, order = 0.0, None
        while now < longest_s and not isinstance(self.sweep.action, Finished):
            if self.sweep.action is not order:
                order = self.sweep.action
                self.epoch += 1
                self.ordered(order, now)
                continue
            now, _, action = heapq.heappop(self.heap)
            action(now)
        assert isinstance(self.sweep.action, Finished), f"no end after {longest_s:g} s"
        return self.sweep.action

    def ordered(self, order: Run | Estimate, now: float) -> None:
        if isinstance(order, Run):
            epoch, rate = self.epoch, order.rate_per_s
            self.push(now + self.rng.expovariate(rate), lambda at: self.arrival(at, epoch, rate))
            return
        for name in sorted(self.pending):
            self.sweep.result(_cut(name), now)
        self.pending.clear()
        self.sweep.estimated(estimate_capacity(order.record).capacities)

    def tick(self, at_s: float) -> None:
        self.sweep.tick(at_s)
        self.push(at_s + 0.25, self.tick)

    def look(self, at_s: float) -> None:
        self.sweep.page(at_s, _page(len(self.pending), self.finished))
        self.push(at_s + self.sweep.page_every_s, self.look)

    def arrival(self, at_s: float, epoch: int, rate: float) -> None:
        if epoch != self.epoch or not isinstance(self.sweep.action, Run):
            return
        self.sent += 1
        name = f"d{self.sent}"
        self.pending.add(name)
        self.sweep.sent(name, at_s, 50, TOKENS)
        answer = self.engine(self.rng, rate)
        if answer.outcome is Outcome.OK:
            self.push(at_s + answer.ttft_s, lambda now: self.sweep.first_token(name, now))
        end_s = at_s + answer.ttft_s + (TOKENS - 1) * answer.gap_s
        self.push(end_s, lambda now: self.over(name, at_s, answer, now))
        if self.event is not None and self.event.after_requests == self.sent:
            self.event.do(self.sweep, at_s)
        self.push(at_s + self.rng.expovariate(rate), lambda now: self.arrival(now, epoch, rate))

    def over(self, name: str, at_s: float, answer: Answer, now: float) -> None:
        if name in self.pending:
            self.pending.discard(name)
            self.finished += 1
            self.sweep.result(_result(name, at_s, answer), now)


def _result(name: str, at_s: float, answer: Answer) -> ProbeResult:
    begin = round(at_s * 1e9)
    stamps = tuple(begin + round((answer.ttft_s + n * answer.gap_s) * 1e9) for n in range(TOKENS))
    timeline = Timeline(begin, sent_ns=begin)
    if answer.outcome is Outcome.OK:
        timeline = replace(timeline, first_ns=stamps[0], end_ns=stamps[-1], content_ns=stamps, usage=Usage(50, TOKENS))
    return ProbeResult("t", "w", name, 0.0, answer.outcome, "drawn", timeline, requested_output_tokens=TOKENS)


def _cut(name: str) -> ProbeResult:
    return ProbeResult("t", "w", name, 0.0, Outcome.CANCELLED, "cut", Timeline(0))


def _page(in_flight: int, finished: int) -> EngineSignals:
    return EngineSignals(
        EngineInfo("vllm", "1"),
        ranks=1,
        requests_running=float(in_flight),
        requests_waiting=0.0,
        kv_cache_usage_ratio_max=0.1,
        preemptions_total=0.0,
        prompt_tokens_total=50.0 * finished,
        generation_tokens_total=float(TOKENS * finished),
        requests_finished_total=float(finished),
        start_time_seconds=100.0,
    )
