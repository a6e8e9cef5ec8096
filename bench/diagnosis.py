"""Diagnosis: the simulated engine in each regime, and in troubles that no regime stands for. How often is it named rightly?

Every case has a healthy window and one of the breach; evidence is what a prober would have: its probes' timelines (with the
network's delay in them), the engine's page every 5 s, the GPU beside it. Thresholds were tuned on the
seeds of `--tune`; the figures are those of other seeds. A second round leaves evidence out at random: there `unknown` is right, a wrong
name is not.

python -m bench.diagnosis [--tune] [--variants N]
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing import Pool
from random import Random
from typing import Any

from bench.report import goal, part, show
from bench.watched_service import PROBES_PER_S, Window, World, watched
from prober.features.diagnosis.clues import Symptoms
from prober.features.diagnosis.diagnosis import diagnose
from prober.features.diagnosis.window import window_features
from prober.measure.bandwidth_bound import DecodeModel
from prober.measure.gpu_reading import ThrottleReason
from prober.simulation.faults import Crash, KvLost, Slow, Tail
from prober.simulation.parameters import Parameters

TUNED, HELD_OUT = 0, 4_000  # the first seed of each set
OTHER_DRAWS = 10_000  # added to a seed
BEFORE_S, NOW_S = 1_800.0, 900.0
TAIL = 3  # of the troubles that no regime stands for: single steps take longer, which stands still for a moment


@dataclass(frozen=True, slots=True)
class Case:
    """What is true, the windows, and the SLOs: thresholds over 90th percentiles of before, below 1 over its medians."""

    truth: frozenset[str]
    before: World
    now: World
    ttft_slack: float = 1.3
    tpot_slack: float = 1.3


def evidence(case: Case, seed: int, missing: frozenset[str] = frozenset()) -> Symptoms:
    """Both windows, less what is missing: page, histograms, gpu (readings and the bound), before, warm."""
    windows = [watched(case.before, BEFORE_S, seed), watched(case.now, NOW_S, seed + 500_000)]
    return evidence_of(windows, missing, (case.ttft_slack, case.tpot_slack))


def evidence_of(windows: Sequence[Window], missing: frozenset[str], slacks: tuple[float, float]) -> Symptoms:
    """Features of the windows and the breached SLOs."""
    sides, breached = [], {}
    for window in windows:
        readings = [] if "page" in missing else window.readings
        if "histograms" in missing:
            bare = {"ttft_seconds": None, "queue_seconds": None, "itl_seconds": None}
            readings = [(at, replace(signals, **bare)) for at, signals in readings]  # type: ignore[arg-type]
        gone = "gpu" in missing
        kept = [each for each in window.probes if "warm" not in missing or not each.workload.endswith("_warm")]
        sides.append(window_features(kept, readings, () if gone else window.devices, None if gone else window.hardware))
    for name, slack in zip(("ttft", "tpot"), slacks, strict=True):
        before, now = (
            sorted(value for probe in window.probes if (value := getattr(probe.timeline, f"{name}_s")) is not None)
            for window in windows
        )
        threshold = before[int((0.9 if slack > 1 else 0.5) * len(before))] * slack
        if sum(value > threshold for value in now) > 0.1 * len(now):
            breached[name] = threshold
    before_seen = sides[0]
    if "before" in missing:
        before_seen = type(before_seen)()
    return Symptoms(sides[1], before_seen, breached, "vllm")


# Cases


def healthy(rng: Random) -> World:
    """An engine of today on one of two GPUs, at a moderate load, probed with one of three workloads."""
    bandwidth, flops = rng.choice([(2.039e12, 312e12), (3.35e12, 989e12)])
    parameters = rng.uniform(7e9, 9e9)
    kv = 131_072.0
    step_s = parameters * 2 / bandwidth / rng.uniform(0.8, 0.95) + 0.0003
    prefill_s = 2 * parameters / flops / rng.uniform(0.35, 0.6)
    engine = Parameters(
        step_s=step_s, prefill_token_s=prefill_s, kv_token_s=kv / bandwidth / rng.uniform(0.75, 0.95), kv_blocks=25_000
    )
    low, high, prefix = rng.choice([(64, 512, 0), (100, 3_000, 0), (1_100, 2_600, 1_024)])
    return World(
        parameters=engine,
        model=DecodeModel(parameters, 2, kv),
        bandwidth=bandwidth,
        rate_per_s=rng.uniform(0.5, 2.0),
        probe_prompt=(low, high),
        probe_prefix=prefix,
        rtt_s=10 ** rng.uniform(-3.3, -2.2),
    )


def tuned(world: World, **changes: Any) -> World:
    """With other parameters of the engine."""
    return replace(world, parameters=replace(world.parameters, **changes))


def capacity_per_s(world: World) -> float:
    """Requests of the trace's kind that prefill alone would allow."""
    return 1 / (1_155 * world.parameters.prefill_token_s + 0.2 * world.parameters.step_s)


