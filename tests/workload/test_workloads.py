"""Workloads: lengths, prompts, prefixes and traces of drawn requests."""

from random import Random

import pytest

from prober.workload.built_in import BUILT_IN
from prober.workload.prompt_length import PromptCalibration
from prober.workload.shapes import Fixed, Uniform
from prober.workload.trace import parse_trace
from prober.workload.workloads import (
    Adapters,
    FileWorkload,
    Mix,
    Prefix,
    RequestGenerator,
    TraceWorkload,
    Workload,
    sample_lengths,
)

MOONCAKE = '{"timestamp": 0, "input_length": 1024, "output_length": 5, "hash_ids": [1, 2]}\n' + (
    '{"timestamp": 1500, "input_length": 600, "output_length": 7, "hash_ids": [1, 3]}\n'
)


def test_sample_lengths_are_those_of_drawn_requests() -> None:
    """Parts of a mix by weight, rows of a trace in turn, prompts of a file by their words."""
    short, long = Workload("a", Fixed(10), Fixed(3)), Workload("b", Uniform(100, 200), Fixed(5))
    lengths = sample_lengths(Mix("m", ((short, 3.0), (long, 1.0))), Random(1), 400)
    assert len(lengths) == 400
    assert lengths.count((10, 3)) == 300
    assert all(100 <= prompt <= 200 and output == 5 for prompt, output in lengths[300:])
    trace = TraceWorkload("t", Fixed(1), Fixed(1), trace=parse_trace(MOONCAKE, "x"))
    assert sample_lengths(trace, Random(1), 4) == ((1024, 5), (600, 7), (1024, 5), (600, 7))
    texts = FileWorkload("p", Fixed(1), Fixed(9), prompts=((("user", "one two three"),),))
    assert sample_lengths(texts, Random(1), 2) == ((3, 9), (3, 9))


def test_the_default_probe_is_cheap() -> None:
    """At 0.2/s the default workload uses about 3 M tokens a day."""
    assert sum(BUILT_IN["probe"].mean_tokens()) * 0.2 * 86_400 == pytest.approx(3.0e6, rel=0.05)


def test_cold_prompts_start_with_their_nonce_and_never_repeat() -> None:
    """A cold prompt cannot be in a prefix cache."""
    drawer = RequestGenerator(BUILT_IN["probe"], Random(1))
    prompts = [drawer.draw(i) for i in range(50)]
    assert all(draw.messages[0][1].startswith(f"[{i:020d}] ") and not draw.warm for i, draw in enumerate(prompts))
    assert all(len(draw.messages[0][1].split()) == draw.prompt_tokens + 1 for draw in prompts)


def test_warm_prefixes_are_equal_and_have_their_own_label() -> None:
    """A share of the requests starts with the same text; warm and cold requests have different labels."""
    workload = Workload("rag", Fixed(100), Fixed(5), Prefix(40, 0.5))
    draws = [RequestGenerator(workload, Random(i)).draw(i) for i in range(40)]
    warm = {" ".join(draw.messages[0][1].split()[:40]) for draw in draws if draw.warm}
    assert len(warm) == 1
    assert {draw.workload for draw in draws if draw.warm} == {"rag_warm"}
    assert {draw.workload for draw in draws if not draw.warm} == {"rag"}
    assert workload.series == ("rag", "rag_warm")


def test_a_mix_draws_by_weight_and_keeps_the_names_of_its_parts() -> None:
    """Percentiles of different shapes are never pooled."""
    mix = Mix("m", ((BUILT_IN["chat"], 3.0), (BUILT_IN["summarization"], 1.0)))
    drawer = RequestGenerator(mix, Random(2))
    names = [drawer.draw(i).workload for i in range(4000)]
    assert names.count("chat") / 4000 == pytest.approx(0.75, abs=0.03)
    assert set(names) == {"chat", "summarization"}


def test_adapters_have_their_turns() -> None:
    """Round and round, each for as many requests; the first of a turn has a series of its own, and mixes keep turns apart."""
    workload = Workload("lora", Fixed(10), Fixed(5), adapters=Adapters(("x", "y"), 3))
    generator = RequestGenerator(workload, Random(1))
    drawn = [generator.draw(number) for number in range(8)]
    assert [request.adapter for request in drawn] == ["x"] * 3 + ["y"] * 3 + ["x"] * 2
    assert [request.workload for request in drawn] == ["lora_first", "lora", "lora"] * 2 + ["lora_first", "lora"]
    assert workload.series == ("lora", "lora_first")
    assert sum(share for _, _, share in workload.shares()) == pytest.approx(1)
    single = Workload("one", Fixed(10), Fixed(5), adapters=Adapters(("z",)))
    assert single.series == ("one",)
    mix = RequestGenerator(Mix("m", ((workload, 1.0), (single, 1.0))), Random(1))
    asked = [request for request in (mix.draw(number) for number in range(200)) if request.workload != "one"]
    assert [request.adapter for request in asked] == ["xxxyyy"[place % 6] for place in range(len(asked))]


def test_a_sample_prompt_asks_the_model_of_the_target() -> None:
    """It measures the tokenizer, and takes no adapter's turn."""
    workload = Workload("lora", Fixed(10), Fixed(5), adapters=Adapters(("x", "y"), 1))
    generator, calibration = RequestGenerator(workload, Random(1)), PromptCalibration()
    assert generator.draw(0, 0, calibration).adapter == ""
    calibration.stop("refused")
    assert generator.draw(1, 0, calibration).adapter == "x"
