"""What a signal looks like when nothing is wrong: learnt once from blocks of samples, then frozen.

A baseline is a regression of the log of the signal on what may move it innocently (the engine's load where it is known, else
the hour of the day), the correlation of neighbouring residuals, and the sorted whitened residuals, against which new ones are
ranked. Ranks make the detector independent of the shape of the distribution; log makes a slowdown a shift.
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

# 5,000 samples: the 99th percentile rests on 50 of them. In 100 blocks of 50, because one stretch of samples knows one time
# of day only, and because the spread between blocks shows what the regression leaves unexplained.
BLOCK = 50
BLOCKS = 100
DAY_S = 86_400.0
SPREAD_S = 3 * DAY_S
SPREAD_EVERY_S = SPREAD_S / (BLOCKS - 1) + 1.0  # so that the last block begins three whole days after the first
QS = (0.5, 0.75, 0.9, 0.95, 0.99)
CORRELATION_CAP = 0.95

Factor = Literal["none", "load", "hour"]


class Span(NamedTuple):
    """When and under what load a block was taken, and all that came until the next one began (its interval)."""

    begun_s: float
    lasted_s: float
    first_load: float  # smoothed; NaN where unknown
    last_load: float
    samples: float  # of the interval, the block's own among them; what follows are means over them
    mean_s: float  # after begun_s
    mean_log: float
    moments: tuple[float, ...]  # the first three, of load − first_load


REST = 9  # values of a span beside begun_s


@dataclass(slots=True)
class Blocks:
    """Samples on their way to a baseline: `BLOCKS` blocks of `BLOCK` neighbours, begun at least `every_s` seconds apart.

    Time and smoothed load are kept for the first and last sample of a block only and taken as linear between: both move
    little in 50 samples, and a value for each would double the state. Of the samples between blocks the means are kept: ten
    times as many, they steady the regression, and show how the level wanders far better than the blocks alone.
    """

    every_s: float
    logs: "array[float]" = field(default_factory=lambda: array("f"))
    begun: "array[float]" = field(default_factory=lambda: array("d"))
    rest: "array[float]" = field(default_factory=lambda: array("f"))  # of a span beside begun_s, one span after another

    @property
    def full(self) -> bool:
        """All blocks are complete."""
        return len(self.logs) == BLOCK * BLOCKS

    def block(self, index: int) -> "array[float]":
        """The logs of a block."""
        return self.logs[index * BLOCK : (index + 1) * BLOCK]

    def span(self, index: int) -> Span:
        """When and under what load they were taken."""
        lasted, first, last, samples, mean_s, mean_log, *moments = self.rest[REST * index : REST * (index + 1)]
        return Span(self.begun[index], lasted, first, last, samples, mean_s, mean_log, tuple(moments))

    def add(self, unix_s: float, log: float, load: float | None, *, linked: bool) -> None:
        """Take a sample; one that is not `linked` to its predecessor ends an incomplete block unused."""
        if self.full:
            return
        if not linked:
            self.cut()
        known = math.nan if load is None else load
        rest = self.rest
        if len(self.logs) % BLOCK:
            rest[-9], rest[-7] = unix_s - self.begun[-1], known
            self.logs.append(log)
        elif not self.begun or unix_s >= self.begun[-1] + self.every_s:
            self.begun.append(unix_s)
            rest.extend((0.0, known, known, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0))
            self.logs.append(log)
        if self.full:
            self.logs = self.logs[:]  # without the room to grow
        rest[-6] += 1
        more = known - rest[-8]
        for place, value in zip(range(-5, 0), (unix_s - self.begun[-1], log, more, more**2, more**3), strict=True):
            rest[place] += (value - rest[place]) / rest[-6]

    def cut(self) -> None:
        """Drop the incomplete block, if any."""
        if partial := len(self.logs) % BLOCK:
            del self.logs[-partial:]
            del self.rest[-REST:]
            self.begun.pop()


@dataclass(frozen=True, slots=True)
class Baseline:
    """A frozen fit. Logs are natural logs of seconds; `unix_s` in seconds; load in the unit it was learnt in."""

    factor: Factor
    centre: float  # of the load, and its spread: the polynomial's argument is (load − centre) / scale
    scale: float
    coefficients: tuple[float, ...]
    variance: tuple[float, ...]  # of a whitened residual, from the model: a polynomial in the same argument, or a bound
    sd: float  # of the residuals
    correlation: float  # of neighbouring residuals
    wander: float  # spread of the level beyond what its samples explain
    busiest: float  # highest smoothed load seen, and the slowest log that the model expects within the loads seen
    slowest: float
    quantiles: tuple[float, ...]  # of the residuals, at QS
    reference: "array[float]"  # sorted whitened residuals

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
        """(the log that the model expects, standard error of a whitened residual that comes from it, log per unit of load).

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
    """Normal scores by number of reference values below: Φ⁻¹((i + ½)/(count + 1)), i = 0..count; one table for all signals."""
    inverse = NormalDist().inv_cdf
    return array("f", (inverse((i + 0.5) / (count + 1)) for i in range(count + 1)))


