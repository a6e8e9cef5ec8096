"""The recorder: one probe's result into the series. The only place that knows which result fills which series."""

from collections.abc import Iterator, Sequence

from prober.config.specs import TargetSpec
from prober.exposition.buckets import COARSE, bounds
from prober.exposition.families import Family, Histogram, Registry, Series
from prober.features.budget import series as budget_series
from prober.features.diagnosis import series as diagnosis_series
from prober.features.drift import series as drift_series
from prober.features.drift.detector import Shift, Verdict
from prober.features.engines import series as engines_series
from prober.features.gpu import series as gpu_series
from prober.features.slo import series as slo_series
from prober.measure.engine_signals import Signals
from prober.measure.gpu_reading import Device, Throttle
from prober.measure.objective import Slo
from prober.measure.outcome import ANSWERED, BAD, NEUTRAL, Outcome
from prober.measure.result import ProbeResult
from prober.measure.slo_events import events
from prober.measure.timeline import Timeline
from prober.probing import series as probe_series

_ENGINE_VALUES = (
    (engines_series.ENGINE_CONTEXT, "context_tokens"),
    (engines_series.ENGINE_RUNNING, "requests_running"),
    (engines_series.ENGINE_WAITING, "requests_waiting"),
    (engines_series.ENGINE_KV_USAGE, "kv_cache_usage_ratio_max"),
    (engines_series.ENGINE_KV_CAPACITY, "kv_cache_capacity_tokens"),
    (engines_series.ENGINE_PREEMPTIONS, "preemptions_total"),
    (engines_series.ENGINE_PREFIX_QUERIES, "prefix_cache_queries_tokens_total"),
    (engines_series.ENGINE_PREFIX_HITS, "prefix_cache_hits_tokens_total"),
    (engines_series.ENGINE_PROMPT_TOKENS, "prompt_tokens_total"),
    (engines_series.ENGINE_GENERATION_TOKENS, "generation_tokens_total"),
    (engines_series.ENGINE_REQUESTS, "requests_finished_total"),
)
_GPU_VALUES: tuple[tuple[Series, str] | tuple[Series, str, str], ...] = (
    (gpu_series.GPU_UTILIZATION, "utilization_ratio"),
    (gpu_series.GPU_MEMORY_USED, "memory_used_bytes"),
    (gpu_series.GPU_MEMORY_TOTAL, "memory_total_bytes"),
    (gpu_series.GPU_BANDWIDTH, "memory_bandwidth_ratio"),
    (gpu_series.GPU_OCCUPANCY, "sm_occupancy_ratio"),
    (gpu_series.GPU_TENSOR, "tensor_active_ratio"),
    (gpu_series.GPU_POWER, "power_watts"),
    (gpu_series.GPU_ENERGY, "energy_joules"),
    (gpu_series.GPU_TEMPERATURE, "temperature_celsius"),
    (gpu_series.GPU_CLOCK, "sm_clock_hertz"),
    (gpu_series.GPU_XID, "xid_errors"),
    (gpu_series.GPU_ECC, "ecc_corrected_errors", "corrected"),
    (gpu_series.GPU_ECC, "ecc_uncorrected_errors", "uncorrected"),
    (gpu_series.GPU_PCIE, "pcie_sent_bytes", "sent"),
    (gpu_series.GPU_PCIE, "pcie_received_bytes", "received"),
    (gpu_series.GPU_NVLINK, "nvlink_sent_bytes", "sent"),
    (gpu_series.GPU_NVLINK, "nvlink_received_bytes", "received"),
)
_ENGINE_HISTOGRAMS = (
    (engines_series.ENGINE_TTFT, "ttft_seconds"),
    (engines_series.ENGINE_ITL, "itl_seconds"),
    (engines_series.ENGINE_QUEUE, "queue_seconds"),
)


