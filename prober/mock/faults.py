"""Faults of the mock, selected by a request header or by a schedule."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from prober.config.units import UnitError, duration, share

# Kind of the argument after the colon. "tokens": tokens sent before the fault.
ARGUMENTS: dict[str, str | None] = {
    "http": "status",
    "http_html": None,
    "starting": None,
    "draining": None,
    "hang": None,
    "late_headers": "duration",
    "slow_read": "duration",
    "latency": "factor",
    "itl_tail": "factor",
    "kv_lost": "blocks",
    "prefix_flush": None,
    "no_first_token": None,
    "role_then_keepalive": "duration",
    "stall": "tokens",
    "error_in_stream": "tokens",
    "malformed": "tokens",
    "truncated": "tokens",
    "reset": "tokens",
    "crash": "tokens",
    "big_line": "bytes",
    "broken_json": None,
    "cut_json": None,
    "empty_json": None,
    "empty": None,
    "short": "tokens",
    "endless": None,
    "no_usage": None,
    "wrong_done": None,
    "no_page": None,
}
_DEFAULTS = {"late_headers": 1.0, "slow_read": 1.0, "role_then_keepalive": 1.0, "big_line": 100_000_000.0}
_REQUIRED = {"http", "latency", "itl_tail", "kv_lost"}
_EXAMPLES = {"status": "503", "factor": "2.5", "blocks": "1000"}
# Faults of the entire simulated engine, possible only by schedule, like `latency` of a simulated engine.
SIMULATED = frozenset({"itl_tail", "kv_lost", "prefix_flush"})
# Faults that are not about single API requests have no share.
_ENTIRE = SIMULATED | {"starting", "draining", "no_page", "latency"}
_COUNT = re.compile(r"[0-9]{1,15}")
_FACTOR = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


def fault_forms() -> str:
    """Every fault in the form that `parse_fault` reads, such as `http:STATUS, hang, stall[:TOKENS]`."""
    listed = []
    for name, argument in ARGUMENTS.items():
        more = f":{argument.upper()}" if argument else ""
        listed.append(name + (f"[{more}]" if more and name not in _REQUIRED else more))
    return ", ".join(listed)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that is active from start_s to end_s.

    argument: status, seconds, factor, or number of tokens, blocks or bytes, see ARGUMENTS; by default 1 token, for `short` half of the
    requested tokens
    share: share of API requests with the fault, at random
    """

    name: str
    argument: float = 0.0
    start_s: float = 0.0
    end_s: float = inf
    share: float = 1.0

    @property
    def count(self) -> int:
        """The argument as an integer: status, tokens, blocks or bytes."""
        return int(self.argument)


def parse_fault(text: str) -> Fault:
    """Parse `name[:argument][/share][@start-[end]]`, such as `stall:3/20%@60s-120s`. Raises ValueError with the remedy."""
    fault, at, window = text.strip().partition("@")
    fault, slash, portion = fault.partition("/")
    name, colon, argument = fault.partition(":")
    if name not in ARGUMENTS:
        raise ValueError(f"fault {text!r}: no fault {name!r}; known: {', '.join(sorted(ARGUMENTS))}")
    try:
        times = _window(window) if at else (0.0, inf)
        if slash and name in _ENTIRE:
            raise UnitError(f"{name} is of the entire engine; write it without a share of its requests")
        return Fault(name, _argument(name, argument, bool(colon)), *times, float(share(portion)) if slash else 1.0)
    except UnitError as problem:
        raise ValueError(f"fault {text!r}: {problem}") from None


def check(faults: Iterable[Fault], *, simulated: bool) -> None:
    """Raise ValueError for a fault that this kind of engine does not support."""
    for fault in faults:
        if fault.name in SIMULATED and not simulated:
            raise ValueError(f"fault {fault.name!r} is of the simulated engine; start the mock with --engine simulated")


def _argument(name: str, argument: str, has_argument: bool) -> float:
    kind = ARGUMENTS[name]
    if not has_argument:
        if name in _REQUIRED:
            raise UnitError(f"{name} needs its {kind}; write {name}:{_EXAMPLES[kind or '']}")
        return _DEFAULTS.get(name, 1.0 if kind == "tokens" and name != "short" else 0.0)
    if kind is None:
        raise UnitError(f"{name} takes no argument; write {name}")
    if kind == "duration":
        return duration(argument)
    if kind == "factor":
        if _FACTOR.fullmatch(argument):
            return float(argument)
        raise UnitError(f"{argument!r} is not a factor such as 2 or 2.5")
    if not _COUNT.fullmatch(argument):
        raise UnitError(f"{argument!r} is not a whole number of {kind}")
    if kind == "status" and not 200 <= int(argument) <= 599:
        raise UnitError(f"{argument!r} is not an HTTP status from 200 to 599")
    return float(argument)


def _window(window: str) -> tuple[float, float]:
    start, dash, end = window.partition("-")
    if not dash:
        raise UnitError(f"the window {window!r} has no end; write @60s-120s, or @60s- for one that never ends")
    start_s = duration(start)
    end_s = duration(end) if end else inf
    if end_s <= start_s:
        raise UnitError(f"the window {window!r} ends before it starts")
    return start_s, end_s


@dataclass(frozen=True, slots=True)
class Schedule:
    """Faults by time since `since_ns` on the monotonic clock; if several are active, the first counts."""

    faults: tuple[Fault, ...]
    since_ns: int

    def at(self, now_ns: int) -> Fault | None:
        """The active fault; None if there is none."""
        since_s = (now_ns - self.since_ns) / 1e9
        return next((fault for fault in self.faults if fault.start_s <= since_s < fault.end_s), None)
