"""Diagnosis: each mechanism from its evidence, and `unknown` where the evidence does not show one."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from prober.features.diagnosis import clues, mechanisms
from prober.features.diagnosis.advice import KNOBS
from prober.features.diagnosis.clues import Finding, Name, Symptoms, WindowFeatures
from prober.features.diagnosis.diagnosis import Diagnosis, diagnose
from prober.features.diagnosis.mechanisms import MECHANISMS
from prober.measure.engines import TABLES
from tests.known import known

HEALTHY = WindowFeatures(
    probes=240,
    ttft_mean_s=0.080,
    ttft_mean_error_s=0.004,
    step_s=0.010,
    slow_step_s=0.0105,
    still_ratio=0.01,
    held_ratio=0.0,
    longest_still_s=0.15,
    ttft_per_prompt_token_s=0.0001,
    ttft_per_prompt_token_error_s=0.000005,
    long_prompt_tokens=600.0,
    long_ttft_s=0.090,
    ttft_cold_s=0.200,
    ttft_warm_s=0.080,
    saving_error_s=0.005,
    connect_s=0.002,
    headers_s=0.004,
    headers_ratio=0.1,
    network_s=0.001,
    running=4.0,
    waiting=0.0,
    kv_usage_ratio=0.2,
    kv_cache_tokens=20_000.0,
    kv_capacity_tokens=40_000.0,
    requests_per_s=25.0,
    prompt_tokens_per_request=800.0,
    preemptions_per_s=0.0,
    generated_tokens_per_s=400.0,
    computed_prompt_tokens_per_s=1_000.0,
    prefix_hit_tokens_per_s=1_000.0,
    prefix_hit_ratio=0.5,
    engine_ttft_s=0.070,
    engine_queue_s=0.005,
    kv_transfer_s=0.020,
    kv_transfer_failures_per_s=0.0,
    gpu_clock_hertz=1.9e9,
    gpu_throttled_ratio=0.0,
    gpu_memory_ratio=0.9,
    gpu_processes=2.0,
    over_bound=0.7,
)
PAGE = (
    *("running", "waiting", "kv_usage_ratio", "requests_per_s", "prompt_tokens_per_request"),
    *("preemptions_per_s", "generated_tokens_per_s", "computed_prompt_tokens_per_s", "prefix_hit_tokens_per_s"),
    *("prefix_hit_ratio", "engine_ttft_s", "engine_queue_s", "over_bound", "kv_cache_tokens"),
    *("kv_capacity_tokens",),
    *("kv_transfer_s", "kv_transfer_failures_per_s"),
)
GPU = ("gpu_clock_hertz", "gpu_throttled_ratio", "gpu_memory_ratio", "gpu_processes")

SLOWER = {"ttft_mean_s": 0.330, "ttft_mean_error_s": 0.02, "long_ttft_s": 0.340}
IN_ENGINE = {**SLOWER, "engine_ttft_s": 0.310}
QUEUEING = {**IN_ENGINE, "engine_queue_s": 0.240, "waiting": 6.0, "running": 8.0}
NO_SPACE = {**QUEUEING, "kv_usage_ratio": 0.99, "running": 3.0}
PREFILL = {
    **IN_ENGINE,
    **{"ttft_per_prompt_token_s": 0.0005, "engine_queue_s": 0.010},
}
OUTSIDE = {**SLOWER, "engine_ttft_s": 0.071}
STEPS = {"step_s": 0.016, "slow_step_s": 0.017}
PAUSES = {"still_ratio": 0.06, "longest_still_s": 1.2, "ttft_mean_s": 0.100, "engine_ttft_s": 0.090}
SLOW_TAIL = {"ttft_mean_s": 0.33, "engine_ttft_s": 0.31, "waiting": 0.1}
TRANSFERS = {**IN_ENGINE, "kv_transfer_s": 0.240}
LONG = {**QUEUEING, "prompt_tokens_per_request": 2_400.0}
# What changed, and the breached SLOs, by the name that is right.
FEWER_HITS = {**QUEUEING, "prefix_hit_ratio": 0.1, "prefix_hit_tokens_per_s": 200.0}
BREACHES: dict[Name, tuple[dict[str, Any], tuple[str, ...]]] = {
    "refusing": ({"failures": {"http_429: HTTP 429: slow down": 90, "reset": 4}}, ("success",)),
    "failing": ({"failures": {"http_5xx: HTTP 503: no upstream": 40, "http_429": 3}}, ("success",)),
    "loading": ({"failures": {"http_5xx: HTTP 503: Loading model": 240}}, ("success", "ttft")),
    "cache_pressure": (NO_SPACE, ("ttft",)),
    "prefix_miss": (
        {**IN_ENGINE, "prefix_hit_ratio": 0.1, "prefix_hit_tokens_per_s": 200.0, "engine_queue_s": 0.2},
        ("ttft",),
    ),
    "long_prompts": (LONG, ("ttft",)),
    "kv_transfer": (TRANSFERS, ("ttft",)),
    "slow_decode": (STEPS, ("tpot",)),
    "slow_prefill": (PREFILL, ("ttft",)),
    "stalls": (PAUSES, ("itl",)),
    "queueing": (QUEUEING, ("ttft",)),
    "network": (OUTSIDE, ("ttft",)),
}


def diagnosed(
    changes: dict[str, Any], *signals: str, without: tuple[str, ...] = (), before: WindowFeatures = HEALTHY
) -> Diagnosis:
    """Diagnosis of HEALTHY with changes, if an SLO on these signals is breached."""
    gone: dict[str, Any] = dict.fromkeys(without)
    thresholds = {"ttft": 0.1, "tpot": 0.012, "itl": 0.012, "e2e": 1.0, "success": 0.0}
    now = replace(replace(HEALTHY, **changes), **gone)
    return diagnose(Symptoms(now, replace(before, **gone), {signal: thresholds[signal] for signal in signals}, "vllm"))


def test_every_name_has_a_breach_here() -> None:
    """All names but `unknown`, each of one mechanism; that it is draining or sleeping an engine says itself."""
    assert {*BREACHES, "draining", "sleeping", "unknown"} == set(get_args(Name))
    assert {mechanism.name for mechanism in MECHANISMS} == {*BREACHES, "draining", "sleeping"}
    assert len(MECHANISMS) == len(BREACHES) + 2


@pytest.mark.parametrize("name", BREACHES)
def test_each_mechanism_is_named_alone(name: Name) -> None:
    """With its figures, and advice; nothing that follows from it is named beside it."""
    changes, signals = BREACHES[name]
    diagnosis = diagnosed(changes, *signals)
    assert diagnosis.regimes == (name,), diagnosis.text()
    assert diagnosis.evidence
    assert diagnosis.advice
    assert diagnosis.next_measurement


@pytest.mark.parametrize("signals", [("ttft",), ("tpot", "itl"), ("e2e",), ()])
def test_usual_figures_name_nothing(signals: tuple[str, ...]) -> None:
    """An SLO can be breached while nothing has changed."""
    assert diagnosed({}, *signals).regimes == ("unknown",)


# Requirement: (right names, changes, breached signals, features that are not measured).
CASES: dict[str, list[tuple[tuple[Name, ...], dict[str, Any], tuple[str, ...], tuple[str, ...]]]] = {
    "refused requests look up no prefixes, so that fewer hits follow from the refusals": [
        (("refusing", "queueing"), {**FEWER_HITS, **BREACHES["refusing"][0]}, ("success", "ttft"), ()),
        (("prefix_miss",), FEWER_HITS, ("ttft",), ()),
    ],
    "slower steps are a fact that probes alone show": [
        (("slow_decode",), STEPS, ("tpot",), (*PAGE, *GPU)),
        (("slow_decode",), {**STEPS, **SLOWER}, ("ttft",), (*PAGE, *GPU)),
    ],
    "steps that are slower under much more work, while requests wait, are the load's": [
        (("queueing",), {**QUEUEING, **STEPS, "generated_tokens_per_s": 800.0}, ("ttft", "tpot"), ()),
        (("slow_decode",), {**STEPS, "generated_tokens_per_s": 800.0}, ("tpot",), ()),
        (("slow_decode",), {**QUEUEING, **STEPS}, ("ttft", "tpot"), ()),
    ],
    "one slow replica shows in the slowest answers, and only an SLO on decoding asks for it": [
        (("slow_decode",), {"slow_step_s": 0.016}, ("tpot",), ()),
        (("unknown",), {"slow_step_s": 0.012}, ("tpot",), ()),
        (("network",), {**OUTSIDE, "slow_step_s": 0.016}, ("ttft",), ()),
    ],
    "preemptions show a full cache, or requests that wait where less space is left than a mean prompt takes; usage alone does not": [
        (("cache_pressure",), {"preemptions_per_s": 1.0, "kv_usage_ratio": 0.8}, ("itl",), ()),
        (("unknown",), {"preemptions_per_s": 0.2, "kv_usage_ratio": 0.8}, ("itl",), ()),
        (("unknown",), {"kv_usage_ratio": 0.99}, ("ttft",), ()),
        (("queueing",), {**NO_SPACE, "kv_usage_ratio": 0.93}, ("ttft",), ()),  # a full batch fills the cache as well
    ],
    "more requests than the engine can serve fill a cache of any size: an overload, unless requests are preempted": [
        (("cache_pressure",), {**NO_SPACE, "requests_per_s": 1.1 * known(HEALTHY.requests_per_s)}, ("ttft",), ()),
        (("queueing",), {**NO_SPACE, "requests_per_s": 1.5 * known(HEALTHY.requests_per_s)}, ("ttft",), ()),
        (
            ("cache_pressure",),
            {**NO_SPACE, "requests_per_s": 1.5 * known(HEALTHY.requests_per_s), "preemptions_per_s": 2.0},
            ("ttft",),
            (),
        ),
    ],
    "longer prompts of others are no more load of the same users": [
        (("long_prompts",), {**LONG, "requests_per_s": 50.0}, ("ttft",), ()),
        (("queueing",), {**LONG, "prompt_tokens_per_request": 1_100.0}, ("ttft",), ()),
    ],
    "a growth is divided into parts only if its error allows it": [
        (("network",), {**OUTSIDE, "ttft_mean_error_s": 0.12}, ("ttft",), ()),
        (("unknown",), {**OUTSIDE, "ttft_mean_error_s": 0.13}, ("ttft",), ()),
    ],
    "without a page, connecting, the way of the request or early headers show a slow path; a TTFT that is longer inside the engine is "
    "unknown": [
        (("network",), {**SLOWER, "connect_s": 0.202}, ("ttft",), PAGE),
        (("network",), {**SLOWER, "network_s": 0.251}, ("ttft",), PAGE),
        (("unknown",), {**SLOWER, "network_s": 0.051}, ("ttft",), PAGE),
        (("unknown",), {**SLOWER, "network_s": 0.251}, ("ttft",), (*PAGE, "network_s")),
        (("network",), {**SLOWER, "headers_s": 0.250}, ("ttft",), PAGE),
        (("unknown",), SLOWER, ("ttft",), PAGE),
        (("unknown",), {**SLOWER, "headers_s": 0.250}, ("ttft",), (*PAGE, "headers_ratio")),
    ],
    "a request that arrives late is the network's, whatever the engine's page says of its own time; an engine that is slower is not": [
        (("network",), {**OUTSIDE, "network_s": 0.251}, ("ttft",), ()),
        (("queueing",), QUEUEING, ("ttft",), ()),
        (("slow_prefill",), {**PREFILL, "network_s": 0.002}, ("ttft",), ()),
        (("unknown",), {"network_s": 0.251}, ("itl",), ()),
    ],
    "chunks that arrive together after a pause were on their way": [
        (("network",), {"held_ratio": 0.1, "still_ratio": 0.02}, ("itl",), ()),
        (("stalls",), {"held_ratio": 0.1, "still_ratio": 0.12}, ("itl",), ()),
    ],
    "without a page, prefill is named only where every prompt is slower by its length": [
        (("slow_prefill",), PREFILL, ("ttft",), PAGE),
        (("unknown",), {**PREFILL, "ttft_per_prompt_token_error_s": 0.0001}, ("ttft",), PAGE),
        (("unknown",), {**PREFILL, "ttft_per_prompt_token_s": 0.0002}, ("ttft",), PAGE),
    ],
    "a KV transfer is named where it carries half of the growth of the TTFT, on the page of either engine; not for longer prompts": [
        (("kv_transfer",), {**QUEUEING, "kv_transfer_s": 0.240}, ("ttft",), ()),  # vLLM counts it as queue time
        (("queueing",), {**QUEUEING, "kv_transfer_s": 0.030}, ("ttft",), ()),
        (("queueing",), QUEUEING, ("ttft",), ("kv_transfer_s",)),
        (("kv_transfer",), {**OUTSIDE, "kv_transfer_s": 0.240}, ("ttft",), ()),
        (("network",), {**OUTSIDE, "kv_transfer_s": 0.100}, ("ttft",), ()),
        (("long_prompts",), {**LONG, "kv_transfer_s": 0.240}, ("ttft",), ()),
        (("unknown",), {"kv_transfer_s": 0.240}, ("ttft",), ()),
        (("unknown",), {"kv_transfer_failures_per_s": 5.0}, ("ttft",), ()),
        (("slow_decode",), {**STEPS, "kv_transfer_s": 0.240}, ("tpot",), ()),
    ],
    "pauses of the engine need a page; prefills of others make pauses too": [
        (("unknown",), PAUSES, ("itl",), PAGE),
        (("stalls",), {**PAUSES, "computed_prompt_tokens_per_s": 1_300.0}, ("itl",), ()),
        (("unknown",), {**PAUSES, "computed_prompt_tokens_per_s": 1_500.0}, ("itl",), ()),
        (("unknown",), {**PAUSES, "long_ttft_s": 0.13}, ("itl",), ()),
        (("unknown",), {**PAUSES, "long_ttft_s": None}, ("itl",), ()),
    ],
    "requests that wait for an engine that stands still are not queueing, where the load grew by less than the pauses": [
        (("unknown",), {**QUEUEING, **PAUSES, **SLOW_TAIL, "generated_tokens_per_s": 500.0}, ("ttft",), ()),
        (("queueing",), {**QUEUEING, **PAUSES, **SLOW_TAIL, "generated_tokens_per_s": 600.0}, ("ttft",), ()),
    ],
    "pauses take more of the time than usual": [
        (("stalls",), {**PAUSES, "still_ratio": 0.031}, ("itl",), ()),
        (("unknown",), {**PAUSES, "still_ratio": 0.029}, ("itl",), ()),
    ],
    "prefill is slower where long prompts are, though the mean of all hardly grows": [
        (("slow_prefill",), {**PREFILL, "ttft_mean_s": 0.1}, ("ttft",), ()),
        (("unknown",), {**PREFILL, "ttft_mean_s": 0.1, "long_ttft_s": 0.1}, ("ttft",), ()),
    ],
    "prompts of others that take the prefix cache's share, but not its hits, are no miss": [
        (("queueing",), {**QUEUEING, "prefix_hit_ratio": 0.1}, ("ttft",), ()),
    ],
    "warm and cold probes show a lost prefix where the page does not": [
        (
            ("prefix_miss",),
            {**SLOWER, "ttft_warm_s": 0.195},
            ("ttft",),
            PAGE,
        ),
        (("unknown",), {**SLOWER, "ttft_warm_s": 0.195, "saving_error_s": 0.06}, ("ttft",), PAGE),
    ],
    "timeouts are what slowness makes: they are named where nothing shows why": [
        (("queueing",), {**QUEUEING, "failures": {"timeout_first_token: no content": 30}}, ("ttft", "success"), ()),
        (("failing",), {"failures": {"timeout_first_token: no content": 30}}, ("ttft", "success"), ()),
    ],
    "failures that breach no SLO are not named": [
        (("queueing",), {**QUEUEING, "failures": {"reset": 1}}, ("ttft",), ()),
    ],
    "two that do not explain each other are both named": [
        (("slow_decode", "network"), {**STEPS, **SLOWER, "connect_s": 0.202}, ("ttft", "tpot"), ()),
        (("refusing", "queueing"), {**QUEUEING, "failures": {"http_429": 60}}, ("success", "ttft"), ()),
    ],
}


@pytest.mark.parametrize("requirement", CASES)
def test_the_evidence_decides(requirement: str) -> None:
    """What else the figures would allow gives another name, or `unknown`."""
    for names, changes, signals, without in CASES[requirement]:
        diagnosis = diagnosed(changes, *signals, without=without)
        assert diagnosis.regimes == names, diagnosis.text()


# Parts that the server tells of the probes: of 80 ms to the first token, 5 are the gateway's and 60 the prompt's.
TELLS: dict[str, Any] = {"gateway_part_s": 0.005, "queue_part_s": 0.001, "prefill_part_s": 0.060, "step_part_s": 0.0095}
WAITS = {**SLOWER, "queue_part_s": 0.240}


@pytest.mark.parametrize(
    ("names", "changes", "signals"),
    [
        # The victim, and a time when nothing is told.
        (("queueing",), WAITS, ("ttft",)),
        (("unknown",), {**SLOWER, **dict.fromkeys(TELLS)}, ("ttft",)),
        # Neighbours: as slow, but because of something else, or of nothing that is told.
        (("slow_prefill",), {**SLOWER, "prefill_part_s": 0.290}, ("ttft",)),
        (("network",), {**SLOWER, "gateway_part_s": 0.230}, ("ttft",)),
        (("network",), {**SLOWER, "network_s": 0.251}, ("ttft",)),
        (("unknown",), SLOWER, ("ttft",)),
        (("unknown",), {**SLOWER, "queue_part_s": 0.101, "prefill_part_s": 0.160}, ("ttft",)),
        # More work in each step beside a queue: without a page the queue is what the engine tells of the first token.
        (("queueing",), {**WAITS, **STEPS, "step_part_s": 0.0155}, ("ttft",)),
        (("slow_decode",), {**WAITS, **STEPS, "step_part_s": 0.0155}, ("ttft", "tpot")),
        (("slow_decode",), {**STEPS, "step_part_s": 0.0155}, ("tpot",)),
        # Tokens that come late from an engine that makes them as ever.
        (("network",), STEPS, ("tpot",)),
        (("unknown",), {"step_s": 0.0118}, ("tpot",)),
    ],
)
def test_the_parts_that_a_server_tells_name_the_cause_without_its_page(
    names: tuple[Name, ...], changes: dict[str, Any], signals: tuple[str, ...]
) -> None:
    """As of a managed API: queue, prefill, decode, gateway and network are told apart; none is called another."""
    diagnosis = diagnosed({**TELLS, **changes}, *signals, without=PAGE, before=replace(HEALTHY, **TELLS))
    assert diagnosis.regimes == names, diagnosis.text()


def test_what_the_engine_tells_of_the_probes_goes_before_its_page_of_all_requests() -> None:
    """A page whose other requests wait, for their long prompts or in another queue, does not make the probes wait."""
    usual, others = replace(HEALTHY, **TELLS), {**IN_ENGINE, **TELLS, "engine_queue_s": 0.240, "waiting": 6.0}
    assert diagnosed(others, "ttft", before=usual).regimes == ("unknown",)
    assert diagnosed({**others, "prefill_part_s": 0.290}, "ttft", before=usual).regimes == ("slow_prefill",)
    assert diagnosed({**others, "queue_part_s": 0.240}, "ttft", before=usual).regimes == ("queueing",)


def test_without_a_usual_time_a_part_that_is_most_of_the_ttft_is_named() -> None:
    """As in `prober diagnose`: half of the TTFT, however far the threshold is; nothing is said of a growth."""
    for changes, headline in (
        (WAITS, "queueing (waiting, share of the TTFT: 72.7%)"),
        ({**SLOWER, "prefill_part_s": 0.290}, "slow prefill (prefill, as the engine tells, share of the TTFT: 87.9%)"),
        ({**SLOWER, "gateway_part_s": 0.230}, "network (time in the gateway, share of the TTFT: 69.7%)"),
        ({**SLOWER, "queue_part_s": 0.160}, "cause unknown"),
    ):
        alone = diagnosed({**TELLS, **changes}, "ttft", without=PAGE, before=WindowFeatures())
        assert alone.headline == headline
        assert "growth" not in alone.text()


def test_a_cache_that_was_as_full_before_is_no_cause() -> None:
    """Some pages count blocks that only the prefix cache holds."""
    diagnosis = diagnosed(NO_SPACE, "ttft", before=replace(HEALTHY, kv_usage_ratio=0.95))
    assert diagnosis.regimes == ("queueing",)


@pytest.mark.parametrize(
    ("changes", "without", "words"),
    [
        ({"gpu_clock_hertz": 1.1e9, "gpu_throttled_ratio": 0.9}, (), "GPU clock is at 58% of the usual one, throttled"),
        ({"gpu_processes": 3.0}, (), "a foreign process on the GPU: 3 compute on it, usually 2"),
        ({"gpu_memory_ratio": 0.97}, ("gpu_processes",), "perhaps another process on the GPU: 7% more"),
        ({"gpu_memory_ratio": 0.97, "over_bound": 0.45}, (), "neither clocks nor memory bandwidth"),
        ({"running": 9.0, "generated_tokens_per_s": 700.0}, (), "the batch is larger: 9 requests run, usually 4"),
        ({"running": 9.0, "generated_tokens_per_s": 550.0}, (), "neither clocks nor memory bandwidth"),
        ({"running": 9.0, "generated_tokens_per_s": 700.0, "step_s": 0.02}, (), "neither clocks nor memory bandwidth"),
        ({"over_bound": 0.9}, (), "memory bandwidth: steps run at 90%"),
        ({"over_bound": 0.45}, (), "neither clocks nor memory bandwidth"),
        ({}, (*PAGE, *GPU), "unknown with these measurements"),
    ],
)
def test_why_decode_is_slow(changes: dict[str, Any], without: tuple[str, ...], words: str) -> None:
    """The second tier of the diagnosis: by GPU readings, the page and the bound, or what would tell."""
    diagnosis = diagnosed({**STEPS, **changes}, "tpot", without=without)
    assert diagnosis.regimes == ("slow_decode",)
    assert words in diagnosis.why
    assert f"why: {diagnosis.why}" in diagnosis.text()


def test_the_first_figure_says_how_much() -> None:
    """`decode step: 1.6 ×` in the headline, and the failures with the number of the probes."""
    assert any("2,400 tokens (usually 800 tokens)" in finding.text() for finding in diagnosed(LONG, "ttft").evidence)
    assert diagnosed(STEPS, "tpot").headline == "slow decode (decode step: 1.6 ×)"
    failing = diagnosed(BREACHES["failing"][0], "success")
    assert failing.headline == "failing (http_5xx: HTTP 503: no upstream: 40 of 240 probes)"


def test_the_figure_in_the_headline_is_one_that_decides() -> None:
    """A part that shrank, or a cache that is not full, stands for nothing."""
    slow_headers = {**SLOWER, "headers_s": 0.250, "connect_s": 0.0019}
    assert diagnosed(slow_headers, "ttft", without=PAGE).headline.startswith("network (time to the headers")
    assert "connecting" not in diagnosed(slow_headers, "ttft", without=PAGE).text()
    preempted = diagnosed({"preemptions_per_s": 1.0, "kv_usage_ratio": 0.25}, "itl")
    assert preempted.headline == "cache pressure (preemptions per request: 0.04)"
    inside = diagnosed({**PREFILL, "ttft_per_prompt_token_s": None}, "ttft")
    assert inside.headline.startswith("slow prefill (time in the engine without waiting")


def test_a_probable_name_is_said_to_be_one() -> None:
    """Until it is confirmed the diagnosis is `unknown`; what is bad comes before it."""
    diagnosis = replace(diagnosed(STEPS, "tpot"), regimes=("unknown",), probable=("slow_decode",))
    assert diagnosis.headline == "probably slow decode, confirming"
    assert replace(diagnosis, bad="TPOT 16 ms, 12 ms allowed").headline.startswith(
        "TPOT 16 ms, 12 ms allowed, probably"
    )
    assert diagnosis.text().startswith("probably slow decode, confirming: the engine's steps")


def test_unknown_says_what_would_tell() -> None:
    """The page, if there is none; a time without trouble; with both, the logs."""
    assert "the engine's metrics page" in diagnosed(SLOWER, "ttft", without=PAGE).missing
    assert "a time without trouble, to compare with" in diagnosed({}, "ttft", before=WindowFeatures()).missing
    assert "more probes since the trouble began" in diagnosed({"probes": 19}, "ttft").missing
    assert diagnosed({}, "ttft").missing == ()
    unknown_why = diagnosed(STEPS, "tpot", without=(*PAGE, *GPU))
    assert unknown_why.missing == ("the engine's metrics page", "GPU readings")


def test_the_bound_is_asked_for_where_the_page_has_the_context() -> None:
    """It depends on the tokens in the KV cache: without them `decode_bound` would tell nothing, and may be configured already."""
    assert diagnosed(STEPS, "tpot", without=("over_bound",)).missing == ("`decode_bound`",)
    without_context = diagnosed(STEPS, "tpot", without=("over_bound", "kv_cache_tokens"))
    assert without_context.missing == ("KV cache usage and capacity on its page",)


def test_a_page_that_was_read_is_not_said_to_be_missing() -> None:
    """Without a usual window the figures of the page and the GPUs are known, and what lacks is something to compare them with."""
    now = {**STEPS, "over_bound": 0.45}
    without_usual = diagnosed(now, "tpot", before=WindowFeatures())
    assert without_usual.regimes == ("slow_decode",)
    assert without_usual.missing == ("a time without trouble, to compare with",)
    later_gpus: dict[str, Any] = dict.fromkeys(GPU)
    assert diagnosed(now, "tpot", before=replace(HEALTHY, **later_gpus)).missing == (
        "a time without trouble, to compare with",
    )


def test_without_a_usual_window_parts_are_compared_with_the_threshold() -> None:
    """Queue time, prompt cost and decode steps that alone are over the SLO's threshold."""
    nothing = WindowFeatures()
    assert diagnosed(QUEUEING, "ttft", before=nothing).regimes == ("queueing",)
    assert diagnosed(PREFILL, "ttft", before=nothing).regimes == ("slow_prefill",)
    assert diagnosed(STEPS, "tpot", before=nothing).regimes == ("slow_decode",)
    assert diagnosed({}, "ttft", "tpot", before=nothing).regimes == ("unknown",)
    assert diagnosed(TRANSFERS, "ttft", before=nothing).regimes == ("unknown",)  # a transfer always takes some time
    assert diagnosed(TRANSFERS, "ttft", before=replace(HEALTHY, kv_transfer_s=None)).regimes == ("unknown",)


