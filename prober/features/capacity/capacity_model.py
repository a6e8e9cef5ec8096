"""Knee of an engine model by simulation: the rate at which the share of bad events equals the error budget."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite, log, sqrt
from random import Random
from typing import NamedTuple

from prober.features.capacity.replay import Background, RequestLengths
from prober.measure.objective import Slo
from prober.simulation.engine import Engine
from prober.simulation.parameters import Parameters
from prober.simulation.request import Request, Truth

# Requests per simulation: to bracket the knee, to measure it, to compare it with those of other models.
BRACKET_REQUESTS, MEASURE_REQUESTS, COMPARE_REQUESTS = 2_000, 9_000, 4_000
# Offsets of the measurements in log rate, in units of 1 / slope (at most 1 / MIN_OFFSET_SLOPE).
OFFSETS, MIN_OFFSET_SLOPE = (0.5, -0.6, 0.9, -0.3, 0.6, 0.1), 2.0
MAX_EXTRA_MEASUREMENTS = 3  # if too few points are near the knee
MAX_BACKGROUND_RATIO = 4  # background requests per request of the sweep, at most
SETTLE_RATIO = 0.05  # of the requests are ignored: the engine starts empty
NEAR, FAR, FAR_WEIGHT = (
    1.6,
    3.0,
    0.3,
)  # |log share ÷ allowed| with full and with reduced weight; about straight up to NEAR
PRIOR_DISTANCE, PRIOR_SLOPE = 0.02, 10.0  # the prior slope weighs as much as points at this distance in log rate
MIN_SLOPE, MAX_SLOPE = 0.7, 60.0
MIN_ADDED_PER_S, MAX_ADDED_PER_S, RATE_FACTOR = 0.02, 1e5, 1.25


class SharePoint(NamedTuple):
    """A simulated share of bad events.

    excess: log(share ÷ allowed share)
    requests: simulated ones
    """

    log_rate: float
    excess: float
    requests: int

    @property
    def is_near(self) -> bool:
        """The point is close enough to the knee for a straight line."""
        return abs(self.excess) < NEAR

    @property
    def weight(self) -> float:
        """Weight in a line through points: requests and share determine the relative error of a count."""
        return self.requests * exp(min(self.excess, NEAR)) * (1.0 if self.is_near else FAR_WEIGHT)


@dataclass(frozen=True, slots=True)
class Knee:
    """Knee of a model.

    rate_per_s: total rate
    slope: d log share ÷ d log rate at the knee
    error: standard error of log rate from the simulation
    """

    rate_per_s: float
    slope: float
    error: float


@dataclass(frozen=True, slots=True)
class CapacityModel:
    """Engine model under the load of a sweep and its background.

    front_s: latency in front of the engine
    lengths: prompt and output tokens of the sweep's requests
    effort: 1 gives the accuracy of docs/measurements.md; less is faster and less accurate
    """

    parameters: Parameters
    front_s: float
    lengths: Sequence[RequestLengths]
    background: Background
    effort: float = 1.0

    def shares(self, slos: Sequence[Slo], total_per_s: float, requests: int, rng: Random) -> list[float]:
        """Share of bad events of each SLO (at least half an event) over `requests` requests of the sweep.

        With the same generator state the requests differ only in their times.
        """
        engine = Engine(self.parameters, Random(0))
        truths: list[Truth] = []
        stream = self._requests(total_per_s, requests, rng)
        settled = round(SETTLE_RATIO * len(stream))
        for number, request in enumerate(stream):
            truth = engine.submit(request)
            if number >= settled and not request.background:
                truths.append(truth)
            if number % 1_000 == 999 and engine.waiting > requests / 4:
                break  # overload: the queue only grows
        engine.advance(engine.at_s + max((slo.threshold_s or 0.0) for slo in slos))
        return [self._share(slo, truths, engine.at_s) for slo in slos]

    def _requests(self, total_per_s: float, requests: int, rng: Random) -> list[Request]:
        """Poisson stream with exact means: its rate, background share and mean lengths equal those of the model.

        Random variation of these means would dominate the noise of the share: 1% in the rate changes it by a sixth on a steep
        engine.
        """
        per_s = self.background.per_s if self.background.lengths else 0.0
        background = min(MAX_BACKGROUND_RATIO * requests, round(requests * per_s / max(1e-9, total_per_s - per_s)))
        is_background = [True] * background + [False] * requests
        rng.shuffle(is_background)
        own_lengths = _balanced_sample(self.lengths, requests, rng)
        background_lengths = _balanced_sample(self.background.lengths, background, rng)
        gaps = [rng.expovariate(1.0) for _ in is_background]
        unit_s = len(gaps) / total_per_s / sum(gaps)
        max_tokens = self.parameters.kv_blocks * self.parameters.block_tokens
        stream, at_s = [], 0.0
        for from_background, gap in zip(is_background, gaps, strict=True):
            at_s += gap * unit_s
            prompt, output = (background_lengths if from_background else own_lengths).pop()
            if prompt + output <= max_tokens:  # the engine refuses a longer request
                stream.append(Request(at_s, prompt, output, (), from_background))
        return stream

    def _share(self, slo: Slo, truths: Sequence[Truth], now_s: float) -> float:
        counts = [self._events(slo, truth, now_s) for truth in truths]
        return max(0.5, sum(bad for _, bad in counts)) / max(1, sum(events for events, _ in counts))

    def _events(self, slo: Slo, truth: Truth, now_s: float) -> tuple[int, int]:
        """(events, bad events) of a request; none if its outcome is not known yet."""
        limit_s = slo.threshold_s or 0.0
        age_s = now_s - truth.request.arrival_s
        if slo.signal in ("ttft", "e2e"):
            last_s = truth.first_token_s if slo.signal == "ttft" else truth.end_s
            if last_s is None:
                return (1, 1) if age_s > limit_s else (0, 0)
            return 1, int(last_s - truth.request.arrival_s + self.front_s > limit_s)
        if truth.end_s is None or truth.tokens < 2:
            return 0, 0
        if slo.signal == "tpot":
            return 1, int((truth.tpot_s or 0.0) > limit_s)
        bad = sum(n for n, first_s, slope_s in truth.runs if first_s + slope_s * (n - 1) / 2 > limit_s)
        return truth.tokens - 1, bad

    def knee(self, slo: Slo, near_per_s: float, rng: Random) -> Knee | None:
        """Bisect from `near_per_s`, then fit a straight line to the logarithms of longer runs around the knee.

        None if no rate meets the objective, or every rate does.
        """
        log_allowed = log(float(slo.error_budget_ratio))
        points: list[SharePoint] = []
        bracket_requests = round(BRACKET_REQUESTS * self.effort)
        measure_requests = round(MEASURE_REQUESTS * self.effort)

        def excess(rate_per_s: float, requests: int) -> float:
            value = log(self.shares([slo], rate_per_s, requests, rng)[0]) - log_allowed
            points.append(SharePoint(log(rate_per_s), value, requests))
            return value

        low, high = _bracket(lambda rate_per_s: excess(rate_per_s, bracket_requests), near_per_s, self.background.per_s)
        if low is None or high is None:
            return None
        while high / low > 1.05 or (high / low > 1.01 and _near_count(points) < 2):
            middle = sqrt(low * high)
            if excess(middle, bracket_requests) < 0:
                low = middle
            else:
                high = middle
        knee = Knee(sqrt(low * high), 5.0, log(high / low))
        for offset in OFFSETS:
            knee = _root(points) or knee
            excess(knee.rate_per_s * exp(offset / max(MIN_OFFSET_SLOPE, knee.slope)), measure_requests)
        for _ in range(MAX_EXTRA_MEASUREMENTS):
            if _near_count(points) >= 4:
                break
            knee = _root(points) or knee
            excess(knee.rate_per_s, measure_requests)
        return _root(points) or knee

    def knee_shifts(self, models: Sequence["CapacityModel"], slo: Slo, knee: Knee, rng: Random) -> list[float]:
        """Log shift of the knee of each of `models`, from shares at this model's knee with common random numbers."""
        seed, requests = rng.getrandbits(64), round(COMPARE_REQUESTS * self.effort)
        share, *shares = (model.shares([slo], knee.rate_per_s, requests, Random(seed))[0] for model in (self, *models))
        return [log(share / other_share) / knee.slope for other_share in shares]


