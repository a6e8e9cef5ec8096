"""Requests and readings of a running sweep, and the record made from them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from prober.features.capacity.actions import Teller
from prober.features.capacity.pending_request import PendingRequest
from prober.features.capacity.sweep_plan import Plan
from prober.features.capacity.sweep_record import Other, Record, Stage, entered, other_counts
from prober.measure.engine_signals import EngineSignals

Reading = tuple[float, EngineSignals]


@dataclass(slots=True)
class Account:
    """requests: of the sweep itself, by id, in the order they were due; open: those that are not over; readings: (seconds, page)

    demand_per_s: the load that was there before, as somebody else counted it; tokens: as asked for, in all
    """

    requests: dict[str, PendingRequest] = field(default_factory=dict)
    open: dict[str, PendingRequest] = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)
    others: list[Other] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    demand_per_s: float | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0

    def sent(self, request: PendingRequest) -> None:
        """One more."""
        self.requests[request.id] = self.open[request.id] = request
        self.prompt_tokens += request.prompt_tokens
        self.output_tokens += request.output_tokens
        self.count(request.stage, sent=1)

    def count(self, number: int, *, sent: int = 0, answered: int = 0, failed: int = 0) -> None:
        """Results of the requests of a stage."""
        stage = self.stages[number]
        self.stages[number] = replace(
            stage, sent=stage.sent + sent, answered=stage.answered + answered, failed=stage.failed + failed
        )

    def others_per_s(self) -> float:
        """Approximate background load, for stop conditions and the run at the knee."""
        known = [(at, n) for at, s in (self.readings[:1] + self.readings[-1:]) if (n := entered(s)) is not None]
        if len(known) < 2 or known[1][0] - known[0][0] < 1.0:
            return self.demand_per_s or 0.0
        own = sum(known[0][0] <= each.at_s < known[1][0] for each in self.requests.values())
        return max(0.0, (known[1][1] - known[0][1] - own) / (known[1][0] - known[0][0]))

    def modelled(self) -> Sequence[Reading]:
        """The readings that a model can rest on: not those of a page that leaves out a load which is known to be there."""
        return self.readings if self.demand_per_s is None or self._counted else ()

    def teller(self, stages: Sequence[Stage]) -> Teller | None:
        """Source of the background load in `settled` stages."""
        if all(stage.other_per_s is None for stage in stages):
            return None
        return "engine" if self._counted else "prometheus"

    def record(self, plan: Plan, *, reached: bool, cut: bool, spoilt: bool) -> Record:
        """Immutable record for an estimate."""
        asked = tuple(each.record() for each in sorted(self.requests.values(), key=lambda each: each.at_s))
        others, readings = tuple(self.others) or None, tuple(self.modelled())
        return Record(plan.slos, asked, self.settled(), readings, others, plan.lengths, reached, cut, spoilt)

    def settled(self) -> tuple[Stage, ...]:
        """The stages with their events and background load."""
        found: dict[int, dict[str, tuple[int, int]]] = {each.number: {} for each in self.stages}
        for request in self.requests.values():
            for name, (count, bad) in request.events.items() if request.valid else ():
                before = found[request.stage].get(name, (0, 0))
                found[request.stage][name] = (before[0] + count, before[1] + bad)
        counts = other_counts(
            Record((), tuple(each.record() for each in self.requests.values()), (), tuple(self.readings))
        )
        stages = []
        for stage in self.stages:
            within = [each for each in counts if each[0] >= stage.began_s and each[1] <= stage.ended_s]
            span_s = sum(end - begin for begin, end, _ in within)
            rate = max(0.0, sum(count for _, _, count in within) / span_s) if span_s > 0 else None
            other_per_s = rate if counts else self.demand_per_s
            stages.append(replace(stage, events=found[stage.number], other_per_s=other_per_s))
        return tuple(stages)

    @property
    def _counted(self) -> bool:
        """Background load from the engine's page."""
        return any(entered(signals) is not None for _, signals in self.readings)
