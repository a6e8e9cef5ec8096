"""Which probe fills which series, and which event counts for which SLO."""

import asyncio
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
from prober.measure.chunk import Usage
from prober.measure.outcome import BAD, NEUTRAL, Outcome, access_remedy
from prober.measure.result import ProbeResult, RetryKind
from prober.measure.server_timing import TimeParts
from prober.measure.target_state import TargetState
from prober.measure.timeline import Connection, Timeline
from prober.probing.observer import ObservedTarget
from prober.probing.recorder import (
    MAX_FAILURE_CHARS,
    TRUST_WINDOW_NS,
    TargetFailures,
    TargetProbes,
    TargetRefusals,
    TargetTrust,
)
from prober.probing.series import FAILURE_INFO, REFUSAL_INFO, TRUSTED
from tests.observed import StoppedClock, observed, reconfigured
from tests.virtual import VirtualClock

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
        name: found[(f"llmslo_{name}_seconds_count", key)] for name in ("ttft", "tpot", "e2e", "itl", "chunk_gap")
    }
    assert counts == {"ttft": 1, "tpot": 1, "e2e": 1, "itl": 2, "chunk_gap": 2}
    assert found[("llmslo_send_lag_seconds_count", ("t",))] == 1
    assert found[("llmslo_ttft_seconds_sum", key)] == pytest.approx(0.050)
    assert found[("llmslo_probe_tokens_total", (*key, "completion"))] == 3
    assert found[("llmslo_connect_seconds_count", ("t", "tcp"))] == 1
    assert ("llmslo_ttft_answer_seconds_count", key) not in found


def test_what_the_server_says_of_its_rate_limit_is_exported() -> None:
    """The latest value of each kind that its headers name."""
    recorder, families = declared()
    recorder.probe_ended(replace(GOOD, rate_limit={"requests": 40.0, "tokens": 900.0}))
    recorder.probe_ended(replace(GOOD, rate_limit={"requests": 39.0}))
    found = samples(families)
    left = {kind: found[("llmslo_rate_limit_remaining", ("t", kind))] for kind in ("requests", "tokens")}
    assert left == {"requests": 39, "tokens": 900}


@pytest.mark.parametrize("kept_out", [{"warm_up": True}, {"cached": True}, {"outcome": Outcome.RESET}])
def test_what_is_no_usual_latency_stays_out_of_the_histograms(kept_out: dict[str, object]) -> None:
    """Warm-up, cached and failed probes count as probes, and observe no latency."""
    recorder, families = declared()
    recorder.probe_ended(replace(GOOD, **kept_out))  # type: ignore[arg-type]
    found = samples(families)
    assert found[("llmslo_probes_total", ("t", "probe"))] == 1
    assert found[("llmslo_ttft_seconds_count", ("t", "probe"))] == 0
    assert found[("llmslo_itl_seconds_count", ("t", "probe"))] == 0


def unsure(first_ms: int) -> ProbeResult:
    """An answer whose first content came at some time between then and 50 ms."""
    return replace(GOOD, timeline=replace(GOOD.timeline, earliest_ns={50 * MS: first_ms * MS}))


def test_an_answer_whose_first_content_was_read_late_has_no_ttft_and_all_else() -> None:
    """It is counted, so that nobody believes that nothing is missing; one that is known well enough is no such answer."""
    recorder, families = declared()
    key = ("t", "probe")
    assert samples(families)[("llmslo_probes_untimed_total", key)] == 0
    for result, untimed in ((GOOD, 0), (unsure(49), 0), (unsure(20), 1)):
        recorder.probe_ended(result)
        assert samples(families)[("llmslo_probes_untimed_total", key)] == untimed
    found = samples(families)
    counts = [found[(f"llmslo_{name}_seconds_count", key)] for name in ("ttft", "tpot", "e2e")]
    assert counts == [2, 3, 3]


