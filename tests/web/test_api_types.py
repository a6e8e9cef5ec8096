"""The answers of the API, read from the values that the prober has."""

import json
from dataclasses import replace
from random import Random

from prober.measure.server_timing import TimeParts
from prober.web.api_types import ProbeAnswer, SweepAnswer, dumped
from tests.results.samples import sweep
from tests.web import scenes


def test_a_probe_has_its_timestamps_and_latencies() -> None:
    """Phases of the connection that did not happen, and the phases of a reused connection, are null."""
    probe = scenes.probe(5, Random(1), chunks=3)
    timeline, connection = probe.timeline, probe.timeline.connection
    assert connection is not None
    answer = json.loads(dumped(ProbeAnswer.model_validate(probe)))
    assert answer["asked"] == {"prompt_tokens": 128, "output_tokens": 3}
    assert answer["usage"]["completion_tokens"] == answer["content_chunks"] == 3
    assert (answer["ttft_s"], answer["itl_s"]) == (timeline.ttft_s, timeline.itls_s)
    assert answer["connect_s"] == {"dns": None, "tcp": 0.0002, "proxy": None, "tls": 0.018}
    assert answer["stamps_ns"]["connect_start"] == connection.start_ns
    assert answer["stamps_ns"]["content"] == list(timeline.content_ns)
    reused = replace(probe, timeline=replace(timeline, connection=None, usage=None))
    answer = json.loads(dumped(ProbeAnswer.model_validate(reused)))
    assert answer["usage"] is None
    assert set(answer["connect_s"].values()) == {None}
    assert answer["stamps_ns"]["connect_start"] is answer["stamps_ns"]["connect_ready"] is None


def test_a_ttft_that_is_an_interval_is_null_with_its_bounds() -> None:
    """Beside the time on the network, of which both ends are the kernel's; without these stamps that is null."""
    probe = scenes.probe(5, Random(1), chunks=3)
    timeline = probe.timeline
    assert timeline.sent_ns is not None
    assert timeline.first_ns is not None
    merged = replace(
        timeline,
        acknowledged_ns=timeline.sent_ns + 3_000_000,
        retransmitted=1,
        earliest_ns={timeline.first_ns: timeline.first_ns - 100_000_000},
    )
    answer = json.loads(dumped(ProbeAnswer.model_validate(replace(probe, timeline=merged))))
    assert (answer["ttft_s"], answer["network_s"], answer["retransmitted"]) == (None, 0.003, 1)
    assert answer["stamps_ns"]["acknowledged"] == merged.acknowledged_ns
    assert "read together with later chunks" in answer["why_no_ttft"]
    answer = json.loads(dumped(ProbeAnswer.model_validate(probe)))
    assert (answer["why_no_ttft"], answer["network_s"], answer["retransmitted"]) == ("", None, None)


def test_the_parts_of_a_probes_time_are_those_that_the_server_told() -> None:
    """By name, in seconds; empty of a server that says nothing, and no part that is unknown."""
    probe = scenes.probe(5, Random(1))
    assert json.loads(dumped(ProbeAnswer.model_validate(probe)))["parts_s"] == {}
    told = replace(probe, timeline=replace(probe.timeline, parts=TimeParts(queue_s=0.24, decode_s=0.53)))
    answer = json.loads(dumped(ProbeAnswer.model_validate(replace(told, server_request_id="req_1"))))
    assert (answer["parts_s"], answer["server_request_id"]) == ({"queue": 0.24, "decode": 0.53}, "req_1")


def test_a_tpot_that_is_not_measurable_is_null_with_its_reason() -> None:
    """Of an answer whose content arrived at once; its target is buffered, another one is not known to be."""
    (target,) = scenes.buffered()
    answer = json.loads(dumped(ProbeAnswer.model_validate(target.probes[0])))
    assert (answer["tpot_s"], answer["itl_s"]) == (None, [])
    assert answer["why_no_tpot"].startswith("not measurable here")
    assert json.loads(dumped(target))["buffered"] is True
    assert json.loads(dumped(scenes.nothing()[0]))["buffered"] is None
    assert json.loads(dumped(ProbeAnswer.model_validate(scenes.probe(5, Random(1)))))["why_no_tpot"] == ""


def test_a_target_is_answered_with_and_without_a_capacity() -> None:
    """Headroom is empty without a capacity; a diagnosis is an object, its findings are lists."""
    target = scenes.slow()[0]
    answer = json.loads(dumped(target))
    assert (answer["headroom"]["upper"], answer["headroom"]["addable_upper"]) == (0.02, 0.2)
    assert answer["capacity"] == "ttft: estimated knee 12/s, 90% interval 10 to 13, as of 2025-11-21 02:40 UTC"
    assert answer["diagnosis"]["evidence"][0][:2] == ["requests waiting", 7.2]
    assert answer["slos"][0] == {
        **{"slo": "ttft", "workload": "chat", "signal": "ttft", "threshold": 0.5},
        **{"state": "missed", "events": 2_400, "bad_events": 61},
        **{"objective": 0.99, "window": 30 * 86_400.0, "since": scenes.NOW - 9_000, "why": "", "of_answered": True},
        **{"recent_events": 60, "recent_bad": 35, "recent": 300.0},
        **{"burning_since": scenes.NOW - 400, "burned_until": scenes.NOW - 5},
    }
    assert {(each["signal"], each["q"], each["enough"]) for each in answer["quantiles"]} >= {("ttft", 0.99, True)}
    answer = json.loads(dumped(scenes.nothing()[0]))
    assert (answer["capacity"], answer["headroom"], answer["diagnosis"], answer["sweep"]) == (None, None, None, None)


def test_a_sweep_is_answered_without_its_stages() -> None:
    """With the number of its requests."""
    answer = json.loads(dumped(SweepAnswer.model_validate(sweep("a1"))))
    assert (answer["id"], answer["target"], answer["requests"]) == ("a1", "http://llm.example:8000", 360)
    assert [each["verdict"] for each in answer["capacities"]] == ["found", "not_reached"]
