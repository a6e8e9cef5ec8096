"""The lengths of users' requests, from histograms on the engine's page, and the workload of requests like them."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

from prober.measure.engine_signals import EngineHistogram, EngineSignals
from prober.workload.shapes import Empirical
from prober.workload.workloads import Prefix, Workload

NAME = "requests like the users' own"  # of the workload, before their time
HOUR_S, DAY_HOURS, KEPT_HOURS = 3_600, 24, 7 * 24
MIN_REQUESTS = 50  # for a distribution of lengths
MAX_ANSWER_SHARE = 0.5  # of the context
MIN_CACHED_SHARE = 0.05  # of the prompt tokens, to send prompts with a shared beginning
SUMS = ("prompt_sum", "output_sum", "prompt_tokens", "cached_tokens")


@dataclass(slots=True)
class Tally:
    """Requests by length. Counts are by bucket, not cumulative; sums and tokens are totals over the same time.

    prompts, outputs: finished requests by bucket of prompt and output tokens
    prompt_tokens, cached_tokens: computed and cached prompt tokens together, and cached ones
    """

    prompts: list[float]
    outputs: list[float]
    prompt_sum: float = 0.0
    output_sum: float = 0.0
    prompt_tokens: float = 0.0
    cached_tokens: float = 0.0

    def add(self, other: "Tally", sign: int = 1) -> None:
        """Add the requests of another tally, or subtract them."""
        for mine, theirs in ((self.prompts, other.prompts), (self.outputs, other.outputs)):
            mine[:] = [a + sign * b for a, b in zip(mine, theirs, strict=True)]
        for name in SUMS:
            setattr(self, name, getattr(self, name) + sign * getattr(other, name))

    @property
    def requests(self) -> float:
        """Number of requests."""
        return sum(max(0.0, count) for count in self.outputs)


@dataclass(slots=True)
class UsersRequests:
    """Lengths of users' requests in each hour of the last week. hours: by hours since 1970; a page with other buckets begins anew"""

    prompt_bounds: tuple[float, ...] = ()
    output_bounds: tuple[float, ...] = ()
    hours: dict[int, Tally] = field(default_factory=dict)

    def take(self, unix_s: float, before: EngineSignals, now: EngineSignals) -> None:
        """Add what the page counted between two readings."""
        then, tally = self._tally(before), self._tally(now)
        if then is None or tally is None:
            return
        tally.add(then, -1)
        hour = int(unix_s // HOUR_S)
        self._of(hour).add(tally)
        for old in [of for of in self.hours if of <= hour - KEPT_HOURS]:
            del self.hours[old]

    def sent(self, unix_s: float, prompt_tokens: int, output_tokens: int) -> None:
        """Subtract an answered request of the prober itself."""
        if self.output_bounds:
            tally = self._of(int(unix_s // HOUR_S))
            tally.prompts[bisect_left(self.prompt_bounds, prompt_tokens)] -= 1
            tally.outputs[bisect_left(self.output_bounds, output_tokens)] -= 1
            tally.prompt_sum -= prompt_tokens
            tally.output_sum -= output_tokens
            tally.prompt_tokens -= prompt_tokens

    def workload(self, unix_s: float, latest: EngineSignals) -> Workload | None:
        """Requests like those of users in the same hour of the last days; None if they are unknown.

        If these are few it is those of the whole week, or else all since the engine's start. The share of cached prompt tokens becomes
        that of a beginning that all prompts share.
        """
        page, hour = self._tally(latest), int(unix_s // HOUR_S) % DAY_HOURS
        alike = [tally for of, tally in self.hours.items() if of % DAY_HOURS == hour]
        for period, tallies in (
            (f"from {hour:02}:00 to {hour + 1:02}:00 UTC", alike),
            ("in the last 7 days", list(self.hours.values())),
            ("since the engine's start", [page] if page is not None else []),
        ):
            if sum(tally.requests for tally in tallies) >= MIN_REQUESTS:
                return self._workload(f"{NAME} {period}", tallies, latest.context_tokens)
        return None

    def _workload(self, name: str, tallies: Sequence[Tally], context_tokens: float | None) -> Workload | None:
        total = Tally([0.0] * len(tallies[0].prompts), [0.0] * len(tallies[0].outputs))
        for tally in tallies:
            total.add(tally)
        most = MAX_ANSWER_SHARE * context_tokens if context_tokens else None
        prompts = lengths(self.prompt_bounds, total.prompts, total.prompt_sum, most)
        outputs = lengths(self.output_bounds, total.outputs, total.output_sum, most)
        if prompts is None or outputs is None:
            return None
        share = total.cached_tokens / total.prompt_tokens if total.prompt_tokens > 0 else 0.0
        if share < MIN_CACHED_SHARE:
            return Workload(name, prompts, outputs)
        prefix = Prefix(shared_tokens(prompts, share), 1.0)
        return Workload(f"{name}, {share:.0%} of the prompt tokens cached", prompts, outputs, prefix)

    def _tally(self, signals: EngineSignals) -> Tally | None:
        """The totals of a page; None without both histograms."""
        prompts, outputs = signals.prompt_tokens, signals.output_tokens
        if prompts is None or outputs is None or prompts.sum is None or outputs.sum is None:
            return None
        if (prompts.bounds, outputs.bounds) != (self.prompt_bounds, self.output_bounds):
            self.prompt_bounds, self.output_bounds, self.hours = prompts.bounds, outputs.bounds, {}
        tokens, cached = signals.prompt_tokens_total or 0.0, signals.prefix_cache_hits_tokens_total or 0.0
        return Tally(by_bucket(prompts), by_bucket(outputs), prompts.sum, outputs.sum, tokens, cached)

    def _of(self, hour: int) -> Tally:
        empty = Tally([0.0] * (len(self.prompt_bounds) + 1), [0.0] * (len(self.output_bounds) + 1))
        return self.hours.setdefault(hour, empty)

    def state(self) -> dict[str, Any]:
        """The content for JSON; `users_requests_of` reads it."""
        rows = [
            [hour, tally.prompts, tally.outputs, *(getattr(tally, name) for name in SUMS)]
            for hour, tally in self.hours.items()
        ]
        return {"prompt_bounds": self.prompt_bounds, "output_bounds": self.output_bounds, "hours": rows}


def is_like_users(workload: str | None) -> bool:
    """True if a workload of this name is requests like the users' own."""
    return (workload or "").startswith(NAME)


def users_requests_of(state: Mapping[str, Any]) -> UsersRequests:
    """Read the result of `state`. Raises ValueError."""
    try:
        bounds = tuple(tuple(map(float, state[name])) for name in ("prompt_bounds", "output_bounds"))
        hours = {
            int(hour): Tally(list(map(float, prompts)), list(map(float, outputs)), *map(float, sums))
            for hour, prompts, outputs, *sums in state["hours"]
        }
    except (KeyError, TypeError, ValueError) as problem:
        raise ValueError(f"these are no lengths of requests: {problem}") from None
    if any((len(of.prompts), len(of.outputs)) != (len(bounds[0]) + 1, len(bounds[1]) + 1) for of in hours.values()):
        raise ValueError("these are no lengths of requests: an hour has other buckets")
    return UsersRequests(bounds[0], bounds[1], hours)


def by_bucket(histogram: EngineHistogram) -> list[float]:
    """Counts of the buckets, not cumulative; the last one is above all bounds."""
    return [after - before for before, after in pairwise((0.0, *histogram.counts))]


def lengths(
    bounds: Sequence[float], counts: Sequence[float], total: float, most: float | None = None
) -> Empirical | None:
    """Distribution of the lengths that a histogram counts; None without any.

    counts: by bucket, the last one above all bounds; small negative ones count as none
    total: sum of the lengths: their place within a bucket is unknown, their mean is known; most: longest length
    """
    counts = [max(0.0, count) for count in counts]
    number = sum(counts)
    if number <= 0 or not bounds:
        return None
    edges = (0.0, *bounds, 2 * bounds[-1])
    last = max(place for place, count in enumerate(counts) if count > 0)
    shares = [0.0, *(of / number for of in accumulate(counts))]
    mean = sum(count * (low + high) / 2 for count, (low, high) in zip(counts, pairwise(edges), strict=True)) / number
    scale = max(1.0, total / number) / mean
    points = [(round(share, 4), max(1.0, round(scale * edge, 1))) for share, edge in zip(shares, edges, strict=True)]
    first = next(place for place, count in enumerate(counts) if count > 0)
    return Empirical(tuple((share, min(of, most) if most else of) for share, of in points[first : last + 2]))


def shared_tokens(prompts: Empirical, share: float) -> int:
    """Length of a beginning that all prompts have, such that it is this share of all their tokens."""
    low, high = 0.0, float(prompts.maximum)
    steps = [prompts.quantile((place + 0.5) / 200) for place in range(200)]
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(min(middle, of) for of in steps) < share * sum(steps) else (low, middle)
    return max(1, round(low))