def test_an_undecided_answer_is_no_event_and_counted() -> None:
    """Of the SLO whose threshold lies between its bounds; not of one that nobody would see."""
    text = CONFIG.replace("437ms", "30ms")
    families = registry()
    recorder = observed(spec(text), partial(TargetProbes, families), SloMonitor(families).observe)
    for result in (GOOD, unsure(20), replace(unsure(20), cached=True), replace(unsure(20), outcome=Outcome.RESET)):
        recorder.probe_ended(result)
    found = samples(families)
    counts = {
        (name, slo): found[(f"llmslo_slo_{name}_total", ("t", "probe", slo))]
        for name in ("events", "bad_events", "undecided")
        for slo in ("ttft", "e2e")
    }
    assert counts == {
        **{("events", "ttft"): 2, ("bad_events", "ttft"): 2, ("undecided", "ttft"): 1},
        **{("events", "e2e"): 3, ("bad_events", "e2e"): 1, ("undecided", "e2e"): 0},
    }
    assert ("llmslo_slo_undecided_total", ("t", "probe", "itl")) not in found, "it has no bounds"


def test_the_network_has_a_histogram_where_the_kernel_tells() -> None:
    """Of failures too; nothing is made up without it."""
    recorder, families = declared()
    recorder.probe_ended(GOOD)
    assert ("llmslo_network_seconds_count", ("t",)) not in samples(families)
    timed = replace(GOOD, timeline=replace(GOOD.timeline, acknowledged_ns=26 * MS))
    recorder.probe_ended(timed)
    recorder.probe_ended(replace(timed, outcome=Outcome.HTTP_5XX))
    found = samples(families)
    assert found[("llmslo_network_seconds_count", ("t",))] == 2
    assert found[("llmslo_network_seconds_sum", ("t",))] == pytest.approx(0.05)


def test_the_parts_of_the_time_have_a_histogram_each_where_the_server_tells() -> None:
    """Of probes whose latencies count; a target that says nothing has none, and no part is 0 that nobody knows."""
    recorder, families = declared()
    recorder.probe_ended(GOOD)
    assert not [name for name, _ in samples(families) if "probe_part" in name]
    told = replace(GOOD, timeline=replace(GOOD.timeline, parts=TimeParts(queue_s=0.24, decode_s=0.53)))
    for result in (told, told, replace(told, warm_up=True), replace(told, outcome=Outcome.RESET)):
        recorder.probe_ended(result)
    found = samples(families)
    counts = {labels[1]: value for (name, labels), value in found.items() if name == "llmslo_probe_part_seconds_count"}
    assert counts == {"queue": 2, "decode": 2}
    assert found[("llmslo_probe_part_seconds_sum", ("t", "queue"))] == pytest.approx(0.48)


INVALID = replace(GOOD, outcome=Outcome.INVALID)
FAILED = replace(unsure(20), outcome=Outcome.RESET)


@pytest.mark.parametrize(
    ("results", "trusted"),
    [
        ([], 1),
        ([GOOD, INVALID], 1),
        ([GOOD, INVALID, INVALID], 0),
        ([GOOD, unsure(20)], 1),
        ([GOOD, unsure(20), INVALID], 0),
        ([GOOD, unsure(20), INVALID, GOOD], 1),
        ([GOOD, *[FAILED] * 9], 1),  # failures are judged in any case
        ([FAILED, INVALID], 0),
        ([replace(GOOD, outcome=Outcome.WRONG_ANSWER), INVALID], 1),
    ],
)
def test_a_target_is_trusted_while_half_of_its_probes_are_sent_and_timed(
    results: list[ProbeResult], trusted: float
) -> None:
    """Answers and what was not sent count; another target has its own trust, and what is ten minutes old counts no more."""
    families, clock = registry(), StoppedClock()
    target, other = (observed(spec(), partial(TargetTrust, families), name=name, clock=clock) for name in ("t", "o"))
    for _ in range(9):  # too few to say that it is not
        other.probe_ended(INVALID)
    for result in results * 10:
        target.probe_ended(result)
    assert families.value(TRUSTED, "t").value == trusted
    assert families.value(TRUSTED, "o").value == 1
    clock.ns += TRUST_WINDOW_NS + 1
    for _ in range(10):
        target.probe_ended(INVALID)
        other.probe_ended(GOOD)
    assert (families.value(TRUSTED, "t").value, families.value(TRUSTED, "o").value) == (0, 1)
    for _ in range(10):
        target.probe_ended(GOOD)
    assert families.value(TRUSTED, "t").value == 1


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


