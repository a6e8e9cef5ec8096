"""The simulated engine against an oracle without its shortcuts, and against what must hold of any engine."""

import itertools
import math
from dataclasses import replace
from random import Random

import pytest

from prober.simulation.engine import Engine
from prober.simulation.parameters import Parameters
from prober.simulation.request import End, Request, Truth
from tests.seeds import seeds
from tests.simulation.naive import Naive

ROOMY = Parameters(kv_blocks=4_000, max_sequences=8, max_batched_tokens=256, prefix_block_tokens=32)
TIGHT = Parameters(kv_blocks=40, max_sequences=8, max_batched_tokens=64, prefix_block_tokens=32)


def drawn(rng: Random, count: int, prompt: int, output: int, gap_s: float) -> list[Request]:
    """Requests of random lengths at random times, some of a few families with a common prefix."""
    at_s, requests = 0.0, []
    for _ in range(count):
        at_s += rng.expovariate(1 / gap_s)
        tokens = rng.randint(1, prompt)
        family, shared = rng.randint(0, 3), rng.randint(0, tokens // 32)
        prefix = tuple(family * 100 + block for block in range(shared)) if family else ()
        requests.append(Request(at_s, tokens, rng.randint(1, output), prefix))
    return requests


def served(parameters: Parameters, requests: list[Request], seed: int = 0) -> tuple[Engine, list[Truth]]:
    engine = Engine(parameters, Random(seed))
    truths = [engine.submit(request) for request in requests]
    engine.advance(math.inf)
    return engine, truths


@seeds(60)
def test_jumping_is_the_same_as_walking(seeds: range) -> None:
    """Times of all tokens, admissions, preemptions and prefix hits are those of the engine that goes step by step."""
    for seed, parameters in itertools.product(
        seeds, (ROOMY, TIGHT, replace(TIGHT, kv_token_s=0.0, block_tokens=1, kv_blocks=500))
    ):
        rng = Random(seed)
        requests = drawn(rng, 25, 300, rng.choice([4, 40, 200]), rng.choice([0.01, 0.1, 1.0]))
        naive = Naive(parameters)
        expected = naive.run(requests)
        engine, truths = served(parameters, requests)
        for truth, sequence in zip(truths, expected, strict=True):
            assert list(truth.token_times_s()) == pytest.approx(sequence.out, abs=1e-9)
            assert truth.admitted_s == pytest.approx(sequence.admitted, abs=1e-9)
            assert (truth.preemptions, truth.cached_tokens) == (sequence.preemptions, sequence.cached)
            assert truth.end is End.COMPLETE
        assert engine.state.steps == naive.steps
        assert naive.most_used <= parameters.kv_blocks


def test_the_cases_above_have_what_they_compare() -> None:
    """Some preempt, some hit the prefix cache, some do neither."""
    runs = [served(TIGHT, drawn(Random(seed), 25, 300, 200, 0.1))[1] for seed in range(10)]
    truths = [truth for case in runs for truth in case]
    assert sum(truth.preemptions > 0 for truth in truths) > 20
    assert sum(truth.cached_tokens > 0 for truth in truths) > 20
    assert sum(not truth.preemptions and not truth.cached_tokens for truth in truths) > 20


@seeds(20)
def test_a_step_at_a_time_is_the_same_as_jumping(seeds: range) -> None:
    """`step`, and `advance` in small pieces, come to the same end; every token is out at the `at_s` of its step."""
    for seed in seeds:
        requests = drawn(Random(seed), 20, 300, 60, 0.1)
        _, jumped = served(TIGHT, requests)
        stepped, pieces = Engine(TIGHT, Random(0)), Engine(TIGHT, Random(0))
        truths: list[Truth] = []
        runs: list[list[float]] = []
        for request in [*requests, None]:
            until = request.arrival_s if request else math.inf
            while stepped.step(until):
                for truth, times in zip(truths, runs, strict=True):
                    times.extend([stepped.at_s] * (stepped.tokens(truth) - len(times)))
            if request:
                truths.append(stepped.submit(request))
                runs.append([])
        chopped = []
        at_s = 0.0
        for request in requests:
            while (at_s := at_s + 0.003) < request.arrival_s:
                pieces.advance(at_s)
            at_s = request.arrival_s
            chopped.append(pieces.submit(request))
        pieces.advance(math.inf)
        for one, other, third, times in zip(truths, jumped, chopped, runs, strict=True):
            assert times == pytest.approx(list(other.token_times_s()), abs=1e-9)
            assert list(one.token_times_s()) == pytest.approx(list(other.token_times_s()), abs=1e-9)
            assert list(third.token_times_s()) == pytest.approx(list(other.token_times_s()), abs=1e-9)


@pytest.mark.parametrize("parameters", [ROOMY, TIGHT])
def test_nothing_is_lost(parameters: Parameters) -> None:
    """Every request ends once with the tokens it asked for, the counters agree, and the engine is empty after it."""
    requests = drawn(Random(3), 200, 300, 100, 0.05)
    engine = Engine(parameters, Random(0))
    truths = [engine.submit(request) for request in requests]
    ended = engine.advance(math.inf)
    assert sorted(map(id, ended)) == sorted(map(id, truths))
    assert [truth.tokens for truth in truths] == [request.output_tokens for request in requests]
    state = engine.state
    assert state.generation_tokens == sum(request.output_tokens for request in requests)
    assert state.prompt_tokens == state.prefix_queries == sum(request.prompt_tokens for request in requests)
    assert state.prefix_hits == sum(truth.cached_tokens for truth in truths)
    assert state.preemptions == sum(truth.preemptions for truth in truths)
    assert (state.running, state.waiting, state.kv_usage_ratio, state.completed) == (0, 0, 0.0, 200)
    assert not engine.busy


def test_itls_add_up_to_the_steps() -> None:
    """First token and all ITLs end where the request ended; TPOT is their mean, and the p99 of few is their maximum."""
    for truth in served(TIGHT, drawn(Random(5), 60, 300, 100, 0.05))[1]:
        assert truth.first_token_s is not None
        itls = truth.itls_s()
        assert len(itls) == truth.request.output_tokens - 1
        assert truth.first_token_s + sum(itls) == pytest.approx(truth.end_s, abs=1e-9)
        if itls:
            assert truth.tpot_s == pytest.approx(sum(itls) / len(itls))
            assert truth.itl_quantile_s(0.99) == max(itls)
        else:
            assert truth.tpot_s is truth.itl_quantile_s(0.99) is None


def test_a_long_request_keeps_its_ends() -> None:
    """However many steps and other requests come and go beside it, its ITLs are all there."""
    engine = Engine(Parameters(), Random(0))
    long = engine.submit(Request(0.0, 100, 10_001))
    short = []
    for at in range(300):
        while engine.step(at * 0.3):
            pass
        short.append(engine.submit(Request(at * 0.3, 50, 20)))
    engine.advance(math.inf)
    for truth in [long, *short]:
        itls = truth.itls_s()
        assert len(itls) == truth.request.output_tokens - 1
        assert (truth.first_token_s or 0) + sum(itls) == pytest.approx(truth.end_s, abs=1e-6)


def test_one_request_alone_takes_what_the_formula_says() -> None:
    """TTFT is the steps of its prompt in pieces; an ITL a step with one decode and its context."""
    parameters = Parameters(max_batched_tokens=1000)
    _, (truth,) = served(parameters, [Request(5.0, 2500, 3)])
    assert truth.ttft_s == pytest.approx(3 * 0.0085 + 2500 * 100e-6)
    assert truth.itls_s() == pytest.approx([0.0085 + 20e-6 + 65e-9 * 2501, 0.0085 + 20e-6 + 65e-9 * 2502])


def test_a_prefix_hit_shortens_the_first_token() -> None:
    """By the tokens that are not computed again; the last token always is."""
    request = Request(0.0, 1024, 5, (1, 2))
    _, (cold, warm, longer) = served(
        Parameters(), [request, request._replace(arrival_s=1.0), Request(2.0, 1500, 5, (1, 2))]
    )
    assert (cold.cached_tokens, warm.cached_tokens, longer.cached_tokens) == (0, 512, 1024)
    assert (cold.ttft_s or 0) - (warm.ttft_s or 0) == pytest.approx(512 * 100e-6)


def test_who_gives_up_is_gone() -> None:
    """In the line or in the batch, its blocks are free, the others go on, and giving up twice is nothing."""
    engine = Engine(Parameters(max_sequences=1), Random(0))
    running, waiting, last = (engine.submit(Request(0.0, 100, 1000)) for _ in range(3))
    engine.advance(1.0)
    engine.cancel(running)
    engine.cancel(waiting)
    engine.cancel(waiting)
    assert (running.end, waiting.end, waiting.tokens) == (End.CANCELLED, End.CANCELLED, 0)
    assert 90 < running.tokens < 120
    assert len(running.itls_s()) == running.tokens - 1
    assert engine.state.kv_usage_ratio == 0
    engine.advance(math.inf)
    assert last.end is End.COMPLETE
    assert engine.advance(math.inf) == []


def test_who_could_never_be_served_is_refused() -> None:
    """A request that does not fit, or has no tokens."""
    engine = Engine(Parameters(kv_blocks=10), Random(0))
    with pytest.raises(ValueError, match="it may need 11 KV blocks of the engine's 10"):
        engine.submit(Request(0.0, 100, 61))
    with pytest.raises(ValueError, match="at least one token"):
        engine.submit(Request(0.0, 0, 5))


@pytest.mark.parametrize(
    "wrong",
    [{"step_s": 0.0}, {"kv_token_s": -1.0}, {"kv_blocks": 0}, {"max_batched_tokens": 255}, {"prefix_block_tokens": 24}],
)
def test_impossible_parameters_are_refused(wrong: dict[str, float]) -> None:
    """A step takes time, the token budget is enough for all that decode, prefix blocks are whole blocks."""
    with pytest.raises(ValueError, match=r"_s|cost|kv_blocks|max_batched_tokens|prefix_block_tokens"):
        replace(Parameters(), **wrong)  # type: ignore[arg-type]
