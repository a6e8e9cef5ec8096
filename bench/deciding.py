"""How often do `prober gate` and `prober matrix` err, and how much do they need? Seeded simulation, no sockets.

    python -m bench.deciding [--quick]

The gate is fed 2 requests a second of which 0.2, 1, 2 and 5 times the budget are bad: at 1 both claims count as errors, as it is
the worst case of either. Bad ones are independent; or the latencies behind them have an autocorrelation of 0.9 from request to
request ("AR 0.9"); or they come in bursts of 15 s on average, in which all are bad. Beside a baseline it is fed targets that are
slower by up to 50%, where 20% is material. Rows of a matrix are fed the same bursts, 40 minutes of them, as the command takes them by
default, with `--burst 60s`, and with `--burst 0s`: each request an observation. Intervals are Wilson's, 95%.
"""

import argparse
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from functools import partial
from multiprocessing import Pool
from random import Random
from statistics import NormalDist
from typing import Any

from bench.report import goal, part, percentile, show
from prober.config.rows import Row
from prober.features.experiments.gate import Gate, reference
from prober.features.experiments.matrix import fails_error, judge
from prober.measure.objective import JudgedStream, Slo
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.results.result import RequestRow
from prober.workload.shapes import Fixed

OBJECTIVES = {"90%": 300, "95%": 300, "99%": 200, "99.9%": 20}  # with the number of gates
MULTIPLES = (0.2, 1.0, 2.0, 5.0)
ARRIVALS = ("independent", "AR 0.9", "bursts")
GATE_RATE, MOST_OF_STRICTEST = 2.0, 120_000  # requests per second; requests at 99.9%
FASTER = {"none": 1.0, "+10%": 1.1, "+20%": 1.2, "+30%": 1.3, "+50%": 1.5}
SIGMA = 0.3  # of the logs of TTFT
BURST_S, GATE_CORRELATION = 15.0, 0.9
ROW_S, ROW_RUNS, EXPECTED_BURSTS_S = 2_400.0, 200, (0.0, BURST_S, 60.0)

DUTY_CYCLES_S = ((5.0, 5.0), (10.0, 20.0), (20.0, 10.0), (30.0, 30.0), (50.0, 10.0))  # up, down
REFUSED = ProbeResult("", "", "", 0.0, Outcome.CONNECT_REFUSED, "", Timeline(0))
GOOD, BAD = (ProbeResult("", "", "", 0.0, Outcome.OK, "", Timeline(0, end_ns=end)) for end in (10**8, 10**10))


def gated(objective: str, multiple: float, arrivals: str, expected_burst_s: float, seed: int) -> tuple[str, float, int]:
    """(verdict, seconds, completed blocks) of a gate at the default error of 5%. expected_burst_s: as the gate is told; 0: none"""
    slo = Slo("e2e", "e2e", 1.0, Decimal(objective.rstrip("%")) / 100, 1e6)
    most = MOST_OF_STRICTEST if objective == "99.9%" else None
    stream = JudgedStream("", "", GATE_RATE, 32.0, 48)
    gate = Gate([(slo, stream)], rate_per_s=GATE_RATE, burst_s=expected_burst_s, most=most)
    share = min(1.0, multiple * float(slo.error_budget_ratio))
    rng = Random(f"{objective} {multiple} {arrivals} {seed}")
    at_s = 0.0
    is_bad = {"independent": alone, "AR 0.9": correlated, "bursts": bursty}[arrivals](share, rng)
    while True:
        at_s += rng.expovariate(GATE_RATE)
        if (verdict := gate.take(BAD if is_bad(at_s) else GOOD, at_s)) is not None:
            return verdict.state, at_s, verdict.findings[1].blocks


def based(change: str, size: int, seed: int) -> tuple[str, int]:
    """(verdict, requests) beside a baseline of its own of `size` requests, of a target slower by `change`; 20% is material."""
    rng = Random(f"{change} {size} {seed}")
    rows = [RequestRow(float(number), ttft_s=0.1 * rng.lognormvariate(0, SIGMA)) for number in range(size)]
    references = [reference(rows, "ttft", q, 0.2) for q in (0.5, 0.9)]
    gate, at_s = Gate([], rate_per_s=GATE_RATE, baseline=references), 0.0
    while True:
        at_s += rng.expovariate(GATE_RATE)
        first_ns = round(1e8 * FASTER[change] * rng.lognormvariate(0, SIGMA))
        timeline = Timeline(0, first_ns=first_ns, end_ns=first_ns)
        if (verdict := gate.take(ProbeResult("", "", "", 0.0, Outcome.OK, "", timeline), at_s)) is not None:
            return verdict.state, verdict.requests


