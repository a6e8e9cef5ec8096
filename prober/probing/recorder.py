"""Updates the series of the probes."""

import logging
import re
from asyncio import TimerHandle
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

from prober.exposition.buckets import COARSE, MEDIUM, bounds
from prober.exposition.families import Histogram, Registry, Series
from prober.measure.buffering import Buffering
from prober.measure.outcome import ANSWERED, BAD, NEUTRAL, Outcome, refusal_kind
from prober.measure.printable import shown_name
from prober.measure.result import ProbeResult
from prober.measure.target_state import NO_DATA_STATES, TargetEvent, TargetState, WorkloadState
from prober.probing import series
from prober.probing.history import EventLog
from prober.probing.observer import NamedSpec, ObservedTarget, TargetObserver
from prober.workload.requested_format import tool_schemas
from prober.workload.workloads import Workload

MIN_TRUST_PROBES = 10  # one per minute in the ten minutes that are judged
MIN_CACHED = 5  # answers in a row: fewer can be chance
CACHE_REMEDY = "set `engine`, so that prompts bypass its cache, or switch off a cache on the way, such as a gateway's"
# Histograms with finer bounds around SLO thresholds: signal of the SLOs, and scale of the bounds.
_REFINED = (
    (series.TTFT, "ttft", "request"),
    (series.TTFT_ANSWER, "ttft_answer", "request"),
    (series.E2E, "e2e", "request"),
    (series.TPOT, "tpot", "token"),
    (series.ITL, "itl", "token"),
)


