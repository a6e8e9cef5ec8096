"""How often do `prober gate` and `prober compare` err, and how much do they need? Seeded simulation, no sockets.

    python -m bench.deciding [--quick]

The gate is fed requests that are bad with a chance of 0.2, 1, 2 and 5 times the budget: at 1 both claims count as errors, as it is
the worst case of either. Beside a baseline it is fed targets that are slower by up to 50%, where 20% is material. Compare is fed
rounds of equals, and of a B slower by 10, 20 and 30%, under three kinds of noise: of each request alone; a level that also
wanders from turn to turn; noise that lasts as long as a turn (autocorrelation 0.95 from request to request). Intervals are
Wilson's, 95%.
"""

import argparse
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from multiprocessing import Pool
from random import Random
from statistics import NormalDist
from typing import Any

from bench.report import goal, percentile, show
from prober.features.experiments.compare import Round, compare
from prober.features.experiments.gate import Gate, reference
from prober.measure.objective import JudgedStream, Slo
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.results.result import Request
from prober.statistics.paired_test import wilcoxon_p_value

OBJECTIVES = {"90%": 1_000, "95%": 1_000, "99%": 2_000, "99.9%": 20_000}  # with the most requests
MULTIPLES = (0.2, 1.0, 2.0, 5.0)
NOISES = ("independent", "wandering", "correlated")
FASTER = {"none": 1.0, "+10%": 1.1, "+20%": 1.2, "+30%": 1.3, "+50%": 1.5}
ROUNDS, REQUESTS, SIGMA, WANDER, CORRELATION = 12, 20, 0.3, 0.05, 0.95
BURST = 5.0  # bad ones in a row, on average

GOOD, BAD = (ProbeResult("", "", "", 0.0, Outcome.OK, "", Timeline(0, end_ns=end)) for end in (10**8, 10**10))


def gated(objective: str, multiple: float, bursts: bool, seed: int) -> tuple[str, int]:
    """(verdict, requests) of one gate at the default error of 5%."""
    slo = Slo("e2e", "e2e", 1.0, Decimal(objective.rstrip("%")) / 100, 1e6)
    gate = Gate([(slo, JudgedStream("", "", 1.0, 32.0, 48))], most=OBJECTIVES[objective])
    share = min(1.0, multiple * float(slo.error_budget_ratio))
    rng = Random(f"{objective} {multiple} {bursts} {seed}")
    for bad in (bursty if bursts else alone)(share, rng):
        if (verdict := gate.take(BAD if bad else GOOD)) is not None:
            return verdict.state, verdict.requests
    raise AssertionError("endless")


def based(change: str, size: int, seed: int) -> tuple[str, int]:
    """(verdict, requests) beside a baseline of its own of `size` requests, of a target slower by `change`; 20% is material."""
    rng = Random(f"{change} {size} {seed}")
    rows = [Request(0, float(number), ttft_s=0.1 * rng.lognormvariate(0, SIGMA)) for number in range(size)]
    gate = Gate([], most=1_000, baseline=[reference(rows, "ttft", q, 0.2) for q in (0.5, 0.9)])
    while True:
        first_ns = round(1e8 * FASTER[change] * rng.lognormvariate(0, SIGMA))
        timeline = Timeline(0, first_ns=first_ns, end_ns=first_ns)
        if (verdict := gate.take(ProbeResult("", "", "", 0.0, Outcome.OK, "", timeline))) is not None:
            return verdict.state, verdict.requests


def alone(share: float, rng: Random) -> Iterator[bool]:
    """Each for itself."""
    while True:
        yield rng.random() < share


def bursty(share: float, rng: Random) -> Iterator[bool]:
    """The same share in the long run, in runs of BURST on average."""
    leave, bad = 1 / BURST, rng.random() < share
    enter = leave * share / (1 - share)
    while True:
        yield bad
        bad = rng.random() >= leave if bad else rng.random() < enter


