"""The record of a sweep: its requests and stages, the background load, and readings of the engine's page.

It can be pickled for the estimate, which takes seconds of CPU in another process.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Literal, NamedTuple

from prober.measure.buffering import is_held_back
from prober.measure.engine_signals import EngineSignals
from prober.measure.objective import Slo, count_events, max_events_per_probe
from prober.measure.outcome import BAD, NEUTRAL, Outcome
from prober.measure.result import ProbeResult
from prober.results.capacity import MIN_RATE_S
from prober.results.judgement import observation
from prober.results.refused_requests import RefusedRequests
from prober.statistics.sequential_test import Observations

Phase = Literal["warm_up", "ramp", "grid"]
Reading = tuple[float, EngineSignals]
SETTLED_SHARE = 0.9  # of answers shorter than the time until a rate shows in the requests in flight
STALE_S = 2.0  # of counters on an engine's page; some engines write them only every few steps
# A request breaches an ITL objective if its share of bad gaps is at least this multiple of the error budget.
ITL_BREACH_FACTOR = 3.0


class OtherCount(NamedTuple):
    """Background requests that arrived between two readings of the page."""

    from_s: float
    to_s: float
    requests: float


@dataclass(slots=True)
class RequestRecord:
    """Observations of a request, updated in flight. Times are seconds of the sweep's monotonic clock.

    at_s: departure, minus the target's delay once it has ended
    prompt_tokens, output_tokens: as requested
    stage: number of the stage in which it was sent
    first_s, end_s: first token and end; None in flight, or if cut earlier
    known_s: time of the last observation
    tpot_s: measured TPOT; None if the server reports no usage
    gap_s, gap_most_s: median and largest gap between chunks
    held_back: its tokens arrived all at once or several at a time
    valid: it is evidence about the target: sent, and neither refused nor cut too early
    is_sent: False: the prober did not send it
    failed: it ended badly
    events: (events, bad events) by SLO; an SLO without a known event is absent
    breached: it breaches some SLO
    counted: its latency was compared with the thresholds
    cached_tokens: prompt tokens that the engine's prefix cache has
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
    held_back: bool = False
    valid: bool = True
    is_sent: bool = True
    failed: bool = False
    events: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    breached: bool = False
    counted: bool = False
    cached_tokens: int = 0

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that are not cached."""
        return max(1, self.prompt_tokens - self.cached_tokens)

    @property
    def ttft_s(self) -> float | None:
        """TTFT in seconds; None before the first token."""
        return None if self.first_s is None else self.first_s - self.at_s

    @property
    def is_answered(self) -> bool:
        """True if content or a proper end has arrived."""
        return self.valid and not self.failed and (self.first_s is not None or self.end_s is not None)

    def first_token(self, at_s: float, slos: Sequence[Slo]) -> None:
        """Add the arrival of the first content."""
        self.first_s = self.known_s = at_s
        for slo in slos:
            if slo.signal == "ttft" and slo.threshold_s is not None:
                self.events = {**self.events, slo.name: (1, int(at_s - self.at_s > slo.threshold_s))}

    def finished(self, result: ProbeResult, at_s: float, slos: Sequence[Slo]) -> None:
        """Add the end of the request, observed at `at_s`."""
        timeline = result.timeline
        if timeline.sent_ns is not None:
            self.at_s = timeline.origin_ns / 1e9
        self.end_s = at_s if timeline.end_ns is None else timeline.end_ns / 1e9
        self.known_s = at_s
        if (bounds := timeline.bounds_s("ttft")) is not None:
            self.first_s = self.at_s + sum(bounds) / 2
        self.tpot_s = timeline.tpot_s
        self.held_back = is_held_back(timeline) is True
        if gaps := sorted(timeline.chunk_gaps_s):
            self.gap_s, self.gap_most_s = gaps[len(gaps) // 2], gaps[-1]
        self.failed = result.outcome in BAD
        self.valid = result.outcome not in NEUTRAL
        self.is_sent = result.outcome is not Outcome.INVALID or timeline.sent_ns is not None
        self.events = {slo.name: counts for slo in slos if (counts := count_events(slo, result))[0]}

    def check_overdue(self, at_s: float, slos: Sequence[Slo]) -> bool:
        """Count a wait beyond a threshold as a breach. Returns True if the request is overdue."""
        self.known_s, waited_s, is_overdue = at_s, at_s - self.at_s, False
        for slo in slos:
            waits = slo.signal == "e2e" or (slo.signal == "ttft" and self.first_s is None)
            if slo.threshold_s is not None and waited_s > slo.threshold_s and waits:
                self.events = {**self.events, slo.name: (1, 1)}
                is_overdue = True
        return is_overdue

    def breaches(self, slo: Slo) -> bool:
        """True if it breaches `slo` by the events known so far."""
        count, bad = self.events.get(slo.name, (0, 0))
        return bad > (ITL_BREACH_FACTOR * float(slo.error_budget_ratio) * count if slo.signal == "itl" else 0)

    def waited_s(self, at_s: float) -> float:
        """TTFT, or the time waited so far, in seconds."""
        return (at_s if self.first_s is None else self.first_s) - self.at_s

    def max_threshold_share(self, at_s: float, slos: Sequence[Slo]) -> float:
        """Highest ratio of a latency so far to its SLO's threshold."""
        ttft_s, e2e_s = self.waited_s(at_s), (at_s if self.end_s is None else self.end_s) - self.at_s
        value = {"ttft": ttft_s, "ttft_answer": ttft_s, "e2e": e2e_s, "tpot": self.tpot_s or 0.0}
        return max((value.get(slo.signal, 0.0) / slo.threshold_s for slo in slos if slo.threshold_s), default=0.0)


