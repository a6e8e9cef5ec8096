"""A request of a sweep, from its due time to its end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prober.measure.buffering import is_held_back
from prober.measure.objective import Slo, count_events
from prober.measure.outcome import BAD, NEUTRAL
from prober.measure.result import ProbeResult

# A request breaches an ITL objective if its share of bad gaps is this many times the error budget.
ITL_BREACH_FACTOR = 3.0


@dataclass(slots=True)
class RequestRecord:
    """Observations of a request, updated while it is in flight. Times are seconds of the sweep's monotonic clock.

    at_s: due time
    prompt_tokens, output_tokens: as requested
    stage: number of the stage in which it was sent
    first_s, end_s: first token and end; None if it is in flight or was cut before
    known_s: time of the last observation
    tpot_s: as measured; None without usage
    gap_s, gap_most_s: median and largest gap between chunks
    held_back: its tokens arrived all at once or several at a time
    valid: it characterises the target: it was not late, cut too early or refused
    failed: it ended badly
    events: (events, bad events) by SLO; an SLO without a known event is absent
    breached: it breaches an SLO
    counted: its latency was compared with the thresholds
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
    failed: bool = False
    events: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    breached: bool = False
    counted: bool = False

    @property
    def ttft_s(self) -> float | None:
        """TTFT from the due time."""
        return None if self.first_s is None else self.first_s - self.at_s

    @property
    def is_answered(self) -> bool:
        """True if content has arrived, or a proper end."""
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
        self.end_s = at_s if timeline.end_ns is None else timeline.end_ns / 1e9
        self.known_s = at_s
        if timeline.first_ns is not None:
            self.first_s = timeline.first_ns / 1e9
        self.tpot_s = timeline.tpot_s
        self.held_back = is_held_back(timeline) is True
        if gaps := sorted(timeline.chunk_gaps_s):
            self.gap_s, self.gap_most_s = gaps[len(gaps) // 2], gaps[-1]
        self.failed = result.outcome in BAD
        self.valid = result.outcome not in NEUTRAL and (self.failed or not timeline.is_late)
        self.events = {slo.name: counts for slo in slos if (counts := count_events(slo, result))[0]}

    def check_overdue(self, at_s: float, slos: Sequence[Slo]) -> bool:
        """Count a wait beyond a threshold as a breach. Returns whether there is one."""
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
        """TTFT, or the time waited so far."""
        return (at_s if self.first_s is None else self.first_s) - self.at_s

    def max_threshold_share(self, at_s: float, slos: Sequence[Slo]) -> float:
        """Highest ratio of a latency to its threshold."""
        ttft_s, e2e_s = self.waited_s(at_s), (at_s if self.end_s is None else self.end_s) - self.at_s
        value = {"ttft": ttft_s, "ttft_answer": ttft_s, "e2e": e2e_s, "tpot": self.tpot_s or 0.0}
        return max((value.get(slo.signal, 0.0) / slo.threshold_s for slo in slos if slo.threshold_s), default=0.0)