def test_an_slo_that_judges_something_else_begins_anew() -> None:
    """Objective and threshold bear the signal; under the same name with another one nothing of the old is left."""
    recorder, families = declared()
    recorder.probe_ended(GOOD)
    found = samples(families)
    assert found[("llmslo_slo_threshold_seconds", ("t", "probe", "ttft", "ttft"))] == 0.437
    assert found[("llmslo_slo_objective_ratio", ("t", "probe", "ttft", "ttft"))] == 0.99
    assert found[("llmslo_slo_events_total", ("t", "probe", "ttft"))] == 1
    reconfigured(recorder, spec(CONFIG.replace("signal: ttft, threshold: 437ms", "signal: success")), families)
    found = samples(families)
    assert found[("llmslo_slo_events_total", ("t", "probe", "ttft"))] == 0
    about = {key for key in found if key[0].startswith("llmslo_slo_") and key[1][2] == "ttft"}
    assert {key[1][3:] for key in about} == {(), ("success",), ("no_data",)}
    assert not [key for key in about if key[0] == "llmslo_slo_threshold_seconds"]


def test_the_end_of_a_certificate_is_that_of_the_present_address() -> None:
    """Absent until one is verified, and kept while probes fail."""
    recorder, families = declared()
    key = ("llmslo_tls_cert_expiry_timestamp_seconds", ("t",))
    recorder.probe_ended(GOOD)
    assert key not in samples(families)
    recorder.probe_ended(replace(GOOD, cert_expiry_unix_s=2e9))
    recorder.probe_ended(replace(GOOD, outcome=Outcome.TLS))
    assert samples(families)[key] == 2e9


def failed(outcome: Outcome, detail: str, request_id: str = "slo-probe-1") -> ProbeResult:
    return replace(GOOD, outcome=outcome, detail=detail, request_id=request_id)


class Failing:
    """A target whose failures are exported, in virtual time."""

    def __init__(self, url: str = "http://h") -> None:
        self.clock, self.families = VirtualClock(), registry()
        self.target = observed(spec(CONFIG.replace("http://h", url)), partial(TargetFailures, self.families))
        self.target.target.clock = self.clock

    def shown(self) -> list[tuple[str, ...]]:
        return [labels[1:] for labels in self.families.family(FAILURE_INFO).of("t")]


@pytest.mark.virtual_time
async def test_the_failures_of_the_last_five_minutes_are_one_series() -> None:
    """Their most frequent reason with its last sentence, of equals the latest; gone five minutes after the last, without a probe."""
    failing = Failing()
    end = failing.target.probe_ended
    assert failing.shown() == []
    end(failed(Outcome.DNS, "cannot resolve 'a'"))
    assert failing.shown() == [("dns", "cannot resolve 'a'")]
    await asyncio.sleep(60)
    end(failed(Outcome.HTTP_404, "HTTP 404: no model `x`"))
    assert failing.shown() == [("http_404", "HTTP 404: no model `x`")]
    await asyncio.sleep(60)
    end(failed(Outcome.DNS, "cannot resolve 'b'"))
    end(GOOD)
    end(replace(GOOD, outcome=Outcome.REJECTED, detail="HTTP 401"))
    assert failing.shown() == [("dns", "cannot resolve 'b'")]
    await asyncio.sleep(181)  # the first has left the window
    assert failing.shown() == [("dns", "cannot resolve 'b'")]
    await asyncio.sleep(118)
    assert failing.shown() == [("dns", "cannot resolve 'b'")]
    await asyncio.sleep(2)
    assert failing.shown() == []
    failing.clock.close()