def learnt(blocks: Blocks, *, correlation: float | None = None, thin: int = 1) -> Baseline:
    """The baseline of full `blocks` in one go (some 80 ms)."""
    fitting = fit(blocks, correlation=correlation, thin=thin)
    while True:
        try:
            next(fitting)
        except StopIteration as done:
            found: Baseline = done.value
            return found


def fit(blocks: Blocks, *, correlation: float | None = None, thin: int = 1) -> Generator[None, None, Baseline]:
    """The baseline of complete blocks, in slices of one block (at most about 0.3 ms) so that nobody waits for it.

    `correlation` replaces the estimate where the order of the samples means nothing; of the sorted whitened residuals every
    `thin`-th is kept.
    """
    model = yield from _regressed(blocks, _blank(blocks))
    ordered: array[float] = array("f")
    squares, slowest = 0.0, -math.inf
    for block in range(BLOCKS):
        found, expected = _residuals(model, blocks, block)
        for r in found:
            insort_right(ordered, r)
        squares += sum(map(mul, found, found))
        slowest = max(slowest, *expected)
        del found, expected
        yield
    sd = math.sqrt(squares / len(ordered)) or 1e-6  # a signal that never varies still has a unit
    levels = tuple(ordered[math.ceil(q * len(ordered)) - 1] for q in QS)
    if correlation is None:
        correlation = yield from _correlation(model, blocks, ordered)
    variance = tuple(sd * sd * (1 - correlation**2) * leverage for leverage in model.variance)
    model = replace(model, sd=sd, correlation=correlation, quantiles=levels, slowest=slowest, variance=variance)
    del ordered[:]
    for block in range(BLOCKS):
        before: float | None = None
        for r in _residuals(model, blocks, block)[0]:
            insort_right(ordered, model.whitened(r, before))
            before = r
        yield
    return replace(model, wander=_wander(model, blocks), reference=ordered[thin // 2 :: thin])


def _blank(blocks: Blocks) -> Baseline:
    """What the signal will be regressed on: load where every block knows it, else the hour once whole days are there."""
    spans = [blocks.span(block) for block in range(BLOCKS)]
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
    steps = [j / (BLOCK - 1) for j in range(BLOCK)]
    return [model.columns(span.begun_s + span.lasted_s * s, span.first_load + more * s) for s in steps]


def _mean_columns(model: Baseline, span: Span) -> tuple[float, ...]:
    """The mean of the design matrix over an interval."""
    if model.factor != "load":
        return model.columns(span.begun_s + span.mean_s, 0.0)
    u = (span.first_load - model.centre) / model.scale
    m1, m2, m3 = (m / model.scale**k for k, m in enumerate(span.moments, 1))
    return (1.0, u + m1, u * u + 2 * u * m1 + m2, u**3 + 3 * u * u * m1 + 3 * u * m2 + m3)


def _evidence(model: Baseline, blocks: Blocks, block: int) -> Iterator[tuple[float, tuple[float, ...], float]]:
    """(weight, columns, log) to regress on: a block's samples where the load moves within minutes; of others the mean."""
    span = blocks.span(block)
    alone = BLOCK if model.factor == "load" else 0
    if alone:
        yield from zip(repeat(1.0), _rows(model, blocks, block), blocks.block(block))
    if span.samples > alone:
        yield span.samples - alone, _mean_columns(model, span), span.mean_log


def _regressed(blocks: Blocks, model: Baseline) -> Generator[None, None, Baseline]:
    """Least squares by the normal equations; a ridge too small to matter where the columns are independent."""
    size = len(model.columns(0.0, 0.0))
    moments = [[0.0] * size for _ in range(size)]
    products = [0.0] * size
    for block in range(BLOCKS):
        for weight, x, y in _evidence(model, blocks, block):
            for i, xi in enumerate(x):
                products[i] += weight * xi * y
                line = moments[i]
                for j in range(i + 1):
                    line[j] += weight * xi * x[j]
        yield
    root = _inverse_root(moments, ridge=1e-9 * BLOCKS * BLOCK)
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
    """Lag-1 correlation of the residuals' normal scores inside blocks, 0 where it could be noise."""
    together = alone = 0.0
    table = scores(len(ordered))
    for block in range(BLOCKS):
        z = [table[bisect_right(ordered, r)] for r in _residuals(model, blocks, block)[0]]
        together += sum(map(mul, z, z[1:]))
        alone += sum(map(mul, z[1:], z[1:]))
        del z
        yield
    phi = min(CORRELATION_CAP, together / alone) if alone else 0.0
    return phi if phi > 2 / math.sqrt(len(ordered)) else 0.0


def _wander(model: Baseline, blocks: Blocks) -> float:
    """Standard deviation of the level in excess of what n samples' mean has itself, sd²/n·(1 + φ)/(1 − φ).

    From the means of whole intervals, weighed by their samples. The excess of nothing is known to one standard error, so
    that much is taken as none.
    """
    own = model.sd**2 * (1 + model.correlation) / (1 - model.correlation)
    spans = list(map(blocks.span, range(BLOCKS)))
    off = [s.mean_log - sum(map(mul, model.coefficients, _mean_columns(model, s))) for s in spans]
    samples = sum(s.samples for s in spans)
    level = sum(s.samples * o for s, o in zip(spans, off, strict=True)) / samples
    squares = sum(s.samples * (o - level) ** 2 for s, o in zip(spans, off, strict=True))
    return math.sqrt(max(0.0, squares - own * (BLOCKS + math.sqrt(2 * BLOCKS))) / samples)


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


def recalled(samples: Iterable[tuple[float, float, float | None]]) -> Blocks:
    """Blocks of (unix seconds, log, load) whose order inside an hour means nothing, thinned evenly to what a baseline holds.

    Raises ValueError where there are fewer than a baseline needs.
    """
    ordered = sorted(samples, key=lambda sample: sample[0])
    want = BLOCK * BLOCKS
    if len(ordered) < want:
        raise ValueError(f"a baseline needs {want} samples, not {len(ordered)}")
    kept = [ordered[i * len(ordered) // want] for i in range(want)]
    blocks = Blocks(0.0)
    for b in range(BLOCKS):
        chosen = kept[b * BLOCK : (b + 1) * BLOCK]
        # 50 and 21 share no factor: neighbours become strangers, whatever order the caller built them in
        chosen = [chosen[j * 21 % BLOCK] for j in range(BLOCK)]
        begun, lasted = kept[b * BLOCK][0], kept[(b + 1) * BLOCK - 1][0] - kept[b * BLOCK][0]
        loads = [math.nan if load is None else load for _, _, load in chosen]
        load, log = sum(loads) / BLOCK, sum(log for _, log, _ in chosen) / BLOCK
        blocks.begun.append(begun)
        blocks.rest.extend((lasted, load, load, BLOCK, lasted / 2, log, load - load, 0.0, 0.0))
        blocks.logs.extend(log for _, log, _ in chosen)
    return blocks
