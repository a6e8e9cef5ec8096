"""Scenes of production for the headroom gauge: traffic as services have it, and trouble.

    python -m bench.independent.headroom_scenes [--processes N]

computes the truths that `headroom_scenes.json` lacks, for each phase of each scene. Every kind of scene is there twice with other
parameters: even numbers are for development, odd ones are held out. They were written without knowledge of how the gauge is computed.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, replace
from hashlib import sha256
from itertools import pairwise
from multiprocessing import Pool
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np

from bench.independent.engine import Times
from bench.independent.kinds import draw_structure, log_uniform, machine
from bench.independent.production import (
    FINE,
    Arrivals,
    BadAtEveryRate,
    Case,
    NoLimit,
    Objective,
    Phase,
    Scene,
    Signal,
    Simulation,
    Truth,
    truth_of,
    values_s,
    with_objectives,
)
from bench.independent.structure import LEAST_BUSY, ROUND_ROBIN, Structure
from bench.independent.workloads import Mode, Tokens, Workload

RECORD = Path(__file__).with_name("headroom_scenes.json")
FIRST_CASE = 1_000  # numbers of the cases of scenes, apart from those of `production`
MISSES = 2.5  # bad share of the users ÷ allowed share, where they miss an SLO
# Quantiles of prompt and output tokens of two published traces of production. Prompts and outputs are nearly independent in both.
QUANTILES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
TABLES = {
    "azure": (  # LLM inference trace 2023, conversation, CC-BY 4.0 (Splitwise, ISCA 2024)
        (2, 181, 207, 387, 403, 703, 1_020, 1_071, 1_130, 1_315, 2_735, 4_083, 4_142, 14_050),
        (7, 41, 54, 77, 91, 103, 129, 177, 384, 400, 424, 451, 601, 1_000),
    ),
    "mooncake": (  # conversation trace, first half, Apache-2.0 (FAST '25); 35% of its prompt tokens are in a prefix seen before
        (891, 901, 973, 1_729, 3_615, 5_415, 7_596, 10_164, 13_780, 18_915, 28_547, 41_237, 91_305, 123_192),
        (1, 9, 24, 96, 216, 299, 356, 403, 453, 513, 609, 708, 1_137, 2_000),
    ),
}
CHAT = Mode(1.0, 250, 0.8, 120, 0.7)
POISSON = Arrivals()


@dataclass(frozen=True, slots=True)
class TraceLengths(Workload):
    """Lengths with the marginal distributions of a trace, times a factor."""

    table: str = "azure"
    factor: float = 1.0

    def lengths(self, rng: np.random.Generator, count: int, traces: Path | None) -> tuple[Tokens, Tokens]:
        """Prompt and output tokens."""
        drawn = [
            np.exp(np.interp(rng.random(count), QUANTILES, np.log(values))) * self.factor
            for values in TABLES[self.table]
        ]
        return (
            np.clip(drawn[0], 4, self.max_prompt).astype(np.int64),
            np.clip(drawn[1], 1, self.max_output).astype(np.int64),
        )


@dataclass(frozen=True, slots=True)
class Draft:
    """A phase without its truth. rate: ÷ the limit of the first phase; rate_limit: of a front, likewise"""

    after: int
    case: Case
    rate: float
    change: Literal["", "restart", "worker lost"] = ""
    rate_limit: float = math.inf


@dataclass(frozen=True, slots=True)
class Plan:
    """A scene before its truths are known.

    misses: the thresholds are such that users miss them in the first phase, though probes do not at rest
    fits: of the truths of the phases; where it is not, another attempt is drawn
    """

    group: str
    drafts: tuple[Draft, ...]
    fits: Callable[[tuple[Truth, ...]], bool] = lambda truths: True
    misses: bool = False


def base(
    rng: Random,
    structure: Structure,
    production: Workload,
    probe: Mode,
    arrivals: Arrivals = POISSON,
    signals: tuple[Signal, ...] | None = None,
) -> Case:
    """A case; a probe's lengths vary little."""
    return Case(
        *(0, 0, "", "", structure),
        probe=Workload(
            (probe._replace(prompt_sigma=0.4, output_sigma=0.4),), round(4 * probe.prompt), round(4 * probe.output)
        ),
        production=production,
        arrivals=arrivals,
        signals=signals or rng.choice((("ttft",), ("ttft",), ("ttft", "tpot"), ("e2e",))),
        allowed=rng.choice((0.01, 0.02, 0.05, 0.05)),
        use=round(rng.uniform(0.3, 0.9), 3),
        threshold_factor=round(rng.uniform(2.5, 6.0), 2),
    )


