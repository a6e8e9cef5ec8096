"""Sweeps of a world in virtual time: the product's sweep machine against an engine that it does not know."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from math import inf
from pathlib import Path
from random import Random
from typing import Literal

import numpy as np

from bench.independent.engine import COMPLETE, IN_FLIGHT
from bench.independent.workloads import generator
from bench.independent.worlds import ALLOWED, World
from prober.config.sweep import WARM_UP, SweepSpec
from prober.features.capacity.actions import Action, Run
from prober.features.capacity.sweep import PAGE_S, Sweep
from prober.measure.chunk import Usage
from prober.measure.engine_signals import EngineSignals
from prober.measure.objective import Slo
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.target_state import WarmUpLength
from prober.measure.timeline import Timeline
from tests.features.capacity.simulated_sweep import sweep_spec

Telemetry = Literal["counters", "none"]
Lengths = tuple[tuple[int, int], ...]
LEAD_S, READ_LEAD_S = 90.0, 60.0  # before the sweep: background, page readings
TICK_S, IDLE_PAGE_S, MAX_STEP_S = 0.25, 5.0, 0.05
CLOCK_S = 1_000.0  # the prober's clock at time 0 of the engine
NETWORK_S, JITTER_S = 0.0002, 0.0002  # constant, and mean of the exponential part
LENGTHS = 3_000  # draws of the workload in a plan, as the daemon has them
GRID_STEP_S, GRID_FACTOR, GRID_MIN_PER_S = 60.0, 1.1, 1.0
AFTER_S = 60.0  # harm is counted until so long after the sending


def plan(
    world: World, traces: Path | None, mode: Literal["adaptive", "gentle"] = "adaptive"
) -> tuple[SweepSpec, Lengths]:
    """The default sweep, and lengths of its workload, for a TTFT objective that allows the share of the truth."""
    slo = Slo("ttft", "ttft", world.threshold_s, Decimal(1) - Decimal(str(ALLOWED)), 3_600.0)
    prompts, outputs = world.scene.own.lengths(generator("plan", world.name), LENGTHS, traces)
    return sweep_spec(slo, mode=mode), tuple(zip(prompts.tolist(), outputs.tolist(), strict=True))


@dataclass
class _Own:
    """A request of the sweep. stage_s: of its due time; network_s: added to what the client sees."""

    number: int
    at_s: float
    prompt: int
    output: int
    network_s: float
    has_first: bool = False


@dataclass
class SweepDriver:
    """Engine, background and sweep side by side. telemetry: what the sweep knows of the background"""

    world: World
    telemetry: Telemetry
    seed: int
    traces: Path | None = None
    now_s: float = 0.0
    others: list[tuple[float, int]] = field(default_factory=list)  # arrival, number in the engine
    sent: int = 0
    readings: list[tuple[float, EngineSignals]] = field(default_factory=list)  # during the sweep

    def __post_init__(self) -> None:
        scene = self.world.scene
        self.engine = self.world.engine(self.seed)
        self._rng = Random(f"sweep {self.world.name} {self.seed}")
        self._background: Iterator[tuple[float, int, int, list[int]]] = scene.background.stream(
            f"others {self.world.name} {self.seed}", self.world.background_per_s, self.traces
        )
        self._next_other = next(self._background)
        self._lengths: Iterator[tuple[int, int]] = self._own_lengths()
        self._open: list[_Own] = []
        self.sweep: Sweep | None = None

    def _own_lengths(self) -> Iterator[tuple[int, int]]:
        rng = generator("own", self.world.name, self.seed)
        while True:
            prompts, outputs = self.world.scene.own.lengths(rng, LENGTHS, self.traces)
            yield from zip(prompts.tolist(), outputs.tolist(), strict=True)

    def run(
        self, spec: SweepSpec, lengths: Lengths, warm_up: WarmUpLength = WARM_UP, longest_s: float = 3_600.0
    ) -> Iterator[Action]:
        """Run the sweep; yields each action that is not `Run`. The caller answers `Estimate` by `sweep.estimated`."""
        self.advance(LEAD_S - READ_LEAD_S)
        pages = []
        while self.now_s < LEAD_S:
            self.advance(self.now_s + IDLE_PAGE_S)
            pages.append((self.now_s, self.engine.page()))
        sweep = self.sweep = Sweep(spec, CLOCK_S + self.now_s, warm_up, lengths)
        for at_s, page in pages if self.telemetry != "none" else ():
            sweep.page(CLOCK_S + at_s, page)
        self.began_s = self.now_s
        tick_s = page_s = self.now_s
        due_s, action = inf, None
        while self.now_s < self.began_s + longest_s:
            if sweep.action is not action:
                action = sweep.action
                if not isinstance(action, Run):
                    self.ended_s = self.now_s
                    self._cut()
                    yield action
                    if sweep.action is action:
                        return
                    continue
                due_s = self.now_s + self._rng.expovariate(action.rate_per_s)
            next_s = min(tick_s, page_s, due_s, self.now_s + MAX_STEP_S)
            self.advance(next_s)
            self._report()
            if next_s == due_s and isinstance(action, Run):
                self._send(due_s)
                due_s += self._rng.expovariate(action.rate_per_s)
            if next_s == tick_s:
                sweep.tick(CLOCK_S + self.now_s)
                tick_s += TICK_S
            if next_s == page_s:
                page = self.engine.page()
                self.readings.append((self.now_s, page))
                if self.telemetry != "none":
                    sweep.page(CLOCK_S + self.now_s, page)
                page_s = self.now_s + sweep.page_every_s
            page_s = min(page_s, self.now_s + max(PAGE_S, sweep.page_every_s))

    def advance(self, to_s: float) -> None:
        """Advance engine and background."""
        while self._next_other[0] <= to_s:
            at_s, prompt, output, prefix = self._next_other
            self.others.append((at_s, self.engine.submit(at_s, prompt, output, prefix)))
            self._next_other = next(self._background)
        self.engine.advance(to_s)
        self.now_s = to_s

    def harm(self, until_s: float) -> int:
        """Requests of the background that arrived from the sweep's begin to `until_s` and missed the threshold."""
        times = [at_s for at_s, _ in self.others]
        first, last = bisect_left(times, self.began_s), bisect_left(times, until_s)
        results = self.engine.results()
        ttfts_s = [float(results.first_token_s[number]) - at_s for at_s, number in self.others[first:last]]
        return sum(not ttft_s <= self.world.threshold_s for ttft_s in ttfts_s)

    def _send(self, at_s: float) -> None:
        assert self.sweep is not None
        prompt, output = next(self._lengths)
        network_s = NETWORK_S + self._rng.expovariate(1 / JITTER_S)
        own = _Own(self.engine.submit(at_s, prompt, output, (), True), at_s, prompt, output, network_s)
        self._open.append(own)
        self.sent += 1
        self.sweep.sent(f"r{own.number}", CLOCK_S + at_s, prompt, output)

    def _report(self) -> None:
        """Report to the sweep what a client has received by now."""
        if not self._open:
            return
        assert self.sweep is not None
        first = self._open[0].number
        results = self.engine.results(first)
        still_open = []
        for own in self._open:
            at = own.number - first
            first_s = float(results.first_token_s[at]) + own.network_s
            end_s = float(results.end_s[at]) + own.network_s
            if not own.has_first and first_s <= self.now_s:
                own.has_first = True
                self.sweep.first_token(f"r{own.number}", CLOCK_S + first_s)
            if results.status[at] == IN_FLIGHT or not end_s <= self.now_s:
                still_open.append(own)
            else:
                self.sweep.result(self._result(own, int(results.status[at])), CLOCK_S + self.now_s)
        self._open = still_open

    def _result(self, own: _Own, status: int) -> ProbeResult:
        times_s = np.unique(self.engine.token_times_s(own.number)) + own.network_s
        stamps = tuple(round((CLOCK_S + float(at_s)) * 1e9) for at_s in times_s)
        begin, ok = round((CLOCK_S + own.at_s) * 1e9), status == COMPLETE
        timeline = Timeline(
            begin,
            sent_ns=begin,
            first_ns=stamps[0] if stamps else None,
            end_ns=stamps[-1] if ok and stamps else None,
            content_ns=stamps,
            usage=Usage(own.prompt, own.output) if ok else None,
        )
        outcome, name = (Outcome.OK if ok else Outcome.RESET), f"r{own.number}"
        return ProbeResult(
            *("t", "w", name, 0.0, outcome, "", timeline),
            requested_prompt_tokens=own.prompt,
            requested_output_tokens=own.output,
        )

    def _cut(self) -> None:
        for own in self._open:
            self.engine.cancel(own.number)
        self._open = []