def rowed(multiple: float, expected_burst_s: float, seed: int) -> str:
    """Verdict on a row of ROW_S at 95%, whose bad requests come in bursts. expected_burst_s: as the matrix is told; 0: none"""
    slo = Slo("e2e", "e2e", 1.0, Decimal("0.95"), 1e6)
    row = Row(name="a", prompt_tokens=Fixed(32), output_tokens=Fixed(48), accept=(slo,), rate=GATE_RATE, duration=ROW_S)
    rng = Random(f"row {multiple} {seed}")
    is_bad, results, at_s = bursty(multiple * float(slo.error_budget_ratio), rng), [], 0.0
    while (at_s := at_s + rng.expovariate(GATE_RATE)) < ROW_S:
        due_ns = round(at_s * 1e9)
        timeline = Timeline(due_ns, end_ns=due_ns + (10**10 if is_bad(at_s) else 10**8))
        results.append(replace(GOOD, timeline=timeline))
    return judge(row, results, error=fails_error([row]), burst_s=expected_burst_s).state


def alone(share: float, rng: Random) -> Callable[[float], bool]:
    """Whether the request at a time is bad: each for itself."""
    return lambda at_s: rng.random() < share


def correlated(share: float, rng: Random) -> Callable[[float], bool]:
    """The same share in the long run, of an autocorrelated normal latency."""
    limit, latency = NormalDist().inv_cdf(1 - share), rng.gauss(0, 1)

    def is_bad(at_s: float) -> bool:
        nonlocal latency
        latency = GATE_CORRELATION * latency + math.sqrt(1 - GATE_CORRELATION**2) * rng.gauss(0, 1)
        return latency > limit

    return is_bad


def bursty(share: float, rng: Random) -> Callable[[float], bool]:
    """The same share in the long run, in bursts of BURST_S on average in which all are bad."""
    bad, end_s = rng.random() >= share, 0.0  # it changes at once

    def is_bad(at_s: float) -> bool:
        nonlocal bad, end_s
        while at_s >= end_s:
            bad = not bad
            end_s += rng.expovariate(1 / (BURST_S if bad else BURST_S * (1 - share) / share))
        return bad

    return is_bad


def multiple_of(case: str) -> str:
    """Multiple of the budget in the name of a case."""
    return case.split(" at ")[1].split(",")[0]


def interval(hits: int, of: int) -> tuple[float, float]:
    """Wilson's, 95%, of a share."""
    z, share = NormalDist().inv_cdf(0.975), hits / of
    middle = (share + z * z / 2 / of) / (1 + z * z / of)
    half = z * math.sqrt(share * (1 - share) / of + z * z / 4 / of / of) / (1 + z * z / of)
    return round(max(0.0, middle - half), 4), round(min(1.0, middle + half), 4)


def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return function(*arguments)


def gates(pool: Any, scale: float) -> dict[str, dict[str, Any]]:
    """Verdicts and times of every case."""
    cases = [
        (objective, multiple, arrivals, BURST_S)
        for objective in OBJECTIVES
        for multiple in MULTIPLES
        for arrivals in (ARRIVALS if objective in ("90%", "95%", "99%") else ARRIVALS[:1])
    ]
    # What passes a gate that takes each result for an observation.
    cases += [("95%", multiple, arrivals, 0.0) for multiple in MULTIPLES for arrivals in ARRIVALS]
    results: dict[str, dict[str, Any]] = {}
    for objective, multiple, arrivals, burst_s in cases:
        more = 3 if objective == "95%" and burst_s else 1
        runs = round(OBJECTIVES[objective] * more * scale)
        calls = [(objective, multiple, arrivals, burst_s, seed) for seed in range(runs)]
        verdicts = pool.map(partial(_call, gated), calls, chunksize=5)
        states = Counter(state for state, _, _ in verdicts)
        times_s = [at_s for _, at_s, _ in verdicts]
        each = "" if burst_s else ", each result alone"
        name = f"{objective} at {multiple:g}x, {arrivals}{each}"
        results[name] = {
            "runs": runs,
            "verdicts": dict(states),
            "ready": round(states["ready"] / runs, 4),
            "ready_interval": interval(states["ready"], runs),
            "degraded": round(states["degraded"] / runs, 4),
            "degraded_interval": interval(states["degraded"], runs),
            "seconds_p50": round(percentile(times_s, 0.5)),
            "seconds_p90": round(percentile(times_s, 0.9)),
            "blocks_p50": percentile([blocks for _, _, blocks in verdicts], 0.5),
        }
        part(name, results[name])
    return results


