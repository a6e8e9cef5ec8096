"""How often does the watch on checked answers err, and how soon does it find a fall? Seeded simulation, no sockets.

    python -m bench.answers [--quick]

A check of one workload answers once a minute for 37 days, of which the first week teaches the baseline. Nothing changes in NULLS: its
alarms are false. Passes are independent; or wrong answers come in runs; or a shared state of the server wanders for hours; or the
share follows the hour of the day; or a few prompts in turn each have a share of their own. In FALLS the share of right answers falls
for good at a random minute of the second week; the delay counts answers until the alarm (median, 90%).
"""

import argparse
import math
import time
from collections.abc import Callable, Iterator
from multiprocessing import Pool
from random import Random
from typing import Any

from bench.report import goal, part, percentile, show
from prober.features.answers.change import AnswerChange, threshold
from prober.storage.saved_rows import Moment

DAY = 1_440  # answers, one a minute
RATE_PER_S, FALSE_ALARMS_PER_S = 1 / 60, 1 / (30 * 86_400.0)
LEARN_DAYS, WATCH_DAYS = 7, 30
RIGHT = (1.0, 0.999, 0.9, 0.5)
BURST_ANSWERS = 10.0  # mean length of a run of wrong answers
WANDER_HOURS, WANDER, CYCLE = 6.0, 0.5, 0.5  # of the share of wrong answers, as a ratio
PROMPTS = 7
FALLS = ((1.0, 0.8), (1.0, 0.95), (0.999, 0.8), (0.95, 0.7), (0.9, 0.8), (0.5, 0.3))
LOST_DAYS = 14  # after which a fall counts as missed

Wrong = Callable[[int], bool]  # whether the answer of a minute is wrong


def independent(wrong: float, rng: Random) -> Wrong:
    """Each for itself."""
    return lambda minute: rng.random() < wrong


def bursts(wrong: float, rng: Random) -> Wrong:
    """The same share in the long run, in runs of BURST_ANSWERS on average in which all are wrong."""
    is_wrong, left = False, 0

    def at(minute: int) -> bool:
        nonlocal is_wrong, left
        while left == 0:
            is_wrong = not is_wrong and wrong > 0
            mean = BURST_ANSWERS if is_wrong else BURST_ANSWERS * (1 - wrong) / wrong if wrong else math.inf
            left = (
                DAY if mean == math.inf else 1 + int(math.log(1 - rng.random()) / math.log(1 - 1 / max(mean, 1.0001)))
            )
        left -= 1
        return is_wrong

    return at


def wandering(wrong: float, rng: Random) -> Wrong:
    """Its logit follows a state with a memory of WANDER_HOURS."""
    memory, state = math.exp(-1 / (60 * WANDER_HOURS)), rng.gauss(0, 1)

    def at(minute: int) -> bool:
        nonlocal state
        state = memory * state + math.sqrt(1 - memory * memory) * rng.gauss(0, 1)
        return rng.random() < min(1.0, wrong * math.exp(WANDER * state - WANDER**2 / 2))

    return at


def daily(wrong: float, rng: Random) -> Wrong:
    """More wrong answers by CYCLE of their share at the worst hour of the day, fewer by as much at the best."""
    phase = rng.random()
    return lambda minute: rng.random() < wrong * (1 + CYCLE * math.sin(2 * math.pi * (minute / DAY + phase)))


def prompts(wrong: float, rng: Random) -> Wrong:
    """Prompts in turn, a few of which have most of the wrong answers."""
    weights = [rng.expovariate(1.0) ** 2 for _ in range(PROMPTS)]
    shares = [min(1.0, wrong * PROMPTS * weight / sum(weights)) for weight in weights]
    return lambda minute: rng.random() < shares[minute % PROMPTS]


NULLS = {f.__name__: f for f in (independent, bursts, wandering, daily, prompts)}
LEVEL = threshold(RATE_PER_S, FALSE_ALARMS_PER_S)


def watched(wrong: Wrong, minutes: int) -> Iterator[tuple[int, str]]:
    """(minute, event) of a watch from the first answer on."""
    state = AnswerChange()
    for minute in range(minutes):
        at_s = minute / RATE_PER_S
        event = state.step(wrong(minute), Moment("boot", round(at_s * 1e9), at_s), LEVEL, 7 * 86_400.0)
        if event is not None:
            yield minute, event


def false_alarms(kind: str, right: float, seed: int) -> int:
    """Alarms of a share that stays, those of the first week too."""
    rng = Random(f"{kind} {right} {seed}")
    events = watched(NULLS[kind](1 - right, rng), (LEARN_DAYS + WATCH_DAYS) * DAY)
    return sum(event == "alarm" for _, event in events)


def delay(before: float, after: float, seed: int) -> float:
    """Answers from a fall to the next alarm, infinite if it is missed."""
    rng = Random(f"{before} {after} {seed}")
    start = LEARN_DAYS * DAY + rng.randrange(7 * DAY)
    old, new = independent(1 - before, rng), independent(1 - after, rng)
    answers = watched(lambda minute: (old if minute < start else new)(minute), start + LOST_DAYS * DAY)
    return next(
        (float(minute - start + 1) for minute, event in answers if event == "alarm" and minute >= start), math.inf
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="false alarms and delays of the watch on checked answers")
    parser.add_argument("--quick", action="store_true", help="a fifth of the runs")
    parser.add_argument("--seed", type=int, default=1, help="first seed")
    arguments = parser.parse_args()
    runs, began_s = (8 if arguments.quick else 40), time.perf_counter()
    seeds = range(arguments.seed, arguments.seed + runs)
    goals: list[dict[str, Any]] = []
    alarms: dict[str, dict[str, int]] = {}
    delays: dict[str, list[float]] = {}
    missed: dict[str, int] = {}
    with Pool(2) as pool:
        for before, after in FALLS:
            found = part(f"{before:g} to {after:g}", pool.starmap(delay, [(before, after, seed) for seed in seeds]))
            delays[f"{before:.1%} to {after:.0%}"] = [percentile(found, 0.5), percentile(found, 0.9)]
            missed[f"{before:.1%} to {after:.0%}"] = found.count(math.inf)
        for kind in NULLS:
            alarms[kind] = {
                f"{right:.1%}": sum(pool.starmap(false_alarms, [(kind, right, seed) for seed in seeds]))
                for right in RIGHT
            }
            part(kind, alarms[kind])
            worst = max(alarms[kind].values()) / runs * 30 / (LEARN_DAYS + WATCH_DAYS)
            goals.append(goal(f"false alarms, {kind}", worst, 1.0, "per 30 days and check"))
    for fall, most in (("100.0% to 80%", 60.0), ("95.0% to 70%", 150.0)):
        goals.append(goal(f"median delay, {fall}", delays[fall][0], most, "answers"))
    show(
        "answers",
        goals,
        alarms=alarms,
        delays=delays,
        missed=missed,
        runs=runs,
        seconds=round(time.perf_counter() - began_s),
    )


if __name__ == "__main__":
    main()
