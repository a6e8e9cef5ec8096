"""Engines under load with a knee that is known: what `bench.knee` measures sweeps against.

    python -m bench.worlds [--engines N] [--seed-from N]   compute what is missing in bench/knees.json, engine by engine

Seeded. Engines are drawn by what binds (slots, KV cache, compute; one of five without a sharp knee: prompts of very different
lengths in small chunks, a threshold that the longest miss anyway), then made faster or slower as a whole so that the knees are
log-uniform from 3 to 60 requests per second. Background: 10 to 40% of that, of another shape than the sweep's.

The knee: the rate in all at which the stationary share of breaches among requests of the sweep's shape is 1%, background constant.
Share by simulation of 100,000 requests and more, with common random numbers from rate to rate, so that the share is a smooth
function of it; root to well below 0.5% by false position. `error` is the standard error of log K from ten batches of the run: the
sampling error that 100,000 correlated requests leave.
"""

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import fmean, stdev
from typing import Any

from prober.simulation.engine import Engine
from prober.simulation.parameters import Parameters
from prober.simulation.request import Request
from prober.workload.shapes import Lognormal
from tests.features.capacity.simulated_sweep import SimulatedTarget, Workload

KNEES = Path(__file__).parent / "knees.json"
SHARE = 0.01  # of breaches that the objective allows
REQUESTS, ROUGH, CURVE = 100_000, 8_000, 30_000
SETTLE = 0.03  # of a run that is left out: the engine starts empty
CURVE_AT = (0.6, 0.75, 0.85, 0.92, 0.97, 1.03, 1.08, 1.15, 1.3, 1.6)


def log_uniform(rng: Random, low: float, high: float) -> float:
    """exp(U(ln low, ln high))."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def _lognormal(median: float, sigma: float, low: int, times: float) -> Lognormal:
    return Lognormal(median, sigma, low, max(low + 1, round(median * times)))


def drawn(seed: int) -> SimulatedTarget:
    """The world before it is scaled, without background."""
    rng = Random(f"knee {seed}")
    flat = seed % 5 == 4
    sigma = rng.uniform(0.9, 1.3) if flat else rng.uniform(0.2, 0.8)
    most = 20.0 if flat else 8.0
    prompt = _lognormal(log_uniform(rng, 100, 600 if flat else 1_500), sigma, 8, most)
    output = _lognormal(log_uniform(rng, 30, 300), rng.uniform(0.2, 0.7), 2, 8.0)
    other = Workload(
        _lognormal(prompt.median * log_uniform(rng, 0.6, 1.7), rng.uniform(0.3, 0.8), 8, 8.0),
        _lognormal(output.median * log_uniform(rng, 0.6, 1.7), rng.uniform(0.3, 0.7), 2, 8.0),
    )
    slots = round(log_uniform(rng, 16, 256))
    budget = max(slots, round(log_uniform(rng, 256, 1_024) if flat else log_uniform(rng, 512, 8_192)))
    mean = prompt.mean() + output.mean()
    longest = max(prompt.maximum + output.maximum, other.prompt.maximum + other.output.maximum)
    tokens = max(2.0 * longest, mean * log_uniform(rng, 8, 400))
    parameters = Parameters(
        step_s=0.0085 * log_uniform(rng, 0.5, 2),
        sequence_s=20e-6 * log_uniform(rng, 0.5, 10),
        prefill_token_s=100e-6 * log_uniform(rng, 0.3, 2),
        kv_token_s=65e-9 * log_uniform(rng, 0.5, 4),
        max_batched_tokens=budget,
        max_sequences=slots,
        kv_blocks=math.ceil(tokens / 16),
    )
    # Alone, a prompt is computed in pieces of the budget; half a step goes by before the first begins.
    quantile = 1 - rng.uniform(0.002, 0.006) if flat else 0.99
    draws = Random(f"lengths {seed}")
    length = sorted(prompt.draw(draws) for _ in range(20_000))[int(quantile * 20_000)]
    alone_s = parameters.step_s * (0.5 + math.ceil(length / budget)) + parameters.prefill_token_s * length
    times = 1.0 if flat else log_uniform(rng, 2, 12)
    return SimulatedTarget(
        seed, "flat" if flat else "sharp", parameters, Workload(prompt, output), other, times * alone_s
    )


def scaled(world: SimulatedTarget, factor: float) -> SimulatedTarget:
    """All that takes time takes `factor` times as long: the knee is that much lower."""
    before = world.parameters
    return replace(
        world,
        threshold_s=world.threshold_s * factor,
        parameters=replace(
            before,
            step_s=before.step_s * factor,
            sequence_s=before.sequence_s * factor,
            prefill_token_s=before.prefill_token_s * factor,
            kv_token_s=before.kv_token_s * factor,
        ),
    )


def stream(world: SimulatedTarget, total_per_s: float, rng: Random) -> Iterator[Request]:
    """Requests at that rate in all, without end. The same random numbers make the same requests at another rate, but for time
    and for who sends them.
    """
    share = min(1.0, world.others_per_s / total_per_s)
    at_s = 0.0
    while True:
        at_s += rng.expovariate(1.0) / total_per_s
        whose, lengths = rng.random(), Random(rng.getrandbits(40))
        if whose < share:
            yield Request(at_s, *world.others.draw(lengths), (), True)
        else:
            yield Request(at_s, *world.own.draw(lengths))


def shares(world: SimulatedTarget, total_per_s: float, requests: int, batches: int = 10) -> list[float]:
    """The share of breaches among the sweep's requests, batch by batch. A hopeless overload ends early, with what it had."""
    engine = Engine(world.parameters, Random(0))
    rng = Random(f"truth {world.seed}")
    settle = round(SETTLE * requests)
    size = (requests - settle) / batches
    sent, bad = [0] * batches, [0] * batches
    truths: list[tuple[int, Any]] = []
    everything = stream(world, total_per_s, rng)
    for number in range(requests):
        request = next(everything)
        truth = engine.submit(request)
        if number >= settle and not request.background:
            truths.append((min(batches - 1, int((number - settle) / size)), truth))
        if number % 2_000 == 1_999 or number == requests - 1:
            engine.advance(request.arrival_s if number < requests - 1 else request.arrival_s + 5 * world.threshold_s)
            left = []
            for batch, truth in truths:
                late = engine.at_s - truth.request.arrival_s > world.threshold_s
                if truth.ttft_s is None and not late:
                    left.append((batch, truth))
                    continue
                sent[batch] += 1
                bad[batch] += truth.ttft_s is None or truth.ttft_s > world.threshold_s
            truths = left
            if sum(bad) > 0.1 * requests:
                break
    return [b / s for b, s in zip(bad, sent, strict=True) if s]


