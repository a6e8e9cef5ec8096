"""Fit of the simulated engine to the record of a sweep: parameters with which a replay shows what the sweep observed.

Robust least squares on logarithms (Levenberg–Marquardt, derivatives by replay). The fit starts with the beginning of the record,
while the engine is nearly idle, and then uses more and more of it: the state of a busy engine depends on every earlier step, so
the replay of a slightly wrong engine is soon out of step, and no derivative leads back. The token budget and the limit of running
sequences are not smooth and are scanned. A random walk ends the fit. Seconds of CPU; pure.

`scipy.optimize.least_squares` instead of `_descend` gives the same accuracy (docs/measurements.md#sweeps) for 9% more CPU, and
scipy adds 114 MB to the image; scans and bootstrap need the step of `Objective.gauss_newton` anyway.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import exp, inf, log
from random import Random

import numpy as np

from prober.features.capacity.engine_fit import Fit, Prior, Rival, Trouble
from prober.features.capacity.fit_objective import BUDGET, PRIOR_SPREADS, UNLIMITED_SLOTS, Objective, Point
from prober.features.capacity.observations import Array, observations, ttfts_s
from prober.features.capacity.replay import Background, Scene, background, build_scene
from prober.features.capacity.request_record import RequestRecord
from prober.features.capacity.structures import STRUCTURES
from prober.features.capacity.sweep_record import Record
from prober.simulation.serving import Service

MIN_ANSWERS = 20
BEFORE_S = 10.0  # of background load before the sweep is replayed
SHARES = (0.35, 0.7, 1.0)  # of the record, one after the other
INITIAL_BUDGETS = (2_048, 512)  # tokens per step; the cost has more than one minimum
# Token budgets to scan for each of SHARES, as multiples of the best one so far.
BUDGET_FACTORS = (
    tuple(exp(0.12 * n) for n in range(-13, 14)),
    tuple(exp(0.02 * n) for n in range(-6, 7)),
    tuple(exp(0.004 * n) for n in range(-5, 6)),
)
# Limits of running sequences to try, as multiples of the most that ran.
SLOT_FACTORS = (1, 1.03, 1.07, 1.12, 1.2, 1.3, 1.45, 1.6, 1.8, 2, 2.5)
MAX_KV_USAGE, MIN_FULL_READINGS = (
    0.9,
    3,
)  # above that usage the cache limits the batch; readings that show a limit of sequences
DAMPING, MAX_DAMPING_STEPS = 0.1, 3
WALK_STEPS, RESCALE_EVERY = 200, 40
WALK_SIZES = (0.03, 0.5, 0.08, 0.5, 0.05, 0.1, 0.1, 0.3)  # of log parameters
REDRAWS = 8  # of background arrivals, if the first ones cause no breach or queue
CLUSTER = 10.0  # observations that err together
RANKINGS = 3
MIN_WEIGHT = 0.02  # of a rival
BLOCK_S = 4.0  # observations that are closer are not independent and share one random weight


def fit(record: Record, rng: Random, prior: Prior | None = None, repeats: int = 8) -> Fit | None:
    """Engine that explains a record; None for fewer than MIN_ANSWERS answers. repeats: number of bootstrap engines."""
    answers = sum(request.valid and request.first_s is not None and request.stage > 0 for request in record.requests)
    if answers < MIN_ANSWERS:
        return None
    load = background(record, rng)
    recent = _recent(record)
    scene, items = build_scene(recent, load, rng), observations(recent)
    fitted = []
    for structure in STRUCTURES:
        objective = Objective(recent, items, scene, structure, prior)
        fitted.append((objective, _walk(objective, _search(objective, recent), rng)))
    (objective, point), *others = _ranked(fitted)
    least = _score(objective, point)
    rivals = tuple(Rival(*other.service(at.vector), exp(least - _score(other, at))) for other, at in others)
    jacobian = objective.jacobian(point)
    service, front_s = objective.service(point.vector)
    is_drawn = recent.background is None and load.per_s > 0
    threshold_s = _threshold_s(recent)
    return Fit(
        service,
        objective.structure.name,
        front_s,
        tuple(objective.service(_reweighted(objective, point, jacobian, rng)) for _ in range(repeats)),
        tuple(rival for rival in rivals if rival.weight > MIN_WEIGHT),
        objective.ttft_error(point),
        _predicted_trouble(recent, objective.scene, load if is_drawn else None, (service, front_s), rng),
        _observed_trouble(recent, threshold_s),
        objective.slots < UNLIMITED_SLOTS,
        load,
        is_drawn,
    )


def _recent(record: Record) -> Record:
    """The record from BEFORE_S before the sweep's first request. Earlier readings describe the background but cost replay time."""
    from_s = record.requests[0].at_s - BEFORE_S
    individual = record.background
    if individual is not None:
        individual = tuple(request for request in individual if request.arrival_s >= from_s)
    return replace(record, readings=tuple(row for row in record.readings if row[0] >= from_s), background=individual)


