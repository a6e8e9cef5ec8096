"""Laws that the independent engines obey whatever their parameters: conservation, order, queues by formula, determinism."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.independent.engine import COMPLETE, Engine, NoCompiler, Prefixes, Results, library
from bench.independent.kinds import HELD_OUT, KINDS, TUNING, draw_structure
from bench.independent.structure import (
    LEAST_BUSY,
    PRIORITY,
    SEPARATE,
    SHORTEST_PROMPT,
    Structure,
)
from tests.conftest import absent

EXACT = Structure(noise=0.0)
# One request at a time: a step for the prompt, one for each later token.
ONE_SERVER = replace(EXACT, max_batch=1, scheduler=SEPARATE, base_s=0.01, sequence_s=0.0, prompt_s=0.0001)

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@pytest.fixture(autouse=True)
def _compiled() -> None:
    try:
        library()
    except NoCompiler as missing:
        absent(str(missing))


def load(count: int, rate: float, seed: int = 1) -> tuple[Floats, Integers, Integers]:
    """Poisson arrivals with lognormal lengths."""
    rng = np.random.default_rng(seed)
    return (
        np.cumsum(rng.exponential(1 / rate, count)),
        np.clip(rng.lognormal(6, 0.8, count), 10, 6_000).astype(np.int64),
        np.clip(rng.lognormal(4, 0.7, count), 1, 500).astype(np.int64),
    )


def chains(count: int, groups: int, seed: int = 2) -> list[tuple[int, ...]]:
    """Prefix ids of conversations that share their first blocks."""
    rng = np.random.default_rng(seed)
    return [
        tuple(int(group) * 100 + block for block in range(int(length)))
        for group, length in zip(rng.integers(0, groups, count), rng.integers(1, 8, count), strict=True)
    ]


def run(structure: Structure, count: int = 2_000, rate: float = 4.0, seed: int = 1) -> tuple[Engine, Floats, Results]:
    """An engine after a run, the arrivals, and the results."""
    engine = Engine(structure, seed)
    at, prompts, outputs = load(count, rate)
    return (
        engine,
        at,
        engine.run(at, prompts, outputs, Prefixes.of(chains(count, 40)) if structure.prefix_block else None),
    )


def test_half_of_the_kinds_is_held_out() -> None:
    """At least twelve kinds, and each is in one of two halves of equal size."""
    assert len(KINDS) >= 12
    assert len(TUNING) == len(HELD_OUT)
    assert set(TUNING) | set(HELD_OUT) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_delivers_what_was_asked_and_frees_its_memory(kind: str) -> None:
    """Tokens delivered are tokens asked, times are in order, and an idle engine runs, waits for and stores nothing."""
    for seed in range(3):
        engine, at, results = run(draw_structure(kind, seed))
        _, prompts, outputs = load(2_000, 4.0)
        assert (results.status == COMPLETE).all()
        assert (results.tokens == outputs).all()
        assert (results.first_token_s > at).all()
        assert (results.end_s >= results.first_token_s).all()
        page = engine.page()
        assert (page.requests_running, page.requests_waiting, page.kv_cache_usage_ratio_max) == (0, 0, 0)
        assert page.prompt_tokens_total == prompts.sum()
        assert page.generation_tokens_total == outputs.sum()
        assert page.requests_finished_total == len(at)
        assert page.ttft_seconds is not None
        assert page.ttft_seconds.counts[-1] == len(at)


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_the_same_run_in_steps_and_at_once(kind: str) -> None:
    """A run depends on structure and seed only, not on how often the engine is advanced or read."""
    structure = draw_structure(kind, 1)
    at, prompts, outputs = load(300, 4.0)
    ids = chains(300, 40)
    at_once = Engine(structure, 5).run(at, prompts, outputs, Prefixes.of(ids))
    stepped = Engine(structure, 5)
    for arrival, prompt, output, prefix in zip(at, prompts, outputs, ids, strict=True):
        stepped.advance(max(stepped.at_s, arrival - 0.1))
        stepped.page()
        stepped.submit(arrival, int(prompt), int(output), prefix)
    stepped.drain()
    assert (stepped.results().end_s == at_once.end_s).all()
    assert (Engine(structure, 6).run(at, prompts, outputs, Prefixes.of(ids)).end_s != at_once.end_s).any()


def test_a_single_server_follows_lindley() -> None:
    """With a batch of one, each request begins when it arrives or its predecessor ends: no work is lost or invented."""
    at, prompts, outputs = load(2_000, 1.2)
    engine = Engine(ONE_SERVER, 1)
    results = engine.run(at, prompts, outputs)
    service = 0.01 + 0.0001 * prompts + 0.01 * (outputs - 1)
    end = 0.0
    for number in range(len(at)):
        end = max(end, at[number]) + service[number]
        assert results.end_s[number] == pytest.approx(end)
    assert engine.usage().busy_s == pytest.approx(service.sum())


@pytest.mark.parametrize("utilisation", [0.3, 0.7, 0.9])
def test_constant_service_waits_as_m_d_1(utilisation: float) -> None:
    """The mean wait for a constant service time D is rho·D / 2(1 − rho) (Pollaczek and Khinchine)."""
    service = 0.02
    rng = np.random.default_rng(3)
    count = 200_000
    at = np.cumsum(rng.exponential(service / utilisation, count))
    results = Engine(ONE_SERVER, 1).run(at, np.full(count, 100), np.ones(count, dtype=int))
    wait = (results.first_token_s - at).mean() - service
    assert wait == pytest.approx(utilisation * service / (2 * (1 - utilisation)), rel=0.06)


@pytest.mark.parametrize("kind", ["separate", "chunked", "slots", "serial_front", "overlap", "stalls"])
def test_first_come_first_served(kind: str) -> None:
    """Prompts of engines that promise it are finished in order of arrival."""
    structure = replace(draw_structure(kind, 3), chunk_tokens=1 << 30)
    _, _, results = run(structure, rate=8.0)
    assert (np.diff(results.first_token_s) >= 0).all()


def test_other_orders_prefer_whom_they_promise_to() -> None:
    """Short prompts wait less with SHORTEST_PROMPT, and somebody overtakes with PRIORITY."""
    at, prompts, outputs = load(3_000, 12.0)
    results = {
        order: Engine(replace(EXACT, max_batch=8, order=order, priority_share=0.3), 1).run(at, prompts, outputs)
        for order in (0, SHORTEST_PROMPT, PRIORITY)
    }
    is_short = prompts < np.median(prompts)
    waits = {order: (result.first_token_s - at)[is_short].mean() for order, result in results.items()}
    assert waits[SHORTEST_PROMPT] < 0.5 * waits[0]
    assert (np.diff(results[PRIORITY].first_token_s) < 0).any()


def test_the_page_obeys_little() -> None:
    """Mean waiting on the page is the arrival rate times the mean queue time on the page."""
    structure = replace(EXACT, max_batch=4)
    at, prompts, outputs = load(6_000, 3.4)
    engine = Engine(structure, 1)
    waiting, next_s = [], 0.1
    for arrival, prompt, output in zip(at, prompts, outputs, strict=True):
        while next_s < arrival:
            engine.advance(next_s)
            waiting.append(engine.page().requests_waiting or 0.0)
            next_s += 0.1
        engine.submit(arrival, int(prompt), int(output))
    queue = engine.page().queue_seconds
    assert queue is not None
    assert queue.sum is not None
    assert np.mean(waiting) > 1
    assert np.mean(waiting) == pytest.approx(queue.sum / at[-1], rel=0.03)


def test_two_replicas_are_two_halves() -> None:
    """Round robin over two replicas equals two engines that get every second request."""
    at, prompts, outputs = load(1_000, 12.0)
    both = Engine(replace(EXACT, workers=2), 1).run(at, prompts, outputs)
    for half in (slice(0, None, 2), slice(1, None, 2)):
        alone = Engine(EXACT, 1).run(at[half], prompts[half], outputs[half])
        assert both.end_s[half] == pytest.approx(alone.end_s)


def test_least_busy_is_better_than_round_robin_and_stale_load_is_worse() -> None:
    """A balancer that sees load shortens waits; one that sees it late sends herds."""
    at, prompts, outputs = load(6_000, 14.0)

    def mean_ttft(**changes: float) -> float:
        structure = replace(EXACT, workers=4, max_batch=4, **changes)  # type: ignore[arg-type]
        return float((Engine(structure, 1).run(at, prompts, outputs).first_token_s - at).mean())

    assert mean_ttft(balance=LEAST_BUSY) < 0.9 * mean_ttft()
    assert mean_ttft(balance=LEAST_BUSY, balance_stale_s=2.0) > 1.1 * mean_ttft(balance=LEAST_BUSY)


def test_ranks_in_lock_step_wait_for_the_slowest() -> None:
    """While one rank computes a long prompt, the other's next token takes as long."""
    engine = Engine(replace(EXACT, workers=2, lockstep=1, step_tokens=100_000), 1)
    short = engine.submit(0.0, 10, 20, keep_tokens=True)
    engine.submit(0.05, 20_000, 1)
    engine.drain()
    gaps = np.diff(engine.token_times_s(short))
    assert gaps.max() == pytest.approx(0.01 + 0.0001 * 20_000)
    assert np.median(gaps) == pytest.approx(0.0101)