@pytest.mark.virtual_time
async def test_the_reason_is_of_what_is_in_the_window() -> None:
    """Ten of one kind give way to one of another when they are five minutes old."""
    failing = Failing()
    for _ in range(10):
        failing.target.probe_ended(failed(Outcome.HTTP_429, "HTTP 429: slow down"))
    await asyncio.sleep(240)
    failing.target.probe_ended(failed(Outcome.RESET, "the connection was reset"))
    assert failing.shown() == [("http_429", "HTTP 429: slow down")]
    await asyncio.sleep(61)
    assert failing.shown() == [("reset", "the connection was reset")]
    failing.clock.close()


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("detail", "text"),
    [
        ("HTTP 503: " + "x" * 500, "HTTP 503: " + "x" * (MAX_FAILURE_CHARS - 11) + "…"),
        ("HTTP 500: a\nb\x1b[31m", "HTTP 500: a b\N{REPLACEMENT CHARACTER}[31m"),
        ("HTTP 500: request slo-probe-1 failed", "HTTP 500: request … failed"),
        ("HTTP 500: id 123e4567-e89b-12d3-a456-426614174000.", "HTTP 500: id …."),
        ("HTTP 500: trace 4bf92f3577b34da6a3ce929d0e0e4736", "HTTP 500: trace …"),
        ("HTTP 404: no model llama-3.1-8b-instruct-20240723", "HTTP 404: no model llama-3.1-8b-instruct-20240723"),
        ("no content after 30 s (no answer)", "no content after 30 s (no answer)"),
    ],
)
async def test_a_sentence_of_a_server_is_a_safe_and_steady_label(detail: str, text: str) -> None:
    """At most 200 printable characters, without what names one request; a name of a model is left as it is."""
    failing = Failing()
    failing.target.probe_ended(failed(Outcome.HTTP_5XX, detail))
    assert failing.shown() == [("http_5xx", text)]
    failing.clock.close()


@pytest.mark.virtual_time
async def test_refusals_are_a_series_of_their_own_for_25_minutes() -> None:
    """Why most were refused, and the last words with the setting to change; a failure is none."""
    clock, families = VirtualClock(), registry()
    target = observed(spec(CONFIG), partial(TargetRefusals, families))
    target.target.clock = clock
    shown = partial(families.family(REFUSAL_INFO).of, "t")
    target.probe_ended(failed(Outcome.HTTP_429, "HTTP 429: slow down"))
    assert shown() == []
    remedy = access_remedy("HTTP 403", "auth.bearer_token_file")
    unpaid = f"HTTP 402: {'x' * 300}; {remedy}"
    for detail in ("HTTP 400: too long", unpaid, unpaid, "HTTP 403: no"):
        target.probe_ended(failed(Outcome.REJECTED, detail))
    assert shown() == [("t", "payment", f"HTTP 402: {'x' * (MAX_FAILURE_CHARS - 11)}…; {remedy}")], (
        "the remedy is whole"
    )
    target.probe_ended(failed(Outcome.REJECTED, "HTTP 402: " + "x; " * 900))
    assert len(shown()[0][2]) <= 300
    await asyncio.sleep(1499)
    assert shown()
    await asyncio.sleep(2)
    assert shown() == []
    clock.close()


@pytest.mark.virtual_time
async def test_failures_of_a_removed_target_are_not_shown() -> None:
    """Nothing shows them again."""
    failing = Failing()
    failing.target.probe_ended(failed(Outcome.RESET, "reset"))
    failing.target.removed()
    failing.families.remove("t")
    await asyncio.sleep(600)
    assert failing.shown() == []
    failing.clock.close()


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
    recorder = reconfigured(recorder, spec(without), families)
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
