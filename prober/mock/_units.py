"""Stand-in until prober.config.units is there."""

import re


class UnitError(ValueError):
    """Not a quantity."""


def duration(text: str) -> float:
    m = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s|m|h|d)", text.strip())
    if not m:
        raise UnitError(f"{text!r} is not a duration; write 500ms, 10s, 2m")
    return float(m[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86400}[m[2]]
