"""Diagnosis: each regime from its evidence, and `unknown` where the evidence does not identify one."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from prober.features.diagnosis.clues import Evidence, Figures, WindowFeatures
from prober.features.diagnosis.diagnosis import Diagnosis, diagnose, undecided
from prober.features.diagnosis.knobs import KNOBS
from prober.features.diagnosis.regimes import REGIMES
from prober.measure.engines import TABLES
from prober.statistics.quantiles import Quantile


def quantiles(p50: float, p90: float | None = None, p99: float | None = None, count: int = 1_000) -> Figures:
    values = (p50, p90 or 2 * p50, p99 or 3 * p50)
    return tuple(Quantile(q, v, None, None, count) for q, v in zip((0.5, 0.9, 0.99), values, strict=True))


HEALTHY = WindowFeatures(
    ttft_s=quantiles(0.060),
    itl_s=quantiles(0.010),
    tpot_s=quantiles(0.011),
    send_lag_s=quantiles(0.0002),
    ttft_mean_s=0.080,
    ttft_mean_error_s=0.004,
    step_s=0.010,
    ttft_per_prompt_token_s=0.0001,
    prompt_tokens=300.0,
    ttft_cold_s=0.200,
    ttft_warm_s=0.080,
    saving_error_s=0.005,
    connect_s=0.002,
    late_ratio=0.0,
    running=4.0,
    waiting=0.0,
    kv_usage_ratio=0.2,
    kv_free_tokens=300_000.0,
    requests_per_s=25.0,
    requests_dispersion=1.1,
    prompt_tokens_per_request=800.0,
    preemptions_per_s=0.0,
    generated_tokens_per_s=400.0,
    computed_prompt_tokens_per_s=1_000.0,
    prefix_hit_tokens_per_s=1_000.0,
    prefix_hit_ratio=0.5,
    engine_ttft_s=0.150,
    engine_itl_s=0.012,
    engine_queue_s=0.002,
    gpu_utilization_ratio=0.9,
    gpu_clock_hertz=1.4e9,
    gpu_throttled_ratio=0.05,
    over_bound=0.85,
)
SLOWER_ENGINE: dict[str, Any] = {
    "ttft_s": quantiles(0.200),
    "ttft_mean_s": 0.340,
    "engine_ttft_s": 0.400,
}
BREACHES: dict[str, dict[str, Any]] = {
    "prober_late": {
        "late_ratio": 0.2,
        "send_lag_s": quantiles(0.009),
        "ttft_s": quantiles(0.090),
        "ttft_mean_s": 0.110,
    },
    "network": {"ttft_s": quantiles(0.160), "ttft_mean_s": 0.180, "connect_s": 0.102},
    "cache_pressure": {
        **SLOWER_ENGINE,
        "kv_usage_ratio": 0.99,
        "kv_free_tokens": 300.0,
        "waiting_at_most_running_ratio": 0.1,
        "preemptions_per_s": 0.6,
        "waiting": 6.0,
        "engine_queue_s": 0.220,
    },
    "prefix_miss": {
        **SLOWER_ENGINE,
        "prefix_hit_ratio": 0.02,
        "prefix_hit_tokens_per_s": 30.0,
        "computed_prompt_tokens_per_s": 1_970.0,
        "ttft_warm_s": 0.195,
    },
    "decode_far_from_bound": {
        "itl_s": quantiles(0.020),
        "tpot_s": quantiles(0.022),
        "step_s": 0.020,
        "engine_itl_s": 0.024,
        "over_bound": 0.43,
        "gpu_clock_hertz": 0.7e9,
        "gpu_throttled_ratio": 0.9,
    },
    "memory_bound_decode": {
        "itl_s": quantiles(0.016),
        "tpot_s": quantiles(0.018),
        "step_s": 0.016,
        "engine_itl_s": 0.019,
        "running": 30.0,
        "generated_tokens_per_s": 2_000.0,
        "over_bound": 0.88,
    },
    "prefill_bound": {
        "ttft_s": quantiles(0.150),
        "ttft_mean_s": 0.170,
        "ttft_per_prompt_token_s": 0.0004,
        "ttft_cold_s": 0.8,
        "ttft_warm_s": 0.3,
        "engine_ttft_s": 0.450,
        "engine_queue_s": 0.003,
    },
    "queueing": {**SLOWER_ENGINE, "waiting": 7.0, "engine_queue_s": 0.250, "generated_tokens_per_s": 900.0},
}


def diagnosed(now: WindowFeatures, before: WindowFeatures = HEALTHY, **breached: float) -> Diagnosis:
    return diagnose(Evidence(now, before, breached, "vllm"))


@pytest.mark.parametrize("regime", BREACHES)
def test_each_regime_is_diagnosed_with_its_evidence(regime: str) -> None:
    """Its typical evidence gives the regime, its needs as findings, advice and the next measurement."""
    diagnosis = diagnosed(replace(HEALTHY, **BREACHES[regime]))
    assert diagnosis.regime == regime, diagnosis.text()
    assert any(finding.role == "needed" for finding in diagnosis.evidence)
    assert diagnosis.advice
    assert diagnosis.next_measurement in diagnosis.text()


def test_no_change_and_no_evidence_are_unknown() -> None:
    """Without missing figures, evidence and advice where nothing has changed."""
    diagnosis = diagnosed(HEALTHY)
    assert (diagnosis.regime, diagnosis.evidence, diagnosis.missing, diagnosis.advice) == ("unknown", (), (), ())
    assert diagnose(Evidence(WindowFeatures())).regime == "unknown"


@pytest.mark.parametrize("regime", BREACHES)
def test_missing_figures_never_give_another_regime(regime: str) -> None:
    """With any single figure missing in one window or both: the same regime or `unknown`."""
    now = replace(HEALTHY, **BREACHES[regime])
    for feature in fields(WindowFeatures):
        nothing: Any = () if isinstance(getattr(HEALTHY, feature.name), tuple) else None
        for a, b in ((True, False), (False, True), (True, True)):
            without = replace(now, **{feature.name: nothing}) if a else now
            before = replace(HEALTHY, **{feature.name: nothing}) if b else HEALTHY
            assert diagnosed(without, before).regime in (regime, "unknown"), f"without {feature.name}"


@pytest.mark.parametrize("regime", BREACHES)
def test_quantiles_without_enough_samples_are_not_used(regime: str) -> None:
    """A median of 19 probes is not evidence."""
    changes = dict(BREACHES[regime])
    for name in ("ttft_s", "itl_s", "tpot_s", "send_lag_s"):
        changes[name] = tuple(replace(figure, count=19) for figure in changes.get(name, getattr(HEALTHY, name)))
    diagnosis = diagnosed(replace(HEALTHY, **changes))
    assert diagnosis.regime in (regime, "unknown")
    assert not any(finding.detail.startswith(("p50", "p90", "p99")) for finding in diagnosis.evidence)


def test_a_slow_first_token_without_the_engines_page_is_unknown() -> None:
    """Queueing, prefill and a slow frontend look alike to probes: the figures that separate them are listed as missing."""
    page: dict[str, Any] = dict.fromkeys(("engine_ttft_s", "engine_itl_s", "engine_queue_s", "waiting", "running"))
    diagnosis = diagnosed(replace(HEALTHY, **{**BREACHES["queueing"], **page}), replace(HEALTHY, **page))
    assert diagnosis.regime == "unknown"
    assert "increase of requests waiting" in diagnosis.missing
    assert diagnosis.text().count("increase of requests waiting") == 1, "three regimes are possible, and all lack it"
    assert "measure what is missing" in diagnosis.text()


@pytest.mark.parametrize("regime", BREACHES)
def test_a_figure_is_listed_once(regime: str) -> None:
    """A need is not repeated as a support; shares are printed in percent."""
    diagnosis = diagnosed(replace(HEALTHY, **BREACHES[regime])).evidence
    assert len({finding.figure for finding in diagnosis}) == len(diagnosis)
    assert all(finding.amount.endswith("%") for finding in diagnosis if finding.unit == "ratio")


def test_held_back_answers_support_the_network() -> None:
    """A gateway that begins to buffer adds to TTFT outside the engine; alone it is no cause."""
    diagnosis = diagnosed(replace(HEALTHY, **BREACHES["network"], held_back_ratio=1.0))
    assert diagnosis.regime == "network"
    assert "answers that arrived all at once or several tokens at a time: 100% [supports]" in diagnosis.text()
    assert diagnosed(replace(HEALTHY, held_back_ratio=1.0)).regime == "unknown"


def test_two_regimes_that_do_not_explain_each_other_are_unknown() -> None:
    """A full cache and lost prefixes can cause each other: both are runners-up, with both measurements."""
    diagnosis = diagnosed(replace(HEALTHY, **{**BREACHES["prefix_miss"], **BREACHES["cache_pressure"]}))
    assert diagnosis.regime == "unknown"
    assert {other.regime for other in diagnosis.runners_up if other.why == "fits as well"} == {
        "cache_pressure",
        "prefix_miss",
    }
    assert "warm and cold probes" in diagnosis.next_measurement


Changes = dict[str, Any]
QUEUEING: Changes = {**BREACHES["queueing"]}
LITTLE_WORK: Changes = {**QUEUEING, "generated_tokens_per_s": 400.0}
TAIL: Changes = {**QUEUEING, "ttft_s": HEALTHY.ttft_s}
NO_HITS: Changes = dict.fromkeys(("prefix_hit_ratio", "prefix_hit_tokens_per_s"))
LOST: Changes = {**BREACHES["prefix_miss"], **NO_HITS}
SCATTERED: Changes = {**BREACHES["network"], "connect_s": 0.002}
NO_SPACE: Changes = {**BREACHES["cache_pressure"], "preemptions_per_s": 0.0}
LONGER: Changes = {"ttft_mean_s": 0.630, "ttft_s": quantiles(0.16)}
CONNECTING: Changes = {"ttft_s": quantiles(0.160), "ttft_mean_s": 0.180, "connect_s": 0.102}
FULL: Changes = {"kv_usage_ratio": 0.97, "kv_free_tokens": 300.0}
IDLE_CACHE: Changes = {"kv_free_tokens": 4_000.0}
AT_LIMIT: Changes = {"kv_free_tokens": 100.0, "waiting_at_most_running_ratio": 0.95}
LONG: Changes = {"prompt_tokens": 4_000.0, "ttft_s": quantiles(0.45)}
# By requirement: (regime, changes of the window, changes of the one before, breached thresholds). None: nothing is known of before.
CASES: dict[str, list[tuple[str, Changes, Changes | None, dict[str, float]]]] = {
    "longer prompts of the probes than of others: +40 ms for these are +120 ms for the probes, and not outside the engine": [
        ("unknown", {**LONGER, "engine_ttft_s": 0.190}, {"ttft_mean_s": 0.450}, {}),
        ("network", {**LONGER, "engine_ttft_s": 0.155}, {"ttft_mean_s": 0.450}, {}),
    ],
    "a constant delay in the engine's own TTFT is neither prefill nor queue nor network": [
        ("unknown", SLOWER_ENGINE, {}, {}),
    ],
    "no regime leaves plain steps unchanged and makes a few slow": [
        ("unknown", {"itl_s": quantiles(0.010, 0.040, 0.100), "tpot_s": quantiles(0.013)}, {}, {"tpot": 0.012}),
    ],
    "a page counts the backlog of a front as queue time, but nothing waits for the scheduler": [
        ("unknown", {**QUEUEING, "waiting": 0.2}, {}, {"ttft": 0.1}),
    ],
    "long prompts of others raise the engine's mean TTFT and do not dilute queueing of the probes": [
        ("queueing", {**QUEUEING, "engine_ttft_s": 1.5, "prompt_tokens_per_request": 4_000.0}, {}, {}),
    ],
    "queueing is the cause with more work, longer prompts, bursts, or all slots taken; else something makes the service slower": [
        ("unknown", LITTLE_WORK, {}, {}),
        ("queueing", {**LITTLE_WORK, "generated_tokens_per_s": 540.0}, {}, {}),
        ("queueing", {**LITTLE_WORK, "prompt_tokens_per_request": 1_100.0}, {}, {}),
        ("queueing", {**LITTLE_WORK, "requests_dispersion": 4.4}, {}, {}),
        ("unknown", {**LITTLE_WORK, "requests_dispersion": 2.2}, {}, {}),
        ("queueing", {**LITTLE_WORK, "waiting_at_most_running_ratio": 0.8}, {}, {}),
        ("unknown", {**LITTLE_WORK, "waiting_at_most_running_ratio": 0.1}, {}, {}),
    ],
    "a hundred probes are too few for a p99: the mean grew by more than three of its errors, and no quantile did": [
        ("queueing", {**TAIL, "ttft_mean_error_s": 0.08}, {}, {}),
        ("unknown", {**TAIL, "ttft_mean_error_s": 0.1}, {}, {}),
    ],
    "a lost prefix makes warm prompts slower: not cold ones as fast as these, nor with a saving that is known too badly": [
        ("prefix_miss", LOST, NO_HITS, {}),
        ("unknown", {**LOST, "ttft_cold_s": 0.085, "ttft_warm_s": 0.080}, NO_HITS, {}),
        ("unknown", {**LOST, "saving_error_s": 0.05}, NO_HITS, {}),
    ],
    "no share is computed of a mean TTFT that grew by less than four standard errors": [
        ("network", {**SCATTERED, "ttft_mean_error_s": 0.01}, {}, {}),
        ("unknown", {**SCATTERED, "ttft_mean_error_s": 0.04}, {}, {}),
    ],
    "a full cache that preempts nobody and has space for many prompts is not the cause: requests that wait, wait for slots": [
        (regime, {**BREACHES[regime], "kv_usage_ratio": usage, **more}, {}, {})
        for usage in (0.93, 0.99)
        for regime, more in (("decode_far_from_bound", IDLE_CACHE), ("queueing", IDLE_CACHE), ("queueing", AT_LIMIT))
    ],
    "a cache as full as before is not the cause, as some pages count blocks that only the prefix cache holds": [
        ("unknown", {**NO_SPACE, "kv_free_tokens": 290.0}, FULL, {}),
        ("cache_pressure", {**NO_SPACE, "kv_free_tokens": 290.0}, {**FULL, "kv_free_tokens": 9_000.0}, {}),
    ],
    "waiting for space is cache pressure without preemptions: no prompt fits, and fewer requests run than did; an overload fills any": [
        ("cache_pressure", NO_SPACE, {}, {}),
        ("unknown", {**NO_SPACE, "kv_free_tokens": None}, {}, {}),
        ("unknown", {**NO_SPACE, "requests_per_s": 32.0, "waiting": 7.0}, {}, {}),
        ("unknown", {**NO_SPACE, "prompt_tokens_per_request": 1_100.0}, {}, {}),
    ],
    "decode near its bound is no cause while only the TTFT's SLO is breached": [
        ("unknown", BREACHES["memory_bound_decode"], {}, {"ttft": 0.1}),
        ("memory_bound_decode", BREACHES["memory_bound_decode"], {}, {"ttft": 0.1, "itl": 0.01}),
    ],
    "a cause without evidence of its own is not one of two: connecting is of the TTFT, decode near its bound of the ITL": [
        ("unknown", {**BREACHES["memory_bound_decode"], **CONNECTING}, {}, {"ttft": 0.1, "itl": 0.01}),
    ],
    "without a baseline, steps over the SLO are judged by the bound: near, far, and unknown between and above": [
        ("memory_bound_decode", {"over_bound": 0.9}, None, {"tpot": 0.008}),
        ("decode_far_from_bound", {"over_bound": 0.4}, None, {"tpot": 0.008}),
        ("unknown", {"over_bound": 0.68}, None, {"tpot": 0.008}),
        ("unknown", {"over_bound": 1.6}, None, {"tpot": 0.008}),
    ],
    "without a baseline, a median prompt cost above the SLO's threshold is prefill_bound": [
        ("prefill_bound", LONG, None, {"ttft": 0.3}),
        ("unknown", LONG, None, {"ttft": 0.5}),
        ("unknown", LONG, None, {}),
    ],
}


@pytest.mark.parametrize("requirement", CASES)
def test_the_evidence_decides_the_cause(requirement: str) -> None:
    """What else the figures would allow gives another regime, or `unknown`."""
    for regime, changes, earlier, breached in CASES[requirement]:
        before = WindowFeatures() if earlier is None else replace(HEALTHY, **earlier)
        diagnosis = diagnosed(replace(HEALTHY, **{**(earlier or {}), **changes}), before, **breached)
        assert diagnosis.regime == regime, diagnosis.text()


@pytest.mark.parametrize(("queue_s", "waiting"), [(0.250, 0.0), (0.250, 1.5), (0.020, 9.0)])
def test_a_queue_time_that_the_waiting_requests_contradict_is_not_used(queue_s: float, waiting: float) -> None:
    """25 requests/s that wait 250 ms are 6 waiting (Little's law). A page that reads something else is told, and its clue not used."""
    diagnosis = diagnosed(replace(HEALTHY, **{**QUEUEING, "engine_queue_s": queue_s, "waiting": waiting}), ttft=0.1)
    assert not any("queue time" in finding.figure for finding in diagnosis.evidence)
    assert len(diagnosis.doubts) == 1
    assert f"not used: {diagnosis.doubts[0]}" in diagnosis.text()
    assert "would be" in diagnosis.doubts[0]
    assert f"the page reads {waiting:.3g}" in diagnosis.doubts[0]
    assert diagnosed(replace(HEALTHY, **QUEUEING), ttft=0.1).doubts == ()


def test_a_wait_for_the_running_step_is_no_queueing() -> None:
    """Queue time that grew by less than two decode steps."""
    step = replace(
        HEALTHY,
        ttft_mean_s=0.100,
        ttft_s=quantiles(0.08),
        engine_queue_s=0.020,
        waiting=0.5,
        engine_ttft_s=0.168,
        generated_tokens_per_s=600.0,
    )
    diagnosis = diagnosed(step)
    assert diagnosis.regime == "unknown"
    assert any("decode steps" in other.why for other in diagnosis.runners_up if other.regime == "queueing")


def test_two_evident_causes_are_both_named() -> None:
    """Connecting and queueing are each a large part of the TTFT's growth: both, with the evidence and advice of both."""
    both = {**QUEUEING, "ttft_s": quantiles(0.35), "ttft_mean_s": 0.480, "connect_s": 0.152}
    diagnosis = diagnosed(replace(HEALTHY, **both))
    assert diagnosis.regimes == ("network", "queueing"), diagnosis.text()
    assert diagnosis.text().startswith("two causes: network and queueing: ")
    assert {"share of connecting in TTFT growth", "share of queue time in TTFT growth"} <= {
        finding.figure for finding in diagnosis.evidence
    }
    assert len({finding.figure for finding in diagnosis.evidence}) == len(diagnosis.evidence)
    assert {"add replicas", "serve nearer to the users, and keep connections open"} <= {a.do for a in diagnosis.advice}
    assert "a sweep" in diagnosis.next_measurement
    assert "beside the same probe through the gateway" in diagnosis.next_measurement


def test_a_small_part_is_not_a_second_cause() -> None:
    """Connecting grew by a tenth of the TTFT's growth."""
    assert diagnosed(replace(HEALTHY, **{**QUEUEING, "connect_s": 0.020})).regimes == ("queueing",)


@pytest.mark.parametrize("regime", BREACHES)
def test_a_single_cause_is_not_two(regime: str) -> None:
    """The typical evidence of each regime names that one alone."""
    assert diagnosed(replace(HEALTHY, **BREACHES[regime])).second is None


def test_a_diagnosed_regime_stays_while_its_clues_fail_by_little() -> None:
    """67% of the growth outside the engine does not begin a diagnosis of the network (70%), but does not end one; 58% ends it."""
    for inside_s, stays in ((0.033, True), (0.042, False)):
        outside = replace(HEALTHY, ttft_s=quantiles(0.160), ttft_mean_s=0.180, engine_ttft_s=0.150 + inside_s)
        evidence = Evidence(outside, HEALTHY)
        assert diagnose(evidence).regime == "unknown"
        assert (diagnose(evidence, diagnosed=("network",)).regime == "network") is stays


def test_an_undecided_diagnosis_is_unknown() -> None:
    """It says which cause fits, and has neither its evidence nor its advice."""
    diagnosis = undecided(diagnosed(replace(HEALTHY, **QUEUEING)), 60.0)
    assert (diagnosis.regimes, diagnosis.evidence, diagnosis.advice) == (("unknown",), (), ())
    assert "queueing fits now" in diagnosis.means


def test_a_consequence_is_a_runner_up() -> None:
    """Requests wait because prompts are computed again: prefix_miss, with queueing as its consequence."""
    diagnosis = diagnosed(
        replace(HEALTHY, **{**BREACHES["prefix_miss"], "waiting": 6.0, "engine_queue_s": 0.200, "ttft_mean_s": 0.340})
    )
    assert diagnosis.regime == "prefix_miss"
    assert ("queueing", "follows from prefix_miss") in diagnosis.runners_up


def test_a_contradiction_is_the_reason_of_a_runner_up() -> None:
    """Steps that slow down no more than the work grows contradict decode_far_from_bound."""
    slow = replace(HEALTHY, **{**BREACHES["decode_far_from_bound"], "step_s": 0.015})
    assert diagnosed(replace(slow, generated_tokens_per_s=500.0)).regime == "decode_far_from_bound"
    diagnosis = diagnosed(replace(slow, generated_tokens_per_s=600.0))
    assert diagnosis.regime == "unknown"
    assert any(
        "[contradicts]" in other.why for other in diagnosis.runners_up if other.regime == "decode_far_from_bound"
    )


def test_a_late_prober_beside_a_slower_engine_is_not_the_cause() -> None:
    """The engine's own TTFT has grown, which a late prober cannot cause."""
    both = replace(HEALTHY, **{**BREACHES["queueing"], **BREACHES["prober_late"], "engine_ttft_s": 0.400})
    assert diagnosed(both).regime in ("queueing", "unknown")


def test_advice_has_the_engines_own_flags() -> None:
    """vLLM's flags for vLLM, SGLang's for SGLang; an engine without known flags gets the advice alone."""
    now = replace(HEALTHY, **BREACHES["cache_pressure"])
    knobs = {
        engine: {action.knob for action in diagnose(Evidence(now, HEALTHY, engine=engine)).advice}
        for engine in ("vllm", "sglang", "ollama", None)
    }
    assert "--gpu-memory-utilization" in knobs["vllm"]
    assert "--mem-fraction-static" in knobs["sglang"]
    assert knobs["ollama"] == knobs[None] == {None}


def test_every_lever_is_one_that_an_engine_has() -> None:
    """Levers of the advice are keys of KNOBS, and its engines have a table of metrics."""
    levers = {str(lever) for flags in KNOBS.values() for lever in flags}
    assert {advice.lever for regime in REGIMES for advice in regime.advice} - {None} <= levers
    assert set(KNOBS) <= {table.engine for table in TABLES}


def test_every_regime_is_documented() -> None:
    """docs/methods.md names all of them."""
    text = (Path(__file__).parents[3] / "docs/methods.md").read_text()
    assert all(f"`{regime.name}`" in text for regime in REGIMES)
    assert "`unknown`" in text