class Recorder:
    """Fills an injected registry. A result for a target or workload that is not (or no longer) declared is dropped."""

    def __init__(self, families: Registry) -> None:
        self._families = families
        self._bounds: dict[tuple[str, str], dict[str, tuple[float, ...]]] = {}
        self._slos: dict[tuple[str, str], tuple[Slo, ...]] = {}
        self._prices: dict[str, tuple[float, float]] = {}

    def declare(self, name: str, spec: TargetSpec) -> None:
        """Make a target's series at 0, so that `increase()` sees the first event. Existing ones keep their values."""
        self._prices.pop(name, None)
        budget = spec.budget
        if budget and budget.prompt_price is not None and budget.completion_price is not None:
            self._prices[name] = (budget.prompt_price, budget.completion_price)
            self._family(probe_series.COST).value(name)
        if spec.gpus.price_per_hour is not None:
            self._family(gpu_series.GPU_PRICE).value(name).value = spec.gpus.price_per_hour
        else:
            self._family(gpu_series.GPU_PRICE).children.pop((name,), None)
        wanted = {workload for probe in spec.probes for workload in probe.workload.series}
        for _, workload in self._family(probe_series.PROBES).of(name):
            if (gone := (name, workload)) in self._bounds and workload not in wanted:
                self._drop(gone)
                del self._bounds[gone], self._slos[gone]
        for probe in spec.probes:
            for name_, part, _, slos in probe.judged():
                self._declare_probe((name, name_), slos, streamed=spec.stream)
                self._declare_checks((name, name_), {golden.expectation.kind for golden in part.golden})

    def remove(self, name: str) -> None:
        """Take every series of a target away."""
        for _, workload in self._family(probe_series.PROBES).of(name):
            self._bounds.pop((name, workload), None)
            self._slos.pop((name, workload), None)
        self._drop((name,))
        self._prices.pop(name, None)

    def state(self, name: str, state: str) -> None:
        """The target is in `state`, one of probe_series.STATES."""
        for each in probe_series.STATES:
            self._family(probe_series.STATE).value(name, each).value = float(each == state)

    def starting_until(self, name: str, unix_s: float | None) -> None:
        """When refused connections begin to count as failures; None: they do, or none are refused."""
        if unix_s is None:
            self._family(probe_series.STARTING_UNTIL).children.pop((name,), None)
        else:
            self._family(probe_series.STARTING_UNTIL).value(name).value = unix_s

    def budget(self, name: str, kind: str, ratio: float) -> None:
        """Share of a budget that is left."""
        self._family(budget_series.BUDGET).value(name, kind).value = ratio

    def slos(self, name: str) -> Iterator[tuple[str, Slo, int, int]]:
        """(workload, SLO, events, bad events) of a target since it appeared."""
        for (target, workload), slos in self._slos.items():
            for slo in slos if target == name else ():
                seen, bad = (
                    self._family(s).value(target, workload, slo.name)
                    for s in (slo_series.SLO_EVENTS, slo_series.SLO_BAD_EVENTS)
                )
                yield workload, slo, round(seen.value), round(bad.value)

    def declare_engine(self, name: str) -> None:
        """Make the series that a target whose engine's page is read always has."""
        self._family(engines_series.ENGINE_UP).value(name)
        for what in engines_series.ENGINE_CHANGE_KINDS:
            self._family(engines_series.ENGINE_CHANGES).value(name, what)

    def engine(self, name: str, signals: Signals | None) -> None:
        """What a target's engine says; what it does not say has no series, and None leaves none but `up`."""
        self._family(engines_series.ENGINE_UP).value(name).value = float(signals is not None)
        for declared, field in _ENGINE_VALUES:
            value = getattr(signals, field) if signals else None
            if value is None:
                self._family(declared).children.pop((name,), None)
            else:
                self._family(declared).value(name).value = value
        for declared, field in _ENGINE_HISTOGRAMS:
            found = getattr(signals, field) if signals else None
            if found is None:
                self._family(declared).children.pop((name,), None)
            else:
                self._family(declared).histogram(found.bounds, name).take_over(found.counts, found.sum or 0.0)
        children = self._family(engines_series.ENGINE_INFO).children
        info = signals.info if signals else None
        told = (name, info.engine, info.version or "", info.model or "") if info else None
        for labels in [labels for labels in self._family(engines_series.ENGINE_INFO).of(name) if labels != told]:
            del children[labels]
        if told:
            self._family(engines_series.ENGINE_INFO).value(*told).value = 1.0

    def engine_changed(self, name: str, what: str) -> None:
        """A target's engine is another one: `what` is one of engines_series.ENGINE_CHANGE_KINDS."""
        self._family(engines_series.ENGINE_CHANGES).value(name, what).inc()

    def gpus(self, name: str, devices: Sequence[Device]) -> None:
        """The GPUs that serve a target as they are now; what a device does not support has no series."""
        shown: set[tuple[str, tuple[str, ...]]] = set()

        def show(declared: Series, value: float | None, device: Device, *more: str) -> None:
            if value is not None:
                labels = (name, device.place, *more)
                self._family(declared).value(*labels).value = value
                shown.add((declared.name, labels))

        for device in devices:
            show(gpu_series.GPU_INFO, 1.0, device, device.uuid, device.name)
            for declared, field, *more in _GPU_VALUES:
                show(declared, getattr(device, field), device, *more)
            for reason in Throttle if device.throttled is not None else ():
                show(gpu_series.GPU_THROTTLE, float(reason in (device.throttled or ())), device, reason.value)
        for declared in (gpu_series.GPU_INFO, gpu_series.GPU_THROTTLE, *(declared for declared, *_ in _GPU_VALUES)):
            children = self._family(declared).children
            for labels in self._family(declared).of(name) if children else ():
                if (declared.name, labels) not in shown:
                    del children[labels]

    def regime(self, name: str, regime: str | None) -> None:
        """The likely cause of what a target suffers from, one of diagnosis_series.REGIMES; None: nothing is to be explained."""
        for each in diagnosis_series.REGIMES:
            self._family(diagnosis_series.REGIME).value(name, each).value = float(each == regime)

    def bound(self, name: str, ratio: float | None) -> None:
        """Speed of a decode step over what memory bandwidth allows; None: not known."""
        if ratio is None:
            self._family(diagnosis_series.BOUND_RATIO).children.pop((name,), None)
        else:
            self._family(diagnosis_series.BOUND_RATIO).value(name).value = ratio

    def declare_drift(self, name: str, workload: str, signal: str) -> None:
        """Make the series of one watched signal."""
        key = (name, workload, signal)
        self._family(drift_series.DRIFT_EVIDENCE).value(*key)
        for declared, kinds in (
            (drift_series.DRIFT_ACTIVE, drift_series.DRIFT_CAUSES),
            (drift_series.DRIFT_PHASE, drift_series.DRIFT_PHASES),
            (drift_series.DRIFT_EVENTS, drift_series.DRIFT_EVENT_KINDS),
        ):
            for kind in kinds:
                self._family(declared).value(*key, kind)

    def drift(self, name: str, workload: str, signal: str, verdict: Verdict, shifts: Sequence[Shift]) -> None:
        """What is known of a watched signal; when and how far it moved only while it is away from its baseline."""
        key = (name, workload, signal)
        self._family(drift_series.DRIFT_EVIDENCE).value(*key).value = verdict.evidence
        for cause in drift_series.DRIFT_CAUSES:
            self._family(drift_series.DRIFT_ACTIVE).value(*key, cause).value = float(
                verdict.active and verdict.cause == cause
            )
        for phase in drift_series.DRIFT_PHASES:
            self._family(drift_series.DRIFT_PHASE).value(*key, phase).value = float(verdict.phase == phase)
        if verdict.event:
            self._family(drift_series.DRIFT_EVENTS).value(*key, verdict.event).inc()
        if verdict.active and verdict.since_unix_s is not None:
            self._family(drift_series.DRIFT_SINCE).value(*key).value = verdict.since_unix_s
        else:
            self._family(drift_series.DRIFT_SINCE).children.pop(key, None)
        children = self._family(drift_series.DRIFT_SHIFT).children
        shown = {f"{shift.q:g}" for shift in shifts}
        for labels in [labels for labels in self._family(drift_series.DRIFT_SHIFT).of(*key) if labels[3] not in shown]:
            del children[labels]
        for shift in shifts:
            for bound, ratio in (("lower", shift.lower), ("estimate", shift.ratio), ("upper", shift.upper)):
                self._family(drift_series.DRIFT_SHIFT).value(*key, f"{shift.q:g}", bound).value = ratio

    def record(self, result: ProbeResult) -> None:
        """Count a probe that has ended."""
        key = (result.target, result.workload)
        if key not in self._bounds:
            return
        self._tokens(result)
        if result.outcome in NEUTRAL:
            self._family(probe_series.NEUTRAL).value(*key, result.outcome.value).inc()
        else:
            self._family(probe_series.PROBES).value(*key).inc()
        if result.outcome in BAD:
            self._family(probe_series.FAILURES).value(*key, result.outcome.value).inc()
        for slo in self._slos[key]:
            seen, bad = events(slo, result)
            self._family(slo_series.SLO_EVENTS).value(*key, slo.name).inc(seen)
            self._family(slo_series.SLO_BAD_EVENTS).value(*key, slo.name).inc(bad)
        self._connection(result)
        if (lag := result.timeline.send_lag_s) is not None:
            self._histogram(probe_series.SEND_LAG, key).observe(lag)
        if result.outcome in ANSWERED:
            if result.golden is not None:
                self._family(probe_series.QUALITY_CHECKS).value(*key, result.golden).inc()
                wrong = result.outcome is Outcome.WRONG_ANSWER
                self._family(probe_series.QUALITY_FAILURES).value(*key, result.golden).inc(wrong)
            self._success(result, key)

    def _success(self, result: ProbeResult, key: tuple[str, str]) -> None:
        timeline = result.timeline
        if timeline.usage is None or timeline.usage.completion_tokens is None:
            self._family(probe_series.USAGE_MISSING).value(*key).inc()
        if result.warm_up:
            if timeline.ttft_s is not None:
                self._family(probe_series.COLD_START).value(*key).value = timeline.ttft_s
            return
        if result.cached:
            self._family(probe_series.CACHED).value(*key).inc()
            return
        for declared, value in (
            (probe_series.TTFT, timeline.ttft_s),
            (probe_series.TPOT, timeline.tpot_s),
            (probe_series.E2E, timeline.e2e_s),
            (probe_series.TTFT_ANSWER, timeline.ttft_answer_s if self._has_answer_series(timeline, key) else None),
        ):
            if value is not None:
                histogram = self._histogram(declared, key)
                histogram.observe(value)
                histogram.exemplar(value, result.request_id, result.unix_s)
        if timeline.content_ns:
            self._histogram(probe_series.ITL, key).observe(*timeline.itls_s)
            self._histogram(probe_series.CHUNK_GAP, key).observe(*timeline.chunk_gaps_s)

    def _has_answer_series(self, timeline: Timeline, key: tuple[str, str]) -> bool:
        """A model that does not reason has one TTFT; the second series is for those that have two, or an SLO on it."""
        return timeline.first_answer_ns != timeline.first_ns or key in self._family(probe_series.TTFT_ANSWER).children

    def _tokens(self, result: ProbeResult) -> None:
        usage = result.timeline.usage
        if usage is None:
            return
        counts = (usage.prompt_tokens or 0, usage.completion_tokens or 0, usage.cached_tokens or 0)
        for kind, count in zip(probe_series.TOKEN_KINDS, counts, strict=True):
            self._family(probe_series.TOKENS).value(result.target, result.workload, kind).inc(count)
        if price := self._prices.get(result.target):
            self._family(probe_series.COST).value(result.target).inc(
                (counts[0] * price[0] + counts[1] * price[1]) / 1e6
            )

    def _connection(self, result: ProbeResult) -> None:
        if (connection := result.timeline.connection) and result.outcome is not Outcome.INVALID:
            for phase in probe_series.PHASES:
                seconds = getattr(connection, f"{phase}_s")
                if seconds is not None:
                    self._family(probe_series.CONNECT).histogram(COARSE, result.target, phase).observe(seconds)
        for kind, left in result.rate_limit.items():
            self._family(probe_series.RATE_LIMIT).value(result.target, kind).value = left
        if result.cert_expiry_unix_s is not None:
            self._family(probe_series.CERT_EXPIRY).value(result.target).value = result.cert_expiry_unix_s

    def _declare_checks(self, key: tuple[str, str], kinds: set[str]) -> None:
        for declared in (probe_series.QUALITY_CHECKS, probe_series.QUALITY_FAILURES):
            self._keep_only(declared, key, kinds)
            for kind in kinds:
                self._family(declared).value(*key, kind)

    def _declare_slos(self, key: tuple[str, str], slos: tuple[Slo, ...]) -> None:
        # Another threshold or signal judges something else: its events must not be added to the old ones.
        unchanged = {slo.name for slo in slos if slo in self._slos.get(key, slos)}
        for declared in (
            slo_series.SLO_EVENTS,
            slo_series.SLO_BAD_EVENTS,
            slo_series.SLO_OBJECTIVE,
            slo_series.SLO_THRESHOLD,
        ):
            self._keep_only(declared, key, unchanged)
        for slo in slos:
            self._family(slo_series.SLO_EVENTS).value(*key, slo.name)
            self._family(slo_series.SLO_BAD_EVENTS).value(*key, slo.name)
            self._family(slo_series.SLO_OBJECTIVE).value(*key, slo.name, slo.signal).value = float(slo.objective)
            if slo.threshold_s is not None:
                self._family(slo_series.SLO_THRESHOLD).value(*key, slo.name, slo.signal).value = slo.threshold_s
        self._slos[key] = slos

    def _keep_only(self, declared: Series, key: tuple[str, str], names: set[str]) -> None:
        children = self._family(declared).children
        for labels in [labels for labels in self._family(declared).of(*key) if labels[2] not in names]:
            del children[labels]

    def _declare_probe(self, key: tuple[str, str], slos: tuple[Slo, ...], *, streamed: bool) -> None:
        self._declare_slos(key, slos)
        by_signal: dict[str, list[float]] = {}
        for slo in slos:
            if slo.threshold_s is not None:
                by_signal.setdefault(slo.signal, []).append(slo.threshold_s)
        self._bounds[key] = {
            probe_series.TTFT.name: bounds("request", by_signal.get("ttft", ())),
            probe_series.TTFT_ANSWER.name: bounds("request", by_signal.get("ttft_answer", ())),
            probe_series.E2E.name: bounds("request", by_signal.get("e2e", ())),
            probe_series.TPOT.name: bounds("token", by_signal.get("tpot", ())),
            probe_series.ITL.name: bounds("token", by_signal.get("itl", ())),
            probe_series.CHUNK_GAP.name: COARSE,
            probe_series.SEND_LAG.name: COARSE,
        }
        for outcome in sorted(BAD):
            self._family(probe_series.FAILURES).value(*key, outcome.value)
        for outcome in sorted(NEUTRAL):
            self._family(probe_series.NEUTRAL).value(*key, outcome.value)
        for declared in (probe_series.PROBES, probe_series.CACHED, probe_series.USAGE_MISSING):
            self._family(declared).value(*key)
        for kind in probe_series.TOKEN_KINDS:
            self._family(probe_series.TOKENS).value(*key, kind)
        always = [probe_series.E2E, probe_series.SEND_LAG]
        if streamed:
            always += [probe_series.TTFT, probe_series.TPOT, probe_series.ITL, probe_series.CHUNK_GAP]
            always += [probe_series.TTFT_ANSWER] if "ttft_answer" in by_signal else []
        for declared in always:
            self._histogram(declared, key)

    def _histogram(self, declared: Series, key: tuple[str, str]) -> Histogram:
        return self._family(declared).histogram(self._bounds[key][declared.name], *key)

    def _family(self, declared: Series) -> Family:
        return self._families[declared.name]

    def _drop(self, labels: tuple[str, ...]) -> None:
        """Remove every child whose labels begin with these values of `target` (and `workload`)."""
        names = ("target", "workload")[: len(labels)]
        for family in self._families.values():
            if family.series.labels[: len(labels)] == names:
                for key in family.of(*labels):
                    del family.children[key]
                family.of(*labels)
