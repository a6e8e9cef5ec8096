"""Tests of the scenes. They lie here because the tests of the product import no benchmark."""

from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from bench.independent.causes import HEALTHY_S, SCENES_PER_PAIR, SINGLES_PER_CAUSE, TROUBLE_S, Scene, scene
from bench.independent.causes_catalogue import CAUSES, NAMES, PAIRS, Truth, signal_values
from bench.independent.causes_engines import KINDS
from bench.independent.causes_situation import Window
from bench.independent.engine import NoCompiler, library
from prober.features.diagnosis.diagnosis import diagnose
from prober.measure.engine_signals import COUNTER_SIGNALS, HISTOGRAM_SIGNALS
from prober.measure.outcome import Outcome

try:
    library()
except NoCompiler as problem:
    pytest.skip(str(problem), allow_module_level=True)


@cache
def tuning_scene(*names: str, index: int = 0) -> Scene:
    """A scene of the tuning half."""
    return scene("tuning", names, index)


def ttft_s(window: Window) -> float:
    """Median TTFT."""
    return float(np.median(signal_values(window.probes, "ttft")))


def increase(window: Window, name: str) -> float:
    """Increase of a total of the page."""
    return float(getattr(window.readings[-1][1], name) - getattr(window.readings[0][1], name))


def with_page(*names: str) -> Scene:
    """The first scene of these causes whose prober reads a page."""
    return next(drawn for index in range(5) if (drawn := tuning_scene(*names, index=index)).page)


def test_halves_differ_in_engines_and_pairs() -> None:
    """No scheduler, and no pair of causes, is in both halves."""
    assert not {kind.settings for kind in KINDS["tuning"]} & {kind.settings for kind in KINDS["held_out"]}
    assert not {frozenset(pair) for pair in PAIRS["tuning"]} & {frozenset(pair) for pair in PAIRS["held_out"]}


def test_number_of_scenes() -> None:
    """A half has at least 40 scenes of one cause and 24 of two, of at least eight pairs."""
    assert len(CAUSES) * SINGLES_PER_CAUSE >= 40
    for pairs in PAIRS.values():
        assert len(set(pairs)) >= 8
        assert len(pairs) * SCENES_PER_PAIR >= 24
        assert all(len({CAUSES[name].right for name in pair}) == 2 for pair in pairs)


def test_truths_are_names() -> None:
    """A truth is a name of the closed list. Each name of a mechanism that slows requests is the right one of a cause."""
    right = frozenset().union(*(cause.right for cause in CAUSES.values()))
    assert right == NAMES - {"unknown", "refusing", "failing", "loading"}
    assert all(cause.true <= NAMES - cause.right for cause in CAUSES.values())


@pytest.mark.parametrize(
    ("names", "causes", "verdict"),
    [
        (("queueing",), 1, "right"),
        (("queueing", "slow_decode"), 1, "right"),
        (("queueing", "slow_decode"), 2, "true"),
        (("queueing", "network"), 2, "right"),
        (("slow_decode",), 1, "true"),
        (("unknown",), 1, "unknown"),
        (("queueing", "stalls"), 1, "wrong"),
        (("stalls",), 2, "wrong"),
        ((), 1, "unknown"),
    ],
)
def test_verdict(names: tuple[str, ...], causes: int, verdict: str) -> None:
    """A name beside the truth is wrong whatever stands with it; a consequence alone is no answer."""
    assert Truth(frozenset({"queueing", "network"}), frozenset({"slow_decode"}), True, causes).verdict(names) == verdict


def test_determinism() -> None:
    """A scene depends on its name alone."""
    first, second = (scene("tuning", ("slow_path",), 1) for _ in range(2))
    assert first == second
    assert first != tuning_scene("slow_path", index=2)


