"""The diagnosis of a target: only while it is in trouble, compared with its usual windows."""

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
from prober.features.diagnosis.clues import Evidence, Name
from prober.features.diagnosis.diagnosis import Diagnosis
from prober.features.diagnosis.monitor import (
    BREACH_BURN_RATE,
    EVALUATE_EVERY_S,
    MIN_PROBES,
    SETTLE_S,
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


class Scene:
    """A target seen every 5 s of virtual time by a prober, its engine's page and the GPU reader."""

    def __init__(self) -> None:
        self.families, self.events, self.clock = registry(), EventLog(), StoppedClock()
        self.monitor = DiagnosisMonitor(self.families, self.events)
        self.target = observed(spec(), self.monitor, clock=self.clock)
        self.rng, self.now_s, self.queued = Random(1), 0.0, (0.0, 0.0)
        self.gpus, self.page = [GPU], CALM

    def run_for(
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
            page = replace(self.page, requests_waiting=waiting, queue_seconds=queue, ttft_seconds=first)
            self.target.page_read(PageReading(round(self.now_s * 1e9), 0, page))
            self.target.gpus_read(self.gpus, "")
            self.evaluate()

    def evaluate(self) -> None:
        diagnosis = self.target.find(TargetDiagnosis)
        assert diagnosis is not None
        diagnosis.evaluate()

    @property
    def diagnosis(self) -> Diagnosis | None:
        target = self.target.find(TargetDiagnosis)
        return target.diagnosis if target else None

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


def test_a_breach_is_diagnosed_while_it_lasts() -> None:
    """No diagnosis before; queueing while requests wait, with evidence and the engine's flag; none afterwards."""
    scene = Scene()
    scene.run_for(3 * WINDOW_S, 0.1, 0.0, 0.0)
    assert scene.regimes() == set()
    assert scene.diagnosis is None
    scene.run_for(WINDOW_S, 0.1, 0.6, 1.0)
    assert scene.regimes() == {"queueing"}
    verdict = scene.diagnosis
    assert verdict is not None
    assert any("waiting" in finding.figure for finding in verdict.evidence)
    assert "--max-num-seqs" in verdict.text()
    assert [event.kind for event in scene.events.latest("t")] == ["diagnosis"] * len(scene.events.latest("t"))
    assert scene.events.latest("t")[0].text.startswith("queueing: ")
    scene.run_for(2 * WINDOW_S, 0.1, 0.0, 0.0)
    assert scene.regimes() == set()
    assert scene.diagnosis is None


def test_a_cause_is_named_once_it_has_fitted_for_a_minute() -> None:
    """Until then, and after a change of the cause, the series, the page and the text say `unknown` and which cause fits."""
    scene = Scene()
    scene.run_for(3 * WINDOW_S, 0.1, 0.0, 0.0)
    states: list[tuple[set[str], str]] = []
    for _ in range(60):
        scene.run_for(5, 0.1, 0.6, 1.0)
        states.append((scene.regimes(), scene.diagnosis.means if scene.diagnosis else ""))
    first = next(place for place, (_, means) in enumerate(states) if "queueing fits now" in means)
    named = next(place for place, (regimes, _) in enumerate(states) if regimes == {"queueing"})
    assert (named - first) * 5 == SETTLE_S
    assert all(regimes in (set(), {"unknown"}) for regimes, _ in states[:named])
    assert all(regimes == {"queueing"} for regimes, _ in states[named:])
    assert [event.text.split(":")[0] for event in scene.events.latest("t")] == ["queueing"], "undecided is no event"


def test_a_target_between_two_causes_does_not_flip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdicts that change every 15 s name nothing; once one lasts it is named. Each evaluation knows the cause that is shown."""
    scene = Scene()
    scene.run_for(WINDOW_S, 0.1, 0.6, 1.0)
    assert scene.diagnosis is not None
    queueing = scene.diagnosis
    assert queueing.regime == "queueing"
    network = replace(queueing, regime="network")
    both = replace(network, second="queueing")
    verdicts = [network, queueing] * 10 + [both] * 60
    shown: list[tuple[str, ...]] = []

    def verdict(evidence: Evidence, diagnosed: tuple[str, ...]) -> Diagnosis:
        shown.append(diagnosed)
        return verdicts.pop(0)

    monkeypatch.setattr("prober.features.diagnosis.monitor.diagnose", verdict)
    seen: list[set[str]] = []
    while verdicts:
        scene.clock.ns += 15 * 10**9
        scene.evaluate()
        seen.append(scene.regimes())
    assert seen[:24] == [{"unknown"}] * 24
    assert seen[24:] == [{"network", "queueing"}] * 56, "both labels of two causes"
    assert shown[0] == ("queueing",)
    assert set(shown[1:25]) == {("unknown",)}
    assert scene.events.latest("t")[0].text.startswith("two causes: network and queueing: ")


@pytest.mark.parametrize("flip_s", [30, 60, 75, 90, 150, 240])
@pytest.mark.parametrize("other", ["network", None])
def test_a_diagnosis_that_flips_does_not_drown_the_event_list(flip_s: int, other: Name | None) -> None:
    """Half an hour of flips adds at most one. A steady neighbour has one entry, and one whose cause changes has two."""
    scene = Scene()
    neighbours = [observed(spec(), scene.monitor, clock=scene.clock, name=name) for name in ("steady", "changes")]
    scene.run_for(WINDOW_S, 0.1, 0.6, 1.0)
    assert scene.diagnosis is not None
    queueing = scene.diagnosis
    before = len(scene.events.latest("t"))
    for elapsed_s in range(0, 1800, 15):
        scene.clock.ns += 15 * 10**9
        flipping: Name | None = "queueing" if elapsed_s // flip_s % 2 == 0 else other
        changing: Name | None = "queueing" if elapsed_s < 900 else "network"
        for target, cause in zip((scene.target, *neighbours), (flipping, "queueing", changing), strict=True):
            diagnosis = target.find(TargetDiagnosis)
            assert diagnosis is not None
            diagnosis._take(replace(queueing, regime=cause) if cause else None, scene.clock.ns / 1e9)
    assert len(scene.events.latest("t")) - before <= 1
    named = {name: [event.text.split(":")[0] for event in scene.events.latest(name)] for name in ("steady", "changes")}
    assert named == {"steady": ["queueing"], "changes": ["network", "queueing"]}


def test_too_few_bad_probes_are_not_a_breach() -> None:
    """Two bad probes in a window, or up to three times the share of the budget, give no diagnosis."""
    scene = Scene()
    scene.run_for(WINDOW_S, 0.1, 0.0, 0.0)
    scene.run_for(10, 0.5, 0.0, 0.0)
    assert scene.diagnosis is None
    assert 120 * 0.05 * BREACH_BURN_RATE > 10
    scene.run_for(40, 0.5, 0.0, 0.0)
    assert scene.diagnosis is None
    scene.run_for(60, 0.5, 0.0, 0.0)
    assert scene.diagnosis is not None


def test_failures_are_not_slowness() -> None:
    """Refused connections and 503 give no diagnosis; timeouts and slow answers do."""
    scene = Scene()
    scene.run_for(WINDOW_S, 0.1, 0.0, 0.0)
    scene.run_for(WINDOW_S, 0.1, 0.0, 0.0, outcome=Outcome.HTTP_5XX)
    assert scene.diagnosis is None
    assert scene.events.latest("t") == []
    scene.run_for(WINDOW_S, 0.1, 0.0, 0.0, outcome=Outcome.TIMEOUT_FIRST_TOKEN)
    assert scene.diagnosis is not None
    late = Scene()
    late.run_for(WINDOW_S, 0.1, 0.0, 0.0, outcome=Outcome.CONNECT_REFUSED)
    late.run_for(WINDOW_S, 0.1, 0.6, 5.0)
    assert late.diagnosis is not None


def test_decode_speed_is_compared_with_the_bandwidth_bound() -> None:
    """3.35 TB/s over 16 GB of weights and 30,000 tokens of context of 128 KiB; another GPU has another bound."""
    scene = Scene()
    scene.run_for(WINDOW_S + 5 * MIN_PROBES, 0.1, 0.0, 0.0, itl_s=0.008)
    ratio = scene.bound()
    assert ratio is not None
    assert abs(ratio - (16e9 + 30_000 * 131_072) / 3.35e12 / 0.008) < 0.01
    elsewhere = Scene()
    reconfigured(elsewhere.target, spec(TEXT.replace("131072}", "131072, gpu: NVIDIA L4}")))
    elsewhere.run_for(WINDOW_S + 5 * MIN_PROBES, 0.1, 0.0, 0.0, itl_s=0.1)
    slow = elsewhere.bound()
    assert slow is not None
    assert abs(slow - (16e9 + 30_000 * 131_072) / 0.3e12 / 0.1) < 0.01


def test_ranks_share_the_gpus_of_a_machine() -> None:
    """Two ranks on two GPUs, each with half of the requests and of the context: each GPU reads the weights of one rank."""
    scene = Scene()
    scene.gpus, scene.page = [GPU, replace(GPU, index=1)], replace(CALM, ranks=2)
    scene.run_for(WINDOW_S + 5 * MIN_PROBES, 0.1, 0.0, 0.0, itl_s=0.008)
    ratio = scene.bound()
    assert ratio is not None
    assert abs(ratio - (16e9 + 15_000 * 131_072) / 3.35e12 / 0.008) < 0.01


def test_drift_of_either_series_of_a_workload_is_diagnosed() -> None:
    """Cold and warm prompts are diagnosed together, as long as one of them drifts."""
    scene = Scene()
    scene.run_for(3 * WINDOW_S, 0.1, 0.0, 0.0)
    scene.target.drifted("probe", "ttft", active=True)
    scene.target.drifted("probe_warm", "ttft", active=True)
    scene.target.drifted("probe_warm", "ttft", active=False)
    scene.evaluate()
    assert scene.diagnosis is not None
    scene.target.drifted("probe", "ttft", active=False)
    scene.evaluate()
    assert scene.diagnosis is None


def test_a_removed_target_is_not_evaluated() -> None:
    """The monitor drops it."""
    scene = Scene()
    scene.run_for(WINDOW_S, 0.1, 0.6, 5.0)
    assert scene.diagnosis is not None
    scene.target.removed()
    assert scene.target.find(TargetDiagnosis) is None
    assert not scene.monitor._targets


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
