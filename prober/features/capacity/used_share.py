"""The share of an engine that a load uses, by the capacities that sweeps found and by what users saw.

A request takes a share of the engine that depends on its prompt and output tokens (`Mix.cost`). The used share is the demand × that
cost ÷ the capacity.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import exp, hypot, log
from types import MappingProxyType

from prober.features.capacity.forecast import Load
from prober.features.capacity.windows import Slow, Window, shift
from prober.results.capacity import Capacity, Z, pooled

HALF_WIDTH = Z[0.9]  # of the interval, in standard errors
ERROR_OF_OTHER_REQUESTS = 1.0  # of the log of the users' knee by a sweep of other requests


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower bound, estimate and upper bound; None if unknown."""

    lower: float | None = None
    estimate: float | None = None
    upper: float | None = None


class UsedShare:
    """Share of the engine that a load uses, for the SLO that is worst off.

    capacities: one per SLO, of the last sweep that found some; earlier: of earlier sweeps of the same engine
    budgets: share of bad events that each SLO allows; windows: of production
    is_like_users: the sweeps sent requests like the users' own, so that what users saw says something about them
    """

    def __init__(
        self,
        capacities: Sequence[Capacity] = (),
        earlier: Sequence[Capacity] = (),
        budgets: Mapping[str, float] = MappingProxyType({}),
        windows: Sequence[Window] = (),
        *,
        is_like_users: bool = False,
    ) -> None:
        self.capacities, self._earlier, self._is_like_users = capacities, earlier, is_like_users
        self._moved: dict[str, tuple[float, float]] = {}  # shift of the log of the knee by the windows, its error
        for capacity in capacities:
            rows: list[tuple[float, Slow]] = []
            error = 0.0
            for window in windows:
                if capacity.slo in window.counts and (by_sweeps := self._by_sweeps(capacity, window.load)) is not None:
                    rows.append(
                        (by_sweeps[0] + log(max(1e-9, window.load.requests_per_s)), window.counts[capacity.slo])
                    )
                    error = by_sweeps[1] if is_like_users else hypot(by_sweeps[1], ERROR_OF_OTHER_REQUESTS)
            if rows and capacity.slo in budgets:
                self._moved[capacity.slo] = shift(rows, budgets[capacity.slo], capacity.slope, error)

    def _by_sweeps(self, capacity: Capacity, load: Load) -> tuple[float, float] | None:
        """(log of the share that one request per second of this size uses, its error), by all sweeps; None without an estimate."""
        logs, errors = [], []
        for of in (capacity, *(of for of in self._earlier if of.slo == capacity.slo)):
            if of.mix is not None and of.estimate is not None and of.log_error is not None:
                cost, error = of.mix.cost(load.prompt_tokens, load.output_tokens)
                logs.append(log(cost / of.estimate))
                errors.append(hypot(of.log_error, error))
        return pooled(logs, errors) if logs else None

    def of(self, load: Load, users_slos: Collection[str] | None = None) -> Bounds:
        """Bounds of the used share; Bounds() if unknown. users_slos: as the users saw these SLOs; None: all SLOs of the sweeps

        Beside an SLO without enough data only the lower bound is known, because that SLO may fail at a lower rate.
        """
        lowers, estimates, uppers, is_complete = [], [], [], True
        for capacity in self.capacities:
            if users_slos is not None and capacity.slo not in users_slos:
                continue
            by_sweeps = self._by_sweeps(capacity, load)
            if by_sweeps is not None:
                log_share, error = by_sweeps
                if capacity.slo in self._moved and (users_slos is not None or self._is_like_users):
                    moved, error = self._moved[capacity.slo]
                    log_share -= moved
                share = load.requests_per_s * exp(log_share)
                estimates.append(share)
                bounds: tuple[float | None, float | None] = (share, share)
            elif capacity.mix is not None:
                cost, error = capacity.mix.cost(load.prompt_tokens, load.output_tokens)
                uses = [per_s and load.requests_per_s * cost / per_s for per_s in (capacity.upper, capacity.lower)]
                bounds = (uses[0], uses[1])
            else:
                bounds, error = (None, None), 0.0
            factor = exp(HALF_WIDTH * hypot(error, load.log_error))
            is_complete = is_complete and bounds[1] is not None
            lowers += [] if bounds[0] is None else [bounds[0] / factor]
            uppers += [] if bounds[1] is None else [bounds[1] * factor]
        if not lowers:  # nothing is known to fail
            return Bounds()
        if not is_complete:
            return Bounds(lower=max(lowers))
        return Bounds(max(lowers), max(estimates, default=None), max(uppers))
