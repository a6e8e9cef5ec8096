"""The diagnosis of a target: only while it is in trouble, compared with its usual windows."""

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from decimal import Decimal
from random import Random
from typing import cast

import pytest

from prober.config.load import load
from prober.config.target import TargetSpec
from prober.daemon.registry import registry
from prober.exposition.families import Value
from prober.features.diagnosis.clues import Name
from prober.features.diagnosis.diagnosis import Diagnosis
from prober.features.diagnosis.monitor import (
    CONFIRMING,
    EVALUATE_EVERY_S,
    MIN_CONFIRMING,
    SHORT,
    DiagnosisMonitor,
    TargetDiagnosis,
)
from prober.features.diagnosis.trouble import BREACH_BURN_RATE, burn
from prober.measure.chunk import Usage
from prober.measure.engine_signals import EngineHistogram, EngineInfo, EngineSignals, PageReading
from prober.measure.gpu_reading import GpuReading
from prober.measure.objective import Slo
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.target_state import TargetState
from prober.measure.timeline import Timeline
from prober.probing.history import EventLog
from prober.storage.saved_rows import SavedRows
from tests.observed import UNIX_S, StoppedClock, observed, reconfigured

TEXT = """
slos: {quick: {signal: ttft, threshold: 300ms, objective: 95%}, pace: {signal: tpot, threshold: 12ms, objective: 95%},
  success: {signal: success, objective: 99%}}
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
CALM_S, TROUBLE_S = 1_200.0, 600.0
GPU = GpuReading(0, "GPU-0", "NVIDIA H100 80GB HBM3", utilization_ratio=0.9, sm_clock_hertz=1.9e9)


def spec(text: str = TEXT) -> TargetSpec:
    return load(text, source="c", engines=(), environment={}, read=lambda path: path).targets[0]


class Scene:
    """A target seen every 5 s of virtual time by a prober, its engine's page and the GPU reader, and evaluated every 15 s."""

    def __init__(self, saved: Mapping[str, bytes] | None = None, now_s: float = 0.0) -> None:
        self.families, self.events, self.clock = registry(), EventLog(), StoppedClock()
        self.clock.ns = round(now_s * 1e9)
        self.monitor = DiagnosisMonitor(self.families, self.events, SavedRows(saved or {}))
        self.target = observed(spec(), self.monitor.observe, clock=self.clock)
        self.rng, self.now_s, self.queued = Random(1), now_s, (0.0, 0.0)
        self.gpus, self.page = [GPU], CALM

    def run_for(
        self,
        seconds: float,
        queue_s: float = 0.0,
        itl_s: float = 0.008,
        outcome: Outcome = Outcome.OK,
        detail: str = "",
    ) -> None:
        """TTFT is 100 ms and the time in the queue; as many requests wait as it says."""
        for _ in range(round(seconds / 5)):
            self.now_s += 5
            self.clock.ns = round(self.now_s * 1e9)
            probe = self.probe(0.1 + queue_s, itl_s)
            if outcome is not Outcome.OK:
                line = Timeline(probe.timeline.intended_ns)
                probe = replace(probe, outcome=outcome, detail=detail, timeline=line)
            self.target.probe_ended(probe)
            count, total = self.queued[0] + 5, self.queued[1] + 5 * queue_s
            self.queued = count, total
            queue = EngineHistogram((1.0,), (count, count), total)
            first = EngineHistogram((1.0,), (count, count), total + 0.1 * count)
            page = replace(self.page, requests_waiting=queue_s, queue_seconds=queue, ttft_seconds=first)
            self.target.page_read(PageReading(round(self.now_s * 1e9), 0, page))
            self.target.gpus_read(self.gpus, "")
            if self.now_s % EVALUATE_EVERY_S == 0:
                self.evaluate()

    def evaluate(self) -> None:
        self.target_diagnosis.evaluate()

    @property
    def target_diagnosis(self) -> TargetDiagnosis:
        diagnosis = self.target.find(TargetDiagnosis)
        assert diagnosis is not None
        return diagnosis

    @property
    def diagnosis(self) -> Diagnosis | None:
        return self.target_diagnosis.diagnosis

    def probe(self, ttft_s: float, itl_s: float) -> ProbeResult:
        due = round(self.now_s * 1e9)
        first = due + round(ttft_s * self.rng.uniform(0.9, 1.1) * 1e9)
        stamps = tuple(first + round(itl_s * 1e9) * i for i in range(32))
        timeline = Timeline(
            due, sent_ns=due, first_ns=first, content_ns=stamps, end_ns=stamps[-1], usage=Usage(128, 32)
        )
        return ProbeResult("t", "probe", "id", self.now_s, Outcome.OK, "", timeline, requested_prompt_tokens=128)

    def causes(self, state: str = "confirmed") -> set[str]:
        children: Iterable[tuple[tuple[str, ...], object]] = self.families[
            "llmslo_cause_since_timestamp_seconds"
        ].children.items()
        assert all(isinstance(child, Value) and child.value > 0 for _, child in children)
        return {labels[1] for labels, _ in children if labels[2] == state}

    def bound(self) -> float | None:
        child = self.families["llmslo_decode_bandwidth_bound_ratio"].children.get(("t",))
        return child.value if isinstance(child, Value) else None