def _balanced_sample(lengths: Sequence[RequestLengths], count: int, rng: Random) -> list[RequestLengths]:
    """`count` lengths, each drawn equally often."""
    sample: list[RequestLengths] = []
    while lengths and len(sample) < count:
        sample += rng.sample(lengths, min(len(lengths), count - len(sample)))
    return sample


def _bracket(
    excess: Callable[[float], float], near_per_s: float, background_per_s: float
) -> tuple[float | None, float | None]:
    """Rates just below and above the root, searched from `near_per_s` in steps; None for a side without one."""
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


def _near_count(points: Sequence[SharePoint]) -> int:
    return sum(point.is_near for point in points)


def _root(points: Sequence[SharePoint]) -> Knee | None:
    """Root of the weighted line through the points; None if there are too few.

    Distant points bound the root on both sides, and with it the slope.
    """
    below = max((point.log_rate for point in points if point.excess <= -NEAR), default=-inf)
    above = min((point.log_rate for point in points if point.excess >= NEAR), default=inf)
    if _near_count(points) < 2:
        middle = (below + above) / 2
        return Knee(exp(middle), MAX_SLOPE, abs(above - below) / 2) if isfinite(middle) else None
    rows = [(point.weight, point.log_rate, point.excess) for point in points if abs(point.excess) < FAR]
    total = sum(w for w, _, _ in rows)
    x0, y0 = sum(w * x for w, x, _ in rows) / total, sum(w * y for w, _, y in rows) / total
    # Close points determine the slope poorly: hence the prior slope.
    squares = sum(w * (x - x0) ** 2 for w, x, _ in rows) + total * PRIOR_DISTANCE**2
    slope = (sum(w * (x - x0) * (y - y0) for w, x, y in rows) + total * PRIOR_DISTANCE**2 * PRIOR_SLOPE) / squares
    slope = max(MIN_SLOPE, NEAR / max(0.03, above - below), min(MAX_SLOPE, slope))
    variance = sum(w * (y - y0 - slope * (x - x0)) ** 2 for w, x, y in rows) / max(1, len(rows) - 2)
    root = max(x0 - 0.3, min(x0 + 0.3, x0 - y0 / slope))
    if below < above:
        root = max(below, min(above, root))
    error = sqrt(variance / total + variance / squares * (root - x0) ** 2) / slope
    return Knee(exp(root), slope, min(0.5, error))
