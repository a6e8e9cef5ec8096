"""A regime is named from its evidence, or none is: a wrong name costs more than none."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from prober.features.diagnosis.clues import Evidence, Figures, WindowFeatures
from prober.features.diagnosis.diagnosis import Diagnosis, diagnose
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
    step_s=0.010,
    ttft_per_prompt_token_s=0.0001,
    prompt_tokens=300.0,
    ttft_cold_s=0.200,
    ttft_warm_s=0.080,
    connect_s=0.002,
    late_ratio=0.0,
    running=4.0,
    waiting=0.0,
    kv_usage_ratio=0.2,
    preemptions_per_s=0.0,
    generated_tokens_per_s=400.0,
    computed_prompt_tokens_per_s=1_000.0,
    prefix_hit_tokens_per_s=1_000.0,
    prefix_hit_ratio=0.5,
    engine_ttft_s=0.150,
    engine_itl_s=0.012,
    engine_queue_s=0.010,
    gpu_utilization_ratio=0.9,
    gpu_clock_hertz=1.4e9,
    gpu_throttled_ratio=0.05,
    over_bound=0.85,
)
SLOWER_ENGINE: dict[str, Any] = {
    "ttft_s": quantiles(0.200),
    "ttft_mean_s": 0.240,
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
        "preemptions_per_s": 0.4,
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
        "engine_queue_s": 0.030,
    },
    "queueing": {**SLOWER_ENGINE, "waiting": 7.0, "engine_queue_s": 0.250, "generated_tokens_per_s": 900.0},
}


def named(now: WindowFeatures, before: WindowFeatures = HEALTHY, **breached: float) -> Diagnosis:
    return diagnose(Evidence(now, before, breached, "vllm"))


@pytest.mark.parametrize("regime", BREACHES)
def test_each_regime_is_named_with_its_evidence(regime: str) -> None:
    """The evidence that it leaves behind names it; what was needed is shown, with advice and the next measurement."""
    found = named(replace(HEALTHY, **BREACHES[regime]))
    assert found.regime == regime, found.text()
    assert any(each.role == "needed" for each in found.evidence)
    assert found.advice
    assert found.next_measurement in found.text()


def test_health_is_no_regime() -> None:
    """Nothing has changed: `unknown`, and nothing is missing."""
    found = named(HEALTHY)
    assert (found.regime, found.evidence, found.missing, found.advice) == ("unknown", (), (), ())


def test_nothing_seen_is_unknown() -> None:
    """Without any evidence nothing is named."""
    assert diagnose(Evidence(WindowFeatures())).regime == "unknown"


@pytest.mark.parametrize("regime", BREACHES)
def test_no_evidence_taken_away_makes_another_name(regime: str) -> None:
    """Each single figure left out of either window, or of both: the same name or `unknown`."""
    now = replace(HEALTHY, **BREACHES[regime])
    for each in fields(WindowFeatures):
        nothing: Any = () if isinstance(getattr(HEALTHY, each.name), tuple) else None
        for a, b in ((True, False), (False, True), (True, True)):
            seen_now = replace(now, **{each.name: nothing}) if a else now
            before = replace(HEALTHY, **{each.name: nothing}) if b else HEALTHY
            assert named(seen_now, before).regime in (regime, "unknown"), f"without {each.name}"


@pytest.mark.parametrize("regime", BREACHES)
def test_too_few_samples_count_as_none(regime: str) -> None:
    """A median of 19 probes names nothing that rests on it."""
    changes = dict(BREACHES[regime])
    for name in ("ttft_s", "itl_s", "tpot_s", "send_lag_s"):
        changes[name] = tuple(replace(each, count=19) for each in changes.get(name, getattr(HEALTHY, name)))
    found = named(replace(HEALTHY, **changes))
    assert found.regime in (regime, "unknown")
    assert not any(each.figure == "growth of the TTFT" for each in found.evidence)


def test_without_the_engines_page_a_slow_first_token_has_no_name() -> None:
    """Queueing, prefill and a slow front look alike to probes: what would tell is named as missing."""
    page: dict[str, Any] = dict.fromkeys(("engine_ttft_s", "engine_itl_s", "engine_queue_s", "waiting", "running"))
    found = named(replace(HEALTHY, **{**BREACHES["queueing"], **page}), replace(HEALTHY, **page))
    assert found.regime == "unknown"
    assert "more requests waiting" in found.missing
    assert found.text().count("more requests waiting") == 1, "three of them may be, and all lack it"
    assert "measure:" in found.text()


@pytest.mark.parametrize("regime", BREACHES)
def test_a_figure_is_told_once(regime: str) -> None:
    """What is needed is not told again as what supports; shares are told in percent."""
    found = named(replace(HEALTHY, **BREACHES[regime])).evidence
    assert len({each.figure for each in found}) == len(found)
    assert all(each.amount.endswith("%") for each in found if each.unit == "ratio")


def test_a_slow_front_of_the_engine_is_unknown() -> None:
    """A constant delay that the engine sees itself is no prompt, no queue, no network."""
    assert named(replace(HEALTHY, **SLOWER_ENGINE)).regime == "unknown"


def test_a_long_tail_of_decode_steps_is_unknown() -> None:
    """Plain steps are as they were, a few are slow: nothing known here does that."""
    assert (
        named(replace(HEALTHY, itl_s=quantiles(0.010, 0.040, 0.100), tpot_s=quantiles(0.013)), tpot=0.012).regime
        == "unknown"
    )


def test_two_that_do_not_explain_each_other_are_unknown() -> None:
    """A full cache and lost prefixes can each bring about the other: both are runners-up, both measurements are advised."""
    found = named(replace(HEALTHY, **{**BREACHES["prefix_miss"], **BREACHES["cache_pressure"]}))
    assert found.regime == "unknown"
    assert {each.regime for each in found.runners_up if each.why == "fits as well"} == {
        "cache_pressure",
        "prefix_miss",
    }
    assert "warm probes" in found.next_measurement


def test_a_consequence_is_a_runner_up() -> None:
    """Requests wait because prompts are computed again: that is named, and queueing follows from it."""
    found = named(replace(HEALTHY, **{**BREACHES["prefix_miss"], "waiting": 6.0, "engine_queue_s": 0.200}))
    assert found.regime == "prefix_miss"
    assert ("queueing", "follows from prefix_miss") in found.runners_up


def test_what_contradicts_is_told() -> None:
    """Steps that slow no more than the work grows are no fault of theirs; the runner-up says what spoke against it."""
    slow = replace(HEALTHY, **{**BREACHES["decode_far_from_bound"], "step_s": 0.015})
    assert named(replace(slow, generated_tokens_per_s=500.0)).regime == "decode_far_from_bound"
    found = named(replace(slow, generated_tokens_per_s=600.0))
    assert found.regime == "unknown"
    assert any("[contradicts]" in each.why for each in found.runners_up if each.regime == "decode_far_from_bound")


@pytest.mark.parametrize(
    ("over_bound", "regime"),
    [(0.9, "memory_bound_decode"), (0.4, "decode_far_from_bound"), (0.68, "unknown"), (1.6, "unknown")],
)
def test_steps_that_were_always_too_slow_for_the_slo(over_bound: float, regime: str) -> None:
    """Without a baseline, steps over the SLO are judged by the bound; between near and far, and above it, not at all."""
    found = named(replace(HEALTHY, over_bound=over_bound), WindowFeatures(), tpot=0.008)
    assert found.regime == regime


def test_prompts_that_were_always_too_long_for_the_slo() -> None:
    """The cost of the median prompt above the threshold names prefill without a baseline; an SLO it keeps does not."""
    long = replace(HEALTHY, prompt_tokens=4_000.0, ttft_s=quantiles(0.45))
    assert named(long, WindowFeatures(), ttft=0.3).regime == "prefill_bound"
    assert named(long, WindowFeatures(), ttft=0.5).regime == "unknown"
    assert named(long, WindowFeatures()).regime == "unknown"


def test_a_late_prober_beside_a_slower_engine_is_not_blamed() -> None:
    """The engine says itself that it is slower: that is not the prober's doing."""
    both = replace(HEALTHY, **{**BREACHES["queueing"], **BREACHES["prober_late"], "engine_ttft_s": 0.400})
    assert named(both).regime in ("queueing", "unknown")


