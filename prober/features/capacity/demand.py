"""Demand of a target's users, from counters on the engine's metrics page or answers to a query."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

from prober.features.capacity.forecast import Load
from prober.measure.engine_signals import EngineSignals, PageReading

WINDOW_S = 300.0
LONGEST_S = 3_600.0  # of the window of a small stream
BLOCK_S = 30.0
QUERY_INTERVAL_S = 30.0
MIN_COVERED_S = 60.0  # a rate over less is not stated
STRAGGLERS_S = 10.0  # after a sweep: the engine counts cut requests once it notices
MAX_ERROR = 0.04  # relative standard error of a demand from which its window need not be longer
MAX_SIGMAS = 2.0  # between recent and earlier blocks of one rate


class Totals(NamedTuple):
    """Totals of requests and tokens; None if not counted.

    arrived: requests that have arrived, or if the page does not show how many run, that have finished
    prompts, outputs: computed prompt tokens (without cached ones), and output tokens
    """

    arrived: float | None
    finished: float | None
    prompts: float | None
    outputs: float | None

    def minus(self, other: "Totals") -> "Totals":
        """The difference of each total; None where one is not counted."""
        return Totals(*(None if a is None or b is None else a - b for a, b in zip(self, other, strict=True)))


NOTHING = Totals(0.0, 0.0, 0.0, 0.0)


def totals_of(signals: EngineSignals) -> Totals:
    """Totals on the engine's page."""
    finished, prompts = signals.requests_finished_total, signals.prompt_tokens_total
    arrived = signals.requests_arrived_total
    if prompts is not None:
        prompts -= signals.prefix_cache_hits_tokens_total or 0.0
    return Totals(finished if arrived is None else arrived, finished, prompts, signals.generation_tokens_total)


class Block(NamedTuple):
    """What came in `span_s` observed seconds until `end_s`."""

    end_s: float
    span_s: float
    came: Totals


@dataclass(frozen=True, slots=True)
class Demand:
    """Load per second; None if not counted.

    requests_per_s: arriving requests, or requests as counted by the query
    prompt_tokens_per_s, output_tokens_per_s: computed prompt tokens (without cached ones), and output tokens
    finished_per_s: finished requests, to which these tokens belong
    log_error: relative standard error, from the scatter of the blocks; 0 if unknown
    """

    requests_per_s: float | None = None
    prompt_tokens_per_s: float | None = None
    output_tokens_per_s: float | None = None
    finished_per_s: float | None = None
    log_error: float = 0.0

    @property
    def tokens_per_s(self) -> float | None:
        """Computed prompt tokens plus output tokens, per second."""
        if self.prompt_tokens_per_s is None or self.output_tokens_per_s is None:
            return None
        return self.prompt_tokens_per_s + self.output_tokens_per_s

    @property
    def load(self) -> Load | None:
        """Requests per second with the mean tokens of a request; None while unknown, or if nothing finishes."""
        finished_per_s, tokens_per_s = self.finished_per_s, (self.prompt_tokens_per_s, self.output_tokens_per_s)
        if self.requests_per_s is None or not finished_per_s or None in tokens_per_s:
            return None
        prompt_tokens, output_tokens = ((of or 0.0) / finished_per_s for of in tokens_per_s)
        return Load(self.requests_per_s, prompt_tokens, output_tokens, self.log_error)


UNKNOWN = Demand()


