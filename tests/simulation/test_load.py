"""The load is like the trace it was fitted to, as far as its figures say; probes see it and are seen by it."""

from random import Random
from statistics import fmean, median, pvariance

import pytest

from prober.simulation.faults import Crash, Slow
from prober.simulation.load import TRACE_RATE_PER_S, AzureConversation, lengths
from prober.simulation.parameters import Parameters
from prober.simulation.probe_samples import simulate_probes


def test_lengths_are_those_of_the_trace() -> None:
    """Means and medians of the published trace (1,154.7 and 211.1 tokens, 1,020 and 129), and their dependence."""
    rng = Random(1)
    drawn = [lengths(rng) for _ in range(40_000)]
    prompts, outputs = zip(*drawn, strict=True)
    assert fmean(prompts) == pytest.approx(1154.7, rel=0.02)
    assert median(prompts) == pytest.approx(1020, rel=0.02)
    assert fmean(outputs) == pytest.approx(211.1, rel=0.02)
    assert median(outputs) == pytest.approx(129, rel=0.05)
    middle = [output for prompt, output in drawn if 1020 <= prompt < 1130]
    assert median(middle) == pytest.approx(407, rel=0.05)
    assert median([output for prompt, output in drawn if prompt > 2735]) == pytest.approx(58, rel=0.1)


def test_arrivals_are_those_of_the_trace() -> None:
    """At its rate: the mean, and counts a minute that vary as the trace's do (coefficient of variation 0.22)."""
    load = AzureConversation(TRACE_RATE_PER_S, daily_amplitude=0.0)
    counts = [0] * 1200
    for request in load.requests(Random(2), 0.0, 72_000.0):
        counts[int(request.arrival_s / 60)] += 1
    assert fmean(counts) / 60 == pytest.approx(TRACE_RATE_PER_S, rel=0.1)
    assert pvariance(counts) ** 0.5 / fmean(counts) == pytest.approx(0.22, abs=0.04)


def test_the_day_has_its_peak() -> None:
    """Rates swing by the amplitude, highest at the peak's hour; the mean over a day stays."""
    hours = [0] * 24
    load = AzureConversation(2.0, daily_amplitude=0.5, peak_hour=14.0)
    for request in load.requests(Random(3), 0.0, 86_400.0):
        hours[int(request.arrival_s / 3600) % 24] += 1
    peak, trough = sum(hours[13:15]) / 7200, sum(hours[1:3]) / 7200
    assert [peak, trough] == pytest.approx([3.0, 1.0], rel=0.3)
    assert sum(hours) / 86_400 == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("wrong", [{"rate_per_s": 0.0}, {"daily_amplitude": 1.0}])
def test_a_load_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    """A rate above 0, an amplitude below 1."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        AzureConversation(**wrong)


def test_probes_see_a_slower_engine() -> None:
    """In the order they were sent, at their rate; TTFT and ITL rise by the factor, the load of arrivals does not."""
    load = AzureConversation(1.0, daily_amplitude=0.0)
    probes = list(simulate_probes(Parameters(), load, Random(4), 1e9, 14_400.0, faults=[Slow(1.5, 7200.0)]))
    assert [probe.unix_s for probe in probes] == sorted(probe.unix_s for probe in probes)
    assert len(probes) == pytest.approx(0.2 * 14_400, rel=0.1)
    early = [probe for probe in probes if probe.unix_s < 1e9 + 7200]
    late = [probe for probe in probes if probe.unix_s >= 1e9 + 7200]
    assert median(probe.ttft_s for probe in late) / median(probe.ttft_s for probe in early) > 1.4
    assert median(probe.tpot_s for probe in late) / median(probe.tpot_s for probe in early) > 1.4
    assert fmean(probe.load for probe in late) == pytest.approx(1.2, rel=0.15)
    assert fmean(probe.load for probe in early) == pytest.approx(1.2, rel=0.15)
    assert all(probe.itl_p99_s >= probe.tpot_s - 1e-12 for probe in probes)


def test_the_same_seed_is_the_same_engine() -> None:
    """And another one is another."""
    runs = [list(simulate_probes(Parameters(), AzureConversation(), Random(seed), 0.0, 600.0)) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_a_crash_leaves_a_hole() -> None:
    """Lost probes give no samples."""
    probes = simulate_probes(Parameters(), AzureConversation(), Random(5), 0.0, 600.0, 1.0, [Crash(200.0, 400.0)])
    times = [probe.unix_s for probe in probes]
    assert not [at for at in times if 200 < at < 400]
    assert len(times) == pytest.approx(400, rel=0.2)