def prefill_bound(rng: Random) -> Case:
    """Computing a prompt costs more, or always cost what the SLO does not allow."""
    base = healthy(rng)
    if rng.random() < 0.6:
        factor = rng.uniform(2.5, 5)
        cost = factor * base.parameters.prefill_token_s
        base = replace(
            base, probe_prompt=(100, 3_000), probe_prefix=0, rate_per_s=min(base.rate_per_s, 0.3 / 1_155 / cost)
        )
        return Case(frozenset({"slow_prefill"}), base, tuned(base, prefill_token_s=cost))
    rate = min(0.3, 0.15 / 1_155 / base.parameters.prefill_token_s)
    base = replace(base, probe_prompt=(1_500, 8_000), probe_prefix=0, rate_per_s=rate)
    return Case(frozenset({"slow_prefill"}), base, base, ttft_slack=rng.uniform(0.5, 0.8))


def queueing(rng: Random) -> Case:
    """Too much load, too few slots, or long prompts in front of short ones."""
    base = healthy(rng)
    kind = rng.random()
    if kind < 0.35:
        return Case(
            frozenset({"queueing"}), base, replace(base, rate_per_s=capacity_per_s(base) * rng.uniform(0.8, 1.0))
        )
    if kind < 0.7:
        running = base.rate_per_s * 211 * base.parameters.step_s * 1.3
        slots = max(1, round(running * rng.uniform(0.9, 1.3)))
        return Case(frozenset({"queueing"}), base, tuned(base, max_sequences=slots))
    long = rng.uniform(0.3, 0.5) / (22_000 * base.parameters.prefill_token_s)
    return Case(frozenset({"queueing", "long_prompts"}), base, replace(base, long_per_s=long))


def chats(rng: Random) -> tuple[int, int]:
    """Long conversations."""
    return rng.randrange(1_000, 6_000), rng.randrange(500, 2_000)


def cache_pressure(rng: Random) -> Case:
    """Blocks are missing, or conversations are longer than the cache can hold."""
    base = replace(healthy(rng), background=chats)
    util, step_s = rng.uniform(0.1, 0.25), base.parameters.step_s * 1.6
    most = rng.uniform(0.2, 0.4) * 25_000 * 16 / (1_250 * step_s * 4_400)
    base = replace(base, rate_per_s=min(most, util / (3_500 * base.parameters.prefill_token_s)))
    held = base.rate_per_s * 1_250 * step_s * 4_400 / 16
    left = max(600, round(held * rng.uniform(0.6, 0.95)))
    return Case(frozenset({"cache_pressure"}), base, replace(base, faults=(KvLost(max(1, 25_000 - left)),)))


def prefix_miss(rng: Random) -> Case:
    """Beginnings are unique now, the cache is off, or there are too many of them for it."""
    base = healthy(rng)
    tokens = rng.choice([1_024, 2_048, 3_072])
    per_s = rng.uniform(0.3, 0.5) / ((1_155 + tokens) * base.parameters.prefill_token_s)
    base = replace(base, sharing=(rng.randrange(3, 15), tokens), rate_per_s=per_s)
    kind = rng.random()
    if kind < 0.35:
        now = replace(base, sharing=(0, tokens))
    elif kind < 0.7:
        now = replace(base, caching=False)
    else:
        now = replace(base, sharing=(rng.randrange(3_000, 9_000), tokens))
    return Case(frozenset({"prefix_miss"}), base, now)