def verdict(*names: Name) -> Diagnosis:
    return Diagnosis(names, "means")


def take(target: TargetDiagnosis, shown: Diagnosis | None) -> None:
    """The next evaluation comes to this verdict; None: there is no trouble."""
    if shown is not None:
        target._show_verdict(shown, target._now_s(), target._now_s())
    elif target.diagnosis is not None:
        target._end(target._now_s())


def test_a_breach_is_diagnosed_while_it_lasts() -> None:
    """No diagnosis before; queueing while requests wait, with evidence and the engine's flag; none afterwards."""
    scene = Scene()
    scene.run_for(CALM_S)
    assert scene.causes() == set()
    assert scene.diagnosis is None
    scene.run_for(TROUBLE_S, queue_s=0.6)
    assert scene.causes() == {"queueing"}
    diagnosis = scene.diagnosis
    assert diagnosis is not None
    assert any("waiting" in finding.figure for finding in diagnosis.evidence)
    assert "--max-num-seqs" in diagnosis.text()
    assert [event.text.split(":")[0] for event in scene.events.latest("t")] == ["queueing"]
    assert scene.events.latest("t")[0].text.startswith("queueing: ")
    scene.run_for(300)
    assert scene.causes() == set()
    assert scene.diagnosis is None


def test_slower_steps_are_named_within_minutes_of_the_start() -> None:
    """What is usual exists after two minutes of a probe every five seconds; the diagnosis says how much and what would tell why."""
    scene = Scene()
    scene.gpus = []
    scene.run_for(150)
    scene.run_for(300, itl_s=0.016)
    assert scene.causes() == {"slow_decode"}
    assert scene.diagnosis is not None
    assert scene.diagnosis.headline == "slow decode (decode step: 2 ×)"
    assert "GPU readings" in scene.diagnosis.missing


@pytest.mark.parametrize(
    ("outcome", "detail", "name"),
    [
        (Outcome.HTTP_5XX, "HTTP 503: no healthy upstream", "failing"),
        (Outcome.CONNECT_REFUSED, "connection refused", "failing"),
        (Outcome.HTTP_5XX, "HTTP 503: Loading model", "loading"),
        (Outcome.HTTP_429, "HTTP 429: slow down", "refusing"),
        (Outcome.TIMEOUT_FIRST_TOKEN, "no content in 30 s", "failing"),
    ],
)
def test_the_reason_of_failures_is_what_happens(outcome: Outcome, detail: str, name: str) -> None:
    """With the words of the server and the number of the probes."""
    scene = Scene()
    scene.run_for(CALM_S)
    scene.run_for(TROUBLE_S, outcome=outcome, detail=detail)
    assert scene.causes() == {name}
    assert scene.diagnosis is not None
    assert detail in scene.diagnosis.headline
    assert "probes" in scene.diagnosis.headline


