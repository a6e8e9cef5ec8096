"""Knee of an engine model by simulation: the rate at which the share of bad events equals the error budget."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite, log, sqrt
from random import Random

from prober.features.capacity.replay import Background, Pair
from prober.measure.objective import Slo
from prober.simulation.engine import Engine
from prober.simulation.parameters import Parameters
from prober.simulation.request import Request, Truth

# Requests per simulation: to bracket the knee, to measure it, to compare knees.
BRACKET_REQUESTS, MEASURE_REQUESTS, COMPARE_REQUESTS = 2_000, 9_000, 4_000
# Offsets of the measurements in log rate, in units of 1 / slope (at most 1 / MIN_OFFSET_SLOPE).
OFFSETS, MIN_OFFSET_SLOPE = (0.5, -0.6, 0.9, -0.3, 0.6, 0.1), 2.0
MAX_BACKGROUND_RATIO = 4  # background requests per request of the sweep, at most
SETTLE_RATIO = 0.05  # of the requests are ignored: the engine starts empty
NEAR, FAR = 1.6, 3.0  # log share: points with full and with reduced weight; the curve is about straight up to NEAR
APART, TYPICAL_SLOPE = 0.02, 10.0
MIN_ADDED_PER_S, MAX_ADDED_PER_S = 0.02, 1e5


@dataclass(frozen=True, slots=True)
class Knee:
    """Knee of a model.

    rate_per_s: total rate. slope: d log share / d log rate at the knee. error: standard error of log rate from the simulation.
    """

    rate_per_s: float
    slope: float
    error: float


@dataclass(frozen=True, slots=True)
class CapacityModel:
    """Engine model under the load of a sweep and its background.

    front_s: latency in front of the engine.
    lengths: prompt and output tokens of the sweep's requests.
    effort: 1 gives the accuracy of docs/measurements.md; less is faster and less accurate.
    """

    parameters: Parameters
    front_s: float
    lengths: Sequence[Pair]
    background: Background
    effort: float = 1.0

    def shares(self, slos: Sequence[Slo], total_per_s: float, requests: int, rng: Random) -> list[float]:
        """Share of bad events of each SLO (at least half an event) over `requests` requests of the sweep.

        With the same generator state the requests differ only in their times.
        """
        engine = Engine(self.parameters, Random(0))
        truths: list[Truth] = []
        stream = self._requests(total_per_s, requests, rng)
        settle = round(SETTLE_RATIO * len(stream))
        for number, request in enumerate(stream):
            truth = engine.submit(request)
            if number >= settle and not request.background:
                truths.append(truth)
            if number % 1_000 == 999 and engine.state.waiting > requests / 4:
                break  # overload: the queue only grows
        engine.advance(engine.at_s + max((each.threshold_s or 0.0) for each in slos))
        return [self._share(slo, truths, engine.at_s) for slo in slos]

    def _requests(self, total_per_s: float, requests: int, rng: Random) -> list[Request]:
        """Poisson stream with exact means: its rate, background share and mean lengths equal those of the model.

        Random variation of these means would dominate the noise of the share: 1% in the rate changes it by a sixth on a steep
        engine.
        """
        per_s = self.background.per_s if self.background.lengths else 0.0
        others = min(MAX_BACKGROUND_RATIO * requests, round(requests * per_s / max(1e-9, total_per_s - per_s)))
        is_background = [True] * others + [False] * requests
        rng.shuffle(is_background)
        own, other = (
            _balanced_sample(self.lengths, requests, rng),
            _balanced_sample(self.background.lengths, others, rng),
        )
        gaps = [rng.expovariate(1.0) for _ in is_background]
        unit_s = len(gaps) / total_per_s / sum(gaps)
        max_tokens = self.parameters.kv_blocks * self.parameters.block_tokens
        stream, at_s = [], 0.0
        for background, gap in zip(is_background, gaps, strict=True):
            at_s += gap * unit_s
            prompt, output = (other if background else own).pop()
            if prompt + output <= max_tokens:  # the engine refuses a longer request
                stream.append(Request(at_s, prompt, output, (), background))
        return stream

    def _share(self, slo: Slo, truths: Sequence[Truth], now_s: float) -> float:
        events = bad = 0
        for truth in truths:
            count, missed = self._events(slo, truth, now_s)
            events += count
            bad += missed
        return max(0.5, bad) / max(1, events)

    def _events(self, slo: Slo, truth: Truth, now_s: float) -> tuple[int, int]:
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
        return truth.tokens - 1, sum(n for n, first, slope in truth.runs if first + slope * (n - 1) / 2 > limit_s)

    def knee(self, slo: Slo, near_per_s: float, rng: Random) -> Knee | None:
        """Bisect from `near_per_s`, then fit a straight line to the logarithms of longer runs around the knee.

        None if no rate meets the objective, or every rate does.
        """
        allowed = log(float(slo.error_budget_ratio))
        points: list[tuple[float, float, float]] = []
        rough, fine = round(BRACKET_REQUESTS * self.effort), round(MEASURE_REQUESTS * self.effort)

        def excess(rate: float, requests: int) -> float:
            value = log(self.shares([slo], rate, requests, rng)[0]) - allowed
            points.append((log(rate), value, requests))
            return value

        low, high = _bracket(lambda rate: excess(rate, rough), near_per_s, self.background.per_s)
        if low is None or high is None:
            return None
        while high / low > 1.05 or (high / low > 1.01 and sum(abs(y) < NEAR for _, y, _ in points) < 2):
            middle = sqrt(low * high)
            if excess(middle, rough) < 0:
                low = middle
            else:
                high = middle
        found = Knee(sqrt(low * high), 5.0, log(high / low))
        for offset in (*OFFSETS, 0.0, 0.0, 0.0):
            if offset == 0.0 and sum(abs(y) < NEAR for _, y, _ in points) >= 4:
                break
            found = _root(points) or found
            excess(found.rate_per_s * exp(offset / max(MIN_OFFSET_SLOPE, found.slope)), fine)
        return _root(points) or found

    def moved(self, others: Sequence["CapacityModel"], slo: Slo, knee: Knee, rng: Random) -> list[float]:
        """Log shift of the knee of each other model, from shares at this model's knee with common random numbers."""
        seed = rng.getrandbits(64)
        here = log(self.shares([slo], knee.rate_per_s, round(COMPARE_REQUESTS * self.effort), Random(seed))[0])
        found = []
        for other in others:
            there = log(other.shares([slo], knee.rate_per_s, round(COMPARE_REQUESTS * self.effort), Random(seed))[0])
            found.append((here - there) / knee.slope)
        return found


