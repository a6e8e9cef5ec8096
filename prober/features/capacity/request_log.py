"""Requests and page readings of a running sweep, and the record made from them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal

from prober.features.capacity.actions import OtherLoad
from prober.features.capacity.request_record import RequestRecord
from prober.features.capacity.sweep_plan import Plan
from prober.features.capacity.sweep_record import Record, Stage, other_counts, other_load
from prober.measure.engine_signals import EngineSignals

Reading = tuple[float, EngineSignals]


@dataclass(slots=True)
class RequestLog:
    """Log of a running sweep.

    requests: of the sweep itself, by id, in the order of their due times
    open: those of them that are in flight
    readings: (seconds, engine signals) in the order of time; before: of the minutes before the sweep
    demand_per_s: background load before the sweep, as counted by another source
    prompt_tokens, output_tokens: totals as requested
    """

    requests: dict[str, RequestRecord] = field(default_factory=dict)
    open: dict[str, RequestRecord] = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)
    before: Sequence[Reading] = ()
    stages: list[Stage] = field(default_factory=list)
    demand_per_s: float | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0

    def sent(self, request_id: str, request: RequestRecord) -> None:
        """Add a request."""
        self.requests[request_id] = self.open[request_id] = request
        self.prompt_tokens += request.prompt_tokens
        self.output_tokens += request.output_tokens
        self.count(request.stage, "sent")

    def count(self, number: int, kind: Literal["sent", "answered", "failed", "refused"]) -> None:
        """Add a request to the counts of a stage."""
        stage = self.stages[number]
        self.stages[number] = replace(stage, **{kind: getattr(stage, kind) + 1})

    def others_per_s(self) -> float:
        """Approximate background load, for stop conditions and the begin of a climb."""
        known = [
            (at, n) for at, s in (self.readings[:1] + self.readings[-1:]) if (n := s.requests_arrived_total) is not None
        ]
        if len(known) < 2 or known[1][0] - known[0][0] < 1.0:
            return self.demand_per_s or 0.0
        own = sum(known[0][0] <= request.at_s < known[1][0] for request in self.requests.values())
        return max(0.0, (known[1][1] - known[0][1] - own) / (known[1][0] - known[0][0]))

    def modelled(self) -> Sequence[Reading]:
        """The readings for a model; none if the page does not count a background load that is known to exist."""
        return self.readings if self.demand_per_s is None or self._counted else ()

    def others(self) -> OtherLoad | None:
        """The background load over the sweep; None: unknown."""
        if self._counted:
            load = other_load(self._observed)
            return OtherLoad(*load, "engine") if load is not None else None
        return OtherLoad(self.demand_per_s, self.demand_per_s, "prometheus") if self.demand_per_s is not None else None

    def record(self, plan: Plan, *, reached: bool, cut: bool, until_stage: int | None = None) -> Record:
        """Record for an estimate, which later events do not change. until_stage: it and later ones are left out, None: none is"""
        stages = self.settled()[:until_stage]
        until_s = self.stages[len(stages)].began_s if len(stages) < len(self.stages) else inf
        requests = tuple(
            replace(request)
            for request in sorted(self.requests.values(), key=lambda request: request.at_s)
            if request.stage < len(stages)
        )
        readings = [*self.before, *self.modelled()] if self._continues_before else self.modelled()
        readings = tuple(reading for reading in readings if reading[0] < until_s)
        return Record(plan.slos, requests, stages, readings, plan.lengths, reached, cut)

    def settled(self) -> tuple[Stage, ...]:
        """The stages with their events and background load."""
        events: dict[int, dict[str, tuple[int, int]]] = {stage.number: {} for stage in self.stages}
        for request in self.requests.values():
            for name, (count, bad) in request.events.items() if request.valid else ():
                before = events[request.stage].get(name, (0, 0))
                events[request.stage][name] = (before[0] + count, before[1] + bad)
        counts, others = other_counts(self._observed), self.others()
        is_seen = others is not None and others.least_per_s > 0
        stages = []
        for stage in self.stages:
            within = [count for count in counts if count[0] >= stage.began_s and count[1] <= stage.ended_s]
            span_s = sum(end - begin for begin, end, _ in within)
            rate = max(0.0, sum(count for _, _, count in within) / span_s) if span_s > 0 else None
            # If nothing shows other use of the engine, the counts are own requests that travel during a reading.
            other_per_s = self.demand_per_s if not counts else rate if is_seen or rate is None else 0.0
            stages.append(replace(stage, events=events[stage.number], other_per_s=other_per_s))
        return tuple(stages)

    @property
    def _observed(self) -> Record:
        return Record((), tuple(self.requests.values()), (), tuple(self.readings))

    @property
    def _continues_before(self) -> bool:
        """True if the first reading of the sweep is of the same process and the same engine as those before it."""
        if not (self.before and self.readings) or not self.modelled():
            return False
        (before_s, before), (at_s, first) = self.before[-1], self.readings[0]
        tokens_before, tokens = before.generation_tokens_total, first.generation_tokens_total
        is_continued = tokens_before is not None and tokens is not None and tokens_before <= tokens
        return is_continued and before_s < at_s and before.info == first.info

    @property
    def _counted(self) -> bool:
        """True if the engine's page shows the background load."""
        return any(signals.requests_arrived_total is not None for _, signals in self.readings)
