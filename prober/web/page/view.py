"""The values that a page of the prober shows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prober.measure.outcome import BAD, Outcome
from prober.measure.result import ProbeResult
from prober.measure.target_state import TargetEvent
from prober.statistics.quantiles import Quantile
from prober.web.targets import ConcernAnswer, Kind, Problem, TargetAnswer, headline

RECENT = 40  # probes of a target that are drawn
AT_ONCE = 100  # targets on one page
FAILED = "failed"
MAX_NAME_CHARS = 200


@dataclass(frozen=True, slots=True)
class ProbeFilter:
    """Filter of the probes on a page.

    outcome: an outcome, FAILED for all outcomes that count against the target, "" for any
    workload: a workload, "" for any
    """

    outcome: str = ""
    workload: str = ""

    @classmethod
    def of_query(cls, query: Mapping[str, str]) -> "ProbeFilter":
        """Filter from the parameters `outcome` and `workload`. Raises ValueError with the remedy."""
        outcome, workload = query.get("outcome", ""), query.get("workload", "")
        if outcome not in ("", FAILED, *Outcome):
            outcomes = ", ".join((FAILED, *Outcome))
            raise ValueError(f"outcome={outcome[:MAX_NAME_CHARS]!r} is not known; there are: {outcomes}")
        if len(workload) > MAX_NAME_CHARS:
            raise ValueError(f"workload has more than {MAX_NAME_CHARS} characters")
        return cls(outcome, workload)

    def takes(self, result: ProbeResult) -> bool:
        """True if the filter includes this probe."""
        has_outcome = result.outcome in BAD if self.outcome == FAILED else self.outcome in ("", result.outcome)
        return has_outcome and self.workload in ("", result.workload)


ALL = ProbeFilter()


@dataclass(frozen=True, slots=True)
class PageView:
    """A page at one moment: all targets, or one target in detail.

    targets: targets on this page, worst first
    concerns: the most important fact about each target, worst first
    matching: number of targets that pass the filter
    probes: the latest probes that pass `probe_filter`
    filter_text: text of the filter for targets; chosen: requested target; probe_filter: filter for probes
    is_target_page: True if the first of `targets` is shown in detail
    page: number of this page, from 1, of `pages`
    receive_delay: p99 of the time from the kernel's stamp until the bytes were read, in seconds; None before the first read
    reads: numbers of reads since the start (stamped by the kernel, stamped only by this process)
    admin: actions are enabled
    shard: shard of this prober, such as 1/3; "" without shards
    configured: number of targets of all shards
    grafana_url: base of the dashboards' addresses; empty without a Grafana
    """

    at_unix_s: float
    targets: Sequence[TargetAnswer]
    concerns: Sequence[ConcernAnswer]
    matching: int
    events: Sequence[TargetEvent]
    probes: Sequence[ProbeResult]
    receive_delay: Quantile | None = None
    reads: tuple[int, int] = (0, 0)
    admin: bool = False
    version: str = ""
    filter_text: str = ""
    chosen: str = ""
    probe_filter: ProbeFilter = ALL
    is_target_page: bool = False
    page: int = 1
    pages: int = 1
    shard: str = ""
    configured: int = 0
    problems: Sequence[Problem] = ()
    grafana_url: str = ""

    @property
    def total(self) -> int:
        """Number of all targets, on this page or not."""
        return len(self.concerns)

    @property
    def headline(self) -> tuple[Kind, str]:
        """The most important fact about all targets."""
        return headline(self.concerns, shard=self.shard, configured=self.configured)
