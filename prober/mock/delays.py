"""Delays of the drawn engine, constant or random: lengths of `workload.shapes`, in ns."""

from prober.config.units import UnitError, duration
from prober.workload.shapes import Fixed, LengthDistribution, Lognormal, Uniform

MAX_DELAY_NS = 10**18


def constant(value_s: float) -> Fixed:
    """A constant delay."""
    return Fixed(round(value_s * 1e9))


def lognormal(median_s: float, sigma: float) -> Lognormal:
    """A lognormal delay, median × exp(sigma × N(0, 1)). Its p99 is median × exp(2.326 sigma)."""
    return Lognormal(median_s * 1e9, sigma, 0, MAX_DELAY_NS)


def parse_delay(text: str) -> LengthDistribution:
    """Parse `50ms`, `lognormal:50ms:0.4` (median, sigma) or `uniform:10ms:20ms`. Raises ValueError with the valid forms."""
    kind, *values = text.split(":")
    try:
        if not values:
            return constant(duration(kind))
        if kind == "lognormal" and len(values) == 2:
            return lognormal(duration(values[0]), _sigma(values[1]))
        if kind == "uniform" and len(values) == 2:
            low, high = duration(values[0]), duration(values[1])
            if low > high:
                raise ValueError(f"delay {text!r}: {values[0]} is above {values[1]}; write the lower bound first")
            return Uniform(round(low * 1e9), round(high * 1e9))
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