def rows(pool: Any, scale: float) -> dict[str, dict[str, Any]]:
    """Verdicts on rows of a matrix, by what the command is told of bursts."""
    runs, verdicts = round(ROW_RUNS * scale), dict[str, dict[str, Any]]()
    for burst_s in EXPECTED_BURSTS_S:
        for multiple in MULTIPLES:
            calls = [(multiple, burst_s, seed) for seed in range(runs)]
            states = Counter(pool.map(partial(_call, rowed), calls, chunksize=5))
            verdicts[f"--burst {burst_s:g}s at {multiple:g}x"] = {
                "runs": runs,
                **{state: states[state] / runs for state in ("accepted", "rejected", "not_enough_data")},
                "accepted_interval": interval(states["accepted"], runs),
            }
    return verdicts


def dead_s() -> float:
    """Seconds until a target that refuses all connections is not ready, beside one SLO."""
    slo = Slo("e2e", "e2e", 1.0, Decimal("0.95"), 1e6)
    gate, number = Gate([(slo, JudgedStream("", "", GATE_RATE, 32.0, 48))], rate_per_s=GATE_RATE), 0
    while gate.take(REFUSED, number / GATE_RATE) is None:
        number += 1
    return number / GATE_RATE


def flapping_s(up_s: float, down_s: float, seed: int) -> float:
    """Seconds until a target that refuses connections for `down_s` after each `up_s` is not ready; infinite for another verdict."""
    rng = Random(f"flapping {up_s} {down_s} {seed}")
    slo, at_s, phase_s = Slo("e2e", "e2e", 1.0, Decimal("0.95"), 1e6), 0.0, rng.uniform(0, up_s + down_s)
    gate = Gate([(slo, JudgedStream("", "", GATE_RATE, 32.0, 48))], rate_per_s=GATE_RATE)
    while True:
        at_s += rng.expovariate(GATE_RATE)
        is_up = (at_s + phase_s) % (up_s + down_s) < up_s
        if (verdict := gate.take(GOOD if is_up else REFUSED, at_s)) is not None:
            return at_s if verdict.state == "not_ready" else math.inf


def rarely_failing(share: float, seed: int) -> str:
    """Verdict on a target of whose requests `share` fail, each by itself."""
    rng, at_s = Random(f"rare {share} {seed}"), 0.0
    slo = Slo("ttft", "ttft", 1.0, Decimal("0.9"), 1e6)
    gate = Gate([(slo, JudgedStream("", "", GATE_RATE, 32.0, 48))], rate_per_s=GATE_RATE)
    while True:
        at_s += rng.expovariate(GATE_RATE)
        if (verdict := gate.take(REFUSED if rng.random() < share else GOOD, at_s)) is not None:
            return verdict.state


def least_times() -> dict[str, dict[str, float]]:
    """Seconds that "ready" takes at least, by objective and rate."""
    times: dict[str, dict[str, float]] = {}
    for objective in OBJECTIVES:
        slo = Slo("e2e", "e2e", 1.0, Decimal(objective.rstrip("%")) / 100, 1e6)
        for per_s in (1.0, 2.0, 5.0):
            gate = Gate([(slo, JudgedStream("", "", per_s, 32.0, 48))], rate_per_s=per_s, most=1_000_000)
            times.setdefault(objective, {})[f"{per_s:g}/s"] = round(gate.least / per_s)
    return times


def besides(pool: Any, scale: float) -> dict[str, dict[str, Any]]:
    """Verdicts beside baselines of 300 and of 1,000 requests."""
    found: dict[str, dict[str, Any]] = {}
    for size in (300, 1_000):
        for change in ("none", "+10%", "+20%", "+30%", "+50%"):
            runs = round(200 * scale)
            said = pool.map(partial(_call, based), [(change, size, seed) for seed in range(runs)], chunksize=5)
            verdicts = Counter(state for state, _ in said)
            found[f"{change} of {size}"] = {
                "runs": runs,
                "verdicts": dict(verdicts),
                "ready": verdicts["ready"] / runs,
                "ready_interval": interval(verdicts["ready"], runs),
                "degraded": verdicts["degraded"] / runs,
                "requests_p50": percentile([count for _, count in said], 0.5),
            }
    return found


