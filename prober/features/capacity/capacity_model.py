"""Knee of an engine model by simulation: the rate at which the share of bad events equals the error budget."""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, exp, inf, isfinite, log, sqrt
from random import Random

import numpy as np
from numpy.typing import NDArray

from prober.features.capacity.knee import EVENTS_PER_CLUSTER
from prober.features.capacity.observations import Array, view
from prober.features.capacity.replay import BURST_S, Background
from prober.measure.objective import Slo
from prober.simulation.serving import NO_LIMIT, Course, Service, Stream, serve

REQUESTS, COMPARE_REQUESTS = (
    20_000,
    12_000,
)  # of a simulation: to find the knee, to compare it with other models' knees
PRECISION = 1.01  # ratio of the two rates that enclose the knee
SLOPE_DISTANCE = 0.1  # in log rate, either side of the knee
# Maximum number of simulated requests per request of the sweep: with more background, fewer of the sweep's own are simulated.
MAX_SIMULATED_RATIO = 5
MIN_BURSTY_SHARE = 0.1  # of the background in all requests, below which its bursts count less
SETTLE_RATIO = 0.05  # of the requests, ignored because the service starts empty
OVERLOAD_RATIO = 0.25  # of the sweep's requests waiting: the queue only grows
MAX_DRAIN_S = 600.0  # after the last arrival, for running answers
MIN_SLOPE, MAX_SLOPE = 0.7, 60.0
MIN_ADDED_PER_S, MAX_ADDED_PER_S, RATE_FACTOR = 0.02, 1e5, 1.25


@dataclass(frozen=True, slots=True)
class Knee:
    """Knee of a model.

    rate_per_s: requests per second, background included
    slope: d log share ÷ d log rate at the knee
    error: standard error of the log of `rate_per_s` due to simulation
    """

    rate_per_s: float
    slope: float
    error: float


