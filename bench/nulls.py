"""Signals on which nothing happens, drawn for many independent lanes at once, and what can happen to them.

Five seconds apart; logs of seconds. Log TTFT = level + effect of the mean load + noise of spread 0.4. The mean load follows a
day, its phase drawn for each lane; what is observed of it is a count, so noisy.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]

INTERVAL_S = 5.0
DAY = 17_280  # samples
SIGMA = 0.4
LEVEL = -1.0
LOAD, SWING = 20.0, 10.0  # mean load, and amplitude of its day
EFFECT = 0.02  # of one request on the log: ±20% a day
CAPACITY = 45.0  # of the convex effect, −log(1 − load/capacity): 1.3× to 3× over a day


@dataclass(frozen=True)
class Null:
    """A kind of signal."""

    name: str
    phi: float = 0.0  # correlation of neighbours
    bimodal: bool = False  # 30% of requests 2.5 times as slow
    daily: bool = False  # follows the load's day
    observed: bool = True  # and the load is known
    convex: bool = False
    varying: float = 0.0  # amplitudes of the days are within 1 ± this
    wander: float = 0.0  # standard deviation of the log of an unexplained wander with a time constant of an hour


NULLS = {
    null.name: null
    for null in (
        Null("independent"),
        Null("bimodal", bimodal=True),
        Null("AR 0.3", phi=0.3),
        Null("AR 0.6", phi=0.6),
        Null("daily cycle", daily=True),
        Null("daily cycle, load not observed", daily=True, observed=False),
        Null("daily + AR 0.3", phi=0.3, daily=True),
        Null("convex load effect", daily=True, convex=True),
        Null("load amplitude ±25% a day", daily=True, varying=0.25),
        Null("wander 5%", wander=0.05),
    )
}


@dataclass
class Source:
    """The lanes of one null, in time."""

    null: Null
    rng: np.random.Generator
    lanes: int
    at: int = 0  # samples drawn
    phase: Array = field(init=False)
    swings: Array = field(init=False)
    noise: Array = field(init=False)
    wander: Array = field(init=False)

    def __post_init__(self) -> None:
        """Every lane starts at an hour of its own, in equilibrium."""
        self.phase = self.rng.random(self.lanes)
        self.swings = 1 + self.null.varying * self.rng.uniform(-1, 1, (self.lanes, 64))
        self.noise = self.rng.standard_normal(self.lanes)
        self.wander = self.rng.standard_normal(self.lanes)

    def draw(self, count: int) -> tuple[Array, Array | None]:
        """(logs, loads if they are known) of the next `count` samples, each of shape (lanes, count)."""
        logs = np.full((self.lanes, count), LEVEL) + self._noise(count)
        loads = None
        if self.null.daily:
            days = self.phase[:, None] + np.arange(self.at, self.at + count) / DAY
            swing = np.take_along_axis(self.swings, days.astype(np.int64), axis=1)
            mean = LOAD + SWING * swing * np.sin(2 * np.pi * days)
            logs += -np.log(1 - mean / CAPACITY) if self.null.convex else EFFECT * (mean - LOAD)
            if self.null.observed:
                loads = mean + np.sqrt(mean) * self.rng.standard_normal(mean.shape)
        if self.null.wander:
            logs += self.null.wander * self._markov("wander", np.exp(-INTERVAL_S / 3600), count)
        self.at += count
        return logs, loads

    def times(self, count: int) -> Array:
        """Unix seconds of the next `count` samples."""
        return INTERVAL_S * np.arange(self.at, self.at + count)

    def part(self, lanes: NDArray[np.intp]) -> "Source":
        """A copy of some lanes, to be drawn on independently of this one's progress."""
        copy = deepcopy(self)
        copy.lanes = len(lanes)
        copy.phase, copy.swings = self.phase[lanes], self.swings[lanes]
        copy.noise, copy.wander = self.noise[lanes], self.wander[lanes]
        return copy

    def _noise(self, count: int) -> Array:
        if self.null.bimodal:
            slow = self.rng.random((self.lanes, count)) < 0.3
            return np.where(slow, np.log(2.5), 0.0) + 0.2 * self.rng.standard_normal(slow.shape)
        if self.null.phi:
            return SIGMA * self._markov("noise", self.null.phi, count)
        return SIGMA * self.rng.standard_normal((self.lanes, count))

    def _markov(self, name: str, keep: float, count: int) -> Array:
        """Stationary first-order process of unit variance, going on from the last value under `name`."""
        shocks = np.sqrt(1 - keep * keep) * self.rng.standard_normal((count, self.lanes))
        last: Array = getattr(self, name)
        for row in shocks:
            row += keep * last
            last = row
        setattr(self, name, shocks[-1].copy())
        found: Array = shocks.T
        return found


Change = Callable[[Array, int, np.random.Generator], Array]


def slower(by: float) -> Change:
    """Every request takes `by` more."""
    return lambda logs, _since, _rng: logs + float(np.log1p(by))


def tail(factor: float, share: float = 0.04) -> Change:
    """A share of the requests takes `factor` times as long."""
    return lambda logs, _since, rng: logs + np.log(factor) * (rng.random(logs.shape) < share)


def ramp(by: float, hours: float) -> Change:
    """All requests slow down together, linearly over some hours."""

    def change(logs: Array, since: int, _rng: np.random.Generator) -> Array:
        progress = np.minimum(1.0, np.arange(since + 1, since + 1 + logs.shape[1]) * INTERVAL_S / (3600 * hours))
        return logs + np.log1p(by * progress)

    return change


CHANGES: dict[str, Change] = {
    **{f"+{share}%": slower(share / 100) for share in (10, 20, 30, 50, 100)},
    "×2 in 4%": tail(2),
    "×4 in 4%": tail(4),
    "ramp +50% over 6 h": ramp(0.5, 6),
}
