"""A row of a matrix against an earlier one: ratios of TTFT and of throughput."""

from random import Random

from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.results.disturbance import contrast_of

S = 1_000_000_000


def probe(due_s: float, ttft_s: float, e2e_s: float, outcome: Outcome = Outcome.OK) -> ProbeResult:
    due_ns = round(due_s * S)
    timeline = Timeline(due_ns, first_ns=due_ns + round(ttft_s * S), end_ns=due_ns + round(e2e_s * S))
    return ProbeResult("t", "w", "id", 0.0, outcome, "", timeline)


def poisson(rate: float, until_s: float, seed: int) -> list[float]:
    rng, due_s, times = Random(seed), 0.0, []
    while (due_s := due_s + rng.expovariate(rate)) < until_s:
        times.append(due_s)
    return times


def test_equal_throughput_below_saturation_and_slower_first_tokens() -> None:
    """A storm that the engine bears: TTFT three times as long, as many answers a second within the interval."""
    rng = Random(3)
    one = [probe(due_s, 0.1 * rng.uniform(0.9, 1.1), 1.0) for due_s in poisson(4, 120, 1)]
    storm = [probe(due_s, 0.3 * rng.uniform(0.9, 1.1), 1.2) for due_s in poisson(4, 120, 2)]
    contrast = contrast_of(storm, one, name="one")
    assert [ratio.q for ratio in contrast.ttft] == [0.5, 0.9, 0.95]
    assert all(ratio.lower < 3 < ratio.upper and ratio.upper / ratio.lower < 1.2 for ratio in contrast.ttft)
    assert contrast.throughput is not None
    assert contrast.throughput.lower < 1 < contrast.throughput.upper
    assert contrast.throughput.upper - contrast.throughput.lower < 0.5


def test_a_saturated_row_delivers_less() -> None:
    """It answers one every 0.5 s whatever is sent: half of 4/s."""
    one = [probe(due_s, 0.1, 1.0) for due_s in poisson(4, 120, 1)]
    times, free_s = poisson(4, 120, 2), 0.0
    storm = []
    for due_s in times:
        free_s = max(free_s, due_s) + 0.5
        storm.append(probe(due_s, free_s - due_s, free_s - due_s))
    contrast = contrast_of(storm, one, name="one")
    assert contrast.throughput is not None
    assert 0.42 < contrast.throughput.estimate < 0.58
    assert contrast.throughput.lower < 0.5 < contrast.throughput.upper
    assert contrast.text().startswith("Relative to one, sent before it: TTFT p50 ")
    assert "answers per second" in contrast.text()


def test_the_interval_of_the_throughput_holds() -> None:
    """Of 200 pairs of rows whose true ratio is 1, about 95% of the intervals contain it."""
    hits = 0
    for seed in range(200):
        a, b = ([probe(t, 0.1, 1.0) for t in poisson(4, 100, 2 * seed + side)] for side in (0, 1))
        ratio = contrast_of(a, b, name="b").throughput
        assert ratio is not None
        hits += ratio.lower <= 1 <= ratio.upper
    assert 184 <= hits <= 199


def test_nothing_is_stated_without_evidence() -> None:
    """A short row has neither ratio."""
    few = [probe(due_s, 0.1, 1.0) for due_s in poisson(4, 4, 1)]
    contrast = contrast_of(few, few, name="one")
    assert contrast.ttft == ()
    assert contrast.throughput is None
    assert contrast.text() == (
        f"Relative to one, sent before it: no ratio of TTFT ({len(few)} and {len(few)} requests), none of answers per second (0 and 0 "
        "blocks of 5 s, 10 of both are needed)"
    )
