"""What a sweep saw, as values: its own requests, what is known of the load that was there already, and the engine's page.

All of it can be pickled: an estimate from it costs seconds of CPU and belongs in another process.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from prober.measure.engine_signals import EngineSignals
from prober.measure.objective import Slo
from prober.measure.slo_events import max_events_per_probe
from prober.statistics.sequential_test import Observations

Phase = Literal["warm_up", "ramp", "rest", "climb", "grid", "sustain"]
UNJUDGED: frozenset[Phase] = frozenset({"warm_up", "rest"})  # their requests do not measure the rate


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A request of the sweep. Times are seconds of the sweep's one monotonic clock.

    at_s: when it was due; prompt_tokens, output_tokens: as asked for; stage: number of the stage it was sent in
    first_s, end_s: first token and end, None if it was cut or is pending; known_s: up to when it was looked at
    tpot_s: as measured, None without usage; gap_s, gap_most_s: median and largest gap between chunks
    valid: it says something of the target (not late, cut before its time, rejected)
    failed: it ended badly; events: (events, bad ones) of each SLO by name, absent where it is not known yet
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int
    stage: int
    first_s: float | None = None
    end_s: float | None = None
    known_s: float = 0.0
    tpot_s: float | None = None
    gap_s: float | None = None
    gap_most_s: float | None = None
    valid: bool = True
    failed: bool = False
    events: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def ttft_s(self) -> float | None:
        """TTFT from the due time."""
        return None if self.first_s is None else self.first_s - self.at_s


@dataclass(frozen=True, slots=True)
class Other:
    """A background request that is known individually, such as from a gateway log. at_s: on the sweep's clock."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Stage:
    """A completed stage of constant rate.

    rate_per_s: asked for, of the sweep's own requests; other_per_s: of the load that was there, None where nobody tells
    sent, answered, failed: requests sent in it and what became of them so far; events: (events, bad ones) of each SLO
    """

    number: int
    phase: Phase
    rate_per_s: float
    began_s: float
    ended_s: float
    sent: int = 0
    answered: int = 0
    failed: int = 0
    events: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    other_per_s: float | None = None

    @property
    def total_per_s(self) -> float:
        """Rate of the sweep plus the background, as far as known."""
        return self.rate_per_s + (self.other_per_s or 0.0)


@dataclass(frozen=True, slots=True)
class Record:
    """Input of an estimate.

    asked: in the order of time; readings: (seconds, page); others: None unless they are known one by one, all of them
    lengths: a sample of (prompt, output) tokens of the workload, empty: those that were asked for
    reached: the sending ended because the knee was passed, or harm seen, not because of a limit of the plan's own
    cut: the plan or something outside ended it, before the target did: what it can carry rests on the events alone
    spoilt: by the prober itself, so that nothing can be said
    """

    slos: tuple[Slo, ...]
    asked: tuple[RequestRecord, ...]
    stages: tuple[Stage, ...]
    readings: tuple[tuple[float, EngineSignals], ...] = ()
    others: tuple[Other, ...] | None = None
    lengths: tuple[tuple[int, int], ...] = ()
    reached: bool = True
    cut: bool = False
    spoilt: bool = False

    @property
    def other_per_s(self) -> float | None:
        """Mean background rate while it was observed; None if unknown."""
        if self.others is not None:
            span_s = self.until_s - self.from_s
            return sum(self.from_s <= each.at_s <= self.until_s for each in self.others) / span_s if span_s > 0 else 0.0
        counts = other_counts(self)
        span_s = sum(end - begin for begin, end, _ in counts)
        return sum(count for _, _, count in counts) / span_s if span_s > 0 else None

    @property
    def from_s(self) -> float:
        """Due time of the first request, or time of the first reading if earlier."""
        return min([*(each.at_s for each in self.asked[:1]), *(at_s for at_s, _ in self.readings[:1])], default=0.0)

    @property
    def until_s(self) -> float:
        """Time of the last observation."""
        return max([*(each.known_s for each in self.asked), *(at_s for at_s, _ in self.readings[-1:])], default=0.0)


def observed(slo: Slo, requests: Iterable[tuple[int, int, int]]) -> Observations:
    """One observation a request, as `sequential` takes them. requests: (events, bad ones, output tokens asked for) of each.

    A request of several events (ITL) is budget + (bad − budget · events) ÷ most of them, as in `prober gate`: its gaps need not
    be independent.
    """
    known = [each for each in requests if each[0]]
    budget = float(slo.error_budget_ratio)
    most = max((max(count, max_events_per_probe(slo, asked)) for count, _, asked in known), default=1)
    return Observations(len(known), sum(budget + (bad - budget * count) / most for count, bad, _ in known))


def entered(signals: EngineSignals) -> float | None:
    """Requests that have arrived at the engine, from its counters: finished, running and waiting."""
    if signals.requests_finished_total is None or signals.requests_running is None:
        return None
    return signals.requests_finished_total + signals.requests_running + (signals.requests_waiting or 0.0)


def other_counts(record: Record) -> list[tuple[float, float, float]]:
    """(from, to, requests of others that came between) for each two readings; empty where the page does not count.

    What came to the engine less what the sweep sent. A request on its way at a reading is counted in the next, so single
    counts may be below 0; their sum is right.
    """
    known = [(at_s, count) for at_s, signals in record.readings if (count := entered(signals)) is not None]
    found: list[tuple[float, float, float]] = []
    own = sorted(each.at_s for each in record.asked)
    at = 0
    for (begin, before), (end, after) in pairwise(known):
        first = at
        while at < len(own) and own[at] < end:
            at += 1
        if not found:
            first += sum(each < begin for each in own[:at])
        found.append((begin, end, after - before - (at - first)))
    return found
