"""Laws of the mechanisms of the second kinds of engines, and of their worlds."""

from dataclasses import replace

import numpy as np
import pytest

from bench.independent import kinds as first
from bench.independent.engine import COMPLETE, Engine, NoCompiler, Prefixes, library
from bench.independent.second_kinds import HELD_OUT, KINDS, TUNING, draw_structure
from bench.independent.structure import LAST_FIRST, SEPARATE, SecondStructure
from bench.independent.test_engine_laws import Floats, chains, load
from bench.independent.worlds import (
    ALLOWED,
    MIN_MISSING_SHARE,
    MISSING_RATES_PER_S,
    SECOND_RECORD,
    Simulation,
    World,
)
from bench.independent.worlds import load as load_worlds
from tests.conftest import absent

EXACT = SecondStructure(noise=0.0)


@pytest.fixture(autouse=True)
def _compiled() -> None:
    try:
        library()
    except NoCompiler as missing:
        absent(str(missing))


def ended_s(structure: SecondStructure, count: int, prompt: int = 100, output: int = 50, rate: float = 0.0) -> float:
    """When an engine has served equal requests, that came all at once or at a rate."""
    engine = Engine(structure, 1)
    at = np.arange(count) / rate if rate else np.zeros(count)
    engine.run(at, np.full(count, prompt), np.full(count, output))
    return engine.at_s


def ttft_s(structure: SecondStructure, at: Floats, prompt: int = 100, output: int = 1) -> Floats:
    """TTFTs of equal requests."""
    results = Engine(structure, 1).run(at, np.full(at.size, prompt), np.full(at.size, output))
    return np.asarray(results.first_token_s - at)


