"""Refused requests, and how all verdicts count them.

A refused request (`Outcome.REJECTED`: a redirect, 400, 401, 413 and the like) may be the fault of the prober or the target. So it is
no event of any SLO. Throughput and goodput count it as offered but not answered. It is always reported. If more
than `MAX_REFUSED_RATIO` of the requests are refused, nothing is judged, because the answered requests do not represent all
offered ones.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from prober.measure.outcome import NEUTRAL, Outcome
from prober.measure.result import ProbeResult
from prober.statistics.sequential_test import ERROR, Observations, evidence

MAX_REFUSED_RATIO = 0.05
# Outcomes that say nothing about the target: the prober did not send, was over its budget, or ended the request.
NOT_COUNTED = NEUTRAL - {Outcome.REJECTED}


@dataclass(frozen=True, slots=True)
class RefusedRequests:
    """Number of refused requests, with reason and place. As text: "" if none was refused.

    requests: number of all requests, without outcomes in NOT_COUNTED
    reason: most frequent text of the server
    place: pattern of the refused requests: `from turn 6`, `only in rag_cold`, `only for adapter sql`; "" without one
    """

    refused: int = 0
    requests: int = 0
    reason: str = ""
    place: str = ""

    @property
    def is_too_many(self) -> bool:
        """True if more than MAX_REFUSED_RATIO are refused, so that nothing is judged."""
        return self.refused > MAX_REFUSED_RATIO * self.requests

    @property
    def are_surely_too_many(self) -> bool:
        """True if the evidence proves that too many requests are refused, whatever follows."""
        counts = Observations({1.0: self.refused, 0.0: self.requests - self.refused})
        return evidence(counts, MAX_REFUSED_RATIO) == "fails"

    def __str__(self) -> str:
        if not self.refused:
            return ""
        place = f", {self.place}" if self.place else ""
        return f"{self.refused:,} of {self.requests:,} requests refused: {self.reason}{place}"


def refused_requests(probes: Iterable[ProbeResult]) -> RefusedRequests:
    """Count the refused requests among these probes."""
    counted = [probe for probe in probes if probe.outcome not in NOT_COUNTED]
    refused = [probe for probe in counted if probe.outcome is Outcome.REJECTED]
    if not refused:
        return RefusedRequests(0, len(counted))
    by_kind: dict[str, list[str]] = {}  # texts that differ only in numbers are of one kind
    for probe in refused:
        by_kind.setdefault(re.sub(r"(?<!HTTP )\b\d+", "0", probe.detail), []).append(probe.detail.rstrip("."))
    most = max(by_kind.values(), key=len)
    reason = f"{'most often ' if len(by_kind) > 1 else ''}{most[0] or 'no reason given'}"
    return RefusedRequests(len(refused), len(counted), reason, _place(refused, counted))


def _place(refused: Sequence[ProbeResult], counted: Sequence[ProbeResult]) -> str:
    """Find the session turn from which requests are refused, or their series; and their adapters. "" if chance explains it."""

    def only(relation: str, name: Callable[[ProbeResult], str]) -> Iterator[str]:
        names = {name(probe) for probe in refused}
        if all(names) and _is_apart(refused, [probe for probe in counted if name(probe) in names], counted):
            yield f"only {relation} {', '.join(sorted(names))}"

    first = min(map(_turn, refused))
    later = [probe for probe in counted if _turn(probe) >= first > 1]
    is_by_turn = _is_apart(refused, later, counted)
    places = [f"from turn {first}"] if is_by_turn else only("in", lambda probe: probe.workload)
    return ", ".join((*places, *only("for adapter", lambda probe: probe.adapter)))


def _is_apart(refused: Sequence[ProbeResult], within: Sequence[ProbeResult], counted: Sequence[ProbeResult]) -> bool:
    """True if chance does not explain why all refused requests are among `within`."""
    return bool(within) and (len(within) / len(counted)) ** len(refused) <= ERROR


def _turn(probe: ProbeResult) -> int:
    """Number of the request's turn in its session; 0 without a session."""
    match = re.search(r"_turn(\d+)$", probe.workload)
    return int(match[1]) if match else 0
