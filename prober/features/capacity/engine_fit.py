"""Result of a fit, and what earlier sweeps tell the next one. Without arrays: the daemon keeps these values."""

from dataclasses import dataclass
from math import sqrt
from typing import Literal, NamedTuple

from prober.features.capacity.replay import Background
from prober.simulation.serving import Service

# Median |log(observed ÷ replayed)| of a fit that is used alone, and of one that is used beside the fractions of bad events.
MAX_TTFT_ERROR, MAX_POOR_TTFT_ERROR = 0.2, 0.35
MIN_QUEUE = 4  # fewer waiting requests can be an accident of one step
DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Prior:
    """Service of earlier sweeps, whose uncertainty grows with age.

    front_s: latency in front of it
    spread: standard deviation of each log parameter when new; spread_per_day: added for each day of age
    """

    service: Service
    structure: str
    front_s: float
    age_s: float
    spread: float = 0.1
    spread_per_day: float = 0.3

    @property
    def deviation(self) -> float:
        """Standard deviation of each log parameter at this age."""
        return self.spread + self.spread_per_day * self.age_s / DAY_S


class Trouble(NamedTuple):
    """Signs of overload: number of TTFTs above the threshold, and most requests that waited in the engine at once."""

    breaches: int
    waiting: int


class Rival(NamedTuple):
    """A service of another structure that explains the record nearly as well. weight: of its likelihood; the fit's own is 1"""

    service: Service
    front_s: float
    weight: float


Quality = Literal["good", "poor", "unusable"]


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted service.

    structure: name of its structure, of `structures.STRUCTURES`
    front_s: latency in front of it (network, gateway)
    repeats: services that fit the same record under random weights (bootstrap)
    rivals: other structures
    error: median of |log(TTFT observed ÷ replayed)|
    predicted, observed: trouble in the replay and in the record
    slots_seen: the record shows the limit of running sequences
    background: background load of the replay
    drawn: the background's arrival times are drawn at random, because the record has no individual ones
    """

    service: Service
    structure: str
    front_s: float
    repeats: tuple[tuple[Service, float], ...]
    rivals: tuple[Rival, ...]
    error: float
    predicted: Trouble
    observed: Trouble
    slots_seen: bool
    background: Background
    drawn: bool = False

    @property
    def quality(self) -> Quality:
        """Whether the replay agrees with the record well enough to be used for rates that were not tried: alone, beside
        fractions, or not.

        Two or more breaches, or a queue, that the replay does not show have a cause that the model does not know.
        """
        breaches_explained = self.observed.breaches < 2 or self.predicted.breaches > 0
        queue_explained = self.observed.waiting < MIN_QUEUE or 4 * self.predicted.waiting >= self.observed.waiting
        max_excess = (4 if self.drawn else 1) * (3 + 3 * sqrt(self.observed.breaches + 1))
        no_excess = self.predicted.breaches - self.observed.breaches <= max_excess
        if not (breaches_explained and queue_explained and no_excess) or self.error >= MAX_POOR_TTFT_ERROR:
            return "unusable"
        return "good" if self.error < MAX_TTFT_ERROR else "poor"
