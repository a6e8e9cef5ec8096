"""Demand of a target's users, from counters on the engine's metrics page or answers to a query."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from prober.measure.engine_signals import PageReading

WINDOW_S = 300.0
QUERY_INTERVAL_S = 30.0
MIN_COVERED_S = 60.0  # a rate over less is not stated
STRAGGLERS_S = 10.0  # after a sweep: the engine counts cut requests once it notices
MIN_COVERED_RATIO = 0.9  # of a rate's span: elsewhere totals must not be subtracted, such as at a restart


@dataclass(frozen=True, slots=True)
class Demand:
    """Load per second; None if not counted.

    requests_per_s: arriving requests, or requests as counted by the query
    prompt_tokens_per_s, output_tokens_per_s: computed prompt tokens (without cached ones), and output tokens
    finished_per_s: finished requests, to which these tokens belong
    """

    requests_per_s: float | None
    prompt_tokens_per_s: float | None = None
    output_tokens_per_s: float | None = None
    finished_per_s: float | None = None

    @property
    def tokens_per_s(self) -> float | None:
        """Computed prompt tokens plus output tokens, per second."""
        if self.prompt_tokens_per_s is None or self.output_tokens_per_s is None:
            return None
        return self.prompt_tokens_per_s + self.output_tokens_per_s

    @property
    def shape(self) -> tuple[float, float] | None:
        """Mean prompt and output tokens of a request; None while unknown, or if nothing finishes."""
        if not self.finished_per_s or self.prompt_tokens_per_s is None or self.output_tokens_per_s is None:
            return None
        return self.prompt_tokens_per_s / self.finished_per_s, self.output_tokens_per_s / self.finished_per_s


UNKNOWN = Demand(None)


class Totals(NamedTuple):
    """Totals on the engine's metrics page at a moment. epoch: never subtract totals of different epochs

    prompts, outputs: computed prompt tokens (without cached ones), and output tokens
    """

    at_s: float
    epoch: int
    arrived: float | None
    finished: float | None
    prompts: float | None
    outputs: float | None


def totals_of(reading: PageReading) -> Totals:
    """Totals for demand in a page reading.

    Requests count on arrival, or if the page does not show how many are running, when they finish.
    """
    signals = reading.signals
    finished, prompts = signals.requests_finished_total, signals.prompt_tokens_total
    arrived = signals.requests_arrived_total
    if prompts is not None:
        prompts -= signals.prefix_cache_hits_tokens_total or 0.0
    return Totals(
        reading.at_ns / 1e9,
        reading.epoch,
        finished if arrived is None else arrived,
        finished,
        prompts,
        signals.generation_tokens_total,
    )


class _Rate(NamedTuple):
    """Rate of a counter per second, and the seconds of readings from which it was computed."""

    per_s: float
    covered_s: float


@dataclass(slots=True)
class DemandMeter:
    """Demand over the last one to five minutes. All times are seconds of one monotonic clock.

    A sweep adds to the counters, so they are ignored during it and for STRAGGLERS_S afterwards: the earlier demand stays
    until a newer one is known, at most until WINDOW_S afterwards or the next sweep. Answers to a query may include the
    sweep's requests for WINDOW_S.
    is_queried: `answer` states the demand instead of the page's counters
    """

    is_queried: bool = False
    _readings: list[Totals] = field(default_factory=list)
    _counted: Demand = UNKNOWN  # from the readings
    _last: Demand = UNKNOWN  # from the last answer, or before the sweep
    _answered_s: float = -math.inf
    _is_swept: bool = False
    _is_settling: bool = False  # a sweep has ended since the last reading or answer
    _settled_s: float = -math.inf
    _counted_s: float = -math.inf  # when readings count again
    _is_of_before: bool = False  # `_last` is older than the last sweep

    @property
    def demand(self) -> Demand:
        """The latest known demand."""
        return self._last if self._counted == UNKNOWN else self._counted

    @property
    def is_swept(self) -> bool:
        """True while the counters include a sweep, until the first reading after its end."""
        return self._is_swept or self._is_settling

    def count(self, totals: Totals) -> float | None:
        """Update the demand by a page reading; return the seconds that it covers (0: none yet, None: reading ignored).

        Of the page's counters, either all rates are known or none.
        """
        if self.is_queried or self._is_swept:
            return None
        self._settle(totals.at_s)
        if totals.at_s < self._counted_s:
            return None
        self._readings.append(totals)
        while self._readings[0].at_s < totals.at_s - WINDOW_S:
            del self._readings[0]
        rates = [_rate(self._readings, list(column)) for column in list(zip(*self._readings, strict=True))[2:]]
        known = [rate for rate in rates if rate is not None]
        is_known = known and len(known) == sum(total is not None for total in totals[2:])
        arrived, finished, prompts, outputs = (None if rate is None else rate.per_s for rate in rates)
        self._counted = Demand(arrived, prompts, outputs, finished) if is_known else UNKNOWN
        covered_s = min(rate.covered_s for rate in known) if is_known else 0.0
        if covered_s > 0 or totals.at_s >= self._settled_s:
            self._last = UNKNOWN
        return covered_s

    def answer(self, at_s: float, requests_per_s: float | None) -> bool:
        """Update the demand by the query's answer; None: no value. Returns False if it is ignored.

        After WINDOW_S without a value the demand is unknown.
        """
        self._settle(at_s)
        if self._is_swept or at_s < self._settled_s:
            return False
        if requests_per_s is not None:
            self._last, self._answered_s, self._is_of_before = Demand(requests_per_s), at_s, False
        elif at_s - self._answered_s > WINDOW_S:
            self._last = UNKNOWN
        return True

    def lose_page(self) -> None:
        """Forget the demand while the page is unreadable. Readings stay, because the process may still be the same."""
        if not self.is_queried and not self._is_swept:
            self._counted = self._last = UNKNOWN

    def begin_sweep(self) -> None:
        """Mark the start of a sweep, whose requests the counters include from now on."""
        if self._is_of_before:
            self._last = UNKNOWN
        self._keep_demand()
        self._is_swept, self._is_settling = True, False

    def end_sweep(self) -> None:
        """Mark the end of a sweep; its last requests may be counted for STRAGGLERS_S."""
        self._keep_demand()
        self._is_swept, self._is_settling, self._is_of_before = False, True, True

    def _keep_demand(self) -> None:
        self._last, self._counted = self.demand, UNKNOWN
        self._readings.clear()

    def _settle(self, at_s: float) -> None:
        if self._is_settling:
            self._is_settling, self._settled_s, self._counted_s = False, at_s + WINDOW_S, at_s + STRAGGLERS_S


def _rate(readings: Sequence[Totals], totals: Sequence[float | None]) -> _Rate | None:
    """Rate of a counter up to the newest reading, over the longest well-covered span; None if there is none."""
    if totals[-1] is None:
        return None
    newest, later, total = readings[-1], readings[-1], totals[-1]
    longest, grown, covered_s = None, 0.0, 0.0
    for reading, before in zip(reversed(readings), reversed(totals), strict=True):
        if before is None:
            continue
        if reading.epoch == later.epoch:
            if before > total:
                break  # an unrecognised restart: older readings are another process's
            grown += total - before
            covered_s += later.at_s - reading.at_s
        if covered_s >= max(MIN_COVERED_S, MIN_COVERED_RATIO * (newest.at_s - reading.at_s)):
            longest = _Rate(grown / covered_s, covered_s)
        later, total = reading, before
    return longest
