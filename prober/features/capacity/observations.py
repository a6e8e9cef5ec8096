"""Observations from a sweep's record, and the same quantities from a replay, as arrays."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, log, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prober.features.capacity.replay import LEAD_S, Scene
from prober.features.capacity.sweep_record import Record
from prober.measure.engine_signals import EngineHistogram
from prober.simulation.serving import Course, Doubles

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

MIN_READING_GAP_S = 0.4  # closer readings of the page count as one
MEAN_S, MIN_MEAN_COUNT = 5.0, 10  # of the engine's histograms: minimum length of a window, and requests in it
# Kinds of observations: of requests, then of the page.
KINDS = ("ttft", "tpot", "gap", "max_gap", "running", "waiting", "mean_ttft", "mean_e2e")
TTFT, TPOT, GAP, MAX_GAP, RUNNING, WAITING, MEAN_TTFT, MEAN_E2E = range(len(KINDS))
# For the tail of the TTFTs:
LEVELS = np.array((0.2, 0.3, 0.45, 0.65, 1.0))  # of the threshold: limits between which TTFTs are counted
LOG_FACTORS = np.arange(-1.2, 1.21, 0.04)
PRIOR_SPREAD = 0.3  # of the log factor
PER_CLUSTER = 3.0  # neighbours are late together
MIN_EXPECTED = 0.02  # per cell: nothing is impossible


class Tail(NamedTuple):
    """Comparison of the slowest TTFTs of a record with those of its replay.

    log_factor: log of the factor to apply to replayed TTFTs; error: its standard error
    """

    log_factor: float
    error: float


@dataclass(frozen=True, slots=True)
class Observations:
    """n observations, as arrays of shape (n,). Times are seconds since the start of the record.

    kind: index in KINDS
    index: index of the request or page reading
    at_s: due time of the request, or time of the reading
    known_s: when the value became known
    value: log seconds, or the root of a count, so that the spread is similar everywhere
    is_lower_bound: the request had not finished
    prompt_tokens: 0 except for TTFT
    """

    kind: Indices
    index: Indices
    at_s: Array
    known_s: Array
    value: Array
    is_lower_bound: NDArray[np.bool_]
    prompt_tokens: Indices

    def select(self, mask: NDArray[np.bool_]) -> "Observations":
        """The observations for which `mask`, of shape (n,), is true."""
        return Observations(*(getattr(self, name)[mask] for name in self.__slots__))

    def replayed(self, course: Course, scene: Scene, front_s: float) -> Array:
        """The observed quantities from a replay, shape (n,); NaN if the replay ends earlier.

        front_s: latency in front of the service.
        """
        values = np.full(len(self.kind), np.nan)
        of_request = self.kind < RUNNING
        index, kind = self.index[of_request], self.kind[of_request]
        known = index < len(scene.own)
        seconds = np.full(len(index), np.nan)
        seconds[known] = _latencies_s(course, scene, front_s)[kind[known], index[known]]
        with np.errstate(divide="ignore", invalid="ignore"):
            values[of_request] = np.log(np.where(seconds > 0, seconds, np.nan))
            for mean, last_s in ((MEAN_TTFT, course.first_s), (MEAN_E2E, course.end_s)):
                of_mean = self.kind == mean
                values[of_mean] = np.log(_means_s(scene, view(last_s), self.at_s[of_mean], self.known_s[of_mean]))
        of_page = ~of_request & (self.kind <= WAITING) & (self.index < len(scene.readings_s))
        pages = np.stack((view(course.running), view(course.waiting)))
        values[of_page] = np.sqrt(pages[self.kind[of_page] - RUNNING, self.index[of_page]] + 0.5)
        return values


def ttfts_s(course: Course, scene: Scene) -> Array:
    """TTFTs of the record's requests in a replay, shape (requests,); NaN if the replay ends earlier."""
    own = np.asarray(scene.own)
    first_s = view(course.first_s)[own]
    return np.where(first_s >= 0, first_s - view(scene.stream.at_s)[own], np.nan)


def _latencies_s(course: Course, scene: Scene, front_s: float) -> Array:
    """Latencies of the record's requests by kind, shape (4, requests)."""
    own = np.asarray(scene.own)
    first_s, end_s, outputs = view(course.first_s)[own], view(course.end_s)[own], view(scene.stream.outputs)[own]
    has_ended = (end_s >= 0) & (outputs > 1)
    tpot_s = np.where(has_ended, (end_s - first_s) / np.maximum(1.0, outputs - 1), np.nan)
    gaps_s = [np.where(has_ended, view(values)[own], np.nan) for values in (course.gap_s, course.max_gap_s)]
    return np.stack((ttfts_s(course, scene) + front_s, tpot_s, *gaps_s))


def _means_s(scene: Scene, last_s: Array, begins_s: Array, ends_s: Array) -> Array:
    """A replay's mean seconds from arrival to `last_s`, per window, for requests whose `last_s` is in it.

    begins_s, ends_s: disjoint windows on the record's clock. NaN for a window without requests or after the replay's end
    """
    edges_s = np.stack((begins_s, ends_s), axis=1).ravel() + LEAD_S
    place = np.searchsorted(edges_s, last_s)  # odd inside windows
    sums_s = np.bincount(place, last_s - view(scene.stream.at_s), len(edges_s) + 1)
    means_s: Array = (sums_s / np.bincount(place, minlength=len(edges_s) + 1))[1::2]
    means_s[ends_s + LEAD_S > scene.until_s] = np.nan
    return means_s