class TargetProbes(TargetObserver):
    """The series of one target's probes. Every counter is created at 0, so that `increase()` sees the first event."""

    def __init__(self, registry: Registry, observed: NamedSpec) -> None:
        self._registry, self._observed, self._name = registry, observed, observed.name
        self._bounds: dict[str, dict[str, tuple[float, ...]]] = {}  # by workload, then series
        spec, name = observed.spec, observed.name
        registry.label(name, tuple(sorted((label, value) for label, value in spec.labels.items() if value)))
        if spec.budget is not None and spec.budget.price_per_million is not None:
            registry.value(series.COST, name)
        for probe in spec.probes:
            for workload, part, _, slos in probe.judged():
                thresholds: dict[str, list[float]] = {}
                for slo in slos:
                    if slo.threshold_s is not None:
                        thresholds.setdefault(slo.signal, []).append(slo.threshold_s)
                self._declare(workload, part, thresholds, streamed=spec.stream)

    def probe_ended(self, result: ProbeResult) -> None:
        if result.workload not in self._bounds:
            return
        registry, key = self._registry, (self._name, result.workload)
        self._tokens(result)
        if result.outcome in NEUTRAL:
            registry.value(series.NEUTRAL, *key, result.outcome.value).inc()
        else:
            registry.value(series.PROBES, *key).inc()
        if result.outcome in BAD:
            registry.value(series.FAILURES, *key, result.outcome.value).inc()
        self._connection(result)
        if (lag := result.timeline.send_lag_s) is not None:
            self._registry.histogram(series.SEND_LAG, COARSE, self._name).observe(lag)
        if result.outcome in ANSWERED:
            if result.check is not None:
                registry.value(series.QUALITY_CHECKS, *key, result.check).inc()
                wrong = result.outcome is Outcome.WRONG_ANSWER
                registry.value(series.QUALITY_FAILURES, *key, result.check).inc(wrong)
            self._success(result)

    def state_seen(
        self, state: TargetState, starting_until_unix_s: float | None, workloads: Iterable[WorkloadState]
    ) -> None:
        self._registry.show_one(series.STATE, state, TargetState, self._name)
        for known in workloads:
            if known.workload in self._bounds:
                self._registry.show_one(series.NO_DATA, known.state, sorted(NO_DATA_STATES), self._name, known.workload)
        self._registry.show(series.STARTING_UNTIL, starting_until_unix_s, self._name)

    def _success(self, result: ProbeResult) -> None:
        timeline, workload, key = result.timeline, result.workload, (self._name, result.workload)
        self._registry.value(series.UNTIMED, *key).inc(timeline.why_no_ttft != "")
        if timeline.usage is None or timeline.usage.completion_tokens is None:
            self._registry.value(series.USAGE_MISSING, *key).inc()
        if result.warm_up:
            if timeline.ttft_s is not None:
                self._registry.value(series.COLD_START, *key).value = timeline.ttft_s
            return
        if result.cached:
            self._registry.value(series.CACHED, *key).inc()
            return
        for part, seconds in timeline.parts.known().items() if timeline.parts is not None else ():
            self._registry.histogram(series.PART, COARSE, self._name, part).observe(seconds)
        # The answer's TTFT has its own series if the model reasons, or an SLO judges it. Otherwise it equals TTFT.
        has_own = timeline.first_answer_ns != timeline.first_ns
        has_own = has_own or key in self._registry.family(series.TTFT_ANSWER).children
        for declared, value in (
            (series.TTFT, timeline.ttft_s),
            (series.TPOT, timeline.tpot_s),
            (series.E2E, timeline.e2e_s),
            (series.TTFT_ANSWER, timeline.ttft_answer_s if has_own else None),
        ):
            if value is not None:
                histogram = self._histogram(declared, workload)
                histogram.observe(value)
                histogram.exemplar(value, result.exemplar, result.unix_s)
        if series.TTFT_CALL.name in self._bounds[workload]:
            for declared, value in (
                (series.TTFT_CALL, timeline.ttft_call_s),
                (series.CALL_ARGUMENTS, timeline.arguments_s),
            ):
                if value is not None:
                    self._histogram(declared, workload).observe(value)
        if timeline.content_ns:
            self._histogram(series.ITL, workload).observe(*timeline.itls_s)
            self._histogram(series.CHUNK_GAP, workload).observe(*timeline.chunk_gaps_s)
            self._registry.value(series.MERGED_CHUNKS, *key).inc(timeline.merged_chunks)

    def _tokens(self, result: ProbeResult) -> None:
        if (usage := result.timeline.usage) is not None:
            counts = (usage.prompt_tokens or 0, usage.completion_tokens or 0, usage.cached_tokens or 0)
            for kind, count in zip(series.TOKEN_KINDS, counts, strict=True):
                self._registry.value(series.TOKENS, self._name, result.workload, kind).inc(count)
        budget = self._observed.spec.budget
        if budget is not None and budget.price_per_million is not None:
            self._registry.value(series.COST, self._name).inc(budget.dollars(*result.timeline.charged_tokens))

    def _connection(self, result: ProbeResult) -> None:
        if (network_s := result.timeline.network_s) is not None:
            self._registry.histogram(series.NETWORK, COARSE, self._name).observe(network_s)
        if connection := result.timeline.connection:
            for phase in series.PHASES:
                seconds = getattr(connection, f"{phase}_s")
                if seconds is not None:
                    self._registry.histogram(series.CONNECT, COARSE, self._name, phase).observe(seconds)
        for kind, left in result.rate_limit.items():
            self._registry.show(series.RATE_LIMIT, left, self._name, kind)
        for retry_kind, count in result.retries.items():
            self._registry.value(series.RETRIED, self._name, retry_kind).inc(count > 0)
        if result.cert_expiry_unix_s is not None:
            self._registry.show(series.CERT_EXPIRY, result.cert_expiry_unix_s, self._name)

    def _declare(self, workload: str, part: Workload, thresholds: dict[str, list[float]], *, streamed: bool) -> None:
        """Create the series of a workload. thresholds: {latency: SLO thresholds in seconds}, bounds of its histogram"""
        registry, key = self._registry, (self._name, workload)
        workload_bounds = self._bounds[workload] = {
            declared.name: bounds(scale, thresholds.get(signal, ())) for declared, signal, scale in _REFINED
        } | {series.CHUNK_GAP.name: COARSE}
        for by_reason, outcomes in ((series.FAILURES, BAD), (series.NEUTRAL, NEUTRAL)):
            for outcome in sorted(outcomes):
                registry.value(by_reason, *key, outcome.value)
        for by_check in (series.QUALITY_CHECKS, series.QUALITY_FAILURES):
            for check in part.checks:
                registry.value(by_check, *key, check)
        for declared in (series.PROBES, series.CACHED, series.UNTIMED, series.USAGE_MISSING):
            registry.value(declared, *key)
        for kind in series.TOKEN_KINDS:
            registry.value(series.TOKENS, *key, kind)
        histograms = [series.E2E]
        if streamed:
            registry.value(series.MERGED_CHUNKS, *key)
            histograms += [series.TTFT, series.TPOT, series.ITL, series.CHUNK_GAP]
            histograms += [series.TTFT_ANSWER] if "ttft_answer" in thresholds else []
        calls = (series.TTFT_CALL, series.CALL_ARGUMENTS)
        if tool_schemas(part.sampling):
            workload_bounds |= dict.fromkeys((declared.name for declared in calls), MEDIUM)
            histograms += calls if streamed else ()
        for declared in histograms:
            self._histogram(declared, workload)

    def _histogram(self, declared: Series[str, str], workload: str) -> Histogram:
        return self._registry.histogram(declared, self._bounds[workload][declared.name], self._name, workload)


