"""Fits a baseline to complete blocks."""

import math
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, repeat
from operator import mul, sub

from prober.features.drift.baseline import FLOOR_SHARE, QUANTILES, Baseline, alike, is_weekend, scores
from prober.features.drift.blocks import BLOCK_COUNT, BLOCK_SAMPLES, DAY_SLOTS, WEEK_SLOTS, Blocks, Span

MAX_CORRELATION = 0.95
FIFTHS = 5
FIFTH_SAMPLES = BLOCK_COUNT * BLOCK_SAMPLES // FIFTHS  # per reference
FLOOR_QUANTILES = 200  # stored
MIN_SLOT_SAMPLES = 10
MAX_DAY_SHARE = 0.1  # of the season's variance: a quiet Saturday among two workdays has 0.4
SURE_WEEKEND = range(5 * DAY_SLOTS + 28, 6 * DAY_SLOTS + 20)  # Saturday 14:00 to Sunday 10:00 UTC, weekend everywhere
MIN_WEEKEND_SLOTS = 16
MIN_SEASON_S = 3_600.0  # of blocks, to distinguish hours
MIN_VISITS = 2  # days, to know an hour of workdays: a single one may be a holiday


def learn_baseline(blocks: Blocks, *, correlation: float | None = None, thin: int = 1) -> Baseline:
    """Fit a baseline to complete blocks. Takes about 0.1 s.

    correlation: replaces the estimate, if the order of the samples is unknown
    thin: stores every `thin`-th sorted whitened residual; above 1, all fifths share one reference
    """
    model = _unfitted(blocks)
    if model.factor == "load":
        model = _regress(blocks, model)
    model = _residual_spread(model, blocks)
    ordered = _sorted(_residuals(model, blocks, block)[0] for block in range(blocks.block_count))
    levels = array("d", (ordered[math.ceil(q * len(ordered)) - 1] for q in QUANTILES))
    if correlation is None:
        correlation = _correlation(model, blocks, ordered)
    model = replace(model, correlation=correlation, quantiles=(levels,))
    model = _with_errors(model, blocks, min_visits=1 if thin > 1 else MIN_VISITS)
    ordered = _sorted(_whitened(model, blocks, block) for block in range(blocks.block_count))
    model = replace(model, references=(ordered,))
    if thin > 1:
        model = _with_inflations(replace(model, cuts=()), blocks)
        return replace(model, references=(ordered[thin // 2 :: thin],), wander=_wander(model, blocks))
    model = _divided(model, blocks)
    model = _with_floors(_with_inflations(model, blocks), blocks)
    return replace(model, wander=_wander(model, blocks))


def _sorted(values: Iterable[list[float]]) -> "array[float]":
    """Sort the values of all lists together."""
    return array("f", sorted(chain.from_iterable(values)))


def _unfitted(blocks: Blocks) -> Baseline:
    """Choose the factor of a baseline, without fitting: the load if all blocks have one and it varies, else the hour, or none."""
    spans = [blocks.span(block) for block in range(blocks.block_count)]
    loads = [load for span in spans for load in (span.first_load, span.last_load)]
    centre = sum(loads) / len(loads)
    scale = math.sqrt(sum((load - centre) ** 2 for load in loads) / len(loads))
    ordered = sorted(loads)
    quietest = ordered[len(ordered) // 50]  # without the first readings of a page
    if scale > 1e-6 * abs(centre):  # False if NaN
        return Baseline("load", centre=centre, scale=scale, quietest=quietest, busiest=ordered[-1])
    level = Baseline("none", coefficients=(_level(blocks),), variance=(0.0,))
    if scale <= 1e-6 * abs(centre):
        return replace(level, quietest=quietest, busiest=ordered[-1])
    if spans[-1].begun_s - spans[0].begun_s < MIN_SEASON_S:
        return level
    return _with_levels(Baseline("hour"), blocks)


def _level(blocks: Blocks) -> float:
    """Mean log of all samples."""
    spans = [blocks.span(block) for block in range(blocks.block_count)]
    return sum(span.samples * span.mean_log for span in spans) / sum(span.samples for span in spans)


def _with_levels(model: Baseline, blocks: Blocks) -> Baseline:
    """Add the expected log of each half hour of the week in the blocks; all workdays share one value per half hour."""
    levels = array("f", [math.nan]) * WEEK_SLOTS
    for slot in range(WEEK_SLOTS):
        if _visits(blocks, slot):
            levels[slot] = _mean_of_slots(blocks, alike(slot))[1]
    return replace(model, levels=levels, level_errors=array("f", [0.0]) * WEEK_SLOTS)


def _visits(blocks: Blocks, slot: int) -> int:
    """Number of days of the week with this half hour, or one assumed to be like it."""
    return sum(blocks.slot_counts[same] >= MIN_SLOT_SAMPLES for same in alike(slot))


def _regress(blocks: Blocks, model: Baseline) -> Baseline:
    """Regress on the load by the normal equations, with a ridge that is negligible for independent columns."""
    size = 4
    moments = [[0.0] * size for _ in range(size)]
    products = [0.0] * size
    for block in range(blocks.block_count):
        for weight, x, y in _evidence(model, blocks, block):
            for i, xi in enumerate(x):
                products[i] += weight * xi * y
                line = moments[i]
                for j in range(i + 1):
                    line[j] += weight * xi * x[j]
    root = inverse_root(moments, ridge=1e-9 * blocks.needed)
    half = [sum(map(mul, row, products)) for row in root]
    coefficients = tuple(sum(row[i] * h for row, h in zip(root, half, strict=True)) for i in range(size))
    terms = [0.0] * (2 * size - 1)
    for row in root:
        for i in range(size):
            for j in range(size):
                terms[i + j] += row[i] * row[j]
    return replace(model, coefficients=coefficients, variance=tuple(terms))


def _evidence(model: Baseline, blocks: Blocks, block: int) -> Iterator[tuple[float, tuple[float, ...], float]]:
    """Rows (weight, columns, log) for the regression: each sample of a block, and the mean of the others in its interval."""
    span = blocks.span(block)
    yield from zip(repeat(1.0), (_columns(model, load) for load in _loads(blocks, span)), blocks.block(block))
    if span.samples > blocks.block_samples:
        yield span.samples - blocks.block_samples, _mean_columns(model, span), span.mean_log


def _loads(blocks: Blocks, span: Span) -> list[float]:
    more = span.last_load - span.first_load
    return [span.first_load + more * j / (blocks.block_samples - 1) for j in range(blocks.block_samples)]


def _columns(model: Baseline, load: float) -> tuple[float, ...]:
    u = (load - model.centre) / model.scale
    return (1.0, u, u * u, u * u * u)


def _mean_columns(model: Baseline, span: Span) -> tuple[float, ...]:
    """Mean of the regression columns over an interval."""
    if model.factor == "none":
        return (1.0,)
    u = (span.first_load - model.centre) / model.scale
    m1, m2, m3 = (m / model.scale**k for k, m in enumerate(span.moments, 1))
    return (1.0, u + m1, u * u + 2 * u * m1 + m2, u**3 + 3 * u * u * m1 + 3 * u * m2 + m3)


def _points(blocks: Blocks, block: int) -> list[tuple[float, float]]:
    """(Unix seconds, smoothed load) of a block's samples."""
    span = blocks.span(block)
    step_s = span.lasted_s / (blocks.block_samples - 1)
    return [(span.begun_s + step_s * j, load) for j, load in enumerate(_loads(blocks, span))]


def _residuals(model: Baseline, blocks: Blocks, block: int) -> tuple[list[float], list[float]]:
    """(residuals, expected logs) of a block. At an unseen hour, residuals are relative to the block's mean."""
    expected = [model.expected(unix_s, load)[0] for unix_s, load in _points(blocks, block)]
    logs = blocks.block(block)
    if any(map(math.isnan, expected)):
        expected = [sum(logs) / blocks.block_samples] * blocks.block_samples
    return list(map(sub, logs, expected)), expected


def _whitened(model: Baseline, blocks: Blocks, block: int) -> list[float]:
    residuals = _residuals(model, blocks, block)[0]
    return [model.whitened(r, before) for r, before in zip(residuals, (None, *residuals), strict=False)]


def _residual_spread(model: Baseline, blocks: Blocks) -> Baseline:
    """Add the residuals' standard deviation, the slowest expected log and the cuts between fifths to the model."""
    squares, slowest, keys = 0.0, -math.inf, []
    for block in range(blocks.block_count):
        residuals, expected = _residuals(model, blocks, block)
        squares += sum(map(mul, residuals, residuals))
        slowest = max(slowest, *expected)
        span = blocks.span(block)
        keys += [span.first_load, span.last_load] if model.factor == "load" else [expected[0], expected[-1]]
    keys.sort()
    cuts = tuple(keys[len(keys) * k // FIFTHS] for k in range(1, FIFTHS))
    sd = math.sqrt(squares / blocks.needed) or 1e-6  # for a constant signal
    return replace(model, sd=sd, slowest=slowest, cuts=cuts)


def _with_errors(model: Baseline, blocks: Blocks, min_visits: int) -> Baseline:
    """Add the errors of the expected logs to the model.

    min_visits: days needed to know a half hour of workdays
    """
    if model.factor == "load":
        own = model.sd**2 * (1 - model.correlation**2)
        return replace(model, variance=tuple(own * leverage for leverage in model.variance))
    if model.factor == "none":
        return replace(model, variance=(model.level_error(blocks.needed) ** 2,))
    if _is_flat(model, blocks):
        level, error = _level(blocks), model.level_error(sum(blocks.slot_counts))
        return replace(
            model,
            levels=array("f", [level]) * WEEK_SLOTS,
            level_errors=array("f", [error]) * WEEK_SLOTS,
            slowest=level,
        )
    if _repeats_daily(model, blocks):
        return _with_daily_levels(model, blocks)
    errors = array("f", [math.nan]) * WEEK_SLOTS
    for slot, level in enumerate(model.levels):
        if not math.isnan(level):
            is_known = _visits(blocks, slot) >= (1 if is_weekend(slot) else min_visits)
            count = sum(blocks.slot_counts[same] for same in alike(slot))
            errors[slot] = model.level_error(count) if is_known else math.inf
    return replace(model, level_errors=errors)


def _mean_of_slots(blocks: Blocks, slots: Sequence[int]) -> tuple[float, float, float]:
    """(samples, mean log, weighted squares about the mean) of half hours of the week."""
    counts, logs = [blocks.slot_counts[slot] for slot in slots], [blocks.slot_logs[slot] for slot in slots]
    count = sum(counts)
    mean = sum(map(mul, counts, logs)) / count if count else 0.0
    return count, mean, sum(n * (log - mean) ** 2 for n, log in zip(counts, logs, strict=True))


def _repeats_daily(model: Baseline, blocks: Blocks) -> bool:
    """True if the seen days are alike: beyond chance, they differ little compared with the hours of a day."""
    days = [_mean_of_slots(blocks, range(slot, WEEK_SLOTS, DAY_SLOTS)) for slot in range(DAY_SLOTS)]
    visits = sum(count > 0 for count in blocks.slot_counts)
    total = sum(count for count, _, _ in days)
    if visits < MIN_VISITS * DAY_SLOTS or not all(count for count, _, _ in days):
        return False
    level = sum(count * mean for count, mean, _ in days) / total
    season = sum(count * (mean - level) ** 2 for count, mean, _ in days)
    own = model.sd**2 * (1 + model.correlation) / (1 - model.correlation)
    free = visits - DAY_SLOTS
    return sum(squares for _, _, squares in days) < own * (free + 4 * math.sqrt(2 * free)) + MAX_DAY_SHARE * season


def _with_daily_levels(model: Baseline, blocks: Blocks) -> Baseline:
    """Give all days the same levels. A weekend with less than eight seen hours stays unknown."""
    knows_weekend = sum(blocks.slot_counts[slot] >= MIN_SLOT_SAMPLES for slot in SURE_WEEKEND) >= MIN_WEEKEND_SLOTS
    levels, errors = array("f", [math.nan]) * WEEK_SLOTS, array("f", [math.nan]) * WEEK_SLOTS
    for slot in range(DAY_SLOTS):
        count, mean, _ = _mean_of_slots(blocks, range(slot, WEEK_SLOTS, DAY_SLOTS))
        for same in range(slot, WEEK_SLOTS, DAY_SLOTS):
            if knows_weekend or not is_weekend(same) or blocks.slot_counts[same] >= MIN_SLOT_SAMPLES:
                levels[same], errors[same] = mean, model.level_error(count)
    return replace(model, levels=levels, level_errors=errors)


def _is_flat(model: Baseline, blocks: Blocks) -> bool:
    """True if all hours of the day were seen and differ only by chance, so that the hour need not be modelled."""
    if not all(sum(blocks.slot_counts[slot::DAY_SLOTS]) for slot in range(DAY_SLOTS)):
        return False
    level, own = _level(blocks), model.sd**2 * (1 + model.correlation) / (1 - model.correlation)
    seen = [(count, log) for count, log in zip(blocks.slot_counts, blocks.slot_logs, strict=True) if count]
    return sum(count * (log - level) ** 2 for count, log in seen) / own < len(seen) + 4 * math.sqrt(2 * len(seen))


def _correlation(model: Baseline, blocks: Blocks, ordered: "array[float]") -> float:
    """Correlation of the normal scores of neighbouring residuals in blocks; 0 if it could be chance."""
    together = alone = 0.0
    table = scores(len(ordered))
    for block in range(blocks.block_count):
        z = [table[bisect_right(ordered, r)] for r in _residuals(model, blocks, block)[0]]
        together += sum(map(mul, z, z[1:]))
        alone += sum(map(mul, z[1:], z[1:]))
    phi = min(MAX_CORRELATION, together / alone) if alone else 0.0
    return phi if phi > 2 / math.sqrt(len(ordered)) else 0.0


def _fifths(model: Baseline, blocks: Blocks, block: int) -> list[int]:
    """Index of the fifth of each sample of a block."""
    expected = _residuals(model, blocks, block)[1]
    return [model.fifth(log, load) for log, (_, load) in zip(expected, _points(blocks, block), strict=True)]


def _divided(model: Baseline, blocks: Blocks) -> Baseline:
    """Give each fifth of the factor its own reference, unless one has too few samples."""
    levels = _sorted_by_fifth(model, blocks, lambda block: _residuals(model, blocks, block)[0])
    if min(map(len, levels)) < FIFTH_SAMPLES / 2:
        return replace(model, cuts=())
    quantiles = tuple(array("d", (of[math.ceil(q * len(of)) - 1] for q in QUANTILES)) for of in levels)
    whitened = _sorted_by_fifth(model, blocks, lambda block: _whitened(model, blocks, block))
    # Of equal size, so that they share a table of scores.
    references = tuple(array("f", (of[i * len(of) // FIFTH_SAMPLES] for i in range(FIFTH_SAMPLES))) for of in whitened)
    return replace(model, references=references, quantiles=quantiles)


def _sorted_by_fifth(
    model: Baseline, blocks: Blocks, values: Callable[[int], list[float]]
) -> tuple["array[float]", ...]:
    """Sort the values of all blocks within each fifth."""
    of_fifth: list[list[float]] = [[] for _ in range(FIFTHS)]
    for block in range(blocks.block_count):
        for fifth, value in zip(_fifths(model, blocks, block), values(block), strict=True):
            of_fifth[fifth].append(value)
    return tuple(array("f", sorted(of)) for of in of_fifth)


def _scored(model: Baseline, blocks: Blocks) -> list[tuple[list[int], list[float]]]:
    """(fifths, normal scores) of the samples, per block."""
    scored = []
    for block in range(blocks.block_count):
        fifths, z = _fifths(model, blocks, block), []
        for fifth, r in zip(fifths, _whitened(model, blocks, block), strict=True):
            reference = model.references[fifth if len(model.references) > 1 else 0]
            z.append(scores(len(reference))[bisect_right(reference, r)])
        scored.append((fifths, z))
    return scored


def _inflation(means: Sequence[float], samples: int) -> float:
    """Variance of a block's mean score ÷ that of independent scores; 1 without blocks."""
    return samples * sum(map(mul, means, means)) / len(means) if means else 1.0


def _with_inflations(model: Baseline, blocks: Blocks) -> Baseline:
    """Add each reference's inflation to the model. An excess within two errors of the estimate counts as none."""
    means = tuple(array("f") for _ in range(FIFTHS))  # of each block, by the fifth of its middle
    for fifths, z in _scored(model, blocks):
        means[fifths[len(fifths) // 2]].append(sum(z) / len(z))
    pooled = _inflation([mean for of in means for mean in of], blocks.block_samples)
    if pooled < 1 + 2 * math.sqrt(2 / blocks.block_count):
        pooled = 1.0
    own = [
        (_inflation(of, blocks.block_samples), math.sqrt(2 / max(1, len(of)))) for of in means[: len(model.references)]
    ]
    inflations = (value * (1 + error) if value > pooled * (1 + 1.5 * error) else pooled for value, error in own)
    return replace(model, inflations=tuple(inflations))


def _with_floors(model: Baseline, blocks: Blocks) -> Baseline:
    """Add the distribution of the residuals, and how the numbers of fast samples in a block vary, to the model."""
    if model.factor == "hour":
        return model
    ordered = _sorted_by_fifth(model, blocks, lambda block: _residuals(model, blocks, block)[0])[
        : len(model.references)
    ]
    fast = [of[int(FLOOR_SHARE * len(of))] for of in ordered]
    counts: list[list[int]] = [[] for _ in ordered]
    for block in range(blocks.block_count):
        fifths, residuals = _fifths(model, blocks, block), _residuals(model, blocks, block)[0]
        counts[fifths[blocks.block_samples // 2]].append(
            sum(r < fast[k] for k, r in zip(fifths, residuals, strict=True))
        )
    pooled = _dispersion([count for of in counts for count in of], blocks.block_samples)
    floors = tuple(array("f", (of[i * len(of) // FLOOR_QUANTILES] for i in range(FLOOR_QUANTILES))) for of in ordered)
    return replace(
        model,
        floors=floors,
        floor_inflations=tuple(max(pooled, _dispersion(of, blocks.block_samples)) for of in counts),
    )


def _dispersion(counts: Sequence[int], samples: int) -> float:
    """Variance of numbers of samples per block ÷ that of independent samples, at least 1."""
    share = sum(counts) / (samples * max(1, len(counts)))
    scale = math.sqrt(share * (1 - share)) or 1.0
    return max(1.0, _inflation([(count / samples - share) / scale for count in counts], samples))


def _wander(model: Baseline, blocks: Blocks) -> float:
    """Standard deviation of the level beyond chance; by chance a mean of n samples has variance sd²/n·(1 + φ)/(1 − φ).

    Computed from the means of intervals or hours, weighted by their samples. An excess below one standard error counts as 0.
    """
    own = model.sd**2 * (1 + model.correlation) / (1 - model.correlation)
    own *= sum(model.inflations) / len(model.inflations)
    if model.factor != "hour":
        spans = [blocks.span(block) for block in range(blocks.block_count)]
        means = [(s.samples, s.mean_log - sum(map(mul, model.coefficients, _mean_columns(model, s)))) for s in spans]
        return _excess(means, 1, own)
    slots = zip(model.levels, blocks.slot_counts, blocks.slot_logs, strict=True)
    known = sorted(seen for seen in slots if seen[1] >= MIN_SLOT_SAMPLES and not math.isnan(seen[0]))
    distinct = [len({level for level, _, _ in part}) for part in (known, known[len(known) // 2 :])]
    off = [(count, log - level) for level, count, log in known]
    # Busy hours vary more from day to day than quiet ones.
    return max(_excess(off, distinct[0], own), _excess(off[len(off) // 2 :], distinct[1], own))


def _excess(means: Sequence[tuple[float, float]], fitted: int, own: float) -> float:
    """Standard deviation of means beyond chance. means: (samples, mean); own: variance of a sample; fitted: number of fitted means"""
    free = len(means) - fitted
    if free < 3:
        return 0.0
    samples = sum(n for n, _ in means) * free / len(means)
    squares = sum(n * off * off for n, off in means)
    return math.sqrt(max(0.0, squares - own * (free + math.sqrt(2 * free))) / samples)


def inverse_root(moments: Sequence[Sequence[float]], ridge: float) -> tuple[tuple[float, ...], ...]:
    """Rows of inv(C) for the Cholesky factor C of a symmetric matrix, given by its lower triangle; `ridge` is added to its diagonal."""
    size = len(moments)
    factor = [[0.0] * size for _ in range(size)]
    for i in range(size):
        for j in range(i + 1):
            rest = moments[i][j] - sum(map(mul, factor[i][:j], factor[j][:j]))
            factor[i][j] = math.sqrt(rest + ridge) if i == j else rest / factor[j][j]
    inverse = [[0.0] * size for _ in range(size)]
    for i in range(size):
        for j in range(i + 1):
            unit = 1.0 if i == j else 0.0
            inverse[i][j] = (unit - sum(factor[i][k] * inverse[k][j] for k in range(j, i))) / factor[i][i]
    return tuple(map(tuple, inverse))