def clipped(structure: Structure, *modes: Mode, **options: Any) -> Workload:
    """A mixture whose longest requests fit the engine."""
    return Workload(modes, min(32_000, structure.kv_tokens // 3), min(4_000, structure.kv_tokens // 6), **options)


def scaled(mode: Mode, factor: float) -> Mode:
    """Requests of another size."""
    return mode._replace(prompt=mode.prompt * factor, output=max(3.0, mode.output * factor))


def steady(case: Case) -> Plan:
    """Production at its use, which doubles at the end."""
    return Plan("traffic", (Draft(0, case, case.use), Draft(3, case, 2 * case.use)))


def sizes(rng: Random) -> Plan:
    """Chats of half to four times the probe's size."""
    structure = machine(rng)
    return steady(base(rng, structure, clipped(structure, scaled(CHAT, log_uniform(rng, 0.5, 4.0))), CHAT))


def conversation_trace(rng: Random) -> Plan:
    """Lengths of a trace of chats, in bursts, with no prefix cache."""
    structure = machine(rng)
    arrivals = Arrivals(rng.uniform(0.3, 0.7), rng.uniform(2, 15))
    production = TraceLengths((), 14_050, 1_000, table="azure", factor=rng.uniform(0.5, 1.5))
    return steady(base(rng, structure, production, scaled(CHAT, 2.0), arrivals))


def long_context_trace(rng: Random) -> Plan:
    """Lengths and reuse of prefixes of a trace of long contexts, on a fast engine."""
    structure = replace(
        machine(rng), kv_tokens=1_200_000, step_tokens=8_192, prompt_s=log_uniform(rng, 8e-6, 3e-5), prefix_block=512
    )
    production = TraceLengths((), 123_192, 2_000, rng.choice((20, 40)), 0.35, 512, table="mooncake")
    return steady(base(rng, structure, production, Mode(1.0, 2_000, 0.4, 150, 0.4)))


def documents(rng: Random) -> Plan:
    """Short chats and a few long documents."""
    structure = machine(rng)
    share = rng.uniform(0.05, 0.25)
    document = Mode(share, rng.uniform(4_000, 10_000), 0.5, rng.uniform(150, 400), 0.5)
    return steady(base(rng, structure, clipped(structure, CHAT._replace(weight=1 - share), document), CHAT))


def bursts(rng: Random) -> Plan:
    """Chats that come in strong bursts, judged by the latencies of the users too."""
    structure = draw_structure(rng.choice(("chunked", "separate", "least_busy")), rng.randrange(10**6))
    arrivals = Arrivals(rng.uniform(0.8, 1.2), rng.uniform(2, 8))
    return steady(base(rng, structure, clipped(structure, scaled(CHAT, rng.uniform(0.7, 2))), CHAT, arrivals))


def shared_prefixes(rng: Random) -> Plan:
    """A system prompt or a conversation that most of the prompt is cached of."""
    structure = replace(machine(rng), prefix_block=rng.choice((16, 64)), kv_tokens=rng.choice((300_000, 600_000)))
    mode = Mode(1.0, rng.uniform(800, 2_500), 0.6, rng.uniform(80, 200), 0.6)
    production = clipped(
        structure, mode, conversations=rng.choice((5, 20)), shared=rng.uniform(0.35, 0.85), block=structure.prefix_block
    )
    return steady(base(rng, structure, production, CHAT))


def long_outputs(rng: Random) -> Plan:
    """Answers of a thousand tokens, such as those of models that reason."""
    structure = replace(machine(rng), kv_tokens=600_000, max_batch=rng.choice((64, 128)))
    mode = Mode(1.0, 300, 0.8, rng.uniform(600, 1_500), 0.6)
    return steady(
        base(rng, structure, clipped(structure, mode), CHAT, signals=rng.choice((("ttft",), ("ttft", "tpot"))))
    )


def replicas(rng: Random) -> Plan:
    """Two to four replicas behind one page."""
    structure = draw_structure(rng.choice(("round_robin", "least_busy")), rng.randrange(10**6))
    return steady(base(rng, structure, clipped(structure, scaled(CHAT, log_uniform(rng, 1.0, 3.0))), CHAT))


def small_stream(rng: Random) -> Plan:
    """A few large requests a minute."""
    structure = replace(
        machine(rng), kv_tokens=150_000, base_s=log_uniform(rng, 0.04, 0.08), prompt_s=log_uniform(rng, 2e-4, 4e-4)
    )
    mode = Mode(1.0, rng.uniform(3_000, 7_000), 0.4, rng.uniform(250, 500), 0.5)
    case = base(rng, structure, clipped(structure, mode), Mode(1.0, 400, 0.4, 60, 0.4))
    return replace(steady(case), fits=lambda truths: 0.1 <= case.use * truths[0].limit_per_s <= 0.3)


def two_slots(rng: Random) -> Plan:
    """An engine that serves two requests at a time, as a llama.cpp on one machine does."""
    structure = replace(machine(rng), max_batch=2, step_tokens=512, counters_at_end=1)
    return steady(base(rng, structure, clipped(structure, scaled(CHAT, log_uniform(rng, 0.3, 1.0))), CHAT))


def many_short(rng: Random) -> Plan:
    """64 slots and short requests, with a limit far above the usual rates of sweeps."""
    structure = replace(
        machine(rng),
        max_batch=64,
        base_s=log_uniform(rng, 0.004, 0.007),
        prompt_s=2e-5,
        sequence_s=6e-5,
        step_tokens=4_096,
    )
    case = base(rng, structure, clipped(structure, Mode(1.0, 100, 0.5, 25, 0.5)), Mode(1.0, 100, 0.4, 25, 0.4))
    return replace(steady(case), fits=lambda truths: 120 <= truths[0].limit_per_s <= 180)


def growth(rng: Random) -> Plan:
    """The demand grows by a third between the first and the last reading."""
    structure = machine(rng)
    case = base(rng, structure, clipped(structure, scaled(CHAT, log_uniform(rng, 0.7, 2.5))), CHAT)
    use = rng.uniform(0.45, 0.7)
    return Plan("traffic", tuple(Draft(after, case, use * (4 / 3) ** (after / 2)) for after in range(3)))


def longer_requests(rng: Random) -> Plan:
    """Requests become twice as long after the second sweep, at the same rate."""
    structure = machine(rng)
    mode = scaled(CHAT, log_uniform(rng, 0.7, 2.0))
    case = base(rng, structure, clipped(structure, mode), CHAT)
    longer, use = replace(case, production=clipped(structure, scaled(mode, 2.0))), rng.uniform(0.25, 0.5)
    return Plan("traffic", (Draft(0, case, use), Draft(2, longer, use)))


def night(rng: Random) -> Plan:
    """A busy hour until after the first sweep, then few requests."""
    structure = machine(rng)
    arrivals = Arrivals(rng.uniform(0.3, 0.6), rng.uniform(2, 6))
    case = base(rng, structure, clipped(structure, scaled(CHAT, log_uniform(rng, 0.7, 2.5))), CHAT, arrivals)
    use = rng.uniform(0.65, 0.85)
    return Plan("traffic", (Draft(0, case, use), Draft(1, case, use * rng.uniform(0.15, 0.3))))


def half_cache(rng: Random, after: int) -> Plan:
    """The engine restarts with half of its KV cache, which it needs."""
    structure = draw_structure("preempting", rng.randrange(10**6))
    mode = Mode(1.0, rng.uniform(400, 900), 0.6, rng.uniform(150, 350), 0.5)
    case = base(rng, structure, clipped(structure, mode), CHAT)
    blocks = structure.kv_tokens // structure.kv_block // 2
    smaller = replace(case, structure=replace(structure, kv_tokens=blocks * structure.kv_block))
    return smaller_engine(rng, case, smaller, after, "restart")


def half_slots(rng: Random, after: int) -> Plan:
    """The engine restarts with half of its slots."""
    structure = draw_structure("slots", rng.randrange(10**6))
    case = base(rng, structure, clipped(structure, scaled(CHAT, log_uniform(rng, 0.5, 2.0))), CHAT)
    smaller = replace(case, structure=replace(structure, max_batch=structure.max_batch // 2))
    return smaller_engine(rng, case, smaller, after, "restart")


def lost_replica(rng: Random, after: int) -> Plan:
    """One of four replicas is gone, with nothing else changed."""
    structure = replace(machine(rng), workers=4, balance=rng.choice((ROUND_ROBIN, LEAST_BUSY)), balance_stale_s=0.1)
    case = base(rng, structure, clipped(structure, scaled(CHAT, log_uniform(rng, 0.7, 2.5))), CHAT)
    return smaller_engine(rng, case, replace(case, structure=replace(structure, workers=3)), after, "worker lost")


def smaller_engine(
    rng: Random, case: Case, smaller: Case, after: int, change: Literal["restart", "worker lost"]
) -> Plan:
    """An engine that becomes smaller: by a seventh to two thirds."""
    use = rng.uniform(0.35, 0.6)
    return Plan(
        "engine smaller",
        (Draft(0, case, use), Draft(after, smaller, use, change)),
        lambda truths: 0.33 <= truths[1].limit_per_s / truths[0].limit_per_s <= 0.86,
    )


def rate_limited(rng: Random, after: int) -> Plan:
    """A front refuses requests of the prober's key above a part of what fits, while the engine has no queue."""
    structure = machine(rng)
    case = base(rng, structure, clipped(structure, scaled(CHAT, log_uniform(rng, 0.7, 2.0))), CHAT)
    use, most = rng.uniform(0.2, 0.45), rng.uniform(0.1, 0.25)
    return Plan(
        "rate limit",
        (
            Draft(0, case, use, rate_limit=math.inf if after else most),
            *([Draft(after, case, use, rate_limit=most)] if after else []),
        ),
        lambda truths: truths[0].limit_per_s >= 6,
    )


def longer_than_probes(rng: Random) -> Plan:
    """Users send far longer prompts than the probes, and miss an SLO that suits the probes."""
    structure = machine(rng)
    mode = Mode(1.0, rng.uniform(1_500, 4_000), 0.8, 150, 0.6)
    case = base(rng, structure, clipped(structure, mode), Mode(1.0, 150, 0.4, 60, 0.4), signals=("ttft",))
    return missing(rng, case)


def burstier_than_probes(rng: Random) -> Plan:
    """Users come in bursts in which they miss an SLO that single requests at random moments keep more often."""
    structure = machine(rng)
    arrivals = Arrivals(rng.uniform(1.0, 1.5), rng.uniform(1, 4))
    case = base(rng, structure, clipped(structure, scaled(CHAT, rng.uniform(0.8, 1.5))), CHAT, arrivals, ("ttft",))
    return missing(rng, case)


def missing(rng: Random, case: Case) -> Plan:
    """Users of whom more miss the SLO than may."""
    return Plan("users", (Draft(0, case, rng.uniform(0.5, 0.8)),), misses=True)


def at(draw: Callable[[Random, int], Plan], after: int) -> Callable[[Random], Plan]:
    """A scene whose trouble comes after so many readings."""
    return lambda rng: draw(rng, after)


KINDS: dict[str, Callable[[Random], Plan]] = {
    **{
        draw.__name__: draw
        for draw in (
            *(sizes, conversation_trace, long_context_trace, documents, bursts, shared_prefixes, long_outputs),
            *(replicas, small_stream, two_slots, many_short, growth, longer_requests, night),
            *(longer_than_probes, burstier_than_probes),
        )
    },
    **{
        f"{draw.__name__}_after_{after}": at(draw, after)
        for draw, moments in (
            (half_cache, (1, 3)),
            (half_slots, (1, 3)),
            (lost_replica, (1, 3)),
            (rate_limited, (0, 1)),
        )
        for after in moments
    },
}
SCENES = 2 * len(KINDS)


def draw_plan(number: int, attempt: int) -> Plan:
    """The plan of a number; a later attempt where an earlier one has truths that do not fit, or none."""
    plan = list(KINDS.values())[number // 2](Random(f"scene {number} {attempt}"))
    drafts = tuple(
        replace(draft, case=replace(draft.case, number=FIRST_CASE + number, attempt=attempt, kind=name_of(number)))
        for draft in plan.drafts
    )
    return replace(plan, drafts=drafts)


def name_of(number: int) -> str:
    """The kind of a number."""
    return list(KINDS)[number // 2]


def fingerprint(plan: Plan) -> str:
    """Changes with all that is drawn."""
    return sha256(repr([astuple(draft) for draft in plan.drafts]).encode()).hexdigest()[:10]


def missed(case: Case, per_s: float) -> Case:
    """The case with the threshold that `MISSES` times the allowed share of the users exceed at this rate.

    Raises:
        NoLimit: probes exceed it on an idle engine too
    """
    simulation = Simulation(case)
    seen_s: Times = values_s("ttft", *simulation.run(per_s, FINE, 31, of_users=True))
    idle_s: Times = values_s("ttft", *simulation.idle(case.probe))
    threshold_s = float(f"{np.quantile(seen_s, 1 - MISSES * case.allowed):.3g}")
    if np.quantile(idle_s, 1 - case.allowed / 4) > threshold_s:
        raise NoLimit("probes miss it too")
    return replace(case, objectives=(Objective("ttft", threshold_s, case.allowed),))


def truths_of(plan: Plan) -> tuple[tuple[Objective, ...], float, tuple[Truth, ...]]:
    """Objectives, requests per second in the first phase ÷ its rate, and the truth of each phase. Raises NoLimit."""
    first = with_objectives(plan.drafts[0].case)
    truth = truth_of(first)
    per_s = truth.limit_per_s
    if plan.misses:
        first = missed(first, plan.drafts[0].rate * per_s)
        try:
            truth = truth_of(first)
        except BadAtEveryRate:
            truth = Truth(0.0, 0.0, 0.0)
    truths = [truth]
    for before, draft in pairwise(plan.drafts):
        is_same = draft.case == before.case
        truths.append(truths[-1] if is_same else truth_of(replace(draft.case, objectives=first.objectives)))
    return first.objectives, per_s, tuple(truths)


def scenes(numbers: Iterable[int]) -> list[Scene]:
    """The recorded scenes of these numbers.

    Raises:
        ValueError: the record was made for other scenes
    """
    wanted, played = frozenset(numbers), []
    for line in json.loads(RECORD.read_text())["scenes"]:
        if (number := line["number"]) not in wanted:
            continue
        plan = draw_plan(number, line["attempt"])
        if fingerprint(plan) != line["plan"]:
            raise ValueError(f"scene {number} has changed: python -m bench.independent.headroom_scenes")
        objectives = tuple(Objective(*values) for values in line["objectives"])
        phases = tuple(
            Phase(
                *(draft.after, replace(draft.case, objectives=objectives), draft.rate * line["per_s"], Truth(*truth)),
                *(draft.change, draft.rate_limit * line["per_s"]),
            )
            for draft, truth in zip(plan.drafts, line["truths"], strict=True)
        )
        has_users_slos = plan.group == "users" or name_of(number) == "bursts"
        played.append(Scene(f"{number} {name_of(number)}", plan.group, phases, has_users_slos))
    return played


def record(number: int) -> dict[str, Any]:
    """The line of the first attempt of a number that fits."""
    attempt = 0
    while True:
        plan = draw_plan(number, attempt)
        try:
            objectives, per_s, truths = truths_of(plan)
        except NoLimit:
            truths = ()
        if truths and plan.fits(truths):
            return {
                "number": number,
                "attempt": attempt,
                "plan": fingerprint(plan),
                "objectives": [astuple(objective) for objective in objectives],
                "per_s": per_s,
                "truths": [astuple(truth) for truth in truths],
            }
        attempt += 1


def main() -> None:
    """Compute the truths that are missing or have changed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    lines = {line["number"]: line for line in json.loads(RECORD.read_text())["scenes"]} if RECORD.exists() else {}
    lines = {
        number: line
        for number, line in lines.items()
        if line["plan"] == fingerprint(draw_plan(number, line["attempt"]))
    }
    with Pool(arguments.processes) as pool:
        for line in pool.imap_unordered(record, sorted(set(range(SCENES)) - set(lines))):
            lines[line["number"]] = line
            print(json.dumps(line), flush=True)
            body = ",\n".join(json.dumps(lines[number]) for number in sorted(lines))
            RECORD.write_text(f'{{"scenes": [\n{body}\n]}}\n')


if __name__ == "__main__":
    main()