def grid(world: World, seed: int, traces: Path | None) -> tuple[int, float, int]:
    """(requests, seconds, harmed background requests with those of the same time without it) of a grid: steps of 10%, 60 s each,
    until the p99 of a step misses the threshold.
    """
    driver = SweepDriver(world, "none", seed, traces)
    driver.advance(LEAD_S)
    driver.began_s = LEAD_S
    rate, rng = GRID_MIN_PER_S, Random(f"grid {world.name} {seed}")
    while True:
        start_s, at_s, numbers = driver.now_s, driver.now_s + rng.expovariate(rate), []
        while at_s < start_s + GRID_STEP_S:
            driver.advance(at_s)
            numbers.append((driver.engine.submit(at_s, *next(driver._lengths)), at_s))
            at_s += rng.expovariate(rate)
        driver.advance(start_s + GRID_STEP_S)
        driver.sent += len(numbers)
        first_s = driver.engine.results().first_token_s
        waited_s = sorted((float(first_s[n]) if first_s[n] <= driver.now_s else driver.now_s) - at for n, at in numbers)
        if waited_s and waited_s[-max(1, round(ALLOWED * len(waited_s)))] > world.threshold_s:
            break
        rate *= GRID_FACTOR
    ended_s = driver.now_s
    for number, _ in numbers:
        driver.engine.cancel(number)
    driver.advance(ended_s + AFTER_S)
    return (
        driver.sent,
        ended_s - LEAD_S,
        driver.harm(ended_s + AFTER_S) - undisturbed_harm(world, seed, traces, LEAD_S, ended_s + AFTER_S),
    )


def undisturbed_harm(world: World, seed: int, traces: Path | None, from_s: float, until_s: float) -> int:
    """Requests of the same background that miss the threshold without a sweep."""
    driver = SweepDriver(world, "none", seed, traces)
    driver.advance(until_s + 10 * world.threshold_s)
    driver.began_s = from_s
    return driver.harm(until_s)
