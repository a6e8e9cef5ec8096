"""Capacities of an engine for requests of one shape: the sweep's shape, and a grid around the background's.

User traffic seldom has the sweep's lengths, and its lengths change. So the fitted engine is evaluated on
a grid of mean prompts and outputs; the share of the engine for a later request is interpolated.
Without an engine model only a sum is known: the share of background and sweep together at the knee. The share of one
of them lies between the extremes that only requests, prompt tokens, output tokens or the KV cache limit the engine.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, hypot, log
from random import Random
from statistics import fmean, pstdev

from prober.features.capacity.capacity_model import CapacityModel, Knee
from prober.features.capacity.replay import SAMPLE_SIZE, Background, RequestLengths
from prober.measure.objective import Slo
from prober.results.capacity import Capacity, ShapeCapacity, Z

RATIOS = (0.2, 1.0, 2.5, 6.0)  # of the grid's mean prompts and outputs to the background's
EFFORT = 0.2  # of the simulations per point
# Share of the sweep's tokens added to the shape's, and least share of its requests: enough to judge by. Their use
# is subtracted, down to a least share for the shape.
OWN_TOKENS, MIN_OWN_REQUESTS, MIN_TAKEN = 0.1, 0.1, 0.3
MIN_PER_S = 0.01
# Of a capacity in logs, per log by which a request's tokens differ from the background's and the sweep's, weighted by
# their use of the engine at the knee: the record shows only the sum.
ERROR_OF_SHAPE = 0.2
ERROR_OF_MINUTES = 0.12  # the background's bursts and lengths during a sweep are a sample


def by_model(
    model: CapacityModel, slo: Slo, knee: Knee, log_error: Callable[[CapacityModel, Knee], float], rng: Random
) -> tuple[ShapeCapacity | None, tuple[ShapeCapacity, ...]]:
    """By the model: (capacity in requests of the sweep's shape, capacities in requests of each shape of the grid).

    log_error: returns the standard error of the log of a changed model's knee
    """
    model = replace(model, effort=EFFORT * model.effort)
    alone = replace(model, background=Background(0.0, (), known=True))
    own_prompt, own_output = model.lengths.mean(axis=0).tolist()
    own_knee = alone.knee(slo, knee.rate_per_s, rng)
    if own_knee is None:
        return None, ()
    own = ShapeCapacity(own_prompt, own_output, own_knee.rate_per_s, log_error(alone, own_knee))
    lengths = model.background.lengths or tuple(RequestLengths(*of) for of in model.lengths[:SAMPLE_SIZE].tolist())
    prompt, output = mean_lengths(lengths)
    shapes: list[ShapeCapacity] = []
    for prompt_ratio in RATIOS:
        for output_ratio in RATIOS:
            tokens = prompt_ratio * prompt + output_ratio * output
            own_tokens = OWN_TOKENS * tokens, (1 - OWN_TOKENS) * (own_prompt + own_output)
            own_ratio = max(MIN_OWN_REQUESTS, own_tokens[0] / sum(own_tokens))
            others = tuple(
                RequestLengths(max(1, round(of.prompt * prompt_ratio)), max(1, round(of.output * output_ratio)))
                for of in lengths
            )
            mixed = replace(model, background=replace(model.background, lengths=others), own_ratio=own_ratio)
            mixed_knee = mixed.knee(slo, knee.rate_per_s * (own_prompt + own_output) / tokens, rng)
            per_s, error = MIN_PER_S, own.log_error
            if mixed_knee is not None:
                total = 1 / mixed_knee.rate_per_s
                per_s = (1 - own_ratio) / max(MIN_TAKEN * total, total - own_ratio / own.per_s)
            if prompt_ratio == output_ratio == 1 and mixed_knee is not None:
                error = log_error(mixed, mixed_knee)
            shapes.append(ShapeCapacity(prompt_ratio * prompt, output_ratio * output, per_s, error))
    present = shapes[RATIOS.index(1.0) * (len(RATIOS) + 1)]
    share = min(1.0, model.background.per_s / present.per_s)
    distances = [share * _distance(of, present) + (1 - share) * _distance(of, own) for of in shapes]
    return own, tuple(
        replace(of, log_error=hypot(present.log_error, ERROR_OF_MINUTES, ERROR_OF_SHAPE * distance))
        for of, distance in zip(shapes, distances, strict=True)
    )


def with_shapes(capacity: Capacity, lengths: Sequence[RequestLengths], load: Background) -> Capacity:
    """Add the capacities for single shapes of requests, from rates alone.

    lengths: lengths of the sweep's requests; load: background load
    """
    per_s = capacity.estimate or capacity.lower or capacity.upper
    if per_s is None:
        return capacity
    own, others = mean_lengths(lengths), mean_lengths(load.lengths or lengths)
    sums = [
        load.per_s * of_other + max(0.0, per_s - load.per_s) * of_own
        for of_other, of_own in zip(_parts(*others), _parts(*own), strict=True)
    ]
    error = 0.0
    if capacity.lower and capacity.upper:
        error = log(capacity.upper / capacity.lower) / 2 / Z[capacity.confidence]

    def of_shape(prompt: float, output: float) -> ShapeCapacity:
        logs = [log(total / part) for total, part in zip(sums, _parts(prompt, output), strict=True)]
        return ShapeCapacity(prompt, output, exp(fmean(logs)), hypot(error, pstdev(logs)))

    shapes = tuple(of_shape(x * others[0], y * others[1]) for x in RATIOS for y in RATIOS)
    return replace(capacity, own=of_shape(*own), shapes=shapes)


def _distance(one: ShapeCapacity, other: ShapeCapacity) -> float:
    """Mean absolute difference in log prompt tokens and log output tokens of two shapes."""
    prompts, outputs = one.prompt_tokens / other.prompt_tokens, one.output_tokens / other.output_tokens
    return (abs(log(prompts)) + abs(log(outputs))) / 2


def mean_lengths(lengths: Sequence[RequestLengths]) -> tuple[float, float]:
    """(mean prompt tokens, mean output tokens) of the lengths."""
    return fmean(of.prompt for of in lengths), fmean(of.output for of in lengths)


def _parts(prompt: float, output: float) -> tuple[float, float, float, float]:
    """A request's use of each resource: one request, prompt tokens, output tokens, KV tokens times steps."""
    return 1.0, prompt, output, output * (prompt + output / 2)