@dataclass(slots=True)
class DemandMeter:
    """Demand of users over the last minutes. All times are seconds of one monotonic clock.

    Counters grow by the requests of users, of the prober and of sweeps. What the prober sent is subtracted (`sent`); readings during
    a sweep and STRAGGLERS_S after it are ignored, and the demand of before stays until WINDOW_S after its end. The window is
    WINDOW_S, or for a small stream longer, as far back as the rate was the same. Answers to a query may include a sweep's requests
    for WINDOW_S.

    is_queried: `answer` states the demand instead of the page's counters
    """

    is_queried: bool = False
    _blocks: list[Block] = field(default_factory=list)
    _before: PageReading | None = None
    _own: Totals = NOTHING  # the prober's own since `_before`
    _answered: Demand = UNKNOWN
    _is_lost: bool = False
    _is_swept: bool = False
    _is_settling: bool = False  # a sweep has ended since the last reading or answer
    _settled_s: float = -math.inf
    _counted_s: float = -math.inf  # when readings count again
    _fresh_s: float = -math.inf  # until when the demand is known without a newer reading or answer
    _is_of_before: bool = False  # what is known is older than the last sweep

    @property
    def covered_s(self) -> float:
        """Seconds that the last WINDOW_S of readings cover."""
        return sum(block.span_s for block in latest(self._blocks, WINDOW_S))

    @property
    def demand(self) -> Demand:
        """The latest known demand."""
        if self.is_queried:
            return self._answered
        return UNKNOWN if self._is_lost else demand_of(self._blocks)

    @property
    def is_swept(self) -> bool:
        """True while the counters include a sweep, until the first reading after its end."""
        return self._is_swept or self._is_settling

    @property
    def recent(self) -> Demand:
        """Demand over the last WINDOW_S alone."""
        return demand_of(latest(self._blocks, WINDOW_S))

    def sent(self, prompt_tokens: float, output_tokens: float) -> None:
        """Note an answered request of the prober itself, which is no demand."""
        own = zip(self._own, (1.0, 1.0, prompt_tokens, output_tokens), strict=True)
        self._own = Totals(*((total or 0.0) + more for total, more in own))

    def takes(self, at_s: float) -> bool:
        """True if a reading counts: not if a query is asked instead, during a sweep, or soon after it."""
        if self.is_queried or self._is_swept:
            return False
        self._settle(at_s)
        return at_s >= self._counted_s

    def count(self, reading: PageReading) -> PageReading | None:
        """Update the demand by a page reading. Returns the reading before it if what came between them is counted, else None."""
        at_s = reading.at_ns / 1e9
        if not self.takes(at_s):
            return None
        if at_s >= self._fresh_s:
            self._blocks.clear()
        before, own = self._before, self._own
        self._before, self._own, self._is_lost = reading, NOTHING, False
        if before is None or before.epoch != reading.epoch:
            return None
        came = totals_of(reading.signals).minus(totals_of(before.signals))
        is_other = any(total is not None and total < 0 for total in came)  # the page of another process
        counted = [total is not None for total in came]
        if is_other or (self._blocks and counted != [total is not None for total in self._blocks[-1].came]):
            self._blocks.clear()
        if is_other or not any(counted):
            return None
        self._fresh_s, self._is_of_before = at_s + WINDOW_S, False
        self._add(Block(at_s, at_s - before.at_ns / 1e9, came.minus(own)))
        return before

    def _add(self, block: Block) -> None:
        """Add what came between two readings, to the last block while that is short."""
        if self._blocks and self._blocks[-1].span_s < BLOCK_S:
            block = summed((self._blocks.pop(), block))
        self._blocks = latest([*self._blocks, block], LONGEST_S)

    def answer(self, at_s: float, requests_per_s: float | None) -> bool:
        """Update the demand by the query's answer; None: no value. Returns False if it is ignored.

        After WINDOW_S without a value the demand is unknown.
        """
        self._settle(at_s)
        if self._is_swept or at_s < self._settled_s:
            return False
        if requests_per_s is not None:
            self._answered, self._fresh_s, self._is_of_before = Demand(requests_per_s), at_s + WINDOW_S, False
        elif at_s > self._fresh_s:
            self._answered = UNKNOWN
        return True

    def lose_page(self) -> None:
        """Note that the page cannot be read: the demand is unknown until it can."""
        self._is_lost = not self._is_swept

    def begin_sweep(self) -> None:
        """Mark the start of a sweep, whose requests the counters include from now on."""
        if self._is_of_before:
            self._blocks.clear()
            self._answered = UNKNOWN
        self._is_swept, self._is_settling, self._before, self._own = True, False, None, NOTHING

    def end_sweep(self) -> None:
        """Mark the end of a sweep; its last requests may be counted for STRAGGLERS_S."""
        self._is_swept, self._is_settling, self._is_of_before = False, True, True

    def _settle(self, at_s: float) -> None:
        """Let the demand of before a sweep count until WINDOW_S after it."""
        if self._is_settling:
            self._is_settling, self._settled_s, self._counted_s = False, at_s + WINDOW_S, at_s + STRAGGLERS_S
            self._fresh_s = self._settled_s