def view(values: Doubles) -> Array:
    """Array that shares the memory of `values`."""
    return np.frombuffer(values, dtype=np.float64) if len(values) else np.empty(0)


def observations(record: Record) -> Observations:
    """Observations for a fit: from valid, successful requests after the warm-up, and the engine's metrics page."""
    rows = (*_of_requests(record), *_of_pages(record), *_of_histograms(record))
    columns: list[tuple[Any, ...]] = list(zip(*rows, strict=True))
    types = (np.intp, np.intp, np.float64, np.float64, np.float64, np.bool_, np.intp)
    return Observations(*(np.array(column, dtype) for column, dtype in zip(columns, types, strict=True)))


def _of_requests(record: Record) -> Iterator[tuple[int, int, float, float, float, bool, int]]:
    origin_s = record.from_s
    for index, request in enumerate(record.requests):
        is_warm_up = bool(record.stages) and record.stages[request.stage].phase == "warm_up"
        if not request.valid or request.failed or is_warm_up:
            continue
        at_s, known_s, ttft_s = request.at_s - origin_s, request.known_s - origin_s, request.ttft_s
        if ttft_s is not None and ttft_s > 0:
            yield TTFT, index, at_s, at_s + ttft_s, log(ttft_s), False, request.prompt_tokens
        elif known_s > at_s:
            yield TTFT, index, at_s, known_s, log(known_s - at_s), True, 0
        if request.end_s is None or request.output_tokens <= 2:
            continue
        for kind, value_s in ((TPOT, request.tpot_s), (GAP, request.gap_s), (MAX_GAP, request.gap_most_s)):
            if value_s:
                yield kind, index, at_s, request.end_s - origin_s, log(value_s), False, 0


def _of_pages(record: Record) -> Iterator[tuple[int, int, float, float, float, bool, int]]:
    previous_s = -inf
    for index, (time_s, signals) in enumerate(record.readings):
        if time_s - previous_s < MIN_READING_GAP_S:
            continue
        previous_s, at_s = time_s, time_s - record.from_s
        for kind, count in ((RUNNING, signals.requests_running), (WAITING, signals.requests_queued)):
            if count is not None:
                yield kind, index, at_s, at_s, sqrt(count + 0.5), False, 0


def _of_histograms(record: Record) -> Iterator[tuple[int, int, float, float, float, bool, int]]:
    """Observations of the mean latency of all requests that ended between two readings, from the engine's histograms."""
    for kind, name in ((MEAN_TTFT, "ttft_seconds"), (MEAN_E2E, "e2e_seconds")):
        before: tuple[float, EngineHistogram] | None = None
        for time_s, signals in record.readings:
            now: EngineHistogram | None = getattr(signals, name)
            if now is None or now.sum is None:
                continue
            at_s = time_s - record.from_s
            if before is None or before[1].sum is None:
                before = at_s, now
            elif at_s - before[0] >= MEAN_S and (count := now.counts[-1] - before[1].counts[-1]) >= MIN_MEAN_COUNT:
                mean_s = (now.sum - before[1].sum) / count
                if mean_s > 0:
                    yield kind, 0, before[0], at_s, log(mean_s), False, 0
                before = at_s, now


def neighbours(items: Observations, size: int) -> list[Indices]:
    """Groups, as index arrays, of `size` TTFT observations close in time and prompt length."""
    by_time = np.flatnonzero((items.kind == TTFT) & ~items.is_lower_bound)
    by_length = by_time[np.argsort(items.prompt_tokens[by_time], kind="stable")]
    return [
        order[start : start + size]
        for order in (by_time, by_length)
        for start in range(0, len(order) - size // 2, size)
    ]


def calibrate(observed: Array, is_bound: Array, replayed: Sequence[Array]) -> Tail:
    """Calibrate a fitted service by the tail of observed TTFTs. Inputs are TTFT ÷ threshold of n requests, by due time.

    The knee depends on the few slowest requests, the fit on the many typical ones. So the replayed TTFTs are multiplied by the
    factor that puts as many of them as of the observed ones between levels around the threshold. Counts do not need a replay in step,
    which is impossible because the arrival times of the background are unknown.

    observed: shape (n,); is_bound: no first token yet, so the value is a lower bound
    replayed: one or more replays of shape (n,); infinite if the replay ends earlier
    """
    draws = np.stack(replayed)
    known = np.where(is_bound, np.maximum(observed, np.median(draws, axis=0)), observed)
    counts = _counts(known[None])
    log_likelihoods = []
    for log_factor in LOG_FACTORS:
        expected = np.maximum(MIN_EXPECTED, _counts(draws * np.exp(log_factor)))
        terms = counts * np.log(expected) - expected
        log_likelihoods.append(float(terms.sum()) / PER_CLUSTER - 0.5 * (log_factor / PRIOR_SPREAD) ** 2)
    weights = np.exp(np.array(log_likelihoods) - max(log_likelihoods))
    weights /= weights.sum()
    mean = float(weights @ LOG_FACTORS)
    error = float(np.sqrt(weights @ (LOG_FACTORS - mean) ** 2))
    return Tail(mean, error)


def _counts(ratios: Array) -> Array:
    """Mean number of TTFTs between neighbouring levels, shape (levels,). ratios: TTFT ÷ threshold by replay, shape (replays, n)"""
    above: Array = (ratios[:, :, None] > LEVELS).sum(axis=1).mean(axis=0)
    between: Array = above - np.append(above[1:], 0.0)
    return between
