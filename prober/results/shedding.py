"""Requests that the target shed: refused because of its load, with 429, or with 503 and `Retry-After`.

They are failures of the target, as its users get them too, unlike the refused requests of `refused_requests`. A request that the prober
does not send at its own in-flight cap (`Outcome.SHED`) is none of them.

**Truth of `Retry-After`.** Each shed request names a time. Two figures compare it with what the target did to the requests that were
sent anyway: how long after the refusal the first one was sent that was answered, and the share answered of the requests that came first
after a named time, within RETRY_S. A request that came first after several named times counts once.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from prober.measure.outcome import ANSWERED, Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import format_duration
from prober.results.refused_requests import NOT_COUNTED

SHED_STATUSES = "429, or 503 with Retry-After"
MIN_SENDING_S = 5.0  # of a shorter load only the share of requests that were shed is told
RETRY_S = 1.0  # after a named time; a request that comes later shows nothing about it
Spread = tuple[float, float, float]


def is_shed(probe: ProbeResult) -> bool:
    """True if the target refused the request because of its load."""
    is_busy = probe.outcome is Outcome.HTTP_5XX and probe.detail.startswith("HTTP 503")
    return probe.outcome is Outcome.HTTP_429 or (is_busy and probe.retry_after_s is not None)


def is_offered(probe: ProbeResult) -> bool:
    """True if the request reached the target or should have, and ended."""
    return probe.outcome not in NOT_COUNTED and probe.outcome is not Outcome.SHED


@dataclass(frozen=True, slots=True)
class SheddingOnset:
    """Rates of a sweep between which the target began to shed, with the numbers of requests that ended. As text: a sentence.

    Of the warm-up only if nothing else was sent.

    upper_per_s: lowest rate at which requests were shed, `shed` of `requests`
    lower_per_s: highest rate below it, at which none of `unshed` requests was shed; None: there is none
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
    """Returns where the target began to shed; None if it shed none. stages: (requests per second, probes) of each stage"""
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
    """Requests that the target shed while a load was sent. `Spread`: least, median and most seconds.

    requests, shed, good: numbers of requests that ended: all, shed, and answered without a bad event of any SLO
    sending_s: seconds in which they were sent
    named: number of shed requests whose answer named a time to wait; stated_s: these times
    waited_s: from such an answer until the first request was sent that was answered; None if no later one was
    never: number of such answers after which no request was answered
    retried, retried_answered: numbers of requests that came first after a named time, and of those that were answered
    beside: name of the stage whose requests in these seconds are among them; "" for those of one stage only
    """

    requests: int
    shed: int
    good: int
    sending_s: float
    named: int
    stated_s: Spread | None
    waited_s: Spread | None
    never: int
    retried: int
    retried_answered: int
    beside: str

    def text(self) -> str:
        """The figures as a sentence without a full stop at the end."""
        share = f"{self.shed:,} of {self.requests:,} requests shed ({100 * self.shed / self.requests:.3g}%; {SHED_STATUSES})"
        if self.beside:
            share = f"with those of {self.beside} meanwhile {share}"
        if self.sending_s < MIN_SENDING_S:
            return share
        rates = f"{self.good / self.sending_s:.3g}/s of {self.requests / self.sending_s:.3g}/s sent"
        share = f"{share}, {self.good:,} good, a goodput of {rates}"
        if self.stated_s is None:
            return f"{share}. No time to wait was named"
        facts = [f"{self.named:,} named a time to wait: {_spread(self.stated_s)}"]
        if self.waited_s is not None:
            facts.append(f"the first request answered later was sent after {_spread(self.waited_s)}")
        if self.never:
            facts.append(f"after {self.never:,} none was answered before the sending ended")
        retried = (
            f"{self.retried_answered:,} of {self.retried:,} requests that came first after a named time were answered"
        )
        facts.append(retried if self.retried else f"no request came within {RETRY_S:g} s after a named time")
        return f"{share}. {'; '.join(facts)}"


def shedding_of(
    probes: Iterable[ProbeResult],
    sending_s: float,
    is_good: Callable[[ProbeResult], bool | None],
    later: Iterable[ProbeResult],
    beside: str = "",
) -> Shedding | None:
    """Returns the figures of these requests; None if none was shed.

    later: requests to the same limit of the target, in which those that were sent after a shed one are looked up
    """
    ended = [probe for probe in probes if is_offered(probe)]
    shed = [probe for probe in ended if is_shed(probe)]
    if not shed:
        return None
    sent = sorted(
        (probe.timeline.sent_ns, probe.outcome in ANSWERED)
        for probe in later
        if is_offered(probe) and probe.timeline.sent_ns is not None
    )
    answered_ns = [sent_ns for sent_ns, is_answered in sent if is_answered]
    stated_s: list[float] = []
    waited_s: list[float] = []
    first_after: set[int] = set()  # places in `sent`
    for probe in shed:
        end_ns = probe.timeline.end_ns or probe.timeline.headers_ns
        if probe.retry_after_s is None or end_ns is None:
            continue
        stated_s.append(probe.retry_after_s)
        waited_s += [(sent_ns - end_ns) / 1e9 for sent_ns in answered_ns[bisect_left(answered_ns, end_ns) :][:1]]
        named_ns = end_ns + round(probe.retry_after_s * 1e9)
        place = bisect_left(sent, (named_ns, False))
        if place < len(sent) and sent[place][0] <= named_ns + RETRY_S * 1e9:
            first_after.add(place)
    return Shedding(
        requests=len(ended),
        shed=len(shed),
        good=sum(probe.outcome in ANSWERED and is_good(probe) is True for probe in ended),
        sending_s=sending_s,
        named=len(stated_s),
        stated_s=_of(stated_s),
        waited_s=_of(waited_s),
        never=len(stated_s) - len(waited_s),
        retried=len(first_after),
        retried_answered=sum(sent[place][1] for place in first_after),
        beside=beside,
    )


def _of(seconds: Sequence[float]) -> Spread | None:
    return (min(seconds), median(seconds), max(seconds)) if seconds else None


def _spread(spread: Spread) -> str:
    least, middle, most = map(format_duration, spread)
    return middle if least == most else f"{middle} ({least} to {most})"