def _balanced_sample(lengths: Sequence[Pair], count: int, rng: Random) -> list[Pair]:
    """`count` lengths, each drawn equally often."""
    found: list[Pair] = []
    while lengths and len(found) < count:
        found += rng.sample(lengths, min(len(lengths), count - len(found)))
    return found


def _bracket(excess: Callable[[float], float], near: float, others: float) -> tuple[float | None, float | None]:
    """Rates just below and above the root, searched from `near` in steps; None for a side without one."""
    added = max(near - others, 0.05 * others, MIN_ADDED_PER_S)
    value = excess(others + added)
    low = high = None
    while value < 0 and added < MAX_ADDED_PER_S:
        low = others + added
        added *= 1.25
        value = excess(others + added)
    if low is not None:
        return low, others + added if value >= 0 else None
    while value >= 0 and added > max(MIN_ADDED_PER_S, 0.02 * others):
        high = others + added
        added /= 1.25
        value = excess(others + added)
    return others + added if value < 0 else None, high


def _root(points: Sequence[tuple[float, float, float]]) -> Knee | None:
    """Root of the line through points (log rate, log share / allowed share, requests); None for fewer than two.

    Points near the root are weighted by requests and share, which determine the relative error of a count. Distant points bound
    the root on both sides, and with it the slope.
    """
    below = max((x for x, y, _ in points if y <= -NEAR), default=-inf)
    above = min((x for x, y, _ in points if y >= NEAR), default=inf)
    some = [(x, y, n * exp(min(y, NEAR)) * (1.0 if abs(y) < NEAR else 0.3)) for x, y, n in points if abs(y) < FAR]
    if sum(abs(y) < NEAR for _, y, _ in points) < 2:
        middle = (below + above) / 2
        return Knee(exp(middle), 60.0, abs(above - below) / 2) if isfinite(middle) else None
    total_weight = sum(w for *_, w in some)
    x0, y0 = sum(w * x for x, _, w in some) / total_weight, sum(w * y for _, y, w in some) / total_weight
    # Close points determine the slope poorly: a typical slope counts as much as points `APART` apart.
    squares = sum(w * (x - x0) ** 2 for x, _, w in some) + total_weight * APART**2
    slope = (sum(w * (x - x0) * (y - y0) for x, y, w in some) + total_weight * APART**2 * TYPICAL_SLOPE) / squares
    slope = max(0.7, NEAR / max(0.03, above - below), min(60.0, slope))
    variance = sum(w * (y - y0 - slope * (x - x0)) ** 2 for x, y, w in some) / max(1, len(some) - 2)
    root = max(x0 - 0.3, min(x0 + 0.3, x0 - y0 / slope))
    if below < above:
        root = max(below, min(above, root))
    return Knee(
        exp(root), slope, min(0.5, sqrt(variance / total_weight + variance / squares * (root - x0) ** 2) / slope)
    )
