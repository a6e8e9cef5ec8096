"""Baseline of a signal without problems: learned once from blocks of samples, then frozen.

A baseline has a regression of the log of the signal on factors that are no problem (the engine's load if it is known, else the
hour of the day), the correlation of neighbouring residuals, and the sorted whitened residuals, among which new ones are ranked.
Ranks make the detector independent of the shape of the distribution; the log makes a slowdown a shift.
"""

import math
from array import array
from bisect import bisect_right, insort_right
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import repeat
from math import sqrt
from operator import mul, sub
from statistics import NormalDist
from typing import Literal, NamedTuple

# 5,000 samples, of which 50 are above the 99th percentile. 100 blocks of 50 cover several times of day, and the spread between
# blocks shows the variance that the regression does not explain.
BLOCK_SAMPLES = 50
BLOCK_COUNT = 100
DAY_S = 86_400.0
SPREAD_S = 3 * DAY_S
SPREAD_EVERY_S = SPREAD_S / (BLOCK_COUNT - 1) + 1.0  # the last block begins three days after the first
QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99)
MAX_CORRELATION = 0.95

Factor = Literal["none", "load", "hour"]


class Span(NamedTuple):
    """Time and load of a block, and means over its interval, which ends where the next block begins.

    begun_s, lasted_s: of the block
    first_load, last_load: smoothed load at the first and last sample of the block; NaN if unknown
    samples: number in the interval, including those of the block
    mean_s: mean time after begun_s
    mean_log: mean log of the samples
    moments: first three moments of load − first_load
    """

    begun_s: float
    lasted_s: float
    first_load: float
    last_load: float
    samples: float
    mean_s: float
    mean_log: float
    moments: tuple[float, ...]


SPAN_VALUES = 9  # of a span without begun_s


@dataclass(slots=True)
class Blocks:
    """Samples for a baseline: `BLOCK_COUNT` blocks of `BLOCK_SAMPLES` neighbours, begun at least `every_s` seconds apart.

    Time and smoothed load are stored for the first and last sample of a block and interpolated linearly: both change little in 50
    samples, and a value per sample would double the state. Samples between blocks, ten times as many, are stored as means: they
    stabilize the regression and show the wander of the level far better than the blocks alone.

    rest: values of each span without begun_s, one span after another
    """

    every_s: float
    logs: "array[float]" = field(default_factory=lambda: array("f"))
    begun: "array[float]" = field(default_factory=lambda: array("d"))
    rest: "array[float]" = field(default_factory=lambda: array("f"))

    @property
    def full(self) -> bool:
        """Whether all blocks are complete."""
        return len(self.logs) == BLOCK_SAMPLES * BLOCK_COUNT

    def block(self, index: int) -> "array[float]":
        """Logs of the samples of a block, shape (BLOCK_SAMPLES,)."""
        return self.logs[index * BLOCK_SAMPLES : (index + 1) * BLOCK_SAMPLES]

    def span(self, index: int) -> Span:
        """Time and load of a block."""
        lasted, first, last, samples, mean_s, mean_log, *moments = self.rest[
            SPAN_VALUES * index : SPAN_VALUES * (index + 1)
        ]
        return Span(self.begun[index], lasted, first, last, samples, mean_s, mean_log, tuple(moments))

    def add(self, unix_s: float, log: float, load: float | None, *, linked: bool) -> None:
        """Add a sample; one that is not `linked` to its predecessor drops an incomplete block."""
        if self.full:
            return
        if not linked:
            self.cut()
        known = math.nan if load is None else load
        rest = self.rest
        if len(self.logs) % BLOCK_SAMPLES:
            rest[-9], rest[-7] = unix_s - self.begun[-1], known
            self.logs.append(log)
        elif not self.begun or unix_s >= self.begun[-1] + self.every_s:
            self.begun.append(unix_s)
            rest.extend((0.0, known, known, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0))
            self.logs.append(log)
        if self.full:
            self.logs = self.logs[:]  # without reserved memory
        rest[-6] += 1
        more = known - rest[-8]
        for place, value in zip(range(-5, 0), (unix_s - self.begun[-1], log, more, more**2, more**3), strict=True):
            rest[place] += (value - rest[place]) / rest[-6]

    def cut(self) -> None:
        """Drop the incomplete block, if any."""
        if partial := len(self.logs) % BLOCK_SAMPLES:
            del self.logs[-partial:]
            del self.rest[-SPAN_VALUES:]
            self.begun.pop()


