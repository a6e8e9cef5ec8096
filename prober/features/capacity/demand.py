"""Demand of a target's users, from the counters of its engine's page or from the answers of a query."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

WINDOW_S = 300.0
MIN_COVERED_S = 60.0  # a rate over less is not stated
STRAGGLERS_S = 10.0  # after a sweep: the engine counts its requests that were cut when it notices
MIN_COVERED_RATIO = 0.9  # of the span of a rate: the rest is where totals must not be subtracted, such as at a restart


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests finished, and prompt and output tokens, per second; None where they are not counted."""

    requests_per_s: float | None
    tokens_per_s: float | None

    @property
    def tokens_per_request(self) -> float | None:
        """Mean of the users' requests."""
        return self.tokens_per_s / self.requests_per_s if self.tokens_per_s and self.requests_per_s else None


UNKNOWN = Demand(None, None)


class Totals(NamedTuple):
    """Totals of the engine's page at a moment. epoch: totals of two epochs must not be subtracted."""

    at_s: float
    epoch: int
    requests: float | None
    tokens: float | None


class _Rate(NamedTuple):
    """Rate of a counter, and the seconds of readings that it covers."""

    per_s: float
    covered_s: float


@dataclass(slots=True)
class DemandMeter:
    """Demand over the last one to five minutes. All times are seconds of one monotonic clock.

    A sweep adds to the counters, so they are not read meanwhile, and for STRAGGLERS_S after it: the demand of before it stands,
    until there is a newer one, or for WINDOW_S after it, or until the next sweep. The answers of a query may contain requests of the
    sweep for WINDOW_S.
    is_queried: `answer` states the demand, and the counters of the page do not
    """

    is_queried: bool = False
    _readings: list[Totals] = field(default_factory=list)
    _counted: Demand = UNKNOWN  # by the readings
    _last: Demand = UNKNOWN  # by the last answer, or before the sweep
    _answered_s: float = -math.inf
    _is_swept: bool = False
    _is_settling: bool = False  # a sweep has ended since the last reading or answer
    _settled_s: float = -math.inf
    _counted_s: float = -math.inf  # when readings count again
    _is_of_before: bool = False  # `_last` is older than the last sweep

    @property
    def demand(self) -> Demand:
        """Demand as known now."""
        return self._last if self._counted == UNKNOWN else self._counted

    def count(self, totals: Totals) -> float | None:
        """Take a reading of the page; seconds that the demand covers, 0 if it is unknown; None: the reading is not used.

        Of a page that counts requests and tokens both rates are known or none: requests alone would pass for requests of the
        sweep's size.
        """
        if self.is_queried or self._is_swept:
            return None
        self._settle(totals.at_s)
        if totals.at_s < self._counted_s:
            return None
        self._readings.append(totals)
        while self._readings[0].at_s < totals.at_s - WINDOW_S:
            del self._readings[0]
        requests = _rate(self._readings, [reading.requests for reading in self._readings])
        tokens = _rate(self._readings, [reading.tokens for reading in self._readings])
        known = [rate for rate in (requests, tokens) if rate is not None]
        is_known = known and len(known) == sum(total is not None for total in (totals.requests, totals.tokens))
        self._counted = Demand(requests and requests.per_s, tokens and tokens.per_s) if is_known else UNKNOWN
        covered_s = min(rate.covered_s for rate in known) if is_known else 0.0
        if covered_s > 0 or totals.at_s >= self._settled_s:
            self._last = UNKNOWN
        return covered_s

    def answer(self, at_s: float, requests_per_s: float | None) -> bool:
        """Take the answer of the query; None: not known, and after WINDOW_S of that the demand is unknown. False: not used."""
        self._settle(at_s)
        if self._is_swept or at_s < self._settled_s:
            return False
        if requests_per_s is not None:
            self._last, self._answered_s, self._is_of_before = Demand(requests_per_s, None), at_s, False
        elif at_s - self._answered_s > WINDOW_S:
            self._last = UNKNOWN
        return True

    def lose_page(self) -> None:
        """The page cannot be read: the demand is unknown until it can. Readings stay, as it may be the same process."""
        if not self.is_queried and not self._is_swept:
            self._counted = self._last = UNKNOWN

    def forget_page(self) -> None:
        """Another page is read from now on, or none."""
        if not self.is_queried:
            self._readings.clear()
            self._counted = self._last = UNKNOWN

    def change_source(self, *, is_queried: bool) -> None:
        """The demand is stated by a query, or another one, from now on; or by the page."""
        self.is_queried, self._answered_s = is_queried, -math.inf
        self._readings.clear()
        self._counted = self._last = UNKNOWN

    def begin_sweep(self) -> None:
        """The sweep's requests are counted from now on."""
        if self._is_of_before:
            self._last = UNKNOWN
        self._keep_demand()
        self._is_swept, self._is_settling = True, False

    def end_sweep(self) -> None:
        """The sweep's requests are not counted any more."""
        self._keep_demand()
        self._is_swept, self._is_settling, self._is_of_before = False, True, True

    def _keep_demand(self) -> None:
        self._last, self._counted = self.demand, UNKNOWN
        self._readings.clear()

    def _settle(self, at_s: float) -> None:
        if self._is_settling:
            self._is_settling, self._settled_s, self._counted_s = False, at_s + WINDOW_S, at_s + STRAGGLERS_S


def _rate(readings: Sequence[Totals], totals: Sequence[float | None]) -> _Rate | None:
    """Rate of a counter up to the newest reading, over the longest span that is covered well enough; None without one."""
    if totals[-1] is None:
        return None
    newest, later, total = readings[-1], readings[-1], totals[-1]
    longest, grown, covered_s = None, 0.0, 0.0
    for reading, before in zip(reversed(readings), reversed(totals), strict=True):
        if before is None:
            continue
        if reading.epoch == later.epoch:
            if before > total:
                break  # a restart that was not recognised: older readings are another process's
            grown += total - before
            covered_s += later.at_s - reading.at_s
        if covered_s >= max(MIN_COVERED_S, MIN_COVERED_RATIO * (newest.at_s - reading.at_s)):
            longest = _Rate(grown / covered_s, covered_s)
        later, total = reading, before
    return longest