def failures(scale: float) -> list[dict[str, Any]]:
    """Goals of targets that fail for a time, and of those that fail now and then."""
    runs = range(round(100 * scale))
    goals = [goal("gate: a closed port is not ready after", dead_s(), 3.0, "s")]
    for up_s, down_s in DUTY_CYCLES_S:
        times_s = [flapping_s(up_s, down_s, seed) for seed in runs]
        goals.append(
            goal(f"gate: {up_s:g} s up, {down_s:g} s down: not ready, p90", percentile(times_s, 0.9), 60.0, "s")
        )
    for share in (0.005, 0.02, 0.05):
        wrong = sum(rarely_failing(share, seed) == "not_ready" for seed in runs) / len(runs)
        goals.append(goal(f"gate: not ready where {share:.1%} fail, each by itself", wrong, 0.01, "ratio"))
    return goals


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a tenth of the runs")
    parser.add_argument("--failures", action="store_true", help="only targets that fail")
    options = parser.parse_args()
    scale = 0.1 if options.quick else 1.0
    began = time.monotonic()
    if options.failures:
        show("deciding", failures(scale))
        return
    with Pool() as pool:
        row = part("matrix", rows(pool, scale))
        gate = gates(pool, scale)
        beside = part("baseline", besides(pool, scale))
    single = {name: case for name, case in gate.items() if name.endswith(ARRIVALS[0])}

    def worst(value: str, *multiples: str) -> float:
        return float(max(case[value] for name, case in single.items() if multiple_of(name) in multiples))

    def not_(value: str, *multiples: str) -> float:
        return round(1 - float(min(case[value] for name, case in single.items() if multiple_of(name) in multiples)), 6)

    def in_bursts(value: str, multiple: str) -> float:
        return float(
            max(case[value] for name, case in gate.items() if name.endswith("bursts") and multiple_of(name) == multiple)
        )

    needed = [
        case["blocks_p50"] * (1 - float(name.split("%")[0]) / 100)
        for name, case in single.items()
        if multiple_of(name) == "0.2x"
    ]
    show(
        "deciding",
        [
            goal("gate: ready at the budget itself, worst objective", worst("ready", "1x"), 0.05, "ratio"),
            goal("gate: degraded at the budget or below", worst("degraded", "0.2x", "1x"), 0.05, "ratio"),
            goal("gate: ready at twice the budget or more", worst("ready", "2x", "5x"), 0.01, "ratio"),
            goal("gate: not ready at a fifth of the budget", not_("ready", "0.2x"), 0.05, "ratio"),
            goal("gate: not degraded at five times the budget", not_("degraded", "5x"), 0.05, "ratio"),
            goal("gate: ready at twice the budget, in bursts", in_bursts("ready", "2x"), 0.1, "ratio"),
            goal("gate: ready at five times the budget, in bursts", in_bursts("ready", "5x"), 0.01, "ratio"),
            goal("gate: degraded at a fifth of the budget, in bursts", in_bursts("degraded", "0.2x"), 0.05, "ratio"),
            goal("gate: blocks at a fifth of the budget, median x budget", max(needed), 8.0, "blocks"),
            *failures(scale),
            goal(
                "gate: ready when slower than the baseline by what is material",
                max(beside[f"+20% of {size}"]["ready"] for size in (300, 1_000)),
                0.075,
                "ratio",
            ),
            goal(
                "gate: degraded when as fast as the baseline",
                max(beside[f"none of {size}"]["degraded"] for size in (300, 1_000)),
                0.05,
                "ratio",
            ),
            goal("matrix: accepted at the budget, in bursts", row["--burst 15s at 1x"]["accepted"], 0.05, "ratio"),
            goal("matrix: rejected at the budget, in bursts", row["--burst 15s at 1x"]["rejected"], 0.05, "ratio"),
            goal("matrix: accepted there with --burst 60s", row["--burst 60s at 1x"]["accepted"], 0.05, "ratio"),
            goal("matrix: rejected there with --burst 60s", row["--burst 60s at 1x"]["rejected"], 0.05, "ratio"),
            goal("matrix: accepted at twice the budget, in bursts", row["--burst 15s at 2x"]["accepted"], 0.1, "ratio"),
        ],
        gate=gate,
        gate_least_s=least_times(),
        baseline=beside,
        matrix=row,
        seconds=round(time.monotonic() - began, 1),
    )


if __name__ == "__main__":
    main()
