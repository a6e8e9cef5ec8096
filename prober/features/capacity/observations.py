"""Observations of a sweep's record, and the same quantities of a replay, as arrays."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prober.features.capacity.replay import Scene
from prober.features.capacity.sweep_record import Record
from prober.simulation.serving import Course, Doubles

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

MIN_READING_GAP_S = 0.4  # closer readings of the page count as one
# Kinds of observations: of requests, then of the page.
KINDS = ("ttft", "tpot", "gap", "max_gap", "running", "waiting")
TTFT, TPOT, GAP, MAX_GAP, RUNNING, WAITING = range(len(KINDS))


@dataclass(frozen=True, slots=True)
class Observations:
    """n observations, as arrays of shape (n,). Times are seconds since the start of the record.

    kind: index in KINDS
    index: of the request or the page reading
    at_s: due time of the request, or time of the reading
    known_s: when the value was known
    value: log seconds, or the root of a count, so that the spread is about the same everywhere
    is_lower_bound: the request had not finished
    prompt_tokens: 0 for other kinds than TTFT
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
        """The same quantities in a replay, shape (n,); NaN where the replay ends before.

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
        of_page = ~of_request & (self.index < len(scene.readings_s))
        pages = np.stack((view(course.running), view(course.waiting)))
        values[of_page] = np.sqrt(pages[self.kind[of_page] - RUNNING, self.index[of_page]] + 0.5)
        return values


def ttfts_s(course: Course, scene: Scene) -> Array:
    """TTFTs of the record's requests in a replay, shape (requests,); NaN where the replay ends before."""
    own = np.array(scene.own, dtype=np.intp)
    first_s = view(course.first_s)[own]
    return np.where(first_s >= 0, first_s - view(scene.stream.at_s)[own], np.nan)


def _latencies_s(course: Course, scene: Scene, front_s: float) -> Array:
    """Latencies of the record's requests by kind, shape (4, requests)."""
    own = np.array(scene.own, dtype=np.intp)
    first_s, end_s, outputs = view(course.first_s)[own], view(course.end_s)[own], view(scene.stream.outputs)[own]
    has_ended = (end_s >= 0) & (outputs > 1)
    tpot_s = np.where(has_ended, (end_s - first_s) / np.maximum(1.0, outputs - 1), np.nan)
    gaps_s = [np.where(has_ended, view(values)[own], np.nan) for values in (course.gap_s, course.max_gap_s)]
    return np.stack((ttfts_s(course, scene) + front_s, tpot_s, *gaps_s))


def view(values: Doubles) -> Array:
    """The same memory as an array."""
    return np.frombuffer(values, dtype=np.float64) if len(values) else np.empty(0)


def observations(record: Record) -> Observations:
    """Observations for a fit: of valid, successful requests after the warm-up, and of the engine's page."""
    columns: list[tuple[Any, ...]] = list(zip(*_of_requests(record), *_of_pages(record), strict=True))
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
        for kind, count in ((RUNNING, signals.requests_running), (WAITING, signals.requests_waiting)):
            if count is not None:
                yield kind, index, at_s, at_s, sqrt(count + 0.5), False, 0


def neighbours(items: Observations, size: int) -> list[Indices]:
    """Indices of TTFTs in groups of `size` neighbours, by time and by prompt length."""
    by_time = np.flatnonzero((items.kind == TTFT) & ~items.is_lower_bound)
    by_length = by_time[np.argsort(items.prompt_tokens[by_time], kind="stable")]
    return [
        order[start : start + size]
        for order in (by_time, by_length)
        for start in range(0, len(order) - size // 2, size)
    ]