def test_halves_share_no_kind_with_each_other_or_with_the_first_kinds() -> None:
    """Seven kinds in each."""
    assert len(TUNING) == len(HELD_OUT) == 7
    assert not set(TUNING) & set(HELD_OUT)
    assert not set(KINDS) & set(first.KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_delivers_what_was_asked_and_frees_its_memory(kind: str) -> None:
    """Tokens delivered are tokens asked, times are in order, and an idle engine runs, waits for and stores nothing."""
    at, prompts, outputs = load(1_500, 4.0)
    for seed in range(3):
        structure = draw_structure(kind, seed)
        engine = Engine(structure, 1)
        results = engine.run(at, prompts, outputs, Prefixes.of(chains(1_500, 40)) if structure.prefix_block else None)
        assert (results.status == COMPLETE).all()
        assert (results.tokens == outputs).all()
        assert (results.first_token_s > at).all()
        assert (results.end_s >= results.first_token_s).all()
        page = engine.page()
        assert (page.requests_running, page.requests_waiting, page.kv_cache_usage_ratio_max) == (0, 0, 0)
        assert page.requests_finished_total == len(at)


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_the_same_run_in_steps_and_at_once(kind: str) -> None:
    """A run depends on structure and seed only, not on how often the engine is advanced or read."""
    structure = draw_structure(kind, 1)
    at, prompts, outputs = load(300, 4.0)
    at_once = Engine(structure, 5).run(at, prompts, outputs)
    stepped = Engine(structure, 5)
    for arrival, prompt, output in zip(at, prompts, outputs, strict=True):
        stepped.advance(max(stepped.at_s, arrival - 0.1))
        stepped.submit(arrival, int(prompt), int(output))
    stepped.drain()
    assert (stepped.results().end_s == at_once.end_s).all()


def test_a_budget_that_adapts_bounds_a_step() -> None:
    """A long prompt beside decodes delays a token by at most the target, and takes longer than without the limit."""
    at, prompts, outputs = np.array([0.0, 0.5]), np.array([10, 20_000]), np.array([400, 1])
    gaps_s, first_s = {}, {}
    for target_s in (0.0, 0.03):
        engine = Engine(replace(EXACT, step_tokens=4_096, target_step_s=target_s), 1)
        numbers = [
            engine.submit(float(time_s), int(prompt), int(output), (), True)
            for time_s, prompt, output in zip(at, prompts, outputs, strict=True)
        ]
        engine.drain()
        gaps_s[target_s] = float(np.diff(engine.token_times_s(numbers[0])).max())
        first_s[target_s] = float(engine.results().first_token_s[1])
    assert gaps_s[0.03] == pytest.approx(0.03, rel=0.01)
    assert gaps_s[0.0] > 0.3
    assert first_s[0.03] > 1.2 * first_s[0.0]


def test_each_chunk_has_its_overhead() -> None:
    """A prompt of four chunks takes four overheads more."""
    one = replace(EXACT, chunk_tokens=256)
    usual, slower = (float(ttft_s(of, np.zeros(1), 1_024)[0]) for of in (one, replace(one, request_s=0.01)))
    assert slower - usual == pytest.approx(0.04)


def test_a_clock_falls_when_the_engine_is_busy_and_recovers() -> None:
    """A busy engine takes 1.4 times as long in the end; requests far apart are as fast as ever."""
    cool = replace(EXACT, max_batch=1, scheduler=SEPARATE)
    hot = replace(cool, clock_fall=0.4, clock_tau_s=5.0)
    assert ended_s(hot, 2_000) / ended_s(cool, 2_000) == pytest.approx(1.4, abs=0.02)
    far = 100.0 * np.arange(20.0)
    assert ttft_s(hot, far) == pytest.approx(ttft_s(cool, far), rel=0.01)


def test_pauses_of_the_runtime_come_by_tokens_not_by_time() -> None:
    """As many as tokens ÷ `gc_tokens`, of `gc_s` in the mean, fast or slow."""
    count, tokens = 1_000, 149  # of a request: the prompt, and all but the last of its output are computed
    structure = replace(EXACT, max_batch=1, scheduler=SEPARATE)
    pauses = count * tokens / 10_000
    paused_s = ended_s(replace(structure, gc_tokens=10_000, gc_s=2.0), count) - ended_s(structure, count)
    assert paused_s == pytest.approx(2.0 * pauses, rel=0.15)


def test_admission_stops_at_the_high_watermark_until_the_low_one() -> None:
    """Requests are admitted until the high watermark is passed, and again only below the low one."""
    structure = replace(EXACT, kv_tokens=20_000, admit_high=0.6, admit_low=0.3, step_tokens=512)
    engine = Engine(structure, 1)
    rng = np.random.default_rng(4)
    for _ in range(600):
        engine.submit(0.0, 100, int(rng.integers(50, 400)))
    engine.advance(0.05)
    is_closed, times_closed, running = False, 0, 0.0
    for at_s in np.arange(0.1, 25.0, 0.05):
        usage = engine.page().kv_cache_usage_ratio_max or 0.0
        if usage > 0.66 and not is_closed:
            is_closed, times_closed = True, times_closed + 1
        elif usage < 0.4:
            is_closed = False
        engine.advance(float(at_s))
        page = engine.page()
        assert not is_closed or (page.requests_running or 0.0) <= running
        running = page.requests_running or 0.0
    assert times_closed > 1


def test_no_more_requests_are_inside_than_there_are_connections() -> None:
    """The page never counts more; the others wait in order, and none is lost."""
    structure = replace(EXACT, front_connections=5)
    engine = Engine(structure, 1)
    for _ in range(60):
        engine.submit(0.0, 100, 20)
    inside = []
    for at_s in np.arange(0.01, 6.0, 0.01):
        engine.advance(float(at_s))
        page = engine.page()
        inside.append((page.requests_running or 0) + (page.requests_waiting or 0))
    engine.drain()
    results = engine.results()
    assert max(inside) == 5
    assert (results.status == COMPLETE).all()
    assert (np.diff(results.first_token_s) >= 0).all()


def test_a_cancelled_request_holds_no_connection() -> None:
    """Whether it was inside or waited for a connection."""
    engine = Engine(replace(EXACT, front_connections=1), 1)
    numbers = [engine.submit(0.0, 100, 1_000) for _ in range(3)]
    engine.advance(0.5)
    engine.cancel(numbers[1])
    engine.cancel(numbers[0])
    engine.advance(1.0)
    assert engine.request(numbers[2]).first_token_s is not None


def test_less_is_accepted_in_a_full_batch() -> None:
    """One sequence is as fast as without the fall; 64 of 64 take nearly as many steps as without drafts."""
    drafting = replace(EXACT, draft_tokens=3, acceptance=0.8, max_batch=64, sequence_s=0.0)
    falling = replace(drafting, acceptance_fall=0.95)
    assert ended_s(falling, 1, output=2_000) == pytest.approx(ended_s(drafting, 1, output=2_000), rel=0.05)
    assert ended_s(falling, 64, output=500) > 1.7 * ended_s(drafting, 64, output=500)


def test_a_slow_rank_serves_its_requests_slower() -> None:
    """Every second of far apart requests takes 1.5 times as long."""
    taken = ttft_s(replace(EXACT, workers=2, slow_workers=1, slow_factor=1.5), 10.0 * np.arange(10.0))
    assert taken[::2] == pytest.approx(1.5 * taken[1::2], rel=1e-6)


def test_an_adapter_that_is_loaded_costs_nothing() -> None:
    """With a slot for each adapter every one is loaded once; with fewer, more often."""
    far = 10.0 * np.arange(400.0)
    usual = ttft_s(EXACT, far)
    roomy, scarce = (
        ttft_s(replace(EXACT, adapters=6, adapter_slots=slots, adapter_s=0.1), far) - usual for slots in (6, 2)
    )
    assert roomy.sum() == pytest.approx(0.6)
    assert 0.2 < (scarce > 0.09).mean() < 0.9


def test_a_static_batch_is_served_to_its_end() -> None:
    """The first tokens of a batch come after the last token of the one before."""
    structure = replace(EXACT, scheduler=SEPARATE, static_batch=1, max_batch=4, step_tokens=16_384)
    results = Engine(structure, 1).run(np.zeros(9), np.full(9, 100), np.array([5, 10, 200, 3, 5, 5, 5, 5, 5]))
    assert results.first_token_s[1:5].min() > results.end_s[0]  # the first comes to an idle engine
    assert results.first_token_s[5:].min() > results.end_s[1:5].max()


def test_the_last_comes_first() -> None:
    """Of requests that wait the latest is served before the others."""
    structure = replace(EXACT, max_batch=1, scheduler=SEPARATE, order=LAST_FIRST)
    results = Engine(structure, 1).run(np.array([0.0, 0.01, 0.02, 0.03]), np.full(4, 1_000), np.full(4, 5))
    assert np.argsort(results.first_token_s).tolist() == [0, 3, 2, 1]


def worlds(half: tuple[str, ...]) -> list[World]:
    """Recorded worlds that need no trace."""
    return load_worlds(kinds=half, record=SECOND_RECORD)


@pytest.mark.parametrize("half", [TUNING, HELD_OUT], ids=["tuning", "held out"])
def test_the_record_has_knees_and_engines_that_miss_at_every_rate(half: tuple[str, ...]) -> None:
    """Twelve knees and twenty engines that miss in each half, and every kind has both."""
    known = [world for world in worlds(half) if not world.is_void]
    missing = [world for world in worlds(half) if world.missing]
    assert len(known) >= 12
    assert len(missing) >= 20
    for some in (known, missing):
        assert {world.scene.kind for world in some} == set(half)
    assert all(min(world.missing) >= MIN_MISSING_SHARE > ALLOWED for world in missing)


def test_a_fresh_simulation_confirms_a_knee_and_a_miss() -> None:
    """With other seeds, about 1% misses the threshold at a knee; more than that everywhere where every rate misses."""
    of = {world.is_void: world for world in worlds(("acceptance_by_batch",))}
    knee, missing = of[False], of[True]
    assert knee.knee_per_s is not None
    share = Simulation(knee.scene, None).share(knee.knee_per_s, knee.background_per_s, knee.threshold_s, 30_000, 9_999)
    assert share == pytest.approx(ALLOWED, rel=0.4)
    for rate_per_s, expected in zip(MISSING_RATES_PER_S[1:3], missing.missing[1:3], strict=True):
        simulation = Simulation(missing.scene, None)
        total_per_s = rate_per_s + missing.background_per_s
        share = simulation.share(total_per_s, missing.background_per_s, missing.threshold_s, 10_000, 9_998)
        assert share == pytest.approx(expected, rel=0.3)