def decode_far_from_bound(rng: Random) -> Case:
    """Clocks, a foreign process, a slow host; or slow kernels from the first day."""
    base = healthy(rng)
    base = replace(base, rate_per_s=min(base.rate_per_s, 0.3 * capacity_per_s(base)))
    factor, kind = rng.uniform(1.45, 3.0), rng.random()
    if kind < 0.3:
        now = replace(base, faults=(Slow(factor),), clock=1 / factor, throttled=frozenset({ThrottleReason.THERMAL}))
    elif kind < 0.55:
        now = replace(base, faults=(Slow(factor),))
    elif kind < 0.8:
        now = tuned(base, step_s=base.parameters.step_s * factor)
    else:
        base = tuned(base, step_s=base.parameters.step_s * rng.uniform(2.0, 4.0))
        base = replace(base, rate_per_s=min(base.rate_per_s, 0.15 * capacity_per_s(base)))
        return Case(frozenset({"slow_decode"}), base, base, tpot_slack=rng.uniform(0.5, 0.8))
    return Case(frozenset({"slow_decode"}), base, now)


def long_answers(rng: Random) -> tuple[int, int]:
    """Much context for little prefill."""
    return rng.randrange(2_000, 5_000), rng.randrange(3_000, 6_000)


def memory_bound_decode(rng: Random) -> Case:
    """Longer contexts in the batch, heavier weights, or an SLO that this GPU cannot meet."""
    base = replace(healthy(rng), rate_per_s=rng.uniform(0.1, 0.4))
    kind = rng.random()
    truth = frozenset({"slow_decode"})
    if kind < 0.35:
        prefill = 0.12 / (3_500 * base.parameters.prefill_token_s)
        need = rng.uniform(0.35, 0.6) * base.parameters.step_s / base.parameters.kv_token_s  # tokens of context
        rate = min(prefill, need / (4_500 * 1.7 * base.parameters.step_s * 5_750))
        return Case(truth, base, replace(base, background=long_answers, rate_per_s=rate))
    if kind < 0.65:
        light = tuned(base, step_s=base.parameters.step_s * rng.uniform(0.5, 0.7))
        light = replace(light, model=replace(base.model, bytes_per_weight=1))
        return Case(truth, light, base)
    return Case(truth, base, base, tpot_slack=rng.uniform(0.5, 0.8))


def network(rng: Random) -> Case:
    """A longer way, or a gateway that takes its time."""
    base = healthy(rng)
    extra = rng.uniform(0.05, 0.25)
    now = replace(base, rtt_s=base.rtt_s + extra) if rng.random() < 0.5 else replace(base, front_s=extra)
    return Case(frozenset({"network"}), base, now)


def nothing(rng: Random) -> Case:
    """Troubles that no regime stands for, and none."""
    base = healthy(rng)
    nows = (
        base,
        replace(base, rate_per_s=base.rate_per_s * rng.uniform(0.7, 1.2)),
        replace(base, api_s=rng.uniform(0.05, 0.4)),
        replace(base, faults=(Tail(rng.uniform(0.03, 0.1), rng.uniform(4, 15)),)),
        replace(base, faults=tuple(Crash(300.0 * i, 300.0 * i + 60) for i in range(1, 4))),
        replace(base, faults=(Slow(0.6),)),
    )
    place = rng.randrange(len(nows))
    truth = frozenset({"unknown", "stalls"} if place == TAIL else {"unknown"})
    return Case(truth, base, nows[place])


def long_prompts(rng: Random) -> Case:
    """Others' long prompts, from a few thousand tokens to a hundred thousand, ahead of the probes."""
    base = tuned(healthy(rng), kv_blocks=100_000)
    shortest = round(10 ** rng.uniform(3.5, 4.7))
    lengths = shortest, 2 * shortest
    busy = rng.uniform(0.25, 0.55)
    now = replace(base, long_prompt=lengths, long_per_s=busy / (1.5 * shortest * base.parameters.prefill_token_s))
    return Case(frozenset({"queueing", "long_prompts"}), base, now)


def full_cache(rng: Random) -> Case:
    """A page that counts cached blocks as used, so that the cache is always nearly full without harm; and another cause."""
    kind = rng.choice(("network", "decode_far_from_bound", "queueing"))
    case = REGIMES[kind](rng)
    usage = rng.uniform(0.93, 0.999)
    return replace(case, before=replace(case.before, least_usage=usage), now=replace(case.now, least_usage=usage))


