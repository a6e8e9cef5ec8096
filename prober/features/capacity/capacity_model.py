"""The knee of an engine model: the rate at which the share of bad events is what the objective allows, by simulation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite, log, sqrt
from random import Random

from prober.features.capacity.replay import Background, Pair
from prober.measure.objective import Slo
from prober.simulation.engine import Engine
from prober.simulation.parameters import Parameters
from prober.simulation.request import Request, Truth

ROUGH, FINE, NUDGE = 2_000, 9_000, 4_000  # requests of a simulation: to find the place, to measure it, to see it move
# Of the measurements, in units of 1 ÷ slope (but no farther than that of `GENTLE`): shares up to e times higher.
OFFSETS, GENTLE = (0.5, -0.6, 0.9, -0.3, 0.6, 0.1), 2.0
MOST = 4  # times as many with the background's
SETTLE = 0.05  # of it is left out: the engine starts empty
NEAR, FAR = 1.6, 3.0  # log shares that count, and that count a little: so far the curve of the share is about straight
APART, USUAL = 0.02, 10.0
LOWEST, HIGHEST = 0.02, 1e5


@dataclass(frozen=True, slots=True)
class Knee:
    """rate_per_s: in all; slope: d log share ÷ d log rate there; error: of log rate, what the simulation's own chance leaves"""

    rate_per_s: float
    slope: float
    error: float


@dataclass(frozen=True, slots=True)
class Ahead:
    """A model under load: what the sweep's requests would see at a rate in all, the background as it is.

    lengths: of the sweep's requests; front_s: what lies before the engine; effort: 1 for the figures of docs/measurements.md, less is
    quicker and rougher
    """

    parameters: Parameters
    front_s: float
    lengths: Sequence[Pair]
    background: Background
    effort: float = 1.0

    def shares(self, slos: Sequence[Slo], total_per_s: float, requests: int, rng: Random) -> list[float]:
        """The share of bad events of each SLO, half an event at least, by so many requests of the sweep's shape.

        The same generator state, the same requests but for time.
        """
        engine = Engine(self.parameters, Random(0))
        truths: list[Truth] = []
        asked = self._requests(total_per_s, requests, rng)
        settle = round(SETTLE * len(asked))
        for number, request in enumerate(asked):
            truth = engine.submit(request)
            if number >= settle and not request.background:
                truths.append(truth)
            if number % 1_000 == 999 and engine.state.waiting > requests / 4:
                break  # it will never catch up
        engine.advance(engine.at_s + max((each.threshold_s or 0.0) for each in slos))
        return [self._share(slo, truths, engine.at_s) for slo in slos]

    def _requests(self, total_per_s: float, requests: int, rng: Random) -> list[Request]:
        """A Poisson stream whose means are exact: rate, shares and mean lengths of this very stream are those of the model.

        Chance in them moves the share of breaches of a sharp engine more than all else (a hundredth in the rate makes a sixth in
        the share), and says nothing.
        """
        per_s = self.background.per_s if self.background.lengths else 0.0
        others = min(MOST * requests, round(requests * per_s / max(1e-9, total_per_s - per_s)))
        whose = [True] * others + [False] * requests
        rng.shuffle(whose)
        own, other = _dealt(self.lengths, requests, rng), _dealt(self.background.lengths, others, rng)
        gaps = [rng.expovariate(1.0) for _ in whose]
        unit_s = len(gaps) / total_per_s / sum(gaps)
        most = self.parameters.kv_blocks * self.parameters.block_tokens
        found, at_s = [], 0.0
        for background, gap in zip(whose, gaps, strict=True):
            at_s += gap * unit_s
            prompt, output = (other if background else own).pop()
            if prompt + output <= most:  # a longer one is refused, and nobody's latency
                found.append(Request(at_s, prompt, output, (), background))
        return found

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
        """By bisection from `near_per_s`, then a straight line through the logarithms of longer runs about it.

        None if no rate of the sweep's requests meets the objective, or every one does.
        """
        allowed = log(float(slo.error_budget_ratio))
        points: list[tuple[float, float, float]] = []
        rough, fine = round(ROUGH * self.effort), round(FINE * self.effort)

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
            excess(found.rate_per_s * exp(offset / max(GENTLE, found.slope)), fine)
        return _root(points) or found

    def moved(self, others: Sequence["Ahead"], slo: Slo, knee: Knee, rng: Random) -> list[float]:
        """How much higher (log) the knee of each of the others is, from shares at this one's under the same random numbers."""
        seed = rng.getrandbits(64)
        here = log(self.shares([slo], knee.rate_per_s, round(NUDGE * self.effort), Random(seed))[0])
        found = []
        for other in others:
            there = log(other.shares([slo], knee.rate_per_s, round(NUDGE * self.effort), Random(seed))[0])
            found.append((here - there) / knee.slope)
        return found


def _dealt(lengths: Sequence[Pair], count: int, rng: Random) -> list[Pair]:
    """So many of them, each as often as any other."""
    found: list[Pair] = []
    while lengths and len(found) < count:
        found += rng.sample(lengths, min(len(lengths), count - len(found)))
    return found


def _bracket(excess: Callable[[float], float], near: float, others: float) -> tuple[float | None, float | None]:
    """Rates just below and above the root, from `near` on by steps of the load added; None for a side that there is not."""
    added = max(near - others, 0.05 * others, LOWEST)
    value = excess(others + added)
    low = high = None
    while value < 0 and added < HIGHEST:
        low = others + added
        added *= 1.25
        value = excess(others + added)
    if low is not None:
        return low, others + added if value >= 0 else None
    while value >= 0 and added > max(LOWEST, 0.02 * others):
        high = others + added
        added /= 1.25
        value = excess(others + added)
    return others + added if value < 0 else None, high


def _root(points: Sequence[tuple[float, float, float]]) -> Knee | None:
    """The root of the straight line through points (log rate, log share ÷ allowed share, requests); None for less than two.

    Of those not too far from it; weighed by requests and by the share, as the relative error of a count goes with both. Those far from
    it bound it on both sides, and with it the slope.
    """
    below = max((x for x, y, _ in points if y <= -NEAR), default=-inf)
    above = min((x for x, y, _ in points if y >= NEAR), default=inf)
    some = [(x, y, n * exp(min(y, NEAR)) * (1.0 if abs(y) < NEAR else 0.3)) for x, y, n in points if abs(y) < FAR]
    if sum(abs(y) < NEAR for _, y, _ in points) < 2:
        middle = (below + above) / 2
        return Knee(exp(middle), 60.0, abs(above - below) / 2) if isfinite(middle) else None
    whole = sum(w for *_, w in some)
    x0, y0 = sum(w * x for x, _, w in some) / whole, sum(w * y for _, y, w in some) / whole
    # Points that lie close together say little of the slope: a usual one counts as much as points `APART` apart.
    squares = sum(w * (x - x0) ** 2 for x, _, w in some) + whole * APART**2
    slope = (sum(w * (x - x0) * (y - y0) for x, y, w in some) + whole * APART**2 * USUAL) / squares
    slope = max(0.7, NEAR / max(0.03, above - below), min(60.0, slope))
    variance = sum(w * (y - y0 - slope * (x - x0)) ** 2 for x, y, w in some) / max(1, len(some) - 2)
    root = max(x0 - 0.3, min(x0 + 0.3, x0 - y0 / slope))
    if below < above:
        root = max(below, min(above, root))
    return Knee(exp(root), slope, min(0.5, sqrt(variance / whole + variance / squares * (root - x0) ** 2) / slope))
