"""The drift detector for many independent signals at once, with the product's own baselines and bets.

Everything up to the normal score depends on the samples only and is computed for whole arrays; the recursion of the evidence
is sequential in time and runs across lanes. A test holds it equal to `prober.features.drift.detector.step`.
"""

from array import array
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bench.nulls import Array
from prober.features.drift.baseline import BLOCK_COUNT, BLOCK_SAMPLES, DAY_S, Baseline, Blocks, learn_baseline, scores
from prober.features.drift.detector import LOAD_SAMPLES, PROVISIONAL_THINNING, QUICK_LOAD_SAMPLES, Settings, guards
from prober.features.drift.evidence import mixture


def smoothed(loads: Array, last: Array | None, over: int = LOAD_SAMPLES) -> Array:
    """The load as the detector smooths it, going on from `last` (a value a lane)."""
    found = np.empty_like(loads.T)
    for i, row in enumerate(loads.T):
        last = row.copy() if last is None else last + (row - last) / over
        found[i] = last
    return found.T


def baselines(logs: Array, loads: Array | None, times: Array, *, provisional: bool, every_s: float) -> list[Baseline]:
    """What `step` learns from these samples, lane by lane; `loads` smoothed."""
    if provisional:
        starts = BLOCK_SAMPLES * np.arange(BLOCK_COUNT)
    else:
        starts = np.zeros(BLOCK_COUNT, dtype=np.int64)
        for b in range(1, BLOCK_COUNT):
            starts[b] = np.searchsorted(times, times[starts[b - 1]] + every_s)
    ends = np.append(starts[1:], starts[-1] + BLOCK_SAMPLES)
    counts = ends - starts
    loads = np.full_like(logs, np.nan) if loads is None else loads
    found = []
    for log, load in zip(logs, loads, strict=True):
        more = load[: ends[-1]] - np.repeat(load[starts], counts)
        means = [np.add.reduceat(x[: ends[-1]], starts) / counts for x in (times, log, more, more**2, more**3)]
        rest = np.stack(
            (
                times[starts + BLOCK_SAMPLES - 1] - times[starts],
                load[starts],
                load[starts + BLOCK_SAMPLES - 1],
                counts,
                means[0] - times[starts],
                *means[1:],
            ),
            axis=1,
        )
        blocks = Blocks(
            every_s,
            array("f", np.concatenate([log[s : s + BLOCK_SAMPLES] for s in starts])),
            array("d", times[starts]),
            array("f", rest.ravel()),
        )
        found.append(learn_baseline(blocks, thin=PROVISIONAL_THINNING if provisional else 1))
    return found


