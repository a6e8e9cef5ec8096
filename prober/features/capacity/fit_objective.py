"""Difference between a sweep's record and its replay, as a function of a service's costs for one structure.

A parameter vector has shape (7,) and contains the logarithms of PARAMETERS. A residual is an observation minus its
replayed value, in units of its kind's spread; the cost is Huber's, plus that of the distance from the prior.

A `Point` keeps a replay's values, so that a change of scale needs no second replay.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp

import numpy as np

from prober.features.capacity.observations import KINDS, TTFT, Array, Observations, neighbours
from prober.features.capacity.replay import Scene, beginning
from prober.features.capacity.sweep_record import Record
from prober.simulation.serving import NO_LIMIT, Service

PARAMETERS = ("step_s", "sequence_s", "prefill_token_s", "kv_token_s", "attention_s", "budget", "front_s")
BUDGET = PARAMETERS.index("budget")
PRIOR_SPREADS = np.array((2.0, 1.2, 2.0, 1.2, 1.5, 1.0, 1.5))  # of log parameters: knowledge without a sweep
DERIVATIVE_STEPS = (0.04, 0.3, 0.04, 0.3, 0.3, 0.15, 0.3)  # of log parameters
# Smallest spread of observations: engines do not repeat themselves, and phases of steps are unknown. By KINDS.
MIN_SCALES = np.array((0.03, 0.01, 0.01, 0.05, 0.15, 0.15, 0.05, 0.05))
MAX_SCALE = 1.0
KIND_WEIGHTS = np.array((0.3, 1.0, 1.0, 0.5, 0.3, 0.3, 3.0, 3.0))  # by KINDS
# The mean of neighbours also counts: a replay that is out of step is wrong by chance in each request, but not in their mean. Without
# it the mean error of independent sweeps is 18% instead of 12% (docs/methods.md).
GROUP_SIZE, GROUP_WEIGHT = 8, 1.0
HUBER = 1.5  # residual above which the cost is linear
MEDIAN_TO_SIGMA = 1.48  # for absolute deviations of a normal distribution
USUAL_BUDGETS = (256, 512, 1_024, 2_048, 4_096, 8_192, 16_384)  # defaults of engines, which a fit leaves unchanged
USUAL_STEP_S = 0.02
MIN_STEP_S = 2e-5  # no engine's steps are shorter, and their replays would not end
MIN_TOKENS_PER_STEP, MIN_RATIOS = 1.2, 10  # that prove more than one token per step
# Largest share of an engine's time for the page's prompts at the start of a fit: the replay of an overloaded engine answers
# nothing, and no derivative leads back.
INITIAL_PREFILL = 0.4
UNLIMITED_SLOTS = 2_048  # limit of running sequences if the record shows none


@dataclass(frozen=True, slots=True)
class Point:
    """A parameter vector (log parameters), with its replay's values for the observations."""

    vector: Array
    replayed: Array