def test_advice_names_the_engines_own_knobs() -> None:
    """vLLM's flags for vLLM, SGLang's for SGLang; an engine without known flags gets the advice alone."""
    now = replace(HEALTHY, **BREACHES["cache_pressure"])
    knobs = {
        engine: {each.knob for each in diagnose(Evidence(now, HEALTHY, engine=engine)).advice}
        for engine in ("vllm", "sglang", "ollama", None)
    }
    assert "--gpu-memory-utilization" in knobs["vllm"]
    assert "--mem-fraction-static" in knobs["sglang"]
    assert knobs["ollama"] == knobs[None] == {None}


def test_every_lever_is_one_that_an_engine_has() -> None:
    """Engines are those of the tables of metrics; a lever of the advice is spelt as the knobs spell it."""
    levers = {str(lever) for each in KNOBS.values() for lever in each}
    assert {advice.lever for regime in REGIMES for advice in regime.advice} - {None} <= levers
    assert set(KNOBS) <= {table.engine for table in TABLES}


def test_the_document_names_every_regime() -> None:
    """docs/methods.md knows all of them."""
    text = (Path(__file__).parents[3] / "docs/methods.md").read_text()
    assert all(f"`{regime.name}`" in text for regime in REGIMES)
    assert "`unknown`" in text
