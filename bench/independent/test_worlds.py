"""Worlds and probed engines: records that fit their scenes, knees that a fresh simulation confirms, loads that the page shows."""

import json
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest

from bench.independent.engine import Engine, NoCompiler, library
from bench.independent.kinds import HELD_OUT, TUNING
from bench.independent.probes import (
    BEGIN_UNIX_S,
    CACHED,
    DAY_S,
    PROBED,
    TRACE_DRIVEN,
    ProbedEngine,
    probe_series,
    relative_rate,
)
from bench.independent.structure import Structure
from bench.independent.workloads import Mode, Workload, generator, read_trace
from bench.independent.worlds import ALLOWED, CURVE, KNEES_PER_S, Simulation, draw_scene, load
from tests.conftest import absent

SHORT = Workload((Mode(1.0, 200, 0.5, 30, 0.5),), 2_000, 200)


@pytest.fixture(autouse=True)
def _compiled() -> None:
    try:
        library()
    except NoCompiler as missing:
        absent(str(missing))


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """A folder with two short traces in the published formats."""
    rows = [f"2023-11-16 18:15:{second:02d}.5000000,{100 + second},{second + 1}" for second in range(40)]
    (tmp_path / "azure_2023_conversation.csv").write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    lines = [
        {"timestamp": 3_000 * i, "input_length": 1_200, "output_length": 10, "hash_ids": [0, i, 100 + i]}
        for i in range(20)
    ]
    (tmp_path / "mooncake_conversation_first_half.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path


def test_the_record_has_both_halves_and_belongs_to_its_scenes() -> None:
    """Recorded worlds were made for the scenes that their seeds give today, with knees that a sweep can be run at."""
    for half in (TUNING, HELD_OUT):
        worlds = load(kinds=half)
        assert {world.scene.kind for world in worlds} == set(half)
        for world in worlds:
            if world.is_void:
                continue
            assert world.knee_per_s is not None
            assert KNEES_PER_S[0] <= world.knee_per_s <= KNEES_PER_S[1]
            assert world.background_per_s == pytest.approx(world.scene.background_share * world.knee_per_s, rel=0.04)
            assert world.share_at(world.knee_per_s) == pytest.approx(ALLOWED, rel=1e-3)
            assert world.rate_at(ALLOWED / 2) < world.knee_per_s < world.rate_at(2 * ALLOWED)
            assert len(world.curve) == len(CURVE)


def test_an_autoscaled_world_has_no_knee() -> None:
    """A knee of an engine that changes its size is refused."""
    world = load(kinds=["autoscaled"])[0]
    assert world.is_void
    with pytest.raises(ValueError, match="void"):
        world.share_at(1.0)


def test_a_fresh_simulation_confirms_a_knee() -> None:
    """With other seeds, about 1% misses the threshold at the recorded knee."""
    world = load(kinds=["chunked"])[0]
    assert world.knee_per_s is not None
    simulation = Simulation(world.scene, None)
    share = simulation.share(world.knee_per_s, world.background_per_s, world.threshold_s, 30_000, 9_999)
    assert share == pytest.approx(ALLOWED, rel=0.35)


def test_a_record_of_another_scene_is_refused(tmp_path: Path) -> None:
    """A knee is never used for a scene that it was not computed for."""
    line = {"kind": "chunked", "seed": 0, "source": "generated", "scene": "0123456789"}
    record = tmp_path / "worlds.json"
    record.write_text(json.dumps({"worlds": [line]}))
    with pytest.raises(ValueError, match=r"chunked generated 0 has changed: python -m bench\.independent\.worlds"):
        load(record=record)


def test_a_scene_depends_on_its_seed_only() -> None:
    """The same seed gives the same scene, another seed another one."""
    assert draw_scene("slots", 3) == draw_scene("slots", 3)
    assert draw_scene("slots", 3).fingerprint() != draw_scene("slots", 4).fingerprint()


def test_common_random_numbers_scale_arrivals_only() -> None:
    """At another rate the same requests come at scaled times, in Poisson fashion."""
    slow, fast = (SHORT.requests(generator("seed"), 20_000, rate) for rate in (1.0, 4.0))
    assert slow.times_s == pytest.approx(4 * fast.times_s)
    assert (slow.prompts == fast.prompts).all()
    gaps = np.diff(slow.times_s)
    assert (gaps.mean(), gaps.std()) == (pytest.approx(1, rel=0.03), pytest.approx(1, rel=0.03))


def test_merged_requests_keep_their_prefixes() -> None:
    """Two sets of requests are ordered by arrival, and prefix ids stay with their requests."""
    chatting = replace(SHORT, conversations=20, shared=0.5, block=16)
    talk = chatting.requests(generator(1), 500, 2.0)
    probes = SHORT.requests(generator(2), 300, 1.0)
    both, is_probe = probes.merged(talk)
    assert (np.diff(both.times_s) >= 0).all()
    assert is_probe.sum() == 300
    assert both.prefixes is not None
    assert (np.diff(both.prefixes.offsets)[is_probe] == 0).all()
    assert talk.prefixes is not None
    assert (both.prefixes.ids == talk.prefixes.ids).all()
    assert (both.prompts[~is_probe] == talk.prompts).all()


@pytest.mark.parametrize("name", ["azure", "mooncake"])
def test_a_trace_is_replayed_in_order_at_the_asked_rate(traces: Path, name: str) -> None:
    """Rows follow each other, over and over; equal prefix ids stay equal within a turn."""
    rows = read_trace(traces, name)
    workload = Workload((), 100_000, 1_000, block=512, trace=name)
    replay = workload.replayed(generator(1), 10 * len(rows.prompts), 2.0, traces)
    start = int(np.flatnonzero(rows.prompts == replay.prompts[0])[0])
    assert name == "mooncake" or (replay.prompts == rows.prompts[(start + np.arange(400)) % 40]).all()
    assert (np.diff(replay.times_s) >= 0).all()
    assert len(replay.times_s) / replay.times_s[-1] == pytest.approx(2.0, rel=0.05)
    if name == "mooncake":
        assert replay.prefixes is not None
        assert len(np.unique(replay.prefixes.ids[::3])) in (10, 11)  # the turns that it touches
    streamed = list(islice(workload.stream(1, 2.0, traces), 5_000))
    assert all(before[0] <= after[0] for before, after in pairwise(streamed))


def test_a_world_from_a_trace_needs_its_folder() -> None:
    """Without the folder of the traces the worlds from traces are left out, and their requests refused."""
    assert {world.scene.source for world in load()} == {"generated"}
    with pytest.raises(ValueError, match="folder of the traces"):
        Workload((), 1_000, 100, trace="azure").lengths(generator(1), 5, None)


def test_load_is_what_the_page_shows() -> None:
    """Requests in flight by arrivals and ends are running and waiting of the page at that time."""
    requests = SHORT.requests(generator(4), 800, 8.0)
    readings = np.arange(1.0, requests.times_s[-1], 1.0)
    stepped = Engine(Structure(max_batch=4), 1)
    pages, next_reading = [], 0
    for at, prompt, output in zip(requests.times_s, requests.prompts, requests.outputs, strict=True):
        while next_reading < len(readings) and readings[next_reading] < at:
            stepped.advance(readings[next_reading])
            page = stepped.page()
            pages.append((page.requests_running or 0) + (page.requests_waiting or 0))
            next_reading += 1
        stepped.submit(at, int(prompt), int(output))
    stepped.drain()
    arrived = np.searchsorted(requests.times_s, readings, side="right")
    ended = np.searchsorted(np.sort(stepped.results().end_s), readings, side="right")
    assert list(arrived - ended) == pages


def test_rates_follow_the_day_and_the_weekend() -> None:
    """Office hours are busy from Monday to Friday, nights and weekends are not."""
    hours = BEGIN_UNIX_S + np.array([3.0, 11.0, 11.0 + 24 * 5]) * 3_600
    assert relative_rate("office", hours) == pytest.approx([0.12, 1.0, 0.35])


def test_probes_are_even_and_slower_steps_are_seen() -> None:
    """A probe is sent every 5 s, none is lost, and a change of speed shows from its day on and not before."""
    probed = ProbedEngine("chunked", profile="flat", peak_share=0.3)
    null = probe_series(probed, 0.06, seed=1)
    slower = probe_series(probed, 0.06, seed=1, slowdown=(0.03, 1.5))
    assert len(null.unix_s) == int(0.06 * DAY_S / 5) + 1
    assert not np.isnan(null.log_ttft_s).any()
    assert np.abs(np.diff(null.unix_s) - 5).max() <= 2
    half = null.unix_s < BEGIN_UNIX_S + 0.03 * DAY_S
    assert (null.log_ttft_s[half] == slower.log_ttft_s[half]).all()
    assert np.median((slower.log_ttft_s - null.log_ttft_s)[~half]) == pytest.approx(np.log(1.5), abs=0.15)
    assert null.tpot_s.min() > 0
    assert null.load.max() > 1


def test_a_warm_probe_hits_less_under_load() -> None:
    """The cached prompt of a probe is computed again more often while the engine is busy."""
    probed = replace(CACHED[0], profile="flat")
    idle, busy = (
        np.exp(probe_series(replace(probed, peak_share=share), 0.06, seed=1).log_ttft_s) for share in (0.05, 0.9)
    )
    assert np.quantile(busy, 0.75) > 2 * np.quantile(idle, 0.75)


def test_half_of_the_trace_driven_engines_is_held_out() -> None:
    """At least six engines of different kinds are driven by traces, half of them held out; all names differ."""
    assert len(TRACE_DRIVEN) >= 6
    assert sum(probed.is_held_out for probed in TRACE_DRIVEN) * 2 == len(TRACE_DRIVEN)
    assert len({probed.name for probed in PROBED}) == len(PROBED)