def test_a_cause_ends_with_its_trouble_and_is_past_for_a_while() -> None:
    """Within a minute, at one probe in five seconds; with its begin and end to the probe, for a quarter of an hour."""
    scene = Scene()
    scene.run_for(CALM_S)
    scene.run_for(TROUBLE_S, queue_s=0.6)
    assert scene.target_diagnosis.past is None
    scene.run_for(60)
    assert scene.diagnosis is None
    past = scene.target_diagnosis.past
    assert past is not None
    assert (past.regimes, past.since_unix_s) == (("queueing",), UNIX_S + CALM_S + 5)
    assert past.until_unix_s == UNIX_S + CALM_S + TROUBLE_S
    assert past.times == "from 2001-09-09 02:06 UTC until 2001-09-09 02:16 UTC"
    scene.run_for(900)
    assert scene.target_diagnosis.past is None


def test_a_cause_that_comes_again_is_the_same_trouble() -> None:
    """Within five minutes it is named at once, with the begin of the first time. Later, and another cause, begin anew."""
    scene = Scene()
    scene.run_for(CALM_S)
    for pause_s, outcome, name, since_s in (
        (150, Outcome.OK, "queueing", CALM_S),
        (200, Outcome.OK, "queueing", CALM_S),
        (450, Outcome.HTTP_5XX, "failing", CALM_S + 650),
        (0, Outcome.OK, "queueing", CALM_S + 1250),
    ):
        scene.run_for(150, queue_s=0.6 if name == "queueing" else 0.0, outcome=outcome, detail="HTTP 503: no upstream")
        assert scene.diagnosis is not None
        assert scene.diagnosis.regimes == (name,)
        assert scene.diagnosis.since_unix_s == UNIX_S + since_s + 5
        scene.run_for(pause_s)


def test_a_target_that_fails_is_failing_at_once() -> None:
    """Its state says so with the third probe, whatever its SLOs allow; when it is ready again, nothing is said of it."""
    scene = Scene()
    scene.run_for(CALM_S)
    scene.run_for(15, outcome=Outcome.CONNECT_REFUSED, detail="connection refused")
    scene.target.state_seen(TargetState.FAILING, None, ())
    assert scene.causes() == {"failing"}
    scene.run_for(45)
    scene.target.state_seen(TargetState.READY, None, ())
    assert scene.causes() == set()


def test_a_paused_target_has_no_present_cause() -> None:
    """Nothing new is known of it."""
    scene = Scene()
    scene.run_for(CALM_S)
    scene.run_for(TROUBLE_S, queue_s=0.6)
    scene.target.target.paused_unix_s = UNIX_S
    scene.evaluate()
    assert scene.diagnosis is None


def test_a_latency_that_grows_steadily_is_named_with_its_begin() -> None:
    """By 1% a minute from 100 ms on, far below its SLO. A single step of the same size is no growth, and a fall ends it."""
    grows, steps = Scene(), Scene()
    for scene in (grows, steps):
        scene.run_for(CALM_S)
    for minute in range(1, 61):
        grows.run_for(60, queue_s=0.1 * (1.01**minute - 1))
        steps.run_for(60, queue_s=0.04)
    assert steps.diagnosis is None
    assert grows.diagnosis is not None
    assert grows.diagnosis.since_unix_s == pytest.approx(UNIX_S + CALM_S, abs=240)
    assert "TTFT growing since 2001-09-09 02:0" in grows.diagnosis.bad
    assert "by 1% a minute" in grows.diagnosis.bad
    assert grows.diagnosis.regimes == ("queueing",)
    grows.run_for(60)
    assert grows.diagnosis is None


def test_slow_answers_after_failures_began_with_the_first_of_them() -> None:
    """Although the SLO has been missed since the failures began."""
    scene = Scene()
    scene.run_for(CALM_S)
    scene.run_for(200, outcome=Outcome.HTTP_5XX, detail="HTTP 503: no upstream")
    assert scene.diagnosis is not None
    assert scene.diagnosis.since_unix_s == UNIX_S + CALM_S + 5
    scene.run_for(900, queue_s=0.6)
    assert scene.diagnosis.regimes == ("queueing",)
    assert scene.diagnosis.since_unix_s == UNIX_S + CALM_S + 205


