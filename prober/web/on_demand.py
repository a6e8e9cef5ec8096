"""Probes on request: one probe now, for a person or a tool, in addition to the schedule and never at its expense.

They have their own slots, and one rate limit for the whole prober. They change no state of scheduled probes (the target's
slots, state and warm-up), and use only what the schedule leaves of a budget.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from weakref import WeakKeyDictionary

from prober.config.target import ProbeSpec, needs_of
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.probing.fleet import Fleet
from prober.probing.probe import run_probe
from prober.probing.target import Target
from prober.probing.target_runner import TargetRunner
from prober.web.token_bucket import Rates, TooMany
from prober.workload.budget import BudgetDemand
from prober.workload.workloads import RequestGenerator

PROBES_PER_S, PROBES_BURST = 1.0, 5
MAX_IN_FLIGHT, MAX_IN_FLIGHT_PER_TARGET = 16, 2
OVER_BUDGET = "nothing was sent: probes on request have used what the schedule leaves of the last 24 hours' budget"


class OnRequest:
    """Sends probes on request. now: returns the seconds of a clock"""

    def __init__(self, fleet: Fleet) -> None:
        self.now: Callable[[], float] = time.monotonic
        self._fleet = fleet
        self._rate = Rates(PROBES_PER_S, PROBES_BURST)
        self._in_flight: Counter[str] = Counter()  # by key of the target
        self._needs: WeakKeyDictionary[Target, dict[str, BudgetDemand]] = WeakKeyDictionary()  # what the schedules need

    async def probe(self, runner: TargetRunner, probe: ProbeSpec, limit_s: float | None) -> ProbeResult | None:
        """Send one probe to a target, as `probe` configures it. Returns None, without sending, while the engine loads or drains.

        limit_s: limits each of the target's timeouts, so that the outcome names the phase that took too long. Raises TooMany, and
            TimeoutError if anything else takes longer than the limit; a request may have been sent by then.
        """
        key = runner.target.spec.key
        if self._in_flight[key] >= MAX_IN_FLIGHT_PER_TARGET:
            raise TooMany(
                1.0, f"nothing was sent: {MAX_IN_FLIGHT_PER_TARGET} probes on request of this target are in flight"
            )
        if self._in_flight.total() >= MAX_IN_FLIGHT:
            raise TooMany(1.0, f"nothing was sent: {MAX_IN_FLIGHT} probes on request are in flight")
        if wait_s := self._rate.take("", self.now()):
            raise TooMany(wait_s, f"nothing was sent: more than {PROBES_PER_S:g} probes on request a second")
        self._in_flight[key] += 1
        try:
            target = runner.target
            beside, own = target.beside(), target.spec.timeouts
            limit = limit_s if limit_s is not None else own.total + own.connect
            lead = min(target.spec.connect_lead, 0.1, limit / 4)
            bounded = {name: min(timeout, limit - lead) for name, timeout in own}
            beside.spec = target.spec.model_copy(update={"timeouts": own.model_copy(update=bounded)})
            if target not in self._needs:
                self._needs[target] = needs_of(target.spec)
            beside.protected_demand = self._needs[target]
            drawer = RequestGenerator(probe.workload, self._fleet.rng)
            due = self._fleet.context.clock.now_ns() + round(lead * 1e9)
            result = await asyncio.wait_for(run_probe(beside, drawer, due), limit + lead)
            if result is not None and result.outcome is Outcome.OVER_BUDGET:
                return replace(result, detail=OVER_BUDGET)
            return result
        finally:
            self._in_flight -= Counter([key])  # drops zero counts