log = logging.getLogger(__name__)
SLOT_NS = 10 * 10**9  # probes are counted in slots, so that a high rate needs no more memory
FAILURE_WINDOW_NS, TRUST_WINDOW_NS = 300 * 10**9, 600 * 10**9
REFUSAL_WINDOW_NS = 1500 * 10**9  # the 15 minutes of LLMProbeRejected, and the ten that it waits
MAX_FAILURE_CHARS = 200
MAX_REMEDY_CHARS = 98  # the longest of `outcome.access_remedy` for a key in a file
# Request identifiers in a text, each of which would create a series: a UUID, or 16 hexadecimal digits or more.
_REQUEST_IDS = re.compile(
    r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b(?=[a-f]*[0-9])[0-9a-f]{16,}\b", re.IGNORECASE
)


class RecentCounts:
    """Counts events in the `window_ns` before the latest call."""

    def __init__(self, window_ns: int) -> None:
        self._window_ns = window_ns
        self._slots: deque[tuple[int, int, Counter[str]]] = deque()  # (first and last time in ns, counts)
        self._total = Counter[str]()

    def add(self, now_ns: int, *names: str) -> None:
        """Count each name once."""
        is_current = self._slots and now_ns - self._slots[-1][0] < SLOT_NS
        begin_ns, _, counts = self._slots.pop() if is_current else (now_ns, now_ns, Counter[str]())
        counts.update(names)
        self._total.update(names)
        self._slots.append((begin_ns, now_ns, counts))

    def at(self, now_ns: int) -> Counter[str]:
        """Counts in the window by name."""
        while self._slots and now_ns >= self.next_end_ns:
            self._total.subtract(self._slots.popleft()[2])
        return self._total

    @property
    def next_end_ns(self) -> int:
        """When the oldest counts leave the window."""
        return self._slots[0][1] + self._window_ns

    def clear(self) -> None:
        """Forget everything."""
        self._slots.clear()
        self._total.clear()


class TargetFailures(TargetObserver):
    """Exports the most frequent reason of a target's failures in the last five minutes, with its latest text."""

    info, window_ns = series.FAILURE_INFO, FAILURE_WINDOW_NS

    def __init__(self, registry: Registry, observed: ObservedTarget) -> None:
        self._registry, self._observed = registry, observed
        self._recent = RecentCounts(self.window_ns)
        self._texts: dict[str, str] = {}  # text of the last failure by reason, latest last
        self._alarm: TimerHandle | None = None  # fires when failures leave the window

    def reason(self, result: ProbeResult) -> str:
        """The reason as which a probe is counted; "" for none."""
        return result.outcome.value if result.outcome in BAD else ""

    def shown(self, text: str) -> str:
        """The text as the value of a label."""
        return shown_name(text, MAX_FAILURE_CHARS)

    def probe_ended(self, result: ProbeResult) -> None:
        if reason := self.reason(result):
            text = result.detail.replace(result.request_id or "\0", "…")
            self._texts.pop(reason, None)
            self._texts[reason] = self.shown(_REQUEST_IDS.sub("…", text))
            self._recent.add(self._observed.target.clock.now_ns(), reason)
            self._show()

    def removed(self) -> None:
        """Cancel the alarm."""
        if self._alarm is not None:
            self._alarm.cancel()

    def _show(self) -> None:
        clock, name = self._observed.target.clock, self._observed.name
        now_ns = clock.now_ns()
        counts = self._recent.at(now_ns)
        reason = max(reversed(self._texts), key=counts.__getitem__, default="")  # of equals, the latest
        labels = (name, reason, self._texts.get(reason, ""))
        self._registry.keep(self.info, {labels} if counts[reason] else (), name)
        if not counts[reason]:
            return
        self._registry.show(self.info, 1.0, *labels)
        self.removed()
        self._alarm = clock.call_at(self._recent.next_end_ns, self._show)


