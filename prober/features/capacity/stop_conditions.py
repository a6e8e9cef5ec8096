"""Conditions that stop a sweep: harm to other requests, or a changed engine."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Literal

from prober.features.capacity.sweep_plan import Guards
from prober.measure.engine_signals import COUNTER_SIGNALS, EngineHistogram, EngineSignals
from prober.measure.objective import Slo, count_events
from prober.measure.result import ProbeResult

EngineCondition = Literal[
    "waiting", "kv_usage", "preemptions", "production_ttft", "restarted", "replicas_changed", "engine_changed"
]
VOID: frozenset[EngineCondition] = frozenset({"restarted", "replicas_changed", "engine_changed"})

_PREEMPTIONS_S, _PRODUCTION_S = 2.0, 5.0
_CAPACITY_TOLERANCE = 0.01  # of the KV cache: some engines compute it from a rounded share
_MIN_BAD = 3  # requests of others, or probes; fewer are not judged
_MAX_BAD_RATIO = 0.8  # limit for loose objectives, whose burn rate cannot exceed 1 / budget


class StopConditions:
    """Stop conditions on the engine's metrics page, fed with readings in order of time.

    ttft_s: lowest TTFT threshold of the SLOs, None without one.
    """

    def __init__(self, guards: Guards, ttft_s: float | None) -> None:
        self._guards = guards
        self._ttft_s = ttft_s
        self._first: tuple[float, EngineSignals] | None = None
        self._recent: deque[tuple[float, EngineSignals]] = deque()
        self._before_per_s: float | None = None  # preemptions before the sweep

    @property
    def last_s(self) -> float | None:
        """Time of the last reading."""
        return self._recent[-1][0] if self._recent else None

    def began(self) -> None:
        """The sweep starts to send; preemptions before that are not caused by it."""
        self._before_per_s = self._preemptions_per_s(None) or 0.0

    def reading(
        self,
        at_s: float,
        signals: EngineSignals,
        total_per_s: float,
        own_ttfts: list[tuple[float, float]],
        queue_factor: float = 1.0,
    ) -> EngineCondition | None:
        """Judge the page read at `at_s`; return the condition that is met, or None.

        total_per_s: rate of all requests. own_ttfts: (time of first token, TTFT) of the sweep's requests.
        queue_factor: on the queue that `waiting_share` allows
        """
        self._first = self._first or (at_s, signals)
        self._recent.append((at_s, signals))
        while len(self._recent) > 2 and self._recent[1][0] <= at_s - _PRODUCTION_S:
            self._recent.popleft()
        if self._waits(signals, queue_factor * total_per_s):
            return "waiting"
        if (
            signals.kv_cache_usage_ratio_max is not None
            and signals.kv_cache_usage_ratio_max > self._guards.kv_cache_ratio
        ):
            return "kv_usage"
        rate = self._preemptions_per_s(_PREEMPTIONS_S)
        if rate is not None and (rate - (self._before_per_s or 0.0)) * _PREEMPTIONS_S > self._guards.preemptions:
            return "preemptions"
        return "production_ttft" if self._others_slow(own_ttfts) else None

    def change(self, now: EngineSignals) -> tuple[EngineCondition, str] | None:
        """Change of the engine, its process or its size since the last reading that was judged, with the values as text."""
        if not self._recent:
            return None
        before = self._recent[-1][1]
        if before.ranks is not None and now.ranks is not None and before.ranks != now.ranks:
            return "replicas_changed", f"{before.ranks} ranks or replicas before, {now.ranks} now"
        held, holds = before.kv_cache_capacity_tokens, now.kv_cache_capacity_tokens
        if held is not None and holds is not None and abs(holds - held) > _CAPACITY_TOLERANCE * held:
            return "replicas_changed", f"a KV cache of {held:,.0f} tokens before, {holds:,.0f} now"
        began, begins = before.start_time_seconds, now.start_time_seconds
        if began is not None and begins is not None and abs(begins - began) > 1.0:
            return "restarted", "another start time"
        for name in (*COUNTER_SIGNALS, "uptime_seconds"):
            was, value = getattr(before, name), getattr(now, name)
            if was is not None and value is not None and value < was:
                return "restarted", f"{name} was {was:g}, is {value:g}"
        return ("engine_changed", "other flags, model or version") if now.info != before.info else None

    def _waits(self, signals: EngineSignals, total_per_s: float) -> bool:
        if signals.requests_waiting is None:
            return False
        if self._guards.waiting is not None:
            return signals.requests_waiting > self._guards.waiting
        if self._ttft_s is None:
            return False
        # Little's law: a request that joins a queue of W requests served at rate λ waits W / λ.
        return signals.requests_waiting > max(4.0, self._guards.waiting_share * self._ttft_s * total_per_s)

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
        limit_s = self._guards.production_ttft_s
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
        return slow >= _MIN_BAD and slow > self._guards.production_share * came


def _above(histogram: EngineHistogram, bound: float) -> float:
    return histogram.counts[-1] - histogram.counts[histogram.bounds.index(bound)]


def burns(probes: Sequence[ProbeResult], slos: Iterable[Slo], rate: float) -> bool:
    """True if the probes during a sweep burn an SLO's budget faster than `rate`, with at least three bad events."""
    for slo in slos:
        counts = [count_events(slo, probe) for probe in probes]
        total, bad = (sum(count[place] for count in counts) for place in (0, 1))
        if bad >= _MIN_BAD and bad > min(rate * float(slo.error_budget_ratio), _MAX_BAD_RATIO) * total:
            return True
    return False
