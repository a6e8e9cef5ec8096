"""Lengths of prompts: as many tokens as asked for, by the count of the server, whatever its tokenizer."""

from random import Random
from statistics import fmean

import orjson
import pytest

from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.mock.completion_request import Tokenizer
from prober.mock.delays import constant
from prober.mock.faults import parse_fault
from prober.mock.service import Behaviour, Settings
from prober.mock.wire import Wire
from prober.probing.probe import calibrate, run_probe
from prober.probing.target import Target
from prober.results.stage_parts import PromptTokens, pooled, prompt_tokens_of
from prober.workload.prompt_length import PromptCalibration, PromptLength
from prober.workload.prompts import CYCLE_WORDS
from prober.workload.sessions import SessionWorkload
from prober.workload.shapes import Fixed, Lognormal
from prober.workload.trace import parse_trace
from prober.workload.workloads import Prefix, RequestGenerator, TraceWorkload, Workload, sample_lengths
from tests.probing.test_probe import identified

QUICK = Behaviour(ttft=constant(0.001), itl=constant(0.0))
TOKENIZERS = [
    Tokenizer("words"),
    Tokenizer("bytes", 11),
    Tokenizer("subwords", 25),
    Tokenizer("triples", 40),
]
OUTPUT = Fixed(1)
SHAPES = [
    Workload("fixed", Fixed(120), OUTPUT),
    Workload("varied", Lognormal(300, 0.5, 90, 1_000), OUTPUT),
    Workload("long", Fixed(16_000), OUTPUT),
    Workload("shared", Fixed(600), OUTPUT, Prefix(256, 0.5)),
]


async def results(settings: Settings, workload: Workload, count: int) -> tuple[Target, list[ProbeResult]]:
    """Probes of a target that was calibrated, one after the other."""
    async with identified(settings) as target:
        await calibrate(target)
        drawer = RequestGenerator(workload, Random(1))
        probes = [await run_probe(target, drawer, target.clock.now_ns() + 3_000_000) for _ in range(count)]
    return target, [probe for probe in probes if probe is not None]


@pytest.mark.virtual_time
@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=lambda tokenizer: tokenizer.kind)
@pytest.mark.parametrize("workload", SHAPES, ids=lambda workload: workload.name)
async def test_prompts_are_as_long_as_asked_for(tokenizer: Tokenizer, workload: Workload) -> None:
    """Within 3% in the mean, by the server's count, with shared prefixes too; asked and counted stand side by side."""
    _, probes = await results(Settings(behaviour=QUICK, tokenizer=tokenizer), workload, 40)
    usages = [probe.timeline.usage for probe in probes]
    counted = [usage.prompt_tokens for usage in usages if usage is not None and usage.prompt_tokens is not None]
    asked = [probe.requested_prompt_tokens for probe in probes]
    assert len(counted) == len(asked) == 40
    assert fmean(counted) == pytest.approx(fmean(asked), rel=0.03)
    assert prompt_tokens_of(probes) == PromptTokens(40, sum(asked), sum(counted))
    if workload.prefix:
        cached = [usage.cached_tokens or 0 for usage in usages if usage is not None]
        warm = [tokens for tokens, probe in zip(cached, probes, strict=True) if probe.workload == "shared_warm"]
        assert fmean(warm[1:]) == pytest.approx(256, rel=0.15)  # in blocks of 16, and with the template before it


@pytest.mark.virtual_time
async def test_a_trace_has_its_recorded_lengths_and_still_shares_its_blocks() -> None:
    """Blocks of 512 tokens by the server's count: equal ids are in its prefix cache."""
    rows = [
        orjson.dumps({"timestamp": at, "input_length": 2000, "output_length": 1, "hash_ids": [1, 2, at + 3]}).decode()
        for at in range(10)
    ]
    workload = TraceWorkload("t", Fixed(1), OUTPUT, trace=parse_trace("\n".join(rows), "t"))
    _, probes = await results(Settings(behaviour=QUICK, tokenizer=Tokenizer("subwords", 25)), workload, 10)
    usages = [probe.timeline.usage for probe in probes]
    assert fmean(usage.prompt_tokens or 0 for usage in usages if usage) == pytest.approx(2000, rel=0.03)
    assert fmean(usage.cached_tokens or 0 for usage in usages[1:] if usage) == pytest.approx(1024, rel=0.05)


@pytest.mark.virtual_time
async def test_without_usage_the_length_is_unknown_and_not_assumed() -> None:
    """Lengths stay in words, the reason is known, and the text says that nobody counted."""
    target, probes = await results(Settings(behaviour=QUICK, wire=Wire(has_usage=False)), SHAPES[0], 3)
    assert target.prompt_calibration is not None
    assert (target.prompt_calibration.length, target.prompt_calibration.problem) == (None, "the server sent no usage")
    lengths = prompt_tokens_of(probes)
    assert lengths == PromptTokens(3, 360, None)
    assert lengths.text() == "120 tokens asked; the server counts none (no usage), so their true length is unknown"


