"""The model of a service: laws that hold for each structure."""

from array import array
from operator import sub
from random import Random

import pytest

from prober.simulation.engine import Engine
from prober.simulation.parameters import Parameters
from prober.simulation.request import Request
from prober.simulation.serving import Course, Service, Stream, serve

BASE = Service(0.01, 50e-6, 100e-6, 1e-7, budget=512, slots=32)
STRUCTURES = {
    "chunked": BASE,
    "full cache": BASE._replace(kv_tokens=6_000.0),
    "full cache, pieces": BASE._replace(kv_tokens=6_000.0, admits_pieces=1),
    "few slots": BASE._replace(slots=4),
    "prompts apart": BASE._replace(mixed=0),
    "speculative": BASE._replace(tokens_per_step=2.3),
    "speculative, full cache": BASE._replace(tokens_per_step=2.3, kv_tokens=5_000.0),
    "attention": BASE._replace(attention_s=1e-8),
    "three in turn": BASE._replace(replicas=3, slots=4),
}


def stream(seed: int, count: int = 300, per_s: float = 8.0) -> Stream:
    rng = Random(seed)
    at_s, now = array("d"), 0.0
    for _ in range(count):
        now += rng.expovariate(per_s)
        at_s.append(now)
    prompts = array("d", [float(rng.randint(1, 1_500)) for _ in at_s])
    outputs = array("d", [float(rng.choice((1, 2, rng.randint(3, 120)))) for _ in at_s])
    return Stream(at_s, prompts, outputs, bytes(rng.random() < 0.5 for _ in at_s))


def course(service: Service, of: Stream, until_s: float = 1e4, **settings: object) -> Course:
    readings_s = array("d", [0.5 * n for n in range(1, 60)])
    return serve(service, of, until_s, readings_s, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("structure", STRUCTURES)
def test_all_requests_end_and_their_times_are_in_order(structure: str) -> None:
    service, of = STRUCTURES[structure], stream(7)
    done = course(service, of)
    assert done.served == len(of.at_s)
    for i, (at_s, first_s, end_s) in enumerate(zip(of.at_s, done.first_s, done.end_s, strict=True)):
        assert first_s >= at_s + service.step_s + service.prefill_token_s * of.prompts[i] - 1e-9
        assert end_s >= first_s - 1e-9
        if of.with_gaps[i] and of.outputs[i] > 1:
            assert 0 < done.gap_s[i] <= done.max_gap_s[i]


@pytest.mark.parametrize("seed", range(3))
def test_one_engine_is_the_simulated_engine(seed: int) -> None:
    parameters = Parameters(0.01, 50e-6, 100e-6, 1e-7, max_batched_tokens=512, max_sequences=32)
    of, engine = stream(seed), Engine(parameters, Random(0))
    truths = [
        engine.submit(Request(at_s, int(prompt), int(output)))
        for at_s, prompt, output in zip(of.at_s, of.prompts, of.outputs, strict=True)
    ]
    engine.advance(1e4)
    done = course(BASE, of)
    assert list(done.first_s) == pytest.approx([truth.first_token_s for truth in truths], rel=1e-9)
    assert list(done.end_s) == pytest.approx([truth.end_s for truth in truths], rel=1e-9)


def test_a_full_cache_is_about_that_of_the_simulated_engine() -> None:
    """It counts blocks, this one tokens: the mean wait differs by little, and does not drift away."""
    parameters = Parameters(0.01, 50e-6, 100e-6, 1e-7, max_batched_tokens=512, max_sequences=32, kv_blocks=200)
    of, engine = stream(5, 3_000, per_s=6.0), Engine(parameters, Random(0))
    truths = [
        engine.submit(Request(at_s, int(prompt), int(output)))
        for at_s, prompt, output in zip(of.at_s, of.prompts, of.outputs, strict=True)
    ]
    engine.advance(1e4)
    done = course(BASE._replace(kv_tokens=3_200.0), of)
    mean_s = sum(map(sub, done.first_s, of.at_s)) / 3_000
    assert sum(truth.preemptions for truth in truths) >= 20
    assert mean_s == pytest.approx(sum(truth.ttft_s or 0.0 for truth in truths) / 3_000, rel=0.1)


def first_s(service: Service, at_s: float, last: int, prompt: float = 1.0, count: int = 1) -> float:
    """First token of a prompt that is due at `at_s`, one of `count`, while `last` requests decode from 10 ms on. Steps take 10 ms."""
    of = Stream(
        array("d", [0.0] * last + [at_s] * count),
        *(array("d", [1.0] * last + [prompt] * count), array("d", [100.0] * (last + count))),
        bytes(last + count),
    )
    return course(service._replace(sequence_s=0.0, prefill_token_s=0.0, kv_token_s=0.0), of).first_s[last]


def test_drafts_take_tokens_of_a_step() -> None:
    """2.3 tokens a step are three drafts or more: eight sequences take 32 of 40 tokens, and a prompt of 16 needs two steps."""
    service = BASE._replace(budget=40)
    found_s = first_s(service, 0.035, 8, 16.0), first_s(service._replace(tokens_per_step=2.3), 0.035, 8, 16.0)
    assert found_s == pytest.approx((0.05, 0.06))


def test_a_prompt_that_begins_with_a_piece_is_computed_in_vain() -> None:
    """50 tokens are held: of 80 more fit 40, so that the prompt is begun again and again, and its pieces delay the one that decodes."""
    of = Stream(array("d", [0.0, 0.1]), array("d", [50.0, 80.0]), array("d", [30.0, 2.0]), bytes(2))
    service = BASE._replace(budget=41, kv_tokens=120.0)
    whole, pieces = course(service, of), course(service._replace(admits_pieces=1), of)
    assert whole.first_s[1] > whole.end_s[0]
    assert pieces.end_s[0] > whole.end_s[0] + 0.01


def test_engines_in_turn_are_engines_of_their_own() -> None:
    of, service = stream(2), BASE._replace(slots=4)
    together = course(service._replace(replicas=3), of)
    for k in range(3):
        alone = course(service, Stream(*(column[k::3] for column in of)))  # type: ignore[arg-type]
        assert together.first_s[k::3] == alone.first_s


def test_gaps_above_the_limit_are_counted() -> None:
    of = stream(3, 40)
    done = course(BASE, of, limit_s=0.0)
    assert list(done.slow) == [output - 1 for output in of.outputs]
    assert not any(course(BASE, of, limit_s=100.0).slow)


def test_a_queue_beyond_the_limit_ends_the_run() -> None:
    of = stream(4, 500, per_s=200.0)
    done = course(BASE, of, max_waiting=50.0)
    assert done.served < 500
    assert course(BASE, of).served == 500