def _ranked(fitted: Sequence[tuple[Objective, Point]]) -> list[tuple[Objective, Point]]:
    """The structures, best first, all by the spreads of the best: with spreads of its own, one that explains nothing would call
    everything noise.
    """
    ranked = list(fitted)
    for _ in range(RANKINGS):
        best, point = ranked[0]
        best.rescale(point)
        for objective, _ in ranked:
            objective.scales = best.scales.copy()
        ranked.sort(key=lambda pair: _score(*pair))
    return ranked


def _score(objective: Objective, point: Point) -> float:
    """About −log likelihood of a fit, with the penalty of its structure."""
    return objective.cost(point) / CLUSTER + objective.structure.penalty


def _search(objective: Objective, record: Record) -> Point:
    """Least cost by descents and scans on growing shares of the record."""
    objective.restrict(SHARES[0])
    point = _start(objective)
    for share, factors in zip(SHARES, BUDGET_FACTORS, strict=True):
        objective.restrict(share)
        objective.slots = _slots(objective, record, point.vector)
        point = _scan_budgets(objective, objective.evaluate(point.vector), factors)
        point = _descend(objective, point, 3)
    return point


def _start(objective: Objective) -> Point:
    """The better of the descents from INITIAL_BUDGETS; from the prior alone if there is one."""
    if objective.spread[BUDGET] < PRIOR_SPREADS[BUDGET]:
        return _descend(objective, objective.evaluate(objective.center), 2)
    ends = []
    for budget in INITIAL_BUDGETS:
        objective.reset_scales(0.2)
        vector = objective.center.copy()
        vector[BUDGET] = log(budget)
        ends.append(_descend(objective, objective.evaluate(vector), 2))
    objective.reset_scales(0.1)
    return min(ends, key=objective.cost)


def _descend(objective: Objective, point: Point, rounds: int) -> Point:
    """Levenberg–Marquardt: up to `rounds` steps, each with MAX_DAMPING_STEPS dampings."""
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
    """Best of several token budgets, each also with the other parameters moved by one step of the derivatives at `point`.

    The number of pieces of a prompt is a step function of the budget: no derivative leads from one step to the next.
    """
    objective.rescale(point)
    jacobian = objective.jacobian(point)
    jacobian[:, BUDGET] = 0.0
    best, lowest = point, objective.cost(point)
    for factor in factors:
        vector = point.vector.copy()
        vector[BUDGET] += log(factor)
        shifted = objective.evaluate(vector)
        vector = objective.gauss_newton(shifted, jacobian, DAMPING)
        vector[BUDGET] = shifted.vector[BUDGET]
        for candidate in (shifted, objective.evaluate(vector)):
            cost = objective.cost(candidate)
            if cost < lowest:
                best, lowest = candidate, cost
    return best


def _walk(objective: Objective, point: Point, rng: Random) -> Point:
    """Random walk that keeps improvements; its step size aims at one in five (Rechenberg's rule)."""
    objective.rescale(point)
    cost, size = objective.cost(point), 0.3
    for number in range(WALK_STEPS):
        if number % RESCALE_EVERY == RESCALE_EVERY - 1:
            objective.rescale(point)
            cost = objective.cost(point)
        step = size * exp(rng.gauss(0, 1))
        moves = [step * scale * rng.gauss(0, 1) * (rng.random() < 0.5) for scale in WALK_SIZES]
        candidate = objective.evaluate(point.vector + np.array(moves))
        candidate_cost = objective.cost(candidate)
        if candidate_cost < cost:
            point, cost, size = candidate, candidate_cost, size * 1.5
        else:
            size *= 0.9
        size = max(0.02, size)
    return point


