"""Which probe fills which series, and which event counts for which SLO."""

import math
from dataclasses import replace
from functools import partial

import pytest
from prometheus_client.parser import text_string_to_metric_families as read_text

from prober.config.load import load
from prober.config.target import TargetSpec
from prober.daemon.registry import ALL as ALL_SERIES
from prober.daemon.registry import registry
from prober.exposition.families import Histogram, Registry, Series, page
from prober.features.slo.monitor import SloMonitor
from prober.measure.outcome import BAD, NEUTRAL, Outcome
from prober.measure.result import ProbeResult, RetryKind
from prober.measure.target_state import TargetState
from prober.measure.timeline import Connection, Timeline
from prober.measure.usage import Usage
from prober.probing.observer import ObservedTarget
from prober.probing.recorder import TargetProbes
from tests.observed import observed, reconfigured

CONFIG = """
slos:
  ttft: {signal: ttft, threshold: 437ms, objective: 99%}
  itl: {signal: itl, threshold: 50ms, objective: 99%}
  e2e: {signal: e2e, threshold: 5s, objective: 99%}
targets: [{name: t, url: http://h}]
"""
MS = 1_000_000
GOOD = ProbeResult(
    "t",
    "probe",
    "slo-probe-1",
    1000.0,
    Outcome.OK,
    "",
    Timeline(
        0,
        connection=Connection(-5 * MS, -4 * MS, tcp_s=0.001),
        sent_ns=MS,
        first_ns=50 * MS,
        first_answer_ns=50 * MS,
        end_ns=80 * MS,
        content_ns=(50 * MS, 60 * MS, 70 * MS),
        usage=Usage(20, 3, 0),
    ),
    requested_output_tokens=3,
)


def spec(text: str = CONFIG) -> TargetSpec:
    return load(text, source="c", engines=(), environment={}, read=lambda path: path).targets[0]


def declared() -> tuple[ObservedTarget, Registry]:
    families = registry()
    return observed(spec(), partial(TargetProbes, families), SloMonitor(families).observe), families


def samples(families: Registry) -> dict[tuple[str, tuple[str, ...]], float]:
    text = b"".join(page(list(families.values()), openmetrics=False)).decode()
    return {
        (sample.name, tuple(value for key, value in sample.labels.items())): sample.value
        for family in read_text(text)
        for sample in family.samples
    }


def test_everything_is_there_at_zero() -> None:
    """Counters and every reason start at 0, so that increase() sees the first."""
    _, families = declared()
    found = samples(families)
    assert found[("llmslo_probes_total", ("t", "probe"))] == 0
    assert all(found[("llmslo_probe_failures_total", ("t", "probe", outcome.value))] == 0 for outcome in BAD)
    assert all(found[("llmslo_probes_neutral_total", ("t", "probe", outcome.value))] == 0 for outcome in NEUTRAL)
    assert found[("llmslo_ttft_seconds_count", ("t", "probe"))] == 0
    assert not [key for key in found if key[0].endswith("_created")]


def test_a_success_fills_every_histogram_once() -> None:
    """One TTFT, TPOT and E2E a probe; an ITL a chunk after the first; tokens as the server counts them."""
    recorder, families = declared()
    recorder.probe_ended(GOOD)
    found = samples(families)
    key = ("t", "probe")
    counts = {
        name: found[(f"llmslo_{name}_seconds_count", key)]
        for name in ("ttft", "tpot", "e2e", "itl", "chunk_gap", "send_lag")
    }
    assert counts == {"ttft": 1, "tpot": 1, "e2e": 1, "itl": 2, "chunk_gap": 2, "send_lag": 1}
    assert found[("llmslo_ttft_seconds_sum", key)] == pytest.approx(0.050)
    assert found[("llmslo_probe_tokens_total", (*key, "completion"))] == 3
    assert found[("llmslo_connect_seconds_count", ("t", "tcp"))] == 1
    assert ("llmslo_ttft_answer_seconds_count", key) not in found


