"""Quantities as people write them: `500ms`, `0.2/s`, `99.9%`, `4M`."""

import re
from decimal import Decimal, InvalidOperation

_SECONDS = {
    "ns": 1e-9,
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "w": 604800.0,
}
_PER = {"s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_COUNTS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9}
_NUMBER = r"(\d+(?:\.\d+)?)"

DURATION_PATTERN = rf"^{_NUMBER}\s*(ns|us|ms|s|min|m|h|d|w)$"
RATE_PATTERN = rf"^{_NUMBER}\s*/\s*(\d*)(s|sec|m|min|h|d)$"
PERCENT_PATTERN = rf"^{_NUMBER}\s*%$"
COUNT_PATTERN = rf"^{_NUMBER}\s*([kKMGB]?)$"


class UnitError(ValueError):
    """The text is not such a quantity; the message says what to write."""


def duration(value: object) -> float:
    """Seconds of "500ms", "10s", "2m", "6h", "30d". Raises UnitError with what to write instead."""
    if match := re.match(DURATION_PATTERN, value) if isinstance(value, str) else None:
        return float(match[1]) * _SECONDS[match[2]]
    raise UnitError(f"{value!r} is not a duration; write a number and a unit, such as 500ms, 10s, 2m, 6h or 30d")


def rate(value: object) -> float:
    """Requests per second of "0.2/s", "12/min", "1/h", "1/30s". Raises UnitError."""
    if match := re.match(RATE_PATTERN, value) if isinstance(value, str) else None:
        found = float(match[1]) / (int(match[2] or 1) * _PER[match[3]]) if match[2] != "0" else 0.0
        if found > 0:
            return found
        raise UnitError(f"{value!r} is no rate; it must be above 0 (leave the probe out to send none)")
    raise UnitError(f"{value!r} is not a rate; write a positive number per time, such as 0.2/s, 12/min or 1/h")


def percent(value: object) -> Decimal:
    """Exact ratio of "99%" or "99.9%". Raises UnitError."""
    if match := re.match(PERCENT_PATTERN, value) if isinstance(value, str) else None:
        try:
            return Decimal(match[1]) / 100
        except InvalidOperation:
            pass
    raise UnitError(f"{value!r} is not a percentage; write it with its sign, such as 99% or 99.9%")


def reuse(value: object) -> float:
    """Share of warm requests: "warm" is 1, "cold" is 0, else a percentage. Raises UnitError."""
    if value in ("warm", "cold"):
        return float(value == "warm")
    try:
        share = float(percent(value))
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise UnitError(f"{value!r} is not a share of reuse; write warm, cold, or a percentage such as 30%")
    return share


def count(value: object) -> int:
    """A whole number: 128, "4M", "200k". Raises UnitError."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if match := re.match(COUNT_PATTERN, value) if isinstance(value, str) else None:
        found = Decimal(match[1]) * _COUNTS[match[2]]
        if found == int(found):
            return int(found)
    raise UnitError(f"{value!r} is not a count; write a whole number, such as 128, 200k or 4M")
