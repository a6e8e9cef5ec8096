"""Conditions that stop a sweep: harm to other requests, or a changed engine."""

from collections import deque
from collections.abc import Sequence
from typing import Literal

from prober.config.sweep import GuardSpec
from prober.measure.engine_signals import COUNTER_SIGNALS, EngineHistogram, EngineSignals, size_change
from prober.measure.objective import MIN_BAD_EVENTS
from prober.measure.outcome import BAD, Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import format_duration
from prober.results.shedding import is_shed

EngineCondition = Literal[
    "waiting", "kv_usage", "preemptions", "production_ttft", "restarted", "replicas_changed", "engine_changed"
]
VOID: frozenset[EngineCondition] = frozenset({"restarted", "replicas_changed", "engine_changed"})

FAILED_RATIO = 0.1  # of a stage's requests, at least two
# Of the last requests, those that the prober did not send: the load is no longer the planned one.
UNSENT_RATIO, UNSENT_RESULTS = 0.2, 20
SEND_MORE = "send fewer requests a second, give the prober more CPU, or add --workers"
TTFT_FACTOR = 3.0  # a TTFT above this multiple of its threshold ends the load
WAITING_SHARE = 1.4  # of the TTFT threshold, for the wait in the engine's queue
PAGE_LOST_S = 3.0  # after readings, time without one, in which nothing is seen
_MAX_PREEMPTIONS, _PREEMPTIONS_S = 4.0, 2.0  # more in that time than before the sweep
_PRODUCTION_SHARE, _PRODUCTION_S = 0.1, 5.0  # of others' requests in that time, by the engine's own histogram


class StopConditions:
    """Stop conditions on the engine's metrics page. Feed it with readings in order of time.

    ttft_s: lowest TTFT threshold of the SLOs; None without one
    """

    def __init__(self, guard: GuardSpec, ttft_s: float | None) -> None:
        self._guard = guard
        self._ttft_s = ttft_s
        self._first: tuple[float, EngineSignals] | None = None
        self._recent: deque[tuple[float, EngineSignals]] = deque()
        self._before_per_s: float | None = None  # preemptions before the sweep

    @property
    def last_s(self) -> float | None:
        """Time of the last reading."""
        return self._recent[-1][0] if self._recent else None

    def began(self) -> None:
        """Begin the sweep: earlier preemptions are not caused by it."""
        self._before_per_s = self._preemptions_per_s(None) or 0.0

    def reading(
        self,
        at_s: float,
        signals: EngineSignals,
        total_per_s: float,
        own_ttfts: list[tuple[float, float]],
        waiting_share: float = WAITING_SHARE,
    ) -> EngineCondition | None:
        """Judge the page read at `at_s`; return the condition that is met, or None.

        total_per_s: rate of all requests. own_ttfts: (time of first token, TTFT) of the sweep's requests.
        waiting_share: limit of the wait in the queue, as a share of the TTFT threshold
        """
        self._first = self._first or (at_s, signals)
        self._recent.append((at_s, signals))
        while len(self._recent) > 2 and self._recent[1][0] <= at_s - _PRODUCTION_S:
            self._recent.popleft()
        if self._waits(signals, total_per_s, waiting_share):
            return "waiting"
        if signals.kv_cache_usage_ratio_max is not None and signals.kv_cache_usage_ratio_max > self._guard.kv_cache:
            return "kv_usage"
        rate = self._preemptions_per_s(_PREEMPTIONS_S)
        if rate is not None and (rate - (self._before_per_s or 0.0)) * _PREEMPTIONS_S > _MAX_PREEMPTIONS:
            return "preemptions"
        return "production_ttft" if self._others_slow(own_ttfts) else None

    def change(self, now: EngineSignals) -> tuple[EngineCondition, str] | None:
        """Change of the engine, its process or its size since the last judged reading, with the values as text."""
        if not self._recent:
            return None
        before = self._recent[-1][1]
        if (resized := size_change(before.size, now.size)) is not None:
            return "replicas_changed", f"{resized.old} before, {resized.new} now"
        began, begins = before.start_time_seconds, now.start_time_seconds
        if began is not None and begins is not None and abs(begins - began) > 1.0:
            return "restarted", "another start time"
        for name in (*COUNTER_SIGNALS, "uptime_seconds"):
            was, value = getattr(before, name), getattr(now, name)
            if was is not None and value is not None and value < was:
                return "restarted", f"{name} was {was:g}, is {value:g}"
        return ("engine_changed", "other flags, model or version") if now.info != before.info else None

    def _waits(self, signals: EngineSignals, total_per_s: float, waiting_share: float) -> bool:
        waiting = signals.requests_queued
        if waiting is None:
            return False
        if self._guard.waiting is not None:
            return waiting > self._guard.waiting
        if self._ttft_s is None:
            return False
        # Little's law: a request that joins W requests waiting at rate λ waits W / λ.
        return waiting > max(4.0, waiting_share * self._ttft_s * total_per_s)

    def _preemptions_per_s(self, span_s: float | None) -> float | None:
        known = [(at, n) for at, s in self._recent if (n := s.preemptions_total) is not None]
        if self._first and span_s is None and self._first[1].preemptions_total is not None:
            known.insert(0, (self._first[0], self._first[1].preemptions_total))
        if span_s is not None:
            known = [(at, n) for at, n in known if at >= known[-1][0] - span_s]
        if len(known) < 2 or known[-1][0] <= known[0][0]:
            return None
        gained = known[-1][1] - known[0][1]
        return gained / (span_s or known[-1][0] - known[0][0])

    def _others_slow(self, own_ttfts: list[tuple[float, float]]) -> bool:
        limit_s = self._guard.production_ttft
        known = [(at, s.ttft_seconds) for at, s in self._recent if s.ttft_seconds is not None]
        if limit_s is None or len(known) < 2:
            return False
        (begin, before), (_, now) = known[0], known[-1]
        bound = next((bound for bound in now.bounds if bound >= limit_s), None)
        if bound is None or before.bounds != now.bounds:
            return False
        own = [ttft for at, ttft in own_ttfts if at > begin]
        came = now.counts[-1] - before.counts[-1] - len(own)
        slow = _above(now, bound) - _above(before, bound) - sum(ttft > bound for ttft in own)
        return slow >= MIN_BAD_EVENTS and slow > _PRODUCTION_SHARE * came