def share(world: SimulatedTarget, total_per_s: float, requests: int) -> float:
    """The share of breaches, at least that of half a breach."""
    if world.others_share is not None:
        world = replace(world, others_per_s=world.others_share * total_per_s, others_share=None)
    return max(fmean(shares(world, total_per_s, requests)), 0.5 / requests)


def root(world: SimulatedTarget, low: float, high: float, requests: int, precision: float) -> tuple[float, float]:
    """(rate at which the share is `SHARE`, local slope of log share by log rate), by false position on logarithms (Illinois)."""
    lows, highs = math.log(share(world, low, requests) / SHARE), math.log(share(world, high, requests) / SHARE)
    while lows > 0:
        if low < 1e-3:
            raise ValueError(f"world {world.seed} breaches at any rate")
        high, highs = low, lows
        low /= 1.3
        lows = math.log(share(world, low, requests) / SHARE)
    while highs < 0:
        low, lows = high, highs
        high *= 1.3
        highs = math.log(share(world, high, requests) / SHARE)
    slope = (highs - lows) / math.log(high / low)
    left, right, side = lows, highs, 0
    while math.log(high / low) > precision:
        part = min(0.95, max(0.05, -left / (right - left)))
        rate = low * (high / low) ** part
        value = math.log(share(world, rate, requests) / SHARE)
        if value < 0:
            low, left, right, side = rate, value, right / 2 if side < 0 else right, -1
            lows = value
        else:
            high, right, left, side = rate, value, left / 2 if side > 0 else left, 1
            highs = value
        slope = (highs - lows) / math.log(high / low)
        if abs(value) < 0.25 * precision * slope:
            return rate, slope
    return math.sqrt(low * high), slope


