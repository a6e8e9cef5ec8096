"""Targets whose prompts are all cached, so that they measure no latency."""

import logging
from functools import partial

import pytest

from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.probing.history import EventLog
from prober.probing.recorder import MIN_CACHED, TargetCaching
from tests.observed import observed
from tests.probing.test_probe import spec


def ended(*, cached: bool = True, outcome: Outcome = Outcome.OK, warm_up: bool = False) -> ProbeResult:
    return ProbeResult("t", "probe", "id", 0.0, outcome, "", Timeline(0), cached=cached, warm_up=warm_up)


def test_a_target_all_of_whose_prompts_are_cached_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """In its text for the page, in the log and as an event, once; failures and warm-ups do not count, and one cold answer ends it."""
    caplog.set_level(logging.INFO)
    events = EventLog()
    target = observed(spec("http://127.0.0.1:1"), partial(TargetCaching, events))
    caching = target.find(TargetCaching)
    assert caching is not None
    for _ in range(MIN_CACHED - 1):
        target.probe_ended(ended())
        target.probe_ended(ended(cached=False, outcome=Outcome.RESET))
        target.probe_ended(ended(cached=False, warm_up=True))
    assert (caching.text, events.latest()) == ("", [])
    for _ in range(3):
        target.probe_ended(ended())
    said = "probe measures no latency, as every prompt is cached; set `engine`, so that"
    assert caching.text.startswith(said)
    target.probe_ended(ended(cached=False))
    assert caching.text == ""
    texts = [event.text for event in reversed(events.latest())]
    assert [text.partition("; ")[0] for text in texts] == [
        "cached: probe measures no latency, as every prompt is cached",
        "no longer cached: probe measures latencies again",
    ]
    assert all(f"target=t {text}" in caplog.messages for text in texts)


def test_a_target_one_of_whose_prompts_is_cold_is_not_cached() -> None:
    """The neighbour of the test above: some latency is measured."""
    events = EventLog()
    target = observed(spec("http://127.0.0.1:1"), partial(TargetCaching, events))
    for number in range(4 * MIN_CACHED):
        target.probe_ended(ended(cached=number % MIN_CACHED > 0))
    assert events.latest() == []