@pytest.mark.parametrize("kept_out", [{"warm_up": True}, {"cached": True}, {"outcome": Outcome.RESET}])
def test_what_is_no_usual_latency_stays_out_of_the_histograms(kept_out: dict[str, object]) -> None:
    """Warm-up, cached and failed probes count as probes, and observe no latency."""
    recorder, families = declared()
    recorder.probe_ended(replace(GOOD, **kept_out))  # type: ignore[arg-type]
    found = samples(families)
    assert found[("llmslo_probes_total", ("t", "probe"))] == 1
    assert found[("llmslo_ttft_seconds_count", ("t", "probe"))] == 0
    assert found[("llmslo_itl_seconds_count", ("t", "probe"))] == 0


@pytest.mark.parametrize("outcome", sorted(NEUTRAL))
def test_neutral_outcomes_are_no_probes(outcome: Outcome) -> None:
    """What is not the target's doing is counted apart."""
    recorder, families = declared()
    recorder.probe_ended(replace(GOOD, outcome=outcome))
    found = samples(families)
    assert found[("llmslo_probes_total", ("t", "probe"))] == 0
    assert found[("llmslo_probes_neutral_total", ("t", "probe", outcome.value))] == 1
    assert sum(value for key, value in found.items() if key[0] == "llmslo_probe_failures_total") == 0


def test_chunks_that_were_read_together_are_counted() -> None:
    """All but the last of them; in the ITL they are one."""
    recorder, families = declared()
    stamps = (50 * MS, 60 * MS, 80 * MS, 80 * MS, 80 * MS)
    recorder.probe_ended(replace(GOOD, timeline=replace(GOOD.timeline, content_ns=stamps)))
    found = samples(families)
    assert found[("llmslo_chunks_merged_total", ("t", "probe"))] == 2
    assert found[("llmslo_itl_seconds_count", ("t", "probe"))] == 2


def test_retries_of_a_gateway_have_series_once_a_header_tells() -> None:
    """A probe counts once, however often it was tried; without such headers there is no series."""
    recorder, families = declared()
    recorder.probe_ended(GOOD)
    assert not [name for name, _ in samples(families) if name == "llmslo_probes_retried_total"]
    told: list[dict[RetryKind, int]] = [{"retry": 0}, {"retry": 2}, {"retry": 0, "fallback": 1}]
    for retries in told:
        recorder.probe_ended(replace(GOOD, outcome=Outcome.HTTP_5XX, retries=retries))
    found = samples(families)
    assert found[("llmslo_probes_retried_total", ("t", "retry"))] == 1
    assert found[("llmslo_probes_retried_total", ("t", "fallback"))] == 1


def test_a_success_without_usage_is_told() -> None:
    """Where the server counts no tokens, that counts."""
    recorder, families = declared()
    recorder.probe_ended(replace(GOOD, timeline=replace(GOOD.timeline, usage=None)))
    found = samples(families)
    assert found[("llmslo_usage_missing_total", ("t", "probe"))] == 1
    assert found[("llmslo_tpot_seconds_count", ("t", "probe"))] == 0


def test_a_removed_target_leaves_nothing_and_takes_nothing() -> None:
    """Series of what is gone are gone, and a late result does not bring them back."""
    recorder, families = declared()
    recorder.probe_ended(GOOD)
    recorder.state_seen(TargetState.READY, None, ())
    recorder.removed()
    families.remove("t")
    recorder.probe_ended(GOOD)
    assert samples(families) == {}


def test_declaring_again_keeps_what_was_counted() -> None:
    """A reload with the same bounds keeps histograms and counters; changed bounds start that histogram anew."""
    recorder, families = declared()
    recorder.probe_ended(GOOD)
    reconfigured(recorder, spec())
    assert samples(families)[("llmslo_ttft_seconds_count", ("t", "probe"))] == 1
    reconfigured(recorder, spec(CONFIG.replace("437ms", "300ms")))
    found = samples(families)
    assert found[("llmslo_ttft_seconds_count", ("t", "probe"))] == 0
    assert found[("llmslo_itl_seconds_count", ("t", "probe"))] == 2


