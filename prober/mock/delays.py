"""Delays: constant, or random with a given distribution."""

from dataclasses import dataclass
from math import exp
from random import Random

from prober.config.units import UnitError, duration


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant delay."""

    value_s: float

    def draw_ns(self, rng: Random) -> int:
        """The delay in ns; `rng` is not used."""
        return round(self.value_s * 1e9)


@dataclass(frozen=True, slots=True)
class Lognormal:
    """A lognormal delay, median × exp(sigma × N(0, 1)). Its p99 is median × exp(2.326 sigma)."""

    median_s: float
    sigma: float

    def draw_ns(self, rng: Random) -> int:
        """Returns a random delay in ns."""
        return round(self.median_s * exp(self.sigma * rng.gauss(0.0, 1.0)) * 1e9)


@dataclass(frozen=True, slots=True)
class Uniform:
    """A delay that is uniformly distributed between two bounds."""

    low_s: float
    high_s: float

    def draw_ns(self, rng: Random) -> int:
        """Returns a random delay in ns."""
        return round(rng.uniform(self.low_s, self.high_s) * 1e9)


Delay = Constant | Lognormal | Uniform


def parse_delay(text: str) -> Delay:
    """Parse `50ms`, `lognormal:50ms:0.4` (median, sigma) or `uniform:10ms:20ms`. Raises ValueError with the valid forms."""
    kind, *values = text.split(":")
    try:
        if not values:
            return Constant(duration(kind))
        if kind == "lognormal" and len(values) == 2:
            return Lognormal(duration(values[0]), _sigma(values[1]))
        if kind == "uniform" and len(values) == 2:
            low, high = duration(values[0]), duration(values[1])
            if low > high:
                raise ValueError(f"delay {text!r}: {values[0]} is above {values[1]}; write the lower bound first")
            return Uniform(low, high)
    except UnitError as problem:
        raise ValueError(f"delay {text!r}: {problem}") from None
    raise ValueError(f"delay {text!r}: write 50ms, lognormal:50ms:0.4 (median, sigma) or uniform:10ms:20ms")


def _sigma(text: str) -> float:
    try:
        sigma = float(text)
    except ValueError:
        sigma = -1.0
    if not 0 <= sigma < 10:
        raise UnitError(f"sigma {text!r} is not a number from 0 to 10")
    return sigma