def front_backlog(rng: Random) -> Case:
    """A serial front is busy, and the page counts its backlog as queue time: a queue, before the engine's scheduler."""
    base = healthy(rng)
    busy = replace(base, tokenizer_s=rng.uniform(0.85, 0.97) / (base.rate_per_s + PROBES_PER_S), front_is_queue=True)
    return Case(frozenset({"queueing", "network"}), replace(base, front_is_queue=True), busy)


REGIMES: dict[str, Callable[[Random], Case]] = {
    "prefill_bound": prefill_bound,
    "queueing": queueing,
    "cache_pressure": cache_pressure,
    "prefix_miss": prefix_miss,
    "decode_far_from_bound": decode_far_from_bound,
    "memory_bound_decode": memory_bound_decode,
    "network": network,
    "unknown": nothing,
}
MORE = {"long prompts": long_prompts, "full cache": full_cache, "front backlog": front_backlog}
SECOND: dict[str, Callable[[World, Random], World]] = {
    "network": lambda world, rng: replace(world, rtt_s=world.rtt_s + rng.uniform(0.05, 0.25)),
    "decode_far_from_bound": lambda world, rng: replace(world, faults=(*world.faults, Slow(rng.uniform(1.5, 2.5)))),
    "queueing": lambda world, rng: replace(world, long_per_s=0.4 / (22_000 * world.parameters.prefill_token_s)),
}


def structured(case: Case, rng: Random) -> Case:
    """The same on engines of other structures: replicas behind one page, whole prompts, a serial front, histograms at the end."""
    replicas = 1 + rng.randrange(2)
    whole, front, at_end = (rng.random() < 0.5 for _ in range(3))
    tokenizer_s = rng.uniform(0.002, 0.01) if front else 0.0

    def changed(world: World) -> World:
        world = replace(
            world,
            replicas=replicas,
            rate_per_s=replicas * world.rate_per_s,
            long_per_s=replicas * world.long_per_s,
            tokenizer_s=max(world.tokenizer_s / replicas, tokenizer_s),
            counts_at_end=at_end,
        )
        return tuned(world, max_batched_tokens=131_072) if whole else world

    return replace(case, before=changed(case.before), now=changed(case.now))


def two(rng: Random) -> Case:
    """Two faults at once."""
    first = rng.choice([name for name in REGIMES if name != "unknown"])
    second = rng.choice([name for name in SECOND if name != first])
    case = REGIMES[first](rng)
    truth = frozenset(NAMES.get(name, name) for name in (first, second))
    truth |= {"long_prompts"} if second == "queueing" else set()
    return replace(case, truth=truth, now=SECOND[second](case.now, rng))


NAMES = {  # of the cases above that the diagnosis calls by another name
    "prefill_bound": "slow_prefill",
    "decode_far_from_bound": "slow_decode",
    "memory_bound_decode": "slow_decode",
}
LEFT_OUT = ("page", "histograms", "gpu", "before", "warm")


def drawn(kind: str, seed: int) -> tuple[Case, Symptoms]:
    """The case of this seed and its evidence. Drawn again until an SLO is breached: only a breach is
    explained. A quarter of the cases of no regime have none.

    kind: name of a case; with ` / less` evidence is left out at random, with ` / structures` the engine is of another structure, and
        the case is another draw.
    """
    name, _, variant = kind.partition(" / ")
    seed += OTHER_DRAWS if variant == "structures" else 0
    calm = name == "unknown" and seed % 4 == 0
    for attempt in range(20):
        rng = Random(f"{name} {variant == 'less'} {seed} {attempt}")
        case = ({**REGIMES, **MORE, "two": two})[name](rng)
        if variant == "structures":
            case = structured(case, rng)
        missing = frozenset(rng.sample(LEFT_OUT, rng.randint(1, 3))) if variant == "less" else frozenset()
        found = evidence(case, seed, missing)
        if found.breached or calm:
            break
    return case, found