def test_an_slo_that_judges_something_else_begins_anew() -> None:
    """Objective and threshold bear the signal; under the same name with another one nothing of the old is left."""
    recorder, families = declared()
    recorder.probe_ended(GOOD)
    found = samples(families)
    assert found[("llmslo_slo_threshold_seconds", ("t", "probe", "ttft", "ttft"))] == 0.437
    assert found[("llmslo_slo_objective_ratio", ("t", "probe", "ttft", "ttft"))] == 0.99
    assert found[("llmslo_slo_events_total", ("t", "probe", "ttft"))] == 1
    reconfigured(recorder, spec(CONFIG.replace("signal: ttft, threshold: 437ms", "signal: success")))
    found = samples(families)
    assert found[("llmslo_slo_events_total", ("t", "probe", "ttft"))] == 0
    assert found[("llmslo_slo_events_total", ("t", "probe", "itl"))] == 2
    about = {key for key in found if key[0].startswith("llmslo_slo_") and key[1][2] == "ttft"}
    assert {key[1][3:] for key in about} == {(), ("success",)}
    assert not [key for key in about if key[0] == "llmslo_slo_threshold_seconds"]


def test_the_number_of_series_is_bounded() -> None:
    """At most 320 series for one target and workload with three SLOs."""
    recorder, families = declared()
    recorder.probe_ended(GOOD)
    assert 250 < len([key for key in samples(families) if key[1][:2] == ("t", "probe")]) <= 320


TOOLS = (
    "workloads: {w: {prompt_tokens: 9, output_tokens: 9, sampling: {tools: [{name: f}], tool_choice: required}}}"
    + CONFIG.replace("url: http://h", "url: http://h, probes: [{workload: w}]")
)


def test_tool_calls_have_series_where_the_workload_has_tools() -> None:
    """The first call's times, and the checks; they go with the tools, and broken arguments have no time."""
    families = registry()
    recorder = observed(spec(TOOLS), partial(TargetProbes, families), SloMonitor(families).observe)
    key = ("t", "w")
    timeline = replace(GOOD.timeline, calls=2, call_ns=55 * MS, arguments_ns=70 * MS)
    called = replace(GOOD, workload="w", check="tool_call", timeline=timeline)
    recorder.probe_ended(called)
    broken = replace(called, outcome=Outcome.WRONG_ANSWER, timeline=replace(timeline, arguments_ns=None))
    recorder.probe_ended(broken)
    found = samples(families)
    assert found[("llmslo_ttft_call_seconds_sum", key)] == pytest.approx(0.110)
    assert found[("llmslo_call_arguments_seconds_sum", key)] == pytest.approx(0.070)
    assert found[("llmslo_quality_checks_total", (*key, "tool_call"))] == 2
    assert found[("llmslo_quality_failures_total", (*key, "tool_call"))] == 1
    assert 250 < len([labels for _, labels in found if labels[:2] == key]) <= 320
    without = TOOLS.replace(", sampling: {tools: [{name: f}], tool_choice: required}", "")
    reconfigured(recorder, spec(without))
    recorder.probe_ended(replace(called, check=None))
    assert not [name for name, _ in samples(families) if "call" in name]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_never_poisons_a_sum(value: float) -> None:
    """NaN and infinity are refused, and nothing of their batch is counted."""
    histogram = Histogram(Series("x_seconds", "histogram", "x"), (), (1.0,))
    with pytest.raises(ValueError, match="not all finite"):
        histogram.observe(0.5, value)
    assert (histogram.sum, sum(histogram.counts)) == (0.0, 0)


def test_names_follow_the_conventions() -> None:
    """Counters end in _total, and only they do; the prefix is one; units are base units."""
    for declared_series in ALL_SERIES:
        assert declared_series.name.startswith("llmslo_")
        assert declared_series.name.endswith("_total") == (declared_series.kind == "counter")
        assert not declared_series.name.endswith(("_ms", "_milliseconds", "_percent"))