@dataclass(frozen=True, slots=True)
class CapacityModel:
    """A fitted service under a sweep's load and background.

    front_s: latency in front of the service, in seconds
    lengths: prompt and output tokens of the sweep's requests, shape (n, 2)
    own_ratio: the sweep's share of requests at every rate; None: the rate of the background is constant
    effort: 1 gives the accuracy in bench/figures.md; less is faster and less accurate
    """

    service: Service
    front_s: float
    lengths: Array
    background: Background
    effort: float = 1.0
    own_ratio: float | None = None

    def share(self, slo: Slo, total_per_s: float, requests: int, rng: Random) -> float:
        """Share of bad events (at least half an event) in `requests` requests of the sweep.

        With the same generator state the requests differ only in their times.
        """
        stream, is_own = self._requests(total_per_s, requests, rng)
        threshold_s = slo.threshold_s or 0.0
        until_s = stream.at_s[-1] + threshold_s
        limit_s = threshold_s if slo.signal == "itl" else NO_LIMIT
        course = serve(
            self.service, stream, until_s, array("d"), limit_s=limit_s, max_waiting=OVERLOAD_RATIO * requests
        )
        judged = np.flatnonzero(is_own[: course.served])
        judged = judged[judged >= round(SETTLE_RATIO * len(is_own))]
        now_s = until_s if course.served == len(is_own) else stream.at_s[course.served - 1]
        events, bad = self._events(slo, stream, course, judged, now_s)
        return max(0.5, bad) / max(1.0, events)

    def latency_s(self, slo: Slo, total_per_s: float, requests: int, rng: Random) -> float | None:
        """Latency quantile for the SLO's objective (99%: p99), in seconds, over `requests` requests of the sweep at a rate.

        None above the highest rate that the service can serve, and for ITL, whose gaps are only counted.
        """
        stream, is_own = self._requests(total_per_s, requests, rng)
        until_s = stream.at_s[-1] + MAX_DRAIN_S
        course = serve(self.service, stream, until_s, array("d"), max_waiting=OVERLOAD_RATIO * requests)
        if slo.signal == "itl" or course.served < len(is_own):
            return None
        judged = np.flatnonzero(is_own)
        values = np.sort(self._latencies_s(slo, stream, course, judged[judged >= round(SETTLE_RATIO * len(is_own))]))
        quantile_s = float(values[ceil(float(slo.objective) * len(values)) - 1]) if len(values) else inf
        return quantile_s if isfinite(quantile_s) else None

    def _latencies_s(self, slo: Slo, stream: Stream, course: Course, judged: NDArray[np.intp]) -> Array:
        """Latencies of the judged requests in seconds; infinite if the replay ends before the event."""
        at_s, first_s, end_s, outputs = (
            view(values)[judged] for values in (stream.at_s, course.first_s, course.end_s, stream.outputs)
        )
        if slo.signal == "tpot":
            several = outputs >= 2
            tpot_s = (end_s - first_s)[several] / (outputs[several] - 1)
            return np.where(end_s[several] >= 0, tpot_s, inf)
        last_s = first_s if slo.signal == "ttft" else end_s
        return np.where(last_s >= 0, last_s - at_s + self.front_s, inf)

    def _requests(self, total_per_s: float, requests: int, rng: Random) -> tuple[Stream, NDArray[np.bool_]]:
        """Random stream with exact means: its rate, background share and mean lengths equal those of the model.

        Random variation of these means would dominate the share's noise: 1% of the rate changes the share by a sixth on a steep
        service. Also returns a mask of the sweep's requests.
        """
        generator = np.random.default_rng(rng.getrandbits(64))
        own_ratio = self.own_ratio or (total_per_s - self._fixed_per_s) / total_per_s
        count = min(MAX_SIMULATED_RATIO * requests, requests / max(1e-9, own_ratio))
        requests = max(1, round(count * own_ratio))
        background = max(0, round(count) - requests)
        is_own = generator.permutation(np.arange(background + requests) >= background)
        lengths = np.empty((len(is_own), 2))
        lengths[is_own] = _balanced_sample(self.lengths, requests, generator)
        if background:
            lengths[~is_own] = _balanced_sample(np.array(self.background.lengths), background, generator)
        gaps = generator.exponential(size=len(is_own))
        at_s = np.cumsum(gaps) * (len(gaps) / total_per_s / gaps.sum())
        if variation := self.background.variation * min(1.0, (1 - own_ratio) / MIN_BURSTY_SHARE):
            at_s = _in_bursts(at_s, variation, generator)  # all of them: users who grow in number stay as they are
        fits = lengths.sum(axis=1) <= self.service.kv_tokens  # the engine refuses longer requests
        at, prompts, outputs = (array("d", column[fits].tobytes()) for column in (at_s, lengths[:, 0], lengths[:, 1]))
        return Stream(at, prompts, outputs, with_gaps=bytes(len(at))), is_own[fits]

    @property
    def _fixed_per_s(self) -> float:
        """Background requests per second that are independent of the total rate."""
        return self.background.per_s if self.background.lengths and self.own_ratio is None else 0.0

    def _events(
        self, slo: Slo, stream: Stream, course: Course, judged: NDArray[np.intp], now_s: float
    ) -> tuple[float, float]:
        """(events, bad events) of the judged requests, without those undecided at `now_s`."""
        limit_s = slo.threshold_s or 0.0
        if slo.signal == "itl":
            end_s, outputs = view(course.end_s)[judged], view(stream.outputs)[judged]
            has_ended = (end_s >= 0) & (outputs >= 2)
            gaps = np.ceil((outputs - 1) / self.service.tokens_per_step)
            return float(gaps[has_ended].sum()), float(view(course.slow)[judged][has_ended].sum())
        latencies_s = self._latencies_s(slo, stream, course, judged)
        is_known = np.isfinite(latencies_s)
        if slo.signal != "tpot":
            is_known |= now_s - view(stream.at_s)[judged] > limit_s
        return float(is_known.sum()), float((is_known & (latencies_s > limit_s)).sum())

    def knee(self, slo: Slo, near_per_s: float, rng: Random) -> Knee | None:
        """Find the knee by bisection from `near_per_s`. Equal random numbers at each rate make the share rise with the rate.

        None if no rate meets the objective, or all do.
        """
        allowed, seed, requests = float(slo.error_budget_ratio), rng.getrandbits(64), round(REQUESTS * self.effort)

        def excess(rate_per_s: float) -> float:
            return log(self.share(slo, rate_per_s, requests, Random(seed)) / allowed)

        low, high = _bracket(excess, near_per_s, self._fixed_per_s)
        if low is None or high is None:
            return None
        while high / low > PRECISION:
            middle = sqrt(low * high)
            low, high = (middle, high) if excess(middle) < 0 else (low, middle)
        knee_per_s, factor = sqrt(low * high), exp(SLOPE_DISTANCE)
        slope = (excess(knee_per_s * factor) - excess(knee_per_s / factor)) / (2 * SLOPE_DISTANCE)
        slope = min(MAX_SLOPE, max(MIN_SLOPE, slope))
        return Knee(knee_per_s, slope, sqrt(EVENTS_PER_CLUSTER / (allowed * requests)) / slope)

    def knee_shifts(
        self, cases: Sequence[tuple["CapacityModel", Slo]], slo: Slo, knee: Knee, rng: Random
    ) -> list[float]:
        """Shift of the log knee for each changed model or SLO, from shares at this model's knee with equal random numbers."""
        seed, requests = rng.getrandbits(64), round(COMPARE_REQUESTS * self.effort)
        share, *shares = (
            model.share(of, knee.rate_per_s, requests, Random(seed)) for model, of in ((self, slo), *cases)
        )
        return [log(share / other_share) / knee.slope for other_share in shares]


def _in_bursts(at_s: Array, variation: float, generator: np.random.Generator) -> Array:
    """The arrival times, moved so that their rate has a new random factor (gamma, mean 1, deviation `variation`) every BURST_S."""
    ends_s = BURST_S * np.arange(ceil(at_s[-1] / BURST_S) + 1)
    passed_s = np.concatenate(([0.0], np.cumsum(generator.gamma(variation**-2, variation**2, len(ends_s) - 1))))
    moved: Array = np.interp(at_s, passed_s * (ends_s[-1] / passed_s[-1]), ends_s)
    return moved


def _balanced_sample(lengths: Array, count: int, generator: np.random.Generator) -> Array:
    """Random sample of `count` rows of `lengths`, each equally often, shape (count, 2)."""
    places = [generator.permutation(len(lengths)) for _ in range(ceil(count / len(lengths)))]
    sample: Array = lengths[np.concatenate(places)[:count]]
    return sample


def _bracket(
    excess: Callable[[float], float], near_per_s: float, background_per_s: float
) -> tuple[float | None, float | None]:
    """(rate just below the root, rate just above it), searched in steps from `near_per_s`; None for a side that is not found."""
    added = max(near_per_s - background_per_s, 0.05 * background_per_s, MIN_ADDED_PER_S)
    value = excess(background_per_s + added)
    low = high = None
    while value < 0 and added < MAX_ADDED_PER_S:
        low = background_per_s + added
        added *= RATE_FACTOR
        value = excess(background_per_s + added)
    if low is not None:
        return low, background_per_s + added if value >= 0 else None
    while value >= 0 and added > max(MIN_ADDED_PER_S, 0.02 * background_per_s):
        high = background_per_s + added
        added /= RATE_FACTOR
        value = excess(background_per_s + added)
    return background_per_s + added if value < 0 else None, high
