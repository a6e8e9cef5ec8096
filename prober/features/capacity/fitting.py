"""Fits a service to the record of a sweep: the structure and costs with which a replay shows what the sweep observed.

Robust least squares on logarithms (Levenberg–Marquardt, derivatives by replay). The fit starts with the beginning of the record,
when the engine is nearly idle, and then uses more and more of it: the state of a busy engine depends on every earlier step, so
the replay of a slightly wrong engine is soon out of step, and no derivative leads back. The token budget and the limit of running
sequences are not smooth and are scanned, for the simplest structure; the others start with its costs. A second of CPU;
pure.

`scipy.optimize.least_squares` instead of `_descend` gives the same accuracy (bench/figures.md#sweeps) for 9% more CPU, and
scipy adds 114 MB to the image; scans and bootstrap need the step of `Objective.gauss_newton` anyway.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import exp, inf, log, sqrt
from random import Random

import numpy as np

from prober.features.capacity.fit_objective import (
    BUDGET,
    PRIOR_SPREADS,
    UNLIMITED_SLOTS,
    USUAL_BUDGETS,
    Objective,
    Point,
    is_usual,
)
from prober.features.capacity.observations import (
    MEAN_TTFT,
    MIN_MEAN_COUNT,
    TTFT,
    Array,
    Observations,
    Tail,
    calibrate,
    observations,
    ttfts_s,
)
from prober.features.capacity.replay import Background, Scene, background, build_scene
from prober.features.capacity.sweep_record import Record, RequestRecord
from prober.simulation.serving import Service

MIN_ANSWERS = 20
MAX_REPLAYED, MAX_REPLAYED_BEFORE = 1_000, 3_000  # requests of the sweep, and of the background before it
# Replayed background load before the sweep: with the engine's own latencies, and without, when it shows almost nothing.
BEFORE_S, BEFORE_WITHOUT_LATENCIES_S = 300.0, 10.0
SHARES = (0.35, 0.7, 1.0)  # of the record, one after the other
INITIAL_BUDGETS = (2_048, 512)  # tokens per step; the cost has several minima
# Scanned token budgets for each of SHARES, as multiples of the best one so far.
BUDGET_FACTORS = (
    tuple(exp(0.15 * n) for n in range(-8, 9)),
    tuple(exp(0.02 * n) for n in range(-6, 7)),
    tuple(exp(0.004 * n) for n in range(-5, 6)),
)
# In cost: without it the mean error of independent sweeps is 12% instead of 11% (docs/methods.md).
USUAL_ADVANTAGE = 10.0
# Tried limits of running sequences, as multiples of the most that ran. Without them the mean error of independent sweeps without a
# page is 24% instead of 21% (docs/methods.md).
SLOT_FACTORS = (1, 1.03, 1.07, 1.12, 1.2, 1.3, 1.45, 1.6, 1.8, 2, 2.5)
MAX_KV_USAGE = 0.9  # above it the cache limits the batch
MIN_FULL_READINGS = 3  # that prove a limit of sequences
DAMPING, MAX_DAMPING_STEPS = 0.1, 3
UNSEEN_RATIOS = (0.0, 0.1, 0.25, 0.5)  # of the highest rate: background that no page shows
DRAWS, REDRAWS = 2, 10  # of background arrivals: for the fit, and for the tail
CLUSTER = 10.0  # observations with a common error
RANKINGS = 3
REPEATS = 8  # services in the bootstrap
BLOCK_S = 4.0  # closer observations are dependent and share one random weight
PLAINEST = "chunked prefill"
STRUCTURES: Mapping[str, Mapping[str, float]] = {  # structure → fields of `Service`
    PLAINEST: {},
    "prompts that begin when a piece fits": {"admits_pieces": 1},
    "prompts before decodes": {"mixed": 0},
    "2 engines in turn": {"replicas": 2},
    "4 engines in turn": {"replicas": 4},
}
PENALTY = 2.0  # added to the cost of all but the simplest: more structures explain more accidents


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted service.

    structure: its name
    front_s: latency in front of the service (network, gateway), in seconds
    repeats: (service, latency in front) fitted to the record under random weights (bootstrap)
    error: median of |log(TTFT observed ÷ replayed)|
    tail: tails of record and replay compared; None without an objective for TTFT
    background: background load of the replay
    """

    service: Service
    structure: str
    front_s: float
    repeats: tuple[tuple[Service, float], ...]
    error: float
    tail: Tail | None
    background: Background