def side(noise: str, factor: float, lengths: int, rng: Random) -> list[Request]:
    """One turn."""
    drawn = Random(lengths)
    level = rng.gauss(0, WANDER) if noise == "wandering" else 0.0
    lasting = rng.gauss(0, 1)
    rows = []
    for number in range(REQUESTS):
        tokens = drawn.randint(16, 48)
        own = rng.gauss(0, 1)
        if noise == "correlated":
            own = lasting = CORRELATION * lasting + math.sqrt(1 - CORRELATION**2) * own
        slow = factor * math.exp(level + SIGMA * own)
        gaps = tuple(0.01 * slow * rng.lognormvariate(0, 0.2) for _ in range(8))
        tpot = sum(gaps) / 8
        ttft = 0.004 * tokens * slow
        rows.append(
            Request(
                0,
                number * 0.5,
                ttft_s=ttft,
                itls_s=gaps,
                tpot_s=tpot,
                e2e_s=ttft + tpot * (tokens - 1),
                output_tokens=tokens,
            )
        )
    return rows


def compared(noise: str, change: str, seed: int) -> tuple[bool, bool, float, bool, bool]:
    """(any claim, TTFT p50 claimed as slower, its effect, truth inside its interval, claim of a test request by request)."""
    rng = Random(f"{noise} {change} {seed}")
    factor = FASTER[change]
    rounds = [
        Round(2.0, side(noise, 1.0, number, rng), side(noise, factor, number, rng))
        for number in (rng.getrandbits(30) for _ in range(ROUNDS))
    ]
    found = compare(rounds)
    ttft = next(each for each in found if each.axis == "ttft_p50")
    covered = ttft.lower is not None and ttft.upper is not None and ttft.lower <= factor - 1 <= ttft.upper
    ratios = [
        math.log((b.ttft_s or 1) / (a.ttft_s or 1)) for each in rounds for a, b in zip(each.a, each.b, strict=True)
    ]
    return (
        any(each.better is not None for each in found),
        ttft.better == "a",
        ttft.effect,
        covered,
        wilcoxon_p_value(ratios) <= 0.05,
    )


def interval(hits: int, of: int) -> tuple[float, float]:
    """Wilson's, 95%, of a share."""
    z, share = NormalDist().inv_cdf(0.975), hits / of
    middle = (share + z * z / 2 / of) / (1 + z * z / of)
    half = z * math.sqrt(share * (1 - share) / of + z * z / 4 / of / of) / (1 + z * z / of)
    return round(max(0.0, middle - half), 4), round(min(1.0, middle + half), 4)


def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return function(*arguments)


def gates(pool: Any, scale: float) -> dict[str, dict[str, Any]]:
    """Verdicts and requests of every case."""
    found: dict[str, dict[str, Any]] = {}
    for objective in OBJECTIVES:
        for multiple in MULTIPLES:
            for bursts in (False, True) if multiple == 1.0 and objective == "95%" else (False,):
                runs = round((60 if objective == "99.9%" else 600 if multiple == 1.0 else 300) * scale)
                cases = [(objective, multiple, bursts, seed) for seed in range(runs)]
                said = pool.map(partial(_call, gated), cases, chunksize=10)
                verdicts = Counter(state for state, _ in said)
                requests = [count for _, count in said]
                found[f"{objective} at {multiple:g}x" + (" in bursts" if bursts else "")] = {
                    "runs": runs,
                    "verdicts": dict(verdicts),
                    "ready": verdicts["ready"] / runs,
                    "ready_interval": interval(verdicts["ready"], runs),
                    "degraded": verdicts["degraded"] / runs,
                    "degraded_interval": interval(verdicts["degraded"], runs),
                    "requests_p50": percentile(requests, 0.5),
                    "requests_p90": percentile(requests, 0.9),
                }
    return found


