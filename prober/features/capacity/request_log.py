"""Requests, stages and page readings of a running sweep: the rows of its record, and conclusions so far."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from prober.features.capacity.actions import OtherLoad
from prober.features.capacity.sweep_record import (
    SETTLED_SHARE,
    Phase,
    Reading,
    Record,
    RequestRecord,
    Stage,
    mean_per_s,
    observed,
    other_counts,
    other_load,
    settled_requests,
)
from prober.measure.objective import Slo
from prober.statistics.sequential_test import ERROR, evidence, min_observations

MAX_LOOK_BACK = 500  # requests searched for the last judged ones
# In any ramp, in-flight grows until the first answers end: it is judged over at least this time.
MIN_GROWTH_S = 20.0
MIN_COMPLETED_RATIO = 0.8  # of the arrivals
MIN_EXCESS_SIGMAS = 4  # of arrivals over completions, in standard deviations of a Poisson count
MAX_RATE_REPEATS = 3  # of the requests that at best prove an objective: how long the highest rate is held


@dataclass(slots=True)
class RequestLog:
    """Log of a running sweep.

    before: readings in the minutes before the sweep
    demand_per_s: background load before the sweep, as counted by another source
    requests: the sweep's requests by id, in order of due times
    open: those in flight
    readings: (seconds, engine signals) in order of time
    prompt_tokens, output_tokens: totals as requested
    """

    slos: tuple[Slo, ...]
    before: Sequence[Reading] = ()
    demand_per_s: float | None = None
    requests: dict[str, RequestRecord] = field(default_factory=dict)
    open: dict[str, RequestRecord] = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0

    @property
    def stage(self) -> Stage:
        """The last stage."""
        return self.stages[-1]

    @property
    def waits(self) -> bool:
        """True if requests wait for capacity in the engine."""
        return bool(self.readings and self.readings[-1][1].requests_queued)

    def sent(self, request_id: str, request: RequestRecord) -> None:
        """Add a sent request."""
        self.requests[request_id] = self.open[request_id] = request
        self.prompt_tokens += request.prompt_tokens
        self.output_tokens += request.output_tokens
        self.stages[request.stage].sent += 1

    # -- judgement of the last stage

    def latest_breaches(self, phase: Phase, count: int) -> list[bool]:
        """The last `count` judged requests of a phase, latest first: True for a breach."""
        latest: list[bool] = []
        for request in islice(reversed(self.requests.values()), MAX_LOOK_BACK):
            if self.stages[request.stage].phase != phase or len(latest) == count:
                break
            if request.breached or request.counted:
                latest.append(request.breached)
        return latest

    def falls_behind(self) -> bool:
        """True if, in the second half of a long stage, requests arrive faster than they complete, beyond chance.

        Until the stage has lasted as long as 90% of its answers so far, completions come from requests at a lower rate.
        """
        stage, requests = self.stage, self.requests.values()
        at_s, of_stage = stage.ended_s, [request for request in requests if request.stage == stage.number]
        durations_s = sorted((at_s if request.end_s is None else request.end_s) - request.at_s for request in of_stage)
        settled_s = durations_s[round(SETTLED_SHARE * (len(durations_s) - 1))] if durations_s else 0.0
        from_s = max((stage.began_s + at_s) / 2, stage.began_s + settled_s)
        if at_s - from_s < MIN_GROWTH_S:
            return False
        arrived = sum(request.at_s >= from_s for request in requests)
        completed = sum(request.end_s is not None and request.end_s >= from_s for request in requests)
        is_excess = arrived - completed > MIN_EXCESS_SIGMAS * math.sqrt(arrived)
        return is_excess and completed < MIN_COMPLETED_RATIO * arrived

    def needs_more_events(self) -> bool:
        """True until the last stage's events prove that every SLO holds, or are several times the minimum for a proof."""
        stage, requests = self.stage, list(self.requests.values())
        at_best = max(min_observations(float(slo.error_budget_ratio), ERROR) for slo in self.slos)
        sent = settled_requests(stage, requests, [request for request in requests if request.stage == stage.number])
        if len(sent) >= MAX_RATE_REPEATS * at_best:
            return False
        valid = [request for request in sent if request.valid]
        return any(
            evidence(
                observed(slo, [(*request.events.get(slo.name, (0, 0)), request.output_tokens) for request in valid]),
                float(slo.error_budget_ratio),
            )
            != "holds"
            for slo in self.slos
        )

    # -- load of others

    def others_per_s(self) -> float:
        """Background load so far, in requests per second, for stop conditions."""
        counted = mean_per_s(other_counts(self.requests.values(), (*self.readings[:1], *self.readings[-1:])))
        return max(0.0, counted) if counted is not None else self.demand_per_s or 0.0

    def modelled(self) -> Sequence[Reading]:
        """Readings that a model may use; none if there is background load that the page does not count."""
        return self.readings if self.demand_per_s is None or self._is_counted else ()

    def others(self) -> OtherLoad | None:
        """Background load during the sweep; None: unknown."""
        if self._is_counted:
            load = other_load(list(self.requests.values()), self.readings)
            return OtherLoad(*load, "engine") if load is not None else None
        return OtherLoad(self.demand_per_s, self.demand_per_s, "prometheus") if self.demand_per_s is not None else None

    # -- the record

    def record(
        self, lengths: tuple[tuple[int, int], ...], *, reached: bool, cut: bool, until_stage: int | None = None
    ) -> Record:
        """Record for an estimate, unchanged by later events. until_stage: first stage to leave out; None: none"""
        stages = self.final_stages()[:until_stage]
        until_s = self.stages[len(stages)].began_s if len(stages) < len(self.stages) else math.inf
        requests = tuple(
            replace(request)
            for request in sorted(self.requests.values(), key=lambda request: request.at_s)
            if request.is_sent and request.stage < len(stages)
        )
        readings = [*self.before, *self.modelled()] if self._continues_before else self.modelled()
        readings = tuple(reading for reading in readings if reading[0] < until_s)
        return Record(self.slos, requests, stages, readings, lengths, reached, cut)

    def final_stages(self) -> tuple[Stage, ...]:
        """The stages with events and background load, unchanged by later events."""
        events: dict[int, dict[str, tuple[int, int]]] = {stage.number: {} for stage in self.stages}
        for request in self.requests.values():
            for name, (count, bad) in request.events.items() if request.valid else ():
                before = events[request.stage].get(name, (0, 0))
                events[request.stage][name] = (before[0] + count, before[1] + bad)
        counts, others = other_counts(self.requests.values(), self.readings), self.others()
        is_seen = others is not None and others.least_per_s > 0
        stages = []
        for stage in self.stages:
            within = [count for count in counts if count.from_s >= stage.began_s and count.to_s <= stage.ended_s]
            rate = mean_per_s(within)
            # Without evidence of other use, the counts are own requests on their way during a reading.
            counted = rate if rate is None else max(0.0, rate) if is_seen else 0.0
            other_per_s = counted if counts else self.demand_per_s
            stages.append(replace(stage, events=events[stage.number], other_per_s=other_per_s))
        return tuple(stages)

    @property
    def _continues_before(self) -> bool:
        """True if the sweep's first reading is of the same process and engine as the readings before the sweep."""
        if not (self.before and self.readings) or not self.modelled():
            return False
        (before_s, before), (at_s, first) = self.before[-1], self.readings[0]
        tokens_before, tokens = before.generation_tokens_total, first.generation_tokens_total
        is_continued = tokens_before is not None and tokens is not None and tokens_before <= tokens
        return is_continued and before_s < at_s and before.info == first.info

    @property
    def _is_counted(self) -> bool:
        """True if the engine's page shows the background load."""
        return any(signals.requests_arrived_total is not None for _, signals in self.readings)
