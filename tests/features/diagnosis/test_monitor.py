"""Trouble is explained while it lasts, against what was usual before it."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import cast

import pytest

from prober.config.load import load
from prober.config.target import TargetSpec
from prober.daemon.registry import registry
from prober.exposition.families import Value
from prober.features.diagnosis.diagnosis import Diagnosis
from prober.features.diagnosis.monitor import (
    BURN,
    EVALUATE_EVERY_S,
    FEWEST,
    WINDOW_S,
    DiagnosisMonitor,
    TargetDiagnosis,
)
from prober.measure.engine_signals import EngineHistogram, EngineInfo, EngineSignals, PageReading
from prober.measure.gpu_reading import GpuReading
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.probing.event_log import EventLog
from tests.observed import StoppedClock, observed, reconfigured

TEXT = """
slos: {quick: {signal: ttft, threshold: 300ms, objective: 95%}}
defaults: {rate: 0.2/s}
targets: [{name: t, url: 'http://h', probes: [{workload: probe}], decode_bound: {active_parameters: 8e9, bytes_per_weight: 2,
  kv_bytes_per_token: 131072}}]
"""
CALM = EngineSignals(
    EngineInfo("vllm", "0.32.0", "m"),
    requests_running=4.0,
    requests_waiting=0.0,
    kv_cache_usage_ratio_max=0.3,
    kv_cache_usage_ratio_mean=0.3,
    kv_cache_capacity_tokens=100_000.0,
    preemptions_total=0.0,
)
GPU = GpuReading(0, "GPU-0", "NVIDIA H100 80GB HBM3", utilization_ratio=0.9, sm_clock_hertz=1.9e9)


def spec(text: str = TEXT) -> TargetSpec:
    return load(text, source="c", engines=(), environment={}, read=lambda path: path).targets[0]


class Told:
    """A target seen every 5 s of virtual time by a prober, its engine's page and the GPU reader."""

    def __init__(self) -> None:
        self.families, self.events, self.clock = registry(), EventLog(), StoppedClock()
        self.monitor = DiagnosisMonitor(self.families, self.events)
        self.target = observed(spec(), self.monitor, clock=self.clock)
        self.rng, self.now_s, self.queued = Random(1), 0.0, (0.0, 0.0)

    def pass_(
        self,
        seconds: float,
        ttft_s: float,
        queue_s: float,
        waiting: float,
        itl_s: float = 0.008,
        outcome: Outcome = Outcome.OK,
    ) -> None:
        for _ in range(round(seconds / 5)):
            self.now_s += 5
            self.clock.ns = round(self.now_s * 1e9)
            probe = self.probe(ttft_s + queue_s, itl_s)
            if outcome is not Outcome.OK:
                probe = replace(probe, outcome=outcome, timeline=Timeline(probe.timeline.intended_ns))
            self.target.probe_ended(probe)
            count, total = self.queued[0] + 5, self.queued[1] + 5 * queue_s
            self.queued = count, total
            queue = EngineHistogram((1.0,), (count, count), total)
            first = EngineHistogram((1.0,), (count, count), total + ttft_s * count)
            page = replace(CALM, requests_waiting=waiting, queue_seconds=queue, ttft_seconds=first)
            self.target.page_read(PageReading(round(self.now_s * 1e9), 0, page))
            self.target.gpus_read([GPU], "")
            self.evaluate()

    def evaluate(self) -> None:
        diagnosis = self.target.find(TargetDiagnosis)
        assert diagnosis is not None
        diagnosis.evaluate()

    @property
    def diagnosis(self) -> Diagnosis | None:
        found = self.target.find(TargetDiagnosis)
        return found.diagnosis if found else None

    def probe(self, ttft_s: float, itl_s: float) -> ProbeResult:
        due = round(self.now_s * 1e9)
        first = due + round(ttft_s * self.rng.uniform(0.9, 1.1) * 1e9)
        stamps = tuple(first + round(itl_s * 1e9) * i for i in range(32))
        timeline = Timeline(due, sent_ns=due, first_ns=first, content_ns=stamps, end_ns=stamps[-1])
        return ProbeResult("t", "probe", "id", self.now_s, Outcome.OK, "", timeline, requested_prompt_tokens=128)

    def regimes(self) -> set[str]:
        children: Iterable[tuple[tuple[str, ...], object]] = self.families["llmslo_regime_active"].children.items()
        return {labels[1] for labels, child in children if isinstance(child, Value) and child.value == 1}

    def bound(self) -> float | None:
        child = self.families["llmslo_decode_bandwidth_bound_ratio"].children.get(("t",))
        return child.value if isinstance(child, Value) else None