def besides(pool: Any, scale: float) -> dict[tuple[str, int], dict[str, Any]]:
    """Verdicts beside baselines of 300 and of 1,000 requests."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for size in (300, 1_000):
        for change in ("none", "+10%", "+20%", "+30%", "+50%"):
            runs = round(200 * scale)
            said = pool.map(partial(_call, based), [(change, size, seed) for seed in range(runs)], chunksize=5)
            verdicts = Counter(state for state, _ in said)
            found[change, size] = {
                "runs": runs,
                "verdicts": dict(verdicts),
                "ready": verdicts["ready"] / runs,
                "ready_interval": interval(verdicts["ready"], runs),
                "degraded": verdicts["degraded"] / runs,
                "requests_p50": percentile([count for _, count in said], 0.5),
            }
    return found


def comparisons(pool: Any, scale: float) -> dict[str, dict[str, Any]]:
    """Claims of every case."""
    found: dict[str, dict[str, Any]] = {}
    for noise in NOISES:
        for change in list(FASTER)[:4]:
            runs = round((400 if change == "none" else 150) * scale)
            said = pool.map(partial(_call, compared), [(noise, change, seed) for seed in range(runs)], chunksize=5)
            claims, slower, covered, naive = (sum(each[place] for each in said) for place in (0, 1, 3, 4))
            found[f"{noise}, {change}"] = {
                "runs": runs,
                "any_claim": claims / runs,
                "any_claim_interval": interval(claims, runs),
                "ttft_found": slower / runs,
                "ttft_found_interval": interval(slower, runs),
                "ttft_effect_p50": round(percentile([each[2] for each in said], 0.5), 4),
                "interval_covers": covered / runs,
                "request_by_request_claims": naive / runs,
            }
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a tenth of the runs")
    scale = 0.1 if parser.parse_args().quick else 1.0
    began = time.monotonic()
    with Pool() as pool:
        gate, beside, versus = gates(pool, scale), besides(pool, scale), comparisons(pool, scale)
    single = {name: each for name, each in gate.items() if "bursts" not in name}

    def worst(value: str, *multiples: str) -> float:
        return float(max(each[value] for name, each in single.items() if name.split(" at ")[1] in multiples))

    def not_(value: str, *multiples: str) -> float:
        return round(
            1 - float(min(each[value] for name, each in single.items() if name.split(" at ")[1] in multiples)), 6
        )

    needed = [
        each["requests_p50"] * (1 - float(name.split("%")[0]) / 100) for name, each in gate.items() if "at 0.2x" in name
    ]
    nulls = [each["any_claim"] for name, each in versus.items() if name.endswith("none")]
    baselines = {f"{change} of {size}": each for (change, size), each in beside.items()}
    missed = {
        change: 1 - min(versus[f"{noise}, {change}"]["ttft_found"] for noise in NOISES[:2])
        for change in FASTER
        if change != "+50%"
    }
    show(
        "deciding",
        [
            goal("gate: ready at the budget itself, worst objective", worst("ready", "1x"), 0.05, "ratio"),
            goal("gate: degraded at the budget or below", worst("degraded", "0.2x", "1x"), 0.05, "ratio"),
            goal("gate: ready at twice the budget or more", worst("ready", "2x", "5x"), 0.01, "ratio"),
            goal("gate: not ready at a fifth of the budget", not_("ready", "0.2x"), 0.05, "ratio"),
            goal("gate: not degraded at five times the budget", not_("degraded", "5x"), 0.05, "ratio"),
            goal("gate: requests at a fifth of the budget, median x budget", max(needed), 8.0, "requests"),
            goal(
                "gate: ready when slower than the baseline by what is material",
                max(beside["+20%", size]["ready"] for size in (300, 1_000)),
                0.075,
                "ratio",
            ),
            goal(
                "gate: degraded when as fast as the baseline",
                max(beside["none", size]["degraded"] for size in (300, 1_000)),
                0.05,
                "ratio",
            ),
            goal("compare: any claim where nothing differs, worst noise", max(nulls), 0.05, "ratio"),
            goal("compare: +20% TTFT not found, noise not lasting", missed["+20%"], 0.2, "ratio"),
            goal("compare: +30% TTFT not found, noise not lasting", missed["+30%"], 0.05, "ratio"),
        ],
        gate=gate,
        baseline=baselines,
        compare=versus,
        seconds=round(time.monotonic() - began, 1),
    )


if __name__ == "__main__":
    main()