def latest(blocks: Sequence[Block], span_s: float) -> list[Block]:
    """The blocks of the last `span_s`, and more if these cover less than MIN_COVERED_S, as after a sweep."""
    covered_s, place = 0.0, len(blocks)
    while place and (covered_s < MIN_COVERED_S or blocks[place - 1].end_s - BLOCK_S >= blocks[-1].end_s - span_s):
        place -= 1
        covered_s += blocks[place].span_s
    return list(blocks[place:])


def summed(blocks: Sequence[Block]) -> Block:
    """The blocks as one."""
    columns = zip(*(block.came for block in blocks), strict=True)
    came = Totals(*(None if None in column else sum(column) for column in columns))
    return Block(blocks[-1].end_s, sum(block.span_s for block in blocks), came)


def demand_of(blocks: Sequence[Block]) -> Demand:
    """Demand over the last WINDOW_S, or further back while the blocks have one rate and the error is large.

    Unknown if too little is covered.
    """
    chosen, span_s = latest(blocks, WINDOW_S), WINDOW_S
    if not chosen or (total := summed(chosen)).span_s < MIN_COVERED_S:
        return UNKNOWN
    error = relative_error(chosen)
    while error > MAX_ERROR and span_s < LONGEST_S and len(chosen) < len(blocks):
        span_s *= 2
        longer = latest(blocks, span_s)
        earlier = longer[: -len(chosen)]
        if earlier and is_changed(earlier, chosen):
            break
        chosen, total, error = longer, summed(longer), relative_error(longer)
    arrived, finished, prompts, outputs = (None if of is None else max(0.0, of / total.span_s) for of in total.came)
    return Demand(arrived, prompts, outputs, finished, error)


def _rates(blocks: Sequence[Block], counter: int) -> list[float]:
    """Rate of a counter in each block; a last one that is still short would only add scatter."""
    return [(of.came[counter] or 0.0) / of.span_s for of in blocks if of.span_s >= BLOCK_S or len(blocks) == 1]


def _variance(rates: Sequence[float]) -> float:
    mean = fmean(rates)
    return sum((rate - mean) ** 2 for rate in rates) / max(1, len(rates) - 1)


def relative_error(blocks: Sequence[Block]) -> float:
    """Standard error of the mean rate ÷ the mean, from the scatter of the blocks; the largest of all counters."""
    errors = [0.0]
    for counter in range(len(Totals._fields)):
        rates = _rates(blocks, counter)
        if len(rates) > 1 and (mean := fmean(rates)) > 0:
            errors.append(math.sqrt(_variance(rates) / len(rates)) / mean)
    return max(errors)


def is_changed(earlier: Sequence[Block], recent: Sequence[Block]) -> bool:
    """True if any counter's rate in the recent blocks differs from that before beyond chance (Welch's test)."""
    for counter in range(len(Totals._fields)):
        before, now = _rates(earlier, counter), _rates(recent, counter)
        variance = _variance(before) / len(before) + _variance(now) / len(now)
        if abs(fmean(before) - fmean(now)) > MAX_SIGMAS * math.sqrt(variance):
            return True
    return False