@pytest.mark.parametrize("names", [("throttled",), ("slow_replica",), ("slow_path", "more_users"), ("small_kv_cache",)])
def test_shape(names: tuple[str, ...]) -> None:
    """Half an hour and a quarter of an hour of probes and readings at intervals of 5 s, in order, and totals that never fall."""
    slow = with_page(*names)
    assert slow.breached
    assert slow.truth.right == frozenset().union(*(CAUSES[name].right for name in names))
    for window, duration_s in ((slow.healthy, HEALTHY_S), (slow.trouble, TROUBLE_S)):
        assert len(window.probes) == pytest.approx(duration_s / 5, abs=3)
        assert len(window.readings) == duration_s / 5
        assert not window.devices or len(window.devices) == duration_s / 5
        assert {probe.workload for probe in window.probes} == {"probe", "probe_warm"}
        assert len({probe.requested_prompt_tokens for probe in window.probes}) == 2
        assert all(a.unix_s < b.unix_s for a, b in pairwise(window.probes))
        for (begin_s, before), (end_s, after) in pairwise(window.readings):
            assert end_s - begin_s == pytest.approx(5)
            for name in COUNTER_SIGNALS:
                assert (getattr(after, name) or 0) >= (getattr(before, name) or 0)
            for name in HISTOGRAM_SIGNALS:
                old, new = getattr(before, name), getattr(after, name)
                assert old is None or all(a <= b for a, b in zip(old.counts, new.counts, strict=True))


def test_timelines_are_possible() -> None:
    """A probe is sent after it is due and connected, and its content comes after that and in order."""
    slow = tuning_scene("slow_gateway")
    for probe in (*slow.healthy.probes, *slow.trouble.probes):
        line = probe.timeline
        assert line.connection is not None
        assert line.sent_ns is not None
        assert line.connection.ready_ns is not None
        assert line.connection.start_ns < line.connection.ready_ns <= line.sent_ns
        assert line.intended_ns <= line.sent_ns
        stamps = (line.sent_ns, line.headers_ns, *line.content_ns, line.end_ns)
        assert all(a <= b for a, b in pairwise(stamp for stamp in stamps if stamp is not None))
        if probe.outcome is Outcome.OK:
            assert line.usage is not None
            assert line.usage.completion_tokens == probe.requested_output_tokens
            assert line.content_tokens is None or sum(line.content_tokens) == probe.requested_output_tokens


@pytest.mark.slow
@pytest.mark.parametrize("names", [(name,) for name in CAUSES])
def test_slower(names: tuple[str, ...]) -> None:
    """Each threshold of a breached SLO lies below the quantile of trouble and above that of the healthy service."""
    slow, quantile = tuning_scene(*names), CAUSES[names[0]].quantile
    for signal, threshold_s in slow.breached.items():
        before, now = (
            np.quantile(signal_values(window.probes, signal), quantile) for window in (slow.healthy, slow.trouble)
        )
        assert before < threshold_s < now


def test_queue() -> None:
    """More users wait longer on the page, too."""
    slow = with_page("more_users")
    healthy, trouble = (
        np.mean([page.requests_waiting or 0 for _, page in w.readings]) for w in (slow.healthy, slow.trouble)
    )
    assert trouble > healthy


def test_network_is_not_the_engine() -> None:
    """A slow path delays probes while the engine's own TTFT stays."""
    slow = with_page("slow_path")
    means = []
    for window in (slow.healthy, slow.trouble):
        first, last = (window.readings[index][1].ttft_seconds for index in (0, -1))
        assert first is not None
        assert last is not None
        means.append(((last.sum or 0) - (first.sum or 0)) / (last.counts[-1] - first.counts[-1]))
    assert ttft_s(slow.trouble) - ttft_s(slow.healthy) > 0.03
    assert means[1] == pytest.approx(means[0], rel=0.25)


def test_cache_misses() -> None:
    """Without its prefixes a service finds fewer tokens, and warm probes are slow."""
    slow = with_page("cache_off")
    shares = [
        increase(window, "prefix_cache_hits_tokens_total") / increase(window, "prefix_cache_queries_tokens_total")
        for window in (slow.healthy, slow.trouble)
        if slow.page == "vllm"
    ]
    assert not shares or shares[1] < shares[0] - 0.15
    warm = [
        [probe for probe in window.probes if probe.workload.endswith("_warm")]
        for window in (slow.healthy, slow.trouble)
    ]
    assert np.mean(signal_values(warm[1], "ttft")) > 1.15 * np.mean(signal_values(warm[0], "ttft"))


def test_throttling_shows_on_gpus() -> None:
    """Clocks are low where GPU readings exist."""
    slow = next(drawn for index in range(8) if (drawn := tuning_scene("throttled", index=index)).trouble.devices)
    clocks = [
        np.mean([gpu.sm_clock_hertz or 0 for gpus in window.devices for gpu in gpus])
        for window in (slow.healthy, slow.trouble)
    ]
    assert clocks[1] < 0.85 * clocks[0]


def test_evidence_is_accepted() -> None:
    """The product takes the evidence of a scene. Its verdict is not looked at."""
    assert diagnose(tuning_scene("throttled").evidence).regimes
