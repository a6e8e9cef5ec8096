"""Service level objectives, the streams of probes that they judge, and the events that a probe adds to one.

`success`, `ttft`, `e2e`: one event per probe; a bad outcome is a bad event.
`tpot`: one event if the answer ended properly and has a TPOT, see `Timeline.tpot_s`.
`itl`: one event per ITL, up to the requested number of tokens, plus one bad event if the stream died after its first token.
`quality`: one event per checked answer.

Neutral outcomes are no events. Two kinds of success are events only for `success` and `quality`, as users do not see their latency:
those during warm-up, and those whose cold prompt was in the prefix cache. A latency known only to lie between two bounds is an
event unless the threshold lies between them.

Window pairs and burn rates are those of the Google SRE workbook, chapter 5, table 5-8, https://sre.google/workbook/alerting-on-slos/,
for any window of the SLO: an alert fires while a long window and a short one (a twelfth) both burn the budget faster than
`burn`. The long window makes sure that the burn matters; the short one ends the alert soon after its cause.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, get_args

from prober.measure.outcome import ANSWERED, BAD, NEUTRAL, Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import BoundedSignal

Signal = Literal["ttft", "ttft_answer", "tpot", "itl", "e2e", "success", "quality"]
SIGNALS: tuple[Signal, ...] = get_args(Signal)
SIGNALS_WITHOUT_THRESHOLD: tuple[Signal, ...] = ("success", "quality")
TRAFFIC_SIGNALS: tuple[Signal, ...] = ("ttft", "itl", "tpot", "e2e", "success")  # on the pages of engines
BOUNDED_SIGNALS: tuple[BoundedSignal, ...] = get_args(BoundedSignal)
SIGNALS_WITHOUT_STREAM: tuple[Signal, ...] = ("e2e", "success", "quality")


@dataclass(frozen=True, slots=True)
class Slo:
    """A service level objective: at least a share `objective` of the `signal` events is good in any window of `window_s`.

    threshold_s: an event is good up to this many seconds; None for `success` and `quality`
    objective: exact share of good events, 0 to 1
    """

    name: str
    signal: Signal
    threshold_s: float | None
    objective: Decimal
    window_s: float

    @property
    def error_budget_ratio(self) -> Decimal:
        """The share of events that may be bad."""
        return 1 - self.objective

    @property
    def text(self) -> str:
        """The objective as on the command line, such as ttft<0.5s:99%."""
        threshold = "" if self.threshold_s is None else f"<{self.threshold_s:g}s"
        return f"{self.signal}{threshold}:{format_percent(self.objective)}"


@dataclass(frozen=True, slots=True)
class JudgedStream:
    """A stream of probes that an SLO judges.

    mean_tokens, max_tokens: requested output tokens per probe
    """

    target: str
    workload: str
    rate_per_s: float
    mean_tokens: float
    max_tokens: int


def format_percent(ratio: float | Decimal) -> str:
    """Format a ratio as a percentage without trailing zeros, such as 99.9%."""
    return f"{float(ratio) * 100:g}%"


def format_rate(per_s: float) -> str:
    """Format a rate as in the configuration, such as 0.2/s, rounded up."""
    for unit, size in (("s", 1), ("min", 60), ("h", 3_600)):
        if per_s * size >= 0.1 or unit == "h":
            return f"{math.ceil(per_s * size * 100) / 100:g}/{unit}"
    raise AssertionError


DAY_S = 86_400
MIN_SLO_WINDOW_S = 6 * DAY_S  # twice the longest window of the alerts


@dataclass(frozen=True, slots=True)
class Pair:
    """A long and a short window, and the burn rate that both must exceed for an alert.

    burn: multiple of the rate that just uses up the budget
    """

    severity: Literal["critical", "warning"]
    short_s: int
    long_s: int
    burn: Decimal


PAIRS = (
    Pair("critical", 300, 3_600, Decimal("14.4")),
    Pair("critical", 1_800, 6 * 3_600, Decimal(6)),
    Pair("warning", 2 * 3_600, DAY_S, Decimal(3)),
    Pair("warning", 6 * 3_600, 3 * DAY_S, Decimal(1)),
)


def promql(seconds: float) -> str:
    """Format a duration for PromQL: 1h, 1h24m, 4m40s."""
    remaining, out = round(seconds), ""
    for unit, size in (("d", DAY_S), ("h", 3_600), ("m", 60), ("s", 1)):
        count, remaining = divmod(remaining, size)
        out += f"{count}{unit}" if count else ""
    return out or "0s"


NO_EVENT = (0, 0)
GOOD_EVENT = (1, 0)
BAD_EVENT = (1, 1)


def count_events(slo: Slo, result: ProbeResult) -> tuple[int, int]:
    """Count the (events, bad events) that `result` adds to `slo`."""
    if result.outcome in NEUTRAL:
        return NO_EVENT
    failed = result.outcome in BAD
    if slo.signal == "success":
        return BAD_EVENT if failed else GOOD_EVENT
    if slo.signal == "quality":
        if result.check is None:
            return NO_EVENT
        return BAD_EVENT if failed or result.outcome is Outcome.WRONG_ANSWER else GOOD_EVENT
    if not failed and (result.warm_up or result.cached):
        return NO_EVENT
    if slo.signal == "itl":
        assert slo.threshold_s is not None
        gaps = result.timeline.itls_s[: max_events_per_probe(slo, result.requested_output_tokens) - 1]
        died = failed and result.timeline.first_ns is not None
        return len(gaps) + died, sum(gap > slo.threshold_s for gap in gaps) + died
    if slo.signal == "tpot":
        return NO_EVENT if failed else _single_event(slo, result.timeline.tpot_s)
    if failed:
        return BAD_EVENT
    assert slo.signal in BOUNDED_SIGNALS
    bounds = result.timeline.bounds_s(slo.signal)
    return NO_EVENT if bounds is None or is_undecided(slo, result) else _single_event(slo, bounds[0])


def is_undecided(slo: Slo, result: ProbeResult) -> bool:
    """True if the threshold of the SLO lies between the two bounds of an inexact latency."""
    if slo.signal not in BOUNDED_SIGNALS or slo.threshold_s is None or result.outcome not in ANSWERED:
        return False
    bounds = result.timeline.bounds_s(slo.signal)
    return bounds is not None and bounds[0] <= slo.threshold_s < bounds[1]


BURN_PROBES = 20  # latest probes whose burn rate is judged at once
MIN_BAD_EVENTS = 3  # fewer are not judged
_MAX_BAD_RATIO = 0.8  # limit for loose objectives, whose burn rate cannot exceed 1 / budget


def burns(probes: Sequence[ProbeResult], slo: Slo, rate: float) -> bool:
    """True if these probes burn the SLO's budget faster than `rate`, with at least three bad events."""
    counts = [count_events(slo, probe) for probe in probes]
    return is_burn(slo, sum(events for events, _ in counts), sum(bad for _, bad in counts), rate)


def is_burn(slo: Slo, events: int, bad: int, rate: float) -> bool:
    """True if `bad` of `events` burn the SLO's budget faster than `rate`, with at least three bad events."""
    return bad >= MIN_BAD_EVENTS and bad > min(rate * float(slo.error_budget_ratio), _MAX_BAD_RATIO) * events


def max_events_per_probe(slo: Slo, output_tokens: int) -> int:
    """Upper bound of the events, also bad ones, of a probe that requests `output_tokens`, however long its answer is."""
    return max(1, output_tokens) if slo.signal == "itl" else 1


def mean_events_per_probe(slo: Slo, output_tokens: float) -> float:
    """Mean number of events per probe: 1, or for ITL one per gap. output_tokens: mean output tokens of the probes"""
    return max(1.0, output_tokens - 1) if slo.signal == "itl" else 1.0


def _single_event(slo: Slo, value: float | None) -> tuple[int, int]:
    if value is None:
        return NO_EVENT
    assert slo.threshold_s is not None, f"{slo.signal} needs a threshold: it is not in {SIGNALS_WITHOUT_THRESHOLD}"
    return BAD_EVENT if value > slo.threshold_s else GOOD_EVENT