def test_an_engine_that_loads_again_is_loading() -> None:
    """Its health says so, and nothing is sent meanwhile. One that has never been ready is in no trouble."""
    scene = Scene()
    for state, names in (
        (TargetState.STARTING, set()),
        (TargetState.READY, set()),
        (TargetState.STARTING, {"loading"}),
    ):
        scene.target.state_seen(state, None, ())
        assert scene.causes() == names
    assert scene.diagnosis is not None
    assert scene.diagnosis.headline == "loading"  # no probe was sent, so none is said to have failed
    assert scene.diagnosis.advice


def test_an_engine_that_shuts_down_is_draining() -> None:
    """At once, as nothing is sent any more; the failures before its health said so are no diagnosis of what happens now."""
    scene = Scene()
    scene.run_for(CALM_S)
    scene.run_for(TROUBLE_S, outcome=Outcome.HTTP_5XX, detail="HTTP 503: Server is shutting down")
    assert scene.causes() == {"failing"}
    scene.target.state_seen(TargetState.DRAINING, None, ())
    assert scene.causes() == {"draining"}
    scene.target.state_seen(TargetState.PENDING, None, ())
    assert scene.causes() == set()


def test_an_engine_that_says_so_is_sleeping() -> None:
    """Also where its requests failed before its page was read: it is not broken. Once it is awake it is not called so."""
    scene = Scene()
    scene.run_for(CALM_S)
    scene.run_for(TROUBLE_S, outcome=Outcome.HTTP_5XX, detail="HTTP 500: no")
    assert scene.causes() == {"failing"}
    scene.target.state_seen(TargetState.ASLEEP, None, ())
    assert scene.causes() == {"sleeping"}
    scene.target.state_seen(TargetState.PENDING, None, ())
    assert scene.causes() == set()


def test_a_name_is_probable_until_three_evaluations_and_most_have_it() -> None:
    """Until then the state of the series is `probable`; it is no event."""
    scene = Scene()
    scene.run_for(CALM_S)
    states: list[tuple[set[str], set[str], str]] = []
    while not states or "queueing" not in states[-1][0]:
        scene.run_for(15, queue_s=0.6)
        states.append((scene.causes(), scene.causes("probable"), scene.diagnosis.title if scene.diagnosis else ""))
    probable = states.count((set(), {"queueing"}, "probably queueing, confirming"))
    assert MIN_CONFIRMING - 1 <= probable <= CONFIRMING // 2
    assert states[-1] == ({"queueing"}, set(), "queueing")
    assert len(states) * EVALUATE_EVERY_S < TROUBLE_S


@pytest.mark.parametrize(
    ("verdicts", "shown"),
    [
        ("qqq.", ["", "", "q", ""]),
        ("qqq.q", ["", "", "q", "", "q"]),
        ("qqq.n", ["", "", "q", "", ""]),
        ("qqqqquuuuuuu", ["", "", *"qqqqqqqq", "", ""]),
        ("qqqqqqqqnqqq", ["", "", *"qqqqqqqqqq"]),
        ("unquuuuuuuuu", [""] * 12),
        ("qqqqqqqqnnnnnnnn", ["", "", *"qqqqqqqqqq", *"nnnn"]),
    ],
)
def test_a_name_is_held_until_few_evaluations_have_it(verdicts: str, shown: list[str]) -> None:
    """A single evaluation without it, or with another name, does not reset it. q: queueing, n: network, u: unknown, .: no trouble"""
    names: dict[str, Name] = {"q": "queueing", "n": "network", "u": "unknown"}
    scene = Scene()
    target = scene.target.find(TargetDiagnosis)
    assert target is not None
    seen = []
    for letter in verdicts:
        take(target, verdict(names[letter]) if letter != "." else None)
        seen.append("".join(sorted(name[0] for name in scene.causes() - {"unknown"})))
    assert seen == shown