def _reweighted(objective: Objective, point: Point, jacobian: Array, rng: Random) -> Array:
    """Vector of the fit under exponential weights, one per block of BLOCK_S, to first order (weighted bootstrap)."""
    draws = np.array([rng.expovariate(1.0) for _ in objective.residual_at_s])
    blocks = (objective.residual_at_s / BLOCK_S).astype(np.intp)
    _, first, inverse = np.unique(blocks, return_index=True, return_inverse=True)
    return objective.gauss_newton(point, jacobian, 0.0, draws[first][inverse])


def _slots(objective: Objective, record: Record, vector: Array) -> int:
    """Limit of running sequences: as the page shows it; else the best of some multiples of the peak, or no limit."""
    running = [int(signals.requests_running or 0) for _, signals in record.readings]
    peak = max(running, default=0)
    full = [
        signals.requests_running
        for _, signals in record.readings
        if signals.requests_running
        and signals.requests_waiting
        and (signals.kv_cache_usage_ratio_max or 0.0) < MAX_KV_USAGE
    ]
    if sum(int(count) == peak for count in full) >= MIN_FULL_READINGS:
        return peak
    peak = peak or _own_peak(record.requests)
    candidates = sorted({*(round(peak * factor) for factor in SLOT_FACTORS), peak + 1} - {0})
    current, best = objective.slots, (inf, objective.slots)
    for slots in (*candidates, UNLIMITED_SLOTS):
        objective.slots = slots
        advantage = 2 if slots == UNLIMITED_SLOTS else 0  # a limit needs evidence
        best = min(best, (objective.cost(objective.evaluate(vector)) - advantage, slots))
    objective.slots = current
    return best[1]


def _own_peak(requests: Sequence[RequestRecord]) -> int:
    """Most requests of the sweep that decoded at once."""
    changes = [(request.first_s, 1) for request in requests if request.first_s is not None]
    changes += [(request.end_s or request.known_s, -1) for request in requests if request.first_s is not None]
    decoding = peak = 0
    for _, change in sorted(changes):
        decoding += change
        peak = max(peak, decoding)
    return peak


def _threshold_s(record: Record) -> float:
    """Lowest TTFT threshold of the record's SLOs; infinite without one."""
    return min((slo.threshold_s for slo in record.slos if slo.signal == "ttft" and slo.threshold_s), default=inf)


def _observed_trouble(record: Record, threshold_s: float) -> Trouble:
    breaches = sum(
        request.ttft_s is None or request.ttft_s > threshold_s
        for request in record.requests
        if _is_judged(request, threshold_s)
    )
    return Trouble(breaches, max((int(signals.requests_waiting or 0) for _, signals in record.readings), default=0))


def _predicted_trouble(
    record: Record, scene: Scene, drawn: Background | None, engine: tuple[Service, float], rng: Random
) -> Trouble:
    """Trouble in a replay of `scene`. drawn: background whose arrival times are random, None if they are known.

    Other random arrival times may cause the breaches or the queue that the first ones do not: their maximum counts.
    """
    threshold_s = _threshold_s(record)
    predicted = _replayed_trouble(record, scene, engine, threshold_s)
    if drawn is None or all(predicted):
        return predicted
    redrawn = [_replayed_trouble(record, build_scene(record, drawn, rng), engine, threshold_s) for _ in range(REDRAWS)]
    return Trouble(
        predicted.breaches or max(trouble.breaches for trouble in redrawn),
        predicted.waiting or max(trouble.waiting for trouble in redrawn),
    )


def _replayed_trouble(record: Record, scene: Scene, engine: tuple[Service, float], threshold_s: float) -> Trouble:
    service, front_s = engine
    course = scene.replayed(service)
    ttfts = (ttfts_s(course, scene) + front_s).tolist()
    breaches = sum(
        not ttft_s <= threshold_s
        for ttft_s, request in zip(ttfts, record.requests, strict=True)
        if _is_judged(request, threshold_s)
    )
    return Trouble(breaches, int(max(course.waiting, default=0)))


def _is_judged(request: RequestRecord, threshold_s: float) -> bool:
    """It is known whether the request's TTFT is above the threshold."""
    return request.valid and (request.first_s is not None or request.known_s - request.at_s > threshold_s)