def one(task: tuple[str, int]) -> tuple[str, str, str, int, float]:
    """(set, truth, verdict, breached, seconds of the diagnosis) of one case."""
    kind, seed = task
    case, found = drawn(kind, seed)
    begin = time.perf_counter()
    verdict = " and ".join(diagnose(found).regimes)
    return kind, " or ".join(sorted(case.truth)), verdict, len(found.breached), time.perf_counter() - begin


def reading_s() -> float:
    """Processor time, s, that the daemon's event loop gives to one window of 2,000 probes and the engine's page beside them."""
    window = watched(healthy(Random(HELD_OUT)), 2_000 / PROBES_PER_S, HELD_OUT)
    begin = time.process_time()
    window_features(window.probes, window.readings, window.devices, window.hardware)
    return time.process_time() - begin


def shares(rows: Sequence[tuple[str, str, str, int, float]]) -> dict[str, float]:
    """Right, and wrong: any name that is not true, the second of two as well."""
    right = wrong = 0
    for _, truth, verdict, _, _ in rows:
        is_true = set(verdict.split(" and ")) <= set(truth.split(" or "))
        right, wrong = right + is_true, wrong + (not is_true and verdict != "unknown")
    return {"cases": len(rows), "right": right / len(rows), "wrong": wrong / len(rows)}


def confusion(rows: Sequence[tuple[str, str, str, int, float]]) -> dict[str, dict[str, int]]:
    """Truth by verdict."""
    table: dict[str, Counter[str]] = {}
    for _, truth, verdict, _, _ in rows:
        table.setdefault(truth, Counter())[verdict] += 1
    return {truth: dict(counts.most_common()) for truth, counts in sorted(table.items())}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tune", action="store_true", help="the seeds that the thresholds were tuned on")
    parser.add_argument("--variants", type=int, default=20)
    options = parser.parse_args()
    first = TUNED if options.tune else HELD_OUT
    seeds = range(first, first + options.variants)
    kinds = [f"{name}{part}" for name in REGIMES for part in ("", " / less", " / structures")]
    kinds += [*MORE, "long prompts / structures", "front backlog / structures"]
    tasks = [(kind, seed) for kind in kinds for seed in seeds]
    tasks += [(f"two{part}", first + i) for part in ("", " / structures") for i in range(3 * options.variants)]
    with Pool(2) as pool:
        rows = pool.map(one, tasks, chunksize=4)
    full = [row for row in rows if row[0] in REGIMES]
    less = [row for row in rows if row[0].endswith(" / less")]
    two_causes = [row for row in rows if row[0] == "two"]
    structures = [
        row for row in rows if (row[0].endswith(" / structures") and not row[0].startswith("two")) or row[0] in MORE
    ]
    two_structures = [row for row in rows if row[0] == "two / structures"]
    by_name = part("regimes", {name: shares([row for row in full if row[0] == name]) for name in REGIMES})
    goals = [
        goal("not rightly named, all evidence", 1 - shares(full)["right"], 0.05, "share"),
        goal("wrongly named, all evidence", shares(full)["wrong"], 0.02, "share"),
        *(goal(f"not rightly named, {name}", 1 - share["right"], 0.10, "share") for name, share in by_name.items()),
        goal("wrongly named, evidence left out", shares(less)["wrong"], 0.05, "share"),
        goal("wrongly named, other structures", shares(structures)["wrong"], 0.02, "share"),
        goal("wrongly named, two causes", shares(two_causes)["wrong"], 0.05, "share"),
        goal("wrongly named, two causes, other structures", shares(two_structures)["wrong"], 0.05, "share"),
        goal("processor time of one window, 2,000 probes", reading_s(), 0.5, "s"),
    ]
    show(
        "diagnosis",
        goals,
        seeds=[seeds.start, seeds.stop],
        confusion=confusion(full),
        confusion_evidence_left_out=confusion(less),
        confusion_other_structures={kind: confusion([row for row in structures if row[0] == kind]) for kind in kinds},
        rightly_named_evidence_left_out=shares(less)["right"],
        rightly_named_other_structures=shares(structures)["right"],
        two_causes=confusion(two_causes),
        two_causes_other_structures=confusion(two_structures),
        cases_without_a_breach={name: sum(row[0] == name and not row[3] for row in full) for name in REGIMES},
        diagnose_us_max=round(1e6 * max(row[4] for row in rows)),
    )


if __name__ == "__main__":
    main()
