"""The last probes of targets: all, or those that a reader asks for by outcome and workload."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from prober.measure.outcome import BAD, Outcome
from prober.measure.result import ProbeResult
from prober.probing.history import TargetHistory, latest_first

FAILED = "failed"
MAX_NAME_CHARS = 200
LOOKED_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class ProbeFilter:
    """Which probes a reader asks for.

    outcome: an outcome, FAILED for all that count against the target, empty for any
    workload: empty for any
    """

    outcome: str = ""
    workload: str = ""

    @classmethod
    def of_query(cls, query: Mapping[str, str]) -> "ProbeFilter":
        """From the parameters `outcome` and `workload`. Raises ValueError with the remedy."""
        outcome, workload = query.get("outcome", ""), query.get("workload", "")
        if outcome not in ("", FAILED, *Outcome):
            known = ", ".join((FAILED, *Outcome))
            raise ValueError(f"outcome={outcome[:MAX_NAME_CHARS]!r} is not known; there are: {known}")
        if len(workload) > MAX_NAME_CHARS:
            raise ValueError(f"workload has more than {MAX_NAME_CHARS} characters")
        return cls(outcome, workload)

    @property
    def takes_all(self) -> bool:
        """Whether no probe is left out."""
        return not self.outcome and not self.workload

    def takes(self, result: ProbeResult) -> bool:
        """Whether the reader asks for this probe."""
        has_outcome = result.outcome in BAD if self.outcome == FAILED else self.outcome in ("", result.outcome)
        return has_outcome and self.workload in ("", result.workload)


ALL = ProbeFilter()


async def last_probes(
    histories: Iterable[TargetHistory], probe_filter: ProbeFilter, most: int
) -> Iterator[ProbeResult]:
    """At most `most` remembered probes of these targets, latest first. Yields to the event loop."""
    at_once = min(most, LOOKED_AT_ONCE) if probe_filter.takes_all else LOOKED_AT_ONCE
    snapshots = list[list[ProbeResult]]()
    for history in histories:
        taken, recent = list[ProbeResult](), history.recent()
        while len(taken) < most and (next_ones := list(islice(recent, at_once))):
            taken += filter(probe_filter.takes, next_ones)
            await asyncio.sleep(0)
        snapshots.append(taken)
    return islice(latest_first(snapshots), most)