def test_a_breach_is_explained_while_it_lasts() -> None:
    """Nothing while all is well; the queue once requests wait, with its evidence and the engine's knob; nothing after it."""
    told = Told()
    told.pass_(3 * WINDOW_S, 0.1, 0.0, 0.0)
    assert told.regimes() == set()
    assert told.diagnosis is None
    told.pass_(WINDOW_S, 0.1, 0.6, 5.0)
    assert told.regimes() == {"queueing"}
    verdict = told.diagnosis
    assert verdict is not None
    assert any("waiting" in finding.figure for finding in verdict.evidence)
    assert "--max-num-seqs" in verdict.text()
    assert [event.kind for event in told.events.latest("t")] == ["diagnosis"] * len(told.events.latest("t"))
    assert told.events.latest("t")[0].text.startswith("queueing: ")
    told.pass_(2 * WINDOW_S, 0.1, 0.0, 0.0)
    assert told.regimes() == set()
    assert told.diagnosis is None


def test_too_few_bad_probes_are_no_breach() -> None:
    """Two in a window, or a share that the budget allows three times over, are not looked into."""
    told = Told()
    told.pass_(WINDOW_S, 0.1, 0.0, 0.0)
    told.pass_(10, 0.5, 0.0, 0.0)
    assert told.diagnosis is None
    assert 120 * 0.05 * BURN > 10
    told.pass_(40, 0.5, 0.0, 0.0)
    assert told.diagnosis is None
    told.pass_(60, 0.5, 0.0, 0.0)
    assert told.diagnosis is not None


def test_what_fails_is_not_slow() -> None:
    """Refused or answered 503, nothing is known of its speed; what times out, or answers again too slowly, is explained."""
    told = Told()
    told.pass_(WINDOW_S, 0.1, 0.0, 0.0)
    told.pass_(WINDOW_S, 0.1, 0.0, 0.0, outcome=Outcome.HTTP_5XX)
    assert told.diagnosis is None
    assert told.events.latest("t") == []
    told.pass_(WINDOW_S, 0.1, 0.0, 0.0, outcome=Outcome.TIMEOUT_FIRST_TOKEN)
    assert told.diagnosis is not None
    late = Told()
    late.pass_(WINDOW_S, 0.1, 0.0, 0.0, outcome=Outcome.CONNECT_REFUSED)
    late.pass_(WINDOW_S, 0.1, 0.6, 5.0)
    assert late.diagnosis is not None


def test_the_speed_of_decode_stands_beside_what_the_memory_allows() -> None:
    """3.35 TB/s over 16 GB of weights and 30,000 tokens of context of 128 KiB; absent where the GPU is not known."""
    told = Told()
    told.pass_(WINDOW_S + 5 * FEWEST, 0.1, 0.0, 0.0, itl_s=0.008)
    ratio = told.bound()
    assert ratio is not None
    assert abs(ratio - (16e9 + 30_000 * 131_072) / 3.35e12 / 0.008) < 0.01
    elsewhere = Told()
    reconfigured(elsewhere.target, spec(TEXT.replace("131072}", "131072, gpu: NVIDIA L4}")))
    elsewhere.pass_(WINDOW_S + 5 * FEWEST, 0.1, 0.0, 0.0, itl_s=0.1)
    slow = elsewhere.bound()
    assert slow is not None
    assert abs(slow - (16e9 + 30_000 * 131_072) / 0.3e12 / 0.1) < 0.01


def test_a_warm_half_that_recovers_leaves_the_drift_of_the_cold_one() -> None:
    """Both halves are diagnosed together, and either alone is reason enough."""
    told = Told()
    told.pass_(3 * WINDOW_S, 0.1, 0.0, 0.0)
    told.target.drifted("probe", "ttft", active=True)
    told.target.drifted("probe_warm", "ttft", active=True)
    told.target.drifted("probe_warm", "ttft", active=False)
    told.evaluate()
    assert told.diagnosis is not None
    told.target.drifted("probe", "ttft", active=False)
    told.evaluate()
    assert told.diagnosis is None


def test_a_target_that_is_gone_is_forgotten() -> None:
    """It is evaluated no more."""
    told = Told()
    told.pass_(WINDOW_S, 0.1, 0.6, 5.0)
    assert told.diagnosis is not None
    told.target.removed()
    assert told.target.find(TargetDiagnosis) is None
    assert not told.monitor._targets


@pytest.mark.virtual_time
async def test_an_exception_in_a_diagnosis_is_logged_and_the_rounds_go_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the other targets, and of the next rounds."""
    monitor = DiagnosisMonitor(registry(), EventLog())
    bad, good = (observed(spec(), monitor, name=name).find(TargetDiagnosis) for name in ("bad", "good"))
    evaluated: list[TargetDiagnosis] = []

    def evaluate(target: TargetDiagnosis) -> None:
        evaluated.append(target)
        if target is bad:
            raise ZeroDivisionError

    monkeypatch.setattr(TargetDiagnosis, "evaluate", evaluate)
    rounds = asyncio.create_task(monitor.run())
    await asyncio.sleep(2.5 * EVALUATE_EVERY_S)
    rounds.cancel()
    assert evaluated.count(cast(TargetDiagnosis, good)) == evaluated.count(cast(TargetDiagnosis, bad)) == 2
    assert "target=bad" in caplog.text
    assert "ZeroDivisionError" in caplog.text