def _above(histogram: EngineHistogram, bound: float) -> float:
    return histogram.counts[-1] - histogram.counts[histogram.bounds.index(bound)]


class LoadGuard:
    """Stops a load if it harms the requests sent beside it, by the thresholds of sweeps. Times in seconds of one clock.

    The load may be an overload on purpose, so waiting alone is no harm: the queue may last as many TTFT thresholds as
    a request may take.

    ttft_s: TTFT threshold of the requests beside the load
    rate_per_s: rate of all requests
    readings: (ns, signals of the engine's page), growing; present ones from index `since` on are the baseline
    shed_allowed: requests shed by the target are no harm
    harm: why the load must end; "" if it may continue; reason: its name
    """

    def __init__(
        self,
        ttft_s: float,
        rate_per_s: float,
        readings: Sequence[tuple[int, EngineSignals]],
        since: int,
        *,
        shed_allowed: bool = False,
    ) -> None:
        self._ttft_s, self._rate_per_s, self._shed_allowed = ttft_s, rate_per_s, shed_allowed
        self._conditions = StopConditions(GuardSpec(), ttft_s)
        self._unsent: deque[bool] = deque(maxlen=UNSENT_RESULTS)
        self._ended = self._failed = 0
        self._readings, self._read = readings, since
        self._read_pages()
        self._conditions.began()
        self.harm = self.reason = ""

    def result(self, result: ProbeResult | None, *, is_of_load: bool = False) -> None:
        """Judge an ended request, of the load or beside it; None: not sent."""
        if result is None:
            return
        failed = result.outcome in BAD and not (self._shed_allowed and is_shed(result))
        self._ended += 1
        self._failed += failed
        self._unsent.append(result.outcome is Outcome.INVALID)
        unsent = sum(self._unsent)
        if self._failed > 1 and self._failed > FAILED_RATIO * self._ended and failed:
            consent = "; with shed_allowed it goes on" if is_shed(result) else ""
            self._end(
                "failed",
                f"{self._failed} of {self._ended} requests failed, the last with {result.outcome.value}{consent}",
            )
        elif unsent > 2 and unsent > UNSENT_RATIO * len(self._unsent):
            self._end(
                "not_sent", f"the prober did not send {unsent} of the last {len(self._unsent)} requests; {SEND_MORE}"
            )
        if not is_of_load and (bounds_s := result.timeline.bounds_s("ttft")) is not None:
            self._waited(bounds_s[0])

    def look(self, now_ns: int, wait_s: float) -> None:
        """Judge the pages read since the last call, and the longest wait for a first token beside the load, both at `now_ns`."""
        self._read_pages()
        self._waited(wait_s)
        read_s, now_s = self._conditions.last_s, now_ns / 1e9
        if read_s is not None and now_s - read_s > PAGE_LOST_S:
            self._end("page_lost", f"no reading of the engine's page for {now_s - read_s:.1f} s")

    def _read_pages(self) -> None:
        for at_ns, signals in self._readings[self._read :]:
            change = self._conditions.change(signals)
            condition = self._conditions.reading(at_ns / 1e9, signals, self._rate_per_s, [], TTFT_FACTOR)
            if change is not None:
                self._end(change[0], f"the engine's page shows {change[0].replace('_', ' ')}: {change[1]}")
            elif condition is not None:
                self._end(condition, f"the engine's page shows too much {condition.replace('_', ' ')}")
        self._read = len(self._readings)

    def _waited(self, ttft_s: float) -> None:
        if ttft_s > TTFT_FACTOR * self._ttft_s:
            self._end("slow", f"a TTFT of {format_duration(ttft_s)} or more, over {TTFT_FACTOR:g} times the threshold")

    def _end(self, reason: str, harm: str) -> None:
        if not self.harm:
            self.reason, self.harm = reason, harm