def test_two_names_are_both_shown_with_their_own_words() -> None:
    """In the order of the list of names. Of mechanisms that only some evaluations had beside a confirmed one nothing is said."""
    both, one = Scene(), Scene()
    for _ in range(CONFIRMING):
        take(both.target_diagnosis, verdict("slow_decode", "network"))
    assert both.causes() == {"slow_decode", "network"}
    assert both.diagnosis is not None
    assert both.diagnosis.title == "slow decode and network"
    others: tuple[Name, ...] = ("network", "network", "stalls", "stalls")
    for other in others:
        take(one.target_diagnosis, verdict("slow_decode", other))
    assert one.diagnosis is not None
    assert (one.diagnosis.regimes, one.diagnosis.means) == (
        ("slow_decode",),
        "the engine's steps take longer than usual",
    )


def test_a_workload_that_is_removed_is_forgotten() -> None:
    """What was usual for it is neither kept nor saved."""
    scene = Scene()
    scene.run_for(300)
    assert [json.loads(name)[:2] for name, _ in scene.monitor.states()] == [["t", "probe"]]
    scene.target = reconfigured(scene.target, spec(TEXT.replace("workload: probe", "workload: chat")))
    assert list(scene.monitor.states()) == []
    scene.run_for(300)  # probes that were on their way
    assert list(scene.monitor.states()) == []


def test_a_workload_that_changes_under_its_name_is_learned_again() -> None:
    """Neither the windows of this process nor those that an earlier one saved are of its requests; other keys change nothing."""
    before = Scene()
    before.run_for(CALM_S)
    same = TEXT.replace("0.2/s", "1/s")
    longer = f"workloads: {{probe: {{prompt_tokens: 4000, output_tokens: 32}}}}\n{TEXT}"
    for scene in (before, Scene(dict(before.monitor.states()))):
        for text, is_known in ((same, True), (longer, False)):
            scene.target = reconfigured(scene.target, spec(text))
            target = scene.target.find(TargetDiagnosis)
            assert target is not None
            assert bool(target.usual["probe"]) is is_known


@pytest.mark.parametrize("flip_s", [30, 60, 75, 90, 150, 240])
@pytest.mark.parametrize("other", ["network", None])
def test_a_diagnosis_that_flips_does_not_drown_the_event_list(flip_s: int, other: Name | None) -> None:
    """Half an hour of flips adds each cause once. A steady neighbour has one entry, and one whose cause changes has two."""
    scene = Scene()
    neighbours = [
        observed(spec(), scene.monitor.observe, clock=scene.clock, name=name) for name in ("steady", "changes")
    ]
    for elapsed_s in range(0, 1800, 15):
        scene.clock.ns += 15 * 10**9
        flipping: Name | None = "queueing" if elapsed_s // flip_s % 2 == 0 else other
        changing: Name | None = "queueing" if elapsed_s < 900 else "network"
        for target, cause in zip((scene.target, *neighbours), (flipping, "queueing", changing), strict=True):
            diagnosis = target.find(TargetDiagnosis)
            assert diagnosis is not None
            take(diagnosis, verdict(cause) if cause else None)
    assert len(scene.events.latest("t")) <= (2 if other else 1)
    named = {name: [event.text.split(":")[0] for event in scene.events.latest(name)] for name in ("steady", "changes")}
    assert named == {"steady": ["queueing"], "changes": ["network", "queueing"]}


def test_too_few_bad_probes_are_not_a_breach() -> None:
    """Three bad probes in a row, or up to three times the share of the budget, give no diagnosis; the fourth in a row does."""
    scene = Scene()
    scene.run_for(CALM_S)
    assert pytest.approx(4.5) == SHORT[1] * 0.05 * BREACH_BURN_RATE
    scene.run_for(15, queue_s=0.6)
    scene.evaluate()
    assert scene.diagnosis is None
    scene.run_for(5, queue_s=0.6)
    scene.evaluate()
    assert scene.diagnosis is not None


def test_wrong_answers_are_no_begin_of_slowness() -> None:
    """Thirty wrong answers, then ten slow ones: the trouble that is diagnosed begins with the slow ones."""
    quick = Slo("quick", "ttft", 0.3, Decimal("0.95"), 3_600.0)
    right = Slo("right", "quality", None, Decimal("0.95"), 3_600.0)
    scene, probes = Scene(), []
    for second in range(40):
        scene.now_s = second
        answer = scene.probe(0.1 if second < 30 else 0.6, 0.008)
        probes.append(replace(answer, check="text", outcome=Outcome.WRONG_ANSWER if second < 30 else Outcome.OK))
    slow = burn(quick, probes)
    assert slow is not None
    assert (slow.signal, slow.threshold_s, slow.since_s, slow.until_s) == ("ttft", 0.3, 30.0, 39.0)
    assert burn(right, probes) is None


