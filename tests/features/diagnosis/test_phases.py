"""The phase matrix: rows, and evidence without a baseline."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from prober.features.diagnosis.clues import Symptoms
from prober.features.diagnosis.diagnosis import diagnose
from prober.features.diagnosis.phases import (
    PHASES,
    SHARED,
    SHORT,
    Phase,
    failures,
    fitted,
    not_diagnosed,
    rows,
)
from prober.features.diagnosis.window import Failure, Hardware, Reading, window_features
from prober.measure.bandwidth_bound import DecodeModel
from prober.measure.chunk import Usage
from prober.measure.engine_signals import EngineHistogram, EngineInfo, EngineSignals
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline


def probe(phase: Phase, ttft_s: float, itl_s: float, outcome: Outcome = Outcome.OK) -> ProbeResult:
    first, tokens = round(ttft_s * 1e9), phase.workload.output_tokens.maximum
    stamps = tuple(first + round(i * itl_s * 1e9) for i in range(tokens))
    prompt = phase.workload.prompt_tokens.maximum
    usage = Usage(prompt, tokens, None)
    timeline = Timeline(0, sent_ns=0, first_ns=first, content_ns=stamps, end_ns=stamps[-1], usage=usage)
    return ProbeResult("t", phase.workload.series[0], "id", 0.0, outcome, "", timeline, requested_prompt_tokens=prompt)


def matrix(token_s: float, warm_s: float, itl_s: float) -> list[ProbeResult]:
    def ttft_s(phase: Phase) -> float:
        return warm_s if phase is SHARED else 0.02 + phase.workload.prompt_tokens.maximum * token_s

    return [probe(phase, ttft_s(phase), itl_s) for phase in PHASES for _ in range(phase.probes)]


def symptoms(
    results: Sequence[ProbeResult],
    readings: Sequence[Reading],
    hardware: Hardware | None,
    breached: Mapping[str, float],
    engine: str | None,
) -> Symptoms:
    """As `prober diagnose` has them."""
    return Symptoms(window_features(results, readings, hardware=hardware), breached=breached, engine=engine)


def page(queue_s: float, running: float = 1.0) -> list[Reading]:
    """Two readings, ten requests between them."""
    readings = []
    for count in (0.0, 10.0):
        queue = EngineHistogram((1.0,), (count, count), count * queue_s)
        signals = EngineSignals(
            EngineInfo("vllm"),
            requests_running=running,
            requests_waiting=0.0,
            kv_cache_usage_ratio_max=0.1,
            kv_cache_usage_ratio_mean=0.1,
            kv_cache_capacity_tokens=100_000.0,
            queue_seconds=queue,
        )
        readings.append((count, signals))
    return readings


def test_one_row_per_kind_of_probe() -> None:
    """Medians of the answered probes and the number sent; cold and warm prompts are separate."""
    results = [*matrix(1e-4, 0.07, 0.01), probe(SHORT, 9.0, 0.01, Outcome.RESET)]
    short, cold, warm, decode = rows(results)
    assert (short.kind, short.answered, short.sent) == ("short", 20, 21)
    assert short.ttft_s == pytest.approx(0.0456)
    assert (cold.kind, cold.prompt_tokens) == ("prefill", 2048)
    assert cold.ttft_s == pytest.approx(0.2248)
    assert warm.kind == "prefill_warm"
    assert warm.ttft_s == pytest.approx(0.07)
    assert decode.tpot_s == pytest.approx(0.01)


def test_the_prompt_cost_is_the_slope_between_short_and_long() -> None:
    """It excludes the fixed part of TTFT; cold and warm TTFT are separate features."""
    now = symptoms(matrix(1e-4, 0.07, 0.01), (), None, {}, None).now
    assert now.ttft_per_prompt_token_s == pytest.approx(1e-4)
    assert now.ttft_cold_s == pytest.approx(0.2248)
    assert now.ttft_warm_s == pytest.approx(0.07)
    assert now.step_s == pytest.approx(0.01)


def test_a_missed_threshold_is_diagnosed_without_a_baseline() -> None:
    """A prefill over the TTFT threshold, and steps over the TPOT threshold far from the bound; without a missed threshold unknown."""
    hardware = Hardware(DecodeModel(8e9, 2.0, 131_072), 2e12)
    slow_prompts = symptoms(matrix(2e-4, 0.1, 0.01), page(0.001), hardware, {"ttft": 0.3}, "vllm")
    assert diagnose(slow_prompts).regimes == ("slow_prefill",)
    (before, after) = page(0.001)
    without_queue_time = [(at_s, replace(signals, queue_seconds=None)) for at_s, signals in (before, after)]
    assert diagnose(
        symptoms(matrix(2e-4, 0.1, 0.01), without_queue_time, hardware, {"ttft": 0.3}, "llamacpp")
    ).regimes == ("slow_prefill",), "nobody waits, by the page"
    slow_steps = symptoms(matrix(1e-5, 0.02, 0.06), page(0.001), hardware, {"tpot": 0.03}, "vllm")
    assert diagnose(slow_steps).regimes == ("slow_decode",)
    assert "memory bandwidth: steps run at" not in diagnose(slow_steps).why
    near_bound = symptoms(matrix(1e-5, 0.02, 0.0095), page(0.001), hardware, {"tpot": 0.008}, "vllm")
    assert "memory bandwidth: steps run at" in diagnose(near_bound).why
    assert diagnose(symptoms(matrix(2e-4, 0.1, 0.06), page(0.001), hardware, {}, "vllm")).regimes == ("unknown",)


@pytest.mark.parametrize(
    ("context_tokens", "lengths"),
    [(None, (2_048, 1_536)), (4_096, (2_048, 1_536)), (2_048, (1_827, 1_370)), (8, (2_048, 1_536))],
)
def test_prompts_fit_into_the_context(context_tokens: int | None, lengths: tuple[int, int]) -> None:
    """With a tenth to spare, and the prefix in proportion; a context that holds no answer changes nothing."""
    workload = fitted(SHARED.workload, context_tokens)
    assert workload.prefix is not None
    assert (workload.prompt_tokens.maximum, workload.prefix.tokens) == lengths
    assert fitted(SHORT.workload, context_tokens) == SHORT.workload


def test_failures_are_named_by_their_kind_and_the_words_of_the_server() -> None:
    """The most frequent first; answers are none. Texts that differ in a number are one kind, but not those of another status."""
    missing = replace(probe(SHORT, 0.1, 0.01, Outcome.HTTP_404), detail="HTTP 404: no model 'x'")
    results = [probe(SHORT, 0.1, 0.01, Outcome.RESET), missing, missing, probe(SHORT, 0.1, 0.01)]
    found = failures(results)
    assert found[0] == Failure("http_404", "HTTP 404: no model 'x'", 2)
    assert found[0].text() == "2 × http_404: HTTP 404: no model 'x'"
    assert [failure.outcome for failure in found] == ["http_404", "reset"]
    assert failures([probe(SHORT, 0.1, 0.01)]) == []
    details = [
        "HTTP 400: 2059 tokens are too many",
        "HTTP 400: 2061 tokens are too many",
        "HTTP 422: 9 tokens are too many",
    ]
    longs = [replace(probe(SHORT, 0.1, 0.01, Outcome.REJECTED), detail=detail) for detail in details]
    assert [failure.text() for failure in failures(longs)] == [
        "2 × rejected: such as HTTP 400: 2059 tokens are too many",
        "1 × rejected: HTTP 422: 9 tokens are too many",
    ]


@pytest.mark.parametrize(
    ("outcome", "limits_s", "reason"),
    [
        (Outcome.OK, {"ttft": 0.2}, ""),
        (Outcome.OK, {"ttft": 0.5, "tpot": 0.009}, ""),
        (
            Outcome.OK,
            {"ttft": 0.5, "tpot": 0.03},
            "Nothing was slow: no probe was above --ttft 500 ms or --tpot 30 ms.",
        ),
        (Outcome.OK, {}, "No limit was given, so nothing is called slow: --ttft and --tpot say what is too slow."),
        (Outcome.RESET, {"ttft": 0.2}, "No probe was answered, so there is no latency to explain."),
    ],
)
def test_nothing_is_diagnosed_where_nothing_was_slow(outcome: Outcome, limits_s: dict[str, float], reason: str) -> None:
    """Nor where no limit says what is slow. The longest TTFT is 225 ms, the TPOT 10 ms."""
    results = [replace(result, outcome=outcome) for result in matrix(1e-4, 0.07, 0.01)]
    assert not_diagnosed(results, limits_s).startswith(reason)
    assert bool(not_diagnosed(results, limits_s)) == bool(reason)
