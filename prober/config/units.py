"""Parses and formats quantities such as `500ms`, `0.2/s`, `99.9%`, `4M`."""

import re
from collections.abc import Collection
from decimal import Decimal

_SECONDS = {
    "ns": 1e-9,
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "w": 604800.0,
}
_COUNTS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9}
_NUMBER = r"(\d+(?:\.\d+)?)"

DURATION_PATTERN = rf"^{_NUMBER}\s*(ns|us|ms|s|min|m|h|d|w)$"
RATE_PATTERN = rf"^{_NUMBER}\s*/\s*(\d*)(s|sec|m|min|h|d)$"
PERCENT_PATTERN = rf"^{_NUMBER}\s*%$"
MAX_WORKERS = 256
COUNT_PATTERN = rf"^{_NUMBER}\s*([kKMGB]?)$"

MAX_DURATION_S = 100 * 365 * 86_400.0  # larger values are mistakes, and overflow clocks and counters
MIN_RATE_PER_S, MAX_RATE_PER_S = 1e-8, 1e5
MAX_COUNT = 10**15


class UnitError(ValueError):
    """Invalid quantity; the message shows a valid form."""


def duration(value: object) -> float:
    """Parse "500ms", "10s", "2m", "6h" or "30d" to seconds. Raises UnitError with a valid form."""
    if match := re.match(DURATION_PATTERN, value) if isinstance(value, str) else None:
        if (seconds := float(match[1]) * _SECONDS[match[2]]) <= MAX_DURATION_S:
            return seconds
        raise UnitError(f"{shortened(value)} is longer than a hundred years; use less")
    raise UnitError(
        f"{shortened(value)} is not a duration; write a number and a unit, such as 500ms, 10s, 2m, 6h or 30d"
    )


def positive_duration(value: object) -> float:
    """Parse a `duration` above 0. Raises UnitError."""
    if seconds := duration(value):
        return seconds
    raise UnitError(f"must be more than 0, is {shortened(value)}")


def rate(value: object) -> float:
    """Parse "0.2/s", "12/min", "1/h" or "1/30s" to requests per second. Raises UnitError."""
    if match := re.match(RATE_PATTERN, value) if isinstance(value, str) else None:
        span_s = float(match[2] or 1) * _SECONDS[match[3]]
        per_s = float(match[1]) / span_s if span_s else 0.0
        if MIN_RATE_PER_S <= per_s <= MAX_RATE_PER_S:
            return per_s
        if per_s > 0:
            raise UnitError(f"{shortened(value)} is no rate that can be kept; use from 1/1000d to 100000/s")
        raise UnitError(f"{shortened(value)} is no rate; it must be above 0 (leave the probe out to send none)")
    raise UnitError(f"{shortened(value)} is not a rate; write a positive number per time, such as 0.2/s, 12/min or 1/h")


def share(value: object) -> Decimal:
    """Parse "30%" or "99.9%", from 0% to 100%, to the exact ratio. Raises UnitError."""
    if match := re.match(PERCENT_PATTERN, value) if isinstance(value, str) else None:
        if (ratio := Decimal(match[1]) / 100) <= 1:
            return ratio
        raise UnitError(f"{shortened(value)} is more than all; use at most 100%")
    raise UnitError(f"{shortened(value)} is not a percentage; write it with its sign, such as 99% or 99.9%")


def percent(value: object) -> Decimal:
    """Parse a `share` above 0%. Raises UnitError."""
    if ratio := share(value):
        return ratio
    raise UnitError(f"{shortened(value)} is nothing; use more than 0%")


def reuse(value: object) -> float:
    """Parse the share of warm requests: "warm" is 1, "cold" is 0, else a percentage. Raises UnitError."""
    try:
        return float(value == "warm" if value in ("warm", "cold") else share(value))
    except UnitError as problem:
        raise UnitError(f"{problem}; or write warm or cold") from None


def count(value: object) -> int:
    """Parse a whole number: 128, "4M", "200k". Raises UnitError."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT:
        return value
    if match := re.match(COUNT_PATTERN, value) if isinstance(value, str) else None:
        number = Decimal(match[1]) * _COUNTS[match[2]]
        if number <= MAX_COUNT and number == int(number):
            return int(number)
    raise UnitError(f"{shortened(value)} is not a count; write a whole number, such as 128, 200k or 4M")


def worker_count(value: object) -> int | None:
    """Parse the number of sending processes, 1 to `MAX_WORKERS`; None for `auto`. Raises UnitError."""
    if value == "auto":
        return None
    if isinstance(value, int | str) and str(value).isdecimal() and 1 <= int(value) <= MAX_WORKERS:
        return int(value)
    raise UnitError(f"{shortened(value)} is no number of workers; write auto, or 1 to {MAX_WORKERS}")


def duration_text(seconds: float) -> str:
    """Format a duration as in files: 500ms, 20m, 30d."""
    for unit in ("d", "h", "m", "s"):
        if seconds and seconds % _SECONDS[unit] == 0:
            return f"{seconds / _SECONDS[unit]:g}{unit}"
    return f"{seconds * 1e3:g}ms"


def rate_text(per_s: float) -> str:
    """Format a rate as in files: 0.2/s, 1/30d."""
    return f"{per_s:g}/s" if per_s >= 0.01 else f"1/{duration_text(round(1 / per_s, 3))}"


def counted(count: int, noun: str) -> str:
    """Format a number with its noun: 1 target, 2 targets, 1,000 targets."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def first_names(names: Collection[str], limit: int) -> str:
    """First names in alphabetical order, and how many others, such as "a, b, c and 1,997 more"."""
    listed = ", ".join(sorted(names)[:limit])
    return f"{listed} and {len(names) - limit:,} more" if len(names) > limit else listed


def shortened(value: object) -> str:
    """Format a value for a message: its repr, of at most 80 characters."""
    try:
        text = repr(value)
    except ValueError:  # an integer has thousands of digits
        text = "a number of thousands of digits"
    return text if len(text) <= 80 else text[:79] + "…"