def test_whole_prompts_stall_decodes_and_chunks_do_not() -> None:
    """A long prompt stops others' tokens for its full time, or for a chunk at most."""
    for scheduler, longest_s in ((SEPARATE, 0.01 + 0.8), (0, 0.01 + 0.0001 * 512)):
        engine = Engine(replace(EXACT, scheduler=scheduler, step_tokens=512 if scheduler == 0 else 8_192), 1)
        number = engine.submit(0.0, 10, 60, keep_tokens=True)
        engine.submit(0.1, 8_000, 1)
        engine.drain()
        assert np.diff(engine.token_times_s(number)).max() == pytest.approx(longest_s, abs=0.012)


def test_cached_prefixes_are_not_computed_until_they_are_evicted() -> None:
    """A prompt with a cached beginning costs its rest; other prompts that fill the memory evict it."""
    engine = Engine(replace(EXACT, prefix_block=100, kv_tokens=5_000, step_tokens=100_000), 1)

    def ttft(at_s: float, ids: range) -> float:
        number = engine.submit(at_s, 1_050, 2, ids)
        engine.advance(at_s + 5)
        return (engine.request(number).first_token_s or np.nan) - at_s

    assert ttft(0, range(10)) == pytest.approx(0.01 + 0.0001 * 1_050)
    assert ttft(10, range(10)) == pytest.approx(0.01 + 0.0001 * 50)
    for turn in range(1, 6):
        ttft(10 + 10 * turn, range(100 * turn, 100 * turn + 10))
    assert ttft(100, range(10)) == pytest.approx(0.01 + 0.0001 * 1_050)
    assert engine.page().prefix_cache_hits_tokens_total == 1_000
    assert engine.page().kv_cache_usage_ratio_max == 0