@pytest.mark.virtual_time
async def test_a_target_that_fails_is_asked_once() -> None:
    """No sample prompt follows one that failed; the probes show the failure."""
    settings = Settings(behaviour=QUICK, faults=(parse_fault("http:500"),))
    target, probes = await results(settings, SHAPES[0], 1)
    assert target.prompt_calibration is not None
    assert target.prompt_calibration.problem == "a sample prompt was not answered (http_5xx)"
    assert [probe.outcome for probe in probes] == [Outcome.HTTP_5XX]
    assert prompt_tokens_of(probes) is None


def test_the_constant_part_is_told_from_the_slope() -> None:
    """40 tokens of a template and 3 a word: 100 tokens are 20 words, and fewer than the template takes are one word."""
    calibration = PromptCalibration()
    for _ in range(3):
        words = calibration.next_sample_words()
        assert words is not None
        calibration.answered(words, 40 + 3 * words)
    assert calibration.length is not None
    assert calibration.length.constant_tokens == pytest.approx(40)
    assert calibration.length.tokens_per_word == pytest.approx(3)
    assert calibration.next_sample_words() is None
    assert [calibration.length.prompt_words(tokens, Random(1)) for tokens in (100, 20)] == [20, 1]


def test_lengths_between_two_numbers_of_words_are_right_in_the_mean() -> None:
    """59.5 words are asked for: half of the prompts have 59, half 60."""
    rng, length = Random(1), PromptLength(10, 2)
    assert fmean(length.prompt_words(129, rng) for _ in range(4_000)) == pytest.approx(59.5, abs=0.05)


@pytest.mark.parametrize("long_tokens", [5, 100_000])
def test_counts_that_no_tokenizer_has_are_refused(long_tokens: int) -> None:
    """A server that counts no more, or absurdly more, for a longer prompt calibrates nothing."""
    calibration = PromptCalibration()
    calibration.answered(0, 4)
    calibration.answered(0, 6)
    calibration.answered(CYCLE_WORDS, long_tokens)
    assert calibration.length is None
    assert calibration.problem == f"the server counts 5 tokens for no words and {long_tokens} for {CYCLE_WORDS}"


def test_a_length_never_changes_once_it_is_known() -> None:
    """Prompts that become longer or shorter would look like drift."""
    calibration = PromptCalibration()
    calibration.answered(0, 10)
    calibration.answered(0, 10)
    calibration.answered(CYCLE_WORDS, 10 + 2 * CYCLE_WORDS)
    before = calibration.length
    assert before is not None
    calibration.answered(CYCLE_WORDS, 5_000)
    calibration.stop("too late")
    assert (calibration.length, calibration.problem) == (before, "")


def test_counts_of_several_stages_are_pooled_over_requests() -> None:
    """Not means of means; stages without usage do not hide those that have it."""
    parts = [PromptTokens(1, 100, 110), PromptTokens(3, 300, 300), PromptTokens(50, 5_000, None), None]
    assert pooled(parts) == PromptTokens(4, 400, 410)
    assert pooled([PromptTokens(2, 10, None)]) == PromptTokens(2, 10, None)
    assert pooled([None]) is None


@pytest.mark.virtual_time
@pytest.mark.parametrize("tokenizer", [Tokenizer("words"), Tokenizer("subwords", 25)], ids=["words", "subwords"])
async def test_turns_of_sessions_grow_and_find_their_earlier_turns_in_the_prefix_cache(tokenizer: Tokenizer) -> None:
    """Each turn has a series; its prompt has all earlier messages, and the prompt of the turn before is in the cache."""
    workload = SessionWorkload("talk", Fixed(200), Fixed(40), count=3, turns=4)
    _, probes = await results(Settings(behaviour=QUICK, tokenizer=tokenizer), workload, 36)
    by_turn = {name: [probe for probe in probes if probe.workload == name] for name in workload.series}
    assert sum(map(len, by_turn.values())) == 36
    for turn, (name, turns) in enumerate(by_turn.items()):
        assert len(turns) >= 6, name
        usages = [usage for probe in turns if (usage := probe.timeline.usage) is not None]
        asked = 200 * (turn + 1) + 40 * turn
        assert {probe.requested_prompt_tokens for probe in turns} == {asked}
        assert fmean(usage.prompt_tokens or 0 for usage in usages) == pytest.approx(asked, rel=0.03)
        before = 200 * turn + 40 * (turn - 1) if turn else 0
        assert fmean(usage.cached_tokens or 0 for usage in usages) == pytest.approx(before, abs=32)
        assert not any(probe.cached for probe in turns)
    mean = fmean(probe.requested_prompt_tokens for turns in by_turn.values() for probe in turns[:6])
    assert workload.mean_tokens() == (mean, 40)
    drawn = sample_lengths(workload, Random(1), 400)
    assert fmean(prompt for prompt, _ in drawn) == pytest.approx(mean)
