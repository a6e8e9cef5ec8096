"""Distributions of token lengths, or of times in ms: fixed, uniform, exponential, lognormal and empirical. All values are integers."""

import math
from dataclasses import dataclass
from random import Random
from typing import Protocol


class LengthDistribution(Protocol):
    """Distribution of the lengths of prompts or answers, or of think times."""

    def draw(self, rng: Random) -> int:
        """Returns a random length in tokens."""

    def mean(self) -> float:
        """Mean after clipping, exact to half a token because values are rounded."""

    @property
    def maximum(self) -> int:
        """Largest length that `draw` can return."""

    @property
    def text(self) -> str:
        """Description for reports. It is part of the identity of a result, so it must not change."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same length of `tokens`."""

    tokens: int

    def draw(self, rng: Random) -> int:
        return self.tokens

    def mean(self) -> float:
        return float(self.tokens)

    @property
    def maximum(self) -> int:
        return self.tokens

    @property
    def text(self) -> str:
        return f"fixed {self.tokens}"


@dataclass(frozen=True, slots=True)
class Uniform:
    """Integers from `low` to `maximum`, both included."""

    low: int
    maximum: int

    def draw(self, rng: Random) -> int:
        return rng.randint(self.low, self.maximum)

    def mean(self) -> float:
        return (self.low + self.maximum) / 2

    @property
    def text(self) -> str:
        return f"uniform {self.low} to {self.maximum}"


@dataclass(frozen=True, slots=True)
class Exponential:
    """Exponential, clipped at `maximum`. scale: mean before clipping"""

    scale: float
    maximum: int

    def draw(self, rng: Random) -> int:
        return min(self.maximum, round(rng.expovariate(1 / self.scale)))

    def mean(self) -> float:
        return self.scale * -math.expm1(-self.maximum / self.scale)

    @property
    def text(self) -> str:
        return f"exponential mean {self.scale:.15g}, up to {self.maximum}"


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Lognormal with median `median` and log standard deviation `sigma`, clipped to [low, maximum]."""

    median: float
    sigma: float
    low: int
    maximum: int

    def draw(self, rng: Random) -> int:
        return min(self.maximum, max(self.low, round(self.median * math.exp(self.sigma * rng.gauss(0.0, 1.0)))))

    def mean(self) -> float:
        """Mean after clipping (Johnson, Kotz, Balakrishnan, ch. 14): low·P(X≤low) + high·P(X≥high) + partial expectation between."""
        if self.sigma == 0:
            return min(self.maximum, max(self.low, self.median))
        a, b = ((math.log(bound / self.median)) / self.sigma for bound in (self.low, self.maximum))
        inner = self.median * math.exp(self.sigma**2 / 2) * (_phi(b - self.sigma) - _phi(a - self.sigma))
        return self.low * _phi(a) + self.maximum * (1 - _phi(b)) + inner

    @property
    def text(self) -> str:
        return f"lognormal median {self.median:.15g}, sigma {self.sigma:.15g}, {self.low} to {self.maximum}"


@dataclass(frozen=True, slots=True)
class Empirical:
    """Interpolates linearly between quantiles.

    quantiles: pairs (q, tokens), q ascending from 0 to 1
    """

    quantiles: tuple[tuple[float, float], ...]

    def draw(self, rng: Random) -> int:
        return self.quantile(rng.random())

    def quantile(self, u: float) -> int:
        """Length that a share `u` of the requests does not exceed."""
        for (q0, v0), (q1, v1) in zip(self.quantiles, self.quantiles[1:], strict=False):
            if u <= q1 and q0 < q1:
                return round(v0 + (v1 - v0) * (u - q0) / (q1 - q0))
        return self.maximum

    def mean(self) -> float:
        pairs = zip(self.quantiles, self.quantiles[1:], strict=False)
        return sum((q1 - q0) * (v0 + v1) / 2 for (q0, v0), (q1, v1) in pairs)

    @property
    def maximum(self) -> int:
        return round(self.quantiles[-1][1])

    @property
    def text(self) -> str:
        return "quantiles " + ", ".join(f"{q:.15g}: {tokens:.15g}" for q, tokens in self.quantiles)


def _phi(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))