def test_a_full_memory_preempts_and_computes_again() -> None:
    """Preempted sequences are computed again; reserved outputs need no preemption."""
    engine, _, _ = run(replace(EXACT, kv_tokens=8_000), rate=5.0)
    _, prompts, outputs = load(2_000, 4.0)
    assert (engine.page().preemptions_total or 0) > 10
    assert engine.usage().computed_tokens > 1.02 * (prompts.sum() + outputs.sum())
    engine, _, _ = run(replace(EXACT, kv_tokens=8_000, kv_reserve=1.0), rate=5.0)
    assert engine.page().preemptions_total == 0
    assert engine.usage().computed_tokens == pytest.approx(prompts.sum() + (outputs - 1).sum())


def test_drafts_shorten_decodes_by_their_acceptance() -> None:
    """A step gives (1 − a^(k+1)) / (1 − a) tokens on average with acceptance a of k drafts."""
    structure = replace(EXACT, draft_tokens=3, acceptance=0.6, sequence_s=0.0)
    count = 400
    at = 100.0 * np.arange(count)
    results = Engine(structure, 1).run(at, np.full(count, 10), np.full(count, 301))
    steps = (results.end_s - results.first_token_s) / 0.01
    assert 300 / steps.mean() == pytest.approx((1 - 0.6**4) / 0.4, rel=0.02)


def test_a_serial_front_limits_the_rate_and_only_some_pages_show_its_queue() -> None:
    """Requests leave the front one service time apart; whether its backlog counts as waiting is the page's choice."""
    for page_front, waiting in ((0, 0.0), (1, 98.0)):
        engine = Engine(replace(EXACT, front_s=0.1, page_front=page_front), 1)
        for _ in range(100):
            engine.submit(0.0, 10, 1)
        engine.advance(0.15)
        assert engine.page().requests_waiting == pytest.approx(waiting, abs=1)
        engine.drain()
        assert np.diff(engine.results().first_token_s) == pytest.approx(np.full(99, 0.1), abs=0.011)