def test_what_is_usual_survives_a_restart() -> None:
    """A process that starts in the middle of the trouble names it by what an earlier one saved. A row that is none is left out."""
    before = Scene()
    before.run_for(CALM_S)
    saved = dict(before.monitor.states())
    after = Scene(saved)
    after.run_for(TROUBLE_S, itl_s=0.02)
    assert after.causes() == {"slow_decode"}
    for odd in (b"{", b"[1]", b'{"color": 1}'):
        fresh = Scene(dict.fromkeys(saved, odd))
        assert not dict(fresh.monitor.states())
    assert dict(Scene(saved).monitor.states()) == saved


def test_a_cause_survives_a_restart() -> None:
    """It is past at once, and the same trouble, with its begin and its name, if it goes on; no second event. Damage is left out."""
    before = Scene()
    before.run_for(CALM_S)
    before.run_for(TROUBLE_S, queue_s=0.6)
    assert before.diagnosis is not None
    saved = dict(before.monitor.states())
    after = Scene(saved, now_s=before.now_s)
    assert after.target_diagnosis.past == replace(before.diagnosis, until_unix_s=UNIX_S + CALM_S + TROUBLE_S)
    after.run_for(75, queue_s=0.6)
    assert after.diagnosis is not None
    assert (after.diagnosis.regimes, after.diagnosis.since_unix_s) == (("queueing",), before.diagnosis.since_unix_s)
    assert after.events.latest("t") == []
    odd = Scene(dict.fromkeys(saved, b'{"color": 1}'), now_s=before.now_s)
    assert odd.target_diagnosis.past is None


def test_decode_speed_is_compared_with_the_bandwidth_bound() -> None:
    """3.35 TB/s over 16 GB of weights and 30,000 tokens of context of 128 KiB; another GPU has another bound."""
    scene = Scene()
    scene.run_for(CALM_S)
    ratio = scene.bound()
    assert ratio is not None
    assert abs(ratio - (16e9 + 30_000 * 131_072) / 3.35e12 / 0.008) < 0.01
    elsewhere = Scene()
    elsewhere.target = reconfigured(elsewhere.target, spec(TEXT.replace("131072}", "131072, gpu: NVIDIA L4}")))
    elsewhere.run_for(CALM_S, itl_s=0.1)
    slow = elsewhere.bound()
    assert slow is not None
    assert abs(slow - (16e9 + 30_000 * 131_072) / 0.3e12 / 0.1) < 0.01


def test_ranks_share_the_gpus_of_a_machine() -> None:
    """Two ranks on two GPUs, each with half of the requests and of the context: each GPU reads the weights of one rank."""
    scene = Scene()
    scene.gpus, scene.page = [GPU, replace(GPU, index=1)], replace(CALM, ranks=2)
    scene.run_for(CALM_S)
    ratio = scene.bound()
    assert ratio is not None
    assert abs(ratio - (16e9 + 15_000 * 131_072) / 3.35e12 / 0.008) < 0.01


def test_drift_of_either_series_of_a_workload_is_diagnosed() -> None:
    """Cold and warm prompts are diagnosed together, as long as one of them drifts."""
    scene = Scene()
    scene.run_for(CALM_S)
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
    scene.run_for(TROUBLE_S, queue_s=0.6)
    assert scene.diagnosis is not None
    scene.target.removed()
    assert scene.target.find(TargetDiagnosis) is None
    assert not scene.monitor.targets


@pytest.mark.virtual_time
async def test_an_exception_in_a_diagnosis_is_logged_and_the_rounds_go_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the other targets, and of the next rounds."""
    monitor = DiagnosisMonitor(registry(), EventLog())
    bad, good = (observed(spec(), monitor.observe, name=name).find(TargetDiagnosis) for name in ("bad", "good"))
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
