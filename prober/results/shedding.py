"""Requests that the target shed: refused because of its load, with 429, or with 503 and `Retry-After`.

They are failures of the target, because users get them too, unlike the refused requests of `refused_requests`. Requests that the
prober does not send because of its own in-flight cap (`Outcome.SHED`) are not included.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prober.measure.outcome import ANSWERED, Outcome
from prober.measure.result import ProbeResult
from prober.results.refused_requests import NOT_COUNTED

SHED_STATUSES = "429, or 503 with Retry-After"
MIN_SENDING_S = 5.0  # for a shorter load only the share of shed requests is stated


def is_shed(probe: ProbeResult) -> bool:
    """True if the target refused the request because of its load."""
    is_busy = probe.outcome is Outcome.HTTP_5XX and probe.detail.startswith("HTTP 503")
    return probe.outcome is Outcome.HTTP_429 or (is_busy and probe.retry_after_s is not None)


def is_offered(probe: ProbeResult) -> bool:
    """True if the request ended after it reached the target or should have."""
    return probe.outcome not in NOT_COUNTED and probe.outcome is not Outcome.SHED


@dataclass(frozen=True, slots=True)
class SheddingOnset:
    """Rates of a sweep between which the target began to shed, with the numbers of ended requests. As text: a sentence.

    The warm-up is used only if nothing else was sent.

    upper_per_s: lowest rate at which requests were shed, `shed` of `requests`
    lower_per_s: highest rate below it, at which none of `unshed` requests was shed; None: no such rate
    """

    lower_per_s: float | None
    unshed: int
    upper_per_s: float
    shed: int
    requests: int

    def __str__(self) -> str:
        lower = "no lower rate was measured"
        if self.lower_per_s is not None:
            lower = f"at {self.lower_per_s:.3g}/s none of {self.unshed:,} was"
        at = (
            f"at {self.upper_per_s:.3g}/s the target shed {self.shed:,} of {self.requests:,} requests ({SHED_STATUSES})"
        )
        return f"{at}, {lower}"


def shedding_onset(stages: Iterable[tuple[float, Iterable[ProbeResult]]]) -> SheddingOnset | None:
    """Find where the target began to shed; None if it shed none. stages: (requests per second, probes)"""
    requests: dict[float, int] = {}
    shed: dict[float, int] = {}
    for rate_per_s, probes in stages:
        ended = [is_shed(probe) for probe in probes if is_offered(probe)]
        requests[rate_per_s] = requests.get(rate_per_s, 0) + len(ended)
        shed[rate_per_s] = shed.get(rate_per_s, 0) + sum(ended)
    upper_per_s = min((rate for rate, count in shed.items() if count), default=None)
    if upper_per_s is None:
        return None
    lower_per_s = max((rate for rate, count in requests.items() if count and rate < upper_per_s), default=None)
    unshed = requests[lower_per_s] if lower_per_s is not None else 0
    return SheddingOnset(lower_per_s, unshed, upper_per_s, shed[upper_per_s], requests[upper_per_s])


@dataclass(frozen=True, slots=True)
class Shedding:
    """Requests that the target shed while a load was sent.

    requests, shed, good: ended requests: all, shed, and answered without a bad event of any SLO
    sending_s: seconds in which they were sent
    beside: name of the stage whose requests in these seconds are included; "" for one stage alone
    """

    requests: int
    shed: int
    good: int
    sending_s: float
    beside: str

    def text(self) -> str:
        """The figures as a sentence without its full stop."""
        share = f"{self.shed:,} of {self.requests:,} requests shed ({100 * self.shed / self.requests:.3g}%; {SHED_STATUSES})"
        if self.beside:
            share = f"with those of {self.beside} meanwhile {share}"
        if self.sending_s < MIN_SENDING_S:
            return share
        rates = f"{self.good / self.sending_s:.3g}/s of {self.requests / self.sending_s:.3g}/s sent"
        return f"{share}, {self.good:,} good, a goodput of {rates}"


def shedding_of(
    probes: Iterable[ProbeResult],
    sending_s: float,
    is_good: Callable[[ProbeResult], bool | None],
    beside: str = "",
) -> Shedding | None:
    """Count these requests; None if none was shed."""
    ended = [probe for probe in probes if is_offered(probe)]
    shed = [probe for probe in ended if is_shed(probe)]
    if not shed:
        return None
    return Shedding(
        requests=len(ended),
        shed=len(shed),
        good=sum(probe.outcome in ANSWERED and is_good(probe) is True for probe in ended),
        sending_s=sending_s,
        beside=beside,
    )