class Objective:
    """Residuals and cost of parameter vectors on a record, or on its beginning.

    changes: fields of `Service` set by the structure
    scenes: several if there is a background, with different random arrivals, because the true ones are unknown
    slots: limit of running sequences, not part of the vector; changing it invalidates earlier points
    observed: observations in use
    """

    def __init__(
        self, record: Record, items: Observations, scenes: Sequence[Scene], changes: Mapping[str, float]
    ) -> None:
        self._changes, self.scenes, self.slots = changes, scenes, UNLIMITED_SLOTS
        self.center = _initial_vector(record)
        self._kv_tokens = _kv_tokens(record) / changes.get("replicas", 1)
        self._tokens_per_step = _tokens_per_step(record)
        self._all = items
        self.reset_scales(0.2)
        self.restrict(1.0)

    def restrict(self, share: float) -> None:
        """Use only the first `share` of the observations, ordered by the time at which they became known, and the scene up to then."""
        known_s = np.sort(self._all.known_s)[round(share * (len(self._all.known_s) - 1))]
        self.observed = self._all.select(self._all.known_s <= known_s)
        last_s = float(self.observed.at_s.max())
        self._scenes = (
            self.scenes if share == 1 else [beginning(scene, last_s, float(known_s)) for scene in self.scenes]
        )
        groups = neighbours(self.observed, GROUP_SIZE)
        self._grouped = np.concatenate(groups) if groups else np.array([], dtype=np.intp)
        sizes = np.array([len(group) for group in groups], dtype=np.intp)
        self._group_starts, self._group_roots = np.cumsum(sizes) - sizes, np.sqrt(sizes)
        self._weights = np.concatenate((KIND_WEIGHTS[self.observed.kind], np.full(len(groups), GROUP_WEIGHT)))
        first_of_group = self._grouped[self._group_starts] if groups else self._grouped
        self.residual_at_s = np.concatenate((self.observed.at_s, self.observed.at_s[first_of_group]))

    def evaluate(self, vector: Array) -> Point:
        """Replay the scenes with these parameters; average the values of several scenes."""
        service, front_s = self.service(vector)
        replayed = [self.observed.replayed(scene.replayed(service), scene, front_s) for scene in self._scenes]
        return Point(vector, replayed[0] if len(replayed) == 1 else _mean(replayed))

    def service(self, vector: Array) -> tuple[Service, float]:
        """Convert a parameter vector to (service, latency in front of it in seconds)."""
        *costs, front_s = (exp(min(20.0, value)) for value in vector.tolist())
        step_s, budget = max(MIN_STEP_S, costs[0]), max(16.0, round(costs[BUDGET]))
        slots = max(1.0, self.slots // self._changes.get("replicas", 1))
        slots = min(slots, budget) if self._changes.get("mixed", 1) else slots
        service = Service(step_s, *costs[1:BUDGET])._replace(
            budget=budget, slots=slots, kv_tokens=self._kv_tokens, tokens_per_step=self._tokens_per_step
        )
        return service._replace(**self._changes), front_s

    def residuals(self, point: Point) -> Array:
        """Residuals of observations, then of groups of neighbours. 0 if the replay has no value."""
        observed = self.observed
        residuals = (observed.value - point.replayed) / self.scales[observed.kind]
        residuals = np.where(observed.is_lower_bound, np.maximum(0.0, residuals), residuals)
        # A first token that the replay does not reach is far later than observed.
        is_missing = np.isnan(point.replayed)
        is_late = is_missing & (observed.kind == TTFT) & ~observed.is_lower_bound
        residuals = np.where(is_late, -2 * HUBER, np.where(is_missing, 0.0, residuals))
        if not len(self._grouped):
            return residuals
        clipped = np.clip(residuals, -2 * HUBER, 2 * HUBER)[self._grouped]
        return np.concatenate((residuals, np.add.reduceat(clipped, self._group_starts) / self._group_roots))

    def cost(self, point: Point) -> float:
        """Weighted Huber cost of the residuals, plus the cost of the distance from the prior."""
        sizes = np.abs(self.residuals(point))
        huber = np.where(sizes <= HUBER, 0.5 * sizes * sizes, HUBER * (sizes - 0.5 * HUBER))
        return float(self._weights @ huber + 0.5 * np.sum(((point.vector - self.center) / PRIOR_SPREADS) ** 2))

    def reset_scales(self, scale: float) -> None:
        """Set the spread of all kinds, in units of their values."""
        self.scales = np.full(len(KINDS), scale)

    def rescale(self, point: Point) -> None:
        """Set the spread of each kind from the median of its residuals at this point."""
        sizes = np.abs(self.residuals(point)[: len(self.observed.kind)])
        for kind in range(len(KINDS)):
            of_kind = np.sort(sizes[self.observed.kind == kind])
            if len(of_kind):
                spread = MEDIAN_TO_SIGMA * of_kind[len(of_kind) // 2] * self.scales[kind]
                self.scales[kind] = min(MAX_SCALE, max(MIN_SCALES[kind], spread))

    def jacobian(self, point: Point) -> Array:
        """Derivatives of the replayed values, in units of spread, by log parameters, shape (residuals, 7); one replay each."""
        residuals = self.residuals(point)
        columns = []
        for number, size in enumerate(DERIVATIVE_STEPS):
            if number == BUDGET and is_usual(point.vector[BUDGET]):
                columns.append(np.zeros_like(residuals))
                continue
            vector = point.vector.copy()
            vector[number] += size
            columns.append((residuals - self.residuals(self.evaluate(vector))) / size)
        return np.stack(columns, axis=1)

    def gauss_newton(
        self,
        point: Point,
        jacobian: Array,
        damping: float,
        weights: Array | float = 1.0,
        center: Array | None = None,
    ) -> Array:
        """Vector after one weighted, damped, regularised step, at most a factor of e per parameter. center: mean of the prior"""
        center = self.center if center is None else center
        residuals = self.residuals(point)
        robust = self._weights * np.minimum(1.0, HUBER / np.maximum(1e-9, np.abs(residuals))) * weights
        weighted = jacobian * robust[:, None]
        normal = weighted.T @ jacobian + np.diag(PRIOR_SPREADS**-2)
        normal[np.diag_indices_from(normal)] *= 1 + damping
        gradient = weighted.T @ residuals + (center - point.vector) / PRIOR_SPREADS**2
        step = np.clip(np.linalg.solve(normal, gradient), -1.0, 1.0)
        if is_usual(point.vector[BUDGET]):
            step[BUDGET] = 0.0
        moved: Array = point.vector + step
        return moved


def is_usual(log_budget: float) -> bool:
    """True if a token budget is one of USUAL_BUDGETS."""
    return round(exp(log_budget)) in USUAL_BUDGETS


def _mean(values: Sequence[Array]) -> Array:
    """Mean over replays, shape (n,); NaN if most of them have no value."""
    stack = np.stack(values)
    known = ~np.isnan(stack)
    count = known.sum(axis=0)
    mean: Array = np.where(known, stack, 0.0).sum(axis=0) / np.maximum(1, count)
    mean[2 * count < len(values)] = np.nan
    return mean


def _initial_vector(record: Record) -> Array:
    """Start of a fit: parameters from the sweep's fastest gaps and prefills, or typical ones."""
    valid = [request for request in record.requests if request.valid and request.ttft_s]
    ttfts_s = [request.ttft_s or 0.0 for request in valid]
    gaps_s = sorted(request.gap_s for request in valid if request.gap_s)
    step_s = gaps_s[len(gaps_s) // 10] * 0.9 if gaps_s else min((of / 2 for of in ttfts_s), default=USUAL_STEP_S)
    prefills_s = sorted(
        max(0.02 * ttft_s, ttft_s - 1.5 * step_s) / request.prompt_tokens
        for ttft_s, request in zip(ttfts_s, valid, strict=True)
    )
    totals = [  # computed prompt tokens of all requests on the page
        (at_s, signals.prompt_tokens_total - (signals.prefix_cache_hits_tokens_total or 0.0))
        for at_s, signals in record.readings
        if signals.prompt_tokens_total is not None
    ]
    (begin_s, before), (end_s, after) = (totals[0], totals[-1]) if totals else ((0.0, 0.0), (0.0, 0.0))
    prompt_per_s = (after - before) / (end_s - begin_s) if end_s > begin_s else 0.0
    prefill_s = prefills_s[len(prefills_s) // 4] if prefills_s else USUAL_STEP_S / 100
    prefill_s = min(prefill_s, INITIAL_PREFILL / max(1.0, prompt_per_s))
    # Attention to a prompt of 200,000 tokens costs as much as its other work.
    attention_s = prefill_s / 100_000
    return np.log((step_s, step_s * 0.004, prefill_s, step_s * 1e-5, attention_s, 2_048, step_s * 0.1))


def _tokens_per_step(record: Record) -> float:
    """Tokens per chunk (speculative decoding): median of gap ÷ TPOT; at most 1 if tokens come one by one."""
    ratios = sorted(request.gap_s / request.tpot_s for request in record.requests if request.gap_s and request.tpot_s)
    ratio = ratios[len(ratios) // 2] if len(ratios) >= MIN_RATIOS else 1.0
    return ratio if ratio > MIN_TOKENS_PER_STEP else 1.0


def _kv_tokens(record: Record) -> float:
    """Size of the KV cache in tokens, from the page; unlimited if unknown."""
    capacities: Sequence[float] = [
        signals.kv_cache_capacity_tokens for _, signals in record.readings if signals.kv_cache_capacity_tokens
    ]
    return capacities[-1] if capacities else NO_LIMIT