def test_advice_has_the_engines_own_flags() -> None:
    """vLLM's flags for vLLM, SGLang's for SGLang; an engine without known flags gets the advice alone."""
    now = replace(HEALTHY, **BREACHES["cache_pressure"][0])
    knobs = {
        engine: {action.knob for action in diagnose(Symptoms(now, HEALTHY, {"ttft": 0.1}, engine)).advice}
        for engine in ("vllm", "sglang", "ollama", None)
    }
    assert "--gpu-memory-utilization" in knobs["vllm"]
    assert "--mem-fraction-static" in knobs["sglang"]
    assert knobs["ollama"] == knobs[None] == {None}


def test_every_lever_is_one_that_an_engine_has() -> None:
    """Levers of the advice are keys of KNOBS, and its engines have a table of metrics."""
    levers = {str(lever) for flags in KNOBS.values() for lever in flags}
    assert {action.lever for mechanism in MECHANISMS for action in mechanism.advice} - {None} <= levers
    assert set(KNOBS) <= {table.engine for table in TABLES}


def test_every_mechanism_and_every_constant_is_documented() -> None:
    """docs/methods.md names all mechanisms, and states the value of each constant beside the row that needs it."""
    text = (Path(__file__).parents[3] / "docs/methods.md").read_text()
    assert all(f"`{name}`" in text for name in get_args(Name))
    stated = {name: float(value) for name, value in re.findall(r"^\| `([A-Z_]+)` ([0-9.]+) \|", text, re.MULTILINE)}
    constants = {
        name: value
        for module in (clues, mechanisms)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, float)
    }
    assert constants.items() <= stated.items()


@pytest.mark.parametrize(
    ("value", "unit", "amount"),
    [
        (0.988, "ratio", "98.8%"),
        (37.2, "ratio", "3,720%"),
        (1.6, "×", "1.6 ×"),
        (2613.0, "tokens", "2,613 tokens"),
        (7.2, "", "7.2"),
    ],
)
def test_figures_are_read_as_people_write_them(value: float, unit: str, amount: str) -> None:
    """No power of ten, however far over its limit something is."""
    assert Finding("waiting", value, unit).amount == amount


def test_slower_steps_that_make_the_first_token_late_come_with_its_prefill() -> None:
    """The SLO on TTFT is the one that is missed, and an engine that computes more slowly does so in prefill, too."""
    told = replace(HEALTHY, prefill_part_s=0.040)
    slow = {**STEPS, **SLOWER, "prefill_part_s": 0.040 + SLOWER["ttft_mean_s"] - 0.05}
    figures = [finding.figure for finding in diagnosed(slow, "ttft", before=told).evidence]
    assert "prefill, as the engine tells, share of the growth of the TTFT" in figures
    assert not any("prefill" in finding.figure for finding in diagnosed(STEPS, "tpot", before=told).evidence)
