"""A request of a sweep while it is in flight."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from prober.features.capacity.sweep_record import RequestRecord
from prober.measure.objective import Slo
from prober.measure.outcome import BAD, NEUTRAL
from prober.measure.result import ProbeResult
from prober.measure.slo_events import count_events

# A request breaches an ITL objective if its share of bad gaps is this many times the error budget.
ITL_BREACH_FACTOR = 3.0


@dataclass(slots=True)
class PendingRequest:
    """State of a request so far.

    at_s: due time. prompt_tokens, output_tokens: as requested.
    breached: it breaches an SLO. counted: it was counted in the breaches of its stage.
    The other fields are those of `RequestRecord`.
    """

    id: str
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
    breached: bool = False
    counted: bool = False
    events: dict[str, tuple[int, int]] = field(default_factory=dict)

    def record(self) -> RequestRecord:
        """The state as an immutable record."""
        return RequestRecord(
            at_s=self.at_s,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            stage=self.stage,
            first_s=self.first_s,
            end_s=self.end_s,
            known_s=self.known_s,
            tpot_s=self.tpot_s,
            gap_s=self.gap_s,
            gap_most_s=self.gap_most_s,
            valid=self.valid,
            failed=self.failed,
            events=dict(self.events),
        )

    def first_token(self, at_s: float, slos: Sequence[Slo]) -> None:
        """The first content arrived."""
        self.first_s = self.known_s = at_s
        for slo in slos:
            if slo.signal == "ttft" and slo.threshold_s is not None:
                self.events[slo.name] = (1, int(at_s - self.at_s > slo.threshold_s))

    def finished(self, result: ProbeResult, at_s: float, slos: Sequence[Slo]) -> None:
        """The request ended; observed at `at_s`."""
        timeline = result.timeline
        self.end_s = at_s if timeline.end_ns is None else timeline.end_ns / 1e9
        self.known_s = at_s
        if timeline.first_ns is not None:
            self.first_s = timeline.first_ns / 1e9
        self.tpot_s = timeline.tpot_s
        if gaps := sorted(timeline.chunk_gaps_s):
            self.gap_s, self.gap_most_s = gaps[len(gaps) // 2], gaps[-1]
        self.failed = result.outcome in BAD
        self.valid = result.outcome not in NEUTRAL
        self.events = {slo.name: counts for slo in slos if (counts := count_events(slo, result))[0]}

    def check_overdue(self, at_s: float, slos: Sequence[Slo]) -> bool:
        """Whether it has already waited longer than a threshold, which is a breach; updates its events."""
        self.known_s = at_s
        is_overdue = False
        for slo in slos:
            waits = slo.signal == "e2e" or (slo.signal == "ttft" and self.first_s is None)
            if waits and slo.threshold_s is not None and at_s - self.at_s > slo.threshold_s:
                self.events[slo.name] = (1, 1)
                is_overdue = True
        return is_overdue

    def breaches(self, slo: Slo) -> bool:
        """Whether it breaches `slo` by the events known so far."""
        count, bad = self.events.get(slo.name, (0, 0))
        return bad > (ITL_BREACH_FACTOR * float(slo.error_budget_ratio) * count if slo.signal == "itl" else 0)

    def ttft_s(self, at_s: float) -> float:
        """TTFT, or the time waited so far."""
        return (at_s if self.first_s is None else self.first_s) - self.at_s

    def max_threshold_share(self, at_s: float, slos: Sequence[Slo]) -> float:
        """Highest ratio of a latency to its threshold."""
        ttft_s, e2e_s = self.ttft_s(at_s), (at_s if self.end_s is None else self.end_s) - self.at_s
        value = {"ttft": ttft_s, "ttft_answer": ttft_s, "e2e": e2e_s, "tpot": self.tpot_s or 0.0}
        return max((value.get(each.signal, 0.0) / each.threshold_s for each in slos if each.threshold_s), default=0.0)