@cache
def world(seed: int) -> SimulatedTarget:
    """The world of a seed, scaled and with its background. Costs a second."""
    rng = Random(f"target {seed}")
    target, part = log_uniform(rng, 3, 60), rng.uniform(0.1, 0.4)
    base = replace(drawn(seed), others_share=part)
    guess = 0.1
    while share(base, guess, ROUGH) < SHARE and guess < 1e4:
        guess *= 1.6
    rough, _ = root(base, guess / 1.6, guess, ROUGH, 0.03)
    return replace(scaled(base, rough / target), others_per_s=part * target, others_share=None)


def truth(seed: int) -> dict[str, Any]:
    """Knee, local slope, its sampling error, and the curve of shares around it."""
    here = world(seed)
    target = log_uniform(Random(f"target {seed}"), 3, 60)
    rough, _ = root(here, target / 1.1, target * 1.1, CURVE, 0.02)
    knee, _ = root(here, rough / 1.01, rough * 1.01, REQUESTS, 0.005)
    curve = [(at, share(here, knee * at, CURVE)) for at in CURVE_AT]
    near = {at: value for at, value in curve if 0.9 < at < 1.1}
    low, high = min(near), max(near)
    slope = math.log(near[high] / near[low]) / math.log(high / low)
    batches = shares(here, knee, REQUESTS)
    error = stdev(batches) / math.sqrt(len(batches)) / fmean(batches) / slope
    return {
        "seed": seed,
        "kind": here.kind,
        "rough": rough,
        "knee": round(knee, 4),
        "share": round(fmean(batches), 6),
        "slope": round(slope, 2),
        "error": round(error, 4),
        "curve": [(at, round(value, 6)) for at, value in curve],
        "world": described(here),
    }


def described(here: SimulatedTarget) -> dict[str, Any]:
    """A world as plain data."""
    parameters = here.parameters
    return {
        "parameters": {
            name: getattr(parameters, name)
            for name in (
                *("step_s", "sequence_s", "prefill_token_s", "kv_token_s"),
                *("max_batched_tokens", "max_sequences", "kv_blocks"),
            )
        },
        "own": [[each.median, each.sigma, each.low, each.maximum] for each in (here.own.prompt, here.own.output)],
        "others": [
            [each.median, each.sigma, each.low, each.maximum] for each in (here.others.prompt, here.others.output)
        ],
        "threshold_s": here.threshold_s,
        "others_per_s": here.others_per_s,
    }


def restored(known: dict[str, Any]) -> SimulatedTarget:
    """The world of an entry of knees.json, without the second that `world` takes."""
    of = known["world"]
    own, others = (Workload(*(Lognormal(*each) for each in of[name])) for name in ("own", "others"))
    return SimulatedTarget(
        known["seed"], known["kind"], Parameters(**of["parameters"]), own, others, of["threshold_s"], of["others_per_s"]
    )


def share_at(known: dict[str, Any], rate: float) -> float:
    """The true share of breaches at a rate in all, between the points of the curve (straight in logarithms), ends extended."""
    points = sorted([*((at, value) for at, value in known["curve"]), (1.0, SHARE)])
    logs = [(math.log(at), math.log(value)) for at, value in points]
    x = math.log(rate / known["knee"])
    pair = next(((a, b) for a, b in pairwise(logs) if x <= b[0]), (logs[-2], logs[-1]))
    (x0, y0), (x1, y1) = pair
    return math.exp(min(0.0, y0 + (y1 - y0) * (x - x0) / (x1 - x0)))


def knees() -> list[dict[str, Any]]:
    """What is known, by seed."""
    return json.loads(KNEES.read_text())["engines"] if KNEES.exists() else []


def main() -> None:
    """Compute what is missing, one after the other; what is there is kept, so it can be stopped at any time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", type=int, default=200)
    options = parser.parse_args()
    for seed in range(options.engines):
        known = {each["seed"]: each for each in knees()}
        if seed in known:
            continue
        known[seed] = truth(seed)
        lines = ",\n".join(json.dumps(known[each]) for each in sorted(known))
        KNEES.write_text(f'{{"share": {SHARE}, "requests": {REQUESTS}, "engines": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