@dataclass(slots=True)
class Stage:
    """A stage of constant rate, updated while its requests are in flight.

    rate_per_s: intended rate of the sweep's own requests
    sent, answered, failed, refused: numbers of requests so far; shed: permitted failures by shedding
    breached: requests that breach an SLO
    events: (events, bad events) by SLO; other_per_s: background load, None if unknown; both after the end of sending
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
    refused: int = 0
    shed: int = 0
    breached: int = 0

    @property
    def lasted_s(self) -> float:
        """Duration so far."""
        return self.ended_s - self.began_s

    @property
    def is_judged(self) -> bool:
        """True if its requests measure the rate, and few were refused."""
        refused = RefusedRequests(self.refused, self.answered + self.failed + self.refused)
        return self.phase != "warm_up" and not refused.is_too_many

    @property
    def total_per_s(self) -> float:
        """Rate of the sweep plus the known background."""
        return self.rate_per_s + (self.other_per_s or 0.0)


@dataclass(frozen=True, slots=True)
class Record:
    """Input of an estimate.

    requests: the sweep's requests in order of departure
    readings: (seconds, engine signals), if known also from the minutes before the first request
    lengths: sample of (prompt, output) tokens of the workload; empty: the requested lengths
    reached: sending ended because the knee was passed or the target was harmed
    cut: the plan or an outside cause ended the sending earlier: only events count
    """

    slos: tuple[Slo, ...]
    requests: tuple[RequestRecord, ...]
    stages: tuple[Stage, ...]
    readings: tuple[Reading, ...] = ()
    lengths: tuple[tuple[int, int], ...] = ()
    reached: bool = True
    cut: bool = False

    @property
    def other_counts(self) -> list[OtherCount]:
        """Background requests between consecutive readings."""
        return other_counts(self.requests, self.readings)

    @property
    def other_per_s(self) -> float | None:
        """Mean background rate while it was observed; None if unknown."""
        return mean_per_s(self.other_counts)

    @property
    def from_s(self) -> float:
        """Departure of the first request, or time of the first reading if earlier."""
        return min(
            [*(request.at_s for request in self.requests[:1]), *(at_s for at_s, _ in self.readings[:1])], default=0.0
        )

    @property
    def until_s(self) -> float:
        """Time of the last observation."""
        return max(
            [*(request.known_s for request in self.requests), *(at_s for at_s, _ in self.readings[-1:])], default=0.0
        )


def observed(slo: Slo, requests: Iterable[tuple[int, int, int]]) -> Observations:
    """Observations for `sequential_test`, one per request. requests: (events, bad events, requested output tokens)"""
    known = [request for request in requests if request[0]]
    budget = float(slo.error_budget_ratio)
    most = max((max(count, max_events_per_probe(slo, tokens)) for count, _, tokens in known), default=1)
    return Observations(observation(bad, count, budget, most) for count, bad, _ in known)


def settled_requests(
    stage: Stage, requests: Sequence[RequestRecord], of_stage: Iterable[RequestRecord]
) -> list[RequestRecord]:
    """Requests sent after the number in flight had adapted to the stage's rate; none if the stage is too short.

    It has adapted once 90% of the answers are shorter than the time since the stage's start.
    """
    if stage.lasted_s < MIN_RATE_S:
        return []
    durations_s = sorted(request.end_s - request.at_s for request in requests if request.end_s is not None)
    settled_s = durations_s[round(SETTLED_SHARE * (len(durations_s) - 1))] if durations_s else 0.0
    return [request for request in of_stage if request.at_s >= stage.began_s + settled_s]


def other_counts(requests: Iterable[RequestRecord], readings: Iterable[Reading]) -> list[OtherCount]:
    """Background requests between consecutive readings; empty if the page does not count requests.

    Arrivals at the engine minus the sweep's requests. A request on its way during a reading counts in the next interval, so
    single counts may be negative; their sum is correct.
    """
    own_s = sorted(request.at_s for request in requests)
    known = [(at_s, count, bisect_left(own_s, at_s)) for at_s, count in _arrivals(readings)]
    return [
        OtherCount(begin_s, end_s, after - before - (own_after - own_before))
        for (begin_s, before, own_before), (end_s, after, own_after) in pairwise(known)
    ]


def mean_per_s(counts: Sequence[OtherCount]) -> float | None:
    """Mean rate of background requests; None without counts."""
    span_s = sum(of.to_s - of.from_s for of in counts)
    return sum(of.requests for of in counts) / span_s if span_s > 0 else None


def other_load(requests: Sequence[RequestRecord], readings: Iterable[Reading]) -> tuple[float, float] | None:
    """(least, most) background load in requests per second, from arrivals on the engine's page; None if it counts none.

    The least is the load that the sweep's own requests cannot explain; 0 means that no other use of the engine is proved. A
    reading certainly includes an own request whose first token came STALE_S before the page last changed, and perhaps one due
    before the reading; one that ended since then counts twice, as finished and as running. The least is the maximum over all
    pairs of readings, because quiet times show more than busy ones.
    """
    known = _arrivals(readings)
    if len(known) < 2:
        return None
    due_s = sorted(request.at_s for request in requests)
    ended_s = sorted(request.end_s for request in requests if request.end_s is not None)
    counted_s = sorted(
        request.known_s if request.first_s is None else request.first_s for request in requests if request.is_answered
    )
    fresh_s, previous, smallest, least = known[0][0], known[0][1], inf, 0.0
    bounds: list[tuple[float, float]] = []  # background arrivals until each reading, up to a constant
    for at_s, count in known:
        if count != previous:
            fresh_s, previous = at_s, count
        surely = bisect_right(counted_s, fresh_s - STALE_S)
        twice = bisect_right(ended_s, at_s) - bisect_right(ended_s, fresh_s - STALE_S)
        bounds.append((count - bisect_right(due_s, at_s) - twice, count - surely))
        least = max(least, bounds[-1][0] - smallest)
        smallest = min(smallest, bounds[-1][1])
    span_s, counted_span_s = known[-1][0] - known[0][0], fresh_s - known[0][0]
    if span_s <= 0:
        return None
    most = max(least, bounds[-1][1] - bounds[0][0])
    return least / span_s, most / (counted_span_s or span_s)


def _arrivals(readings: Iterable[Reading]) -> list[tuple[float, float]]:
    """(seconds, number of requests that arrived at the engine) for the readings that count them."""
    return [(at_s, count) for at_s, signals in readings if (count := signals.requests_arrived_total) is not None]