def fit(record: Record, rng: Random) -> Fit | None:
    """Fit the service that explains a record best; None with fewer than MIN_ANSWERS answers, or if no replay answers most requests."""
    recent = _recent(record)
    items = observations(recent)
    answers = sum(request.valid and request.first_s is not None and request.stage > 0 for request in record.requests)
    if answers + MIN_MEAN_COUNT * np.sum(items.kind >= MEAN_TTFT) < MIN_ANSWERS:
        return None
    load = background(record, rng) if record.other_per_s is not None else _unseen_background(recent, items, rng)
    scenes = [build_scene(recent, load, rng) for _ in range(DRAWS if load.per_s > 0 else 1)]
    structure, objective, point = _best(recent, items, scenes)
    jacobian = objective.jacobian(point)
    service, front_s = objective.service(point.vector)
    if load.per_s > 0:
        scenes = [build_scene(recent, load, rng) for _ in range(REDRAWS)]
    courses = [scene.replayed(service) for scene in scenes]
    error = ttft_error(items, [items.replayed(*of, front_s) for of in zip(courses, scenes, strict=True)])
    if error == inf:
        return None
    return Fit(
        service,
        structure,
        front_s,
        tuple(objective.service(_reweighted(objective, point, jacobian, rng)) for _ in range(REPEATS)),
        error,
        _tail(recent, [ttfts_s(*of) + front_s for of in zip(courses, scenes, strict=True)]),
        load,
    )


def _best(record: Record, items: Observations, scenes: Sequence[Scene]) -> tuple[str, Objective, Point]:
    """Find the best structure, with its objective and point.

    All are judged by the best one's spreads: with its own, a structure that explains nothing would call everything noise.
    """
    plain = Objective(record, items, scenes, {})
    fitted = {PLAINEST: (plain, _search(plain, record))}
    fullest = max((signals.kv_cache_usage_ratio_max or 0.0 for _, signals in record.readings), default=0.0)
    for name, changes in STRUCTURES.items():
        # Until the cache is full, a replay with pieces equals the simplest.
        if changes and not ("admits_pieces" in changes and fullest < MAX_KV_USAGE):
            objective = Objective(record, items, scenes, changes)
            fitted[name] = objective, _refine(objective, record, fitted[PLAINEST][1].vector)

    def score(name: str) -> float:
        """Approximately −log likelihood of a fit, plus its penalty."""
        objective, point = fitted[name]
        return objective.cost(point) / CLUSTER + PENALTY * (name != PLAINEST)

    best = PLAINEST
    for _ in range(RANKINGS):
        objective, point = fitted[best]
        objective.rescale(point)
        for other, _ in fitted.values():
            other.scales = objective.scales.copy()
        best = min(fitted, key=score)
    return best, *fitted[best]


def _unseen_background(record: Record, items: Observations, rng: Random) -> Background:
    """Background load without a page: the tried rate with which the simplest structure explains the record best."""
    highest_per_s = max((stage.rate_per_s for stage in record.stages), default=1.0)
    vector: Array | None = None
    best = inf, background(record, rng)
    for ratio in UNSEEN_RATIOS:
        load = background(record, rng, ratio * highest_per_s)
        scenes = [build_scene(record, load, rng) for _ in range(DRAWS if ratio else 1)]
        objective = Objective(record, items, scenes, {})
        point = _search(objective, record) if vector is None else _refine(objective, record, vector)
        vector = point.vector
        objective.reset_scales(0.2)
        best = min(best, (objective.cost(point), load), key=lambda pair: pair[0])
    return best[1]