@dataclass
class Lanes:
    """State of every lane's detector. `baselines` all have one factor."""

    settings: Settings
    baselines: list[Baseline]
    provisional: bool = False
    load: Array | None = None
    quick: Array | None = None
    before: Array | None = None
    slower: Array = field(init=False)  # (components, lanes)
    faster: Array = field(init=False)

    def __post_init__(self) -> None:
        """Constants of all lanes as arrays of shape (…, lanes, 1)."""
        mixtures = [mixture(each, self.settings.material, self.settings.threshold) for each in self.baselines]
        self._shifts = np.array([mix.shifts for mix in mixtures]).transpose(1, 2, 0)[..., None]
        self._tails = np.array([mix.tails for mix in mixtures]).transpose(1, 2, 0)[..., None]
        self._phi = np.array([each.correlation for each in self.baselines])[:, None]
        self._coefficients = np.array([each.coefficients for each in self.baselines]).T[..., None]
        self._variance = np.array([each.variance for each in self.baselines]).T[..., None]
        self._centre = np.array([each.centre for each in self.baselines])[:, None]
        self._scale = np.array([each.scale for each in self.baselines])[:, None]
        guard = [guards(self.settings, each, settled=not self.provisional) for each in self.baselines]
        self._doubt, self._allowance = np.array(guard).T[..., None]
        self._faster = np.array([mix.faster for mix in mixtures]).T[..., None]
        self.slower = np.zeros((len(self._shifts) + len(self._tails), len(self.baselines)))
        self.faster = np.zeros((1, len(self.baselines)))

    def part(self, lanes: NDArray[np.intp]) -> "Lanes":
        """A copy of some lanes."""
        copy = Lanes(self.settings, [self.baselines[i] for i in lanes], self.provisional)
        copy.load = None if self.load is None else self.load[lanes]
        copy.quick = None if self.quick is None else self.quick[lanes]
        copy.before = None if self.before is None else self.before[lanes]
        copy.slower, copy.faster = self.slower[:, lanes].copy(), self.faster[:, lanes].copy()
        return copy

    def feed(self, logs: Array, loads: Array | None, times: Array) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """(alarms, improvements), each of shape (samples, lanes). After either, evidence starts from nothing again."""
        quick = None
        if loads is not None:
            quick = smoothed(loads, self.load if self.quick is None else self.quick, QUICK_LOAD_SAMPLES)
            loads = smoothed(loads, self.load)
            self.load, self.quick = loads[:, -1].copy(), quick[:, -1].copy()
        up, down = self._scores(logs, loads, quick, times)
        threshold = self.settings.threshold
        weights = np.concatenate((self._shifts[:, 0], self._tails[:, 0]))[..., 0]
        alarms = _run(self.slower, weights, self._bets(up), threshold)
        d, c = self._faster
        return alarms, _run(self.faster, np.ones((1, 1)), np.exp(d * -down + c).T[:, None].copy(), threshold)

    def _scores(self, logs: Array, loads: Array | None, quick: Array | None, times: Array) -> tuple[Array, Array]:
        expected, variance, slope = self._expected(loads, times)
        residuals = logs - expected
        first = residuals[:, :1]
        white = np.sqrt(1 - self._phi**2)
        start = first * white if self.before is None else first - self._phi * self.before
        whitened = np.hstack((start, residuals[:, 1:] - self._phi * residuals[:, :-1]))
        self.before = residuals[:, -1:].copy()
        doubt = self._doubt * np.sqrt(np.maximum(variance, 0)) + self._allowance
        lead = np.zeros((1, 1)) if loads is None or quick is None else slope * (quick - loads) * (1 - self._phi)
        return (
            self._ranked(whitened - doubt - np.maximum(lead, 0)),
            self._ranked(whitened + doubt - np.minimum(lead, 0)),
        )

    def _expected(self, loads: Array | None, times: Array) -> tuple[Array, Array, Array]:
        b, flat = self._coefficients, np.zeros((1, 1))
        match self.baselines[0].factor:
            case "load":
                assert loads is not None
                u = (loads - self._centre) / self._scale
                slope = (b[1] + u * (2 * b[2] + u * 3 * b[3])) / self._scale
                return _polynomial(b, u), _polynomial(self._variance, u), slope
            case "hour":
                angle = (times % DAY_S * (2 * np.pi / DAY_S))[None]
                c, s = np.cos(angle), np.sin(angle)
                return b[0] + b[1] * c + b[2] * s + b[3] * (2 * c * c - 1) + b[4] * 2 * s * c, self._variance[0], flat
        return b[0], self._variance[0], flat

    def _ranked(self, values: Array) -> Array:
        found = np.empty_like(values)
        for lane, each in enumerate(self.baselines):
            reference = np.array(each.reference, dtype=np.float64)
            table = np.array(scores(len(reference)), dtype=np.float64)
            found[lane] = table[np.searchsorted(reference, values[lane], side="right")]
        return found

    def _bets(self, z: Array) -> Array:
        """(samples, components, lanes)."""
        parts = [np.exp(d * z + c) for _, d, c in self._shifts]
        parts += [np.where(z > cut, above, below) for _, cut, above, below in self._tails]
        return np.ascontiguousarray(np.array(parts).transpose(2, 0, 1))


def _polynomial(coefficients: Array, u: Array) -> Array:
    total = np.zeros(u.shape)
    for coefficient in coefficients[::-1]:
        total = total * u + coefficient
    return total


def _run(weighed: Array, weights: Array, bets: Array, threshold: float) -> NDArray[np.bool_]:
    """The recursion, in place; where and when it reached the threshold and began anew."""
    reached = np.zeros((len(bets), weighed.shape[1]), dtype=np.bool_)
    for i, bet in enumerate(bets):
        weighed += weights
        weighed *= bet
        total = weighed.sum(axis=0)
        if total.max() >= threshold:
            reached[i] = total >= threshold
            weighed[:, reached[i]] = 0.0
    return reached