def test_overlap_costs_a_step_before_the_first_token() -> None:
    """A request that arrives while the engine is busy joins the step after the next one."""
    waits = {}
    for overlap in (0, 1):
        engine = Engine(replace(EXACT, overlap=overlap), 1)
        engine.submit(0.0, 10, 100)
        number = engine.submit(0.5, 10, 1)
        engine.drain()
        waits[overlap] = float(engine.results().first_token_s[number])
    assert waits[1] - waits[0] == pytest.approx(0.0101, abs=0.001)


def test_pools_transfer_a_request_once() -> None:
    """With pools, decodes are not disturbed by prompts, and the first token waits for the link where it has to."""
    structure = replace(EXACT, workers=2, prefill_workers=1, transfer_s=0.2)
    for first_after_transfer, ttft in ((0, 0.011), (1, 0.211)):
        engine = Engine(replace(structure, first_after_transfer=first_after_transfer), 1)
        number = engine.submit(0.0, 10, 50, keep_tokens=True)
        engine.submit(0.3, 20_000, 1)
        engine.drain()
        assert engine.request(number).first_token_s == pytest.approx(ttft)
        assert engine.token_times_s(number)[0] == pytest.approx(ttft)
        assert np.diff(engine.token_times_s(number))[1:].max() == pytest.approx(0.0101)
        transfers = engine.page().kv_transfer_seconds
        assert transfers is not None
        assert transfers.counts[-1] == 1
        assert transfers.sum == pytest.approx(0.2)


def test_replicas_come_and_go_with_the_load() -> None:
    """An autoscaled engine starts workers under load and stops them afterwards."""
    structure = replace(
        EXACT,
        max_workers=3,
        max_batch=8,
        scale_period_s=1.0,
        scale_up=6.0,
        scale_down=1.0,
        scale_start_s=2.0,
        balance=LEAST_BUSY,
    )
    engine = Engine(structure, 1)
    at, prompts, outputs = load(1_000, 12.0)
    engine.run(at, prompts, outputs, drain=False)
    busy = engine.page().ranks
    engine.advance(at[-1] + 200)
    assert (busy, engine.page().ranks) == (3, 1)


def test_a_cancelled_request_leaves_at_once_and_frees_its_memory() -> None:
    """Cancelling ends a request now, wherever it is, and the others go on."""
    engine = Engine(replace(EXACT, max_batch=1, front_s=0.001), 1)
    numbers = [engine.submit(0.0, 100, 50) for _ in range(4)]
    engine.submit(0.2, 100, 50)
    engine.advance(0.1)
    for number in (*numbers[:2], numbers[3]):
        engine.cancel(number)
    assert engine.request(numbers[0]).is_cancelled
    assert engine.request(numbers[0]).end_s == 0.1
    assert engine.page().requests_waiting == 1
    engine.drain()
    results = engine.results()
    assert list(results.tokens[[2, 4]]) == [50, 50]
    assert 0 < results.tokens[0] < 50
    assert (engine.page().requests_finished_total, engine.page().kv_cache_usage_ratio_max) == (2, 0)


def test_requests_that_can_never_fit_fail() -> None:
    """A request longer than the memory fails at once; one beyond a full queue is rejected."""
    engine = Engine(replace(EXACT, kv_tokens=1_000, max_batch=1, max_waiting=2), 1)
    numbers = [engine.submit(0.0, length, 5) for length in (2_000, 100, 100, 100, 100)]
    engine.drain()
    assert [engine.request(number).has_failed for number in numbers] == [True, False, False, False, True]


def test_a_change_of_speed_acts_from_the_next_step_on() -> None:
    """Costs change during a run; the shape of the engine does not."""
    engine = Engine(EXACT, 1)
    number = engine.submit(0.0, 10, 100, keep_tokens=True)
    engine.advance(0.5)
    engine.change(replace(EXACT, speed=2.0))
    engine.drain()
    gaps = np.diff(engine.token_times_s(number))
    assert (gaps[0], gaps[-1]) == (pytest.approx(0.0101), pytest.approx(0.0202))
    with pytest.raises(ValueError, match="workers"):
        engine.change(replace(EXACT, workers=2))