@dataclass(frozen=True, slots=True)
class Baseline:
    """A frozen fit. Logs are natural logs of seconds, `unix_s` is in seconds, loads are in the unit of the samples.

    centre, scale: mean and spread of the load; the argument of the polynomials is (load − centre) / scale
    variance: of a whitened residual, due to the model: a polynomial, or a bound
    sd: of the residuals
    correlation: of neighbouring residuals
    wander: spread of the level in excess of the spread of its samples
    busiest: highest smoothed load
    slowest: slowest log that the model expects within the loads of the baseline
    quantiles: of the residuals, at QUANTILES
    reference: sorted whitened residuals
    """

    factor: Factor
    centre: float
    scale: float
    coefficients: tuple[float, ...]
    variance: tuple[float, ...]
    sd: float
    correlation: float
    wander: float
    busiest: float
    slowest: float
    quantiles: tuple[float, ...]
    reference: "array[float]"

    def columns(self, unix_s: float, load: float) -> tuple[float, ...]:
        """The row of the design matrix for a sample."""
        if self.factor == "load":
            u = (load - self.centre) / self.scale
            return (1.0, u, u * u, u * u * u)
        if self.factor == "hour":
            angle = unix_s % DAY_S * (math.tau / DAY_S)
            c, s = math.cos(angle), math.sin(angle)
            return (1.0, c, s, 2 * c * c - 1, 2 * s * c)
        return (1.0,)

    def expected(self, unix_s: float, load: float) -> tuple[float, float, float]:
        """(expected log, standard error of a whitened residual due to the model, log per unit of load).

        The model's variance is sd²·(1 − φ²)·x'inv(X'X)x: correlation φ multiplies that of the coefficients by
        (1 + φ)/(1 − φ), and whitening multiplies a constant error by 1 − φ.
        """
        slope = 0.0
        if self.factor == "load":
            u = (load - self.centre) / self.scale
            b0, b1, b2, b3 = self.coefficients
            g0, g1, g2, g3, g4, g5, g6 = self.variance
            log = b0 + u * (b1 + u * (b2 + u * b3))
            slope = (b1 + u * (2 * b2 + u * 3 * b3)) / self.scale
            variance = g0 + u * (g1 + u * (g2 + u * (g3 + u * (g4 + u * (g5 + u * g6)))))
        elif self.factor == "hour":
            b0, b1, b2, b3, b4 = self.coefficients
            angle = unix_s % DAY_S * (math.tau / DAY_S)
            c, s = math.cos(angle), math.sin(angle)
            log = b0 + b1 * c + b2 * s + b3 * (2 * c * c - 1) + b4 * (2 * s * c)
            variance = self.variance[0]
        else:
            log, variance = self.coefficients[0], self.variance[0]
        return log, sqrt(variance) if variance > 0 else 0.0, slope

    def whitened(self, residual: float, before: float | None) -> float:
        """The part of a residual that its predecessor does not predict; without one, scaled to the same spread."""
        phi = self.correlation
        return residual * math.sqrt(1 - phi * phi) if before is None else residual - phi * before


@lru_cache(maxsize=16)
def scores(count: int) -> "array[float]":
    """Normal scores by number of smaller reference values: Φ⁻¹((i + ½)/(count + 1)), i = 0..count. All signals share the tables."""
    inverse = NormalDist().inv_cdf
    return array("f", (inverse((i + 0.5) / (count + 1)) for i in range(count + 1)))


def learn_baseline(blocks: Blocks, *, correlation: float | None = None, thin: int = 1) -> Baseline:
    """The baseline of complete blocks, without slices (about 80 ms)."""
    fitting = fit(blocks, correlation=correlation, thin=thin)
    while True:
        try:
            next(fitting)
        except StopIteration as done:
            baseline: Baseline = done.value
            return baseline


