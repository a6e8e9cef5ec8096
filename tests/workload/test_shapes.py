"""Length distributions, and the built-in workloads."""

from random import Random

import pytest

from prober.workload.built_in import BUILT_IN
from prober.workload.shapes import Empirical, Fixed, LengthDistribution, Lognormal, Uniform
from prober.workload.workloads import Prefix


@pytest.mark.parametrize(
    ("shape", "low", "high"),
    [
        (Fixed(7), 7, 7),
        (Uniform(3, 9), 3, 9),
        (Lognormal(100, 1.5, 80, 120), 80, 120),
        (Empirical(((0, 10), (0.5, 100), (1, 200))), 10, 200),
    ],
)
def test_draws_reach_but_do_not_exceed_both_bounds(shape: LengthDistribution, low: int, high: int) -> None:
    """Every draw is an integer within the bounds, and both bounds occur."""
    rng = Random(1)
    draws = [shape.draw(rng) for _ in range(20_000)]
    assert (min(draws), max(draws), shape.maximum) == (low, high, high)
    assert all(type(draw) is int for draw in draws)


@pytest.mark.parametrize(
    "shape",
    [
        Lognormal(100, 1.5, 80, 120),
        Lognormal(500, 0.8, 50, 4_000),
        Lognormal(100, 0.0, 1, 200),
        Lognormal(9, 2.0, 1, 12),
        Uniform(3, 9),
        Empirical(((0, 10), (0.5, 100), (1, 2_000))),
    ],
)
def test_the_mean_is_that_of_the_draws(shape: LengthDistribution) -> None:
    """That of the clipped distribution agrees with a large sample, within half a token of rounding."""
    rng = Random(2)
    n = 100_000
    assert sum(shape.draw(rng) for _ in range(n)) / n == pytest.approx(shape.mean(), rel=0.01, abs=0.5)


def test_the_median_of_a_lognormal_is_its_parameter() -> None:
    """Half of the draws are at or below the median; clipping does not change it."""
    rng = Random(3)
    draws = sorted(Lognormal(500, 0.8, 50, 4_000).draw(rng) for _ in range(20_000))
    assert draws[10_000] == pytest.approx(500, rel=0.03)


def test_an_empirical_distribution_has_its_quantiles() -> None:
    """Draws have the specified quantiles, linearly interpolated."""
    rng = Random(4)
    draws = sorted(Empirical(((0, 10), (0.5, 100), (1, 2_000))).draw(rng) for _ in range(20_000))
    assert draws[5_000] == pytest.approx(55, rel=0.03)
    assert draws[10_000] == pytest.approx(100, rel=0.05)
    assert draws[15_000] == pytest.approx(1_050, rel=0.03)


@pytest.mark.parametrize(
    ("name", "prompt", "output"),
    [
        ("probe", Lognormal(128, 0.5, 32, 512), Uniform(16, 48)),
        ("chat", Lognormal(500, 0.8, 50, 4_000), Lognormal(200, 0.8, 10, 2_000)),
        ("code_generation", Lognormal(1_500, 0.8, 200, 8_000), Lognormal(500, 0.8, 50, 4_000)),
        ("long_context_qa", Lognormal(16_000, 0.8, 2_000, 128_000), Lognormal(300, 0.8, 20, 2_000)),
        ("summarization", Lognormal(4_000, 0.8, 500, 32_000), Lognormal(150, 0.8, 50, 500)),
        ("phase_256_128", Fixed(256), Fixed(128)),
        ("phase_2048_128", Fixed(2048), Fixed(128)),
        ("phase_256_1024", Fixed(256), Fixed(1024)),
        ("phase_2048_1024", Fixed(2048), Fixed(1024)),
        ("phase_4096_256_warm", Fixed(4096), Fixed(256)),
    ],
)
def test_built_in_workloads_have_the_published_shapes(
    name: str, prompt: LengthDistribution, output: LengthDistribution
) -> None:
    """Median, sigma and bounds are as documented; only the last phase has a warm prefix, of 2,048 tokens."""
    workload = BUILT_IN[name]
    assert (workload.name, workload.prompt_tokens, workload.output_tokens) == (name, prompt, output)
    assert workload.prefix == (Prefix(2048, 1.0) if name == "phase_4096_256_warm" else None)
    assert workload.sampling == {"temperature": 0}