def _recent(record: Record) -> Record:
    """The record's last MAX_REPLAYED requests, with the readings shortly before: more would cost replay time."""
    requests = record.requests[-MAX_REPLAYED:]
    first_s = requests[0].at_s if requests else record.until_s
    has_latencies = any(signals.ttft_seconds or signals.e2e_seconds for _, signals in record.readings)
    before_s = BEFORE_S if has_latencies else BEFORE_WITHOUT_LATENCIES_S
    from_s = first_s - min(before_s, MAX_REPLAYED_BEFORE / max(1.0, record.other_per_s or 0.0))
    readings = tuple(row for row in record.readings if row[0] >= from_s)
    return replace(record, requests=requests, readings=readings)


def _search(objective: Objective, record: Record) -> Point:
    """Find the point of least cost, by descents and scans on growing parts of the record."""
    objective.restrict(SHARES[0])
    point = _start(objective)
    for share, factors in zip(SHARES, BUDGET_FACTORS, strict=True):
        objective.restrict(share)
        objective.slots = _slots(objective, record, point.vector)
        point = _scan_budgets(objective, objective.evaluate(point.vector), factors)
        point = _descend(objective, point, 3)
    return point


def _refine(objective: Objective, record: Record, vector: Array) -> Point:
    """Find the point of least cost on the whole record, starting from another structure's parameters `vector`."""
    objective.slots = _slots(objective, record, vector)
    point = _descend(objective, objective.evaluate(vector), 1)
    return _descend(objective, _scan_budgets(objective, point, BUDGET_FACTORS[1]), 2)


def _start(objective: Objective) -> Point:
    """Descend from each of INITIAL_BUDGETS, and return the better result."""
    ends = []
    for budget in INITIAL_BUDGETS:
        objective.reset_scales(0.2)
        vector = objective.center.copy()
        vector[BUDGET] = log(budget)
        ends.append(_descend(objective, objective.evaluate(vector), 2))
    objective.reset_scales(0.1)
    return min(ends, key=objective.cost)


def _descend(objective: Objective, point: Point, rounds: int) -> Point:
    """Levenberg–Marquardt: at most `rounds` steps, each with MAX_DAMPING_STEPS dampings."""
    damping = DAMPING
    for _ in range(rounds):
        objective.rescale(point)
        cost, jacobian = objective.cost(point), objective.jacobian(point)
        for _ in range(MAX_DAMPING_STEPS):
            candidate = objective.evaluate(objective.gauss_newton(point, jacobian, damping))
            if objective.cost(candidate) < cost:
                point, damping = candidate, damping / 5
                break
            damping *= 6
        else:
            break
    return point


def _scan_budgets(objective: Objective, point: Point, factors: Sequence[float]) -> Point:
    """Find the best of several token budgets. Each is tried alone, and with the other parameters moved by one step of the derivatives
    at `point`.

    The number of a prompt's pieces is a step function of the budget, so no derivative leads from one step to the next.
    """
    objective.rescale(point)
    jacobian = objective.jacobian(point)
    jacobian[:, BUDGET] = 0.0
    best, lowest = point, objective.cost(point) - (USUAL_ADVANTAGE if is_usual(point.vector[BUDGET]) else 0.0)
    for log_budget in (*(point.vector[BUDGET] + log(factor) for factor in factors), *map(log, USUAL_BUDGETS)):
        vector = point.vector.copy()
        vector[BUDGET] = log_budget
        shifted = objective.evaluate(vector)
        vector = objective.gauss_newton(shifted, jacobian, DAMPING)
        vector[BUDGET] = log_budget
        advantage = USUAL_ADVANTAGE if is_usual(log_budget) else 0.0
        for candidate in (shifted, objective.evaluate(vector)):
            cost = objective.cost(candidate) - advantage
            if cost < lowest:
                best, lowest = candidate, cost
    return best