class TargetRefusals(TargetFailures):
    """The same of refused probes, by what the refusal is about."""

    info, window_ns = series.REFUSAL_INFO, REFUSAL_WINDOW_NS

    def reason(self, result: ProbeResult) -> str:
        return refusal_kind(result.detail) if result.outcome is Outcome.REJECTED else ""

    def shown(self, text: str) -> str:
        """The server's words are cut, and what to change stays."""
        words, _, remedy = text.rpartition("; ")
        return "; ".join(filter(None, (super().shown(words), shown_name(remedy, MAX_REMEDY_CHARS))))


class TargetTrust(TargetObserver):
    """Whether a target's latencies are judged: at least half of its probes in the last ten minutes were sent and timed.

    Only answered probes and those that the prober spoilt are compared; a pause clears them.
    """

    def __init__(self, registry: Registry, observed: ObservedTarget) -> None:
        self._registry, self._observed = registry, observed
        self._recent = RecentCounts(TRUST_WINDOW_NS)
        self._show()

    @property
    def is_trusted(self) -> bool:
        """True if the latencies are judged. Failures always are. Too few probes, as after a start, do not make it false."""
        probes, timed = self.counts
        return probes < MIN_TRUST_PROBES or 2 * timed >= probes

    @property
    def counts(self) -> tuple[int, int]:
        """(probes in the window, those that were sent and timed)."""
        counts = self._recent.at(self._observed.target.clock.now_ns())
        return counts["probes"], counts["timed"]

    def summary(self) -> dict[str, Any]:
        return {"trusted": self.is_trusted, "timed": self.counts}

    def probe_ended(self, result: ProbeResult) -> None:
        if result.outcome in ANSWERED or result.outcome is Outcome.INVALID:
            is_timed = result.outcome in ANSWERED and not result.timeline.why_no_ttft
            self._recent.add(self._observed.target.clock.now_ns(), "probes", *(("timed",) if is_timed else ()))
        self._show()

    def paused(self) -> None:
        self._recent.clear()
        self._show()

    def _show(self) -> None:
        self._registry.show(series.TRUSTED, float(self.is_trusted), self._observed.name)


class TargetBuffering(TargetObserver):
    """Verdict on whether a target's answers arrive held back. All workloads are judged together, as they share the route."""

    def __init__(self, registry: Registry, events: EventLog, observed: ObservedTarget) -> None:
        self._registry, self._events, self._observed = registry, events, observed
        self.buffering = Buffering()

    def summary(self) -> dict[str, Any]:
        is_buffered = self.buffering.is_buffered
        return {"buffered": is_buffered, "buffering": self.buffering.sentence if is_buffered else ""}

    def probe_ended(self, result: ProbeResult) -> None:
        if result.outcome not in ANSWERED:
            return
        before, self.buffering = self.buffering.is_buffered, self.buffering.after(result.timeline)
        now, name = self.buffering.is_buffered, self._observed.name
        self._registry.show(series.BUFFERED, None if now is None else float(now), name)
        if now != before and (now or before):
            text = f"buffered: {self.buffering.text}" if now else f"no longer buffered: {self.buffering.text}"
            self._events.record(log, TargetEvent(self._observed.target.clock.unix_s(), name, "state", text))


class TargetCaching(TargetObserver):
    """Names workloads without latencies, because each of their last MIN_CACHED prompts was in the engine's cache."""

    def __init__(self, events: EventLog, observed: ObservedTarget) -> None:
        self._events, self._observed = events, observed
        self._in_a_row: dict[str, int] = {}  # cached answers by workload

    @property
    def text(self) -> str:
        """The affected workloads with the remedy; "" for none."""
        probed = {name for probe in self._observed.spec.probes for name in probe.workload.series}
        names = sorted(name for name in probed if self._in_a_row.get(name, 0) >= MIN_CACHED)
        return f"{', '.join(names)} measures no latency, as every prompt is cached; {CACHE_REMEDY}" if names else ""

    def summary(self) -> dict[str, Any]:
        return {"caching": self.text}

    def probe_ended(self, result: ProbeResult) -> None:
        if result.outcome not in ANSWERED or result.warm_up:
            return
        before = self.text
        self._in_a_row[result.workload] = self._in_a_row.get(result.workload, 0) + 1 if result.cached else 0
        if (now := self.text) != before:
            text = f"cached: {now}" if now else f"no longer cached: {result.workload} measures latencies again"
            unix_s, name = self._observed.target.clock.unix_s(), self._observed.name
            self._events.record(log, TargetEvent(unix_s, name, "state", text))
