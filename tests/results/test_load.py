"""Lengths have one text."""

import pytest

from prober.results.result import Load
from prober.workload.built_in import BUILT_IN
from prober.workload.shapes import Empirical, Fixed, LengthDistribution, Lognormal, Uniform
from prober.workload.trace import Trace
from prober.workload.workloads import FileWorkload, Mix, TraceWorkload, Workload

TEXTS: list[tuple[LengthDistribution, str]] = [
    (Fixed(500), "fixed 500"),
    (Uniform(1, 9), "uniform 1 to 9"),
    (Lognormal(500, 0.8, 50, 4000), "lognormal median 500, sigma 0.8, 50 to 4000"),
    (Lognormal(512.5, 0.0, 1, 2_000_000), "lognormal median 512.5, sigma 0, 1 to 2000000"),
    (Empirical(((0.0, 10.0), (0.5, 100.0), (1.0, 1e6))), "quantiles 0: 10, 0.5: 100, 1: 1000000"),
]


@pytest.mark.parametrize(("shape", "text"), TEXTS, ids=lambda value: str(value))
def test_a_distribution_has_a_text(shape: LengthDistribution, text: str) -> None:
    """It is part of the identity of a result, and does not change with the code."""
    assert shape.text == text


@pytest.mark.parametrize(
    ("workload", "varied"),
    [
        (Workload("a", Fixed(100), Fixed(10)), False),
        (Workload("a", Fixed(100), Uniform(1, 9)), False),
        (Workload("a", Uniform(1, 9), Fixed(10)), True),
        (FileWorkload("a", Fixed(1), Fixed(1), prompts=((("user", "two words"),), (("user", "one"),))), True),
        (
            FileWorkload("a", Uniform(1, 9), Fixed(1), prompts=((("user", "two words"),), (("user", "one more"),))),
            False,
        ),
        (Mix("m", ((Workload("a", Fixed(100), Fixed(10)), 0.5), (Workload("b", Fixed(100), Fixed(20)), 0.5))), False),
        (Mix("m", ((Workload("a", Fixed(100), Fixed(10)), 0.5), (Workload("b", Fixed(200), Fixed(20)), 0.5))), True),
        (BUILT_IN["chat"], True),
    ],
)
def test_varied_means_that_prompts_differ_in_length(workload: Workload | Mix, varied: bool) -> None:
    """Lengths of answers are no part of it, as other tools' files tell only those of prompts."""
    assert Load.of(workload, arrivals="poisson").varied is varied


def test_the_lengths_of_a_file_are_those_that_it_has() -> None:
    """Not the placeholder of a workload whose lengths stand in its file."""
    prompts = ((("user", "two words"),), (("user", "one"),))
    of_file = Load.of(FileWorkload("a", Fixed(1), Fixed(64), prompts=prompts), arrivals="poisson")
    assert (of_file.prompt_tokens, of_file.output_tokens) == ("2 of a file, 1 to 2 words, mean 1.5", "fixed 64")
    trace = Trace((0, 10**9, 3 * 10**9), (100, 2_000, 300), (5, 40, 600), ())
    of_trace = Load.of(TraceWorkload("a", Fixed(1), Fixed(1), trace=trace), arrivals="replay")
    assert of_trace.prompt_tokens == "3 of a file, 100 to 2000 tokens, mean 800"
    assert of_trace.output_tokens == "3 of a file, 5 to 600 tokens, mean 215"