def _reweighted(objective: Objective, point: Point, jacobian: Array, rng: Random) -> Array:
    """Fit with a random exponential weight per block of BLOCK_S, to first order (weighted bootstrap)."""
    draws = np.array([rng.expovariate(1.0) for _ in objective.residual_at_s])
    blocks = (objective.residual_at_s / BLOCK_S).astype(np.intp)
    _, first, inverse = np.unique(blocks, return_index=True, return_inverse=True)
    drawn = objective.center + PRIOR_SPREADS * np.array([rng.gauss(0.0, 1.0) for _ in objective.center])
    return objective.gauss_newton(point, jacobian, 0.0, draws[first][inverse], drawn)


def _slots(objective: Objective, record: Record, vector: Array) -> int:
    """Limit of running sequences shown by the page, or else the best of some multiples of the peak, or no limit."""
    running = [int(signals.requests_running or 0) for _, signals in record.readings]
    full = [
        int(signals.requests_running)
        for _, signals in record.readings
        if signals.requests_running
        and signals.requests_queued
        and (signals.kv_cache_usage_ratio_max or 0.0) < MAX_KV_USAGE
    ]
    peak = max(running, default=0)
    if full.count(peak) >= MIN_FULL_READINGS:
        return peak
    peak, costs = peak or _own_peak(record.requests), {}
    for slots in (UNLIMITED_SLOTS, peak + 1, *(round(peak * factor) for factor in SLOT_FACTORS)):
        objective.slots = max(1, slots)
        costs[objective.slots] = objective.cost(objective.evaluate(vector)) - 2 * (slots == UNLIMITED_SLOTS)
    return min(costs, key=lambda slots: costs[slots])


def _own_peak(requests: Sequence[RequestRecord]) -> int:
    """Maximum number of the sweep's requests that decoded at the same time."""
    changes = [(request.first_s, 1) for request in requests if request.first_s is not None]
    changes += [(request.end_s or request.known_s, -1) for request in requests if request.first_s is not None]
    return max(accumulate(change for _, change in sorted(changes)), default=0)


def ttft_error(items: Observations, replayed: Sequence[Array]) -> float:
    """Median of |log(TTFT observed ÷ replayed)|, minus the chance difference of two replays. Without TTFTs of the sweep, mean TTFTs are
    used.

    Arrival times of background requests are unknown, so no replay matches each TTFT. A missing TTFT in a replay counts as infinite;
    without any observed TTFT the error is infinite.
    """
    kind = TTFT if TTFT in items.kind else MEAN_TTFT
    is_known = (items.kind == kind) & ~items.is_lower_bound
    if not is_known.any():
        return inf
    draws = np.stack(replayed)[:, is_known]
    errors = np.abs(items.value[is_known] - draws)
    error = float(np.median(np.where(np.isnan(errors), inf, errors)))
    if error == inf or len(draws) == 1:
        return error
    chance = float(np.nanmedian(np.abs(np.diff(draws, axis=0))))
    return sqrt(max(0.0, error**2 - chance**2))


def _tail(record: Record, replayed: Sequence[Array]) -> Tail | None:
    """Compare the record's slowest TTFTs with those of several replays; None without an SLO for TTFT.

    Without this, 82% instead of 91% of the intervals of independent sweeps contain the truth (docs/methods.md).
    """
    threshold_s = min((slo.threshold_s for slo in record.slos if slo.signal == "ttft" and slo.threshold_s), default=inf)
    unjudged = {stage.number for stage in record.stages if stage.phase == "warm_up"}
    places = [
        place
        for place, request in enumerate(record.requests)
        if request.valid and not request.failed and request.stage not in unjudged
    ]
    if threshold_s == inf or not places:
        return None
    ratios = [of[places] / threshold_s for of in replayed]
    requests = [record.requests[place] for place in places]
    return calibrate(
        np.array([request.ttft_s or request.known_s - request.at_s for request in requests]) / threshold_s,
        np.array([request.first_s is None for request in requests]),
        [np.where(np.isnan(of), inf, of) for of in ratios],
    )