def fit(blocks: Blocks, *, correlation: float | None = None, thin: int = 1) -> Generator[None, None, Baseline]:
    """The baseline of complete blocks, in slices of one block (at most about 0.3 ms), so that the event loop is not blocked.

    correlation: replaces the estimate if the samples have no order
    thin: every `thin`-th of the sorted whitened residuals is stored
    """
    model = yield from _regress(blocks, _unfitted(blocks))
    ordered: array[float] = array("f")
    squares, slowest = 0.0, -math.inf
    for block in range(BLOCK_COUNT):
        residuals, expected = _residuals(model, blocks, block)
        for r in residuals:
            insort_right(ordered, r)
        squares += sum(map(mul, residuals, residuals))
        slowest = max(slowest, *expected)
        del residuals, expected
        yield
    sd = math.sqrt(squares / len(ordered)) or 1e-6  # a constant signal
    levels = tuple(ordered[math.ceil(q * len(ordered)) - 1] for q in QUANTILES)
    if correlation is None:
        correlation = yield from _correlation(model, blocks, ordered)
    variance = tuple(sd * sd * (1 - correlation**2) * leverage for leverage in model.variance)
    model = replace(model, sd=sd, correlation=correlation, quantiles=levels, slowest=slowest, variance=variance)
    del ordered[:]
    for block in range(BLOCK_COUNT):
        before: float | None = None
        for r in _residuals(model, blocks, block)[0]:
            insort_right(ordered, model.whitened(r, before))
            before = r
        yield
    return replace(model, wander=_wander(model, blocks), reference=ordered[thin // 2 :: thin])


def _unfitted(blocks: Blocks) -> Baseline:
    """A baseline with only its factor: load if every block has it, else the hour if the blocks cover whole days."""
    spans = [blocks.span(block) for block in range(BLOCK_COUNT)]
    loads = [load for span in spans for load in (span.first_load, span.last_load)]
    centre = sum(loads) / len(loads)
    scale = math.sqrt(sum((load - centre) ** 2 for load in loads) / len(loads))
    blank = Baseline("none", 0.0, 1.0, (), (), 0.0, 0.0, 0.0, math.inf, 0.0, (), array("f"))
    if not math.isnan(centre):
        steady = scale <= 1e-6 * abs(centre)
        return blank if steady else replace(blank, factor="load", centre=centre, scale=scale, busiest=max(loads))
    return replace(blank, factor="hour") if spans[-1].begun_s - spans[0].begun_s >= SPREAD_S else blank


def _rows(model: Baseline, blocks: Blocks, block: int) -> list[tuple[float, ...]]:
    span = blocks.span(block)
    more = span.last_load - span.first_load
    steps = [j / (BLOCK_SAMPLES - 1) for j in range(BLOCK_SAMPLES)]
    return [model.columns(span.begun_s + span.lasted_s * s, span.first_load + more * s) for s in steps]


def _mean_columns(model: Baseline, span: Span) -> tuple[float, ...]:
    """The mean of the design matrix over an interval."""
    if model.factor != "load":
        return model.columns(span.begun_s + span.mean_s, 0.0)
    u = (span.first_load - model.centre) / model.scale
    m1, m2, m3 = (m / model.scale**k for k, m in enumerate(span.moments, 1))
    return (1.0, u + m1, u * u + 2 * u * m1 + m2, u**3 + 3 * u * u * m1 + 3 * u * m2 + m3)


def _evidence(model: Baseline, blocks: Blocks, block: int) -> Iterator[tuple[float, tuple[float, ...], float]]:
    """(weight, columns, log) to regress on: the samples of a block if the factor is load, and the mean of all others."""
    span = blocks.span(block)
    alone = BLOCK_SAMPLES if model.factor == "load" else 0
    if alone:
        yield from zip(repeat(1.0), _rows(model, blocks, block), blocks.block(block))
    if span.samples > alone:
        yield span.samples - alone, _mean_columns(model, span), span.mean_log


def _regress(blocks: Blocks, model: Baseline) -> Generator[None, None, Baseline]:
    """Least squares by the normal equations, with a ridge that is negligible if the columns are independent."""
    size = len(model.columns(0.0, 0.0))
    moments = [[0.0] * size for _ in range(size)]
    products = [0.0] * size
    for block in range(BLOCK_COUNT):
        for weight, x, y in _evidence(model, blocks, block):
            for i, xi in enumerate(x):
                products[i] += weight * xi * y
                line = moments[i]
                for j in range(i + 1):
                    line[j] += weight * xi * x[j]
        yield
    root = _inverse_root(moments, ridge=1e-9 * BLOCK_COUNT * BLOCK_SAMPLES)
    half = [sum(map(mul, row, products)) for row in root]
    coefficients = tuple(sum(row[i] * h for row, h in zip(root, half, strict=True)) for i in range(size))
    if model.factor == "load":
        terms = [0.0] * (2 * size - 1)
        for row in root:
            for i in range(size):
                for j in range(size):
                    terms[i + j] += row[i] * row[j]
        return replace(model, coefficients=coefficients, variance=tuple(terms))
    day = [model.columns(quarter * DAY_S / 96, 0.0) for quarter in range(96)]
    worst = max(sum(sum(map(mul, row, x)) ** 2 for row in root) for x in day)
    return replace(model, coefficients=coefficients, variance=(worst,))


def _residuals(model: Baseline, blocks: Blocks, block: int) -> tuple[list[float], list[float]]:
    """(residuals, expected logs) of a block."""
    expected = [sum(map(mul, model.coefficients, x)) for x in _rows(model, blocks, block)]
    return list(map(sub, blocks.block(block), expected)), expected


def _correlation(model: Baseline, blocks: Blocks, ordered: "array[float]") -> Generator[None, None, float]:
    """Lag-1 correlation of the residuals' normal scores within blocks; 0 if it could be noise."""
    together = alone = 0.0
    table = scores(len(ordered))
    for block in range(BLOCK_COUNT):
        z = [table[bisect_right(ordered, r)] for r in _residuals(model, blocks, block)[0]]
        together += sum(map(mul, z, z[1:]))
        alone += sum(map(mul, z[1:], z[1:]))
        del z
        yield
    phi = min(MAX_CORRELATION, together / alone) if alone else 0.0
    return phi if phi > 2 / math.sqrt(len(ordered)) else 0.0


def _wander(model: Baseline, blocks: Blocks) -> float:
    """Standard deviation of the level in excess of that of the mean of n samples, sd²/n·(1 + φ)/(1 − φ).

    Computed from the means of the intervals, weighted by their samples. An excess below one standard error counts as 0.
    """
    own = model.sd**2 * (1 + model.correlation) / (1 - model.correlation)
    spans = list(map(blocks.span, range(BLOCK_COUNT)))
    off = [s.mean_log - sum(map(mul, model.coefficients, _mean_columns(model, s))) for s in spans]
    samples = sum(s.samples for s in spans)
    level = sum(s.samples * o for s, o in zip(spans, off, strict=True)) / samples
    squares = sum(s.samples * (o - level) ** 2 for s, o in zip(spans, off, strict=True))
    return math.sqrt(max(0.0, squares - own * (BLOCK_COUNT + math.sqrt(2 * BLOCK_COUNT))) / samples)


def _inverse_root(moments: Sequence[Sequence[float]], ridge: float) -> tuple[tuple[float, ...], ...]:
    """Rows of inv(C) for the Cholesky factor C of a symmetric matrix given by its lower triangle; `ridge` for its diagonal."""
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


def blocks_of_samples(samples: Iterable[tuple[float, float, float | None]]) -> Blocks:
    """Blocks of samples (unix seconds, log, load) whose order within an hour is arbitrary, thinned evenly to the size of a baseline.

    Raises ValueError if there are too few samples.
    """
    ordered = sorted(samples, key=lambda sample: sample[0])
    needed = BLOCK_SAMPLES * BLOCK_COUNT
    if len(ordered) < needed:
        raise ValueError(f"a baseline needs {needed} samples, not {len(ordered)}")
    thinned = [ordered[i * len(ordered) // needed] for i in range(needed)]
    blocks = Blocks(0.0)
    for b in range(BLOCK_COUNT):
        chosen = thinned[b * BLOCK_SAMPLES : (b + 1) * BLOCK_SAMPLES]
        # 50 and 21 are coprime: samples that were neighbours are separated, whatever their order was
        chosen = [chosen[j * 21 % BLOCK_SAMPLES] for j in range(BLOCK_SAMPLES)]
        begun, lasted = (
            thinned[b * BLOCK_SAMPLES][0],
            thinned[(b + 1) * BLOCK_SAMPLES - 1][0] - thinned[b * BLOCK_SAMPLES][0],
        )
        loads = [math.nan if load is None else load for _, _, load in chosen]
        load, log = sum(loads) / BLOCK_SAMPLES, sum(log for _, log, _ in chosen) / BLOCK_SAMPLES
        blocks.begun.append(begun)
        blocks.rest.extend((lasted, load, load, BLOCK_SAMPLES, lasted / 2, log, load - load, 0.0, 0.0))
        blocks.logs.extend(log for _, log, _ in chosen)
    return blocks
